//! Calls that record what to do at the end of the superstep.

use std::ffi::c_void;

use dipole_link::shm::pull::PullRange;
use dipole_link::window::Source;

use super::Process;
use super::open_memory::{DIRECT_BYTES, program_bytes};
use super::pending::{PendingGet, PendingPull};
use crate::carrier::Carrier;
use crate::failure::Failure;
use crate::misuse::Misuse;
use crate::superstep::record::Record;

/// Shorter transfers are copied twice, which is faster than one copy by the kernel.
const PULLED_BYTES: u64 = 16 << 10;

impl<C: Carrier> Process<C> {
    /// The index of a rank on this node; `None` for ranks of other nodes and for this rank.
    #[inline]
    fn local_rank(&self, rank: u32) -> Option<usize> {
        let shared = self.shared.as_ref().filter(|_| rank != self.rank)?;
        shared.ranks().index(rank)
    }

    /// Index of the rank on this node, if this process can copy that rank's memory.
    fn pull_source(&self, rank: u32) -> Option<usize> {
        let shared = self.shared.as_ref()?;
        let local_rank = self.local_rank(rank)?;
        shared.ranks().can_pull(local_rank).then_some(local_rank)
    }

    fn is_on_another_node(&self, rank: u32) -> bool {
        !self.exchange.node_map().share_node(rank, self.rank)
    }

    /// Counts bytes that this rank puts or sends, for the trace.
    #[inline]
    fn trace_put(&mut self, to: u32, bytes: u64) {
        if let Some(trace) = self.trace.as_mut().filter(|_| to != self.rank) {
            trace.put(to, bytes);
        }
    }

    /// Counts bytes that this rank gets, for the trace.
    #[inline]
    fn trace_get(&mut self, from: u32, bytes: u64) {
        if let Some(trace) = self.trace.as_mut().filter(|_| from != self.rank) {
            trace.get(from, bytes);
        }
    }

    /// Adds a record whose data stay together.
    fn add(&mut self, to: u32, record: Record, data: &[Source<'_>]) -> Result<(), Failure> {
        match (self.local_rank(to), &mut self.shared) {
            (Some(local_rank), Some(shared)) => {
                self.pending.add_local_record(to);
                shared.push(local_rank, record, data)
            }
            _ => {
                self.pending.push(to, record, data);
                Ok(())
            }
        }
    }

    /// Puts bytes into another rank's part of an area at the end of the superstep. Copies them
    /// before it returns.
    ///
    /// # Errors
    /// The rank does not exist, the area is not registered, or the bytes exceed it. Nothing is
    /// checked if `bytes` is 0.
    ///
    /// # Safety
    /// `bytes` bytes at `from` must be readable.
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
        let (slot, _) = self.find(area, to, offset, bytes)?;
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.trace_put(to, bytes);
        // SAFETY: the caller promises that the bytes are readable for as long as this call.
        let data = unsafe { Source::at(from, length) };
        if self.local_rank(to).is_some() {
            let record = Record::Put {
                slot,
                offset,
                length: bytes,
            };
            return self.add(to, record, &[data]);
        }
        self.pending
            .push_split(to, data, |done, length| Record::Put {
                slot,
                offset: offset + done,
                length,
            });
        Ok(())
    }

    #[inline]
    fn find(
        &self,
        area: *const c_void,
        rank: u32,
        offset: u64,
        bytes: u64,
    ) -> Result<(u32, u64), Misuse> {
        let registrations = self.collective.registrations();
        registrations.find(area.addr() as u64, rank, offset, bytes)
    }

