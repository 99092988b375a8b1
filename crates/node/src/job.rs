//! The job this process belongs to, as the launcher describes it in the environment.
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
//! Environment variables are read in this file and nowhere else.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::address::{Address, EndpointId, NodeId};

/// Most ranks a job can have.
pub const MAX_RANKS: u32 = 65_536;

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

/// Why the environment describes no job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobError {
    /// A variable is not set.
    Missing {
        /// Its name.
        variable: &'static str,
    },
    /// A variable's value cannot be used.
    Bad {
        /// Its name.
        variable: &'static str,
        /// Its value.
        found: String,
        /// What it must be.
        expected: String,
    },
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobError::Missing { variable } => write!(
                f,
                "this process belongs to no job: {variable} is not set; start it with \
                 `dipole run -n P PROGRAM`"
            ),
            JobError::Bad {
                variable,
                found,
                expected,
            } => write!(f, "{variable} is `{found}`, expected {expected}"),
        }
    }
}

impl std::error::Error for JobError {}

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
        let id = number(&get, "DIPOLE_JOB", 0, u64::MAX)?;
        let size = number(&get, "DIPOLE_SIZE", 1, MAX_RANKS)?;
        let rank = number(&get, "DIPOLE_RANK", 0, size - 1)?;
        let base = number(&get, "DIPOLE_JOB_BASE", 0, u32::MAX - (size - 1))?;
        let ranks = required(&get, "DIPOLE_RANKS")?;
        let nodes = parse_ranks(&ranks, size).ok_or_else(|| JobError::Bad {
            variable: "DIPOLE_RANKS",
            found: ranks.clone(),
            expected: format!("the nodes of {size} ranks as in `1x4,2x4`"),
        })?;
        let job = Job {
            id,
            rank,
            size,
            addresses: (base..)
                .zip(nodes)
                .map(|(endpoint, node)| Address {
                    node,
                    endpoint: EndpointId(endpoint),
                })
                .collect(),
        };
        let own = node_from(&get)?.unwrap_or(NodeId(1));
        if own != job.own_address().node {
            return Err(JobError::Bad {
                variable: "DIPOLE_NID",
                found: own.to_string(),
                expected: format!(
                    "{}, where DIPOLE_RANKS places rank {rank}",
                    job.own_address().node
                ),
            });
        }
        Ok(job)
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
}

/// The node of this process as `DIPOLE_NID` says; `None` (which stands for 1) if it is not set.
///
/// # Errors
/// The value is no node number.
pub fn node_from_env() -> Result<Option<NodeId>, JobError> {
    node_from(&variable)
}

/// The runtime directory: `DIPOLE_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/dipole`,
/// else `/tmp/dipole-<uid>`. Whether it can be trusted is checked when it is opened.
#[must_use]
pub fn default_runtime_dir() -> PathBuf {
    runtime_dir_from(&variable)
}

/// The hosts file that `DIPOLE_HOSTS` names, if it is set.
#[must_use]
pub fn hosts_file_from_env() -> Option<PathBuf> {
    variable("DIPOLE_HOSTS").map(PathBuf::from)
}

/// Writes the nodes of all ranks the way `DIPOLE_RANKS` has them.
#[must_use]
pub fn write_ranks(nodes: &[NodeId]) -> String {
    nodes
        .chunk_by(|left, right| left == right)
        .map(|same| match same.len() {
            1 => same[0].to_string(),
            count => format!("{}x{count}", same[0]),
        })
        .collect::<Vec<_>>()
        .join(",")
}

/// A variable that is set to something.
fn variable(name: &str) -> Option<String> {
    std::env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(|value| value.to_string_lossy().into_owned())
}

fn required(
    get: &impl Fn(&str) -> Option<String>,
    variable: &'static str,
) -> Result<String, JobError> {
    get(variable).ok_or(JobError::Missing { variable })
}

fn number<T: FromStr + PartialOrd + fmt::Display>(
    get: &impl Fn(&str) -> Option<String>,
    variable: &'static str,
    least: T,
    most: T,
) -> Result<T, JobError> {
    let found = required(get, variable)?;
    match found.parse() {
        Ok(number) if number >= least && number <= most => Ok(number),
        _ => Err(JobError::Bad {
            variable,
            found,
            expected: format!("a number from {least} to {most}"),
        }),
    }
}

fn node_from(get: &impl Fn(&str) -> Option<String>) -> Result<Option<NodeId>, JobError> {
    match get("DIPOLE_NID") {
        None => Ok(None),
        Some(found) => found.parse().map(Some).map_err(|_| JobError::Bad {
            variable: "DIPOLE_NID",
            found,
            expected: "a node number from 1 to 4294967295".to_owned(),
        }),
    }
}

