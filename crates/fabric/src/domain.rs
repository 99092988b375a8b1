//! The domain object of libfabric: this process's node, and the objects opened there.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::abi::atomic::AtomicAttr;
use crate::abi::domain::{AvAttr, DomainOps, FidAv, FidDomain, FidMr, MrAttr, MrOps};
use crate::abi::endpoint::FidEp;
use crate::abi::eq::{CntrAttr, CqAttr, FidCntr, FidCq, FidEq};
use crate::abi::errno::{FI_EBUSY, FI_EINVAL, FI_ENODATA};
use crate::abi::fabric::{FI_CLASS_DOMAIN, FI_CLASS_EQ, FI_REG_MR, Fid, Info, Ops};
use crate::av::Av;
use crate::counter::Counter;
use crate::endpoint::{Ep, atomic};
use crate::eq::EventQueue;
use crate::ffi::{
    Failure, borrow, call, class, export, fid, missing, object, ops, reclaim, write_at,
};
use crate::mr::{Access, Mr};
use crate::node::Domain;
use crate::queue::Queue;
use crate::wait_trace;

static OPS: Ops = Ops { bind, ..ops(close) };
static DOMAIN_OPS: DomainOps = DomainOps {
    size: size_of::<DomainOps>(),
    av_open,
    cq_open,
    endpoint,
    scalable_ep: missing!("scalable_ep"),
    cntr_open,
    poll_open: missing!("poll_open"),
    stx_ctx: missing!("stx_ctx"),
    srx_ctx: missing!("srx_ctx"),
    query_atomic,
    query_collective: missing!("query_collective"),
    endpoint2: missing!("endpoint2"),
};
static MR_OPS: MrOps = MrOps {
    size: size_of::<MrOps>(),
    reg,
    regv,
    regattr,
};

/// Opens this process's node.
///
/// # Safety
/// `out` is null or valid for writes.
pub(crate) unsafe fn open(
    out: *mut *mut FidDomain,
    context: *mut c_void,
) -> Result<c_int, Failure> {
    let domain = Domain::open().map_err(|cause| {
        eprintln!("dipole: cannot open the libfabric provider: {cause}");
        Failure(FI_ENODATA)
    })?;
    let fid = FidDomain {
        fid: fid(FI_CLASS_DOMAIN, context, &OPS),
        ops: &DOMAIN_OPS,
        mr: &MR_OPS,
    };
    // SAFETY: the arguments are valid by contract.
    unsafe { export(out, fid, Arc::new(domain)) }
}

/// The domain behind a pointer from C.
///
/// # Safety
/// `domain` is null or a domain of this provider.
unsafe fn domain<'a>(domain: *const FidDomain) -> Result<&'a Arc<Domain>, Failure> {
    // SAFETY: the caller's contract is the same.
    unsafe { object(domain) }
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    call(|| {
        // SAFETY: a domain that C has not closed.
        let users = Arc::strong_count(unsafe { domain(fid.cast()) }?);
        if users > 1 {
            return Err(Failure(FI_EBUSY));
        }
        // SAFETY: created by `open`; C does not use it again.
        let domain = unsafe { reclaim::<FidDomain, Arc<Domain>>(fid) }?;
        drop(domain);
        wait_trace::close();
        Ok(0)
    })
}

/// Binds an event queue, which reports registered memory if `FI_REG_MR` is set.
unsafe extern "C" fn bind(fid: *mut Fid, other: *mut Fid, flags: u64) -> c_int {
    call(|| {
        // SAFETY: a domain, and an object of this provider.
        let (domain, class) = unsafe { (domain(fid.cast())?, class(other)?) };
        if class != FI_CLASS_EQ {
            return Err(Failure(FI_EINVAL));
        }
        // SAFETY: its class determines its type.
        let queue: &EventQueue = unsafe { object(other.cast::<FidEq>()) }?;
        if flags & FI_REG_MR != 0 {
            let bound = domain.events.set(Arc::clone(&queue.events));
            bound.map_err(|_| Failure(FI_EINVAL))?;
        }
        Ok(0)
    })
}

unsafe extern "C" fn av_open(
    fid: *mut FidDomain,
    attr: *mut AvAttr,
    out: *mut *mut FidAv,
    context: *mut c_void,
) -> c_int {
    // SAFETY: a domain of this provider, and `out` is null or valid for writes.
    call(|| unsafe {
        domain(fid)?;
        Av::open(borrow(attr), out, context)
    })
}

unsafe extern "C" fn cq_open(
    fid: *mut FidDomain,
    attr: *mut CqAttr,
    out: *mut *mut FidCq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: a domain of this provider, valid attributes, and `out` is null or valid for writes.
    call(|| unsafe {
        domain(fid)?;
        Queue::open(borrow(attr), out, context)
    })
}

unsafe extern "C" fn cntr_open(
    fid: *mut FidDomain,
    attr: *mut CntrAttr,
    out: *mut *mut FidCntr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: a domain of this provider, valid attributes, and `out` is null or valid for writes.
    call(|| unsafe {
        domain(fid)?;
        Counter::open(borrow(attr), out, context)
    })
}

unsafe extern "C" fn endpoint(
    fid: *mut FidDomain,
    info: *mut Info,
    out: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int {
    // SAFETY: a domain of this provider, valid attributes, and `out` is null or valid for writes.
    call(|| unsafe { Ep::open(domain(fid)?, borrow(info), out, context) })
}

unsafe extern "C" fn query_atomic(
    _: *mut FidDomain,
    datatype: c_int,
    op: c_int,
    attr: *mut AtomicAttr,
    flags: u64,
) -> c_int {
    call(|| {
        let most = atomic::query(datatype, op, flags)?;
        // SAFETY: null or valid for writes.
        unsafe { write_at(attr, 0, most) };
        Ok(0)
    })
}

unsafe extern "C" fn reg(
    fid: *mut Fid,
    memory: *const c_void,
    length: usize,
    access: u64,
    _: u64,
    _: u64,
    _: u64,
    out: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the program keeps the memory valid until it closes the region.
    call(|| unsafe {
        let access = Access { access, context };
        Mr::open(domain(fid.cast())?, (memory, length), access, out)
    })
}

unsafe extern "C" fn regv(
    fid: *mut Fid,
    vector: *const libc::iovec,
    count: usize,
    access: u64,
    _: u64,
    _: u64,
    _: u64,
    out: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: an array of `count` elements.
        let piece = unsafe { borrow(vector) };
        let piece = piece.filter(|_| count == 1).ok_or(Failure(FI_EINVAL))?;
        let memory = (piece.iov_base.cast_const(), piece.iov_len);
        // SAFETY: as in `reg`.
        unsafe {
            let access = Access { access, context };
            Mr::open(domain(fid.cast())?, memory, access, out)
        }
    })
}

unsafe extern "C" fn regattr(
    fid: *mut Fid,
    attr: *const MrAttr,
    _: u64,
    out: *mut *mut FidMr,
) -> c_int {
    // SAFETY: valid attributes.
    let Some(attr) = (unsafe { borrow(attr) }) else {
        return -FI_EINVAL;
    };
    // SAFETY: as in `regv`.
    unsafe {
        regv(
            fid,
            attr.mr_iov,
            attr.iov_count,
            attr.access,
            0,
            0,
            0,
            out,
            attr.context,
        )
    }
}
