//! `dipole-lab incast`: many nodes send one long message each to one node at the same time.
//!
//! The nodes are network namespaces on a switch with limited rate and short queues. Each turn opens
//! new connections, sends one message over each of them separately, and then all of them at the same
//! time, repeatedly. The first burst shows the losses of a receiver without prior knowledge, the
//! others those of one that has adapted. Dipole is compared with TCP and with the link: the time of
//! an always busy link for the same frames, as counted at the switch for the separate messages.

pub(crate) mod process;

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use dipole_bench::conditions::machine_line;
use dipole_bench::control::Ready;
use dipole_bench::failure::RunError;
use dipole_bench::launch::{SLACK, Worker};
use dipole_bench::machine::{self, Cores};
use dipole_bench::output::{Output, Record};
use dipole_bench::plan::KIND_SECONDS;
use dipole_bench::size;
use dipole_bench::statistics::{Spread, as_float};
use dipole_bench::subject::Subject;
use dipole_bench::testbed::On;
use dipole_bench::work::{Carrier, Placement, name_of};
use dipole_page::byte_size;
use dipole_testbed::Testbed;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::options::RunOptions;
use crate::task::{ARGUMENTS, Go, IncastJob, IncastPart, Task};

const RATE_MBIT: u64 = 1000;
const QUEUE_BYTES: u32 = 64 << 10;
/// The node whose switch port is measured.
const RECEIVER: u32 = 1;
/// Pause between two bursts, in which all packets arrive but state is kept.
const PAUSE: Duration = Duration::from_millis(20);
/// Minimum of bursts in a turn, without the first.
const LEAST_BURSTS: u32 = 10;

/// Many nodes send a long message to one node at the same time, over a switch of 1 Gbit/s with short
/// queues (needs root)
#[derive(Args, Debug)]
pub(crate) struct IncastArgs {
    #[command(flatten)]
    options: RunOptions,
    /// Message length in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 10, value_parser = size)]
    size: usize,
    /// Number of nodes that send
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=200))]
    senders: u32,
}

/// Runs the measurements and prints the results. False if a measurement failed.
pub(crate) fn execute(args: &IncastArgs, output: &mut Output<'_>) -> Result<bool, Box<dyn Error>> {
    output.wide = args.options.wide;
    let setup = args.options.setup(On::Auto);
    let plan = IncastPlan {
        senders: args.senders,
        size_bytes: args.size,
        duration: setup.duration(KIND_SECONDS),
        turns: setup.full_rounds().most,
        carrier: setup.carrier(Placement::TwoNodes),
    };
    let cores = Cores::choose()?;
    output.remark(&machine_line(cores))?;
    measure(&plan, cores, output)
}

/// Work of an incast.
#[derive(Clone, Debug)]
pub(crate) struct IncastPlan {
    pub(crate) senders: u32,
    pub(crate) size_bytes: usize,
    /// Duration of the bursts of a turn.
    pub(crate) duration: Duration,
    pub(crate) turns: u32,
    /// Link for Dipole's messages.
    pub(crate) carrier: Carrier,
}

/// Result of one subject: medians over turns; packets and bursts are sums over turns.
#[derive(Clone, Debug, Serialize)]
struct IncastRow {
    bench: &'static str,
    subject: &'static str,
    link: String,
    testbed: &'static str,
    size_bytes: usize,
    senders: u32,
    rate_mbit: u64,
    queue_bytes: u32,
    /// Number of bursts, without the first of each turn.
    bursts: u64,
    /// Counted by the switch, without the first burst of each turn.
    lost_packets: u64,
    /// Packets lost in the first bursts of all turns.
    first_lost_packets: u64,
    /// Minimum time of the link for all messages divided by their actual time: mean of a turn.
    efficiency: f64,
    least_efficiency: f64,
    most_efficiency: f64,
    /// Time of a message relative to the minimum time of the link for all messages.
    p50_over_ideal: f64,
    p99_over_ideal: f64,
    most_over_ideal: f64,
    /// Time of the first burst relative to the same.
    first_over_ideal: f64,
    /// Payload throughput during a burst.
    bytes_per_s: f64,
}

impl Record for IncastRow {
    const HEADINGS: &'static str =
        "subject|link|of link|+min..max|p50|p99|first|+MB/s|lost first|later";
    const LABELS: usize = 2;

