//! The state of a session for model checkers and debuggers: numbers that only grow, times, and a
//! hash of everything else.
//!
//! Sessions that differ only in their packet numbers or in the time behave alike. So numbers and
//! times are listed here, and the reader can make them relative. Everything else is hashed.

use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use crate::holes::Hole;
use crate::path_state::LaneState;
use crate::replay::Replay;
use crate::send::{Slot, UnitView};
use crate::session::{Phase, Session};
use crate::shared::Shared;
use crate::time::Instant;

/// One lane in both directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneView {
    /// Number of the lane.
    pub lane: u8,
    /// Outgoing: lowest number that may still be requested.
    pub floor: u64,
    /// Outgoing: all numbers below this, as far as known, have arrived.
    pub arrived: u64,
    /// Outgoing: unit and part that each number from `floor` on carried.
    pub units: Vec<(u64, u8)>,
    /// Incoming: lowest missing number.
    pub next: u64,
    /// Incoming: number after the highest arrival.
    pub top: u64,
    /// Missing ranges of incoming numbers.
    pub missing: Vec<Hole>,
    /// Incoming: holes that end at or below this have been requested.
    pub requested_below: u64,
    /// State of the lane's path.
    pub state: LaneState,
}

/// A session's numbers and times. See [`Machine::view`](crate::Machine::view).
#[derive(Clone, Debug)]
pub struct View {
    /// The handshake is complete.
    pub open: bool,
    /// Lowest unit of this side that has not arrived.
    pub base: u64,
    /// Units of this side from there on.
    pub units: Vec<UnitView>,
    /// Frames that were never sent, and whether they are bulk.
    pub waiting: Vec<(Slot, bool)>,
    /// Units to retransmit, in this order.
    pub repeats: Vec<u64>,
    /// State of all lanes.
    pub lanes: Vec<LaneView>,
    /// Lowest unit of the peer that has not arrived.
    pub units_next: u64,
    /// Missing units of the peer above that.
    pub units_missing: Vec<Hole>,
    /// The number after the peer's highest unit that has arrived.
    pub units_top: u64,
    /// Next number of the control lane.
    pub control_next: u64,
    /// Timers: acknowledgement, ack request, tail, credit request, keepalive, hello, silence, probe,
    /// end of a round of probes. [`Instant::NEVER`] if a timer is off.
    pub timers: [Instant; 9],
    /// Smoothed round trip; zero before the first measurement.
    pub round_trip_ns: u64,
    control_seen: Replay,
}

impl View {
    /// True if the control lane would drop this number as a duplicate.
    #[must_use]
    pub fn knows_control(&self, number: u64) -> bool {
        self.control_seen.is_known(number)
    }
}

impl Session {
    /// See [`Machine::view`](crate::Machine::view).
    pub(crate) fn view(&self, now: Instant, shared: &Shared, hasher: &mut impl Hasher) -> View {
        self.hash_rest(now, shared, hasher);
        let lanes = self.lanes.iter().map(|lane| {
            let (holes, requested_below) = lane.incoming.view();
            LaneView {
                lane: lane.id,
                floor: lane.out.floor(),
                arrived: lane.out.arrived(),
                units: lane.out.pieces().collect(),
                next: holes.next(),
                top: holes.top(),
                missing: holes.missing().collect(),
                requested_below,
                state: lane.path.state(),
            }
        });
        let hello = match self.phase {
            Phase::Opening { retry_at, .. } => retry_at,
            Phase::Open => Instant::NEVER,
        };
        let owed_since = self.liveness.owed_since();
        let silence = owed_since.map_or(Instant::NEVER, |since| {
            since.after(shared.config.peer_timeout_ns)
        });
        View {
            open: self.is_open(),
            base: self.window.base(),
            units: self.window.view().collect(),
            waiting: self.window.waiting().collect(),
            repeats: self.window.repeats().collect(),
            lanes: lanes.collect(),
            units_next: self.units.next(),
            units_missing: self.units.missing().collect(),
            units_top: self.units.top(),
            control_next: self.control.next(),
            timers: [
                self.acks.at(),
                self.requests.ack_at(),
                self.retransmission.tail_at(),
                self.requests.credit_at(),
                self.liveness.keepalive_at(),
                hello,
                silence,
                self.paths.next_at(),
                self.sizing.ends_at(),
            ],
            round_trip_ns: self.retransmission.round_trip.smoothed_ns().unwrap_or(0),
            control_seen: self.control.seen().clone(),
        }
    }

    /// Hashes everything that is neither a number nor a time.
    fn hash_rest(&self, now: Instant, shared: &Shared, hasher: &mut impl Hasher) {
        let config = &shared.config;
        (self.id, self.remote).hash(hasher);
        if let Phase::Opening {
            cookie, retry_ns, ..
        } = self.phase
        {
            (cookie, retry_ns).hash(hasher);
        }
        self.sizing.hash_rest(hasher);
        self.assemblies.hash(hasher);
        for lane in &self.lanes {
            (lane.id, lane.bulk, lane.to, lane.incoming.dirty).hash(hasher);
            // Time-outs of a lane matter only if another lane could take over, and only in relation to
            // what was sent after them.
            if self.lanes.len() > 1 {
                lane.timeouts.view().hash(hasher);
            }
            if self.lanes.iter().any(|lane| !lane.timeouts.is_none()) {
                lane.out.view_mark().hash(hasher);
            }
            lane.path.hash(hasher);
            (lane.floor_due, lane.missing_from < lane.out.floor()).hash(hasher);
        }
        if self.lanes.len() > 1 {
            self.window.last_lanes().for_each(|lane| lane.hash(hasher));
        }
        self.pace.view().hash(hasher);
        // The estimate matters only through the time-outs computed from it.
        for shortest in [config.min_timeout_ns / 4, config.min_timeout_ns] {
            let round_trip = &self.retransmission.round_trip;
            round_trip
                .timeout_ns(shortest, config.max_timeout_ns)
                .hash(hasher);
        }
        self.unreliable.hash(hasher);
        let per_ack = shared.packets_per_ack(self.flow.window());
        let owed = self.acks.packets().min(per_ack);
        (owed, self.acks.is_due()).hash(hasher);
        self.channel.hash_state(hasher);
        self.channel.hash_disputed_ends(self.window.base(), hasher);
        self.control.hash_rest(hasher);
        let has_spare_lanes = self.lanes.len() > 2;
        self.requests.hash_rest(has_spare_lanes, hasher);
        self.retransmission
            .hash_rest(self.window.arrivals(), hasher);
        let (base, next) = (self.window.base(), self.units.next());
        self.flow.hash_rest(base, next, hasher);
        (self.window.is_settled(), self.window.has_refusals()).hash(hasher);
        self.paths.hash_rest(has_spare_lanes, hasher);
        let liveness = &self.liveness;
        (liveness.is_watched(), liveness.is_suspected()).hash(hasher);
        (self.is_ready, self.keys.renewal).hash(hasher);
        if liveness.is_watched() || self.lanes.len() > 1 {
            let quarter = config.peer_timeout_ns / 4;
            now.since(liveness.last_heard()).min(quarter).hash(hasher);
        }
    }
}
