//! Copies messages into frames, once; small messages share frames.

mod peer_frames;

use arrayvec::ArrayVec;
use dipole_proto::wire::{self, EdgeKey, FRAGMENT_BYTES, HEADER_BYTES, MESSAGE_BYTES};
use dipole_proto::{BeginError, EdgeId, Frames, Instant, Machine, MessageStart, PeerId, Slot};
use dipole_record::RecordedMachine;

use super::content::{Content, Head};
use super::target::Blocked;
use crate::frames::{FramePool, FrameUse};
use peer_frames::{OpenFrame, PeerFrames};

/// Frames filled ahead of what may be sent: two full runs. More would have left the processor's
/// cache before they are checksummed and copied by the kernel.
const FRAMES_AHEAD: usize = super::BATCH;
/// Long messages leave one in this many frames to small ones.
const SMALL_SHARE: usize = 8;

/// A long message being copied into frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketSend {
    edge: EdgeId,
    /// It uses the bulk lane.
    bulk: bool,
    key: EdgeKey,
    sequence: u32,
    /// The head of an operation, with which each piece begins.
    head: Option<Head>,
    offset: usize,
}

impl PacketSend {
    pub(super) fn edge(&self) -> EdgeId {
        self.edge
    }

    /// Bytes copied into frames so far.
    pub(super) fn offset(&self) -> usize {
        self.offset
    }

    /// Writes the record of the next `length` bytes. `payload` is the message without its first
    /// `skipped` bytes.
    fn emit_piece(&mut self, frame: &mut [u8], payload: &[u8], skipped: usize, length: usize) {
        let from = self.offset - skipped;
        let place = (self.offset as u64, (skipped + payload.len()) as u64);
        let head = self.head.as_ref().map_or(&[][..], |head| &head[..]);
        let bytes = head.len() + length;
        let is_operation = self.head.is_some();
        wire::emit_fragment(
            frame,
            wire::FragmentHead {
                key: self.key,
                sequence: self.sequence,
                offset: place.0,
                total: place.1,
                unreliable: false,
                operation: is_operation,
            },
            bytes,
        );
        frame[FRAGMENT_BYTES..FRAGMENT_BYTES + head.len()].copy_from_slice(head);
        frame[FRAGMENT_BYTES + head.len()..FRAGMENT_BYTES + bytes]
            .copy_from_slice(&payload[from..from + length]);
        self.offset += length;
    }

    /// Bytes of a piece's headers.
    fn overhead_bytes(&self) -> usize {
        FRAGMENT_BYTES + self.head.map_or(0, |head| head.len())
    }
}

/// All frames, and which peers have an open one.
#[derive(Debug)]
pub(super) struct Packer {
    pub(super) frames: FramePool,
    /// Packets of the longest message on the small lane.
    small_run: usize,
    /// Frames of each peer, indexed by [`PeerId::index`].
    peers: Vec<PeerFrames>,
    /// Peers with a frame being filled.
    open_frames: usize,
}

impl Packer {
    /// Messages of at most `small_run` packets use the small lane, unless bulk frames of their
    /// edge are in flight.
    pub(super) fn new(frames: FramePool, small_run: usize) -> Packer {
        Packer {
            frames,
            small_run,
            peers: Vec::new(),
            open_frames: 0,
        }
    }

    /// Lowers the number of packets up to which messages use the small lane.
    pub(super) fn shorten_runs(&mut self, most: usize) {
        self.small_run = self.small_run.min(most).max(1);
    }

    /// True if any frame is open.
    #[inline]
    pub(super) fn has_open_frames(&self) -> bool {
        self.open_frames > 0
    }

    /// True if a frame for this peer is open.
    pub(super) fn is_filling(&self, peer: PeerId) -> bool {
        let found = self.peers.get(peer.index());
        found.is_some_and(|found| found.id == peer && found.open.is_some())
    }

