//! Sending messages over the network or through shared memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use dipole_proto::wire::{HEADER_BYTES, MESSAGE_BYTES, RefusedReason};
use dipole_proto::{EdgeError, EdgeId, Instant, PeerId};

use super::Engine;
use super::content::{Content, Head};
use super::long_messages::{Long, LongSend};
use super::packer::PacketSend;
use super::posted::{PayloadOwner, PostedOperation, Remainder};
use super::shared_memory::{Route, SharedMemory};
use super::target::{Blocked, Target};
use crate::address::EndpointId;
use crate::registry::EdgeTraffic;
use dipole_driver::Reading;
use dipole_driver::WaitKey;

/// Frames that the kernel accepts as one GSO datagram. Messages queued with more to follow leave
/// once they fill so many.
const FULL_RUN_FRAMES: usize = 44;
/// Bytes copied for background sends; one peer may use at most as much as it leaves to the others.
const MAX_BACKGROUND_BYTES: usize = 32 << 20;

/// A long message that is sent in the background.
#[derive(Debug)]
pub(super) struct BackgroundSend {
    send: PacketSend,
    rest: Remainder,
}

impl Engine {
    /// Opens an outgoing edge from `source` to `target` at a peer, or adds a user to the existing
    /// one; clears an earlier refusal.
    ///
    /// # Errors
    /// [`EdgeError`].
    pub fn edge(&mut self, peer: PeerId, source: u32, target: u32) -> Result<EdgeId, EdgeError> {
        self.core.machine.edge(peer, source, target)
    }

    /// Removes a user of an edge; the last one closes it.
    pub fn close_edge(&mut self, edge: EdgeId) {
        self.core.packer.flush(&mut self.core.machine, edge.peer);
        self.core.machine.close_edge(edge);
        self.core.handle_events(&[][..]);
        self.push_records();
    }

    /// Makes an edge usable again after a refusal.
    pub fn clear_refusal(&mut self, edge: EdgeId) {
        self.core.machine.clear_refusal(edge);
    }

    /// Withdraws the pending credit request of an edge.
    pub fn cancel(&mut self, edge: EdgeId) {
        self.core.machine.cancel(edge);
    }

    /// The target of [`send_fast`](Self::send_fast).
    pub fn fast_target(&self, endpoint: u32) -> Option<&Target> {
        let state = self.core.dispatch.endpoints.get(endpoint)?;
        state.target.as_ref()
    }

    /// Sets the target of [`send_fast`](Self::send_fast). Its owner keeps the edge open meanwhile.
    pub fn set_fast_target(&mut self, endpoint: u32, target: Option<Target>) {
        if let Some(state) = self.core.dispatch.endpoints.get_mut(endpoint) {
            state.target = target;
        }
        self.allow_send(endpoint);
    }

    /// The traffic of an edge.
    pub fn edge_traffic(&self, source: u32, target: &Target) -> EdgeTraffic {
        EdgeTraffic {
            source: EndpointId(source),
            target: target.address,
            local: self.shares_memory(target.edge.peer),
            messages: target.sent.messages.load(Ordering::Relaxed),
            bytes: target.sent.bytes.load(Ordering::Relaxed),
        }
    }

    /// True if a peer is reached through shared memory.
    #[inline]
    pub fn shares_memory(&self, peer: PeerId) -> bool {
        self.route(peer).is_some()
    }

    /// Longest message that is sent to this peer in one packet or record.
    #[must_use]
    #[inline]
    pub fn whole_limit(&self, peer: PeerId) -> usize {
        match self.route(peer) {
            Some(route) => route.eager_bytes,
            None => {
                let space = self.core.machine.packet_space(peer);
                space.saturating_sub(HEADER_BYTES + MESSAGE_BYTES)
            }
        }
    }

