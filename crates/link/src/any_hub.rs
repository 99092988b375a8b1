//! Real and simulated shared memory behind one type, chosen at run time.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use delegate::delegate;

use crate::clock::monotonic_ns;
use crate::fault::FaultyHub;
use crate::shm::{ConnId, Hub, Payload, PushError, ShmError, ShmEvent, ShmStats};
use crate::sim::SimHub;

/// A real, a faulty or a simulated hub; in production the branch always goes the same way.
#[derive(Debug)]
pub enum AnyHub {
    /// Shared memory of the operating system.
    Shared(Box<Hub>),
    /// Shared memory of the operating system whose rings seem full at random.
    Faulty(Box<FaultyHub>),
    /// Shared memory of the simulator.
    Sim(SimHub),
}

impl From<Hub> for AnyHub {
    fn from(hub: Hub) -> Self {
        AnyHub::Shared(Box::new(hub))
    }
}

impl From<FaultyHub> for AnyHub {
    fn from(hub: FaultyHub) -> Self {
        AnyHub::Faulty(Box::new(hub))
    }
}

impl From<SimHub> for AnyHub {
    fn from(hub: SimHub) -> Self {
        AnyHub::Sim(hub)
    }
}

impl AnyHub {
    /// The number of records that a faulty hub refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        match self {
            AnyHub::Faulty(hub) => hub.refused(),
            AnyHub::Shared(_) | AnyHub::Sim(_) => 0,
        }
    }

    /// [`Hub::descriptor`]; `None` in a simulation.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            AnyHub::Shared(hub) => Some(hub.descriptor()),
            AnyHub::Faulty(hub) => Some(hub.descriptor()),
            AnyHub::Sim(_) => None,
        }
    }

    /// See [`Hub::address_of`].
    pub fn address_of(&mut self, bytes: &[u8]) -> u64 {
        match self {
            AnyHub::Shared(_) | AnyHub::Faulty(_) => Hub::address_of(bytes),
            AnyHub::Sim(hub) => hub.address_of(bytes),
        }
    }

    /// The current time, for measuring durations. In a simulation the seed decides it, so both
    /// outcomes of a measurement are tried.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        match self {
            AnyHub::Shared(_) | AnyHub::Faulty(_) => monotonic_ns(),
            AnyHub::Sim(hub) => hub.now_ns(),
        }
    }

    /// See [`Hub::poll_connections`].
    ///
    /// # Errors
    /// Only when the epoll is broken.
    pub fn poll_connections(&mut self, events: &mut Vec<ShmEvent>) -> io::Result<()> {
        match self {
            AnyHub::Shared(hub) => hub.poll_connections(events),
            AnyHub::Faulty(hub) => hub.poll_connections(events),
            AnyHub::Sim(hub) => {
                hub.poll_connections(events);
                Ok(())
            }
        }
    }

    delegate! {
        to match self {
            AnyHub::Shared(hub) => hub,
            AnyHub::Faulty(hub) => hub,
            AnyHub::Sim(hub) => hub,
        } {
            /// See [`Hub::connect`].
            ///
            /// # Errors
            /// [`ShmError`].
            pub fn connect(&mut self, socket: &Path) -> Result<ConnId, ShmError>;

            /// See [`Hub::close`].
            pub fn close(&mut self, conn: ConnId);

            /// See [`Hub::push`].
            ///
            /// # Errors
            /// [`PushError`]; nothing was pushed.
            pub fn push(&mut self, conn: ConnId, tag: u64, payload: &[u8]) -> Result<(), PushError>;

            /// See [`Hub::push_parts`].
            ///
            /// # Errors
            /// [`PushError`]; nothing was pushed.
            pub fn push_parts(&mut self, conn: ConnId, tag: u64, head: &[u8], rest: &[u8]) -> Result<(), PushError>;

            /// See [`Hub::push_notice`].
            ///
            /// # Errors
            /// [`PushError`]; nothing was pushed.
            pub fn push_notice(&mut self, conn: ConnId, tag: u64, payload: &[u8]) -> Result<(), PushError>;

            /// See [`Hub::want_room`].
            pub fn want_room(&mut self, conn: ConnId);

            /// See [`Hub::wake_peer`].
            pub fn wake_peer(&mut self, conn: ConnId);

            /// See [`Hub::has_room`].
            pub fn has_room(&mut self, conn: ConnId) -> bool;

            /// See [`Hub::is_read`].
            pub fn is_read(&mut self, conn: ConnId) -> bool;

            /// See [`Hub::unread_bytes`].
            pub fn unread_bytes(&mut self, conn: ConnId) -> u64;

            /// See [`Hub::answers`].
            pub fn answers(&mut self, conn: ConnId) -> u64;

            /// See [`Hub::set_answers`].
            pub fn set_answers(&mut self, conn: ConnId, count: u64);

            /// See [`Hub::poll`].
            pub fn poll(&mut self, limit: usize, take: &mut impl FnMut(ConnId, u64, Payload<'_>) -> Option<u64>) -> usize;

            /// See [`Hub::arm`].
            pub fn arm(&mut self) -> bool;

            /// See [`Hub::disarm`].
            pub fn disarm(&mut self);

            /// See [`Hub::take_woken`].
            pub fn take_woken(&mut self) -> bool;

            /// See [`Hub::can_pull`].
            #[must_use]
            pub fn can_pull(&self, conn: ConnId) -> bool;

            /// See [`Hub::block_pulls`].
            pub fn block_pulls(&mut self);

            /// See [`Hub::allow_pulls`].
            pub fn allow_pulls(&mut self);

            /// See [`Hub::pull`].
            ///
            /// # Errors
            /// The memory cannot be read, or the peer is gone.
            pub fn pull(&mut self, conn: ConnId, address: u64, into: &mut [u8]) -> io::Result<()>;

            /// See [`Hub::stats`].
            #[must_use]
            pub fn stats(&self) -> ShmStats;
        }
    }
}