    /// True if a long message to this peer is being copied into frames.
    pub(super) fn has_long(&self, peer: PeerId) -> bool {
        let found = self.peers.get(peer.index());
        found.is_some_and(|found| found.id == peer && found.long_begun)
    }

    /// The frames of a peer, unless its slot belongs to another peer.
    #[inline]
    fn current(&mut self, id: PeerId) -> Option<&mut PeerFrames> {
        let found = self.peers.get_mut(id.index());
        found.filter(|found| found.id == id)
    }

    /// The frames of a peer known to the protocol; replaces those of an earlier peer with the same
    /// slot.
    #[inline]
    fn peer(&mut self, id: PeerId) -> &mut PeerFrames {
        let index = id.index();
        if self.peers.get(index).is_none_or(|peer| peer.id != id) {
            self.enter(id);
        }
        &mut self.peers[index]
    }

    #[cold]
    fn enter(&mut self, id: PeerId) {
        let index = id.index();
        while self.peers.len() <= index {
            self.peers.push(PeerFrames::new(id));
        }
        self.replace(index, id);
    }

    fn replace(&mut self, index: usize, id: PeerId) {
        let old = std::mem::replace(&mut self.peers[index], PeerFrames::new(id));
        if let Some(open) = old.open {
            self.frames.put_back(open.slot);
            self.open_frames -= 1;
        }
    }

    /// A peer is gone: frees the open frame for it.
    pub(super) fn forget(&mut self, id: PeerId) {
        let index = id.index();
        if self.peers.get(index).is_some_and(|peer| peer.id == id) {
            self.replace(index, id);
        }
    }

    /// Releases a queued frame; returns the peer if it was a bulk frame.
    #[inline]
    pub(super) fn release(&mut self, slot: Slot) -> Option<PeerId> {
        let used = self.frames.release(slot)?;
        if let Some(peer) = self.current(used.peer) {
            peer.released(used);
        }
        used.bulk.then_some(used.peer)
    }

    /// Copies a message of one packet into a frame. With `more` it may wait there for further
    /// messages; otherwise the frame is queued unless earlier frames are waiting.
    #[inline]
    pub(super) fn send_whole(
        &mut self,
        machine: &mut RecordedMachine,
        now: Instant,
        edge: EdgeId,
        content: Content<'_>,
        more: bool,
    ) -> Result<(), Blocked> {
        let total = content.charged_bytes();
        let begun = machine.begin(now, edge, total).map_err(blocked)?;
        let needed = MESSAGE_BYTES + content.bytes();
        if HEADER_BYTES + needed > begun.space {
            machine.retract(edge, total);
            // Packets have become shorter since the caller checked.
            return Err(Blocked::NoFrame);
        }
        let is_alone = begun.is_first && !self.is_filling(edge.peer);
        let Some(mut open) = self.open_frame(machine, edge.peer, needed, begun.space) else {
            machine.retract(edge, total);
            return Err(Blocked::NoFrame);
        };
        let frame = self.frames.space(open.slot);
        let place = &mut frame[open.end..open.end + needed];
        content.emit(place, begun.key, low(begun.sequence));
        open.end += needed;
        let peer = self.peer(edge.peer);
        open.bulk |= peer.is_streaming(edge);
        open.whole = true;
        if is_alone && peer.is_crowded() {
            peer.hold(now);
        }
        peer.note_record(edge);
        peer.open = Some(open);
        if !more && begun.is_first {
            self.close_unless_held(machine, now, edge.peer);
        }
        Ok(())
    }

