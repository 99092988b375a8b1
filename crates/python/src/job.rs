//! The job that this process belongs to.

use dipole_node::job::Job;
use pyo3::prelude::*;

use crate::error::raise;
use crate::names;

/// Rank, number of ranks, and the addresses of all ranks' main endpoints, as the launcher (`dipole
/// run`, mpirun, Slurm) set them. Raises ConfigurationError outside a job.
#[pyfunction]
pub(crate) fn job(py: Python<'_>) -> PyResult<(u32, u32, Vec<Bound<'_, PyAny>>)> {
    let job = Job::from_env().map_err(|fault| raise(py, &fault))?;
    let addresses = job.addresses.iter();
    let addresses = addresses.map(|address| names::address(py, *address));
    Ok((job.rank, job.size, addresses.collect::<PyResult<_>>()?))
}
