//! Event queues. Events are written by the program, or report that names were inserted into an
//! address vector or memory was registered, if the program requested that.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::abi::eq::{EqAttr, EqOps, FI_AV_COMPLETE, FI_MR_COMPLETE, FI_WAIT_NONE, FidEq};
use crate::abi::errno::{FI_EAGAIN, FI_EBUSY, FI_EINVAL, FI_ENOSYS, FI_ETOOSMALL};
use crate::abi::fabric::{FI_CLASS_EQ, FI_PEEK, FI_WRITE, Fid, Ops};
use crate::completion::lock;
use crate::descriptor::Descriptor;
use crate::ffi::{
    AGAIN, Failure, call, export, fid, object, ops, read_at, reclaim, strerror, write_at,
};
use crate::wait_object::{WaitObject, descriptor_failure};

/// Longest event that a program can write.
const MAX_EVENT_BYTES: usize = 4096;

/// Events that have not been read.
#[derive(Default)]
pub(crate) struct Events {
    waiting: Mutex<VecDeque<(u32, Vec<u8>)>>,
    arrived: Condvar,
    descriptor: OnceLock<Descriptor>,
}

impl Events {
    fn push(&self, number: u32, bytes: Vec<u8>) {
        let mut waiting = lock(&self.waiting);
        waiting.push_back((number, bytes));
        self.update_descriptor(&waiting);
        drop(waiting);
        self.arrived.notify_all();
    }

    /// Makes the descriptor readable exactly while there are events.
    fn update_descriptor(&self, waiting: &VecDeque<(u32, Vec<u8>)>) {
        if let Some(descriptor) = self.descriptor.get() {
            match waiting.is_empty() {
                true => descriptor.lower(),
                false => descriptor.raise(),
            }
        }
    }

    fn open_descriptor(&self) -> io::Result<i32> {
        let waiting = lock(&self.waiting);
        if self.descriptor.get().is_none() {
            let _made_once = self.descriptor.set(Descriptor::new()?);
        }
        self.update_descriptor(&waiting);
        Ok(self.descriptor.get().map_or(-1, Descriptor::number))
    }

    /// Reports that `count` names were inserted into an address vector.
    pub(crate) fn report_insertion(&self, av: *mut Fid, context: *mut c_void, count: u64) {
        self.push_record(FI_AV_COMPLETE, av, context, count);
    }

    /// Reports that memory was registered.
    pub(crate) fn report_registration(&self, mr: *mut Fid, context: *mut c_void) {
        self.push_record(FI_MR_COMPLETE, mr, context, 0);
    }

