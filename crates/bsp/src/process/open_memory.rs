//! Transfers between the program's memory on different nodes without intermediate copies: the
//! carrier reads the bytes where they lie and writes them to their destination.
//!
//! Areas stay open while they are registered, and all ranks know their keys. A get opens its
//! destination and sends the key. Nothing is written before all ranks have reached the end of the
//! superstep, because the owner of the memory may still be in the previous one until then.

use std::ptr::NonNull;

use bytes::Bytes;
use dipole_node::RegionMemory;
use rustc_hash::FxHashMap;

use super::Process;
use crate::carrier::Carrier;
use crate::failure::Failure;
use crate::superstep::exchange::Outgoing;

/// Shorter transfers travel as records: those leave before the other ranks end the superstep.
pub(super) const DIRECT_BYTES: u64 = 64 << 10;
/// Shortest piece of a write, whatever a slot holds.
const MIN_PIECE_BYTES: usize = 4 << 10;

/// Memory of this rank that ranks of other nodes may write. They lose access when it is dropped.
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

/// Memory of the program that nothing changes while the carrier reads it.
struct ProgramMemory {
    start: *const u8,
    length: usize,
}

// SAFETY: the memory is only read, and the caller of `program_bytes` promises that it stays valid
// and unchanged, so any thread may read it.
unsafe impl Send for ProgramMemory {}

impl AsRef<[u8]> for ProgramMemory {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the caller of `program_bytes` promises that `length` bytes at `start` stay
        // readable and unchanged until this is dropped.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}

/// Memory of the program as bytes for the carrier to read.
///
/// # Safety
/// `length` bytes at `start` must stay readable and unchanged until the result and everything made
/// from it are dropped.
pub(super) unsafe fn program_bytes(start: *const u8, length: usize) -> Bytes {
    Bytes::from_owner(ProgramMemory { start, length })
}

impl<C: Carrier> Process<C> {
    /// Lets ranks of other nodes write into memory, if it is long enough. Returns the key that they
    /// need, or 0.
    ///
    /// # Safety
    /// Until it is closed, `bytes` bytes at `start` must be writable, and nothing else may access
    /// those that other ranks are about to write.
    pub(super) unsafe fn open_memory(
        &mut self,
        start: *mut u8,
        bytes: u64,
    ) -> Result<u64, Failure> {
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        let (Some(carrier), Some(start)) = (&mut self.carrier, NonNull::new(start)) else {
            return Ok(0);
        };
        if bytes < DIRECT_BYTES || self.exchange.node_map().nodes() == 1 {
            return Ok(0);
        }
        // SAFETY: the caller promises that the memory stays valid until it is closed. Closing it,
        // or dropping `self.open`, revokes it.
        let memory = unsafe { RegionMemory::from_raw(start, length) };
        let key = carrier.open_memory(&memory)?.unwrap_or(0);
        if key != 0 {
            self.open.by_key.insert(key, memory);
        }
        Ok(key)
    }

    /// Opens the destination of a get until the superstep ends.
    ///
    /// # Safety
    /// The same as for [`open_memory`](Self::open_memory).
    pub(super) unsafe fn open_destination(
        &mut self,
        start: *mut u8,
        bytes: u64,
    ) -> Result<u64, Failure> {
        // SAFETY: the caller guarantees the same.
        let key = unsafe { self.open_memory(start, bytes)? };
        self.open.destinations.extend((key != 0).then_some(key));
        Ok(key)
    }

    /// Closes the destinations of the superstep's gets, and areas that are no longer registered
    /// (`keys`).
    pub(super) fn close_memory(&mut self, keys: Vec<u64>) {
        for key in std::mem::take(&mut self.open.destinations)
            .into_iter()
            .chain(keys)
        {
            self.open.close(self.carrier.as_mut(), key);
        }
    }

    /// Ends all access to the program's memory, because the parallel section has ended.
    pub(super) fn close_all_memory(&mut self) {
        let keys = self.open.by_key.keys().copied().collect();
        self.close_memory(keys);
    }

    /// Ends all access to the program's memory, because the program ends with an error.
    pub(super) fn reclaim_memory(&mut self) {
        self.open.revoke_all();
        if let Some(carrier) = &mut self.carrier {
            carrier.reclaim_memory();
        }
    }

    /// True while the carrier still reads memory of the program.
    pub(super) fn has_pending_writes(&self) -> bool {
        self.carrier
            .as_ref()
            .is_some_and(Carrier::has_pending_writes)
    }

    /// Splits a write into opened memory into pieces as long as chunks of records.
    pub(super) fn remote_writes(&self, key: u64, offset: u64, bytes: &Bytes) -> Vec<Outgoing> {
        let piece = self.pacer.chunk_bytes().max(MIN_PIECE_BYTES);
        let starts = (0..bytes.len()).step_by(piece);
        let pieces = starts.map(|start| Outgoing::Write {
            key,
            offset: offset + start as u64,
            bytes: bytes.slice(start..bytes.len().min(start + piece)),
        });
        pieces.collect()
    }
}
