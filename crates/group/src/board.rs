//! What a member has been told, filed by its port's handler and taken by its calls.
//!
//! Bounded: a member is at most [`RUN_AHEAD`] calls ahead of another, so that what waits here is
//! of so many calls; of generations to come only beginnings are kept, [`MAX_EARLY`] at most.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use dipole_proto::wire::{
    GROUP_HEAD_BYTES, GroupCall, GroupEnding, GroupHead, GroupKind, GroupOperation,
    members_from_bytes,
};
use rustc_hash::FxHashMap;

use super::members::Roster;
use dipole_node::Address;

/// Calls between two barriers of the group's own.
pub(super) const RUN_AHEAD: u64 = 64;
/// Calls whose kind is remembered, to compare what slower members called.
const HISTORY: usize = 128;
/// Messages of generations to come.
const MAX_EARLY: usize = 4096;
/// What is set aside for a message that is still to come, whatever its head says.
const MAX_RESERVED_BYTES: u64 = 64 << 20;
/// Generations whose end is remembered, for who has not heard of it yet.
const MAX_PAST: usize = 8;
/// Buffers kept for messages to come, and how long they may be.
const MAX_SPARE: usize = 16;
const MAX_SPARE_BYTES: usize = 64 << 10;

/// A message of a call: which call, which of its rounds, and whose.
pub(super) type Key = (u64, u8, u32);

/// A message of a call as far as it has come.
#[derive(Debug)]
pub(super) struct Transfer {
    call: GroupCall,
    pub(super) bytes: Vec<u8>,
    /// A piece is being passed on.
    is_passing: bool,
    /// So much has been passed on; the rest could not be.
    pub(super) stuck_at: Option<usize>,
}

impl Transfer {
    fn is_ready(&self) -> bool {
        self.bytes.len() as u64 == self.call.length && !self.is_passing
    }
}

/// Why the generation has ended.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) ending: GroupEnding,
    /// The first call that it ends; those before may still be completed.
    pub(super) from: u64,
    /// Another member tells all.
    is_told: bool,
}

/// The round of a notice that goes to all members; others are answers.
pub(super) const TOLD_ALL: u8 = 1;

/// What is to be done about a message.
#[derive(Debug)]
pub(super) enum Verdict {
    Nothing,
    /// Its sender is told that the generation it speaks of is over.
    Reply(u64, GroupEnding),
    /// A piece of a broadcast: it goes on to others.
    PassOn(Arc<Roster>, Key),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Board {
    roster: Arc<Roster>,
    /// The generation has begun: nobody can disagree any more.
    is_established: bool,
    ended: Option<Ended>,
    /// Ranks known to be gone, or to have left.
    lost: BTreeSet<u32>,
    /// From which call on a rank takes part in none.
    left: FxHashMap<u32, u64>,
    /// The number of the call in progress, or of the next one.
    number: u64,
    call: Option<GroupCall>,
    /// The latest calls that are over.
    history: VecDeque<GroupCall>,
    arrived: FxHashMap<Key, Transfer>,
    spare: Vec<Vec<u8>>,
    early: Vec<(Address, Vec<u8>)>,
    /// Generations that have ended, by number and list, the latest last.
    past: VecDeque<(u64, u64, Ended)>,
}

impl Board {
    pub(super) fn new(roster: Arc<Roster>) -> Board {
        Board {
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

    /// Goes over to another generation; who is to be told that theirs is over, and why.
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
        *self = Board::new(roster);
        self.past = past;
        let mut replies = Vec::new();
        for (source, message) in early {
            let Ok((head, data)) = GroupHead::parse(&message) else {
                continue;
            };
            if let Verdict::Reply(from, ending) = self.take_in(source, &head, data) {
                replies.push((source, head, from, ending));
            }
        }
        replies
    }

    /// A message has come.
    pub(super) fn take_in(&mut self, source: Address, head: &GroupHead, data: &[u8]) -> Verdict {
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
            return Verdict::Nothing;
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
                true => self.say_why(head),
                false => Verdict::Nothing,
            };
        }
        let Some(from) = from.and_then(|rank| u32::try_from(rank).ok()) else {
            return match asks {
                true => Verdict::Reply(0, own.members.to_ending()),
                false => Verdict::Nothing,
            };
        };
        let ended = self.ended.as_ref();
        match (head.kind, ended.filter(|ended| head.number >= ended.from)) {
            (GroupKind::Data, None) => return self.file(from, head, data),
            (GroupKind::Data | GroupKind::Probe, Some(ended)) => {
                return Verdict::Reply(ended.from, ended.ending.clone());
            }
            (GroupKind::Left, _) => {
                self.left.insert(from, head.number);
            }
            (GroupKind::Ended, _) => {
                if let Ok(ending) = GroupEnding::parse(data) {
                    self.end_from(head.number, ending);
                    if head.round == TOLD_ALL
                        && let Some(ended) = &mut self.ended
                    {
                        ended.is_told = true;
                    }
                }
            }
            (GroupKind::Probe, None) => {}
        }
        Verdict::Nothing
    }

