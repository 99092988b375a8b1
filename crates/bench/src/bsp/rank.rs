//! A rank of `dipole calibrate supersteps`: this program, started by `dipole run`.

use std::error::Error;
use std::hint::black_box;
use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use clap::Args;
use dipole_bsp::Failure;
use dipole_bsp::area::{Area, PutMode};
use dipole_bsp::superstep::schedule::Order;
use dipole_proto::DropReason;

use crate::bsp::pattern::{Pattern, Relation};
use crate::bsp::sample::{Metric, Packets, RankOutput, Sample};
use crate::machine;
use crate::statistics::as_float;
use crate::statistics::nanoseconds;

/// Length of the vectors for the measurement of s.
const VECTOR: usize = 1024;
/// Limit of supersteps that are timed one by one.
const MOST_EACH: usize = 2000;
/// Lengths and numbers of messages in bursts (thesis, figures 6.3 to 6.5).
pub(super) const SPRAYED_BYTES: [usize; 3] = [4, 256, 1400];
const SPRAYED: [usize; 6] = [1, 4, 16, 64, 256, 1024];
/// Smallest h, and the factor from one h to the next.
const LEAST_H: usize = 64;
const H_FACTOR: usize = 16;
/// Message lengths of total exchanges in several orders: 16k and 32k words (thesis, table 6.8).
const ORDERED_BYTES: [usize; 2] = [64 << 10, 128 << 10];
pub(super) const LATIN_SQUARE: &str = "latin-square";
pub(super) const BY_DESTINATION: &str = "destination";
/// Supersteps before a measurement.
const TRIALS: usize = 3;
/// Minimum of repetitions of long measurements, as needed for a confidence interval.
const FEWEST_SAMPLES: usize = 6;
/// A datagram without a reply within this time is lost.
const PATIENCE: Duration = Duration::from_millis(200);

/// Options of a rank.
#[derive(Args, Clone, Debug)]
pub struct RankArgs {
    /// Seconds for each measurement
    #[arg(long)]
    pub(super) seconds: f64,
    /// Number of repetitions
    #[arg(long)]
    pub(super) samples: usize,
    /// Maximum h in bytes
    #[arg(long)]
    pub(super) most_bytes: usize,
    /// Measure only supersteps timed one by one, this many of each relation
    #[arg(long)]
    pub(super) each: Option<usize>,
    /// Cores of the ranks, if they are pinned
    #[arg(long, value_delimiter = ',')]
    pub(super) cores: Vec<usize>,
    /// Addresses at which ranks 0 and 1 exchange bare datagrams
    #[arg(long, value_delimiter = ',')]
    pub(super) bare: Vec<SocketAddr>,
}

/// Runs the rank and prints its measurements.
///
/// # Errors
/// The program cannot run, or its results cannot be printed.
pub fn rank(args: &RankArgs) -> Result<(), Box<dyn Error>> {
    let (rank, _) = dipole_bsp::rank_and_size()?;
    if let Some(core) = args.cores.get(rank as usize) {
        machine::pin(*core)?;
    }
    // Twice the largest h for puts, and room for bursts of messages.
    let sprayed = SPRAYED_BYTES[2] * SPRAYED[5];
    let area = Area::begin(2 * args.most_bytes + sprayed)?;
    let mut rank = Rank { args, area };
    match args.each {
        Some(count) => rank.one_by_one(count)?,
        None => rank.measure()?,
    }
    rank.area.end()?;
    Ok(())
}

struct Rank<'a> {
    args: &'a RankArgs,
    area: Area,
}

