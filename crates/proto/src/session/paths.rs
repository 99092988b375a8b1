//! Tracks the reachable addresses of the peer: probes lanes that have not answered, and answers
//! the peer's probes. Spec §5.3.
//!
//! Lanes of the addresses that the handshake used are not probed. Others are probed twice after
//! the session has opened, and later only while units are in flight: an idle session does not
//! probe.

use alloc::collections::VecDeque;
use core::hash::{Hash, Hasher};
use serde::{Deserialize, Serialize};

use siphasher::sip::SipHasher24;

use crate::backoff::Backoff;
use crate::event::{Event, PathChange};
use crate::lane::Lane;
use crate::path_state::LaneState;
use crate::session::Session;
use crate::session::addresses::Announcements;
use crate::shared::Shared;
use crate::time::Instant;
use crate::wire::{Address, HEADER_BYTES, HELLO_FIXED_BYTES, Hello, LANE_BYTES};

/// Rounds of probes that are sent even if the session is idle.
const FIRST_ROUNDS: u8 = 2;
/// Bytes that may be sent to unproven addresses for each byte received.
const AMPLIFICATION: u64 = 3;
/// More bytes than probes to unproven addresses need.
const MUCH: usize = 4096;
/// Most queued answers to probes: eight lanes with six lengths each.
const MAX_ECHOES: usize = 48;
/// The longest pause between probes of a silent lane, in longest time-outs.
const LANE_REST: u64 = 4;

/// State of one lane towards a peer. See [`Machine::lanes`](crate::Machine::lanes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneStatus {
    /// Number of the lane.
    pub lane: u8,
    /// The lane carries bulk traffic.
    pub bulk: bool,
    /// Address of the peer on this lane.
    pub to: Address,
    /// State of the path to that address.
    pub state: LaneState,
    /// It was probed and had time to answer.
    pub asked: bool,
}

/// The answer to a probe, to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Echo {
    pub(super) lane: u8,
    pub(super) token: u64,
    /// Length of the packet with the probe.
    pub(super) length: u16,
    /// Index of the lane that leads back to the sender of the probe.
    pub(super) back: usize,
}

/// Probes, and answers to probes, of one session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Paths {
    timer: Backoff,
    rounds: u8,
    /// Lanes to probe now, one bit for each index.
    due: u16,
    settled: bool,
    echoes: VecDeque<Echo>,
    /// Key for the tokens of probes.
    secret: u64,
    /// Bytes received in this session, and bytes sent to unproven addresses.
    received: u64,
    sent_unproven: u64,
    /// Index of the lane on which the next bulk packets leave.
    next_bulk_lane: usize,
    /// Index of the lane to the source of the newest packet; replies use it.
    reply_lane: usize,
    pub(super) announcements: Announcements,
}

impl Paths {
    pub(super) fn new(secret: u64) -> Paths {
        Paths {
            timer: Backoff::OFF,
            rounds: 0,
            due: 0,
            settled: false,
            echoes: VecDeque::new(),
            secret,
            received: 0,
            sent_unproven: 0,
            next_bulk_lane: 0,
            reply_lane: 0,
            announcements: Announcements::default(),
        }
    }

    /// The token in a probe of a lane. Only a receiver of the probe can know it.
    pub(super) fn token(&self, lane: &Lane) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.secret, 0);
        hasher.write(&[lane.id, lane.path.round()]);
        hasher.finish()
    }

    /// Counts a received packet of this length.
    #[inline]
    pub(super) fn received(&mut self, bytes: u16, packets: u32) {
        self.received += u64::from(bytes) * u64::from(packets);
    }

    /// Bytes that may still be sent to unproven addresses. The limit protects unrelated hosts whose
    /// addresses a peer may claim as its own.
    pub(super) fn unproven_left(&self) -> usize {
        let left = (AMPLIFICATION * self.received).saturating_sub(self.sent_unproven);
        usize::try_from(left).unwrap_or(usize::MAX)
    }

    /// True if there are probes or answers to send.
    #[inline]
    pub(super) fn has_transmit(&self) -> bool {
        self.due != 0 || !self.echoes.is_empty()
    }

    /// When lanes are probed next, if units are in flight then.
    pub(super) fn next_at(&self) -> Instant {
        self.timer.at
    }

    /// True if the peer must be sent the list of this side's lanes.
    #[inline]
    pub(super) fn must_announce(&self) -> bool {
        self.announcements.is_due()
    }

    pub(super) fn next_echo(&mut self) -> Option<Echo> {
        self.echoes.pop_front()
    }

    /// The next lane to probe.
    pub(super) fn next_unproven(&mut self) -> Option<usize> {
        if self.due == 0 {
            return None;
        }
        let index = self.due.trailing_zeros();
        self.due &= self.due - 1;
        usize::try_from(index).ok()
    }

    #[inline]
    pub(super) fn next_bulk_lane(&self) -> usize {
        self.next_bulk_lane
    }

    #[inline]
    pub(super) fn set_next_bulk_lane(&mut self, index: usize) {
        self.next_bulk_lane = index;
    }

    #[inline]
    pub(super) fn reply_lane(&self) -> usize {
        self.reply_lane
    }

    pub(super) fn set_reply_lane(&mut self, index: usize) {
        self.reply_lane = index;
    }

    /// Hashes everything but the times, for [`View`](crate::View).
    pub(super) fn hash_rest(&self, has_spare_lanes: bool, hasher: &mut impl Hasher) {
        self.next_bulk_lane.hash(hasher);
        if has_spare_lanes {
            self.reply_lane.hash(hasher);
        }
        (self.rounds.min(FIRST_ROUNDS), self.due, self.settled).hash(hasher);
        (&self.echoes, self.timer.pause_ns).hash(hasher);
        self.announcements.hash(hasher);
        // The exact budget matters only while it is too small for all probes.
        (self.unproven_left() > MUCH).hash(hasher);
    }
}

