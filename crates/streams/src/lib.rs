//! One TCP stream to the outside that all processes of a job read and write together.
//!
//! A process of the cluster, the network interface ([`Interface`]), holds the connection. The ranks of a
//! job open a [`Stream`] through it. What they write together is dealt out as a [`Layout`] says, block,
//! cyclic, block-cyclic or by key, and so is what they read: the interface asks each rank for its
//! blocks in the order of the stream, and sends each the blocks that are its. Control is apart
//! from data: rank 0 opens, says and hears what stands between (a protocol's heads and answers), and closes.
//!
//! `layout.rs` says who has which bytes, `gather.rs` what to ask whom for and what may be written (both
//! without I/O), `message.rs` has the bytes of messages; `interface.rs` and `stream.rs` do it.
//! Several streams, through several interfaces, can carry one sequence of bytes: [`Stripes`].
//!
//! # Source
//! The streams package of Gigabit Nectar §4.3.

#![forbid(unsafe_code)]

mod error;
mod gather;
mod interface;
mod layout;
mod message;
mod stream;
mod stripes;

pub use error::StreamError;
pub use interface::{Destinations, Interface, InterfaceConfig};
pub use layout::{Extent, Layout};
pub use stream::{Ranks, Stream};
pub use stripes::Stripes;
