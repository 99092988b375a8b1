//! The Dipole protocol as a pure state machine.
//!
//! Sans-I/O: packets, time and random numbers are passed in, packets and events come out. There
//! are no sockets, clocks, threads or payloads in this crate; a message is known by its length and
//! the position of its bytes in the packet. The same code runs in production, in the deterministic
//! simulator and under the model checker.
//!
//! In each step, call a [`Machine`] in this order:
//!
//! 1. For each packet: [`Machine::address`], then verify its seal, then [`Machine::on_packet`],
//!    then [`Machine::poll_released`] and [`Machine::poll_event`] until both return `None`. Events
//!    refer to the packet.
//! 2. [`Machine::on_timers`] with the present time, then both poll functions again.
//! 3. [`Machine::poll_transmit`] until it returns `None`; pass each packet to a link.
//! 4. Wait for packets, at most until [`Machine::next_deadline`].
//!
//! Guarantees (section 8 of `docs/design/protocol.md`): every accepted message is delivered once,
//! or its sender is notified. Messages of one edge arrive in order, and no edge waits for the
//! losses of another. Memory is bounded. After any finite number of losses there is progress.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod backoff;
mod channel;
pub mod config;
mod downlink;
mod error;
mod event;
mod grants;
mod handshake;
mod holes;
mod key;
mod lane;
mod machine;
mod pace;
mod parts;
mod path_state;
mod pipe;
mod pool;
mod region;
mod replay;
mod rtt;
mod send;
mod session;
mod shared;
mod size;
mod stats;
pub mod time;
mod timer;
pub mod wire;

pub use channel::{IncomingStatus, MAX_EDGES, MessageStart, OutgoingStatus, Refusals};
pub use config::{Config, LIMIT_OF_MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES, charge};
pub use error::{BeginError, ConnectError, EdgeError, ProtocolViolation};
pub use event::{EdgeId, EdgePosition, Event, GoneReason, KeyMismatch, PathChange, PeerId};
pub use holes::{Arrival, Hole, Holes, MAX_HOLES};
pub use key::{Agreement, Party, Seal};
pub use machine::{Addressed, Machine, PeerStatus, Train};
pub use path_state::LaneState;
pub use pipe::Delivery;
pub use region::{Region, Rights};
pub use send::{Slot, UnitState, UnitView};
pub use session::{
    Frame, Frames, LaneStatus, LaneView, PathStatus, RENEWAL_NS, SessionStatus, Transmit, View,
};
pub use stats::{DropReason, Stats};
pub use time::Instant;
