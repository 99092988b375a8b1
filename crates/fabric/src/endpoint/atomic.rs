//! Calls for atomic operations on others' memory.

use std::ffi::{c_int, c_void};
use std::ptr;

use super::ep;
use crate::abi::atomic::{AtomicAttr, AtomicOps, Ioc, MsgAtomic};
use crate::abi::atomic::{FI_COMPARE_ATOMIC, FI_FETCH_ATOMIC};
use crate::abi::endpoint::FidEp;
use crate::abi::errno::{FI_EINVAL, FI_EMSGSIZE, FI_EOPNOTSUPP};
use crate::arithmetic::{Mode, Operation};
use crate::completion::lock;
use crate::exchange::{EAGER_BYTES, Updating};
use crate::guard::{Failure, call, given, write_at};
use crate::memory::{MAX_PIECES, Pieces};

pub(super) static OPS: AtomicOps = AtomicOps {
    size: size_of::<AtomicOps>(),
    write,
    writev,
    writemsg,
    inject,
    readwrite,
    readwritev,
    readwritemsg,
    compwrite,
    compwritev,
    compwritemsg,
    writevalid,
    readwritevalid,
    compwritevalid,
};

/// Arrays of the program: where they begin, and how many pieces they have.
#[derive(Clone, Copy)]
struct Vector(*const Ioc, usize);

const NONE: Vector = Vector(ptr::null(), 0);

/// One array.
fn one(start: *const c_void, count: usize) -> Ioc {
    let addr = start.cast_mut();
    Ioc { addr, count }
}

/// Operands, what they are compared with, and where what was there goes.
struct Arrays {
    operands: Vector,
    compared: Vector,
    result: Vector,
}

/// Where in whose memory, and what.
#[derive(Clone, Copy)]
struct There {
    peer: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
}

/// The bytes of arrays of elements of `size` bytes.
///
/// # Safety
/// As [`Pieces::many`] wants it, in elements.
unsafe fn pieces(Vector(vector, count): Vector, size: usize) -> Result<Pieces, Failure> {
    if count > MAX_PIECES || (vector.is_null() && count > 0) {
        return Err(Failure(FI_EINVAL));
    }
    let mut bytes = [libc::iovec {
        iov_base: ptr::null_mut(),
        iov_len: 0,
    }; MAX_PIECES];
    for (index, place) in bytes[..count].iter_mut().enumerate() {
        // SAFETY: `count` elements by contract.
        let ioc = unsafe { crate::guard::read_at(vector, index) };
        place.iov_base = ioc.addr;
        place.iov_len = ioc.count.checked_mul(size).ok_or(Failure(FI_EINVAL))?;
    }
    // SAFETY: the contract is the same.
    unsafe { Pieces::many(bytes.as_ptr(), count)?.somewhere() }
}

/// Asks for an operation.
///
/// # Safety
/// `fid` is an endpoint of this provider; operands are readable during the call, the result is
/// the operation's until it completes.
unsafe fn ask(
    fid: *mut FidEp,
    mode: Mode,
    arrays: &Arrays,
    there: There,
    context: *mut c_void,
    flags: Option<u64>,
) -> Result<isize, Failure> {
    // SAFETY: by contract.
    let ep = unsafe { ep(fid) }?;
    let operation = Operation::new(mode, there.datatype, there.op).ok_or(Failure(FI_EOPNOTSUPP))?;
    let size = operation.size();
    let (reads, _) = operation.access();
    // SAFETY: by contract.
    let (mut operands, compared, result) = unsafe {
        (
            pieces(arrays.operands, size)?,
            pieces(arrays.compared, size)?,
            pieces(arrays.result, size)?,
        )
    };
    let length = if reads {
        result.length()
    } else {
        operands.length()
    };
    let is_read = !operation.access().1;
    if is_read {
        // What is only read needs no operands; their number is that of the results.
        operands = result;
    }
    let is_compared = mode == Mode::Compare;
    if length == 0
        || operands.length() != length
        || is_compared && compared.length() != length
        || reads && result.length() != length
    {
        return Err(Failure(FI_EINVAL));
    }
    if length > EAGER_BYTES {
        return Err(Failure(FI_EMSGSIZE));
    }
    let flags = flags.unwrap_or_else(|| ep.transmit.flags());
    let updating = Updating {
        operation,
        operands,
        compared: is_compared.then_some(compared),
        result: reads.then_some(result),
        offset: there.offset,
        key: there.key,
        context: context.expose_provenance(),
        wanted: ep.transmit.wants(flags),
    };
    let name = ep.name(there.peer)?;
    lock(&ep.exchange).update(name, &updating)?;
    Ok(0)
}