    /// Why a generation is not the one in use.
    fn say_why(&self, head: &GroupHead) -> Verdict {
        let mut past = self.past.iter();
        let known =
            past.find(|(generation, list, _)| (*generation, *list) == (head.generation, head.list));
        match known {
            // This member has done its part in earlier calls.
            Some((_, _, ended)) if head.number < ended.from => Verdict::Nothing,
            Some((_, _, ended)) => Verdict::Reply(ended.from, ended.ending.clone()),
            None => Verdict::Reply(0, self.roster.members.to_ending()),
        }
    }

    /// Files a piece of a message of a call.
    fn file(&mut self, from: u32, head: &GroupHead, data: &[u8]) -> Verdict {
        let is_passed_on = head.call.operation == GroupOperation::Broadcast;
        if !is_passed_on && head.rank != from {
            return Verdict::Nothing;
        }
        if let Some(ours) = self.called(head.number)
            && !ours.fits(&head.call)
        {
            let calls = [(self.roster.own_rank(), ours), (head.rank, head.call)];
            let number = head.number;
            let ending = GroupEnding::Mismatch { number, calls };
            self.end_from(number, ending.clone());
            return Verdict::Reply(number, ending);
        }
        if head.number < self.number || head.number > self.number + 2 * RUN_AHEAD {
            return Verdict::Nothing;
        }
        let key = (head.number, head.round, head.rank);
        let spare = &mut self.spare;
        let transfer = self.arrived.entry(key).or_insert_with(|| Transfer {
            call: head.call,
            bytes: match head.call.length {
                0 => Vec::new(),
                _ => spare.pop().unwrap_or_default(),
            },
            is_passing: false,
            stuck_at: None,
        });
        // Another offset is that of a piece that came before.
        if transfer.bytes.len() as u64 != head.offset || transfer.call != head.call {
            return Verdict::Nothing;
        }
        if transfer.bytes.is_empty() {
            let reserved = head.call.length.min(MAX_RESERVED_BYTES);
            transfer
                .bytes
                .reserve(usize::try_from(reserved).unwrap_or(0));
        }
        transfer.bytes.extend_from_slice(data);
        if !is_passed_on || transfer.stuck_at.is_some() {
            return Verdict::Nothing;
        }
        transfer.is_passing = true;
        Verdict::PassOn(Arc::clone(&self.roster), key)
    }

    /// A piece of a broadcast was passed on, or could not be.
    pub(super) fn passed_on(&mut self, key: Key, offset: u64, whether: bool) {
        if let Some(transfer) = self.arrived.get_mut(&key) {
            transfer.is_passing = false;
            if !whether {
                transfer.stuck_at = usize::try_from(offset).ok();
            }
        }
    }

    /// What this member called, if it is known.
    fn called(&self, number: u64) -> Option<GroupCall> {
        if number == self.number {
            return self.call;
        }
        let back = usize::try_from(self.number.checked_sub(number)?).ok()?;
        let at = self.history.len().checked_sub(back)?;
        self.history.get(at).copied()
    }

