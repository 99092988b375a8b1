//! One producer, one consumer, records in order.
//!
//! A slot is two cache lines. Its first word, written last, tells that the slot is
//! filled and how long the record is, so a short record travels with the news of
//! it. Longer payloads lie in a byte area, in one piece; both sides know where
//! by counting. The consumer's position is told now and then, on a line of its own.
//!
//! The other side may be hostile: what it wrote is read once and checked, positions
//! are counted on this side, and payload is copied, never looked at in place.

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::segment::Segment;

/// Bytes of a slot, and what of them is payload.
pub(super) const SLOT_BYTES: usize = 128;
pub(super) const INLINE_BYTES: usize = SLOT_BYTES - 16;
/// Bytes of the two sides' words.
pub(super) const CONTROL_BYTES: usize = 128;
/// Longest record.
pub const MAX_RECORD_BYTES: usize = 64 << 10;
const LINE: u64 = 64;

/// What the consumer tells, and below it what the producer tells; a line each.
#[repr(C, align(64))]
struct Told {
    consumed: AtomicU64,
    _line: [u64; 7],
    wants_room: AtomicU32,
}

/// Where a ring lies in a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) told: usize,
    pub(super) slots: usize,
    pub(super) slot_count: usize,
    pub(super) area: usize,
    pub(super) area_bytes: usize,
}

impl Place {
    /// A ring in a segment of its own.
    pub(super) fn alone(slot_count: usize, area_bytes: usize) -> Place {
        let slots = CONTROL_BYTES;
        Place {
            told: 0,
            slots,
            slot_count,
            area: slots + slot_count * SLOT_BYTES,
            area_bytes,
        }
    }

    pub(super) fn end(&self) -> usize {
        self.area + self.area_bytes
    }
}

/// The memory of a ring, as one side sees it.
#[derive(Debug)]
struct Memory {
    told: NonNull<Told>,
    slots: NonNull<u8>,
    mask: u64,
    area: NonNull<u8>,
    area_bytes: u64,
    area_mask: u64,
    _segment: Arc<Segment>,
}

// SAFETY: the addresses lie in the segment, which is kept, and are reached by atomics
// and raw copies only.
unsafe impl Send for Memory {}

impl Memory {
    fn new(segment: &Arc<Segment>, place: Place) -> Memory {
        assert!(place.slot_count.is_power_of_two());
        Memory {
            told: segment.at(place.told, size_of::<Told>()).cast(),
            slots: segment.at(place.slots, place.slot_count * SLOT_BYTES),
            mask: place.slot_count as u64 - 1,
            area: segment.at(place.area, place.area_bytes),
            area_bytes: place.area_bytes as u64,
            area_mask: (place.area_bytes as u64).wrapping_sub(1),
            _segment: Arc::clone(segment),
        }
    }

    #[inline]
    fn told(&self) -> &Told {
        // SAFETY: in the mapping, aligned (offsets are multiples of a line), all
        // atomics, for which every bit pattern is valid.
        unsafe { self.told.as_ref() }
    }

