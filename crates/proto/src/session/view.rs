//! A session laid open, for model checkers and debuggers: what it is in, told
//! apart into numbers that only grow, times, and all the rest.
//!
//! Two sessions that differ only in how far their packet numbers have come, or in
//! what the clock shows, behave alike. So numbers and times are listed here for
//! the reader to make relative, and everything else goes into a hasher.

use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use crate::holes::Hole;
use crate::path_state::LaneState;
use crate::replay::Replay;
use crate::send::Slot;
use crate::session::{Phase, Session};
use crate::shared::Shared;
use crate::time::Instant;

/// Where a unit is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnitState {
    /// Sent, fate unknown.
    Flying {
        /// Over which lane.
        lane: u8,
        /// Under which packet number.
        number: u64,
    },
    /// Known or feared lost: to be repeated.
    Lost,
    /// Received by the peer; units before it are not.
    Arrived,
    /// Too long for the path: its parts are sent instead.
    Cut,
}

/// One unit that has been numbered and not settled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UnitView {
    /// Its frame; the caller's again if it has arrived.
    pub slot: Slot,
    /// Bulk class.
    pub bulk: bool,
    /// How far it has come.
    pub state: UnitState,
    /// When it last left.
    pub sent_at: Instant,
    /// If it is cut, how far its parts have come, and when they last left.
    pub parts: Vec<(UnitState, Instant)>,
}

/// One lane, both directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneView {
    /// Its id.
    pub lane: u8,
    /// Outgoing: the lowest number that may still be asked for.
    pub floor: u64,
    /// Outgoing: the end of what is known to have arrived.
    pub arrived: u64,
    /// Outgoing: the units that the numbers from `floor` on carried, and which part.
    pub units: Vec<(u64, u8)>,
    /// Incoming: the lowest number missing.
    pub next: u64,
    /// Incoming: the number after the highest arrival.
    pub top: u64,
    /// Incoming: missing ranges.
    pub missing: Vec<Hole>,
    /// Incoming: holes that end at or below this have been asked for.
    pub asked_below: u64,
    /// Whether what is sent there arrives.
    pub state: LaneState,
}

/// A session's numbers and times. See [`Machine::view`](crate::Machine::view).
#[derive(Clone, Debug)]
pub struct View {
    /// The handshake is complete.
    pub open: bool,
    /// Lowest own unit that has not arrived.
    pub base: u64,
    /// Own units from there on.
    pub units: Vec<UnitView>,
    /// Frames that wait for their first sending, and whether they are bulk.
    pub waiting: Vec<(Slot, bool)>,
    /// Units that wait for their repetition, in that order.
    pub repeats: Vec<u64>,
    /// The lanes.
    pub lanes: Vec<LaneView>,
    /// Lowest unit of the peer that has not arrived.
    pub units_next: u64,
    /// Units of the peer missing above that.
    pub units_missing: Vec<Hole>,
    /// The number after the peer's highest unit that has arrived.
    pub units_top: u64,
    /// The next number of the control lane.
    pub control_next: u64,
    /// Timers: acknowledgement, ack request, tail, wish for credit, keepalive, hello,
    /// silence, probe, end of a round of probes; [`Instant::NEVER`] where none runs.
    pub timers: [Instant; 9],
    /// The smoothed round trip, zero if none was measured.
    pub round_trip_ns: u64,
    control_seen: Replay,
}

impl View {
    /// True if the control lane would not take this number (any more).
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
            let (holes, asked_below) = lane.incoming.view();
            LaneView {
                lane: lane.id,
                floor: lane.out.floor(),
                arrived: lane.out.arrived(),
                units: lane.out.pieces().collect(),
                next: holes.next(),
                top: holes.top(),
                missing: holes.missing().collect(),
                asked_below,
                state: lane.path.state(),
            }
        });
        let hello = match self.phase {
            Phase::Opening { retry_at, .. } => retry_at,
            Phase::Open => Instant::NEVER,
        };
        let silence = self.asked_at.map_or(Instant::NEVER, |asked| {
            asked.after(shared.config.peer_timeout_ns)
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
            control_next: self.control_number,
            timers: [
                self.pending_ack.due,
                self.ack_request.at,
                self.tail.at,
                self.want.at,
                self.keepalive_at,
                hello,
                silence,
                self.paths.next_at(),
                self.sizing.ends_at(),
            ],
            round_trip_ns: self.trip.smoothed_ns().unwrap_or(0),
            control_seen: self.control_seen.clone(),
        }
    }

    /// Everything that is neither number nor time.
    fn hash_rest(&self, now: Instant, shared: &Shared, hasher: &mut impl Hasher) {
        let config = &shared.config;
        (self.id, self.remote, self.home).hash(hasher);
        if let Phase::Opening {
            cookie, retry_ns, ..
        } = self.phase
        {
            (cookie, retry_ns).hash(hasher);
        }
        self.next_bulk_lane.hash(hasher);
        self.sizing.hash_rest(hasher);
        self.assemblies.hash(hasher);
        for lane in &self.lanes {
            (lane.id, lane.bulk, lane.to, lane.incoming.dirty).hash(hasher);
            // LaneTimeouts matter only where another lane could take over, and of what flies there
            // only whether it left after them.
            if self.lanes.len() > 1 {
                lane.timeouts.view().hash(hasher);
            }
            if self.lanes.iter().any(|lane| !lane.timeouts.is_none()) {
                lane.out.view_mark().hash(hasher);
            }
            lane.path.hash(hasher);
            (lane.floor_due, lane.told < lane.out.floor()).hash(hasher);
        }
        if self.lanes.len() > 1 {
            self.window.last_lanes().for_each(|lane| lane.hash(hasher));
        }
        self.pace.view().hash(hasher);
        // The estimate matters through the time-outs drawn from it.
        for shortest in [config.min_timeout_ns / 4, config.min_timeout_ns] {
            self.trip
                .timeout_ns(shortest, config.max_timeout_ns)
                .hash(hasher);
        }
        self.unreliable.hash(hasher);
        let per_ack = shared.packets_per_ack(self.announced_window);
        let owed = self.pending_ack.packets.min(per_ack);
        (owed, self.pending_ack.now).hash(hasher);
        self.channel.hash_state(hasher);
        let wishes = match self.credit_requests_from {
            0 => None,
            from => Some(i128::from(from) - i128::from(self.control_seen.top())),
        };
        (wishes, self.ack_request_due).hash(hasher);
        for question in [&self.ack_request, &self.tail, &self.want] {
            question.pause_ns.hash(hasher);
        }
        (self.tail_arrivals == self.window.arrivals()).hash(hasher);
        (self.forced, self.detour, self.announced_window).hash(hasher);
        let told = self.announced_backlog.saturating_sub(self.window.base());
        (self.window_due, told, self.backlog_left()).hash(hasher);
        if self.lanes.len() > 2 {
            (self.heard_on, self.unanswered).hash(hasher);
        }
        self.paths.hash_rest(hasher);
        (self.watched, self.expecting, self.is_ready, self.doubted).hash(hasher);
        self.renewal.hash(hasher);
        if self.watched || self.lanes.len() > 1 {
            let quarter = config.peer_timeout_ns / 4;
            now.since(self.last_heard).min(quarter).hash(hasher);
        }
    }
}
