//! The interface between libfabric and its providers, as its headers have it: data and function
//! types, nothing else. One file per header; `tests/abi.rs` compares sizes and offsets with the
//! headers of the libfabric that is installed.
//!
//! Declared as libfabric 2 has it, which only added members at the end of what version 1 has.

pub mod atomic;
pub mod cm;
pub mod domain;
pub mod endpoint;
pub mod eq;
pub mod errno;
pub mod fabric;
pub mod prov;
pub mod rma;
pub mod tagged;

/// A call that this provider does not offer: whatever its arguments are, it uses none of them and
/// returns -`FI_ENOSYS`.
pub type Missing = unsafe extern "C" fn() -> isize;
