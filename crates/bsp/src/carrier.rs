//! Ways to move messages between ranks that share no memory.

mod endpoint;
mod tcp;

use std::ops::Deref;
use std::time::Duration;

use bytes::Bytes;
use dipole_node::RegionMemory;

use crate::failure::Failure;

pub use endpoint::Endpoints;
pub(crate) use endpoint::link_name;
pub use tcp::Tcp;

/// Messages between ranks: in order between two of them, none lost, none twice.
pub trait Carrier {
    /// A message that came.
    type Message: Deref<Target = [u8]>;

    /// True if another message can be sent now; looks whether it can.
    ///
    /// # Errors
    /// What was sent did not arrive.
    fn has_room(&mut self) -> Result<bool, Failure>;

    /// Sends a message; never blocks.
    ///
    /// # Errors
    /// The rank is gone or out of reach.
    fn send(&mut self, to: u32, message: Vec<u8>) -> Result<(), Failure>;

    /// The next message and who sent it, waiting at most `patience` and only until there is
    /// room again, if there was none.
    ///
    /// # Errors
    /// What was sent did not arrive; nothing can be received.
    fn receive(&mut self, patience: Duration) -> Result<Option<(u32, Self::Message)>, Failure>;

    /// Goes on with what was sent; true if all of it leaves without further calls.
    ///
    /// # Errors
    /// What was sent did not arrive.
    fn has_left(&mut self) -> Result<bool, Failure> {
        Ok(true)
    }

    /// Fails if one of these ranks is known to be gone.
    ///
    /// # Errors
    /// [`Failure::Gone`].
    fn check(&mut self, ranks: &[u32]) -> Result<(), Failure>;

    /// Lets other ranks place bytes in memory until that is closed; the key by which they do. `None`
    /// if this carrier cannot.
    ///
    /// # Errors
    /// There are too few resources.
    fn open(&mut self, _memory: &RegionMemory) -> Result<Option<u64>, Failure> {
        Ok(None)
    }

    /// Nobody places bytes in the memory with this key any more.
    fn close_memory(&mut self, _key: u64) {}

    /// Places bytes in memory that a rank has opened, before what is sent to that rank later
    /// arrives. The bytes are let go of when they are no longer needed.
    ///
    /// # Errors
    /// The rank is gone or out of reach.
    fn place(&mut self, to: u32, _key: u64, _offset: u64, _bytes: Bytes) -> Result<(), Failure> {
        Err(Failure::OutOfReach { rank: to })
    }

    /// True if bytes to be placed are still needed. [`receive`](Self::receive) returns when
    /// they no longer are.
    fn is_placing(&self) -> bool {
        false
    }

    /// The kind of link, as its profile is called.
    fn name(&self) -> &'static str {
        "other"
    }

    /// Packets that were sent again so far, and those that only asked for an answer.
    fn counters(&self) -> (u64, u64) {
        (0, 0)
    }

    /// The program ends by an error: waits until no bytes to be placed are needed any more.
    fn take_back(&mut self) {}

    /// Waits until what was sent has arrived, at most `patience`, and lets go of everything.
    fn close(&mut self, patience: Duration);
}

/// Whatever carries this program's messages.
#[derive(Debug)]
pub enum AnyCarrier {
    /// Nothing: there is one rank.
    None,
    /// Endpoints of Dipole.
    Endpoints(Box<Endpoints>),
    /// Plain TCP.
    Tcp(Box<Tcp>),
}

/// A message by any of them.
#[derive(Debug)]
pub enum AnyMessage {
    /// It lies where its link has put it.
    Message(dipole_node::Message),
    /// It was read from a stream.
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

    fn receive(&mut self, patience: Duration) -> Result<Option<(u32, AnyMessage)>, Failure> {
        Ok(match self {
            AnyCarrier::None => None,
            AnyCarrier::Endpoints(endpoints) => (endpoints.receive(patience)?)
                .map(|(from, message)| (from, AnyMessage::Message(message))),
            AnyCarrier::Tcp(tcp) => {
                (tcp.receive(patience)?).map(|(from, message)| (from, AnyMessage::Bytes(message)))
            }
        })
    }

    fn has_left(&mut self) -> Result<bool, Failure> {
        match self {
            AnyCarrier::None => Ok(true),
            AnyCarrier::Endpoints(endpoints) => endpoints.has_left(),
            AnyCarrier::Tcp(tcp) => tcp.has_left(),
        }
    }

    fn check(&mut self, ranks: &[u32]) -> Result<(), Failure> {
        match self {
            AnyCarrier::None => Ok(()),
            AnyCarrier::Endpoints(endpoints) => endpoints.check(ranks),
            AnyCarrier::Tcp(tcp) => tcp.check(ranks),
        }
    }

    fn open(&mut self, memory: &RegionMemory) -> Result<Option<u64>, Failure> {
        match self {
            AnyCarrier::None => Ok(None),
            AnyCarrier::Endpoints(endpoints) => endpoints.open(memory),
            AnyCarrier::Tcp(tcp) => tcp.open(memory),
        }
    }

    fn close_memory(&mut self, key: u64) {
        match self {
            AnyCarrier::None => {}
            AnyCarrier::Endpoints(endpoints) => endpoints.close_memory(key),
            AnyCarrier::Tcp(tcp) => tcp.close_memory(key),
        }
    }

    fn place(&mut self, to: u32, key: u64, offset: u64, bytes: Bytes) -> Result<(), Failure> {
        match self {
            AnyCarrier::None => Err(Failure::OutOfReach { rank: to }),
            AnyCarrier::Endpoints(endpoints) => endpoints.place(to, key, offset, bytes),
            AnyCarrier::Tcp(tcp) => tcp.place(to, key, offset, bytes),
        }
    }

    fn is_placing(&self) -> bool {
        match self {
            AnyCarrier::None => false,
            AnyCarrier::Endpoints(endpoints) => endpoints.is_placing(),
            AnyCarrier::Tcp(tcp) => tcp.is_placing(),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            AnyCarrier::None => "shm",
            AnyCarrier::Endpoints(endpoints) => endpoints.name(),
            AnyCarrier::Tcp(_) => "tcp",
        }
    }

    fn counters(&self) -> (u64, u64) {
        match self {
            AnyCarrier::Endpoints(endpoints) => endpoints.counters(),
            AnyCarrier::None | AnyCarrier::Tcp(_) => (0, 0),
        }
    }

    fn take_back(&mut self) {
        match self {
            AnyCarrier::None => {}
            AnyCarrier::Endpoints(endpoints) => endpoints.take_back(),
            AnyCarrier::Tcp(tcp) => tcp.take_back(),
        }
    }

    fn close(&mut self, patience: Duration) {
        match self {
            AnyCarrier::None => {}
            AnyCarrier::Endpoints(endpoints) => endpoints.close(patience),
            AnyCarrier::Tcp(tcp) => tcp.close(patience),
        }
    }
}
