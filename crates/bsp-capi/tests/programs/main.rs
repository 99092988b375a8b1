//! C and Fortran programs that use the library. Programs that are moved between nodes, and
//! predictions from measured costs, are tested by other programs.

#![allow(missing_docs, reason = "tests")]

mod checkpoints;
mod debuggers;
mod examples;
#[path = "../harness/mod.rs"]
mod harness;
mod header;
mod memory;
mod misuse;
mod nas;
mod rules;
mod sections;
