//! When a node synchronises its state with another (`sync`): after joining, then rarely.

use std::time::Duration;

use foca::Member as Known;
use rand::RngExt;

use super::auth::Body;
use super::sync::{BUCKETS, Digests, differences};
use super::{MAX_DATA_BYTES, Member, Membership};

/// How often a node synchronises with another, to recover lost changes.
const SYNC_EVERY: Duration = Duration::from_secs(5);
/// How soon it synchronises again after a change.
const SYNC_SOON: Duration = Duration::from_millis(250);
/// How soon it queries the same node for more.
const SYNC_NEXT: Duration = Duration::from_millis(10);

/// State of the periodic synchronisation with other members.
#[derive(Debug)]
pub(super) struct Sync {
    next: Duration,
    pause: Duration,
    /// `None` for any node that is up.
    with: Option<u32>,
    requests: u64,
}

impl Sync {
    pub(super) fn new() -> Sync {
        Sync {
            next: Duration::MAX,
            pause: SYNC_SOON,
            with: None,
            requests: 0,
        }
    }

    /// When [`Membership::start_sync`] must be called.
    pub(super) fn next_deadline(&self) -> Duration {
        self.next
    }

    pub(super) fn start_soon(&mut self, now: Duration) {
        self.next = self.next.min(now + SYNC_SOON);
    }
}

impl Membership {
    /// Queries a node for changes that this one has missed.
    pub(super) fn start_sync(&mut self, now: Duration) {
        let sync = &mut self.sync;
        let with = sync.with.take().and_then(|node| self.up.get(&node));
        let with = with.or_else(|| {
            let count = self.up.len().max(1);
            self.up.values().nth(self.random.random_range(0..count))
        });
        sync.next = now + sync.pause;
        sync.pause = (sync.pause * 2).min(SYNC_EVERY);
        sync.requests += 1;
        // Every other request uses all paths, in case one of them is down.
        let is_urgent = sync.requests.is_multiple_of(2);
        if let Some(with) = with.cloned() {
            let body = Body::SyncRequest(self.digests());
            self.queue(with, body, is_urgent);
        }
    }

    fn digests(&self) -> Digests {
        Digests::of(self.up.values().chain([self.foca.identity()]))
    }

    pub(super) fn on_sync_request(&mut self, now: Duration, from: u32, other: Digests) {
        // Only nodes that are up get a reply, at their known addresses.
        let Some(member) = self.up.get(&from).cloned() else {
            return;
        };
        let (own, first) = (self.digests(), self.random.random_range(0..BUCKETS));
        let known = self.foca.iter_membership_state();
        if let Some(members) = differences(&own, &other, known, first, MAX_DATA_BYTES) {
            self.queue(member, Body::SyncResponse(members), false);
            // The other node may in turn have changes that are unknown here.
            let soon = now + SYNC_SOON;
            if self.sync.next > soon {
                self.sync.next = soon;
                self.sync.with = Some(from);
            }
        }
    }

    pub(super) fn on_sync_response(
        &mut self,
        now: Duration,
        from: u32,
        members: Vec<Known<Member>>,
        credit: &mut usize,
    ) {
        if !self.up.contains_key(&from) {
            return;
        }
        let (before, unspent) = (self.events.len(), *credit);
        let updates = self.accepted_updates(now, members, credit);
        let updates = updates.into_iter();
        let done = self.foca.apply_many(updates, false, &mut self.runtime);
        self.process_output(now, done);
        // A node with news, if only of nodes to challenge, may have more.
        if self.events.len() > before || *credit < unspent {
            self.sync = Sync {
                next: now + SYNC_NEXT,
                pause: SYNC_SOON,
                with: Some(from),
                ..self.sync
            };
        }
    }
}
