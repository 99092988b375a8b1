//! A cluster on one machine: nodes that are network namespaces, joined by real
//! bridges or by a switch of our own that loses, repeats, delays, reorders and
//! damages frames.
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
//! Nodes are counted from 1, as in the hosts file; networks from 0. Everything
//! lies in namespaces of the testbed, nothing touches the machine's own network, and
//! everything goes with the [`Testbed`]: when it is dropped, on SIGINT, SIGTERM and
//! SIGHUP, and at the latest when the next testbed is made after this process has died.
//! It knows nothing of Dipole but the hosts file and three variables.

#![forbid(unsafe_code)]

mod belongings;
mod builder;
pub mod c_programs;
mod damage;
mod error;
mod fault;
mod forward;
mod names;
mod namespace;
mod netlink;
mod network;
mod offload;
mod switch;
mod testbed;

pub use builder::Builder;
pub use error::TestbedError;
pub use fault::{FaultCounters, Faults};
pub use network::PortCounters;
pub use offload::Offloads;
pub use testbed::{NodePlace, Testbed};
