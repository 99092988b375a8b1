//! Which nodes are up: the SWIM protocol (by the crate foca) as a machine of packets and time, so
//! that a thousand of them run in a test.
//!
//! Every few seconds a node probes one other, directly and then through others; news travels on
//! those packets. So what a node sends does not grow with their number. Besides, two nodes
//! synchronise what they know (`sync`): always after joining, then rarely.

use std::collections::BTreeMap;
use std::num::{NonZeroU8, NonZeroUsize};
use std::time::Duration;

use dipole_node::ClusterKey;
use foca::{
    AccumulatingRuntime, Codec, Config, Foca, Header, Message, NoCustomBroadcast,
    OwnedNotification, PeriodicParams, PostcardCodec, Timer,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::member::Member;
pub(super) use auth::is_membership;
use auth::{Body, Dropped, EXTRA_BYTES, PacketAuth};
use sync::Digests;

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
/// How many nodes of the hosts file a node that knows no other contacts each second.
const FIRST_HELLOS: usize = 3;
const FIRST_HELLOS_EVERY: Duration = Duration::from_secs(1);
/// How often a missing node is contacted: it may be up, or have been cut off.
const HELLO_EVERY: Duration = Duration::from_secs(5);
/// How long a node is remembered as gone.
const FORGET_AFTER: Duration = Duration::from_secs(600);

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
    outgoing: Vec<Outgoing>,
    /// The other nodes that are up.
    up: BTreeMap<u32, Member>,
    /// The nodes of the hosts file.
    known: Vec<Member>,
    next_hello: Duration,
    hellos: usize,
    sync: Sync,
}

/// A packet to another agent.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    pub(super) to: Member,
    pub(super) packet: Vec<u8>,
    /// The usual path may have failed: all are to be tried.
    pub(super) is_urgent: bool,
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
        seed: u64,
        key: Option<&ClusterKey>,
    ) -> Membership {
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
            auth: PacketAuth::new(key, own.node, own.life),
            foca: Foca::new(own, config, StdRng::seed_from_u64(seed), PostcardCodec),
            runtime: AccumulatingRuntime::new(),
            timers: BTreeMap::new(),
            set: 0,
            news: Vec::new(),
            outgoing: Vec::new(),
            up: BTreeMap::new(),
            known,
            next_hello: Duration::ZERO,
            random: StdRng::seed_from_u64(seed.rotate_left(32)),
            sync: Sync {
                next: Duration::MAX,
                pause: SYNC_SOON,
                with: None,
                requests: 0,
            },
        }
    }

    /// Adds a node that has announced itself. If it is not to be greeted, another node tells it and
    /// the others about each other.
    pub(super) fn introduce(&mut self, now: Duration, member: Member, greet: bool) {
        let update = std::iter::once(foca::Member::alive(member.clone()));
        let done = self.foca.apply_many(update, greet, &mut self.runtime);
        self.after(now, done);
        if greet {
            let done = self.foca.announce(member, &mut self.runtime);
            self.after(now, done);
        }
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
        let (count, every) = match self.up.is_empty() {
            true => (FIRST_HELLOS.min(missing.len()), FIRST_HELLOS_EVERY),
            false => (missing.len().min(1), HELLO_EVERY),
        };
        for _ in 0..count {
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

    fn on_sync_response(&mut self, now: Duration, from: u32, members: Vec<foca::Member<Member>>) {
        if !self.up.contains_key(&from) {
            return;
        }
        let before = self.news.len();
        let updates = members.into_iter();
        let done = self.foca.apply_many(updates, false, &mut self.runtime);
        self.after(now, done);
        if self.news.len() > before {
            self.sync = Sync {
                next: now + SYNC_NEXT,
                pause: SYNC_SOON,
                with: Some(from),
                ..self.sync
            };
        }
    }

    /// Handles a packet. Those of strangers are counted, malformed ones ignored.
    pub(super) fn on_packet(&mut self, now: Duration, packet: &[u8]) {
        let Some((from, body)) = self.auth.open(packet) else {
            return;
        };
        match body {
            Body::Swim(data) => {
                let done = self.foca.handle_data(&data, &mut self.runtime);
                self.after(now, done);
            }
            Body::SyncRequest(digests) => self.on_sync_request(now, from, digests),
            Body::SyncResponse(members) => self.on_sync_response(now, from, members),
        }
    }

    /// Runs due timers.
    pub(super) fn on_timers(&mut self, now: Duration) {
        if now >= self.next_hello {
            self.contact_missing(now);
        }
        if now >= self.sync.next {
            self.start_sync(now);
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

    pub(super) fn take_outgoing(&mut self) -> Vec<Outgoing> {
        std::mem::take(&mut self.outgoing)
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
                    self.up.insert(member.node, member.clone());
                    self.news.push(News::Came(member));
                }
                OwnedNotification::MemberDown(member) => {
                    self.up.remove(&member.node);
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
        let packet = self.auth.seal(to.node, body);
        self.outgoing.push(Outgoing {
            to,
            packet,
            is_urgent,
        });
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
mod sync;
#[cfg(test)]
mod tests;
