//! Trace files: records of what a process did, with call stacks, in a file that survives a crash.
//!
//! [`Ring`] is the file, for records of any kind, and [`Stacks`] the call stacks in it. BSP
//! programs define records of their own (`dipole_bsp::trace`); [`waits`] has those of programs that
//! use endpoints or MPI.

pub mod bytes;
mod modules;
mod ring;
mod stacks;
pub mod waits;

pub use modules::{Frame, Module, decode as decode_stacks};
pub use ring::{
    BLOCK_BYTES, BLOCK_HEAD_BYTES, BLOCKS_AT, HEAD_BYTES, Records, Ring, STACK_BYTES, STACKS_AT,
};
pub use stacks::Stacks;

/// Adds numbers from a file, which may be corrupt, without overflow.
#[must_use]
pub fn total(values: impl IntoIterator<Item = u64>) -> u64 {
    values.into_iter().fold(0, u64::saturating_add)
}
