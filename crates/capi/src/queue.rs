//! Calls for completion queues.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, Weak};

use dipole_node::{CompletionQueue, EndpointId, RegionMemory, Timeout, interruptible};

use crate::address::Address;
use crate::edge::EDGES;
use crate::failure::Failure;
use crate::ffi::{self, Out, call};
use crate::handle::{self, FileId, Handle};
use crate::per_process::{PerProcess, lock};
use crate::process::{self, CloseOrder, OpenObjects};

/// A posted message has been sent.
pub const DP_SENT: c_int = 1;
/// A posted operation failed.
pub const DP_FAILED: c_int = 2;
/// A message has arrived at an attached endpoint.
pub const DP_RECEIVED: c_int = 3;

/// A posted operation on memory is done.
pub const DP_DONE: c_int = 4;
/// The buffer of a posted receive holds a message.
pub const DP_FILLED: c_int = 5;

/// `struct dp_completion`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// [`DP_SENT`], [`DP_DONE`], [`DP_FILLED`], [`DP_FAILED`] or [`DP_RECEIVED`].
    pub kind: c_int,
    /// The error number of a failed operation.
    pub error: c_int,
    /// The context of the posted operation.
    pub context: u64,
    /// The previous value of the word.
    pub value: u64,
    /// The endpoint of a message.
    pub fd: c_int,
    /// Must be 0.
    pub reserved: u32,
    /// The sender of a message.
    pub source: Address,
    /// Address of a message.
    pub message: *const c_void,
    /// The length of a message.
    pub length: usize,
}

impl Completion {
    const EMPTY: Completion = Completion {
        kind: 0,
        error: 0,
        context: 0,
        value: 0,
        fd: -1,
        reserved: 0,
        source: Address { nid: 0, dpid: 0 },
        message: ptr::null(),
        length: 0,
    };
}

/// A completion queue that a C program holds.
#[derive(Debug)]
pub(crate) struct OpenQueue {
    file: FileId,
    queue: CompletionQueue,
    /// Endpoints that are attached or have posted receives.
    endpoints: Mutex<HashMap<EndpointId, Weak<Handle>>>,
}

impl OpenQueue {
    fn handle(&self, endpoint: EndpointId) -> Option<Arc<Handle>> {
        lock(&self.endpoints).get(&endpoint)?.upgrade()
    }

    /// Converts a completion for C; `None` if the endpoint of a message has ended.
    fn describe(&self, completion: dipole_node::Completion) -> Option<Completion> {
        use dipole_node::Completion as Done;
        match completion {
            Done::Sent { context } => Some(Completion {
                kind: DP_SENT,
                context,
                ..Completion::EMPTY
            }),
            Done::Done { context, value, .. } => Some(Completion {
                kind: DP_DONE,
                context,
                value,
                ..Completion::EMPTY
            }),
            Done::Failed { context, error } => Some(Completion {
                kind: DP_FAILED,
                error: ffi::record_failure("dp_queue_wait", Failure::Send(error)),
                context,
                ..Completion::EMPTY
            }),
            Done::Filled {
                context,
                endpoint,
                source,
                length,
                ..
            } => Some(Completion {
                kind: DP_FILLED,
                context,
                fd: self.handle(endpoint).map_or(-1, |handle| handle.fd),
                source: source.into(),
                length,
                ..Completion::EMPTY
            }),
            Done::NotFilled { context, error, .. } => Some(Completion {
                kind: DP_FAILED,
                error: ffi::record_failure("dp_queue_wait", Failure::Receive(error)),
                context,
                ..Completion::EMPTY
            }),
            Done::Received { endpoint, message } => {
                let handle = self.handle(endpoint)?;
                let completion = Completion {
                    kind: DP_RECEIVED,
                    fd: handle.fd,
                    source: message.source().into(),
                    message: message.as_ptr().cast(),
                    length: message.len(),
                    ..Completion::EMPTY
                };
                lock(&handle.unreleased).push_back(message);
                Some(completion)
            }
            // Queues of C programs do not watch departures.
            Done::Departed { .. } => None,
        }
    }

    /// Fills the first elements of an array of `count`; returns their number.
    ///
    /// # Safety
    /// All `count` elements meet the contract of [`Out::new`].
    unsafe fn fill(
        &self,
        fd: c_int,
        places: Out<Completion>,
        count: usize,
        timeout: Timeout,
    ) -> Result<usize, Failure> {
        let waited = (timeout != Timeout::Zero).then_some(timeout.duration());
        let mut filled = 0;
        while filled < count {
            let next = match waited {
                Some(timeout) if filled == 0 => interruptible(|| self.queue.wait(timeout)),
                _ => self.queue.poll(),
            };
            match next {
                Ok(Some(completion)) => {
                    if let Some(completion) = self.describe(completion) {
                        // SAFETY: the array has `count` elements by contract, and `filled` is less.
                        unsafe { places.element(filled) }.write(completion);
                        filled += 1;
                    }
                }
                Ok(None) if filled == 0 => return Err(Failure::NoCompletion { fd, waited }),
                Err(error) if filled == 0 => return Err(error.into()),
                // Return what has been filled; the next call reports the error again.
                Ok(None) | Err(_) => break,
            }
        }
        Ok(filled)
    }
}