impl Rank<'_> {
    fn measure(&mut self) -> Result<(), Box<dyn Error>> {
        let (size, most) = (self.area.size(), self.args.most_bytes);
        self.flops()?;
        if let [lead, follow] = self.args.bare[..] {
            self.one_way(lead, follow)?;
        }
        self.copies()?;
        let relation = |pattern, h| Relation { pattern, h, size };
        let empty = relation(Pattern::Nothing, 0);
        self.supersteps(Metric::Sync, empty, PutMode::Buffered)?;
        self.supersteps(Metric::EachSync, empty, PutMode::Buffered)?;
        if size > 1 {
            self.supersteps(Metric::Put, relation(Pattern::Word, 8), PutMode::Buffered)?;
        }
        for copy in [PutMode::Buffered, PutMode::Unbuffered] {
            let smaller = std::iter::successors(Some(LEAST_H), |h| Some(h * H_FACTOR));
            for h in smaller.take_while(|h| *h < most) {
                self.supersteps(Metric::Exchange, relation(Pattern::Exchange, h), copy)?;
            }
            let before = self.packets();
            self.supersteps(Metric::Exchange, relation(Pattern::Exchange, most), copy)?;
            if let (Some(before), Some(after)) = (before, self.packets())
                && copy == PutMode::Unbuffered
            {
                let packets = after.combined(before, u64::saturating_sub);
                tell(&RankOutput::Packets { packets })?;
            }
            if size == 1 {
                continue;
            }
            let patterns = [
                (Metric::Gather, Pattern::Gather),
                (Metric::Scatter, Pattern::Scatter),
                (Metric::Random, Pattern::Random),
            ];
            for (what, pattern) in patterns {
                self.supersteps(what, relation(pattern, most), copy)?;
            }
        }
        // The order of destinations matters only for links that send messages.
        if size > 2 && !self.args.bare.is_empty() {
            self.orders()?;
        }
        for bytes in SPRAYED_BYTES {
            for messages in SPRAYED.into_iter().filter(|_| size > 1) {
                let what = self.sample(Metric::Spray, PutMode::Buffered, bytes, messages);
                if let Some(sample) = self.time(what, |area, _| spray(area, bytes, messages))? {
                    tell(&RankOutput::Sample(sample))?;
                }
            }
        }
        Ok(())
    }

    /// Measures empty supersteps, total exchanges and random relations, each timed separately.
    fn one_by_one(&mut self, count: usize) -> Result<(), Failed> {
        let (size, h) = (self.area.size(), self.args.most_bytes);
        for (what, pattern) in [
            (Metric::EachSync, Pattern::Nothing),
            (Metric::Exchange, Pattern::Exchange),
            (Metric::Random, Pattern::Random),
        ] {
            let relation = Relation { pattern, h, size };
            let mut sample = self.sample(what, PutMode::Unbuffered, h, 0);
            for step in 0..(TRIALS + count) as u64 {
                let begun = Instant::now();
                superstep(&mut self.area, (relation, PutMode::Unbuffered), step)?;
                let took = nanoseconds(begun.elapsed());
                if step >= TRIALS as u64 {
                    sample.ns.push(as_float(took));
                    sample.h.push(as_float(relation.h(step) as u64));
                }
            }
            if sample.rank == 0 {
                tell(&RankOutput::Sample(sample))?;
            }
        }
        Ok(())
    }

    /// Measures total exchanges with and without the Latin square, in turns.
    fn orders(&mut self) -> Result<(), Failed> {
        let size = self.area.size();
        for bytes in ORDERED_BYTES {
            let (pattern, h) = (Pattern::Exchange, bytes * (size as usize - 1));
            if h > 2 * self.args.most_bytes {
                continue;
            }
            let relation = Relation { pattern, h, size };
            let (square, naive) = (Order::LatinSquare, Order::Naive);
            for order in [square, naive, naive, square] {
                self.area.set_order(order);
                let mut sample = self.sample(Metric::Ordered, PutMode::Unbuffered, bytes, 0);
                sample.call = match order {
                    Order::LatinSquare => LATIN_SQUARE.to_owned(),
                    _ => BY_DESTINATION.to_owned(),
                };
                let of = (relation, PutMode::Unbuffered);
                if let Some(sample) = self.time(sample, |area, step| superstep(area, of, step))? {
                    tell(&RankOutput::Sample(sample))?;
                }
            }
        }
        self.area.set_order(Order::LatinSquare);
        Ok(())
    }

    fn sample(&self, what: Metric, copy: PutMode, bytes: usize, messages: usize) -> Sample {
        let call = match copy {
            PutMode::Buffered => "put",
            PutMode::Unbuffered => "hpput",
        };
        Sample {
            what,
            call: call.to_owned(),
            rank: self.area.rank(),
            bytes,
            messages,
            ns: Vec::new(),
            h: Vec::new(),
        }
    }

    fn supersteps(
        &mut self,
        what: Metric,
        relation: Relation,
        copy: PutMode,
    ) -> Result<(), Failed> {
        let sample = self.sample(what, copy, relation.h, 0);
        let of = (relation, copy);
        let timed = self.time(sample, |area, step| superstep(area, of, step))?;
        if let Some(mut sample) = timed {
            if relation.pattern == Pattern::Random {
                let steps = 0..sample.ns.len() as u64;
                sample.h = steps
                    .map(|step| as_float(relation.h(step) as u64))
                    .collect();
            }
            tell(&RankOutput::Sample(sample))?;
        }
        Ok(())
    }

    /// Times a collective operation; rank 0 returns the sample.
    fn time(
        &mut self,
        mut sample: Sample,
        mut what: impl FnMut(&mut Area, u64) -> Result<(), Failure>,
    ) -> Result<Option<Sample>, Failed> {
        let area = &mut self.area;
        let mut once = Duration::MAX;
        for _ in 0..TRIALS {
            let begun = Instant::now();
            what(area, 0)?;
            once = once.min(begun.elapsed());
        }
        let fitting = self.args.seconds * 1e9 / as_float(nanoseconds(once).max(1));
        let fitting = whole(fitting);
        let fewest = FEWEST_SAMPLES.min(self.args.samples);
        let samples = self.args.samples.min(fitting.max(fewest));
        let (samples, each) = match sample.what {
            Metric::EachSync => (fitting.clamp(samples, MOST_EACH), 1),
            Metric::Random => (samples, 1),
            // Time supersteps one by one, because their deviation is of interest.
            Metric::Ordered => (fitting.clamp(samples, self.args.samples), 1),
            _ => (samples, (fitting / samples).max(1)),
        };
        let plan = area.broadcast((samples as u64) << 32 | each as u64)?;
        let (samples, each) = (plan >> 32, plan & u64::from(u32::MAX));
        for step in 0..samples {
            let begun = Instant::now();
            for _ in 0..each {
                what(area, step)?;
            }
            let took = as_float(nanoseconds(begun.elapsed()));
            sample.ns.push(took / as_float(each));
        }
        Ok((sample.rank == 0).then_some(sample))
    }

    /// Measures multiplications and additions of y += a x.
    fn flops(&mut self) -> Result<(), Failed> {
        let x: Vec<f64> = (0..VECTOR as u64).map(as_float).collect();
        let mut y = vec![1.0; VECTOR];
        let mut sample = self.sample(Metric::Flops, PutMode::Buffered, 0, 0);
        let samples = self.args.samples;
        self.area.sync()?;
        let each = Duration::from_secs_f64(self.args.seconds) / u32::try_from(samples)?;
        for _ in 0..samples {
            let begun = Instant::now();
            let mut turns = 0_u64;
            while begun.elapsed() < each {
                let a = if turns.is_multiple_of(2) { 0.5 } else { -0.5 };
                for (y, x) in y.iter_mut().zip(&x) {
                    *y += a * x;
                }
                black_box(&mut y);
                turns += 1;
            }
            let took = as_float(nanoseconds(begun.elapsed()));
            sample
                .ns
                .push(took / as_float(2 * VECTOR as u64 * turns.max(1)));
        }
        tell(&RankOutput::Sample(sample))?;
        Ok(())
    }

    /// Measures copies by every rank, as long as its puts.
    fn copies(&mut self) -> Result<(), Failed> {
        let from = vec![1_u8; self.args.most_bytes];
        let mut into = vec![0_u8; self.args.most_bytes];
        let mut sample = self.sample(Metric::Copy, PutMode::Buffered, self.args.most_bytes, 0);
        for _ in 0..self.args.samples {
            self.area.sync()?;
            let begun = Instant::now();
            into.copy_from_slice(black_box(&from));
            black_box(&mut into);
            sample.ns.push(as_float(nanoseconds(begun.elapsed())));
        }
        if sample.rank == 0 {
            tell(&RankOutput::Sample(sample))?;
        }
        Ok(())
    }

    /// Measures half a round trip of a datagram of 64 bytes, both ranks spinning.
    fn one_way(&mut self, lead: SocketAddr, follow: SocketAddr) -> Result<(), Failed> {
        let rank = self.area.rank();
        let mut sample = self.sample(Metric::OneWay, PutMode::Buffered, 64, 1);
        let own = if rank == 0 { lead } else { follow };
        let socket = match rank {
            0 | 1 => Some(bare(own)?),
            _ => None,
        };
        self.area.sync()?;
        let sides = format!("rank 0 at {lead} and rank 1 at {follow}");
        let named = |cause: io::Error| format!("rank {rank}: datagrams of {sides}: {cause}");
        let rounds = MOST_EACH + 1;
        // Sockets stay open until all ranks are done: on a busy machine one side gives up waiting while
        // the other still sends, which must not be refused.
        match &socket {
            Some(socket) if rank == 0 => {
                socket.connect(follow).map_err(named)?;
                for _ in 0..rounds {
                    let begun = Instant::now();
                    socket.send(&[0; 64]).map_err(named)?;
                    if await_datagram(socket).map_err(named)?.is_some() {
                        let took = as_float(nanoseconds(begun.elapsed()));
                        sample.ns.push(took / 2.0);
                    }
                }
                // The first datagram triggers ARP.
                sample.ns.drain(..1.min(sample.ns.len()));
                tell(&RankOutput::Sample(sample))?;
            }
            Some(socket) => {
                for _ in 0..rounds {
                    if let Some(from) = await_datagram(socket).map_err(named)? {
                        socket.send_to(&[0; 64], from).map_err(named)?;
                    }
                }
            }
            None => {}
        }
        self.area.sync()?;
        Ok(())
    }

    fn packets(&self) -> Option<Packets> {
        let stats = self.area.stats()?;
        let protocol = stats.protocol;
        let dropped: u64 = protocol.drops().map(|(_, count)| count).sum();
        let duplicates = protocol.dropped(DropReason::Duplicate);
        Some(Packets {
            sent: stats.traffic.packets_sent,
            units: protocol.units_sent + protocol.repeats,
            repeats: protocol.repeats,
            received: protocol.units_received,
            explicit_acks: protocol.explicit_acks,
            ack_requests: protocol.ack_requests,
            duplicates,
            dropped: dropped - duplicates,
        })
    }
}