    fn cells(&self) -> Vec<String> {
        vec![
            self.subject.to_owned(),
            self.link.clone(),
            format!("{:.3}", self.efficiency),
            format!("{:.2}..{:.2}", self.least_efficiency, self.most_efficiency),
            format!("{:.2}", self.p50_over_ideal),
            format!("{:.2}", self.p99_over_ideal),
            format!("{:.2}", self.first_over_ideal),
            format!("{:.1}", self.bytes_per_s * 1e-6),
            self.first_lost_packets.to_string(),
            self.lost_packets.to_string(),
        ]
    }
}

/// One turn of one subject.
#[derive(Clone, Debug, Default)]
struct Turn {
    first_lost: u64,
    lost: u64,
    ideal_ns: f64,
    /// Times since the start of the burst at which messages had been read, in ascending order.
    first_read_ns: Vec<u64>,
    read_ns: Vec<Vec<u64>>,
}

impl Turn {
    fn over_ideal(&self, ns: u64) -> f64 {
        as_float(ns) / self.ideal_ns
    }

    /// Returns the duration of each burst.
    fn lasted_ns(&self) -> impl Iterator<Item = u64> {
        self.read_ns
            .iter()
            .filter_map(|burst| burst.last().copied())
    }

    fn efficiency(&self) -> f64 {
        let each = self.lasted_ns().map(|ns| self.ideal_ns / as_float(ns));
        each.sum::<f64>() / as_float(self.read_ns.len() as u64)
    }

    fn percentile(&self, percent: usize) -> f64 {
        let mut all: Vec<u64> = self.read_ns.iter().flatten().copied().collect();
        all.sort_unstable();
        let rank = (all.len() * percent).div_ceil(100).max(1);
        all.get(rank - 1).map_or(0.0, |&ns| self.over_ideal(ns))
    }

    fn mean_lasted_s(&self) -> f64 {
        let total: u64 = self.lasted_ns().sum();
        as_float(total) / 1e9 / as_float(self.read_ns.len() as u64)
    }
}

/// Runs the measurements and prints the results; false if a measurement failed.
fn measure(
    plan: &IncastPlan,
    cores: Cores,
    output: &mut Output<'_>,
) -> Result<bool, Box<dyn Error>> {
    let builder = Testbed::builder().nodes(plan.senders + 1);
    let testbed = builder
        .rate_mbit(RATE_MBIT)
        .queue_bytes(QUEUE_BYTES)
        .build()?;
    output.remark(&format!("on {}", testbed.description()))?;
    let incast = Incast {
        plan,
        testbed: &testbed,
        cores,
    };
    let subjects = [Subject::Dipole, Subject::BareTcpBlock];
    let mut turns = subjects.map(|_| Vec::new());
    let mut failures = 0;
    for _ in 0..plan.turns {
        for (subject, turns) in subjects.iter().zip(&mut turns) {
            match incast.turn(*subject) {
                Ok(turn) => turns.push(turn),
                Err(error) => {
                    failures += 1;
                    eprintln!("dipole-lab: incast of {}: {error}", subject.name());
                }
            }
        }
    }
    let mut rows = vec![incast.limit()];
    for (subject, turns) in subjects.iter().zip(&turns) {
        rows.extend(incast.row(*subject, turns));
    }
    let (before, after) = texts(plan, &rows);
    output.print_records(&before, &rows, &after)?;
    Ok(failures == 0)
}

struct Incast<'a> {
    plan: &'a IncastPlan,
    testbed: &'a Testbed,
    cores: Cores,
}

