//! Information that this process publishes for operators: its counters, which link it uses to reach each
//! peer, and why it does not use a faster one.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::address::NodeId;
use crate::links::LinkChoice;
use crate::process::ProcessState;
use crate::registry::{LinkUse, RegistryError, ReportFiles};
use crate::stats::Stats;
use dipole_driver::Driver;
use dipole_engine::{Path, PathState, Paths};

/// Publishes the counters and links of this process.
#[derive(Debug)]
pub(crate) struct Report {
    files: ReportFiles,
    node: NodeId,
    choice: LinkChoice,
    /// The counters last published, and those of the layer above.
    stats: Option<Stats>,
    layer: Vec<(String, u64)>,
    link_changes: u64,
}

impl Report {
    pub(crate) fn new(files: ReportFiles, node: NodeId, choice: LinkChoice) -> Report {
        Report {
            files,
            node,
            choice,
            stats: None,
            layer: Vec::new(),
            link_changes: 0,
        }
    }

    /// Writes what has changed since the last call.
    pub(crate) fn publish(&mut self, driver: &Driver<ProcessState>) -> Result<(), RegistryError> {
        let (stats, layer, changes) = driver.with_last(|state, _| {
            let layer = state.layer.values();
            (state.stats(), layer, state.engine.link_changes())
        });
        if self.stats != Some(stats) || self.layer != layer {
            let values = stats.values().into_iter().chain(layer.iter().cloned());
            self.files.write_counters(values.collect())?;
            self.stats = Some(stats);
            self.layer = layer;
        }
        if changes != self.link_changes {
            let (memory, packets) =
                driver.with_last(|state, _| (state.engine.sharing_memory(), state.engine.paths()));
            self.files.write_links(&self.link_uses(&memory, &packets))?;
            self.link_changes = changes;
        }
        Ok(())
    }

    /// The link to each peer: those in shared memory by node and incarnation, and those on the network.
    fn link_uses(&self, memory: &[(NodeId, u64)], packets: &[Paths]) -> Vec<LinkUse> {
        let by_memory = memory.iter().map(|&(node, incarnation)| LinkUse {
            node,
            incarnation,
            link: "shm".to_owned(),
            paths: String::new(),
            check: String::new(),
            why: String::new(),
        });
        by_memory
            .chain(packets.iter().map(|paths| self.packet_link_use(paths)))
            .collect()
    }

    fn packet_link_use(&self, paths: &Paths) -> LinkUse {
        let (socket, fast): (Vec<&Path>, Vec<&Path>) = paths
            .pairs
            .iter()
            .filter(|pair| pair.small == Some(PathState::Used))
            .partition(|pair| self.socket_reason(pair.ours).is_some());
        let mut why = match paths.node == self.node {
            true => vec![self.why_no_memory()],
            false => Vec::new(),
        };
        // One reason per interface.
        let mut reported = BTreeSet::new();
        for pair in socket {
            if let Some(reason) = self.socket_reason(pair.ours)
                && reported.insert(pair.ours)
            {
                why.push(format!("{}: {reason}", pair.ours));
            }
        }
        let ways = paths.to_string();
        LinkUse {
            node: paths.node,
            incarnation: paths.incarnation,
            link: if fast.is_empty() { "udp" } else { "bpf" }.to_owned(),
            paths: ways
                .split_once(": ")
                .map_or("", |(_, ways)| ways)
                .to_owned(),
            check: paths.trailer.name().to_owned(),
            why: why.join("; "),
        }
    }

    /// Why small packets from an address use its socket, if they do.
    fn socket_reason(&self, address: IpAddr) -> Option<&str> {
        let found = self.choice.sockets.iter().find(|(at, _)| *at == address);
        found.map(|(_, why)| &**why)
    }

    /// Why packets are used to reach a process of this node.
    fn why_no_memory(&self) -> String {
        match (self.choice.packets_only, &self.choice.memory) {
            (Some(variable), _) => format!("no shared memory: {variable} is set"),
            (None, Some(cause)) => format!("no shared memory: {cause}"),
            (None, None) => "no shared memory: the other process has none (its DIPOLE_LINK, \
                             DIPOLE_FAULT or DIPOLE_CAPTURE, or another version)"
                .to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Links};
    use crate::registry::Registry;
    use dipole_proto::wire::Trailer;

    fn pair(network: u8, small: PathState) -> Path {
        Path {
            ours: IpAddr::from([10, network, 0, 1]),
            theirs: IpAddr::from([10, network, 0, 2]),
            small: Some(small),
            bulk: Some(small),
        }
    }

    fn paths(node: u32, pairs: Vec<Path>) -> Paths {
        Paths {
            node: NodeId(node),
            incarnation: 7,
            trailer: Trailer::Crc32c,
            pairs,
        }
    }

    #[test]
    fn each_peer_is_listed_with_its_link_and_the_reason_against_a_faster_one() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::open(&directory.path().join("dipole"), NodeId(1)).unwrap();
        let config = Config::local(NodeId(1), directory.path().to_owned());
        let report = |choice| Report::new(ReportFiles::new(&registry, 1), NodeId(1), choice);
        let mut choice = LinkChoice::new(&config);
        choice
            .sockets
            .push(([10, 0, 0, 1].into(), "not granted".to_owned()));
        let uses = report(choice).link_uses(
            &[(NodeId(1), 5)],
            &[
                paths(2, vec![pair(0, PathState::Used)]),
                paths(3, vec![pair(1, PathState::Used), pair(0, PathState::Lost)]),
                paths(1, vec![pair(0, PathState::Used)]),
            ],
        );
        let reported: Vec<(&str, &str)> = uses.iter().map(|one| (&*one.link, &*one.why)).collect();
        assert_eq!(
            reported[..3],
            [("shm", ""), ("udp", "10.0.0.1: not granted"), ("bpf", "")]
        );
        assert!(
            reported[3]
                .1
                .starts_with("no shared memory: the other process")
        );
        assert_eq!(uses[1].paths, "10.0.0.1 <-> 10.0.0.2 small and bulk");
        assert!(
            uses[2].paths.contains("answers no longer"),
            "{}",
            uses[2].paths
        );

        for (links, word) in [(Links::Udp, "DIPOLE_LINK is set"), (Links::Auto, "broken")] {
            let mut choice = LinkChoice::new(&Config {
                links,
                ..config.clone()
            });
            choice.memory = Some("broken".to_owned());
            let uses = report(choice).link_uses(&[], &[paths(1, Vec::new())]);
            assert!(uses[0].why.contains(word), "{}", uses[0].why);
        }
    }
}