fn runtime_dir_from(get: &impl Fn(&str) -> Option<String>) -> PathBuf {
    if let Some(given) = get("DIPOLE_RUNTIME_DIR") {
        return PathBuf::from(given);
    }
    match get("XDG_RUNTIME_DIR") {
        Some(session) => PathBuf::from(session).join("dipole"),
        None => PathBuf::from(format!(
            "/tmp/dipole-{}",
            rustix::process::geteuid().as_raw()
        )),
    }
}

/// The inverse of [`write_ranks`]; `None` unless it describes exactly `size` ranks.
fn parse_ranks(text: &str, size: u32) -> Option<Vec<NodeId>> {
    let size = size as usize;
    let mut nodes = Vec::with_capacity(size);
    for part in text.split(',') {
        let (node, count) = part.split_once('x').unwrap_or((part, "1"));
        let node: NodeId = node.parse().ok()?;
        let count: usize = count.parse().ok().filter(|count| *count > 0)?;
        if count > size - nodes.len() {
            return None;
        }
        nodes.extend(std::iter::repeat_n(node, count));
    }
    (nodes.len() == size).then_some(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job_with(changes: &[(&str, Option<&str>)]) -> Result<Job, JobError> {
        let base = [
            ("DIPOLE_RANK", "2"),
            ("DIPOLE_SIZE", "3"),
            ("DIPOLE_JOB", "18446744073709551615"),
            ("DIPOLE_JOB_BASE", "1000"),
            ("DIPOLE_RANKS", "1x2,7"),
            ("DIPOLE_NID", "7"),
        ];
        Job::from_variables(
            |name| match changes.iter().find(|(changed, _)| *changed == name) {
                Some((_, value)) => value.map(str::to_owned),
                None => base
                    .iter()
                    .find(|(given, _)| *given == name)
                    .map(|(_, value)| (*value).to_owned()),
            },
        )
    }

    #[test]
    fn a_whole_environment_gives_rank_size_and_every_address() {
        let job = job_with(&[]).unwrap();
        assert_eq!((job.id, job.rank, job.size), (u64::MAX, 2, 3));
        assert_eq!(
            job.addresses,
            [
                Address::new(1, 1000),
                Address::new(1, 1001),
                Address::new(7, 1002)
            ]
        );
        assert_eq!(job.own_address(), Address::new(7, 1002));
        assert_eq!(job.rank_of(Address::new(1, 1001)), Some(1));
        assert_eq!(job.rank_of(Address::new(7, 1001)), None);
        assert_eq!(job.rank_of(Address::new(1, 999)), None);
        assert_eq!(job.rank_of(Address::new(1, 1003)), None);
    }

    #[test]
    fn every_missing_or_broken_variable_is_named() {
        for (variable, value) in [
            ("DIPOLE_RANK", None),
            ("DIPOLE_RANK", Some("3")),
            ("DIPOLE_RANK", Some("-1")),
            ("DIPOLE_SIZE", None),
            ("DIPOLE_SIZE", Some("0")),
            ("DIPOLE_SIZE", Some("65537")),
            ("DIPOLE_JOB", None),
            ("DIPOLE_JOB", Some("x")),
            ("DIPOLE_JOB_BASE", None),
            ("DIPOLE_JOB_BASE", Some("4294967294")),
            ("DIPOLE_RANKS", None),
            ("DIPOLE_RANKS", Some("1x2")),
            ("DIPOLE_RANKS", Some("1x4")),
            ("DIPOLE_RANKS", Some("1x0,7x3")),
            ("DIPOLE_RANKS", Some("0x3")),
            ("DIPOLE_RANKS", Some("1,,7")),
            ("DIPOLE_RANKS", Some("1x18446744073709551615,7")),
            ("DIPOLE_NID", Some("0")),
            ("DIPOLE_NID", Some("1")),
            ("DIPOLE_NID", None),
        ] {
            let error = job_with(&[(variable, value)]).unwrap_err();
            assert!(error.to_string().contains(variable), "{value:?}: {error}");
        }
    }

    #[test]
    fn the_list_of_ranks_is_compact_and_reads_back() {
        for (nodes, text) in [
            (vec![1], "1"),
            (vec![1, 1, 1], "1x3"),
            (vec![1, 2, 2, 1], "1,2x2,1"),
        ] {
            let nodes: Vec<NodeId> = nodes.into_iter().map(NodeId).collect();
            assert_eq!(write_ranks(&nodes), text);
            let size = u32::try_from(nodes.len()).unwrap();
            assert_eq!(parse_ranks(text, size), Some(nodes));
        }
    }

    #[test]
    fn the_runtime_directory_is_the_first_that_is_given() {
        let with = |given: &[(&str, &str)]| {
            runtime_dir_from(&|name: &str| {
                given
                    .iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| (*value).to_owned())
            })
        };
        let both = [("DIPOLE_RUNTIME_DIR", "/a"), ("XDG_RUNTIME_DIR", "/b")];
        assert_eq!(with(&both), PathBuf::from("/a"));
        assert_eq!(with(&both[1..]), PathBuf::from("/b/dipole"));
        assert!(with(&[]).starts_with("/tmp"));
    }
}