impl Incast<'_> {
    /// Returns the row of the link itself.
    fn limit(&self) -> IncastRow {
        IncastRow {
            bench: "incast",
            subject: "link",
            link: "veth".to_owned(),
            testbed: "cluster",
            size_bytes: self.plan.size_bytes,
            senders: self.plan.senders,
            rate_mbit: RATE_MBIT,
            queue_bytes: QUEUE_BYTES,
            bursts: 0,
            lost_packets: 0,
            first_lost_packets: 0,
            efficiency: 1.0,
            least_efficiency: 1.0,
            most_efficiency: 1.0,
            p50_over_ideal: 1.0,
            p99_over_ideal: 1.0,
            most_over_ideal: 1.0,
            first_over_ideal: 1.0,
            bytes_per_s: as_float(RATE_MBIT) * 1e6 / 8.0,
        }
    }

    /// Returns the row of a subject. `None` if every turn failed.
    fn row(&self, subject: Subject, turns: &[Turn]) -> Option<IncastRow> {
        let spread = |figure: &dyn Fn(&Turn) -> f64| Spread::of(turns.iter().map(figure));
        let median = |figure: &dyn Fn(&Turn) -> f64| spread(figure).map(|spread| spread.median);
        let efficiency = spread(&Turn::efficiency)?;
        let payload = as_float(self.plan.size_bytes as u64 * u64::from(self.plan.senders));
        let thousandth = |value: f64| (value * 1e3).round() / 1e3;
        let is_ours = subject == Subject::Dipole;
        Some(IncastRow {
            subject: if is_ours { "dipole" } else { "tcp" },
            link: subject.link(self.plan.carrier, "veth"),
            bursts: turns.iter().map(|turn| turn.read_ns.len() as u64).sum(),
            lost_packets: turns.iter().map(|turn| turn.lost).sum(),
            first_lost_packets: turns.iter().map(|turn| turn.first_lost).sum(),
            efficiency: thousandth(efficiency.median),
            least_efficiency: thousandth(efficiency.least),
            most_efficiency: thousandth(efficiency.most),
            p50_over_ideal: thousandth(median(&|turn| turn.percentile(50))?),
            p99_over_ideal: thousandth(median(&|turn| turn.percentile(99))?),
            most_over_ideal: thousandth(median(&|turn| turn.percentile(100))?),
            first_over_ideal: thousandth(median(&|turn| {
                let last = turn.first_read_ns.last();
                last.map_or(0.0, |&ns| turn.over_ideal(ns))
            })?),
            bytes_per_s: median(&|turn| payload / turn.mean_lasted_s())?.round(),
            ..self.limit()
        })
    }

    fn turn(&self, subject: Subject) -> Result<Turn, Box<dyn Error>> {
        let mut workers = self.start(subject)?;
        let counters = || self.testbed.port_counters(RECEIVER, 0);
        let everybody = 0..self.plan.senders;
        let mut number = 0;
        let mut burst = |senders| {
            number = (number + 1) % u8::MAX;
            burst(&mut workers, senders, number)
        };
        // Separate messages are not lost, so the minimum is the message in its frames.
        let mut message_bytes = u64::MAX;
        for sender in everybody.clone() {
            let before = counters()?.sent_bytes;
            burst(sender..sender + 1)?;
            // Include late acknowledgements and retransmissions.
            std::thread::sleep(PAUSE);
            message_bytes = message_bytes.min(counters()?.sent_bytes - before);
        }
        let before = counters()?.dropped_packets;
        let mut turn = Turn {
            ideal_ns: ideal_ns(
                message_bytes * u64::from(self.plan.senders),
                self.testbed.burst_bytes(),
            ),
            first_read_ns: burst(everybody.clone())?,
            ..Turn::default()
        };
        std::thread::sleep(PAUSE);
        let after_first = counters()?.dropped_packets;
        let begun_ns = now_ns();
        let least = usize::try_from(LEAST_BURSTS).expect("few");
        while turn.read_ns.len() < least
            || Duration::from_nanos(now_ns() - begun_ns) < self.plan.duration
        {
            turn.read_ns.push(burst(everybody.clone())?);
        }
        turn.first_lost = after_first - before;
        turn.lost = counters()?.dropped_packets - after_first;
        Ok(turn)
    }

    /// Starts the receiver and the senders, and lets them connect.
    fn start(&self, subject: Subject) -> Result<Vec<Worker>, RunError> {
        let mut workers = (0..=self.plan.senders)
            .map(|index| self.worker(subject, index))
            .collect::<Result<Vec<_>, _>>()?;
        let opened = (workers.iter_mut())
            .map(|worker| worker.recv::<Ready>(SLACK))
            .collect::<Result<Vec<_>, _>>()?;
        for worker in &mut workers {
            worker.send(&opened[0])?;
        }
        for worker in &mut workers {
            worker.recv::<Ready>(SLACK)?;
        }
        Ok(workers)
    }

    fn worker(&self, subject: Subject, index: u32) -> Result<Worker, RunError> {
        let node = RECEIVER + index;
        let (part, core, who) = match index {
            0 => (IncastPart::Receive, self.cores.lead, "receiver".to_owned()),
            _ => (
                IncastPart::Send,
                self.cores.follow,
                format!("sender {index}"),
            ),
        };
        let task = Task::Incast(IncastJob {
            subject,
            part,
            senders: self.plan.senders,
            core,
            namespace: Path::new("/run/netns").join(&self.testbed.node(node).namespace),
            receiver: self.testbed.node(RECEIVER).addresses[0].into(),
            size_bytes: self.plan.size_bytes,
        });
        let environment = self.testbed.environment(node);
        let mut environment: Vec<_> = environment
            .into_iter()
            .map(|(name, value)| (name, value.into()))
            .collect();
        environment.push(("DIPOLE_LINK", name_of(self.plan.carrier).into()));
        // Processes are killed one after the other; warnings about lost peers are useless.
        environment.push(("DIPOLE_LOG", "error".into()));
        Worker::start(who, &ARGUMENTS, &task, environment)
    }
}

