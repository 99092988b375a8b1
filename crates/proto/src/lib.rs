//! The Dipole protocol as a pure state machine.
//!
//! Sans-I/O: packets, time and randomness come in, packets and events go out.
//! There is no socket, no clock, no thread and no payload here; a message is
//! known by its length and by where its bytes lie in the packet. The same code
//! runs in production, in the deterministic simulator and under the model checker.
//!
//! The order in which to call a [`Machine`], once per step:
//!
//! 1. for each packet that has come: [`Machine::address`], check its seal,
//!    [`Machine::on_packet`], then [`Machine::poll_released`] and
//!    [`Machine::poll_event`] until `None` (events point into the packet);
//! 2. [`Machine::on_timers`] with the time, and both again;
//! 3. [`Machine::poll_transmit`] until `None`, handing each packet to a link;
//! 4. wait for packets, but not beyond [`Machine::next_deadline`].
//!
//! What it promises (`docs/design/protocol.md` §8): every message accepted is delivered
//! once per session or its sender is told; messages of one edge arrive in order
//! and no edge waits for another's losses; memory is bounded; after any finite
//! run of losses there is progress.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

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

pub use channel::{MAX_EDGES, MessageStart};
pub use config::{Config, MAX_MESSAGE_BYTES, charge};
pub use error::{BeginError, ConnectError, EdgeError, ProtocolViolation};
pub use event::{EdgeId, Event, GoneReason, KeyMismatch, PathChange, PeerId};
pub use holes::{Arrival, Hole, Holes, MAX_HOLES};
pub use key::{Agreement, Party, Seal};
pub use machine::{Addressed, Machine, RENEWAL_NS};
pub use path_state::LaneState;
pub use pipe::Delivery;
pub use region::{Region, Rights};
pub use send::Slot;
pub use session::{Frame, Frames, LaneStatus, LaneView, Transmit, UnitState, UnitView, View};
pub use stats::{DropReason, Stats};
pub use time::Instant;