    #[inline]
    #[allow(
        clippy::cast_possible_truncation,
        reason = "masked, so below the slot count"
    )]
    fn slot(&self, position: u64) -> NonNull<u8> {
        // SAFETY: masked, so inside the slots.
        unsafe { self.slots.add((position & self.mask) as usize * SLOT_BYTES) }
    }

    #[inline]
    fn header(&self, position: u64) -> &AtomicU64 {
        // SAFETY: the first word of a slot, aligned, in the mapping; an atomic.
        unsafe { self.slot(position).cast().as_ref() }
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "below the area's length")]
    fn area(&self, position: u64) -> NonNull<u8> {
        // SAFETY: reduced, so inside the area.
        unsafe { self.area.add((position & self.area_mask) as usize) }
    }

    /// Where `length` bytes begin that come after `position`, in one piece.
    #[inline]
    fn place(&self, position: u64, length: u64) -> u64 {
        let at = position & self.area_mask;
        if at + length > self.area_bytes {
            position + (self.area_bytes - at)
        } else {
            position
        }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the low half is meant")]
fn stamp(position: u64) -> u64 {
    u64::from((position as u32).wrapping_add(1)) << 32
}

/// The writing side.
#[derive(Debug)]
pub(super) struct Producer {
    memory: Memory,
    position: u64,
    area_position: u64,
    /// Slots that the consumer is known to have given back, and area bytes.
    given_back: u64,
    area_given_back: u64,
    /// Where the area was after each slot.
    area_ends: Box<[u64]>,
    /// The consumer has been asked to ring.
    wanted: bool,
}

impl Producer {
    pub(super) fn new(segment: &Arc<Segment>, place: Place) -> Producer {
        Producer {
            memory: Memory::new(segment, place),
            position: 0,
            area_position: 0,
            given_back: 0,
            area_given_back: 0,
            area_ends: vec![0; place.slot_count].into(),
            wanted: false,
        }
    }

    /// True if one more short record fits now.
    pub(super) fn has_slot(&mut self) -> bool {
        self.position - self.given_back <= self.memory.mask || self.refresh_slots()
    }

    /// Copies a record in; false: no room now, or none for such a length at all.
    #[inline]
    pub(super) fn push(&mut self, tag: u64, payload: &[u8]) -> bool {
        if self.position - self.given_back > self.memory.mask && !self.refresh_slots() {
            return false;
        }
        let slot = self.memory.slot(self.position);
        let length = payload.len() as u64;
        let place = if payload.len() <= INLINE_BYTES {
            // SAFETY: the slot is ours until the header is written: the consumer has
            // given it back. 16 + INLINE_BYTES is its length.
            unsafe { slot.add(16) }
        } else {
            if length > self.memory.area_bytes {
                return false;
            }
            let begin = self.memory.place(self.area_position, length);
            if begin + length - self.area_given_back > self.memory.area_bytes
                && !self.refresh_area(begin + length)
            {
                return false;
            }
            self.area_position = (begin + length).next_multiple_of(LINE);
            self.memory.area(begin)
        };
        // SAFETY: `place` has room for the payload and is ours, as argued above; the
        // payload is memory of this process alone, so they do not overlap.
        unsafe {
            ptr::copy_nonoverlapping(payload.as_ptr(), place.as_ptr(), payload.len());
            slot.add(8).cast::<u64>().write(tag);
        }
        let index = self.position & self.memory.mask;
        if let Some(end) = usize::try_from(index)
            .ok()
            .and_then(|at| self.area_ends.get_mut(at))
        {
            *end = self.area_position;
        }
        // Release: whoever sees the stamp sees the record.
        self.memory
            .header(self.position)
            .store(stamp(self.position) | length, Ordering::Release);
        self.position += 1;
        true
    }

    #[cold]
    fn refresh_slots(&mut self) -> bool {
        self.refresh();
        self.position - self.given_back <= self.memory.mask
    }

    #[cold]
    fn refresh_area(&mut self, end: u64) -> bool {
        self.refresh();
        end - self.area_given_back <= self.memory.area_bytes
    }

    /// Reads how far the consumer has come; nonsense counts as nothing new. True if there
    /// was news.
    fn refresh(&mut self) -> bool {
        // Acquire: the consumer has read what it gives back.
        let consumed = self.memory.told().consumed.load(Ordering::Acquire);
        if consumed > self.given_back && consumed <= self.position {
            self.given_back = consumed;
            let last = (consumed - 1) & self.memory.mask;
            let end = usize::try_from(last)
                .ok()
                .and_then(|at| self.area_ends.get(at));
            self.area_given_back = end.copied().unwrap_or(self.area_given_back);
            return true;
        }
        false
    }

    /// True if the consumer has taken everything.
    pub(super) fn is_read(&mut self) -> bool {
        self.refresh();
        self.given_back == self.position
    }

    /// The consumer shall ring when it gives something back, or not any more.
    #[inline]
    pub(super) fn want_room(&mut self, wanted: bool) {
        if self.wanted != wanted {
            self.wanted = wanted;
            self.memory
                .told()
                .wants_room
                .store(wanted.into(), Ordering::Relaxed);
        }
    }

    /// True if room that was wanted has come. Before sleeping this must be asked behind
    /// a full fence: the consumer looks for the wish behind another.
    pub(super) fn has_wanted_room(&mut self) -> bool {
        self.wanted && self.refresh()
    }
}

/// A payload in shared memory, to be copied out.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    place: NonNull<u8>,
    length: usize,
    _ring: std::marker::PhantomData<&'a ()>,
}

