//! How messages get into frames: one copy in, small ones packed together.

use dipole_proto::wire::{self, FRAGMENT_BYTES, HEADER_BYTES, MESSAGE_BYTES, RefusedReason};
use dipole_proto::{BeginError, EdgeId, Frames, Instant, PeerId};

use super::peer::{OpenFrame, find, peer_entry};
use super::{Destination, Engine};
use crate::GoneReason;
use crate::driver::WaitKey;
use crate::inbox::{Charge, Token};
use crate::net::to_wire;

/// Why a message did not get into frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// All frames are in use.
    NoFrame,
    /// The receiver has not granted enough credit.
    NoCredit,
    /// Longer than a message can be (or, unreliably or at once, than fits now).
    TooLong {
        /// The limit in bytes.
        limit: u64,
    },
    /// The receiving endpoint took nothing.
    Refused(RefusedReason),
    /// The session has ended.
    Gone(Option<GoneReason>),
    /// The session is not open yet.
    Opening,
}

/// A long message on its way into frames.
#[derive(Clone, Copy, Debug)]
pub struct EdgeOut {
    edge: EdgeId,
    sequence: u32,
    offset: usize,
}

/// Frames filled ahead of what may leave: two full runs. More would have left the
/// processor's cache when they are checksummed and copied by the kernel.
const FRAMES_AHEAD: usize = super::BATCH;
/// One part in this many of the frames is left to small messages.
const SMALL_SHARE: usize = 8;

impl Engine {
    /// Opens an inbox for messages to `endpoint`.
    pub fn open_endpoint(&mut self, endpoint: u32) {
        self.rooms.open(endpoint);
        self.machine.open_endpoint(endpoint, false);
    }

    /// Closes an inbox; what it holds is dropped, what comes is refused.
    pub fn close_endpoint(&mut self, endpoint: u32) {
        self.forget_export(endpoint);
        // Threads that wait for its messages learn of it.
        self.ready.notify(WaitKey::Endpoint(endpoint));
        let unread = self.rooms.close(endpoint);
        self.machine.close_endpoint(endpoint);
        if let Some(local) = &mut self.local {
            let tokens = unread.into_iter().flat_map(|room| room.inbox.into_tokens());
            for token in tokens {
                match token.charged_to {
                    Charge::Local(charge) => local.consumed(charge, token.message.len() as u64),
                    Charge::LocalLong => local.consumed_long(token.message.len() as u64),
                    Charge::None | Charge::Net(_) => {}
                }
            }
            local.close_endpoint(endpoint);
        }
        for peer in self.peers.iter_mut().flatten() {
            for incoming in &mut peer.incoming {
                if incoming.target == endpoint {
                    incoming.assemblies.clear();
                    incoming.loose = None;
                }
            }
        }
    }

    /// Takes the oldest message of an endpoint; its room is granted again.
    #[inline]
    pub fn take(&mut self, now: Instant, endpoint: u32) -> Option<crate::Message> {
        let Token {
            charged_to,
            message,
        } = self.rooms.get_mut(endpoint)?.inbox.pop()?;
        self.give_back(now, charged_to, message.len() as u64);
        self.unsignal(endpoint);
        Some(message)
    }

    /// The room of a message that has been taken, or dropped unread.
    #[inline]
    fn give_back(&mut self, now: Instant, charged_to: Charge, length: u64) {
        match (charged_to, &mut self.local) {
            (Charge::Net(edge), _) => self.machine.consumed(now, edge, length),
            (Charge::Local(charge), Some(local)) => local.consumed(charge, length),
            (Charge::LocalLong, Some(local)) => local.consumed_long(length),
            (Charge::None | Charge::Local(_) | Charge::LocalLong, _) => {}
        }
    }

    /// True if a message waits at this endpoint.
    #[must_use]
    pub fn has_message(&self, endpoint: u32) -> bool {
        self.rooms
            .get(endpoint)
            .is_some_and(|room| !room.inbox.is_empty())
    }

    /// Begins, or finds, the session with a process.
    ///
    /// # Errors
    /// [`dipole_proto::ConnectError`].
    pub fn connect(
        &mut self,
        now: Instant,
        to: Destination,
    ) -> Result<PeerId, dipole_proto::ConnectError> {
        // It may have been met by another of its cards.
        let known = self.peers.iter().flatten().find(|peer| {
            to.incarnation != 0 && peer.incarnation == to.incarnation && peer.gone.is_none()
        });
        if let Some(peer) = known {
            return Ok(peer.id);
        }
        let peer = self
            .machine
            .connect(now, to_wire(to.small), to.incarnation)?;
        peer_entry(&mut self.peers, peer);
        Ok(peer)
    }

