//! What this process asks of others' memory, until it is answered.

use std::collections::VecDeque;
use std::ops::Range;

use dipole_link::Region as Memory;
use dipole_proto::wire::{Operation, Outcome, RefusedReason};
use dipole_proto::{EdgeId, Instant, PeerId};
use rustc_hash::FxHashMap;

use crate::dispatch::Source;
use crate::gone::GoneReason;
use crate::inbox::Buffer;
use crate::operation::Data;
use crate::posted::Posted;
use dipole_driver::WaitKey;

/// A process that owes an answer for so long is asked whether it lives.
pub(crate) const WATCH_AFTER_NS: u64 = 500_000_000;

/// Names an operation of this process that waits for its answer.
pub type OperationId = u32;

/// Where the data of an answer go.
#[derive(Debug)]
pub enum AnswerPlace {
    /// There are none.
    None,
    /// Into a buffer, which the asker takes.
    Buffer(Buffer),
    /// Into memory of the caller's.
    Memory {
        /// The memory.
        memory: Memory,
        /// How much of it.
        length: usize,
    },
}

impl AnswerPlace {
    fn bytes(&self) -> usize {
        match self {
            AnswerPlace::None => 0,
            AnswerPlace::Buffer(buffer) => buffer.bytes().len(),
            AnswerPlace::Memory { length, .. } => *length,
        }
    }

    /// Lets `write` have a part of it, which lies inside; `None` if it is gone.
    fn fill(&mut self, at: usize, length: usize, write: impl FnOnce(&mut [u8])) -> Option<()> {
        match self {
            AnswerPlace::None => None,
            AnswerPlace::Buffer(buffer) => {
                write(&mut buffer.bytes_mut()[at..at + length]);
                Some(())
            }
            // Memory that is revoked belongs to somebody who no longer waits.
            AnswerPlace::Memory { memory, .. } => memory.fill(at, length, write).ok(),
        }
    }
}

/// What an operation of this process came to.
#[derive(Debug)]
pub enum OperationResult {
    /// It was done: a word, or what was got.
    Done(u64, Data),
    /// The owner refused it.
    Refused(Outcome),
    /// Nobody took it.
    NotTaken(RefusedReason),
    /// Its process is gone.
    Gone(Option<GoneReason>),
}

/// An operation that waits for its answer, or whose asker has not taken it.
#[derive(Debug)]
struct Pending {
    edge: EdgeId,
    is_fence: bool,
    place: AnswerPlace,
    result: Option<OperationResult>,
    /// Unless a thread waits for it.
    posted: Option<Posted>,
    /// When it was begun, or its process last asked whether it lives.
    asked_at: Instant,
}

/// Puts on an edge that nobody waits for.
#[derive(Debug)]
struct Unanswered {
    /// Source and target, as answers name them.
    ends: u64,
    /// Why the first was refused that was, since the last fence.
    refused: Option<Outcome>,
    /// Who posted the last, to be told if one is refused.
    posted: Option<Posted>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pending: FxHashMap<OperationId, Pending>,
    last_id: OperationId,
    unanswered: FxHashMap<EdgeId, Unanswered>,
    /// Posted ones that have their results.
    finished: VecDeque<OperationId>,
    /// Those that nobody waited for and that were refused.
    refused: VecDeque<(Posted, Outcome)>,
}

impl Requests {
    /// The next operation on an edge waits for an answer under the id that this returns.
    pub(crate) fn expect(
        &mut self,
        now: Instant,
        edge: EdgeId,
        (is_fence, place): (bool, AnswerPlace),
        posted: Option<Posted>,
    ) -> OperationId {
        // Answers to operations that nobody waits for have none.
        let id = loop {
            self.last_id = self.last_id.wrapping_add(1).max(1);
            if !self.pending.contains_key(&self.last_id) {
                break self.last_id;
            }
        };
        let pending = Pending {
            edge,
            is_fence,
            place,
            result: None,
            posted,
            asked_at: now,
        };
        self.pending.insert(id, pending);
        id
    }

    /// Puts that nobody waits for are about to be sent on an edge; `posted` is whoever is told at
    /// once if one is refused.
    pub(crate) fn note_unanswered(
        &mut self,
        edge: EdgeId,
        (source, target): (u32, u32),
        posted: Option<Posted>,
    ) {
        let unanswered = self.unanswered.entry(edge).or_insert(Unanswered {
            ends: u64::from(source) << 32 | u64::from(target),
            refused: None,
            posted: None,
        });
        unanswered.posted = posted.or(unanswered.posted);
    }

    /// What one came to, once that is known.
    pub(crate) fn take(&mut self, id: OperationId) -> Option<OperationResult> {
        self.pending.get(&id)?.result.as_ref()?;
        self.pending.remove(&id)?.result
    }