/// Reason why a rank gives up.
type Failed = Box<dyn Error>;

/// Runs one superstep of a relation. The puts of other ranks go to slots, by rank.
fn superstep(
    area: &mut Area,
    (relation, copy): (Relation, PutMode),
    step: u64,
) -> Result<(), Failure> {
    let (rank, size) = (area.rank(), area.size());
    if relation.pattern != Pattern::Nothing {
        let offset = rank as usize * relation.slot();
        for distance in 1..=size {
            let to = (rank + distance) % size;
            let bytes = relation.bytes(step, rank, to);
            area.put(to, offset, bytes, copy)?;
        }
    }
    area.sync()
}

/// Rank 0 puts messages one by one, and rank 1 returns them when it has received all.
fn spray(area: &mut Area, bytes: usize, messages: usize) -> Result<(), Failure> {
    for turn in 0..2 {
        if area.rank() == turn {
            for message in 0..messages {
                area.put(1 - turn, message * bytes, bytes, PutMode::Buffered)?;
            }
        }
        area.sync()?;
    }
    Ok(())
}

fn bare(own: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(own).map_err(|cause| {
        let text = format!("cannot open {own} for bare datagrams: {cause}");
        io::Error::new(cause.kind(), text)
    })?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Receives a datagram and returns its sender. `None` after a timeout.
fn await_datagram(socket: &UdpSocket) -> io::Result<Option<SocketAddr>> {
    let begun = Instant::now();
    let mut buffer = [0; 64];
    while begun.elapsed() < PATIENCE {
        match socket.recv_from(&mut buffer) {
            Ok((_, from)) => return Ok(Some(from)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Prints a line with one write, so that the lines of ranks do not mix.
fn tell(told: &RankOutput) -> io::Result<()> {
    let mut line = serde_json::to_vec(told)?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}

/// Converts a float to a count.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float too large or below 0 becomes the nearest number there is"
)]
pub(super) fn whole(number: f64) -> usize {
    number as usize
}
