//! This process's operations on peers' memory, until they are answered.

use std::collections::VecDeque;
use std::ops::Range;

use dipole_link::Region as Memory;
use dipole_proto::wire::{Operation, Outcome, RefusedReason};
use dipole_proto::{EdgeId, EdgePosition, Instant, PeerId};
use rustc_hash::FxHashMap;

use crate::dispatch::Source;
use crate::gone::GoneReason;
use crate::inbox::Buffer;
use crate::operation::Data;
use crate::posted::PostedOperation;
use dipole_driver::WaitKey;

/// A peer is probed if it owes an answer for this long.
pub(crate) const WATCH_AFTER_NS: u64 = 500_000_000;

/// Identifies an operation that waits for its answer.
pub type OperationId = u32;

/// Where the data of an answer is stored.
#[derive(Debug)]
pub enum AnswerBuffer {
    /// The answer carries no data.
    None,
    /// The data is in a buffer, which the caller takes.
    Owned(Buffer),
    /// The data is written to the caller's memory.
    Caller {
        /// Memory of the caller.
        memory: Memory,
        /// Length of the data in bytes.
        length: usize,
    },
}

impl AnswerBuffer {
    fn bytes(&self) -> usize {
        match self {
            AnswerBuffer::None => 0,
            AnswerBuffer::Owned(buffer) => buffer.bytes().len(),
            AnswerBuffer::Caller { length, .. } => *length,
        }
    }

    /// Lets `write` fill a part, within bounds; `None` if the memory is gone.
    fn fill(&mut self, at: usize, length: usize, write: impl FnOnce(&mut [u8])) -> Option<()> {
        match self {
            AnswerBuffer::None => None,
            AnswerBuffer::Owned(buffer) => {
                write(&mut buffer.bytes_mut()[at..at + length]);
                Some(())
            }
            // Memory is revoked when its owner no longer waits.
            AnswerBuffer::Caller { memory, .. } => memory.fill(at, length, write).ok(),
        }
    }
}

/// The result of an operation.
#[derive(Debug)]
pub enum OperationResult {
    /// Success: a word, and the data of a get.
    Done(u64, Data),
    /// The owner of the memory refused it.
    Refused(Outcome),
    /// The target's process did not accept it.
    NotDelivered(RefusedReason),
    /// The target's process is gone.
    Gone(Option<GoneReason>),
}

/// An operation without an answer, or whose result has not been taken.
#[derive(Debug)]
struct Pending {
    edge: EdgeId,
    /// Where the edge was when it was registered.
    position: EdgePosition,
    is_fence: bool,
    place: AnswerBuffer,
    result: Option<OperationResult>,
    /// Set for posted operations, for which no thread waits.
    posted: Option<PostedOperation>,
    /// When it was started, or when its peer was last probed.
    asked_at: Instant,
}

/// Puts without an answer on an edge.
#[derive(Debug)]
struct UnansweredPuts {
    /// Source and target, as in answers.
    ends: u64,
    /// Why the first refused one was refused, since the last fence.
    refused: Option<Outcome>,
    /// The latest posted put, which is completed if one is refused.
    posted: Option<PostedOperation>,
}

/// All operations that wait for answers.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pending: FxHashMap<OperationId, Pending>,
    last_id: OperationId,
    unanswered: FxHashMap<EdgeId, UnansweredPuts>,
    /// Posted operations with results.
    finished: VecDeque<OperationId>,
    /// Posted puts without an answer that were refused.
    refused: VecDeque<(PostedOperation, Outcome)>,
}

impl Requests {
    /// Registers an operation that waits for an answer, and returns its id.
    pub(crate) fn expect(
        &mut self,
        now: Instant,
        (edge, position): (EdgeId, EdgePosition),
        (is_fence, place): (bool, AnswerBuffer),
        posted: Option<PostedOperation>,
    ) -> OperationId {
        // Id 0 is for operations without an answer.
        let id = loop {
            self.last_id = self.last_id.wrapping_add(1).max(1);
            if !self.pending.contains_key(&self.last_id) {
                break self.last_id;
            }
        };
        let pending = Pending {
            edge,
            position,
            is_fence,
            place,
            result: None,
            posted,
            asked_at: now,
        };
        self.pending.insert(id, pending);
        id
    }

