//! The two processes of a calibration: the leading side sends commands and measures time, the
//! following side executes them.
//!
//! All times are of calls of the public API, by threads that spin, minus the cost of reading the
//! clock.

use std::hint::spin_loop;
use std::io;
use std::time::{Duration, Instant};

use dipole_node::{Address, Endpoint, EndpointId, Message, Node, RegionKey, RegionMemory, Rights};
use serde::{Deserialize, Serialize};

use crate::channel::{broken, timed_out};
use crate::control::{Job, Part};
use crate::dipole::{check_carrier, endpoints, failed, open_node};
use crate::machine;
use crate::peers::Meet;
use crate::pingpong::GIVE_UP;
use crate::statistics::nanoseconds;
use crate::statistics::{Spread, as_float};
use crate::stdio;
use crate::work::Role;

/// Lengths of messages of one fragment, and of longer ones. There are steps where a second packet or
/// a second fragment begins, so there is a length on each side of a step.
pub const FRAGMENT_BYTES: usize = 16 << 10;
pub const SHORT_BYTES: [usize; 11] = [
    1,
    64,
    256,
    1024,
    1400,
    1500,
    2048,
    4096,
    8192,
    12 << 10,
    FRAGMENT_BYTES,
];
pub const LONG_BYTES: [usize; 7] = [
    18 << 10,
    24 << 10,
    32 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
];
/// Repetitions of each measurement in a round, and of its warm-up.
const LEAST: u32 = 16;
const MOST: u32 = 400;
const WARM_UP: u32 = 8;
/// Messages and bytes of a burst: many, because the receiver reads the first ones late.
const BURST: u32 = 256;
const BURST_BYTES: usize = 1 << 20;
const BURSTS: u32 = 8;
/// Messages that are picked up together.
const LYING: u32 = 32;
/// Time between the arrival of a burst and its pick-up, in which the receiver makes no calls.
const LIES: Duration = Duration::from_micros(600);
const CLOCK_READINGS: u32 = 1000;
/// Rights of the receiver of an offered message.
const READABLE: Rights = Rights {
    get: true,
    ..Rights::NONE
};

/// The quantity that was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// One-way time, half a round trip.
    Trip,
    /// Duration of the send call.
    Send,
    /// Time of the receiver's calls in which a part arrives, beyond an empty call: `O_r + U_r`.
    Work,
    /// Duration of the call that takes a message from the pool.
    PickUp,
    /// Time between two messages of a burst at the sender, and at the receiver.
    SendGap,
    ReceiveGap,
    /// Time until a message is in the receiver's buffer, and a short reply has returned: sent whole and
    /// copied on both sides, or offered and fetched by the receiver.
    Whole,
    Offered,
}

/// All repetitions of a measurement in one round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub what: Metric,
    pub bytes: usize,
    pub ns: Vec<f64>,
}

/// Command from the leading to the following side; 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Command {
    /// Send this many messages back.
    Echo {
        bytes: usize,
        count: u32,
    },
    /// Receive this many messages and reply with the time between them.
    Gaps {
        bytes: usize,
        count: u32,
    },
    /// Let this many messages arrive, then reply with the time to pick up each.
    PickUp {
        bytes: usize,
        count: u32,
    },
    /// Copy this many messages, and reply to each.
    Copy {
        bytes: usize,
        count: u32,
    },
    /// Fetch this many messages from the leading side's memory, and reply to each.
    Fetch {
        bytes: usize,
        count: u32,
    },
    End,
}

