//! Memory operations: of peers on this process's regions, and of this process on theirs. Spec
//! §5.9.
//!
//! An operation arrives in its edge's order, and `Core` executes it directly on the region,
//! without an intermediate buffer. `operations/answers.rs` sends the answers;
//! `operations/requests.rs` tracks this process's own operations.

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
use super::posted::{PostedOperation, RegionPart};
use super::{Blocked, Engine};
use crate::gone::GoneReason;
use crate::inbox::{Buffer, Charge, NOTICE_BYTES};
use crate::operation::Operation;
use answers::{ANSWER_ENDPOINT, Answer, AnswerData, Answers};
pub use requests::{AnswerBuffer, OperationId, OperationResult};
use requests::{Requests, WATCH_AFTER_NS};

/// Largest get in one operation; larger ones are split.
pub const MAX_GET_BYTES: usize = 16 << 20;

/// State of an operation that has been started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationStart {
    /// Completely sent; there is no answer.
    Sent,
    /// A long message is being sent in the background.
    InBackground,
    /// Waiting for the target's answer.
    AwaitsAnswer(OperationId),
}

/// A region of this process.
#[derive(Debug)]
struct OpenRegion {
    facts: Region,
    memory: Memory,
}

/// An operation that has partly arrived, or that must wait for earlier ones of its edge.
#[derive(Debug)]
struct IncomingOperation {
    edge: EdgeId,
    sequence: u64,
    target: u32,
    operation: Wire,
    total: u64,
    refused: Option<Outcome>,
    /// The expected value of a compare-and-swap.
    word: [u8; 8],
}

/// Regions, arriving operations, answers and requests.
#[derive(Debug)]
pub(super) struct Operations {
    regions: FxHashMap<u64, OpenRegion>,
    arriving: Vec<IncomingOperation>,
    /// Edges of operations that have been executed and answered.
    consumed: Vec<EdgeId>,
    answers: Answers,
    requests: Requests,
    /// When a step is needed even if nothing arrives.
    timer_at: Instant,
    /// An operation of a peer was executed since the last check.
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
            timer_at: Instant::NEVER,
            has_served: false,
        }
    }
}

impl Operations {
    fn find(&self, edge: EdgeId, sequence: u64) -> Option<usize> {
        let is_it = |found: &IncomingOperation| found.edge == edge && found.sequence == sequence;
        self.arriving.iter().rposition(is_it)
    }

    /// True if this sequence number belongs to an operation that is arriving.
    #[inline]
    pub(super) fn is_arriving(&self, edge: EdgeId, sequence: u64) -> bool {
        !self.arriving.is_empty() && self.find(edge, sequence).is_some()
    }

    /// Checks an operation against its region and returns the region's memory.
    fn check(&self, target: u32, operation: &Wire, data: u64) -> Result<&Memory, Outcome> {
        let region = self.regions.get(&operation.key).ok_or(Outcome::NoRegion)?;
        region.facts.check(target, operation, data)?;
        Ok(&region.memory)
    }

    /// Lets `write` fill a part of the destination of an arriving operation, without a copy;
    /// `None` if it was refused or has no destination.
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
                let at = memory_offset(operation.offset, at as u64);
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

