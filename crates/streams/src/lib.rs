//! TCP streams to hosts outside of the cluster that all ranks of a job read and write together.
//!
//! A process of the cluster, the network interface ([`Interface`]), holds the connection. The ranks
//! of a job open a [`Stream`] through it, or accept a TCP client that connects to it. A [`Layout`]
//! (block, cyclic, block-cyclic or by key) distributes the bytes of each transfer: the interface
//! requests blocks from the ranks in the order of the stream, and sends each rank the blocks that
//! belong to it. Rank 0 opens and closes the stream, and reads and writes the bytes between
//! transfers, such as the headers of a protocol.
//!
//! `layout.rs` and `gather.rs` do no I/O; `session.rs` serves one stream on the interface.
//! [`Stripes`] sends one sequence of bytes over several streams, which may go through several
//! interfaces.
//!
//! Source: the streams package of Gigabit Nectar, section 4.3.

#![forbid(unsafe_code)]

mod error;
mod gather;
mod interface;
mod layout;
mod listeners;
mod message;
mod progress;
mod session;
mod status;
mod stream;
mod stripes;

pub use error::StreamError;
pub use interface::{Destinations, Interface, InterfaceConfig, InterfaceControl};
pub use layout::{Extent, Layout};
pub use progress::{StreamStatus, Volume, WaitsFor};
pub use status::{status, stop};
pub use stream::{Callers, Ranks, Stream};
pub use stripes::Stripes;