    /// Copies a message into its own frame, to be sent at once. `None`, and nothing has changed, if
    /// it does not fit a packet, must not be sent now, or others are waiting.
    #[inline]
    pub(super) fn pack_alone(
        &mut self,
        machine: &mut RecordedMachine,
        now: Instant,
        edge: EdgeId,
        content: Content<'_>,
    ) -> Option<Slot> {
        let is_busy = |peer: &mut PeerFrames| {
            peer.open.is_some() || peer.is_crowded() || peer.is_streaming(edge)
        };
        if self.current(edge.peer).is_some_and(is_busy) || self.share(machine, edge.peer) == 0 {
            return None;
        }
        let total = content.charged_bytes();
        let begun = machine.begin(now, edge, total).ok()?;
        let end = HEADER_BYTES + MESSAGE_BYTES + content.bytes();
        if !begun.is_first || end > begun.space {
            machine.retract(edge, total);
            return None;
        }
        let slot = self.frames.take()?;
        let place = &mut self.frames.space(slot)[HEADER_BYTES..end];
        content.emit(place, begun.key, low(begun.sequence));
        self.frames.fill(slot, end);
        let used = FrameUse {
            peer: edge.peer,
            bulk: false,
            whole: true,
        };
        self.peer(edge.peer).queued(used);
        self.frames.set_use(slot, Some(used));
        Some(slot)
    }

    /// Begins a message longer than a packet, which must be continued to its end. One at a time
    /// per peer: pieces of several messages would block each other's frames while the receiver
    /// has room for one only.
    pub(super) fn begin_long(
        &mut self,
        machine: &mut RecordedMachine,
        now: Instant,
        edge: EdgeId,
        content: Content<'_>,
    ) -> Result<PacketSend, Blocked> {
        if self.has_long(edge.peer) {
            return Err(Blocked::NoFrame);
        }
        let begun = machine.begin(now, edge, content.charged_bytes());
        let MessageStart { key, sequence, .. } = begun.map_err(blocked)?;
        self.close_frame(machine, edge.peer, true);
        let is_short = content.payload.len() <= piece_bytes(machine, edge.peer) * self.small_run;
        let is_first = machine.queued(edge.peer) == 0;
        let peer = self.peer(edge.peer);
        peer.long_begun = true;
        Ok(PacketSend {
            edge,
            bulk: !is_short || !is_first || peer.is_streaming(edge),
            key,
            sequence: low(sequence),
            head: content.head.copied(),
            offset: 0,
        })
    }

    /// Checks that there are frames for a whole long message.
    pub(super) fn has_frames_for(
        &self,
        machine: &Machine,
        peer: PeerId,
        total: usize,
    ) -> Result<(), Blocked> {
        let space = machine.packet_space(peer);
        let Some(piece) = space.checked_sub(HEADER_BYTES + FRAGMENT_BYTES) else {
            return Err(Blocked::Opening);
        };
        let frames = total.div_ceil(piece.max(1));
        let reserve = self.frames.units() / SMALL_SHARE;
        if frames > self.frames.units() - reserve {
            let limit = ((self.frames.units() - reserve) * piece) as u64;
            return Err(Blocked::TooLong { limit });
        }
        // Without packets in flight it need not wait; what finds no frame is copied.
        match frames > self.free_for_long() && machine.frames_held(peer) > 0 {
            true => Err(Blocked::NoFrame),
            false => Ok(()),
        }
    }

    /// Number of packets that a long message to this peer fills.
    pub(super) fn pieces(&self, machine: &Machine, peer: PeerId, total: usize) -> usize {
        total.div_ceil(piece_bytes(machine, peer).max(1))
    }

    /// True if a whole long message may be copied into frames now.
    pub(super) fn has_room_ahead(&self, machine: &Machine, peer: PeerId, total: usize) -> bool {
        let ahead = FRAMES_AHEAD.saturating_sub(machine.queued(peer));
        let room = ahead.min(self.free_for_long_to(machine, peer));
        total <= piece_bytes(machine, peer) * room
    }

