//! The job of this process, as its launcher describes it in environment variables.
//!
//! `dipole run` sets these, which take precedence over those of other launchers:
//!
//! | variable | meaning |
//! |---|---|
//! | `DIPOLE_RANK` | rank of this process, from 0 |
//! | `DIPOLE_SIZE` | number of ranks |
//! | `DIPOLE_JOB` | number of the job, the same in all ranks |
//! | `DIPOLE_JOB_BASE` | endpoint of rank r is base + r |
//! | `DIPOLE_RANKS` | node of every rank: `1x4,2x4` (four on node 1, four on node 2) |
//! | `DIPOLE_NID` | this process's node; 1 if absent |
//! | `DIPOLE_RUNTIME_DIR` | directory of the registry |
//! | `DIPOLE_HOSTS` | the hosts file, if there is one |
//!
//! Without them the variables of `mpirun` and `mpiexec` (`mpi.rs`), of a Slurm step (`slurm.rs`)
//! and of a pod of an indexed Kubernetes job (`kubernetes.rs`) are used, in this order: under an
//! `mpirun` inside a Slurm job, Slurm's variables describe the daemons of `mpirun`.
//!
//! A launcher that serves PMI-1 (`pmi.rs`) or PMIx (`pmix.rs`) moves texts between the ranks. Then
//! they exchange their addresses (`exchange.rs`), and need no list of nodes.
//!
//! The submodules get a function that looks up variables.

use std::fmt;
use std::str::FromStr;

use crate::address::{Address, EndpointId, NodeId};
use crate::environment::variable;

mod allocation;
mod dipole;
mod error;
mod exchange;
mod flux;
mod hostlist;
mod kubernetes;
mod lsf;
mod mpi;
mod pbs;
mod peers;
mod placement;
mod pmi;
mod pmix;
mod reports;
mod service;
mod slurm;

pub use allocation::{Allocation, Starter};
pub use dipole::write_ranks;
pub use error::{JobError, Launcher};
pub use exchange::is_internal_interface;
pub use placement::RankPlacement;
pub use pmix::{leave_launcher, rejoin_launcher};
pub use reports::{LauncherRequest, take_request, watch_failures};
pub use service::ServiceError;

/// Maximum number of ranks of a job.
pub const MAX_RANKS: u32 = 65_536;

/// A variable that only Hydra sets.
const HYDRA_CONTROL: &str = "HYDI_CONTROL_FD";

/// Looks up a variable; an empty one counts as unset.
type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The job of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Number of the job, the same in all its processes.
    pub id: u64,
    /// Rank of this process, from 0.
    pub rank: u32,
    /// Number of ranks in the job.
    pub size: u32,
    /// The main endpoint of every rank, by rank.
    pub addresses: Vec<Address>,
}

/// A job started by another launcher than `dipole run`, and its nodes.
#[derive(Debug)]
struct Launched {
    job: Job,
    nodes: Nodes,
}

/// Nodes of a launched job.
#[derive(Debug, PartialEq, Eq)]
enum Nodes {
    /// All ranks are on this node.
    Here,
    /// They are in the hosts file.
    File(crate::hosts::Hosts),
    /// Only their names are known; the first is node 1.
    Names(peers::NodeNames),
    /// The ranks have exchanged their addresses; the first is node 1.
    Exchanged {
        hosts: crate::hosts::Hosts,
        /// Number of the job's directory.
        directory: u64,
    },
}

impl Job {
    /// Reads the job from the environment.
    ///
    /// # Errors
    /// A variable is missing or wrong.
    pub fn from_env() -> Result<Job, JobError> {
        Job::read(&variable, Services::Use)
    }

    /// Reads the job from variables given by a function. The launcher's services are not used.
    ///
    /// # Errors
    /// A variable is missing or wrong.
    pub fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Job, JobError> {
        Job::read(&get, Services::Avoid)
    }

    /// Rank of this process and number of ranks, if a launcher has set them. MPI libraries use the
    /// launcher's services themselves, so this does not.
    #[must_use]
    pub fn rank_and_size() -> Option<(u32, u32)> {
        let job = Job::read(&variable, Services::Avoid).ok();
        job.map(|job| (job.rank, job.size))
            .or_else(|| mpi::rank_and_size(&variable))
    }

    fn read(get: Lookup<'_>, services: Services) -> Result<Job, JobError> {
        let Some(launched) = launched(get, services)? else {
            return dipole::job(get);
        };
        let job = launched.job;
        match node_from(get)? {
            Some(own) if own != job.own_address().node => Err(JobError::Bad {
                variable: "DIPOLE_NID",
                found: own.to_string(),
                expected: format!(
                    "{}, where the launcher placed rank {}, or no value at all",
                    job.own_address().node,
                    job.rank
                ),
            }),
            _ => Ok(job),
        }
    }

    /// True if a launcher started this process, and notices when another rank dies.
    #[must_use]
    pub fn has_launcher() -> bool {
        variable("DIPOLE_RANK").is_some() || mpi::is_here(&variable) || slurm::is_here(&variable)
    }

    /// The number of ranks, if `dipole run` started this process and Open MPI's launcher did not, so
    /// that Open MPI takes each rank for a job of its own. MPICH learns the number by PMI.
    #[must_use]
    pub fn size_unknown_to_open_mpi() -> Option<u32> {
        let size: u32 = variable("DIPOLE_SIZE")?.parse().ok()?;
        (size > 1 && !mpi::has_several_ranks_of_open_mpi(&variable)).then_some(size)
    }

