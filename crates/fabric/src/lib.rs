//! A libfabric provider named `dipole`: unmodified MPI programs run over Dipole.
//!
//! libfabric loads it as `libdipole-fi.so` from the folders of `FI_PROVIDER_PATH`. It offers
//! reliable, connectionless endpoints (`FI_EP_RDM`) with messages, tagged messages, and reads,
//! writes and atomic operations on registered memory. Each is a Dipole endpoint of the one node of
//! this process (`node.rs`); processes exchange the names of their endpoints.
//!
//! `abi/` declares libfabric's interface; `ffi.rs` checks what C passes. `fabric.rs`, `domain.rs`,
//! `av.rs`, `mr.rs`, `queue.rs`, `eq.rs`, `counter.rs` and `endpoint.rs` implement the objects that C
//! sees. Everything below is plain Rust: the message protocol (`exchange.rs`), tag matching
//! (`matching.rs`), completions (`completion.rs`) and atomic operations (`atomics.rs`).

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
mod unexpected;
mod wait_object;
mod wait_trace;
mod wire;

pub use fabric::fi_prov_ini;
