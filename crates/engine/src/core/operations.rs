//! Executes peers' memory operations as they arrive.

use std::ops::Range;

use dipole_proto::wire::{
    OPERATION_BYTES, Operation as Wire, OperationKind, Outcome, RefusedReason,
};
use dipole_proto::{EdgeId, EdgePosition, PeerId};

use super::Core;
use crate::dispatch::{MessagePart, Source};
use crate::gone::GoneReason;
use crate::inbox::{Charge, NOTICE_BYTES};
use crate::operations::{
    ANSWER_ENDPOINT, Answer, AnswerData, IncomingOperation, fill, memory_offset,
};

impl Core {
    /// Executes a whole operation that is next in its edge's order.
    pub(crate) fn on_operation(
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
    pub(crate) fn hold_operation(
        &mut self,
        part: MessagePart,
        has_head: bool,
        source: &(impl Source + ?Sized),
    ) {
        let MessagePart {
            edge,
            target,
            sequence,
            offset,
            total,
            bytes,
        } = part;
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
    pub(crate) fn complete_operation(&mut self, edge: EdgeId, from: u32, sequence: u64) {
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
    /// or a protocol rule was violated. Those registered after the edge was opened again, at `before`, do
    /// not fail.
    pub(crate) fn refuse_operations(
        &mut self,
        edge: EdgeId,
        before: EdgePosition,
        reason: RefusedReason,
    ) {
        if matches!(reason, RefusedReason::NoEndpoint | RefusedReason::Closed) {
            return;
        }
        let requests = &mut self.operations.requests;
        let keys = requests.refuse(edge, before, reason);
        keys.into_iter().for_each(|key| self.ready.notify(key));
    }

    /// A peer is gone: its own operations are dropped, and those sent to it fail.
    pub(crate) fn forget_operations(&mut self, peer: PeerId, reason: GoneReason) {
        let operations = &mut self.operations;
        operations.arriving.retain(|it| it.edge.peer != peer);
        operations.consumed.retain(|edge| edge.peer != peer);
        operations.answers.forget_peer(peer);
        operations.requests.forget_peer(peer);
        let keys = operations.requests.fail_all(peer, Some(reason));
        keys.into_iter().for_each(|key| self.ready.notify(key));
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
