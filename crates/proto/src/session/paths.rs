//! Which ways to the peer work: asks lanes that have not answered, answers the peer's
//! questions. Spec §5.3.
//!
//! The lanes of the addresses that the handshake used need no question. The others are
//! asked shortly after the opening, twice, and from then on only while units fly: a session
//! at rest asks nothing.

use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use crate::event::{Event, PathChange};
use crate::lane::Lane;
use crate::reach::LaneState;
use crate::session::{Backoff, Session};
use crate::shared::Shared;
use crate::time::Instant;
use crate::wire::{Address, Hello, LaneAddress};

/// Rounds of questions that are asked of a session at rest too.
const FIRST_ROUNDS: u8 = 2;
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
    pub(super) round: u8,
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
    echoes: Vec<Echo>,
}

impl Paths {
    pub(super) const NONE: Paths = Paths {
        timer: Backoff::OFF,
        rounds: 0,
        due: 0,
        settled: false,
        echoes: Vec::new(),
    };

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
        self.echoes.pop()
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
        let theirs = hello.lanes().iter().map(|lane| {
            let mut to = lane.address;
            if to.is_unspecified() {
                to.ip = home.ip;
            }
            (lane.lane, lane.bulk, to)
        });
        let theirs: Vec<(u8, bool, Address)> = theirs.collect();
        // Behind a translation of addresses the first card stands for the one that was used.
        let used = theirs.iter().find(|(.., to)| to.ip == home.ip);
        let used = used.or(theirs.first()).map(|(.., to)| to.ip);
        let is_own = |ip: [u8; 16]| own.iter().any(|lane| lane.address.ip == ip);
        let strangers = !is_own(home.ip);
        let lanes = theirs.iter().map(|&(id, bulk, to)| {
            let state = match () {
                () if Some(to.ip) == used => LaneState::Answers,
                () if strangers && is_own(to.ip) => LaneState::OwnAddress,
                () => LaneState::Waiting,
            };
            Lane::new(id, bulk, to, state)
        });
        let only_ours = own.iter().filter(|lane| {
            let id = lane.lane;
            theirs.iter().all(|(their, ..)| *their != id)
        });
        let only_ours =
            only_ours.map(|lane| Lane::new(lane.lane, lane.bulk, home, LaneState::Missing));
        self.lanes = lanes.chain(only_ours).collect();
        let mut lanes = self.lanes.iter();
        let home = lanes.position(|lane| !lane.bulk && lane.reach.is_proven());
        self.heard_on = home.unwrap_or(0);
        self.paths = Paths::NONE;
        if self.lanes.iter().any(|lane| lane.reach.is_in_question()) {
            let first = self.probe_pause_ns(shared);
            self.paths.timer.start(now, first);
        }
        self.settle_paths(shared);
    }

    /// What is known of the lanes towards the peer.
    pub(crate) fn lane_states(&self) -> impl Iterator<Item = LaneStatus> + '_ {
        let there = |lane: &&Lane| lane.reach.state() != LaneState::Missing;
        self.lanes.iter().filter(there).map(|lane| LaneStatus {
            lane: lane.id,
            bulk: lane.bulk,
            to: lane.to,
            state: lane.reach.state(),
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
            self.paths.due |= u16::from(lane.reach.is_in_question()) << index;
        }
        if self.paths.rounds > 0 {
            self.tell_settled(shared);
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
        lane.reach.give_up();
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
    pub(super) fn on_probe(&mut self, lane: u8, round: u8, from: Address) {
        // Nobody asks for lanes that the session has not.
        let Some(asked) = self.lanes.iter().find(|known| known.id == lane) else {
            return;
        };
        let bulk = asked.bulk;
        let back = |alike: bool| {
            self.lanes.iter().position(|lane| {
                lane.reach.may_lead_there()
                    && lane.to.ip == from.ip
                    && (!alike || lane.bulk == bulk)
            })
        };
        // The same class, so that bulk's port is tried too; the pair of addresses counts.
        let back = back(true).or_else(|| back(false));
        let back = back.or_else(|| self.lanes.iter().position(|lane| lane.reach.is_proven()));
        let echo = Echo {
            lane,
            round,
            back: back.unwrap_or(0),
        };
        self.paths.echoes.retain(|owed| owed.lane != lane);
        self.paths.echoes.push(echo);
    }

    /// A probe of ours has arrived.
    pub(super) fn on_echo(&mut self, lane: u8, round: u8, shared: &mut Shared) {
        let Some(lane) = self.lanes.iter_mut().find(|known| known.id == lane) else {
            return;
        };
        let id = lane.id;
        let Some(before) = lane.reach.answer(round) else {
            return;
        };
        if before == LaneState::Silent || self.paths.settled {
            shared.event(Event::Paths {
                peer: self.id,
                change: PathChange::Back { lane: id },
            });
        }
        self.settle_paths(shared);
    }

    /// Asks no more once all have answered.
    fn settle_paths(&mut self, shared: &mut Shared) {
        if self.lanes.iter().any(|lane| lane.reach.is_in_question()) {
            return;
        }
        self.paths.timer = Backoff::OFF;
        self.paths.due = 0;
        self.tell_settled(shared);
    }

    fn tell_settled(&mut self, shared: &mut Shared) {
        if !self.paths.settled {
            self.paths.settled = true;
            shared.event(Event::Paths {
                peer: self.id,
                change: PathChange::Settled,
            });
        }
    }
}
