//! The calls of `fi_atomic(3)`: atomic operations on the memory of peers.

use std::ffi::{c_int, c_void};
use std::ptr;

use super::ep;
use crate::abi::atomic::{AtomicAttr, AtomicOps, Ioc, MsgAtomic};
use crate::abi::atomic::{FI_COMPARE_ATOMIC, FI_FETCH_ATOMIC};
use crate::abi::endpoint::FidEp;
use crate::abi::errno::{FI_EINVAL, FI_EMSGSIZE, FI_EOPNOTSUPP};
use crate::arithmetic::{Mode, Operation};
use crate::exchange::{AtomicRequest, INJECT_BYTES};
use crate::ffi::{Failure, borrow, call, write_at};
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

/// An array of pieces that the program passes, and its length.
#[derive(Clone, Copy)]
struct Vector(*const Ioc, usize);

const NONE: Vector = Vector(ptr::null(), 0);

/// A vector of one piece.
fn one(start: *const c_void, count: usize) -> Ioc {
    let addr = start.cast_mut();
    Ioc { addr, count }
}

/// Operands, what they are compared with, and where what was target goes.
struct Arrays {
    operands: Vector,
    compared: Vector,
    result: Vector,
}

/// A place in the memory of a peer, and the operation on it.
#[derive(Clone, Copy)]
struct RemoteTarget {
    peer: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
}

/// The pieces of a vector of elements of `size` bytes.
///
/// # Safety
/// The requirements of [`Pieces::many`], with lengths in elements.
unsafe fn pieces(Vector(vector, count): Vector, size: usize) -> Result<Pieces, Failure> {
    if count > MAX_PIECES || (vector.is_null() && count > 0) {
        return Err(Failure(FI_EINVAL));
    }
    let mut bytes = [libc::iovec {
        iov_base: ptr::null_mut(),
        iov_len: 0,
    }; MAX_PIECES];
    for (index, buffer) in bytes[..count].iter_mut().enumerate() {
        // SAFETY: `count` elements by contract.
        let ioc = unsafe { crate::ffi::read_at(vector, index) };
        buffer.iov_base = ioc.addr;
        buffer.iov_len = ioc.count.checked_mul(size).ok_or(Failure(FI_EINVAL))?;
    }
    // SAFETY: the caller's contract is the same.
    unsafe { Pieces::many(bytes.as_ptr(), count)?.non_null() }
}

/// Starts an operation.
///
/// # Safety
/// `fid` is an endpoint of this provider; operands are readable during the call; the result buffer
/// belongs to the operation until it completes.
unsafe fn request(
    fid: *mut FidEp,
    mode: Mode,
    arrays: &Arrays,
    target: RemoteTarget,
    context: *mut c_void,
    flags: Option<u64>,
) -> Result<isize, Failure> {
    // SAFETY: the caller guarantees this by contract.
    let ep = unsafe { ep(fid) }?;
    let operation =
        Operation::new(mode, target.datatype, target.op).ok_or(Failure(FI_EOPNOTSUPP))?;
    let size = operation.size();
    let (reads, _) = operation.access();
    // SAFETY: the caller guarantees this by contract.
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
        // A pure read has no operands; the results determine the length.
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
    if length > INJECT_BYTES {
        return Err(Failure(FI_EMSGSIZE));
    }
    let flags = flags.unwrap_or_else(|| ep.transmit.flags());
    let request = AtomicRequest {
        operation,
        operands,
        compared: is_compared.then_some(compared),
        result: reads.then_some(result),
        offset: target.offset,
        key: target.key,
        context: context.expose_provenance(),
        notify: ep.transmit.reports(flags),
    };
    let name = ep.name(target.peer)?;
    ep.begin(|exchange| exchange.update(name, &request))?;
    Ok(0)
}

