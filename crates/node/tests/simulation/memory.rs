//! Regions and the operations of flows on them: put, get, add, and forbidden ones.
//!
//! Each endpoint that is the target of a flow has a region while it is open. Each flow has a word
//! and a slot in it, and this module knows what they may contain. Nothing else in a region ever
//! changes, and nothing in a closed one.

use std::collections::BTreeMap;

use dipole_engine::{Blocked, Engine, OperationId, OperationResult, OperationStart};
use dipole_node::{Message, Operation, Outcome, RegionKey, RegionMemory, Rights};
use dipole_proto::{EdgeId, Instant};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::payload::Tag;

/// Longest put of a flow.
const SLOT_BYTES: usize = 20 << 10;
/// Unused bytes between slots.
const GUARD_BYTES: usize = 64;
/// Bytes for words, before the first slot.
const WORDS_BYTES: usize = 1 << 10;
/// Limit of concurrent operations per flow.
const MOST_OPEN: usize = 3;

fn slot_of(flow: usize) -> usize {
    WORDS_BYTES + GUARD_BYTES + flow * (SLOT_BYTES + GUARD_BYTES)
}

/// A put of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Put {
    index: u32,
    length: usize,
}

/// Operations of a flow on one word of a region.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    /// Additions that were answered; those with unknown outcome are counted separately.
    added: u64,
    uncertain: u64,
    last_put: Option<Put>,
    /// Its session ended during an operation, so the slot may contain any part of it.
    tainted: bool,
}

/// A region and what flows know about it.
#[derive(Debug)]
struct Opened {
    memory: RegionMemory,
    cells: Vec<Cell>,
    is_open: bool,
    /// Its contents when it was closed.
    left: Vec<u8>,
}

/// An operation of a flow.
#[derive(Debug)]
struct Asked {
    id: OperationId,
    key: u64,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Put,
    Get(Option<Put>),
    Add,
    /// The operation must be refused.
    Wrong(Outcome),
}

/// A flow's pending operations.
#[derive(Debug, Default)]
pub struct Asking {
    asked: Vec<Asked>,
    puts: u32,
}

impl Asking {
    pub fn is_idle(&self) -> bool {
        self.asked.is_empty()
    }

    fn is_putting(&self) -> bool {
        let mut asked = self.asked.iter();
        asked.any(|asked| matches!(asked.what, What::Put))
    }
}

/// All regions of the cluster.
#[derive(Debug, Default)]
pub struct Regions {
    by_key: BTreeMap<u64, Opened>,
    /// The open region of an endpoint, by process and number.
    open: BTreeMap<(usize, u32), u64>,
}

/// The edge that an operation takes.
pub struct By<'a> {
    pub engine: &'a mut Engine,
    pub edge: EdgeId,
    pub now: Instant,
}

/// Draws a length, which is short in most cases.
fn draw_length(dice: &mut ChaCha8Rng) -> usize {
    let length = dice.random_range(0..=SLOT_BYTES);
    match dice.random_range(0..3) {
        0 => length,
        _ => length / 64,
    }
}

impl Regions {
    /// Opens the region of an endpoint.
    pub fn open(&mut self, at: (usize, u32), flows: usize, engine: &mut Engine) {
        let memory = RegionMemory::new(slot_of(flows)).expect("memory");
        let key = engine.open_region(at.1, memory.clone(), Rights::ALL);
        let opened = Opened {
            memory,
            cells: vec![Cell::default(); flows],
            is_open: true,
            left: Vec::new(),
        };
        self.by_key.insert(key, opened);
        self.open.insert(at, key);
    }

    /// Closes the region of an endpoint, or of a process that ended; returns its memory.
    pub fn close(&mut self, at: (usize, u32)) -> Option<RegionMemory> {
        let opened = self.by_key.get_mut(&self.open.remove(&at)?)?;
        opened.is_open = false;
        opened.left = opened.contents();
        Some(opened.memory.clone())
    }

    /// Closes the regions of all endpoints of a process.
    pub fn close_all(&mut self, process: usize) {
        let of = |at: &&(usize, u32)| at.0 == process;
        let closed: Vec<(usize, u32)> = self.open.keys().filter(of).copied().collect();
        for at in closed {
            let _memory = self.close(at);
        }
    }

