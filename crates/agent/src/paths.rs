//! Selects the addresses of packets between agents.
//!
//! Between nodes with several interfaces every packet is sent on all of them, so that a failed
//! interface needs no detection. Between nodes with a control network packets use only that. Urgent
//! packets, and all packets while the control network is silent, use the other interfaces too.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use dipole_naming::net::source_address;
use dipole_node::hosts::Host;

use super::member::Member;

/// Gossip arrives about every second.
const CONTROL_SILENCE: Duration = Duration::from_secs(3);
/// Copies of a packet on other interfaces arrive within this time.
const COPIES_WITHIN: Duration = Duration::from_millis(500);
const MAX_REMEMBERED: usize = 256;

#[derive(Debug)]
pub(super) struct Paths {
    own: Vec<IpAddr>,
    control: Option<IpAddr>,
    /// When something was last received on the control network.
    control_received: Duration,
    /// Hashes of recent packets, and when they were received.
    recent: VecDeque<(u64, Duration)>,
}

impl Paths {
    pub(super) fn new(own: &Host, now: Duration) -> Paths {
        Paths {
            own: own.directories().iter().map(SocketAddr::ip).collect(),
            control: own.control,
            control_received: now,
            recent: VecDeque::new(),
        }
    }

    /// Records a packet received at one of our addresses; false if it is a copy.
    pub(super) fn is_new(&mut self, now: Duration, to: Option<IpAddr>, packet: &[u8]) -> bool {
        if self.control.is_some() && to == self.control {
            self.control_received = now;
        }
        if self.own.len() == 1 {
            return true;
        }
        let is_old = |(_, at): &(u64, Duration)| now >= *at + COPIES_WITHIN;
        while self.recent.len() >= MAX_REMEMBERED || self.recent.front().is_some_and(is_old) {
            self.recent.pop_front();
        }
        let mut hasher = DefaultHasher::new();
        packet.hash(&mut hasher);
        let hash = hasher.finish();
        if self.recent.iter().any(|(other, _)| *other == hash) {
            return false;
        }
        self.recent.push_back((hash, now));
        true
    }

    /// The addresses to which a packet for a member is sent.
    pub(super) fn targets(&self, now: Duration, to: &Member, is_urgent: bool) -> Vec<SocketAddr> {
        let to = &to.facts;
        let control = self.control.and(to.control);
        let control = control.map(|ip| SocketAddr::new(ip, to.port));
        let is_control_alive = now < self.control_received + CONTROL_SILENCE;
        if let Some(control) = control
            && is_control_alive
            && !is_urgent
        {
            return vec![control];
        }
        // An address that we have too, such as that of a bridge, would lead back here.
        let first = to.addresses.first();
        let leads_there = |at: &SocketAddr| !self.own.contains(&at.ip()) || Some(&at.ip()) == first;
        let interfaces = to.addresses.iter();
        let interfaces = interfaces.map(|ip| SocketAddr::new(*ip, to.port));
        control
            .into_iter()
            .chain(interfaces.filter(leads_there))
            .collect()
    }
}

/// Sends a packet to agents at these addresses, each from the matching socket.
pub(super) fn send<'a>(
    sockets: impl Iterator<Item = &'a UdpSocket> + Clone,
    packet: &[u8],
    addresses: &[SocketAddr],
) {
    for to in addresses {
        let sent = socket_to(sockets.clone(), *to).map(|socket| socket.send_to(packet, to));
        if !matches!(sent, Some(Ok(_))) {
            tracing::debug!(%to, ?sent, "cannot send to another agent");
        }
    }
}

/// The socket for packets to an address: that of the interface that the kernel would use.
fn socket_to<'a>(
    sockets: impl Iterator<Item = &'a UdpSocket>,
    to: SocketAddr,
) -> Option<&'a UdpSocket> {
    let address = |socket: &UdpSocket| socket.local_addr().ok().map(|at| at.ip());
    let fitting =
        sockets.filter(|socket| address(socket).is_some_and(|own| own.is_ipv4() == to.is_ipv4()));
    let mut all: Vec<&UdpSocket> = fitting.collect();
    if all.len() > 1 {
        // `None` if the kernel would use an interface that is not ours.
        let by = source_address(to.ip()).ok()?;
        let index = all.iter().position(|one| address(one) == Some(by))?;
        return Some(all.swap_remove(index));
    }
    all.pop()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dipole_node::hosts::Hosts;

    fn host(line: &str) -> Host {
        let hosts = Hosts::parse(line).unwrap();
        hosts.iter().next().unwrap().clone()
    }

    fn targets(paths: &Paths, now: u64, to: &str, is_urgent: bool) -> Vec<String> {
        let to = Member::of_host(&host(to));
        let all = paths.targets(Duration::from_secs(now), &to, is_urgent);
        all.iter().map(|at| at.ip().to_string()).collect()
    }

    #[test]
    fn a_control_network_carries_all_but_urgent_packets_until_it_is_silent() {
        let own = host("1 10.0.0.1 interfaces=10.1.0.1,172.17.0.1 control=10.9.0.1");
        let mut paths = Paths::new(&own, Duration::ZERO);
        let to = "2 10.0.0.2 interfaces=10.1.0.2,172.17.0.1 control=10.9.0.2";
        let all = ["10.9.0.2", "10.0.0.2", "10.1.0.2"];
        assert_eq!(targets(&paths, 2, to, false), all[..1]);
        assert_eq!(targets(&paths, 2, to, true), all);
        assert_eq!(targets(&paths, 3, to, false), all);
        assert!(paths.is_new(
            Duration::from_secs(4),
            Some("10.9.0.1".parse().unwrap()),
            b"1"
        ));
        assert_eq!(targets(&paths, 5, to, false), all[..1]);
        assert_eq!(
            targets(&paths, 5, "3 10.0.0.3 interfaces=10.1.0.3", false),
            ["10.0.0.3", "10.1.0.3"]
        );
    }

    #[test]
    fn copies_by_other_interfaces_are_recognised_for_a_moment() {
        let mut paths = Paths::new(&host("1 10.0.0.1 interfaces=10.1.0.1"), Duration::ZERO);
        let at = Duration::from_millis;
        assert!(paths.is_new(at(0), None, b"one"));
        assert!(!paths.is_new(at(10), None, b"one"));
        assert!(paths.is_new(at(20), None, b"two"));
        assert!(paths.is_new(at(600), None, b"one"));
    }
}
