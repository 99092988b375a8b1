//! Addresses that have responded to a challenge. Nothing but challenges is sent to other addresses,
//! and nothing is accepted from a run of an agent that has not responded.
//!
//! A challenge holds a token that only this agent can compute, for one address and some seconds;
//! the response returns it. So challenging a stranger needs no memory, a response cannot be
//! replayed (whatever the clocks of both nodes), and an attacker who gives another host's address
//! does not direct traffic there. A challenge is not longer than its cause, and a response not
//! longer than the challenge.
//!
//! An agent is challenged at the well-known port of its directory and responds from another port,
//! which only members know. All further packets go to that port, so an attacker who fills the queue
//! of the well-known port does not cut members off. An agent that sends first is challenged at its
//! source port: of two agents only one must be reachable at the well-known port.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use dipole_naming::key::{ClusterKey, KEY_BYTES, MacKey};

use super::auth::{Body, TOKEN_BYTES};
use crate::member::Member;

/// Minimum time for which a token is valid.
const TOKEN_TIME: Duration = Duration::from_secs(8);
/// Maximum number of addresses that have responded.
const MAX_CONTACTS: usize = 1 << 14;
/// Maximum number of members whose reported address has not responded yet.
const MAX_HINTS: usize = 1 << 12;
const HINT_TIME: Duration = Duration::from_secs(2);
/// Maximum number of bytes that a node can make us send to unproven addresses.
const MAX_CREDIT: usize = 4096;
/// Time between challenges of one address, doubled up to the second value. Challenges may be lost
/// when attackers fill the receiver's queue.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// How long an address without a response is remembered.
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// Maximum number of packets kept for sending again when their receiver challenges us.
const MAX_SENT: usize = 64;
const SENT_TIME: Duration = Duration::from_secs(1);

/// The canonical form of an address, for comparison.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Digest of a node's description, sent in responses to challenges.
pub(super) fn digest(member: &Member) -> [u8; 8] {
    let key = ClusterKey::new([0; KEY_BYTES]).mac_key("dipole 2026 member");
    let bytes = postcard::to_extend(member, Vec::new()).unwrap_or_default();
    first(key.mac(&bytes))
}

fn first(mac: [u8; 16]) -> [u8; 8] {
    let mut first = [0; 8];
    first.copy_from_slice(&mac[..8]);
    first
}

#[derive(Debug)]
struct Contact {
    node: u32,
    run: u64,
    /// Address that the response came from.
    via: SocketAddr,
}

/// An address that has been challenged, and a packet that waits for its response.
#[derive(Debug)]
struct PendingChallenge {
    node: u32,
    last: Duration,
    pause: Duration,
    waiting: Option<Body>,
}

#[derive(Debug)]
pub(super) struct Hint {
    pub(super) member: Member,
    /// Contact the member after its response, because it has announced itself.
    pub(super) contact: bool,
    added: Duration,
}

impl Hint {
    fn is_fresh(&self, now: Duration) -> bool {
        now < self.added + HINT_TIME
    }
}

#[derive(Debug)]
struct Sent {
    at: Duration,
    to: Vec<SocketAddr>,
    node: u32,
    body: Body,
}

#[derive(Debug)]
pub(super) struct Contacts {
    secret: MacKey,
    /// By address of the directory, as the following maps.
    responded: BTreeMap<SocketAddr, Contact>,
    pending: BTreeMap<SocketAddr, PendingChallenge>,
    hints: BTreeMap<SocketAddr, Hint>,
    /// By node: bytes received from it that have not been spent on challenges of addresses it
    /// reported.
    credit: BTreeMap<u32, usize>,
    sent: VecDeque<Sent>,
}

impl Contacts {
    pub(super) fn new(secret: MacKey) -> Contacts {
        Contacts {
            secret,
            responded: BTreeMap::new(),
            pending: BTreeMap::new(),
            hints: BTreeMap::new(),
            credit: BTreeMap::new(),
            sent: VecDeque::new(),
        }
    }

    /// The token for an address. Tokens of this period and the previous one are valid.
    pub(super) fn token(&self, now: Duration, to: SocketAddr) -> [u8; TOKEN_BYTES] {
        self.token_of(now.as_secs() / TOKEN_TIME.as_secs(), to)
    }

    fn token_of(&self, period: u64, to: SocketAddr) -> [u8; TOKEN_BYTES] {
        let ip = match to.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let mut bytes = [0; 26];
        bytes[..16].copy_from_slice(&ip.octets());
        bytes[16..18].copy_from_slice(&to.port().to_le_bytes());
        bytes[18..].copy_from_slice(&period.to_le_bytes());
        first(self.secret.mac(&bytes))
    }

    /// Accepts a response for an address, sent from `via`; false if the token is not valid, or too
    /// many addresses have responded.
    pub(super) fn accept_response(
        &mut self,
        now: Duration,
        (at, via): (SocketAddr, SocketAddr),
        token: [u8; TOKEN_BYTES],
        (node, run): (u32, u64),
    ) -> bool {
        let period = now.as_secs() / TOKEN_TIME.as_secs();
        let periods = [period, period.wrapping_sub(1)];
        let is_ours = periods
            .iter()
            .any(|period| self.token_of(*period, at) == token);
        let has_room = self.responded.len() < MAX_CONTACTS || self.responded.contains_key(&at);
        if is_ours && has_room {
            self.responded.insert(at, Contact { node, run, via });
        }
        is_ours && has_room
    }

    /// True if this run of the node has responded for that address, and sends from `via`.
    pub(super) fn knows(&self, at: SocketAddr, via: SocketAddr, (node, run): (u32, u64)) -> bool {
        let contact = self.responded.get(&at);
        contact.is_some_and(|known| (known.node, known.run, known.via) == (node, run, via))
    }

