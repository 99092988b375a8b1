//! Handling of an arriving packet.

use crate::channel::{MessagePiece, Placed, Urgency};
use crate::event::Event;
use crate::holes::{Arrival, widen};
use crate::lane::{Lane, LaneTimeouts};
use crate::parts::PartArrival;
use crate::pool::Admission;
use crate::send::Flight;
use crate::session::Session;
use crate::shared::Shared;
use crate::stats::DropReason;
use crate::time::Instant;
use crate::wire::{
    Address, CONTROL_LANE, EdgeKey, Flags, Header, Kind, LaneAck, MESSAGE_BYTES, MessageRun,
    Packet, Part, Record, operation_bytes,
};

/// Maximum units of all sessions reassembled at once, not counting the next of each session.
const MAX_ASSEMBLIES: usize = 256;

/// With more notices queued for a peer, it may not end any more edges.
const MAX_NOTICES: usize = 2 * crate::channel::MAX_EDGES as usize;

/// Contents of a packet, classified for the fast paths.
enum Content<'a> {
    /// A run of messages that are next on the edge at this position.
    Run(MessageRun, u32),
    Record(Record<'a>),
    Records,
}

/// Packets that arrived in order, and whether their units were accepted.
pub(super) struct Arrivals {
    pub(super) count: u32,
    pub(super) verdict: Result<bool, DropReason>,
}

impl From<Result<bool, DropReason>> for Arrivals {
    /// A single packet.
    fn from(verdict: Result<bool, DropReason>) -> Arrivals {
        Arrivals { count: 1, verdict }
    }
}

impl Session {
    /// Handles a packet whose connection and trailer have been verified.
    pub(crate) fn on_packet(
        &mut self,
        now: Instant,
        from: Address,
        packet: &Packet<'_>,
        shared: &mut Shared,
    ) -> Result<(), DropReason> {
        let header = packet.header();
        self.paths.received(header.length, 1);
        shared.grants.on_packets(header.length, 1);
        if !header.part.is_whole() {
            return self.on_part(now, from, packet, shared);
        }
        let (cost, content) = self.check(packet, shared)?;
        if header.flags.has(Flags::ACK) {
            self.remember_reply_lane(from);
            self.on_ack(&header, now, shared);
        }
        let verdict = self.admit(&header, cost, shared);
        match content {
            Content::Run(run, index) if verdict == Ok(true) => {
                self.take_run(&run, (index, cost), shared);
            }
            Content::Run(..) => {}
            Content::Record(record) => {
                self.apply(record, verdict.ok(), &header, (now, from), shared);
            }
            Content::Records => {
                for record in packet.records().flatten() {
                    self.apply(record, verdict.ok(), &header, (now, from), shared);
                }
            }
        }
        self.conclude(&header, verdict.into(), now, shared)
    }

    /// Updates acknowledgements and timers after the contents of a packet.
    #[inline]
    pub(super) fn conclude(
        &mut self,
        header: &Header,
        Arrivals { count, verdict }: Arrivals,
        now: Instant,
        shared: &mut Shared,
    ) -> Result<(), DropReason> {
        // Only now is it known whether the peer still owes a reply.
        self.heard(now);
        self.progress(now, shared);
        match verdict {
            Ok(true) if header.flags.has(Flags::UNIT) => {
                self.schedule_ack((header, count), now, shared)
            }
            Ok(_) => {}
            Err(DropReason::Duplicate) if header.flags.has(Flags::UNIT) => self.acks.send_now(),
            // There was no room, but the sender must see that this process is alive.
            Err(_) if header.flags.has(Flags::REPEAT) => self.acks.send_now(),
            Err(_) => {}
        }
        if header.kind == Kind::AckRequest {
            self.on_ack_request(now);
        }
        self.arm_ack_request(now, shared);
        verdict.map(|_| ())
    }