/// Completion queues by their descriptors.
static QUEUES: PerProcess<Mutex<HashMap<c_int, Arc<OpenQueue>>>> = PerProcess::new();

/// The completion queues of this process, for `dp_finalize`.
struct AllQueues;

impl OpenObjects for AllQueues {
    fn close_all(&self) {
        let queues = std::mem::take(&mut *lock(&QUEUES.get()));
        drop(queues);
    }
}

fn find(fd: c_int) -> Result<Arc<OpenQueue>, Failure> {
    let found = lock(&QUEUES.get()).get(&fd).cloned();
    found.ok_or(Failure::NotAQueue { fd })
}

/// Opens a completion queue; returns its descriptor.
#[unsafe(no_mangle)]
pub extern "C" fn dp_queue_open() -> c_int {
    call("dp_queue_open", || {
        let process = process::current();
        let queue = process.node()?.completion_queue();
        let descriptor = queue.export()?;
        let fd = descriptor.as_raw_fd();
        let open = OpenQueue {
            file: handle::identify(fd)?,
            queue,
            endpoints: Mutex::default(),
        };
        // There may be an entry of a queue whose descriptor was closed with `close`.
        process.register(CloseOrder::Queues, &AllQueues);
        let before = lock(&QUEUES.get()).insert(fd, Arc::new(open));
        drop(before);
        Ok(descriptor.into_raw_fd())
    })
}

/// Reports messages of an endpoint in a queue from now on.
#[unsafe(no_mangle)]
pub extern "C" fn dp_queue_attach(queue: c_int, fd: c_int) -> c_int {
    call("dp_queue_attach", || {
        let (open, handle) = (find(queue)?, handle::find(fd)?);
        let id = handle.endpoint.address().endpoint;
        lock(&open.endpoints).insert(id, Arc::downgrade(&handle));
        handle.endpoint.attach(&open.queue);
        Ok(0)
    })
}

/// Reports completions of an edge's operations in a queue from now on.
#[unsafe(no_mangle)]
pub extern "C" fn dp_queue_attach_edge(queue: c_int, edge: c_int) -> c_int {
    call("dp_queue_attach_edge", || {
        let open = find(queue)?;
        EDGES.with(edge, |edge| {
            edge.attach(&open.queue);
            Ok(0)
        })
    })
}

/// Waits for completions and takes them; returns their number.
///
/// # Safety
/// `completions` is null or points to an array of `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_queue_wait(
    queue: c_int,
    completions: *mut Completion,
    count: c_int,
    timeout_ns: i64,
) -> c_int {
    call("dp_queue_wait", || {
        // SAFETY: the caller guarantees this by contract.
        let places = unsafe { Out::new("completions", completions) }?;
        let places_count = ffi::count(count)?;
        let timeout = Timeout::from_nanos(timeout_ns);
        let open = find(queue)?;
        // SAFETY: the caller guarantees this by contract.
        let filled = unsafe { open.fill(queue, places, places_count, timeout) }?;
        // It is at most `count`.
        Ok(c_int::try_from(filled).unwrap_or(count))
    })
}

/// Posts a buffer for the next message of an endpoint.
///
/// # Safety
/// `buf` points to `len` bytes, which the program does not access until the completion, or until the
/// queue or the endpoint is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_post_receive(
    fd: c_int,
    queue: c_int,
    buf: *mut c_void,
    len: usize,
    context: u64,
) -> c_int {
    call("dp_post_receive", || {
        if buf.is_null() && len > 0 {
            return Err(Failure::Null { what: "buf" });
        }
        let (open, handle) = (find(queue)?, handle::find(fd)?);
        let start = NonNull::new(buf.cast()).unwrap_or(NonNull::dangling());
        // SAFETY: by contract; the memory is not accessed after the completion.
        let memory = unsafe { RegionMemory::from_raw(start, len) };
        let id = handle.endpoint.address().endpoint;
        lock(&open.endpoints).insert(id, Arc::downgrade(&handle));
        handle.endpoint.post_receive(memory, &open.queue, context)?;
        Ok(0)
    })
}

/// Cancels a posted receive; returns 1 if it was waiting, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn dp_cancel_receive(fd: c_int, context: u64) -> c_int {
    call("dp_cancel_receive", || {
        handle::with(fd, |handle| {
            Ok(handle.endpoint.cancel_receive(context).into())
        })
    })
}

/// Closes a completion queue and its descriptor.
#[unsafe(no_mangle)]
pub extern "C" fn dp_queue_close(queue: c_int) -> c_int {
    call("dp_queue_close", || {
        let removed = lock(&QUEUES.get()).remove(&queue);
        let removed = removed.ok_or(Failure::NotAQueue { fd: queue })?;
        // The program may have closed the descriptor with `close`, and the number may refer to
        // another file by now.
        if handle::identify(queue).is_ok_and(|file| file == removed.file) {
            // SAFETY: the number is still the queue's descriptor, and the caller does not use it
            // after this call.
            unsafe { ffi::close(queue) };
        }
        Ok(0)
    })
}
