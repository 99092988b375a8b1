//! Memory operations: of peers on this process's regions, and of this process on theirs. Spec
//! §5.9.
//!
//! An operation arrives in its edge's order and is executed directly on the region, without an
//! intermediate buffer (`core/operations.rs`). `operations/answers.rs` queues the answers,
//! `operations/requests.rs` tracks this process's requests, and `memory_operations.rs` starts both.

mod answers;
mod requests;

use std::ops::Range;

use dipole_link::Region as Memory;
use dipole_proto::wire::{Operation as Wire, OperationKind, Outcome};
use dipole_proto::{EdgeId, Instant, Region};
use rustc_hash::FxHashMap;

use super::dispatch::Source;
use super::posted::RegionPart;
pub(super) use answers::{
    ANSWER_ENDPOINT, Answer, AnswerData, Answers, IDLE_NS, MAX_RETRY_NS, RETRY_NS,
};
pub use requests::{AnswerBuffer, OperationId, OperationResult};
pub(super) use requests::{Requests, WATCH_AFTER_NS};

/// Largest get in one operation; larger ones are split.
pub const MAX_GET_BYTES: usize = 16 << 20;

/// A region of this process.
#[derive(Debug)]
pub(super) struct OpenRegion {
    pub(super) facts: Region,
    pub(super) memory: Memory,
}

/// An operation that has partly arrived, or that must wait for earlier ones of its edge.
#[derive(Debug)]
pub(super) struct IncomingOperation {
    pub(super) edge: EdgeId,
    pub(super) sequence: u64,
    pub(super) target: u32,
    pub(super) operation: Wire,
    pub(super) total: u64,
    pub(super) refused: Option<Outcome>,
    /// The expected value of a compare-and-swap.
    pub(super) word: [u8; 8],
}

/// Regions, arriving operations, answers and requests.
#[derive(Debug)]
pub(super) struct Operations {
    pub(super) regions: FxHashMap<u64, OpenRegion>,
    pub(super) arriving: Vec<IncomingOperation>,
    /// Edges of operations that have been executed and answered.
    pub(super) consumed: Vec<EdgeId>,
    pub(super) answers: Answers,
    pub(super) requests: Requests,
    /// When a step is needed even if nothing arrives.
    pub(super) timer_at: Instant,
    /// An operation of a peer was executed since the last check.
    pub(super) has_served: bool,
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
    pub(super) fn find(&self, edge: EdgeId, sequence: u64) -> Option<usize> {
        let is_it = |found: &IncomingOperation| found.edge == edge && found.sequence == sequence;
        self.arriving.iter().rposition(is_it)
    }

    /// True if this sequence number belongs to an operation that is arriving.
    #[inline]
    pub(super) fn is_arriving(&self, edge: EdgeId, sequence: u64) -> bool {
        !self.arriving.is_empty() && self.find(edge, sequence).is_some()
    }

    /// Checks an operation against its region and returns the region's memory.
    pub(super) fn check(
        &self,
        target: u32,
        operation: &Wire,
        data: u64,
    ) -> Result<&Memory, Outcome> {
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
    pub(super) fn place(
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
pub(super) fn fill(
    memory: &Memory,
    at: usize,
    length: usize,
    write: impl FnOnce(&mut [u8]),
) -> Result<(), Outcome> {
    // It may have been revoked meanwhile.
    (memory.fill(at, length, write)).map_err(|_| Outcome::NoRegion)
}

/// An offset in memory; out-of-range values become `usize::MAX`.
pub(super) fn memory_offset(base: u64, offset: u64) -> usize {
    usize::try_from(base.saturating_add(offset)).unwrap_or(usize::MAX)
}

impl Operations {
    /// Executes an operation; returns a word and the data for the answer.
    pub(super) fn conclude(
        &self,
        arrived: &IncomingOperation,
    ) -> Result<(u64, AnswerData), Outcome> {
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
