//! The calls that record what is to be done at the end of the superstep.

use std::ffi::c_void;

use dipole_link::shm::pull::PullRange;
use dipole_link::window::Source;

use super::direct::{DIRECT_BYTES, lend};
use super::{Process, Pull, Wanted};
use crate::carrier::Carrier;
use crate::failure::Failure;
use crate::misuse::Misuse;
use crate::superstep::record::Record;

/// Shorter ones are copied twice: that costs less than asking the kernel for one copy.
const PULLED_BYTES: u64 = 16 << 10;

/// A destination's records.
enum To {
    /// A rank of this node, by index.
    Mate(usize),
    Other,
}

impl<C: Carrier> Process<C> {
    fn to(&self, rank: u32) -> To {
        match &self.mates {
            Some(mates) if rank != self.rank => mates.index(rank).map_or(To::Other, To::Mate),
            _ => To::Other,
        }
    }

    /// The mate that a rank is, if its memory can be copied from here.
    fn open_mate(&self, rank: u32) -> Option<usize> {
        match (self.to(rank), &self.mates) {
            (To::Mate(mate), Some(mates)) if mates.can_pull(mate) => Some(mate),
            _ => None,
        }
    }

    /// True of a rank of another node.
    fn is_elsewhere(&self, rank: u32) -> bool {
        !self.exchange.places().are_together(rank, self.rank)
    }

    /// Bytes that this rank puts or sends, for the trace.
    #[inline]
    fn note_put(&mut self, to: u32, bytes: u64) {
        if let Some(trace) = self.trace.as_mut().filter(|_| to != self.rank) {
            trace.put(to, bytes);
        }
    }

    /// Bytes that it gets.
    #[inline]
    fn note_got(&mut self, of: u32, bytes: u64) {
        if let Some(trace) = self.trace.as_mut().filter(|_| of != self.rank) {
            trace.got(of, bytes);
        }
    }

