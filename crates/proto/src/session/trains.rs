//! Trains: consecutive packets with pieces of one message, written one after the other and handled at
//! once.
//!
//! The effect is that of handling them one by one. Whatever is unusual is left to
//! [`Session::on_packet`]: the first and the last piece of a message, packets out of order,
//! retransmissions, units in parts, and grants that depend on each arrival. For the sender that is
//! [`Session::poll_transmit`], which writes the packet whose header the others repeat.

use crate::lane::Lane;
use crate::send::Flight;
use crate::session::acks::Acks;
use crate::session::receive::Arrivals;
use crate::session::transmit::low;
use crate::session::{Frame, Frames, Session, Transmit};
use crate::shared::Shared;
use crate::time::Instant;
use crate::wire::{Address, CONTROL_LANE, Flags, Fragment, Header, Kind, Packet, TrainHead};

/// Consecutive packets of one sender with pieces of one message, neither the first nor the last of
/// which is among them. Their trailers have been verified.
#[derive(Clone, Debug)]
pub(crate) struct Pieces {
    piece: Fragment,
    /// Position of the edge.
    edge: u32,
    /// Head of the last packet so far.
    head: TrainHead,
    count: u32,
    /// Number of packets that may belong to it.
    most: u32,
}

impl Pieces {
    /// True if this packet is the next one of the train.
    #[inline]
    pub(crate) fn expects(&self, packet: &[u8]) -> bool {
        self.follower(packet).is_some()
    }

    /// Adds the packet, if it is the next one of the train.
    #[inline]
    pub(crate) fn add(&mut self, packet: &[u8]) {
        if let Some(head) = self.follower(packet) {
            self.head = head;
            self.count += 1;
        }
    }

    #[inline]
    fn follower(&self, packet: &[u8]) -> Option<TrainHead> {
        let (next, head) = (self.head.next(self.piece_bytes())?, TrainHead::of(packet)?);
        let is_next =
            next.leads_to(&head) && head.packet_bytes() == packet.len() && self.count < self.most;
        is_next.then_some(head)
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
        let count = 1;
        Some(Pieces {
            piece,
            edge,
            head,
            count,
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
            flags: train.head.flags(),
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

    /// The next packet, if it is a new unit and its header differs from that of `like`, the last packet
    /// of this session, only as in a train. Otherwise returns `None` and changes nothing;
    /// [`poll_transmit`](Self::poll_transmit) handles the other cases with the same effect.
    #[inline]
    pub(crate) fn transmit_like(
        &mut self,
        like: &Transmit,
        now: Instant,
        frames: &mut impl Frames,
        shared: &mut Shared,
    ) -> Option<Transmit> {
        let Frame::Unit(former) = like.frame else {
            return None;
        };
        let allowed = self.allowed();
        let (slot, end) = self
            .window
            .peek_new(allowed)
            .map(|slot| (slot, frames.filled(slot).1))?;
        let is_told =
            |lane: &Lane| !lane.incoming.dirty && lane.incoming.is_whole() && lane.out.is_open();
        let others_wait = self.acks != Acks::NONE
            || self.requests.is_ack_due()
            || self.channel.credit_requests_due
            || self.channel.has_notice()
            || self.channel.has_grant()
            || self.paths.has_transmit()
            || self.sizing.has_transmit()
            || self.retransmission.is_stopped()
            || self.pace.restricted_to().is_some()
            || !self.lanes.iter().all(is_told);
        let header = Header::parse(frames.filled(former).0).ok()?;
        let is_like = header.kind == Kind::Data
            && header.ack_lane == self.lanes[0].id
            && header.part.is_whole()
            && !header.flags.has(Flags::REPEAT)
            && header.unit_next == low(self.units.next())
            && header.lane_next == low(self.lanes[0].incoming.next())
            && header.lane_end == header.lane_next;
        if others_wait || !is_like || end != like.length || !self.fits(end) {
            return None;
        }
        let next = self.window.next(allowed)?;
        debug_assert_eq!(next.slot, slot);
        let index = self.pick_lane(next.bulk, None);
        let flying = self.window.flying() + 1;
        let mut header = Header {
            flags: Flags::UNIT,
            ..header
        };
        header.flags.set(Flags::ACK);
        if self.window.is_drained() || flying >= self.allowed() {
            header.flags.set(Flags::LAST);
        }
        if flying * 2 >= self.pace.allowed() {
            header.flags.set(Flags::ACK_WANTED);
        }
        let asked = header.flags.has(Flags::LAST) || header.flags.has(Flags::ACK_WANTED);
        let lane = &mut self.lanes[index];
        if lane.bulk {
            header.flags.set(Flags::BULK);
        }
        let number = lane.out.record(next.piece, header.length, now, asked);
        let flight = Flight {
            lane: lane.id,
            number,
        };
        header.number = low(number);
        header.unit = low(next.piece.unit);
        header.settled = lane.out.settled(number);
        header.lane = lane.id;
        header.emit(frames.filled(slot).0);
        self.window.sent(next.piece, flight, header.length, now);
        self.pace.sent();
        shared.stats.units_sent += 1;
        self.probe_after_unit(now, shared);
        Some(self.leaving(index, Frame::Unit(slot), end))
    }
}
