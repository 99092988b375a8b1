//! Who is gone, and who is told.
//!
//! Whoever finds out tells all; who asks a member of a generation that has ended is told by its
//! port. So nobody waits for long, though the one who tells may go in the middle of it.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dipole_proto::wire::{
    GROUP_HEAD_BYTES, GroupCall, GroupEnding, GroupHead, GroupKind, GroupOperation,
};

use super::board::{Board, Key, TOLD_ALL};
use super::calls::Turn;
use super::error::{Deadline, in_words};
use super::{Group, GroupError, Member, Members};
use dipole_node::SendError;
use dipole_node::{Edge, Operation};

/// What a member sent before it went may still be on its way; for longer if its process lives,
/// which repeats what was lost.
const GRACE: Duration = Duration::from_millis(100);
const LONG_GRACE: Duration = Duration::from_secs(1);
/// Members of a generation that has begun were all there: an edge to one connects in this time.
const CONNECTING: Duration = Duration::from_secs(5);
/// How long others are told at most that the generation has ended.
const TELLING: Duration = Duration::from_secs(2);
/// How long who leaves waits until what it passes on has gone.
const PASSING: Duration = Duration::from_secs(5);
/// Between two attempts to reach a member that is still to come.
const RETRY: Duration = Duration::from_millis(10);

/// What is said to the sender of a message whose generation has ended.
pub(super) fn ended_message(head: &GroupHead, from: u64, ending: &GroupEnding) -> Vec<u8> {
    let head = GroupHead {
        kind: GroupKind::Ended,
        round: 0,
        number: from,
        offset: 0,
        ..*head
    };
    let mut message = Vec::with_capacity(GROUP_HEAD_BYTES);
    message.extend(head.to_bytes());
    message.extend(ending.to_bytes());
    message
}

/// True if a process or its port is gone, or not there yet.
fn is_loss(cause: &SendError) -> bool {
    matches!(
        cause,
        SendError::Refused { .. } | SendError::PeerGone { .. } | SendError::Unreachable { .. }
    )
}

fn grace(cause: &SendError) -> Duration {
    match cause {
        SendError::Refused { .. } => LONG_GRACE,
        _ => GRACE,
    }
}

impl Group {
    pub(super) fn named(&self, ranks: impl IntoIterator<Item = u32>) -> Vec<Member> {
        let ranks = ranks.into_iter().map(|rank| rank as usize);
        ranks
            .filter(|rank| *rank < self.size())
            .map(|rank| self.member(rank))
            .collect()
    }

    fn member(&self, rank: usize) -> Member {
        let address = self.roster.address(rank);
        Member { rank, address }
    }

    /// A message outside of calls.
    fn notice(&self, kind: GroupKind, number: u64) -> GroupHead {
        GroupHead {
            kind,
            call: GroupCall {
                operation: GroupOperation::Barrier,
                root: 0,
                length: 0,
            },
            round: 0,
            rank: self.roster.own_rank(),
            generation: self.roster.members.generation,
            list: self.roster.list,
            number,
            offset: 0,
        }
    }

    pub(super) fn edge(&self, rank: usize) -> Result<Arc<Edge>, SendError> {
        self.roster.edge(rank, |address| self.port.edge(address))
    }

    /// Asks a member whether it is still there: its process answers, or the next time the edge
    /// knows.
    pub(super) fn ask(&self, turn: &Turn, rank: usize) -> Result<(), SendError> {
        let probe = self.notice(GroupKind::Probe, turn.number);
        let edge = self.edge(rank)?;
        match edge.try_send(&probe.to_bytes()) {
            Err(SendError::Full { target, .. }) if !turn.is_patient && edge.is_lost(CONNECTING) => {
                let reason = None;
                Err(SendError::PeerGone { target, reason })
            }
            Err(SendError::Full { .. }) => Ok(()),
            asked => asked,
        }
    }

    /// A member that may come back is looked for anew.
    pub(super) fn forget_if_lost(
        &self,
        rank: usize,
        sent: Result<(), SendError>,
    ) -> Result<(), GroupError> {
        match sent {
            Err(cause) if is_loss(&cause) => self.roster.forget_edge(rank),
            Ok(()) | Err(SendError::Full { .. }) => {}
            Err(cause) => return Err(GroupError::Send(cause)),
        }
        Ok(())
    }

    /// Asks a member that is waited for whether it is still there.
    pub(super) fn probe(&self, turn: &Turn, key: &Key, from: usize) -> Result<(), GroupError> {
        let rank = self.rank_number(from);
        match self.ask(turn, from) {
            Ok(()) => Ok(()),
            Err(cause) if is_loss(&cause) => {
                match self.comes(grace(&cause), |board| board.has_news(key, rank))? {
                    true => Ok(()),
                    false => self.cannot_send(turn, from, cause),
                }
            }
            Err(cause) => self.cannot_send(turn, from, cause),
        }
    }

