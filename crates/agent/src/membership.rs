//! Which nodes are up: the SWIM protocol (by the crate foca) as a machine of packets and time, so
//! that a thousand of them run in a test.
//!
//! Every few seconds a node probes one other, directly and then through others; news travels on
//! those packets. So what a node sends does not grow with their number. Besides, two nodes
//! synchronise what they know (`sync`): always after joining, then rarely.
//!
//! What arrives is judged here before foca sees it: whoever has not answered a challenge is not
//! listened to, and an address that has not answered one gets nothing else (`contacts`). With a
//! cluster key members are believed what they say of others; without one a node is there only if it
//! has answered itself.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::num::{NonZeroU8, NonZeroUsize};
use std::time::Duration;

use dipole_naming::key::{ClusterKey, MacKey, random_bytes};
use foca::{
    AccumulatingRuntime, Codec, Config, Foca, Header, Message, NoCustomBroadcast,
    OwnedNotification, PeriodicParams, PostcardCodec, State, Timer,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::member::{Member, is_later, later_by};
pub(super) use auth::is_membership;
use auth::{Body, Dropped, EXTRA_BYTES, PacketAuth, Received};
use contacts::{Contacts, digest, plain};
use sync::Digests;
pub use trial::take_anything;

/// Longest packet: any network carries it in one piece.
const MAX_PACKET_BYTES: usize = 1200;
/// Most bytes of SWIM data or members in it.
const MAX_DATA_BYTES: usize = MAX_PACKET_BYTES - EXTRA_BYTES;
const PROBE_EVERY: Duration = Duration::from_secs(2);
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
const SUSPECT_FOR: Duration = Duration::from_secs(2);
const GOSSIP_EVERY: Duration = Duration::from_secs(1);
/// How often a node synchronises with another, so that lost news arrives after all.
const SYNC_EVERY: Duration = Duration::from_secs(5);
/// How soon after learning something that way.
const SYNC_SOON: Duration = Duration::from_millis(250);
/// How soon the same node is asked for more.
const SYNC_NEXT: Duration = Duration::from_millis(10);
const GOSSIP_MEMBERS: usize = 3;
const INDIRECT_PROBES: usize = 3;
const TRANSMISSIONS: u8 = 12;
/// How many nodes of the hosts file a node that knows no other contacts at a time.
const FIRST_HELLOS: usize = 3;
const FIRST_HELLOS_EVERY: Duration = Duration::from_millis(250);
/// How long after its start a node contacts all that are missing as often: strangers may fill their
/// queues, or its own.
const YOUNG_FOR: Duration = Duration::from_secs(30);
/// How often a missing node is contacted: it may be up, or have been cut off.
const HELLO_EVERY: Duration = Duration::from_secs(5);
/// How long a node is remembered as gone.
const FORGET_AFTER: Duration = Duration::from_secs(600);
/// Nodes that are known at once, those that are gone included.
pub(super) const MAX_MEMBERS: usize = 1 << 14;
/// Between two new incarnations of this node, whatever others say of it.
const RENEW_EVERY: Duration = Duration::from_secs(1);
const PRUNE_EVERY: Duration = Duration::from_secs(10);

/// A change of the membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum News {
    Came(Member),
    /// Dead or left.
    Went(Member),
    /// Another incarnation replaces the known one.
    Returned(Member),
    /// Others took this node for gone; it has corrected them.
    Mistaken,
    /// Others knew an incarnation of this node that began so much later than it did by its clock.
    ClockSetBack(Duration),
}

/// Random numbers that nobody else knows.
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
    /// By deadline, then in the order they were set.
    timers: BTreeMap<(Duration, u64), Timer<Member>>,
    set: u64,
    news: Vec<News>,
    queued: Vec<Queued>,
    contacts: Contacts,
    /// The other nodes that are up.
    up: BTreeMap<u32, Member>,
    /// The last incarnation of those that are gone, and since when.
    gone: BTreeMap<u32, (u64, Duration)>,
    /// When this node may begin another incarnation.
    next_renewal: Duration,
    next_prune: Duration,
    /// The nodes of the hosts file.
    known: Vec<Member>,
    next_hello: Duration,
    young_until: Option<Duration>,
    hellos: usize,
    sync: Sync,
}

