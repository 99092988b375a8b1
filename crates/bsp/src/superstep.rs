//! What happens in a superstep, without any I/O: what is recorded, what ranks tell each other,
//! and in which order it takes effect.
//!
//! # Source
//! BSP §5.1 and tables 3.1, 3.2; pacing in ch. 4.

pub mod exchange;
pub mod facts;
pub mod knowledge;
pub mod message;
pub mod pace;
pub mod queue;
pub mod record;
pub mod registrations;
pub mod rounds;
pub mod schedule;