impl Command {
    fn bytes(self) -> [u8; 24] {
        let [kind, bytes, count] = match self {
            Command::Echo { bytes, count } => [0, bytes as u64, u64::from(count)],
            Command::Gaps { bytes, count } => [1, bytes as u64, u64::from(count)],
            Command::PickUp { bytes, count } => [2, bytes as u64, u64::from(count)],
            Command::End => [3, 0, 0],
            Command::Copy { bytes, count } => [4, bytes as u64, u64::from(count)],
            Command::Fetch { bytes, count } => [5, bytes as u64, u64::from(count)],
        };
        let mut text = [0; 24];
        for (place, number) in text.chunks_exact_mut(8).zip([kind, bytes, count]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        text
    }

    fn parse(text: &[u8]) -> Option<Command> {
        let (numbers, rest) = text.as_chunks::<8>();
        let &[kind, bytes, count] = numbers else {
            return None;
        };
        let [kind, bytes, count] = [kind, bytes, count].map(u64::from_le_bytes);
        let (bytes, count) = (usize::try_from(bytes).ok()?, u32::try_from(count).ok()?);
        match kind {
            _ if !rest.is_empty() => None,
            0 => Some(Command::Echo { bytes, count }),
            1 => Some(Command::Gaps { bytes, count }),
            2 => Some(Command::PickUp { bytes, count }),
            3 => Some(Command::End),
            4 => Some(Command::Copy { bytes, count }),
            5 => Some(Command::Fetch { bytes, count }),
            _ => None,
        }
    }
}

/// Takes part as either side. The leading side sends the samples to the parent.
pub fn take_part(job: &Job, part: &Part, meet: Meet) -> io::Result<()> {
    if let Some(path) = &job.namespace {
        machine::enter_namespace(path)?;
    }
    machine::pin(job.core)?;
    let node = open_node(job, |_| ())?;
    let (own, other) = endpoints(job);
    let endpoint = node.endpoint(EndpointId(own)).map_err(failed)?;
    meet(Vec::new())?;
    let to = Address::new(job.other_node, other);
    endpoint.target(to).map_err(failed)?;
    let lengths = match part {
        Part::All => &LONG_BYTES[..],
        Part::Trips(lengths) | Part::Transfers(lengths) => lengths,
    };
    let mut place = Place::new((&node, &endpoint), lengths);
    match (job.role, part) {
        (Role::Lead, Part::All) => place.lead(job.work.duration)?,
        (Role::Lead, Part::Trips(_)) => place.trips(lengths, job.work.duration)?,
        (Role::Lead, Part::Transfers(_)) => place.transfers(lengths, job.work.duration)?,
        (Role::Follow, _) => place.follow()?,
    }
    let samples = place.samples;
    check_carrier(Some(job.carrier), &node.stats())?;
    drop(endpoint);
    node.close(GIVE_UP).map_err(failed)?;
    stdio::send(&samples)
}

/// Runs rounds over two connected endpoints. The leading side returns the samples of each round.
pub(super) fn rounds(
    place: (&Node, &Endpoint),
    role: Role,
    rounds: u32,
    each: Duration,
    mut done: impl FnMut(),
) -> io::Result<Vec<Vec<Sample>>> {
    let mut place = Place::new(place, &LONG_BYTES);
    let mut all = Vec::new();
    for _ in 0..rounds {
        match role {
            Role::Lead => place.lead(each)?,
            Role::Follow => place.follow()?,
        }
        all.push(std::mem::take(&mut place.samples));
        done();
    }
    Ok(all)
}

struct Place<'a> {
    node: &'a Node,
    endpoint: &'a Endpoint,
    clock_ns: f64,
    samples: Vec<Sample>,
    payload: Vec<u8>,
}

impl<'a> Place<'a> {
    /// Creates a leader for messages up to these lengths.
    fn new((node, endpoint): (&'a Node, &'a Endpoint), lengths: &[usize]) -> Self {
        let most = lengths.iter().copied().max().unwrap_or(0);
        Self {
            node,
            endpoint,
            clock_ns: clock_ns(),
            samples: Vec::new(),
            payload: vec![0x5a; most.max(FRAGMENT_BYTES)],
        }
    }

    /// Makes all measurements, each for about this long.
    fn lead(&mut self, each: Duration) -> io::Result<()> {
        // The first messages open the connection.
        self.round_trips(1, 50)?;
        let idle_ns = self.idle_ns()?;
        for bytes in SHORT_BYTES.into_iter().chain(LONG_BYTES) {
            let count = self.fitting(bytes, each)?;
            let trips = self.round_trips(bytes, count)?;
            self.tell(Metric::Trip, bytes, trips.iter().map(|trip| trip.0));
            self.tell(Metric::Send, bytes, trips.iter().map(|trip| trip.1));
            let work = self.work(bytes, count.div_ceil(2).max(LEAST), idle_ns)?;
            self.tell(Metric::Work, bytes, work);
            if bytes <= FRAGMENT_BYTES {
                let gaps = self.bursts(bytes)?;
                self.tell(Metric::SendGap, bytes, gaps.iter().map(|gap| gap.0));
                self.tell(Metric::ReceiveGap, bytes, gaps.iter().map(|gap| gap.1));
            }
            if bytes <= 1400 {
                let picked = self.picked_up(bytes)?;
                self.tell(Metric::PickUp, bytes, picked);
            }
        }
        self.command(Command::End)
    }

