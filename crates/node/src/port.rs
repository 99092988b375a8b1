//! Active ports: endpoints whose messages are passed to a handler.
//!
//! `handlers.rs` stores the handlers and the driver runs them. For senders, a port is an ordinary
//! endpoint.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dipole_engine::PortRef;
use dipole_proto::{Instant, PeerId};

use crate::address::Address;
use crate::edge::Edge;
use crate::error::{OpenError, PortError, SendError};
use crate::inner::Inner;
use crate::landed::{Landed, SlotMessage};
use crate::process::ProcessState;
use crate::region::{Region, RegionMemory, Rights};
use crate::slots::{Arrival, Slots};
use crate::trace::TracedWait;
use crate::{Endpoint, Message};
use dipole_driver::nanoseconds;
use dipole_driver::{Timeout, WaitCondition, WaitError, WaitKey};

/// An endpoint whose messages are passed to a handler, one at a time, in the order of each edge.
///
/// [`Node::open_port`](crate::Node::open_port) passes them in memory of the node.
/// [`Node::open_port_into`](crate::Node::open_port_into) binds a buffer as well: messages land in
/// its [`Slots`] as they arrive.
///
/// The handler runs between protocol steps, without locks, on a thread of this process that waits
/// or polls in any call of this library. If no thread does that, a thread of the node runs it, which
/// may take half a millisecond to notice the message. Consequently:
/// - a handler may send, reply, open edges and endpoints, and wait in such calls; handlers of
///   other ports may run meanwhile;
/// - a thread must not wait or poll while it holds a lock that a handler takes;
/// - a handler that computes for long delays the thread that runs it. Other traffic continues if
///   another thread waits, or on the node's own threads.
///
/// Senders use ordinary edges. What they [`send`](Edge::send) is flow-controlled: a slow handler
/// slows down only its own senders. What they [send unreliably](Endpoint::send_unreliable) is
/// dropped if the port already holds too many messages.
///
/// A handler that panics closes its port: senders are refused, and the owner gets
/// [`PortError::Panicked`] from [`check`](Self::check) and [`wait`](Self::wait).
///
/// Dropping the port closes it like an endpoint, and waits for its handler if that is running on
/// another thread; afterwards it never runs again. If the handler itself drops the port, the port
/// closes at once, and the handler is dropped after it returns.
pub struct ActivePort {
    inner: Arc<Inner>,
    shared: Arc<Shared>,
    port: PortRef,
    has_ended: AtomicBool,
}

/// The port, as seen by its handler.
pub struct PortContext {
    shared: Arc<Shared>,
}

struct Shared {
    endpoint: Arc<Endpoint>,
    /// Messages whose handler call has returned.
    handled: AtomicU64,
    /// The thread that runs the handler, or zero.
    runner: AtomicUsize,
    panic: OnceLock<String>,
}

impl ActivePort {
    pub(crate) fn new(
        inner: &Arc<Inner>,
        endpoint: Endpoint,
        mut handler: impl FnMut(&PortContext, Message) + Send + 'static,
    ) -> ActivePort {
        let handler = move |context: &PortContext, arrival| {
            // Without slots, all messages arrive like this.
            if let Arrival::Message(message) = arrival {
                handler(context, message);
            }
        };
        ActivePort::open(inner, endpoint, None, handler)
    }

    /// A port whose messages land in slots.
    pub(crate) fn with_slots(
        inner: &Arc<Inner>,
        endpoint: Endpoint,
        slots: Slots,
        mut handler: impl FnMut(&PortContext, Landed) + Send + 'static,
    ) -> ActivePort {
        let handler = move |context: &PortContext, arrival| {
            let landed = match arrival {
                Arrival::Message(message) => Landed::Outside(message),
                Arrival::Slot(filled) => {
                    Landed::InSlot(SlotMessage::new(&context.shared.endpoint, filled))
                }
            };
            handler(context, landed);
        };
        ActivePort::open(inner, endpoint, Some(slots), handler)
    }

