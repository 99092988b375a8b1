//! Operations on memory: what others ask of this process's regions, and what it asks of
//! theirs. Spec §5.9.
//!
//! An operation comes along an edge, in its order, without a buffer between the link and its
//! place: `core/operations.rs` does it as it arrives. `operations/answers.rs` keeps the answers,
//! `operations/requests.rs` what this process has asked; `memory_operations.rs` begins both.

mod answers;
mod requests;

use std::ops::Range;

use dipole_link::Region as Memory;
use dipole_proto::wire::{Operation as Wire, OperationKind, Outcome};
use dipole_proto::{EdgeId, Instant, Region};
use rustc_hash::FxHashMap;

use super::dispatch::Source;
use super::posted::Part;
pub(super) use answers::{
    ANSWERS, Answer, AnswerData, Answers, IDLE_NS, LONGEST_RETRY_NS, RETRY_NS,
};
pub use requests::{AnswerPlace, OperationId, OperationResult};
pub(super) use requests::{Requests, WATCH_AFTER_NS};

/// Longest piece of memory that one operation gets; more takes several.
pub const MAX_GET_BYTES: usize = 16 << 20;

/// A region of this process.
#[derive(Debug)]
pub(super) struct OpenRegion {
    pub(super) facts: Region,
    pub(super) memory: Memory,
}

/// An operation of which pieces have come, or that earlier ones of its edge must precede.
#[derive(Debug)]
pub(super) struct Arriving {
    pub(super) edge: EdgeId,
    pub(super) sequence: u64,
    pub(super) target: u32,
    pub(super) operation: Wire,
    pub(super) total: u64,
    pub(super) refused: Option<Outcome>,
    /// The data of a compare-and-swap.
    pub(super) word: [u8; 8],
}

/// See the module.
#[derive(Debug)]
pub(super) struct Operations {
    pub(super) regions: FxHashMap<u64, OpenRegion>,
    pub(super) arriving: Vec<Arriving>,
    /// Edges of operations that are done and answered.
    pub(super) consumed: Vec<EdgeId>,
    pub(super) answers: Answers,
    pub(super) requests: Requests,
    /// When something must be done though nothing arrives.
    pub(super) tend_at: Instant,
    /// Something was done for others since that was last asked.
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
            tend_at: Instant::NEVER,
            has_served: false,
        }
    }
}

impl Operations {
    pub(super) fn find(&self, edge: EdgeId, sequence: u64) -> Option<usize> {
        let is_it = |found: &Arriving| found.edge == edge && found.sequence == sequence;
        self.arriving.iter().rposition(is_it)
    }

    /// True if what has begun to come under this number is an operation.
    #[inline]
    pub(super) fn is_arriving(&self, edge: EdgeId, sequence: u64) -> bool {
        !self.arriving.is_empty() && self.find(edge, sequence).is_some()
    }

    /// Whether an operation may be done on a region, and the region's memory.
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
    pub(super) fn place(
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
pub(super) fn fill(
    memory: &Memory,
    at: usize,
    length: usize,
    write: impl FnOnce(&mut [u8]),
) -> Result<(), Outcome> {
    // It may have been revoked a moment ago.
    (memory.fill(at, length, write)).map_err(|_| Outcome::NoRegion)
}

/// A place in memory; one that cannot be is beyond all memory.
pub(super) fn place_in(base: u64, offset: u64) -> usize {
    usize::try_from(base.saturating_add(offset)).unwrap_or(usize::MAX)
}

impl Operations {
    /// Does an operation that is next in order: a word, and the data of the answer.
    pub(super) fn conclude(&self, arrived: &Arriving) -> Result<(u64, AnswerData), Outcome> {
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
