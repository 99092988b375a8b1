//! The state of a session for tools that explain a hang.

use alloc::vec::Vec;

use crate::path_state::LaneState;
use crate::send::UnitState;
use crate::session::Session;
use crate::shared::Shared;
use crate::time::Instant;
use crate::wire::Address;

/// One address of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathStatus {
    /// The address.
    pub to: Address,
    /// It is the address for bulk traffic.
    pub bulk: bool,
    /// Whether it answers.
    pub state: LaneState,
    /// Packets from the peer on this lane that are missing.
    pub missing: u64,
}

/// The state of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionStatus {
    /// The address to which hellos are sent, or from which they came.
    pub home: Address,
    /// The handshake is complete.
    pub is_open: bool,
    /// Units that were sent and are not acknowledged.
    pub in_flight: usize,
    /// Units that are or may be lost and were not sent again yet.
    pub lost: usize,
    /// Units that were never sent.
    pub queued: usize,
    /// The lowest unit that is not acknowledged, and when it was last sent.
    pub oldest: Option<(u64, Instant)>,
    /// The peer's limit of packets in flight, if it is below the usual one.
    pub restricted_to: Option<u32>,
    /// The next unit of the peer.
    pub units_next: u64,
    /// Units of the peer that are missing, although later ones have arrived.
    pub units_missing: u64,
    /// When the last packet of the peer arrived.
    pub last_heard: Instant,
    /// Since when the peer has owed a reply.
    pub owed_since: Option<Instant>,
    /// The silence of the peer was reported.
    pub is_suspected: bool,
    /// Smoothed round trip in ns.
    pub round_trip_ns: Option<u64>,
    /// When the session does something next if no packet arrives.
    pub deadline: Instant,
    /// The peer's addresses.
    pub paths: Vec<PathStatus>,
}

impl Session {
    /// See [`SessionStatus`].
    pub(crate) fn status(&self, shared: &Shared) -> SessionStatus {
        let (mut in_flight, mut lost, mut oldest) = (0, 0, None);
        for (unit, view) in (self.window.base()..).zip(self.window.view()) {
            match view.state {
                UnitState::Flying { .. } | UnitState::Cut => in_flight += 1,
                UnitState::Lost => lost += 1,
                UnitState::Arrived => continue,
            }
            oldest = oldest.or(Some((unit, view.sent_at)));
        }
        let paths = self.lanes.iter().map(|lane| PathStatus {
            to: lane.to,
            bulk: lane.bulk,
            state: lane.path.state(),
            missing: lane
                .incoming
                .view()
                .0
                .missing()
                .map(|hole| hole.end - hole.start)
                .sum(),
        });
        SessionStatus {
            home: self.remote.home,
            is_open: self.is_open(),
            in_flight,
            lost,
            queued: self.window.queued(),
            oldest,
            restricted_to: self.pace.restricted_to(),
            units_next: self.units.next(),
            units_missing: self.units.missing().map(|hole| hole.end - hole.start).sum(),
            last_heard: self.liveness.last_heard(),
            owed_since: self.liveness.owed_since(),
            is_suspected: self.liveness.is_suspected(),
            round_trip_ns: self.round_trip_ns(),
            deadline: self.deadline(shared),
            paths: paths.collect(),
        }
    }
}