    /// Starts an operation on the region of a flow's target, unless enough are pending.
    pub fn ask(
        &mut self,
        (flow, asking): (usize, &mut Asking),
        at: (usize, u32),
        by: By<'_>,
        dice: &mut ChaCha8Rng,
    ) {
        let By { engine, edge, now } = by;
        if asking.asked.len() >= MOST_OPEN {
            return;
        }
        let key = self.open.get(&at).copied();
        let (key, known) = (key.unwrap_or(7), key.is_some());
        let cell = self.by_key.get(&key).map(|opened| opened.cells[flow]);
        let cell = cell.unwrap_or_default();
        let region = RegionKey(key);
        let (slot, word) = (slot_of(flow) as u64, 8 * flow as u64);
        let length = draw_length(dice);
        let mut bytes = Vec::new();
        let index = asking.puts;
        let get = |length| Operation::Get {
            key: region,
            offset: slot,
            length,
        };
        let put = |offset, notice| Operation::Put {
            key: region,
            offset,
            notice,
        };
        let add = |key, offset| Operation::FetchAdd {
            key,
            offset,
            value: 1,
        };
        let end = slot_of(0) as u64 + (1 << 30);
        let (operation, what) = match dice.random_range(0..10) {
            // Puts are not ordered among each other.
            0..4 if !asking.is_putting() => {
                bytes = contents(flow, index, length);
                let told = dice.random_range(0..2) == 0;
                let notice = told.then_some((flow as u64) << 32 | u64::from(index));
                (put(slot, notice), What::Put)
            }
            4..6 => match cell.last_put {
                Some(last) => (get(last.length), What::Get(cell.last_put)),
                None => (get(length), What::Get(None)),
            },
            0..4 | 6..8 => (add(region, word), What::Add),
            8 => {
                let other = RegionKey(key ^ 1);
                (add(other, word), What::Wrong(Outcome::NoRegion))
            }
            _ => {
                bytes = contents(flow, index, length.max(1));
                (put(end, None), What::Wrong(Outcome::OutOfBounds))
            }
        };
        let what = match known {
            true => what,
            false => What::Wrong(Outcome::NoRegion),
        };
        match engine.begin_operation(now, edge, &operation, &bytes.clone().into()) {
            Ok(OperationStart::AwaitsAnswer(id)) => {
                if matches!(what, What::Put)
                    && let Some(opened) = self.by_key.get_mut(&key)
                {
                    let length = bytes.len();
                    opened.cells[flow].last_put = Some(Put { index, length });
                    asking.puts += 1;
                }
                asking.asked.push(Asked { id, key, what });
            }
            Ok(OperationStart::Sent | OperationStart::InBackground) => {}
            // No operation waits for credit here.
            Err(Blocked::NoCredit) => engine.cancel(edge),
            Err(_) => {}
        }
    }

    /// Handles the answers that have arrived; returns their number.
    pub fn answers(
        &mut self,
        (flow, asking): (usize, &mut Asking),
        engine: &mut Engine,
    ) -> Result<u64, String> {
        let mut taken = 0;
        while let Some(asked) = asking.asked.first()
            && let Some(result) = engine.take_operation(asked.id)
        {
            let asked = asking.asked.remove(0);
            taken += 1;
            self.answered(flow, &asked, result)
                .map_err(|what| format!("flow {flow}, {:?}: {what}", asked.what))?;
        }
        Ok(taken)
    }

    fn answered(
        &mut self,
        flow: usize,
        asked: &Asked,
        result: OperationResult,
    ) -> Result<(), String> {
        let opened = self.by_key.get_mut(&asked.key);
        let closed = opened.as_ref().is_none_or(|opened| !opened.is_open);
        let cell = opened.map(|opened| &mut opened.cells[flow]);
        match (result, asked.what, cell) {
            (OperationResult::Done(..), What::Wrong(_), _) => Err("it succeeded".into()),
            (OperationResult::Done(word, _), What::Add, Some(cell)) => {
                let most = cell.added + cell.uncertain;
                if word < cell.added || word > most {
                    return Err(format!("the word was {word}, not {} to {most}", cell.added));
                }
                cell.added += 1;
                Ok(())
            }
            (OperationResult::Done(_, got), What::Get(Some(put)), Some(cell)) => {
                let right = contents(flow, put.index, put.length) == *got;
                // A later put may have arrived before the answer was sent.
                let last = cell.last_put == Some(put);
                match right || cell.tainted || !last {
                    true => Ok(()),
                    false => Err(format!("it read something else than {put:?}")),
                }
            }
            (OperationResult::Done(..), ..) => Ok(()),
            (OperationResult::Refused(outcome), What::Wrong(expected), _)
                if outcome == expected =>
            {
                Ok(())
            }
            // The region was closed meanwhile.
            (OperationResult::Refused(Outcome::NoRegion), _, _) if closed => Ok(()),
            (OperationResult::Gone(_), _, cell) => {
                if let Some(cell) = cell {
                    Regions::lost(cell, asked.what);
                }
                Ok(())
            }
            (other, ..) => Err(format!("it ended as {other:?}")),
        }
    }

