//! One producer, one consumer, records in order.
//!
//! A slot is two cache lines. Its first word, written last, marks the slot as filled and holds
//! the record's length, so a short record arrives together with its announcement. Longer
//! payloads are stored contiguously in a byte area; both sides compute the position by
//! counting. The consumer publishes its position now and then, on a cache line of its own.
//!
//! There are two areas. The near area fits into L1 caches, between which lines move up to twice
//! as fast: it is used while the consumer keeps up. The wide area takes what a busy consumer
//! leaves behind.
//!
//! The other side may be hostile: what it wrote is read once and checked, positions are
//! counted locally, and payload is copied, never used in place.

use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;

use super::memory::{INLINE_BYTES, Location, Mapped, Memory};
use crate::word::Word;

#[cfg(test)]
mod tests;

/// Maximum record length in bytes.
pub const MAX_RECORD_BYTES: usize = 64 << 10;
const LINE: u64 = 64;
/// Header flag: the payload is in the wide area.
const WIDE: u64 = 1 << 31;
/// Rounds in which a producer spins for room in the near area while the consumer progresses.
const PROGRESS_ROUNDS: u32 = 5;

/// The slot of a position.
#[inline]
#[allow(
    clippy::cast_possible_truncation,
    reason = "below the slot count, which is a `usize`"
)]
fn slot_of(memory: &impl Memory, position: u64) -> usize {
    (position & (memory.slot_count() - 1)) as usize
}

/// An area, and one side's position in it.
#[derive(Clone, Copy, Debug)]
struct Area {
    /// Its start and its length; the length is a power of two, or 0.
    start: u64,
    bytes: u64,
    position: u64,
}

impl Area {
    /// The near area and the wide area.
    fn both(memory: &impl Memory) -> (Area, Area) {
        let area = |start, bytes| Area {
            start,
            bytes,
            position: 0,
        };
        let near = area(0, memory.near_bytes());
        (near, area(near.bytes, memory.wide_bytes()))
    }

    /// Start of the next `length` bytes, which are contiguous. `length` is at most the area's
    /// size.
    #[inline]
    fn begin(&self, length: u64) -> u64 {
        let at = self.position & (self.bytes - 1);
        if at + length > self.bytes {
            self.position + (self.bytes - at)
        } else {
            self.position
        }
    }

    /// Advances past `length` bytes from `begin`; returns their location.
    #[inline]
    #[allow(
        clippy::cast_possible_truncation,
        reason = "no more than the area has, which is a `usize`"
    )]
    fn advance(&mut self, begin: u64, length: u64) -> Location {
        self.position = (begin + length).next_multiple_of(LINE);
        Location::Area {
            at: (self.start + (begin & (self.bytes - 1))) as usize,
            length: length as usize,
        }
    }
}

/// The upper half of a slot's header. The lower half holds the length and the area flag.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "the low half is meant")]
fn stamp(position: u64) -> u64 {
    u64::from((position as u32).wrapping_add(1)) << 32
}

/// The writing side of a ring.
#[derive(Debug)]
pub(super) struct Producer<M = Mapped> {
    memory: M,
    position: u64,
    /// Position that the consumer must reach for everything to count as read; later records are
    /// notices.
    required_end: u64,
    near: Area,
    wide: Area,
    /// Slots known to be returned by the consumer, and bytes of the areas.
    freed: u64,
    near_freed: u64,
    wide_freed: u64,
    /// Positions of the areas after each slot.
    ends: Box<[(u64, u64)]>,
    /// The consumer must send a wake-up when there is room.
    wanted: bool,
    /// It has returned something since then, which has not been reported.
    room_available: bool,
    /// Position of the consumer when spinning for it last failed.
    idle_at: u64,
}

impl<M: Memory> Producer<M> {
    /// The writing side of new memory.
    pub(super) fn new(memory: M) -> Producer<M> {
        let (near, wide) = Area::both(&memory);
        Producer {
            ends: (0..memory.slot_count()).map(|_| (0, 0)).collect(),
            memory,
            position: 0,
            required_end: 0,
            near,
            wide,
            freed: 0,
            near_freed: 0,
            wide_freed: 0,
            wanted: false,
            room_available: false,
            idle_at: u64::MAX,
        }
    }