    fn open(
        inner: &Arc<Inner>,
        endpoint: Endpoint,
        slots: Option<Slots>,
        mut handler: impl FnMut(&PortContext, Arrival) + Send + 'static,
    ) -> ActivePort {
        let shared = Arc::new(Shared {
            endpoint: Arc::new(endpoint),
            handled: AtomicU64::new(0),
            runner: AtomicUsize::new(0),
            panic: OnceLock::new(),
        });
        let context = PortContext {
            shared: Arc::clone(&shared),
        };
        let run = move |arrival| {
            let shared = &context.shared;
            shared.runner.store(this_thread(), Ordering::Relaxed);
            let handled = catch_unwind(AssertUnwindSafe(|| handler(&context, arrival)));
            shared.runner.store(0, Ordering::Relaxed);
            shared.handled.fetch_add(1, Ordering::Relaxed);
            if let Err(panic) = handled {
                shared.on_panic(panic.as_ref());
            }
        };
        let id = shared.endpoint.address().endpoint.0;
        let port = inner
            .driver
            .with_last(|state, _| state.open_port(id, Box::new(run), slots));
        ActivePort {
            inner: Arc::clone(inner),
            shared,
            port,
            has_ended: AtomicBool::new(false),
        }
    }

    /// Returns the port's address.
    #[must_use]
    pub fn address(&self) -> Address {
        self.shared.endpoint.address()
    }

    /// Opens an edge from this port to an endpoint or port: see [`Endpoint::edge`].
    ///
    /// # Errors
    /// The errors of [`Endpoint::edge`].
    pub fn edge(&self, to: Address) -> Result<Edge, SendError> {
        self.shared.endpoint.edge(to)
    }

    /// Opens memory to peers that have an edge to this port: see [`Endpoint::open_region`]. The
    /// handler gets the notices of puts.
    ///
    /// # Errors
    /// The errors of [`Endpoint::open_region`].
    pub fn open_region(&self, memory: RegionMemory, rights: Rights) -> Result<Region, OpenError> {
        self.shared.endpoint.open_region(memory, rights)
    }

    /// True in a forked child, which must not use the node.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.inner.is_forked()
    }

    /// Number of messages whose handler call has returned.
    #[must_use]
    pub fn handled(&self) -> u64 {
        self.shared.handled.load(Ordering::Relaxed)
    }

    /// Checks that the port still handles messages.
    ///
    /// # Errors
    /// [`PortError::Panicked`], [`PortError::Closed`].
    pub fn check(&self) -> Result<(), PortError> {
        let port = self.address();
        if let Some(message) = self.shared.panic.get() {
            // The owner may reopen it as soon as it gets this error.
            self.shared.endpoint.end();
            let message = message.clone();
            return Err(PortError::Panicked { port, message });
        }
        match self.shared.endpoint.is_ended() {
            true => Err(PortError::Closed { port }),
            false => Ok(()),
        }
    }

    /// Handles messages on this thread for `timeout`, including those of other ports of the node.
    /// With a zero timeout it polls the network once.
    ///
    /// # Errors
    /// [`PortError`]: the port has ended, or the link is broken.
    pub fn wait(&self, timeout: Duration) -> Result<(), PortError> {
        self.wait_until(timeout, || false).map(drop)
    }

    /// Handles messages on this thread until `condition` holds, for at most `timeout`; returns
    /// whether it holds. It is checked first, and after each return of the handler on any thread.
    ///
    /// # Errors
    /// The errors of [`wait`](Self::wait).
    pub fn wait_until(
        &self,
        timeout: Duration,
        mut condition: impl FnMut() -> bool,
    ) -> Result<bool, PortError> {
        if self.inner.is_forked() {
            return Err(PortError::Forked);
        }
        if self.is_within_handler() {
            let port = self.address();
            return Err(PortError::WithinHandler { port });
        }
        let deadline = self.inner.driver.now().after(nanoseconds(timeout));
        let keys = [
            WaitKey::Port(self.port.0),
            WaitKey::Endpoint(self.address().endpoint.0),
        ];
        let what = |_: &ProcessState| format!("a message to port {}", self.address());
        loop {
            let seen = self.handled();
            if condition() {
                return Ok(true);
            }
            self.check()?;
            let left = Duration::from_nanos(deadline.since(self.inner.driver.now()));
            let wait_condition = PortCondition {
                port: self,
                seen,
                holds: false,
                condition: &mut condition,
            };
            let driver = &self.inner.driver;
            match driver.wait_for(Timeout::from(left), &keys, &what, wait_condition) {
                Ok(true) => return Ok(true),
                Ok(false) | Err(WaitError::Interrupted { .. }) => {}
                Err(WaitError::TimedOut { .. }) => return Ok(condition()),
                Err(WaitError::Broken(cause)) => return Err(PortError::Broken(cause)),
            }
        }
    }

    /// Begins a wait of a layer above that consists of several calls, if waits are recorded.
    #[must_use]
    pub fn trace_wait(&self) -> Option<TracedWait> {
        self.inner.trace_wait(Timeout::Infinite)
    }

    /// True if this thread is inside the handler.
    fn is_within_handler(&self) -> bool {
        self.shared.runner.load(Ordering::Relaxed) == this_thread()
    }

    /// Closes the port, as dropping it does.
    pub fn close(self) {}

    /// Closes the port as dropping it does, while handles to it still exist; their waits end with
    /// [`PortError::Closed`].
    pub fn end(&self) {
        if self.inner.is_forked() || self.has_ended.swap(true, Ordering::Relaxed) {
            return;
        }
        self.shared.endpoint.end();
        let (driver, port) = (&self.inner.driver, self.port);
        if !self.is_within_handler() {
            let what = |_: &ProcessState| format!("the handler of port {}", self.address());
            let keys = [WaitKey::Port(port.0)];
            let closed = driver.wait(Timeout::Infinite, &keys, &what, |state, _| {
                state.ports.close(port)
            });
            if closed.is_ok() {
                return;
            }
        }
        // Drop what the handler owns without the lock.
        let _handler = driver.with_last(|state, _| {
            let handler = state.ports.close(port);
            if handler.is_none() {
                state.ports.abandon(port);
            }
            handler
        });
    }
}

