//! Ranks of one node: what they record for each other, and the end of their supersteps, in
//! shared memory.
//!
//! Each rank has a [`Window`](dipole_link::window::Window) that it alone writes. In front lies its board: words that say how
//! far it has come. Behind lie two arenas, for even and odd supersteps, with its records. What it
//! wrote for superstep t is read until its readers end t + 1, and overwritten in t + 2, which
//! nobody begins before that: so nothing else guards the memory.

mod arena;
mod board;
mod mates;

pub(crate) use arena::{Arena, LocalParcel};
pub(crate) use board::{By, FEW_ANSWERS_BYTES, FEW_BYTES, Milestone, Said};
pub(crate) use mates::{Invitation, Mates};