    /// True if a short record fits now.
    #[inline]
    pub(super) fn has_slot(&mut self) -> bool {
        self.position - self.freed < self.memory.slot_count() || self.refresh_slots()
    }

    /// Copies a record in; false if there is no room now, or never for this length.
    #[inline]
    pub(super) fn push(&mut self, tag: u64, payload: &[u8]) -> bool {
        self.push_parts(tag, &[], payload)
    }

    /// Like [`push`](Self::push), with the payload in two parts.
    #[inline]
    pub(super) fn push_parts(&mut self, tag: u64, head: &[u8], rest: &[u8]) -> bool {
        if !self.has_slot() {
            return false;
        }
        let slot = slot_of(&self.memory, self.position);
        let bytes = head.len() + rest.len();
        let length = bytes as u64;
        let mut news = stamp(self.position) | length;
        self.memory.touch(Location::Slot(slot), true);
        let behind = self.memory.bytes(Location::Slot(slot));
        let place = if bytes <= INLINE_BYTES {
            // SAFETY: behind the tag; `INLINE_BYTES` remain of the slot.
            unsafe { behind.add(8) }
        } else {
            let location = if self.has_near_room(length) {
                self.near.advance(self.near.begin(length), length)
            } else if self.has_wide_room(length) {
                news |= WIDE;
                self.wide.advance(self.wide.begin(length), length)
            } else {
                return false;
            };
            self.memory.touch(location, true);
            self.memory.bytes(location)
        };
        // SAFETY: `place` has room for both parts, `behind` is aligned and has room for the
        // tag. The consumer has returned both, so they are ours until the header is written.
        // The parts are private memory of this process, so they do not overlap.
        unsafe {
            ptr::copy_nonoverlapping(head.as_ptr(), place.as_ptr(), head.len());
            let behind_head = place.as_ptr().add(head.len());
            ptr::copy_nonoverlapping(rest.as_ptr(), behind_head, rest.len());
            behind.cast::<u64>().write(tag);
        }
        if let Some(ends) = self.ends.get_mut(slot) {
            *ends = (self.near.position, self.wide.position);
        }
        // Release: a consumer that sees the stamp sees the record.
        self.memory.header(slot).store(news, Ordering::Release);
        self.position += 1;
        self.required_end = self.position;
        true
    }

    /// Position that the consumer must reach for everything to count as read.
    pub(super) fn required_end(&self) -> u64 {
        self.required_end
    }

    /// Sets that position; records pushed after it are notices.
    pub(super) fn set_required_end(&mut self, end: u64) {
        self.required_end = end;
    }

    /// True if `length` bytes fit into the near area.
    #[inline]
    fn has_near_room(&mut self, length: u64) -> bool {
        // At least two records must fit at once.
        if length > self.near.bytes / 2 {
            return false;
        }
        let end = self.near.begin(length) + length;
        let is_free = |ring: &Self| end - ring.near_freed <= ring.near.bytes;
        is_free(self) || (self.refresh() && is_free(self)) || self.spin_until(is_free)
    }

