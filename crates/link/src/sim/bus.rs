//! A shared medium: one frame at a time, collisions, binary exponential back-off.
//!
//! 1-persistent CSMA/CD as in IEEE 802.3: a station waits until the medium is idle and sends at
//! once; a station that starts before the other's signal has reached it collides. The bus knows
//! only the transmission times of frames; randomness comes from the network.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// Collisions after which the back-off range stops growing.
const MAX_DOUBLINGS: u32 = 10;
/// Collisions after which a frame is dropped.
const MAX_ATTEMPTS: u32 = 16;

/// A bus instead of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusConfig {
    /// Signal propagation time from end to end; back-offs are multiples of twice this.
    pub propagation_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carrier {
    Quiet,
    /// The signal has not reached all stations yet.
    Begun {
        at_ns: u64,
    },
    /// A frame, or the end of a collision.
    Busy {
        until_ns: u64,
        sender: Option<IpAddr>,
    },
}

struct QueuedFrame<F> {
    frame: F,
    wire_ns: u64,
}

struct Station<F> {
    queue: VecDeque<QueuedFrame<F>>,
    queued_ns: u64,
    collisions: u32,
    attempt_at_ns: Option<u64>,
}

/// The result for a frame.
pub(super) enum Outcome<F> {
    /// The frame was transmitted.
    Passed(F),
    /// It collided too often.
    GivenUp(F),
}

pub(super) struct Bus<F> {
    config: BusConfig,
    carrier: Carrier,
    /// Stations sending in the current contention slot.
    contenders: Vec<IpAddr>,
    stations: BTreeMap<IpAddr, Station<F>>,
    /// Number of transmission attempts.
    pub(super) attempts: u64,
    /// Number of attempts that collided.
    pub(super) collisions: u64,
}

impl<F> Bus<F> {
    pub(super) fn new(config: BusConfig) -> Bus<F> {
        Bus {
            config,
            carrier: Carrier::Quiet,
            contenders: Vec::new(),
            stations: BTreeMap::new(),
            attempts: 0,
            collisions: 0,
        }
    }

    /// Queue of an interface, as time on the medium.
    pub(super) fn queued_ns(&self, ip: IpAddr) -> u64 {
        self.stations.get(&ip).map_or(0, |it| it.queued_ns)
    }

    /// Queues a frame at an interface.
    pub(super) fn push(&mut self, now_ns: u64, from: IpAddr, frame: F, wire_ns: u64) {
        let station = self.stations.entry(from).or_default();
        if station.queue.is_empty() {
            station.attempt_at_ns = Some(now_ns);
        }
        station.queued_ns += wire_ns;
        station.queue.push_back(QueuedFrame { frame, wire_ns });
    }

    /// Time of the next event.
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

    /// Processes the next event.
    pub(super) fn step(&mut self, rng: &mut ChaCha8Rng) -> Vec<Outcome<F>> {
        let attempt = self.stations.iter().filter_map(|(ip, station)| {
            let at_ns = station.attempt_at_ns?;
            Some((at_ns, *ip))
        });
        let attempt = attempt.min();
        let carrier_ns = self.carrier_event_ns();
        // The end of a frame comes before stations that waited for it.
        match (carrier_ns, attempt) {
            (Some(at_ns), Some((attempt_ns, _))) if at_ns <= attempt_ns => {
                self.carrier_event(at_ns, rng)
            }
            (_, Some((at_ns, ip))) => {
                self.attempt(at_ns, ip);
                Vec::new()
            }
            (Some(at_ns), None) => self.carrier_event(at_ns, rng),
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
                self.contenders.push(ip);
                self.attempts += 1;
            }
            Carrier::Begun { .. } => {
                self.contenders.push(ip);
                self.attempts += 1;
            }
        }
    }

    fn carrier_event(&mut self, now_ns: u64, rng: &mut ChaCha8Rng) -> Vec<Outcome<F>> {
        match self.carrier {
            Carrier::Quiet => Vec::new(),
            Carrier::Begun { at_ns } => self.resolve_contention(at_ns, now_ns, rng),
            Carrier::Busy { sender, .. } => {
                self.carrier = Carrier::Quiet;
                let station = sender.and_then(|ip| self.stations.get_mut(&ip));
                let sent = station.and_then(|station| station.finish(now_ns));
                sent.into_iter().map(Outcome::Passed).collect()
            }
        }
    }

    /// Ends the contention slot: a single sender continues, several collide.
    fn resolve_contention(
        &mut self,
        begun_ns: u64,
        now_ns: u64,
        rng: &mut ChaCha8Rng,
    ) -> Vec<Outcome<F>> {
        let contenders = std::mem::take(&mut self.contenders);
        if let [ip] = contenders[..] {
            let first = self.stations.get(&ip).and_then(|it| it.queue.front());
            let wire_ns = first.map_or(0, |waiting| waiting.wire_ns);
            self.carrier = Carrier::Busy {
                until_ns: (begun_ns + wire_ns).max(now_ns),
                sender: Some(ip),
            };
            return Vec::new();
        }
        self.collisions += contenders.len() as u64;
        // The jam signal needs as long to reach all stations.
        let until_ns = now_ns + self.config.propagation_ns;
        self.carrier = Carrier::Busy {
            until_ns,
            sender: None,
        };
        let slot_ns = 2 * self.config.propagation_ns;
        let stations = contenders.iter();
        let given_up = stations.filter_map(|ip| {
            let station = self.stations.get_mut(ip)?;
            station.collisions += 1;
            if station.collisions >= MAX_ATTEMPTS {
                return station.finish(until_ns);
            }
            let slots = 1_u64 << station.collisions.min(MAX_DOUBLINGS);
            let waits_ns = rng.random_range(0..slots) * slot_ns;
            station.attempt_at_ns = Some(until_ns + waits_ns);
            None
        });
        given_up.map(Outcome::GivenUp).collect()
    }
}

impl<F> Default for Station<F> {
    fn default() -> Station<F> {
        Station {
            queue: VecDeque::new(),
            queued_ns: 0,
            collisions: 0,
            attempt_at_ns: None,
        }
    }
}

impl<F> Station<F> {
    /// Removes the first frame.
    fn finish(&mut self, now_ns: u64) -> Option<F> {
        self.collisions = 0;
        let done = self.queue.pop_front()?;
        self.queued_ns -= done.wire_ns;
        self.attempt_at_ns = (!self.queue.is_empty()).then_some(now_ns);
        Some(done.frame)
    }
}
