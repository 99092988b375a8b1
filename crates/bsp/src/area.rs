//! A rank with one registered area and one block of data to send, both its own: what a program
//! that only moves bytes about needs, without `unsafe`.

use std::fmt;

use dipole_node::Stats;

use crate::carrier::AnyCarrier;
use crate::failure::Failure;
use crate::process::Process;
use crate::superstep::schedule::Order;

/// Bytes in front of what is put, for [`Area::announce`].
const WORD_BYTES: usize = 8;

/// When the bytes of a put are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copy {
    /// At once (`bsp_put`).
    Buffered,
    /// At any moment until the superstep ends, without a copy where that is possible
    /// (`bsp_hpput`).
    Unbuffered,
}

/// See the module.
pub struct Area {
    // Before the memory: it lets go of everything first.
    process: Process<AnyCarrier>,
    /// A word, then what others put. Written only while this rank is in `sync`.
    area: Vec<u8>,
    /// A word, then what this rank sends. Written only where nothing is recorded.
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
    /// Begins the program with an area of so many bytes at each rank, and as many to send, all of
    /// the byte after this rank's number.
    ///
    /// # Errors
    /// Those of [`Process::begin`].
    pub fn begin(bytes: usize) -> Result<Area, Failure> {
        // Nobody is too many where all may take part.
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
        // SAFETY: the area lives as long as the process and never moves or grows, and no
        // reference to it outlives a `sync`, which borrows all of this mutably.
        unsafe { area.process.push_registration(address, length)? };
        area.process.sync()?;
        Ok(area)
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.process.rank()
    }

    /// How many there are.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.process.size()
    }

    /// What others have put here.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.area[WORD_BYTES..]
    }

    /// Puts `bytes` of what this rank sends, from its beginning, into rank `to`'s area.
    ///
    /// # Errors
    /// No such rank, or no such place there.
    #[inline]
    pub fn put(&mut self, to: u32, offset: usize, bytes: usize, copy: Copy) -> Result<(), Failure> {
        let from = self.source[WORD_BYTES..][..bytes].as_ptr();
        self.record(to, from, WORD_BYTES + offset, bytes, copy)
    }

    fn record(
        &mut self,
        to: u32,
        from: *const u8,
        offset: usize,
        bytes: usize,
        copy: Copy,
    ) -> Result<(), Failure> {
        let (area, offset, bytes) = (self.area.as_ptr().cast(), offset as u64, bytes as u64);
        // SAFETY: `from` has so many bytes of `source`, which is written in `announce` only, when
        // nothing is recorded; bounds at the destination are checked there.
        unsafe {
            match copy {
                Copy::Buffered => self.process.put(to, from, area, offset, bytes),
                Copy::Unbuffered => self.process.put_unbuffered(to, from, area, offset, bytes),
            }
        }
    }

    /// Ends the superstep.
    ///
    /// # Errors
    /// Those of [`Process::sync`].
    #[inline]
    pub fn sync(&mut self) -> Result<(), Failure> {
        self.process.sync()
    }

    /// Tells all ranks a number of rank 0's, which all of them return; ends two supersteps.
    ///
    /// # Errors
    /// Those of [`sync`](Self::sync).
    pub fn announce(&mut self, number: u64) -> Result<u64, Failure> {
        self.sync()?;
        if self.rank() == 0 {
            self.source[..WORD_BYTES].copy_from_slice(&number.to_ne_bytes());
            let from = self.source.as_ptr();
            for to in 0..self.size() {
                self.record(to, from, 0, WORD_BYTES, Copy::Buffered)?;
            }
        }
        self.sync()?;
        let mut word = [0; WORD_BYTES];
        word.copy_from_slice(&self.area[..WORD_BYTES]);
        Ok(u64::from_ne_bytes(word))
    }

    /// Sends to ranks of other nodes in another order from now on.
    pub fn set_order(&mut self, order: Order) {
        self.process.set_order(order);
    }

    /// Counters of the links to other ranks; `None` if there is no link of Dipole's.
    #[must_use]
    pub fn stats(&self) -> Option<Stats> {
        self.process.stats()
    }

    /// Ends the program.
    ///
    /// # Errors
    /// Those of [`Process::end`].
    pub fn end(mut self) -> Result<(), Failure> {
        self.process.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_alone_puts_into_its_own_area_and_hears_its_own_number() {
        let mut area = Area::begin(64).expect("one rank needs nobody");
        assert_eq!((area.rank(), area.size()), (0, 1));
        assert_eq!(area.announce(7).expect("alone"), 7);
        for copy in [Copy::Buffered, Copy::Unbuffered] {
            area.put(0, 60, 4, copy).expect("it fits");
        }
        area.sync().expect("alone");
        assert_eq!(area.bytes()[..60], [0; 60]);
        assert_eq!(area.bytes()[60..], [1; 4]);
        assert!(area.put(0, 61, 4, Copy::Buffered).is_err());
        assert!(area.put(1, 0, 4, Copy::Buffered).is_err());
        area.end().expect("alone");
    }
}