    fn push_record(&self, number: u32, to: *mut Fid, context: *mut c_void, data: u64) {
        let words = [
            to.expose_provenance() as u64,
            context.expose_provenance() as u64,
            data,
        ];
        self.push(number, words.map(u64::to_ne_bytes).concat());
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.waiting).is_empty()
    }

    /// Waits for an event, for at most `timeout`; without one, forever.
    fn wait(&self, timeout: Option<Duration>) {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        let mut waiting = lock(&self.waiting);
        while waiting.is_empty() {
            let Some(until) = until else {
                waiting = self
                    .arrived
                    .wait(waiting)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.arrived.wait_timeout(waiting, left);
            waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The libfabric object of an event queue.
pub(crate) struct EventQueue {
    pub(crate) events: Arc<Events>,
    is_writable: bool,
    wait: WaitObject,
}

static OPS: Ops = Ops {
    control,
    ..ops(close)
};
static EQ_OPS: EqOps = EqOps {
    size: size_of::<EqOps>(),
    read,
    readerr,
    write,
    sread,
    strerror: error_text,
};

impl EventQueue {
    /// # Safety
    /// `out` is null or valid for writes.
    pub(crate) unsafe fn open(
        attr: Option<&EqAttr>,
        out: *mut *mut FidEq,
        context: *mut c_void,
    ) -> Result<c_int, Failure> {
        let wait = WaitObject::from_attr(attr.map_or(FI_WAIT_NONE, |attr| attr.wait_obj))?;
        let fid = FidEq {
            fid: fid(FI_CLASS_EQ, context, &OPS),
            ops: &EQ_OPS,
        };
        let queue = EventQueue {
            events: Arc::default(),
            is_writable: attr.is_some_and(|attr| attr.flags & FI_WRITE != 0),
            wait,
        };
        if wait == WaitObject::Descriptor {
            let descriptor = queue.events.open_descriptor();
            descriptor.map_err(|cause| descriptor_failure(&cause))?;
        }
        // SAFETY: the arguments are valid by contract.
        unsafe { export(out, fid, queue) }
    }
}

/// The event queue behind a pointer from C.
///
/// # Safety
/// `queue` is null or was created by this provider.
unsafe fn queue<'a>(queue: *const FidEq) -> Result<&'a EventQueue, Failure> {
    // SAFETY: the caller's contract is the same.
    unsafe { object(queue) }
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    call(|| {
        // SAFETY: a queue that C has not closed.
        if Arc::strong_count(&unsafe { queue(fid.cast()) }?.events) > 1 {
            return Err(Failure(FI_EBUSY));
        }
        // SAFETY: created by `EventQueue::open`; C does not use it again.
        unsafe { reclaim::<FidEq, EventQueue>(fid) }.map(|_| 0)
    })
}

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, buffer: *mut c_void) -> c_int {
    call(|| {
        // SAFETY: libfabric passes a queue of this provider.
        let queue = unsafe { queue(fid.cast()) }?;
        // SAFETY: a buffer for the result of the command.
        unsafe { (queue.wait).control(command, buffer, || queue.events.open_descriptor()) }
    })
}

unsafe extern "C" fn read(
    fid: *mut FidEq,
    number: *mut u32,
    buffer: *mut c_void,
    length: usize,
    flags: u64,
) -> isize {
    call(|| {
        // SAFETY: libfabric passes a queue of this provider.
        let events = &unsafe { queue(fid) }?.events;
        let mut waiting = lock(&events.waiting);
        let (event, bytes) = waiting.front().ok_or(AGAIN)?;
        if length < bytes.len() || buffer.is_null() && !bytes.is_empty() {
            return Err(Failure(FI_ETOOSMALL));
        }
        // SAFETY: `number` is null or valid; the buffer is long enough.
        unsafe {
            write_at(number, 0, *event);
            for (index, byte) in bytes.iter().enumerate() {
                write_at(buffer.cast::<u8>(), index, *byte);
            }
        }
        let read = isize::try_from(bytes.len()).map_err(|_| Failure(FI_EINVAL))?;
        if flags & FI_PEEK == 0 {
            waiting.pop_front();
            events.update_descriptor(&waiting);
        }
        Ok(read)
    })
}

unsafe extern "C" fn sread(
    fid: *mut FidEq,
    number: *mut u32,
    buffer: *mut c_void,
    length: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    // SAFETY: libfabric passes a queue of this provider.
    if let Ok(queue) = unsafe { queue(fid) } {
        let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
        queue.events.wait(timeout);
    }
    // SAFETY: the caller's contract is the same.
    unsafe { read(fid, number, buffer, length, flags) }
}

/// Always empty: no event reports an error.
unsafe extern "C" fn readerr(_: *mut FidEq, _: *mut c_void, _: u64) -> isize {
    -(FI_EAGAIN as isize)
}

unsafe extern "C" fn write(
    fid: *mut FidEq,
    number: u32,
    buffer: *const c_void,
    length: usize,
    _: u64,
) -> isize {
    call(|| {
        // SAFETY: libfabric passes a queue of this provider.
        let queue = unsafe { queue(fid) }?;
        if !queue.is_writable {
            // The program did not open the queue with `FI_WRITE`.
            return Err(Failure(FI_ENOSYS));
        }
        if length > MAX_EVENT_BYTES || buffer.is_null() && length > 0 {
            return Err(Failure(FI_EINVAL));
        }
        // SAFETY: `index` is less than `length`, and the bytes are readable during the call.
        let byte = |index| unsafe { read_at(buffer.cast::<u8>(), index) };
        queue.events.push(number, (0..length).map(byte).collect());
        isize::try_from(length).map_err(|_| Failure(FI_EINVAL))
    })
}

unsafe extern "C" fn error_text(
    _: *mut FidEq,
    number: c_int,
    _: *const c_void,
    _: *mut c_char,
    _: usize,
) -> *const c_char {
    strerror(number)
}
