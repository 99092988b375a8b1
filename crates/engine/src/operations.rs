//! Operations on memory: what others ask of this process's regions, and what it asks of
//! theirs. Spec §5.9.
//!
//! An operation comes along an edge, in its order, without a buffer between the link and its
//! place: `Core` does it as it arrives. `operations/answers.rs` sends the answers,
//! `operations/requests.rs` keeps what this process has asked.

mod answers;
mod requests;

use std::ops::Range;

use bytes::Bytes;
use dipole_link::Region as Memory;
use dipole_proto::wire::{
    OPERATION_BYTES, Operation as Wire, OperationKind, Outcome, RefusedReason,
};
use dipole_proto::{EdgeId, Instant, PeerId, Region, Rights};
use rustc_hash::FxHashMap;

use super::content::Content;
use super::core::Core;
use super::dispatch::Source;
use super::posted::{Part, Posted};
use super::{Blocked, Engine};
use crate::gone::GoneReason;
use crate::inbox::{Buffer, Charge, NOTICE_BYTES};
use crate::operation::Operation;
use answers::{ANSWERS, Answer, AnswerData, Answers};
pub use requests::{AnswerPlace, OperationId, OperationResult};
use requests::{Requests, WATCH_AFTER_NS};

/// Longest piece of memory that one operation gets; more takes several.
pub const MAX_GET_BYTES: usize = 16 << 20;

/// What an operation that has begun waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// For nothing: all of a message is on its way.
    Sent,
    /// A long message goes on by itself.
    GoesOn,
    /// For the target's answer.
    Asked(OperationId),
}

/// A region of this process.
#[derive(Debug)]
struct OpenRegion {
    facts: Region,
    memory: Memory,
}

/// An operation of which pieces have come, or that earlier ones of its edge must precede.
#[derive(Debug)]
struct Arriving {
    edge: EdgeId,
    sequence: u64,
    target: u32,
    operation: Wire,
    total: u64,
    refused: Option<Outcome>,
    /// The data of a compare-and-swap.
    word: [u8; 8],
}

/// See the module.
#[derive(Debug)]
pub(super) struct Operations {
    regions: FxHashMap<u64, OpenRegion>,
    arriving: Vec<Arriving>,
    /// Edges of operations that are done and answered.
    consumed: Vec<EdgeId>,
    answers: Answers,
    requests: Requests,
    /// When something must be done though nothing arrives.
    tend_at: Instant,
    /// Something was done for others since that was last asked.
    has_served: bool,
}

impl Default for Operations {
    fn default() -> Operations {
        Operations {
            regions: FxHashMap::default(),
            arriving: Vec::new(),
            consumed: Vec::new(),
            answers: Answers::default(),
            requests: Requests::default(),
            tend_at: Instant::NEVER,
            has_served: false,
        }
    }
}

impl Operations {
    fn find(&self, edge: EdgeId, sequence: u64) -> Option<usize> {
        let is_it = |found: &Arriving| found.edge == edge && found.sequence == sequence;
        self.arriving.iter().rposition(is_it)
    }

    /// True if what has begun to come under this number is an operation.
    #[inline]
    pub(super) fn is_arriving(&self, edge: EdgeId, sequence: u64) -> bool {
        !self.arriving.is_empty() && self.find(edge, sequence).is_some()
    }

    /// Whether an operation may be done on a region, and the region's memory.
    fn check(&self, target: u32, operation: &Wire, data: u64) -> Result<&Memory, Outcome> {
        let region = self.regions.get(&operation.key).ok_or(Outcome::NoRegion)?;
        region.facts.check(target, operation, data)?;
        Ok(&region.memory)
    }

    /// Lets `write` fill a part of where the data of an arriving operation go, without a copy
    /// between; `None` if it was refused, or has none.
    pub(super) fn fill(
        &mut self,
        (edge, sequence): (EdgeId, u64),
        (at, length): (usize, usize),
        write: impl FnOnce(&mut [u8]),
    ) -> Option<()> {
        let index = self.find(edge, sequence)?;
        let arriving = &self.arriving[index];
        let (operation, total) = (arriving.operation, arriving.total);
        match operation.kind {
            OperationKind::Put if arriving.refused.is_none() => {
                let at = place_in(operation.offset, at as u64);
                let checked = self.check(arriving.target, &operation, total);
                let filled = checked.and_then(|memory| fill(memory, at, length, write));
                self.arriving[index].refused = filled.err();
                filled.ok()
            }
            OperationKind::Answer(_) => {
                let answer = (edge.peer, &operation, total);
                self.requests.fill(answer, (at, length), write)
            }
            _ => None,
        }
    }