    fn trips(&mut self, lengths: &[usize], each: Duration) -> io::Result<()> {
        self.round_trips(1, 50)?;
        for &bytes in lengths {
            let count = self.fitting(bytes, each)?;
            let trips = self.round_trips(bytes, count)?;
            self.tell(Metric::Trip, bytes, trips.iter().map(|trip| trip.0));
        }
        self.command(Command::End)
    }

    /// Measures messages until they are in the receiver's buffer, by both methods in turns.
    fn transfers(&mut self, lengths: &[usize], each: Duration) -> io::Result<()> {
        self.round_trips(1, 50)?;
        for &bytes in lengths {
            let count = self.fitting(bytes, each)?;
            self.command(Command::Copy { bytes, count })?;
            let mut whole = Vec::with_capacity(count as usize);
            let mut scratch = Vec::with_capacity(bytes);
            for _ in 0..count {
                let begun = Instant::now();
                scratch.clear();
                scratch.extend_from_slice(&self.payload[..bytes]);
                self.endpoint.send(&scratch).map_err(failed)?;
                self.receive_of(1)?;
                whole.push(self.since(begun));
            }
            self.command(Command::Fetch { bytes, count })?;
            let memory = RegionMemory::new(bytes).map_err(failed)?;
            let mut offered = Vec::with_capacity(count as usize);
            for _ in 0..count {
                let begun = Instant::now();
                let region = self.endpoint.open_region(memory.clone(), READABLE);
                let region = region.map_err(failed)?;
                let key = region.key().0.to_le_bytes();
                self.endpoint.send(&key).map_err(failed)?;
                self.receive_of(1)?;
                drop(region);
                offered.push(self.since(begun));
            }
            self.tell(Metric::Whole, bytes, whole);
            self.tell(Metric::Offered, bytes, offered);
        }
        self.command(Command::End)
    }

    fn copy(&mut self, bytes: usize, count: u32) -> io::Result<()> {
        for _ in 0..count {
            let message = self.receive_of(bytes)?;
            self.payload[..bytes].copy_from_slice(&message);
            drop(message);
            self.send(1)?;
        }
        Ok(())
    }

    fn fetch(&mut self, bytes: usize, count: u32) -> io::Result<()> {
        let mut edge = None;
        for _ in 0..count {
            let offer = self.receive_of(size_of::<u64>())?;
            let key = offer.first_chunk().copied().map_or(0, u64::from_le_bytes);
            if edge.is_none() {
                edge = Some(self.endpoint.edge(offer.source()).map_err(failed)?);
            }
            let into = &mut self.payload[..bytes];
            if let Some(edge) = &edge {
                edge.get(RegionKey(key), 0, into, GIVE_UP).map_err(failed)?;
            }
            drop(offer);
            self.send(1)?;
        }
        Ok(())
    }

    fn follow(&mut self) -> io::Result<()> {
        loop {
            let told = self.receive()?;
            let command = Command::parse(&told)
                .ok_or_else(|| broken(format!("{} bytes instead of a command", told.len())))?;
            drop(told);
            match command {
                Command::Echo { bytes, count } => {
                    for _ in 0..count {
                        self.receive_of(bytes)?;
                        self.send(bytes)?;
                    }
                }
                Command::Gaps { bytes, count } => {
                    let gap_ns = self.gap_ns(bytes, count)?;
                    self.answer(&[gap_ns])?;
                }
                Command::PickUp { bytes, count } => {
                    self.receive_of(bytes)?;
                    let begun = Instant::now();
                    while begun.elapsed() < LIES {
                        spin_loop();
                    }
                    let mut took = Vec::new();
                    for _ in 1..count {
                        let begun = Instant::now();
                        let message = self.receive_of(bytes)?;
                        took.push(self.since(begun));
                        drop(message);
                    }
                    // The first call also polled the link.
                    took.remove(0);
                    self.answer(&took)?;
                }
                Command::Copy { bytes, count } => self.copy(bytes, count)?,
                Command::Fetch { bytes, count } => self.fetch(bytes, count)?,
                Command::End => return Ok(()),
            }
        }
    }