    /// Sends at once if the endpoint has a [fast target](Self::fast_target) that accepts the message
    /// now. Otherwise returns false, and nothing has been queued.
    ///
    /// # Errors
    /// Only when the link is broken.
    #[inline]
    pub fn send_fast(
        &mut self,
        endpoint: u32,
        payload: &[u8],
        more: bool,
        clock: &mut Reading<'_>,
    ) -> std::io::Result<bool> {
        let content = Content::from(payload);
        let endpoints = &self.core.dispatch.endpoints;
        let Some(target) = endpoints
            .get(endpoint)
            .and_then(|state| state.target.as_ref())
        else {
            return Ok(false);
        };
        let edge = target.edge;
        if let Some((memory, route)) = with_route(&mut self.memory, edge.peer) {
            let machine = &mut self.core.machine;
            let sent = payload.len() <= route.eager_bytes
                && memory
                    .send_whole(machine, (route, edge), content, more)
                    .is_ok();
            if sent {
                target.sent.count(payload.len());
            }
            return Ok(sent);
        }
        let sent = self.send_at_once(edge, content, more, clock)?.is_ok();
        if sent
            && let Some(state) = self.core.dispatch.endpoints.get(endpoint)
            && let Some(target) = &state.target
        {
            target.sent.count(payload.len());
        }
        Ok(sent)
    }

    /// Sends a message of one packet or record at once; with `more` it may wait for further ones.
    ///
    /// # Errors
    /// The outer error means that the link is broken, [`Blocked`] that nothing was queued.
    #[inline]
    pub fn send_at_once(
        &mut self,
        edge: EdgeId,
        content: Content<'_>,
        more: bool,
        clock: &mut Reading<'_>,
    ) -> std::io::Result<Result<(), Blocked>> {
        if let Some(memory) = &mut self.memory
            && let Some(route) = memory.route(edge.peer)
        {
            if content.bytes() > route.eager_bytes {
                return Ok(Err(Blocked::NoFrame));
            }
            let machine = &mut self.core.machine;
            return Ok(memory.send_whole(machine, (route, edge), content, more));
        }
        if content.bytes() > self.whole_limit(edge.peer) {
            return match more {
                true => Ok(Err(Blocked::NoFrame)),
                false => self.send_long_at_once(clock.now(), edge, content),
            };
        }
        let now = if more { clock.last() } else { clock.now() };
        if !more && self.send_alone_in_packet(now, edge, content)? {
            return Ok(Ok(()));
        }
        let sent = self.send_whole(now, edge, content, more);
        let may_wait = more || self.core.packer.is_held(now, edge.peer);
        if !may_wait || sent.is_err() || self.queued(edge.peer) >= FULL_RUN_FRAMES {
            self.transmit(if more { clock.now() } else { now })?;
        }
        Ok(sent)
    }

    /// Sends a message of several packets at once, if there is room for all of it.
    fn send_long_at_once(
        &mut self,
        now: Instant,
        edge: EdgeId,
        content: Content<'_>,
    ) -> std::io::Result<Result<(), Blocked>> {
        let payload = content.payload;
        let (machine, packer) = (&mut self.core.machine, &mut self.core.packer);
        if !packer.has_room_ahead(machine, edge.peer, payload.len()) {
            return Ok(Err(Blocked::NoFrame));
        }
        let is_first = machine.queued(edge.peer) == 0;
        let mut send = match packer.begin_long(machine, now, edge, content) {
            Ok(send) => send,
            Err(why) => return Ok(Err(self.with_reason(edge, why))),
        };
        // Runs of equal length, so that the receiver works on one while the next is filled.
        let pieces = packer.pieces(machine, edge.peer, payload.len());
        let runs = pieces.div_ceil(FULL_RUN_FRAMES);
        for _ in 1..runs {
            let core = &mut self.core;
            let (rest, most) = ((payload, 0), pieces.div_ceil(runs));
            core.packer
                .queue_full_pieces(&mut core.machine, &mut send, rest, most);
            if let Err(error) = self.transmit(now) {
                self.continue_in_background(LongSend(Long::Packets(send)), payload);
                return Err(error);
            }
        }
        let (machine, packer) = (&mut self.core.machine, &mut self.core.packer);
        if !packer.continue_long(machine, &mut send, payload, 0) {
            self.continue_in_background(LongSend(Long::Packets(send)), payload);
        } else if is_first {
            // All of it leaves in one call. If packets are waiting, the last may be shared.
            packer.flush(machine, edge.peer);
        }
        self.transmit(now)?;
        Ok(Ok(()))
    }

