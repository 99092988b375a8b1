//! The messages of one recorded process: when it sent, got and took them, by its own clock.

use std::collections::{BTreeMap, HashMap, VecDeque};

use dipole_proto::wire::Kind;
use dipole_proto::{EdgeId, Event, PeerId};
use dipole_record::{
    Description, Direction, MessageCall, Observed, Recording, SegmentHeader, Step,
};

use crate::replay::{Process, Window};

/// More messages than a step delivers. A damaged recording may contain any number.
const MAX_AT_ONCE: u64 = 1 << 16;

/// One message: the incarnations of the sending and the receiving process, the endpoints, and its
/// number on the edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct MessageKey {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) ends: (u32, u32),
    pub(super) number: u32,
}

/// A message that the process has sent. Times are in nanoseconds since 1970, by its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    /// When the program first tried to send it.
    pub(super) wanted_ns: u64,
    /// When it was accepted.
    pub(super) begun_ns: u64,
    pub(super) bytes: u64,
}

/// A message that the process has received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Received {
    /// Its units: the first one and the number, as far as it arrived in packets.
    pub(super) units: Vec<(u32, u32)>,
    /// When it was complete and next in order.
    pub(super) delivered_ns: Option<u64>,
    /// When the program took it.
    pub(super) taken_ns: Option<u64>,
}

/// A unit that the process has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Departure {
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
    pub(super) times: u32,
}

/// Packets of a session with one peer.
#[derive(Clone, Debug, Default)]
pub(super) struct Units {
    pub(super) departures: HashMap<u32, Departure>,
    /// When each unit arrived.
    pub(super) arrivals: HashMap<u32, u64>,
    /// When an acknowledgement of the units below a number was first sent, and first arrived.
    pub(super) acks_sent: BTreeMap<u32, u64>,
    pub(super) acks_arrived: BTreeMap<u32, u64>,
}

/// All messages of one process.
#[derive(Debug)]
pub(super) struct Trail {
    pub(super) header: SegmentHeader,
    pub(super) sent: BTreeMap<MessageKey, Sent>,
    pub(super) received: BTreeMap<MessageKey, Received>,
    /// By the incarnation of the peer.
    pub(super) units: HashMap<u64, Units>,
    /// The recording cannot be replayed to its end.
    pub(super) is_damaged: bool,
    edges: Edges,
}

/// State of the edges while the recording is replayed.
#[derive(Debug, Default)]
struct Edges {
    incarnations: HashMap<PeerId, u64>,
    /// The number of the next message of outgoing edges.
    next_sent: BTreeMap<EdgeId, u64>,
    /// When the program first tried to send the next message.
    wanted_ns: BTreeMap<EdgeId, u64>,
    incoming: BTreeMap<EdgeId, Incoming>,
    /// Part of the recording is missing, so edges may have delivered messages before.
    has_gap: bool,
}

impl Edges {
    fn after_gap() -> Edges {
        Edges {
            has_gap: true,
            ..Edges::default()
        }
    }
}

/// An incoming edge.
#[derive(Debug)]
struct Incoming {
    ends: (u32, u32),
    /// Number of the next message to be delivered.
    next: u64,
    /// Delivered messages that the program has not taken.
    untaken: VecDeque<u64>,
    /// Operations that are being executed.
    operations: u32,
}

impl Trail {
    pub(super) fn empty(header: SegmentHeader) -> Trail {
        Trail {
            header,
            sent: BTreeMap::new(),
            received: BTreeMap::new(),
            units: HashMap::new(),
            is_damaged: false,
            edges: Edges::default(),
        }
    }

    /// Replays a recording.
    pub(super) fn of(recording: Recording) -> Trail {
        let mut process = Process::new(recording, &Window::ALL);
        let mut trail = Trail::empty(process.header.clone());
        while let Some(at_ns) = process.next_at_ns() {
            match process.take() {
                Some(Step::Observed(_, observed)) => trail.observe(&process, at_ns, &observed),
                Some(Step::File {
                    after_gap: true, ..
                }) => trail.edges = Edges::after_gap(),
                Some(Step::Differs(_) | Step::Damaged(..)) => trail.is_damaged = true,
                _ => {}
            }
        }
        trail.is_damaged |= process.has_panicked;
        trail
    }

    fn observe(&mut self, process: &Process, at_ns: u64, observed: &Observed) {
        match observed {
            Observed::Packet {
                direction,
                peer: Some(peer),
                count,
                description: Some(description),
                dropped: None,
                ..
            } => self.packet(process, at_ns, (*direction, *peer, *count), description),
            Observed::Event(
                Event::Deliver {
                    edge,
                    source,
                    target,
                    ..
                }
                | Event::DeliverRun {
                    edge,
                    source,
                    target,
                    ..
                }
                | Event::Complete {
                    edge,
                    source,
                    target,
                    ..
                },
            ) => self.deliver(process, at_ns, *edge, (*source, *target)),
            Observed::Event(Event::Operation {
                edge,
                source,
                target,
                ..
            }) => {
                self.deliver(process, at_ns, *edge, (*source, *target));
                // It is not a message, and is executed before those that the program has not taken.
                if let Some(incoming) = self.edges.incoming.get_mut(edge) {
                    incoming.untaken.pop_back();
                    incoming.operations += 1;
                }
            }
            Observed::Call {
                message: Some(call),
                ..
            } => self.call(process, at_ns, *call),
            _ => {}
        }
    }

    /// The incarnation of a peer; `None` while its session opens.
    fn incarnation(&mut self, process: &Process, peer: PeerId) -> Option<u64> {
        if let Some(known) = self.edges.incarnations.get(&peer) {
            return Some(*known);
        }
        let found = process.steps.replay()?.machine().status(peer)?.incarnation;
        (found != 0).then(|| {
            self.edges.incarnations.insert(peer, found);
            found
        })
    }

