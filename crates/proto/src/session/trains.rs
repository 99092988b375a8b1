//! Trains: consecutive packets with pieces of one message, written one after the other and handled at
//! once.
//!
//! The effect is that of handling them one by one. Whatever is unusual is left to
//! [`Session::on_packet`]: the first and the last piece of a message, packets out of order,
//! retransmissions, units in parts, and grants that depend on each arrival. For the sender that is
//! [`Session::poll_transmit`], which writes the packet whose header the others repeat.

use crate::holes::low;
use crate::lane::Lane;
use crate::send::{Flight, Piece, Slot};
use crate::session::acks::Acks;
use crate::session::receive::Arrivals;
use crate::session::{Frame, Frames, Session, Transmit};
use crate::shared::Shared;
use crate::time::Instant;
use crate::wire::{
    Address, CONTROL_LANE, CREDIT_BYTES, Flags, Fragment, Header, Kind, Packet, TrainHead,
    TrainHeader,
};

/// Consecutive packets of one sender with pieces of one message, neither the first nor the last of
/// which is among them. Their trailers have been verified.
#[derive(Clone, Debug)]
pub(crate) struct Pieces {
    piece: Fragment,
    /// Position of the edge.
    edge: u32,
    /// Flags of the last packet so far.
    flags: Flags,
    /// Head of the packet that follows it; `None` if none can.
    next: Option<TrainHead>,
    count: u32,
    /// Number of packets that may belong to it.
    most: u32,
}

impl Pieces {
    /// Flags of the packet, if it is the next one of the train.
    #[inline]
    pub(crate) fn expects(&self, packet: &[u8]) -> Option<Flags> {
        let (next, head) = (self.next?, TrainHead::of(packet)?);
        let flags = next.leads_to(&head)?;
        (head.packet_bytes() == packet.len() && self.count < self.most).then_some(flags)
    }

    /// Adds the [expected](Self::expects) packet, which has these flags.
    #[inline]
    pub(crate) fn add(&mut self, flags: Flags) {
        if let Some(next) = self.next {
            self.flags = flags;
            self.next = next.with_flags(flags).next(self.piece_bytes());
            self.count += 1;
        }
    }

    /// Number of packets.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Payload bytes of each packet.
    #[inline]
    fn piece_bytes(&self) -> u64 {
        self.piece.payload.len() as u64
    }

    /// Payload bytes of all packets.
    fn bytes(&self) -> u64 {
        self.piece_bytes() * u64::from(self.count)
    }
}

impl Session {
    /// The train that a packet begins.
    #[inline]
    pub(crate) fn begin_train(&self, packet: &Packet<'_>, shared: &Shared) -> Option<Pieces> {
        let piece = packet.fragment()?;
        let header = packet.header();
        let is_usual = header.kind == Kind::Data
            && header.flags.has(Flags::UNIT)
            && !header.flags.has(Flags::REPEAT)
            && header.part.is_whole()
            && header.lane != CONTROL_LANE
            && self.assemblies.len() == 0
            && !shared.grants.is_limited();
        let lane = self.lanes.iter().find(|lane| lane.id == header.lane)?;
        if !is_usual || !lane.incoming.expects(header.number) || !self.units.expects(header.unit) {
            return None;
        }
        let (edge, most) = self.channel.expects_pieces(&piece, shared)?;
        let head = TrainHead::of(packet.covered())?;
        let next = head.next(piece.payload.len() as u64);
        Some(Pieces {
            piece,
            edge,
            flags: header.flags,
            next,
            count: 1,
            most,
        })
    }

