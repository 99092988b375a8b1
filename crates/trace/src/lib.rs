//! What a process did, kept in a file that outlives it, with the places in its source.
//!
//! [`Ring`] is such a file, whatever its records say, [`Stacks`] the stacks of calls in it. Programs in
//! supersteps keep their own records (`dipole_bsp::trace`); [`waits`] is the file of programs that use
//! endpoints or MPI: what they waited for.

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

/// A sum of what files say, which may be anything.
#[must_use]
pub fn total(values: impl IntoIterator<Item = u64>) -> u64 {
    values.into_iter().fold(0, u64::saturating_add)
}
