//! Calls for active ports: endpoints whose messages run a function of the program.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, OnceLock};

use dipole_node::{
    ActivePort, EndpointId, Landed, Message, OpenError, PeerId, PortContext, RegionMemory,
    SlotMessage, Slots, Timeout,
};

use crate::address::Address;
use crate::failure::Failure;
use crate::ffi::{self, Out, call};
use crate::message::ReceivedMessage;
use crate::numbers::Numbered;
use crate::per_process::lock;
use crate::process::{self, CloseOrder};

/// Returned by the handler of a port with slots: the slot stays taken until `dp_port_release`.
pub const DP_KEEP: c_int = 1;

/// `dp_handler`.
pub type Handler = Option<
    unsafe extern "C" fn(port: c_int, message: *const ReceivedMessage, context: *mut c_void),
>;

/// `dp_slot_handler`.
pub type SlotHandler = Option<
    unsafe extern "C" fn(
        port: c_int,
        message: *const ReceivedMessage,
        slot: c_int,
        context: *mut c_void,
    ) -> c_int,
>;

/// The ports that C programs hold.
pub(crate) static PORTS: Numbered<OpenPort> =
    Numbered::new(CloseOrder::Ports, |number| Failure::NotAPort { number });

/// A port. It gets its number before it is opened, because its handler is passed the number.
#[derive(Debug, Default)]
pub(crate) struct OpenPort {
    /// Dropped before the buffer.
    port: OnceLock<ActivePort>,
    buffer: Option<Arc<BoundBuffer>>,
}

impl OpenPort {
    fn with<A>(
        number: c_int,
        body: impl FnOnce(&ActivePort) -> Result<A, Failure>,
    ) -> Result<A, Failure> {
        PORTS.with(number, |open| match open.port.get() {
            Some(port) => body(port),
            None => Err(Failure::NotAPort { number }),
        })
    }

    /// Adds a port that `open` opens; returns its number.
    fn insert(
        buffer: Option<Arc<BoundBuffer>>,
        open: impl FnOnce(c_int) -> Result<ActivePort, OpenError>,
    ) -> Result<c_int, Failure> {
        let number = PORTS.insert(OpenPort {
            port: OnceLock::new(),
            buffer,
        })?;
        let opened = match open(number) {
            Ok(port) => PORTS.with(number, |open| {
                open.port.get_or_init(|| port);
                Ok(number)
            }),
            Err(cause) => Err(cause.into()),
        };
        if opened.is_err() {
            PORTS.close(number)?;
        }
        opened
    }
}

impl Drop for OpenPort {
    fn drop(&mut self) {
        if let Some(port) = self.port.get() {
            port.end();
        }
        if let Some(buffer) = &self.buffer {
            buffer.memory.revoke();
        }
    }
}

/// The program's memory in which a port's messages land.
#[derive(Debug)]
struct BoundBuffer {
    memory: RegionMemory,
    slot_bytes: usize,
    /// The messages in slots that are not free.
    taken: Mutex<Vec<Option<SlotMessage>>>,
}

impl BoundBuffer {
    /// # Safety
    /// `buffer` points to `slots * slot_bytes` bytes that stay valid until the memory is revoked.
    unsafe fn new(
        buffer: *mut c_void,
        slot_bytes: usize,
        slots: c_int,
    ) -> Result<BoundBuffer, Failure> {
        let start = NonNull::new(buffer.cast::<u8>()).ok_or(Failure::Null { what: "buffer" })?;
        let bad = |what, found: i64| Failure::BadNumber {
            what,
            found,
            expected: "a positive number, and a buffer that fits into memory",
        };
        let count = usize::try_from(slots).unwrap_or(0);
        let length = slot_bytes.checked_mul(count);
        let length = length.filter(|length| isize::try_from(*length).is_ok());
        match length {
            _ if count == 0 => Err(bad("slots", slots.into())),
            None | Some(0) => Err(bad("slot_bytes", slot_bytes.cast_signed() as i64)),
            Some(length) => {
                // SAFETY: by contract.
                let memory = unsafe { RegionMemory::from_raw(start, length) };
                Ok(BoundBuffer {
                    memory,
                    slot_bytes,
                    taken: Mutex::new((0..count).map(|_| None).collect()),
                })
            }
        }
    }

