//! Processes that `mpirun` or `mpiexec` starts, as launchers only: no MPI is used.
//!
//! Open MPI, MPICH's Hydra and other launchers with PMI pass a process its rank and the number of
//! ranks on its node and in the job, but no nodes. Those come from the hosts file, whose slots are
//! filled in order; without one the ranks exchange them through PMI-1 or PMIx, or all are on this
//! node. Flux passes the number of nodes instead of the number of ranks on this one.

use rustix::process::{getpid, getsid};

use super::peers::{hosts_file, is_own};
use super::pmi::{is_offered, is_port_offered};
use super::service::{Given, Service};
use super::{
    HYDRA_CONTROL, Job, JobError, Launched, Launcher, Lookup, MAX_RANKS, Nodes, Services, given_id,
    id_from_name, number, required_number,
};
use crate::address::NodeId;
use crate::hosts::Hosts;

/// Variables of one family of launchers.
struct Variables {
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    local_size: &'static str,
}

const OPEN_MPI: Variables = Variables {
    rank: "OMPI_COMM_WORLD_RANK",
    size: "OMPI_COMM_WORLD_SIZE",
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
};
const HYDRA: Variables = Variables {
    rank: "PMI_RANK",
    size: "PMI_SIZE",
    local_rank: "MPI_LOCALRANKID",
    local_size: "MPI_LOCALNRANKS",
};
/// PMIx passes only the rank; the other numbers are available from its server. A user may set the
/// size where the service is not used.
const PMIX: Variables = Variables {
    rank: "PMIX_RANK",
    size: "DIPOLE_SIZE",
    local_rank: "PMIX_LOCAL_RANK",
    local_size: "PMIX_LOCAL_SIZE",
};

/// Variables that are the same for all ranks of a job and different for other jobs.
const JOB_NAMES: [&str; 3] = [
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "OMPI_MCA_orte_hnp_uri",
];

/// True if the variables certainly come from the launcher that started this process: no resource
/// manager sets them.
pub(super) fn is_innermost(get: Lookup<'_>) -> bool {
    get(OPEN_MPI.rank).is_some()
        || ((get(HYDRA.rank).is_some() || is_port_offered(get))
            && [HYDRA.local_rank, HYDRA_CONTROL]
                .iter()
                .any(|variable| get(variable).is_some()))
        || super::pmix::is_innermost(get)
}

/// True if Open MPI's launcher has started several ranks. A rank without a launcher may set variables
/// for a job of its own.
pub(super) fn has_several_ranks_of_open_mpi(get: Lookup<'_>) -> bool {
    get(OPEN_MPI.size).is_some_and(|size| size != "1")
}

pub(super) fn is_here(get: Lookup<'_>) -> bool {
    [OPEN_MPI.rank, HYDRA.rank, PMIX.rank]
        .iter()
        .any(|variable| get(variable).is_some())
        || is_port_offered(get)
}

/// Rank and number of ranks, if they are valid.
pub(super) fn rank_and_size(get: Lookup<'_>) -> Option<(u32, u32)> {
    let number = |variable: &str| get(variable)?.parse().ok();
    let families = [OPEN_MPI, HYDRA].into_iter();
    let mut found = families.filter_map(|one| Some((number(one.rank)?, number(one.size)?)));
    found.find(|(rank, size)| rank < size && *size <= MAX_RANKS)
}

pub(super) fn job(get: Lookup<'_>, services: Services) -> Result<Launched, JobError> {
    let mpi = Launcher::Mpi;
    let variables = [OPEN_MPI, HYDRA]
        .into_iter()
        .find(|variables| get(variables.rank).is_some())
        .unwrap_or(PMIX);
    let has_no_rank = get(variables.rank).is_none() && is_port_offered(get);
    if has_no_rank && uses_pmi(get, services) && get("DIPOLE_HOSTS").is_none() {
        return super::exchange::job(get, Service::Pmi, Given::default());
    }
    let is_served = variables.rank != HYDRA.rank && uses_pmix(get, services);
    if is_served && get(variables.size).is_none() && get("DIPOLE_HOSTS").is_none() {
        let given = Given::rank(super::pmix::rank(get)?);
        return super::exchange::job(get, Service::Pmix, given);
    }
    let advice = "pass it on with the launcher's option for variables (-x NAME=VALUE, \
                  -genv NAME VALUE), or use `dipole run`";
    let size = required_number(get, mpi, variables.size, (1, MAX_RANKS), advice)?;
    let rank = required_number(get, mpi, variables.rank, (0, size - 1), advice)?;
    let optional = |variable: &'static str, least, most| {
        get(variable)
            .map(|found| number(variable, found, least, most))
            .transpose()
    };
    let mut local_size: Option<u32> = optional(variables.local_size, 1, size)?;
    let flux_job = super::flux::job_of_task(get, rank, size);
    if flux_job.is_some() && super::flux::is_on_one_node(get)? {
        local_size = Some(size);
    }
    let local_rank: Option<u32> =
        optional(variables.local_rank, 0, local_size.unwrap_or(size) - 1)?;
    let hosts = hosts_file(get)?;
    let is_here = local_size == Some(size);
    let is_pmi = variables.rank == HYDRA.rank;
    if !is_here && hosts.is_none() {
        let given = Given::both(rank, size);
        if is_pmi && uses_pmi(get, services) {
            return super::exchange::job(get, Service::Pmi, given);
        }
        if is_served {
            return super::exchange::job(get, Service::Pmix, given);
        }
    }
    let id = job_id(get, flux_job, is_here)?;
    let Some(hosts) = hosts else {
        if !is_here {
            return Err(JobError::Lacking {
                launcher: mpi,
                variable: "DIPOLE_HOSTS",
                advice: "ranks run on several nodes and mpirun does not say which; name a hosts \
                         file whose slots are filled in order, as in \
                         `mpirun --map-by slot -x DIPOLE_HOSTS=FILE ...`",
            });
        }
        let here = vec![NodeId(1); size as usize];
        return Ok(Launched {
            job: Job::launched(id, rank, here),
            nodes: Nodes::Here,
        });
    };
    let placed = fill(&hosts, size).ok_or_else(|| JobError::Disagreement {
        launcher: mpi,
        between: format!("the slots of the hosts file do not suffice for {size} ranks"),
        advice: "give its lines as many slots= as ranks run there",
    })?;
    check_placement(&hosts, &placed, rank, local_rank, local_size)?;
    Ok(Launched {
        job: Job::launched(id, rank, placed),
        nodes: Nodes::File(hosts),
    })
}