/// What is to be sent to another agent.
#[derive(Debug)]
enum Queued {
    /// `is_urgent`: the usual path may have failed, all are to be tried.
    Member {
        to: Member,
        body: Body,
        is_urgent: bool,
    },
    Address(SocketAddr, Vec<u8>),
}

/// The next synchronisation.
#[derive(Debug)]
struct Sync {
    next: Duration,
    pause: Duration,
    /// `None` for any node that is up.
    with: Option<u32>,
    requests: u64,
}

impl Membership {
    /// A node that knows where others may be. With a key, only others that hold it count.
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
            // Sync does more with less.
            periodic_announce: None,
            periodic_announce_to_down_members: None,
            periodic_gossip: Some(PeriodicParams {
                frequency: GOSSIP_EVERY,
                num_members: nonzero(GOSSIP_MEMBERS),
            }),
        };
        Membership {
            hellos: own.node as usize,
            auth: PacketAuth::new(key, own.node, run, own.facts.port),
            foca: Foca::new(own, config, StdRng::seed_from_u64(seed), PostcardCodec),
            runtime: AccumulatingRuntime::new(),
            timers: BTreeMap::new(),
            set: 0,
            news: Vec::new(),
            queued: Vec::new(),
            contacts: Contacts::new(tokens),
            up: BTreeMap::new(),
            gone: BTreeMap::new(),
            next_renewal: Duration::ZERO,
            next_prune: Duration::ZERO,
            known,
            next_hello: Duration::ZERO,
            young_until: None,
            random: StdRng::seed_from_u64(seed.rotate_left(32)),
            sync: Sync {
                next: Duration::MAX,
                pause: SYNC_SOON,
                with: None,
                requests: 0,
            },
        }
    }

    /// Asks a node that is said to be somewhere; it is added once it has answered there, and
    /// greeted if it has said so itself. Challenges take no more bytes than `credit`.
    pub(super) fn ask(&mut self, now: Duration, member: &Member, greet: bool, credit: &mut usize) {
        if self.is_full_for(member.node) {
            return;
        }
        for at in member.facts.directories().into_iter().map(plain) {
            let challenge = self.challenge(now, member.node, at);
            if let Some(left) = credit.checked_sub(challenge.len())
                && self.contacts.hint(now, at, member, greet)
            {
                *credit = left;
                self.queued.push(Queued::Address(at, challenge));
            }
        }
    }

    /// This node as others know it.
    pub(super) fn own(&self) -> &Member {
        self.foca.identity()
    }

    /// True if the node has answered at this address.
    pub(super) fn is_at(&self, node: u32, address: SocketAddr) -> bool {
        self.contacts.via(node, plain(address)).is_some()
    }

    fn is_full_for(&self, node: u32) -> bool {
        let is_known = self.up.contains_key(&node) || self.gone.contains_key(&node);
        !is_known && self.up.len() + self.gone.len() >= MAX_MEMBERS
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

    /// A node that is up.
    pub(super) fn member(&self, node: u32) -> Option<&Member> {
        self.up.get(&node)
    }

    /// Contacts the next missing nodes; agents begin with different ones.
    fn contact_missing(&mut self, now: Duration) {
        let is_missing = |member: &&Member| !self.up.contains_key(&member.node);
        let missing: Vec<Member> = self.known.iter().filter(is_missing).cloned().collect();
        let is_young = now < *self.young_until.get_or_insert(now + YOUNG_FOR);
        let (count, every) = match self.up.is_empty() || is_young {
            true => (FIRST_HELLOS, FIRST_HELLOS_EVERY),
            false => (1, HELLO_EVERY),
        };
        for _ in 0..count.min(missing.len()) {
            let unknown = missing[self.hellos % missing.len()].clone();
            let done = self.foca.announce(unknown, &mut self.runtime);
            self.after(now, done);
            self.hellos += 1;
        }
        self.next_hello = now + every;
    }

    /// Asks a node for what it knows and this one does not.
    fn start_sync(&mut self, now: Duration) {
        let sync = &mut self.sync;
        let with = sync.with.take().and_then(|node| self.up.get(&node));
        let with = with.or_else(|| {
            let count = self.up.len().max(1);
            self.up.values().nth(self.random.random_range(0..count))
        });
        sync.next = now + sync.pause;
        sync.pause = (sync.pause * 2).min(SYNC_EVERY);
        sync.requests += 1;
        // Every other request goes by all paths, in case one of them is down.
        let is_urgent = sync.requests.is_multiple_of(2);
        if let Some(with) = with.cloned() {
            let body = Body::SyncRequest(self.digests());
            self.put(with, body, is_urgent);
        }
    }

    fn digests(&self) -> Digests {
        Digests::of(self.up.values().chain([self.foca.identity()]))
    }

    fn on_sync_request(&mut self, now: Duration, from: u32, other: Digests) {
        // Only nodes known to be up are answered, at their known addresses.
        let Some(member) = self.up.get(&from).cloned() else {
            return;
        };
        let (own, first) = (self.digests(), self.random.random_range(0..sync::BUCKETS));
        let known = self.foca.iter_membership_state();
        if let Some(members) = sync::differences(&own, &other, known, first, MAX_DATA_BYTES) {
            self.put(member, Body::SyncResponse(members), false);
            // That node may in turn know what is unknown here.
            let soon = now + SYNC_SOON;
            if self.sync.next > soon {
                self.sync.next = soon;
                self.sync.with = Some(from);
            }
        }
    }

    fn on_sync_response(
        &mut self,
        now: Duration,
        from: u32,
        members: Vec<foca::Member<Member>>,
        credit: &mut usize,
    ) {
        if !self.up.contains_key(&from) {
            return;
        }
        let (before, unspent) = (self.news.len(), *credit);
        let updates = self.believed(now, members, credit);
        let updates = updates.into_iter();
        let done = self.foca.apply_many(updates, false, &mut self.runtime);
        self.after(now, done);
        // There is more to learn where something was, be it whom to ask.
        if self.news.len() > before || *credit < unspent {
            self.sync = Sync {
                next: now + SYNC_NEXT,
                pause: SYNC_SOON,
                with: Some(from),
                ..self.sync
            };
        }
    }

    /// Handles a packet. Those of strangers are counted, malformed ones ignored.
    pub(super) fn on_packet(&mut self, now: Duration, from: SocketAddr, packet: &[u8]) {
        let Some(received) = self.auth.open(packet) else {
            return;
        };
        let from = plain(from);
        let at = SocketAddr::new(from.ip(), received.port);
        let node = received.from;
        match received.body {
            Body::Challenge { token, .. } => return self.on_challenge(now, from, node, token),
            Body::Answer { .. } => return self.on_answer(now, (at, from), &received),
            _ => {}
        }
        if !self.contacts.knows(at, from, (node, received.run)) {
            self.auth.is_unproven();
            let challenge = self.challenge(now, node, at);
            // Where it is heard: at the port of its directory strangers may have filled the queue.
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
            Body::Challenge { .. } | Body::Answer { .. } => {}
        }
        self.contacts.earn(node, credit);
    }

    fn on_challenge(&mut self, now: Duration, from: SocketAddr, node: u32, token: [u8; 8]) {
        let up = self.up.get(&node).map(|member| member.life);
        let gone = self.gone.get(&node).map(|(life, _)| later_by(*life, 1));
        let answer = Body::Answer {
            token,
            digest: digest(self.foca.identity()),
            least_life: up.or(gone).unwrap_or(0).to_le_bytes(),
        };
        let answer = self.auth.seal(node, answer);
        self.queued.push(Queued::Address(from, answer));
        // What made it ask was not taken.
        if let Some(body) = self.contacts.take_sent(now, node, from) {
            let packet = self.auth.seal(node, body);
            self.queued.push(Queued::Address(from, packet));
        }
    }

    fn on_answer(
        &mut self,
        now: Duration,
        (at, via): (SocketAddr, SocketAddr),
        received: &Received,
    ) {
        let Body::Answer {
            token,
            digest: described,
            least_life,
        } = received.body
        else {
            return;
        };
        let node = received.from;
        let whose = (node, received.run);
        if !self.contacts.answer(now, (at, via), token, whose) {
            return;
        }
        self.auth.begin(received);
        self.outlive(now, u64::from_le_bytes(least_life));
        if let Some(hint) = self.contacts.take_hint(at)
            && hint.member.node == node
            && digest(&hint.member) == described
        {
            let update = std::iter::once(foca::Member::alive(hint.member.clone()));
            let done = self.foca.apply_many(update, true, &mut self.runtime);
            self.after(now, done);
            if hint.greet {
                let done = self.foca.announce(hint.member, &mut self.runtime);
                self.after(now, done);
            }
        }
        if let Some(body) = self.contacts.take_held(node, at) {
            self.contacts.sent(now, vec![via], node, body.clone());
            let packet = self.auth.seal(node, body);
            self.queued.push(Queued::Address(via, packet));
        }
    }

    /// Others take no incarnation of this node that is earlier than `least`: begins a later one.
    fn outlive(&mut self, now: Duration, least: u64) {
        let own = self.foca.identity();
        if least == 0 || !is_later(least, own.life) || now < self.next_renewal {
            return;
        }
        self.next_renewal = now + RENEW_EVERY;
        let ahead = Duration::from_micros(least.wrapping_sub(own.life));
        let next = Member {
            life: later_by(least, 1),
            ..own.clone()
        };
        let done = self.foca.change_identity(next, &mut self.runtime);
        self.after(now, done);
        // Connected again.
        let done = self
            .foca
            .apply_many(std::iter::empty(), false, &mut self.runtime);
        self.after(now, done);
        self.news.push(match ahead < RENEW_EVERY {
            true => News::Mistaken,
            false => News::ClockSetBack(ahead),
        });
    }

    /// Handles a packet of foca's from a node that has answered at `at`.
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
        }) = Swim::read(data)
        else {
            return;
        };
        // Nobody speaks for another, or of addresses that are not its own.
        let mut addresses = header.src.facts.directories().into_iter().map(plain);
        if header.src.node != node || !addresses.any(|own| own == at) || self.is_full_for(node) {
            return;
        }
        if header.message == Message::TurnUndead {
            // Its answer says which incarnation it would take.
            if now >= self.next_renewal {
                let challenge = self.challenge(now, node, at);
                self.queued.push(Queued::Address(at, challenge));
            }
            return;
        }
        let updates = self.believed(now, updates, credit);
        let data = Swim::written(head, &updates);
        let done = self.foca.handle_data(&data, &mut self.runtime);
        self.after(now, done);
    }

    /// What is taken of what a member says about others. Those who are said to be somewhere are
    /// asked, for no more bytes than `credit`.
    fn believed(
        &mut self,
        now: Duration,
        said: Vec<foca::Member<Member>>,
        credit: &mut usize,
    ) -> Vec<foca::Member<Member>> {
        let mut believed = Vec::with_capacity(said.len());
        for update in said {
            let member = update.id();
            let is_believed = if member.node == self.foca.identity().node {
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
                        let is_past = |life| !is_later(member.life, life);
                        let up = known.map(|known| known.life);
                        let gone = self.gone.get(&member.node).map(|(life, _)| *life);
                        if !up.or(gone).is_some_and(is_past) {
                            self.ask(now, member, false, credit);
                        }
                        false
                    }
                }
            };
            if is_believed {
                believed.push(update);
            }
        }
        believed
    }

    /// Runs due timers.
    pub(super) fn on_timers(&mut self, now: Duration) {
        if now >= self.next_hello {
            self.contact_missing(now);
        }
        if now >= self.sync.next {
            self.start_sync(now);
        }
        if now >= self.next_prune {
            self.next_prune = now + PRUNE_EVERY;
            self.contacts.prune(now);
            self.gone
                .retain(|_, (_, since)| now < *since + FORGET_AFTER);
        }
        while let Some(entry) = self.timers.first_entry()
            && entry.key().0 <= now
        {
            let timer = entry.remove();
            let done = self.foca.handle_timer(timer, &mut self.runtime);
            self.after(now, done);
        }
    }

    /// When [`on_timers`](Self::on_timers) has something to do.
    pub(super) fn next_deadline(&self) -> Duration {
        let timer = self.timers.first_key_value();
        let own = self.next_hello.min(self.sync.next);
        timer.map_or(own, |((due, _), _)| own.min(*due))
    }

    /// Tells the others that this node stops.
    pub(super) fn leave(&mut self, now: Duration) {
        let done = self.foca.leave_cluster(&mut self.runtime);
        self.after(now, done);
    }

    /// The other nodes that are up.
    pub(super) fn members(&self) -> impl Iterator<Item = &Member> {
        self.up.values()
    }

    /// Packets that were not taken.
    pub(super) fn dropped(&self) -> Dropped {
        self.auth.dropped()
    }

    pub(super) fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// Packets to send. `targets` tells the addresses for what a member is to get.
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
            let (mut there, mut others) = (Vec::new(), Vec::new());
            for at in targets(&to, is_urgent).into_iter().map(plain) {
                match self.contacts.via(to.node, at) {
                    Some(via) => there.push(via),
                    None => others.push(at),
                }
            }
            let is_free =
                self.auth.has_key() || self.known.iter().any(|known| known.node == to.node);
            for at in &others {
                let challenge = self.challenge(now, to.node, *at);
                let bytes = challenge.len();
                if self.contacts.may_ask(now, to.node, *at, bytes, is_free) {
                    outgoing.push((*at, challenge));
                }
            }
            if there.is_empty() {
                self.contacts.hold(to.node, &others, &body);
                continue;
            }
            let packet = self.auth.seal(to.node, body.clone());
            outgoing.extend(there.iter().map(|at| (*at, packet.clone())));
            self.contacts.sent(now, there, to.node, body);
        }
        outgoing
    }

    fn after(&mut self, now: Duration, done: Result<(), foca::Error>) {
        if let Err(error) = done {
            tracing::debug!(%error, "a membership packet or timer came to nothing");
        }
        while let Some((to, body)) = self.runtime.to_send() {
            let is_urgent = is_detour(&body);
            self.put(to, Body::Swim(body.to_vec()), is_urgent);
        }
        while let Some((after, timer)) = self.runtime.to_schedule() {
            self.set += 1;
            self.timers.insert((now + after, self.set), timer);
        }
        while let Some(news) = self.runtime.to_notify() {
            match news {
                OwnedNotification::MemberUp(member) => {
                    if self.up.is_empty() {
                        self.sync.next = self.sync.next.min(now + SYNC_SOON);
                    }
                    self.gone.remove(&member.node);
                    self.up.insert(member.node, member.clone());
                    self.news.push(News::Came(member));
                }
                OwnedNotification::MemberDown(member) => {
                    self.up.remove(&member.node);
                    self.contacts.forget(member.node);
                    self.gone.insert(member.node, (member.life, now));
                    self.news.push(News::Went(member));
                }
                OwnedNotification::Rename(_, member) => {
                    if let Some(known) = self.up.get_mut(&member.node) {
                        *known = member.clone();
                    }
                    self.news.push(News::Returned(member));
                }
                OwnedNotification::Rejoin(_) => self.news.push(News::Mistaken),
                _ => {}
            }
        }
    }

    fn put(&mut self, to: Member, body: Body, is_urgent: bool) {
        self.queued.push(Queued::Member {
            to,
            body,
            is_urgent,
        });
    }
}