    /// Puts a piece of an operation's data where it belongs.
    fn place(
        &mut self,
        index: usize,
        offset: u64,
        bytes: Range<usize>,
        source: &(impl Source + ?Sized),
    ) {
        let arriving = &mut self.arriving[index];
        let of = (arriving.edge, arriving.sequence);
        let at = (place_in(offset, 0), bytes.len());
        match arriving.operation.kind {
            OperationKind::CompareSwap => {
                if let Some(place) = arriving.word.get_mut(at.0..at.0 + at.1) {
                    source.copy(bytes, place);
                }
            }
            _ => {
                let copy = |place: &mut [u8]| source.copy(bytes, place);
                let _refused = self.fill(of, at, copy);
            }
        }
    }

    /// An edge of ours is over.
    pub(super) fn forget_edge(&mut self, edge: EdgeId) {
        self.requests.forget_edge(edge);
    }
}

/// Writes into a region what has been checked to lie inside.
fn fill(
    memory: &Memory,
    at: usize,
    length: usize,
    write: impl FnOnce(&mut [u8]),
) -> Result<(), Outcome> {
    // It may have been revoked a moment ago.
    (memory.fill(at, length, write)).map_err(|_| Outcome::NoRegion)
}

/// A place in memory; one that cannot be is beyond all memory.
fn place_in(base: u64, offset: u64) -> usize {
    usize::try_from(base.saturating_add(offset)).unwrap_or(usize::MAX)
}

impl Core {
    /// A whole operation, next in the order of its edge.
    pub(super) fn on_operation(
        &mut self,
        edge: EdgeId,
        (from, target): (u32, u32),
        bytes: Range<usize>,
        source: &(impl Source + ?Sized),
    ) {
        let data = bytes.start + OPERATION_BYTES..bytes.end;
        let total = data.len() as u64;
        let operation = parse_head(bytes.start, total, source);
        let mut arrived = Arriving {
            edge,
            sequence: 0,
            target,
            operation,
            total,
            refused: None,
            word: [0; 8],
        };
        let operations = &mut self.operations;
        match operation.kind {
            OperationKind::Put => {
                let checked = operations.check(target, &operation, total);
                let (at, length) = (place_in(operation.offset, 0), data.len());
                let copy = |place: &mut [u8]| source.copy(data, place);
                let put = checked.and_then(|memory| fill(memory, at, length, copy));
                arrived.refused = put.err();
            }
            OperationKind::CompareSwap => source.copy(data, &mut arrived.word),
            OperationKind::Answer(_) => {
                let answer = (edge.peer, &operation, total);
                operations.requests.place(answer, data, source);
            }
            OperationKind::Get | OperationKind::FetchAdd | OperationKind::Fence => {}
        }
        self.conclude_operation(from, &arrived);
    }

    /// A piece of an operation, or one that earlier ones of its edge must precede.
    pub(super) fn hold_operation(
        &mut self,
        (edge, target, sequence): (EdgeId, u32, u64),
        (offset, total): (u64, u64),
        (has_head, bytes): (bool, Range<usize>),
        source: &(impl Source + ?Sized),
    ) {
        let head = if has_head { OPERATION_BYTES } else { 0 };
        let data = bytes.start + head..bytes.end;
        let operations = &mut self.operations;
        let index = operations.find(edge, sequence).unwrap_or_else(|| {
            operations.arriving.push(Arriving {
                edge,
                sequence,
                target,
                operation: parse_head(bytes.start, total, source),
                total,
                refused: None,
                word: [0; 8],
            });
            operations.arriving.len() - 1
        });
        if !data.is_empty() {
            operations.place(index, offset, data, source);
        }
    }

    /// All of an operation has come, and all before it on its edge.
    pub(super) fn complete_operation(&mut self, edge: EdgeId, from: u32, sequence: u64) {
        if let Some(index) = self.operations.find(edge, sequence) {
            let arrived = self.operations.arriving.swap_remove(index);
            self.conclude_operation(from, &arrived);
        }
    }

