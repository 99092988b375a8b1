//! Which packet a session sends next, and what rides on it.

use core::ops::Range as Bytes;

use ranges::RangeList;

use crate::channel::Notice;
use crate::event::PeerId;
use crate::key::Seal;
use crate::lane::Lane;
use crate::send::{Flight, Next, Slot};
use crate::session::Session;
use crate::shared::Shared;
use crate::time::Instant;
use crate::wire::{
    Address, CONTROL_LANE, CREDIT_BYTES, CREDIT_REQUEST_BYTES, ECHO_BYTES, EDGE_END_BYTES, Flags,
    HEADER_BYTES, Header, Kind, PROBE_BYTES, Part, REFUSED_BYTES, Range, emit_backlog, emit_credit,
    emit_credit_request, emit_echo, emit_edge_end, emit_edge_forgotten, emit_lane_ack, emit_probe,
    emit_refused, emit_window,
};

/// The caller's frames, as far as the machine writes into them.
pub trait Frames {
    /// The frame of a queued slot: its whole space, and where its records end.
    fn filled(&mut self, slot: Slot) -> (&mut [u8], usize);

    /// A frame for one packet without a unit; `None` if there is none now. It is
    /// free again once the packet has been handed to the link.
    fn scratch(&mut self) -> Option<(Slot, &mut [u8])>;

    /// A frame that stays in use until it is released; `None` if there is none now.
    fn allocate(&mut self) -> Option<(Slot, &mut [u8])>;

    /// Like [`scratch`](Self::scratch), with these bytes of a filled frame from
    /// [`HEADER_BYTES`] on.
    fn part(&mut self, slot: Slot, bytes: Bytes<usize>) -> Option<(Slot, &mut [u8])>;

    /// Sets where the records of an allocated frame end.
    fn fill(&mut self, slot: Slot, end: usize);
}

/// Whose frame a packet lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A queued one; it stays with the machine until it is released.
    Unit(Slot),
    /// A queued one that is free as soon as it has been handed to the link.
    Loose(Slot),
    /// A scratch frame.
    Scratch(Slot),
}

/// A packet to send now. The caller appends what the seal says and sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Where to.
    pub to: Address,
    /// By the bulk port.
    pub bulk: bool,
    /// Where its bytes lie.
    pub frame: Frame,
    /// Bytes before the trailer.
    pub length: usize,
    /// What to append.
    pub seal: Seal,
    /// The session it belongs to, if any: then its source port tells the receiver nothing.
    pub peer: Option<PeerId>,
}

impl Session {
    /// True if [`poll_transmit`](Self::poll_transmit) may have something.
    pub(crate) fn has_transmit(&self) -> bool {
        self.is_open()
            && (self.pending_ack.now
                || self.ack_request_due
                || self.channel.credit_requests_due
                || self.paths.has_transmit()
                || self.sizing.has_transmit()
                || self.channel.has_notice()
                || !self.unreliable.is_empty()
                || self.window.has_next(self.allowed())
                || self.must_announce_backlog())
    }

    fn allowed(&self) -> u32 {
        // A small packet may always go, one at a time.
        let least = u32::from(self.window.has_small());
        let allowed = self.pace.allowed().max(least);
        allowed.max(self.window.flying() + self.forced)
    }

    /// True if the peer's window keeps back what could be sent.
    pub(super) fn is_held(&self) -> bool {
        let granted = self.pace.restricted_to();
        granted.is_some_and(|granted| self.window.flying() >= granted)
            && self.window.has_next(u32::MAX)
            && !self.window.has_next(self.allowed())
    }

