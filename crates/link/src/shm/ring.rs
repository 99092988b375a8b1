//! One producer, one consumer, records in order.
//!
//! A slot is two cache lines. Its first word, written last, tells that the slot is
//! filled and how long the record is, so a short record travels with the news of
//! it. Longer payloads lie in a byte area, in one piece; both sides know where
//! by counting. The consumer's position is told now and then, on a line of its own.
//!
//! There are two areas. The near one fits the first-level caches, between which lines
//! go up to twice as fast as from anywhere else: it is used while the consumer keeps up.
//! The wide one takes what a consumer that is busy elsewhere leaves lying.
//!
//! The other side may be hostile: what it wrote is read once and checked, positions
//! are counted on this side, and payload is copied, never looked at in place.

use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;

use super::memory::{INLINE_BYTES, Mapped, Memory, Spot};
use crate::word::Word;

#[cfg(test)]
mod tests;

/// Longest record.
pub const MAX_RECORD_BYTES: usize = 64 << 10;
const LINE: u64 = 64;
/// In a header: the payload lies in the wide area.
const WIDE: u64 = 1 << 31;
/// How often a producer looks for a consumer that is about to make room in the near area,
/// if there is progress.
const LOOKS: u32 = 5;

/// The slot of a position.
#[inline]
#[allow(
    clippy::cast_possible_truncation,
    reason = "below the slot count, which is a `usize`"
)]
fn slot_of(memory: &impl Memory, position: u64) -> usize {
    (position & (memory.slot_count() - 1)) as usize
}

/// An area and how far its owner, one of the two sides, has come in it.
#[derive(Clone, Copy, Debug)]
struct Area {
    /// Where it begins, and its length: a power of two, or nothing.
    start: u64,
    bytes: u64,
    position: u64,
}

impl Area {
    /// The near one and the wide one.
    fn both(memory: &impl Memory) -> (Area, Area) {
        let area = |start, bytes| Area {
            start,
            bytes,
            position: 0,
        };
        let near = area(0, memory.near_bytes());
        (near, area(near.bytes, memory.wide_bytes()))
    }

    /// Where `length` bytes begin that come next, in one piece. They are no more than the
    /// area has.
    #[inline]
    fn begin(&self, length: u64) -> u64 {
        let at = self.position & (self.bytes - 1);
        if at + length > self.bytes {
            self.position + (self.bytes - at)
        } else {
            self.position
        }
    }

    /// Moves past `length` bytes from `begin` on; where they lie.
    #[inline]
    #[allow(
        clippy::cast_possible_truncation,
        reason = "no more than the area has, which is a `usize`"
    )]
    fn advance(&mut self, begin: u64, length: u64) -> Spot {
        self.position = (begin + length).next_multiple_of(LINE);
        Spot::Area {
            at: (self.start + (begin & (self.bytes - 1))) as usize,
            length: length as usize,
        }
    }
}

/// What the header of a slot has in its upper half; the lower one has the length, and which
/// area.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "the low half is meant")]
fn stamp(position: u64) -> u64 {
    u64::from((position as u32).wrapping_add(1)) << 32
}

/// The writing side.
#[derive(Debug)]
pub(super) struct Producer<M = Mapped> {
    memory: M,
    position: u64,
    /// The end of what the consumer must have taken for everything to have arrived: behind it
    /// are notices.
    needed: u64,
    near: Area,
    wide: Area,
    /// Slots that the consumer is known to have given back, and bytes of the areas.
    given_back: u64,
    near_given_back: u64,
    wide_given_back: u64,
    /// Where the areas were after each slot.
    ends: Box<[(u64, u64)]>,
    /// The consumer has been asked to ring.
    wanted: bool,
    /// It has given something back since it was asked, and nobody was told.
    room_came: bool,
    /// Where the consumer stood when it was last waited for in vain.
    idle_at: u64,
}

impl<M: Memory> Producer<M> {
    /// The side that writes to new memory.
    pub(super) fn new(memory: M) -> Producer<M> {
        let (near, wide) = Area::both(&memory);
        Producer {
            ends: (0..memory.slot_count()).map(|_| (0, 0)).collect(),
            memory,
            position: 0,
            needed: 0,
            near,
            wide,
            given_back: 0,
            near_given_back: 0,
            wide_given_back: 0,
            wanted: false,
            room_came: false,
            idle_at: u64::MAX,
        }
    }

    /// True if one more short record fits now.
    #[inline]
    pub(super) fn has_slot(&mut self) -> bool {
        self.position - self.given_back < self.memory.slot_count() || self.refresh_slots()
    }

    /// Copies a record in; false: no room now, or none for such a length at all.
    #[inline]
    pub(super) fn push(&mut self, tag: u64, payload: &[u8]) -> bool {
        self.push_parts(tag, &[], payload)
    }