    /// Like [`put`](Self::put), but avoids the copy where possible: the bytes are read at any time
    /// until the superstep ends.
    ///
    /// # Errors
    /// The errors of `put`.
    ///
    /// # Safety
    /// `bytes` bytes at `from` must stay readable and unchanged until the superstep ends.
    pub unsafe fn put_unbuffered(
        &mut self,
        to: u32,
        from: *const u8,
        area: *const c_void,
        offset: u64,
        bytes: u64,
    ) -> Result<(), Failure> {
        let buffered = bytes < PULLED_BYTES || to >= self.size || from.is_null();
        if buffered || self.pull_source(to).is_none() {
            if !buffered && bytes >= DIRECT_BYTES && self.is_on_another_node(to) {
                let length = usize::try_from(bytes).unwrap_or(usize::MAX);
                // SAFETY: the caller promises that the bytes stay readable and unchanged until the
                // superstep ends, and it does not end before the carrier has dropped them.
                let data = unsafe { program_bytes(from, length) };
                let (slot, _) = self.find(area, to, offset, bytes)?;
                if let Some(key) = self.collective.registrations().key(slot, to) {
                    self.trace_put(to, bytes);
                    let writes = self.remote_writes(key, offset, &data);
                    self.pending.push_writes(to, writes);
                    return Ok(());
                }
            }
            // SAFETY: `put` needs the bytes during the call only; the caller promises more.
            return unsafe { self.put(to, from, area, offset, bytes) };
        }
        let (slot, _) = self.find(area, to, offset, bytes)?;
        let record = Record::PutByPull {
            slot,
            offset,
            length: bytes,
        };
        let address = (from.expose_provenance() as u64).to_ne_bytes();
        self.pending.set_pulled();
        self.trace_put(to, bytes);
        self.add(to, record, &[Source::from(&address[..])])
    }

    /// Gets bytes of another rank's part of an area, as they are at the end of the superstep
    /// before any put takes effect.
    ///
    /// # Errors
    /// The errors of [`put`](Self::put).
    ///
    /// # Safety
    /// `bytes` bytes at `into` must be writable until the superstep ends, and nothing else may
    /// access them.
    pub unsafe fn get(
        &mut self,
        from: u32,
        area: *const c_void,
        offset: u64,
        into: *mut u8,
        bytes: u64,
    ) -> Result<(), Failure> {
        if bytes == 0 {
            return Ok(());
        }
        self.check_rank(from)?;
        if into.is_null() {
            return Err(Misuse::Null("the destination").into());
        }
        let (slot, _) = self.find(area, from, offset, bytes)?;
        self.trace_get(from, bytes);
        let length = bytes;
        if bytes >= DIRECT_BYTES && self.is_on_another_node(from) {
            // SAFETY: the caller promises that the destination stays writable and is not used
            // until the superstep ends, when it is closed.
            let key = unsafe { self.open_destination(into, bytes)? };
            if key != 0 {
                self.pending.add_snapshot_get(from);
                let record = Record::GetSnapshot {
                    slot,
                    offset,
                    length,
                };
                return self.add(from, record, &[Source::from(&key.to_ne_bytes()[..])]);
            }
        }
        let ticket = self.pending.add_get(from, PendingGet { into, bytes });
        let record = Record::Get {
            slot,
            offset,
            length,
        };
        self.add(from, record, &[Source::from(&ticket.to_ne_bytes()[..])])
    }

    /// Like [`get`](Self::get), but avoids an intermediate copy where possible. Whether puts of
    /// the same superstep are seen is undefined.
    ///
    /// # Errors
    /// The errors of [`put`](Self::put).
    ///
    /// # Safety
    /// The same as for [`get`](Self::get).
    pub unsafe fn get_unbuffered(
        &mut self,
        from: u32,
        area: *const c_void,
        offset: u64,
        into: *mut u8,
        bytes: u64,
    ) -> Result<(), Failure> {
        let local_rank = match from < self.size && bytes >= PULLED_BYTES && !into.is_null() {
            true => self.pull_source(from),
            false => None,
        };
        let Some(local_rank) = local_rank else {
            let direct = from < self.size && bytes >= DIRECT_BYTES && self.is_on_another_node(from);
            if direct && !into.is_null() {
                let (slot, _) = self.find(area, from, offset, bytes)?;
                // SAFETY: the caller promises that the destination stays writable and is not used
                // until the superstep ends, when it is closed.
                let key = unsafe { self.open_destination(into, bytes)? };
                if key != 0 {
                    self.trace_get(from, bytes);
                    self.pending.add_written_get(from);
                    let record = Record::GetByWrite {
                        slot,
                        offset,
                        length: bytes,
                    };
                    return self.add(from, record, &[Source::from(&key.to_ne_bytes()[..])]);
                }
            }
            // SAFETY: the caller guarantees the same.
            return unsafe { self.get(from, area, offset, into, bytes) };
        };
        let (_, address) = self.find(area, from, offset, bytes)?;
        self.trace_get(from, bytes);
        self.pending.add_pull(PendingPull {
            local_rank,
            address,
            get: PendingGet { into, bytes },
        });
        Ok(())
    }