    /// Adds a record whose data stay together.
    fn add(&mut self, to: u32, record: Record, data: &[Source<'_>]) -> Result<(), Failure> {
        self.row.insert(to);
        match (self.to(to), &self.mates) {
            (To::Mate(mate), Some(mates)) => {
                let arena = &mut self.arenas[self.exchange.superstep() as usize % 2];
                self.local[mate].push((&mates.window, arena), record, data)
            }
            _ => {
                self.remote[to as usize].push(record, data);
                Ok(())
            }
        }
    }

    /// Puts bytes into another rank's part of an area at the end of the superstep. They are
    /// copied at once.
    ///
    /// # Errors
    /// What [`Misuse`] has of ranks, areas and bounds, unless there are no bytes.
    ///
    /// # Safety
    /// As many bytes can be read there.
    #[inline]
    pub unsafe fn put(
        &mut self,
        to: u32,
        from: *const u8,
        area: *const c_void,
        offset: u64,
        bytes: u64,
    ) -> Result<(), Failure> {
        if bytes == 0 {
            return Ok(());
        }
        self.check_rank(to)?;
        if from.is_null() {
            return Err(Misuse::Null("the source").into());
        }
        let (slot, _) = (self.registrations).find(area.addr() as u64, to, offset, bytes)?;
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.note_put(to, bytes);
        // SAFETY: the caller's promise, for as long as this call.
        let data = unsafe { Source::at(from, length) };
        if let (To::Mate(_), Some(_)) = (self.to(to), &self.mates) {
            let record = Record::Put {
                slot,
                offset,
                length: bytes,
            };
            return self.add(to, record, &[data]);
        }
        self.row.insert(to);
        self.remote[to as usize].push_cut(data, |done, length| Record::Put {
            slot,
            offset: offset + done,
            length,
        });
        Ok(())
    }

    /// The same without a copy of the bytes where that is possible: at any moment until the
    /// end of the superstep.
    ///
    /// # Errors
    /// Those of `put`.
    ///
    /// # Safety
    /// As many bytes can be read there until the superstep ends, and nobody changes them.
    pub unsafe fn put_unbuffered(
        &mut self,
        to: u32,
        from: *const u8,
        area: *const c_void,
        offset: u64,
        bytes: u64,
    ) -> Result<(), Failure> {
        let buffered = bytes < PULLED_BYTES || to >= self.size || from.is_null();
        if buffered || self.open_mate(to).is_none() {
            if !buffered && bytes >= DIRECT_BYTES && self.is_elsewhere(to) {
                // SAFETY: the caller's promise.
                let data = unsafe { lend(from, usize::try_from(bytes).unwrap_or(usize::MAX)) };
                let (slot, _) = (self.registrations).find(area.addr() as u64, to, offset, bytes)?;
                if let Some(key) = self.registrations.key(slot, to) {
                    self.note_put(to, bytes);
                    self.row.insert(to);
                    let placed = self.placed(key, offset, &data);
                    self.direct[to as usize].extend(placed);
                    return Ok(());
                }
            }
            // SAFETY: the caller's promise is larger.
            return unsafe { self.put(to, from, area, offset, bytes) };
        }
        let (slot, _) = (self.registrations).find(area.addr() as u64, to, offset, bytes)?;
        let record = Record::Fetch {
            slot,
            offset,
            length: bytes,
        };
        let address = (from.expose_provenance() as u64).to_ne_bytes();
        self.is_pulled = true;
        self.note_put(to, bytes);
        self.add(to, record, &[Source::from(&address[..])])
    }

    /// Gets bytes of another rank's part of an area, as they are at the end of the superstep
    /// before anything is put.
    ///
    /// # Errors
    /// Those of [`put`](Self::put).
    ///
    /// # Safety
    /// As many bytes can be written there until the superstep ends, and nobody else uses them.
    pub unsafe fn get(
        &mut self,
        of: u32,
        area: *const c_void,
        offset: u64,
        into: *mut u8,
        bytes: u64,
    ) -> Result<(), Failure> {
        if bytes == 0 {
            return Ok(());
        }
        self.check_rank(of)?;
        if into.is_null() {
            return Err(Misuse::Null("the destination").into());
        }
        let (slot, _) = (self.registrations).find(area.addr() as u64, of, offset, bytes)?;
        self.note_got(of, bytes);
        if bytes >= DIRECT_BYTES && self.is_elsewhere(of) {
            // SAFETY: the caller's promise, until the superstep ends.
            let key = unsafe { self.open_destination(into, bytes)? };
            if key != 0 {
                self.asked.insert(of);
                self.keeping.insert(of);
                let record = Record::Keep {
                    slot,
                    offset,
                    length: bytes,
                };
                return self.add(of, record, &[Source::from(&key.to_ne_bytes()[..])]);
            }
        }
        let ticket = (self.wanted.len() as u64).to_ne_bytes();
        self.wanted.push(Wanted { into, bytes });
        self.asked.insert(of);
        let record = Record::Get {
            slot,
            offset,
            length: bytes,
        };
        self.add(of, record, &[Source::from(&ticket[..])])
    }

    /// The same without a copy on the way where that is possible; neither before nor after
    /// what is put.
    ///
    /// # Errors
    /// Those of [`put`](Self::put).
    ///
    /// # Safety
    /// That of [`get`](Self::get).
    pub unsafe fn get_unbuffered(
        &mut self,
        of: u32,
        area: *const c_void,
        offset: u64,
        into: *mut u8,
        bytes: u64,
    ) -> Result<(), Failure> {
        let mate = match of < self.size && bytes >= PULLED_BYTES && !into.is_null() {
            true => self.open_mate(of),
            false => None,
        };
        let Some(mate) = mate else {
            let direct = of < self.size && bytes >= DIRECT_BYTES && self.is_elsewhere(of);
            if direct && !into.is_null() {
                let (slot, _) = (self.registrations).find(area.addr() as u64, of, offset, bytes)?;
                // SAFETY: the caller's promise, until the superstep ends.
                let key = unsafe { self.open_destination(into, bytes)? };
                if key != 0 {
                    self.note_got(of, bytes);
                    self.asked.insert(of);
                    let record = Record::Bring {
                        slot,
                        offset,
                        length: bytes,
                    };
                    return self.add(of, record, &[Source::from(&key.to_ne_bytes()[..])]);
                }
            }
            // SAFETY: the caller's promise.
            return unsafe { self.get(of, area, offset, into, bytes) };
        };
        let (_, address) = (self.registrations).find(area.addr() as u64, of, offset, bytes)?;
        self.note_got(of, bytes);
        let wanted = Wanted { into, bytes };
        self.pulls.push(Pull {
            mate,
            address,
            wanted,
        });
        Ok(())
    }

    /// Gets bytes of another rank's part of an area at once, as that rank has them at this moment:
    /// what it changes in this superstep may or may not be there.
    ///
    /// # Errors
    /// Those of [`put`](Self::put); [`Failure::OutOfReach`].
    ///
    /// # Safety
    /// As many bytes can be written there, and nobody else uses them.
    pub unsafe fn get_at_once(
        &mut self,
        of: u32,
        area: *const c_void,
        offset: u64,
        into: *mut u8,
        bytes: u64,
    ) -> Result<(), Failure> {
        if bytes == 0 {
            return Ok(());
        }
        self.check_rank(of)?;
        if into.is_null() {
            return Err(Misuse::Null("the destination").into());
        }
        let (_, address) = (self.registrations).find(area.addr() as u64, of, offset, bytes)?;
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        if of == self.rank {
            let from = usize::try_from(address).unwrap_or(0);
            // SAFETY: inside a registered part, as just checked; writable by the caller's promise.
            unsafe {
                let own = Source::at(std::ptr::with_exposed_provenance(from), length);
                own.copy_to(into);
            }
            return Ok(());
        }
        self.note_got(of, bytes);
        let out_of_reach = Failure::OutOfReach { rank: of };
        let mate = self.open_mate(of).ok_or(out_of_reach)?;
        self.wait_left(mate)?;
        // SAFETY: the caller's promise.
        let into = unsafe { std::slice::from_raw_parts_mut(into, length) };
        self.mates
            .as_ref()
            .map_or(Ok(()), |mates| mates.pull(mate, address, into))
    }

    /// True if [`get_at_once`](Self::get_at_once) reaches a rank's memory; itself, it does.
    #[must_use]
    pub fn can_get_at_once(&self, of: u32) -> bool {
        of == self.rank || of < self.size && self.open_mate(of).is_some()
    }

    /// The same for many pieces, each of which tells its offset in the area as `from`.
    ///
    /// # Errors
    /// Those of [`get_at_once`](Self::get_at_once).
    ///
    /// # Safety
    /// Each piece's bytes can be written where it goes, nobody else uses them, and no two overlap.
    pub unsafe fn get_pieces_at_once(
        &mut self,
        of: u32,
        area: *const c_void,
        pieces: &mut [PullRange],
    ) -> Result<(), Failure> {
        self.check_rank(of)?;
        let ends = pieces
            .iter()
            .map(|it| it.from.saturating_add(it.length as u64));
        let Some(end) = ends.max() else {
            return Ok(());
        };
        let (_, address) = (self.registrations).find(area.addr() as u64, of, 0, end)?;
        if of == self.rank {
            for piece in pieces {
                // SAFETY: inside a registered part, as just checked; writable by the caller's promise.
                unsafe { self.get_at_once(of, area, piece.from, piece.into, piece.length as u64) }?;
            }
            return Ok(());
        }
        let out_of_reach = Failure::OutOfReach { rank: of };
        let mate = self.open_mate(of).ok_or(out_of_reach)?;
        self.wait_left(mate)?;
        let mut bytes = 0;
        for piece in &mut *pieces {
            piece.from = piece.from.wrapping_add(address);
            bytes += piece.length as u64;
        }
        self.note_got(of, bytes);
        match &self.mates {
            // SAFETY: the caller's promise.
            Some(mates) => unsafe { mates.pull_ranges(mate, pieces) },
            None => Ok(()),
        }
    }

    /// Sends a message to the queue of a rank, which has it in the next superstep. Tag and
    /// payload are copied at once.
    ///
    /// # Errors
    /// There is no such rank, or a pointer is NULL where there are bytes.
    ///
    /// # Safety
    /// As many bytes can be read there: those of the tag as many as [`tag_size`](Self::tag_size) says.
    pub unsafe fn send(
        &mut self,
        to: u32,
        tag: *const u8,
        payload: *const u8,
        bytes: u64,
    ) -> Result<(), Failure> {
        self.check_rank(to)?;
        let part = |start: *const u8, bytes: u64, what| {
            let length = usize::try_from(bytes).unwrap_or(usize::MAX);
            match (start.is_null(), length) {
                (_, 0) => Ok(Source::from(&[][..])),
                (true, _) => Err(Misuse::Null(what)),
                // SAFETY: the caller's promise, for as long as this call.
                (false, _) => Ok(unsafe { Source::at(start, length) }),
            }
        };
        let tag = part(tag, self.tags.sent, "the tag")?;
        let payload = part(payload, bytes, "the payload")?;
        let record = Record::Message {
            tag: self.tags.sent,
            length: bytes,
        };
        let sent = self.tags.sent.saturating_add(bytes);
        self.note_put(to, sent);
        self.add(to, record, &[tag, payload])
    }
}
