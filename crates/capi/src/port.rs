//! Active ports: endpoints whose messages run a function of the program.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use dipole_node::{ActivePort, EndpointId, Message, PortContext, Timeout};

use crate::failure::Failure;
use crate::guard::{self, Out, call};
use crate::message::ReceivedMessage;
use crate::numbers::Numbered;
use crate::options::Address;
use crate::process;

/// `dp_handler`.
pub type Handler = Option<
    unsafe extern "C" fn(port: c_int, message: *const ReceivedMessage, context: *mut c_void),
>;

/// The ports that C programs hold.
pub(crate) static PORTS: Numbered<OpenPort> = Numbered::new(
    |process| &process.ports,
    |number| Failure::NotAPort { number },
);

/// A port; it has its number before its handler runs.
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

/// What the program gave for its handler.
struct Given {
    handler: unsafe extern "C" fn(c_int, *const ReceivedMessage, *mut c_void),
    context: *mut c_void,
}

// SAFETY: the program promises that its handler may run on any thread with this context
// (`dp_port_open`); this library does nothing else with the pointer.
unsafe impl Send for Given {}

impl Given {
    fn run(&self, port: c_int, message: &ReceivedMessage) {
        // SAFETY: the handler is the program's, called as declared, once at a time; the message lies
        // where it says until this returns.
        unsafe { (self.handler)(port, ptr::from_ref(message), self.context) };
    }
}

/// A handler that runs on this thread.
#[derive(Clone, Copy)]
struct Running {
    port: c_int,
    context: *const PortContext,
    message: *const Message,
}

thread_local! {
    /// Those that run on this thread, the innermost last.
    static RUNNING: RefCell<Vec<Running>> = const { RefCell::new(Vec::new()) };
}

/// Opens an endpoint whose messages run a function; the port's number.
///
/// # Safety
/// `handler` may be called with `context` by any thread, until `dp_port_close` has returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_port_open(dpid: u32, handler: Handler, context: *mut c_void) -> c_int {
    call("dp_port_open", || {
        let handler = handler.ok_or(Failure::Null { what: "handler" })?;
        let node = process::current().node()?;
        let number = PORTS.enter(OpenPort::default())?;
        let given = Given { handler, context };
        let run =
            move |port: &PortContext, message: Message| handle(number, &given, port, &message);
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

/// Runs the program's handler; meanwhile the message can be answered.
fn handle(number: c_int, given: &Given, context: &PortContext, message: &Message) {
    let seen = ReceivedMessage {
        address: message.as_ptr().cast(),
        length: message.len(),
        source: message.source().into(),
    };
    let running = Running {
        port: number,
        context,
        message,
    };
    RUNNING.with_borrow_mut(|all| all.push(running));
    given.run(number, &seen);
    RUNNING.with_borrow_mut(Vec::pop);
}

/// The port's own address.
///
/// # Safety
/// `address` points to a place for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_port_address(port: c_int, address: *mut Address) -> c_int {
    call("dp_port_address", || {
        // SAFETY: by contract.
        let place = unsafe { Out::new("address", address) }?;
        OpenPort::with(port, |port| {
            place.write(port.address().into());
            Ok(0)
        })
    })
}

/// Answers the message that the port's handler runs for on this thread; the answer's length.
///
/// # Safety
/// `msg` points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_port_reply(port: c_int, msg: *const c_void, len: usize) -> isize {
    call("dp_port_reply", || {
        // SAFETY: by contract.
        let answer = unsafe { guard::message(msg, len) }?;
        let running = RUNNING.with_borrow(|all| {
            let mut innermost = all.iter().rev();
            innermost.find(|running| running.port == port).copied()
        });
        let running = running.ok_or(Failure::NoHandler { number: port })?;
        // SAFETY: both were borrowed by `handle`, which is further down this thread's stack: it takes
        // them out of the list before it returns.
        let (context, message) = unsafe { (&*running.context, &*running.message) };
        context.reply(message, answer)?;
        Ok(len.cast_signed())
    })
}

/// Handles messages on this thread until the port has handled so many since it was opened.
#[unsafe(no_mangle)]
pub extern "C" fn dp_port_wait(port: c_int, handled: u64, timeout_ns: i64) -> c_int {
    call("dp_port_wait", || {
        let patience = Timeout::from_nanos(timeout_ns);
        let waited = matches!(patience, Timeout::After(_)).then_some(patience.duration());
        OpenPort::with(port, |open| {
            match open.wait_until(patience.duration(), || open.handled() >= handled)? {
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

/// Closes a port: its handler does not run any more when this returns.
#[unsafe(no_mangle)]
pub extern "C" fn dp_port_close(port: c_int) -> c_int {
    call("dp_port_close", || {
        // Another thread may hold it, which waits.
        OpenPort::with(port, |open| {
            open.end();
            Ok(())
        })?;
        PORTS.close(port)?;
        Ok(0)
    })
}
