//! What happens in a superstep, without any I/O: what ranks record, what they send each other, and in
//! which order it takes effect.
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
pub mod rounds;
pub mod schedule;
pub mod summary;