    /// Nobody waits for one any more; its place, whose it is again.
    pub(crate) fn forget(&mut self, id: OperationId) -> Option<AnswerPlace> {
        Some(self.pending.remove(&id)?.place)
    }

    /// The next posted one that has its result.
    pub(crate) fn next_finished(&mut self) -> Option<(Posted, OperationResult)> {
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

    /// The one that an answer of so many bytes is for.
    fn asked(&mut self, peer: PeerId, answer: &Operation, total: u64) -> Option<&mut Pending> {
        let pending = self.pending.get_mut(&answer.id)?;
        let is_it = pending.edge.peer == peer && pending.place.bytes() as u64 == total;
        is_it.then_some(pending)
    }

    /// Puts a whole answer where its asker wants it.
    pub(crate) fn place(
        &mut self,
        answer: (PeerId, &Operation, u64),
        bytes: Range<usize>,
        source: &(impl Source + ?Sized),
    ) {
        let all = (0, bytes.len());
        let _gone = self.fill(answer, all, |place| source.copy(bytes, place));
    }

    /// Lets `write` fill a part of where an answer goes; `None` if nobody wants it.
    pub(crate) fn fill(
        &mut self,
        (peer, answer, total): (PeerId, &Operation, u64),
        (at, length): (usize, usize),
        write: impl FnOnce(&mut [u8]),
    ) -> Option<()> {
        let pending = self.asked(peer, answer, total)?;
        pending.place.fill(at, length, write)
    }

    /// An answer is complete; the key of who waits for it.
    pub(crate) fn answered(
        &mut self,
        peer: PeerId,
        answer: &Operation,
        outcome: Outcome,
        total: u64,
    ) -> Option<WaitKey> {
        let pending = self.pending.get_mut(&answer.id);
        let Some(pending) = pending.filter(|pending| pending.edge.peer == peer) else {
            self.note_refused(peer, answer.key, outcome);
            return None;
        };
        let mut outcome = outcome;
        if outcome == Outcome::Done && pending.place.bytes() as u64 != total {
            // The owner answers something else than it was asked.
            outcome = Outcome::OutOfBounds;
        }
        if pending.is_fence {
            let before = self.unanswered.get_mut(&pending.edge);
            let refused = before.and_then(|before| before.refused.take());
            outcome = refused.unwrap_or(outcome);
        }
        let place = std::mem::replace(&mut pending.place, AnswerPlace::None);
        let result = match (outcome, place) {
            (Outcome::Done, AnswerPlace::Buffer(buffer)) => {
                OperationResult::Done(answer.value, Data::new(buffer))
            }
            (Outcome::Done, _) => OperationResult::Done(answer.value, Data::default()),
            (refused, _) => OperationResult::Refused(refused),
        };
        self.finish(answer.id, result)
    }

    /// A put that nobody waits for was refused; or somebody has given up waiting.
    fn note_refused(&mut self, peer: PeerId, ends: u64, outcome: Outcome) {
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

    /// One has its result; the key of who waits for it.
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

    /// All whose edge `is_it` fail; the keys of those who wait for them.
    pub(crate) fn fail(
        &mut self,
        is_it: impl Fn(EdgeId) -> bool,
        why: impl Fn() -> OperationResult,
    ) -> Vec<WaitKey> {
        let waiting = self.pending.iter();
        let waiting = waiting.filter(|(_, it)| it.result.is_none() && is_it(it.edge));
        let ids: Vec<OperationId> = waiting.map(|(id, _)| *id).collect();
        let keys = ids.into_iter().filter_map(|id| self.finish(id, why()));
        keys.collect()
    }

    /// An edge of ours is over: nobody asks any more what became of its puts.
    pub(crate) fn forget_edge(&mut self, edge: EdgeId) {
        self.unanswered.remove(&edge);
    }

    pub(crate) fn forget_peer(&mut self, peer: PeerId) {
        self.unanswered.retain(|edge, _| edge.peer != peer);
    }

    /// The processes that have owed answers for long, each once in a while; when to look again.
    pub(crate) fn owing(&mut self, now: Instant) -> (Vec<PeerId>, Instant) {
        let (mut owing, mut next) = (Vec::new(), Instant::NEVER);
        for pending in self.pending.values_mut() {
            if pending.result.is_some() {
                continue;
            }
            if now.since(pending.asked_at) >= WATCH_AFTER_NS {
                pending.asked_at = now;
                owing.push(pending.edge.peer);
            }
            next = next.min(pending.asked_at.after(WATCH_AFTER_NS));
        }
        (owing, next)
    }
}
