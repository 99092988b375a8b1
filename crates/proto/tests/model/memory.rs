//! Operations on memory in the model: the owner of a region performs them, the peer requests them,
//! and each side checks what it sees. The carrier is `pipes.rs`.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use dipole_proto::wire::{OPERATION_BYTES, Operation, OperationKind, Outcome};
use dipole_proto::{EdgeId, Region, Rights};

/// Source and target of the edge for answers.
pub const ANSWERS: u32 = u32::MAX;
/// The region is in the middle of the memory; the rest must never change.
const GUARD_BYTES: usize = 8;
const REGION_BYTES: usize = 32;
const MEMORY_BYTES: usize = REGION_BYTES + 2 * GUARD_BYTES;
const GUARD: u8 = 0xee;
/// A counter, followed by places for puts.
const COUNTER: Range<usize> = GUARD_BYTES..GUARD_BYTES + 8;
const PLACE_BYTES: usize = 6;
const PLACES: usize = 4;
const KEY: u64 = 5;

/// A memory operation of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ask {
    /// Writes data to a separate place; a long put is not sent as one record.
    Put { long: bool, notice: bool },
    /// Increments the counter.
    Add,
    /// Reads the counter.
    Get,
    /// A long put that exceeds the region.
    Beyond,
    /// An update at an unaligned offset.
    Misaligned,
}

impl Ask {
    pub fn is_long(self) -> bool {
        matches!(self, Ask::Beyond | Ask::Put { long: true, .. })
    }

    /// Bytes of data; short ones are sent as one record.
    pub fn data_bytes(self) -> usize {
        match self {
            Ask::Put { long: true, .. } | Ask::Beyond => PLACE_BYTES,
            Ask::Put { long: false, .. } => 2,
            Ask::Add | Ask::Get | Ask::Misaligned => 0,
        }
    }

    pub fn head(self, id: u32) -> Operation {
        let place = COUNTER.len() + PLACE_BYTES * (id as usize % PLACES);
        let (kind, offset, value) = match self {
            Ask::Put { .. } => (OperationKind::Put, place, 0),
            Ask::Beyond => (OperationKind::Put, REGION_BYTES - 2, 0),
            Ask::Add => (OperationKind::FetchAdd, 0, 1),
            Ask::Misaligned => (OperationKind::FetchAdd, 3, 1),
            Ask::Get => (OperationKind::Get, 0, 8),
        };
        Operation {
            kind,
            wants_answer: true,
            gives_notice: matches!(self, Ask::Put { notice: true, .. }),
            id,
            key: KEY,
            offset: offset as u64,
            value,
        }
    }
}

/// The value of each byte of an operation's data.
pub fn data_byte(id: u32) -> u8 {
    0x40 | id as u8
}

/// The side that requests operations.
#[derive(Clone, Debug, Default, Hash)]
pub struct Asking {
    next_id: u32,
    waiting: BTreeMap<u32, Ask>,
    /// Additions that were answered successfully.
    added: u64,
    /// An answer reported that the region no longer exists.
    told_revoked: bool,
}

impl Asking {
    pub fn next_id(&self) -> u32 {
        self.next_id
    }

    pub fn asked(&mut self, ask: Ask) {
        self.waiting.insert(self.next_id, ask);
        self.next_id += 1;
    }