    /// The address to which packets are sent to a node that has responded for `at`.
    pub(super) fn reply_address(&self, node: u32, at: SocketAddr) -> Option<SocketAddr> {
        let contact = self.responded.get(&at)?;
        (contact.node == node).then_some(contact.via)
    }

    /// Takes the unspent bytes of a node.
    pub(super) fn take_credit(&mut self, node: u32) -> usize {
        self.credit.remove(&node).unwrap_or(0)
    }

    /// Adds unspent bytes of a node.
    pub(super) fn add_credit(&mut self, node: u32, bytes: usize) {
        let credit = self.credit.entry(node).or_default();
        *credit = (*credit + bytes).min(MAX_CREDIT);
    }

    /// True if a challenge of this size may be sent to an address now. Unless `is_free` it is paid
    /// for with bytes that the node has sent.
    pub(super) fn may_challenge(
        &mut self,
        now: Duration,
        node: u32,
        at: SocketAddr,
        bytes: usize,
        is_free: bool,
    ) -> bool {
        let pending = self.pending.get(&at);
        if pending.is_some_and(|pending| now < pending.last + pending.pause) {
            return false;
        }
        if !is_free {
            let credit = self.credit.entry(node).or_default();
            match credit.checked_sub(bytes) {
                Some(left) => *credit = left,
                None => return false,
            }
        }
        let pause = pending.map_or(FIRST_PAUSE, |pending| (pending.pause * 2).min(LAST_PAUSE));
        let waiting = self.pending.remove(&at).and_then(|pending| pending.waiting);
        let last = now;
        self.pending.insert(
            at,
            PendingChallenge {
                node,
                last,
                pause,
                waiting,
            },
        );
        true
    }

    /// Keeps a packet that is sent when one of these addresses has responded.
    pub(super) fn wait_for_response(&mut self, node: u32, at: &[SocketAddr], body: &Body) {
        for at in at {
            if let Some(pending) = self
                .pending
                .get_mut(at)
                .filter(|pending| pending.node == node)
            {
                pending.waiting = Some(body.clone());
            }
        }
    }

    /// The packet that waits for the response of this address.
    pub(super) fn take_waiting(&mut self, node: u32, at: SocketAddr) -> Option<Body> {
        let pending = self.pending.remove(&at)?;
        pending.waiting.filter(|_| pending.node == node)
    }

    /// Remembers a member that may be at an address; true if the address should be challenged.
    pub(super) fn add_hint(
        &mut self,
        now: Duration,
        at: SocketAddr,
        member: &Member,
        contact: bool,
    ) -> bool {
        // A report of another member must not block the address for long.
        let is_early = |hint: &Hint| match hint.member == *member {
            true => now < hint.added + FIRST_PAUSE,
            false => hint.is_fresh(now),
        };
        if self.hints.get(&at).is_some_and(is_early) {
            return false;
        }
        if self.hints.len() >= MAX_HINTS {
            self.hints.retain(|_, hint| hint.is_fresh(now));
        }
        if self.hints.len() >= MAX_HINTS {
            return false;
        }
        let hint = Hint {
            member: member.clone(),
            contact,
            added: now,
        };
        self.hints.insert(at, hint);
        true
    }

    pub(super) fn take_hint(&mut self, at: SocketAddr) -> Option<Hint> {
        self.hints.remove(&at)
    }

    /// Remembers a packet that was sent.
    pub(super) fn record_sent(
        &mut self,
        now: Duration,
        to: Vec<SocketAddr>,
        node: u32,
        body: Body,
    ) {
        let is_old = |sent: &Sent| now >= sent.at + SENT_TIME;
        while self.sent.len() >= MAX_SENT || self.sent.front().is_some_and(is_old) {
            self.sent.pop_front();
        }
        let at = now;
        self.sent.push_back(Sent { at, to, node, body });
    }

    /// The last packet to a node that challenges us from this address: it was dropped there.
    pub(super) fn take_sent(&mut self, now: Duration, node: u32, at: SocketAddr) -> Option<Body> {
        let fits =
            |sent: &Sent| sent.node == node && sent.to.contains(&at) && now < sent.at + SENT_TIME;
        let index = self.sent.iter().rposition(fits)?;
        self.sent.remove(index).map(|sent| sent.body)
    }

    /// The node has moved to `at`, and sends from `via`.
    pub(super) fn move_to(&mut self, (at, via): (SocketAddr, SocketAddr), sender: (u32, u64)) {
        let (node, run) = sender;
        self.forget(node);
        self.responded.insert(at, Contact { node, run, via });
    }

    /// Forgets a node that is down: the next agent at its addresses must respond first.
    pub(super) fn forget(&mut self, node: u32) {
        self.responded.retain(|_, contact| contact.node != node);
        self.pending.retain(|_, pending| pending.node != node);
        self.credit.remove(&node);
    }

    /// Number of entries of each kind.
    #[cfg(test)]
    pub(super) fn counts(&self) -> [usize; 5] {
        [
            self.responded.len(),
            self.pending.len(),
            self.hints.len(),
            self.credit.len(),
            self.sent.len(),
        ]
    }

    pub(super) fn prune(&mut self, now: Duration) {
        self.pending
            .retain(|_, pending| now < pending.last + FORGET_AFTER);
        self.hints.retain(|_, hint| hint.is_fresh(now));
        let responded: std::collections::BTreeSet<u32> =
            self.responded.values().map(|one| one.node).collect();
        self.credit.retain(|node, _| responded.contains(node));
    }
}
