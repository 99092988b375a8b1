//! Round trips: a message and a reply of the same length.
//!
//! The first and the last byte of each message carry its sequence number modulo 128. The top bit of
//! the first marks the last message. Every figure includes one clock reading per round trip (about
//! 25 ns), the same for all subjects.

use std::io;
use std::time::{Duration, Instant};

use crate::channel::{Channel, SendMode, broken, until, until_done};
use crate::control::Outcome;
use crate::statistics::{RoundTrips, as_float, nanoseconds};
use crate::work::Workload;

/// Marks the last message.
pub const STOP: u8 = 0x80;
/// The rest of that byte: the sequence number.
const SEQUENCE: u8 = 0x7f;
/// Minimum of round trips for a figure.
pub const LEAST_ROUND_TRIPS: u64 = 200;
pub const WARM_UP_ROUND_TRIPS: u64 = 200;
/// If messages take long, the measurement takes up to this many times as long, to reach this many
/// round trips.
const LONGEST_TIMES: u32 = 4;
const FEWEST_ROUND_TRIPS: u64 = 20;
/// Time limit of each step.
pub const GIVE_UP: Duration = Duration::from_secs(10);
/// Time after which a message of an unreliable subject is considered lost and sent again.
pub const LOST_AFTER: Duration = Duration::from_millis(200);
const MOST_REPEATS: u32 = 25;

/// Measures as the side that sends first.
pub fn lead<C: Channel>(channel: &mut C, work: &Workload) -> io::Result<Outcome> {
    let mut pinger = Pinger::new(channel, work.size_bytes, work);
    let begun = Instant::now();
    for trip in 0..WARM_UP_ROUND_TRIPS {
        pinger.round_trip(false)?;
        if trip >= FEWEST_ROUND_TRIPS && begun.elapsed() >= work.duration {
            break;
        }
    }
    let mut trips = RoundTrips::default();
    let cpu_before_ns = work.cpu_time_ns();
    let start = Instant::now();
    let mut before = start;
    while !is_enough(trips.count(), before.duration_since(start), work.duration) {
        pinger.round_trip(false)?;
        let after = Instant::now();
        trips.record(nanoseconds(after.duration_since(before)));
        before = after;
    }
    let cpu_ns = work.cpu_time_ns() - cpu_before_ns;
    pinger.round_trip(true)?;
    let mut outcome = Outcome {
        one_way: Some(trips.one_way()),
        percentiles: trips.percentiles(),
        cpu_ns_per_message: as_float(cpu_ns) / as_float(2 * trips.count()),
        ..Outcome::default()
    };
    if pinger.lost > 0 {
        outcome
            .remarks
            .push(format!("{} messages lost and sent again", pinger.lost));
    }
    Ok(outcome)
}

/// True if this many round trips in this time suffice for a figure.
fn is_enough(trips: u64, lasted: Duration, wanted: Duration) -> bool {
    let least = match lasted >= wanted * LONGEST_TIMES {
        true => FEWEST_ROUND_TRIPS,
        false => LEAST_ROUND_TRIPS,
    };
    trips >= least && lasted >= wanted
}

/// Runs the side that replies.
pub fn follow<C: Channel>(channel: &mut C, work: &Workload) -> io::Result<Outcome> {
    let cpu_before_ns = work.cpu_time_ns();
    let echoed = echo(channel, work.size_bytes, work)?;
    let cpu_ns = work.cpu_time_ns() - cpu_before_ns;
    Ok(Outcome {
        cpu_ns_per_message: as_float(cpu_ns) / as_float(2 * echoed),
        ..Outcome::default()
    })
}

/// The first half of round trips over a channel.
pub struct Pinger<'a, C> {
    channel: &'a mut C,
    payload: Vec<u8>,
    sequence: u8,
    mode: SendMode,
    may_lose: bool,
    lost: u64,
}

impl<'a, C: Channel> Pinger<'a, C> {
    pub fn new(channel: &'a mut C, size_bytes: usize, work: &Workload) -> Self {
        Self {
            channel,
            payload: vec![0x5a; size_bytes],
            sequence: 0,
            mode: mode(work),
            may_lose: work.may_lose,
            lost: 0,
        }
    }

    /// Makes one round trip. With `last` the other side ends its echo.
    pub fn round_trip(&mut self, last: bool) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1) & SEQUENCE;
        let mark = self.sequence | if last { STOP } else { 0 };
        stamp(&mut self.payload, mark);
        if !self.may_lose {
            return self.exchange(mark, GIVE_UP);
        }
        for _ in 0..MOST_REPEATS {
            match self.exchange(mark, LOST_AFTER) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => self.lost += 1,
                // The other side has echoed the last message and exited; only its echo was lost.
                Err(error) if last && error.kind() == io::ErrorKind::ConnectionRefused => {
                    return Ok(());
                }
                done => return done,
            }
        }
        if last {
            Ok(())
        } else {
            self.exchange(mark, LOST_AFTER)
        }
    }

    fn exchange(&mut self, mark: u8, limit: Duration) -> io::Result<()> {
        let (channel, payload, mode) = (&mut *self.channel, &self.payload, self.mode);
        until_done("sending a ping", limit, || channel.try_send(payload, mode))?;
        loop {
            let answer = until("waiting for the echo", limit, || {
                channel.try_receive(payload.len(), read_stamp)
            })?;
            if answer == Some(mark) {
                return Ok(());
            }
            // A late echo of a message that was sent again; without retransmission it is an error.
            if !self.may_lose || answer.is_none() {
                return Err(broken(format!(
                    "the echo carries mark {answer:02x?} where {mark:02x} was sent"
                )));
            }
        }
    }
}

/// Sends everything back until the last message; returns their number.
pub fn echo<C: Channel>(channel: &mut C, size_bytes: usize, work: &Workload) -> io::Result<u64> {
    let mut payload = vec![0xa5; size_bytes];
    let mode = mode(work);
    let mut echoed = 0;
    loop {
        let mark = until("waiting for a ping", GIVE_UP, || {
            channel.try_receive(size_bytes, read_stamp)
        })?;
        let Some(mark) = mark else {
            return Err(broken(
                "the first and the last byte of a ping disagree".to_owned(),
            ));
        };
        stamp(&mut payload, mark);
        until_done("sending an echo", GIVE_UP, || {
            channel.try_send(&payload, mode)
        })?;
        echoed += 1;
        if mark & STOP != 0 {
            return Ok(echoed);
        }
    }
}

/// Writes the mark to the first byte and its sequence number to the last.
pub fn stamp(payload: &mut [u8], mark: u8) {
    if let Some(last) = payload.last_mut() {
        *last = mark & SEQUENCE;
    }
    payload[0] = mark;
}

/// Returns the mark of a message. `None` if its first and last byte do not match.
pub fn read_stamp(message: &[u8]) -> Option<u8> {
    let (mark, last) = (*message.first()?, *message.last()?);
    (message.len() == 1 || last == mark & SEQUENCE).then_some(mark)
}

fn mode(work: &Workload) -> SendMode {
    if work.unreliable {
        SendMode::Unreliable
    } else {
        SendMode::Now
    }
}