impl Session {
    /// Creates the lanes: those on which the peer listens, and those on which only this side does.
    pub(super) fn open_lanes(&mut self, hello: &Hello, now: Instant, shared: &mut Shared) {
        let (home, own) = (self.remote.home, &shared.lanes);
        let first = u64::from(shared.config.first_number);
        self.paths.announcements.is_translated = (hello.lanes().iter())
            .all(|lane| !lane.address.is_unspecified() && lane.address.ip != home.ip);
        let theirs = self.listed(hello.lanes().iter().copied());
        let hello_bytes = HEADER_BYTES + HELLO_FIXED_BYTES + theirs.len() * LANE_BYTES;
        self.paths.received += hello_bytes as u64;
        let lanes = theirs.iter().map(|&(id, bulk, to)| {
            let state = match to.ip == home.ip {
                true => LaneState::Answers,
                false => self.claimed(to, own),
            };
            Lane::new(id, bulk, to, state, first)
        });
        let only_ours = own.iter().filter(|lane| {
            let id = lane.lane;
            theirs.iter().all(|(their, ..)| *their != id)
        });
        let only_ours =
            only_ours.map(|lane| Lane::new(lane.lane, lane.bulk, home, LaneState::Missing, first));
        let lanes = lanes.chain(only_ours).collect();
        self.lanes = lanes;
        let mut lanes = self.lanes.iter();
        let home = lanes.position(|lane| !lane.bulk && lane.path.is_proven());
        self.paths.reply_lane = home.unwrap_or(0);
        if self.lanes.iter().any(|lane| lane.path.is_in_question()) {
            let first = self.probe_pause_ns(shared);
            self.paths.timer.start(now, first);
        }
        self.stop_if_settled(shared);
    }