/// A packet of foca's, taken apart.
struct Swim<'a> {
    header: Header<Member>,
    /// The header's bytes.
    head: &'a [u8],
    updates: Vec<foca::Member<Member>>,
}

impl Swim<'_> {
    fn read(data: &[u8]) -> Option<Swim<'_>> {
        let mut rest = data;
        let header = PostcardCodec.decode_header(&mut rest).ok()?;
        let head = &data[..data.len() - rest.len()];
        let mut updates = Vec::new();
        if let Some((count, members)) = rest.split_first_chunk() {
            rest = members;
            for _ in 0..u16::from_be_bytes(*count) {
                updates.push(PostcardCodec.decode_member(&mut rest).ok()?);
            }
        }
        rest.is_empty().then_some(Swim {
            header,
            head,
            updates,
        })
    }

    fn written(head: &[u8], updates: &[foca::Member<Member>]) -> Vec<u8> {
        let mut data = head.to_vec();
        if let Ok(count @ 1..) = u16::try_from(updates.len()) {
            data.extend(count.to_be_bytes());
            for update in updates {
                // A vector takes whatever has been read.
                let _written = PostcardCodec.encode_member(update, &mut data);
            }
        }
        data
    }
}

/// True if the packet is about a node that did not answer the direct question.
fn is_detour(body: &[u8]) -> bool {
    let header: Result<Header<Member>, _> = PostcardCodec.decode_header(body);
    header.is_ok_and(|header| {
        matches!(
            header.message,
            Message::PingReq { .. }
                | Message::IndirectPing { .. }
                | Message::IndirectAck { .. }
                | Message::ForwardedAck { .. }
        )
    })
}

fn nonzero(number: usize) -> NonZeroUsize {
    NonZeroUsize::new(number).unwrap_or(NonZeroUsize::MIN)
}

mod auth;
mod contacts;
mod sync;
#[cfg(test)]
mod tests;
mod trial;