    /// A call begins; its number. `None`: the generation has ended.
    pub(super) fn begin(&mut self, call: GroupCall) -> Option<u64> {
        if self.call.is_some() {
            // The call before was left by a panic.
            self.end(GroupEnding::Left(self.roster.own_rank()));
        }
        let (number, own) = (self.number, self.roster.own_rank());
        let unlike = |(key, transfer): (&Key, &Transfer)| {
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

    /// The call in progress is over, and was of this length.
    pub(super) fn finish(&mut self, length: u64) {
        if let Some(call) = self.call.take() {
            if call.operation == GroupOperation::Start {
                self.is_established = true;
                // Who came back meanwhile has told its own twice.
                self.arrived.retain(|key, _| key.0 > self.number);
            }
            if self.history.len() == HISTORY {
                self.history.pop_front();
            }
            self.history.push_back(GroupCall { length, ..call });
        }
        self.number += 1;
    }

    /// The number of the call in progress, or of the next one.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// True if it is of use to look for a message that `from` sends: it is there, it will not
    /// come, or the generation has ended.
    pub(super) fn has_news(&self, key: &Key, from: u32) -> bool {
        self.ended().is_some()
            || self.arrived.get(key).is_some_and(Transfer::is_ready)
            || self.has_left(from)
    }

    /// Takes a message that has come whole.
    pub(super) fn take(&mut self, key: &Key) -> Option<Transfer> {
        match self.arrived.get(key)?.is_ready() {
            true => self.arrived.remove(key),
            false => None,
        }
    }

    /// Gives a buffer back.
    pub(super) fn recycle(&mut self, mut buffer: Vec<u8>) {
        let is_worth = (1..=MAX_SPARE_BYTES).contains(&buffer.capacity());
        if is_worth && self.spare.len() < MAX_SPARE {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    /// True if a rank takes no part in the call in progress.
    pub(super) fn has_left(&self, rank: u32) -> bool {
        self.left
            .get(&rank)
            .is_some_and(|number| *number <= self.number)
    }

    /// Ends the generation from the call in progress on.
    pub(super) fn end(&mut self, ending: GroupEnding) {
        self.end_from(self.number, ending);
    }

    /// Ends the generation. The first reason stays, from the earliest call that any ends.
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
            is_told: false,
        });
        if from < ended.from {
            (ended.from, ended.is_told) = (from, false);
        }
    }

    /// Why the generation has ended, if that concerns the call in progress or the next.
    pub(super) fn ended(&self) -> Option<&Ended> {
        let ended = self.ended.as_ref();
        ended.filter(|ended| self.number >= ended.from)
    }

    /// Why it has ended, for who is to tell the others; once.
    pub(super) fn take_news(&mut self) -> Option<(u64, GroupEnding)> {
        let ended = self.ended.as_mut()?;
        let is_told = std::mem::replace(&mut ended.is_told, true);
        (!is_told).then(|| (ended.from, ended.ending.clone()))
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

    fn started(roster: &Arc<Roster>) -> Board {
        let mut board = Board::new(Arc::clone(roster));
        assert_eq!(board.begin(call(GroupOperation::Start, 0)), Some(0));
        board.finish(0);
        board
    }

    #[test]
    fn pieces_become_one_message_and_repeats_change_nothing() {
        let roster = roster(0, &[10, 11], 0);
        let mut board = started(&roster);
        let from = Address::new(1, 11);
        let mut head = head(&roster, 1, call(GroupOperation::Reduce, 6), 1);
        let key = (1, 0, 1);
        board.take_in(from, &head, b"one");
        assert!(board.take(&key).is_none());
        board.take_in(from, &head, b"one");
        head.offset = 3;
        board.take_in(from, &head, b"two");
        assert!(board.has_news(&key, 1));
        assert_eq!(board.take(&key).expect("whole").bytes, b"onetwo");
    }

    #[test]
    fn other_calls_are_told_before_during_and_after_ours() {
        let roster = roster(0, &[10, 11], 0);
        let from = Address::new(1, 11);
        let theirs = head(&roster, 1, call(GroupOperation::Broadcast, 4), 1);
        for when in 0..3 {
            let mut board = started(&roster);
            if when > 0 {
                assert!(board.begin(call(GroupOperation::Barrier, 0)).is_some());
            }
            if when > 1 {
                board.finish(0);
            }
            board.take_in(from, &theirs, b"four");
            if when == 0 {
                assert!(board.begin(call(GroupOperation::Barrier, 0)).is_none());
            }
            let ended = board.ended().expect("they differ");
            let GroupEnding::Mismatch { number: 1, calls } = &ended.ending else {
                panic!("{ended:?}");
            };
            assert_eq!(calls[1], (1, theirs.call));
        }
    }

    #[test]
    fn strangers_and_members_of_another_list_change_nothing_once_it_has_begun() {
        let (ours, theirs) = (roster(3, &[10, 11], 0), roster(3, &[10, 11, 12], 1));
        let mut board = started(&ours);
        let barrier = call(GroupOperation::Barrier, 0);
        let stranger = head(&ours, 1, barrier, 1);
        let verdict = board.take_in(Address::new(1, 99), &stranger, b"");
        assert!(matches!(
            verdict,
            Verdict::Reply(0, GroupEnding::Other { .. })
        ));
        let start = call(GroupOperation::Start, 24);
        let other = head(&theirs, 0, start, 1);
        let list = dipole_proto::wire::members_to_bytes(&theirs.members.pairs());
        let verdict = board.take_in(Address::new(1, 11), &other, &list);
        assert!(matches!(
            verdict,
            Verdict::Reply(0, GroupEnding::Other { .. })
        ));
        assert!(board.ended().is_none());
        // Before it has begun that is a disagreement.
        let mut board = Board::new(Arc::clone(&ours));
        board.take_in(Address::new(1, 11), &other, &list);
        assert!(board.ended().is_some());
    }

    #[test]
    fn what_comes_too_early_is_kept_for_its_generation() {
        let (old, new) = (roster(0, &[10, 11, 12], 0), roster(1, &[10, 11], 0));
        let mut board = started(&old);
        let from = Address::new(1, 11);
        let list = dipole_proto::wire::members_to_bytes(&new.members.pairs());
        let start = head(&new, 0, call(GroupOperation::Start, 16), 1);
        board.take_in(from, &start, &list);
        assert!(board.ended().is_none());
        assert!(board.renew(Arc::clone(&new)).is_empty());
        assert!(board.take(&(0, 0, 1)).is_some());
    }

    #[test]
    fn who_has_not_heard_why_a_generation_ended_is_told_by_those_of_the_next() {
        let (old, new) = (roster(0, &[10, 11, 12], 0), roster(1, &[10, 11], 0));
        let mut board = started(&old);
        assert!(board.begin(call(GroupOperation::Barrier, 0)).is_some());
        board.end(GroupEnding::Gone(vec![2]));
        board.renew(Arc::clone(&new));
        let mut late = head(&old, 1, call(GroupOperation::Barrier, 0), 1);
        late.kind = GroupKind::Probe;
        let verdict = board.take_in(Address::new(1, 11), &late, b"");
        assert!(matches!(verdict, Verdict::Reply(1, GroupEnding::Gone(ranks)) if ranks == [2]));
        late.number = 0;
        let verdict = board.take_in(Address::new(1, 11), &late, b"");
        assert!(matches!(verdict, Verdict::Nothing));
    }

    #[test]
    fn who_left_before_a_call_takes_no_part_in_it() {
        let roster = roster(0, &[10, 11], 0);
        let mut board = started(&roster);
        let mut left = head(&roster, 2, call(GroupOperation::Barrier, 0), 1);
        left.kind = GroupKind::Left;
        board.take_in(Address::new(1, 11), &left, b"");
        assert!(!board.has_left(1));
        assert!(
            board
                .begin(call(GroupOperation::Broadcast, ANY_LENGTH))
                .is_some()
        );
        board.finish(5);
        assert!(board.has_left(1));
    }
}
