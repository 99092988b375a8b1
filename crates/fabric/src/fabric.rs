//! The provider and its one fabric.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use crate::abi::eq::{EqAttr, FidCntr, FidCq, FidEq};
use crate::abi::errno::FI_EINVAL;
use crate::abi::fabric::{
    FI_CLASS_CNTR, FI_CLASS_CQ, FI_CLASS_EQ, FI_CLASS_FABRIC, FabricAttr, FabricOps, Fid,
    FidFabric, Info, Ops, version,
};
use crate::abi::prov::Provider;
use crate::counter::Counter;
use crate::domain;
use crate::eq::EventQueue;
use crate::guard::{
    AGAIN, Failure, call, class, fid, give, given, missing, object, ops, read_at, take,
};
use crate::info::{self, NAME};
use crate::queue::Queue;

/// What this provider speaks; libfabric serves older programs.
const SPOKEN: u32 = version(2, 6);

struct Shared(Provider);

// SAFETY: libfabric alone writes to it, to what is its own, under its lock.
unsafe impl Sync for Shared {}

static PROVIDER: Shared = Shared(Provider {
    version: version(1, 0),
    fi_version: SPOKEN,
    context: [ptr::null_mut(); 4],
    name: NAME.as_ptr(),
    getinfo,
    fabric: open,
    cleanup,
});

/// What libfabric calls first.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut Provider {
    dipole_node::log::init_library("libdipole-fi");
    let copied = Box::new(Provider {
        context: [ptr::null_mut(); 4],
        ..PROVIDER.0
    });
    // libfabric keeps it until the process ends.
    Box::into_raw(copied)
}

unsafe extern "C" fn getinfo(
    _: u32,
    _: *const c_char,
    _: *const c_char,
    _: u64,
    hints: *const Info,
    out: *mut *mut Info,
) -> c_int {
    // SAFETY: libfabric's own structs, valid during the call.
    call(|| unsafe { info::getinfo(hints, out) })
}

unsafe extern "C" fn cleanup() {}

static OPS: Ops = ops(close);
static FABRIC_OPS: FabricOps = FabricOps {
    size: size_of::<FabricOps>(),
    domain: open_domain,
    passive_ep: missing!("passive_ep"),
    eq_open,
    wait_open: missing!("wait_open"),
    trywait,
    domain2: missing!("domain2"),
};

unsafe extern "C" fn open(
    _: *mut FabricAttr,
    out: *mut *mut FidFabric,
    context: *mut c_void,
) -> c_int {
    let fabric = FidFabric {
        fid: fid(FI_CLASS_FABRIC, context, &OPS),
        ops: &FABRIC_OPS,
        api_version: SPOKEN,
    };
    // SAFETY: valid for writes by libfabric's contract.
    call(|| unsafe { give(out, fabric, ()) })
}

unsafe extern "C" fn close(fabric: *mut Fid) -> c_int {
    // SAFETY: made by `open`, given up by C.
    call(|| unsafe { take::<FidFabric, ()>(fabric) }.map(|()| 0))
}

unsafe extern "C" fn open_domain(
    _: *mut FidFabric,
    _: *mut Info,
    out: *mut *mut c_void,
    context: *mut c_void,
) -> c_int {
    // SAFETY: valid by libfabric's contract.
    call(|| unsafe { domain::open(out.cast(), context) })
}

/// Says whether waiting for descriptors may begin: nothing is there already.
unsafe extern "C" fn trywait(_: *mut FidFabric, fids: *mut *mut Fid, count: c_int) -> c_int {
    call(|| {
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: as many as `count` says.
            let fid = unsafe { read_at(fids, index) };
            // SAFETY: an object of this provider.
            let may_wait = match unsafe { class(fid) }? {
                FI_CLASS_CQ => {
                    // SAFETY: its class says what it is.
                    let queue: &Queue = unsafe { object(fid.cast::<FidCq>()) }?;
                    queue.cq.may_sleep()
                }
                FI_CLASS_EQ => {
                    // SAFETY: as above.
                    let queue: &EventQueue = unsafe { object(fid.cast::<FidEq>()) }?;
                    queue.events.is_empty()
                }
                FI_CLASS_CNTR => {
                    // SAFETY: as above.
                    let counter: &Counter = unsafe { object(fid.cast::<FidCntr>()) }?;
                    counter.0.may_sleep()
                }
                _ => return Err(Failure(FI_EINVAL)),
            };
            if !may_wait {
                return Err(AGAIN);
            }
        }
        Ok(0)
    })
}

unsafe extern "C" fn eq_open(
    _: *mut FidFabric,
    attr: *mut c_void,
    out: *mut *mut c_void,
    context: *mut c_void,
) -> c_int {
    // SAFETY: valid by libfabric's contract.
    call(|| unsafe { EventQueue::open(given(attr.cast::<EqAttr>()), out.cast(), context) })
}