    fn tell(&mut self, what: Metric, bytes: usize, ns: impl IntoIterator<Item = f64>) {
        let ns = ns.into_iter().collect();
        self.samples.push(Sample { what, bytes, ns });
    }

    /// Returns the number of round trips that take about this long.
    fn fitting(&self, bytes: usize, each: Duration) -> io::Result<u32> {
        let begun = Instant::now();
        self.round_trips(bytes, WARM_UP)?;
        let once = begun.elapsed() / WARM_UP;
        let count = each.as_nanos() / once.as_nanos().max(1);
        Ok(u32::try_from(count).unwrap_or(MOST).clamp(LEAST, MOST))
    }

    /// Measures round trips: half of each, and the duration of the send call.
    fn round_trips(&self, bytes: usize, count: u32) -> io::Result<Vec<(f64, f64)>> {
        self.command(Command::Echo { bytes, count })?;
        let mut trips = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let begun = Instant::now();
            self.send(bytes)?;
            let sent = self.since(begun);
            self.receive_of(bytes)?;
            let whole = self.since(begun) - self.clock_ns;
            trips.push((whole / 2.0, sent));
        }
        Ok(trips)
    }

    /// Measures how long the receiver's calls work on each message.
    fn work(&self, bytes: usize, count: u32, idle_ns: f64) -> io::Result<Vec<f64>> {
        self.command(Command::Echo { bytes, count })?;
        let mut all = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let mut calls = ReceiveCalls::new(idle_ns, self.arrived());
            self.send(bytes)?;
            let begun = Instant::now();
            loop {
                let look = Instant::now();
                let message = self.endpoint.try_receive().map_err(failed)?;
                let took = self.since(look);
                if let Some(message) = message {
                    check(&message, bytes)?;
                    all.push(calls.work_ns + took);
                    break;
                }
                calls.found_no_message(took, || self.arrived());
                self.look_at_clock(begun)?;
            }
        }
        Ok(all)
    }

    /// Counts parts of messages that have arrived: units of the protocol, and records in shared memory.
    fn arrived(&self) -> u64 {
        let stats = self.node.stats();
        stats.protocol.units_received + stats.local.map_or(0, |local| local.records_in)
    }

    /// Measures the duration of a call that finds nothing.
    fn idle_ns(&self) -> io::Result<f64> {
        let mut looks = Vec::new();
        for _ in 0..CLOCK_READINGS {
            let begun = Instant::now();
            if self.endpoint.try_receive().map_err(failed)?.is_some() {
                return Err(broken("an unexpected message".to_owned()));
            }
            looks.push(self.since(begun));
        }
        Ok(Spread::of(looks).map_or(0.0, |spread| spread.median))
    }

    /// Measures the gaps of bursts at the sender and at the receiver.
    fn bursts(&self, bytes: usize) -> io::Result<Vec<(f64, f64)>> {
        let count = u32::try_from(BURST_BYTES / bytes).unwrap_or(BURST);
        let count = count.min(BURST);
        let mut gaps = Vec::new();
        for _ in 0..BURSTS {
            self.command(Command::Gaps { bytes, count })?;
            let begun = Instant::now();
            for _ in 0..count {
                self.send(bytes)?;
            }
            let sent = self.since(begun) / f64::from(count);
            let told = self.answered()?;
            gaps.push((sent, told.first().copied().unwrap_or(sent)));
        }
        Ok(gaps)
    }

    /// Receives messages and returns the time between them.
    fn gap_ns(&self, bytes: usize, count: u32) -> io::Result<f64> {
        self.receive_of(bytes)?;
        let begun = Instant::now();
        for _ in 1..count {
            self.receive_of(bytes)?;
        }
        Ok(self.since(begun) / f64::from(count.saturating_sub(1).max(1)))
    }

    /// Measures the time to pick up messages that are already in the pool.
    fn picked_up(&self, bytes: usize) -> io::Result<Vec<f64>> {
        let mut all = Vec::new();
        for _ in 0..BURSTS {
            let count = LYING;
            self.command(Command::PickUp { bytes, count })?;
            for _ in 0..count {
                self.send(bytes)?;
            }
            all.extend(self.answered()?);
        }
        Ok(all)
    }

    fn command(&self, command: Command) -> io::Result<()> {
        self.endpoint.send(&command.bytes()).map_err(failed)
    }

    fn send(&self, bytes: usize) -> io::Result<()> {
        self.endpoint.send(&self.payload[..bytes]).map_err(failed)
    }

    fn answer(&self, numbers: &[f64]) -> io::Result<()> {
        let text: Vec<u8> = numbers
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        self.endpoint.send(&text).map_err(failed)
    }

    fn answered(&self) -> io::Result<Vec<f64>> {
        let told = self.receive()?;
        let (numbers, _) = told.as_chunks();
        Ok(numbers
            .iter()
            .map(|text| f64::from_le_bytes(*text))
            .collect())
    }

    fn receive(&self) -> io::Result<Message> {
        self.endpoint.receive_timeout(GIVE_UP).map_err(failed)
    }

    fn receive_of(&self, bytes: usize) -> io::Result<Message> {
        let message = self.receive()?;
        check(&message, bytes)?;
        Ok(message)
    }

    /// Returns the nanoseconds since `start` minus the cost of reading the clock.
    fn since(&self, begun: Instant) -> f64 {
        as_float(nanoseconds(begun.elapsed())) - self.clock_ns
    }

    fn look_at_clock(&self, begun: Instant) -> io::Result<()> {
        match begun.elapsed() < GIVE_UP {
            true => Ok(()),
            false => Err(timed_out("waiting for an echo", GIVE_UP)),
        }
    }
}

