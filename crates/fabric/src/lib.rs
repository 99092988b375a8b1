//! A libfabric provider named `dipole`: unmodified MPI programs run over Dipole.

pub mod matching;
