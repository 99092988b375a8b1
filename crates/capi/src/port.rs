//! Calls for active ports: endpoints whose messages run a function of the program.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use dipole_node::{ActivePort, EndpointId, Message, PortContext, Timeout};

use crate::address::Address;
use crate::failure::Failure;
use crate::ffi::{self, Out, call};
use crate::message::ReceivedMessage;
use crate::numbers::Numbered;
use crate::process::{self, CloseOrder};

/// `dp_handler`.
pub type Handler = Option<
    unsafe extern "C" fn(port: c_int, message: *const ReceivedMessage, context: *mut c_void),
>;

/// The ports that C programs hold.
pub(crate) static PORTS: Numbered<OpenPort> =
    Numbered::new(CloseOrder::Ports, |number| Failure::NotAPort { number });

/// A port. It gets its number before it is opened, because its handler is passed the number.
#[derive(Debug, Default)]
pub(crate) struct OpenPort(OnceLock<ActivePort>);

impl OpenPort {
    fn with<A>(
        number: c_int,
        body: impl FnOnce(&ActivePort) -> Result<A, Failure>,
    ) -> Result<A, Failure> {
        PORTS.with(number, |open| match open.0.get() {
            Some(port) => body(port),
            None => Err(Failure::NotAPort { number }),
        })
    }
}

/// The handler and context that the program passed.
struct Callback {
    handler: unsafe extern "C" fn(c_int, *const ReceivedMessage, *mut c_void),
    context: *mut c_void,
}

// SAFETY: the program promises that its handler may run on any thread with this context
// (`dp_port_open`); this library only passes the pointer on.
unsafe impl Send for Callback {}

impl Callback {
    fn run(&self, port: c_int, message: &ReceivedMessage) {
        // SAFETY: the handler is called as declared, by one thread at a time; the message is valid
        // until this returns.
        unsafe { (self.handler)(port, ptr::from_ref(message), self.context) };
    }
}

/// A handler that is running on this thread.
#[derive(Clone, Copy)]
struct RunningHandler {
    port: c_int,
    context: *const PortContext,
    message: *const Message,
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
        let number = PORTS.insert(OpenPort::default())?;
        let callback = Callback { handler, context };
        let run =
            move |port: &PortContext, message: Message| handle(number, &callback, port, &message);
        let opened = match node.open_port(EndpointId(dpid), run) {
            Ok(port) => PORTS.with(number, |open| {
                open.0.get_or_init(|| port);
                Ok(number)
            }),
            Err(cause) => Err(cause.into()),
        };
        if opened.is_err() {
            PORTS.close(number)?;
        }
        opened
    })
}

/// Runs the program's handler, which can reply to the message.
fn handle(number: c_int, callback: &Callback, context: &PortContext, message: &Message) {
    let seen = ReceivedMessage {
        address: message.as_ptr().cast(),
        length: message.len(),
        source: message.source().into(),
    };
    let running = RunningHandler {
        port: number,
        context,
        message,
    };
    RUNNING.with_borrow_mut(|all| all.push(running));
    callback.run(number, &seen);
    RUNNING.with_borrow_mut(Vec::pop);
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
        // SAFETY: both are borrowed by `handle`, which is further down this thread's stack and removes
        // them from the list before it returns.
        let (context, message) = unsafe { (&*running.context, &*running.message) };
        context.reply(message, answer)?;
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
