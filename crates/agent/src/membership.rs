//! Which nodes there are: the SWIM protocol (by the crate foca) as a machine of packets
//! and time, so that a thousand of them run in a test.
//!
//! Every few seconds a node probes one other, directly and then through others; news
//! travels on those packets. So what a node sends does not grow with their number. Besides, two
//! nodes compare what they know (`compare`): always after joining, then rarely.

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
use super::proofs::{Dropped, EXTRA_BYTES, Proofs};
use compare::Digests;

/// Longest packet: any network carries it in one piece.
const MAX_PACKET_BYTES: usize = 1200;
const PROBE_EVERY: Duration = Duration::from_secs(2);
const PROBE_PATIENCE: Duration = Duration::from_secs(1);
const SUSPECT_FOR: Duration = Duration::from_secs(2);
const GOSSIP_EVERY: Duration = Duration::from_secs(1);
/// How often a node compares what it knows with another, so that lost news arrives after all.
const COMPARE_EVERY: Duration = Duration::from_secs(5);
/// How soon after it has learned something so.
const COMPARE_SOON: Duration = Duration::from_millis(250);
/// And how soon it asks the same one for more.
const COMPARE_ON: Duration = Duration::from_millis(10);
const GOSSIP_MEMBERS: usize = 3;
const INDIRECT_PROBES: usize = 3;
const TRANSMISSIONS: u8 = 12;
/// Nodes of the hosts file that one who knows nobody says hello to each second.
const FIRST_HELLOS: usize = 3;
const FIRST_HELLOS_EVERY: Duration = Duration::from_secs(1);
/// How often one of those that are not there gets a hello: it may have come, or be cut off.
const HELLO_EVERY: Duration = Duration::from_secs(5);
/// How long a node that went is remembered as gone.
const FORGET_AFTER: Duration = Duration::from_secs(600);

/// What has become known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum News {
    Came(Member),
    /// Dead or left.
    Went(Member),
    /// Another life of a node takes the place of one that was known.
    Returned(Member),
    /// Others took this node for gone; it has told them otherwise.
    Mistaken,
}

/// See the module.
pub(super) struct Membership {
    foca: Foca<Member, PostcardCodec, StdRng, NoCustomBroadcast>,
    runtime: AccumulatingRuntime<Member>,
    random: StdRng,
    proofs: Proofs,
    /// By when they are due, then in the order they were set.
    timers: BTreeMap<(Duration, u64), Timer<Member>>,
    set: u64,
    news: Vec<News>,
    outgoing: Vec<Outgoing>,
    /// The others that are there.
    there: BTreeMap<u32, Member>,
    /// Where other nodes may be.
    known: Vec<Member>,
    next_hello: Duration,
    hellos: usize,
    comparing: Comparing,
}

/// A packet to another agent.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    pub(super) to: Member,
    pub(super) packet: Vec<u8>,
    /// The usual way may have failed: all ways are to be tried.
    pub(super) is_urgent: bool,
}

/// When what is known is compared next, and with whom.
#[derive(Debug)]
struct Comparing {
    next: Duration,
    pause: Duration,
    /// Else with any that is there.
    with: Option<u32>,
    questions: u64,
}

/// First byte of what a membership packet carries.
mod bodies {
    pub(super) const SWIM: u8 = 0;
    pub(super) const ASK: u8 = 1;
    pub(super) const TELL: u8 = 2;
}

impl Membership {
    /// A node that knows where others may be.
    /// With a key only those who hold it too count.
    pub(super) fn new(
        own: Member,
        known: Vec<Member>,
        seed: u64,
        key: Option<&ClusterKey>,
    ) -> Membership {
        let config = Config {
            probe_period: PROBE_EVERY,
            probe_rtt: PROBE_PATIENCE,
            num_indirect_probes: nonzero(INDIRECT_PROBES),
            max_transmissions: NonZeroU8::new(TRANSMISSIONS).unwrap_or(NonZeroU8::MIN),
            suspect_to_down_after: SUSPECT_FOR,
            remove_down_after: Some(FORGET_AFTER),
            max_packet_size: nonzero(MAX_PACKET_BYTES - EXTRA_BYTES - 1),
            notify_down_members: true,
            // Comparing does more with less.
            periodic_announce: None,
            periodic_announce_to_down_members: None,
            periodic_gossip: Some(PeriodicParams {
                frequency: GOSSIP_EVERY,
                num_members: nonzero(GOSSIP_MEMBERS),
            }),
        };
        Membership {
            hellos: own.node as usize,
            proofs: Proofs::new(key, own.node, own.life),
            foca: Foca::new(own, config, StdRng::seed_from_u64(seed), PostcardCodec),
            runtime: AccumulatingRuntime::new(),
            timers: BTreeMap::new(),
            set: 0,
            news: Vec::new(),
            outgoing: Vec::new(),
            there: BTreeMap::new(),
            known,
            next_hello: Duration::ZERO,
            random: StdRng::seed_from_u64(seed.rotate_left(32)),
            comparing: Comparing {
                next: Duration::MAX,
                pause: COMPARE_SOON,
                with: None,
                questions: 0,
            },
        }
    }

    /// Takes in a node that has announced itself. One that is not to be greeted is told of the
    /// others, and they of it, by somebody else.
    pub(super) fn introduce(&mut self, now: Duration, member: Member, greet: bool) {
        let update = std::iter::once(foca::Member::alive(member.clone()));
        let done = self.foca.apply_many(update, greet, &mut self.runtime);
        self.after(now, done);
        if greet {
            let done = self.foca.announce(member, &mut self.runtime);
            self.after(now, done);
        }
    }

