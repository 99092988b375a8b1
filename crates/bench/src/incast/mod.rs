//! `dipole bench incast`: many nodes send one long message each to one node, all at once.
//!
//! The nodes are network namespaces on a switch whose ports are shaped and have short queues. Each
//! turn makes new connections, sends one message by each of them alone, then all at once again and
//! again: the first time shows what a receiver that knows nothing yet loses, the others what it
//! has learnt. Beside Dipole stand TCP and the link: what an always busy one needs for the same
//! frames, of which those of the messages sent alone are counted at the switch.

pub(super) mod process;

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use dipole_testbed::Testbed;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use super::Report;
use super::control::{Carrier, Go, IncastJob, IncastPart, Ready, Task, name_of};
use super::failure::RunError;
use super::launch::{SLACK, Worker};
use super::machine::{self, Cores};
use super::plan::size;
use super::report::Sheet;
use super::statistics::{Spread, as_float};
use super::subject::Subject;

const RATE_MBIT: u64 = 1000;
const QUEUE_BYTES: u32 = 64 << 10;
/// What is measured leaves the switch by the port of this node.
const RECEIVER: u32 = 1;
/// Between two bursts, so that nothing of the last is under way and nobody has forgotten it.
const PAUSE: Duration = Duration::from_millis(20);
/// Of a turn, the first not counted, whatever time they take.
const LEAST_BURSTS: u32 = 10;

/// What is to be measured.
#[derive(Clone, Debug)]
pub(crate) struct IncastPlan {
    pub(crate) senders: u32,
    pub(crate) size_bytes: usize,
    /// Of the bursts of a turn.
    pub(crate) duration: Duration,
    pub(crate) turns: u32,
    /// What carries Dipole's messages.
    pub(crate) carrier: Carrier,
}

/// One line of `--json`: medians over turns, packets and bursts of all turns together.
#[derive(Clone, Debug, Serialize)]
struct Line {
    bench: &'static str,
    subject: &'static str,
    link: String,
    testbed: &'static str,
    size_bytes: usize,
    senders: u32,
    rate_mbit: u64,
    queue_bytes: u32,
    /// Not counting the first of each turn.
    bursts: u64,
    /// By the switch, but for the first burst of each turn.
    lost_packets: u64,
    /// In the first burst of each turn.
    first_lost_packets: u64,
    /// Time that the link needs for all messages, over what they took; the mean of a turn.
    efficiency: f64,
    least_efficiency: f64,
    most_efficiency: f64,
    /// Time of a message, over what the link needs for all of them.
    p50_over_ideal: f64,
    p99_over_ideal: f64,
    most_over_ideal: f64,
    /// What the first burst took, over the same.
    first_over_ideal: f64,
    /// Payload while a burst lasts.
    bytes_per_s: f64,
}

/// One turn of one subject.
#[derive(Clone, Debug, Default)]
struct Turn {
    first_lost: u64,
    lost: u64,
    ideal_ns: f64,
    /// When each message had been read, the earliest first, since the burst began.
    first_read_ns: Vec<u64>,
    read_ns: Vec<Vec<u64>>,
}

impl Turn {
    fn over_ideal(&self, ns: u64) -> f64 {
        as_float(ns) / self.ideal_ns
    }

    /// How long all messages of each burst took.
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

/// Measures and prints; false if a measurement failed.
pub(super) fn measure(
    plan: &IncastPlan,
    cores: Cores,
    report: &mut Report<'_>,
) -> Result<bool, Box<dyn Error>> {
    let builder = Testbed::builder().nodes(plan.senders + 1);
    let testbed = builder
        .rate_mbit(RATE_MBIT)
        .queue_bytes(QUEUE_BYTES)
        .build()?;
    report.note(&format!("on {}", testbed.description()))?;
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
                    eprintln!("dipole bench: incast of {}: {error}", name_of(*subject));
                }
            }
        }
    }
    let mut lines = vec![incast.limit()];
    for (subject, turns) in subjects.iter().zip(&turns) {
        lines.extend(incast.line(*subject, turns));
    }
    if report.json {
        for line in &lines {
            report.object(line)?;
        }
    } else {
        report.result(&table(plan, &lines, report.wide))?;
    }
    Ok(failures == 0)
}

struct Incast<'a> {
    plan: &'a IncastPlan,
    testbed: &'a Testbed,
    cores: Cores,
}

impl Incast<'_> {
    /// The row of the link itself.
    fn limit(&self) -> Line {
        Line {
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

    /// `None` if every turn failed.
    fn line(&self, subject: Subject, turns: &[Turn]) -> Option<Line> {
        let spread = |figure: &dyn Fn(&Turn) -> f64| Spread::of(turns.iter().map(figure));
        let median = |figure: &dyn Fn(&Turn) -> f64| spread(figure).map(|spread| spread.median);
        let efficiency = spread(&Turn::efficiency)?;
        let payload = as_float(self.plan.size_bytes as u64 * u64::from(self.plan.senders));
        let thousandth = |value: f64| (value * 1e3).round() / 1e3;
        let is_ours = subject == Subject::Dipole;
        Some(Line {
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
        // Of what is sent alone nothing is lost: the least of it is the message in its frames.
        let mut message_bytes = u64::MAX;
        for sender in everybody.clone() {
            let before = counters()?.sent_bytes;
            burst(sender..sender + 1)?;
            // What is acknowledged and repeated late belongs to it too.
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

    /// Starts the receiver, first, and the senders, and has them connect.
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
        // They are ended one after the other; that some are gone is no news.
        environment.push(("DIPOLE_LOG", "error".into()));
        Worker::start(who, &task, environment)
    }
}

/// Some send at once; when each message had been read, since the first of them began.
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

/// How long the link needs for so many bytes, of which it may send some at once.
fn ideal_ns(bytes: u64, burst_bytes: u64) -> f64 {
    as_float(bytes.saturating_sub(burst_bytes).max(1)) * 8e3 / as_float(RATE_MBIT)
}

/// A clock that all processes of this machine share.
fn now_ns() -> u64 {
    machine::in_nanoseconds(clock_gettime(ClockId::Monotonic))
}

fn table(plan: &IncastPlan, lines: &[Line], wide: bool) -> String {
    let headings = "subject|link|of link|+min..max|p50|p99|first|+MB/s|lost first|later";
    let mut table = Sheet::new(headings, 2, wide);
    for line in lines {
        table.row([
            line.subject.to_owned(),
            line.link.clone(),
            format!("{:.3}", line.efficiency),
            format!("{:.2}..{:.2}", line.least_efficiency, line.most_efficiency),
            format!("{:.2}", line.p50_over_ideal),
            format!("{:.2}", line.p99_over_ideal),
            format!("{:.2}", line.first_over_ideal),
            format!("{:.1}", line.bytes_per_s * 1e-6),
            line.first_lost_packets.to_string(),
            line.lost_packets.to_string(),
        ]);
    }
    let bursts: Vec<String> = (lines[1..].iter())
        .map(|line| format!("{} of {}", line.bursts, line.subject))
        .collect();
    format!(
        "\n{} of {} each to one at {RATE_MBIT} Mbit/s, queue of {}, {} turns\n\
         lost: packets in the first burst of all turns, and later; p50, p99: time of a message, x \
         the\ntime that the link needs for all of them; first: of the first burst\n{table}\n{} \
         bursts after the first",
        plan.senders,
        size(plan.size_bytes),
        size(QUEUE_BYTES as usize),
        plan.turns,
        bursts.join(", "),
    )
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
