//! The nodes that a scheduler has allocated to a batch script or an interactive shell, and the
//! scheduler's way to start processes there.
//!
//! Each scheduler has a file that reads its list of nodes. Here the names are resolved.

use std::time::Duration;

use super::hostlist::MAX_NAMES;
use super::peers::{NodeNames, is_own};
use super::{JobError, node_at};
use crate::address::NodeId;
use crate::hosts::{Host, Hosts};

/// The directory's port is one of [`PORTS`] from here on, below those that the kernel assigns
/// dynamically.
pub(super) const FIRST_PORT: u16 = 10_000;
pub(super) const PORTS: u16 = 20_000;
/// Distance between the ports of consecutive jobs, for their steps.
pub(super) const PORTS_PER_JOB: u64 = 31;
/// How long the name of a node may take to become known.
pub(super) const NAME_TIMEOUT: Duration = Duration::from_secs(10);

/// A scheduler's command that starts a process on a node of the allocation and connects its standard
/// streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Starter {
    /// `srun` of Slurm.
    Srun,
    /// `blaunch` of LSF.
    Blaunch,
    /// None: nodes are reached as those of a hosts file. `pbsdsh` of PBS connects no streams, and
    /// `flux exec` cuts binary output at zero bytes.
    Ssh,
}

/// Nodes that a scheduler has allocated.
#[derive(Debug)]
pub struct Allocation {
    /// The nodes, with their names, and with a slot for each task that the scheduler counts there.
    pub hosts: Hosts,
    /// This node, if it is one of them.
    pub own: Option<NodeId>,
    /// How to start processes there.
    pub starter: Starter,
}

/// Nodes as a scheduler lists them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Listed {
    /// Names and slots.
    pub(super) nodes: Vec<(String, u32)>,
    /// Index of this node.
    pub(super) own: Option<usize>,
    pub(super) starter: Starter,
}

/// The allocation with the addresses of its nodes.
pub(super) fn resolved(listed: Listed) -> Result<Allocation, JobError> {
    let (names, slots): (Vec<String>, Vec<u32>) = listed.nodes.into_iter().unzip();
    // All jobs of a user share a node's directory; each user's has a port of its own.
    let uid = u64::from(rustix::process::geteuid().as_raw());
    let resolved = NodeNames {
        names,
        own: listed.own,
        port: FIRST_PORT
            + u16::try_from(uid * PORTS_PER_JOB % u64::from(PORTS)).unwrap_or_default(),
        timeout: NAME_TIMEOUT,
    }
    .resolve()?;
    let with_slots = |(host, slots): (&Host, u32)| Host {
        slots,
        ..host.clone()
    };
    let hosts = Hosts::of(resolved.iter().zip(slots).map(with_slots).collect());
    let by_address = || hosts.iter().find(|host| is_own(host.address));
    let own = match (listed.own, listed.starter) {
        (Some(own), _) => Some(node_at(own)),
        // `srun` is also the way to a node that has an address of this machine.
        (None, Starter::Srun) => None,
        (None, _) => by_address().map(|host| host.node),
    };
    Ok(Allocation {
        hosts,
        own,
        starter: listed.starter,
    })
}

/// Counts how often each name occurs, in the order of their first occurrences; `None` if there are
/// too many, or none.
pub(super) fn counted<'a>(names: impl Iterator<Item = &'a str>) -> Option<Vec<(String, u32)>> {
    let mut nodes: Vec<(String, u32)> = Vec::new();
    let mut known = std::collections::HashMap::new();
    for name in names {
        let index = *known.entry(name).or_insert_with(|| {
            nodes.push((name.to_owned(), 0));
            nodes.len() - 1
        });
        nodes[index].1 = nodes[index].1.saturating_add(1);
    }
    (!nodes.is_empty() && nodes.len() <= MAX_NAMES).then_some(nodes)
}

/// The index of this machine among nodes, by its name with or without a domain.
pub(super) fn own_by_name(nodes: &[(String, u32)]) -> Option<usize> {
    let host = rustix::system::uname();
    let own = host.nodename().to_string_lossy().into_owned();
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let exact = nodes.iter().position(|(name, _)| *name == own);
    exact.or_else(|| {
        nodes
            .iter()
            .position(|(name, _)| short(name) == short(&own))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_counted_in_their_order() {
        let nodes = counted("b a b c b".split(' ')).unwrap();
        let expected = [("b", 3), ("a", 1), ("c", 1)];
        assert_eq!(
            nodes,
            expected.map(|(name, count)| (name.to_owned(), count))
        );
        assert_eq!(counted([].into_iter()), None);
    }

    #[test]
    fn this_machine_is_found_by_its_whole_or_short_name() {
        let host = rustix::system::uname();
        let own = host.nodename().to_string_lossy().into_owned();
        let short = own.split('.').next().unwrap().to_owned();
        let nodes = [("other".to_owned(), 1), (format!("{short}.cluster"), 1)];
        assert_eq!(own_by_name(&nodes), Some(1));
        assert_eq!(own_by_name(&nodes[..1]), None);
        let address = Listed {
            nodes: vec![("192.0.2.77".to_owned(), 2), ("127.0.0.1".to_owned(), 3)],
            own: None,
            starter: Starter::Ssh,
        };
        let found = resolved(address).unwrap();
        assert_eq!(found.own, Some(NodeId(2)));
        let slots: Vec<u32> = found.hosts.iter().map(|host| host.slots).collect();
        assert_eq!(slots, [2, 3]);
    }
}
