//! MPI libraries that are not packaged for Debian stable, and tasks that use them with the provider.

mod kernels;
mod library;
mod prepare;
mod suite;

use clap::Subcommand;

use crate::command::Failure;

#[derive(Subcommand)]
pub(crate) enum Task {
    /// Download Open MPI 5, MPICH, mpi4py with its tests, and headers of libfabric 2, for the tests.
    Prepare,
    /// Run mpi4py's own tests over the provider, each module separately.
    Mpi4py(suite::Arguments),
    /// Run the kernels of examples/mpi over Dipole and over TCP, alternating.
    Kernels(kernels::Arguments),
}

pub(crate) fn mpi(task: &Task) -> Result<(), Failure> {
    match task {
        Task::Prepare => prepare::prepare(),
        Task::Mpi4py(arguments) => suite::suite(arguments),
        Task::Kernels(arguments) => kernels::kernels(arguments),
    }
}