    fn lost(cell: &mut Cell, what: What) {
        cell.uncertain += u64::from(matches!(what, What::Add));
        cell.tainted |= matches!(what, What::Put);
    }

    /// A flow's session has ended, and with it all operations without an answer.
    pub fn forget(&mut self, flow: usize, asking: &mut Asking) {
        for asked in asking.asked.drain(..) {
            if let Some(opened) = self.by_key.get_mut(&asked.key) {
                Regions::lost(&mut opened.cells[flow], asked.what);
            }
        }
        // Even operations that were confirmed may still be retransmitted.
        for opened in self.by_key.values_mut() {
            opened.cells[flow].tainted = true;
        }
    }

    /// Checks a notice: all of its data must be there, unless it was overwritten since.
    pub fn noticed(&self, at: (usize, u32), message: &Message) -> Result<bool, String> {
        let Some(notice) = message.notice() else {
            return Ok(false);
        };
        let flow = usize::try_from(notice.value >> 32).unwrap_or(usize::MAX);
        let key = self.open.get(&at).copied();
        let opened = self.by_key.get(&notice.key.0);
        let cell = opened.and_then(|opened| Some((opened, opened.cells.get(flow)?)));
        let Some((opened, cell)) = cell.filter(|_| key == Some(notice.key.0)) else {
            // It may belong to an earlier region of its endpoint.
            return match self.by_key.contains_key(&notice.key.0) {
                true => Ok(true),
                false => Err(format!("a notice for no region: {notice:?}")),
            };
        };
        let index = u32::try_from(notice.value & u64::from(u32::MAX)).expect("32 bits");
        let length = usize::try_from(notice.length).expect("short");
        if cell.tainted || cell.last_put.is_none_or(|last| last.index != index) {
            return Ok(true);
        }
        let mut found = vec![0; length];
        let place = usize::try_from(notice.offset).expect("inside");
        let read = opened.memory.read(place, &mut found);
        match read.is_ok() && found == contents(flow, index, length) {
            true => Ok(true),
            false => Err(format!("a notice before its data: {notice:?}")),
        }
    }

    /// Checks all regions at the end.
    pub fn check(&self) -> Result<(), String> {
        self.by_key.values().try_for_each(Opened::check)
    }
}

impl Opened {
    fn contents(&self) -> Vec<u8> {
        let mut all = vec![0; self.memory.bytes()];
        self.memory.read(0, &mut all).expect("all of it");
        all
    }

    fn check(&self) -> Result<(), String> {
        let all = self.contents();
        if !self.is_open && all != self.left {
            return Err("a region changed after it was closed".into());
        }
        for (flow, cell) in self.cells.iter().enumerate() {
            let word = self.memory.load(8 * flow).expect("a word");
            let most = cell.added + cell.uncertain;
            // An operation answered after the region was closed had been executed before.
            if word < cell.added || word > most {
                return Err(format!(
                    "flow {flow} has added {} to {most}, the word is {word}",
                    cell.added
                ));
            }
            let guard = slot_of(flow) - GUARD_BYTES;
            if all[guard..slot_of(flow)].iter().any(|byte| *byte != 0) {
                return Err(format!("bytes before the slot of flow {flow} were changed"));
            }
        }
        Ok(())
    }
}

/// The data of a put.
fn contents(flow: usize, index: u32, length: usize) -> Vec<u8> {
    let tag = Tag {
        unreliable: false,
        stream: u32::try_from(flow).expect("few") | 1 << 31,
        index,
    };
    tag.message(length)
}
