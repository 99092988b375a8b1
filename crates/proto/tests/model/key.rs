//! The canonical form of a state: states with the same key behave alike.
//!
//! Packet numbers only grow. Only their order matters, and which of them are neighbours. So all
//! numbers of one lane and direction in a state (sender, receiver, packets in flight) are sorted and
//! renumbered with gaps of at most [`GAP`]. Numbers of lost packets disappear. Times become relative
//! to now; ages are limited to the round trip, since longer ones make no difference.

use std::hash::{Hash, Hasher};

use dipole_proto::wire::{CONTROL_LANE, CRC_BYTES, Flags, Header, Kind, Packet, Record};
use dipole_proto::{Instant, LaneView, UnitState, View};
use siphasher::sip128::{Hasher128, SipHasher13};

use super::host::FAR_NS;
use super::world::{Flight, World};

/// Neighbours (1) and others (2). `reorder_packets` is 1, so a wider gap makes no difference.
const GAP: u64 = 2;

pub fn normalize(world: &mut World) -> u128 {
    let mut hasher = SipHasher13::new();
    let observed = [0, 1].map(|index| world.hosts[index].observed());
    let views = observed.map(|it| it.view.as_ref());
    observed.map(|it| it.digest).hash(&mut hasher);
    let parsed: Vec<Option<Parsed<'_>>> = world.network.iter().map(Parsed::new).collect();
    let ranks = [0, 1].map(|from| Ranks::new(from, &views, &parsed));
    for index in 0..2 {
        hash_host(world, index, &views, &ranks, &mut hasher);
    }
    (world.drops, world.duplicates, world.restarts, world.early).hash(&mut hasher);
    world.narrowings.hash(&mut hasher);
    let mut order: Vec<(u64, usize)> = parsed
        .iter()
        .zip(&world.network)
        .enumerate()
        .map(|(index, (parsed, flight))| {
            let mut hasher = SipHasher13::new();
            flight.from.hash(&mut hasher);
            match parsed {
                Some(parsed) => parsed.hash(&views, &ranks, &mut hasher),
                None => flight.bytes.hash(&mut hasher),
            }
            (hasher.finish(), index)
        })
        .collect();
    order.sort_unstable();
    for (hash, _) in &order {
        hash.hash(&mut hasher);
    }
    let network = order.iter().map(|(_, index)| world.network[*index].clone());
    world.network = network.collect();
    hasher.finish128().as_u128()
}

/// A packet of a session, in flight.
struct Parsed<'a> {
    from: usize,
    header: Header,
    packet: Packet<'a>,
}