    /// Does what is left of an operation whose data are in their place, and answers.
    fn conclude_operation(&mut self, from: u32, arrived: &Arriving) {
        let Arriving {
            edge,
            target,
            ref operation,
            total,
            ..
        } = *arrived;
        let operations = &mut self.operations;
        if let OperationKind::Answer(outcome) = operation.kind {
            operations.consumed.push(edge);
            if target == ANSWERS {
                let key = operations
                    .requests
                    .answered(edge.peer, operation, outcome, total);
                key.into_iter().for_each(|key| self.ready.notify(key));
            }
            return;
        }
        let (outcome, value, data) = match operations.conclude(arrived) {
            Ok((value, data)) => (Outcome::Done, value, data),
            Err(outcome) => (outcome, 0, AnswerData::None),
        };
        let mut charge = Some(edge);
        if operation.gives_notice
            && outcome == Outcome::Done
            && operation.kind == OperationKind::Put
        {
            let arrival = self.arrival(edge.peer, from, target, Charge::Edge(edge));
            let notice = notice_bytes(operation, total);
            let ready = &mut self.ready;
            // The notice holds the credit until it is read.
            if self.dispatch.deliver_notice(&arrival, &notice, ready) {
                charge = None;
            }
        }
        if outcome == Outcome::Done && !operation.wants_answer {
            self.operations.consumed.extend(charge);
            return;
        }
        let answer = Answer {
            operation: operation.answer((from, target), outcome, value),
            data,
            charge,
            asked: target,
        };
        self.operations.answers.push(edge.peer, answer);
    }

    /// Messages and operations of an edge were not taken; the latter only where the receiver
    /// has no room for the edge, or a rule was broken.
    pub(super) fn refuse_operations(&mut self, edge: EdgeId, reason: RefusedReason) {
        if matches!(reason, RefusedReason::NoEndpoint | RefusedReason::Closed) {
            return;
        }
        let requests = &mut self.operations.requests;
        let keys = requests.fail(|it| it == edge, || OperationResult::NotTaken(reason));
        keys.into_iter().for_each(|key| self.ready.notify(key));
    }

    /// A peer is gone: what it was asked fails, what it asked is forgotten.
    pub(super) fn forget_operations(&mut self, peer: PeerId, reason: GoneReason) {
        let operations = &mut self.operations;
        operations.arriving.retain(|it| it.edge.peer != peer);
        operations.consumed.retain(|edge| edge.peer != peer);
        operations.answers.forget_peer(peer);
        operations.requests.forget_peer(peer);
        let why = || OperationResult::Gone(Some(reason));
        let keys = operations.requests.fail(|edge| edge.peer == peer, why);
        keys.into_iter().for_each(|key| self.ready.notify(key));
    }
}

impl Operations {
    /// Does an operation that is next in order: a word, and the data of the answer.
    fn conclude(&self, arrived: &Arriving) -> Result<(u64, AnswerData), Outcome> {
        let operation = &arrived.operation;
        if let Some(outcome) = arrived.refused {
            return Err(outcome);
        }
        if operation.kind == OperationKind::Fence {
            return Ok((0, AnswerData::None));
        }
        let memory = self.check(arrived.target, operation, arrived.total)?;
        let at = place_in(operation.offset, 0);
        let word = match operation.kind {
            OperationKind::FetchAdd => memory.fetch_add(at, operation.value),
            OperationKind::CompareSwap => {
                memory.compare_swap(at, u64::from_le_bytes(arrived.word), operation.value)
            }
            OperationKind::Get if operation.value > MAX_GET_BYTES as u64 => {
                return Err(Outcome::OutOfBounds);
            }
            OperationKind::Get => {
                let part = Part {
                    key: operation.key,
                    memory: memory.clone(),
                    offset: at,
                    length: place_in(operation.value, 0),
                };
                return Ok((0, AnswerData::Region(part)));
            }
            _ => Ok(0),
        };
        // The memory may begin elsewhere than at a word.
        let word = word.map_err(|_| Outcome::Misaligned)?;
        Ok((word, AnswerData::None))
    }
}

