//! What supersteps did and how long it took, kept in a file for each rank ([docs/design/traces.md]).
//!
//! `format` is what records say, read by [`TraceFile::parse`]; `tracer` is what a process notes of
//! the superstep under way. `clocks` compares those of nodes. The file itself, and the stacks from
//! where supersteps were ended, are those of `dipole_trace`.

mod clocks;
mod format;
mod tracer;

pub use clocks::{Clocks, Offset};
pub use dipole_trace::{Frame, Module, total};
pub use format::{
    Header, ReadError, Site, State, Step, TraceError, TraceFile, VERSION, file_name, is_trace_name,
};
pub(crate) use tracer::{Phase, Tracer, Who};
