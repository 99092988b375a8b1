//! How messages move between ranks that share no memory.

mod connection;
mod endpoint;
mod tcp;

use std::ops::Deref;
use std::time::Duration;

use bytes::Bytes;
use dipole_node::RegionMemory;
use dipole_node::job::Job;

use crate::failure::Failure;

pub use connection::Connection;
pub(crate) use connection::job;
pub use endpoint::Endpoints;
pub use tcp::Tcp;

/// Packets of a link, counted since the program began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Packets sent again.
    pub repeats: u64,
    /// Packets received that had arrived before.
    pub duplicates: u64,
    /// Packets that only requested an acknowledgement.
    pub ack_requests: u64,
}

/// Moves messages between ranks: in order between two ranks, without loss or duplicates.
pub trait Carrier {
    /// Type of received messages.
    type Message: Deref<Target = [u8]>;

    /// Opens links again: those of `job`, or of the environment's job after the process was restored
    /// from an image.
    ///
    /// # Errors
    /// The links cannot be opened, or this carrier has none of its own.
    fn reopen(_job: Option<Job>) -> Result<Connection<Self>, Failure>
    where
        Self: Sized,
    {
        Err(Failure::NotSaved(
            "its links are not those of a launched job".to_owned(),
        ))
    }

    /// True if another message can be sent now.
    ///
    /// # Errors
    /// An earlier message did not arrive.
    fn has_room(&mut self) -> Result<bool, Failure>;

    /// Sends a message without blocking.
    ///
    /// # Errors
    /// The rank has ended or cannot be reached.
    fn send(&mut self, to: u32, message: Vec<u8>) -> Result<(), Failure>;

    /// The next message and its sender. Waits for it at most `timeout`; if there was no room to send,
    /// also returns once there is room again.
    ///
    /// # Errors
    /// An earlier message did not arrive, or nothing can be received.
    fn receive(&mut self, timeout: Duration) -> Result<Option<(u32, Self::Message)>, Failure>;

    /// Continues with what was sent. Returns true if all of it leaves without further calls.
    ///
    /// # Errors
    /// An earlier message did not arrive.
    fn progress(&mut self) -> Result<bool, Failure> {
        Ok(true)
    }

    /// Fails if one of these ranks is known to have ended.
    ///
    /// # Errors
    /// [`Failure::Gone`].
    fn check(&mut self, ranks: &[u32]) -> Result<(), Failure>;

    /// Lets other ranks write into memory until it is closed. Returns the key that they need, or
    /// `None` if this carrier does not support it.
    ///
    /// # Errors
    /// Too few resources are available.
    fn open_memory(&mut self, _memory: &RegionMemory) -> Result<Option<u64>, Failure> {
        Ok(None)
    }

    /// Ends all access to the memory with this key.
    fn close_memory(&mut self, _key: u64) {}

    /// Writes bytes into memory that a rank has opened. They arrive before messages that are sent to
    /// the rank later. The carrier drops the bytes once it no longer needs them.
    ///
    /// # Errors
    /// The rank has ended or cannot be reached.
    fn write_remote(
        &mut self,
        to: u32,
        _key: u64,
        _offset: u64,
        _bytes: Bytes,
    ) -> Result<(), Failure> {
        Err(Failure::OutOfReach { rank: to })
    }

    /// True while bytes of remote writes are still needed. [`receive`](Self::receive) returns once
    /// they no longer are.
    fn has_pending_writes(&self) -> bool {
        false
    }

    /// The kind of link, as in the name of its profile.
    fn name(&self) -> &'static str {
        "other"
    }

    /// The link's packet counters so far.
    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }

    /// Waits until no bytes of remote writes are needed, because the program ends with an error.
    fn reclaim_memory(&mut self) {}

    /// Waits at most `timeout` until what was sent has arrived, and closes all links.
    fn close(&mut self, timeout: Duration);
}

/// The carrier of a program that was launched.
#[derive(Debug)]
pub enum AnyCarrier {
    /// None, because there is one rank.
    None,
    /// Carries messages over endpoints of Dipole.
    Endpoints(Box<Endpoints>),
    /// Carries messages over plain TCP.
    Tcp(Box<Tcp>),
}

/// A message from any carrier.
#[derive(Debug)]
pub enum AnyMessage {
    /// The message is in the memory of its link.
    Message(dipole_node::Message),
    /// Read from a TCP stream.
    Bytes(Vec<u8>),
}

