//! Which ways to the peer work: asks lanes that have not answered, answers the peer's
//! questions. Spec §5.3.
//!
//! The lanes of the addresses that the handshake used need no question. The others are
//! asked shortly after the opening, twice, and from then on only while units fly: a session
//! at rest asks nothing.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use siphasher::sip::SipHasher24;

use crate::event::{Event, PathChange};
use crate::lane::Lane;
use crate::path_state::LaneState;
use crate::session::{Backoff, Session};
use crate::shared::Shared;
use crate::time::Instant;
use crate::wire::{Address, HEADER_BYTES, HELLO_FIXED_BYTES, Hello, LANE_BYTES, LaneAddress};

/// Rounds of questions that are asked of a session at rest too.
const FIRST_ROUNDS: u8 = 2;
/// Bytes to addresses that have never answered, for each that has come.
const AMPLIFICATION: u64 = 3;
/// More than all probes to unproven addresses take until they are proven.
const MUCH: usize = 4096;
/// Answers to probes that are owed at most: eight lanes in six lengths.
const MAX_ECHOES: usize = 48;
/// Lanes that do not answer are asked again after at most this many longest time-outs.
const LANE_REST: u64 = 4;

/// What is known of one lane towards a peer. See [`Machine::lanes`](crate::Machine::lanes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneStatus {
    /// Its number.
    pub lane: u8,
    /// Bulk class.
    pub bulk: bool,
    /// The peer's address.
    pub to: Address,
    /// Whether packets get there.
    pub state: LaneState,
    /// It has been asked, and had time to answer.
    pub asked: bool,
}

/// An answer that is owed to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Echo {
    pub(super) lane: u8,
    pub(super) token: u64,
    /// Length of the packet that brought the probe.
    pub(super) length: u16,
    /// By which lane, as an index: back to where the probe came from.
    pub(super) back: usize,
}

/// Questions and answers about the lanes of one session.
#[derive(Clone, Debug)]
pub(super) struct Paths {
    timer: Backoff,
    rounds: u8,
    /// Lanes to be asked now, a bit for each index.
    due: u16,
    settled: bool,
    echoes: VecDeque<Echo>,
    /// Tokens of probes come from this.
    secret: u64,
    /// Bytes that came in this session, and that went to addresses which have never answered.
    received: u64,
    sent_unproven: u64,
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
        }
    }

    /// What a probe of a lane carries: whoever does not receive it cannot know it.
    pub(super) fn token(&self, lane: &Lane) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.secret, 0);
        hasher.write(&[lane.id, lane.path.round()]);
        hasher.finish()
    }

    /// A packet of this length has come.
    #[inline]
    pub(super) fn received(&mut self, bytes: u16) {
        self.received += u64::from(bytes);
    }

    /// Bytes that may go to addresses which have never answered: the peer may have named
    /// somebody else's.
    pub(super) fn unproven_left(&self) -> usize {
        let left = (AMPLIFICATION * self.received).saturating_sub(self.sent_unproven);
        usize::try_from(left).unwrap_or(usize::MAX)
    }

    /// True if there is a question or an answer to be sent.
    #[inline]
    pub(super) fn has_transmit(&self) -> bool {
        self.due != 0 || !self.echoes.is_empty()
    }

    /// When lanes are asked next, if units fly then.
    pub(super) fn next_at(&self) -> Instant {
        self.timer.at
    }

    pub(super) fn next_echo(&mut self) -> Option<Echo> {
        self.echoes.pop_front()
    }

    /// The lane to be asked next.
    pub(super) fn next_question(&mut self) -> Option<usize> {
        if self.due == 0 {
            return None;
        }
        let index = self.due.trailing_zeros();
        self.due &= self.due - 1;
        usize::try_from(index).ok()
    }

    /// Everything but the times, for [`View`](crate::View).
    pub(super) fn hash_rest(&self, hasher: &mut impl Hasher) {
        (self.rounds.min(FIRST_ROUNDS), self.due, self.settled).hash(hasher);
        (&self.echoes, self.timer.pause_ns).hash(hasher);
        // Whether another probe may go is all that the budget decides for long.
        (self.unproven_left() > MUCH).hash(hasher);
    }
}