    /// Handles a part of a unit. The last missing part makes up a packet with the whole unit, which
    /// is then handled like any other. Spec §5.8.
    #[cold]
    fn on_part(
        &mut self,
        now: Instant,
        from: Address,
        packet: &Packet<'_>,
        shared: &mut Shared,
    ) -> Result<(), DropReason> {
        let (mut header, body) = (packet.header(), packet.body());
        let unit = widen(header.unit, self.units.next());
        let most = shared.config.packet_bytes;
        let arrival = self.assemblies.classify(unit, header.part, body, most);
        if arrival == PartArrival::Last && self.units.classify(unit) == Arrival::New {
            let mut whole = self.assemblies.join(unit, header.part, body);
            header.part = Part::WHOLE;
            header.length = u16::try_from(whole.len()).unwrap_or(u16::MAX);
            header.emit(&mut whole);
            let joined = Packet::parse(&whole, 0).map_err(|_| DropReason::Malformed)?;
            self.on_packet(now, from, &joined, shared)?;
            shared.assembled = Some(whole);
            return Ok(());
        }
        if header.flags.has(Flags::ACK) {
            self.remember_reply_lane(from);
            self.on_ack(&header, now, shared);
        }
        let verdict = self.admit_part(&header, unit, arrival, body, shared);
        self.conclude(&header, verdict.into(), now, shared)
    }

    /// Records the number of a part and stores its bytes, unless it is a duplicate or there is no
    /// room.
    fn admit_part(
        &mut self,
        header: &Header,
        unit: u64,
        arrival: PartArrival,
        body: &[u8],
        shared: &mut Shared,
    ) -> Result<bool, DropReason> {
        let Some(lane) = self.lanes.iter_mut().find(|lane| lane.id == header.lane) else {
            return Err(DropReason::Untracked);
        };
        let number = widen(header.number, lane.incoming.next());
        let floor = number.saturating_sub(u64::from(header.settled));
        let is_next = unit == self.units.next();
        // The next unit always finds room, which guarantees progress.
        let has_room = is_next
            || self.assemblies.has(unit)
            || self.assemblies.has_room() && shared.assemblies < MAX_ASSEMBLIES;
        let taken = match (self.units.classify(unit), arrival) {
            (Arrival::Duplicate, _) | (_, PartArrival::Duplicate) => Err(DropReason::Duplicate),
            (Arrival::Refused, _) => Err(DropReason::Untracked),
            (_, PartArrival::Contradiction) => Err(DropReason::Violation),
            (Arrival::New, PartArrival::New | PartArrival::Last) if !has_room => {
                Err(DropReason::Untracked)
            }
            (Arrival::New, PartArrival::New | PartArrival::Last) => Ok(true),
        };
        let tracked = lane.incoming.classify(number) != Arrival::Refused;
        match taken {
            Ok(_) if !tracked => {
                lane.incoming.settle(floor);
                return Err(DropReason::Untracked);
            }
            Ok(_) | Err(DropReason::Duplicate) => lane.incoming.record(number, floor),
            Err(_) => {
                lane.incoming.settle(floor);
                return taken;
            }
        };
        if lane.incoming.has_new_hole(shared.config.reorder_packets) {
            self.acks.send_now();
        }
        if taken.is_ok() {
            let before = self.assemblies.len();
            self.assemblies.keep(unit, header.part, body);
            shared.assemblies += self.assemblies.len() - before;
        }
        taken
    }

    /// Remembers which lane leads back to the sender, if there are several interfaces. Probes and
    /// echoes do not count, because their path may work in one direction only.
    #[inline]
    pub(super) fn remember_reply_lane(&mut self, from: Address) {
        let known = self.lanes.get(self.paths.reply_lane());
        if self.lanes.len() <= 2 || known.is_some_and(|lane| lane.to.ip == from.ip) {
            return;
        }
        let leads_back =
            |lane: &Lane| !lane.bulk && lane.to.ip == from.ip && lane.path.may_lead_there();
        if let Some(index) = self.lanes.iter().position(leads_back) {
            self.paths.set_reply_lane(index);
        }
    }

