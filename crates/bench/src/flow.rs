//! Throughput one way and both ways.
//!
//! The clock runs from the first byte until a 4-byte acknowledgement has returned, minus one single
//! trip, which is measured first on the same connection. This is transmission throughput; it is not
//! comparable with the end-to-end figures of [`crate::pingpong`].
//!
//! The first byte of every message is its number modulo 128; the top bit marks the last message. The
//! receiver rejects a wrong number, so lost and reordered messages do not count as throughput.

use std::io;
use std::thread;
use std::time::Instant;

use crate::channel::{Channel, SendMode, broken, until, until_done};
use crate::control::Outcome;
use crate::pingpong::{GIVE_UP, LEAST_ROUND_TRIPS, Pinger, STOP, echo};
use crate::statistics::nanoseconds;
use crate::statistics::{RoundTrips, as_float};
use crate::work::{ACKNOWLEDGEMENT_BYTES, Kind, Workload};

/// Minimum number of bytes in a measurement of throughput.
const LEAST_BYTES: u64 = 10_000_000;
/// Limit of messages that are needed for [`LEAST_BYTES`], because short ones would take seconds.
const ENOUGH_MESSAGES: u64 = 20_000;
const SEQUENCE: u64 = 0x7f;
/// Shorter messages read the clock only once per [`MESSAGES_PER_LOOK`].
const LOOK_AT_CLOCK_BYTES: usize = 4096;
const MESSAGES_PER_LOOK: u64 = 64;

/// Sends (and in `bidir` receives) as the side that measures time.
pub(crate) fn lead<C: Channel + Send>(channel: &mut C, work: &Workload) -> io::Result<Outcome> {
    let single_trip_ns = single_trip_ns(channel, work)?;
    let cpu_before_ns = work.cpu_time_ns();
    let start = Instant::now();
    let mut sender = Sender::new(work, start);
    let mut messages = 0;
    if work.kind == Kind::Bidir {
        let mut receiver = Receiver::new(work);
        both_ways(channel, work, &mut sender, &mut receiver)?;
        messages += receiver.count;
    } else {
        while !sender.ended {
            until_done("sending", GIVE_UP, || sender.step(channel))?;
        }
        until_done("flushing", GIVE_UP, || channel.try_flush())?;
    }
    let arrived = until("waiting for the acknowledgement", GIVE_UP, || {
        channel.try_receive(ACKNOWLEDGEMENT_BYTES, |message| {
            message.first_chunk().copied().map(u32::from_le_bytes)
        })
    })?
    .ok_or_else(|| broken("the acknowledgement is shorter than 4 bytes".to_owned()))?;
    let elapsed_ns = as_float(nanoseconds(start.elapsed())) - single_trip_ns;
    let cpu_ns = work.cpu_time_ns() - cpu_before_ns;
    let mut outcome = Outcome::default();
    if work.unreliable {
        let lost = sender.count.saturating_sub(u64::from(arrived));
        outcome.remarks.push(format!(
            "{lost} of {} unreliable messages lost",
            sender.count
        ));
        messages += u64::from(arrived);
    } else {
        if u64::from(arrived) != sender.count & u64::from(u32::MAX) {
            return Err(broken(format!(
                "{} messages sent, {arrived} arrived",
                sender.count
            )));
        }
        messages += sender.count;
    }
    let per_second = as_float(messages) / (elapsed_ns.max(1.0) / 1e9);
    outcome.messages_per_s = Some(per_second);
    outcome.bytes_per_s = Some(per_second * as_float(work.size_bytes as u64));
    outcome.cpu_ns_per_message = as_float(cpu_ns) / as_float(messages.max(1));
    Ok(outcome)
}

/// Receives (and in `bidir` sends) as the other side.
pub(crate) fn follow<C: Channel + Send>(channel: &mut C, work: &Workload) -> io::Result<Outcome> {
    echo(channel, ACKNOWLEDGEMENT_BYTES, &work.reliably())?;
    let cpu_before_ns = work.cpu_time_ns();
    let mut receiver = Receiver::new(work);
    let mut messages = 0;
    if work.kind == Kind::Bidir {
        let mut sender = Sender::new(work, Instant::now());
        both_ways(channel, work, &mut sender, &mut receiver)?;
        messages += sender.count;
    } else {
        while !receiver.ended {
            until_done("receiving", GIVE_UP, || receiver.step(channel))?;
        }
    }
    messages += receiver.count;
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the acknowledgement counts modulo 2^32"
    )]
    let count = (receiver.count as u32).to_le_bytes();
    until_done("acknowledging", GIVE_UP, || {
        channel.try_send(&count, SendMode::Now)
    })?;
    let cpu_ns = work.cpu_time_ns() - cpu_before_ns;
    Ok(Outcome {
        cpu_ns_per_message: as_float(cpu_ns) / as_float(messages.max(1)),
        ..Outcome::default()
    })
}