    fn packet(
        &mut self,
        process: &Process,
        at_ns: u64,
        (direction, peer, count): (Direction, PeerId, usize),
        description: &Description,
    ) {
        let Some(incarnation) = self.incarnation(process, peer) else {
            return;
        };
        let units = self.units.entry(incarnation).or_default();
        if let Some(below) = description.acknowledges {
            let acks = match direction {
                Direction::Out => &mut units.acks_sent,
                Direction::In => &mut units.acks_arrived,
            };
            acks.entry(below).or_insert(at_ns);
        }
        let Some(first) = description.unit.filter(|_| description.kind == Kind::Data) else {
            return;
        };
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        for unit in (0..count).map(|more| first.wrapping_add(more)) {
            match direction {
                Direction::Out => {
                    let departure = units.departures.entry(unit).or_insert(Departure {
                        first_ns: at_ns,
                        last_ns: at_ns,
                        times: 0,
                    });
                    departure.last_ns = at_ns;
                    departure.times += 1;
                }
                Direction::In => _ = units.arrivals.entry(unit).or_insert(at_ns),
            }
        }
        if direction == Direction::Out {
            return;
        }
        for part in &description.messages {
            for number in (0..part.count).map(|more| part.first.wrapping_add(more)) {
                let key = MessageKey {
                    from: incarnation,
                    to: self.header.incarnation,
                    ends: part.ends,
                    number,
                };
                // The other packets of a row continue its last message.
                let is_last = number == part.first.wrapping_add(part.count - 1);
                let units = if is_last && part.continues { count } else { 1 };
                self.received
                    .entry(key)
                    .or_default()
                    .units
                    .push((first, units));
            }
        }
    }

    /// Marks the messages that have become deliverable.
    fn deliver(&mut self, process: &Process, at_ns: u64, edge: EdgeId, ends: (u32, u32)) {
        let Some(incarnation) = self.incarnation(process, edge.peer) else {
            return;
        };
        let next = (process.steps.replay()).map_or(0, |it| it.machine().next_message(edge));
        let (own, has_gap) = (self.header.incarnation, self.edges.has_gap);
        let incoming = self.edges.incoming.entry(edge).or_insert_with(|| Incoming {
            ends,
            next: match has_gap {
                true => next.saturating_sub(1),
                false => 0,
            },
            untaken: VecDeque::new(),
            operations: 0,
        });
        for number in incoming.next.max(next.saturating_sub(MAX_AT_ONCE))..next {
            let key = key((incarnation, own), incoming.ends, number);
            let received = self.received.entry(key).or_default();
            received.delivered_ns.get_or_insert(at_ns);
            incoming.untaken.push_back(number);
        }
        incoming.next = incoming.next.max(next);
    }

    fn call(&mut self, process: &Process, at_ns: u64, call: MessageCall) {
        match call {
            MessageCall::Blocked(edge) => _ = self.edges.wanted_ns.entry(edge).or_insert(at_ns),
            MessageCall::Begun(edge, ends, bytes) => {
                self.begin(process, at_ns, (edge, ends), bytes);
            }
            MessageCall::Delivered(edge, ends) => self.deliver(process, at_ns, edge, ends),
            MessageCall::DeliveredAndTaken(edge, ends) => {
                self.deliver(process, at_ns, edge, ends);
                self.take(at_ns, edge, None);
            }
            MessageCall::Taken(edge, bytes) => self.take(at_ns, edge, Some(bytes)),
        }
    }

    fn begin(
        &mut self,
        process: &Process,
        at_ns: u64,
        (edge, ends): (EdgeId, (u32, u32)),
        bytes: u64,
    ) {
        let Some(incarnation) = self.incarnation(process, edge.peer) else {
            return;
        };
        let Some(replay) = process.steps.replay() else {
            return;
        };
        let next = self.edges.next_sent.entry(edge).or_insert_with(|| {
            let status = replay.machine().status(edge.peer);
            let next = status.and_then(|status| {
                let mut edges = status.outgoing.iter();
                edges.find(|it| it.key.ends() == ends).map(|it| it.next)
            });
            next.unwrap_or(0).saturating_sub(1)
        });
        let key = key((self.header.incarnation, incarnation), ends, *next);
        *next += 1;
        let wanted_ns = self.edges.wanted_ns.remove(&edge).unwrap_or(at_ns);
        let sent = Sent {
            wanted_ns,
            begun_ns: at_ns,
            bytes,
        };
        self.sent.insert(key, sent);
    }

    /// The program takes the oldest message of an edge, or an operation is over.
    fn take(&mut self, at_ns: u64, edge: EdgeId, bytes: Option<u64>) {
        let Some(incarnation) = self.edges.incarnations.get(&edge.peer).copied() else {
            return;
        };
        let Some(incoming) = self.edges.incoming.get_mut(&edge) else {
            return;
        };
        if bytes == Some(0) && incoming.operations > 0 {
            incoming.operations -= 1;
        } else if let Some(number) = incoming.untaken.pop_front() {
            let key = key(
                (incarnation, self.header.incarnation),
                incoming.ends,
                number,
            );
            self.received.entry(key).or_default().taken_ns = Some(at_ns);
        }
    }
}

fn key((from, to): (u64, u64), ends: (u32, u32), number: u64) -> MessageKey {
    MessageKey {
        from,
        to,
        ends,
        // As in packets.
        number: u32::try_from(number & u64::from(u32::MAX)).unwrap_or(0),
    }
}
