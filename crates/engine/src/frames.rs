//! Frames for outgoing packets: one pool per process, for all peers. Spec §5.2.
//!
//! A frame is free, being filled, queued in the protocol until its unit has arrived, or pinned by
//! a batch that the link has not accepted yet. It becomes free only when both the protocol and
//! the batch have released it.

use std::ops::Range;

use dipole_proto::wire::HEADER_BYTES;
use dipole_proto::{Frame, Frames, PeerId, Slot};

/// Packets without a unit that one batch may contain.
pub(crate) const SCRATCH_FRAMES: usize = 96;

/// Memory of all frames, in slots of equal size.
#[derive(Debug)]
pub(crate) struct FramePool {
    bytes: Vec<u8>,
    stride: usize,
    capacity: usize,
    units: usize,
    ends: Vec<u32>,
    free: FreeSlots,
    /// Free frames that are not available because of an injected shortage.
    withheld: Vec<Slot>,
    scratch_free: Vec<Slot>,
    state: Vec<State>,
    uses: Vec<Option<FrameUse>>,
}

/// The use of a queued frame, on which its peer's other frames depend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameUse {
    pub(crate) peer: PeerId,
    /// It was queued on the bulk lane.
    pub(crate) bulk: bool,
    /// It holds whole messages.
    pub(crate) whole: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    /// Number of references from unsent batches.
    pins: u8,
    /// The protocol released it while it was pinned.
    released: bool,
}

impl FramePool {
    /// Creates a pool of `units` frames of `packet_bytes` each.
    pub(crate) fn new(units: usize, packet_bytes: usize) -> FramePool {
        let stride = packet_bytes.next_multiple_of(64);
        let all = units + SCRATCH_FRAMES;
        let slot = |index: usize| Slot::try_from(index).expect("frames are few");
        FramePool {
            bytes: vec![0; all * stride],
            stride,
            capacity: packet_bytes,
            units,
            ends: vec![0; all],
            free: FreeSlots::all(units),
            withheld: Vec::new(),
            scratch_free: (units..all).rev().map(slot).collect(),
            state: vec![State::default(); all],
            uses: vec![None; all],
        }
    }

    /// Number of free frames.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Total number of frames for units.
    pub(crate) fn units(&self) -> usize {
        self.units
    }

    /// Returns the memory of the whole frame.
    pub(crate) fn space(&mut self, slot: Slot) -> &mut [u8] {
        let at = slot as usize * self.stride;
        &mut self.bytes[at..at + self.capacity]
    }

    /// The first `length` bytes of a frame.
    pub(crate) fn bytes(&self, slot: Slot, length: usize) -> &[u8] {
        let at = slot as usize * self.stride;
        &self.bytes[at..at + length]
    }

    /// The first `length` bytes of these frames, as few areas of memory as possible.
    pub(crate) fn areas<'a>(
        &'a self,
        mut slots: &'a [Slot],
        length: usize,
    ) -> impl Iterator<Item = &'a [u8]> {
        std::iter::from_fn(move || {
            let first = *slots.first()?;
            let is_next = |(slot, next): (&Slot, Slot)| *slot == next;
            let count = match length == self.stride {
                true => slots
                    .iter()
                    .zip(first..)
                    .take_while(|it| is_next(*it))
                    .count(),
                false => 1,
            };
            slots = &slots[count..];
            let at = first as usize * self.stride;
            Some(&self.bytes[at..at + (count - 1) * self.stride + length])
        })
    }

    /// Takes a free frame.
    pub(crate) fn take(&mut self) -> Option<Slot> {
        self.free.pop()
    }

    /// Returns a frame that was not queued.
    pub(crate) fn put_back(&mut self, slot: Slot) {
        self.free.push(slot);
    }

    /// Takes all free frames away until [`restore`](Self::restore) returns them.
    pub(crate) fn withhold(&mut self) {
        while let Some(slot) = self.free.pop() {
            self.withheld.push(slot);
        }
    }

    /// Returns the frames that were withheld; true if there were any.
    pub(crate) fn restore(&mut self) -> bool {
        let has_withheld = !self.withheld.is_empty();
        while let Some(slot) = self.withheld.pop() {
            self.free.push(slot);
        }
        has_withheld
    }

    /// True if frames are withheld.
    pub(crate) fn is_withholding(&self) -> bool {
        !self.withheld.is_empty()
    }

    /// Records what a frame that is about to be queued holds, until it is released.
    #[inline]
    pub(crate) fn set_use(&mut self, slot: Slot, used: Option<FrameUse>) {
        self.uses[slot as usize] = used;
    }

    /// The protocol releases a queued frame; returns what it held.
    #[inline]
    pub(crate) fn release(&mut self, slot: Slot) -> Option<FrameUse> {
        let state = &mut self.state[slot as usize];
        if state.pins > 0 {
            state.released = true;
        } else {
            self.free.push(slot);
        }
        self.uses[slot as usize].take()
    }

    /// Pins a frame in a batch until it is [`sent`](Self::sent).
    pub(crate) fn pin(&mut self, slot: Slot) {
        self.state[slot as usize].pins += 1;
    }

    /// The link has accepted the frame, which may have been pinned for it.
    #[inline]
    pub(crate) fn sent(&mut self, frame: Frame, is_pinned: bool) {
        let slot = slot_of(frame);
        let state = &mut self.state[slot as usize];
        state.pins -= u8::from(is_pinned);
        match frame {
            Frame::Scratch(_) => self.scratch_free.push(slot),
            Frame::Loose(_) => self.free.push(slot),
            Frame::Unit(_) if state.pins == 0 && state.released => {
                state.released = false;
                self.free.push(slot);
            }
            Frame::Unit(_) => {}
        }
    }
}

