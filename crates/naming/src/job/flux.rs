//! Variables of Flux for the tasks of its jobs, beyond PMI's rank and size.
//!
//! # Source
//! flux-environment(7).

use super::{HYDRA_CONTROL, JobError, Lookup, MAX_RANKS, number};

/// The name of the Flux job whose task this process is.
///
/// Programs that a task starts inherit Flux' variables. A launcher among them gives its ranks
/// numbers of its own: only those that agree with Flux' are the task's, and several such launchers
/// in one job must not share its name.
pub(super) fn job_of_task(get: Lookup<'_>, rank: u32, size: u32) -> Option<String> {
    let agrees = |variable, wanted: u32| get(variable).is_some_and(|it| it.parse() == Ok(wanted));
    let other_launcher = [HYDRA_CONTROL, "MPI_LOCALRANKID", "OMPI_COMM_WORLD_RANK"];
    if other_launcher.iter().any(|name| get(name).is_some()) {
        return None;
    }
    if !agrees("FLUX_TASK_RANK", rank) || !agrees("FLUX_JOB_SIZE", size) {
        return None;
    }
    get("FLUX_JOB_ID").map(|job| format!("Flux job {job}"))
}

/// True if all tasks of the job are on this node.
pub(super) fn is_on_one_node(get: Lookup<'_>) -> Result<bool, JobError> {
    const NODES: &str = "FLUX_JOB_NNODES";
    let nodes = get(NODES).map(|found| number(NODES, found, 1, MAX_RANKS));
    Ok(nodes.transpose()? == Some(1))
}