    fn slots(&self) -> Result<Slots, Failure> {
        let slots = lock(&self.taken).len();
        Slots::within(&self.memory, 0, self.slot_bytes, slots)
            .map_err(|cause| Failure::Panic(cause.to_string()))
    }

    /// Frees a slot; false if it is free already.
    fn release(&self, slot: usize) -> bool {
        let taken = lock(&self.taken).get_mut(slot).and_then(Option::take);
        taken.is_some()
    }
}

/// The handler and context that the program passed.
struct Callback<H> {
    handler: H,
    context: *mut c_void,
}

// SAFETY: the program promises that its handler may run on any thread with this context
// (`dp_port_open`, `dp_port_open_into`); this library only passes the pointer on.
unsafe impl<H: Send> Send for Callback<H> {}

impl Callback<unsafe extern "C" fn(c_int, *const ReceivedMessage, *mut c_void)> {
    fn run(&self, port: c_int, message: &ReceivedMessage) {
        // SAFETY: the handler is called as declared, by one thread at a time; the message is valid
        // until this returns.
        unsafe { (self.handler)(port, ptr::from_ref(message), self.context) };
    }
}

impl Callback<unsafe extern "C" fn(c_int, *const ReceivedMessage, c_int, *mut c_void) -> c_int> {
    fn run(&self, port: c_int, message: &ReceivedMessage, slot: c_int) -> c_int {
        // SAFETY: as above.
        unsafe { (self.handler)(port, ptr::from_ref(message), slot, self.context) }
    }
}

/// A handler that is running on this thread, and the sender of its message.
#[derive(Clone, Copy)]
struct RunningHandler {
    port: c_int,
    context: *const PortContext,
    source: dipole_node::Address,
    peer: PeerId,
}

thread_local! {
    /// The handlers that are running on this thread, the innermost last.
    static RUNNING: RefCell<Vec<RunningHandler>> = const { RefCell::new(Vec::new()) };
}

/// Opens an endpoint whose messages run a function; returns the port's number.
///
/// # Safety
/// `handler` may be called with `context` by any thread, until `dp_port_close` has returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_port_open(dpid: u32, handler: Handler, context: *mut c_void) -> c_int {
    call("dp_port_open", || {
        let handler = handler.ok_or(Failure::Null { what: "handler" })?;
        let node = process::current().node()?;
        let callback = Callback { handler, context };
        OpenPort::insert(None, |number| {
            let run = move |port: &PortContext, message: Message| {
                let seen = received(&message);
                let sender = (message.source(), message.peer());
                running(number, port, sender, || callback.run(number, &seen));
            };
            node.open_port(EndpointId(dpid), run)
        })
    })
}

/// Opens an endpoint whose messages land in a buffer and then run a function; returns the port's
/// number.
///
/// # Safety
/// `handler` may be called with `context` by any thread, until `dp_port_close` has returned.
/// `buffer` points to `slots * slot_bytes` bytes that stay valid until then, and this process
/// accesses only slots that are taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_port_open_into(
    dpid: u32,
    buffer: *mut c_void,
    slot_bytes: usize,
    slots: c_int,
    handler: SlotHandler,
    context: *mut c_void,
) -> c_int {
    call("dp_port_open_into", || {
        let handler = handler.ok_or(Failure::Null { what: "handler" })?;
        // SAFETY: by contract; `OpenPort` revokes the memory.
        let buffer = Arc::new(unsafe { BoundBuffer::new(buffer, slot_bytes, slots) }?);
        let slots = buffer.slots()?;
        let node = process::current().node()?;
        let callback = Callback { handler, context };
        OpenPort::insert(Some(Arc::clone(&buffer)), |number| {
            let run = move |port: &PortContext, landed: Landed| {
                match landed {
                    Landed::InSlot(message) => {
                        let slot = message.slot();
                        let at = message.show(|bytes| bytes.as_ptr().cast());
                        let seen = ReceivedMessage {
                            address: at.unwrap_or(ptr::null()),
                            length: message.len(),
                            source: message.source().into(),
                        };
                        let sender = (message.source(), message.peer());
                        // Now, because another thread may release it before the handler returns.
                        lock(&buffer.taken)[slot] = Some(message);
                        let slot_number = c_int::try_from(slot).unwrap_or(c_int::MAX);
                        let kept = running(number, port, sender, || {
                            callback.run(number, &seen, slot_number)
                        });
                        if kept != DP_KEEP {
                            buffer.release(slot);
                        }
                    }
                    Landed::Outside(message) => {
                        let seen = received(&message);
                        let sender = (message.source(), message.peer());
                        running(number, port, sender, || callback.run(number, &seen, -1));
                    }
                }
            };
            node.open_port_into(EndpointId(dpid), slots, run)
        })
    })
}