    /// True if the peer does not know how much waits for its grants, or all that it knows of
    /// has been sent.
    fn must_announce_backlog(&self) -> bool {
        self.is_held()
            && self.announced_backlog <= self.window.top()
            && self.announced_backlog < self.window.end()
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
        if self.channel.has_notice() {
            self.queue_notices(frames);
        }
        if self.paths.has_transmit() || self.sizing.has_transmit() {
            let probe = self.probe_or_echo(frames, shared);
            if probe.is_some() {
                return probe;
            }
        }
        let lane_open = self.lanes.iter().all(|lane| lane.out.is_open());
        let has_unit = lane_open && self.window.has_next(self.allowed());
        if self.ack_request_due
            || self.channel.credit_requests_due
            || self.pending_ack.now && self.needs_own_packet(has_unit)
            || self.must_announce_backlog()
        {
            let packet = self.control(frames, shared);
            // What is told may be lost, and so may the grant.
            self.arm_ack_request(now, shared);
            return packet;
        }
        if has_unit && let Some(next) = self.next_piece(frames) {
            return self.piece(next, now, frames, shared);
        }
        if self.pending_ack.now {
            // The unit to ride on had arrived after all.
            return self.control(frames, shared);
        }
        loop {
            let (slot, bulk) = self.unreliable.pop_front()?;
            if self.fits(frames.filled(slot).1) {
                return Some(self.unreliable_packet(slot, bulk, frames, shared));
            }
            // Filled before the path became too narrow for it.
            shared.released.push(slot);
        }
    }

    /// The packet that carries a frame which the caller has just filled, if it may leave at
    /// once and is all that there is to send: what [`queue`](Self::queue) and
    /// [`poll_transmit`](Self::poll_transmit) would give. `None`, and nothing has changed, else.
    #[inline]
    pub(crate) fn transmit_alone(
        &mut self,
        slot: Slot,
        now: Instant,
        frames: &mut impl Frames,
        shared: &mut Shared,
    ) -> Option<Transmit> {
        let others_wait = self.ack_request_due
            || self.channel.credit_requests_due
            || self.paths.has_transmit()
            || self.sizing.has_transmit()
            || self.channel.has_notice()
            || !self.unreliable.is_empty()
            || self.pending_ack.now && self.needs_own_packet(true);
        let may_leave = self.is_open()
            && self.fits(frames.filled(slot).1)
            && self.lanes.iter().all(|lane| lane.out.is_open());
        if others_wait || !may_leave {
            return None;
        }
        let next = self.window.next_alone(slot, self.allowed())?;
        self.piece(next, now, frames, shared)
    }

    /// True if packets may be so long, a trailer not counted.
    fn fits(&self, end: usize) -> bool {
        end + self.seals.out.bytes() <= self.packet_bytes()
    }

    /// The next unit, or a part of one that is too long for its path.
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

    /// Bytes of each part but the last of a unit that ends at `end`: always the same, so that
    /// a part is what it was when it is sent again.
    fn part_bytes(&self, end: usize) -> usize {
        let space = self.sizing.size.least_bytes();
        let space = space.saturating_sub(HEADER_BYTES + self.seals.out.bytes());
        space.max((end - HEADER_BYTES).div_ceil(Part::MOST))
    }

    /// An acknowledgement rides on a unit, unless it says more than the header can.
    fn needs_own_packet(&self, has_unit: bool) -> bool {
        !has_unit
            || self.window_due
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
        let detour = self.detour && repeat && self.forced > 0;
        let detour = detour.then(|| self.window.last_lane_of(piece)).flatten();
        let index = self.pick_lane(next.bulk, detour);
        let mut header = self.header(Kind::Data);
        header.flags.set(Flags::UNIT);
        self.forced = self.forced.saturating_sub(u32::from(repeat));
        // `next` has left the queue and doesn't fly yet.
        let flying = self.window.flying() + 1;
        let last = self.window.is_drained() || flying >= self.allowed();
        if last {
            header.flags.set(Flags::LAST);
        }
        if flying * 2 >= self.pace.allowed() {
            header.flags.set(Flags::ACK_WANTED);
        }
        if repeat {
            header.flags.set(Flags::REPEAT);
            shared.stats.repeats += 1;
            // The number it had is settled: let this very packet say so.
            self.settle_lanes();
        } else if piece.part.index == 0 {
            shared.stats.units_sent += 1;
        }
        // Records that ride along are none of the unit's, so none ride on a part.
        let limit = match frame {
            Frame::Unit(_) => bytes.len().min(self.packet_bytes()) - self.seals.out.bytes(),
            _ => end,
        };
        let end = self.ride(&mut header, bytes, (end, limit), shared);
        let length = u16::try_from(end + self.seals.out.bytes()).unwrap_or(u16::MAX);
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
        if self.tail.is_off() {
            self.progress(now, shared);
        }
        self.asked_at.get_or_insert(now);
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
        let limit = bytes.len().min(self.packet_bytes()) - self.seals.out.bytes();
        let end = self.ride(&mut header, bytes, (records_end, limit), shared);
        self.finish(header, bytes, end);
        self.leaving(index, Frame::Loose(slot), end)
    }