    /// Whether the session is open; an error if it is gone.
    ///
    /// # Errors
    /// [`Blocked::Gone`].
    pub fn is_open(&mut self, peer: PeerId) -> Result<bool, Blocked> {
        match find(&mut self.peers, peer) {
            Some(entry) if entry.gone.is_none() => Ok(self.machine.is_open(peer)),
            Some(entry) => Err(Blocked::Gone(entry.gone)),
            None => Err(Blocked::Gone(None)),
        }
    }

    /// The outgoing edge from `source` to `target` at a peer; usable again if the
    /// peer once refused it.
    pub fn edge(&mut self, peer: PeerId, source: u32, target: u32) -> Option<EdgeId> {
        let edge = self.machine.edge(peer, source, target)?;
        self.machine.reopen(edge);
        Some(edge)
    }

    /// Says goodbye to every peer.
    pub fn say_goodbye(&mut self) {
        let peers: Vec<PeerId> = self.machine.peers().collect();
        for peer in peers {
            self.machine.disconnect(peer);
        }
    }

    /// Nobody waits for credit on this edge any more.
    pub fn cancel(&mut self, edge: EdgeId) {
        self.machine.cancel(edge);
    }

    /// Frames queued to a peer that have not left.
    #[must_use]
    pub fn queued(&self, peer: PeerId) -> usize {
        self.machine.queued(peer)
    }

    /// Gives an endpoint an arena of its own size.
    pub(crate) fn set_pool(&mut self, endpoint: u32, bytes: usize) -> Option<crate::Pool> {
        self.rooms.get_mut(endpoint)?.inbox.set_arena(bytes)
    }

    /// Length of the oldest message of an endpoint.
    #[must_use]
    pub fn next_length(&self, endpoint: u32) -> Option<usize> {
        self.rooms.get(endpoint)?.inbox.next_length()
    }

    /// Endpoints that have sent to this one and are still there.
    #[must_use]
    pub fn sources(&self, endpoint: u32) -> Vec<crate::Address> {
        self.peers
            .iter()
            .flatten()
            .flat_map(|peer| &peer.incoming)
            .filter(|incoming| incoming.target == endpoint)
            .map(|incoming| incoming.source)
            .chain(self.local.iter().flat_map(|local| local.sources(endpoint)))
            .collect()
    }

    /// True if this peer has acknowledged everything.
    #[must_use]
    pub fn is_peer_acknowledged(&self, peer: PeerId) -> bool {
        let filling = self
            .peers
            .get(peer.index())
            .and_then(Option::as_ref)
            .is_some_and(|entry| entry.id == peer && entry.open.is_some());
        self.batch.is_empty() && !filling && self.machine.is_acknowledged(peer)
    }

    /// True if every peer has acknowledged everything.
    #[must_use]
    pub fn is_acknowledged(&self) -> bool {
        self.batch.is_empty()
            && self
                .peers
                .iter()
                .flatten()
                .all(|peer| peer.open.is_none() && self.machine.is_acknowledged(peer.id))
    }

    /// Asks all peers now and then whether they live (or stops asking).
    pub fn watch_peers(&mut self, now: Instant, watched: bool) {
        let peers: Vec<PeerId> = self.machine.peers().collect();
        for peer in peers {
            self.machine.watch(now, peer, watched);
        }
    }

    /// Longest message that fits one packet to this peer.
    #[must_use]
    pub fn whole_limit(&self, peer: PeerId) -> usize {
        self.machine
            .packet_space(peer)
            .saturating_sub(HEADER_BYTES + MESSAGE_BYTES)
    }

    /// Copies a message that fits one packet into a frame. With `more` it may
    /// wait there for others; else it leaves with the next
    /// [`transmit`](Self::transmit) unless earlier frames still wait.
    ///
    /// # Errors
    /// [`Blocked`]; nothing was queued.
    #[inline]
    pub fn send_whole(
        &mut self,
        now: Instant,
        edge: EdgeId,
        payload: &[u8],
        more: bool,
    ) -> Result<(), Blocked> {
        let peer = self.usable(edge.peer)?;
        let streaming = peer.is_streaming(edge);
        let mut open = self.open_frame(edge.peer, MESSAGE_BYTES + payload.len())?;
        let Some(ends) = self.machine.edge_ends(edge) else {
            return Err(Blocked::Gone(None));
        };
        let sequence = match self.machine.begin(now, edge, payload.len() as u64) {
            Ok(sequence) => sequence,
            Err(error) => {
                // Who waits long must not keep a frame that others could use.
                if open.end == HEADER_BYTES {
                    self.close_frame(edge.peer, false);
                }
                return Err(blocked(error));
            }
        };
        let frame = self.frames.space(open.slot);
        wire::emit_message(
            &mut frame[open.end..],
            ends,
            low(sequence),
            payload.len(),
            false,
            false,
        );
        let at = open.end + MESSAGE_BYTES;
        frame[at..at + payload.len()].copy_from_slice(payload);
        open.end = at + payload.len();
        open.bulk |= streaming;
        let Some(peer) = find(&mut self.peers, edge.peer) else {
            return Err(Blocked::Gone(None));
        };
        peer.note_record(edge);
        peer.open = Some(open);
        if !more && self.machine.queued(edge.peer) == 0 {
            self.close_frame(edge.peer, false);
        }
        Ok(())
    }

