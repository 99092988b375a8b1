//! Messages that a member received, stored by its port's handler and taken by its calls.
//!
//! Memory is bounded: a member is at most [`MAX_CALLS_AHEAD`] calls ahead of another, and for
//! later generations only start messages are stored, at most [`MAX_EARLY`].

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use dipole_proto::wire::{
    GROUP_HEAD_BYTES, GroupCall, GroupEnding, GroupHead, GroupKind, GroupOperation,
    members_from_bytes,
};
use rustc_hash::FxHashMap;

use super::members::Roster;
use dipole_node::Address;

/// Calls between two internal barriers.
pub(super) const MAX_CALLS_AHEAD: u64 = 64;
/// Number of completed calls remembered, to compare them with those of slower members.
const HISTORY: usize = 128;
/// Stored messages of later generations.
const MAX_EARLY: usize = 4096;
/// Upper limit for memory reserved for an incoming message, whatever length its head claims.
const MAX_RESERVED_BYTES: u64 = 64 << 20;
/// Ended generations remembered, for members that do not know of the end yet.
const MAX_PAST: usize = 8;
/// Number and size of buffers kept for reuse.
const MAX_SPARE: usize = 16;
const MAX_SPARE_BYTES: usize = 64 << 10;

/// Identifies a message of a generation: call number, round, and rank.
pub(super) type MessageKey = (u64, u8, u32);

/// The received part of a message.
#[derive(Debug)]
pub(super) struct PendingMessage {
    call: GroupCall,
    pub(super) bytes: Vec<u8>,
    /// A piece is being forwarded.
    is_forwarding: bool,
    /// Offset of the first piece that could not be forwarded.
    pub(super) forward_failed_at: Option<usize>,
}

impl PendingMessage {
    fn is_ready(&self) -> bool {
        self.bytes.len() as u64 == self.call.length && !self.is_forwarding
    }
}

/// Why and where a generation ended.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) ending: GroupEnding,
    /// The first call that fails; earlier ones may still complete.
    pub(super) from: u64,
    /// Another member notifies all others.
    is_announced: bool,
}

/// Round number that marks a notice sent to all members, as opposed to a reply.
pub(super) const SENT_TO_ALL: u8 = 1;

/// Action that the handler must take after a message.
#[derive(Debug)]
pub(super) enum Reaction {
    None,
    /// Reply that the sender's generation has ended.
    Reply(u64, GroupEnding),
    /// Forward a piece of a broadcast.
    Forward(Arc<Roster>, MessageKey),
}

/// The state of a generation and its calls.
#[derive(Debug)]
pub(super) struct CollectiveState {
    roster: Arc<Roster>,
    /// The generation has started; members can no longer disagree about the list.
    is_established: bool,
    ended: Option<Ended>,
    /// Ranks known to have died or left.
    lost: BTreeSet<u32>,
    /// For each rank that left, the first call it does not take part in.
    left: FxHashMap<u32, u64>,
    /// Number of the current or next call.
    number: u64,
    call: Option<GroupCall>,
    /// The latest completed calls.
    history: VecDeque<GroupCall>,
    arrived: FxHashMap<MessageKey, PendingMessage>,
    spare: Vec<Vec<u8>>,
    early: Vec<(Address, Vec<u8>)>,
    /// Ended generations by number and list, the latest last.
    past: VecDeque<(u64, u64, Ended)>,
}

impl CollectiveState {
    pub(super) fn new(roster: Arc<Roster>) -> CollectiveState {
        CollectiveState {
            roster,
            is_established: false,
            ended: None,
            lost: BTreeSet::new(),
            left: FxHashMap::default(),
            number: 0,
            call: None,
            history: VecDeque::with_capacity(HISTORY),
            arrived: FxHashMap::default(),
            spare: Vec::new(),
            early: Vec::new(),
            past: VecDeque::new(),
        }
    }

