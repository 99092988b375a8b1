//! Dipole as a provider of libfabric.

pub mod matching;