    /// Begins a message longer than a packet; it must be continued to its end. One
    /// at a time per peer: the pieces of several would wait in each other's frames
    /// while the receiver has room for one only.
    ///
    /// # Errors
    /// [`Blocked`]; nothing was queued.
    pub fn begin_long(
        &mut self,
        now: Instant,
        edge: EdgeId,
        total: usize,
    ) -> Result<EdgeOut, Blocked> {
        if self.usable(edge.peer)?.long_begun {
            return Err(Blocked::NoFrame);
        }
        let sequence = self
            .machine
            .begin(now, edge, total as u64)
            .map_err(blocked)?;
        self.close_frame(edge.peer, true);
        self.usable(edge.peer)?.long_begun = true;
        Ok(EdgeOut {
            edge,
            sequence: low(sequence),
            offset: 0,
        })
    }

    /// Like [`begin_long`](Self::begin_long), for a caller who will not wait: only if there are
    /// frames for all of it.
    ///
    /// # Errors
    /// [`Blocked`]; nothing was queued.
    pub fn begin_long_at_once(
        &mut self,
        now: Instant,
        edge: EdgeId,
        total: usize,
    ) -> Result<EdgeOut, Blocked> {
        // Before anything is said of frames: one that is gone takes none.
        self.usable(edge.peer)?;
        let space = self.machine.packet_space(edge.peer);
        let Some(piece) = space.checked_sub(HEADER_BYTES + FRAGMENT_BYTES) else {
            return Err(Blocked::Opening);
        };
        let frames = total.div_ceil(piece.max(1));
        let reserve = self.frames.units() / SMALL_SHARE;
        if frames > self.frames.units() - reserve {
            let limit = ((self.frames.units() - reserve) * piece) as u64;
            return Err(Blocked::TooLong { limit });
        }
        if frames > self.frames_for_long() {
            return Err(Blocked::NoFrame);
        }
        self.begin_long(now, edge, total)
    }

    /// Copies as much of a long message as there are frames; true when all of it
    /// has been queued.
    ///
    /// # Errors
    /// [`Blocked::Gone`] only; without frames it does nothing.
    pub fn continue_long(&mut self, out: &mut EdgeOut, payload: &[u8]) -> Result<bool, Blocked> {
        self.usable(out.edge.peer)?;
        let Some(ends) = self.machine.edge_ends(out.edge) else {
            return Err(Blocked::Gone(None));
        };
        let reserve = self.frames.units() / SMALL_SHARE;
        let total = payload.len() as u64;
        while out.offset < payload.len() {
            let ahead = self.machine.queued(out.edge.peer);
            if self.frames.free() <= reserve || ahead >= FRAMES_AHEAD {
                return Ok(false);
            }
            let open = self.open_frame(out.edge.peer, FRAGMENT_BYTES + 1)?;
            let space = self.machine.packet_space(out.edge.peer);
            let length = (space - open.end - FRAGMENT_BYTES).min(payload.len() - out.offset);
            let frame = self.frames.space(open.slot);
            wire::emit_fragment(
                &mut frame[open.end..],
                ends,
                out.sequence,
                (out.offset as u64, total),
                length,
                false,
                false,
            );
            let at = open.end + FRAGMENT_BYTES;
            frame[at..at + length].copy_from_slice(&payload[out.offset..out.offset + length]);
            out.offset += length;
            let Some(peer) = find(&mut self.peers, out.edge.peer) else {
                return Err(Blocked::Gone(None));
            };
            peer.note_record(out.edge);
            peer.open = Some(OpenFrame {
                slot: open.slot,
                end: at + length,
                bulk: true,
            });
            // The last piece leaves room that the next message may use, unless
            // nothing is in front of it.
            if out.offset < payload.len() || self.machine.queued(out.edge.peer) == 0 {
                self.close_frame(out.edge.peer, true);
            }
        }
        self.usable(out.edge.peer)?.long_begun = false;
        self.ready.notify(WaitKey::Peer(out.edge.peer));
        Ok(true)
    }

    /// Frames that long messages may use now.
    #[must_use]
    pub fn frames_for_long(&self) -> usize {
        self.frames
            .free()
            .saturating_sub(self.frames.units() / SMALL_SHARE)
    }

