//! Nodes find each other: each announces itself where it starts, and whoever hears it takes it
//! in. Rules without sockets, so that a thousand run in a test.
//!
//! Everybody on a segment hears an announcement; only some [`GREETERS`] of them answer, so that
//! a newcomer is not flooded. After that news travels by the membership, and announcements are
//! rare: the more nodes, the rarer.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use dipole_node::registry::Announcement;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::member::Member;
use super::membership::Membership;

/// How many answer an announcement, in the mean.
const GREETERS: u32 = 3;
/// Between the first announcements, which may be lost; doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// How many come whether others are known or not.
const FIRST_ONES: u32 = 3;
/// Between those of a node that knows no other.
const ALONE_PAUSE: Duration = Duration::from_secs(10);
/// At least so much between those of one that does, and at least [`FOR_EACH`] for each node:
/// for those who were cut off from all the others when they came.
const RARE_PAUSE: Duration = Duration::from_secs(60);
const FOR_EACH: Duration = Duration::from_secs(1);

/// Another node has this node's number, and had it before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    /// Where the other one is.
    pub(super) by: Vec<SocketAddr>,
    pub(super) age: Duration,
}

/// A word to send on hearing an announcement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// An announcement of this node, to one place.
    Say(Announcement, Vec<SocketAddr>),
    /// The packet as it came: it is about the number of the node there.
    Forward(Vec<SocketAddr>),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Discovery {
    cluster: String,
    own: Member,
    begun: Duration,
    next: Duration,
    pause: Duration,
    said: u32,
    /// By node: its latest life and how old that was. Packets go several ways, and may be
    /// sent again by strangers.
    heard: BTreeMap<u32, (u64, u64)>,
    random: StdRng,
    /// Announcements of other clusters.
    foreign: u64,
}

impl Discovery {
    pub(super) fn new(cluster: &str, own: Member, now: Duration, seed: u64) -> Discovery {
        Discovery {
            cluster: cluster.to_owned(),
            own,
            begun: now,
            next: now,
            pause: FIRST_PAUSE,
            said: 0,
            heard: BTreeMap::new(),
            random: StdRng::seed_from_u64(seed),
            foreign: 0,
        }
    }

    /// Announcements heard of other clusters.
    pub(super) fn foreign(&self) -> u64 {
        self.foreign
    }

    /// When [`due`](Self::due) has something to say.
    pub(super) fn next_deadline(&self) -> Duration {
        self.next
    }

    /// What is to be announced now, if anything.
    pub(super) fn due(&mut self, now: Duration, membership: &Membership) -> Option<Announcement> {
        if now < self.next {
            return None;
        }
        let others = u32::try_from(membership.members().count()).unwrap_or(u32::MAX);
        self.said = self.said.saturating_add(1);
        let pause = if self.said <= FIRST_ONES {
            self.pause *= 2;
            self.pause / 2
        } else if others == 0 {
            ALONE_PAUSE
        } else {
            RARE_PAUSE.max(FOR_EACH * others)
        };
        // Not all at once, when they were started at once.
        self.next = now + pause.mul_f64(self.random.random_range(0.75..1.25));
        Some(self.announcement(now))
    }

    fn announcement(&self, now: Duration) -> Announcement {
        let age = now.saturating_sub(self.begun).as_millis();
        let age_ms = u64::try_from(age).unwrap_or(u64::MAX);
        self.own.announcement(&self.cluster, age_ms)
    }

    /// Hears an announcement, one that was sent to this node alone or to all.
    ///
    /// # Errors
    /// [`Taken`]: this node must not be.
    pub(super) fn hear(
        &mut self,
        now: Duration,
        said: &Announcement,
        to_all: bool,
        membership: &mut Membership,
    ) -> Result<Option<Word>, Taken> {
        if said.cluster != self.cluster {
            self.foreign += 1;
            return Ok(None);
        }
        if said.node.0 == self.own.node {
            return self.hear_namesake(now, said);
        }
        if said.taken != 0 {
            return Ok(None);
        }
        let this = (said.life, said.age_ms);
        let heard = self.heard.entry(said.node.0).or_default();
        if this <= *heard {
            return Ok(None);
        }
        *heard = this;
        let others = u32::try_from(membership.members().count()).unwrap_or(u32::MAX);
        let greets = !to_all || self.random.random_range(0..=others) < GREETERS;
        let member = Member::of_announcement(said);
        match membership.member(member.node) {
            Some(known) if known.life == member.life => {}
            // If that one still lives it says so; if not, it is known to be gone soon, and the
            // newcomer announces itself again.
            Some(known) if known.addresses[..1] != member.addresses[..1] => {
                return Ok(greets.then(|| Word::Forward(known.directories())));
            }
            _ => membership.introduce(now, member, greets),
        }
        Ok(None)
    }

    /// Of two with one number the younger gives way; ages are differences of one clock each.
    fn hear_namesake(&mut self, now: Duration, said: &Announcement) -> Result<Option<Word>, Taken> {
        if said.life == self.own.life {
            return Ok(None);
        }
        let own = self.announcement(now);
        let is_older = (said.age_ms, said.life) > (own.age_ms, own.life);
        // Only who has heard of this life can name it: no old packet can end it.
        if said.taken == self.own.life && is_older {
            return Err(Taken {
                by: said.directories(),
                age: Duration::from_millis(said.age_ms),
            });
        }
        // The younger one is answered, which ends it; an older one has to say so itself.
        if said.taken != 0 && is_older {
            return Ok(None);
        }
        tracing::warn!(
            event = "namesake",
            node = self.own.node,
            address = ?said.directories(),
            "another node has this node's number: one of the two needs another (--nid)"
        );
        let answer = Announcement {
            taken: said.life,
            ..own
        };
        Ok(Some(Word::Say(answer, said.directories())))
    }
}
