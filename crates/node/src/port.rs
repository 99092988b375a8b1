//! Active ports: endpoints whose messages run a handler.
//!
//! `handlers.rs` keeps the handlers, the driver runs them. A port is an endpoint like
//! others to those who send to it.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dipole_engine::PortRef;
use dipole_proto::Instant;

use crate::address::Address;
use crate::edge::Edge;
use crate::error::{PortError, SendError};
use crate::inner::Inner;
use crate::process::ProcessState;
use crate::{Endpoint, Message};
use dipole_driver::nanoseconds;
use dipole_driver::{Timeout, WaitError, WaitKey, Want};

/// An endpoint whose messages run a handler, one at a time, in the order in which each edge
/// brought them.
///
/// The handler runs between protocol steps, with nothing locked, on a thread of this process
/// that waits or polls in any call of this library (to receive, for room to send, for a
/// completion); while none does, on a thread of the node's own, which takes up to half a
/// millisecond to notice that. So
/// - it may send, answer, open edges and endpoints, and wait in such calls, in which handlers of
///   other ports may run;
/// - a thread that holds a lock which a handler takes must not wait or poll meanwhile;
/// - a handler that computes for long keeps the thread that runs it from its own work. Others
///   are not held up as long as another thread waits, or the node's own runs.
///
/// Senders use edges as to any endpoint. What they [`send`](Edge::send) is flow-controlled: a
/// slow handler slows its own senders and nobody else.
/// What they [send unreliably](Endpoint::send_unreliable) is dropped if the port holds too many.
///
/// A handler that panics ends its port: senders are refused, and the owner gets
/// [`PortError::Panicked`] from [`check`](Self::check) and [`wait`](Self::wait).
///
/// Dropping the port closes it, as an endpoint is closed, and waits for its handler where that
/// runs on another thread: after that, it never runs again. A port that its own handler drops
/// is closed at once, and the handler goes when it has returned.
pub struct ActivePort {
    inner: Arc<Inner>,
    shared: Arc<Shared>,
    port: PortRef,
    has_ended: AtomicBool,
}

/// The port as its handler sees it.
pub struct PortContext {
    shared: Arc<Shared>,
}

struct Shared {
    endpoint: Endpoint,
    /// Messages for which the handler has returned.
    handled: AtomicU64,
    /// The thread that runs the handler; zero if none does.
    runner: AtomicUsize,
    panic: OnceLock<String>,
}

impl ActivePort {
    pub(crate) fn new(
        inner: &Arc<Inner>,
        endpoint: Endpoint,
        mut handler: impl FnMut(&PortContext, Message) + Send + 'static,
    ) -> ActivePort {
        let shared = Arc::new(Shared {
            endpoint,
            handled: AtomicU64::new(0),
            runner: AtomicUsize::new(0),
            panic: OnceLock::new(),
        });
        let context = PortContext {
            shared: Arc::clone(&shared),
        };
        let run = move |message| {
            let shared = &context.shared;
            shared.runner.store(this_thread(), Ordering::Relaxed);
            let handled = catch_unwind(AssertUnwindSafe(|| handler(&context, message)));
            shared.runner.store(0, Ordering::Relaxed);
            shared.handled.fetch_add(1, Ordering::Relaxed);
            if let Err(panic) = handled {
                shared.panicked(panic.as_ref());
            }
        };
        let id = shared.endpoint.address().endpoint.0;
        let port = inner.driver.with_last(|state, _| {
            let port = state.ports.open(Box::new(run));
            state.engine.set_port(id, port);
            port
        });
        ActivePort {
            inner: Arc::clone(inner),
            shared,
            port,
            has_ended: AtomicBool::new(false),
        }
    }

    /// Its own address, for those who send to it.
    #[must_use]
    pub fn address(&self) -> Address {
        self.shared.endpoint.address()
    }

    /// An edge from this port to an endpoint or port: see [`Endpoint::edge`].
    ///
    /// # Errors
    /// Those of [`Endpoint::edge`].
    pub fn edge(&self, to: Address) -> Result<Edge, SendError> {
        self.shared.endpoint.edge(to)
    }