    /// Copies an unreliable message into frames; it leaves with the next
    /// [`transmit`](Self::transmit).
    ///
    /// # Errors
    /// [`Blocked`]; nothing was queued.
    pub fn send_loose(&mut self, edge: EdgeId, payload: &[u8]) -> Result<(), Blocked> {
        self.usable(edge.peer)?;
        if !self.machine.is_open(edge.peer) {
            return Err(Blocked::Opening);
        }
        let whole = payload.len() <= self.whole_limit(edge.peer);
        let space = self.machine.packet_space(edge.peer);
        let piece = space - HEADER_BYTES - FRAGMENT_BYTES;
        let needed = if whole {
            1
        } else {
            payload.len().div_ceil(piece)
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
        let (Some(ends), Some(sequence)) =
            (self.machine.edge_ends(edge), self.machine.begin_loose(edge))
        else {
            return Err(Blocked::Gone(None));
        };
        let chunk_bytes = if whole { payload.len().max(1) } else { piece };
        let total = payload.len() as u64;
        for index in 0..needed {
            let chunk = &payload[index * chunk_bytes..payload.len().min((index + 1) * chunk_bytes)];
            let Some(slot) = self.frames.take() else {
                return Err(Blocked::NoFrame);
            };
            let frame = &mut self.frames.space(slot)[HEADER_BYTES..];
            let head = if whole {
                wire::emit_message(frame, ends, sequence, chunk.len(), true, false);
                MESSAGE_BYTES
            } else {
                let place = ((index * chunk_bytes) as u64, total);
                wire::emit_fragment(frame, ends, sequence, place, chunk.len(), true, false);
                FRAGMENT_BYTES
            };
            frame[head..head + chunk.len()].copy_from_slice(chunk);
            self.frames.fill(slot, HEADER_BYTES + head + chunk.len());
            if !self.machine.queue_loose(edge.peer, slot, !whole) {
                self.frames.put_back(slot);
            }
        }
        Ok(())
    }

    /// Queues the frame being filled for this peer, however full.
    pub fn flush(&mut self, peer: PeerId) {
        self.close_frame(peer, false);
    }

    /// Queues frames being filled for peers that have nothing else to send.
    pub(super) fn close_idle_frames(&mut self) {
        if self.open_frames == 0 {
            return;
        }
        for index in 0..self.peers.len() {
            if let Some(peer) = &self.peers[index]
                && peer.open.is_some()
            {
                let id = peer.id;
                if self.machine.queued(id) == 0 {
                    self.close_frame(id, false);
                }
            }
        }
    }

    #[inline]
    fn usable(&mut self, peer: PeerId) -> Result<&mut super::Peer, Blocked> {
        match find(&mut self.peers, peer) {
            Some(entry) => match entry.gone {
                None => Ok(entry),
                gone => Err(Blocked::Gone(gone)),
            },
            None => Err(Blocked::Gone(None)),
        }
    }

    /// The frame being filled for a peer, with at least `needed` bytes left.
    #[inline]
    fn open_frame(&mut self, peer: PeerId, needed: usize) -> Result<OpenFrame, Blocked> {
        let space = self.machine.packet_space(peer);
        if space == 0 {
            return Err(Blocked::Opening);
        }
        let open = find(&mut self.peers, peer).and_then(|entry| entry.open);
        if let Some(open) = open {
            if open.end + needed <= space {
                return Ok(open);
            }
            self.close_frame(peer, true);
        }
        let slot = self.frames.take().ok_or(Blocked::NoFrame)?;
        let open = OpenFrame {
            slot,
            end: HEADER_BYTES,
            bulk: false,
        };
        // Held by the peer at once: a caller that fails leaves it there, empty.
        if let Some(entry) = find(&mut self.peers, peer) {
            entry.open = Some(open);
            self.open_frames += 1;
        }
        Ok(open)
    }

    /// Queues the frame being filled; by the bulk lane if it is full or belongs to
    /// a stream.
    fn close_frame(&mut self, peer: PeerId, full: bool) {
        let Some(entry) = find(&mut self.peers, peer) else {
            return;
        };
        let Some(open) = entry.open.take() else {
            return;
        };
        self.open_frames -= 1;
        if open.end == HEADER_BYTES {
            self.frames.put_back(open.slot);
            return;
        }
        let bulk = full || open.bulk;
        entry.close_open(bulk);
        self.frames.fill(open.slot, open.end);
        self.frames.set_bulk(open.slot, bulk.then_some(peer));
        if !self.machine.queue(peer, open.slot, bulk) {
            self.frames.put_back(open.slot);
        }
    }
}

fn blocked(error: BeginError) -> Blocked {
    match error {
        BeginError::NoCredit { .. } => Blocked::NoCredit,
        BeginError::TooLong { limit } => Blocked::TooLong { limit },
        BeginError::Refused(reason) => Blocked::Refused(reason),
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
