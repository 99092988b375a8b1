//! Selection and construction of the next packet of a session.

use core::ops::Range as Bytes;
use serde::{Deserialize, Serialize};

use crate::channel::Notice;
use crate::config::LEAST_PACKET_BYTES;
use crate::event::PeerId;
use crate::handshake::Farewell;
use crate::holes::low;
use crate::key::Seal;
use crate::lane::Lane;
use crate::send::{Flight, Next, Slot};
use crate::session::Session;
use crate::session::ranges::RangeList;
use crate::shared::Shared;
use crate::time::Instant;
use crate::wire::{
    Address, CONTROL_LANE, CREDIT_BYTES, CREDIT_REQUEST_BYTES, ECHO_BYTES, EDGE_END_BYTES, Flags,
    HEADER_BYTES, Header, Kind, PROBE_BYTES, Part, REFUSED_BYTES, emit_backlog, emit_credit,
    emit_credit_request, emit_echo, emit_edge_end, emit_edge_forgotten, emit_lane_ack, emit_probe,
    emit_refused, emit_window,
};

/// Access to the caller's frames.
pub trait Frames {
    /// The frame of a queued slot: all its bytes, and where its records end.
    fn filled(&mut self, slot: Slot) -> (&mut [u8], usize);

    /// A frame for one packet without a unit; `None` if none is free. It is free again once the
    /// packet has been passed to the link.
    fn scratch(&mut self) -> Option<(Slot, &mut [u8])>;

    /// A frame that stays in use until it is released; `None` if none is free.
    fn allocate(&mut self) -> Option<(Slot, &mut [u8])>;

    /// Like [`scratch`](Self::scratch), with a copy of these bytes of a filled frame from
    /// [`HEADER_BYTES`] on.
    fn part(&mut self, slot: Slot, bytes: Bytes<usize>) -> Option<(Slot, &mut [u8])>;

    /// Sets where the records of an allocated frame end.
    fn fill(&mut self, slot: Slot, end: usize);
}

/// The frame that contains a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Frame {
    /// A queued frame. It belongs to the machine until it is released.
    Unit(Slot),
    /// A queued frame that is free as soon as it has been passed to the link.
    Loose(Slot),
    /// The packet is in a scratch frame.
    Scratch(Slot),
}

/// A packet to send now. The caller appends the trailer for the seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Transmit {
    /// Destination of the packet.
    pub to: Address,
    /// The packet leaves through the bulk port.
    pub bulk: bool,
    /// The frame that contains it.
    pub frame: Frame,
    /// Bytes before the trailer.
    pub length: usize,
    /// Trailer that the packet needs.
    pub seal: Seal,
    /// The session it belongs to, if any.
    pub peer: Option<PeerId>,
    /// It may leave from another port than that of its lane: the receiver ignores the source port.
    pub any_port: bool,
    /// It must not be joined with other packets, because it tests which length the path carries.
    pub alone: bool,
}

impl Session {
    /// True if [`poll_transmit`](Self::poll_transmit) may return a packet.
    pub(crate) fn has_transmit(&self) -> bool {
        self.is_open()
            && (self.acks.is_due()
                || self.requests.is_ack_due()
                || self.channel.credit_requests_due
                || self.paths.has_transmit()
                || self.sizing.has_transmit()
                || self.has_notice()
                || !self.unreliable.is_empty()
                || self.window.has_next(self.allowed())
                || self.must_announce_backlog())
    }

    pub(super) fn allowed(&self) -> u32 {
        // One small packet may always be in flight.
        let least = u32::from(self.window.has_small());
        let allowed = self.pace.allowed().max(least);
        allowed.max(self.window.flying() + self.retransmission.unpaced())
    }

    /// True if the peer's window prevents this side from sending.
    pub(super) fn is_held(&self) -> bool {
        let granted = self.pace.restricted_to();
        granted.is_some_and(|granted| self.window.flying() >= granted)
            && self.window.has_next(u32::MAX)
            && !self.window.has_next(self.allowed())
    }

    /// True if packets wait for a grant and the peer does not know of any of them.
    fn must_announce_backlog(&self) -> bool {
        self.is_held()
            && self
                .flow
                .hides_backlog(self.window.top(), self.window.end())
    }

