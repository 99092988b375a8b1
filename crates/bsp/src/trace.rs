//! What supersteps did and how long it took, kept in a file for each rank ([docs/trace.md]).
//!
//! `format` is the file, written by `ring` and read by [`TraceFile::parse`]; `tracer` is what a
//! process notes of the superstep under way, `stacks` from where it was ended. `clocks` compares
//! those of nodes.

mod bytes;
mod clocks;
mod format;
mod modules;
mod ring;
mod stacks;
mod tracer;

pub use clocks::{Clocks, Offset};
pub use format::{
    Frame, Header, Module, ReadError, Site, State, Step, TraceError, TraceFile, VERSION, file_name,
    is_trace_name, total,
};
pub(crate) use tracer::{Phase, Tracer, Who};