    /// Announces puts without an answer on an edge; `posted` is completed if one is refused.
    pub(crate) fn track_unanswered_puts(
        &mut self,
        edge: EdgeId,
        (source, target): (u32, u32),
        posted: Option<PostedOperation>,
    ) {
        let unanswered = self.unanswered.entry(edge).or_insert(UnansweredPuts {
            ends: u64::from(source) << 32 | u64::from(target),
            refused: None,
            posted: None,
        });
        unanswered.posted = posted.or(unanswered.posted);
    }

    /// Takes the result of an operation, if it is known.
    pub(crate) fn take(&mut self, id: OperationId) -> Option<OperationResult> {
        self.pending.get(&id)?.result.as_ref()?;
        self.pending.remove(&id)?.result
    }

    /// Removes an operation and returns its buffer.
    pub(crate) fn forget(&mut self, id: OperationId) -> Option<AnswerBuffer> {
        Some(self.pending.remove(&id)?.place)
    }

    /// Takes the next posted operation with a result.
    pub(crate) fn next_finished(&mut self) -> Option<(PostedOperation, OperationResult)> {
        if let Some((posted, outcome)) = self.refused.pop_front() {
            return Some((posted, OperationResult::Refused(outcome)));
        }
        loop {
            let id = self.finished.pop_front()?;
            let pending = self.pending.remove(&id)?;
            if let (Some(posted), Some(result)) = (pending.posted, pending.result) {
                return Some((posted, result));
            }
        }
    }

    #[inline]
    pub(crate) fn has_finished(&self) -> bool {
        !self.finished.is_empty() || !self.refused.is_empty()
    }

    /// The operation that an answer of `total` bytes belongs to.
    fn pending_for(
        &mut self,
        peer: PeerId,
        answer: &Operation,
        total: u64,
    ) -> Option<&mut Pending> {
        let pending = self.pending.get_mut(&answer.id)?;
        let matches = pending.edge.peer == peer && pending.place.bytes() as u64 == total;
        matches.then_some(pending)
    }

    /// Stores a whole answer.
    pub(crate) fn place(
        &mut self,
        answer: (PeerId, &Operation, u64),
        bytes: Range<usize>,
        source: &(impl Source + ?Sized),
    ) {
        let all = (0, bytes.len());
        let _gone = self.fill(answer, all, |place| source.copy(bytes, place));
    }

    /// Lets `write` fill a part of an answer; `None` if no operation waits for it.
    pub(crate) fn fill(
        &mut self,
        (peer, answer, total): (PeerId, &Operation, u64),
        (at, length): (usize, usize),
        write: impl FnOnce(&mut [u8]),
    ) -> Option<()> {
        let pending = self.pending_for(peer, answer, total)?;
        pending.place.fill(at, length, write)
    }

    /// Completes the operation of an answer; returns the key to notify.
    pub(crate) fn on_answer(
        &mut self,
        peer: PeerId,
        answer: &Operation,
        outcome: Outcome,
        total: u64,
    ) -> Option<WaitKey> {
        let pending = self.pending.get_mut(&answer.id);
        let Some(pending) = pending.filter(|pending| pending.edge.peer == peer) else {
            self.record_refusal(peer, answer.key, outcome);
            return None;
        };
        let mut outcome = outcome;
        if outcome == Outcome::Done && pending.place.bytes() as u64 != total {
            // The answer does not match the request.
            outcome = Outcome::OutOfBounds;
        }
        if pending.is_fence {
            let before = self.unanswered.get_mut(&pending.edge);
            let refused = before.and_then(|before| before.refused.take());
            outcome = refused.unwrap_or(outcome);
        }
        let place = std::mem::replace(&mut pending.place, AnswerBuffer::None);
        let result = match (outcome, place) {
            (Outcome::Done, AnswerBuffer::Owned(buffer)) => {
                OperationResult::Done(answer.value, Data::new(buffer))
            }
            (Outcome::Done, _) => OperationResult::Done(answer.value, Data::default()),
            (refused, _) => OperationResult::Refused(refused),
        };
        self.finish(answer.id, result)
    }