    /// The next packet of this session.
    pub(crate) fn poll_transmit(
        &mut self,
        now: Instant,
        frames: &mut impl Frames,
        shared: &mut Shared,
    ) -> Option<Transmit> {
        if !self.is_open() {
            return None;
        }
        if self.has_notice() {
            self.queue_notices(frames, shared);
        }
        if self.paths.has_transmit() || self.sizing.has_transmit() {
            let probe = self.probe_or_echo(frames, shared);
            if probe.is_some() {
                return probe;
            }
        }
        let lane_open = self.lanes.iter().all(|lane| lane.out.is_open());
        let has_unit = lane_open && self.window.has_next(self.allowed());
        if self.requests.is_ack_due()
            || self.channel.credit_requests_due
            || self.acks.is_due() && self.needs_own_packet(has_unit)
            || self.must_announce_backlog()
        {
            let packet = self.control(now, frames, shared);
            // This packet or the grant that answers it may get lost.
            self.arm_ack_request(now, shared);
            return packet;
        }
        if has_unit && let Some(next) = self.next_piece(frames) {
            return self.piece(next, now, frames, shared);
        }
        if self.acks.is_due() {
            // The unit that was to carry the acknowledgement had arrived meanwhile.
            return self.control(now, frames, shared);
        }
        loop {
            let (slot, bulk) = self.unreliable.pop_front()?;
            if self.fits(frames.filled(slot).1) {
                return Some(self.unreliable_packet(slot, bulk, frames, shared));
            }
            // It was filled before the packet size of the path fell.
            shared.released.push(slot);
        }
    }

    /// Fast path: the packet with a frame that was just filled, if that may be sent at once and
    /// nothing else is queued. The result is the same as that of [`queue`](Self::queue) and
    /// [`poll_transmit`](Self::poll_transmit). Returns `None` and changes nothing otherwise.
    #[inline]
    pub(crate) fn transmit_alone(
        &mut self,
        slot: Slot,
        now: Instant,
        frames: &mut impl Frames,
        shared: &mut Shared,
    ) -> Option<Transmit> {
        let others_wait = self.requests.is_ack_due()
            || self.channel.credit_requests_due
            || self.paths.has_transmit()
            || self.sizing.has_transmit()
            || self.has_notice()
            || !self.unreliable.is_empty()
            || self.acks.is_due() && self.needs_own_packet(true);
        let may_leave = self.is_open()
            && self.fits(frames.filled(slot).1)
            && self.lanes.iter().all(|lane| lane.out.is_open());
        if others_wait || !may_leave {
            return None;
        }
        let next = self.window.next_alone(slot, self.allowed())?;
        self.piece(next, now, frames, shared)
    }

    /// True if a packet of this length, without its trailer, is allowed.
    pub(super) fn fits(&self, end: usize) -> bool {
        end + self.keys.seals.out.bytes() <= self.packet_bytes()
    }

    /// The next unit, or a part of a unit that is too long for the path.
    fn next_piece(&mut self, frames: &mut impl Frames) -> Option<Next> {
        loop {
            let next = self.window.next(self.allowed())?;
            let end = match next.piece.part.is_whole() {
                true => frames.filled(next.slot).1,
                false => return Some(next),
            };
            if self.fits(end) || end <= HEADER_BYTES + self.part_bytes(end) {
                return Some(next);
            }
            let parts = (end - HEADER_BYTES).div_ceil(self.part_bytes(end));
            self.window.cut(next.piece.unit, parts);
        }
    }

    /// Bytes of each part but the last, for a unit that ends at `end`. They never change, so that a
    /// retransmitted part has the same contents.
    fn part_bytes(&self, end: usize) -> usize {
        let space = self.sizing.size.least_bytes();
        let space = space.saturating_sub(HEADER_BYTES + self.keys.seals.out.bytes());
        space.max((end - HEADER_BYTES).div_ceil(Part::MOST))
    }

    /// True if an acknowledgement needs a packet of its own: there is no unit to carry it, or the
    /// header has no room for all of it.
    fn needs_own_packet(&self, has_unit: bool) -> bool {
        !has_unit
            || self.flow.is_window_due()
            || self.channel.has_grant()
            || self.lanes.iter().filter(|lane| lane.incoming.dirty).count() > 1
            || self.lanes.iter().any(|lane| !lane.incoming.is_whole())
    }

