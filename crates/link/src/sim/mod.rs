//! A whole network in memory, under virtual time, decided by a seed.
//!
//! Interfaces, paths, a switch or a bus, and sockets are modelled; faults are probabilities of
//! a path. The same seed, configuration and calls give the same run. Nothing
//! happens by itself: time passes when a port sends or polls with a later time,
//! and the latest time given counts for the whole network.

mod bus;
mod config;
mod memory;
mod state;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use bus::BusConfig;
pub use config::{Bursts, NetworkConfig, PathConfig};
pub use memory::{SharedMemory, SharedMemoryConfig, SimHub};
use state::{Frame, State};

use crate::{Caps, Class, Incoming, Link, Outgoing};

/// Why the network lost a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// It had no bytes.
    Empty,
    /// It was longer than the switch passes on.
    TooLong,
    /// Random loss.
    Loss,
    /// Loss in a burst.
    Burst,
    /// The switch's queue for the receiver was full.
    SwitchQueue,
    /// The receiver's socket was full.
    ReceiveQueue,
    /// A cut or partition.
    Cut,
    /// The sender's or the receiver's interface is dead.
    DeadInterface,
    /// Nobody has the address it went to.
    NoSocket,
    /// It waited in a socket whose process went away.
    Detached,
    /// It collided on the bus too often.
    Collisions,
}

impl DropReason {
    /// All reasons.
    pub const ALL: [DropReason; 11] = [
        DropReason::Empty,
        DropReason::TooLong,
        DropReason::Loss,
        DropReason::Burst,
        DropReason::SwitchQueue,
        DropReason::ReceiveQueue,
        DropReason::Cut,
        DropReason::DeadInterface,
        DropReason::NoSocket,
        DropReason::Detached,
        DropReason::Collisions,
    ];
}

/// What the network has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkStats {
    /// Frames taken from senders.
    pub sent: u64,
    /// Frames handed to receivers.
    pub delivered: u64,
    /// Frames that were sent on twice.
    pub duplicated: u64,
    /// Frames delayed beyond their turn.
    pub reordered: u64,
    /// Frames damaged.
    pub corrupted: u64,
    /// Frames that came out in one piece with another.
    pub joined: u64,
    /// Times that an interface began to send on the bus.
    pub attempts: u64,
    /// Those of them that met another.
    pub collisions: u64,
    dropped: [u64; DropReason::ALL.len()],
}

impl NetworkStats {
    /// Frames lost for one reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize]
    }
}

/// Why a process cannot join the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// Somebody has that address.
    #[error(
        "cannot attach to the simulated network at {address}: another port is there; \
         drop or detach it first"
    )]
    Taken {
        /// The address.
        address: SocketAddr,
    },
    /// Both classes were given the same address.
    #[error(
        "cannot attach to the simulated network: both classes were given {address}; \
         give each its own port number"
    )]
    SameAddress {
        /// The address.
        address: SocketAddr,
    },
}

/// A handle to a simulated network; clones lead to the same one.
#[derive(Clone)]
pub struct Network {
    state: Arc<Mutex<State>>,
}

impl Network {
    /// Makes an empty network.
    #[must_use]
    pub fn new(seed: u64, config: NetworkConfig) -> Network {
        Network {
            state: Arc::new(Mutex::new(State::new(seed, config))),
        }
    }

    /// Lets a process join at two addresses.
    ///
    /// # Errors
    /// When one of them is in use.
    pub fn attach(&self, small: SocketAddr, bulk: SocketAddr) -> Result<Port, AttachError> {
        self.attach_interfaces(&[[small, bulk]])
    }

    /// Lets a process join with several interfaces, each with an address for small packets and
    /// one for bulk. A frame leaves by the interface on the network of its destination (the
    /// first 16 bits of an IPv4 address), by the first if there is none.
    ///
    /// # Errors
    /// When one of the addresses is in use.
    ///
    /// # Panics
    /// When there are no interfaces.
    pub fn attach_interfaces(&self, interfaces: &[[SocketAddr; 2]]) -> Result<Port, AttachError> {
        assert!(!interfaces.is_empty(), "at least one interface");
        let id = self.lock().attach(interfaces.as_flattened())?;
        Ok(Port {
            network: self.clone(),
            id,
            interfaces: interfaces.to_vec(),
            frames: Vec::new(),
            full_until_ns: None,
            refuses_next: false,
        })
    }

