//! The handlers of a process, protected by the driver's lock.
//!
//! While a handler runs, its thread owns it and the table does not contain it, so no other thread
//! can run it.

use dipole_driver::Work;
use dipole_engine::{Message, PortRef};

/// Handles a message. It catches its own panics.
pub(crate) type Handler = Box<dyn FnMut(Message) + Send>;

enum PortState {
    Free,
    Idle(Handler),
    Running,
    /// The handler runs, and the port's owner does not wait for it.
    Abandoned,
}

/// All ports of a process.
#[derive(Default)]
pub(crate) struct PortTable {
    ports: Vec<PortState>,
    free: Vec<u32>,
    open: usize,
}

impl PortTable {
    pub(crate) fn open(&mut self, handler: Handler) -> PortRef {
        self.open += 1;
        let index = self.free.pop().unwrap_or_else(|| {
            self.ports.push(PortState::Free);
            u32::try_from(self.ports.len() - 1).expect("fewer ports than endpoints")
        });
        self.ports[index as usize] = PortState::Idle(handler);
        PortRef(index)
    }

    /// True if no port is open.
    pub(crate) fn is_empty(&self) -> bool {
        self.open == 0
    }

    /// Takes the handler of a port to run it.
    pub(crate) fn begin(&mut self, port: PortRef) -> Option<Handler> {
        let state = &mut self.ports[port.0 as usize];
        match std::mem::replace(state, PortState::Running) {
            PortState::Idle(handler) => Some(handler),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Returns a handler after it ran; gives it back if the port was abandoned.
    pub(crate) fn finish(&mut self, port: PortRef, handler: Handler) -> Option<Handler> {
        let state = &mut self.ports[port.0 as usize];
        if matches!(state, PortState::Abandoned) {
            self.forget(port);
            return Some(handler);
        }
        *state = PortState::Idle(handler);
        None
    }

    /// Closes a port whose handler is not running, and returns the handler.
    pub(crate) fn close(&mut self, port: PortRef) -> Option<Handler> {
        let handler = self.begin(port)?;
        self.forget(port);
        Some(handler)
    }

    /// Closes a port as soon as its handler returns.
    pub(crate) fn abandon(&mut self, port: PortRef) {
        self.ports[port.0 as usize] = PortState::Abandoned;
    }

    fn forget(&mut self, port: PortRef) {
        self.ports[port.0 as usize] = PortState::Free;
        self.free.push(port.0);
        self.open -= 1;
    }
}

impl std::fmt::Debug for PortTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PortTable({} open)", self.open)
    }
}

/// A handler and its message, for the thread that runs them.
pub(crate) struct PortWork {
    pub(crate) endpoint: u32,
    pub(crate) port: PortRef,
    pub(crate) handler: Handler,
    pub(crate) message: Option<Message>,
}

impl Work for PortWork {
    #[inline]
    fn run(&mut self) {
        if let Some(message) = self.message.take() {
            (self.handler)(message);
        }
    }
}
