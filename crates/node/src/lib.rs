//! Directed-point endpoints over any link: the crate that Rust programs use.
//!
//! A [`Node`] attaches the process to Dipole. Its [`Endpoint`]s receive from any endpoint and
//! send along the edges that [`Endpoint::target`] creates. Messages of one edge arrive once and
//! in order. A receiver that does not read slows down only its own senders.
//!
//! ```
//! use dipole_node::{Address, Config, EndpointId, Node, NodeId};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let runtime_dir = directory.path().join("dipole");
//! let node = Node::open(Config::local(NodeId(1), runtime_dir))?;
//! let inbox = node.endpoint(EndpointId(7))?;
//! let outbox = node.endpoint(EndpointId(8))?;
//! outbox.target(Address::new(1, 7))?;
//! outbox.send(b"first light")?;
//! let message = inbox.receive()?;
//! assert_eq!(&*message, b"first light");
//! assert_eq!(message.source(), Address::new(1, 8));
//! # Ok(())
//! # }
//! ```
//!
//! [`log::from_env`] enables logging according to `DIPOLE_LOG`.

#![forbid(unsafe_code)]

mod cancel;
mod completion;
mod config;
mod control;
mod edge;
mod edges;
mod endpoint;
mod error;
mod handlers;
mod inner;
mod landed;
mod layer;
mod links;
pub mod log;
mod node;
mod owner;
mod port;
mod process;
mod profiles;
mod progress;
mod queues;
mod receives;
mod record;
mod region;
mod report;
mod slots;
mod stats;
mod trace;
mod waits;

use dipole_naming::{address, environment, key, limits, lines, liveness};

pub use address::{Address, AddressError, EndpointId, NodeId};
/// Shared bytes, for [`Edge::post_bytes`].
pub use bytes::Bytes;
pub use cancel::{cancellable, is_cancelled};
pub use completion::{CompletionCounter, CompletionQueue};
pub use config::{Config, ConfigError, Links, Recordings, variables};
pub use dipole_driver::{LongWait, Timeout, interruptible};
pub use dipole_engine::{
    Arriving, Context, Data, Departure, GoneReason, MAX_DEPARTURES, Message, Notice, Operation,
    Path, PathState, Paths, Pool, Reader, RegionKey, Traffic,
};
pub use dipole_link::fault::Plan as FaultPlan;
pub use dipole_link::shm::ShmStats;
pub use dipole_link::sys::{InterfaceAddress, interface_addresses};
pub use dipole_link::udp::PortRange;
pub use dipole_link::{netlink, successors};
pub use dipole_model::Choices;
pub use dipole_naming::bind::bind_address;
pub use dipole_naming::environment::{default_runtime_dir, profile_dir, trace_dir, variable};
pub use dipole_naming::{hosts, job, registry};
pub use dipole_proto::wire::{RefusedReason, ResetReason};
pub use dipole_proto::{
    Config as ProtocolConfig, DropReason, MAX_MESSAGE_BYTES, PeerId, Stats as ProtocolStats,
};
pub use edge::Edge;
pub use edges::OverflowPolicy;
pub use endpoint::Endpoint;
pub use error::{CloseError, OpenError, PortError, ReceiveError, SendError, TargetError};
pub use hosts::MAX_INTERFACES;
pub use key::{
    ClusterKey, KEY_BYTES, KeyError, KeyMismatch, MAC_BYTES, MacKey, Role as KeyRole, Security,
};
pub use landed::{Landed, SlotMessage};
pub use layer::LayerCounter;
pub use limits::{Bound, LIMITS_FILE, LimitReached, UserLimits};
pub use lines::FileError;
pub use node::Node;
pub use port::{ActivePort, PortContext};
pub use queues::{Completion, CompletionCounts};
pub use region::{Outcome, Region, RegionError, RegionMemory, Rights};
pub use slots::Slots;
pub use stats::{GAUGES, Stats, drop_reasons};
pub use trace::{TracedWait, wait_recorder};
pub use waits::Waits;
