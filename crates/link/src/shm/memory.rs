//! The memory of a ring: words shared by two sides, and payload bytes.
//!
//! The ring and the bell are generic over this memory, so that loom and Miri run the
//! production code. The memory orderings are explained at each access, in `ring.rs` and
//! `bell.rs`.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::segment::Segment;
use crate::word::Word;

/// Size of a slot, and the part of it that holds payload.
pub(super) const SLOT_BYTES: usize = 128;
pub(super) const INLINE_BYTES: usize = SLOT_BYTES - 16;
/// Size of both sides' control words.
pub(super) const CONTROL_BYTES: usize = 128;

/// Maximum size of a near area, and its inverse share of the wide area.
const NEAR_BYTES: usize = 16 << 10;
const NEAR_PART: usize = 4;

/// A range of a ring's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// The bytes after the header word of a slot: its second word, then its payload.
    Slot(usize),
    /// Bytes in the areas, counted from the start of the near area.
    Area { at: usize, length: usize },
}

/// The memory of a ring as seen by one side.
pub(super) trait Memory {
    type Word: Word;

    /// Spins of a producer before it considers the consumer idle.
    const SPIN_LIMIT: u32 = 50;

    /// Number of slots; a power of two.
    fn slot_count(&self) -> u64;

    /// Size of the near area; a power of two, or 0.
    fn near_bytes(&self) -> u64;

    /// Size of the wide area that follows it; a power of two, or 0.
    fn wide_bytes(&self) -> u64;

    /// Number of records that the consumer has returned.
    fn consumed(&self) -> &Self::Word;

    /// Number of answers that the consumer has made, for the producer to expect.
    fn answers(&self) -> &Self::Word;

    /// Nonzero while the producer waits for progress.
    fn room_wanted(&self) -> &Self::Word;

    /// The first word of a slot.
    fn header(&self, slot: usize) -> &Self::Word;

    /// The address of a range: a slot's bytes are aligned to 8 and `SLOT_BYTES - 8` long.
    ///
    /// # Panics
    /// If the range is out of bounds.
    fn bytes(&self, location: Location) -> NonNull<u8>;

    /// Called before a range is accessed, for the model checker.
    #[inline]
    fn touch(&self, _spot: Location, _writes: bool) {}
}

/// The consumer's words and the producer's word, on a cache line each.
#[repr(C, align(64))]
struct RingControl {
    consumed: AtomicU64,
    answers: AtomicU64,
    _line: [AtomicU64; 6],
    room_wanted: AtomicU64,
}

/// Offsets of a ring within a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingLayout {
    pub(super) control: usize,
    pub(super) slots: usize,
    pub(super) slot_count: usize,
    pub(super) area: usize,
    pub(super) near_bytes: usize,
    pub(super) wide_bytes: usize,
}

impl RingLayout {
    /// The layout of a ring in a segment of its own.
    pub(super) fn standalone(slot_count: usize, wide_bytes: usize) -> RingLayout {
        let slots = CONTROL_BYTES;
        RingLayout {
            control: 0,
            slots,
            slot_count,
            area: slots + slot_count * SLOT_BYTES,
            near_bytes: NEAR_BYTES.min(wide_bytes / NEAR_PART),
            wide_bytes,
        }
    }

    pub(super) fn end(&self) -> usize {
        self.area + self.area_bytes()
    }

    fn area_bytes(&self) -> usize {
        self.near_bytes + self.wide_bytes
    }
}

/// A ring mapped from a segment.
#[derive(Debug)]
pub(super) struct Mapped {
    control: NonNull<RingControl>,
    slots: NonNull<u8>,
    slot_count: usize,
    area: NonNull<u8>,
    near_bytes: usize,
    wide_bytes: usize,
    _segment: Arc<Segment>,
}

// SAFETY: the addresses are in the segment, which is kept alive, and are accessed only by
// atomics and raw copies.
unsafe impl Send for Mapped {}

impl Mapped {
    pub(super) fn new(segment: &Arc<Segment>, place: RingLayout) -> Mapped {
        assert!(place.slot_count.is_power_of_two());
        for bytes in [place.near_bytes, place.wide_bytes] {
            assert!(bytes == 0 || bytes.is_power_of_two());
        }
        assert!(place.control.is_multiple_of(64) && place.slots.is_multiple_of(64));
        Mapped {
            control: segment.at(place.control, size_of::<RingControl>()).cast(),
            slots: segment.at(place.slots, place.slot_count * SLOT_BYTES),
            slot_count: place.slot_count,
            area: segment.at(place.area, place.area_bytes()),
            near_bytes: place.near_bytes,
            wide_bytes: place.wide_bytes,
            _segment: Arc::clone(segment),
        }
    }

    #[inline]
    fn control(&self) -> &RingControl {
        // SAFETY: in the mapping, aligned (asserted by `new`; segments begin at a
        // page), all atomics, for which every bit pattern is valid.
        unsafe { self.control.as_ref() }
    }

    #[inline]
    fn slot(&self, slot: usize) -> NonNull<u8> {
        // The count is a power of two: the mask costs one instruction and keeps the index in range.
        let slot = slot & (self.slot_count - 1);
        // SAFETY: below the count, so inside the slots.
        unsafe { self.slots.add(slot * SLOT_BYTES) }
    }
}

impl Memory for Mapped {
    type Word = AtomicU64;

    #[inline]
    fn slot_count(&self) -> u64 {
        self.slot_count as u64
    }

    #[inline]
    fn near_bytes(&self) -> u64 {
        self.near_bytes as u64
    }

    #[inline]
    fn wide_bytes(&self) -> u64 {
        self.wide_bytes as u64
    }

    #[inline]
    fn consumed(&self) -> &AtomicU64 {
        &self.control().consumed
    }

    #[inline]
    fn answers(&self) -> &AtomicU64 {
        &self.control().answers
    }

    #[inline]
    fn room_wanted(&self) -> &AtomicU64 {
        &self.control().room_wanted
    }

    #[inline]
    fn header(&self, slot: usize) -> &AtomicU64 {
        // SAFETY: the first word of a slot, aligned, in the mapping; an atomic.
        unsafe { self.slot(slot).cast().as_ref() }
    }

    #[inline]
    fn bytes(&self, location: Location) -> NonNull<u8> {
        match location {
            // SAFETY: inside the slot.
            Location::Slot(slot) => unsafe { self.slot(slot).add(8) },
            Location::Area { at, length } => {
                assert!(
                    at <= self.near_bytes + self.wide_bytes
                        && length <= self.near_bytes + self.wide_bytes - at,
                    "inside the areas"
                );
                // SAFETY: inside the areas, as just checked.
                unsafe { self.area.add(at) }
            }
        }
    }
}
