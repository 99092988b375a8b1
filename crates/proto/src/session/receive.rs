//! What an arriving packet does to a session.

use crate::channel::{MessagePiece, Placed, Urgency};
use crate::event::Event;
use crate::holes::{Arrival, widen};
use crate::lane::{Lane, LaneTimeouts};
use crate::parts::PartArrival;
use crate::pool::Admission;
use crate::send::Flight;
use crate::session::{PendingAck, Session};
use crate::shared::Shared;
use crate::stats::DropReason;
use crate::time::Instant;
use crate::wire::{
    Address, CONTROL_LANE, EdgeKey, Flags, Fragment, Header, Kind, LaneAck, MESSAGE_BYTES,
    MessageRun, Packet, Part, Record, operation_bytes,
};

/// Units of all sessions that may come in parts at once, beside the next of each session.
const MAX_ASSEMBLIES: usize = 256;

/// Notices to a peer that wait to be told, beyond which it opens and ends no more edges.
const MAX_NOTICES: usize = 2 * crate::channel::MAX_EDGES as usize;

/// What a packet carries, as far as it decides how it is taken.
enum Content<'a> {
    /// A run of messages that are next on the edge at this position.
    Run(MessageRun, u32),
    /// One more piece of a message that has begun on the edge at this position.
    Fragment(Fragment, u32),
    Record(Record<'a>),
    Records,
}

impl Session {
    /// Takes a packet whose connection and trailer are right.
    pub(crate) fn on_packet(
        &mut self,
        now: Instant,
        from: Address,
        packet: &Packet<'_>,
        shared: &mut Shared,
    ) -> Result<(), DropReason> {
        let header = packet.header();
        self.paths.received(header.length);
        shared.grants.heard(header.length);
        if !header.part.is_whole() {
            return self.on_part(now, from, packet, shared);
        }
        let (cost, content) = self.check(packet, shared)?;
        if header.flags.has(Flags::ACK) {
            self.heard_from(from);
            self.on_ack(&header, now, shared);
        }
        let verdict = self.admit(&header, cost, shared);
        match content {
            Content::Run(run, index) if verdict == Ok(true) => {
                self.take_run(&run, (index, cost), shared);
            }
            Content::Fragment(piece, index) if verdict == Ok(true) => {
                self.channel.take_piece(index, piece, shared);
                // What is held keeps memory: its sender is asked soon.
                self.keep_alive_soon(now, shared);
            }
            Content::Run(..) | Content::Fragment(..) => {}
            Content::Record(record) => {
                self.apply(record, verdict.ok(), &header, (now, from), shared);
            }
            Content::Records => {
                for record in packet.records().flatten() {
                    self.apply(record, verdict.ok(), &header, (now, from), shared);
                }
            }
        }
        self.conclude(&header, verdict, now, shared)
    }

    /// After a packet's content: what is owed to the peer now, and by it.
    #[inline]
    fn conclude(
        &mut self,
        header: &Header,
        verdict: Result<bool, DropReason>,
        now: Instant,
        shared: &mut Shared,
    ) -> Result<(), DropReason> {
        // Only now is it known what the peer still owes.
        self.heard(now);
        self.progress(now, shared);
        match verdict {
            Ok(true) if header.flags.has(Flags::UNIT) => self.owe(header, now, shared),
            Ok(_) => {}
            Err(DropReason::Duplicate) if header.flags.has(Flags::UNIT) => {
                self.pending_ack.now = true
            }
            // No room, but its sender must know that we live.
            Err(_) if header.flags.has(Flags::REPEAT) => self.pending_ack.now = true,
            Err(_) => {}
        }
        if header.kind == Kind::AckRequest {
            self.on_ack_request(now);
        }
        self.arm_ack_request(now, shared);
        verdict.map(|_| ())
    }

