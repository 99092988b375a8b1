//! Tracks which nodes are up with the SWIM protocol (crate foca), as a state machine of packets and
//! time, so that a test can run a thousand of them.
//!
//! Every few seconds a node probes one other node, directly and then through others. Changes are
//! piggybacked on these packets, so the traffic of a node does not grow with the number of nodes.
//! In addition pairs of nodes synchronise their state (`sync`): after joining, then rarely.
//!
//! Packets are checked here before foca sees them: packets from a node that has not answered a
//! challenge are dropped, and an address that has not answered one gets nothing but challenges
//! (`contacts`). With a cluster key, members are believed about other nodes; without one a node is
//! up only if it has answered itself.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU8;
use std::time::Duration;

use dipole_naming::key::{ClusterKey, MacKey, random_bytes};
use foca::{
    AccumulatingRuntime, Config, Foca, Message, NoCustomBroadcast, OwnedNotification,
    PeriodicParams, PostcardCodec, State, Timer,
};
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::load::Exchange;
use super::member::{Member, is_later, later_by};
pub(super) use auth::is_membership;
use auth::{Body, Dropped, EXTRA_BYTES, PacketAuth, Received};
use contacts::{Contacts, canonical, digest};
use moves::Moves;
use swim::{Swim, is_indirect, nonzero};
use sync_rounds::Sync;
pub use trial::receive_anything;

/// Longest packet, which any network carries without fragmentation.
const MAX_PACKET_BYTES: usize = 1200;
/// Maximum size of SWIM data or members in it.
const MAX_DATA_BYTES: usize = MAX_PACKET_BYTES - EXTRA_BYTES;
const PROBE_EVERY: Duration = Duration::from_secs(2);
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
const SUSPECT_FOR: Duration = Duration::from_secs(2);
const GOSSIP_EVERY: Duration = Duration::from_secs(1);
const GOSSIP_MEMBERS: usize = 3;
const INDIRECT_PROBES: usize = 3;
const TRANSMISSIONS: u8 = 12;
/// Number of nodes of the hosts file that a node without other nodes contacts at a time.
const FIRST_CONTACTS: usize = 3;
const FIRST_CONTACTS_EVERY: Duration = Duration::from_millis(250);
/// How long after its start a node contacts all missing nodes at that rate: attackers may fill its
/// queues or theirs.
const YOUNG_FOR: Duration = Duration::from_secs(30);
/// How often a missing node is contacted: it may be up, or have been unreachable.
const CONTACT_EVERY: Duration = Duration::from_secs(5);
/// How long a node that is down is remembered.
const FORGET_AFTER: Duration = Duration::from_secs(600);
/// Maximum number of known nodes, including those that are down.
pub(super) const MAX_MEMBERS: usize = 1 << 14;
/// Minimum time between two new incarnations of this node.
const RENEW_EVERY: Duration = Duration::from_secs(1);
const PRUNE_EVERY: Duration = Duration::from_secs(10);

/// A change of the membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MembershipEvent {
    Up(Member),
    /// The node has died or left.
    Down(Member),
    /// A new incarnation has replaced the known one.
    Restarted(Member),
    /// Other nodes took this node for dead; it has corrected them.
    FalseSuspicion,
    /// Other nodes knew an incarnation of this node that started this much later by its clock.
    ClockSetBack(Duration),
}

/// Random numbers that only this node knows.
pub(super) struct Secrets {
    run: u64,
    seed: u64,
    tokens: MacKey,
}

impl Secrets {
    pub(super) fn draw() -> io::Result<Secrets> {
        Ok(Secrets {
            run: u64::from_le_bytes(random_bytes()?),
            seed: u64::from_le_bytes(random_bytes()?),
            tokens: ClusterKey::random()?.mac_key("dipole 2026 token"),
        })
    }
}

pub(super) struct Membership {
    foca: Foca<Member, PostcardCodec, StdRng, NoCustomBroadcast>,
    runtime: AccumulatingRuntime<Member>,
    random: StdRng,
    auth: PacketAuth,
    /// By deadline, then in the order in which they were set.
    timers: BTreeMap<(Duration, u64), Timer<Member>>,
    set: u64,
    events: Vec<MembershipEvent>,
    queued: Vec<Queued>,
    contacts: Contacts,
    moves: Moves,
    /// Other nodes that are up.
    up: BTreeMap<u32, Member>,
    /// Last incarnation of nodes that are down, and since when.
    down: BTreeMap<u32, (u64, Duration)>,
    /// When this node may start another incarnation.
    next_renewal: Duration,
    next_prune: Duration,
    /// Nodes of the hosts file.
    known: Vec<Member>,
    next_contact_at: Duration,
    young_until: Option<Duration>,
    next_contact: usize,
    sync: Sync,
    load: Exchange,
}

