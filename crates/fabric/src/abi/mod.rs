//! The interface between libfabric and its providers: data and function types only, one file per
//! header. `tests/abi.rs` compares sizes and offsets with the installed headers.
//!
//! Declared as in libfabric 2, which only appended members to the structs of version 1.

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

/// A call that this provider does not offer: it ignores its arguments and returns -`FI_ENOSYS`.
pub type Missing = unsafe extern "C" fn() -> isize;
