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
use crate::ffi::{
    AGAIN, Failure, borrow, call, class, export, fid, missing, object, ops, read_at, reclaim,
};
use crate::info::{self, NAME};
use crate::queue::Queue;

/// The version of the interface that is implemented; libfabric adapts it for older programs.
const API_VERSION: u32 = version(2, 6);

struct Shared(Provider);

// SAFETY: only libfabric writes to it, to its own members, and under its own lock.
unsafe impl Sync for Shared {}

static PROVIDER: Shared = Shared(Provider {
    version: version(1, 0),
    fi_version: API_VERSION,
    context: [ptr::null_mut(); 4],
    name: NAME.as_ptr(),
    getinfo,
    fabric: open,
    cleanup,
});

/// Entry point of the provider: libfabric calls this first.
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
    // SAFETY: structs of libfabric that are valid during the call.
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
        api_version: API_VERSION,
    };
    // SAFETY: valid for writes by libfabric's contract.
    call(|| unsafe { export(out, fabric, ()) })
}

unsafe extern "C" fn close(fabric: *mut Fid) -> c_int {
    // SAFETY: created by `open`; C does not use it again.
    call(|| unsafe { reclaim::<FidFabric, ()>(fabric) }.map(|()| 0))
}

unsafe extern "C" fn open_domain(
    _: *mut FidFabric,
    _: *mut Info,
    out: *mut *mut c_void,
    context: *mut c_void,
) -> c_int {
    // SAFETY: libfabric guarantees valid arguments.
    call(|| unsafe { domain::open(out.cast(), context) })
}

/// Reports whether the program may sleep on the descriptors: nothing waits to be read.
unsafe extern "C" fn trywait(_: *mut FidFabric, fids: *mut *mut Fid, count: c_int) -> c_int {
    call(|| {
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the array has `count` elements.
            let fid = unsafe { read_at(fids, index) };
            // SAFETY: an object of this provider.
            let may_wait = match unsafe { class(fid) }? {
                FI_CLASS_CQ => {
                    // SAFETY: its class determines its type.
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
    // SAFETY: libfabric guarantees valid arguments.
    call(|| unsafe { EventQueue::open(borrow(attr.cast::<EqAttr>()), out.cast(), context) })
}
