//! Explores, within small bounds, all orders in which peers start, packets arrive and
//! acknowledgements are sent after the queue has overflowed: grants are conserved, and no peer
//! starves. Spec §6.6, §8.

use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use core::hash::Hash;

use siphasher::sip128::{Hasher128, SipHasher13};

use super::tests::overflowed;
use super::*;

/// An acknowledgement: packets that have arrived, and how many may be in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Ack {
    arrived: u32,
    window: u32,
}

impl Ack {
    /// The number after the last packet that it allows.
    fn end(self) -> u32 {
        self.arrived + self.window
    }
}

/// A peer that sends its packets as soon as it may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Sender {
    packets: u32,
    arrived: u32,
    known: Ack,
    /// An acknowledgement in flight. A newer one replaces it, as if it were lost.
    ack_in_flight: Option<Ack>,
    has_begun: bool,
    is_gone: bool,
}

impl Sender {
    fn left(&self) -> u32 {
        self.packets - self.arrived
    }

    fn flying(&self) -> u32 {
        self.known
            .end()
            .min(self.packets)
            .saturating_sub(self.arrived)
    }

    /// Packets in flight, and packets that known acknowledgements allow.
    fn exposed(&self) -> u32 {
        let ack_in_flight = self.ack_in_flight.map_or(0, Ack::end);
        let end = self.known.end().max(ack_in_flight).min(self.packets);
        end.saturating_sub(self.arrived)
    }
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Begin,
    Arrive,
    ReceiveAck,
    Leave,
}

const ACTIONS: [Action; 4] = [
    Action::Begin,
    Action::Arrive,
    Action::ReceiveAck,
    Action::Leave,
];

#[derive(Clone)]
struct World {
    grants: Grants,
    now: Instant,
    peers: Vec<PeerId>,
    senders: Vec<Sender>,
    /// Peers that may still leave before they have sent everything.
    departures: u32,
}

impl World {
    fn acknowledge(&mut self, at: usize) {
        let window = self.grants.window(self.peers[at]);
        let sender = &mut self.senders[at];
        let arrived = sender.arrived;
        sender.ack_in_flight = Some(Ack { arrived, window });
    }

    /// The world after an action of one peer; `None` if the action is impossible.
    fn after(&self, at: usize, action: Action) -> Option<World> {
        let mut next = self.clone();
        let (peer, now) = (self.peers[at], self.now);
        let sender = &mut next.senders[at];
        if sender.is_gone {
            return None;
        }
        match action {
            Action::Begin if !sender.has_begun => {
                sender.has_begun = true;
                next.grants.set_backlog(peer, sender.packets, now);
            }
            Action::Arrive if sender.flying() > 0 => {
                sender.arrived += 1;
                let left = sender.left();
                next.grants.arrived((peer, 0), (1, left), now);
                next.grants.stepped(now);
                next.acknowledge(at);
            }
            Action::ReceiveAck => sender.known = sender.ack_in_flight.take()?,
            Action::Leave if sender.left() > 0 && self.departures > 0 => {
                sender.is_gone = true;
                next.departures -= 1;
                next.grants.forget(peer);
            }
            _ => return None,
        }
        next.grants.stepped(now);
        while let Some(changed) = next.grants.next_changed() {
            let index = next.peers.iter().position(|it| *it == changed)?;
            next.acknowledge(index);
        }
        Some(next)
    }

    fn check(&self, is_last: bool) -> Result<(), String> {
        let there = || self.senders.iter().filter(|it| !it.is_gone);
        let exposed: u32 = there().map(Sender::exposed).sum();
        let limit = self.grants.downlink.limit().unwrap_or(u32::MAX);
        if exposed > limit {
            return Err(alloc::format!(
                "{exposed} packets may be in flight, the limit is {limit}"
            ));
        }
        match is_last && there().any(|it| it.left() > 0) {
            true => Err(String::from("a sender waits forever")),
            false => Ok(()),
        }
    }

    fn digest(&self) -> u128 {
        let mut hasher = SipHasher13::new();
        (&self.grants, &self.senders, self.departures).hash(&mut hasher);
        self.grants.free.hash(&mut hasher);
        hasher.finish128().as_u128()
    }
}

/// Visits all states. Returns their number, or the first violation.
fn explore(packets: &[u32], departures: u32) -> Result<usize, String> {
    // Too many peers have sent at the same time: none may send without a grant.
    let (grants, now, mut peers) = overflowed(64);
    peers.truncate(packets.len());
    let sender = |packets: &u32| Sender {
        packets: *packets,
        ..Sender::default()
    };
    let first = World {
        grants,
        now,
        peers,
        senders: packets.iter().map(sender).collect(),
        departures,
    };
    let mut seen = BTreeSet::from([first.digest()]);
    let mut open = alloc::vec![first];
    while let Some(world) = open.pop() {
        let mut is_last = true;
        for at in 0..world.senders.len() {
            for action in ACTIONS {
                let Some(next) = world.after(at, action) else {
                    continue;
                };
                // A departure is voluntary, so no peer may have to wait for it.
                is_last &= matches!(action, Action::Leave);
                if seen.insert(next.digest()) {
                    open.push(next);
                }
            }
        }
        world
            .check(is_last)
            .map_err(|why| alloc::format!("{why}: {:?}", world.senders))?;
    }
    Ok(seen.len())
}

#[test]
fn grants_are_conserved_and_no_peer_starves_in_any_order_of_packets() {
    let small = [(&[14, 9][..], 1), (&[9, 3, 1], 0)];
    // With `DIPOLE_MODEL_BOUND` this takes half a minute longer.
    let large = [(&[11, 10][..], 1), (&[9, 8, 1], 0)];
    let is_bounded = std::env::var_os("DIPOLE_MODEL_BOUND").is_none();
    let more = if is_bounded { &large[..0] } else { &large };
    for (packets, departures) in small.iter().chain(more).copied() {
        let states = explore(packets, departures);
        let states = states.unwrap_or_else(|why| panic!("{packets:?}: {why}"));
        std::println!("grants to {packets:?}, {departures} may leave: {states} states");
        assert!(states > 1000, "{packets:?}: {states} states");
    }
}