/// What stands for an operation that cannot be read: it is done, and changes nothing.
const NONSENSE: Wire = Wire {
    kind: OperationKind::Answer(Outcome::NoRegion),
    wants_answer: false,
    gives_notice: false,
    id: 0,
    key: u64::MAX,
    offset: 0,
    value: 0,
};

fn parse_head(at: usize, total: u64, source: &(impl Source + ?Sized)) -> Wire {
    let mut head = [0; OPERATION_BYTES];
    source.copy(at..at + OPERATION_BYTES, &mut head);
    Wire::parse(&head, total).unwrap_or(NONSENSE)
}

/// What the owner is told: the region's key, where, how much, and the initiator's value.
fn notice_bytes(operation: &Wire, length: u64) -> [u8; NOTICE_BYTES] {
    let words = [operation.key, operation.offset, length, operation.value];
    let mut bytes = [0; NOTICE_BYTES];
    for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
    bytes
}

impl Engine {
    /// Opens memory to the peers of an endpoint; the key by which they reach it.
    pub fn open_region(&mut self, endpoint: u32, memory: Memory, rights: Rights) -> u64 {
        let regions = &mut self.core.operations.regions;
        let key = loop {
            let key = self.core.machine.draw_key();
            if !regions.contains_key(&key) {
                break key;
            }
        };
        let facts = Region {
            endpoint,
            length: memory.bytes() as u64,
            rights,
        };
        regions.insert(key, OpenRegion { facts, memory });
        key
    }

    /// Closes a region: nobody reaches its memory by its key any more.
    pub fn close_region(&mut self, key: u64) {
        let operations = &mut self.core.operations;
        if operations.regions.remove(&key).is_some() {
            let buffers = self.core.dispatch.buffers();
            operations.answers.close_region(key, buffers);
            if let Some(memory) = &mut self.memory {
                memory.close_region(key, buffers);
            }
        }
    }

    /// An endpoint is about to be closed: so are its regions.
    pub(super) fn close_regions_of(&mut self, endpoint: u32) {
        let regions = self.core.operations.regions.iter();
        let of = regions.filter(|(_, region)| region.facts.endpoint == endpoint);
        let keys: Vec<u64> = of.map(|(key, _)| *key).collect();
        for key in keys {
            self.close_region(key);
        }
        self.core.operations.answers.close_endpoint(endpoint);
    }

    /// Begins an operation along an edge. What does not fit the frames at hand goes on by itself.
    ///
    /// # Errors
    /// [`Blocked`]; nothing was begun.
    pub fn begin_operation(
        &mut self,
        now: Instant,
        edge: EdgeId,
        operation: &Operation,
        bytes: &Bytes,
    ) -> Result<Begun, Blocked> {
        self.begin_posted(now, edge, (operation, bytes, None), None)
    }

    /// The same for what was posted: a get goes `into` memory of the caller's, if that is given.
    ///
    /// # Errors
    /// [`Blocked`]; nothing was begun.
    pub fn begin_posted(
        &mut self,
        now: Instant,
        edge: EdgeId,
        (operation, bytes, into): (&Operation, &Bytes, Option<&Memory>),
        posted: Option<Posted>,
    ) -> Result<Begun, Blocked> {
        let Some(mut head) = operation.head() else {
            let sent = self.send_shared(now, edge, None, bytes, posted)?;
            return Ok(if sent { Begun::Sent } else { Begun::GoesOn });
        };
        if !head.wants_answer {
            if let Some(key) = self.core.machine.edge_key(edge) {
                let requests = &mut self.core.operations.requests;
                requests.note_unanswered(edge, key.ends(), posted);
            }
            let sent = self.send_shared(now, edge, Some(&head.to_bytes()), bytes, posted)?;
            return Ok(if sent { Begun::Sent } else { Begun::GoesOn });
        }
        let place = match *operation {
            Operation::Get { length, .. } => match into {
                Some(memory) => AnswerPlace::Memory {
                    memory: memory.clone(),
                    length,
                },
                None => AnswerPlace::Buffer(self.take_buffer(length)),
            },
            _ => AnswerPlace::None,
        };
        head.id = self.expect_answer(now, edge, (false, place), posted);
        let head_bytes = head.to_bytes();
        let sent = match operation {
            Operation::Put { .. } => {
                // Its completion comes with the answer.
                let sent = self.send_shared(now, edge, Some(&head_bytes), bytes, None);
                sent.map(drop)
            }
            _ => {
                let word = operation.word();
                let data = word.as_ref().map_or(&[][..], |word| &word[..]);
                let content = Content::operation(&head_bytes, data);
                self.send_whole(now, edge, content, false)
            }
        };
        if sent.is_err() {
            self.forget_operation(head.id);
        }
        sent.map(|()| Begun::Asked(head.id))
    }

