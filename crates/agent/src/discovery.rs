//! Discovery of nodes: a node announces itself when it starts, and receivers of the announcement
//! add it to the membership. There are no sockets here, so that a test can run a thousand nodes.
//!
//! All nodes of a segment receive an announcement, and about [`RESPONDERS`] of them respond, so
//! that a new node is not flooded. Further changes travel with the membership protocol, and
//! announcements become rare: the more nodes, the rarer.

use std::net::SocketAddr;
use std::time::Duration;

use dipole_node::registry::Announcement;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::member::Member;
use super::membership::Membership;

/// Average number of nodes that respond to an announcement.
const RESPONDERS: u32 = 3;
/// First time between announcements, which may be lost; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Number of first announcements even if other nodes are known.
const FIRST_COUNT: u32 = 3;
/// Number of announcements at the first rate while no other node is known: responses are lost when
/// attackers fill queues.
const ALONE_COUNT: u32 = 30;
/// Time between later announcements of a node that knows no other.
const ALONE_PAUSE: Duration = Duration::from_secs(10);
/// Time between announcements of a node that knows others, or [`FOR_EACH`] times the number of
/// nodes if that is longer. They reach new nodes that were cut off from all others when they
/// started.
const RARE_PAUSE: Duration = Duration::from_secs(60);
const FOR_EACH: Duration = Duration::from_secs(1);

/// How long after its start an agent gives way to another with its number.
const FIRST_TIME: Duration = Duration::from_secs(10);
/// Time between two warnings about a duplicate number.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// Another node already uses this node's number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    /// Addresses of the other node.
    pub(super) by: Vec<SocketAddr>,
    pub(super) age: Duration,
}

/// Packet to send after an announcement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Response {
    /// An announcement of this node, to an address of the other.
    Announce(Announcement, SocketAddr),
    /// The received packet, to the node that holds the number and has responded from this address.
    Forward(SocketAddr),
}

#[derive(Debug)]
pub(super) struct Discovery {
    cluster: String,
    start: Duration,
    next: Duration,
    pause: Duration,
    sent: u32,
    /// When a duplicate number is logged again.
    next_warning: Duration,
    random: StdRng,
    /// Announcements of other clusters.
    foreign: u64,
}

impl Discovery {
    pub(super) fn new(cluster: &str, now: Duration, seed: u64) -> Discovery {
        Discovery {
            cluster: cluster.to_owned(),
            start: now,
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

    /// Number of announcements received from other clusters.
    pub(super) fn foreign(&self) -> u64 {
        self.foreign
    }

    /// When [`due`](Self::due) returns an announcement.
    pub(super) fn next_deadline(&self) -> Duration {
        self.next
    }

    /// The announcement to send now, if it is time.
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
        // Randomised, so that nodes that were started together do not send together.
        self.next = now + pause.mul_f64(self.random.random_range(0.75..1.25));
        Some(self.announcement(now, membership))
    }

    fn announcement(&self, now: Duration, membership: &Membership) -> Announcement {
        let age = now.saturating_sub(self.start).as_millis();
        let age_ms = u64::try_from(age).unwrap_or(u64::MAX);
        membership.own().announcement(&self.cluster, age_ms)
    }

    /// Handles an announcement that was sent to this node or broadcast. The packet may be forged,
    /// with any source address: what is sent to that address is not longer than `packet_bytes`.
    ///
    /// # Errors
    /// [`Taken`]: this node must stop.
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
            return self.on_duplicate_nid(now, announcement, membership);
        }
        if announcement.taken != 0 {
            return Ok(None);
        }
        let others = u32::try_from(membership.members().count()).unwrap_or(u32::MAX);
        let responds = !to_all || self.random.random_range(0..=others) < RESPONDERS;
        if !responds {
            return Ok(None);
        }
        let member = Member::of_announcement(announcement);
        // All responding nodes together send no more bytes than the announcement has.
        let credit = packet_bytes / RESPONDERS as usize;
        match membership.member(member.node) {
            Some(known) if known.incarnation == member.incarnation => {}
            // If an agent still runs at the known address, it responds to the announcement itself, which
            // ends the other one. Otherwise the node has moved.
            Some(known) if known.facts.addresses[..1] != member.facts.addresses[..1] => {
                let directories = known.facts.directories().into_iter();
                let mut known_at = directories.filter(|at| membership.is_at(known.node, *at));
                let known_at = known_at.next();
                membership.check_move(now, &member, credit);
                return Ok(known_at.map(Response::Forward));
            }
            _ => membership.challenge_member(now, &member, true, &mut { credit }),
        }
        Ok(None)
    }

    /// Of two nodes with one number the younger one stops, if it has just started, so that forged
    /// packets cannot end older ones. Each measures its age by its own clock.
    fn on_duplicate_nid(
        &mut self,
        now: Duration,
        announcement: &Announcement,
        membership: &Membership,
    ) -> Result<Option<Response>, Taken> {
        let own = self.announcement(now, membership);
        if announcement.incarnation == own.incarnation {
            return Ok(None);
        }
        let is_older =
            (announcement.age_ms, announcement.incarnation) > (own.age_ms, own.incarnation);
        // Only a node that has received a packet of this incarnation knows it, so old packets have
        // no effect.
        if announcement.taken == own.incarnation && is_older && now < self.start + FIRST_TIME {
            return Err(Taken {
                by: announcement.facts.directories(),
                age: Duration::from_millis(announcement.age_ms),
            });
        }
        if now >= self.next_warning {
            self.next_warning = now + WARN_EVERY;
            tracing::warn!(
                event = "duplicate-nid",
                node = own.node.0,
                address = ?announcement.facts.directories(),
                "another node has this node's number: give one of the two another (--nid)"
            );
        }
        // The response ends a younger node; an older one must announce itself.
        if announcement.taken != 0 && is_older {
            return Ok(None);
        }
        let answer = Announcement {
            taken: announcement.incarnation,
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
    fn a_duplicate_nid_report_is_accepted_at_the_start_only_and_later_refused_in_the_log() {
        let member = |incarnation, host: u8| Member {
            node: 1,
            incarnation,
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
        let start = Duration::from_secs(100);
        let mut discovery = Discovery::new("test", start, 1);
        let mut receive = |discovery: &mut Discovery, after, taken| {
            let announcement = Announcement {
                taken,
                ..member(4, 2).announcement("test", u64::MAX)
            };
            discovery.on_announcement(start + after, &announcement, false, 200, &mut membership)
        };
        // An attacker who does not know the incarnation cannot end the node.
        let soon = Duration::from_secs(1);
        for guess in [1, 4, 6, u64::MAX] {
            assert_eq!(receive(&mut discovery, soon, guess), Ok(None), "{guess}");
        }
        assert!(receive(&mut discovery, soon, 5).is_err());
        // Later no packet ends the node; the conflict is logged at a limited rate.
        assert_eq!(receive(&mut discovery, FIRST_TIME, 5), Ok(None));
        let warned = discovery.next_warning;
        assert_eq!(warned, start + FIRST_TIME.max(soon + WARN_EVERY));
        let mut warnings = 0;
        for millis in 0..60_000 {
            let before = discovery.next_warning;
            let after = 2 * FIRST_TIME + Duration::from_millis(millis);
            assert_eq!(receive(&mut discovery, after, 5), Ok(None));
            warnings += u32::from(discovery.next_warning != before);
        }
        assert_eq!(warnings, 6);
    }
}