/// A packet to be sent to another agent.
#[derive(Debug)]
enum Queued {
    /// If `is_urgent`, the usual path may have failed, so all paths are used.
    Member {
        to: Member,
        body: Body,
        is_urgent: bool,
    },
    Address(SocketAddr, Vec<u8>),
}

impl Membership {
    /// `known` are nodes of the hosts file. With a key, only nodes that hold it are members.
    pub(super) fn new(
        own: Member,
        known: Vec<Member>,
        secrets: Secrets,
        key: Option<&ClusterKey>,
    ) -> Membership {
        let Secrets { run, seed, tokens } = secrets;
        let config = Config {
            probe_period: PROBE_EVERY,
            probe_rtt: PROBE_TIMEOUT,
            num_indirect_probes: nonzero(INDIRECT_PROBES),
            max_transmissions: NonZeroU8::new(TRANSMISSIONS).unwrap_or(NonZeroU8::MIN),
            suspect_to_down_after: SUSPECT_FOR,
            remove_down_after: Some(FORGET_AFTER),
            max_packet_size: nonzero(MAX_DATA_BYTES),
            notify_down_members: true,
            // Synchronisation does more with fewer packets.
            periodic_announce: None,
            periodic_announce_to_down_members: None,
            periodic_gossip: Some(PeriodicParams {
                frequency: GOSSIP_EVERY,
                num_members: nonzero(GOSSIP_MEMBERS),
            }),
        };
        let load = Exchange::new(
            own.node,
            seed.rotate_left(16),
            key.is_some(),
            MAX_DATA_BYTES,
        );
        Membership {
            next_contact: own.node as usize,
            auth: PacketAuth::new(key, own.node, run, own.facts.port),
            foca: Foca::new(own, config, StdRng::seed_from_u64(seed), PostcardCodec),
            runtime: AccumulatingRuntime::new(),
            timers: BTreeMap::new(),
            set: 0,
            events: Vec::new(),
            queued: Vec::new(),
            contacts: Contacts::new(tokens),
            moves: Moves::default(),
            up: BTreeMap::new(),
            down: BTreeMap::new(),
            next_renewal: Duration::ZERO,
            next_prune: Duration::ZERO,
            known,
            next_contact_at: Duration::ZERO,
            young_until: None,
            random: StdRng::seed_from_u64(seed.rotate_left(32)),
            sync: Sync::new(),
            load,
        }
    }

    /// Challenges a node that is reported to have these addresses. It is added when it answers from
    /// one of them, and also contacted if `greet`. Challenges use at most `credit` bytes.
    pub(super) fn challenge_member(
        &mut self,
        now: Duration,
        member: &Member,
        contact: bool,
        credit: &mut usize,
    ) {
        if self.is_full_for(member.node) {
            return;
        }
        for at in member.facts.directories().into_iter().map(canonical) {
            let challenge = self.challenge(now, member.node, at);
            if let Some(left) = credit.checked_sub(challenge.len())
                && self.contacts.add_hint(now, at, member, contact)
            {
                *credit = left;
                self.queued.push(Queued::Address(at, challenge));
            }
        }
    }

    /// This node's own description.
    pub(super) fn own(&self) -> &Member {
        self.foca.identity()
    }

    /// True if the node has answered from this address.
    pub(super) fn is_at(&self, node: u32, address: SocketAddr) -> bool {
        self.contacts
            .reply_address(node, canonical(address))
            .is_some()
    }

    fn is_full_for(&self, node: u32) -> bool {
        let is_known = self.up.contains_key(&node) || self.down.contains_key(&node);
        !is_known && self.up.len() + self.down.len() >= MAX_MEMBERS
    }

    fn challenge(&mut self, now: Duration, node: u32, at: SocketAddr) -> Vec<u8> {
        let token = self.contacts.token(now, at);
        let zeros = [[0; 8]; 2];
        self.auth.seal(node, Body::Challenge { token, zeros })
    }

    /// The other nodes of the hosts file.
    pub(super) fn known(&self) -> &[Member] {
        &self.known
    }

    /// A node, if it is up.
    pub(super) fn member(&self, node: u32) -> Option<&Member> {
        self.up.get(&node)
    }

