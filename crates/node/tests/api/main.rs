//! The public API over real sockets and shared memory, mostly within one process. Tests that need a
//! process of their own are other programs.

#![allow(missing_docs, reason = "tests")]

mod choices;
mod counters;
mod drain;
mod drains;
mod endpoints;
mod futures;
mod hostile;
mod limits;
mod log;
mod newcomer;
mod operations;
mod polling;
mod port_slots;
mod ports;
mod posted;
mod posted_receives;
mod regions;
mod specification;
mod targets;
mod to_oneself;
mod traces;
mod try_again;
mod whereabouts;
