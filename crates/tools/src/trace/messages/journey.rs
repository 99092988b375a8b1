//! One message on both sides: its phases, on the sender's clock.

use std::collections::HashMap;

use dipole_bsp::trace::{Bounds, Offset};
use serde::Serialize;

use super::trail::{Departure, MessageKey, Received, Sent, Trail, Units};

/// The process in which a phase passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Side {
    Sender,
    Network,
    Receiver,
}

/// A phase of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum PhaseName {
    Credit,
    Queue,
    Send,
    Repeat,
    Network,
    Arrive,
    Order,
    Unread,
}

impl PhaseName {
    pub(super) fn side(self) -> Side {
        match self {
            PhaseName::Credit | PhaseName::Queue | PhaseName::Send | PhaseName::Repeat => {
                Side::Sender
            }
            PhaseName::Network => Side::Network,
            PhaseName::Arrive | PhaseName::Order | PhaseName::Unread => Side::Receiver,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            PhaseName::Credit => "credit",
            PhaseName::Queue => "queue",
            PhaseName::Send => "send",
            PhaseName::Repeat => "repeat",
            PhaseName::Network => "network",
            PhaseName::Arrive => "arrive",
            PhaseName::Order => "order",
            PhaseName::Unread => "unread",
        }
    }

    pub(super) fn meaning(self) -> &'static str {
        match self {
            PhaseName::Credit => "waits for room at the receiver",
            PhaseName::Queue => "waits for its first packet to leave",
            PhaseName::Send => "its packets leave",
            PhaseName::Repeat => "lost packets leave again",
            PhaseName::Network => "kernels, cards and wires, until the first packet arrives",
            PhaseName::Arrive => "its other packets arrive",
            PhaseName::Order => "waits for missing pieces or earlier messages",
            PhaseName::Unread => "waits for the program to take it",
        }
    }
}

/// A phase with its begin and end, in nanoseconds since the program first tried to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Phase {
    pub(super) name: PhaseName,
    pub(super) side: Side,
    pub(super) from_ns: i64,
    pub(super) to_ns: i64,
}

impl Phase {
    pub(super) fn ns(&self) -> i64 {
        self.to_ns - self.from_ns
    }
}

/// A message whose sender and receiver were recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Journey {
    pub(super) key: MessageKey,
    pub(super) bytes: u64,
    pub(super) begun_ns: u64,
    pub(super) phases: Vec<Phase>,
    pub(super) repeats: u32,
    /// The most by which times of the receiver may be wrong, if that is known.
    pub(super) error_ns: Option<u64>,
}

impl Journey {
    /// The time from the first try to send until the last thing that is known.
    pub(super) fn total_ns(&self) -> i64 {
        self.phases
            .iter()
            .map(|phase| phase.to_ns)
            .max()
            .unwrap_or(0)
    }
}

/// All messages from one process to another one.
pub(super) fn journeys(from: &Trail, to: &Trail) -> Vec<Journey> {
    let (own, other) = (from.header.incarnation, to.header.incarnation);
    let none = Units::default();
    let there = to.units.get(&own).unwrap_or(&none);
    let here = from.units.get(&other).unwrap_or(&none);
    let both = from.sent.iter().filter(|(key, _)| key.to == other);
    let both = both.filter_map(|(key, sent)| Some((*key, sent, to.received.get(key)?)));
    let both: Vec<_> = both.collect();
    let clock = Clock::of((from, here), (to, there), &both);
    let found = both.into_iter().filter_map(|(key, sent, received)| {
        let (add_ns, error_ns) = clock.at(received.delivered_ns?);
        let journey = journey((key, sent), received, (here, there), add_ns);
        Some(Journey {
            error_ns,
            ..journey
        })
    });
    found.collect()
}

type Both<'a> = (MessageKey, &'a Sent, &'a Received);

/// The clock of a receiver, compared with that of the sender.
#[derive(Debug)]
enum Clock {
    /// Two hosts, at these times of the receiver. Never empty.
    Compared(Vec<(u64, Offset)>),
    /// The same host, or two whose clocks can only be compared by the time of day: add this.
    Constant(i64),
}

