//! Packets with their trailers that the link has not accepted yet.

use arrayvec::ArrayVec;
use dipole_link::{Class, Outgoing};
use dipole_proto::{Frame, Seal, Slot, Transmit};

use super::BATCH;
use super::trailer::Trailers;
use crate::frames::{FramePool, slot_of};
use crate::net::from_wire;

/// Packets of equal length that leave one after the other.
#[derive(Debug)]
struct Leaving {
    /// The first packet.
    transmit: Transmit,
    count: usize,
    /// Position of the first packet in the encrypted copies, if they are encrypted.
    encrypted_at: Option<usize>,
    /// Their frames are pinned, because they were not accepted when they were first offered.
    is_pinned: bool,
}

impl Leaving {
    /// Some of the packets in the link's format.
    #[inline]
    fn outgoing<'a>(&self, bytes: &'a [u8]) -> Outgoing<'a> {
        Outgoing {
            class: match self.transmit.bulk {
                true => Class::Bulk,
                false => Class::Small,
            },
            to: from_wire(self.transmit.to),
            bytes,
            frame_bytes: packet_bytes(&self.transmit),
            any_port: self.transmit.any_port,
            alone: self.transmit.alone,
        }
    }
}

/// Packets for one call of the link, in order.
#[derive(Debug, Default)]
pub(super) struct Batch {
    leaving: ArrayVec<Leaving, BATCH>,
    /// The frames of all packets.
    slots: ArrayVec<Slot, BATCH>,
    /// Encrypted copies of packets, since frames keep the plain text for retransmission.
    encrypted: Vec<u8>,
}

impl Batch {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.leaving.is_empty()
    }

    /// How many packets it still accepts.
    #[inline]
    pub(super) fn room(&self) -> usize {
        self.slots.remaining_capacity()
    }

    /// Adds packets like `first`, in these frames, of which the first packet's is the first. Their
    /// trailers are added, and copies of them are encrypted if required. If their session, and thus
    /// the keys, no longer exist, they need not be sent and are left out.
    #[inline]
    pub(super) fn push(
        &mut self,
        trailers: &mut Trailers,
        frames: &mut FramePool,
        first: Transmit,
        slots: &[Slot],
    ) {
        if self.is_empty() {
            self.encrypted.clear();
        }
        let encrypts = matches!(first.seal, Seal::Session { encrypts: true, .. });
        let at = self.encrypted.len();
        for slot in slots {
            let space = frames.space(*slot);
            let space = if encrypts {
                let at = self.encrypted.len();
                self.encrypted
                    .extend_from_slice(&space[..packet_bytes(&first)]);
                &mut self.encrypted[at..]
            } else {
                space
            };
            if !trailers.append(space, first.length, first.seal) {
                self.encrypted.truncate(at);
                for slot in slots {
                    frames.sent(with_slot(first.frame, *slot), false);
                }
                return;
            }
        }
        self.leaving.push(Leaving {
            transmit: first,
            count: slots.len(),
            encrypted_at: encrypts.then_some(at),
            is_pinned: false,
        });
        self.slots.extend(slots.iter().copied());
    }

    /// The packet in the link's format, if there is only one.
    #[inline]
    pub(super) fn alone<'a>(&'a self, frames: &'a FramePool) -> Option<Outgoing<'a>> {
        let ([leaving], [slot]) = (&self.leaving[..], &self.slots[..]) else {
            return None;
        };
        let length = packet_bytes(&leaving.transmit);
        Some(leaving.outgoing(match leaving.encrypted_at {
            Some(at) => &self.encrypted[at..at + length],
            None => frames.bytes(*slot, length),
        }))
    }

    /// The packets in the link's format.
    pub(super) fn outgoing<'a>(&'a self, frames: &'a FramePool) -> ArrayVec<Outgoing<'a>, BATCH> {
        let mut all = ArrayVec::new();
        let mut slots = &self.slots[..];
        for leaving in &self.leaving {
            let (own, rest) = slots.split_at(leaving.count);
            slots = rest;
            let length = packet_bytes(&leaving.transmit);
            match leaving.encrypted_at {
                Some(at) => {
                    let end = at + leaving.count * length;
                    all.push(leaving.outgoing(&self.encrypted[at..end]));
                }
                None => {
                    let areas = frames.areas(own, length);
                    all.extend(areas.map(|bytes| leaving.outgoing(bytes)));
                }
            }
        }
        all
    }

    /// The link has taken the first `taken` packets. Returns their bytes.
    #[inline]
    pub(super) fn taken(&mut self, taken: usize, frames: &mut FramePool) -> u64 {
        let mut bytes = 0;
        let mut slots = &self.slots[..taken];
        let mut whole = 0;
        for leaving in &mut self.leaving {
            let count = leaving.count.min(slots.len());
            let (own, rest) = slots.split_at(count);
            slots = rest;
            let length = packet_bytes(&leaving.transmit);
            bytes += (count * length) as u64;
            for slot in own {
                let frame = with_slot(leaving.transmit.frame, *slot);
                frames.sent(frame, leaving.is_pinned);
            }
            if count < leaving.count {
                leaving.count -= count;
                leaving.transmit.frame = with_slot(leaving.transmit.frame, self.slots[taken]);
                leaving.encrypted_at = leaving.encrypted_at.map(|at| at + count * length);
                break;
            }
            whole += 1;
        }
        if taken == self.slots.len() {
            self.leaving.clear();
            self.slots.clear();
        } else {
            self.leaving.drain(..whole);
            self.slots.drain(..taken);
            self.pin(frames);
        }
        bytes
    }

    /// Keeps the frames of all packets until the link has taken them.
    fn pin(&mut self, frames: &mut FramePool) {
        let mut slots = self.slots.iter();
        for leaving in &mut self.leaving {
            let own = slots.by_ref().take(leaving.count);
            if leaving.is_pinned {
                own.for_each(drop);
                continue;
            }
            leaving.is_pinned = true;
            own.for_each(|slot| frames.pin(*slot));
        }
    }

    /// Takes out the first packet, which the link refuses.
    pub(super) fn refused(&mut self, frames: &mut FramePool) -> Option<Transmit> {
        let transmit = self.leaving.first()?.transmit;
        self.taken(1, frames);
        Some(transmit)
    }
}

