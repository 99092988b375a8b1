//! Injects faults into processes and the network.

use super::*;

impl World {
    pub(super) fn strike(&mut self, fault: Fault) {
        let now_ns = self.now_ns;
        match fault {
            Fault::Pause { node, for_ns } => {
                let until_ns = now_ns + for_ns;
                self.nodes[node].paused_until_ns = until_ns;
                self.totals.pauses += 1;
                self.trace.note(now_ns, node, What::Paused { until_ns });
            }
            Fault::Stick(Stuck { node, is_stepped }) => {
                if is_stepped {
                    self.nodes[node].is_stuck = true;
                    self.totals.stuck += 1;
                } else {
                    self.nodes[node].paused_until_ns = u64::MAX;
                    self.totals.stopped += 1;
                }
                self.trace.note(now_ns, node, What::Stuck);
            }
            Fault::End { node, orderly } => self.end(node, orderly),
            Fault::Begin { node } => {
                if self.nodes[node].process.is_none() {
                    self.begin(node);
                }
            }
            Fault::Withdraw { node } => {
                let now = Instant(now_ns);
                if let Some(process) = &mut self.nodes[node].process {
                    process.engine.renew_proofs(now);
                    self.totals.withdrawals += 1;
                }
            }
            Fault::Jump { by_ns } => {
                self.now_ns += by_ns;
                self.network.advance(self.now_ns);
                self.totals.jumps += 1;
                self.trace.note(self.now_ns, 0, What::Jumped { by_ns });
            }
            network => self.strike_network(network),
        }
    }

    /// The processes of a node notice which of its interfaces work.
    pub(super) fn follow_addresses(&mut self, machine: usize) {
        let mut dead = std::collections::BTreeSet::new();
        self.network
            .change(|config| dead.clone_from(&config.dead_interfaces));
        let now = Instant(self.now_ns);
        let present: Vec<_> = self.interfaces().into_iter().map(|(_, ip)| ip).collect();
        let present: Vec<_> = present
            .into_iter()
            .filter(|ip| !dead.contains(ip))
            .collect();
        for index in 0..self.nodes.len() {
            if self.node_of(index) == machine
                && let Some(process) = &mut self.nodes[index].process
            {
                process.engine.follow_addresses(now, &present);
                self.totals.followed += 1;
            }
        }
    }

    fn strike_network(&mut self, fault: Fault) {
        let now_ns = self.now_ns;
        match fault {
            Fault::Partition(group) => {
                let group: Vec<usize> = group.iter().map(|it| self.node_of(*it)).collect();
                let (these, those): (Vec<_>, Vec<_>) = self
                    .interfaces()
                    .into_iter()
                    .partition(|(node, _)| group.contains(node));
                let ips = |interfaces: Vec<(usize, std::net::IpAddr)>| -> Vec<_> {
                    interfaces.into_iter().map(|(_, ip)| ip).collect()
                };
                let (these, those) = (ips(these), ips(those));
                self.network
                    .change(|config| config.partition(&these, &those));
                self.totals.partitions += 1;
                self.trace.note(now_ns, 0, What::Network("partition"));
            }
            Fault::Cut(from, to) => {
                let (from, to) = (self.node_of(from), self.node_of(to));
                for (_, from_ip) in self
                    .interfaces()
                    .into_iter()
                    .filter(|interface| interface.0 == from)
                {
                    for (_, to_ip) in self
                        .interfaces()
                        .into_iter()
                        .filter(|interface| interface.0 == to)
                    {
                        self.network.change(|config| config.cut(from_ip, to_ip));
                    }
                }
                self.totals.partitions += 1;
                self.trace.note(now_ns, from, What::Network("cut"));
            }
            Fault::Heal => {
                self.network.change(|config| config.heal());
                self.trace.note(now_ns, 0, What::Network("healed"));
            }
            Fault::Interface {
                node,
                interface,
                alive,
            } => {
                let network = self.scenario.nodes[node].interfaces[interface];
                let ip = interface_address(self.node_of(node), network);
                self.network
                    .change(|config| config.set_interface(ip, alive));
                self.totals.interfaces += 1;
                if (node + interface).is_multiple_of(2) {
                    self.follow_addresses(self.node_of(node));
                }
                let what = ["interface dead", "interface back"][usize::from(alive)];
                self.trace.note(now_ns, node, What::Network(what));
            }
            Fault::LoseNetwork(lost) => {
                self.lose_network(lost);
                self.totals.networks += 1;
                self.trace.note(now_ns, 0, What::Network("lost"));
            }
            Fault::Narrow { bytes, by } => {
                self.network.change(|config| match by {
                    Narrow::Interfaces => config.max_frame_bytes = bytes,
                    Narrow::Switch => config.switch_frame_bytes = bytes,
                });
                self.totals.narrowings += 1;
                self.trace
                    .note(now_ns, 0, What::Network("takes packets of another length"));
            }
            Fault::Pause { .. }
            | Fault::Stick(_)
            | Fault::End { .. }
            | Fault::Begin { .. }
            | Fault::Withdraw { .. }
            | Fault::Jump { .. } => {}
        }
    }
}