impl<'a> Parsed<'a> {
    fn new(flight: &'a Flight) -> Option<Parsed<'a>> {
        let packet = Packet::parse(&flight.bytes, CRC_BYTES).ok()?;
        let header = packet.header();
        matches!(header.kind, Kind::Data | Kind::Ack | Kind::AckRequest).then_some(Parsed {
            from: usize::from(flight.from),
            header,
            packet,
        })
    }

    fn number(&self) -> Option<u64> {
        (self.header.lane != CONTROL_LANE).then_some(u64::from(self.header.number))
    }

    fn hash(&self, views: &[Option<&View>; 2], ranks: &[Ranks; 2], hasher: &mut impl Hasher) {
        let header = &self.header;
        let to = 1 - self.from;
        (header.kind as u8, header.flags, header.connection).hash(hasher);
        header.unit.hash(hasher);
        let base = views[to].map_or(0, |view| view.base);
        u64::from(header.unit_next).max(base).hash(hasher);
        match self.number() {
            Some(number) => {
                let next = incoming(views[to]).map_or(0, |lane| lane.next);
                if number < next {
                    // It is dropped in any case, and its floor is not new.
                    u64::MAX.hash(hasher);
                } else {
                    let floor = number.saturating_sub(u64::from(header.settled)).max(next);
                    (ranks[self.from].of(number), ranks[self.from].of(floor)).hash(hasher);
                }
            }
            None => views[to]
                .is_some_and(|view| view.knows_control(u64::from(header.number)))
                .hash(hasher),
        }
        let back = &ranks[to];
        if header.flags.has(Flags::ACK) {
            let (next, end) = (header.lane_next.into(), header.lane_end.into());
            (back.clamped(next), back.clamped(end)).hash(hasher);
            (next == end).hash(hasher);
        }
        for record in self.packet.records().flatten() {
            match record {
                Record::LaneAck(ack) => {
                    (back.clamped(ack.next.into()), back.clamped(ack.top.into())).hash(hasher);
                    for range in ack.ranges() {
                        let start = u64::from(range.start);
                        let end = start + u64::from(range.count);
                        (back.clamped(start), back.clamped(end)).hash(hasher);
                    }
                }
                Record::Message {
                    key,
                    sequence,
                    payload,
                    ..
                } => {
                    (1, key, sequence).hash(hasher);
                    self.packet.covered()[payload].hash(hasher);
                }
                Record::Credit { key, limit } => (2, key, limit).hash(hasher),
                Record::CreditRequest { key, request } => (3, key, request).hash(hasher),
                other => format!("{other:?}").hash(hasher),
            }
        }
    }
}

fn outgoing(view: Option<&View>) -> Option<&LaneView> {
    view?.lanes.first()
}

fn incoming(view: Option<&View>) -> Option<&LaneView> {
    outgoing(view)
}

/// The numbers of one lane in one direction in a state.
struct Ranks {
    /// Number and rank, sorted.
    ranks: Vec<(u64, u64)>,
    floor: u64,
}

impl Ranks {
    fn new(from: usize, views: &[Option<&View>; 2], packets: &[Option<Parsed<'_>>]) -> Ranks {
        let mut numbers = Vec::new();
        let mut floor = 0;
        if let Some(lane) = outgoing(views[from]) {
            floor = lane.floor;
            numbers.extend([lane.floor, lane.floor + lane.units.len() as u64]);
            numbers.push(lane.arrived.max(lane.floor));
        }
        if let Some(view) = views[from] {
            for unit in &view.units {
                let parts = unit.parts.iter().map(|(state, _)| *state);
                for state in parts.chain([unit.state]) {
                    if let UnitState::Flying { number, .. } = state {
                        numbers.extend([number, number + 1]);
                    }
                }
            }
        }
        let mut next = 0;
        if let Some(lane) = incoming(views[1 - from]) {
            next = lane.next;
            numbers.extend([lane.next, lane.top, lane.requested_below.max(lane.next)]);
            for hole in &lane.missing {
                numbers.extend([hole.start, hole.end]);
            }
        }
        for parsed in packets.iter().flatten() {
            if parsed.from == from {
                if let Some(number) = parsed.number().filter(|number| *number >= next) {
                    let settled = u64::from(parsed.header.settled);
                    numbers.extend([number, number + 1]);
                    numbers.push(number.saturating_sub(settled).max(next));
                }
                continue;
            }
            let header = &parsed.header;
            if header.flags.has(Flags::ACK) {
                let reported = [header.lane_next, header.lane_end];
                numbers.extend(reported.map(|number| u64::from(number).max(floor)));
            }
            for record in parsed.packet.records().flatten() {
                if let Record::LaneAck(ack) = record {
                    let reported = [ack.next, ack.top];
                    numbers.extend(reported.map(|number| u64::from(number).max(floor)));
                    for range in ack.ranges() {
                        let start = u64::from(range.start);
                        let end = start + u64::from(range.count);
                        numbers.extend([start.max(floor), end.max(floor)]);
                    }
                }
            }
        }
        // Acknowledgements of settled numbers count as those of the lowest open one; the receiver
        // may still be behind that.
        numbers.retain(|number| *number >= floor.min(next));
        numbers.sort_unstable();
        numbers.dedup();
        let mut ranks = Vec::with_capacity(numbers.len());
        let mut rank = 0;
        let mut before = numbers.first().copied().unwrap_or(0);
        for number in numbers {
            rank += (number - before).min(GAP);
            before = number;
            ranks.push((number, rank));
        }
        Ranks { ranks, floor }
    }

    fn of(&self, number: u64) -> u64 {
        let at = self.ranks.partition_point(|(known, _)| *known <= number);
        at.checked_sub(1).map_or(u64::MAX, |at| self.ranks[at].1)
    }

    /// The rank of a number in an acknowledgement.
    fn clamped(&self, number: u64) -> u64 {
        self.of(number.max(self.floor))
    }
}

fn hash_host(
    world: &World,
    index: usize,
    views: &[Option<&View>; 2],
    ranks: &[Ranks; 2],
    hasher: &mut impl Hasher,
) {
    let host = &world.hosts[index];
    (&host.progress, &host.inbox, &host.held, &host.buffers).hash(hasher);
    host.edges.hash(hasher);
    (host.incarnation, host.gone, host.open, host.peer).hash(hasher);
    let Some(view) = views[index] else {
        return;
    };
    let age = |at: Instant| host.now.since(at).min(view.round_trip_ns);
    (view.base, view.units_next, view.units_top).hash(hasher);
    (&view.repeats, &view.units_missing, view.round_trip_ns).hash(hasher);
    for unit in &view.units {
        (unit.bulk, age(unit.sent_at)).hash(hasher);
        let mut hash_state = |state: UnitState| match state {
            UnitState::Flying { number, .. } => (1, ranks[index].of(number)).hash(hasher),
            UnitState::Lost => 2.hash(hasher),
            UnitState::Arrived => 3.hash(hasher),
            UnitState::Cut => 4.hash(hasher),
        };
        hash_state(unit.state);
        if unit.state == UnitState::Arrived {
            continue;
        }
        for (state, _) in &unit.parts {
            hash_state(*state);
        }
        for (_, sent_at) in &unit.parts {
            age(*sent_at).hash(hasher);
        }
        host.frames.records(unit.slot).hash(hasher);
    }
    for (slot, bulk) in &view.waiting {
        (bulk, host.frames.records(*slot)).hash(hasher);
    }
    for timer in view.timers {
        timer.since(host.now).min(FAR_NS).hash(hasher);
    }
    let other = incoming(views[1 - index]);
    if let (Some(lane), Some(other)) = (view.lanes.first(), other) {
        let own = &ranks[index];
        let end = lane.floor + lane.units.len() as u64;
        (own.of(lane.floor), own.of(end)).hash(hasher);
        own.of(lane.arrived.max(lane.floor)).hash(hasher);
        (own.of(other.next), own.of(other.top)).hash(hasher);
        own.of(other.requested_below.max(other.next)).hash(hasher);
        for hole in &other.missing {
            (own.of(hole.start), own.of(hole.end)).hash(hasher);
        }
        // Units that the peer has received and not yet acknowledged.
        let mut reported: Vec<(u64, (u64, u8))> = (lane.floor..end.min(other.top))
            .filter(|number| {
                !other
                    .missing
                    .iter()
                    .any(|hole| (hole.start..hole.end).contains(number))
            })
            .map(|number| (own.of(number), lane.units[(number - lane.floor) as usize]))
            .filter(|(_, (unit, _))| *unit >= view.base)
            .collect();
        reported.sort_unstable();
        reported.dedup();
        reported.hash(hasher);
    }
}
