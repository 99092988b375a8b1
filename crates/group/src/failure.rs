//! Detects lost members and announces the end of a generation.
//!
//! The member that detects a failure notifies all others. Ports of an ended generation also reply
//! with the reason, so no member waits long even if the announcing one fails midway.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dipole_proto::wire::{
    GROUP_HEAD_BYTES, GroupCall, GroupEnding, GroupHead, GroupKind, GroupOperation,
};

use super::calls::CallContext;
use super::error::{Deadline, describe_call};
use super::state::{CollectiveState, MessageKey, SENT_TO_ALL};
use super::{Group, GroupError, Member, Members};
use dipole_node::SendError;
use dipole_node::{Edge, Operation};

/// How long messages that a member sent before it died may still be in transit. Longer if its
/// process lives, because it retransmits lost packets.
const GRACE: Duration = Duration::from_millis(100);
const LONG_GRACE: Duration = Duration::from_secs(1);
/// Time limit for handling the messages that arrived before a loss was noticed.
const BACKLOG_TIMEOUT: Duration = Duration::from_secs(3);
/// Time limit for connecting to a member of an established generation; all of them were there.
const CONNECTING: Duration = Duration::from_secs(5);
/// Time limit for announcing the end of a generation.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for pending forwards when a member leaves.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between attempts to reach a member that has not joined yet.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// The reply to a message of an ended generation.
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

