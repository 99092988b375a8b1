//! Registered memory: a region that peers access by its key.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use dipole_node::{Region, Rights};

use crate::abi::domain::FidMr;
use crate::abi::errno::{FI_EINVAL, FI_ENOMEM};
use crate::abi::fabric::{FI_CLASS_MR, FI_REMOTE_READ, FI_REMOTE_WRITE, Fid, Ops};
use crate::ffi::{Failure, call, export, fid, ops, reclaim};
use crate::memory::RegisteredMemory;
use crate::node::Domain;

/// Access rights of peers, and the program's context.
pub(crate) struct Access {
    pub(crate) access: u64,
    pub(crate) context: *mut c_void,
}

/// The libfabric object of a registered memory region.
pub(crate) struct Mr {
    // Closed before the memory is released.
    region: Region,
    _memory: RegisteredMemory,
    domain: Arc<Domain>,
}

static OPS: Ops = Ops {
    bind,
    control,
    ..ops(close)
};

impl Mr {
    /// Opens memory to peers.
    ///
    /// # Safety
    /// Until C closes the region, the memory is valid for the accesses that peers are allowed; `out`
    /// is null or valid for writes.
    pub(crate) unsafe fn open(
        domain: &Arc<Domain>,
        (start, length): (*const c_void, usize),
        Access { access, context }: Access,
        out: *mut *mut FidMr,
    ) -> Result<c_int, Failure> {
        // MPICH tries to register the whole address space and handles the error.
        if (start.is_null() && length > 0) || isize::try_from(length).is_err() {
            return Err(Failure(FI_EINVAL));
        }
        // SAFETY: the arguments are valid by contract.
        let memory = unsafe { RegisteredMemory::new(start.cast_mut().cast(), length) };
        let rights = Rights {
            put: access & FI_REMOTE_WRITE != 0,
            get: access & FI_REMOTE_READ != 0,
            update: false,
        };
        let region = domain.regions.open_region(memory.memory.clone(), rights);
        let region = region.map_err(|_| Failure(FI_ENOMEM))?;
        let key = region.key().0;
        domain.atomics.add(key, memory.memory.clone(), rights);
        let fid = FidMr {
            fid: fid(FI_CLASS_MR, context, &OPS),
            mem_desc: std::ptr::null_mut(),
            key,
        };
        let mr = Mr {
            region,
            _memory: memory,
            domain: Arc::clone(domain),
        };
        // SAFETY: the arguments are valid by contract.
        let borrow = unsafe { export(out, fid, mr) }?;
        if let Some(events) = domain.events.get() {
            // SAFETY: not null, because `export` has just written the object there.
            events.report_registration(unsafe { *out }.cast(), context);
        }
        Ok(borrow)
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        self.domain.atomics.remove(self.region.key().0);
    }
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    // SAFETY: created by `Mr::open`; C does not use it again.
    call(|| unsafe { reclaim::<FidMr, Mr>(fid) }.map(|_| 0))
}

/// Accepts counters and endpoints without any effect.
unsafe extern "C" fn bind(_: *mut Fid, _: *mut Fid, _: u64) -> c_int {
    0
}

/// Memory is always enabled.
unsafe extern "C" fn control(_: *mut Fid, _: c_int, _: *mut c_void) -> c_int {
    0
}