    pub fn is_quiet(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn added(&self) -> u64 {
        self.added
    }

    /// Answers arrive in the order of their requests, since each direction uses one edge.
    fn answered(
        &mut self,
        answer: &Operation,
        outcome: Outcome,
        data: &[u8],
    ) -> Result<(), String> {
        let first = self.waiting.first_key_value().map(|(id, ask)| (*id, *ask));
        let Some((_, ask)) = first.filter(|(id, _)| *id == answer.id) else {
            return Err(format!("{answer:?} while {:?} wait", self.waiting));
        };
        self.waiting.remove(&answer.id);
        let expected = match (outcome, ask) {
            (Outcome::NoRegion, _) => {
                self.told_revoked = true;
                return Ok(());
            }
            (_, _) if self.told_revoked => None,
            (Outcome::Done, Ask::Put { .. }) => Some(0),
            (Outcome::Done, Ask::Add | Ask::Get) => Some(self.added),
            (Outcome::OutOfBounds, Ask::Beyond) | (Outcome::Misaligned, Ask::Misaligned) => Some(0),
            _ => None,
        };
        let value = match (ask, <[u8; 8]>::try_from(data)) {
            (Ask::Get, Ok(word)) => u64::from_le_bytes(word),
            _ => answer.value,
        };
        if expected != Some(value) {
            return Err(format!(
                "{ask:?} was answered by {outcome}, {value}, not {expected:?}"
            ));
        }
        self.added += u64::from(ask == Ask::Add);
        Ok(())
    }
}

/// An operation that has arrived in part.
#[derive(Clone, Debug, Hash)]
struct Arriving {
    operation: Operation,
    target: u32,
    total: u64,
    refused: Option<Outcome>,
}

#[derive(Clone, Debug, Hash)]
pub struct Answer {
    pub head: Operation,
    pub data: Vec<u8>,
    /// The edge whose credit the request holds until the answer is sent.
    pub charge: Option<EdgeId>,
}

/// Action required after an operation.
pub enum Concluded {
    /// It was an answer: its credit is released.
    Answered(EdgeId),
    /// The owner of the endpoint gets a notice, which holds the credit.
    Notice(EdgeId),
    /// Nothing: its answer is queued.
    Asked,
}

/// The side that owns the memory.
#[derive(Clone, Debug, Hash)]
pub struct Owner {
    region: Option<Region>,
    memory: [u8; MEMORY_BYTES],
    /// Contents of the memory when its region was closed.
    revoked: Option<[u8; MEMORY_BYTES]>,
    arriving: BTreeMap<(u32, u64), Arriving>,
    pub answers: VecDeque<Answer>,
}

impl Default for Owner {
    fn default() -> Owner {
        let mut memory = [0; MEMORY_BYTES];
        memory[..GUARD_BYTES].fill(GUARD);
        memory[MEMORY_BYTES - GUARD_BYTES..].fill(GUARD);
        Owner {
            region: None,
            memory,
            revoked: None,
            arriving: BTreeMap::new(),
            answers: VecDeque::new(),
        }
    }
}

/// Where the data of a piece belong in an operation.
pub struct PiecePlace {
    pub offset: u64,
    pub total: u64,
    pub has_head: bool,
}

impl Owner {
    pub fn open_region(&mut self, endpoint: u32) {
        self.region = Some(Region {
            endpoint,
            length: REGION_BYTES as u64,
            rights: Rights::ALL,
        });
    }

    pub fn revoke(&mut self) {
        if self.region.take().is_some() {
            self.revoked = Some(self.memory);
        }
    }

    /// The endpoint of the region is closed: the machine releases the credit of its edges.
    pub fn close_endpoint(&mut self) {
        self.revoke();
        for answer in &mut self.answers {
            answer.charge = None;
        }
    }

    pub fn counter(&self) -> u64 {
        u64::from_le_bytes(self.memory[COUNTER].try_into().expect("a word"))
    }

    pub fn is_quiet(&self) -> bool {
        self.arriving.is_empty() && self.answers.is_empty()
    }

    /// Operations that hold the credit of an empty message.
    pub fn charged(&self) -> u64 {
        let answers = self.answers.iter().filter(|it| it.charge.is_some()).count();
        (self.arriving.len() + answers) as u64
    }

    pub fn is_arriving(&self, of: (u32, u64)) -> bool {
        self.arriving.contains_key(&of)
    }

    /// Checks that nothing outside the region was ever written, and nothing after it was closed.
    pub fn check(&self) -> Result<(), String> {
        let (begin, end) = (
            &self.memory[..GUARD_BYTES],
            &self.memory[MEMORY_BYTES - GUARD_BYTES..],
        );
        if begin.iter().chain(end).any(|byte| *byte != GUARD) {
            return Err("memory outside the region was written".into());
        }
        match self.revoked.is_some_and(|revoked| revoked != self.memory) {
            true => Err("memory was written after its region was closed".into()),
            false => Ok(()),
        }
    }

    fn allowed(&self, target: u32, operation: &Operation, data: u64) -> Result<(), Outcome> {
        if operation.key != KEY {
            return Err(Outcome::NoRegion);
        }
        let region = self.region.ok_or(Outcome::NoRegion)?;
        region.check(target, operation, data)
    }

    /// Writes an arriving piece of a put.
    fn write(&mut self, arriving: &mut Arriving, offset: u64, data: &[u8]) {
        if arriving.operation.kind != OperationKind::Put || arriving.refused.is_some() {
            return;
        }
        match self.allowed(arriving.target, &arriving.operation, arriving.total) {
            Ok(()) => {
                let at = GUARD_BYTES + (arriving.operation.offset + offset) as usize;
                self.memory[at..at + data.len()].copy_from_slice(data);
            }
            Err(outcome) => arriving.refused = Some(outcome),
        }
    }