    /// A packet of acknowledgement state: an Ack, or an AckRequest if an answer is wanted.
    fn control(&mut self, frames: &mut impl Frames, shared: &mut Shared) -> Option<Transmit> {
        let (slot, bytes) = frames.scratch()?;
        let kind = if self.ack_request_due {
            Kind::AckRequest
        } else {
            Kind::Ack
        };
        match kind {
            Kind::AckRequest => shared.stats.ack_requests += 1,
            _ => shared.stats.explicit_acks += 1,
        }
        self.ack_request_due = false;
        let floor = match kind {
            Kind::Ack => self.lanes.iter().position(Lane::must_send_floor),
            _ => None,
        };
        // Any way will do to say that a lane which is dead leaves nothing to wait for.
        let by_itself = floor.filter(|index| self.lanes[*index].path.is_proven());
        let index = by_itself.unwrap_or_else(|| self.pick_control_lane(kind));
        let mut header = match floor {
            Some(index) => self.floor_header(index),
            None => self.control_header(kind),
        };
        self.acknowledge_in(&mut header, shared);
        // No longer than any path carries: these tell how the others fare.
        let mut limit = bytes.len().min(CONTROL_BYTES);
        if !self.lanes[index].path.is_heard() {
            limit = limit.min(self.paths.unproven_left());
        }
        let limit = limit - self.seals.out.bytes();
        let mut end = HEADER_BYTES;
        end += self.put_window(&mut bytes[end..limit], shared);
        end += self.put_backlog(&mut bytes[end..limit]);
        end = self.put_lane_acks(bytes, end, limit, shared);
        end = self.put_credits(bytes, end, limit);
        // Their number tells wishes of an edge that has ended from those of its next life.
        if header.lane == CONTROL_LANE {
            end = self.put_wants(bytes, end, limit);
        }
        self.acknowledged();
        self.pending_ack.now =
            self.channel.has_grant() || self.lanes.iter().any(Lane::must_send_floor);
        self.charge_unproven(index, end + self.seals.out.bytes());
        self.finish(header, bytes, end);
        Some(self.leaving(index, Frame::Scratch(slot), end))
    }

