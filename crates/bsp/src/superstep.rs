//! What happens in a superstep, without any I/O: what is recorded, what is exchanged, in which order it takes effect.

pub mod pace;
pub mod schedule;