    /// The nodes that Slurm, Flux, PBS or LSF has allocated to this batch script or shell, on which it
    /// may start programs; `None` outside an allocation.
    ///
    /// # Errors
    /// The scheduler's variables are wrong, or the name of a node is unknown.
    pub fn allocation() -> Result<Option<Allocation>, JobError> {
        let get: Lookup<'_> = &variable;
        // A Flux instance may run inside the allocation of another scheduler.
        let mut listed = flux::allocation(get)?;
        if listed.is_none() {
            listed = slurm::allocation(get)?;
        }
        if listed.is_none() {
            listed = pbs::allocation(get)?;
        }
        if listed.is_none() {
            listed = lsf::allocation(get)?;
        }
        listed.map(allocation::resolved).transpose()
    }

    /// The main endpoint of this process.
    #[must_use]
    pub fn own_address(&self) -> Address {
        self.addresses[self.rank as usize]
    }

    /// The rank with this main endpoint.
    #[must_use]
    pub fn rank_of(&self, address: Address) -> Option<u32> {
        let base = self.addresses[0].endpoint.0;
        let rank = address.endpoint.0.checked_sub(base)?;
        (self.addresses.get(rank as usize) == Some(&address)).then_some(rank)
    }

    /// A job of another launcher, whose endpoints are derived from its number.
    fn launched(id: u64, rank: u32, nodes: Vec<NodeId>) -> Job {
        // Launchers use the upper half; two jobs at the same time get different parts of it.
        let part = u32::try_from(mixed(id) >> 49).unwrap_or_default();
        let base = 0x8000_0000 | (part << 16);
        Job {
            id,
            rank,
            size: u32::try_from(nodes.len()).unwrap_or(u32::MAX),
            addresses: (base..)
                .zip(nodes)
                .map(|(endpoint, node)| Address {
                    node,
                    endpoint: EndpointId(endpoint),
                })
                .collect(),
        }
    }
}

/// Whether to use services of the launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Services {
    /// A program of Dipole.
    Use,
    /// A program of MPI, whose library uses them.
    Avoid,
}

/// The job of another launcher than `dipole run`, if one started this process.
fn launched(get: Lookup<'_>, services: Services) -> Result<Option<Launched>, JobError> {
    if dipole::is_here(get) {
        Ok(None)
    } else if mpi::is_innermost(get) {
        mpi::job(get, services).map(Some)
    } else if slurm::is_here(get) {
        slurm::job(get, services).map(Some)
    } else if mpi::is_here(get) {
        mpi::job(get, services).map(Some)
    } else if kubernetes::is_here(get) {
        kubernetes::job(get).map(Some)
    } else {
        Ok(None)
    }
}

/// The placement of this process by another launcher; `None` without one, or if `DIPOLE_NID` is
/// set.
///
/// # Errors
/// A variable is missing or wrong, the names of the job's nodes cannot be resolved, or the ranks
/// cannot exchange their addresses.
pub fn placement_from_env() -> Result<Option<RankPlacement>, JobError> {
    placement_from(&variable, Services::Use)
}

/// Like [`placement_from_env`], for the provider of an MPI library, which uses the launcher's services
/// itself.
///
/// # Errors
/// A variable is missing or wrong, or the names of the job's nodes are not known or cannot be resolved.
pub fn placement_in_mpi() -> Result<Option<RankPlacement>, JobError> {
    placement_from(&variable, Services::Avoid)
}

fn placement_from(get: Lookup<'_>, services: Services) -> Result<Option<RankPlacement>, JobError> {
    // Check it even if no launcher needs it.
    given_id(get)?;
    if get("DIPOLE_NID").is_some() {
        return Ok(None);
    }
    launched(get, services)?
        .map(|launched| RankPlacement::of(launched, get))
        .transpose()
}

/// The node in `DIPOLE_NID`; `None` (which means node 1) if it is not set.
///
/// # Errors
/// The value is not a node number.
pub fn node_from_env() -> Result<Option<NodeId>, JobError> {
    node_from(&variable)
}

fn number<T: FromStr + PartialOrd + fmt::Display>(
    variable: &'static str,
    found: String,
    min: T,
    max: T,
) -> Result<T, JobError> {
    match found.parse() {
        Ok(number) if number >= min && number <= max => Ok(number),
        _ => Err(JobError::Bad {
            variable,
            found,
            expected: format!("a number from {min} to {max}"),
        }),
    }
}

/// A number that a launcher must set. `advice` is for the user if it is missing.
fn required_number<T: FromStr + PartialOrd + fmt::Display>(
    get: Lookup<'_>,
    launcher: Launcher,
    variable: &'static str,
    (min, max): (T, T),
    advice: &'static str,
) -> Result<T, JobError> {
    let found = get(variable).ok_or(JobError::Lacking {
        launcher,
        variable,
        advice,
    })?;
    number(variable, found, min, max)
}

/// The number in `DIPOLE_JOB`, which overrides the launcher's.
fn given_id(get: Lookup<'_>) -> Result<Option<u64>, JobError> {
    get("DIPOLE_JOB")
        .map(|found| number("DIPOLE_JOB", found, 0, u64::MAX))
        .transpose()
}

/// A job number from a name that all its processes know (FNV-1a: the same in every version).
fn id_from_name(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Distributes consecutive numbers evenly (the last step of splitmix64).
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// The node number of the entry at an index.
fn node_at(index: usize) -> NodeId {
    NodeId(u32::try_from(index).map_or(u32::MAX, |index| index.saturating_add(1)))
}

fn node_from(get: Lookup<'_>) -> Result<Option<NodeId>, JobError> {
    match get("DIPOLE_NID") {
        None => Ok(None),
        Some(found) => found.parse().map(Some).map_err(|_| JobError::Bad {
            variable: "DIPOLE_NID",
            found,
            expected: "a node number from 1 to 4294967295".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests;