    /// The same with a payload in two parts.
    #[inline]
    pub(super) fn push_parts(&mut self, tag: u64, head: &[u8], rest: &[u8]) -> bool {
        if !self.has_slot() {
            return false;
        }
        let slot = slot_of(&self.memory, self.position);
        let bytes = head.len() + rest.len();
        let length = bytes as u64;
        let mut news = stamp(self.position) | length;
        self.memory.touch(Spot::Slot(slot), true);
        let behind = self.memory.bytes(Spot::Slot(slot));
        let place = if bytes <= INLINE_BYTES {
            // SAFETY: behind the tag; `INLINE_BYTES` remain of the slot.
            unsafe { behind.add(8) }
        } else {
            let spot = if self.has_near_room(length) {
                self.near.advance(self.near.begin(length), length)
            } else if self.has_wide_room(length) {
                news |= WIDE;
                self.wide.advance(self.wide.begin(length), length)
            } else {
                return false;
            };
            self.memory.touch(spot, true);
            self.memory.bytes(spot)
        };
        // SAFETY: `place` has room for both parts, `behind` is aligned and has room for
        // the tag. Both are ours until the header is written: the consumer has given
        // them back. The parts are memory of this process alone, so they do not overlap.
        unsafe {
            ptr::copy_nonoverlapping(head.as_ptr(), place.as_ptr(), head.len());
            let behind_head = place.as_ptr().add(head.len());
            ptr::copy_nonoverlapping(rest.as_ptr(), behind_head, rest.len());
            behind.cast::<u64>().write(tag);
        }
        if let Some(ends) = self.ends.get_mut(slot) {
            *ends = (self.near.position, self.wide.position);
        }
        // Release: whoever sees the stamp sees the record.
        self.memory.header(slot).store(news, Ordering::Release);
        self.position += 1;
        self.needed = self.position;
        true
    }

    /// The end of what must be taken.
    pub(super) fn needed(&self) -> u64 {
        self.needed
    }

    /// Sets it: what was pushed behind it are notices.
    pub(super) fn set_needed(&mut self, needed: u64) {
        self.needed = needed;
    }

    /// True if so many bytes go through the near area.
    #[inline]
    fn has_near_room(&mut self, length: u64) -> bool {
        // At least two are under way.
        if length > self.near.bytes / 2 {
            return false;
        }
        let end = self.near.begin(length) + length;
        let is_free = |ring: &Self| end - ring.near_given_back <= ring.near.bytes;
        is_free(self) || (self.refresh() && is_free(self)) || self.waits_until(is_free)
    }

    /// Waits a moment for a consumer that takes records just now.
    #[cold]
    fn waits_until(&mut self, is_free: impl Fn(&Self) -> bool) -> bool {
        for _ in 0..LOOKS {
            if self.given_back == self.idle_at {
                return false;
            }
            let mut looks = 0;
            while !self.refresh() {
                looks += 1;
                if looks == M::PATIENCE {
                    self.idle_at = self.given_back;
                    return false;
                }
                std::hint::spin_loop();
            }
            if is_free(self) {
                return true;
            }
        }
        false
    }

    /// True if the wide area has room for so many bytes.
    #[inline]
    fn has_wide_room(&mut self, length: u64) -> bool {
        if length > self.wide.bytes {
            return false;
        }
        let end = self.wide.begin(length) + length;
        let is_free = |ring: &Self| end - ring.wide_given_back <= ring.wide.bytes;
        is_free(self) || (self.refresh() && is_free(self))
    }

    #[cold]
    fn refresh_slots(&mut self) -> bool {
        self.refresh();
        self.position - self.given_back < self.memory.slot_count()
    }

    /// Reads how far the consumer has come; nonsense counts as nothing new. True if there
    /// was news.
    #[cold]
    fn refresh(&mut self) -> bool {
        // Acquire: the consumer has read what it gives back.
        let consumed = self.memory.consumed().load(Ordering::Acquire);
        if consumed > self.given_back && consumed <= self.position {
            self.given_back = consumed;
            if self.wanted {
                self.room_came = true;
                self.want_room(false);
            }
            let last = slot_of(&self.memory, consumed - 1);
            if let Some(ends) = self.ends.get(last) {
                (self.near_given_back, self.wide_given_back) = *ends;
            }
            return true;
        }
        false
    }

    /// True if the consumer has taken everything but notices at the end.
    pub(super) fn is_read(&mut self) -> bool {
        self.refresh();
        self.given_back >= self.needed
    }

    /// The consumer shall ring when it gives something back, or not any more.
    #[inline]
    pub(super) fn want_room(&mut self, wanted: bool) {
        if self.wanted != wanted {
            self.wanted = wanted;
            self.memory.wish().store(wanted.into(), Ordering::Relaxed);
        }
    }

    /// True if the consumer has been asked to ring, and has not given anything back since.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// True, once, if room that was wanted has come. Before sleeping this must be asked
    /// behind a full fence: the consumer looks for the wish behind another.
    pub(super) fn has_wanted_room(&mut self) -> bool {
        if self.wanted {
            self.refresh();
        }
        self.take_room_came()
    }