impl Session {
    /// The lanes of both sides: what the peer listens on, and what only we do.
    pub(super) fn open_lanes(
        &mut self,
        hello: &Hello,
        own: &[LaneAddress],
        now: Instant,
        shared: &mut Shared,
    ) {
        let home = self.home;
        let first = u64::from(shared.config.first_number);
        let theirs = hello.lanes().iter().map(|lane| {
            let mut to = lane.address;
            if to.is_unspecified() {
                to.ip = home.ip;
            }
            (lane.lane, lane.bulk, to)
        });
        let theirs: Vec<(u8, bool, Address)> = theirs.collect();
        let mut theirs = theirs;
        // Behind a translation of addresses none is listed that the handshake has used: the
        // first small lane goes where that went. What is listed is a claim.
        if theirs.iter().all(|(.., to)| to.ip != home.ip) {
            let first = theirs.iter().position(|(_, bulk, _)| !bulk).unwrap_or(0);
            if let Some((.., to)) = theirs.get_mut(first) {
                *to = home;
            }
        }
        let hello_bytes = HEADER_BYTES + HELLO_FIXED_BYTES + theirs.len() * LANE_BYTES;
        self.paths.received += hello_bytes as u64;
        let is_own = |ip: [u8; 16]| own.iter().any(|lane| lane.address.ip == ip);
        let strangers = !is_own(home.ip);
        let lanes = theirs.iter().map(|&(id, bulk, to)| {
            let state = match () {
                () if to.ip == home.ip => LaneState::Answers,
                () if strangers && is_own(to.ip) => LaneState::OwnAddress,
                () => LaneState::Waiting,
            };
            Lane::new(id, bulk, to, state, first)
        });
        let only_ours = own.iter().filter(|lane| {
            let id = lane.lane;
            theirs.iter().all(|(their, ..)| *their != id)
        });
        let only_ours =
            only_ours.map(|lane| Lane::new(lane.lane, lane.bulk, home, LaneState::Missing, first));
        self.lanes = lanes.chain(only_ours).collect();
        let mut lanes = self.lanes.iter();
        let home = lanes.position(|lane| !lane.bulk && lane.path.is_proven());
        self.heard_on = home.unwrap_or(0);
        if self.lanes.iter().any(|lane| lane.path.is_in_question()) {
            let first = self.probe_pause_ns(shared);
            self.paths.timer.start(now, first);
        }
        self.settle_paths(shared);
    }

    /// What is known of the lanes towards the peer.
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

    fn probe_pause_ns(&self, shared: &Shared) -> u64 {
        let config = &shared.config;
        self.trip
            .timeout_ns(config.min_timeout_ns, config.max_timeout_ns)
    }

    /// When lanes are asked next; never while nothing is sent.
    #[inline]
    pub(super) fn probe_at(&self) -> Instant {
        if self.window.flying() > 0 || self.paths.rounds < FIRST_ROUNDS {
            self.paths.timer.at
        } else {
            Instant::NEVER
        }
    }

    /// A unit has left: the first does not wait for questions, they follow it.
    #[inline]
    pub(super) fn probe_after_unit(&mut self, now: Instant, shared: &mut Shared) {
        if !self.paths.timer.is_off() && (self.paths.rounds == 0 || now >= self.paths.timer.at) {
            self.probe_lanes(now, shared);
        }
    }

    /// Asks all lanes in question.
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

    /// A lane was given up: it is asked until it answers.
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

    /// The peer asks whether its probe of one of our lanes arrives.
    pub(super) fn on_probe(&mut self, lane: u8, token: u64, length: u16, from: Address) {
        // Nobody asks for lanes that the session has not.
        let Some(asked) = self.lanes.iter().find(|known| known.id == lane) else {
            return;
        };
        let bulk = asked.bulk;
        let back = |alike: bool| {
            self.lanes.iter().position(|lane| {
                lane.path.may_lead_there() && lane.to.ip == from.ip && (!alike || lane.bulk == bulk)
            })
        };
        // The same class, so that bulk's port is tried too; the pair of addresses counts.
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

    /// A probe of ours has arrived.
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
            // Somebody is there: a probe as long as packets get may follow.
            if !lane.path.is_heard() {
                lane.path.on_packet();
                self.paths.due |= 1 << index;
            }
            return;
        }
        let Some(before) = lane.path.answer() else {
            return;
        };
        if before == LaneState::Silent || self.paths.settled {
            shared.event(Event::Paths {
                peer: self.id,
                change: PathChange::Restored { lane: id },
            });
        }
        self.settle_paths(shared);
    }

    /// Packets are of another length now: lanes that did not answer may do so.
    pub(super) fn ask_lanes_again(&mut self, now: Instant, shared: &Shared) {
        if self.lanes.iter().any(|lane| lane.path.is_in_question()) {
            let pause = self.probe_pause_ns(shared);
            self.paths.timer.start(now, pause);
        }
    }

    /// Notes what leaves by a lane; false if it must not: its address has never answered, and
    /// enough has gone there.
    pub(super) fn charge_unproven(&mut self, index: usize, bytes: usize) -> bool {
        if self.lanes[index].path.is_heard() {
            return true;
        }
        let may = bytes <= self.paths.unproven_left();
        if may {
            self.paths.sent_unproven += bytes as u64;
        }
        may
    }

    /// Asks no more once all have answered.
    fn settle_paths(&mut self, shared: &mut Shared) {
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
