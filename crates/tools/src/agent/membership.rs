//! Which nodes there are: the SWIM protocol (by the crate foca) as a machine of packets
//! and time, so that a thousand of them run in a test.
//!
//! Every few seconds a node probes one other, directly and then through others; news
//! travels on those packets. So what a node sends does not grow with their number.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::num::{NonZeroU8, NonZeroUsize};
use std::time::Duration;

use dipole_node::ClusterKey;
use foca::{
    AccumulatingRuntime, Config, Foca, Identity, NoCustomBroadcast, OwnedNotification,
    PeriodicParams, PostcardCodec, Timer,
};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};

use super::proofs::{Dropped, EXTRA_BYTES, Proofs};

/// Longest packet: any network carries it in one piece.
const MAX_PACKET_BYTES: usize = 1200;
const PROBE_EVERY: Duration = Duration::from_secs(2);
const PROBE_PATIENCE: Duration = Duration::from_secs(1);
const SUSPECT_FOR: Duration = Duration::from_secs(2);
const GOSSIP_EVERY: Duration = Duration::from_secs(1);
/// How often a node asks another whom it knows, so that lost news arrives after all.
const COMPARE_EVERY: Duration = Duration::from_secs(5);
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

/// A node as its agent describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Member {
    pub(super) node: u32,
    /// Where it is asked.
    pub(super) address: SocketAddr,
    /// Which of its lives this is: of two, the later is right.
    pub(super) life: u64,
    pub(super) version: String,
}

impl Identity for Member {
    type Addr = u32;

    fn renew(&self) -> Option<Member> {
        Some(Member {
            life: self.life + 1,
            ..self.clone()
        })
    }

    fn addr(&self) -> u32 {
        self.node
    }

    fn win_addr_conflict(&self, adversary: &Member) -> bool {
        self.life > adversary.life
    }
}

/// What has become known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum News {
    Came(Member),
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
    proofs: Proofs,
    /// By when they are due, then in the order they were set.
    timers: BTreeMap<(Duration, u64), Timer<Member>>,
    set: u64,
    news: Vec<News>,
    outgoing: Vec<(SocketAddr, Vec<u8>)>,
    /// Where other nodes may be.
    known: Vec<(u32, SocketAddr)>,
    next_hello: Duration,
    hellos: usize,
}

impl Membership {
    /// A node that knows where others may be.
    /// With a key only those who hold it too count.
    pub(super) fn new(
        own: Member,
        known: Vec<(u32, SocketAddr)>,
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
            max_packet_size: nonzero(MAX_PACKET_BYTES - EXTRA_BYTES),
            notify_down_members: true,
            periodic_announce: Some(PeriodicParams {
                frequency: COMPARE_EVERY,
                num_members: nonzero(1),
            }),
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
            known,
            next_hello: Duration::ZERO,
        }
    }

    /// Says hello to the next nodes that are not there; not all agents begin with the same.
    fn say_hello(&mut self, now: Duration) {
        let there: HashSet<u32> = self.members().map(|member| member.node).collect();
        let missing = |(node, _): &&(u32, SocketAddr)| !there.contains(node);
        let missing: Vec<_> = self.known.iter().filter(missing).copied().collect();
        let (count, every) = match there.is_empty() {
            true => (FIRST_HELLOS.min(missing.len()), FIRST_HELLOS_EVERY),
            false => (missing.len().min(1), HELLO_EVERY),
        };
        for _ in 0..count {
            let (node, address) = missing[self.hellos % missing.len()];
            self.announce(now, node, address);
            self.hellos += 1;
        }
        self.next_hello = now + every;
    }

    fn announce(&mut self, now: Duration, node: u32, address: SocketAddr) {
        let unknown = Member {
            node,
            address,
            life: 0,
            version: String::new(),
        };
        let done = self.foca.announce(unknown, &mut self.runtime);
        self.after(now, done);
    }

    /// A packet has come; one of a stranger is counted, other nonsense ignored.
    pub(super) fn on_packet(&mut self, now: Duration, packet: &[u8]) {
        let Some(body) = self.proofs.open(packet) else {
            return;
        };
        let done = self.foca.handle_data(body, &mut self.runtime);
        self.after(now, done);
    }

    /// Lets due timers act.
    pub(super) fn on_timers(&mut self, now: Duration) {
        if now >= self.next_hello {
            self.say_hello(now);
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
        timer.map_or(self.next_hello, |((due, _), _)| self.next_hello.min(*due))
    }

    /// Tells the others that this node goes.
    pub(super) fn leave(&mut self, now: Duration) {
        let done = self.foca.leave_cluster(&mut self.runtime);
        self.after(now, done);
    }

    /// The others that are there.
    pub(super) fn members(&self) -> impl Iterator<Item = &Member> {
        self.foca.iter_members().map(foca::Member::id)
    }

    /// Packets that were not taken.
    pub(super) fn dropped(&self) -> Dropped {
        self.proofs.dropped()
    }

    pub(super) fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    pub(super) fn take_outgoing(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        std::mem::take(&mut self.outgoing)
    }

    fn after(&mut self, now: Duration, done: Result<(), foca::Error>) {
        if let Err(error) = done {
            tracing::debug!(%error, "a membership packet or timer came to nothing");
        }
        while let Some((to, body)) = self.runtime.to_send() {
            let packet = self.proofs.seal(to.node, &body);
            self.outgoing.push((to.address, packet));
        }
        while let Some((after, timer)) = self.runtime.to_schedule() {
            self.set += 1;
            self.timers.insert((now + after, self.set), timer);
        }
        while let Some(news) = self.runtime.to_notify() {
            match news {
                OwnedNotification::MemberUp(member) => self.news.push(News::Came(member)),
                OwnedNotification::MemberDown(member) => self.news.push(News::Went(member)),
                OwnedNotification::Rename(_, member) => self.news.push(News::Returned(member)),
                OwnedNotification::Rejoin(_) => self.news.push(News::Mistaken),
                _ => {}
            }
        }
    }
}

fn nonzero(number: usize) -> NonZeroUsize {
    NonZeroUsize::new(number).unwrap_or(NonZeroUsize::MIN)
}

#[cfg(test)]
mod tests;