    /// Copies bytes of another rank's part of an area before it returns. Changes that the owner
    /// makes in this superstep may or may not be seen.
    ///
    /// # Errors
    /// The errors of [`put`](Self::put), and [`Failure::OutOfReach`].
    ///
    /// # Safety
    /// `bytes` bytes at `into` must be writable, and nothing else may access them.
    pub unsafe fn direct_get(
        &mut self,
        from: u32,
        area: *const c_void,
        offset: u64,
        into: *mut u8,
        bytes: u64,
    ) -> Result<(), Failure> {
        if bytes == 0 {
            return Ok(());
        }
        self.check_rank(from)?;
        if into.is_null() {
            return Err(Misuse::Null("the destination").into());
        }
        let (_, address) = self.find(area, from, offset, bytes)?;
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        if from == self.rank {
            let start = usize::try_from(address).unwrap_or(0);
            // SAFETY: `find` has checked that the bytes are inside a registered part, which is
            // readable; the caller promises that the destination is writable.
            unsafe {
                let own = Source::at(std::ptr::with_exposed_provenance(start), length);
                own.copy_to(into);
            }
            return Ok(());
        }
        self.trace_get(from, bytes);
        let out_of_reach = Failure::OutOfReach { rank: from };
        let local_rank = self.pull_source(from).ok_or(out_of_reach)?;
        self.wait_left(local_rank)?;
        // SAFETY: the caller promises that the bytes are writable and not used otherwise.
        let into = unsafe { std::slice::from_raw_parts_mut(into, length) };
        match &self.shared {
            Some(shared) => shared.ranks().pull(local_rank, address, into),
            None => Ok(()),
        }
    }

    /// True if [`direct_get`](Self::direct_get) reaches the memory of a rank. It always reaches
    /// this rank's own memory.
    #[must_use]
    pub fn can_direct_get(&self, from: u32) -> bool {
        from == self.rank || from < self.size && self.pull_source(from).is_some()
    }

    /// Like [`direct_get`](Self::direct_get) for many ranges. `from` of each range is its offset in
    /// the area.
    ///
    /// # Errors
    /// The errors of [`direct_get`](Self::direct_get).
    ///
    /// # Safety
    /// The destination of each range must be writable, nothing else may access it, and no two may
    /// overlap.
    pub unsafe fn direct_get_ranges(
        &mut self,
        from: u32,
        area: *const c_void,
        ranges: &mut [PullRange],
    ) -> Result<(), Failure> {
        self.check_rank(from)?;
        let ends = ranges
            .iter()
            .map(|it| it.from.saturating_add(it.length as u64));
        let Some(end) = ends.max() else {
            return Ok(());
        };
        let (_, address) = self.find(area, from, 0, end)?;
        if from == self.rank {
            for range in ranges {
                let bytes = range.length as u64;
                // SAFETY: the caller promises the same for each range.
                unsafe { self.direct_get(from, area, range.from, range.into, bytes) }?;
            }
            return Ok(());
        }
        let out_of_reach = Failure::OutOfReach { rank: from };
        let local_rank = self.pull_source(from).ok_or(out_of_reach)?;
        self.wait_left(local_rank)?;
        let mut bytes = 0;
        for range in &mut *ranges {
            range.from = range.from.wrapping_add(address);
            bytes += range.length as u64;
        }
        self.trace_get(from, bytes);
        match &self.shared {
            // SAFETY: the caller promises that the destinations are writable, are not used
            // otherwise, and do not overlap.
            Some(shared) => unsafe { shared.ranks().pull_ranges(local_rank, ranges) },
            None => Ok(()),
        }
    }

    /// Sends a message to the queue of a rank, which receives it in the next superstep. Copies tag
    /// and payload before it returns.
    ///
    /// # Errors
    /// The rank does not exist, or a pointer is NULL although its length is not 0.
    ///
    /// # Safety
    /// [`tag_size`](Self::tag_size) bytes at `tag` and `bytes` bytes at `payload` must be readable.
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
                // SAFETY: the caller promises that the bytes are readable for as long as this call.
                (false, _) => Ok(unsafe { Source::at(start, length) }),
            }
        };
        let tag_bytes = self.collective.tag_bytes();
        let tag = part(tag, tag_bytes, "the tag")?;
        let payload = part(payload, bytes, "the payload")?;
        let record = Record::Message {
            tag: tag_bytes,
            length: bytes,
        };
        self.trace_put(to, tag_bytes.saturating_add(bytes));
        self.add(to, record, &[tag, payload])
    }
}