    /// The next operation on an edge waits for an answer under the id that this returns.
    pub fn expect_answer(
        &mut self,
        now: Instant,
        edge: EdgeId,
        wanted: (bool, AnswerPlace),
        posted: Option<Posted>,
    ) -> OperationId {
        let operations = &mut self.core.operations;
        operations.tend_at = operations.tend_at.min(now.after(WATCH_AFTER_NS));
        operations.requests.expect(now, edge, wanted, posted)
    }

    /// Puts that nobody waits for are about to be sent on an edge: what is refused of them the
    /// next fence tells.
    pub fn note_unanswered(&mut self, edge: EdgeId, ends: (u32, u32)) {
        (self.core.operations.requests).note_unanswered(edge, ends, None);
    }

    /// What an operation came to, once that is known.
    pub fn take_operation(&mut self, id: OperationId) -> Option<OperationResult> {
        self.core.operations.requests.take(id)
    }

    /// Nobody waits for an answer any more; its place, whose it is again.
    pub fn forget_operation(&mut self, id: OperationId) -> Option<AnswerPlace> {
        self.core.operations.requests.forget(id)
    }

    /// A buffer for what is got.
    pub fn take_buffer(&self, length: usize) -> Buffer {
        self.core.dispatch.buffers().take(length)
    }

    /// The next posted message that has gone, or whose peer is gone, since it was begun.
    pub fn next_sent_post(&mut self) -> Option<(Posted, Result<(), Option<GoneReason>>)> {
        self.core.sent_posts.pop_front()
    }

    /// The next posted operation that has its result.
    pub fn next_finished(&mut self) -> Option<(Posted, OperationResult)> {
        self.core.operations.requests.next_finished()
    }

    /// True if something that was posted is done since it was begun.
    #[inline]
    pub fn has_finished(&self) -> bool {
        self.core.operations.requests.has_finished() || !self.core.sent_posts.is_empty()
    }

    /// Sends answers, and gives back the credit of what is done.
    #[inline]
    pub(super) fn tend_operations(&mut self, now: Instant) {
        let operations = &self.core.operations;
        if operations.answers.is_busy() || !operations.consumed.is_empty() {
            self.tend_busy(now);
        }
    }

    /// True once after something was done for others.
    #[inline]
    pub fn take_served(&mut self) -> bool {
        std::mem::take(&mut self.core.operations.has_served)
    }

    fn tend_busy(&mut self, now: Instant) {
        self.core.operations.has_served = true;
        if self.core.operations.answers.is_busy() {
            let tend_at = self.send_answers(now);
            let operations = &mut self.core.operations;
            operations.tend_at = operations.tend_at.min(tend_at);
        }
        for edge in self.core.operations.consumed.drain(..) {
            self.core.machine.consumed(now, edge, 0);
        }
        self.push_records();
    }

    /// What time asks for: answers that found no room, their edges that nobody uses, peers that
    /// owe answers.
    #[inline]
    pub(super) fn time_operations(&mut self, now: Instant) {
        if now >= self.core.operations.tend_at {
            self.sweep_operations(now);
        }
    }

    #[cold]
    fn sweep_operations(&mut self, now: Instant) {
        let operations = &mut self.core.operations;
        let (idle, again) = operations.answers.take_idle(now);
        let (owing, watch_at) = operations.requests.owing(now);
        operations.tend_at = again.min(watch_at);
        for edge in idle {
            self.close_edge(edge);
        }
        for peer in owing {
            self.core.machine.watch(now, peer, true);
        }
    }

    /// When [`time_operations`](Self::time_operations) has something to do.
    pub(super) fn operations_deadline(&self) -> Option<Instant> {
        let at = self.core.operations.tend_at;
        (at != Instant::NEVER).then_some(at)
    }
}
