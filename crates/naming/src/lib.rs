//! Where nodes and endpoints are, and who belongs to the cluster.
//!
//! [`address`] has the two numbers that name an endpoint, [`hosts`] the nodes and their IP
//! addresses, [`key`] the secret that the members share, [`job`] what a launcher tells a
//! process, [`limits`] what a user may have;
//! [`lines`] reads the files that people write. [`registry`] keeps which process of this node owns
//! which endpoint, and asks other nodes for theirs; [`liveness`] asks them whether a silent
//! process still runs. [`envelope`] is the format of their packets. Nothing here sends or receives
//! messages between endpoints.

#![forbid(unsafe_code)]

pub mod address;
pub mod envelope;
pub mod environment;
pub mod hosts;
pub mod job;
pub mod key;
pub mod limits;
pub mod lines;
pub mod liveness;
pub mod net;
pub mod registry;
