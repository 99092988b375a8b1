//! Nodes and endpoints: their names, their addresses, and membership of the cluster.
//!
//! [`address`] has the two numbers that name an endpoint, [`hosts`] the nodes and their IP
//! addresses, [`bind`] the address of a process, [`key`] the secret that the members share, [`job`] what a launcher passes to a
//! process, and [`limits`] the limits of a user. [`files`] opens and
//! [`lines`] parses configuration files. [`registry`]
//! records which process of this node owns which endpoint, and queries other nodes for theirs;
//! [`liveness`] queries whether a silent process still runs. [`envelope`] is the format of their
//! packets. Messages between endpoints do not pass here.

#![forbid(unsafe_code)]

pub mod address;
pub mod bind;
pub mod envelope;
pub mod environment;
pub mod files;
pub mod hosts;
pub mod job;
pub mod key;
pub mod limits;
pub mod lines;
pub mod liveness;
pub mod net;
pub mod registry;
pub mod threads;