    /// A node as it is known to be there.
    pub(super) fn member(&self, node: u32) -> Option<&Member> {
        self.there.get(&node)
    }

    /// Says hello to the next nodes that are not there; not all agents begin with the same.
    fn say_hello(&mut self, now: Duration) {
        let is_missing = |member: &&Member| !self.there.contains_key(&member.node);
        let missing: Vec<Member> = self.known.iter().filter(is_missing).cloned().collect();
        let (count, every) = match self.there.is_empty() {
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

    /// Asks a node what it knows that this one does not.
    fn compare(&mut self, now: Duration) {
        let comparing = &mut self.comparing;
        let with = comparing.with.take().and_then(|node| self.there.get(&node));
        let with = with.or_else(|| {
            let count = self.there.len().max(1);
            self.there.values().nth(self.random.random_range(0..count))
        });
        comparing.next = now + comparing.pause;
        comparing.pause = (comparing.pause * 2).min(COMPARE_EVERY);
        comparing.questions += 1;
        // Every other question goes by all ways, so that it needs no luck when one is out.
        let is_urgent = comparing.questions.is_multiple_of(2);
        if let Some(with) = with.cloned() {
            let body = compare::ask(self.foca.identity().node, &self.digests());
            self.put(with, bodies::ASK, &body, is_urgent);
        }
    }

    fn digests(&self) -> Digests {
        Digests::of(self.there.values().chain([self.foca.identity()]))
    }

    fn on_question(&mut self, now: Duration, body: &[u8]) {
        let Some((from, other)) = compare::asked(body) else {
            return;
        };
        // Only who is known to be there is answered, where it is known to be.
        let Some(member) = self.there.get(&from).cloned() else {
            return;
        };
        let (own, first) = (
            self.digests(),
            self.random.random_range(0..compare::BUCKETS),
        );
        let known = self.foca.iter_membership_state();
        let node = self.foca.identity().node;
        if let Some(body) = compare::tell(node, &own, &other, known, first) {
            self.put(member, bodies::TELL, &body, false);
            // It may know what is not known here.
            let soon = now + COMPARE_SOON;
            if self.comparing.next > soon {
                self.comparing.next = soon;
                self.comparing.with = Some(from);
            }
        }
    }

    fn on_answer(&mut self, now: Duration, body: &[u8]) {
        let Some((from, members)) = compare::told(body) else {
            return;
        };
        if !self.there.contains_key(&from) {
            return;
        }
        let before = self.news.len();
        let updates = members.into_iter();
        let done = self.foca.apply_many(updates, false, &mut self.runtime);
        self.after(now, done);
        if self.news.len() > before {
            self.comparing = Comparing {
                next: now + COMPARE_ON,
                pause: COMPARE_SOON,
                with: Some(from),
                ..self.comparing
            };
        }
    }

    /// A packet has come; one of a stranger is counted, other nonsense ignored.
    pub(super) fn on_packet(&mut self, now: Duration, packet: &[u8]) {
        let Some(body) = self.proofs.open(packet) else {
            return;
        };
        match body.split_first() {
            Some((&bodies::SWIM, body)) => {
                let done = self.foca.handle_data(body, &mut self.runtime);
                self.after(now, done);
            }
            Some((&bodies::ASK, body)) => self.on_question(now, body),
            Some((&bodies::TELL, body)) => self.on_answer(now, body),
            _ => {}
        }
    }

    /// Lets due timers act.
    pub(super) fn on_timers(&mut self, now: Duration) {
        if now >= self.next_hello {
            self.say_hello(now);
        }
        if now >= self.comparing.next {
            self.compare(now);
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
        let own = self.next_hello.min(self.comparing.next);
        timer.map_or(own, |((due, _), _)| own.min(*due))
    }

    /// Tells the others that this node goes.
    pub(super) fn leave(&mut self, now: Duration) {
        let done = self.foca.leave_cluster(&mut self.runtime);
        self.after(now, done);
    }

    /// The others that are there.
    pub(super) fn members(&self) -> impl Iterator<Item = &Member> {
        self.there.values()
    }

    /// Packets that were not taken.
    pub(super) fn dropped(&self) -> Dropped {
        self.proofs.dropped()
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
            self.put(to, bodies::SWIM, &body, is_urgent);
        }
        while let Some((after, timer)) = self.runtime.to_schedule() {
            self.set += 1;
            self.timers.insert((now + after, self.set), timer);
        }
        while let Some(news) = self.runtime.to_notify() {
            match news {
                OwnedNotification::MemberUp(member) => {
                    if self.there.is_empty() {
                        self.comparing.next = self.comparing.next.min(now + COMPARE_SOON);
                    }
                    self.there.insert(member.node, member.clone());
                    self.news.push(News::Came(member));
                }
                OwnedNotification::MemberDown(member) => {
                    self.there.remove(&member.node);
                    self.news.push(News::Went(member));
                }
                OwnedNotification::Rename(_, member) => {
                    if let Some(known) = self.there.get_mut(&member.node) {
                        *known = member.clone();
                    }
                    self.news.push(News::Returned(member));
                }
                OwnedNotification::Rejoin(_) => self.news.push(News::Mistaken),
                _ => {}
            }
        }
    }

    fn put(&mut self, to: Member, kind: u8, body: &[u8], is_urgent: bool) {
        let body = [&[kind], body].concat();
        let packet = self.proofs.seal(to.node, &body);
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

mod compare;
#[cfg(test)]
mod tests;