impl Payload<'_> {
    /// Its length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// True if it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Copies all of it.
    ///
    /// # Panics
    /// When `into` has another length.
    #[inline]
    pub fn copy_to(&self, into: &mut [u8]) {
        assert_eq!(into.len(), self.length, "as long as the payload");
        // SAFETY: `length` bytes at `place` lie in the ring (checked when the record
        // was taken) and stay until the borrow ends; `into` is memory of this process
        // alone. The producer may write meanwhile if it is hostile: then the copy holds
        // whatever it wrote.
        unsafe { ptr::copy_nonoverlapping(self.place.as_ptr(), into.as_mut_ptr(), self.length) };
    }

    /// The eight bytes at `offset` as a little-endian number.
    #[must_use]
    pub fn read_u64(&self, offset: usize) -> Option<u64> {
        if offset.checked_add(8)? > self.length {
            return None;
        }
        let mut bytes = [0; 8];
        // SAFETY: as above; the range was just checked.
        unsafe {
            ptr::copy_nonoverlapping(self.place.as_ptr().add(offset), bytes.as_mut_ptr(), 8);
        }
        Some(u64::from_le_bytes(bytes))
    }
}

/// The producer broke the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken(pub(super) &'static str);

/// The reading side.
#[derive(Debug)]
pub(super) struct Consumer {
    memory: Memory,
    position: u64,
    area_position: u64,
    told: u64,
    area_told: u64,
    /// Something was told since the wish for it was looked for.
    news: bool,
}

impl Consumer {
    pub(super) fn new(segment: &Arc<Segment>, place: Place) -> Consumer {
        Consumer {
            memory: Memory::new(segment, place),
            position: 0,
            area_position: 0,
            told: 0,
            area_told: 0,
            news: false,
        }
    }

    /// True if a record waits.
    #[inline]
    pub(super) fn has_record(&self) -> bool {
        let header = self.memory.header(self.position).load(Ordering::Acquire);
        header >> 32 == stamp(self.position) >> 32
    }

    /// Shows the next record, if there is one, and moves past it.
    #[inline]
    pub(super) fn take<R>(
        &mut self,
        show: impl FnOnce(u64, Payload<'_>) -> R,
    ) -> Result<Option<R>, Broken> {
        // Acquire: the record was written before its stamp. Read once.
        let header = self.memory.header(self.position).load(Ordering::Acquire);
        if header >> 32 != stamp(self.position) >> 32 {
            return Ok(None);
        }
        let length = header & 0xffff_ffff;
        let slot = self.memory.slot(self.position);
        let place = if length <= INLINE_BYTES as u64 {
            // SAFETY: inside the slot.
            unsafe { slot.add(16) }
        } else {
            if length > MAX_RECORD_BYTES as u64 || length > self.memory.area_bytes {
                return Err(Broken("a record that is too long"));
            }
            let begin = self.memory.place(self.area_position, length);
            self.area_position = (begin + length).next_multiple_of(LINE);
            self.memory.area(begin)
        };
        // SAFETY: the second word of the slot, aligned, in the mapping.
        let tag = unsafe { slot.add(8).cast::<u64>().read_volatile() };
        let payload = Payload {
            place,
            length: usize::try_from(length).unwrap_or(0),
            _ring: std::marker::PhantomData,
        };
        let shown = show(tag, payload);
        self.position += 1;
        if self.position - self.told > self.memory.mask / 4
            || self.area_position - self.area_told > self.memory.area_bytes / 4
        {
            self.tell();
        }
        Ok(Some(shown))
    }

    /// Tells the producer how far this side has come.
    #[inline]
    pub(super) fn tell(&mut self) {
        if self.told != self.position {
            self.told = self.position;
            self.area_told = self.area_position;
            self.news = true;
            // Release: everything before has been read.
            let consumed = &self.memory.told().consumed;
            consumed.store(self.position, Ordering::Release);
        }
    }

    /// True if the producer waits for what was told since the last call.
    #[inline]
    pub(super) fn is_awaited(&mut self) -> bool {
        if !std::mem::take(&mut self.news) {
            return false;
        }
        // Either we see its wish, or it sees what was told before it sleeps.
        fence(Ordering::SeqCst);
        self.memory.told().wants_room.load(Ordering::Relaxed) != 0
    }
}