    fn piece(
        &mut self,
        next: Next,
        now: Instant,
        frames: &mut impl Frames,
        shared: &mut Shared,
    ) -> Option<Transmit> {
        let Next {
            piece,
            slot,
            repeat,
            ..
        } = next;
        let (_, end) = frames.filled(slot);
        let (frame, bytes, end) = if piece.part.is_whole() {
            (Frame::Unit(slot), frames.filled(slot).0, end)
        } else {
            let length = self.part_bytes(end);
            let from = HEADER_BYTES + usize::from(piece.part.index) * length;
            let range = from..end.min(from + length);
            let end = HEADER_BYTES + range.len();
            let (slot, bytes) = frames.part(slot, range)?;
            (Frame::Scratch(slot), bytes, end)
        };
        let detour = self.retransmission.takes_detour(repeat);
        let detour = detour.then(|| self.window.last_lane_of(piece)).flatten();
        let index = self.pick_lane(next.bulk, detour);
        let mut header = self.header(Kind::Data);
        header.flags.set(Flags::UNIT);
        self.request_ack(&mut header.flags);
        if repeat {
            self.retransmission.repeated(now);
            header.flags.set(Flags::REPEAT);
            shared.stats.repeats += 1;
            // Settle the unit's former number first, so that this packet reports it.
            self.settle_lanes();
        } else if piece.part.index == 0 {
            shared.stats.units_sent += 1;
        }
        // Piggybacked records do not belong to the unit, so a part cannot carry them.
        let limit = match frame {
            Frame::Unit(_) => self.records_limit(bytes),
            _ => end,
        };
        let end = self.piggyback(&mut header, bytes, (end, limit), shared);
        let length = u16::try_from(end + self.keys.seals.out.bytes()).unwrap_or(u16::MAX);
        let asked = header.flags.has(Flags::LAST) || header.flags.has(Flags::ACK_WANTED);
        let lane = &mut self.lanes[index];
        let number = lane.out.record(piece, length, now, asked);
        let flight = Flight {
            lane: lane.id,
            number,
        };
        if lane.bulk {
            header.flags.set(Flags::BULK);
        }
        header.number = low(number);
        header.unit = low(piece.unit);
        header.part = piece.part;
        header.settled = lane.out.settled(number);
        header.lane = lane.id;
        self.finish(header, bytes, end);
        self.window.sent(piece, flight, length, now);
        self.pace.sent();
        if self.retransmission.is_stopped() {
            self.progress(now, shared);
        }
        self.liveness.expect_reply(now);
        self.probe_after_unit(now, shared);
        Some(self.leaving(index, frame, end))
    }

    fn unreliable_packet(
        &mut self,
        slot: Slot,
        bulk: bool,
        frames: &mut impl Frames,
        shared: &mut Shared,
    ) -> Transmit {
        shared.stats.unreliable_sent += 1;
        let index = self.pick_lane(bulk, None);
        let mut header = self.control_header(Kind::Data);
        if self.lanes[index].bulk {
            header.flags.set(Flags::BULK);
        }
        let (bytes, records_end) = frames.filled(slot);
        let limit = self.records_limit(bytes);
        let end = self.piggyback(&mut header, bytes, (records_end, limit), shared);
        self.finish(header, bytes, end);
        self.leaving(index, Frame::Loose(slot), end)
    }