    /// True in a process that was forked after the node was opened: nothing of it may be used
    /// then.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.inner.is_forked()
    }

    /// Messages for which the handler has returned.
    #[must_use]
    pub fn handled(&self) -> u64 {
        self.shared.handled.load(Ordering::Relaxed)
    }

    /// Whether it still handles messages.
    ///
    /// # Errors
    /// [`PortError::Panicked`], [`PortError::Closed`].
    pub fn check(&self) -> Result<(), PortError> {
        let port = self.address();
        if let Some(message) = self.shared.panic.get() {
            // Whoever is told may open it anew at once.
            self.shared.endpoint.end();
            let message = message.clone();
            return Err(PortError::Panicked { port, message });
        }
        match self.shared.endpoint.is_ended() {
            true => Err(PortError::Closed { port }),
            false => Ok(()),
        }
    }

    /// Handles messages on this thread for `timeout`, those of other ports of the node too; with
    /// none it looks at the network once.
    ///
    /// # Errors
    /// [`PortError`]: the port has ended, or the link is broken.
    pub fn wait(&self, timeout: Duration) -> Result<(), PortError> {
        self.wait_until(timeout, || false).map(drop)
    }

    /// Handles messages on this thread until `condition` holds, at most for `timeout`; whether it
    /// does. It is tried first, and each time that the handler has returned, on any thread.
    ///
    /// # Errors
    /// Those of [`wait`](Self::wait).
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
            let news = News {
                port: self,
                seen,
                holds: false,
                condition: &mut condition,
            };
            let driver = &self.inner.driver;
            match driver.wait_for(Timeout::from(left), &keys, &what, news) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(WaitError::TimedOut { .. }) => return Ok(condition()),
                Err(WaitError::Broken(cause)) => return Err(PortError::Broken(cause)),
            }
        }
    }

    /// True if this thread runs the handler, further down its stack.
    fn is_within_handler(&self) -> bool {
        self.shared.runner.load(Ordering::Relaxed) == this_thread()
    }

    /// Closes the port, as dropping it does.
    pub fn close(self) {}

    /// Closes the port, as dropping it does, though handles to it are left: their waits end with
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
        // What the handler owns is dropped with nothing locked.
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

/// What [`ActivePort::wait_until`] waits for: its condition, or a reason to try it again.
struct News<'a, C> {
    port: &'a ActivePort,
    /// Messages that had been handled when the condition was last tried.
    seen: u64,
    holds: bool,
    condition: &'a mut C,
}

impl<C: FnMut() -> bool> Want<ProcessState> for News<'_, C> {
    /// Whether the condition holds, as far as it was tried.
    type Got = bool;

    fn attempt(&mut self, _state: &mut ProcessState, _now: Instant) -> Option<bool> {
        let port = self.port;
        let is_news = self.holds || port.handled() != self.seen || port.shared.endpoint.is_ended();
        is_news.then_some(self.holds)
    }

    /// What this thread has handled needs no end of the wait to be looked at.
    fn worked(&mut self) {
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

    /// Answers a message: see [`Endpoint::reply`].
    ///
    /// # Errors
    /// Those of [`Endpoint::reply`].
    pub fn reply(&self, message: &Message, payload: &[u8]) -> Result<(), SendError> {
        self.shared.endpoint.reply(message, payload)
    }

    /// Sends to one endpoint or port: see [`Endpoint::send_to`].
    ///
    /// # Errors
    /// Those of [`Endpoint::send_to`].
    pub fn send_to(&self, to: Address, payload: &[u8]) -> Result<(), SendError> {
        self.shared.endpoint.send_to(to, payload)
    }

    /// An edge from this port: see [`Endpoint::edge`].
    ///
    /// # Errors
    /// Those of [`Endpoint::edge`].
    pub fn edge(&self, to: Address) -> Result<Edge, SendError> {
        self.shared.endpoint.edge(to)
    }

    /// Closes the port: this message was its last. Its owner gets [`PortError::Closed`].
    pub fn close(&self) {
        self.shared.endpoint.end();
    }
}

impl Shared {
    fn panicked(&self, panic: &(dyn Any + Send)) {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("it did not say why");
        let port = self.endpoint.address();
        tracing::warn!("the handler of port {port} panicked: {text}; the port is closed");
        // It panics once: after that it is not run any more.
        let _first = self.panic.set(text.to_owned());
        self.endpoint.end();
    }
}

/// A number that no other thread has at the same time; not zero.
fn this_thread() -> usize {
    thread_local! {
        static PLACE: u8 = const { 0 };
    }
    PLACE.with(|place| std::ptr::from_ref(place).addr())
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
