//! Commands of `dipole` as users and programs run them on one node: output, errors, files, jobs,
//! streams.

#![allow(missing_docs, reason = "tests")]

mod endpoint_files;
mod forecast;
mod graph;
mod interface;
mod manual;
mod output;
mod processes;
mod run_losses;
mod sockets_programs;
mod streams;