    /// An acknowledgement, or an `AckRequest` if one is due.
    fn control(
        &mut self,
        now: Instant,
        frames: &mut impl Frames,
        shared: &mut Shared,
    ) -> Option<Transmit> {
        let (slot, bytes) = frames.scratch()?;
        let kind = match self.requests.take_ack() {
            true => Kind::AckRequest,
            false => Kind::Ack,
        };
        match kind {
            Kind::AckRequest => {
                self.retransmission.prompted(now);
                shared.stats.ack_requests += 1;
            }
            _ => shared.stats.explicit_acks += 1,
        }
        let floor = match kind {
            Kind::Ack => self.lanes.iter().position(Lane::must_send_floor),
            _ => None,
        };
        // A dead lane must not prevent the peer from learning that nothing below the floor follows.
        let by_itself = floor.filter(|index| self.lanes[*index].path.is_proven());
        let index = by_itself.unwrap_or_else(|| self.pick_control_lane(kind));
        let mut header = match floor {
            Some(index) => self.floor_header(index),
            None => self.control_header(kind),
        };
        self.acknowledge_in(&mut header, shared);
        // Control packets are as short as every path allows, because they report losses on the other lanes.
        let mut limit = bytes.len().min(LEAST_PACKET_BYTES);
        let seal_bytes = self.keys.seals.out.bytes();
        if !self.lanes[index].path.is_heard() {
            // A bare header always goes: no other lane is left, and requests are repeated ever more rarely.
            let left = self.paths.unproven_left().max(HEADER_BYTES + seal_bytes);
            limit = limit.min(left);
        }
        let limit = limit - seal_bytes;
        let mut end = HEADER_BYTES;
        end += self.put_window(&mut bytes[end..limit], shared);
        end += self.put_backlog(&mut bytes[end..limit]);
        let before_lanes = end;
        end = self.put_lane_acks(bytes, end, limit, shared);
        // Lanes without room come first in the next packet.
        let lanes_left = end > before_lanes && self.lanes.iter().any(|lane| lane.incoming.dirty);
        end = self.put_credits(bytes, end, limit);
        // The packet number distinguishes requests of an ended edge from those of its next life.
        if header.lane == CONTROL_LANE {
            end = self.put_credit_requests(bytes, end, limit);
        }
        let more =
            lanes_left || self.channel.has_grant() || self.lanes.iter().any(Lane::must_send_floor);
        self.acks.sent(more);
        self.count_unproven(index, end + seal_bytes);
        self.finish(header, bytes, end);
        let mut control = self.leaving(index, Frame::Scratch(slot), end);
        control.any_port &= kind == Kind::Ack; // A request renews the mapping in a NAT on the way.
        Some(control)
    }

    /// A probe of a lane, or the answer to one. It carries nothing else, because it may well be lost.
    fn probe_or_echo(&mut self, frames: &mut impl Frames, shared: &mut Shared) -> Option<Transmit> {
        let echo = self.paths.next_echo();
        let (index, length) = match &echo {
            Some(echo) => (echo.back, ECHO_BYTES),
            None => self.next_probe()?,
        };
        let (slot, bytes) = frames.scratch()?;
        let end = HEADER_BYTES + length;
        let records = &mut bytes[HEADER_BYTES..end];
        if let Some(echo) = echo {
            emit_echo(records, echo.lane, echo.token, echo.length);
        } else {
            shared.stats.probes += 1;
            let lane = &self.lanes[index];
            emit_probe(records, lane.id, self.paths.token(lane));
        }
        let mut header = self.control_header(Kind::Ack);
        if self.lanes[index].bulk {
            header.flags.set(Flags::BULK);
        }
        self.finish(header, bytes, end);
        Some(Transmit {
            alone: true,
            ..self.leaving(index, Frame::Scratch(slot), end)
        })
    }

    /// The lane to probe next, and the length of the probe's record.
    fn next_probe(&mut self) -> Option<(usize, usize)> {
        let around = HEADER_BYTES + self.keys.seals.out.bytes();
        if let Some((index, bytes)) = self.sizing.next_probe() {
            return Some((
                index,
                usize::from(bytes).saturating_sub(around).max(PROBE_BYTES),
            ));
        }
        while let Some(index) = self.paths.next_unproven() {
            // A probe of full length rejects paths that carry only shorter packets. The first one is
            // short, because the address may belong to an unrelated host.
            let length = match self.lanes[index].path.is_heard() {
                true => self.packet_bytes() - around,
                false => PROBE_BYTES,
            };
            if self.count_unproven(index, around + length) {
                return Some((index, length));
            }
        }
        None
    }

    /// A finished packet on a lane.
    #[inline]
    pub(super) fn leaving(&self, lane: usize, frame: Frame, length: usize) -> Transmit {
        let lane = &self.lanes[lane];
        Transmit {
            to: lane.to,
            bulk: lane.bulk,
            frame,
            length,
            seal: self.keys.seals.out,
            peer: Some(self.id),
            // NAT in front of the peer passes only packets from the port that the peer has sent to.
            any_port: !self.paths.announcements.is_translated,
            alone: false,
        }
    }

