//! The packets of one poll, and those of a train together.

use arrayvec::ArrayVec;
use dipole_link::Link;
use dipole_proto::wire::{Address, Packet, TRAIN_HEAD_BYTES};

use crate::dispatch::Source;
use crate::link::AnyLink;
use crate::net::to_wire;
use std::ops::Range;

/// Most packets handled together: more than the kernel joins at MTU 1500.
const TRAIN_PACKETS: usize = 64;

/// The packets of one poll, in order.
#[derive(Clone, Copy)]
pub(crate) struct Arrivals<'a> {
    link: &'a AnyLink,
    /// The next message, and the number of messages.
    next: usize,
    count: usize,
    /// Sender of the current message.
    from: Address,
    /// The rest of the current frame.
    frame: &'a [u8],
    /// The frames of the message after that one.
    frames: &'a [u8],
    frame_bytes: usize,
}

impl<'a> Arrivals<'a> {
    /// The packets of the `count` messages of the last poll.
    #[inline]
    pub(crate) fn new(link: &'a AnyLink, count: usize) -> Arrivals<'a> {
        Arrivals {
            link,
            next: 0,
            count,
            from: Address::default(),
            frame: &[],
            frames: &[],
            frame_bytes: 0,
        }
    }

    /// Takes the next packet if it comes from this sender and `is_wanted` returns something for it.
    /// `length` is what it is expected to have.
    #[inline]
    pub(crate) fn next_if<T>(
        &mut self,
        from: Address,
        length: usize,
        is_wanted: impl FnOnce(&'a [u8]) -> Option<T>,
    ) -> Option<(&'a [u8], T)> {
        if self.frame.is_empty() && self.frame_bytes == length && self.frames.len() >= length {
            // The usual case: the message is from the same sender.
            let (packet, rest) = self.frames.split_at(length);
            let found = is_wanted(packet)?;
            self.frames = rest;
            return Some((packet, found));
        }
        let mut ahead = *self;
        let (source, packet) = ahead.next()?;
        if source != from {
            return None;
        }
        let found = is_wanted(packet)?;
        *self = ahead;
        Some((packet, found))
    }
}

impl<'a> Iterator for Arrivals<'a> {
    type Item = (Address, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<(Address, &'a [u8])> {
        while self.frame.is_empty() {
            if self.frames.is_empty() {
                if self.next == self.count {
                    return None;
                }
                let message = self.link.message(self.next);
                self.next += 1;
                (self.from, self.frames) = (to_wire(message.from), message.bytes);
                self.frame_bytes = message.frame_bytes;
            }
            let length = self.frame_bytes.min(self.frames.len());
            (self.frame, self.frames) = self.frames.split_at(length);
        }
        let (packet, rest) = Packet::split_first(self.frame);
        self.frame = rest;
        Some((self.from, packet))
    }
}

/// The payloads of the packets of a train, one behind the other.
pub(crate) struct TrainPayloads<'a> {
    packets: ArrayVec<&'a [u8], TRAIN_PACKETS>,
    /// Payload bytes of each packet.
    piece_bytes: usize,
}

impl<'a> TrainPayloads<'a> {
    /// A train that begins with this packet. Its packets have trailers of `trailer_bytes`.
    pub(crate) fn new(first: &'a [u8], trailer_bytes: usize) -> TrainPayloads<'a> {
        let mut packets = ArrayVec::new();
        packets.push(first);
        TrainPayloads {
            packets,
            piece_bytes: first.len() - TRAIN_HEAD_BYTES - trailer_bytes,
        }
    }

    /// True if no packet may be added.
    pub(crate) fn is_full(&self) -> bool {
        self.packets.is_full()
    }

    pub(crate) fn push(&mut self, packet: &'a [u8]) {
        self.packets.push(packet);
    }
}

impl Source for TrainPayloads<'_> {
    fn copy(&self, range: Range<usize>, place: &mut [u8]) {
        debug_assert_eq!(range.len(), place.len());
        let first = range.start / self.piece_bytes;
        let mut skipped = range.start % self.piece_bytes;
        let mut rest = place;
        for packet in &self.packets[first..] {
            let payload = &packet[TRAIN_HEAD_BYTES..][skipped..self.piece_bytes];
            let (place, more) = rest.split_at_mut(payload.len().min(rest.len()));
            place.copy_from_slice(&payload[..place.len()]);
            (rest, skipped) = (more, 0);
        }
    }

    /// Trains contain only pieces.
    fn records(&self, _range: Range<usize>) -> &[u8] {
        &[]
    }
}