    /// Copies as much of a long message as there are frames for; true when all of it has been
    /// queued. `payload` is the message without its first `skipped` bytes.
    pub(super) fn continue_long(
        &mut self,
        machine: &mut RecordedMachine,
        send: &mut PacketSend,
        payload: &[u8],
        skipped: usize,
    ) -> bool {
        self.queue_full_pieces(machine, send, (payload, skipped), usize::MAX);
        let reserve = self.frames.units() / SMALL_SHARE;
        let (peer, total) = (send.edge.peer, skipped + payload.len());
        let space = machine.packet_space(peer);
        while send.offset < total {
            if self.frames.free() <= reserve || machine.queued(peer) >= FRAMES_AHEAD {
                return false;
            }
            let overhead = send.overhead_bytes();
            let Some(open) = self.open_frame(machine, peer, overhead + 1, space) else {
                return false;
            };
            let length = (space - open.end - overhead).min(total - send.offset);
            let frame = &mut self.frames.space(open.slot)[open.end..];
            send.emit_piece(frame, payload, skipped, length);
            let frames = self.peer(peer);
            frames.note_record(send.edge);
            frames.open = Some(OpenFrame {
                end: open.end + overhead + length,
                bulk: send.bulk,
                ..open
            });
            // The last piece may share its frame with the next message, unless nothing is
            // queued before it.
            if send.offset < total || machine.queued(peer) == 0 {
                self.close_frame(machine, peer, send.bulk);
            }
        }
        self.peer(peer).long_begun = false;
        true
    }

    /// Queues at most this many pieces of a long message that fill a frame each, which is all but
    /// the last piece. Such frames contain no other records, so they are accounted for together.
    pub(super) fn queue_full_pieces(
        &mut self,
        machine: &mut RecordedMachine,
        send: &mut PacketSend,
        (payload, skipped): (&[u8], usize),
        most: usize,
    ) {
        if self.is_filling(send.edge.peer) {
            return;
        }
        let (edge, total) = (send.edge, skipped + payload.len());
        let end = machine.packet_space(edge.peer);
        let length = end.saturating_sub(HEADER_BYTES + send.overhead_bytes());
        let ahead = FRAMES_AHEAD.saturating_sub(machine.queued(edge.peer));
        let room = ahead
            .min(self.free_for_long_to(machine, edge.peer))
            .min(most);
        // Leave at least one byte for the last piece.
        let full = (total - send.offset).saturating_sub(1).checked_div(length);
        let used = send.bulk.then_some(FrameUse {
            peer: edge.peer,
            bulk: true,
            whole: false,
        });
        let mut slots = ArrayVec::<Slot, FRAMES_AHEAD>::new();
        for _ in 0..full.unwrap_or(0).min(room) {
            let Some(slot) = self.frames.take() else {
                break;
            };
            let frame = &mut self.frames.space(slot)[HEADER_BYTES..end];
            send.emit_piece(frame, payload, skipped, length);
            self.frames.fill(slot, end);
            self.frames.set_use(slot, used);
            slots.push(slot);
        }
        if slots.is_empty() {
            return;
        }
        if !machine.queue(edge.peer, &slots, send.bulk) {
            slots
                .into_iter()
                .for_each(|slot| self.frames.put_back(slot));
        } else if send.bulk {
            let queued = slots.len() as u64;
            self.peer(edge.peer).note_bulk(edge.index, queued);
        }
    }

    /// Frames that this peer may use now. It may hold at most as many as it leaves to the others,
    /// so that a peer that accepts nothing cannot stop all sending.
    #[inline]
    fn share(&self, machine: &Machine, peer: PeerId) -> usize {
        let free = self.frames.free();
        match self.frames.units() - free < free {
            // No peer holds that many.
            true => free.div_ceil(2),
            false => free.saturating_sub(machine.frames_held(peer)).div_ceil(2),
        }
    }

    /// Frames available to long messages for this peer.
    pub(super) fn free_for_long_to(&self, machine: &Machine, peer: PeerId) -> usize {
        self.free_for_long().min(self.share(machine, peer))
    }

    /// Frames available to long messages.
    fn free_for_long(&self) -> usize {
        self.frames
            .free()
            .saturating_sub(self.frames.units() / SMALL_SHARE)
    }