    /// Sets the flags by which a packet requests an acknowledgement. Its unit has left the queue and
    /// is not yet counted as in flight.
    #[inline]
    pub(super) fn request_ack(&self, flags: &mut Flags) {
        let flying = self.window.flying() + 1;
        if self.window.is_drained() || flying >= self.allowed() {
            flags.set(Flags::LAST);
        }
        if flying * 2 >= self.pace.allowed() {
            flags.set(Flags::ACK_WANTED);
        }
    }

    /// Where the records of a packet in this frame must end.
    pub(super) fn records_limit(&self, frame: &[u8]) -> usize {
        frame.len().min(self.packet_bytes()) - self.keys.seals.out.bytes()
    }

    /// Adds acknowledgement and grants to a data packet that ends at `end`, up to `limit`. Returns
    /// the new end.
    fn piggyback(
        &mut self,
        header: &mut Header,
        bytes: &mut [u8],
        (end, limit): (usize, usize),
        shared: &Shared,
    ) -> usize {
        self.acknowledge_in(header, shared);
        let end = self.put_credits(bytes, end, limit);
        let told_all = self
            .lanes
            .iter()
            .all(|lane| lane.incoming.is_whole() && !lane.incoming.dirty);
        if told_all && !self.channel.has_grant() {
            self.acks.sent(false);
        }
        end
    }

    /// Fills in the acknowledgement fields, for the lane with the newest arrivals.
    fn acknowledge_in(&mut self, header: &mut Header, shared: &Shared) {
        if self.owes_refusals() {
            header.flags.set(Flags::REFUSING);
        }
        let dirty = |lane: &Lane| lane.incoming.dirty;
        let index = self.lanes.iter().position(dirty).unwrap_or(0);
        let reorder = shared.config.reorder_packets;
        let lane = &mut self.lanes[index];
        let next = lane.incoming.next();
        let first_hole_end = lane.incoming.ripe(reorder).0.next().map(|hole| hole.end);
        header.flags.set(Flags::ACK);
        header.unit_next = low(self.units.next());
        header.ack_lane = lane.id;
        header.lane_next = low(next);
        header.lane_end = low(first_hole_end.unwrap_or(next));
        if lane.incoming.is_whole() {
            lane.incoming.dirty = false;
        }
    }

    /// Adds acknowledgements of the lanes with new arrivals, then of those that still miss packets.
    fn put_lane_acks(
        &mut self,
        bytes: &mut [u8],
        mut end: usize,
        limit: usize,
        shared: &Shared,
    ) -> usize {
        let reorder = shared.config.reorder_packets;
        let lanes = self.lanes.iter().map(|lane| &lane.incoming);
        let old = lanes.map(|incoming| !incoming.dirty && !incoming.is_whole());
        let old = old.enumerate().fold(0_u16, |old, (index, is_old)| {
            old | u16::from(is_old) << index
        });
        for olds in [false, true] {
            for (index, lane) in self.lanes.iter_mut().enumerate() {
                let is_old = old & 1 << index != 0;
                if olds != is_old || !olds && !lane.incoming.dirty {
                    continue;
                }
                let (holes, top) = lane.incoming.ripe(reorder);
                let ranges = RangeList::collect(holes);
                let numbers = (low(lane.incoming.next()), low(top));
                let written =
                    emit_lane_ack(&mut bytes[end..limit], lane.id, numbers, ranges.as_slice());
                if written == 0 {
                    return end;
                }
                end += written;
                lane.incoming.mark_requested(reorder);
            }
        }
        end
    }

    fn put_credits(&mut self, bytes: &mut [u8], mut end: usize, limit: usize) -> usize {
        while end + CREDIT_BYTES <= limit {
            let Some((key, granted)) = self.channel.next_grant() else {
                break;
            };
            end += emit_credit(&mut bytes[end..], key, granted);
        }
        end
    }

    fn put_credit_requests(&mut self, bytes: &mut [u8], mut end: usize, limit: usize) -> usize {
        if !self.channel.credit_requests_due {
            return end;
        }
        let mut sent = 0;
        while end + CREDIT_REQUEST_BYTES <= limit
            && let Some(waiting) = self.channel.credit_request(sent)
        {
            sent += 1;
            if let Some(waiting) = waiting {
                end += emit_credit_request(&mut bytes[end..], waiting.key, waiting.request);
            }
        }
        // Requests that did not fit come first next time.
        self.channel.credit_requests_sent(sent);
        end
    }