/// What a struct of C's asks for.
///
/// # Safety
/// `message` is null or valid.
unsafe fn asked<'a>(message: *const MsgAtomic) -> Result<(Vector, There, &'a MsgAtomic), Failure> {
    // SAFETY: valid during the call.
    let message = unsafe { given(message) }.ok_or(Failure(FI_EINVAL))?;
    // SAFETY: as many as the struct says.
    let there = unsafe { given(message.rma_iov) };
    let there = there.filter(|_| message.rma_iov_count == 1);
    let there = there.ok_or(Failure(FI_EINVAL))?;
    let there = There {
        peer: message.addr,
        offset: there.addr,
        key: there.key,
        datatype: message.datatype,
        op: message.op,
    };
    Ok((Vector(message.msg_iov, message.iov_count), there, message))
}

unsafe extern "C" fn write(
    fid: *mut FidEp,
    operands: *const c_void,
    count: usize,
    _: *mut c_void,
    peer: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let operands = one(operands, count);
    // SAFETY: the contract is that of `fi_atomicv`.
    unsafe {
        writev(
            fid,
            &raw const operands,
            ptr::null_mut(),
            1,
            peer,
            offset,
            key,
            datatype,
            op,
            context,
        )
    }
}

unsafe extern "C" fn writev(
    fid: *mut FidEp,
    vector: *const Ioc,
    _: *mut *mut c_void,
    count: usize,
    peer: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let there = There {
        peer,
        offset,
        key,
        datatype,
        op,
    };
    let arrays = Arrays {
        operands: Vector(vector, count),
        compared: NONE,
        result: NONE,
    };
    // SAFETY: an endpoint, and operands that C lends for the call.
    call(|| unsafe { ask(fid, Mode::Update, &arrays, there, context, None) })
}

unsafe extern "C" fn writemsg(fid: *mut FidEp, message: *const MsgAtomic, flags: u64) -> isize {
    call(|| {
        // SAFETY: valid during the call.
        let (operands, there, message) = unsafe { asked(message) }?;
        let arrays = Arrays {
            operands,
            compared: NONE,
            result: NONE,
        };
        // SAFETY: as in `writev`.
        unsafe {
            ask(
                fid,
                Mode::Update,
                &arrays,
                there,
                message.context,
                Some(flags),
            )
        }
    })
}

unsafe extern "C" fn inject(
    fid: *mut FidEp,
    operands: *const c_void,
    count: usize,
    peer: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
) -> isize {
    call(|| {
        let there = There {
            peer,
            offset,
            key,
            datatype,
            op,
        };
        let operands = one(operands, count);
        let arrays = Arrays {
            operands: Vector(&raw const operands, 1),
            compared: NONE,
            result: NONE,
        };
        // SAFETY: as in `writev`; operands are always copied.
        unsafe { ask_unseen(fid, &arrays, there) }
    })
}

/// [`ask`] for what nobody sees complete.
///
/// # Safety
/// That of [`ask`].
unsafe fn ask_unseen(fid: *mut FidEp, arrays: &Arrays, there: There) -> Result<isize, Failure> {
    // SAFETY: by contract.
    let ep = unsafe { ep(fid) }?;
    let operation = Operation::new(Mode::Update, there.datatype, there.op);
    let operation = operation.ok_or(Failure(FI_EOPNOTSUPP))?;
    // SAFETY: by contract.
    let operands = unsafe { pieces(arrays.operands, operation.size()) }?;
    match operands.length() {
        0 => return Err(Failure(FI_EINVAL)),
        1..=EAGER_BYTES => {}
        _ => return Err(Failure(FI_EMSGSIZE)),
    }
    let updating = Updating {
        operation,
        operands,
        compared: None,
        result: None,
        offset: there.offset,
        key: there.key,
        context: 0,
        wanted: false,
    };
    lock(&ep.exchange).update(ep.name(there.peer)?, &updating)?;
    Ok(0)
}

unsafe extern "C" fn readwrite(
    fid: *mut FidEp,
    operands: *const c_void,
    count: usize,
    _: *mut c_void,
    result: *mut c_void,
    _: *mut c_void,
    peer: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let there = There {
        peer,
        offset,
        key,
        datatype,
        op,
    };
    let (operands, result) = (one(operands, count), one(result, count));
    let arrays = Arrays {
        operands: Vector(&raw const operands, usize::from(!operands.addr.is_null())),
        compared: NONE,
        result: Vector(&raw const result, 1),
    };
    // SAFETY: as in `writev`; the result is the operation's until it completes.
    call(|| unsafe { ask(fid, Mode::Fetch, &arrays, there, context, None) })
}

unsafe extern "C" fn readwritev(
    fid: *mut FidEp,
    vector: *const Ioc,
    _: *mut *mut c_void,
    count: usize,
    results: *const Ioc,
    _: *mut *mut c_void,
    result_count: usize,
    peer: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let there = There {
        peer,
        offset,
        key,
        datatype,
        op,
    };
    let arrays = Arrays {
        operands: Vector(vector, count),
        compared: NONE,
        result: Vector(results, result_count),
    };
    // SAFETY: as in `readwrite`.
    call(|| unsafe { ask(fid, Mode::Fetch, &arrays, there, context, None) })
}