/// The message as C programs see it.
fn received(message: &Message) -> ReceivedMessage {
    ReceivedMessage {
        address: message.as_ptr().cast(),
        length: message.len(),
        source: message.source().into(),
    }
}

/// Runs the program's handler, which can reply to the sender of the message.
fn running<A>(
    number: c_int,
    context: &PortContext,
    (source, peer): (dipole_node::Address, PeerId),
    handler: impl FnOnce() -> A,
) -> A {
    let running = RunningHandler {
        port: number,
        context,
        source,
        peer,
    };
    RUNNING.with_borrow_mut(|all| all.push(running));
    let result = handler();
    RUNNING.with_borrow_mut(Vec::pop);
    result
}

/// Frees a slot that the port's handler kept.
#[unsafe(no_mangle)]
pub extern "C" fn dp_port_release(port: c_int, slot: c_int) -> c_int {
    call("dp_port_release", || {
        let buffer = PORTS.with(port, |open| Ok(open.buffer.clone()))?;
        let released = match (buffer, usize::try_from(slot)) {
            (Some(buffer), Ok(slot)) => buffer.release(slot),
            _ => false,
        };
        match released {
            true => Ok(0),
            false => Err(Failure::FreeSlot { number: port, slot }),
        }
    })
}

/// The port's own address.
///
/// # Safety
/// `address` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_port_address(port: c_int, address: *mut Address) -> c_int {
    call("dp_port_address", || {
        // SAFETY: the caller guarantees this by contract.
        let place = unsafe { Out::new("address", address) }?;
        OpenPort::with(port, |port| {
            place.write(port.address().into());
            Ok(0)
        })
    })
}

/// Replies to the message that the port's handler is running for on this thread; returns the length
/// of the reply.
///
/// # Safety
/// `msg` points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_port_reply(port: c_int, msg: *const c_void, len: usize) -> isize {
    call("dp_port_reply", || {
        // SAFETY: the caller guarantees this by contract.
        let answer = unsafe { ffi::message(msg, len) }?;
        let running = RUNNING.with_borrow(|all| {
            let mut innermost = all.iter().rev();
            innermost.find(|running| running.port == port).copied()
        });
        let running = running.ok_or(Failure::NoHandler { number: port })?;
        // SAFETY: it is borrowed by `running`, which is further down this thread's stack and removes
        // it from the list before it returns.
        let context = unsafe { &*running.context };
        context.reply_to(running.source, running.peer, answer)?;
        Ok(len.cast_signed())
    })
}

/// Runs handlers on this thread until the port has handled a number of messages since it was opened.
#[unsafe(no_mangle)]
pub extern "C" fn dp_port_wait(port: c_int, handled: u64, timeout_ns: i64) -> c_int {
    call("dp_port_wait", || {
        let timeout = Timeout::from_nanos(timeout_ns);
        let waited = matches!(timeout, Timeout::After(_)).then_some(timeout.duration());
        OpenPort::with(port, |open| {
            match open.wait_until(timeout.duration(), || open.handled() >= handled)? {
                true => Ok(0),
                false => Err(Failure::NotHandled {
                    number: port,
                    handled,
                    waited,
                }),
            }
        })
    })
}

/// Closes a port. Its handler does not run after this returns.
#[unsafe(no_mangle)]
pub extern "C" fn dp_port_close(port: c_int) -> c_int {
    call("dp_port_close", || {
        // Another thread may be waiting in a call on the port; this wakes it.
        OpenPort::with(port, |open| {
            open.end();
            Ok(())
        })?;
        PORTS.close(port)?;
        Ok(0)
    })
}