    fn put_window(&mut self, bytes: &mut [u8], shared: &Shared) -> usize {
        let window = shared.grants.window(self.id);
        let former = self.flow.window();
        let small_change = u64::from(window.abs_diff(former)) * 4 <= u64::from(former);
        self.flow.set_window_due(false);
        // With limited grants even a small change is sent again, because it may have been lost.
        if small_change && !shared.grants.is_limited() || bytes.len() < 8 {
            return 0;
        }
        self.flow.announce_window(window);
        emit_window(bytes, window)
    }

    fn put_backlog(&mut self, bytes: &mut [u8]) -> usize {
        if !self.is_held() || bytes.len() < 8 {
            return 0;
        }
        let end = self.window.end();
        self.flow.announce_backlog(end);
        emit_backlog(bytes, low(end))
    }

    /// True if the peer may not have received a refusal of what it has sent.
    pub(super) fn owes_refusals(&self) -> bool {
        self.channel.has_refusals() || self.window.has_refusals()
    }

    /// True if notices wait for a free frame.
    pub(crate) fn has_notice(&self) -> bool {
        self.is_open() && (self.channel.has_notice() || self.paths.must_announce())
    }

    /// Packs notices into units of their own, so that they are retransmitted.
    fn queue_notices(&mut self, frames: &mut impl Frames, shared: &Shared) {
        let Some((slot, bytes)) = frames.allocate() else {
            return;
        };
        let limit = self.records_limit(bytes);
        let mut end = HEADER_BYTES + self.put_lanes(&mut bytes[HEADER_BYTES..limit], shared);
        let mut refuses = false;
        while end + NOTICE_BYTES <= limit
            && let Some(notice) = self.channel.peek_notice()
        {
            refuses |= matches!(notice, Notice::Refused { .. });
            let rest = &mut bytes[end..];
            end += match *notice {
                Notice::Refused {
                    key,
                    sequence,
                    reason,
                } => emit_refused(rest, key.ends(), low(sequence), reason),
                Notice::End { key, sequence } => {
                    emit_edge_end(rest, key, low(sequence), low(self.control.next()))
                }
                Notice::Forgotten { key } => emit_edge_forgotten(rest, key),
            };
            self.channel.pop_notice();
        }
        frames.fill(slot, end);
        self.window.queue_notices(slot, refuses);
    }

    fn header(&self, kind: Kind) -> Header {
        Header::handshake(kind, self.remote.connection)
    }

    fn control_header(&mut self, kind: Kind) -> Header {
        let number = self.control.take_number();
        Header {
            number: low(number),
            lane: CONTROL_LANE,
            ..self.header(kind)
        }
    }

    /// The header of a packet without a unit. Its number means that nothing below it will
    /// arrive any more.
    fn floor_header(&mut self, index: usize) -> Header {
        let lane = &mut self.lanes[index];
        lane.floor_due = false;
        let (number, id, bulk) = (lane.out.skip(), lane.id, lane.bulk);
        let mut header = Header {
            number: low(number),
            lane: id,
            ..self.header(Kind::Data)
        };
        if bulk {
            header.flags.set(Flags::BULK);
        }
        header
    }

    fn finish(&self, mut header: Header, bytes: &mut [u8], end: usize) {
        header.length = u16::try_from(end + self.keys.seals.out.bytes()).unwrap_or(u16::MAX);
        header.emit(bytes);
    }

    /// Destination of the packet that ends the session.
    pub(crate) fn bye_address(&self) -> Address {
        let proven = |lane: &&Lane| !lane.bulk && lane.path.is_proven();
        let lane = self.lanes.iter().find(proven);
        lane.map_or(self.remote.home, |lane| lane.to)
    }

    /// The contents of the packet that ends the session. It acknowledges what has arrived, because
    /// it may overtake the last acknowledgement, or that one may be lost.
    pub(crate) fn farewell(&mut self, incarnation: u64) -> Farewell {
        Farewell {
            connection: self.remote.connection,
            number: low(self.control.take_number()),
            unit_next: low(self.units.next()),
            refuses: self.owes_refusals(),
            incarnation,
            seal: self.keys.seals.out,
        }
    }
}

/// Length of the longest record of a notice.
const NOTICE_BYTES: usize = if REFUSED_BYTES > EDGE_END_BYTES {
    REFUSED_BYTES
} else {
    EDGE_END_BYTES
};
