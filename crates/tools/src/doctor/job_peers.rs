//! The other ranks, where `dipole run` starts the doctor on each node. A node can reply only while
//! a process runs there, so no rank begins or ends before all others do.

use std::time::Duration;

use dipole_group::{Group, Members};
use dipole_node::job::Job;
use dipole_node::{Address, Config, EndpointId, Node};

/// How long to wait for the others to begin, and to end. Where messages do not get through, each
/// rank continues alone.
const PATIENCE: Duration = Duration::from_secs(10);
const EXAMINED: Duration = Duration::from_secs(60);
/// How long a rank that could not reach the others continues to reply.
const LONGER: Duration = Duration::from_secs(2);

/// This process as a rank of the job; it replies for its node.
pub(super) struct JobPeers {
    node: Node,
    group: Option<Group>,
}

impl JobPeers {
    /// Waits for the other ranks; `None` outside a job, or where a Dipole process cannot start.
    pub(super) fn meet(config: &Config) -> Option<JobPeers> {
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
        Some(JobPeers { node, group })
    }

    /// Continues to reply until the others have ended, too.
    pub(super) fn part(self) {
        match self.group {
            // Ranks that are gone or late are not waited for.
            Some(mut group) => drop(group.barrier(EXAMINED)),
            None => std::thread::sleep(LONGER),
        }
        let _nothing_is_under_way = self.node.close(Duration::ZERO);
    }
}
