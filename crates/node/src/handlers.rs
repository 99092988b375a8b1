//! The handlers of a process, protected by the driver's lock.
//!
//! While a handler runs, its thread owns it and the table does not contain it, so no other thread
//! can run it.

use dipole_driver::Work;
use dipole_engine::PortRef;

use crate::slots::{Arrival, SlotRing, Slots};

/// Handles a message. It catches its own panics.
pub(crate) type Handler = Box<dyn FnMut(Arrival) + Send>;

enum PortState {
    Free,
    Idle(Handler),
    Running,
    /// The handler runs, and the port's owner does not wait for it.
    Abandoned,
}

struct Port {
    state: PortState,
    endpoint: u32,
    slots: Option<SlotRing>,
}

/// All ports of a process.
#[derive(Default)]
pub(crate) struct PortTable {
    ports: Vec<Port>,
    free: Vec<u32>,
    open: usize,
    rings: u64,
}

impl PortTable {
    pub(crate) fn open(
        &mut self,
        endpoint: u32,
        handler: Handler,
        slots: Option<Slots>,
    ) -> PortRef {
        self.open += 1;
        self.rings += 1;
        let port = Port {
            state: PortState::Idle(handler),
            endpoint,
            slots: slots.map(|slots| SlotRing::new(slots, self.rings)),
        };
        match self.free.pop() {
            Some(index) => {
                self.ports[index as usize] = port;
                PortRef(index)
            }
            None => {
                self.ports.push(port);
                let index = self.ports.len() - 1;
                PortRef(u32::try_from(index).expect("fewer ports than endpoints"))
            }
        }
    }

    /// The slots of a port, and its endpoint.
    pub(crate) fn slots(&mut self, port: PortRef) -> Option<(u32, &mut SlotRing)> {
        let Port {
            endpoint, slots, ..
        } = &mut self.ports[port.0 as usize];
        slots.as_mut().map(|slots| (*endpoint, slots))
    }

    /// True if no port is open.
    pub(crate) fn is_empty(&self) -> bool {
        self.open == 0
    }

    /// Takes the handler of a port to run it.
    pub(crate) fn begin(&mut self, port: PortRef) -> Option<Handler> {
        let state = &mut self.ports[port.0 as usize].state;
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
        let state = &mut self.ports[port.0 as usize].state;
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
        self.ports[port.0 as usize].state = PortState::Abandoned;
    }

    fn forget(&mut self, port: PortRef) {
        let port_state = &mut self.ports[port.0 as usize];
        port_state.state = PortState::Free;
        port_state.slots = None;
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
    pub(crate) arrival: Option<Arrival>,
}

impl Work for PortWork {
    #[inline]
    fn run(&mut self) {
        if let Some(arrival) = self.arrival.take() {
            (self.handler)(arrival);
        }
    }
}
