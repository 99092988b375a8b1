//! Bytes that go straight between memory of the program's on different nodes: the carrier reads
//! them where they lie and writes them where they belong.
//!
//! Areas are open while they are registered, and all ranks know their keys; an unbuffered get opens
//! its destination and tells the key. Nothing is placed before all ranks have ended the superstep:
//! the owner of the memory may be in the one before until then.

use std::ptr::NonNull;

use bytes::Bytes;
use dipole_node::RegionMemory;
use rustc_hash::FxHashMap;

use super::Process;
use crate::carrier::Carrier;
use crate::failure::Failure;
use crate::superstep::exchange::Outgoing;

/// Shorter ones go with the records: those leave before the others have ended the superstep.
pub(super) const DIRECT_BYTES: u64 = 64 << 10;
/// Pieces are not shorter, whatever a slot holds.
const LEAST_PIECE_BYTES: usize = 4 << 10;

/// Memory in which ranks of other nodes may place bytes. None of them can once it is dropped.
#[derive(Debug, Default)]
pub(super) struct OpenMemory {
    by_key: FxHashMap<u64, RegionMemory>,
    /// Destinations of this superstep's gets.
    destinations: Vec<u64>,
}

impl OpenMemory {
    fn close(&mut self, carrier: Option<&mut impl Carrier>, key: u64) {
        if let Some(carrier) = carrier {
            carrier.close_memory(key);
        }
        if let Some(memory) = self.by_key.remove(&key) {
            memory.revoke();
        }
    }

    fn revoke_all(&mut self) {
        for (_, memory) in self.by_key.drain() {
            memory.revoke();
        }
    }
}

impl Drop for OpenMemory {
    fn drop(&mut self) {
        self.revoke_all();
    }
}

/// Memory of the program's, which nobody changes while the carrier reads it.
struct Lent {
    start: *const u8,
    length: usize,
}

// SAFETY: it is read only, by whichever thread sends.
unsafe impl Send for Lent {}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the promise made to `lend`.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}

/// Memory of the program's for the carrier to read.
///
/// # Safety
/// As many bytes can be read there, and nobody changes them, until all that is made of this is
/// dropped.
pub(super) unsafe fn lend(start: *const u8, length: usize) -> Bytes {
    Bytes::from_owner(Lent { start, length })
}

impl<C: Carrier> Process<C> {
    /// Lets ranks of other nodes place bytes in memory, if it is worth while; by which key.
    ///
    /// # Safety
    /// Until it is closed as many bytes can be written there, and nobody uses those that ranks are
    /// about to place.
    pub(super) unsafe fn open(&mut self, start: *mut u8, bytes: u64) -> Result<u64, Failure> {
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        let (Some(carrier), Some(start)) = (&mut self.carrier, NonNull::new(start)) else {
            return Ok(0);
        };
        if bytes < DIRECT_BYTES || self.exchange.places().nodes() == 1 {
            return Ok(0);
        }
        // SAFETY: the caller's promise; it is revoked when it is closed, or this is dropped.
        let memory = unsafe { RegionMemory::from_raw(start, length) };
        let key = carrier.open(&memory)?.unwrap_or(0);
        if key != 0 {
            self.open.by_key.insert(key, memory);
        }
        Ok(key)
    }

    /// The same for the destination of a get, until the superstep has ended.
    ///
    /// # Safety
    /// That of [`open`](Self::open).
    pub(super) unsafe fn open_destination(
        &mut self,
        start: *mut u8,
        bytes: u64,
    ) -> Result<u64, Failure> {
        // SAFETY: the caller's promise.
        let key = unsafe { self.open(start, bytes)? };
        self.open.destinations.extend((key != 0).then_some(key));
        Ok(key)
    }

    /// The superstep has ended: nobody places anything at the destinations of its gets, nor in areas
    /// that are no more, by their keys.
    pub(super) fn close_memory(&mut self, gone: Vec<u64>) {
        for key in std::mem::take(&mut self.open.destinations)
            .into_iter()
            .chain(gone)
        {
            self.open.close(self.carrier.as_mut(), key);
        }
    }

    /// The program ends by an error, and has all of its memory back when this returns.
    pub(super) fn take_memory_back(&mut self) {
        self.open.revoke_all();
        if let Some(carrier) = &mut self.carrier {
            carrier.take_back();
        }
    }

    /// True if the carrier still reads memory of the program's.
    pub(super) fn is_placing(&self) -> bool {
        self.carrier.as_ref().is_some_and(Carrier::is_placing)
    }

    /// Bytes for memory that has been opened, in pieces as long as chunks of records.
    pub(super) fn placed(&self, key: u64, offset: u64, bytes: &Bytes) -> Vec<Outgoing> {
        let piece = self.chunk_bytes.max(LEAST_PIECE_BYTES);
        let starts = (0..bytes.len()).step_by(piece);
        let pieces = starts.map(|start| Outgoing::Placed {
            key,
            offset: offset + start as u64,
            bytes: bytes.slice(start..bytes.len().min(start + piece)),
        });
        pieces.collect()
    }
}