impl Deref for AnyMessage {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            AnyMessage::Message(message) => message,
            AnyMessage::Bytes(bytes) => bytes,
        }
    }
}

impl Carrier for AnyCarrier {
    type Message = AnyMessage;

    fn reopen(job: Option<Job>) -> Result<Connection<AnyCarrier>, Failure> {
        match job {
            Some(job) => Connection::of(Some(job)),
            None => Connection::of(connection::job()?),
        }
    }

    fn has_room(&mut self) -> Result<bool, Failure> {
        match self {
            AnyCarrier::None => Ok(true),
            AnyCarrier::Endpoints(endpoints) => endpoints.has_room(),
            AnyCarrier::Tcp(tcp) => tcp.has_room(),
        }
    }

    fn send(&mut self, to: u32, message: Vec<u8>) -> Result<(), Failure> {
        match self {
            AnyCarrier::None => Ok(()),
            AnyCarrier::Endpoints(endpoints) => endpoints.send(to, message),
            AnyCarrier::Tcp(tcp) => tcp.send(to, message),
        }
    }

    fn receive(&mut self, timeout: Duration) -> Result<Option<(u32, AnyMessage)>, Failure> {
        Ok(match self {
            AnyCarrier::None => None,
            AnyCarrier::Endpoints(endpoints) => (endpoints.receive(timeout)?)
                .map(|(from, message)| (from, AnyMessage::Message(message))),
            AnyCarrier::Tcp(tcp) => {
                (tcp.receive(timeout)?).map(|(from, message)| (from, AnyMessage::Bytes(message)))
            }
        })
    }

    fn progress(&mut self) -> Result<bool, Failure> {
        match self {
            AnyCarrier::None => Ok(true),
            AnyCarrier::Endpoints(endpoints) => endpoints.progress(),
            AnyCarrier::Tcp(tcp) => tcp.progress(),
        }
    }

    fn check(&mut self, ranks: &[u32]) -> Result<(), Failure> {
        match self {
            AnyCarrier::None => Ok(()),
            AnyCarrier::Endpoints(endpoints) => endpoints.check(ranks),
            AnyCarrier::Tcp(tcp) => tcp.check(ranks),
        }
    }

    fn open_memory(&mut self, memory: &RegionMemory) -> Result<Option<u64>, Failure> {
        match self {
            AnyCarrier::None => Ok(None),
            AnyCarrier::Endpoints(endpoints) => endpoints.open_memory(memory),
            AnyCarrier::Tcp(tcp) => tcp.open_memory(memory),
        }
    }

    fn close_memory(&mut self, key: u64) {
        match self {
            AnyCarrier::None => {}
            AnyCarrier::Endpoints(endpoints) => endpoints.close_memory(key),
            AnyCarrier::Tcp(tcp) => tcp.close_memory(key),
        }
    }

    fn write_remote(
        &mut self,
        to: u32,
        key: u64,
        offset: u64,
        bytes: Bytes,
    ) -> Result<(), Failure> {
        match self {
            AnyCarrier::None => Err(Failure::OutOfReach { rank: to }),
            AnyCarrier::Endpoints(endpoints) => endpoints.write_remote(to, key, offset, bytes),
            AnyCarrier::Tcp(tcp) => tcp.write_remote(to, key, offset, bytes),
        }
    }

    fn has_pending_writes(&self) -> bool {
        match self {
            AnyCarrier::None => false,
            AnyCarrier::Endpoints(endpoints) => endpoints.has_pending_writes(),
            AnyCarrier::Tcp(tcp) => tcp.has_pending_writes(),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            AnyCarrier::None => "shm",
            AnyCarrier::Endpoints(endpoints) => endpoints.name(),
            AnyCarrier::Tcp(_) => "tcp",
        }
    }

    fn counters(&self) -> LinkCounters {
        match self {
            AnyCarrier::Endpoints(endpoints) => endpoints.counters(),
            AnyCarrier::None | AnyCarrier::Tcp(_) => LinkCounters::default(),
        }
    }

    fn reclaim_memory(&mut self) {
        match self {
            AnyCarrier::None => {}
            AnyCarrier::Endpoints(endpoints) => endpoints.reclaim_memory(),
            AnyCarrier::Tcp(tcp) => tcp.reclaim_memory(),
        }
    }

    fn close(&mut self, timeout: Duration) {
        match self {
            AnyCarrier::None => {}
            AnyCarrier::Endpoints(endpoints) => endpoints.close(timeout),
            AnyCarrier::Tcp(tcp) => tcp.close(timeout),
        }
    }
}
