//! The other ranks, where `dipole run` starts the doctor on each node: somebody must answer on a
//! node while the others examine it, so none begins or ends before all do.

use std::time::Duration;

use dipole_group::{Group, Members};
use dipole_node::job::Job;
use dipole_node::{Address, Config, EndpointId, Node};

/// How long the others may take to begin, and to end. Where messages do not get through nobody is
/// heard, and each goes on alone.
const PATIENCE: Duration = Duration::from_secs(10);
const EXAMINED: Duration = Duration::from_secs(60);
/// How long a rank that did not hear of the others goes on answering.
const LONGER: Duration = Duration::from_secs(2);

/// This process as one of the job's, which answers for its node.
pub(super) struct Company {
    node: Node,
    group: Option<Group>,
}

impl Company {
    /// Meets the others; `None` without a job, or where a process of Dipole cannot start.
    pub(super) fn meet(config: &Config) -> Option<Company> {
        let job = Job::from_env().ok()?;
        if job.size < 2 || job.own_address().node != config.node {
            return None;
        }
        let node = Node::open(config.clone()).ok()?;
        // The job's own endpoints come first.
        let above = job.addresses[0].endpoint.0.checked_add(job.size)?;
        let ports = job.addresses.iter().zip(above..);
        let ports = ports.map(|(address, endpoint)| Address {
            node: address.node,
            endpoint: EndpointId(endpoint),
        });
        let members = Members::first(ports.collect::<Vec<_>>());
        let group = Group::join(&node, members, job.rank as usize, PATIENCE).ok();
        Some(Company { node, group })
    }

    /// Goes on answering until the others have ended, too.
    pub(super) fn part(self) {
        match self.group {
            // Who is gone or late is not waited for.
            Some(mut group) => drop(group.barrier(EXAMINED)),
            None => std::thread::sleep(LONGER),
        }
        let _nothing_is_under_way = self.node.close(Duration::ZERO);
    }
}