unsafe extern "C" fn readwritemsg(
    fid: *mut FidEp,
    message: *const MsgAtomic,
    results: *const Ioc,
    _: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    call(|| {
        // SAFETY: valid during the call.
        let (operands, there, message) = unsafe { asked(message) }?;
        let arrays = Arrays {
            operands,
            compared: NONE,
            result: Vector(results, result_count),
        };
        // SAFETY: as in `readwrite`.
        unsafe {
            ask(
                fid,
                Mode::Fetch,
                &arrays,
                there,
                message.context,
                Some(flags),
            )
        }
    })
}

unsafe extern "C" fn compwrite(
    fid: *mut FidEp,
    operands: *const c_void,
    count: usize,
    _: *mut c_void,
    compared: *const c_void,
    _: *mut c_void,
    result: *mut c_void,
    _: *mut c_void,
    peer: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let there = There {
        peer,
        offset,
        key,
        datatype,
        op,
    };
    let [operands, compared] = [operands, compared].map(|start| one(start, count));
    let result = one(result, count);
    let arrays = Arrays {
        operands: Vector(&raw const operands, 1),
        compared: Vector(&raw const compared, 1),
        result: Vector(&raw const result, 1),
    };
    // SAFETY: as in `readwrite`.
    call(|| unsafe { ask(fid, Mode::Compare, &arrays, there, context, None) })
}

unsafe extern "C" fn compwritev(
    fid: *mut FidEp,
    vector: *const Ioc,
    _: *mut *mut c_void,
    count: usize,
    compared: *const Ioc,
    _: *mut *mut c_void,
    compared_count: usize,
    results: *const Ioc,
    _: *mut *mut c_void,
    result_count: usize,
    peer: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let there = There {
        peer,
        offset,
        key,
        datatype,
        op,
    };
    let arrays = Arrays {
        operands: Vector(vector, count),
        compared: Vector(compared, compared_count),
        result: Vector(results, result_count),
    };
    // SAFETY: as in `readwrite`.
    call(|| unsafe { ask(fid, Mode::Compare, &arrays, there, context, None) })
}

unsafe extern "C" fn compwritemsg(
    fid: *mut FidEp,
    message: *const MsgAtomic,
    compared: *const Ioc,
    _: *mut *mut c_void,
    compared_count: usize,
    results: *const Ioc,
    _: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    call(|| {
        // SAFETY: valid during the call.
        let (operands, there, message) = unsafe { asked(message) }?;
        let arrays = Arrays {
            operands,
            compared: Vector(compared, compared_count),
            result: Vector(results, result_count),
        };
        // SAFETY: as in `readwrite`.
        unsafe {
            ask(
                fid,
                Mode::Compare,
                &arrays,
                there,
                message.context,
                Some(flags),
            )
        }
    })
}

/// How many elements an operation takes at most.
fn most(mode: Mode, datatype: c_int, op: c_int) -> Result<AtomicAttr, Failure> {
    let operation = Operation::new(mode, datatype, op).ok_or(Failure(FI_EOPNOTSUPP))?;
    let size = operation.size();
    Ok(AtomicAttr {
        count: EAGER_BYTES / size,
        size,
    })
}

/// # Safety
/// `count` is null or valid for writes.
unsafe fn valid(mode: Mode, datatype: c_int, op: c_int, count: *mut usize) -> c_int {
    call(|| {
        let most = most(mode, datatype, op)?;
        // SAFETY: by contract.
        unsafe { write_at(count, 0, most.count) };
        Ok(0)
    })
}

unsafe extern "C" fn writevalid(
    _: *mut FidEp,
    datatype: c_int,
    op: c_int,
    count: *mut usize,
) -> c_int {
    // SAFETY: a place for an answer.
    unsafe { valid(Mode::Update, datatype, op, count) }
}

unsafe extern "C" fn readwritevalid(
    _: *mut FidEp,
    datatype: c_int,
    op: c_int,
    count: *mut usize,
) -> c_int {
    // SAFETY: a place for an answer.
    unsafe { valid(Mode::Fetch, datatype, op, count) }
}

unsafe extern "C" fn compwritevalid(
    _: *mut FidEp,
    datatype: c_int,
    op: c_int,
    count: *mut usize,
) -> c_int {
    // SAFETY: a place for an answer.
    unsafe { valid(Mode::Compare, datatype, op, count) }
}

/// The same, asked of a domain.
///
/// # Errors
/// There is no such operation.
pub(crate) fn query(datatype: c_int, op: c_int, flags: u64) -> Result<AtomicAttr, Failure> {
    let mode = match (flags & FI_FETCH_ATOMIC != 0, flags & FI_COMPARE_ATOMIC != 0) {
        (_, true) => Mode::Compare,
        (true, false) => Mode::Fetch,
        (false, false) => Mode::Update,
    };
    most(mode, datatype, op)
}
