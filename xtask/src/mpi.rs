//! MPI libraries that no distribution's package has, and what is run with them over the provider.

mod kernels;
mod library;
mod prepare;
mod suite;

use clap::Subcommand;

use crate::command::Failure;

#[derive(Subcommand)]
pub(crate) enum Task {
    /// Fetch Open MPI 5, MPICH, mpi4py with its tests, and headers of libfabric 2, for the tests.
    Prepare,
    /// Run mpi4py's own tests over the provider, each module by itself.
    Mpi4py(suite::Arguments),
    /// Run the kernels of examples/mpi over Dipole and over TCP, in turns.
    Kernels(kernels::Arguments),
}

pub(crate) fn mpi(task: &Task) -> Result<(), Failure> {
    match task {
        Task::Prepare => prepare::prepare(),
        Task::Mpi4py(arguments) => suite::suite(arguments),
        Task::Kernels(arguments) => kernels::kernels(arguments),
    }
}