    /// Handles a piece of an operation, which begins with the head if `has_head`.
    pub fn hold(
        &mut self,
        (number, sequence, target): (u32, u64, u32),
        place: PiecePlace,
        bytes: &[u8],
    ) -> Result<(), String> {
        let PiecePlace {
            offset,
            total,
            has_head,
        } = place;
        let (head, data) = bytes.split_at(if has_head { OPERATION_BYTES } else { 0 });
        let mut arriving = match self.arriving.remove(&(number, sequence)) {
            Some(arriving) => arriving,
            None => Arriving {
                operation: parse(head, total)?,
                target,
                total,
                refused: None,
            },
        };
        if !data.is_empty() {
            self.write(&mut arriving, offset, data);
        }
        self.arriving.insert((number, sequence), arriving);
        Ok(())
    }

    /// The data of an operation was copied from its sender's memory.
    pub fn fetched(&mut self, of: (u32, u64), id: u32) {
        if let Some(mut arriving) = self.arriving.remove(&of) {
            let data = vec![data_byte(id); arriving.total as usize];
            self.write(&mut arriving, 0, &data);
            self.arriving.insert(of, arriving);
        }
    }

    /// A whole operation is next in its edge's order.
    pub fn whole(
        &mut self,
        asking: &mut Asking,
        (edge, source, target): (EdgeId, u32, u32),
        bytes: &[u8],
    ) -> Result<Concluded, String> {
        let (head, data) = bytes.split_at(OPERATION_BYTES);
        let mut arriving = Arriving {
            operation: parse(head, data.len() as u64)?,
            target,
            total: data.len() as u64,
            refused: None,
        };
        self.write(&mut arriving, 0, data);
        self.conclude(asking, (edge, source), &arriving, data)
    }

    /// An operation that arrived in pieces is complete and next.
    pub fn complete(
        &mut self,
        asking: &mut Asking,
        (edge, source): (EdgeId, u32),
        sequence: u64,
    ) -> Result<Concluded, String> {
        let arriving = self.arriving.remove(&(edge.index, sequence));
        let arriving = arriving.ok_or("an operation is complete that never arrived")?;
        self.conclude(asking, (edge, source), &arriving, &[])
    }

    fn conclude(
        &mut self,
        asking: &mut Asking,
        (edge, source): (EdgeId, u32),
        arriving: &Arriving,
        data: &[u8],
    ) -> Result<Concluded, String> {
        let operation = &arriving.operation;
        if let OperationKind::Answer(outcome) = operation.kind {
            asking.answered(operation, outcome, data)?;
            return Ok(Concluded::Answered(edge));
        }
        let allowed = match arriving.refused {
            Some(outcome) => Err(outcome),
            None => self.allowed(arriving.target, operation, arriving.total),
        };
        let (outcome, value, data) = match allowed {
            Ok(()) => {
                let (value, data) = self.perform(operation, arriving.total)?;
                (Outcome::Done, value, data)
            }
            Err(outcome) => (outcome, 0, Vec::new()),
        };
        let notices = operation.gives_notice && outcome == Outcome::Done;
        self.answers.push_back(Answer {
            head: operation.answer((source, arriving.target), outcome, value),
            data,
            charge: (!notices).then_some(edge),
        });
        Ok(match notices {
            true => Concluded::Notice(edge),
            false => Concluded::Asked,
        })
    }

    fn perform(&mut self, operation: &Operation, total: u64) -> Result<(u64, Vec<u8>), String> {
        let at = GUARD_BYTES + operation.offset as usize;
        match operation.kind {
            OperationKind::FetchAdd => {
                let was = self.counter();
                self.memory[COUNTER].copy_from_slice(&(was + operation.value).to_le_bytes());
                Ok((was, Vec::new()))
            }
            OperationKind::Get => {
                let end = at + operation.value as usize;
                Ok((0, self.memory[at..end].to_vec()))
            }
            _ => {
                // Its notice and its answer follow all of its data.
                let place = &self.memory[at..at + total as usize];
                match place.iter().all(|byte| *byte == data_byte(operation.id)) {
                    true => Ok((0, Vec::new())),
                    false => Err(format!(
                        "put {} is done, its place {place:x?}",
                        operation.id
                    )),
                }
            }
        }
    }
}

fn parse(head: &[u8], total: u64) -> Result<Operation, String> {
    let head = head.try_into().map_err(|_| "an operation without a head")?;
    Operation::parse(head, total).map_err(|why| format!("{why:?}"))
}