    /// Switches to another generation; returns replies due to members that are not part of it.
    pub(super) fn renew(
        &mut self,
        roster: Arc<Roster>,
    ) -> Vec<(Address, GroupHead, u64, GroupEnding)> {
        let early = std::mem::take(&mut self.early);
        let mut past = std::mem::take(&mut self.past);
        if let Some(ended) = self.ended.take() {
            if past.len() == MAX_PAST {
                past.pop_front();
            }
            let generation = self.roster.members.generation;
            past.push_back((generation, self.roster.list, ended));
        }
        *self = CollectiveState::new(roster);
        self.past = past;
        let mut replies = Vec::new();
        for (source, message) in early {
            let Ok((head, data)) = GroupHead::parse(&message) else {
                continue;
            };
            if let Reaction::Reply(from, ending) = self.on_message(source, &head, data) {
                replies.push((source, head, from, ending));
            }
        }
        replies
    }

    /// Updates the state for a message from a member.
    pub(super) fn on_message(
        &mut self,
        source: Address,
        head: &GroupHead,
        data: &[u8],
    ) -> Reaction {
        let own = &self.roster;
        let is_start = head.call.operation == GroupOperation::Start;
        let asks = matches!(head.kind, GroupKind::Data | GroupKind::Probe);
        if head.generation > own.members.generation {
            if is_start && head.kind == GroupKind::Data && self.early.len() < MAX_EARLY {
                let mut message = Vec::with_capacity(GROUP_HEAD_BYTES + data.len());
                message.extend(head.to_bytes());
                message.extend(data);
                self.early.push((source, message));
            }
            return Reaction::None;
        }
        let from = own.rank_of(source, head.rank);
        if head.generation < own.members.generation || head.list != own.list {
            if head.generation == own.members.generation
                && is_start
                && head.kind == GroupKind::Data
                && !self.is_established
                && from.is_some()
                && let Ok(theirs) = members_from_bytes(data)
            {
                let generation = head.generation;
                let members = theirs;
                self.end_from(
                    0,
                    GroupEnding::Other {
                        generation,
                        members,
                    },
                );
            }
            return match asks {
                true => self.explain_ending(head),
                false => Reaction::None,
            };
        }
        let Some(from) = from.and_then(|rank| u32::try_from(rank).ok()) else {
            return match asks {
                true => Reaction::Reply(0, own.members.to_ending()),
                false => Reaction::None,
            };
        };
        let ended = self.ended.as_ref();
        match (head.kind, ended.filter(|ended| head.number >= ended.from)) {
            (GroupKind::Data, None) => return self.file(from, head, data),
            (GroupKind::Data | GroupKind::Probe, Some(ended)) => {
                return Reaction::Reply(ended.from, ended.ending.clone());
            }
            (GroupKind::Left, _) => {
                self.left.insert(from, head.number);
            }
            (GroupKind::Ended, _) => {
                if let Ok(ending) = GroupEnding::parse(data) {
                    self.end_from(head.number, ending);
                    if head.round == SENT_TO_ALL
                        && let Some(ended) = &mut self.ended
                    {
                        ended.is_announced = true;
                    }
                }
            }
            (GroupKind::Probe, None) => {}
        }
        Reaction::None
    }

    /// Replies to a message of a generation that is not the current one.
    fn explain_ending(&self, head: &GroupHead) -> Reaction {
        let mut past = self.past.iter();
        let known =
            past.find(|(generation, list, _)| (*generation, *list) == (head.generation, head.list));
        match known {
            // Those calls do not need this member any more.
            Some((_, _, ended)) if head.number < ended.from => Reaction::None,
            Some((_, _, ended)) => Reaction::Reply(ended.from, ended.ending.clone()),
            None => Reaction::Reply(0, self.roster.members.to_ending()),
        }
    }

