//! Who has answered where: nothing but a challenge goes to an address that has not answered one,
//! and nothing is believed of a run of an agent that has not.
//!
//! A challenge holds a token that only this agent can make, for one address and some seconds; the
//! answer returns it. So asking a stranger costs no memory, an answer cannot be recorded and sent
//! again, whatever the clocks of both sides say, and who names somebody else's address sends
//! nobody there. Challenges are no longer than what caused them, and answers as long as they.
//!
//! An agent is challenged at the port of its directory, which everybody knows, and answers from
//! another, which only those know whom it talks to. From then on it is there that it gets what
//! members say, so whoever fills the queue of the known port keeps no member from another. Who speaks
//! first is challenged where they speak from: so of two agents one has to be heard at the known port.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use dipole_naming::key::{ClusterKey, KEY_BYTES, MacKey};

use super::auth::{Body, TOKEN_BYTES};
use crate::member::Member;

/// How long a token is good, at least.
const TOKEN_TIME: Duration = Duration::from_secs(8);
/// Addresses that have answered, at most.
const MAX_CONTACTS: usize = 1 << 14;
/// Members that wait for the answer of the address where they are said to be.
const MAX_HINTS: usize = 1 << 12;
const HINT_TIME: Duration = Duration::from_secs(2);
/// Bytes that a node may have us send to addresses that have not answered, at most.
const MAX_CREDIT: usize = 4096;
/// Between challenges of one address; doubles up to the second. They may be lost where strangers fill
/// its queue.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// How long it is remembered that an address did not answer.
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// Packets sent lately, to send again when their receiver asks who we are.
const MAX_SENT: usize = 64;
const SENT_TIME: Duration = Duration::from_secs(1);

/// An address as it is compared.
pub(super) fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// What tells one description of a node from another: it is in answers to challenges.
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
    /// Where the answer came from.
    via: SocketAddr,
}

/// An address that has not answered, and what waits for it.
#[derive(Debug)]
struct Asked {
    node: u32,
    last: Duration,
    pause: Duration,
    held: Option<Body>,
}

#[derive(Debug)]
pub(super) struct Hint {
    pub(super) member: Member,
    /// It has announced itself: it is greeted.
    pub(super) greet: bool,
    asked: Duration,
}

impl Hint {
    fn is_good(&self, now: Duration) -> bool {
        now < self.asked + HINT_TIME
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
    /// By the address of the directory, as all that follows.
    answered: BTreeMap<SocketAddr, Contact>,
    asked: BTreeMap<SocketAddr, Asked>,
    hints: BTreeMap<SocketAddr, Hint>,
    /// By node: bytes received of it and not yet spent on challenges of its other addresses.
    credit: BTreeMap<u32, usize>,
    sent: VecDeque<Sent>,
}

impl Contacts {
    pub(super) fn new(secret: MacKey) -> Contacts {
        Contacts {
            secret,
            answered: BTreeMap::new(),
            asked: BTreeMap::new(),
            hints: BTreeMap::new(),
            credit: BTreeMap::new(),
            sent: VecDeque::new(),
        }
    }

    /// The token for an address. Those of this period and the one before are good.
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

    /// An answer for an address, sent from `via`; false if it answers no challenge of ours, or too
    /// many have.
    pub(super) fn answer(
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
        let has_room = self.answered.len() < MAX_CONTACTS || self.answered.contains_key(&at);
        if is_ours && has_room {
            self.answered.insert(at, Contact { node, run, via });
        }
        is_ours && has_room
    }

    /// True if this run of the node has answered at that address, and sends from `via`.
    pub(super) fn knows(&self, at: SocketAddr, via: SocketAddr, (node, run): (u32, u64)) -> bool {
        let contact = self.answered.get(&at);
        contact.is_some_and(|known| (known.node, known.run, known.via) == (node, run, via))
    }

    /// Where a node that has answered at an address wants to be sent to.
    pub(super) fn via(&self, node: u32, at: SocketAddr) -> Option<SocketAddr> {
        let contact = self.answered.get(&at)?;
        (contact.node == node).then_some(contact.via)
    }

    /// What a node has sent and nothing was spent for.
    pub(super) fn take_credit(&mut self, node: u32) -> usize {
        self.credit.remove(&node).unwrap_or(0)
    }

    /// So many bytes of a node's packets are not spent.
    pub(super) fn earn(&mut self, node: u32, bytes: usize) {
        let credit = self.credit.entry(node).or_default();
        *credit = (*credit + bytes).min(MAX_CREDIT);
    }

