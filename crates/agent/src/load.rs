//! The load of the nodes of a cluster: each agent keeps a table with one row per node and exchanges
//! it with a few others at random times (thesis, §8.3).
//!
//! This module is a state machine. Time, random numbers, members and messages go in, messages come
//! out. `table` keeps the freshest row per node, `exchange` decides what is sent to whom and when.
//! Rows carry ages instead of times, so that the clocks of nodes need not agree.

mod exchange;
mod table;

#[cfg(test)]
mod tests;

pub(crate) use exchange::{Exchange, Message, Timing};
#[cfg(test)]
pub(crate) use table::Row;
pub(crate) use table::{Figures, MAX_SPEED};