    /// Stores a piece of a message.
    fn file(&mut self, from: u32, head: &GroupHead, data: &[u8]) -> Reaction {
        let is_forwarded = head.call.operation == GroupOperation::Broadcast;
        if !is_forwarded && head.rank != from {
            return Reaction::None;
        }
        if let Some(ours) = self.called(head.number)
            && !ours.fits(&head.call)
        {
            let calls = [(self.roster.own_rank(), ours), (head.rank, head.call)];
            let number = head.number;
            let ending = GroupEnding::Mismatch { number, calls };
            self.end_from(number, ending.clone());
            return Reaction::Reply(number, ending);
        }
        if head.number < self.number || head.number > self.number + 2 * MAX_CALLS_AHEAD {
            return Reaction::None;
        }
        let key = (head.number, head.round, head.rank);
        let spare = &mut self.spare;
        let transfer = self.arrived.entry(key).or_insert_with(|| PendingMessage {
            call: head.call,
            bytes: match head.call.length {
                0 => Vec::new(),
                _ => spare.pop().unwrap_or_default(),
            },
            is_forwarding: false,
            forward_failed_at: None,
        });
        // Any other offset belongs to a duplicate.
        if transfer.bytes.len() as u64 != head.offset || transfer.call != head.call {
            return Reaction::None;
        }
        if transfer.bytes.is_empty() {
            let reserved = head.call.length.min(MAX_RESERVED_BYTES);
            transfer
                .bytes
                .reserve(usize::try_from(reserved).unwrap_or(0));
        }
        transfer.bytes.extend_from_slice(data);
        if !is_forwarded || transfer.forward_failed_at.is_some() {
            return Reaction::None;
        }
        transfer.is_forwarding = true;
        Reaction::Forward(Arc::clone(&self.roster), key)
    }

    /// Records that a piece of a broadcast was forwarded, or could not be.
    pub(super) fn on_forwarded(&mut self, key: MessageKey, offset: u64, whether: bool) {
        if let Some(transfer) = self.arrived.get_mut(&key) {
            transfer.is_forwarding = false;
            if !whether {
                transfer.forward_failed_at = usize::try_from(offset).ok();
            }
        }
    }

    /// The call that this member made under a number, if remembered.
    fn called(&self, number: u64) -> Option<GroupCall> {
        if number == self.number {
            return self.call;
        }
        let back = usize::try_from(self.number.checked_sub(number)?).ok()?;
        let at = self.history.len().checked_sub(back)?;
        self.history.get(at).copied()
    }

    /// Begins a call and returns its number; `None` if the generation has ended.
    pub(super) fn begin(&mut self, call: GroupCall) -> Option<u64> {
        if self.call.is_some() {
            // A panic interrupted the previous call.
            self.end(GroupEnding::Left(self.roster.own_rank()));
        }
        let (number, own) = (self.number, self.roster.own_rank());
        let unlike = |(key, transfer): (&MessageKey, &PendingMessage)| {
            let differs = key.0 == number && !transfer.call.fits(&call);
            differs.then_some((key.2, transfer.call))
        };
        if let Some(theirs) = self.arrived.iter().find_map(unlike) {
            let calls = [(own, call), theirs];
            self.end(GroupEnding::Mismatch { number, calls });
        }
        if self.ended().is_some() {
            return None;
        }
        self.call = Some(call);
        Some(number)
    }

    /// Completes the current call, which moved `length` bytes.
    pub(super) fn finish(&mut self, length: u64) {
        if let Some(call) = self.call.take() {
            if call.operation == GroupOperation::Start {
                self.is_established = true;
                // Members that restarted meanwhile sent their start message twice.
                self.arrived.retain(|key, _| key.0 > self.number);
            }
            if self.history.len() == HISTORY {
                self.history.pop_front();
            }
            self.history.push_back(GroupCall { length, ..call });
        }
        self.number += 1;
    }

    /// Number of the current or next call.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// True if there is nothing to wait for: the message from `from` has arrived or will not come,
    /// or the generation has ended.
    pub(super) fn is_resolved(&self, key: &MessageKey, from: u32) -> bool {
        self.ended().is_some()
            || self.arrived.get(key).is_some_and(PendingMessage::is_ready)
            || self.has_left(from)
    }