    /// Copies an unreliable message into frames.
    pub(super) fn send_unreliable(
        &mut self,
        machine: &mut RecordedMachine,
        edge: EdgeId,
        payload: &[u8],
    ) -> Result<(), Blocked> {
        let space = machine.packet_space(edge.peer);
        let Some(piece) = space.checked_sub(HEADER_BYTES + FRAGMENT_BYTES) else {
            return Err(Blocked::Opening);
        };
        let whole = HEADER_BYTES + MESSAGE_BYTES + payload.len() <= space;
        let needed = match whole {
            true => 1,
            false => payload.len().div_ceil(piece),
        };
        let limit = self.frames.units() - self.frames.units() / SMALL_SHARE;
        if needed > limit {
            return Err(Blocked::TooLong {
                limit: (limit * piece) as u64,
            });
        }
        if needed > self.frames.free() {
            return Err(Blocked::NoFrame);
        }
        let (key, sequence) = machine.begin_unreliable(edge).map_err(blocked)?;
        let chunk_bytes = if whole { payload.len().max(1) } else { piece };
        let total = payload.len() as u64;
        for index in 0..needed {
            let chunk = &payload[index * chunk_bytes..payload.len().min((index + 1) * chunk_bytes)];
            let Some(slot) = self.frames.take() else {
                return Err(Blocked::NoFrame);
            };
            let frame = &mut self.frames.space(slot)[HEADER_BYTES..];
            let head = if whole {
                wire::emit_message(frame, key, sequence, chunk.len(), true, false);
                MESSAGE_BYTES
            } else {
                let place = ((index * chunk_bytes) as u64, total);
                wire::emit_fragment(
                    frame,
                    wire::FragmentHead {
                        key,
                        sequence,
                        offset: place.0,
                        total: place.1,
                        unreliable: true,
                        operation: false,
                    },
                    chunk.len(),
                );
                FRAGMENT_BYTES
            };
            frame[head..head + chunk.len()].copy_from_slice(chunk);
            self.frames.fill(slot, HEADER_BYTES + head + chunk.len());
            if !machine.queue_unreliable(edge.peer, slot, !whole) {
                self.frames.put_back(slot);
            }
        }
        Ok(())
    }

    /// Queues this peer's open frame, full or not.
    pub(super) fn flush(&mut self, machine: &mut RecordedMachine, peer: PeerId) {
        self.close_frame(machine, peer, false);
    }

    /// Queues all open frames, full or not.
    pub(super) fn flush_all(&mut self, machine: &mut RecordedMachine) {
        for index in 0..self.peers.len() {
            let id = self.peers[index].id;
            self.close_frame(machine, id, false);
        }
    }

    /// Queues open frames of peers that have nothing else to send, unless they are held.
    pub(super) fn close_idle_frames(&mut self, machine: &mut RecordedMachine, now: Instant) {
        if self.open_frames == 0 {
            return;
        }
        for index in 0..self.peers.len() {
            let PeerFrames { id, open, .. } = self.peers[index];
            if open.is_some() && machine.queued(id) == 0 {
                self.close_unless_held(machine, now, id);
            }
        }
    }

    /// Queues the open frame of a peer unless it waits for further messages.
    fn close_unless_held(&mut self, machine: &mut RecordedMachine, now: Instant, id: PeerId) {
        if !self.is_held(now, id) {
            self.close_frame(machine, id, false);
        }
    }

    /// True if frames for this peer wait for further messages.
    #[inline]
    pub(super) fn is_held(&mut self, now: Instant, id: PeerId) -> bool {
        self.current(id).is_some_and(|peer| peer.is_held(now))
    }

    /// When the first of the held frames must leave.
    pub(super) fn next_deadline(&self, machine: &Machine, now: Instant) -> Option<Instant> {
        if self.open_frames == 0 {
            return None;
        }
        // Frames behind others leave with answers.
        let open = self.peers.iter().filter(|peer| {
            peer.is_held(now) || peer.open.is_some() && machine.queued(peer.id) == 0
        });
        open.map(|peer| peer.hold_until).min()
    }

