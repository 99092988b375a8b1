//! Edges, messages and peers in large numbers: the memory that they take, and that it is freed.
//! The allocator counts it for each thread.

#![allow(missing_docs, reason = "tests")]

mod edges;
mod messages;
