//! When a job compares its hosts with the others, and which hosts it avoids.
//!
//! Load averages show a move only after minutes, and two jobs may move to the same host at the same time,
//! find it busy, and leave it together. The times are therefore random. After a move the job waits until
//! the averages show it, and longer each time that it returns to a host that it had left: the longer
//! two jobs wait, the less likely it is that neither sees the other's move.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use dipole_node::NodeId;

/// After a move, checks are left out for this many periods: at the default of 120 s, a load average of
/// five minutes then shows 70 % of a change.
const SETTLE_PERIODS: u32 = 3;
/// A host that has refused ranks is avoided for this many periods.
const REFUSAL_PERIODS: u32 = 10;
/// How often the time between two moves, or after failures, is doubled at most.
const MAX_DOUBLINGS: u32 = 7;

#[derive(Debug)]
pub(super) struct Schedule {
    every: Duration,
    next: Instant,
    /// Hosts that have refused ranks, and until when they are avoided.
    refused: BTreeMap<NodeId, Instant>,
    /// Hosts that the user has emptied.
    emptied: BTreeSet<NodeId>,
    /// Hosts that ranks have left because of the load.
    left: BTreeSet<NodeId>,
    /// Returns to hosts that ranks had left; forgotten while the job stays.
    returns: u32,
    /// Failures since the last success.
    failures: u32,
    /// When the present rest began: at the last move, or when a return was forgotten.
    rested_since: Option<Instant>,
}

impl Schedule {
    /// `random` is from 0 to 1, as below.
    pub(super) fn new(every: Duration, now: Instant, random: f64) -> Schedule {
        let mut schedule = Schedule {
            every,
            next: now,
            refused: BTreeMap::new(),
            emptied: BTreeSet::new(),
            left: BTreeSet::new(),
            returns: 0,
            failures: 0,
            rested_since: None,
        };
        schedule.wait(now, every, random);
        schedule
    }

    /// When the next check is due.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    pub(super) fn every(&self) -> Duration {
        self.every
    }

    /// True if ranks must not move to a host by themselves.
    pub(super) fn avoids(&self, now: Instant, node: NodeId) -> bool {
        let until = self.refused.get(&node);
        self.emptied.contains(&node) || until.is_some_and(|until| now < *until)
    }

    /// All ranks are on the best hosts, or the loads are not known.
    pub(super) fn on_stay(&mut self, now: Instant, random: f64) {
        self.failures = 0;
        let rest = 2 * self.rest();
        if self.returns > 0 && self.rested_since.is_some_and(|since| now >= since + rest) {
            self.returns -= 1;
            self.rested_since = Some(now);
        }
        self.wait(now, self.every, random);
    }

    /// Ranks have moved because of the load.
    pub(super) fn on_moved(&mut self, now: Instant, moves: &[(NodeId, NodeId)], random: f64) {
        self.failures = 0;
        let is_return = moves.iter().any(|(_, to)| self.left.contains(to));
        self.left.extend(moves.iter().map(|(from, _)| *from));
        if is_return {
            self.returns = (self.returns + 1).min(MAX_DOUBLINGS);
        }
        self.rested_since = Some(now);
        // From one to two times as long: jobs that have moved together check at different times.
        let rest = self.rest();
        self.wait(now, rest, 2.0 * random);
    }

    /// The user has moved ranks. Hosts that are empty now get none by themselves until the user names
    /// them again.
    pub(super) fn on_moved_by_user(&mut self, emptied: &[NodeId], used: &[NodeId]) {
        self.emptied.extend(emptied);
        self.emptied.retain(|node| !used.contains(node));
    }

    /// A host refuses ranks, or is not reached: the next check is due at once, without it.
    pub(super) fn on_refused(&mut self, now: Instant, node: NodeId) {
        self.refused
            .insert(node, now + REFUSAL_PERIODS * self.every);
        self.next = now;
    }

    /// The ranks could not be moved for another reason, which may last.
    pub(super) fn on_failed(&mut self, now: Instant, random: f64) {
        self.failures = (self.failures + 1).min(MAX_DOUBLINGS);
        let pause = self.every * (1 << self.failures);
        self.wait(now, pause, random);
    }

    /// The time after a move in which the load averages follow.
    fn rest(&self) -> Duration {
        self.every * SETTLE_PERIODS * (1 << self.returns)
    }

    /// Waits for one to one and a half times `pause`.
    fn wait(&mut self, now: Instant, pause: Duration, random: f64) {
        self.next = now + pause.mul_f64(1.0 + random / 2.0);
    }
}

#[cfg(test)]
mod tests;