/// True if a process or its port is gone or does not exist yet.
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
    pub(super) fn members_at(&self, ranks: impl IntoIterator<Item = u32>) -> Vec<Member> {
        let ranks = ranks.into_iter().map(|rank| rank as usize);
        ranks
            .filter(|rank| *rank < self.size())
            .map(|rank| self.member(rank))
            .collect()
    }

    pub(super) fn member(&self, rank: usize) -> Member {
        let address = self.roster.address(rank);
        Member { rank, address }
    }

    /// Head of a message that does not belong to a call.
    fn control_head(&self, kind: GroupKind, number: u64) -> GroupHead {
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

    /// Probes a member. Its process replies if the generation has ended, and the edge notices if
    /// the process is gone.
    pub(super) fn send_probe(&self, context: &CallContext, rank: usize) -> Result<(), SendError> {
        let probe = self.control_head(GroupKind::Probe, context.number);
        let edge = self.edge(rank)?;
        match edge.try_send(&probe.to_bytes()) {
            Err(SendError::Full { target, .. })
                if !context.awaits_joiners && edge.is_lost(CONNECTING) =>
            {
                let reason = None;
                Err(SendError::PeerGone { target, reason })
            }
            Err(SendError::Full { .. }) => Ok(()),
            asked => asked,
        }
    }

    /// Closes the edge to a lost member that may come back; the next use opens a new one.
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

    /// Probes a member that a call waits for, and ends the generation if the member is gone.
    pub(super) fn probe(
        &self,
        context: &CallContext,
        key: &MessageKey,
        from: usize,
    ) -> Result<(), GroupError> {
        let rank = self.rank_number(from);
        match self.send_probe(context, from) {
            Ok(()) => Ok(()),
            Err(cause) if is_loss(&cause) => {
                match self.wait_for(grace(&cause), |state| state.is_resolved(key, rank))? {
                    true => Ok(()),
                    false => self.on_send_error(context, from, cause),
                }
            }
            Err(cause) => self.on_send_error(context, from, cause),
        }
    }

    /// Handles a failed send; `Ok` means try again.
    pub(super) fn on_send_error(
        &self,
        context: &CallContext,
        to: usize,
        cause: SendError,
    ) -> Result<(), GroupError> {
        let has_ended = self.shared.state().ended().is_some();
        if has_ended {
            return Err(self.ended());
        }
        let is_over = context.deadline.left().is_zero();
        let cause = match cause {
            SendError::TimedOut { target, .. }
                if !context.awaits_joiners && self.edge(to)?.is_lost(CONNECTING) =>
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
            _ if context.awaits_joiners && is_over => Err(self.timed_out(to)),
            _ if context.awaits_joiners => {
                self.roster.forget_edge(to);
                (self.wait_for(RETRY_PAUSE, |state| state.ended().is_some())).map(drop)
            }
            cause => {
                let rank = self.rank_number(to);
                let is_closed = matches!(cause, SendError::Refused { .. });
                let is_announced =
                    |state: &CollectiveState| state.ended().is_some() || state.has_left(rank);
                let is_announced = self.wait_for(GRACE, is_announced)?;
                Err(match is_announced || is_closed {
                    true => self.left(to),
                    false => self.end(GroupEnding::Gone(vec![rank])),
                })
            }
        }
    }

    /// Waits for a condition; returns whether it holds once the messages that have arrived are
    /// handled: a thread without its core may find all of them only when the time is over.
    fn wait_for(
        &self,
        patience: Duration,
        is_there: impl Fn(&CollectiveState) -> bool,
    ) -> Result<bool, GroupError> {
        let (shared, began) = (&self.shared, Instant::now());
        let wait = |timeout| {
            let received = (self.port).wait_until(timeout, || is_there(&shared.state()));
            received.map_err(GroupError::Port)
        };
        let mut is_there = wait(patience)?;
        while !is_there && began.elapsed() < patience + BACKLOG_TIMEOUT {
            let handled = self.port.handled();
            is_there = wait(Duration::ZERO)?;
            if self.port.handled() == handled {
                break;
            }
        }
        Ok(is_there)
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

    /// Ends the generation unless it has ended; returns the reason for its end.
    fn end(&self, ending: GroupEnding) -> GroupError {
        self.shared.state().end(ending);
        self.ended()
    }

    /// Why the generation has ended. Announces it to the other members unless that is done.
    pub(super) fn ended(&self) -> GroupError {
        let unannounced = self.shared.state().take_unannounced_ending();
        if let Some((from, ending)) = unannounced {
            self.announce_ending(from, &ending);
        }
        let ended = self.shared.state().ended().cloned();
        let ending = ended.map_or(GroupEnding::Left(self.roster.own_rank()), |it| it.ending);
        self.error(ending)
    }

    fn error(&self, ending: GroupEnding) -> GroupError {
        let own = self.roster.address(self.rank());
        let members_at = |rank: u32| {
            let rank = (rank as usize).min(self.size() - 1);
            self.member(rank)
        };
        match ending {
            GroupEnding::Gone(ranks) => GroupError::Gone {
                members: self.members_at(ranks),
            },
            GroupEnding::Left(rank) => GroupError::Left {
                member: members_at(rank),
            },
            GroupEnding::TimedOut(rank, waited_for) => GroupError::TimedOut {
                member: members_at(rank),
                waited_for: self.members_at(waited_for),
            },
            GroupEnding::Mismatch { number, calls } => GroupError::Mismatch {
                number,
                calls: calls.map(|(rank, call)| (members_at(rank), describe_call(&call))),
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

    /// Notifies all members that can be reached within [`ANNOUNCE_TIMEOUT`].
    fn announce_ending(&self, from: u64, ending: &GroupEnding) {
        let lost = self.shared.state().lost().clone();
        let others = (0..self.size()).filter(|rank| *rank != self.rank());
        let others = others.filter(|rank| !lost.contains(&self.rank_number(*rank)));
        let head = GroupHead {
            round: SENT_TO_ALL,
            ..self.control_head(GroupKind::Ended, from)
        };
        let mut message = head.to_bytes().to_vec();
        message.extend(ending.to_bytes());
        let edges = others.filter_map(|rank| self.edge(rank).ok());
        // These edges connect in parallel.
        let posted: Vec<_> = edges
            .filter(|edge| {
                let message = [IoSlice::new(&message)];
                edge.post(Operation::Message, &message, 0).is_ok()
            })
            .collect();
        let deadline = Deadline::after(ANNOUNCE_TIMEOUT);
        for edge in posted {
            if let Err(cause) = edge.wait_open(deadline.left()) {
                tracing::debug!("cannot notify {}: {cause}", edge.target());
            }
        }
    }

    /// Waits until the handler's forwarded messages have been sent.
    pub(super) fn finish_forwarding(&self) {
        let deadline = Deadline::after(FORWARD_TIMEOUT);
        let is_idle = || !self.shared.handler_is_running.load(Ordering::Acquire);
        if let Err(cause) = self.port.wait_until(FORWARD_TIMEOUT, is_idle) {
            tracing::debug!("{cause}");
        }
        let has_ended = self.shared.state().ended().is_some();
        for edge in self.roster.edges() {
            // After the end of the generation, pending messages no longer matter.
            if !has_ended && let Err(cause) = edge.wait_open(deadline.left()) {
                tracing::debug!("{}: {cause}", edge.target());
            }
        }
    }

    /// Notifies members that may wait for this one that it takes part in no further call.
    pub(super) fn announce_leave(&self) {
        let number = {
            let state = self.shared.state();
            if state.ended().is_some() {
                return;
            }
            state.number()
        };
        let left = self.control_head(GroupKind::Left, number).to_bytes();
        for edge in self.roster.edges() {
            if let Err(cause) = edge.try_send(&left) {
                tracing::debug!("cannot notify {}: {cause}", edge.target());
            }
        }
    }
}
