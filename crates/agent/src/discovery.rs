//! How nodes discover each other: a node announces itself when it starts, and those that receive
//! the announcement add it to the membership. No sockets here, so that a thousand run in a test.
//!
//! All nodes of a segment receive an announcement; about [`GREETERS`] of them answer, so that a
//! newcomer is not flooded. From then on news travels with the membership protocol, and
//! announcements become rare: the more nodes, the rarer.

use std::net::SocketAddr;
use std::time::Duration;

use dipole_node::registry::Announcement;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::member::Member;
use super::membership::Membership;

/// How many nodes answer an announcement, on average.
const GREETERS: u32 = 3;
/// Between the first announcements, which may be lost; doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// How many of them are sent even if other nodes are known.
const FIRST_COUNT: u32 = 3;
/// How many a node sends at this pace that knows no other: answers are lost where strangers fill queues.
const ALONE_COUNT: u32 = 30;
/// Between later announcements of such a node.
const ALONE_PAUSE: Duration = Duration::from_secs(10);
/// Between announcements of a node that does, or [`FOR_EACH`] for each node if that is longer: they
/// reach newcomers that were cut off from all others when they started.
const RARE_PAUSE: Duration = Duration::from_secs(60);
const FOR_EACH: Duration = Duration::from_secs(1);

/// How long after its start an agent gives way to another with its number.
const FIRST_TIME: Duration = Duration::from_secs(10);
/// Between two warnings that there is one.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// Another node has this node's number, and had it first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    /// Addresses of the other node.
    pub(super) by: Vec<SocketAddr>,
    pub(super) age: Duration,
}

/// What to send in response to an announcement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Response {
    /// An announcement of this node, to an address of another.
    Announce(Announcement, SocketAddr),
    /// The packet as received, to the node whose number it claims, where that has answered.
    Forward(SocketAddr),
}

#[derive(Debug)]
pub(super) struct Discovery {
    cluster: String,
    begun: Duration,
    next: Duration,
    pause: Duration,
    sent: u32,
    /// When another node with this node's number is logged again.
    next_warning: Duration,
    random: StdRng,
    /// Announcements of other clusters.
    foreign: u64,
}

impl Discovery {
    pub(super) fn new(cluster: &str, now: Duration, seed: u64) -> Discovery {
        Discovery {
            cluster: cluster.to_owned(),
            begun: now,
            next: now,
            pause: FIRST_PAUSE,
            sent: 0,
            next_warning: now,
            random: StdRng::seed_from_u64(seed),
            foreign: 0,
        }
    }

    /// The cluster whose nodes it discovers.
    pub(super) fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Announcements received from other clusters.
    pub(super) fn foreign(&self) -> u64 {
        self.foreign
    }

    /// When [`due`](Self::due) has something to announce.
    pub(super) fn next_deadline(&self) -> Duration {
        self.next
    }

    /// What is to be announced now, if anything.
    pub(super) fn due(&mut self, now: Duration, membership: &Membership) -> Option<Announcement> {
        if now < self.next {
            return None;
        }
        let others = u32::try_from(membership.members().count()).unwrap_or(u32::MAX);
        self.sent = self.sent.saturating_add(1);
        let pause = if self.sent <= FIRST_COUNT {
            self.pause *= 2;
            self.pause / 2
        } else if others == 0 && self.sent <= ALONE_COUNT {
            FIRST_PAUSE
        } else if others == 0 {
            ALONE_PAUSE
        } else {
            RARE_PAUSE.max(FOR_EACH * others)
        };
        // Not all at once, when they were started at once.
        self.next = now + pause.mul_f64(self.random.random_range(0.75..1.25));
        Some(self.announcement(now, membership))
    }

    fn announcement(&self, now: Duration, membership: &Membership) -> Announcement {
        let age = now.saturating_sub(self.begun).as_millis();
        let age_ms = u64::try_from(age).unwrap_or(u64::MAX);
        membership.own().announcement(&self.cluster, age_ms)
    }