    /// What to make of a message that was not sent: `Ok` to try again.
    pub(super) fn cannot_send(
        &self,
        turn: &Turn,
        to: usize,
        cause: SendError,
    ) -> Result<(), GroupError> {
        let has_ended = self.shared.board().ended().is_some();
        if has_ended {
            return Err(self.ended());
        }
        let is_over = turn.deadline.left().is_zero();
        let cause = match cause {
            SendError::TimedOut { target, .. }
                if !turn.is_patient && self.edge(to)?.is_lost(CONNECTING) =>
            {
                let reason = None;
                SendError::PeerGone { target, reason }
            }
            cause => cause,
        };
        match cause {
            SendError::TimedOut { .. } if is_over => Err(self.timed_out(to)),
            SendError::TimedOut { .. } => Ok(()),
            cause if !is_loss(&cause) => Err(GroupError::Send(cause)),
            _ if turn.is_patient && is_over => Err(self.timed_out(to)),
            _ if turn.is_patient => {
                self.roster.forget_edge(to);
                (self.comes(RETRY, |board| board.ended().is_some())).map(drop)
            }
            cause => {
                let rank = self.rank_number(to);
                let is_closed = matches!(cause, SendError::Refused { .. });
                let is_told = |board: &Board| board.ended().is_some() || board.has_left(rank);
                let is_told = self.comes(GRACE, is_told)?;
                Err(match is_told || is_closed {
                    true => self.left(to),
                    false => self.end(GroupEnding::Gone(vec![rank])),
                })
            }
        }
    }

    /// Waits until something is there; whether it is.
    fn comes(
        &self,
        patience: Duration,
        is_there: impl Fn(&Board) -> bool,
    ) -> Result<bool, GroupError> {
        let shared = &self.shared;
        let came = (self.port).wait_until(patience, || is_there(&shared.board()));
        came.map_err(GroupError::Port)
    }

    fn rank_number(&self, rank: usize) -> u32 {
        u32::try_from(rank).expect("fewer members than endpoints")
    }

    pub(super) fn left(&self, rank: usize) -> GroupError {
        self.end(GroupEnding::Left(self.rank_number(rank)))
    }

    pub(super) fn timed_out(&self, waiting_for: usize) -> GroupError {
        let waited_for = vec![self.rank_number(waiting_for)];
        self.end(GroupEnding::TimedOut(self.roster.own_rank(), waited_for))
    }

    /// Ends the generation, unless it has ended; why it has.
    fn end(&self, ending: GroupEnding) -> GroupError {
        self.shared.board().end(ending);
        self.ended()
    }

    /// Why the generation has ended. If others are not told yet, they are now.
    pub(super) fn ended(&self) -> GroupError {
        let news = self.shared.board().take_news();
        if let Some((from, ending)) = news {
            self.tell(from, &ending);
        }
        let ended = self.shared.board().ended().cloned();
        let ending = ended.map_or(GroupEnding::Left(self.roster.own_rank()), |it| it.ending);
        self.error(ending)
    }

    fn error(&self, ending: GroupEnding) -> GroupError {
        let own = self.roster.address(self.rank());
        let named = |rank: u32| {
            let rank = (rank as usize).min(self.size() - 1);
            self.member(rank)
        };
        match ending {
            GroupEnding::Gone(ranks) => GroupError::Gone {
                members: self.named(ranks),
            },
            GroupEnding::Left(rank) => GroupError::Left {
                member: named(rank),
            },
            GroupEnding::TimedOut(rank, waited_for) => GroupError::TimedOut {
                member: named(rank),
                waited_for: self.named(waited_for),
            },
            GroupEnding::Mismatch { number, calls } => GroupError::Mismatch {
                number,
                calls: calls.map(|(rank, call)| (named(rank), in_words(&call))),
            },
            GroupEnding::Other {
                generation,
                members,
            } => {
                let theirs = Members::from_pairs(generation, &members);
                match theirs.addresses.contains(&own) {
                    true => GroupError::Disagreement { theirs },
                    false => GroupError::Excluded { theirs },
                }
            }
        }
    }

    /// Tells all members that can be reached in a moment.
    fn tell(&self, from: u64, ending: &GroupEnding) {
        let lost = self.shared.board().lost().clone();
        let others = (0..self.size()).filter(|rank| *rank != self.rank());
        let others = others.filter(|rank| !lost.contains(&self.rank_number(*rank)));
        let head = GroupHead {
            round: TOLD_ALL,
            ..self.notice(GroupKind::Ended, from)
        };
        let mut message = head.to_bytes().to_vec();
        message.extend(ending.to_bytes());
        let edges = others.filter_map(|rank| self.edge(rank).ok());
        // They connect side by side.
        let posted: Vec<_> = edges
            .filter(|edge| {
                let message = [IoSlice::new(&message)];
                edge.post(Operation::Message, &message, 0).is_ok()
            })
            .collect();
        let deadline = Deadline::after(TELLING);
        for edge in posted {
            if let Err(cause) = edge.wait_open(deadline.left()) {
                tracing::debug!("{} is not told: {cause}", edge.target());
            }
        }
    }

    /// Waits until what the handler passes on has gone.
    pub(super) fn finish_passing_on(&self) {
        let deadline = Deadline::after(PASSING);
        let is_idle = || !self.shared.is_handling.load(Ordering::Acquire);
        if let Err(cause) = self.port.wait_until(PASSING, is_idle) {
            tracing::debug!("{cause}");
        }
        let has_ended = self.shared.board().ended().is_some();
        for edge in self.roster.edges() {
            // Where the generation has ended nobody waits for what is still to go.
            if !has_ended && let Err(cause) = edge.wait_open(deadline.left()) {
                tracing::debug!("{}: {cause}", edge.target());
            }
        }
    }

    /// Those who may wait for this member are told that it takes part in no further call.
    pub(super) fn say_left(&self) {
        let number = {
            let board = self.shared.board();
            if board.ended().is_some() {
                return;
            }
            board.number()
        };
        let left = self.notice(GroupKind::Left, number).to_bytes();
        for edge in self.roster.edges() {
            if let Err(cause) = edge.try_send(&left) {
                tracing::debug!("{} is not told: {cause}", edge.target());
            }
        }
    }
}
