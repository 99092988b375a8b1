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
    /// The next frame, and the number of frames.
    next: usize,
    count: usize,
    /// Address and remaining packets of the current frame.
    from: Address,
    rest: &'a [u8],
}

impl<'a> Arrivals<'a> {
    /// The packets of the `count` frames of the last poll.
    #[inline]
    pub(crate) fn new(link: &'a AnyLink, count: usize) -> Arrivals<'a> {
        Arrivals {
            link,
            next: 0,
            count,
            from: Address::default(),
            rest: &[],
        }
    }
}

impl<'a> Iterator for Arrivals<'a> {
    type Item = (Address, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<(Address, &'a [u8])> {
        while self.rest.is_empty() {
            if self.next == self.count {
                return None;
            }
            let frame = self.link.frame(self.next);
            self.next += 1;
            (self.from, self.rest) = (to_wire(frame.from), frame.bytes);
        }
        let (packet, rest) = Packet::split_first(self.rest);
        self.rest = rest;
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