    /// Spins briefly for a consumer that is taking records right now.
    #[cold]
    fn spin_until(&mut self, is_free: impl Fn(&Self) -> bool) -> bool {
        for _ in 0..PROGRESS_ROUNDS {
            if self.freed == self.idle_at {
                return false;
            }
            let mut looks = 0;
            while !self.refresh() {
                looks += 1;
                if looks == M::SPIN_LIMIT {
                    self.idle_at = self.freed;
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

    /// True if `length` bytes fit into the wide area.
    #[inline]
    fn has_wide_room(&mut self, length: u64) -> bool {
        if length > self.wide.bytes {
            return false;
        }
        let end = self.wide.begin(length) + length;
        let is_free = |ring: &Self| end - ring.wide_freed <= ring.wide.bytes;
        is_free(self) || (self.refresh() && is_free(self))
    }

    #[cold]
    fn refresh_slots(&mut self) -> bool {
        self.refresh();
        self.position - self.freed < self.memory.slot_count()
    }

    /// Reads the consumer's position; ignores invalid values. True if it has advanced.
    #[cold]
    fn refresh(&mut self) -> bool {
        // Acquire: the consumer has finished reading what it returns.
        let consumed = self.memory.consumed().load(Ordering::Acquire);
        if consumed > self.freed && consumed <= self.position {
            self.freed = consumed;
            if self.wanted {
                self.room_available = true;
                self.want_room(false);
            }
            let last = slot_of(&self.memory, consumed - 1);
            if let Some(ends) = self.ends.get(last) {
                (self.near_freed, self.wide_freed) = *ends;
            }
            return true;
        }
        false
    }

    /// True if the consumer has taken everything except notices at the end.
    pub(super) fn is_read(&mut self) -> bool {
        self.refresh();
        self.freed >= self.required_end
    }

    /// Number of answers that the consumer had made when it published the position that this side
    /// has seen, or later.
    pub(super) fn answers(&self) -> u64 {
        // Relaxed: written before the position, which was read with acquire.
        self.memory.answers().load(Ordering::Relaxed)
    }

    /// Bytes of long payloads that the consumer has not returned.
    pub(super) fn unread_bytes(&mut self) -> u64 {
        self.refresh();
        self.near.position - self.near_freed + (self.wide.position - self.wide_freed)
    }

    /// Sets whether the consumer should send a wake-up when it returns something.
    #[inline]
    pub(super) fn want_room(&mut self, wanted: bool) {
        if self.wanted != wanted {
            self.wanted = wanted;
            self.memory
                .room_wanted()
                .store(wanted.into(), Ordering::Relaxed);
        }
    }

    /// True if a wake-up was requested and nothing has been returned since.
    pub(super) fn wants_room(&self) -> bool {
        self.wanted
    }

    /// True once after requested room became available. Before sleeping, call this after a full
    /// fence: the consumer checks the request after its own fence.
    pub(super) fn take_wanted_room(&mut self) -> bool {
        if self.wanted {
            self.refresh();
        }
        self.take_room_available()
    }

    /// True once if requested room was noticed in passing. Its waiters must be notified, since
    /// the consumer may not send a wake-up any more.
    #[inline]
    pub(super) fn take_room_available(&mut self) -> bool {
        std::mem::take(&mut self.room_available)
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
    /// A payload in private memory.
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

    /// Copies the whole payload.
    ///
    /// # Panics
    /// If `into` has another length.
    #[inline]
    pub fn copy_to(&self, into: &mut [u8]) {
        assert_eq!(into.len(), self.length, "as long as the payload");
        // SAFETY: `length` bytes at `place` are in the ring (checked when the record was taken)
        // and stay until the borrow ends; `into` is private memory of this process. A hostile
        // producer may write meanwhile; then the copy holds whatever it wrote.
        unsafe { ptr::copy_nonoverlapping(self.place.as_ptr(), into.as_mut_ptr(), self.length) };
    }

    /// A range of the payload.
    ///
    /// # Panics
    /// If the range is out of bounds.
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

/// The producer violated the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FormatViolation(pub(super) &'static str);

/// The reading side of a ring.
#[derive(Debug)]
pub(super) struct Consumer<M = Mapped> {
    memory: M,
    position: u64,
    near: Area,
    wide: Area,
    published: u64,
    near_published: u64,
    wide_published: u64,
    /// The position was published since `room_wanted` was last checked.
    unannounced: bool,
    /// Number of answers, as published.
    answers: u64,
}

impl<M: Memory> Consumer<M> {
    /// The reading side of new memory.
    pub(super) fn new(memory: M) -> Consumer<M> {
        let (near, wide) = Area::both(&memory);
        Consumer {
            memory,
            position: 0,
            near,
            wide,
            published: 0,
            near_published: 0,
            wide_published: 0,
            unannounced: false,
            answers: 0,
        }
    }

    /// Publishes the number of answers before the position of the records that caused them.
    #[inline]
    pub(super) fn set_answers(&mut self, count: u64) {
        if self.answers != count {
            self.answers = count;
            // Relaxed: `publish_position` follows with release, or a record that is pushed.
            self.memory.answers().store(count, Ordering::Relaxed);
        }
    }

    /// The reading side of the ring that replaces this one. The number of answers continues.
    pub(super) fn successor(&self, memory: M) -> Consumer<M> {
        let mut next = Consumer::new(memory);
        next.set_answers(self.answers);
        next
    }

    /// The header of the next slot, if it is filled.
    #[inline]
    fn filled(&self) -> Option<u64> {
        let slot = slot_of(&self.memory, self.position);
        // Acquire: the record was written before its stamp. Read once.
        let header = self.memory.header(slot).load(Ordering::Acquire);
        (header >> 32 == stamp(self.position) >> 32).then_some(header)
    }

    /// True if a record is available.
    #[inline]
    pub(super) fn has_record(&self) -> bool {
        self.filled().is_some()
    }

    /// Passes the next record to `show`, if there is one, and moves past it. `show` may return the
    /// new number of answers.
    #[inline]
    #[allow(
        clippy::cast_possible_truncation,
        reason = "a length that was checked, or below 113"
    )]
    pub(super) fn take<R>(
        &mut self,
        show: impl FnOnce(u64, Payload<'_>) -> (R, Option<u64>),
    ) -> Result<Option<R>, FormatViolation> {
        let Some(header) = self.filled() else {
            return Ok(None);
        };
        let length = header & (WIDE - 1);
        let location = Location::Slot(slot_of(&self.memory, self.position));
        self.memory.touch(location, false);
        let behind = self.memory.bytes(location);
        let place = if length <= INLINE_BYTES as u64 {
            // SAFETY: after the tag, inside the slot.
            unsafe { behind.add(8) }
        } else {
            let area = if header & WIDE == 0 {
                &mut self.near
            } else {
                &mut self.wide
            };
            if length > MAX_RECORD_BYTES as u64 || length > area.bytes {
                return Err(FormatViolation("a record that is too long"));
            }
            let location = area.advance(area.begin(length), length);
            self.memory.touch(location, false);
            self.memory.bytes(location)
        };
        // SAFETY: the second word of the slot, aligned, in the memory; any bit pattern is a
        // valid number.
        let tag = unsafe { behind.cast::<u64>().read_volatile() };
        let payload = Payload {
            place,
            length: length as usize,
            _ring: std::marker::PhantomData,
        };
        let (shown, answers) = show(tag, payload);
        if let Some(answers) = answers {
            self.set_answers(answers);
        }
        self.position += 1;
        if self.position - self.published > (self.memory.slot_count() - 1) / 4
            || self.near.position - self.near_published > self.near.bytes / 8
            || self.wide.position - self.wide_published > self.wide.bytes / 4
        {
            self.publish_position();
        }
        Ok(Some(shown))
    }

    /// Publishes this side's position to the producer.
    #[inline]
    pub(super) fn publish_position(&mut self) {
        if self.published != self.position {
            self.published = self.position;
            self.near_published = self.near.position;
            self.wide_published = self.wide.position;
            self.unannounced = true;
            // Release: everything before it has been read.
            self.memory
                .consumed()
                .store(self.position, Ordering::Release);
        }
    }

    /// True if the producer is seen waiting for what was published. May miss one that starts to
    /// wait right now: call [`producer_waits`](Self::producer_waits) before this side sleeps.
    #[inline]
    pub(super) fn producer_seems_to_wait(&mut self) -> bool {
        let awaited = self.memory.room_wanted().load(Ordering::Relaxed) != 0;
        self.unannounced &= !awaited;
        awaited
    }

    /// True if the producer waits for what was published since the last call.
    #[inline]
    pub(super) fn producer_waits(&mut self) -> bool {
        if !std::mem::take(&mut self.unannounced) {
            return false;
        }
        // Either we see the request, or the producer sees our position before it sleeps.
        M::Word::full_fence();
        self.memory.room_wanted().load(Ordering::Relaxed) != 0
    }
}