    /// True if a challenge of so many bytes may be sent to an address now. Without `is_free` the
    /// node has to have sent as much.
    pub(super) fn may_ask(
        &mut self,
        now: Duration,
        node: u32,
        at: SocketAddr,
        bytes: usize,
        is_free: bool,
    ) -> bool {
        let asked = self.asked.get(&at);
        if asked.is_some_and(|asked| now < asked.last + asked.pause) {
            return false;
        }
        if !is_free {
            let credit = self.credit.entry(node).or_default();
            match credit.checked_sub(bytes) {
                Some(left) => *credit = left,
                None => return false,
            }
        }
        let pause = asked.map_or(FIRST_PAUSE, |asked| (asked.pause * 2).min(LAST_PAUSE));
        let held = self.asked.remove(&at).and_then(|asked| asked.held);
        let last = now;
        self.asked.insert(
            at,
            Asked {
                node,
                last,
                pause,
                held,
            },
        );
        true
    }

    /// Keeps what is to be sent once one of these addresses has answered.
    pub(super) fn hold(&mut self, node: u32, at: &[SocketAddr], body: &Body) {
        for at in at {
            if let Some(asked) = self.asked.get_mut(at).filter(|asked| asked.node == node) {
                asked.held = Some(body.clone());
            }
        }
    }

    /// What waited for the answer of this address.
    pub(super) fn take_held(&mut self, node: u32, at: SocketAddr) -> Option<Body> {
        let asked = self.asked.remove(&at)?;
        asked.held.filter(|_| asked.node == node)
    }

    /// A member that may be at an address: `true` if that is to be asked.
    pub(super) fn hint(
        &mut self,
        now: Duration,
        at: SocketAddr,
        member: &Member,
        greet: bool,
    ) -> bool {
        // Nobody's word keeps another's from being tried for long.
        let is_early = |hint: &Hint| match hint.member == *member {
            true => now < hint.asked + FIRST_PAUSE,
            false => hint.is_good(now),
        };
        if self.hints.get(&at).is_some_and(is_early) {
            return false;
        }
        if self.hints.len() >= MAX_HINTS {
            self.hints.retain(|_, hint| hint.is_good(now));
        }
        if self.hints.len() >= MAX_HINTS {
            return false;
        }
        let hint = Hint {
            member: member.clone(),
            greet,
            asked: now,
        };
        self.hints.insert(at, hint);
        true
    }

    pub(super) fn take_hint(&mut self, at: SocketAddr) -> Option<Hint> {
        self.hints.remove(&at)
    }

    /// Remembers what was sent.
    pub(super) fn sent(&mut self, now: Duration, to: Vec<SocketAddr>, node: u32, body: Body) {
        let is_old = |sent: &Sent| now >= sent.at + SENT_TIME;
        while self.sent.len() >= MAX_SENT || self.sent.front().is_some_and(is_old) {
            self.sent.pop_front();
        }
        let at = now;
        self.sent.push_back(Sent { at, to, node, body });
    }

    /// What was sent last to a node that asks from this address who we are: it was not taken.
    pub(super) fn take_sent(&mut self, now: Duration, node: u32, at: SocketAddr) -> Option<Body> {
        let fits =
            |sent: &Sent| sent.node == node && sent.to.contains(&at) && now < sent.at + SENT_TIME;
        let index = self.sent.iter().rposition(fits)?;
        self.sent.remove(index).map(|sent| sent.body)
    }

    /// The node has gone: whoever is at its addresses next has to answer first.
    pub(super) fn forget(&mut self, node: u32) {
        self.answered.retain(|_, contact| contact.node != node);
        self.asked.retain(|_, asked| asked.node != node);
        self.credit.remove(&node);
    }

    /// How many addresses, hints and packets are remembered.
    #[cfg(test)]
    pub(super) fn counts(&self) -> [usize; 5] {
        [
            self.answered.len(),
            self.asked.len(),
            self.hints.len(),
            self.credit.len(),
            self.sent.len(),
        ]
    }

    /// Drops what is out of date.
    pub(super) fn prune(&mut self, now: Duration) {
        self.asked
            .retain(|_, asked| now < asked.last + FORGET_AFTER);
        self.hints.retain(|_, hint| hint.is_good(now));
        let answered: std::collections::BTreeSet<u32> =
            self.answered.values().map(|one| one.node).collect();
        self.credit.retain(|node, _| answered.contains(node));
    }
}
