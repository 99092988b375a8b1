//! The job this process belongs to, as its launcher describes it in the environment.
//!
//! `dipole run` sets these, and they win over every other launcher's:
//!
//! | variable | meaning |
//! |---|---|
//! | `DIPOLE_RANK` | this process's number, from 0 |
//! | `DIPOLE_SIZE` | how many there are |
//! | `DIPOLE_JOB` | the job's number, the same in all |
//! | `DIPOLE_JOB_BASE` | endpoint of rank r is base + r |
//! | `DIPOLE_RANKS` | node of every rank: `1x4,2x4` (four on node 1, four on node 2) |
//! | `DIPOLE_NID` | this process's node; 1 if absent |
//! | `DIPOLE_RUNTIME_DIR` | where the registry lives |
//! | `DIPOLE_HOSTS` | the hosts file, if there is one |
//!
//! Without them the environments of `mpirun` and `mpiexec` (`mpi.rs`), of a Slurm step
//! (`slurm.rs`) and of a pod of an indexed Kubernetes job (`kubernetes.rs`) are read, in
//! this order: an `mpirun` inside a Slurm job leaves Slurm's variables of its own daemons.
//!
//! The files below this one are given a function to look variables up.

use std::fmt;
use std::str::FromStr;

use crate::address::{Address, EndpointId, NodeId};
use crate::environment::variable;

mod dipole;
mod error;
mod hostlist;
mod kubernetes;
mod mpi;
mod peers;
mod place;
mod slurm;

pub use dipole::write_ranks;
pub use error::{JobError, Launcher};
pub use place::Place;

/// Most ranks a job can have.
pub const MAX_RANKS: u32 = 65_536;

/// Looks a variable up; empty is unset.
type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// One process's view of the job it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The job's number, the same in all its processes.
    pub id: u64,
    /// This process's number, from 0.
    pub rank: u32,
    /// How many processes there are.
    pub size: u32,
    /// The main endpoint of every rank, by rank.
    pub addresses: Vec<Address>,
}

/// A job that another launcher than `dipole run` started, and where its nodes are.
#[derive(Debug)]
struct Launched {
    job: Job,
    nodes: Nodes,
}

/// What is known of a launched job's nodes.
#[derive(Debug, PartialEq, Eq)]
enum Nodes {
    /// All ranks are on this one.
    Here,
    /// The hosts file has them.
    File(crate::hosts::Hosts),
    /// Their names; node 1 is the first.
    Names(peers::Names),
}

impl Job {
    /// Reads the job from the environment.
    ///
    /// # Errors
    /// A variable is missing or wrong.
    pub fn from_env() -> Result<Job, JobError> {
        Job::from_variables(variable)
    }

    /// Reads the job from variables given by a function.
    ///
    /// # Errors
    /// A variable is missing or wrong.
    pub fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Job, JobError> {
        let Some(launched) = launched(&get)? else {
            return dipole::job(&get);
        };
        let job = launched.job;
        match node_from(&get)? {
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

    /// The main endpoint of this process.
    #[must_use]
    pub fn own_address(&self) -> Address {
        self.addresses[self.rank as usize]
    }

    /// The rank whose main endpoint this is.
    #[must_use]
    pub fn rank_of(&self, address: Address) -> Option<u32> {
        let base = self.addresses[0].endpoint.0;
        let rank = address.endpoint.0.checked_sub(base)?;
        (self.addresses.get(rank as usize) == Some(&address)).then_some(rank)
    }

    /// A job of another launcher: its endpoints follow from its number.
    fn launched(id: u64, rank: u32, nodes: Vec<NodeId>) -> Job {
        // The upper half is the launchers'; two jobs at once get different parts of it.
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

/// The job of another launcher than `dipole run`, if one started this process.
fn launched(get: Lookup<'_>) -> Result<Option<Launched>, JobError> {
    if dipole::is_here(get) {
        Ok(None)
    } else if mpi::is_innermost(get) {
        mpi::job(get).map(Some)
    } else if slurm::is_here(get) {
        slurm::job(get).map(Some)
    } else if mpi::is_here(get) {
        mpi::job(get).map(Some)
    } else if kubernetes::is_here(get) {
        kubernetes::job(get).map(Some)
    } else {
        Ok(None)
    }
}

/// Where another launcher placed this process; `None` without one, or if `DIPOLE_NID` is set.
///
/// # Errors
/// A variable is missing or wrong, or the names of the job's nodes stay unknown.
pub fn place_from_env() -> Result<Option<Place>, JobError> {
    place_from(&variable)
}

fn place_from(get: Lookup<'_>) -> Result<Option<Place>, JobError> {
    // Wrong is wrong, whether a launcher needs it or not.
    given_id(get)?;
    if get("DIPOLE_NID").is_some() {
        return Ok(None);
    }
    launched(get)?
        .map(|launched| Place::of(launched, get))
        .transpose()
}

/// The node of this process as `DIPOLE_NID` says; `None` (which stands for 1) if it is not set.
///
/// # Errors
/// The value is no node number.
pub fn node_from_env() -> Result<Option<NodeId>, JobError> {
    node_from(&variable)
}

fn number<T: FromStr + PartialOrd + fmt::Display>(
    variable: &'static str,
    found: String,
    least: T,
    most: T,
) -> Result<T, JobError> {
    match found.parse() {
        Ok(number) if number >= least && number <= most => Ok(number),
        _ => Err(JobError::Bad {
            variable,
            found,
            expected: format!("a number from {least} to {most}"),
        }),
    }
}

/// A number that a launcher must set; `advice` tells the user what to do if it is missing.
fn told<T: FromStr + PartialOrd + fmt::Display>(
    get: Lookup<'_>,
    launcher: Launcher,
    variable: &'static str,
    (least, most): (T, T),
    advice: &'static str,
) -> Result<T, JobError> {
    let found = get(variable).ok_or(JobError::Lacking {
        launcher,
        variable,
        advice,
    })?;
    number(variable, found, least, most)
}

/// The number in `DIPOLE_JOB`, which overrides the launcher's.
fn given_id(get: Lookup<'_>) -> Result<Option<u64>, JobError> {
    get("DIPOLE_JOB")
        .map(|found| number("DIPOLE_JOB", found, 0, u64::MAX))
        .transpose()
}

/// A job number from a name all its processes are told (FNV-1a: the same in every version).
fn id_from_name(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Spreads numbers that follow each other (the last step of splitmix64).
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