    /// True, once, if room that was wanted came and was seen in passing: those who wait for it
    /// must be told, since the consumer may not ring any more.
    #[inline]
    pub(super) fn take_room_came(&mut self) -> bool {
        std::mem::take(&mut self.room_came)
    }
}

/// A payload in shared memory, to be copied out.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    place: NonNull<u8>,
    length: usize,
    _ring: std::marker::PhantomData<&'a ()>,
}

impl<'a> Payload<'a> {
    /// A payload in memory of this process.
    pub(crate) fn of(bytes: &'a [u8]) -> Payload<'a> {
        Payload {
            place: NonNull::from(bytes).cast(),
            length: bytes.len(),
            _ring: std::marker::PhantomData,
        }
    }

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

    /// A part of it.
    ///
    /// # Panics
    /// When the range is not inside.
    #[inline]
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Payload<'a> {
        let inside = range.start <= range.end && range.end <= self.length;
        assert!(inside, "inside the payload");
        Payload {
            // SAFETY: inside the payload's bytes, as just checked.
            place: unsafe { self.place.add(range.start) },
            length: range.len(),
            _ring: std::marker::PhantomData,
        }
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
pub(super) struct Consumer<M = Mapped> {
    memory: M,
    position: u64,
    near: Area,
    wide: Area,
    told: u64,
    near_told: u64,
    wide_told: u64,
    /// Something was told since the wish for it was looked for.
    news: bool,
}

impl<M: Memory> Consumer<M> {
    /// The side that reads from new memory.
    pub(super) fn new(memory: M) -> Consumer<M> {
        let (near, wide) = Area::both(&memory);
        Consumer {
            memory,
            position: 0,
            near,
            wide,
            told: 0,
            near_told: 0,
            wide_told: 0,
            news: false,
        }
    }

    /// The header of the next slot, if it is filled.
    #[inline]
    fn filled(&self) -> Option<u64> {
        let slot = slot_of(&self.memory, self.position);
        // Acquire: the record was written before its stamp. Read once.
        let header = self.memory.header(slot).load(Ordering::Acquire);
        (header >> 32 == stamp(self.position) >> 32).then_some(header)
    }

    /// True if a record waits.
    #[inline]
    pub(super) fn has_record(&self) -> bool {
        self.filled().is_some()
    }

    /// Shows the next record, if there is one, and moves past it.
    #[inline]
    #[allow(
        clippy::cast_possible_truncation,
        reason = "a length that was checked, or below 113"
    )]
    pub(super) fn take<R>(
        &mut self,
        show: impl FnOnce(u64, Payload<'_>) -> R,
    ) -> Result<Option<R>, Broken> {
        let Some(header) = self.filled() else {
            return Ok(None);
        };
        let length = header & (WIDE - 1);
        let spot = Spot::Slot(slot_of(&self.memory, self.position));
        self.memory.touch(spot, false);
        let behind = self.memory.bytes(spot);
        let place = if length <= INLINE_BYTES as u64 {
            // SAFETY: behind the tag, inside the slot.
            unsafe { behind.add(8) }
        } else {
            let area = if header & WIDE == 0 {
                &mut self.near
            } else {
                &mut self.wide
            };
            if length > MAX_RECORD_BYTES as u64 || length > area.bytes {
                return Err(Broken("a record that is too long"));
            }
            let spot = area.advance(area.begin(length), length);
            self.memory.touch(spot, false);
            self.memory.bytes(spot)
        };
        // SAFETY: the second word of the slot, aligned, in the memory; whatever it holds is
        // a number.
        let tag = unsafe { behind.cast::<u64>().read_volatile() };
        let payload = Payload {
            place,
            length: length as usize,
            _ring: std::marker::PhantomData,
        };
        let shown = show(tag, payload);
        self.position += 1;
        if self.position - self.told > (self.memory.slot_count() - 1) / 4
            || self.near.position - self.near_told > self.near.bytes / 8
            || self.wide.position - self.wide_told > self.wide.bytes / 4
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
            self.near_told = self.near.position;
            self.wide_told = self.wide.position;
            self.news = true;
            // Release: everything before has been read.
            self.memory
                .consumed()
                .store(self.position, Ordering::Release);
        }
    }

    /// True if the producer is seen to wait for what was told. One that begins to wait just now
    /// may be missed: [`is_awaited`](Self::is_awaited) must follow before this side sleeps.
    #[inline]
    pub(super) fn seems_awaited(&mut self) -> bool {
        let awaited = self.memory.wish().load(Ordering::Relaxed) != 0;
        self.news &= !awaited;
        awaited
    }

    /// True if the producer waits for what was told since the last call.
    #[inline]
    pub(super) fn is_awaited(&mut self) -> bool {
        if !std::mem::take(&mut self.news) {
            return false;
        }
        // Either we see its wish, or it sees what was told before it sleeps.
        M::Word::full_fence();
        self.memory.wish().load(Ordering::Relaxed) != 0
    }
}