    /// Takes the process at this address (of either class) off the network, as a
    /// crash does: what waits for it is lost, and its port only gives errors.
    pub fn detach(&self, address: SocketAddr) {
        let mut state = self.lock();
        if let Some(port) = state.port_at(address) {
            state.detach(port);
        }
    }

    /// Changes the network while it runs. Frames under way keep the times they
    /// have; cuts and dead interfaces stop them.
    pub fn change(&self, change: impl FnOnce(&mut NetworkConfig)) {
        change(&mut self.lock().config);
    }

    /// When something next happens inside; no later than any frame under way
    /// becomes visible to `poll`. Frames that already wait do not count.
    #[must_use]
    pub fn next_event_ns(&self) -> Option<u64> {
        self.lock().next_event_ns()
    }

    /// Lets time pass without a port: everything due by then happens.
    pub fn advance(&self, now_ns: u64) {
        self.lock().advance(now_ns);
    }

    /// Addresses that frames have reached since the last call, each once.
    #[must_use]
    pub fn take_arrivals(&self) -> Vec<SocketAddr> {
        self.lock().take_arrivals()
    }

    /// Frames that wait at this address, to be polled.
    #[must_use]
    pub fn waiting(&self, address: SocketAddr) -> usize {
        self.lock().waiting(address)
    }

    /// Counters since the start.
    #[must_use]
    pub fn stats(&self) -> NetworkStats {
        self.lock().stats
    }

    /// A thread that panicked in a closure of `change` leaves a whole network.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// A process's place in a simulated network. Dropping it is leaving.
#[derive(Debug)]
pub struct Port {
    network: Network,
    id: u64,
    /// Small and bulk of each interface.
    interfaces: Vec<[SocketAddr; 2]>,
    frames: Vec<(Class, Frame)>,
    /// When the interface has room again, after it had none.
    full_until_ns: Option<u64>,
    refuses_next: bool,
}

impl Port {
    /// Fails once the network has taken this port away.
    fn check(&self, state: &State) -> io::Result<()> {
        if state.port_at(self.interfaces[0][0]) == Some(self.id) {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::NotConnected,
            format!(
                "the simulated port {} was detached; attach again",
                self.interfaces[0][0]
            ),
        ))
    }
}

impl Link for Port {
    fn caps(&self) -> Caps {
        let state = self.network.lock();
        Caps {
            max_frame_bytes: state.config.max_frame_bytes,
            receive_frames: state.config.receive_queue_frames,
            looks_per_call: 1,
            small_run_frames: 4,
        }
    }

    fn local(&self, class: Class) -> SocketAddr {
        self.interfaces[0][class as usize]
    }

    fn locals(&self, class: Class) -> Vec<SocketAddr> {
        self.interfaces
            .iter()
            .map(|interface| interface[class as usize])
            .collect()
    }

    fn source(&self, class: Class, to: SocketAddr) -> SocketAddr {
        state::source(&self.interfaces, class, to)
    }

    fn send(&mut self, now_ns: u64, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        let mut state = self.network.lock();
        self.check(&state)?;
        state.advance(now_ns);
        let (taken, full_until_ns) = state.send(&self.interfaces, batch);
        self.full_until_ns = full_until_ns;
        self.refuses_next = taken < batch.len() && full_until_ns.is_none();
        Ok(taken)
    }

    fn refuses_next(&self) -> bool {
        self.refuses_next
    }

    fn poll(&mut self, now_ns: u64, class: Class) -> io::Result<usize> {
        let mut state = self.network.lock();
        state.recycle(self.frames.drain(..).map(|(_, frame)| frame));
        self.check(&state)?;
        state.advance(now_ns);
        self.full_until_ns = self.full_until_ns.filter(|&until_ns| until_ns > now_ns);
        for interface in &self.interfaces {
            state.poll(interface[class as usize], class, &mut self.frames);
        }
        Ok(self.frames.len())
    }

    fn frame(&self, index: usize) -> Incoming<'_> {
        let (class, frame) = &self.frames[index];
        Incoming {
            class: *class,
            from: frame.from,
            bytes: &frame.bytes,
        }
    }

    /// When a full interface has room again.
    fn next_deadline_ns(&self) -> Option<u64> {
        self.full_until_ns
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.network.lock().detach(self.id);
    }
}

#[cfg(test)]
mod tests;