    /// Takes a part of a unit. The last that was missing makes a packet with the whole unit,
    /// which is taken like any other. Spec §5.8.
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
            self.heard_from(from);
            self.on_ack(&header, now, shared);
        }
        let verdict = self.admit_part(&header, unit, arrival, body, shared);
        self.conclude(&header, verdict, now, shared)
    }

    /// Records the number of a part and keeps its bytes, unless it is known or there is no
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
        // The next unit always finds room, so that there is progress.
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
            self.pending_ack.now = true;
        }
        if taken.is_ok() {
            let before = self.assemblies.len();
            self.assemblies.keep(unit, header.part, body);
            shared.assemblies += self.assemblies.len() - before;
        }
        taken
    }

    /// Remembers by which way packets come, where there are several. Probes and echoes,
    /// which acknowledge nothing, do not count: their way may lead in one direction only.
    #[inline]
    fn heard_from(&mut self, from: Address) {
        let known = self.lanes.get(self.heard_on);
        if self.lanes.len() <= 2 || known.is_some_and(|lane| lane.to.ip == from.ip) {
            return;
        }
        let leads_back =
            |lane: &Lane| !lane.bulk && lane.to.ip == from.ip && lane.path.may_lead_there();
        if let Some(index) = self.lanes.iter().position(leads_back) {
            self.heard_on = index;
        }
    }

    /// Everything parses and stands where it may; the pool bytes it would take.
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
        if in_unit
            && let Some(piece) = packet.fragment()
            && let Some(index) = self.channel.expects_piece(&piece, shared)
        {
            return Ok((0, Content::Fragment(piece, index)));
        }
        let mut cost = 0_u64;
        let mut records = packet.records();
        let mut is_first = true;
        while let Some(record) = records.next() {
            let record = record.map_err(|_| DropReason::Malformed)?;
            cost = cost.saturating_add(self.check_record(&record, in_unit)?);
            if is_first && records.is_at_end() {
                return Ok((cost, Content::Record(record)));
            }
            is_first = false;
        }
        Ok((cost, Content::Records))
    }

    #[inline]
    fn check_record(&self, record: &Record<'_>, in_unit: bool) -> Result<u64, DropReason> {
        match *record {
            Record::Message { unreliable, .. } if unreliable == in_unit => {
                Err(DropReason::Violation)
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

    /// Records number and unit. `Ok(true)`: the unit is new and accepted;
    /// `Ok(false)`: there is no unit, use what else the packet says.
    fn admit(
        &mut self,
        header: &Header,
        cost: u64,
        shared: &mut Shared,
    ) -> Result<bool, DropReason> {
        if header.lane == CONTROL_LANE {
            let number = widen(header.number, self.control_seen.top());
            return if self.control_seen.record(number) {
                Ok(false)
            } else {
                Err(DropReason::Duplicate)
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
            self.pending_ack.now = true;
        }
        shared.stats.units_received += 1;
        Ok(true)
    }

    /// Plans the acknowledgement of an accepted unit (thesis §5.2.1).
    fn owe(&mut self, header: &Header, now: Instant, shared: &mut Shared) {
        let sender = (self.id, self.sender_period);
        let left = self.backlog_left();
        self.sender_period = shared.grants.arrived(sender, left, now);
        // News: ack requests start again at their shortest pause (MaximiseProdPaceTo).
        self.ack_request = super::Backoff::OFF;
        self.pending_ack.packets += 1;
        if header.flags.has(Flags::REPEAT) {
            self.pending_ack.now = true;
            shared.grants.lost();
        }
        if header.flags.has(Flags::ACK_WANTED)
            && self.pending_ack.packets >= shared.packets_per_ack(self.announced_window)
        {
            self.pending_ack.now = true;
        }
        if header.flags.has(Flags::LAST) {
            let due = now.after(shared.config.ack_delay_ns);
            self.pending_ack.due = self.pending_ack.due.min(due);
        }
    }

    /// Packets that the peer told of and that have not arrived.
    pub(super) fn backlog_left(&self) -> u32 {
        let left = self.backlog.saturating_sub(self.units.next());
        u32::try_from(left).unwrap_or(u32::MAX)
    }

    /// Hands a record on: sequenced ones only with an accepted unit, unreliable
    /// messages only with a packet that has no unit and is no duplicate.
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
                if !self.channel.is_wanting() {
                    self.want = super::Backoff::OFF;
                }
            }
            Record::CreditRequest { key, wish } => {
                // An earlier one may be of an edge that has ended since.
                let number = widen(header.number, self.control_seen.top());
                let may_open = header.lane == CONTROL_LANE && number >= self.credit_requests_from;
                let tell = self
                    .channel
                    .on_credit_request(key, wish, may_open, now, shared);
                self.tell(tell, now, shared);
            }
            Record::Window { packets } => {
                let own = shared.config.frames.min(shared.config.session_packets);
                self.pace.grant(packets.min(own));
            }
            Record::Probe { lane, token } => self.on_probe(lane, token, header.length, from),
            Record::Echo {
                lane,
                token,
                length,
            } => self.on_echo(lane, token, length, shared),
            Record::Backlog { end } => {
                self.backlog = widen(end, self.units.next());
                shared.grants.has_left(self.id, self.backlog_left(), now);
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
                let control = widen(control, self.control_seen.top());
                self.credit_requests_from = self.credit_requests_from.max(control);
                self.channel.on_end(key, sequence, shared);
            }
            Record::EdgeForgotten { key } => self.channel.on_forgotten(key, shared),
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

    /// Takes a run of messages that was found to be what the channel expects.
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
        let (placed, tell) = self.channel.place(index, piece, now, shared);
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
                // What is held keeps memory: its sender is asked soon.
                self.keep_alive_soon(now, shared);
            }
            Placed::Discarded | Placed::Violation => {}
        }
        if tell != Urgency::None {
            self.tell(tell, now, shared);
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

    /// The acknowledgement fields of the header.
    fn on_ack(&mut self, header: &Header, now: Instant, shared: &mut Shared) {
        let unit_next = widen(header.unit_next, self.window.base());
        self.units_arrived(unit_next.min(self.window.top()), shared);
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
        self.lanes[index].told = self.lanes[index].told.max(next);
        self.lane_arrived(index, (floor, next), now, shared);
        if end > next && end < self.lanes[index].out.next() {
            self.lane_missing(index, (next, end), now, shared);
            self.lane_arrived(index, (end, end + 1), now, shared);
        }
        self.settle_lanes();
    }

    /// A record with all holes of a lane.
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
        self.lanes[index].told = self.lanes[index].told.max(next);
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
        if lane.out.is_news(to) {
            lane.timeouts = LaneTimeouts::default();
            if let Some(ns) = lane.out.round_trip(to, now) {
                self.trip.sample(ns);
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
                self.pace.lost(self.trip.is_queueing());
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

    /// Somebody wants to know where we are (thesis §5.2, ack requests).
    fn on_ack_request(&mut self, now: Instant) {
        let news = self.window.has_next(u32::MAX);
        if !news && self.window.flying() > 0 {
            let fresh = self.trip.smoothed_ns().unwrap_or(0);
            self.repeat_first_and_last(now, fresh);
        }
        // A hole below the floor is mended; without a unit to carry the floor the
        // peer would ask for it for ever.
        for lane in &mut self.lanes {
            lane.floor_due = lane.out.is_idle() && lane.told < lane.out.floor();
        }
        self.pending_ack.now = true;
    }

    /// Nothing is owed any more: everything that has arrived was just told.
    pub(super) fn acknowledged(&mut self) {
        self.pending_ack = PendingAck::NONE;
    }
}