/// The user's number of the job, or one from the name that the launcher has given it.
fn job_id(get: Lookup<'_>, flux_job: Option<String>, is_here: bool) -> Result<u64, JobError> {
    if let Some(id) = given_id(get)? {
        return Ok(id);
    }
    JOB_NAMES
        .iter()
        .find_map(|variable| get(variable))
        .or(flux_job)
        .or_else(|| is_here.then(|| launcher_id(get)))
        .map(|name| id_from_name(&name))
        .ok_or(JobError::Lacking {
            launcher: Launcher::Mpi,
            variable: "DIPOLE_JOB",
            advice: "this launcher does not give its ranks which job they are; give all \
                     the same number, as in `mpiexec -genv DIPOLE_JOB $$ ...`",
        })
}

/// True if the ranks exchange their addresses through the launcher. An MPI library in this process
/// uses the connection itself.
pub(super) fn uses_pmi(get: Lookup<'_>, services: Services) -> bool {
    services == Services::Use && is_offered(get) && !has_mpi_library()
}

/// Like [`uses_pmi`], for PMIx.
pub(super) fn uses_pmix(get: Lookup<'_>, services: Services) -> bool {
    services == Services::Use && super::pmix::is_offered(get) && !has_mpi_library()
}

/// True if the library of MPICH, of one of its relatives, or of Open MPI is loaded.
fn has_mpi_library() -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().any(|line| {
        let name = line.rsplit('/').next().unwrap_or_default();
        name.starts_with("libmpi.so") || name.starts_with("libmpich")
    })
}

/// The node of every rank: slots in the order of the file; `None` if there are too few.
fn fill(hosts: &Hosts, size: u32) -> Option<Vec<NodeId>> {
    let placed: Vec<NodeId> = hosts
        .iter()
        .flat_map(|host| std::iter::repeat_n(host.node, host.slots as usize))
        .take(size as usize)
        .collect();
    (placed.len() == size as usize).then_some(placed)
}

/// Checks that the hosts file and the launcher place this rank on the same node.
fn check_placement(
    hosts: &Hosts,
    placed: &[NodeId],
    rank: u32,
    local_rank: Option<u32>,
    local_size: Option<u32>,
) -> Result<(), JobError> {
    const ADVICE: &str = "give the hosts file the launcher's nodes in its order, slots= being \
                          the ranks there, and let it fill one after the other \
                          (`mpirun --map-by slot`)";
    let disagreement = |between| JobError::Disagreement {
        launcher: Launcher::Mpi,
        between,
        advice: ADVICE,
    };
    let own = placed[rank as usize];
    let same = |ranks: &[NodeId]| ranks.iter().filter(|node| **node == own).count();
    let (before, all) = (same(&placed[..rank as usize]), same(placed));
    if local_size.is_some_and(|count| count as usize != all) {
        return Err(disagreement(format!(
            "it has {} ranks on the node of rank {rank} while the hosts file has {all} on node {own}",
            local_size.unwrap_or_default()
        )));
    }
    if local_rank.is_some_and(|count| count as usize != before) {
        return Err(disagreement(format!(
            "rank {rank} is number {} on its node while the hosts file makes it number {before} \
             on node {own}",
            local_rank.unwrap_or_default()
        )));
    }
    match hosts.get(own) {
        Some(host) if !is_own(host.address) => Err(disagreement(format!(
            "the hosts file places rank {rank} on {host}, which is not an address of this machine"
        ))),
        _ => Ok(()),
    }
}

/// Identifies a job by its launcher process, for ranks that are all on this machine and have no
/// other common name.
fn launcher_id(get: Lookup<'_>) -> String {
    let own = getpid().as_raw_nonzero().get();
    // Hydra starts a session for each rank; a shell in between belongs to that session.
    let first = match get(HYDRA_CONTROL) {
        Some(_) => getsid(None).map_or(own, |leader| leader.as_raw_nonzero().get()),
        None => own,
    };
    let parent = stat(first, 1).unwrap_or_default();
    let started = parent.parse().ok().and_then(|parent| stat(parent, 19));
    format!("started by {parent} of {}", started.unwrap_or_default())
}

/// A field of `/proc/PID/stat`, counted from the state: 1 is the parent, 19 the start time.
fn stat(process: i32, word: usize) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The command's name is in brackets and may contain brackets.
    let (_, after) = text.rsplit_once(')')?;
    after.split_whitespace().nth(word).map(str::to_owned)
}
