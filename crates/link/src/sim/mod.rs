//! A simulated network under virtual time, determined by a seed.
//!
//! It models interfaces, paths, a switch or a bus, and sockets; faults are probabilities of a
//! path. The same seed, configuration and calls give the same run. Nothing happens on its own:
//! time advances when a port sends or polls with a later time, and the latest time given
//! applies to the whole network.

mod bus;
mod config;
mod memory;
mod state;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use bus::BusConfig;
pub use config::{Bursts, NetworkConfig, PathConfig};
pub use memory::{SharedMemory, SharedMemoryConfig, SimHub};
use state::{Frame, State};

use crate::{Caps, Class, Incoming, Link, Outgoing};

/// Why the network lost a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The frame was empty.
    Empty,
    /// It was longer than the switch forwards.
    TooLong,
    /// It was lost at random.
    Loss,
    /// Loss in a burst.
    Burst,
    /// The switch's queue for the receiver was full.
    SwitchQueue,
    /// The receiver's socket buffer was full.
    ReceiveQueue,
    /// A cut or partition.
    Cut,
    /// The sender's or the receiver's interface is dead.
    DeadInterface,
    /// No socket has the destination address.
    NoSocket,
    /// It was queued in a socket whose process left.
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

/// Counters of the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkStats {
    /// Frames accepted from senders.
    pub sent: u64,
    /// Frames delivered to receivers.
    pub delivered: u64,
    /// Frames duplicated.
    pub duplicated: u64,
    /// Frames delayed so that later ones overtook them.
    pub reordered: u64,
    /// Frames damaged.
    pub corrupted: u64,
    /// Frames delivered joined to another one.
    pub joined: u64,
    /// Attempts of interfaces to send on the bus.
    pub attempts: u64,
    /// Attempts that collided.
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
    /// The address is in use.
    #[error(
        "cannot attach to the simulated network at {address}: the address is in use; \
         drop or detach the other port first"
    )]
    Taken {
        /// Address that was requested.
        address: SocketAddr,
    },
    /// Both classes have the same address.
    #[error(
        "cannot attach to the simulated network: both classes have the address {address}; \
         give each its own port number"
    )]
    SameAddress {
        /// Address that was requested.
        address: SocketAddr,
    },
}

/// A handle to a simulated network; clones refer to the same network.
#[derive(Clone)]
pub struct Network {
    state: Arc<Mutex<State>>,
}

impl Network {
    /// Creates an empty network.
    #[must_use]
    pub fn new(seed: u64, config: NetworkConfig) -> Network {
        Network {
            state: Arc::new(Mutex::new(State::new(seed, config))),
        }
    }

    /// Adds a process with two addresses.
    ///
    /// # Errors
    /// If one of them is in use.
    pub fn attach(&self, small: SocketAddr, bulk: SocketAddr) -> Result<Port, AttachError> {
        self.attach_interfaces(&[[small, bulk]])
    }

    /// Adds a process with several interfaces, each with an address for small packets and one
    /// for bulk. A frame leaves through the interface on the network of its destination (the
    /// first 16 bits of an IPv4 address), otherwise through the first.
    ///
    /// # Errors
    /// If one of the addresses is in use.
    ///
    /// # Panics
    /// If there are no interfaces.
    pub fn attach_interfaces(&self, interfaces: &[[SocketAddr; 2]]) -> Result<Port, AttachError> {
        assert!(!interfaces.is_empty(), "at least one interface");
        let id = self.lock().attach(interfaces.as_flattened())?;
        Ok(Port {
            network: self.clone(),
            id,
            interfaces: interfaces.to_vec(),
            in_use: interfaces.to_vec(),
            frames: Vec::new(),
            full_until_ns: None,
            refuses_next: false,
        })
    }

