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
            // Handshake replies go back to the sender's address, packets of a session to the
            // address from the handshake.
            any_port: self.transmit.peer.is_some(),
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
