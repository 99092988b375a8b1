//! The memory of a ring: words that two sides share, and bytes.
//!
//! The ring and the bell are written for any such memory, so that the model
//! checker and Miri run what production runs. Which order of memory accesses is needed
//! stands where the access is, in `ring.rs` and `bell.rs`.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::segment::Segment;
use crate::word::Word;

/// Bytes of a slot, and what of them is payload.
pub(super) const SLOT_BYTES: usize = 128;
pub(super) const INLINE_BYTES: usize = SLOT_BYTES - 16;
/// Bytes of the two sides' words.
pub(super) const CONTROL_BYTES: usize = 128;

/// Bytes of a near area at most, and what part of the wide one it has.
const NEAR_BYTES: usize = 16 << 10;
const NEAR_PART: usize = 4;

/// Bytes of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spot {
    /// Behind the header of a slot: its second word, then its payload.
    Slot(usize),
    /// In the areas, counted from the start of the near one.
    Area { at: usize, length: usize },
}

/// The memory of a ring, as one side sees it.
pub(super) trait Memory {
    type Word: Word;

    /// How often a producer looks for the consumer's progress before it takes it for idle.
    const PATIENCE: u32 = 50;

    /// A power of two.
    fn slot_count(&self) -> u64;

    /// Of the near area; a power of two, or none.
    fn near_bytes(&self) -> u64;

    /// Of the wide area behind it; a power of two, or none.
    fn wide_bytes(&self) -> u64;

    /// How many records the consumer has given back.
    fn consumed(&self) -> &Self::Word;

    /// Whether the producer waits for that.
    fn wish(&self) -> &Self::Word;

    /// The first word of a slot.
    fn header(&self, slot: usize) -> &Self::Word;

    /// Where a spot lies: a slot's bytes are aligned to 8 and `SLOT_BYTES - 8` long.
    ///
    /// # Panics
    /// When it does not lie inside.
    fn bytes(&self, spot: Spot) -> NonNull<u8>;

    /// Told before a spot is written, or read: a model checker wants to know.
    #[inline]
    fn touch(&self, _spot: Spot, _writes: bool) {}
}

/// What the consumer tells, and below it what the producer tells; a line each.
#[repr(C, align(64))]
struct Told {
    consumed: AtomicU64,
    _line: [AtomicU64; 7],
    wish: AtomicU64,
}

/// Where a ring lies in a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) told: usize,
    pub(super) slots: usize,
    pub(super) slot_count: usize,
    pub(super) area: usize,
    pub(super) near_bytes: usize,
    pub(super) wide_bytes: usize,
}

impl Place {
    /// A ring in a segment of its own, with so many bytes of wide area.
    pub(super) fn alone(slot_count: usize, wide_bytes: usize) -> Place {
        let slots = CONTROL_BYTES;
        Place {
            told: 0,
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

/// A ring in a segment.
#[derive(Debug)]
pub(super) struct Mapped {
    told: NonNull<Told>,
    slots: NonNull<u8>,
    slot_count: usize,
    area: NonNull<u8>,
    near_bytes: usize,
    wide_bytes: usize,
    _segment: Arc<Segment>,
}

// SAFETY: the addresses lie in the segment, which is kept, and are reached by atomics
// and raw copies only.
unsafe impl Send for Mapped {}

impl Mapped {
    pub(super) fn new(segment: &Arc<Segment>, place: Place) -> Mapped {
        assert!(place.slot_count.is_power_of_two());
        for bytes in [place.near_bytes, place.wide_bytes] {
            assert!(bytes == 0 || bytes.is_power_of_two());
        }
        assert!(place.told.is_multiple_of(64) && place.slots.is_multiple_of(64));
        Mapped {
            told: segment.at(place.told, size_of::<Told>()).cast(),
            slots: segment.at(place.slots, place.slot_count * SLOT_BYTES),
            slot_count: place.slot_count,
            area: segment.at(place.area, place.area_bytes()),
            near_bytes: place.near_bytes,
            wide_bytes: place.wide_bytes,
            _segment: Arc::clone(segment),
        }
    }

    #[inline]
    fn told(&self) -> &Told {
        // SAFETY: in the mapping, aligned (asserted by `new`; segments begin at a
        // page), all atomics, for which every bit pattern is valid.
        unsafe { self.told.as_ref() }
    }

    #[inline]
    fn slot(&self, slot: usize) -> NonNull<u8> {
        // The count is a power of two: this costs one `and`, and no slot is outside.
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
        &self.told().consumed
    }

    #[inline]
    fn wish(&self) -> &AtomicU64 {
        &self.told().wish
    }

    #[inline]
    fn header(&self, slot: usize) -> &AtomicU64 {
        // SAFETY: the first word of a slot, aligned, in the mapping; an atomic.
        unsafe { self.slot(slot).cast().as_ref() }
    }

    #[inline]
    fn bytes(&self, spot: Spot) -> NonNull<u8> {
        match spot {
            // SAFETY: inside the slot.
            Spot::Slot(slot) => unsafe { self.slot(slot).add(8) },
            Spot::Area { at, length } => {
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