    /// Records the refusal of a put without an answer, or of an operation whose caller gave up.
    fn record_refusal(&mut self, peer: PeerId, ends: u64, outcome: Outcome) {
        let mut unanswered = self.unanswered.iter_mut();
        let found = unanswered.find(|(edge, found)| edge.peer == peer && found.ends == ends);
        if let Some((_, found)) = found
            && outcome != Outcome::Done
        {
            found.refused.get_or_insert(outcome);
            self.refused
                .extend(found.posted.map(|posted| (posted, outcome)));
        }
    }

    /// Stores the result of an operation; returns the key to notify.
    fn finish(&mut self, id: OperationId, result: OperationResult) -> Option<WaitKey> {
        let pending = self.pending.get_mut(&id)?;
        if pending.result.is_some() {
            return None;
        }
        pending.result = Some(result);
        if pending.posted.is_some() {
            self.finished.push_back(id);
            return None;
        }
        Some(WaitKey::Operation(id))
    }

    /// Fails the operations of an edge whose messages are refused: all of them, or, if the edge was opened
    /// again at `before`, those that were registered earlier. Returns the keys to notify.
    pub(crate) fn refuse(
        &mut self,
        edge: EdgeId,
        before: EdgePosition,
        reason: RefusedReason,
    ) -> Vec<WaitKey> {
        let is_concerned = |it: &Pending| {
            // An operation that was registered while the edge ended may have been sent in its next life.
            let is_earlier = before.sequence == u64::MAX
                || it.position.life == before.life && it.position.sequence < before.sequence;
            it.edge == edge && is_earlier
        };
        self.fail(is_concerned, || OperationResult::NotDelivered(reason))
    }

    /// Fails all operations to a peer that is gone; returns the keys to notify.
    pub(crate) fn fail_all(&mut self, peer: PeerId, reason: Option<GoneReason>) -> Vec<WaitKey> {
        self.fail(|it| it.edge.peer == peer, || OperationResult::Gone(reason))
    }

    fn fail(
        &mut self,
        matches: impl Fn(&Pending) -> bool,
        why: impl Fn() -> OperationResult,
    ) -> Vec<WaitKey> {
        let waiting = self.pending.iter();
        let waiting = waiting.filter(|(_, it)| it.result.is_none() && matches(it));
        let ids: Vec<OperationId> = waiting.map(|(id, _)| *id).collect();
        let keys = ids.into_iter().filter_map(|id| self.finish(id, why()));
        keys.collect()
    }

    /// Forgets a closed edge and its puts.
    pub(crate) fn forget_edge(&mut self, edge: EdgeId) {
        self.unanswered.remove(&edge);
    }

    pub(crate) fn forget_peer(&mut self, peer: PeerId) {
        self.unanswered.retain(|edge, _| edge.peer != peer);
    }