impl Clock {
    fn of(
        (from, here): (&Trail, &Units),
        (to, there): (&Trail, &Units),
        both: &[Both<'_>],
    ) -> Clock {
        let low = |sent: u64, arrived: u64| Bounds {
            at_ns: arrived,
            low: difference(sent, arrived),
            high: i64::MAX,
        };
        let high = |left: u64, arrived: u64| Bounds {
            at_ns: left,
            low: i64::MIN,
            high: difference(arrived, left),
        };
        let mut bounds: Vec<Bounds> = Vec::new();
        let messages = both.iter();
        bounds
            .extend(messages.filter_map(|(_, sent, received)| {
                Some(low(sent.begun_ns, received.delivered_ns?))
            }));
        let back = to.sent.iter();
        let back = back.filter(|(key, _)| key.to == from.header.incarnation);
        bounds.extend(back.filter_map(|(key, sent)| {
            Some(high(sent.begun_ns, from.received.get(key)?.delivered_ns?))
        }));
        let units = here.departures.iter();
        bounds.extend(
            units.filter_map(|(unit, left)| Some(low(left.first_ns, *there.arrivals.get(unit)?))),
        );
        let back = there.departures.iter();
        bounds.extend(
            back.filter_map(|(unit, left)| Some(high(left.first_ns, *here.arrivals.get(unit)?))),
        );
        let acks = there.acks_sent.iter();
        bounds.extend(
            acks.filter_map(|(below, left)| Some(high(*left, *here.acks_arrived.get(below)?))),
        );
        bounds.sort_by_key(|bounds| bounds.at_ns);
        // Processes of one host have one clock, but each has read the time of day for itself. A step
        // of the core has one time, so bounds may contradict each other a little; nothing arrives
        // before it was sent.
        if from.header.host == to.header.host {
            let low = bounds.iter().map(|bounds| bounds.low).max();
            let high = bounds.iter().map(|bounds| bounds.high).min();
            return Clock::Constant(0.min(high.unwrap_or(0)).max(low.unwrap_or(0)));
        }
        Bounds::offsets(bounds).map_or(Clock::Constant(0), Clock::Compared)
    }

    fn at(&self, time_ns: u64) -> (i64, Option<u64>) {
        match self {
            Clock::Constant(add_ns) => (*add_ns, None),
            Clock::Compared(offsets) => {
                let after = offsets.partition_point(|(at, _)| *at < time_ns);
                let (_, offset) = offsets[after.min(offsets.len() - 1)];
                (offset.add_ns, Some(offset.error_ns))
            }
        }
    }
}

fn journey(
    (key, sent): (MessageKey, &Sent),
    received: &Received,
    (here, there): (&Units, &Units),
    add_ns: i64,
) -> Journey {
    let own = |time_ns: u64| difference(time_ns, sent.wanted_ns);
    let other = |time_ns: u64| own(time_ns).saturating_add(add_ns);
    let mut phases = Vec::new();
    let mut add = |name: PhaseName, from_ns: i64, to_ns: i64| {
        // The network may take less than nothing: the receiver can be faster than the sender's call.
        if to_ns > from_ns || name == PhaseName::Network {
            phases.push(Phase {
                name,
                side: name.side(),
                from_ns,
                to_ns,
            });
        }
    };
    let units: Vec<u32> = (received.units.iter())
        .flat_map(|(first, count)| (0..*count).map(|more| first.wrapping_add(more)))
        .collect();
    let begun_ns = own(sent.begun_ns);
    add(PhaseName::Credit, 0, begun_ns);
    let departures: Vec<&Departure> = units
        .iter()
        .filter_map(|unit| here.departures.get(unit))
        .collect();
    let mut left_ns = begun_ns;
    let firsts = departures.iter().map(|it| own(it.first_ns));
    let repeats = departures.iter().map(|it| it.times - 1).sum();
    if let (Some(first_ns), Some(last_ns)) = (firsts.clone().min(), firsts.max()) {
        add(PhaseName::Queue, begun_ns, first_ns);
        add(PhaseName::Send, first_ns, last_ns);
        if let Some(again_ns) = departures.iter().map(|it| own(it.last_ns)).max() {
            add(PhaseName::Repeat, last_ns, again_ns);
        }
        left_ns = first_ns;
    }
    let arrivals = times(&there.arrivals, &units);
    let delivered_ns = received.delivered_ns.map(other);
    let mut arrived_ns = None;
    if let (Some(first), Some(last)) = (arrivals.iter().min(), arrivals.iter().max()) {
        add(PhaseName::Network, left_ns, other(*first));
        add(PhaseName::Arrive, other(*first), other(*last));
        arrived_ns = Some(other(*last));
    } else if let Some(delivered_ns) = delivered_ns {
        add(PhaseName::Network, left_ns, delivered_ns);
    }
    if let Some(delivered_ns) = delivered_ns {
        add(
            PhaseName::Order,
            arrived_ns.unwrap_or(delivered_ns),
            delivered_ns,
        );
        if let Some(taken_ns) = received.taken_ns {
            add(PhaseName::Unread, delivered_ns, other(taken_ns));
        }
    }
    Journey {
        key,
        bytes: sent.bytes,
        begun_ns: sent.begun_ns,
        phases,
        repeats,
        error_ns: None,
    }
}

fn times(all: &HashMap<u32, u64>, units: &[u32]) -> Vec<u64> {
    units
        .iter()
        .filter_map(|unit| all.get(unit).copied())
        .collect()
}

/// `time - from`, which may be negative.
fn difference(time_ns: u64, from_ns: u64) -> i64 {
    let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
    signed(time_ns).saturating_sub(signed(from_ns))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use dipole_record::SegmentHeader;

    use super::*;

    /// The clock of the receiver is ahead by this.
    const AHEAD: u64 = 3_000_000;

    fn header(host: &str, incarnation: u64) -> SegmentHeader {
        SegmentHeader {
            version: String::new(),
            host: host.to_owned(),
            node: 1,
            pid: 1,
            incarnation,
            segment: 0,
            begins_at: 0,
            since_1970_ns: 0,
        }
    }

    fn departure(first_ns: u64, last_ns: u64, times: u32) -> Departure {
        Departure {
            first_ns,
            last_ns,
            times,
        }
    }

    /// A message of three units from process 1 to process 2, by the clocks of both, and the
    /// acknowledgement of the last unit.
    fn trails(hosts: [&str; 2], ahead: u64) -> [Trail; 2] {
        let key = MessageKey {
            from: 1,
            to: 2,
            ends: (8, 7),
            number: 4,
        };
        let here = Units {
            departures: [
                (10, departure(1300, 1300, 1)),
                (11, departure(1400, 9000, 2)),
                (12, departure(1500, 1500, 1)),
            ]
            .into(),
            acks_arrived: BTreeMap::from([(13, 9900)]),
            ..Units::default()
        };
        let there = Units {
            arrivals: [(10, 2000 + ahead), (12, 2200 + ahead), (11, 9600 + ahead)].into(),
            acks_sent: BTreeMap::from([(13, 9700 + ahead)]),
            ..Units::default()
        };
        let sent = Sent {
            wanted_ns: 1000,
            begun_ns: 1100,
            bytes: 4000,
        };
        let received = Received {
            units: vec![(10, 1), (11, 2)],
            delivered_ns: Some(9650 + ahead),
            taken_ns: Some(9900 + ahead),
        };
        let mut from = Trail::empty(header(hosts[0], 1));
        from.sent.insert(key, sent);
        from.units.insert(2, here);
        let mut to = Trail::empty(header(hosts[1], 2));
        to.received.insert(key, received);
        to.units.insert(1, there);
        [from, to]
    }

    fn phases(journey: &Journey) -> Vec<(&'static str, i64, i64)> {
        let phases = journey.phases.iter();
        phases
            .map(|phase| (phase.name.name(), phase.from_ns, phase.to_ns))
            .collect()
    }

    #[test]
    fn phases_follow_each_other_from_the_first_try_to_the_program() {
        let [from, to] = trails(["a", "a"], 0);
        let found = journeys(&from, &to);
        let [journey] = &found[..] else {
            panic!("{found:?}")
        };
        let expected = [
            ("credit", 0, 100),
            ("queue", 100, 300),
            ("send", 300, 500),
            ("repeat", 500, 8000),
            ("network", 300, 1000),
            ("arrive", 1000, 8600),
            ("order", 8600, 8650),
            ("unread", 8650, 8900),
        ];
        assert_eq!(phases(journey), expected);
        assert_eq!((journey.repeats, journey.bytes), (1, 4000));
        assert_eq!((journey.total_ns(), journey.error_ns), (8900, None));
        assert_eq!(journeys(&to, &from), []);
    }

    #[test]
    fn the_clock_of_another_host_is_compared_by_packets_and_acknowledgements() {
        let [from, to] = trails(["a", "b"], AHEAD);
        let found = journeys(&from, &to);
        let error_ns = found[0].error_ns.expect("packets went in both directions");
        // Unit 10 took 700 ns, and the acknowledgement 200 ns.
        assert!(error_ns <= 500, "{error_ns}");
        let arrive = found[0]
            .phases
            .iter()
            .find(|it| it.name == PhaseName::Arrive);
        let wrong = arrive.expect("it arrived").to_ns.abs_diff(8600);
        assert!(wrong <= error_ns, "{wrong} {error_ns}");
    }

    #[test]
    fn nothing_arrives_before_it_was_sent_on_one_host() {
        // The receiver has read the time of day 3 ms too early.
        let [mut from, mut to] = trails(["a", "a"], 0);
        for sent in from.sent.values_mut() {
            (sent.wanted_ns, sent.begun_ns) = (sent.wanted_ns + AHEAD, sent.begun_ns + AHEAD);
        }
        (from.units, to.units) = (HashMap::new(), HashMap::new());
        let found = journeys(&from, &to);
        assert_eq!(
            phases(&found[0]),
            [
                ("credit", 0, 100),
                ("network", 100, 100),
                ("unread", 100, 350)
            ]
        );
    }
}