impl Drop for ActivePort {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits until the condition holds or must be checked again.
struct PortCondition<'a, C> {
    port: &'a ActivePort,
    /// Messages handled when the condition was last checked.
    seen: u64,
    holds: bool,
    condition: &'a mut C,
}

impl<C: FnMut() -> bool> WaitCondition<ProcessState> for PortCondition<'_, C> {
    /// True if the condition held when it was last checked.
    type Output = bool;

    fn attempt(&mut self, _state: &mut ProcessState, _now: Instant) -> Option<bool> {
        let port = self.port;
        let is_over = self.holds || port.handled() != self.seen || port.shared.endpoint.is_ended();
        is_over.then_some(self.holds)
    }

    /// Checks the condition after a handler ran on this thread, without ending the wait.
    fn on_work_done(&mut self) {
        let handled = self.port.handled();
        if !self.holds && handled != self.seen {
            self.seen = handled;
            self.holds = (self.condition)();
        }
    }
}

impl PortContext {
    /// The port's own address.
    #[must_use]
    pub fn address(&self) -> Address {
        self.shared.endpoint.address()
    }

    /// Replies to a message: see [`Endpoint::reply`].
    ///
    /// # Errors
    /// The errors of [`Endpoint::reply`].
    pub fn reply(&self, message: &Message, payload: &[u8]) -> Result<(), SendError> {
        self.shared.endpoint.reply(message, payload)
    }

    /// Replies to a message of this endpoint and process, which need not be kept until then.
    ///
    /// # Errors
    /// The errors of [`Endpoint::reply`].
    pub fn reply_to(&self, to: Address, peer: PeerId, payload: &[u8]) -> Result<(), SendError> {
        self.shared.endpoint.reply_to((to, peer), payload)
    }

    /// Sends to one endpoint or port: see [`Endpoint::send_to`].
    ///
    /// # Errors
    /// The errors of [`Endpoint::send_to`].
    pub fn send_to(&self, to: Address, payload: &[u8]) -> Result<(), SendError> {
        self.shared.endpoint.send_to(to, payload)
    }

    /// Opens an edge from this port: see [`Endpoint::edge`].
    ///
    /// # Errors
    /// The errors of [`Endpoint::edge`].
    pub fn edge(&self, to: Address) -> Result<Edge, SendError> {
        self.shared.endpoint.edge(to)
    }

    /// Closes the port after this message. Its owner gets [`PortError::Closed`].
    pub fn close(&self) {
        self.shared.endpoint.end();
    }
}

impl Shared {
    fn on_panic(&self, panic: &(dyn Any + Send)) {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("no message");
        let port = self.endpoint.address();
        tracing::warn!("the handler of port {port} panicked: {text}; the port is closed");
        // It is not called again after a panic.
        let _first = self.panic.set(text.to_owned());
        self.endpoint.end();
    }
}

/// A nonzero number that is unique among running threads.
fn this_thread() -> usize {
    thread_local! {
        static MARKER: u8 = const { 0 };
    }
    MARKER.with(|marker| std::ptr::from_ref(marker).addr())
}

impl fmt::Debug for ActivePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ActivePort({})", self.address())
    }
}

impl fmt::Debug for PortContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PortContext({})", self.address())
    }
}
