//! The completion queue objects of libfabric.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use crate::abi::eq::{
    CqAttr, CqEntry, CqErrEntry, CqOps, FI_CQ_FORMAT_CONTEXT, FI_CQ_FORMAT_DATA, FI_CQ_FORMAT_MSG,
    FI_CQ_FORMAT_UNSPEC, FI_WAIT_NONE, FidCq,
};
use crate::abi::errno::{FI_EAVAIL, FI_EBUSY, FI_EINVAL};
use crate::abi::fabric::{FI_ADDR_NOTAVAIL, FI_CLASS_CQ, Fid, Ops};
use crate::completion::{Cq, Entry};
use crate::ffi::{
    AGAIN, Failure, borrow, call, export, fid, object, ops, reclaim, strerror, write_at,
};
use crate::wait_object::{WaitObject, descriptor_failure};
use crate::wait_trace::WaitTrace;

/// The libfabric object of a completion queue.
pub(crate) struct Queue {
    pub(crate) cq: Arc<Cq>,
    format: c_int,
    wait: WaitObject,
    /// Records waits of the program, if `DIPOLE_TRACE` is set.
    pub(crate) wait_trace: Option<WaitTrace>,
}

static OPS: Ops = Ops {
    control,
    ..ops(close)
};
static CQ_OPS: CqOps = CqOps {
    size: size_of::<CqOps>(),
    read,
    readfrom,
    readerr,
    sread,
    sreadfrom,
    signal,
    strerror: error_text,
};

impl Queue {
    /// # Safety
    /// `out` is null or valid for writes.
    pub(crate) unsafe fn open(
        attr: Option<&CqAttr>,
        out: *mut *mut FidCq,
        context: *mut c_void,
    ) -> Result<c_int, Failure> {
        let wait = WaitObject::from_attr(attr.map_or(FI_WAIT_NONE, |attr| attr.wait_obj))?;
        let format = attr.map_or(FI_CQ_FORMAT_UNSPEC, |attr| attr.format);
        let fid = FidCq {
            fid: fid(FI_CLASS_CQ, context, &OPS),
            ops: &CQ_OPS,
        };
        let cq = Arc::<Cq>::default();
        if wait == WaitObject::Descriptor {
            cq.open_descriptor()
                .map_err(|cause| descriptor_failure(&cause))?;
        }
        // SAFETY: the arguments are valid by contract.
        unsafe {
            export(
                out,
                fid,
                Queue {
                    cq,
                    format,
                    wait,
                    wait_trace: WaitTrace::of_process(),
                },
            )
        }
    }

    /// Reads at most `count` entries and their sources into arrays of C.
    ///
    /// # Safety
    /// The arrays are null or have `count` elements.
    #[inline]
    unsafe fn read(
        &self,
        buffer: *mut c_void,
        count: usize,
        sources: *mut u64,
    ) -> Result<isize, Failure> {
        let mut names = Vec::new();
        let mut first = None;
        let out = |index, entry: &Entry| {
            if index == 0 && self.wait_trace.is_some() {
                first = Some(*entry);
            }
            // SAFETY: within the array, whose entries have this queue's format.
            unsafe { self.write(buffer, index, entry) };
            if !sources.is_null() {
                names.push(entry.source);
            }
        };
        let read = self.cq.read(count, out).ok_or(Failure(FI_EAVAIL))?;
        if let Some(wait_trace) = &self.wait_trace {
            wait_trace.on_poll(first.as_ref(), || self.cq.sources.number());
        }
        for (index, source) in names.into_iter().enumerate() {
            let number = self.cq.sources.resolve(source).unwrap_or(FI_ADDR_NOTAVAIL);
            // SAFETY: within the array.
            unsafe { write_at(sources, index, number) };
        }
        match read {
            0 if count > 0 => Err(AGAIN),
            read => isize::try_from(read).map_err(|_| Failure(FI_EINVAL)),
        }
    }

    #[inline]
    unsafe fn write(&self, buffer: *mut c_void, index: usize, entry: &Entry) {
        let whole = CqEntry {
            op_context: ptr::with_exposed_provenance_mut(entry.context),
            flags: entry.flags,
            len: entry.length,
            buf: ptr::with_exposed_provenance_mut(entry.buffer),
            data: entry.data,
            tag: entry.tag,
        };
        let CqEntry {
            op_context,
            flags,
            len,
            buf,
            data,
            ..
        } = whole;
        let (context, head) = (op_context.expose_provenance(), op_context);
        // SAFETY: within the array by contract; the format determines the type of its entries.
        unsafe {
            match self.format {
                FI_CQ_FORMAT_UNSPEC | FI_CQ_FORMAT_CONTEXT => {
                    write_at(buffer.cast::<*mut c_void>(), index, head);
                }
                FI_CQ_FORMAT_MSG => {
                    let words = [context as u64, flags, len as u64];
                    write_at(buffer.cast(), index, words);
                }
                FI_CQ_FORMAT_DATA => {
                    let buf = buf.expose_provenance() as u64;
                    let words = [context as u64, flags, len as u64, buf, data];
                    write_at(buffer.cast(), index, words);
                }
                _ => write_at(buffer.cast::<CqEntry>(), index, whole),
            }
        }
    }
}