    /// Stores a piece of an operation's data.
    fn place(
        &mut self,
        index: usize,
        offset: u64,
        bytes: Range<usize>,
        source: &(impl Source + ?Sized),
    ) {
        let arriving = &mut self.arriving[index];
        let of = (arriving.edge, arriving.sequence);
        let at = (memory_offset(offset, 0), bytes.len());
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

    /// Forgets an outgoing edge.
    pub(super) fn forget_edge(&mut self, edge: EdgeId) {
        self.requests.forget_edge(edge);
    }
}

/// Writes to a region, within bounds that have been checked.
fn fill(
    memory: &Memory,
    at: usize,
    length: usize,
    write: impl FnOnce(&mut [u8]),
) -> Result<(), Outcome> {
    // It may have been revoked meanwhile.
    (memory.fill(at, length, write)).map_err(|_| Outcome::NoRegion)
}

/// An offset in memory; out-of-range values become `usize::MAX`.
fn memory_offset(base: u64, offset: u64) -> usize {
    usize::try_from(base.saturating_add(offset)).unwrap_or(usize::MAX)
}

impl Core {
    /// Executes a whole operation that is next in its edge's order.
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
        let mut arrived = IncomingOperation {
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
                let (at, length) = (memory_offset(operation.offset, 0), data.len());
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

    /// Stores a piece of an operation, or an operation that must wait for earlier ones.
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
            operations.arriving.push(IncomingOperation {
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

    /// Executes an operation that is complete and next in order.
    pub(super) fn complete_operation(&mut self, edge: EdgeId, from: u32, sequence: u64) {
        if let Some(index) = self.operations.find(edge, sequence) {
            let arrived = self.operations.arriving.swap_remove(index);
            self.conclude_operation(from, &arrived);
        }
    }

    /// Finishes an operation whose data is in place, and queues the answer.
    fn conclude_operation(&mut self, from: u32, arrived: &IncomingOperation) {
        let IncomingOperation {
            edge,
            target,
            ref operation,
            total,
            ..
        } = *arrived;
        let operations = &mut self.operations;
        if let OperationKind::Answer(outcome) = operation.kind {
            operations.consumed.push(edge);
            if target == ANSWER_ENDPOINT {
                let key = operations
                    .requests
                    .on_answer(edge.peer, operation, outcome, total);
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
            // The notice holds the credit until it has been received.
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
            target,
        };
        self.operations.answers.push(edge.peer, answer);
    }

    /// Fails operations of an edge that were not delivered: the receiver has no room for the edge,
    /// or a protocol rule was violated.
    pub(super) fn refuse_operations(&mut self, edge: EdgeId, reason: RefusedReason) {
        if matches!(reason, RefusedReason::NoEndpoint | RefusedReason::Closed) {
            return;
        }
        let requests = &mut self.operations.requests;
        let keys = requests.fail(|it| it == edge, || OperationResult::NotDelivered(reason));
        keys.into_iter().for_each(|key| self.ready.notify(key));
    }

    /// A peer is gone: its own operations are dropped, and those sent to it fail.
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
    /// Executes an operation; returns a word and the data for the answer.
    fn conclude(&self, arrived: &IncomingOperation) -> Result<(u64, AnswerData), Outcome> {
        let operation = &arrived.operation;
        if let Some(outcome) = arrived.refused {
            return Err(outcome);
        }
        if operation.kind == OperationKind::Fence {
            return Ok((0, AnswerData::None));
        }
        let memory = self.check(arrived.target, operation, arrived.total)?;
        let at = memory_offset(operation.offset, 0);
        let word = match operation.kind {
            OperationKind::FetchAdd => memory.fetch_add(at, operation.value),
            OperationKind::CompareSwap => {
                memory.compare_swap(at, u64::from_le_bytes(arrived.word), operation.value)
            }
            OperationKind::Get if operation.value > MAX_GET_BYTES as u64 => {
                return Err(Outcome::OutOfBounds);
            }
            OperationKind::Get => {
                let part = RegionPart {
                    key: operation.key,
                    memory: memory.clone(),
                    offset: at,
                    length: memory_offset(operation.value, 0),
                };
                return Ok((0, AnswerData::Region(part)));
            }
            _ => Ok(0),
        };
        // The memory need not be aligned.
        let word = word.map_err(|_| Outcome::Misaligned)?;
        Ok((word, AnswerData::None))
    }
}

/// Stands for an operation that cannot be parsed; executing it has no effect.
const UNREADABLE: Wire = Wire {
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
    Wire::parse(&head, total).unwrap_or(UNREADABLE)
}

/// Encodes a notice: the region's key, offset, length, and the sender's value.
fn notice_bytes(operation: &Wire, length: u64) -> [u8; NOTICE_BYTES] {
    let words = [operation.key, operation.offset, length, operation.value];
    let mut bytes = [0; NOTICE_BYTES];
    for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
    bytes
}

impl Engine {
    /// Opens memory to the peers of an endpoint; returns its key.
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

    /// Closes a region, so that its key becomes invalid.
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

    /// Closes the regions of an endpoint that is about to close.
    pub(super) fn close_regions_of(&mut self, endpoint: u32) {
        let regions = self.core.operations.regions.iter();
        let of = regions.filter(|(_, region)| region.facts.endpoint == endpoint);
        let keys: Vec<u64> = of.map(|(key, _)| *key).collect();
        for key in keys {
            self.close_region(key);
        }
        self.core.operations.answers.close_endpoint(endpoint);
    }

    /// Starts an operation on an edge. What does not fit into free frames is sent in the background.
    ///
    /// # Errors
    /// [`Blocked`]; nothing was started.
    pub fn begin_operation(
        &mut self,
        now: Instant,
        edge: EdgeId,
        operation: &Operation,
        bytes: &Bytes,
    ) -> Result<OperationStart, Blocked> {
        self.begin_posted(now, edge, (operation, bytes, None), None)
    }

    /// Like [`begin_operation`](Self::begin_operation), for a posted one. A get is stored `into` the
    /// caller's memory, if that is given.
    ///
    /// # Errors
    /// [`Blocked`]; nothing was started.
    pub fn begin_posted(
        &mut self,
        now: Instant,
        edge: EdgeId,
        (operation, bytes, into): (&Operation, &Bytes, Option<&Memory>),
        posted: Option<PostedOperation>,
    ) -> Result<OperationStart, Blocked> {
        let Some(mut head) = operation.head() else {
            let sent = self.send_shared(now, edge, None, bytes, posted)?;
            return Ok(if sent {
                OperationStart::Sent
            } else {
                OperationStart::InBackground
            });
        };
        if !head.wants_answer {
            if let Some(key) = self.core.machine.edge_key(edge) {
                let requests = &mut self.core.operations.requests;
                requests.track_unanswered_puts(edge, key.ends(), posted);
            }
            let sent = self.send_shared(now, edge, Some(&head.to_bytes()), bytes, posted)?;
            return Ok(if sent {
                OperationStart::Sent
            } else {
                OperationStart::InBackground
            });
        }
        let place = match *operation {
            Operation::Get { length, .. } => match into {
                Some(memory) => AnswerBuffer::Caller {
                    memory: memory.clone(),
                    length,
                },
                None => AnswerBuffer::Owned(self.take_buffer(length)),
            },
            _ => AnswerBuffer::None,
        };
        head.id = self.expect_answer(now, edge, (false, place), posted);
        let head_bytes = head.to_bytes();
        let sent = match operation {
            Operation::Put { .. } => {
                // It completes with the answer.
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
        sent.map(|()| OperationStart::AwaitsAnswer(head.id))
    }

    /// Registers an operation that waits for an answer, and returns its id.
    pub fn expect_answer(
        &mut self,
        now: Instant,
        edge: EdgeId,
        wanted: (bool, AnswerBuffer),
        posted: Option<PostedOperation>,
    ) -> OperationId {
        let operations = &mut self.core.operations;
        operations.timer_at = operations.timer_at.min(now.after(WATCH_AFTER_NS));
        operations.requests.expect(now, edge, wanted, posted)
    }

    /// Announces puts without an answer on an edge, so that the next fence reports refusals.
    pub fn track_unanswered_puts(&mut self, edge: EdgeId, ends: (u32, u32)) {
        (self.core.operations.requests).track_unanswered_puts(edge, ends, None);
    }

    /// Takes the result of an operation, if it is known.
    pub fn take_operation(&mut self, id: OperationId) -> Option<OperationResult> {
        self.core.operations.requests.take(id)
    }

    /// Stops waiting for an answer, and returns its buffer.
    pub fn forget_operation(&mut self, id: OperationId) -> Option<AnswerBuffer> {
        self.core.operations.requests.forget(id)
    }

    /// A buffer for the data of a get.
    pub fn take_buffer(&self, length: usize) -> Buffer {
        self.core.dispatch.buffers().take(length)
    }

    /// Takes the next posted message that has been sent, or whose peer is gone.
    pub fn next_sent_post(&mut self) -> Option<(PostedOperation, Result<(), Option<GoneReason>>)> {
        self.core.sent_posts.pop_front()
    }

    /// Takes the next posted operation with a result.
    pub fn next_finished(&mut self) -> Option<(PostedOperation, OperationResult)> {
        self.core.operations.requests.next_finished()
    }

    /// True if a posted operation has finished.
    #[inline]
    pub fn has_finished(&self) -> bool {
        self.core.operations.requests.has_finished() || !self.core.sent_posts.is_empty()
    }

    /// Sends pending answers and returns the credit of executed operations.
    #[inline]
    pub(super) fn tend_operations(&mut self, now: Instant) {
        let operations = &self.core.operations;
        if operations.answers.is_busy() || !operations.consumed.is_empty() {
            self.send_answers_and_credit(now);
        }
    }

    /// True once after an operation of a peer was executed.
    #[inline]
    pub fn take_served(&mut self) -> bool {
        std::mem::take(&mut self.core.operations.has_served)
    }

    fn send_answers_and_credit(&mut self, now: Instant) {
        self.core.operations.has_served = true;
        if self.core.operations.answers.is_busy() {
            let timer_at = self.send_answers(now);
            let operations = &mut self.core.operations;
            operations.timer_at = operations.timer_at.min(timer_at);
        }
        for edge in self.core.operations.consumed.drain(..) {
            self.core.machine.consumed(now, edge, 0);
        }
        self.push_records();
    }

    /// Handles timers: retries answers, closes idle answer edges, and probes peers whose answers
    /// are overdue.
    #[inline]
    pub(super) fn on_operation_timer(&mut self, now: Instant) {
        if now >= self.core.operations.timer_at {
            self.sweep_operations(now);
        }
    }

    #[cold]
    fn sweep_operations(&mut self, now: Instant) {
        let operations = &mut self.core.operations;
        let (idle, again) = operations.answers.take_idle(now);
        let (overdue, watch_at) = operations.requests.overdue_peers(now);
        operations.timer_at = again.min(watch_at);
        for edge in idle {
            self.close_edge(edge);
        }
        for peer in overdue {
            self.core.machine.watch(now, peer, true);
        }
    }

    /// When [`on_operation_timer`](Self::on_operation_timer) must be called.
    pub(super) fn operations_deadline(&self) -> Option<Instant> {
        let at = self.core.operations.timer_at;
        (at != Instant::NEVER).then_some(at)
    }
}