/// A frame of the same kind.
#[inline]
fn with_slot(frame: Frame, slot: Slot) -> Frame {
    debug_assert!(matches!(frame, Frame::Unit(_)) || slot_of(frame) == slot);
    match frame {
        Frame::Unit(_) => Frame::Unit(slot),
        Frame::Loose(_) => Frame::Loose(slot),
        Frame::Scratch(_) => Frame::Scratch(slot),
    }
}

/// Length of a packet with its trailer.
#[inline]
fn packet_bytes(transmit: &Transmit) -> usize {
    transmit.length + transmit.seal.bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dipole_proto::Config;
    use dipole_proto::wire::Address;

    const BYTES: usize = 128;

    /// A batch with a train in all frames of a pool, and the first packet.
    fn train(frames: &mut FramePool) -> (Batch, Trailers) {
        let mut trailers = Trailers::new(None, [1, 2], &mut Config::default());
        let slots: Vec<Slot> = std::iter::from_fn(|| frames.take()).collect();
        let first = Transmit {
            to: Address::default(),
            bulk: true,
            frame: Frame::Unit(slots[0]),
            length: BYTES - 4,
            seal: Seal::Crc32c { mask: 0 },
            peer: None,
            any_port: false,
            alone: false,
        };
        let mut batch = Batch::default();
        batch.push(&mut trailers, frames, first, &slots);
        (batch, trailers)
    }

    #[test]
    fn a_train_in_adjacent_frames_is_one_entry_and_may_be_taken_in_parts() {
        let mut frames = FramePool::new(3, BYTES);
        let (mut batch, _trailers) = train(&mut frames);
        let counts = |batch: &Batch, frames: &FramePool| {
            let entries = batch.outgoing(frames);
            entries.iter().map(Outgoing::count).collect::<Vec<_>>()
        };
        assert_eq!(counts(&batch, &frames), [3]);
        assert!(batch.alone(&frames).is_none());
        assert_eq!(batch.taken(1, &mut frames), BYTES as u64);
        // Its unit arrives by an earlier transmission while it waits for the link.
        frames.release(1);
        assert_eq!(frames.free(), 0, "the link still has to read it");
        assert_eq!(counts(&batch, &frames), [2]);
        assert_eq!(batch.taken(0, &mut frames), 0);
        assert_eq!(batch.taken(2, &mut frames), 2 * BYTES as u64);
        assert!(batch.is_empty());
        assert_eq!(frames.free(), 1, "only the released one");
    }

    #[test]
    fn a_refused_packet_leaves_those_behind_it() {
        let mut frames = FramePool::new(2, BYTES);
        let (mut batch, _trailers) = train(&mut frames);
        batch.taken(0, &mut frames);
        let refused = batch.refused(&mut frames).expect("one");
        assert_eq!(refused.frame, Frame::Unit(0));
        assert_eq!(batch.alone(&frames).expect("one is left").count(), 1);
        let next = batch.refused(&mut frames).expect("one");
        assert_eq!(next.frame, Frame::Unit(1));
        assert_eq!(batch.refused(&mut frames), None);
    }

    #[test]
    fn packets_in_frames_apart_are_entries_of_their_own() {
        let mut frames = FramePool::new(3, BYTES);
        let slots: Vec<Slot> = std::iter::from_fn(|| frames.take()).collect();
        frames.put_back(slots[1]);
        let areas: Vec<usize> = frames.areas(&[0, 2], BYTES).map(<[u8]>::len).collect();
        assert_eq!(areas, [BYTES, BYTES]);
        let areas: Vec<usize> = frames
            .areas(&[0, 1, 2], BYTES - 1)
            .map(<[u8]>::len)
            .collect();
        assert_eq!(areas, [BYTES - 1; 3], "not as long as a frame");
    }
}
