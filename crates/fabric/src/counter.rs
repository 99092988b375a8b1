//! The counter objects of libfabric.

use std::ffi::{c_int, c_void};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::abi::eq::{CntrAttr, CntrOps, FI_WAIT_NONE, FidCntr};
use crate::abi::errno::{FI_EAVAIL, FI_EBUSY, FI_ETIMEDOUT};
use crate::abi::fabric::{FI_CLASS_CNTR, Fid, Ops};
use crate::completion::Cntr;
use crate::ffi::{Failure, call, export, fid, object, ops, reclaim};
use crate::wait_object::{WaitObject, descriptor_failure};

/// The libfabric object of a completion counter.
pub(crate) struct Counter(pub(crate) Arc<Cntr>, WaitObject);

static OPS: Ops = Ops {
    control,
    ..ops(close)
};
static CNTR_OPS: CntrOps = CntrOps {
    size: size_of::<CntrOps>(),
    read,
    readerr,
    add,
    set,
    wait,
    adderr,
    seterr,
};

impl Counter {
    /// # Safety
    /// `out` is null or valid for writes.
    pub(crate) unsafe fn open(
        attr: Option<&CntrAttr>,
        out: *mut *mut FidCntr,
        context: *mut c_void,
    ) -> Result<c_int, Failure> {
        let wait = WaitObject::from_attr(attr.map_or(FI_WAIT_NONE, |attr| attr.wait_obj))?;
        let counter = Counter(Arc::default(), wait);
        if wait == WaitObject::Descriptor {
            counter
                .open_descriptor()
                .map_err(|cause| descriptor_failure(&cause))?;
        }
        let fid = FidCntr {
            fid: fid(FI_CLASS_CNTR, context, &OPS),
            ops: &CNTR_OPS,
        };
        // SAFETY: the arguments are valid by contract.
        unsafe { export(out, fid, counter) }
    }

    fn open_descriptor(&self) -> io::Result<i32> {
        let number = self.0.sources.open_descriptor()?.number();
        self.0.update_descriptor();
        Ok(number)
    }
}

/// The counter behind a pointer from C.
///
/// # Safety
/// `counter` is null or was created by this provider.
unsafe fn counter<'a>(counter: *const FidCntr) -> Result<&'a Cntr, Failure> {
    // SAFETY: the caller's contract is the same.
    let counter: &Counter = unsafe { object(counter) }?;
    Ok(&counter.0)
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    call(|| {
        // SAFETY: a counter that C has not closed.
        if !unsafe { counter(fid.cast()) }?.sources.is_empty() {
            return Err(Failure(FI_EBUSY));
        }
        // SAFETY: created by `Counter::open`; C does not use it again.
        unsafe { reclaim::<FidCntr, Counter>(fid) }.map(|_| 0)
    })
}

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, buffer: *mut c_void) -> c_int {
    call(|| {
        // SAFETY: libfabric passes a counter of this provider.
        let counter: &Counter = unsafe { object(fid.cast::<FidCntr>()) }?;
        // SAFETY: a buffer for the result of the command.
        unsafe { (counter.1).control(command, buffer, || counter.open_descriptor()) }
    })
}

/// # Safety
/// The requirements of [`counter`].
unsafe fn read_value(fid: *mut FidCntr, which: impl FnOnce(&Cntr) -> &AtomicU64) -> u64 {
    // SAFETY: the caller's contract is the same.
    let Ok(counter) = (unsafe { counter(fid) }) else {
        return 0;
    };
    counter.sources.progress();
    which(counter).load(Ordering::Acquire)
}

unsafe extern "C" fn read(fid: *mut FidCntr) -> u64 {
    // SAFETY: libfabric passes a counter of this provider.
    unsafe { read_value(fid, |counter| &counter.value) }
}

unsafe extern "C" fn readerr(fid: *mut FidCntr) -> u64 {
    // SAFETY: libfabric passes a counter of this provider.
    unsafe { read_value(fid, |counter| &counter.failed) }
}

/// # Safety
/// The requirements of [`counter`].
unsafe fn change(fid: *mut FidCntr, change: impl FnOnce(&Cntr)) -> c_int {
    call(|| {
        // SAFETY: the caller's contract is the same.
        let counter = unsafe { counter(fid) }?;
        change(counter);
        counter.update_descriptor();
        Ok(0)
    })
}

unsafe extern "C" fn add(fid: *mut FidCntr, value: u64) -> c_int {
    let add = |counter: &Cntr| {
        counter.value.fetch_add(value, Ordering::AcqRel);
    };
    // SAFETY: libfabric passes a counter of this provider.
    unsafe { change(fid, add) }
}

unsafe extern "C" fn set(fid: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: libfabric passes a counter of this provider.
    unsafe { change(fid, |counter| counter.value.store(value, Ordering::Release)) }
}

unsafe extern "C" fn adderr(fid: *mut FidCntr, value: u64) -> c_int {
    let add = |counter: &Cntr| {
        counter.failed.fetch_add(value, Ordering::AcqRel);
    };
    // SAFETY: libfabric passes a counter of this provider.
    unsafe { change(fid, add) }
}

unsafe extern "C" fn seterr(fid: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: libfabric passes a counter of this provider.
    unsafe {
        change(fid, |counter| {
            counter.failed.store(value, Ordering::Release)
        })
    }
}

unsafe extern "C" fn wait(fid: *mut FidCntr, threshold: u64, timeout: c_int) -> c_int {
    call(|| {
        // SAFETY: libfabric passes a counter of this provider.
        let counter = unsafe { counter(fid) }?;
        let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
        let failed = counter.failed.load(Ordering::Acquire);
        let reached = counter.sources.wait(timeout, || {
            if counter.value.load(Ordering::Acquire) >= threshold {
                return Some(Ok(0));
            }
            let has_failed = counter.failed.load(Ordering::Acquire) != failed;
            has_failed.then_some(Err(Failure(FI_EAVAIL)))
        });
        reached.unwrap_or(Err(Failure(FI_ETIMEDOUT)))
    })
}
