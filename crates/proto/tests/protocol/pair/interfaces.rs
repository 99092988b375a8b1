//! The interfaces of hosts, which may come and go.

use dipole_proto::wire::{Address, LaneAddress};

use super::Wire;

pub fn address(host: usize, port: u16) -> Address {
    let mut ip = [0; 16];
    ip[10] = 0xFF;
    ip[11] = 0xFF;
    ip[12] = 10;
    ip[15] = host as u8 + 1;
    Address { ip, port }
}

/// Networks from this number on are bridges: an interface there has the same address on all hosts.
pub const BRIDGE: u8 = 200;

pub(super) fn interface_address(host: usize, network: u8, port: u16) -> Address {
    let mut address = address(if network >= BRIDGE { 0 } else { host }, port);
    address.ip[14] = network;
    address
}

/// An address of a host as it is now: each renumbering of the host changes one byte.
pub(super) fn moved_address(generations: &[u8], mut address: Address) -> Address {
    let host = usize::from(address.ip[15]).checked_sub(1);
    let generation = host.and_then(|host| generations.get(host));
    address.ip[13] = generation.copied().unwrap_or(0);
    address
}

impl Wire {
    /// The lanes of a host on those of its interfaces that are listed.
    pub fn lanes_on(&self, index: usize, interfaces: &[usize]) -> Vec<LaneAddress> {
        let networks = &self.networks[index];
        let lanes = (0..2 * networks.len() as u8).filter(|lane| {
            let interface = usize::from(*lane) / 2;
            interfaces.contains(&interface)
        });
        lanes
            .map(|lane| {
                let network = networks[usize::from(lane) / 2];
                let port = u16::from(lane) + 1;
                let address = interface_address(index, network, port);
                let address = moved_address(&self.generations, address);
                LaneAddress {
                    lane,
                    bulk: lane % 2 == 1,
                    address,
                }
            })
            .collect()
    }

    /// A host gets other addresses on all its networks, and loses those that it had.
    pub fn renumber(&mut self, index: usize) {
        self.generations[index] += 1;
        let lanes = self.lanes_on(index, &self.listening[index]);
        self.hosts[index].home = lanes[0].address;
        let machine = &self.hosts[index].machine;
        let peers = machine.peers().flat_map(|peer| machine.lanes(peer));
        let all: Vec<[u8; 16]> = peers.map(|lane| lane.to.ip).collect();
        let now = self.now;
        self.hosts[index].machine.set_lanes(now, &lanes, &all);
    }

    /// From now on a host listens on these of its interfaces. It reaches the networks of the others
    /// no longer, or again.
    pub fn listen_on(&mut self, index: usize, interfaces: &[usize]) {
        let lanes = self.lanes_on(index, interfaces);
        let hosts = 0..self.hosts.len();
        let all: Vec<(usize, u8)> = (self.networks[index].iter().copied()).enumerate().collect();
        let is_listed = |interface: &usize| interfaces.contains(interface);
        let before = &self.listening[index];
        let changed = all
            .iter()
            .filter(|(interface, _)| is_listed(interface) != before.contains(interface));
        let moved: Vec<[u8; 16]> = changed
            .flat_map(|(_, network)| {
                hosts
                    .clone()
                    .map(|host| interface_address(host, *network, 0).ip)
            })
            .collect();
        self.listening[index] = interfaces.to_vec();
        self.hosts[index]
            .machine
            .set_lanes(self.now, &lanes, &moved);
    }
}

/// True if both a host and the one at `to`, if it exists, listen on that network.
pub(super) fn are_connected(
    (networks, listening): (&[Vec<u8>], &[Vec<usize>]),
    index: usize,
    to: Address,
) -> bool {
    let has = |host: usize| {
        let mut networks = networks.get(host).into_iter().flatten();
        let interface = networks.position(|network| *network == to.ip[14]);
        interface.is_none_or(|interface| listening[host].contains(&interface))
    };
    has(index) && usize::from(to.ip[15]).checked_sub(1).is_none_or(has)
}
