//! A rank with one registered area and one block of data to send. The process owns both, so programs
//! that only move bytes need no `unsafe`.

use std::fmt;

use dipole_node::Stats;

use crate::carrier::AnyCarrier;
use crate::failure::Failure;
use crate::process::Process;
use crate::superstep::schedule::Order;

/// Bytes in front of the area, for [`Area::broadcast`].
const WORD_BYTES: usize = 8;

/// When the bytes of a put are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutMode {
    /// The bytes are copied before the call returns (`bsp_put`).
    Buffered,
    /// At any time until the superstep ends, without a copy where possible (`bsp_hpput`).
    Unbuffered,
}

/// One registered area and the data to send.
pub struct Area {
    // Declared before the memory, so that it stops using the memory before that is freed.
    process: Process<AnyCarrier>,
    /// One word, then what other ranks put. Written only while this rank is in `sync`.
    area: Vec<u8>,
    /// One word, then what this rank sends. Written only while no put is recorded.
    source: Vec<u8>,
}

impl fmt::Debug for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Area")
            .field("rank", &self.process.rank())
            .field("size", &self.process.size())
            .field("bytes", &(self.area.len() - WORD_BYTES))
            .finish_non_exhaustive()
    }
}

impl Area {
    /// Begins the program with an area of `bytes` bytes on each rank, and as many bytes to send. Each
    /// of those holds this rank's number plus 1.
    ///
    /// # Errors
    /// The errors of [`Process::begin`].
    pub fn begin(bytes: usize) -> Result<Area, Failure> {
        // `None` means a surplus process, which cannot happen without a limit.
        let Some(process) = Process::begin(None)? else {
            return Err(Failure::Aborted { rank: 0 });
        };
        let fill = process.rank().wrapping_add(1).to_le_bytes()[0];
        let mut area = Area {
            process,
            area: vec![0; WORD_BYTES + bytes],
            source: vec![fill; WORD_BYTES + bytes],
        };
        let address = area.area.as_mut_ptr().cast();
        let length = area.area.len() as u64;
        // SAFETY: `area` lives as long as `process` and never moves or grows. References to it
        // cannot outlive a `sync`, which borrows `self` mutably.
        unsafe { area.process.push_registration(address, length)? };
        area.process.sync()?;
        Ok(area)
    }

    /// Returns the rank of this process.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.process.rank()
    }

    /// The number of ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.process.size()
    }

    /// The bytes that other ranks have put here.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.area[WORD_BYTES..]
    }

    /// Puts the first `bytes` of the data to send into rank `to`'s area.
    ///
    /// # Errors
    /// The rank does not exist, or the bytes exceed its area.
    #[inline]
    pub fn put(
        &mut self,
        to: u32,
        offset: usize,
        bytes: usize,
        mode: PutMode,
    ) -> Result<(), Failure> {
        let from = self.source[WORD_BYTES..][..bytes].as_ptr();
        self.record(to, from, WORD_BYTES + offset, bytes, mode)
    }

    fn record(
        &mut self,
        to: u32,
        from: *const u8,
        offset: usize,
        bytes: usize,
        mode: PutMode,
    ) -> Result<(), Failure> {
        let (area, offset, bytes) = (self.area.as_ptr().cast(), offset as u64, bytes as u64);
        // SAFETY: `from` points to `bytes` bytes of `source`. Only `broadcast` writes `source`, right
        // after a `sync`, when no put is pending. `Process` checks the bounds at the destination.
        unsafe {
            match mode {
                PutMode::Buffered => self.process.put(to, from, area, offset, bytes),
                PutMode::Unbuffered => self.process.put_unbuffered(to, from, area, offset, bytes),
            }
        }
    }

    /// Ends the superstep.
    ///
    /// # Errors
    /// The errors of [`Process::sync`].
    #[inline]
    pub fn sync(&mut self) -> Result<(), Failure> {
        self.process.sync()
    }

    /// Sends rank 0's `number` to all ranks, which return it. Ends two supersteps.
    ///
    /// # Errors
    /// The errors of [`sync`](Self::sync).
    pub fn broadcast(&mut self, number: u64) -> Result<u64, Failure> {
        self.sync()?;
        if self.rank() == 0 {
            self.source[..WORD_BYTES].copy_from_slice(&number.to_ne_bytes());
            let from = self.source.as_ptr();
            for to in 0..self.size() {
                self.record(to, from, 0, WORD_BYTES, PutMode::Buffered)?;
            }
        }
        self.sync()?;
        let mut word = [0; WORD_BYTES];
        word.copy_from_slice(&self.area[..WORD_BYTES]);
        Ok(u64::from_ne_bytes(word))
    }

    /// Sets the order in which this rank sends to ranks of other nodes.
    pub fn set_order(&mut self, order: Order) {
        self.process.set_order(order);
    }

    /// Counters of the links to other nodes; `None` over TCP, or without such ranks.
    #[must_use]
    pub fn stats(&self) -> Option<Stats> {
        self.process.stats()
    }

    /// Ends the program.
    ///
    /// # Errors
    /// The errors of [`Process::end`].
    pub fn end(mut self) -> Result<(), Failure> {
        self.process.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_rank_puts_into_its_own_area_and_receives_its_own_number() {
        let mut area = Area::begin(64).expect("one rank suffices");
        assert_eq!((area.rank(), area.size()), (0, 1));
        assert_eq!(area.broadcast(7).expect("alone"), 7);
        for copy in [PutMode::Buffered, PutMode::Unbuffered] {
            area.put(0, 60, 4, copy).expect("it fits");
        }
        area.sync().expect("alone");
        assert_eq!(area.bytes()[..60], [0; 60]);
        assert_eq!(area.bytes()[60..], [1; 4]);
        assert!(area.put(0, 61, 4, PutMode::Buffered).is_err());
        assert!(area.put(1, 0, 4, PutMode::Buffered).is_err());
        area.end().expect("alone");
    }
}
