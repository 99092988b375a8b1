//! A medium that all interfaces share: one frame at a time, collisions, binary exponential back-off.
//!
//! 1-persistent CSMA/CD as of IEEE 802.3: who has a frame waits until the medium is quiet and
//! begins at once; who begins before the other's signal has reached it collides with it. It knows
//! frames only by their lengths in time; the dice are the network's.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::state::Frame;

/// After so many collisions the range of back-offs grows no more.
const MOST_DOUBLINGS: u32 = 10;
/// After so many collisions a frame is given up.
const MOST_ATTEMPTS: u32 = 16;

/// A bus in place of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusConfig {
    /// How long a signal needs from one end to the other; back-offs are multiples of twice that.
    pub propagation_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carrier {
    Quiet,
    /// Not everybody hears it yet.
    Begun {
        at_ns: u64,
    },
    /// A frame, or the rest of a collision.
    Busy {
        until_ns: u64,
        sender: Option<IpAddr>,
    },
}

struct Waiting {
    frame: Frame,
    wire_ns: u64,
}

#[derive(Default)]
struct Station {
    queue: VecDeque<Waiting>,
    queued_ns: u64,
    collisions: u32,
    attempt_at_ns: Option<u64>,
}

/// What became of a frame.
pub(super) enum Outcome {
    /// It has passed the bus.
    Passed(Frame),
    /// It collided too often.
    GivenUp(Frame),
}

pub(super) struct Bus {
    config: BusConfig,
    carrier: Carrier,
    /// Who is sending what has only begun.
    begun: Vec<IpAddr>,
    stations: BTreeMap<IpAddr, Station>,
    /// Times that somebody began to send.
    pub(super) attempts: u64,
    /// Attempts that met another.
    pub(super) collisions: u64,
}

impl Bus {
    pub(super) fn new(config: BusConfig) -> Bus {
        Bus {
            config,
            carrier: Carrier::Quiet,
            begun: Vec::new(),
            stations: BTreeMap::new(),
            attempts: 0,
            collisions: 0,
        }
    }

    /// How much waits at an interface, as time on the medium.
    pub(super) fn queued_ns(&self, ip: IpAddr) -> u64 {
        self.stations.get(&ip).map_or(0, |it| it.queued_ns)
    }

    /// A frame waits to be sent.
    pub(super) fn push(&mut self, now_ns: u64, frame: Frame, wire_ns: u64) {
        let station = self.stations.entry(frame.from.ip()).or_default();
        if station.queue.is_empty() {
            station.attempt_at_ns = Some(now_ns);
        }
        station.queued_ns += wire_ns;
        station.queue.push_back(Waiting { frame, wire_ns });
    }

    /// When something happens next.
    pub(super) fn next_event_ns(&self) -> Option<u64> {
        let attempts = self.stations.values().filter_map(|it| it.attempt_at_ns);
        attempts.chain(self.carrier_event_ns()).min()
    }

    fn carrier_event_ns(&self) -> Option<u64> {
        match self.carrier {
            Carrier::Quiet => None,
            Carrier::Begun { at_ns } => Some(at_ns + self.config.propagation_ns),
            Carrier::Busy { until_ns, .. } => Some(until_ns),
        }
    }

    /// Lets happen what happens next.
    pub(super) fn step(&mut self, dice: &mut ChaCha8Rng) -> Vec<Outcome> {
        let attempt = self.stations.iter().filter_map(|(ip, station)| {
            let at_ns = station.attempt_at_ns?;
            Some((at_ns, *ip))
        });
        let attempt = attempt.min();
        let carrier_ns = self.carrier_event_ns();
        // The end of a frame comes before those who have waited for it.
        match (carrier_ns, attempt) {
            (Some(at_ns), Some((attempt_ns, _))) if at_ns <= attempt_ns => {
                self.carrier_event(at_ns, dice)
            }
            (_, Some((at_ns, ip))) => {
                self.attempt(at_ns, ip);
                Vec::new()
            }
            (Some(at_ns), None) => self.carrier_event(at_ns, dice),
            (None, None) => Vec::new(),
        }
    }

    fn attempt(&mut self, at_ns: u64, ip: IpAddr) {
        let Some(station) = self.stations.get_mut(&ip) else {
            return;
        };
        station.attempt_at_ns = None;
        match self.carrier {
            Carrier::Busy { until_ns, .. } => station.attempt_at_ns = Some(until_ns),
            Carrier::Quiet => {
                self.carrier = Carrier::Begun { at_ns };
                self.begun.push(ip);
                self.attempts += 1;
            }
            Carrier::Begun { .. } => {
                self.begun.push(ip);
                self.attempts += 1;
            }
        }
    }

    fn carrier_event(&mut self, now_ns: u64, dice: &mut ChaCha8Rng) -> Vec<Outcome> {
        match self.carrier {
            Carrier::Quiet => Vec::new(),
            Carrier::Begun { at_ns } => self.heard_by_all(at_ns, now_ns, dice),
            Carrier::Busy { sender, .. } => {
                self.carrier = Carrier::Quiet;
                let station = sender.and_then(|ip| self.stations.get_mut(&ip));
                let sent = station.and_then(|station| station.finish(now_ns));
                sent.into_iter().map(Outcome::Passed).collect()
            }
        }
    }

    /// Everybody hears who has begun, also they themselves.
    fn heard_by_all(&mut self, begun_ns: u64, now_ns: u64, dice: &mut ChaCha8Rng) -> Vec<Outcome> {
        let begun = std::mem::take(&mut self.begun);
        if let [ip] = begun[..] {
            let first = self.stations.get(&ip).and_then(|it| it.queue.front());
            let wire_ns = first.map_or(0, |waiting| waiting.wire_ns);
            self.carrier = Carrier::Busy {
                until_ns: (begun_ns + wire_ns).max(now_ns),
                sender: Some(ip),
            };
            return Vec::new();
        }
        self.collisions += begun.len() as u64;
        // It is told with a signal that needs as long to be heard by all.
        let until_ns = now_ns + self.config.propagation_ns;
        self.carrier = Carrier::Busy {
            until_ns,
            sender: None,
        };
        let slot_ns = 2 * self.config.propagation_ns;
        let stations = begun.iter();
        let given_up = stations.filter_map(|ip| {
            let station = self.stations.get_mut(ip)?;
            station.collisions += 1;
            if station.collisions >= MOST_ATTEMPTS {
                return station.finish(until_ns);
            }
            let slots = 1_u64 << station.collisions.min(MOST_DOUBLINGS);
            let waits_ns = dice.random_range(0..slots) * slot_ns;
            station.attempt_at_ns = Some(until_ns + waits_ns);
            None
        });
        given_up.map(Outcome::GivenUp).collect()
    }
}

impl Station {
    /// The first frame is done with.
    fn finish(&mut self, now_ns: u64) -> Option<Frame> {
        self.collisions = 0;
        let done = self.queue.pop_front()?;
        self.queued_ns -= done.wire_ns;
        self.attempt_at_ns = (!self.queue.is_empty()).then_some(now_ns);
        Some(done.frame)
    }
}