    /// Contacts the next missing nodes. Agents start with different ones.
    fn contact_missing(&mut self, now: Duration) {
        let is_missing = |member: &&Member| !self.up.contains_key(&member.node);
        let missing: Vec<Member> = self.known.iter().filter(is_missing).cloned().collect();
        let is_young = now < *self.young_until.get_or_insert(now + YOUNG_FOR);
        let (count, every) = match self.up.is_empty() || is_young {
            true => (FIRST_CONTACTS, FIRST_CONTACTS_EVERY),
            false => (1, CONTACT_EVERY),
        };
        for _ in 0..count.min(missing.len()) {
            let unknown = missing[self.next_contact % missing.len()].clone();
            let done = self.foca.announce(unknown, &mut self.runtime);
            self.process_output(now, done);
            self.next_contact += 1;
        }
        self.next_contact_at = now + every;
    }

    /// Handles a packet. Packets from outside the cluster are counted, malformed ones ignored.
    pub(super) fn on_packet(&mut self, now: Duration, from: SocketAddr, packet: &[u8]) {
        let Some(received) = self.auth.open(packet) else {
            return;
        };
        let from = canonical(from);
        let at = SocketAddr::new(from.ip(), received.port);
        let node = received.from;
        match received.body {
            Body::Challenge { token, .. } => return self.on_challenge(now, from, node, token),
            Body::Response { .. } => return self.on_response(now, (at, from), &received),
            _ => {}
        }
        if !self.contacts.knows(at, from, (node, received.run)) {
            self.auth.count_unproven();
            let challenge = self.challenge(now, node, at);
            // The challenge is sent to the source port: the queue of the directory's port may be full of an
            // attacker's packets.
            if challenge.len() <= packet.len() {
                self.queued.push(Queued::Address(from, challenge));
            }
            return;
        }
        if !self.auth.is_new(&received) {
            return;
        }
        let mut credit = self.contacts.take_credit(node) + packet.len();
        match received.body {
            Body::Swim(data) => self.on_swim(now, at, node, &data, &mut credit),
            Body::SyncRequest(digests) => self.on_sync_request(now, node, digests),
            Body::SyncResponse(members) => self.on_sync_response(now, node, members, &mut credit),
            Body::Load(message) => self.on_load(now, node, &message),
            Body::Challenge { .. } | Body::Response { .. } => {}
        }
        self.contacts.add_credit(node, credit);
    }

    fn on_challenge(&mut self, now: Duration, from: SocketAddr, node: u32, token: [u8; 8]) {
        let up = self.up.get(&node).map(|member| member.incarnation);
        let down = self
            .down
            .get(&node)
            .map(|(incarnation, _)| later_by(*incarnation, 1));
        let answer = Body::Response {
            token,
            digest: digest(self.foca.identity()),
            min_incarnation: up.or(down).unwrap_or(0).to_le_bytes(),
        };
        let answer = self.auth.seal(node, answer);
        self.queued.push(Queued::Address(from, answer));
        // The packet that caused the challenge was dropped, so it is sent again.
        if let Some(body) = self.contacts.take_sent(now, node, from) {
            let packet = self.auth.seal(node, body);
            self.queued.push(Queued::Address(from, packet));
        }
    }

    fn on_response(
        &mut self,
        now: Duration,
        (at, via): (SocketAddr, SocketAddr),
        received: &Received,
    ) {
        let Body::Response {
            token,
            digest: described,
            min_incarnation,
        } = received.body
        else {
            return;
        };
        let node = received.from;
        let sender = (node, received.run);
        if !self.contacts.accept_response(now, (at, via), token, sender) {
            return;
        }
        if self.on_response_in_move((at, via), received, described) {
            return;
        }
        let hint = self
            .contacts
            .take_hint(at)
            .filter(|hint| hint.member.node == node && digest(&hint.member) == described);
        let member = hint.map(|hint| (hint.member, hint.contact));
        let min_incarnation = u64::from_le_bytes(min_incarnation);
        self.accept_sender(now, (at, via), (received, min_incarnation), member);
    }

    /// Accepts packets of a node that has responded for the address `at`. `member` is its
    /// description, if it is new, and whether to contact it.
    fn accept_sender(
        &mut self,
        now: Duration,
        (at, via): (SocketAddr, SocketAddr),
        (response, min_incarnation): (&Received, u64),
        member: Option<(Member, bool)>,
    ) {
        let node = response.from;
        self.auth.accept_run(response);
        self.renew_incarnation(now, min_incarnation);
        if let Some((member, contact)) = member {
            let update = std::iter::once(foca::Member::alive(member.clone()));
            let done = self.foca.apply_many(update, true, &mut self.runtime);
            self.process_output(now, done);
            if contact {
                let done = self.foca.announce(member, &mut self.runtime);
                self.process_output(now, done);
            }
        }
        if let Some(body) = self.contacts.take_waiting(node, at) {
            self.contacts
                .record_sent(now, vec![via], node, body.clone());
            let packet = self.auth.seal(node, body);
            self.queued.push(Queued::Address(via, packet));
        }
    }

