//! By which of a node's addresses another agent is spoken to, and from which of ours.
//!
//! Between nodes with several cards every packet goes by all of them, so that none has to be
//! missed before another is tried. Between nodes with a control network packets go there; by
//! the cards too while it is silent, and those that ask after a node which did not answer.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use dipole_node::hosts::Host;

use super::membership::Outgoing;

/// Gossip comes about every second.
const SILENCE: Duration = Duration::from_secs(3);
/// What has come by one card comes by the others within this time.
const COPIES_WITHIN: Duration = Duration::from_millis(500);
const MOST_REMEMBERED: usize = 256;

/// See the module.
#[derive(Debug)]
pub(super) struct Ways {
    own: Vec<IpAddr>,
    control: Option<IpAddr>,
    /// When something last came by the control network.
    control_heard: Duration,
    /// Packets that came lately.
    recent: VecDeque<(u64, Duration)>,
}

impl Ways {
    pub(super) fn new(own: &Host, now: Duration) -> Ways {
        Ways {
            own: own.directories().iter().map(SocketAddr::ip).collect(),
            control: own.control,
            control_heard: now,
            recent: VecDeque::new(),
        }
    }

    /// Notes a packet that came to one of our addresses; false if it is a copy.
    pub(super) fn is_new(&mut self, now: Duration, to: Option<IpAddr>, packet: &[u8]) -> bool {
        if self.control.is_some() && to == self.control {
            self.control_heard = now;
        }
        if self.own.len() == 1 {
            return true;
        }
        let is_old = |(_, at): &(u64, Duration)| now >= *at + COPIES_WITHIN;
        while self.recent.len() >= MOST_REMEMBERED || self.recent.front().is_some_and(is_old) {
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

    /// Where a packet goes.
    pub(super) fn of(&self, now: Duration, packet: &Outgoing) -> Vec<SocketAddr> {
        let to = &packet.to;
        let control = self.control.and(to.control);
        let control = control.map(|ip| SocketAddr::new(ip, to.port));
        let is_heard = now < self.control_heard + SILENCE;
        if let Some(control) = control
            && is_heard
            && !packet.is_urgent
        {
            return vec![control];
        }
        // An address that we have too, as bridges have, leads back.
        let first = to.addresses.first();
        let leads_there = |at: &SocketAddr| !self.own.contains(&at.ip()) || Some(&at.ip()) == first;
        let cards = to.cards().into_iter().filter(leads_there);
        control.into_iter().chain(cards).collect()
    }
}

/// The socket for packets to an address: on the card by which the kernel would send them.
pub(super) fn socket_to<'a>(
    sockets: impl Iterator<Item = &'a UdpSocket>,
    to: SocketAddr,
) -> Option<&'a UdpSocket> {
    let address = |socket: &UdpSocket| socket.local_addr().ok().map(|at| at.ip());
    let fitting =
        sockets.filter(|socket| address(socket).is_some_and(|own| own.is_ipv4() == to.is_ipv4()));
    let mut all: Vec<&UdpSocket> = fitting.collect();
    if all.len() > 1 {
        let any: IpAddr = match to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let asked = UdpSocket::bind((any, 0)).and_then(|socket| {
            socket.connect(to)?;
            socket.local_addr()
        });
        if let Ok(by) = asked {
            // None if it would be sent by something that is none of our cards.
            let index = all.iter().position(|one| address(one) == Some(by.ip()))?;
            return Some(all.swap_remove(index));
        }
        return None;
    }
    all.pop()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::Member;
    use dipole_node::hosts::Hosts;

    fn host(line: &str) -> Host {
        let hosts = Hosts::parse(line).unwrap();
        hosts.iter().next().unwrap().clone()
    }

    fn way(ways: &Ways, now: u64, to: &str, is_urgent: bool) -> Vec<String> {
        let packet = Outgoing {
            to: Member::of_host(&host(to)),
            packet: Vec::new(),
            is_urgent,
        };
        let all = ways.of(Duration::from_secs(now), &packet);
        all.iter().map(|at| at.ip().to_string()).collect()
    }

    #[test]
    fn a_control_network_carries_all_until_it_is_silent_but_for_what_is_urgent() {
        let own = host("1 10.0.0.1 cards=10.1.0.1,172.17.0.1 control=10.9.0.1");
        let mut ways = Ways::new(&own, Duration::ZERO);
        let to = "2 10.0.0.2 cards=10.1.0.2,172.17.0.1 control=10.9.0.2";
        let all = ["10.9.0.2", "10.0.0.2", "10.1.0.2"];
        assert_eq!(way(&ways, 2, to, false), all[..1]);
        assert_eq!(way(&ways, 2, to, true), all);
        assert_eq!(way(&ways, 3, to, false), all);
        assert!(ways.is_new(
            Duration::from_secs(4),
            Some("10.9.0.1".parse().unwrap()),
            b"1"
        ));
        assert_eq!(way(&ways, 5, to, false), all[..1]);
        assert_eq!(
            way(&ways, 5, "3 10.0.0.3 cards=10.1.0.3", false),
            ["10.0.0.3", "10.1.0.3"]
        );
    }

    #[test]
    fn copies_by_other_cards_are_known_for_a_moment() {
        let mut ways = Ways::new(&host("1 10.0.0.1 cards=10.1.0.1"), Duration::ZERO);
        let at = Duration::from_millis;
        assert!(ways.is_new(at(0), None, b"one"));
        assert!(!ways.is_new(at(10), None, b"one"));
        assert!(ways.is_new(at(20), None, b"two"));
        assert!(ways.is_new(at(600), None, b"one"));
    }
}