/// Lets some senders send at the same time. Returns when each message had been read, since the start.
fn burst(
    workers: &mut [Worker],
    senders: std::ops::Range<u32>,
    number: u8,
) -> Result<Vec<u64>, RunError> {
    let [receiver, all @ ..] = workers else {
        return Ok(Vec::new());
    };
    let go = Go {
        at_ns: now_ns() + u64::try_from(PAUSE.as_nanos()).expect("short"),
        messages: senders.end - senders.start,
        number,
    };
    receiver.send(&go)?;
    let senders = senders.start as usize..senders.end as usize;
    let senders = &mut all[senders];
    for sender in &mut *senders {
        sender.send(&go)?;
    }
    let mut read_ns: Vec<u64> = receiver.recv(SLACK)?;
    let begun = (senders.iter_mut()).map(|sender| sender.recv::<u64>(SLACK));
    let begun = begun.collect::<Result<Vec<_>, _>>()?;
    let first_ns = begun.into_iter().min().unwrap_or(go.at_ns);
    for ns in &mut read_ns {
        *ns = ns.saturating_sub(first_ns);
    }
    Ok(read_ns)
}

/// Returns the time that the link needs for this many bytes, with its initial burst.
fn ideal_ns(bytes: u64, burst_bytes: u64) -> f64 {
    as_float(bytes.saturating_sub(burst_bytes).max(1)) * 8e3 / as_float(RATE_MBIT)
}

/// Returns the time of a clock that all processes of this machine share.
fn now_ns() -> u64 {
    machine::in_nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// Returns the texts before and after the table.
fn texts(plan: &IncastPlan, rows: &[IncastRow]) -> (String, String) {
    let bursts: Vec<String> = (rows[1..].iter())
        .map(|row| format!("{} of {}", row.bursts, row.subject))
        .collect();
    let before = format!(
        "\n{} messages of {} to one node at {RATE_MBIT} Mbit/s, queue of {}, {} turns\n\
         lost: packets in the first burst of all turns, and later; p50, p99: time of a message, as a\n\
         multiple of the time that the link needs for all of them; first: of the first burst\n",
        plan.senders,
        byte_size(plan.size_bytes),
        byte_size(QUEUE_BYTES),
        plan.turns,
    );
    let after = format!("\n{} bursts after the first", bursts.join(", "));
    (before, after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_sends_its_burst_at_once_and_the_rest_at_its_rate() {
        assert_eq!(ideal_ns(1_025_000, 25_000), 8_000_000.0);
    }

    #[test]
    fn a_turn_is_told_in_multiples_of_what_the_link_needs() {
        let turn = Turn {
            ideal_ns: 100.0,
            read_ns: vec![vec![50, 125], vec![100, 200]],
            ..Turn::default()
        };
        assert_eq!(turn.efficiency(), f64::midpoint(0.8, 0.5));
        assert_eq!(turn.percentile(50), 1.0);
        assert_eq!(turn.percentile(99), 2.0);
    }
}