    /// Checks all records of a packet. Returns the pool bytes that it needs.
    fn check<'a>(
        &self,
        packet: &Packet<'a>,
        shared: &Shared,
    ) -> Result<(u64, Content<'a>), DropReason> {
        let in_unit = packet.header().flags.has(Flags::UNIT);
        if in_unit
            && let Some(run) = packet.run()
            && let Some((index, charge)) = self.channel.expects_run(&run, shared)
        {
            return Ok((charge, Content::Run(run, index)));
        }
        let mut cost = 0_u64;
        let mut records = packet.records();
        let mut is_first = true;
        while let Some(record) = records.next() {
            let record = record.map_err(|_| DropReason::Malformed)?;
            cost = cost.saturating_add(self.check_record(&record, in_unit, shared)?);
            if is_first && records.is_at_end() {
                return Ok((cost, Content::Record(record)));
            }
            is_first = false;
        }
        Ok((cost, Content::Records))
    }

    #[inline]
    fn check_record(
        &self,
        record: &Record<'_>,
        in_unit: bool,
        shared: &Shared,
    ) -> Result<u64, DropReason> {
        match *record {
            Record::Message { unreliable, .. } if unreliable == in_unit => {
                Err(DropReason::Violation)
            }
            Record::Message { key, .. } if self.channel.is_stray_too_many(key, shared) => {
                Err(DropReason::EdgesFull)
            }
            Record::Message {
                key,
                sequence,
                total,
                operation,
                ..
            } if in_unit => Ok(self.channel.pool_cost(key, sequence, total, operation)),
            Record::Message { .. } => Ok(0),
            Record::EdgeEnd { .. } if self.channel.notices() > MAX_NOTICES => {
                Err(DropReason::EdgesFull)
            }
            _ if record.is_sequenced() && !in_unit => Err(DropReason::Violation),
            _ => Ok(0),
        }
    }

    /// Records packet number and unit. Returns `Ok(true)` if the unit is new and accepted, and
    /// `Ok(false)` if there is no unit, so that only the other records count.
    fn admit(
        &mut self,
        header: &Header,
        cost: u64,
        shared: &mut Shared,
    ) -> Result<bool, DropReason> {
        if header.lane == CONTROL_LANE {
            return match self.control.record(header.number) {
                true => Ok(false),
                false => Err(DropReason::Duplicate),
            };
        }
        let Some(lane) = self.lanes.iter_mut().find(|lane| lane.id == header.lane) else {
            return Err(DropReason::Untracked);
        };
        let number = widen(header.number, lane.incoming.next());
        let floor = number.saturating_sub(u64::from(header.settled));
        if !header.flags.has(Flags::UNIT) {
            lane.incoming.record(number, floor);
            return Ok(false);
        }
        if lane.incoming.classify(number) == Arrival::Refused {
            lane.incoming.settle(floor);
            return Err(DropReason::Untracked);
        }
        let unit = widen(header.unit, self.units.next());
        match self.units.classify(unit) {
            Arrival::Duplicate => {
                lane.incoming.record(number, floor);
                return Err(DropReason::Duplicate);
            }
            Arrival::Refused => {
                lane.incoming.settle(floor);
                return Err(DropReason::Untracked);
            }
            Arrival::New => {}
        }
        match shared.pool.admit(cost, unit == self.units.next()) {
            Admission::Granted => {}
            Admission::LowOnRoom => {
                lane.incoming.settle(floor);
                return Err(DropReason::PoolLow);
            }
            Admission::Exhausted => {
                lane.incoming.settle(floor);
                return Err(DropReason::PoolFull);
            }
        }
        self.units.record(unit);
        lane.incoming.record(number, floor);
        if self.assemblies.len() > 0 && self.assemblies.has(unit) {
            self.assemblies.forget(unit);
            shared.assemblies -= 1;
        }
        if lane.incoming.has_new_hole(shared.config.reorder_packets) {
            self.acks.send_now();
        }
        shared.stats.units_received += 1;
        Ok(true)
    }

    /// Schedules the acknowledgement of `count` accepted units (thesis §5.2.1).
    fn schedule_ack(&mut self, (header, count): (&Header, u32), now: Instant, shared: &mut Shared) {
        let sender = (self.id, self.flow.sender_period());
        let left = self.peer_backlog();
        let period = shared.grants.arrived(sender, (count, left), now);
        self.flow.set_sender_period(period);
        // Something new has arrived: ack requests restart with their shortest pause.
        self.requests.stop_ack();
        self.acks.count(count);
        if header.flags.has(Flags::REPEAT) {
            self.acks.send_now();
            shared.grants.lost();
        }
        if header.flags.has(Flags::ACK_WANTED)
            && self.acks.packets() >= shared.packets_per_ack(self.flow.window())
        {
            self.acks.send_now();
        }
        if header.flags.has(Flags::LAST) {
            self.acks.send_by(now.after(shared.config.ack_delay_ns));
        }
    }

    /// Packets that the peer has announced and that have not arrived.
    pub(super) fn peer_backlog(&self) -> u32 {
        self.flow.peer_backlog(self.units.next())
    }

    /// Handles one record. Sequenced records need an accepted unit. Unreliable messages need a
    /// packet without a unit that is not a duplicate.
    #[inline]
    fn apply(
        &mut self,
        record: Record<'_>,
        verdict: Option<bool>,
        header: &Header,
        (now, from): (Instant, Address),
        shared: &mut Shared,
    ) {
        let (accepted, without_unit) = (verdict == Some(true), verdict == Some(false));
        match record {
            Record::LaneAck(ack) => self.on_lane_ack(&ack, now, shared),
            Record::Credit { key, limit } => {
                self.channel.on_credit(key, limit, shared);
                if !self.channel.needs_credit() {
                    self.requests.stop_credit();
                }
            }
            Record::CreditRequest { key, request } => {
                // An older request may be for an edge that has ended since.
                let may_open =
                    header.lane == CONTROL_LANE && self.control.may_open_edge(header.number);
                let urgency = self
                    .channel
                    .on_credit_request(key, request, may_open, now, shared);
                self.schedule_grant(urgency, now, shared);
            }
            Record::Window { packets } => self.pace.grant(packets),
            Record::Probe { lane, token } => self.on_probe(lane, token, header.length, from),
            Record::Echo {
                lane,
                token,
                length,
            } => self.on_echo(lane, token, length, shared),
            Record::Backlog { end } => {
                self.flow.on_backlog(end, self.units.next());
                shared.grants.set_backlog(self.id, self.peer_backlog(), now);
            }
            Record::Message { unreliable, .. } if unreliable && without_unit => {
                self.on_unreliable(record, shared);
            }
            Record::Message { unreliable, .. } if unreliable => {}
            sequenced if accepted => self.on_sequenced(sequenced, now, shared),
            _ => {}
        }
    }

    #[inline]
    fn on_sequenced(&mut self, record: Record<'_>, now: Instant, shared: &mut Shared) {
        match record {
            Record::Message { .. } => self.on_message(record, now, shared),
            Record::EdgeEnd {
                key,
                sequence,
                control,
            } => {
                self.control.end_edge(control);
                self.channel.on_end(key, sequence, shared);
            }
            Record::EdgeForgotten { key } if self.window.is_disputed() => {
                self.channel.on_disputed_end(key, self.window.top());
            }
            Record::EdgeForgotten { key } => self.channel.on_forgotten(key, shared),
            Record::Lanes(list) => self.on_lanes(&list, now, shared),
            Record::Refused {
                source,
                target,
                sequence,
                reason,
            } => {
                let ends = (source, target);
                self.channel.on_refused(ends, sequence, reason, shared);
            }
            Record::LaneAck(_)
            | Record::Credit { .. }
            | Record::CreditRequest { .. }
            | Record::Window { .. }
            | Record::Probe { .. }
            | Record::Echo { .. }
            | Record::Backlog { .. } => {}
        }
    }

    /// Accepts a run of messages that the channel expects.
    #[inline]
    fn take_run(&mut self, run: &MessageRun, expected: (u32, u64), shared: &mut Shared) {
        let edge = self.channel.take_run(expected, run.count, shared);
        let (source, target) = run.key.ends();
        let records = run.records.clone();
        shared.event(match run.count {
            1 => Event::Deliver {
                edge,
                source,
                target,
                bytes: records.start + MESSAGE_BYTES..records.end,
            },
            _ => Event::DeliverRun {
                edge,
                source,
                target,
                records,
            },
        });
    }

    #[inline]
    fn on_message(&mut self, record: Record<'_>, now: Instant, shared: &mut Shared) {
        let Record::Message {
            key,
            sequence,
            offset,
            total,
            operation,
            payload,
            ..
        } = record
        else {
            return;
        };
        let Some(index) = self.channel.find_or_open_in(key, shared) else {
            self.channel.refuse_stray(key, sequence, shared);
            return;
        };
        let sequence = self.channel.widen(index, sequence);
        let piece = MessagePiece {
            sequence,
            offset,
            length: (payload.len() - operation_bytes(operation)) as u64,
            total,
            operation,
            bytes: payload.clone(),
        };
        let (placed, urgency) = self.channel.place(index, piece, now, shared);
        match placed {
            Placed::Deliver => {
                let (edge, EdgeKey { source, target, .. }) = self.channel.delivered(index, shared);
                let bytes = payload;
                shared.event(match operation {
                    false => Event::Deliver {
                        edge,
                        source,
                        target,
                        bytes,
                    },
                    true => Event::Operation {
                        edge,
                        source,
                        target,
                        bytes,
                    },
                });
            }
            Placed::Held => {
                // The piece takes memory, so a dead sender must be detected soon.
                self.keep_alive_soon(now, shared);
            }
            Placed::Discarded | Placed::Violation => {}
        }
        if urgency != Urgency::None {
            self.schedule_grant(urgency, now, shared);
        }
    }

    fn on_unreliable(&mut self, record: Record<'_>, shared: &mut Shared) {
        let Record::Message {
            key,
            sequence,
            offset,
            total,
            payload,
            ..
        } = record
        else {
            return;
        };
        if !shared.endpoints.contains_key(&key.target) {
            shared.stats.messages_refused += 1;
            return;
        }
        shared.event(Event::Unreliable {
            peer: self.id,
            key,
            sequence,
            offset,
            total,
            bytes: payload,
        });
    }

    /// All units of this side below that of the header have arrived.
    pub(crate) fn on_unit_next(&mut self, header: &Header, shared: &mut Shared) {
        let next = widen(header.unit_next, self.window.base());
        self.units_arrived(next.min(self.window.top()), shared);
        let is_refusing = header.flags.has(Flags::REFUSING);
        if self.window.settle(next.min(self.window.top()), is_refusing) {
            shared.event(Event::Settled { peer: self.id });
        }
        self.channel.on_settled(self.window.settled(), shared);
    }

    /// Handles the acknowledgement fields of the header.
    pub(super) fn on_ack(&mut self, header: &Header, now: Instant, shared: &mut Shared) {
        self.on_unit_next(header, shared);
        let Some(index) = self
            .lanes
            .iter()
            .position(|lane| lane.id == header.ack_lane)
        else {
            return;
        };
        let floor = self.lanes[index].out.floor();
        let next = widen(header.lane_next, floor);
        let end = widen(header.lane_end, floor);
        if next > self.lanes[index].out.next() || end < next {
            return;
        }
        self.lanes[index].missing_from = self.lanes[index].missing_from.max(next);
        self.lane_arrived(index, (floor, next), now, shared);
        if end > next && end < self.lanes[index].out.next() {
            self.lane_missing(index, (next, end), now, shared);
            self.lane_arrived(index, (end, end + 1), now, shared);
        }
        self.settle_lanes();
    }

    /// Handles a record that lists all holes of a lane.
    fn on_lane_ack(&mut self, ack: &LaneAck<'_>, now: Instant, shared: &mut Shared) {
        let Some(index) = self.lanes.iter().position(|lane| lane.id == ack.lane) else {
            return;
        };
        let floor = self.lanes[index].out.floor();
        let top = widen(ack.top, floor);
        if top > self.lanes[index].out.next() {
            return;
        }
        let mut from = floor;
        let mut next = widen(ack.next, floor);
        self.lanes[index].missing_from = self.lanes[index].missing_from.max(next);
        for range in ack.ranges() {
            let start = widen(range.start, floor);
            if start < next || start > top {
                break;
            }
            self.lane_arrived(index, (from, start), now, shared);
            let end = (start + u64::from(range.count)).min(top);
            self.lane_missing(index, (start, end), now, shared);
            from = end;
            next = end;
        }
        self.lane_arrived(index, (from, top), now, shared);
        self.settle_lanes();
    }

    fn lane_arrived(
        &mut self,
        index: usize,
        (from, to): (u64, u64),
        now: Instant,
        shared: &mut Shared,
    ) {
        let lane = &mut self.lanes[index];
        if lane.out.record_acknowledged(to) {
            lane.timeouts = LaneTimeouts::default();
            if let Some(sent_at) = lane.out.asked_at(to) {
                self.retransmission.sample(sent_at, now);
            }
            if lane.out.is_marked(to) {
                for lane in &mut self.lanes {
                    lane.timeouts.arrived_elsewhere(now);
                }
            }
        }
        let lane = &mut self.lanes[index];
        for number in from.max(lane.out.floor())..to.min(lane.out.next()) {
            let Some((piece, bytes)) = lane.out.carried(number) else {
                continue;
            };
            self.sizing.size.arrived(bytes);
            if let Some(slot) = self.window.arrived(piece) {
                shared.released.push(slot);
            }
        }
    }

    fn lane_missing(
        &mut self,
        index: usize,
        (from, to): (u64, u64),
        now: Instant,
        shared: &Shared,
    ) {
        let lane = &self.lanes[index];
        let mut is_suspect = false;
        for number in from.max(lane.out.floor())..to.min(lane.out.next()) {
            let flight = Flight {
                lane: lane.id,
                number,
            };
            if let Some((piece, bytes)) = lane.out.carried(number)
                && self.window.lost(piece, flight)
            {
                let is_queueing = self.retransmission.round_trip.is_queueing();
                self.pace.lost(is_queueing);
                is_suspect |= self.sizing.size.lost(bytes);
            }
        }
        if is_suspect {
            self.probe_sizes(false, now, shared);
        }
    }

    pub(super) fn units_arrived(&mut self, next: u64, shared: &mut Shared) {
        self.window.arrived_below(next, &mut shared.released);
    }

    pub(super) fn settle_lanes(&mut self) {
        for lane in &mut self.lanes {
            lane.out.settle(lane.id, &self.window);
        }
    }

    /// The peer requests an acknowledgement (thesis §5.2).
    fn on_ack_request(&mut self, now: Instant) {
        let news = self.window.has_next(u32::MAX);
        if !news && self.window.flying() > 0 {
            let fresh = self.retransmission.round_trip.smoothed_ns().unwrap_or(0);
            self.repeat_first_and_last(now, fresh);
        }
        // A hole below the floor was filled by a retransmission. Unless a packet carries the floor,
        // the peer would request it forever.
        for lane in &mut self.lanes {
            lane.floor_due = lane.out.is_idle() && lane.missing_from < lane.out.floor();
        }
        self.acks.send_now();
    }
}