/// Free frames. The lowest one is taken first, so that consecutive frames are mostly adjacent in
/// memory and a single buffer for the kernel.
#[derive(Debug)]
struct FreeSlots {
    /// One bit per frame.
    words: Vec<u64>,
    /// All words before this one are zero.
    first: usize,
    count: usize,
}

impl FreeSlots {
    fn all(count: usize) -> FreeSlots {
        let mut slots = FreeSlots {
            words: vec![0; count.div_ceil(64)],
            first: 0,
            count: 0,
        };
        for slot in 0..count {
            slots.push(Slot::try_from(slot).expect("frames are few"));
        }
        slots
    }

    fn len(&self) -> usize {
        self.count
    }

    fn push(&mut self, slot: Slot) {
        let word = slot as usize / 64;
        self.words[word] |= 1 << (slot % 64);
        self.first = self.first.min(word);
        self.count += 1;
    }

    fn pop(&mut self) -> Option<Slot> {
        self.count = self.count.checked_sub(1)?;
        while self.words[self.first] == 0 {
            self.first += 1;
        }
        let word = &mut self.words[self.first];
        let bit = word.trailing_zeros();
        *word &= *word - 1;
        Slot::try_from(self.first * 64).ok().map(|slot| slot + bit)
    }
}

/// The slot of a frame of any kind.
pub(crate) fn slot_of(frame: Frame) -> Slot {
    match frame {
        Frame::Unit(slot) | Frame::Loose(slot) | Frame::Scratch(slot) => slot,
    }
}

impl Frames for FramePool {
    #[inline]
    fn filled(&mut self, slot: Slot) -> (&mut [u8], usize) {
        let end = self.ends[slot as usize] as usize;
        (self.space(slot), end)
    }

    fn scratch(&mut self) -> Option<(Slot, &mut [u8])> {
        let slot = self.scratch_free.pop()?;
        Some((slot, self.space(slot)))
    }

    fn allocate(&mut self) -> Option<(Slot, &mut [u8])> {
        let slot = self.take()?;
        Some((slot, self.space(slot)))
    }

    fn part(&mut self, slot: Slot, bytes: Range<usize>) -> Option<(Slot, &mut [u8])> {
        let scratch = self.scratch_free.pop()?;
        let from = slot as usize * self.stride;
        let to = scratch as usize * self.stride + HEADER_BYTES;
        let bytes = from + bytes.start..from + bytes.end;
        self.bytes.copy_within(bytes, to);
        Some((scratch, self.space(scratch)))
    }

    fn fill(&mut self, slot: Slot, end: usize) {
        self.ends[slot as usize] = u32::try_from(end).expect("a frame is short");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_frame_is_taken_first() {
        let mut slots = FreeSlots::all(130);
        let all: Vec<Slot> = std::iter::from_fn(|| slots.pop()).collect();
        assert_eq!(all, (0..130).collect::<Vec<Slot>>());
        assert_eq!((slots.pop(), slots.len()), (None, 0));
        for slot in [129, 64, 3] {
            slots.push(slot);
        }
        assert_eq!([slots.pop(), slots.pop()], [Some(3), Some(64)]);
        slots.push(0);
        assert_eq!((slots.len(), slots.pop()), (2, Some(0)));
        assert_eq!((slots.pop(), slots.pop()), (Some(129), None));
    }

    #[test]
    fn a_frame_is_free_only_after_link_and_protocol_have_released_it() {
        let mut pool = FramePool::new(1, 256);
        let slot = pool.take().expect("one");
        pool.pin(slot);
        pool.release(slot);
        assert_eq!(pool.free(), 0);
        pool.sent(Frame::Unit(slot), true);
        assert_eq!(pool.free(), 1);
    }

    #[test]
    fn a_frame_that_was_sent_first_is_free_when_it_is_released() {
        let mut pool = FramePool::new(1, 256);
        let slot = pool.take().expect("one");
        pool.pin(slot);
        pool.sent(Frame::Unit(slot), true);
        assert_eq!(pool.free(), 0);
        pool.release(slot);
        assert_eq!(pool.free(), 1);
    }
}