    /// Other nodes reject incarnations of this node earlier than `lowest`: starts a later one.
    fn renew_incarnation(&mut self, now: Duration, lowest: u64) {
        let own = self.foca.identity();
        if lowest == 0 || !is_later(lowest, own.incarnation) || now < self.next_renewal {
            return;
        }
        self.next_renewal = now + RENEW_EVERY;
        let ahead = Duration::from_micros(lowest.wrapping_sub(own.incarnation));
        let next = Member {
            incarnation: later_by(lowest, 1),
            ..own.clone()
        };
        let done = self.foca.change_identity(next, &mut self.runtime);
        self.process_output(now, done);
        // Activates foca again.
        let done = self
            .foca
            .apply_many(std::iter::empty(), false, &mut self.runtime);
        self.process_output(now, done);
        self.events.push(match ahead < RENEW_EVERY {
            true => MembershipEvent::FalseSuspicion,
            false => MembershipEvent::ClockSetBack(ahead),
        });
    }

    /// Handles SWIM data from a node that has answered from `at`.
    fn on_swim(
        &mut self,
        now: Duration,
        at: SocketAddr,
        node: u32,
        data: &[u8],
        credit: &mut usize,
    ) {
        let Some(Swim {
            header,
            head,
            updates,
        }) = Swim::decode(data)
        else {
            return;
        };
        // Rejects packets on behalf of another node, or from an address that the sender does not
        // own.
        let mut addresses = header.src.facts.directories().into_iter().map(canonical);
        if header.src.node != node || !addresses.any(|own| own == at) || self.is_full_for(node) {
            return;
        }
        if header.message == Message::TurnUndead {
            // The answer contains the incarnation that the sender would accept.
            if now >= self.next_renewal {
                let challenge = self.challenge(now, node, at);
                self.queued.push(Queued::Address(at, challenge));
            }
            return;
        }
        let updates = self.accepted_updates(now, updates, credit);
        let data = Swim::encode(head, &updates);
        let done = self.foca.handle_data(&data, &mut self.runtime);
        self.process_output(now, done);
    }

    /// Selects the updates of a member about other nodes that are accepted. Nodes that are reported
    /// at unproven addresses are challenged, using at most `credit` bytes.
    fn accepted_updates(
        &mut self,
        now: Duration,
        updates: Vec<foca::Member<Member>>,
        credit: &mut usize,
    ) -> Vec<foca::Member<Member>> {
        let mut accepted = Vec::with_capacity(updates.len());
        for update in updates {
            let member = update.id();
            let is_accepted = if member.node == self.foca.identity().node {
                let own = self.foca.identity();
                let is_mortal = update.state() != State::Down || now >= self.next_renewal;
                if member == own && update.state() == State::Down && is_mortal {
                    self.next_renewal = now + RENEW_EVERY;
                }
                member == own && is_mortal
            } else {
                let known = self.up.get(&member.node);
                match update.state() {
                    _ if known == Some(member) => true,
                    State::Down => known.is_some() && self.auth.has_key(),
                    _ if self.auth.has_key() => !self.is_full_for(member.node),
                    _ => {
                        let is_past = |incarnation| !is_later(member.incarnation, incarnation);
                        let up = known.map(|known| known.incarnation);
                        let down = self
                            .down
                            .get(&member.node)
                            .map(|(incarnation, _)| *incarnation);
                        if !up.or(down).is_some_and(is_past) {
                            self.challenge_member(now, member, false, credit);
                        }
                        false
                    }
                }
            };
            if is_accepted {
                accepted.push(update);
            }
        }
        accepted
    }

    pub(super) fn on_timers(&mut self, now: Duration) {
        if now >= self.next_contact_at {
            self.contact_missing(now);
        }
        if now >= self.sync.next_deadline() {
            self.start_sync(now);
        }
        if now >= self.moves.next_deadline() {
            self.on_moves(now);
        }
        self.exchange_load(now);
        if now >= self.next_prune {
            self.next_prune = now + PRUNE_EVERY;
            self.contacts.prune(now);
            self.down
                .retain(|_, (_, since)| now < *since + FORGET_AFTER);
        }
        while let Some(entry) = self.timers.first_entry()
            && entry.key().0 <= now
        {
            let timer = entry.remove();
            let done = self.foca.handle_timer(timer, &mut self.runtime);
            self.process_output(now, done);
        }
    }

