//! A libfabric provider named `dipole`: unmodified MPI programs run over Dipole.
//!
//! libfabric loads it as `libdipole-fi.so` from the folders of `FI_PROVIDER_PATH`. It offers
//! reliable, connectionless endpoints (`FI_EP_RDM`) with messages, tagged messages, and reads,
//! writes and atomic operations on registered memory. Each is an endpoint of Dipole; a process has one node
//! (`place.rs`), and tells the others by its endpoint's name where it is reached.
//!
//! `abi/` is libfabric's interface as data; `guard.rs` turns what C hands over into what Rust has.
//! `fabric.rs`, `domain.rs`, `av.rs`, `mr.rs`, `queue.rs`, `eq.rs`, `counter.rs` and `endpoint.rs` are the
//! objects that C sees, with a function for each call. Below them is no C: `exchange.rs` has what
//! endpoints say to each other, `matching.rs` which receive takes which message, `completion.rs`
//! what is done, `waits.rs` keeps how long for, `descriptor.rs` what tells so to who sleeps, `atomics.rs` what others do to this process's memory step by step
//! (`arithmetic.rs`: what that makes of it). `memory.rs` is programs' memory.

pub mod abi;
mod arithmetic;
mod atomics;
mod av;
mod completion;
mod counter;
mod descriptor;
mod domain;
mod endpoint;
mod eq;
mod exchange;
mod fabric;
mod ffi;
mod info;
pub mod matching;
mod memory;
mod mr;
mod name;
mod node;
mod queue;
mod serial;
mod wait_object;
mod wait_trace;
mod wire;

pub use fabric::fi_prov_ini;