    /// States of the lanes towards the peer.
    pub(crate) fn lane_states(&self) -> impl Iterator<Item = LaneStatus> + '_ {
        let there = |lane: &&Lane| lane.path.state() != LaneState::Missing;
        self.lanes.iter().filter(there).map(|lane| LaneStatus {
            lane: lane.id,
            bulk: lane.bulk,
            to: lane.to,
            state: lane.path.state(),
            asked: self.paths.settled,
        })
    }

    pub(super) fn probe_pause_ns(&self, shared: &Shared) -> u64 {
        self.retransmission.timeout_ns(&shared.config)
    }

    /// When lanes are probed next; never while the session is idle.
    #[inline]
    pub(super) fn probe_at(&self) -> Instant {
        if self.window.flying() > 0 || self.paths.rounds < FIRST_ROUNDS {
            self.paths.timer.at
        } else {
            Instant::NEVER
        }
    }

    /// A unit was sent: probes follow the first one instead of delaying it.
    #[inline]
    pub(super) fn probe_after_unit(&mut self, now: Instant, shared: &mut Shared) {
        if !self.paths.timer.is_off() && (self.paths.rounds == 0 || now >= self.paths.timer.at) {
            self.probe_lanes(now, shared);
        }
    }

    /// Probes all lanes whose state is unknown.
    pub(super) fn probe_lanes(&mut self, now: Instant, shared: &mut Shared) {
        self.paths.due = 0;
        for (index, lane) in self.lanes.iter().enumerate() {
            self.paths.due |= u16::from(lane.path.is_in_question()) << index;
        }
        if self.paths.rounds > 0 {
            self.report_settled(shared);
            let rest = LANE_REST * shared.config.max_timeout_ns;
            self.paths.timer.again(now, rest);
        } else {
            let pause = self.probe_pause_ns(shared);
            self.paths.timer.start(now, pause);
        }
        self.paths.rounds = self.paths.rounds.saturating_add(1);
    }

    /// Gives up a lane. It is probed until it answers.
    pub(super) fn lane_lost(&mut self, index: usize, now: Instant, shared: &mut Shared) {
        let lane = &mut self.lanes[index];
        lane.path.give_up();
        let id = lane.id;
        shared.stats.lanes_lost += 1;
        self.paths
            .timer
            .start(now, shared.config.max_timeout_ns.max(1));
        self.window.abandon_lane(id);
        shared.event(Event::Paths {
            peer: self.id,
            change: PathChange::Lost { lane: id },
        });
    }

    /// Queues the answer to a probe of one of this side's lanes.
    pub(super) fn on_probe(&mut self, lane: u8, token: u64, length: u16, from: Address) {
        // A lane that the session does not have gets no answer.
        let Some(asked) = self.lanes.iter().find(|known| known.id == lane) else {
            return;
        };
        let bulk = asked.bulk;
        let back = |alike: bool| {
            self.lanes.iter().position(|lane| {
                lane.path.may_lead_there() && lane.to.ip == from.ip && (!alike || lane.bulk == bulk)
            })
        };
        // The answer takes the same class if possible, so that the bulk port is tested, too.
        let back = back(true).or_else(|| back(false));
        let back = back.or_else(|| self.lanes.iter().position(|lane| lane.path.is_proven()));
        let echo = Echo {
            lane,
            token,
            length,
            back: back.unwrap_or(0),
        };
        let same = |owed: &Echo| (owed.lane, owed.length) == (lane, length);
        self.paths.echoes.retain(|owed| !same(owed));
        if self.paths.echoes.len() >= MAX_ECHOES {
            self.paths.echoes.pop_front();
        }
        self.paths.echoes.push_back(echo);
    }

    /// A probe of this side was answered.
    pub(super) fn on_echo(&mut self, lane: u8, token: u64, length: u16, shared: &mut Shared) {
        let Some(index) = self.lanes.iter().position(|known| known.id == lane) else {
            return;
        };
        let lane = &mut self.lanes[index];
        if token != self.paths.token(lane) {
            return;
        }
        self.sizing.size.answered(index, length);
        let id = lane.id;
        if lane.path.is_in_question() && usize::from(length) < self.sizing.size.bytes() {
            // The address answers, so a probe of full length may follow.
            if !lane.path.is_heard() {
                lane.path.on_packet();
                self.paths.due |= 1 << index;
            }
            return;
        }
        let Some(before) = lane.path.answer() else {
            return;
        };
        self.move_home(index, shared);
        if before == LaneState::Silent || self.paths.settled {
            shared.event(Event::Paths {
                peer: self.id,
                change: PathChange::Restored { lane: id },
            });
        }
        self.stop_if_settled(shared);
    }

    /// The packet size has changed: silent lanes may answer now.
    pub(super) fn probe_again(&mut self, now: Instant, shared: &Shared) {
        if self.lanes.iter().any(|lane| lane.path.is_in_question()) {
            let pause = self.probe_pause_ns(shared);
            self.paths.timer.start(now, pause);
        }
    }

    /// Counts bytes sent on a lane. Returns false if they must not be sent, because the lane is
    /// unproven and the limit is reached.
    pub(super) fn count_unproven(&mut self, index: usize, bytes: usize) -> bool {
        if self.lanes[index].path.is_heard() {
            return true;
        }
        let may = bytes <= self.paths.unproven_left();
        if may {
            self.paths.sent_unproven += bytes as u64;
        }
        may
    }

    /// Probes all lanes in question soon, even if the session is idle, because addresses have
    /// changed.
    pub(super) fn probe_anew(&mut self, now: Instant, shared: &mut Shared) {
        self.paths.rounds = 0;
        self.paths.settled = false;
        let pause = self.probe_pause_ns(shared);
        self.paths.timer.start(now, pause);
        self.stop_if_settled(shared);
    }

    /// Stops probing once all lanes have answered.
    fn stop_if_settled(&mut self, shared: &mut Shared) {
        if self.lanes.iter().any(|lane| lane.path.is_in_question()) {
            return;
        }
        self.paths.timer = Backoff::OFF;
        self.paths.due = 0;
        self.report_settled(shared);
    }

    fn report_settled(&mut self, shared: &mut Shared) {
        if !self.paths.settled {
            self.paths.settled = true;
            shared.event(Event::Paths {
                peer: self.id,
                change: PathChange::Settled,
            });
        }
    }
}
