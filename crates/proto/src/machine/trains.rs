//! Trains for the caller. See `session/trains.rs`.

use crate::event::PeerId;
use crate::key::Seal;
use crate::machine::packets::Addressed;
use crate::machine::{Machine, session_index};
use crate::send::Slot;
use crate::session::{Frames, Pieces, Transmit};
use crate::time::Instant;
use crate::wire::{Address, Flags};

/// Consecutive packets from one address that are handled at once. The caller adds packets to it
/// while they are the expected ones and their trailers are correct.
#[derive(Debug)]
pub struct Train<'a> {
    first: Addressed<'a>,
    peer: PeerId,
    pieces: Pieces,
}

impl Train<'_> {
    /// Flags of this packet, with its trailer, if it is the next one. Its seal is that of the first.
    #[inline]
    #[must_use]
    pub fn expects(&self, packet: &[u8]) -> Option<Flags> {
        self.pieces.expects(packet)
    }

    /// Adds the [expected](Self::expects) packet, which has these flags and whose trailer is correct.
    #[inline]
    pub fn add(&mut self, flags: Flags) {
        self.pieces.add(flags);
    }

    /// Number of packets.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.pieces.count()
    }
}

impl Machine {
    /// The train that a packet begins: its pieces belong to the middle of a message, and nothing about
    /// them is unusual. Otherwise [`on_packet`](Self::on_packet) must handle the packet.
    #[inline]
    #[must_use]
    pub fn begin_train<'a>(&self, addressed: &Addressed<'a>) -> Option<Train<'a>> {
        let peer = addressed.peer?;
        let is_encrypted = matches!(addressed.seal, Seal::Session { encrypts: true, .. });
        if is_encrypted || !addressed.packet.begins_with_piece() {
            return None;
        }
        let session = self.session(peer)?;
        let pieces = session.begin_train(&addressed.packet, &self.shared)?;
        let first = *addressed;
        Some(Train {
            first,
            peer,
            pieces,
        })
    }

    /// The next packets to send, if they repeat the header of `like`, which was returned last: the rest
    /// of a train. Fills in their frames, and returns the first packet and the number of packets.
    /// `None` if [`poll_transmit`](Self::poll_transmit) must choose the next packet.
    pub fn transmit_train(
        &mut self,
        now: Instant,
        like: &Transmit,
        frames: &mut impl Frames,
        slots: &mut [Slot],
    ) -> Option<(Transmit, usize)> {
        let index = session_index(like.peer?);
        if self.ready.front() != Some(&index) || self.outbox.front().is_some() {
            return None;
        }
        let most = slots.len().min(self.turn_left as usize);
        let slots = slots.get_mut(..most).filter(|slots| !slots.is_empty())?;
        let session = self.peers.session_at_mut(index)?;
        if Some(session.id) != like.peer {
            return None;
        }
        let (first, count) = session.transmit_train(like, now, frames, slots, &mut self.shared)?;
        self.turn_left -= u32::try_from(count).unwrap_or(self.turn_left);
        self.timers.arm(index, session.deadline(&self.shared));
        if !session.has_transmit() {
            self.end_turn();
        }
        Some((first, count))
    }

    /// Handles the packets of a train, with the same effect as [`on_packet`](Self::on_packet) for each.
    /// The bytes of events are positions in the payloads of all packets, one behind the other. Each
    /// payload begins at [`TRAIN_HEAD_BYTES`](crate::wire::TRAIN_HEAD_BYTES) and ends before the trailer.
    pub fn on_train(&mut self, now: Instant, from: Address, train: Train<'_>) {
        self.shared.assembled = None;
        let (peer, packet) = (train.peer, train.first.packet);
        self.with(peer, |session, shared| {
            session.on_train((now, from), &packet, train.pieces, shared);
        });
    }
}
