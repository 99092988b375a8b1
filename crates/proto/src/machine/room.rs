//! Room for further peers when the table is full. Spec §3.2.

use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

use crate::event::{Event, PeerId};
use crate::machine::Machine;
use crate::session::Session;
use crate::time::{Instant, SECOND};
use crate::wire::Address;

/// Idle peers that get a keepalive at the same time.
const MAX_ASKED: usize = 64;

/// The search for dead peers among those that are idle.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RoomSearch {
    /// Idle peers that were last probed.
    asked: Vec<PeerId>,
    /// Earliest time of the next search after one in which all peers replied.
    next_at: Instant,
    /// Earliest time of the next [`Event::TooManyPeers`].
    next_report_at: Instant,
}

impl Default for RoomSearch {
    fn default() -> RoomSearch {
        RoomSearch {
            asked: Vec::new(),
            next_at: Instant(0),
            next_report_at: Instant(0),
        }
    }
}

impl Machine {
    /// Called when the table of peers is full. Returns true if idle peers have been probed for a
    /// sign of life, so that there may be room soon. It visits all peers, but seldom: again only
    /// after one has turned out to be dead, or `peer_timeout_ns` after all have replied.
    pub(super) fn make_room(&mut self, now: Instant) -> bool {
        let asked = core::mem::take(&mut self.room.asked);
        let sessions = |peer: &PeerId| self.session(*peer);
        if asked.iter().filter_map(sessions).any(Session::is_evicting) {
            self.room.asked = asked;
            return true;
        }
        let all_live = asked.iter().all(|peer| self.session(*peer).is_some());
        if all_live && now < self.room.next_at {
            self.room.asked = asked;
            return false;
        }
        let config = &self.shared.config;
        let (idle_ns, reply_ns) = (config.suspect_after_ns, config.eviction_ns());
        self.room.next_at = now.after(config.peer_timeout_ns);
        let sessions = self.peers.sessions();
        let mut idle: Vec<(Instant, PeerId)> = sessions
            .filter_map(|session| Some((session.idle_since()?, session.id)))
            .filter(|(heard, _)| now.since(*heard) >= idle_ns)
            .collect();
        idle.sort_unstable();
        idle.truncate(MAX_ASKED);
        let by = now.after(reply_ns);
        for (_, peer) in &idle {
            self.with(*peer, |session, shared| {
                session.evict_unless_heard(by, now, shared);
            });
        }
        self.room.asked = idle.into_iter().map(|(_, peer)| peer).collect();
        !self.room.asked.is_empty()
    }

    /// Reports, at most once a second, that a process was refused because the table is full.
    pub(super) fn report_full(&mut self, from: Address, now: Instant) {
        if now >= self.room.next_report_at {
            self.room.next_report_at = now.after(SECOND);
            self.shared.event(Event::TooManyPeers { from });
        }
    }
}