fn single_trip_ns<C: Channel>(channel: &mut C, work: &Workload) -> io::Result<f64> {
    let work = work.reliably();
    let mut pinger = Pinger::new(channel, ACKNOWLEDGEMENT_BYTES, &work);
    let mut trips = RoundTrips::default();
    for _ in 0..LEAST_ROUND_TRIPS {
        let before = Instant::now();
        pinger.round_trip(false)?;
        trips.record(nanoseconds(before.elapsed()));
    }
    pinger.round_trip(true)?;
    Ok(trips.mean80_ns())
}

fn both_ways<C: Channel + Send>(
    channel: &mut C,
    work: &Workload,
    sender: &mut Sender,
    receiver: &mut Receiver,
) -> io::Result<()> {
    if work.two_threads_a_side {
        return by_two_threads(channel, sender, receiver);
    }
    until_done(
        "sending and receiving",
        sender.work.duration + GIVE_UP,
        || {
            // Sending and receiving several at a time allows batches of short messages.
            let mut run = 0;
            while run < MESSAGES_PER_LOOK && !sender.ended && sender.step(channel)? {
                run += 1;
            }
            if sender.ended && !channel.try_flush()? {
                return Ok(false);
            }
            run = 0;
            while run < MESSAGES_PER_LOOK && !receiver.ended && receiver.step(channel)? {
                run += 1;
            }
            Ok(sender.ended && receiver.ended)
        },
    )
}

/// Sends on one thread and receives on another, over the same connection.
fn by_two_threads<C: Channel + Send>(
    channel: &mut C,
    sender: &mut Sender,
    receiver: &mut Receiver,
) -> io::Result<()> {
    let mut second = channel.second()?;
    thread::scope(|scope| {
        let sending = scope.spawn(move || -> io::Result<()> {
            while !sender.ended {
                until_done("sending", GIVE_UP, || sender.step(&mut second))?;
            }
            until_done("flushing", GIVE_UP, || second.try_flush())
        });
        let mut receive = || -> io::Result<()> {
            while !receiver.ended {
                until_done("receiving", GIVE_UP, || receiver.step(channel))?;
            }
            Ok(())
        };
        let received = receive();
        let sent = sending
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // The sender's error is more specific than the receiver's timeout.
        sent.and(received)
    })
}

/// Sends numbered messages until the time is up and enough bytes have been sent.
struct Sender {
    work: Workload,
    start: Instant,
    payload: Vec<u8>,
    count: u64,
    looks_every: u64,
    least: u64,
    /// First byte of the message that is being sent, once it is determined.
    offered: Option<u8>,
    ended: bool,
}

impl Sender {
    fn new(work: &Workload, start: Instant) -> Self {
        let least = if work.kind == Kind::Rate {
            1
        } else {
            LEAST_BYTES
        };
        Self {
            work: work.clone(),
            start,
            payload: vec![0x5a; work.size_bytes],
            count: 0,
            looks_every: if work.size_bytes < LOOK_AT_CLOCK_BYTES {
                MESSAGES_PER_LOOK
            } else {
                1
            },
            least: least.div_ceil(work.size_bytes as u64).min(ENOUGH_MESSAGES),
            offered: None,
            ended: false,
        }
    }

    /// Sends the next message; false if there was no room.
    fn step<C: Channel>(&mut self, channel: &mut C) -> io::Result<bool> {
        let mark = match self.offered {
            Some(mark) => mark,
            None => {
                let last = self.count.is_multiple_of(self.looks_every)
                    && self.count + 1 >= self.least
                    && self.start.elapsed() >= self.work.duration;
                let mark = number(self.count) | if last { STOP } else { 0 };
                self.payload[0] = mark;
                self.offered = Some(mark);
                mark
            }
        };
        let last = mark & STOP != 0;
        let mode = match self.work.kind {
            _ if last => SendMode::Now,
            _ if self.work.unreliable => SendMode::Unreliable,
            Kind::Rate => SendMode::More,
            _ => SendMode::Now,
        };
        if !channel.try_send(&self.payload, mode)? {
            return Ok(false);
        }
        self.count += 1;
        self.ended = last;
        self.offered = None;
        Ok(true)
    }
}

/// Receives and checks numbered messages up to the last.
struct Receiver {
    size_bytes: usize,
    may_miss: bool,
    count: u64,
    ended: bool,
}

impl Receiver {
    fn new(work: &Workload) -> Self {
        let (size_bytes, may_miss) = (work.size_bytes, work.unreliable);
        Self {
            size_bytes,
            may_miss,
            count: 0,
            ended: false,
        }
    }

    fn step<C: Channel>(&mut self, channel: &mut C) -> io::Result<bool> {
        let Some(mark) = channel.try_receive(self.size_bytes, |message| message[0])? else {
            return Ok(false);
        };
        if !self.may_miss && mark & !STOP != number(self.count) {
            return Err(broken(format!(
                "message {} carries number {} modulo 128: one was lost or overtaken",
                self.count,
                mark & !STOP
            )));
        }
        self.count += 1;
        self.ended = mark & STOP != 0;
        Ok(true)
    }
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "the number is taken modulo 128"
)]
fn number(count: u64) -> u8 {
    (count & SEQUENCE) as u8
}
