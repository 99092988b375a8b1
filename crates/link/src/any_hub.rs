//! Real and simulated shared memory behind one type, chosen at run time.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use crate::shm::{ConnId, Hub, Payload, PushError, ShmError, ShmEvent, ShmStats};
use crate::sim::SimHub;

/// Either hub: a branch that production always takes the same way.
#[derive(Debug)]
pub enum AnyHub {
    /// Memory that processes share.
    Shared(Box<Hub>),
    /// A simulation of it.
    Sim(SimHub),
}

impl From<Hub> for AnyHub {
    fn from(hub: Hub) -> Self {
        AnyHub::Shared(Box::new(hub))
    }
}

impl From<SimHub> for AnyHub {
    fn from(hub: SimHub) -> Self {
        AnyHub::Sim(hub)
    }
}

/// The same call on whichever hub it is.
macro_rules! on_hub {
    ($any:expr, $hub:ident => $call:expr) => {
        match $any {
            AnyHub::Shared($hub) => $call,
            AnyHub::Sim($hub) => $call,
        }
    };
}

impl AnyHub {
    /// [`Hub::descriptor`]; a simulated one has none.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            AnyHub::Shared(hub) => Some(hub.descriptor()),
            AnyHub::Sim(_) => None,
        }
    }

    /// [`Hub::connect`].
    ///
    /// # Errors
    /// [`ShmError`].
    pub fn connect(&mut self, socket: &Path) -> Result<ConnId, ShmError> {
        on_hub!(self, hub => hub.connect(socket))
    }

    /// [`Hub::close`].
    pub fn close(&mut self, conn: ConnId) {
        on_hub!(self, hub => hub.close(conn));
    }

    /// [`Hub::push`].
    ///
    /// # Errors
    /// [`PushError`]; nothing was pushed.
    #[inline]
    pub fn push(&mut self, conn: ConnId, tag: u64, payload: &[u8]) -> Result<(), PushError> {
        on_hub!(self, hub => hub.push(conn, tag, payload))
    }

    /// [`Hub::want_room`].
    pub fn want_room(&mut self, conn: ConnId) {
        on_hub!(self, hub => hub.want_room(conn));
    }

    /// [`Hub::ring`].
    #[inline]
    pub fn ring(&mut self, conn: ConnId) {
        on_hub!(self, hub => hub.ring(conn));
    }

    /// [`Hub::is_read`].
    pub fn is_read(&mut self, conn: ConnId) -> bool {
        on_hub!(self, hub => hub.is_read(conn))
    }

    /// [`Hub::poll`].
    #[inline]
    pub fn poll(&mut self, limit: usize, take: &mut impl FnMut(ConnId, u64, Payload<'_>)) -> usize {
        match self {
            AnyHub::Shared(hub) => hub.poll(limit, take),
            AnyHub::Sim(hub) => hub.poll(limit, take),
        }
    }

    /// [`Hub::arm`].
    pub fn arm(&mut self) -> bool {
        on_hub!(self, hub => hub.arm())
    }

    /// [`Hub::disarm`].
    pub fn disarm(&mut self) {
        on_hub!(self, hub => hub.disarm());
    }

    /// [`Hub::take_woken`].
    #[inline]
    pub fn take_woken(&mut self) -> bool {
        on_hub!(self, hub => hub.take_woken())
    }

    /// [`Hub::can_pull`].
    #[must_use]
    pub fn can_pull(&self, conn: ConnId) -> bool {
        on_hub!(self, hub => hub.can_pull(conn))
    }

    /// [`Hub::pull`].
    ///
    /// # Errors
    /// The memory cannot be read, or the peer is gone.
    pub fn pull(&mut self, conn: ConnId, address: u64, into: &mut [u8]) -> io::Result<()> {
        on_hub!(self, hub => hub.pull(conn, address, into))
    }

    /// [`Hub::address_of`].
    pub fn address_of(&mut self, bytes: &[u8]) -> u64 {
        match self {
            AnyHub::Shared(_) => Hub::address_of(bytes),
            AnyHub::Sim(hub) => hub.address_of(bytes),
        }
    }

    /// [`Hub::attend`].
    ///
    /// # Errors
    /// Only when the epoll is broken.
    pub fn attend(&mut self, events: &mut Vec<ShmEvent>) -> io::Result<()> {
        match self {
            AnyHub::Shared(hub) => hub.attend(events),
            AnyHub::Sim(hub) => {
                hub.attend(events);
                Ok(())
            }
        }
    }

    /// [`Hub::stats`].
    #[must_use]
    pub fn stats(&self) -> ShmStats {
        on_hub!(self, hub => hub.stats())
    }
}