/// Operands and target of a `struct fi_msg_atomic`.
///
/// # Safety
/// `message` is null or valid.
unsafe fn unpack<'a>(
    message: *const MsgAtomic,
) -> Result<(Vector, RemoteTarget, &'a MsgAtomic), Failure> {
    // SAFETY: libfabric guarantees that the struct is valid during the call.
    let message = unsafe { borrow(message) }.ok_or(Failure(FI_EINVAL))?;
    // SAFETY: null or an array of the length that the struct gives.
    let target = unsafe { borrow(message.rma_iov) };
    let target = target.filter(|_| message.rma_iov_count == 1);
    let target = target.ok_or(Failure(FI_EINVAL))?;
    let target = RemoteTarget {
        peer: message.addr,
        offset: target.addr,
        key: target.key,
        datatype: message.datatype,
        op: message.op,
    };
    Ok((Vector(message.msg_iov, message.iov_count), target, message))
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
    let target = RemoteTarget {
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
    // SAFETY: an endpoint, and operands that are readable during the call.
    call(|| unsafe { request(fid, Mode::Update, &arrays, target, context, None) })
}

unsafe extern "C" fn writemsg(fid: *mut FidEp, message: *const MsgAtomic, flags: u64) -> isize {
    call(|| {
        // SAFETY: libfabric guarantees that the struct is valid during the call.
        let (operands, target, message) = unsafe { unpack(message) }?;
        let arrays = Arrays {
            operands,
            compared: NONE,
            result: NONE,
        };
        // SAFETY: as in `writev`.
        unsafe {
            request(
                fid,
                Mode::Update,
                &arrays,
                target,
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
        let target = RemoteTarget {
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
        // SAFETY: as in `writev`. Operands are always copied.
        unsafe { inject_request(fid, &arrays, target) }
    })
}

/// [`request`] without a completion.
///
/// # Safety
/// The requirements of [`request`].
unsafe fn inject_request(
    fid: *mut FidEp,
    arrays: &Arrays,
    target: RemoteTarget,
) -> Result<isize, Failure> {
    // SAFETY: the caller guarantees this by contract.
    let ep = unsafe { ep(fid) }?;
    let operation = Operation::new(Mode::Update, target.datatype, target.op);
    let operation = operation.ok_or(Failure(FI_EOPNOTSUPP))?;
    // SAFETY: the caller guarantees this by contract.
    let operands = unsafe { pieces(arrays.operands, operation.size()) }?;
    match operands.length() {
        0 => return Err(Failure(FI_EINVAL)),
        1..=INJECT_BYTES => {}
        _ => return Err(Failure(FI_EMSGSIZE)),
    }
    let request = AtomicRequest {
        operation,
        operands,
        compared: None,
        result: None,
        offset: target.offset,
        key: target.key,
        context: 0,
        notify: false,
    };
    let name = ep.name(target.peer)?;
    ep.begin(|exchange| exchange.update(name, &request))?;
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
    let target = RemoteTarget {
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
    // SAFETY: as in `writev`; the result buffer belongs to the operation until it completes.
    call(|| unsafe { request(fid, Mode::Fetch, &arrays, target, context, None) })
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
    let target = RemoteTarget {
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
    call(|| unsafe { request(fid, Mode::Fetch, &arrays, target, context, None) })
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
        // SAFETY: libfabric guarantees that the struct is valid during the call.
        let (operands, target, message) = unsafe { unpack(message) }?;
        let arrays = Arrays {
            operands,
            compared: NONE,
            result: Vector(results, result_count),
        };
        // SAFETY: as in `readwrite`.
        unsafe {
            request(
                fid,
                Mode::Fetch,
                &arrays,
                target,
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
    let target = RemoteTarget {
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
    call(|| unsafe { request(fid, Mode::Compare, &arrays, target, context, None) })
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
    let target = RemoteTarget {
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
    call(|| unsafe { request(fid, Mode::Compare, &arrays, target, context, None) })
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
        // SAFETY: libfabric guarantees that the struct is valid during the call.
        let (operands, target, message) = unsafe { unpack(message) }?;
        let arrays = Arrays {
            operands,
            compared: Vector(compared, compared_count),
            result: Vector(results, result_count),
        };
        // SAFETY: as in `readwrite`.
        unsafe {
            request(
                fid,
                Mode::Compare,
                &arrays,
                target,
                message.context,
                Some(flags),
            )
        }
    })
}

/// The maximum number of elements of an operation, and their size.
fn limits(mode: Mode, datatype: c_int, op: c_int) -> Result<AtomicAttr, Failure> {
    let operation = Operation::new(mode, datatype, op).ok_or(Failure(FI_EOPNOTSUPP))?;
    let size = operation.size();
    Ok(AtomicAttr {
        count: INJECT_BYTES / size,
        size,
    })
}

/// # Safety
/// `count` is null or valid for writes.
unsafe fn valid(mode: Mode, datatype: c_int, op: c_int, count: *mut usize) -> c_int {
    call(|| {
        let limits = limits(mode, datatype, op)?;
        // SAFETY: the caller guarantees this by contract.
        unsafe { write_at(count, 0, limits.count) };
        Ok(0)
    })
}

unsafe extern "C" fn writevalid(
    _: *mut FidEp,
    datatype: c_int,
    op: c_int,
    count: *mut usize,
) -> c_int {
    // SAFETY: `count` is null or valid for writes.
    unsafe { valid(Mode::Update, datatype, op, count) }
}

unsafe extern "C" fn readwritevalid(
    _: *mut FidEp,
    datatype: c_int,
    op: c_int,
    count: *mut usize,
) -> c_int {
    // SAFETY: `count` is null or valid for writes.
    unsafe { valid(Mode::Fetch, datatype, op, count) }
}

unsafe extern "C" fn compwritevalid(
    _: *mut FidEp,
    datatype: c_int,
    op: c_int,
    count: *mut usize,
) -> c_int {
    // SAFETY: `count` is null or valid for writes.
    unsafe { valid(Mode::Compare, datatype, op, count) }
}

/// The attributes of an operation, as `fi_query_atomic` reports them.
///
/// # Errors
/// The operation is not offered.
pub(crate) fn query(datatype: c_int, op: c_int, flags: u64) -> Result<AtomicAttr, Failure> {
    let mode = match (flags & FI_FETCH_ATOMIC != 0, flags & FI_COMPARE_ATOMIC != 0) {
        (_, true) => Mode::Compare,
        (true, false) => Mode::Fetch,
        (false, false) => Mode::Update,
    };
    limits(mode, datatype, op)
}
