//! A cluster on one machine: network namespaces as nodes, joined by bridges, or by a switch in user
//! space that loses, repeats, delays, reorders and damages frames. [`Pair`] is two namespaces on one
//! veth cable.
//!
//! ```no_run
//! use dipole_testbed::Testbed;
//!
//! if let Some(why) = Testbed::why_not() {
//!     eprintln!("SKIPPED: {why}");
//!     return Ok(());
//! }
//! let testbed = Testbed::builder().nodes(4).networks(2).build()?;
//! let status = testbed.command(1, "dipole").args(["run", "-n", "4", "ring"]).status()?;
//! # assert!(status.success());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Nodes are counted from 1, as in the hosts file, and networks from 0. Everything is inside the
//! testbed's own namespaces and does not touch the network of the machine. A [`Testbed`] is removed
//! when it is dropped, on SIGINT, SIGTERM and SIGHUP, and if this process was killed, when another
//! process makes a testbed. All that this crate knows of Dipole is the hosts file and three
//! variables.

#![forbid(unsafe_code)]

mod builder;
pub mod built;
pub mod c_programs;
mod cleanup;
mod damage;
mod error;
mod failing_calls;
mod fault;
mod forward;
mod isolated;
mod names;
mod namespace;
mod netlink;
mod network;
mod offload;
mod pair;
mod ports;
mod settings;
mod stop;
mod switch;
mod testbed;

pub use builder::Builder;
pub use error::TestbedError;
pub use failing_calls::{Counted, FailingCalls, Resource};
pub use fault::{FaultCounters, Faults};
pub use isolated::isolated_command;
pub use network::PortCounters;
pub use offload::Offloads;
pub use pair::{Folder, Pair};
pub use ports::free_port;
pub use stop::stop;
pub use testbed::{NodePlace, Testbed};
