//! Placement of a process among its job's nodes by another launcher than `dipole run`.

use std::path::PathBuf;

use super::{JobError, Launched, Lookup, Nodes};
use crate::address::NodeId;
use crate::environment::user_dir;
use crate::hosts::Hosts;

/// Data that a process needs to open its node.
#[derive(Debug)]
pub struct RankPlacement {
    /// Node on which the rank runs.
    pub node: NodeId,
    /// All nodes; `None` if the job has only one.
    pub hosts: Option<Hosts>,
    /// Directory of the registry, unless it is the default or given in the hosts file.
    pub runtime_dir: Option<PathBuf>,
}

impl RankPlacement {
    pub(super) fn of(launched: Launched, get: Lookup<'_>) -> Result<RankPlacement, JobError> {
        let node = launched.job.own_address().node;
        let (hosts, runtime_dir) = match launched.nodes {
            Nodes::Here => (None, None),
            Nodes::File(hosts) => (Some(hosts), None),
            Nodes::Names(names) => {
                let runtime_dir = runtime_dir(launched.job.id, get)?;
                (Some(names.resolve()?), runtime_dir)
            }
            Nodes::Exchanged { hosts, directory } => (Some(hosts), runtime_dir(directory, get)?),
        };
        Ok(RankPlacement {
            node,
            hosts,
            runtime_dir,
        })
    }
}

/// The job's own directory, unless the user has named one: node numbers are the job's own, and nodes
/// of other jobs here may have the same.
fn runtime_dir(id: u64, get: Lookup<'_>) -> Result<Option<PathBuf>, JobError> {
    match get("DIPOLE_RUNTIME_DIR") {
        Some(_) => Ok(None),
        None => job_dir(id).map(Some),
    }
}

/// The job's directory. It is not below `XDG_RUNTIME_DIR`: launchers pass on that variable from
/// another machine, and a session may end before the job does.
fn job_dir(id: u64) -> Result<PathBuf, JobError> {
    crate::registry::job_dir(&user_dir(), id).map_err(|error| JobError::Directory {
        cause: error.to_string(),
    })
}