/// The receiver's calls until a message is complete.
struct ReceiveCalls {
    idle_ns: f64,
    work_ns: f64,
    arrived: u64,
}

impl ReceiveCalls {
    fn new(idle_ns: f64, arrived: u64) -> Self {
        Self {
            idle_ns,
            work_ns: 0.0,
            arrived,
        }
    }

    /// Adds a call that returned no message. It worked if it received a part. During a long wait many
    /// calls take longer for another reason, such as an interrupt or a timer of the protocol. `arrived`
    /// costs more than a short call, so only longer ones are checked.
    fn found_no_message(&mut self, took_ns: f64, arrived: impl FnOnce() -> u64) {
        if took_ns <= 2.0 * self.idle_ns {
            return;
        }
        let arrived = arrived();
        if arrived != self.arrived {
            self.work_ns += took_ns - self.idle_ns;
            self.arrived = arrived;
        }
    }
}

fn check(message: &Message, bytes: usize) -> io::Result<()> {
    match message.len() == bytes {
        true => Ok(()),
        false => Err(broken(format!(
            "received a message of {} bytes, expected {bytes}",
            message.len()
        ))),
    }
}

/// Measures the cost of reading the clock.
fn clock_ns() -> f64 {
    let readings = (0..CLOCK_READINGS).map(|_| as_float(nanoseconds(Instant::now().elapsed())));
    Spread::of(readings).map_or(0.0, |spread| spread.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_receive_nothing_are_no_work_however_long_they_take() {
        let mut calls = ReceiveCalls::new(100.0, 7);
        for (took_ns, arrived) in [(5000.0, 7), (900.0, 8), (700.0, 8), (400.0, 10)] {
            calls.found_no_message(took_ns, || arrived);
        }
        calls.found_no_message(200.0, || panic!("short calls are not checked"));
        assert_eq!(calls.work_ns.to_bits(), 1100.0_f64.to_bits());
    }

    #[test]
    fn commands_are_found_again_and_nothing_else_is_one() {
        let all = [
            Command::Echo { bytes: 1, count: 2 },
            Command::Gaps {
                bytes: 1 << 22,
                count: 7,
            },
            Command::PickUp { bytes: 9, count: 0 },
            Command::Copy { bytes: 8, count: 5 },
            Command::Fetch { bytes: 7, count: 6 },
            Command::End,
        ];
        for command in all {
            assert_eq!(Command::parse(&command.bytes()), Some(command));
        }
        let mut unknown = Command::End.bytes();
        unknown[0] = 9;
        assert_eq!(Command::parse(&unknown), None);
        assert_eq!(Command::parse(&[0; 25]), None);
        assert_eq!(Command::parse(&[]), None);
    }
}