    /// Sends a message of one packet on the fast path for small messages. False, and nothing has
    /// changed, if it does not fit or other packets are waiting.
    ///
    /// # Errors
    /// Only when the link is broken.
    #[inline]
    pub fn send_alone<'a>(
        &mut self,
        now: Instant,
        edge: EdgeId,
        content: impl Into<Content<'a>>,
    ) -> std::io::Result<bool> {
        if self.shares_memory(edge.peer) {
            return Ok(false);
        }
        self.send_alone_in_packet(now, edge, content.into())
    }

    #[inline]
    fn send_alone_in_packet(
        &mut self,
        now: Instant,
        edge: EdgeId,
        content: Content<'_>,
    ) -> std::io::Result<bool> {
        let sent = (self.packets).send_alone(now, &mut self.core, edge, content)?;
        if sent {
            self.transmit_pending(now)?;
        }
        Ok(sent)
    }

    /// Queues a message of one packet or record. With `more` it may wait for further ones;
    /// otherwise the packet leaves with the next [`transmit`](Self::transmit).
    ///
    /// # Errors
    /// [`Blocked`]; nothing was queued.
    #[inline]
    pub fn send_whole<'a>(
        &mut self,
        now: Instant,
        edge: EdgeId,
        content: impl Into<Content<'a>>,
        more: bool,
    ) -> Result<(), Blocked> {
        let content = content.into();
        let machine = &mut self.core.machine;
        let sent = match with_route(&mut self.memory, edge.peer) {
            Some((memory, route)) => memory.send_whole(machine, (route, edge), content, more),
            None => {
                let packer = &mut self.core.packer;
                packer.send_whole(machine, now, edge, content, more)
            }
        };
        sent.map_err(|why| self.with_reason(edge, why))
    }

    /// Begins a message of several packets or records. In shared memory its bytes must stay valid
    /// until it has been continued to its end, unless it is `kept`, that is, copied by the engine.
    ///
    /// # Errors
    /// [`Blocked`]; nothing was queued.
    pub fn begin_long<'a>(
        &mut self,
        now: Instant,
        edge: EdgeId,
        content: impl Into<Content<'a>>,
        kept: bool,
    ) -> Result<LongSend, Blocked> {
        let buffers = kept.then(|| Arc::clone(self.core.dispatch.buffers()));
        let keep = buffers
            .as_ref()
            .map_or(PayloadOwner::Caller, PayloadOwner::Copy);
        self.begin_long_with(now, edge, content.into(), keep)
    }

    /// Like [`begin_long`](Self::begin_long), with the given owner of the bytes in shared memory.
    pub(super) fn begin_long_with(
        &mut self,
        now: Instant,
        edge: EdgeId,
        content: Content<'_>,
        keep: PayloadOwner<'_>,
    ) -> Result<LongSend, Blocked> {
        let machine = &mut self.core.machine;
        let begun = match with_route(&mut self.memory, edge.peer) {
            Some((memory, _)) => {
                let (length, stays) = (content.payload.len(), matches!(keep, PayloadOwner::Caller));
                if !stays && !memory.can_copy(edge.peer, length, MAX_BACKGROUND_BYTES) {
                    return Err(Blocked::NoFrame);
                }
                let begun = memory.begin_long(machine, now, edge, content, keep);
                begun.map(Long::Memory)
            }
            None => {
                let packer = &mut self.core.packer;
                let begun = packer.begin_long(machine, now, edge, content);
                begun.map(Long::Packets)
            }
        };
        match begun {
            Ok(long) => Ok(LongSend(long)),
            Err(why) => Err(self.with_reason(edge, why)),
        }
    }

    /// Like [`begin_long`](Self::begin_long), for non-blocking callers: only if there is room for
    /// all of it now.
    ///
    /// # Errors
    /// [`Blocked`]; nothing was queued.
    pub fn begin_long_at_once<'a>(
        &mut self,
        now: Instant,
        edge: EdgeId,
        content: impl Into<Content<'a>>,
    ) -> Result<LongSend, Blocked> {
        let content = content.into();
        let length = content.payload.len();
        if self.shares_memory(edge.peer) {
            if length > MAX_BACKGROUND_BYTES {
                let limit = MAX_BACKGROUND_BYTES as u64;
                return Err(Blocked::TooLong { limit });
            }
            return self.begin_long(now, edge, content, true);
        }
        // Check this before frames, because a peer that is gone must not be reported as full.
        if !self.core.machine.is_open(edge.peer) {
            return Err(self.with_reason(edge, Blocked::Opening));
        }
        let machine = &self.core.machine;
        let packer = &self.core.packer;
        packer.has_frames_for(machine, edge.peer, length)?;
        self.begin_long(now, edge, content, false)
    }

    /// Continues a long message as far as there is room; true when `payload` is no longer needed.
    ///
    /// # Errors
    /// [`Blocked::Gone`] only; without room it does nothing.
    pub fn continue_long(&mut self, send: &mut LongSend, payload: &[u8]) -> Result<bool, Blocked> {
        match &mut send.0 {
            Long::Memory(id) => {
                let (memory, id) = (&mut self.memory, *id);
                let Some(memory) = memory else {
                    return Err(Blocked::Gone(None));
                };
                memory
                    .continue_long(&mut self.core.machine, id, payload)
                    .map_err(|why| self.with_reason(id.0, why))
            }
            Long::Packets(send) => {
                let edge = send.edge();
                if !self.core.machine.is_open(edge.peer) {
                    return Err(self.with_reason(edge, Blocked::Gone(None)));
                }
                let core = &mut self.core;
                let done = core
                    .packer
                    .continue_long(&mut core.machine, send, payload, 0);
                if done {
                    core.ready.notify(WaitKey::Peer(edge.peer));
                }
                Ok(done)
            }
        }
    }

    /// Copies the rest of a long message and sends it in the background.
    pub fn continue_in_background(&mut self, send: LongSend, payload: &[u8]) {
        match send.0 {
            Long::Packets(send) => {
                let buffers = self.core.dispatch.buffers();
                let rest = Remainder::copy(payload, send.offset(), buffers);
                self.background_sends.push(BackgroundSend { send, rest });
            }
            Long::Memory(_) => self.abandon_long(send),
        }
    }

    /// Abandons a long message. A peer may still be reading the caller's memory, so the connection
    /// to it is closed.
    pub fn abandon_long(&mut self, send: LongSend) {
        if let Long::Memory(id) = send.0
            && let Some(memory) = &mut self.memory
        {
            memory.abandon(id, &mut self.core);
        }
    }

    /// Continues long messages in the background.
    #[inline]
    pub(super) fn continue_background_sends(&mut self) {
        if !self.background_sends.is_empty() {
            self.continue_all_background_sends();
        }
    }

    fn continue_all_background_sends(&mut self) {
        let core = &mut self.core;
        let ended = self.background_sends.extract_if(.., |kept| {
            let is_open = core.machine.is_open(kept.send.edge().peer);
            let (packer, machine) = (&mut core.packer, &mut core.machine);
            let BackgroundSend { send, rest } = kept;
            let go_on = |bytes: &[u8]| packer.continue_long(machine, send, bytes, rest.skipped);
            !is_open || rest.with_bytes(go_on).unwrap_or(true)
        });
        for BackgroundSend { send, rest } in ended.collect::<Vec<_>>() {
            let edge = send.edge();
            core.ready.notify(WaitKey::Peer(edge.peer));
            let sent = core.machine.is_open(edge.peer);
            rest.release(edge, sent, &core.peers, &mut core.sent_posts);
        }
    }

    /// Sends a message, or an operation with data, whose bytes the engine shares. What finds no
    /// room is sent in the background; true if nothing is left.
    ///
    /// # Errors
    /// [`Blocked`]; nothing was queued.
    pub(super) fn send_shared(
        &mut self,
        now: Instant,
        edge: EdgeId,
        head: Option<&Head>,
        bytes: &Bytes,
        posted: Option<PostedOperation>,
    ) -> Result<bool, Blocked> {
        let content = Content {
            head,
            payload: bytes,
        };
        if content.bytes() <= self.whole_limit(edge.peer) {
            return self.send_whole(now, edge, content, false).map(|()| true);
        }
        let machine = &mut self.core.machine;
        let sent = match with_route(&mut self.memory, edge.peer) {
            Some((memory, _)) => {
                let keep = PayloadOwner::Shared(bytes, posted);
                let begun = memory.begin_long(machine, now, edge, content, keep);
                begun.map(|id| memory.has_sent(id))
            }
            None => {
                let packer = &mut self.core.packer;
                let begun = packer.begin_long(machine, now, edge, content);
                begun.map(|mut send| {
                    let done = packer.continue_long(machine, &mut send, bytes, 0);
                    if !done {
                        let rest = Remainder::shared(bytes, posted);
                        self.background_sends.push(BackgroundSend { send, rest });
                    }
                    done
                })
            }
        };
        sent.map_err(|why| self.with_reason(edge, why))
    }

    /// Frames that are available to long messages for this peer.
    #[must_use]
    pub fn frames_for_long(&self, peer: PeerId) -> usize {
        let core = &self.core;
        core.packer.free_for_long_to(&core.machine, peer)
    }

    /// Queues a message without retransmission; its packets leave with the next
    /// [`transmit`](Self::transmit).
    ///
    /// # Errors
    /// [`Blocked`]; nothing was queued.
    pub fn send_unreliable(
        &mut self,
        now: Instant,
        edge: EdgeId,
        payload: &[u8],
    ) -> Result<(), Blocked> {
        if self
            .route(edge.peer)
            .is_some_and(|route| payload.len() > route.eager_bytes)
        {
            // It is sent like a reliable message, or not at all.
            let sent = self.begin_long(now, edge, payload, true).map(|_kept| ());
            return sent.map_err(|why| match why {
                Blocked::NoCredit => {
                    self.cancel(edge);
                    Blocked::NoFrame
                }
                other => other,
            });
        }
        let machine = &mut self.core.machine;
        let sent = match with_route(&mut self.memory, edge.peer) {
            Some((memory, route)) => memory.send_unreliable(machine, (route, edge), payload),
            None if !machine.is_open(edge.peer) => Err(Blocked::Opening),
            None => self.core.packer.send_unreliable(machine, edge, payload),
        };
        sent.map_err(|why| self.with_reason(edge, why))
    }

    /// Frames queued for a peer that have not been sent.
    #[must_use]
    pub fn queued(&self, peer: PeerId) -> usize {
        self.core.machine.queued(peer)
    }

    /// Closes frames that were waiting for more; they leave with the next transmit.
    pub fn flush(&mut self, peer: PeerId) {
        self.core.packer.flush(&mut self.core.machine, peer);
        self.wake_memory_peers();
    }

    /// Queues all frames that are being filled.
    pub fn flush_all(&mut self) {
        let core = &mut self.core;
        if core.packer.has_open_frames() {
            core.packer.flush_all(&mut core.machine);
        }
    }

    /// True if messages can be sent to a peer.
    ///
    /// # Errors
    /// [`Blocked::Gone`].
    pub fn is_open(&self, peer: PeerId) -> Result<bool, Blocked> {
        match self.gone(peer) {
            Some(gone) => Err(gone),
            None => Ok(self.core.machine.is_open(peer)),
        }
    }

    /// True if the peer has acknowledged everything, and its refusals have arrived.
    #[must_use]
    pub fn is_peer_acknowledged(&mut self, peer: PeerId) -> bool {
        match with_route(&mut self.memory, peer) {
            Some((memory, _)) => memory.is_acknowledged(&self.core.machine, peer),
            None => self.is_packed(peer) && self.core.machine.is_acknowledged(peer),
        }
    }

    /// Why the peer has refused a message of an edge, if it refuses them now or that was not reported
    /// yet. The caller must report it.
    #[must_use]
    pub fn take_refusal(&mut self, source: u32, target: &Target) -> Option<RefusedReason> {
        let ends = (source, target.address.endpoint.0);
        let unreported = self.core.refusals.take(target.edge.peer, ends);
        self.core.machine.refusal(target.edge).or(unreported)
    }

    /// True if the peer has refused a message of an edge and no caller has reported it.
    #[must_use]
    pub fn has_unreported_refusal(&self, source: u32, target: &Target) -> bool {
        let ends = (source, target.address.endpoint.0);
        self.core.refusals.contains(target.edge.peer, ends)
    }

    /// True if a peer is gone but had acknowledged everything.
    pub fn acknowledged_before_leaving(&self, peer: PeerId) -> bool {
        self.core.peers.acknowledged_before_leaving(peer)
    }

    /// True if all peers have acknowledged everything.
    #[must_use]
    pub fn is_acknowledged(&mut self) -> bool {
        let peers: Vec<PeerId> = self.core.machine.peers().collect();
        peers
            .into_iter()
            .all(|peer| self.is_peer_acknowledged(peer))
    }

    /// True if this process can leave without losing messages: packets are acknowledged, and
    /// records are in rings, where peers still find them.
    #[must_use]
    pub fn can_leave(&mut self) -> bool {
        let peers: Vec<PeerId> = self.core.machine.peers().collect();
        peers
            .into_iter()
            .all(|peer| match with_route(&mut self.memory, peer) {
                Some((memory, _)) => memory.can_leave(&self.core.machine, peer),
                None => self.is_packed(peer) && self.core.machine.can_leave(peer),
            })
    }

    /// True if nothing waits to be packed for a peer or to leave.
    fn is_packed(&self, peer: PeerId) -> bool {
        let packer = &self.core.packer;
        !packer.is_filling(peer) && !packer.has_long(peer) && !self.packets.has_batch()
    }

    /// The route to a peer through shared memory, if there is one.
    #[inline]
    fn route(&self, peer: PeerId) -> Option<Route> {
        self.memory.as_ref()?.route(peer)
    }

    /// Adds the reason if the peer is gone. The caller reports refusals.
    fn with_reason(&mut self, edge: EdgeId, why: Blocked) -> Blocked {
        if matches!(why, Blocked::Refused(_))
            && let Some(key) = self.core.machine.edge_key(edge)
        {
            self.core.refusals.take(edge.peer, key.ends());
        }
        match why {
            Blocked::Gone(None) | Blocked::Opening => self.gone(edge.peer).unwrap_or(why),
            other => other,
        }
    }

    /// The error for a peer that is gone. The reason is lost once another peer has its slot.
    fn gone(&self, peer: PeerId) -> Option<Blocked> {
        let reason = self.core.peers.gone_reason(peer);
        let is_gone = reason.is_some() || self.core.machine.node(peer).is_none();
        is_gone.then_some(Blocked::Gone(reason))
    }
}

/// Shared memory and the route to a peer, if it is reached that way.
#[inline]
fn with_route(
    memory: &mut Option<SharedMemory>,
    peer: PeerId,
) -> Option<(&mut SharedMemory, Route)> {
    let memory = memory.as_mut()?;
    let route = memory.route(peer)?;
    Some((memory, route))
}
