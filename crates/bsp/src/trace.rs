//! What supersteps did and how long it took, kept in a file for each rank ([docs/trace.md]).
//!
//! `format` is the file, written by `ring` and read by [`TraceFile::parse`]; `tracer` is what a
//! process notes of the superstep under way.

mod format;
mod ring;
mod tracer;

pub use format::{
    Header, Site, State, Step, TraceError, TraceFile, VERSION, file_name, is_trace_name,
};
pub(crate) use tracer::{Phase, Tracer, Who};
