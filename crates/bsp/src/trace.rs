//! Traces: what each superstep did and how long it took, in a file for each rank
//! (`docs/design/traces.md`).
//!
//! `format` defines the records, which [`TraceFile::parse`] reads. `tracer` collects the data of the
//! current superstep, `step` is the record of one superstep on one rank, and `cpu` measures CPU time.
//! `clocks` compares the clocks of nodes. The file itself, and the stacks from which supersteps were
//! ended, come from `dipole_trace`.

mod clocks;
mod cpu;
mod format;
mod step;
mod tracer;

pub use clocks::{Bounds, Clocks, Offset};
pub use dipole_trace::{Frame, Module, total};
pub use format::{
    Header, ReadError, Site, State, TraceError, TraceFile, VERSION, file_name, is_trace_name,
};
pub use step::Step;
pub(crate) use tracer::{Phase, ProcessInfo, Tracer};