    /// Handles an announcement that was sent to this node alone, or to all. Anybody may have
    /// written it, for any address: what it causes there is no more than `packet_bytes`.
    ///
    /// # Errors
    /// [`Taken`]: this node has to stop.
    pub(super) fn on_announcement(
        &mut self,
        now: Duration,
        announcement: &Announcement,
        to_all: bool,
        packet_bytes: usize,
        membership: &mut Membership,
    ) -> Result<Option<Response>, Taken> {
        if announcement.cluster != self.cluster {
            self.foreign += 1;
            return Ok(None);
        }
        if announcement.node.0 == membership.own().node {
            return self.on_namesake(now, announcement, membership);
        }
        if announcement.taken != 0 {
            return Ok(None);
        }
        let others = u32::try_from(membership.members().count()).unwrap_or(u32::MAX);
        let greets = !to_all || self.random.random_range(0..=others) < GREETERS;
        if !greets {
            return Ok(None);
        }
        let member = Member::of_announcement(announcement);
        match membership.member(member.node) {
            Some(known) if known.life == member.life => {}
            // If the known node is alive it answers itself; if not, it will soon be known as gone,
            // and the newcomer announces itself again.
            Some(known) if known.facts.addresses[..1] != member.facts.addresses[..1] => {
                let directories = known.facts.directories().into_iter();
                let mut there = directories.filter(|at| membership.is_at(known.node, *at));
                return Ok(there.next().map(Response::Forward));
            }
            // All who greet spend as much together as the packet weighs.
            _ => membership.ask(now, &member, true, &mut (packet_bytes / GREETERS as usize)),
        }
        Ok(None)
    }

    /// Of two nodes with one number the younger gives way, if it has just started: nobody who is
    /// there is ended by packets. Each measures its age by its own clock.
    fn on_namesake(
        &mut self,
        now: Duration,
        announcement: &Announcement,
        membership: &Membership,
    ) -> Result<Option<Response>, Taken> {
        let own = self.announcement(now, membership);
        if announcement.life == own.life {
            return Ok(None);
        }
        let is_older = (announcement.age_ms, announcement.life) > (own.age_ms, own.life);
        // Only a node that has received from this incarnation can name it, so no old packet ends it.
        if announcement.taken == own.life && is_older && now < self.begun + FIRST_TIME {
            return Err(Taken {
                by: announcement.facts.directories(),
                age: Duration::from_millis(announcement.age_ms),
            });
        }
        if now >= self.next_warning {
            self.next_warning = now + WARN_EVERY;
            tracing::warn!(
                event = "namesake",
                node = own.node.0,
                address = ?announcement.facts.directories(),
                "another node has this node's number: give one of the two another (--nid)"
            );
        }
        // The answer ends a younger one; an older one has to announce that itself.
        if announcement.taken != 0 && is_older {
            return Ok(None);
        }
        let answer = Announcement {
            taken: announcement.life,
            ..own
        };
        let mut addresses = announcement.facts.directories().into_iter();
        Ok(addresses.next().map(|at| Response::Announce(answer, at)))
    }
}

#[cfg(test)]
mod tests {
    use dipole_node::registry::NodeFacts;

    use super::*;
    use crate::membership::Secrets;

    #[test]
    fn a_word_that_the_number_is_taken_is_believed_at_the_start_only_and_later_refused_aloud() {
        let member = |life, host: u8| Member {
            node: 1,
            life,
            facts: NodeFacts {
                addresses: vec![[10, 0, 0, host].into()],
                control: None,
                port: 7411,
                slots: 1,
                name: String::new(),
                version: String::new(),
            },
        };
        let secrets = Secrets::draw().expect("random bytes");
        let mut membership = Membership::new(member(5, 1), Vec::new(), secrets, None);
        let begun = Duration::from_secs(100);
        let mut discovery = Discovery::new("test", begun, 1);
        let mut hear = |discovery: &mut Discovery, after, taken| {
            let said = Announcement {
                taken,
                ..member(4, 2).announcement("test", u64::MAX)
            };
            discovery.on_announcement(begun + after, &said, false, 200, &mut membership)
        };
        // Who has not heard which run this is cannot end it.
        let soon = Duration::from_secs(1);
        for guess in [1, 4, 6, u64::MAX] {
            assert_eq!(hear(&mut discovery, soon, guess), Ok(None), "{guess}");
        }
        assert!(hear(&mut discovery, soon, 5).is_err());
        // From then on nobody can, and it is logged, not for each packet.
        assert_eq!(hear(&mut discovery, FIRST_TIME, 5), Ok(None));
        let warned = discovery.next_warning;
        assert_eq!(warned, begun + FIRST_TIME.max(soon + WARN_EVERY));
        let mut warnings = 0;
        for millis in 0..60_000 {
            let before = discovery.next_warning;
            let after = 2 * FIRST_TIME + Duration::from_millis(millis);
            assert_eq!(hear(&mut discovery, after, 5), Ok(None));
            warnings += u32::from(discovery.next_warning != before);
        }
        assert_eq!(warnings, 6);
    }
}
