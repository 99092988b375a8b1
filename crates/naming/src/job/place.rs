//! Where a process stands among its job's nodes, when another launcher than `dipole run`
//! started it.

use std::path::PathBuf;

use super::{JobError, Launched, Lookup, Nodes};
use crate::address::NodeId;
use crate::environment::user_dir;
use crate::hosts::Hosts;

/// What a process needs to know to open its node.
#[derive(Debug)]
pub struct Place {
    /// Its node.
    pub node: NodeId,
    /// All nodes; `None` if the job has no other.
    pub hosts: Option<Hosts>,
    /// Where the registry lives, unless the default or the hosts file says.
    pub runtime_dir: Option<PathBuf>,
}

impl Place {
    pub(super) fn of(launched: Launched, get: Lookup<'_>) -> Result<Place, JobError> {
        let node = launched.job.own_address().node;
        let (hosts, runtime_dir) = match launched.nodes {
            Nodes::Here => (None, None),
            Nodes::File(hosts) => (Some(hosts), None),
            Nodes::Names(names) => {
                // Node numbers are the job's own: another job's nodes here have the same.
                let runtime_dir = match get("DIPOLE_RUNTIME_DIR") {
                    Some(_) => None,
                    None => Some(job_dir(launched.job.id)?),
                };
                (Some(names.resolve()?), runtime_dir)
            }
        };
        Ok(Place {
            node,
            hosts,
            runtime_dir,
        })
    }
}

/// The job's directory. Not below the session's: launchers hand on the variable of the
/// machine they were started on, and a session may end before the job does.
fn job_dir(id: u64) -> Result<PathBuf, JobError> {
    crate::registry::job_dir(&user_dir(), id).map_err(|error| JobError::Directory {
        cause: error.to_string(),
    })
}
