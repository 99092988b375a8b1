//! The protocol of a superstep, without any I/O: the records and messages of ranks, and the order in
//! which they take effect.
//!
//! # Source
//! BSP §5.1 and tables 3.1, 3.2; pacing in ch. 4.

pub mod collective;
pub mod exchange;
mod inbox;
pub mod message;
pub mod node_map;
mod outbox;
pub mod pace;
pub mod queue;
pub mod record;
pub mod registrations;
pub mod request;
pub mod rounds;
pub mod schedule;
pub mod summary;