    /// Asks a lane whether it leads to the peer, or carries packets of some length, or
    /// answers such a question. Nothing else rides on it: it may well be lost.
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
        Some(self.leaving(index, Frame::Scratch(slot), end))
    }

    /// The next lane to be asked, and how long the probe's record is.
    fn next_probe(&mut self) -> Option<(usize, usize)> {
        let around = HEADER_BYTES + self.seals.out.bytes();
        if let Some((index, bytes)) = self.sizing.next_probe() {
            return Some((
                index,
                usize::from(bytes).saturating_sub(around).max(PROBE_BYTES),
            ));
        }
        while let Some(index) = self.paths.next_question() {
            // As long as packets get, so that a way for shorter ones is not taken; but short
            // at first: the address may be that of somebody who has nothing to do with us.
            let length = match self.lanes[index].path.is_heard() {
                true => self.packet_bytes() - around,
                false => PROBE_BYTES,
            };
            if self.charge_unproven(index, around + length) {
                return Some((index, length));
            }
        }
        None
    }

    /// A finished packet of this session, by a lane.
    #[inline]
    fn leaving(&self, lane: usize, frame: Frame, length: usize) -> Transmit {
        let lane = &self.lanes[lane];
        Transmit {
            to: lane.to,
            bulk: lane.bulk,
            frame,
            length,
            seal: self.seals.out,
            peer: Some(self.id),
        }
    }

    /// Lets acknowledgement and credits ride on a data packet that ends at `end`, up to
    /// `limit`; where it ends now.
    fn ride(
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
            self.acknowledged();
        }
        end
    }

    /// Fills in the acknowledgement fields for the lane with the newest arrivals.
    fn acknowledge_in(&mut self, header: &mut Header, shared: &Shared) {
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

    fn put_lane_acks(
        &mut self,
        bytes: &mut [u8],
        mut end: usize,
        limit: usize,
        shared: &Shared,
    ) -> usize {
        let reorder = shared.config.reorder_packets;
        for lane in &mut self.lanes {
            if lane.incoming.is_whole() && !lane.incoming.dirty {
                continue;
            }
            let (holes, top) = lane.incoming.ripe(reorder);
            let ranges = RangeList::collect(holes);
            let numbers = (low(lane.incoming.next()), low(top));
            let written =
                emit_lane_ack(&mut bytes[end..limit], lane.id, numbers, ranges.as_slice());
            if written == 0 {
                break;
            }
            end += written;
            lane.incoming.asked(reorder);
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

    fn put_wants(&mut self, bytes: &mut [u8], mut end: usize, limit: usize) -> usize {
        if !self.channel.credit_requests_due {
            return end;
        }
        let mut told = 0;
        while end + CREDIT_REQUEST_BYTES <= limit
            && let Some(want) = self.channel.want(told)
        {
            told += 1;
            if let Some((_, key, wish, _)) = want {
                end += emit_credit_request(&mut bytes[end..], key, wish);
            }
        }
        // Those that did not fit come first next time.
        self.channel.credit_requests_sent(told);
        end
    }

    fn put_window(&mut self, bytes: &mut [u8], shared: &Shared) -> usize {
        let window = shared.grants.window(self.id);
        let told = self.announced_window;
        let small_change = u64::from(window.abs_diff(told)) * 4 <= u64::from(told);
        self.window_due = false;
        // One that is lost must not stay so where much depends on it.
        if small_change && !shared.grants.is_limited() || bytes.len() < 8 {
            return 0;
        }
        self.announced_window = window;
        emit_window(bytes, window)
    }

    fn put_backlog(&mut self, bytes: &mut [u8]) -> usize {
        if !self.is_held() || bytes.len() < 8 {
            return 0;
        }
        self.announced_backlog = self.window.end();
        emit_backlog(bytes, low(self.announced_backlog))
    }

    /// True while notices wait for a frame.
    pub(crate) fn has_notice(&self) -> bool {
        self.is_open() && self.channel.has_notice()
    }

    /// Packs notices into units of their own: they must arrive.
    fn queue_notices(&mut self, frames: &mut impl Frames) {
        let Some((slot, bytes)) = frames.allocate() else {
            return;
        };
        let limit = bytes.len().min(self.packet_bytes()) - self.seals.out.bytes();
        let mut end = HEADER_BYTES;
        while end + NOTICE_BYTES <= limit
            && let Some(notice) = self.channel.peek_notice()
        {
            let rest = &mut bytes[end..];
            end += match *notice {
                Notice::Refused {
                    key,
                    sequence,
                    reason,
                } => emit_refused(rest, key.ends(), low(sequence), reason),
                Notice::End { key, sequence } => {
                    emit_edge_end(rest, key, low(sequence), low(self.control_number))
                }
                Notice::Forgotten { key } => emit_edge_forgotten(rest, key),
            };
            self.channel.pop_notice();
        }
        frames.fill(slot, end);
        self.window.queue_notices(slot);
    }

    /// The lane for a class: one that has answered, bulk in turn over the interfaces; of the
    /// other class if need be. A detour, from the lane of a piece's last flight, keeps away from all lanes that let time-outs pass, or, if all
    /// did, takes the one after it: so each piece tries all of them, however many others are repeated
    /// between its turns.
    fn pick_lane(&mut self, bulk: bool, detour: Option<u8>) -> usize {
        // The first small lane nearly always: the search below would find it too.
        if !bulk
            && let Some(lane) = self.lanes.first()
            && !lane.bulk
            && lane.path.is_proven()
            && !(detour.is_some() && lane.timeouts.is_suspect())
        {
            return 0;
        }
        let count = self.lanes.len();
        let first = if bulk { self.next_bulk_lane } else { 0 };
        let order = (0..count).map(|step| (first + step) % count);
        let usable = |index: &usize| {
            let lane = &self.lanes[*index];
            lane.path.is_proven() && !(detour.is_some() && lane.timeouts.is_suspect())
        };
        let chosen = order
            .clone()
            .find(|index| usable(index) && self.lanes[*index].bulk == bulk)
            .or_else(|| order.clone().find(usable))
            .or_else(|| {
                let before = self.lanes.iter().position(|lane| Some(lane.id) == detour);
                let first = before.map_or(first, |index| index + 1);
                let mut order = (0..count).map(|step| (first + step) % count);
                order.find(|index| self.lanes[*index].path.is_proven())
            })
            .unwrap_or(0);
        if bulk && self.window.flying().is_multiple_of(BULK_TURN) {
            self.next_bulk_lane = (chosen + 1) % count;
        }
        chosen
    }

    /// The lane for a packet without a number of its own. Nobody acknowledges it, so a dead
    /// interface would swallow one after the other unseen: an answer goes back by the interface
    /// that was heard last, and ack requests and wishes that nobody answers try all of them.
    fn pick_control_lane(&mut self, kind: Kind) -> usize {
        let may_go = self.paths.unproven_left() >= MIN_UNPROVEN_BYTES;
        let leads_there = |lane: &Lane| {
            !lane.bulk && lane.path.may_lead_there() && (may_go || lane.path.is_heard())
        };
        let interfaces = self.lanes.iter().filter(|lane| leads_there(lane)).count();
        if interfaces < 2 {
            return self.pick_lane(false, None);
        }
        let small = self.lanes.iter().enumerate();
        let mut small = small.filter(|(_, lane)| leads_there(lane));
        let heard = small.clone().position(|(index, _)| index == self.heard_on);
        let first = heard.unwrap_or(0);
        // Wishes for credit are questions too.
        let asks = kind == Kind::AckRequest || self.channel.credit_requests_due;
        let step = if asks { self.unanswered } else { 0 };
        let chosen = small.nth((first + step) % interfaces);
        let chosen = chosen.map_or(0, |(index, _)| index);
        self.unanswered += usize::from(asks);
        chosen
    }

    fn header(&self, kind: Kind) -> Header {
        Header::handshake(kind, self.remote.connection)
    }

    fn control_header(&mut self, kind: Kind) -> Header {
        let number = self.control_number;
        self.control_number += 1;
        Header {
            number: low(number),
            lane: CONTROL_LANE,
            ..self.header(kind)
        }
    }

    /// The header of a packet without a unit whose number says that nothing below
    /// it will come.
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
        header.length = u16::try_from(end + self.seals.out.bytes()).unwrap_or(u16::MAX);
        header.emit(bytes);
    }

    /// Where the packet goes that ends the session: there are no answers to look for.
    pub(crate) fn bye_address(&self) -> Address {
        let proven = |lane: &&Lane| !lane.bulk && lane.path.is_proven();
        let lane = self.lanes.iter().find(proven);
        lane.map_or(self.home, |lane| lane.to)
    }

    /// The header of a packet that ends the session.
    pub(crate) fn bye_header(&mut self) -> Header {
        self.control_header(Kind::Bye)
    }
}

/// A control packet goes to an address that has never answered only if it may be so long.
const MIN_UNPROVEN_BYTES: usize = 128;
/// Longest control packet.
const CONTROL_BYTES: usize = 1200;
/// The longest record of a notice.
const NOTICE_BYTES: usize = if REFUSED_BYTES > EDGE_END_BYTES {
    REFUSED_BYTES
} else {
    EDGE_END_BYTES
};

/// Packets sent over one interface before bulk goes on over the next.
const BULK_TURN: u32 = 32;

#[allow(
    clippy::cast_possible_truncation,
    reason = "the wire carries the low 32 bits"
)]
fn low(number: u64) -> u32 {
    number as u32
}

mod ranges {
    //! A few ranges without allocation.

    use super::{Range, low};
    use crate::holes::Hole;
    use crate::wire::MAX_RANGES;

    pub(super) struct RangeList {
        ranges: [Range; MAX_RANGES + 1],
        count: usize,
    }

    impl RangeList {
        pub(super) fn collect(holes: impl Iterator<Item = Hole>) -> RangeList {
            let mut list = RangeList {
                ranges: [Range::default(); MAX_RANGES + 1],
                count: 0,
            };
            for hole in holes.take(MAX_RANGES + 1) {
                list.ranges[list.count] = Range {
                    start: low(hole.start),
                    count: u16::try_from(hole.end - hole.start).unwrap_or(u16::MAX),
                };
                list.count += 1;
            }
            list
        }

        pub(super) fn as_slice(&self) -> &[Range] {
            &self.ranges[..self.count]
        }
    }
}