/// The queue behind a pointer from C.
///
/// # Safety
/// `queue` is null or was created by this provider.
#[inline]
unsafe fn queue<'a>(queue: *const FidCq) -> Result<&'a Queue, Failure> {
    // SAFETY: the caller's contract is the same.
    unsafe { object(queue) }
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    call(|| {
        // SAFETY: a queue that C has not closed.
        if !unsafe { queue(fid.cast()) }?.cq.sources.is_empty() {
            return Err(Failure(FI_EBUSY));
        }
        // SAFETY: created by `Queue::open`; C does not use it again.
        unsafe { reclaim::<FidCq, Queue>(fid) }.map(|_| 0)
    })
}

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, buffer: *mut c_void) -> c_int {
    call(|| {
        // SAFETY: libfabric passes a queue of this provider.
        let queue = unsafe { queue(fid.cast()) }?;
        // SAFETY: a buffer for the result of the command.
        unsafe {
            queue
                .wait
                .control(command, buffer, || queue.cq.open_descriptor())
        }
    })
}

unsafe extern "C" fn read(fid: *mut FidCq, buffer: *mut c_void, count: usize) -> isize {
    // SAFETY: the caller's contract is the same.
    unsafe { readfrom(fid, buffer, count, ptr::null_mut()) }
}

unsafe extern "C" fn readfrom(
    fid: *mut FidCq,
    buffer: *mut c_void,
    count: usize,
    sources: *mut u64,
) -> isize {
    call(|| {
        // SAFETY: libfabric passes a queue of this provider.
        let queue = unsafe { queue(fid) }?;
        if queue.cq.is_empty() {
            queue.cq.sources.progress();
        }
        // SAFETY: the arrays have `count` entries.
        unsafe { queue.read(buffer, count, sources) }
    })
}

unsafe extern "C" fn readerr(fid: *mut FidCq, buffer: *mut CqErrEntry, _: u64) -> isize {
    call(|| {
        // SAFETY: libfabric passes a queue of this provider.
        let entry = unsafe { queue(fid) }?.cq.read_failed().ok_or(AGAIN)?;
        let (err, olen) = entry.failure.unwrap_or_default();
        // The caller's buffer for error data is passed through unchanged: errors have no further data.
        // SAFETY: null, or an entry that C has initialized.
        let err_data = unsafe { borrow(buffer) }.map_or(ptr::null_mut(), |buffer| buffer.err_data);
        let written = CqErrEntry {
            op_context: ptr::with_exposed_provenance_mut(entry.context),
            flags: entry.flags,
            len: entry.length,
            buf: ptr::with_exposed_provenance_mut(entry.buffer),
            data: entry.data,
            tag: entry.tag,
            olen,
            err,
            prov_errno: err,
            err_data,
            err_data_size: 0,
        };
        // SAFETY: null or valid for writes.
        unsafe { write_at(buffer, 0, written) };
        Ok(1)
    })
}

unsafe extern "C" fn sread(
    fid: *mut FidCq,
    buffer: *mut c_void,
    count: usize,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: the caller's contract is the same.
    unsafe { sreadfrom(fid, buffer, count, ptr::null_mut(), cond, timeout) }
}

unsafe extern "C" fn sreadfrom(
    fid: *mut FidCq,
    buffer: *mut c_void,
    count: usize,
    sources: *mut u64,
    _: *const c_void,
    timeout: c_int,
) -> isize {
    call(|| {
        // SAFETY: libfabric passes a queue of this provider.
        let queue = unsafe { queue(fid) }?;
        if queue.cq.is_empty() {
            let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
            if let Some(wait_trace) = &queue.wait_trace {
                wait_trace.on_sleep();
            }
            queue.cq.wait(timeout);
        }
        // SAFETY: the arrays have `count` entries.
        unsafe { queue.read(buffer, count, sources) }
    })
}

unsafe extern "C" fn signal(fid: *mut FidCq) -> c_int {
    call(|| {
        // SAFETY: libfabric passes a queue of this provider.
        unsafe { queue(fid) }?.cq.signal();
        Ok(0)
    })
}

unsafe extern "C" fn error_text(
    _: *mut FidCq,
    number: c_int,
    _: *const c_void,
    _: *mut c_char,
    _: usize,
) -> *const c_char {
    strerror(number)
}