    /// The open frame of a peer with at least `needed` bytes left; opens one if necessary. `None`
    /// if no frame is free.
    #[inline]
    fn open_frame(
        &mut self,
        machine: &mut RecordedMachine,
        id: PeerId,
        needed: usize,
        space: usize,
    ) -> Option<OpenFrame> {
        if let Some(open) = self.peer(id).open {
            if open.end + needed <= space {
                return Some(open);
            }
            self.close_frame(machine, id, true);
            self.peer(id).was_full = true;
        }
        if self.share(machine, id) == 0 {
            return None;
        }
        let slot = self.frames.take()?;
        let open = OpenFrame::new(slot);
        self.peer(id).open = Some(open);
        self.open_frames += 1;
        Some(open)
    }

    /// Queues an open frame, on the bulk lane if it is full or belongs to a stream.
    fn close_frame(&mut self, machine: &mut RecordedMachine, id: PeerId, full: bool) {
        let Some(peer) = self.current(id) else {
            return;
        };
        let Some(open) = peer.open.take() else {
            return;
        };
        let bulk = full || open.bulk;
        peer.close_open(bulk);
        self.open_frames -= 1;
        self.frames.fill(open.slot, open.end);
        if machine.queue(id, &[open.slot], bulk) {
            let used = FrameUse {
                peer: id,
                bulk,
                whole: open.whole,
            };
            self.peer(id).queued(used);
            self.frames.set_use(open.slot, Some(used));
        } else {
            self.frames.put_back(open.slot);
        }
    }
}

/// Bytes of a long message that fit into a packet to this peer.
fn piece_bytes(machine: &Machine, peer: PeerId) -> usize {
    let space = machine.packet_space(peer);
    space.saturating_sub(HEADER_BYTES + FRAGMENT_BYTES)
}

pub(super) fn blocked(error: BeginError) -> Blocked {
    match error {
        BeginError::NoCredit { .. } => Blocked::NoCredit,
        BeginError::TooLong { limit } => Blocked::TooLong { limit },
        BeginError::Refused(reason) => Blocked::Refused(reason),
        BeginError::Opening => Blocked::Opening,
        BeginError::Gone => Blocked::Gone(None),
    }
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "the wire carries the low 32 bits"
)]
fn low(sequence: u64) -> u32 {
    sequence as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use dipole_proto::{Config, GoneReason};

    #[test]
    fn calls_for_a_lost_peer_do_not_affect_the_next_one_in_its_slot() {
        let machine = Machine::new(Config::default(), 1, [2, 3], &[]);
        let mut machine = RecordedMachine::from(machine);
        let greeting = machine.greeting();
        let gone = machine.open_pipe(greeting).expect("room");
        machine.close_pipe(gone, GoneReason::Died);
        let next = machine.open_pipe(greeting).expect("room");
        assert_eq!(gone.index(), next.index(), "the same place");
        let mut packer = Packer::new(FramePool::new(4, 256), 1);
        packer
            .open_frame(&mut machine, gone, 10, 200)
            .expect("free");
        packer
            .open_frame(&mut machine, next, 10, 200)
            .expect("free");
        let edge = EdgeId {
            peer: gone,
            index: 0,
            generation: 0,
        };
        packer.flush(&mut machine, gone);
        packer.forget(gone);
        let long = vec![0; 1 << 20];
        let begun = packer.begin_long(&mut machine, Instant(1), edge, Content::from(&long[..]));
        assert!(matches!(begun, Err(Blocked::Gone(None))));
        let packed = packer.pack_alone(&mut machine, Instant(1), edge, Content::from(&b"late"[..]));
        assert_eq!(packed, None);
        assert!(packer.is_filling(next) && packer.has_open_frames());
        assert_eq!(packer.frames.free(), 3, "the frame of the first is free");
    }
}