    /// Takes a message if it is complete.
    pub(super) fn take(&mut self, key: &MessageKey) -> Option<PendingMessage> {
        match self.arrived.get(key)?.is_ready() {
            true => self.arrived.remove(key),
            false => None,
        }
    }

    /// Returns a buffer for reuse.
    pub(super) fn recycle(&mut self, mut buffer: Vec<u8>) {
        let is_worth = (1..=MAX_SPARE_BYTES).contains(&buffer.capacity());
        if is_worth && self.spare.len() < MAX_SPARE {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    /// True if a rank does not take part in the current call.
    pub(super) fn has_left(&self, rank: u32) -> bool {
        self.left
            .get(&rank)
            .is_some_and(|number| *number <= self.number)
    }

    /// Ends the generation with the current call.
    pub(super) fn end(&mut self, ending: GroupEnding) {
        self.end_from(self.number, ending);
    }

    /// Ends the generation. The first reason is kept, with the earliest failing call.
    fn end_from(&mut self, from: u64, ending: GroupEnding) {
        match &ending {
            GroupEnding::Gone(ranks) => self.lost.extend(ranks),
            GroupEnding::Left(rank) => {
                self.lost.insert(*rank);
            }
            _ => {}
        }
        self.lost.remove(&self.roster.own_rank());
        let ended = self.ended.get_or_insert(Ended {
            ending,
            from,
            is_announced: false,
        });
        if from < ended.from {
            (ended.from, ended.is_announced) = (from, false);
        }
    }

    /// Why the generation has ended, if that affects the current call.
    pub(super) fn ended(&self) -> Option<&Ended> {
        let ended = self.ended.as_ref();
        ended.filter(|ended| self.number >= ended.from)
    }

    /// The reason to announce to the other members; returned only once.
    pub(super) fn take_unannounced_ending(&mut self) -> Option<(u64, GroupEnding)> {
        let ended = self.ended.as_mut()?;
        let is_announced = std::mem::replace(&mut ended.is_announced, true);
        (!is_announced).then(|| (ended.from, ended.ending.clone()))
    }

    pub(super) fn lost(&self) -> &BTreeSet<u32> {
        &self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::Members;
    use dipole_proto::wire::ANY_LENGTH;

    fn roster(generation: u64, ids: &[u32], rank: usize) -> Arc<Roster> {
        let addresses = ids.iter().map(|id| Address::new(1, *id)).collect();
        let members = Members {
            generation,
            addresses,
        };
        Arc::new(Roster::new(members, rank))
    }

    fn call(operation: GroupOperation, length: u64) -> GroupCall {
        GroupCall {
            operation,
            root: 0,
            length,
        }
    }

    fn head(roster: &Roster, number: u64, call: GroupCall, rank: u32) -> GroupHead {
        GroupHead {
            kind: GroupKind::Data,
            call,
            round: 0,
            rank,
            generation: roster.members.generation,
            list: roster.list,
            number,
            offset: 0,
        }
    }

    fn started(roster: &Arc<Roster>) -> CollectiveState {
        let mut state = CollectiveState::new(Arc::clone(roster));
        assert_eq!(state.begin(call(GroupOperation::Start, 0)), Some(0));
        state.finish(0);
        state
    }

    #[test]
    fn pieces_become_one_message_and_duplicates_change_nothing() {
        let roster = roster(0, &[10, 11], 0);
        let mut state = started(&roster);
        let from = Address::new(1, 11);
        let mut head = head(&roster, 1, call(GroupOperation::Reduce, 6), 1);
        let key = (1, 0, 1);
        state.on_message(from, &head, b"one");
        assert!(state.take(&key).is_none());
        state.on_message(from, &head, b"one");
        head.offset = 3;
        state.on_message(from, &head, b"two");
        assert!(state.is_resolved(&key, 1));
        assert_eq!(state.take(&key).expect("whole").bytes, b"onetwo");
    }

    #[test]
    fn a_different_call_is_detected_before_during_and_after_ours() {
        let roster = roster(0, &[10, 11], 0);
        let from = Address::new(1, 11);
        let theirs = head(&roster, 1, call(GroupOperation::Broadcast, 4), 1);
        for when in 0..3 {
            let mut state = started(&roster);
            if when > 0 {
                assert!(state.begin(call(GroupOperation::Barrier, 0)).is_some());
            }
            if when > 1 {
                state.finish(0);
            }
            state.on_message(from, &theirs, b"four");
            if when == 0 {
                assert!(state.begin(call(GroupOperation::Barrier, 0)).is_none());
            }
            let ended = state.ended().expect("they differ");
            let GroupEnding::Mismatch { number: 1, calls } = &ended.ending else {
                panic!("{ended:?}");
            };
            assert_eq!(calls[1], (1, theirs.call));
        }
    }

    #[test]
    fn an_established_generation_ignores_strangers_and_other_lists() {
        let (ours, theirs) = (roster(3, &[10, 11], 0), roster(3, &[10, 11, 12], 1));
        let mut state = started(&ours);
        let barrier = call(GroupOperation::Barrier, 0);
        let stranger = head(&ours, 1, barrier, 1);
        let reaction = state.on_message(Address::new(1, 99), &stranger, b"");
        assert!(matches!(
            reaction,
            Reaction::Reply(0, GroupEnding::Other { .. })
        ));
        let start = call(GroupOperation::Start, 24);
        let other = head(&theirs, 0, start, 1);
        let list = dipole_proto::wire::members_to_bytes(&theirs.members.pairs());
        let reaction = state.on_message(Address::new(1, 11), &other, &list);
        assert!(matches!(
            reaction,
            Reaction::Reply(0, GroupEnding::Other { .. })
        ));
        assert!(state.ended().is_none());
        // Before the generation has started, this is a disagreement.
        let mut state = CollectiveState::new(Arc::clone(&ours));
        state.on_message(Address::new(1, 11), &other, &list);
        assert!(state.ended().is_some());
    }

    #[test]
    fn an_early_start_message_is_kept_for_its_generation() {
        let (old, new) = (roster(0, &[10, 11, 12], 0), roster(1, &[10, 11], 0));
        let mut state = started(&old);
        let from = Address::new(1, 11);
        let list = dipole_proto::wire::members_to_bytes(&new.members.pairs());
        let start = head(&new, 0, call(GroupOperation::Start, 16), 1);
        state.on_message(from, &start, &list);
        assert!(state.ended().is_none());
        assert!(state.renew(Arc::clone(&new)).is_empty());
        assert!(state.take(&(0, 0, 1)).is_some());
    }

    #[test]
    fn members_of_the_next_generation_explain_the_end_of_the_previous_one() {
        let (old, new) = (roster(0, &[10, 11, 12], 0), roster(1, &[10, 11], 0));
        let mut state = started(&old);
        assert!(state.begin(call(GroupOperation::Barrier, 0)).is_some());
        state.end(GroupEnding::Gone(vec![2]));
        state.renew(Arc::clone(&new));
        let mut late = head(&old, 1, call(GroupOperation::Barrier, 0), 1);
        late.kind = GroupKind::Probe;
        let reaction = state.on_message(Address::new(1, 11), &late, b"");
        assert!(matches!(reaction, Reaction::Reply(1, GroupEnding::Gone(ranks)) if ranks == [2]));
        late.number = 0;
        let reaction = state.on_message(Address::new(1, 11), &late, b"");
        assert!(matches!(reaction, Reaction::None));
    }

    #[test]
    fn a_member_that_left_takes_no_part_in_later_calls() {
        let roster = roster(0, &[10, 11], 0);
        let mut state = started(&roster);
        let mut left = head(&roster, 2, call(GroupOperation::Barrier, 0), 1);
        left.kind = GroupKind::Left;
        state.on_message(Address::new(1, 11), &left, b"");
        assert!(!state.has_left(1));
        assert!(
            state
                .begin(call(GroupOperation::Broadcast, ANY_LENGTH))
                .is_some()
        );
        state.finish(5);
        assert!(state.has_left(1));
    }
}