    /// Handles the packets of a train, the first of which is `packet`. Events refer to their joined
    /// payloads.
    pub(crate) fn on_train(
        &mut self,
        (now, from): (Instant, Address),
        packet: &Packet<'_>,
        train: Pieces,
        shared: &mut Shared,
    ) {
        let header = Header {
            flags: train.flags,
            ..packet.header()
        };
        let count = train.count;
        self.paths.received(header.length, count);
        shared.grants.on_packets(header.length, count);
        if header.flags.has(Flags::ACK) {
            self.remember_reply_lane(from);
            self.on_ack(&header, now, shared);
        }
        if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.id == header.lane) {
            lane.incoming.append(header.settled, count);
            if lane.incoming.has_new_hole(shared.config.reorder_packets) {
                self.acks.send_now();
            }
        }
        self.units.append(count);
        shared.stats.units_received += u64::from(count);
        let pieces = (&train.piece, train.bytes());
        self.channel.take_pieces(train.edge, pieces, shared);
        // The pieces take memory, so a dead sender must be detected soon.
        self.keep_alive_soon(now, shared);
        let arrivals = Arrivals {
            count,
            verdict: Ok(true),
        };
        let _accepted = self.conclude(&header, arrivals, now, shared);
    }

    /// The packets that leave now, if they are new units and their headers differ from that of
    /// `like`, the last packet of this session, only as in a train. Returns the first and the number
    /// of them, and fills in their frames. Otherwise returns `None` and changes nothing;
    /// [`poll_transmit`](Self::poll_transmit) handles the other cases with the same effect.
    pub(crate) fn transmit_train(
        &mut self,
        like: &Transmit,
        now: Instant,
        frames: &mut impl Frames,
        slots: &mut [Slot],
        shared: &mut Shared,
    ) -> Option<(Transmit, usize)> {
        let former = self.repeatable(like, frames)?;
        let (first, bulk) = self.window.peek_new(self.allowed())?;
        if frames.filled(first).1 != like.length {
            return None;
        }
        let index = self.pick_lane(bulk, None);
        let has_one_lane = self.has_one_lane(bulk);
        let mut is_turn_over = self.is_turn_over();
        let (lane_id, lane_bulk) = (self.lanes[index].id, self.lanes[index].bulk);
        let mut common = Flags::UNIT;
        common.set(Flags::ACK);
        if lane_bulk {
            common.set(Flags::BULK);
        }
        if self.owes_refusals() {
            common.set(Flags::REFUSING);
        }
        let out = &self.lanes[index].out;
        let number = out.next();
        let mut header = TrainHeader::new(&Header {
            number: low(number),
            unit: low(self.window.top()),
            settled: out.settled(number),
            lane: lane_id,
            ..former
        });
        let mut count = 0;
        let mut slot = first;
        loop {
            self.window.take_new(bulk);
            let mut flags = common;
            self.request_ack(&mut flags);
            let asked = flags.has(Flags::LAST) || flags.has(Flags::ACK_WANTED);
            let piece = Piece::whole(self.window.top());
            let number = self.lanes[index]
                .out
                .record(piece, former.length, now, asked);
            header.set_flags(flags);
            header.emit(frames.filled(slot).0);
            header.advance();
            let flight = Flight {
                lane: lane_id,
                number,
            };
            (self.window).sent_new((slot, bulk), flight, former.length, now);
            self.pace.sent();
            self.probe_after_unit(now, shared);
            slots[count] = slot;
            count += 1;
            match self.window.peek_new(self.allowed()) {
                Some((next, class)) if count < slots.len() && class == bulk => slot = next,
                _ => break,
            }
            let is_alike = frames.filled(slot).1 == like.length;
            let changes_lane = !has_one_lane && is_turn_over;
            if !is_alike
                || changes_lane
                || self.paths.has_transmit()
                || !self.lanes[index].out.is_open()
            {
                break;
            }
            if bulk {
                is_turn_over = self.is_turn_over();
                self.end_bulk_turn(index);
            }
        }
        shared.stats.units_sent += count as u64;
        Some((self.leaving(index, Frame::Unit(first), like.length), count))
    }

    /// The header of `like`, if packets of its length may repeat it.
    fn repeatable(&self, like: &Transmit, frames: &mut impl Frames) -> Option<Header> {
        let Frame::Unit(slot) = like.frame else {
            return None;
        };
        let (frame, _) = frames.filled(slot);
        let has_room = like.length + CREDIT_BYTES <= self.records_limit(frame);
        let header = Header::parse(frame).ok()?;
        let is_alike = !self.must_choose(has_room)
            && self.is_repeated_by_next(&header)
            && self.fits(like.length);
        is_alike.then_some(header)
    }

    /// True if the next packet must be chosen, or must carry more than its unit. A grant waits for a
    /// packet that has room for it, and an acknowledgement that is not due waits with it.
    fn must_choose(&self, has_room: bool) -> bool {
        let is_waiting = self.channel.has_grant() && !has_room;
        let is_told =
            |lane: &Lane| !lane.incoming.dirty && lane.incoming.is_whole() && lane.out.is_open();
        let has_news = self.channel.has_grant() || self.acks != Acks::NONE;
        self.acks.is_due()
            || has_news && !is_waiting
            || self.requests.is_ack_due()
            || self.channel.credit_requests_due
            || self.channel.has_notice()
            || self.paths.has_transmit()
            || self.sizing.has_transmit()
            || self.retransmission.is_stopped()
            || self.pace.restricted_to().is_some()
            || !self.lanes.iter().all(is_told)
    }

    /// True if the header of the next packet acknowledges the same as this one.
    fn is_repeated_by_next(&self, header: &Header) -> bool {
        header.kind == Kind::Data
            && header.ack_lane == self.lanes[0].id
            && header.part.is_whole()
            && !header.flags.has(Flags::REPEAT)
            && header.unit_next == low(self.units.next())
            && header.lane_next == low(self.lanes[0].incoming.next())
            && header.lane_end == header.lane_next
    }
}
