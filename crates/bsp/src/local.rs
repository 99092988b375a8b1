//! Ranks of one node: the records they send each other and the end of their supersteps, in shared
//! memory.
//!
//! Each rank has a [`Window`](dipole_link::window::Window) that only this rank writes. It begins with a
//! sync block: words that show how far the rank is. Two arenas with its records follow, for even and
//! odd supersteps. Other ranks read the records of superstep t until they end t + 1. They are
//! overwritten in t + 2, which no rank begins before that, so the memory needs no locks.

mod arena;
mod local_ranks;
mod sync_block;

pub(crate) use arena::{Arena, LocalRecordBuffer};
pub(crate) use local_ranks::{LocalRanks, WindowOffer};
pub(crate) use sync_block::{
    AbortCause, Arrival, INLINE_RECORD_BYTES, INLINE_REPLY_BYTES, SyncPhase,
};