    /// When [`on_timers`](Self::on_timers) must be called.
    pub(super) fn next_deadline(&self) -> Duration {
        let timer = self.timers.first_key_value();
        let own = self.next_contact_at.min(self.sync.next_deadline());
        let own = own
            .min(self.load.next_deadline())
            .min(self.moves.next_deadline());
        timer.map_or(own, |((due, _), _)| own.min(*due))
    }

    /// Announces that this node leaves.
    pub(super) fn leave(&mut self, now: Duration) {
        let done = self.foca.leave_cluster(&mut self.runtime);
        self.process_output(now, done);
    }

    /// Other nodes that are up.
    pub(super) fn members(&self) -> impl Iterator<Item = &Member> {
        self.up.values()
    }

    /// Counters of dropped packets.
    pub(super) fn dropped(&self) -> Dropped {
        self.auth.dropped()
    }

    pub(super) fn take_events(&mut self) -> Vec<MembershipEvent> {
        std::mem::take(&mut self.events)
    }

    /// Packets to send. `targets` returns the addresses of a member.
    pub(super) fn take_outgoing(
        &mut self,
        now: Duration,
        targets: impl Fn(&Member, bool) -> Vec<SocketAddr>,
    ) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut outgoing = Vec::new();
        for queued in std::mem::take(&mut self.queued) {
            let (to, body, is_urgent) = match queued {
                Queued::Address(to, packet) => {
                    outgoing.push((to, packet));
                    continue;
                }
                Queued::Member {
                    to,
                    body,
                    is_urgent,
                } => (to, body, is_urgent),
            };
            let (mut reached, mut others) = (Vec::new(), Vec::new());
            for at in targets(&to, is_urgent).into_iter().map(canonical) {
                match self.contacts.reply_address(to.node, at) {
                    Some(via) => reached.push(via),
                    None => others.push(at),
                }
            }
            let is_free =
                self.auth.has_key() || self.known.iter().any(|known| known.node == to.node);
            for at in &others {
                let challenge = self.challenge(now, to.node, *at);
                let bytes = challenge.len();
                if self
                    .contacts
                    .may_challenge(now, to.node, *at, bytes, is_free)
                {
                    outgoing.push((*at, challenge));
                }
            }
            if reached.is_empty() {
                self.contacts.wait_for_response(to.node, &others, &body);
                continue;
            }
            let packet = self.auth.seal(to.node, body.clone());
            outgoing.extend(reached.iter().map(|at| (*at, packet.clone())));
            self.contacts.record_sent(now, reached, to.node, body);
        }
        outgoing
    }

    fn process_output(&mut self, now: Duration, done: Result<(), foca::Error>) {
        if let Err(error) = done {
            tracing::debug!(%error, "a membership packet or timer was rejected");
        }
        while let Some((to, body)) = self.runtime.to_send() {
            let is_urgent = is_indirect(&body);
            self.queue(to, Body::Swim(body.to_vec()), is_urgent);
        }
        while let Some((after, timer)) = self.runtime.to_schedule() {
            self.set += 1;
            self.timers.insert((now + after, self.set), timer);
        }
        while let Some(event) = self.runtime.to_notify() {
            match event {
                OwnedNotification::MemberUp(member) => {
                    if self.up.is_empty() {
                        self.sync.start_soon(now);
                    }
                    self.down.remove(&member.node);
                    self.up.insert(member.node, member.clone());
                    self.load.add_member(now, member.node);
                    self.events.push(MembershipEvent::Up(member));
                }
                OwnedNotification::MemberDown(member) => {
                    self.up.remove(&member.node);
                    self.load.remove_member(member.node);
                    self.contacts.forget(member.node);
                    self.down.insert(member.node, (member.incarnation, now));
                    self.events.push(MembershipEvent::Down(member));
                }
                OwnedNotification::Rename(_, member) => {
                    if let Some(known) = self.up.get_mut(&member.node) {
                        *known = member.clone();
                    }
                    self.events.push(MembershipEvent::Restarted(member));
                }
                OwnedNotification::Rejoin(_) => self.events.push(MembershipEvent::FalseSuspicion),
                _ => {}
            }
        }
    }

    fn queue(&mut self, to: Member, body: Body, is_urgent: bool) {
        self.queued.push(Queued::Member {
            to,
            body,
            is_urgent,
        });
    }
}

mod auth;
mod contacts;
mod loads;
mod moves;
mod swim;
mod sync;
mod sync_rounds;
#[cfg(test)]
mod tests;
mod trial;