    /// Removes the process at this address (of either class) from the network, like a crash:
    /// frames queued for it are lost, and its port only returns errors.
    pub fn detach(&self, address: SocketAddr) {
        let mut state = self.lock();
        if let Some(port) = state.port_at(address) {
            state.detach(port);
        }
    }

    /// Changes the configuration during a run. Frames in flight keep their times; cuts and dead
    /// interfaces stop them.
    pub fn change(&self, change: impl FnOnce(&mut NetworkConfig)) {
        change(&mut self.lock().config);
    }

    /// Time of the next internal event; no later than any frame in flight becomes visible to
    /// `poll`. Frames that are already queued do not count.
    #[must_use]
    pub fn next_event_ns(&self) -> Option<u64> {
        self.lock().next_event_ns()
    }

    /// Advances the time without a port: everything due by then happens.
    pub fn advance(&self, now_ns: u64) {
        self.lock().advance(now_ns);
    }

    /// Addresses that frames have reached since the last call, each once.
    #[must_use]
    pub fn take_arrivals(&self) -> Vec<SocketAddr> {
        self.lock().take_arrivals()
    }

    /// Number of frames queued at this address.
    #[must_use]
    pub fn waiting(&self, address: SocketAddr) -> usize {
        self.lock().waiting(address)
    }

    /// Counters since the start.
    #[must_use]
    pub fn stats(&self) -> NetworkStats {
        self.lock().stats
    }

    /// A panic in a closure passed to `change` leaves the network consistent.
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

/// A process's connection to a simulated network. Dropping it leaves the network.
#[derive(Debug)]
pub struct Port {
    network: Network,
    id: u64,
    /// Small and bulk address of each interface.
    interfaces: Vec<[SocketAddr; 2]>,
    /// Those through which frames leave.
    in_use: Vec<[SocketAddr; 2]>,
    frames: Vec<(Class, Frame)>,
    /// When a full interface has room again.
    full_until_ns: Option<u64>,
    refuses_next: bool,
}

impl Port {
    /// Fails once the network has removed this port.
    fn check(&self, state: &State) -> io::Result<()> {
        if state.port_at(self.interfaces[0][0]) == Some(self.id) {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::NotConnected,
            format!(
                "the simulated port {} was detached; attach it again",
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
            polls_per_syscall: 1,
            small_run_frames: 4,
            checks_frames: state.config.checks_frames,
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

    fn is_in_use(&self, interface: usize) -> bool {
        self.in_use.contains(&self.interfaces[interface])
    }

    fn set_present(&mut self, present: &[IpAddr], destinations: &[IpAddr]) -> Option<Vec<IpAddr>> {
        let is_present = |interface: &&[SocketAddr; 2]| present.contains(&interface[0].ip());
        let in_use: Vec<_> = self.interfaces.iter().filter(is_present).copied().collect();
        if in_use.is_empty() || in_use == self.in_use {
            return None;
        }
        let before = std::mem::replace(&mut self.in_use, in_use);
        let moved = destinations.iter().copied().filter(|to| {
            let to = SocketAddr::new(*to, 0);
            let source = |interfaces: &_| state::source(interfaces, Class::Small, to);
            source(&before) != source(&self.in_use)
        });
        Some(moved.collect())
    }

    fn source(&self, class: Class, to: SocketAddr) -> SocketAddr {
        state::source(&self.in_use, class, to)
    }

    fn send(&mut self, now_ns: u64, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        let mut state = self.network.lock();
        self.check(&state)?;
        state.advance(now_ns);
        let (taken, full_until_ns) = state.send(&self.in_use, batch);
        self.full_until_ns = full_until_ns;
        let frames: usize = batch.iter().map(Outgoing::count).sum();
        self.refuses_next = taken < frames && full_until_ns.is_none();
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

    fn message(&self, index: usize) -> Incoming<'_> {
        let (class, frame) = &self.frames[index];
        Incoming {
            class: *class,
            from: frame.from,
            bytes: &frame.bytes,
            frame_bytes: frame.bytes.len(),
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