    /// Takes the peers with overdue answers, at intervals; returns when to check again.
    pub(crate) fn overdue_peers(&mut self, now: Instant) -> (Vec<PeerId>, Instant) {
        let (mut overdue_peers, mut next) = (Vec::new(), Instant::NEVER);
        for pending in self.pending.values_mut() {
            if pending.result.is_some() {
                continue;
            }
            if now.since(pending.asked_at) >= WATCH_AFTER_NS {
                pending.asked_at = now;
                overdue_peers.push(pending.edge.peer);
            }
            next = next.min(pending.asked_at.after(WATCH_AFTER_NS));
        }
        (overdue_peers, next)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dipole_naming::address::Address;
    use dipole_proto::Machine;
    use dipole_proto::wire::OperationKind;

    use super::*;
    use crate::inbox::Buffers;

    const START: EdgePosition = EdgePosition {
        life: 0,
        sequence: 0,
    };

    /// Edges to two processes of this node.
    fn edges() -> [EdgeId; 2] {
        let mut machine = Machine::new(dipole_proto::Config::default(), 1, [2, 3], &[]);
        let greeting = machine.greeting();
        [(); 2].map(|()| EdgeId {
            peer: machine.open_pipe(greeting).expect("room"),
            index: 0,
            generation: 0,
        })
    }

    fn answer(id: OperationId, value: u64) -> Operation {
        Operation {
            kind: OperationKind::Answer(Outcome::Done),
            wants_answer: false,
            gives_notice: false,
            id,
            key: 0,
            offset: 0,
            value,
        }
    }

    fn posted(context: u64) -> Option<PostedOperation> {
        Some(PostedOperation {
            context,
            queue: None,
            to: Address::new(1, 7),
        })
    }

    #[test]
    fn an_answer_counts_only_from_the_process_that_was_asked_and_only_once() {
        let [asked, other] = edges();
        let (mut requests, buffers) = (Requests::default(), Arc::new(Buffers::default()));
        let place = AnswerBuffer::Owned(buffers.take(4));
        let id = requests.expect(Instant::default(), (asked, START), (false, place), None);
        let (right, forged) = (answer(id, 5), answer(id, 6));
        requests.place((other.peer, &forged, 4), 0..4, &b"evil"[..]);
        let outcome = Outcome::Done;
        assert_eq!(requests.on_answer(other.peer, &forged, outcome, 4), None);
        assert!(requests.take(id).is_none(), "the owner has not answered");

        requests.place((asked.peer, &right, 4), 0..4, &b"good"[..]);
        let key = requests.on_answer(asked.peer, &right, outcome, 4);
        assert_eq!(key, Some(WaitKey::Operation(id)));
        assert_eq!(requests.on_answer(asked.peer, &forged, outcome, 4), None);
        let Some(OperationResult::Done(5, data)) = requests.take(id) else {
            panic!("the first answer of the owner is the result");
        };
        assert_eq!(&data[..], b"good");
        assert!(requests.take(id).is_none(), "taken once");
    }

    #[test]
    fn each_posted_operation_to_a_process_that_ends_fails_exactly_once() {
        let [ended, other] = edges();
        let mut requests = Requests::default();
        let mut post = |edge, context| {
            let place = (false, AnswerBuffer::None);
            requests.expect(Instant::default(), (edge, START), place, posted(context))
        };
        let (answered, pending, elsewhere) = (post(ended, 1), post(ended, 2), post(other, 3));
        requests.on_answer(ended.peer, &answer(answered, 9), Outcome::Done, 0);
        for _ in 0..2 {
            let keys = requests.fail_all(ended.peer, None);
            assert!(keys.is_empty(), "no thread waits for posted operations");
        }
        // Its answer may still arrive through another link.
        requests.on_answer(ended.peer, &answer(pending, 9), Outcome::Done, 0);
        let mut finished = Vec::new();
        while let Some((posted, result)) = requests.next_finished() {
            let is_done = matches!(result, OperationResult::Done(9, _));
            assert!(is_done || matches!(result, OperationResult::Gone(None)));
            finished.push((posted.context, is_done));
        }
        assert_eq!(finished, [(1, true), (2, false)]);
        assert!(!requests.has_finished());
        requests.on_answer(other.peer, &answer(elsewhere, 9), Outcome::Done, 0);
        assert!(requests.has_finished(), "the other process goes on");
    }

    #[test]
    fn a_refusal_from_before_an_edge_was_opened_again_fails_only_the_operations_of_that_time() {
        let [edge, _] = edges();
        let mut requests = Requests::default();
        let mut expect = |sequence| {
            let position = EdgePosition { life: 1, sequence };
            let place = (false, AnswerBuffer::None);
            requests.expect(Instant::default(), (edge, position), place, None)
        };
        let (earlier, later) = (expect(4), expect(5));
        let reopened_at = |life, sequence| EdgePosition { life, sequence };
        let reason = RefusedReason::TooManyEdges;
        let other_life = requests.refuse(edge, reopened_at(2, 9), reason);
        assert_eq!(other_life, []);
        let keys = requests.refuse(edge, reopened_at(1, 5), reason);
        assert_eq!(keys, [WaitKey::Operation(earlier)]);
        let keys = requests.refuse(edge, reopened_at(2, u64::MAX), reason);
        assert_eq!(keys, [WaitKey::Operation(later)]);
    }
}
