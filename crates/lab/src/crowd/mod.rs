//! `dipole-lab crowd`: more processes than cores, all on one node.
//!
//! Each round has four measurements: an all-to-all exchange of two processes and of all, and a
//! ping-pong between two of all processes while the others wait and while the others exchange
//! messages. Processes are pinned to the two cores alternately and wait with the defaults: they spin
//! for a bounded time and then sleep. Two processes and many do the same work: messages of the same
//! length, and the same number of messages per turn, divided among the receivers.

pub(crate) mod process;

use std::error::Error;
use std::time::Duration;

use clap::Args;
use dipole_bench::conditions::machine_line;
use dipole_bench::control::{Outcome, Ready};
use dipole_bench::failure::RunError;
use dipole_bench::launch::{SLACK, Worker};
use dipole_bench::machine::Cores;
use dipole_bench::output::{Output, Record};
use dipole_bench::plan::KIND_SECONDS;
use dipole_bench::size;
use dipole_bench::statistics::{OneWay, as_float, median};
use dipole_bench::subject::Subject;
use dipole_bench::testbed::{On, Testbed};
use dipole_bench::work::{Carrier, Placement, Role};
use dipole_page::byte_size;
use serde::Serialize;

use crate::options::RunOptions;
use crate::task::{ARGUMENTS, CrowdCount, CrowdJob, CrowdPart, Task};

/// Many processes of one node on two cores at the same time
#[derive(Args, Debug)]
pub(crate) struct CrowdArgs {
    #[command(flatten)]
    options: RunOptions,
    /// Message length in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    size: usize,
    /// Number of processes that share two cores
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..=64))]
    processes: u16,
    /// Sleep in the kernel while waiting, instead of spinning
    #[arg(long)]
    block: bool,
}

/// Runs the measurements and prints the results. False if a measurement failed.
pub(crate) fn execute(args: &CrowdArgs, output: &mut Output<'_>) -> Result<bool, Box<dyn Error>> {
    output.wide = args.options.wide;
    let setup = args.options.setup(On::Node);
    let plan = CrowdPlan {
        processes: args.processes,
        size_bytes: args.size,
        duration: setup.duration(KIND_SECONDS),
        rounds: setup.full_rounds().most,
        block: args.block,
        carrier: setup.carrier(Placement::OneNode),
    };
    let (testbed, cores) = (Testbed::create(On::Node)?, Cores::choose()?);
    output.remark(&format!("{} processes on one node", plan.processes))?;
    output.remark(&machine_line(cores))?;
    measure(&plan, &testbed, cores, output)
}

/// Work of a crowd.
#[derive(Clone, Debug)]
pub(crate) struct CrowdPlan {
    pub(crate) processes: u16,
    pub(crate) size_bytes: usize,
    pub(crate) duration: Duration,
    pub(crate) rounds: u32,
    pub(crate) block: bool,
    pub(crate) carrier: Carrier,
}

/// Facts that all rows have.
#[derive(Debug, Serialize)]
struct Subjects {
    bench: &'static str,
    subject: String,
    link: String,
    testbed: &'static str,
    size_bytes: usize,
    processes: usize,
}

/// Result of an all-to-all exchange.
#[derive(Debug, Serialize)]
struct FlowRow {
    #[serde(flatten)]
    about: Subjects,
    #[serde(flatten)]
    flow: Flow,
    /// Messages per second as a multiple of those of two processes.
    #[serde(skip)]
    ratio: f64,
}

/// Result of a ping-pong between two of all processes.
#[derive(Debug, Serialize)]
struct PingpongRow {
    #[serde(flatten)]
    about: Subjects,
    #[serde(flatten)]
    one_way: OneWay,
    /// Activity of the other processes.
    #[serde(skip)]
    others: &'static str,
}

impl Record for FlowRow {
    const HEADINGS: &'static str =
        "processes|link|x first|k msg/s|+GB/s|CPU ns/msg|least pair|most pair";
    const LABELS: usize = 1;

    fn cells(&self) -> Vec<String> {
        let flow = &self.flow;
        vec![
            self.about.processes.to_string(),
            self.about.link.clone(),
            format!("{:.2}", self.ratio),
            format!("{:.1}", flow.messages_per_s * 1e-3),
            format!("{:.3}", flow.bytes_per_s * 1e-9),
            format!("{:.0}", flow.cpu_ns_per_message),
            format!("{:.2}", flow.least_pair_share),
            format!("{:.2}", flow.most_pair_share),
        ]
    }
}

impl Record for PingpongRow {
    const HEADINGS: &'static str = "the others|p50 us|mean80 us|p99 us|p99.9 us";
    const LABELS: usize = 1;

    fn cells(&self) -> Vec<String> {
        let times = [
            Some(self.one_way.p50_ns),
            self.one_way.mean80_ns,
            self.one_way.p99_ns,
            self.one_way.p999_ns,
        ];
        let times =
            times.map(|ns| ns.map_or_else(|| "-".to_owned(), |ns| format!("{:.2}", ns * 1e-3)));
        [self.others.to_owned()].into_iter().chain(times).collect()
    }
}

/// Throughput of an all-to-all exchange, and how evenly it is shared.
#[derive(Clone, Copy, Debug, Serialize)]
struct Flow {
    messages_per_s: f64,
    bytes_per_s: f64,
    cpu_ns_per_message: f64,
    /// Throughput of the slowest and the fastest ordered pair relative to an equal share.
    least_pair_share: f64,
    most_pair_share: f64,
}

/// Runs the measurements and prints the results; false if a measurement failed.
fn measure(
    plan: &CrowdPlan,
    testbed: &Testbed,
    cores: Cores,
    output: &mut Output<'_>,
) -> Result<bool, Box<dyn Error>> {
    let crowd = Crowd {
        plan,
        testbed,
        cores,
    };
    let all = usize::from(plan.processes);
    let (mut pair, mut many, mut idle, mut busy) = (vec![], vec![], vec![], vec![]);
    for _ in 0..plan.rounds {
        pair.push(crowd.flow(2)?);
        many.push(crowd.flow(all)?);
        idle.push(crowd.pingpong(CrowdPart::Wait)?);
        // With fewer processes there is no pair left for an exchange.
        if all >= 4 {
            busy.push(crowd.pingpong(CrowdPart::Flow { first: 2 })?);
        }
    }
    let flows = [(2, middle_flow(&pair)), (all, middle_flow(&many))];
    let base = flows[0].1.messages_per_s.max(f64::MIN_POSITIVE);
    let flows = flows.map(|(processes, flow)| FlowRow {
        about: crowd.about("crowd", processes),
        flow,
        ratio: flow.messages_per_s / base,
    });
    let mut pingpongs = vec![PingpongRow {
        about: crowd.about("crowd-pingpong-idle", all),
        one_way: middle(&idle),
        others: "wait",
    }];
    if !busy.is_empty() {
        pingpongs.push(PingpongRow {
            about: crowd.about("crowd-pingpong-busy", all),
            one_way: middle(&busy),
            others: "all to all",
        });
    }
    let (size, rounds) = (byte_size(plan.size_bytes), plan.rounds);
    let title = format!(
        "\nall to all, {size} (pairs: share of the slowest and the fastest ordered pair, relative to \
         an equal share)\n"
    );
    output.print_records(&title, &flows, "\n")?;
    let title = format!(
        "\npingpong of {size} between two of {all} processes (one way: half of a round trip)\n"
    );
    let after = format!("\n\nfigures are medians of {rounds} rounds");
    output.print_records(&title, &pingpongs, &after)?;
    Ok(true)
}

struct Crowd<'a> {
    plan: &'a CrowdPlan,
    testbed: &'a Testbed,
    cores: Cores,
}

impl Crowd<'_> {
    fn about(&self, bench: &'static str, processes: usize) -> Subjects {
        let testbed = self.testbed.name(Placement::OneNode);
        Subjects {
            bench,
            subject: Subject::Dipole.name(),
            link: Subject::Dipole.link(self.plan.carrier, testbed),
            testbed,
            size_bytes: self.plan.size_bytes,
            processes,
        }
    }

    /// Measures an all-to-all exchange.
    fn flow(&self, processes: usize) -> Result<Flow, RunError> {
        let mut workers = self.start(processes, |_| CrowdPart::Flow { first: 0 })?;
        let limit = self.plan.duration + SLACK;
        let counts = workers
            .iter_mut()
            .map(|worker| worker.recv::<CrowdCount>(limit))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(flow(&counts, self.plan.size_bytes))
    }

    /// Measures a ping-pong between two processes on different cores; the others do `rest`.
    fn pingpong(&self, rest: CrowdPart) -> Result<OneWay, RunError> {
        let part = |index| match index {
            0 => CrowdPart::Ping,
            1 => CrowdPart::Echo,
            _ => rest,
        };
        let mut workers = self.start(usize::from(self.plan.processes), part)?;
        // If each round trip waits for the scheduler, the minimum number of round trips takes long.
        let outcome: Outcome = workers[0].verdict(self.plan.duration + SLACK)?;
        Ok(outcome.one_way.unwrap_or_default())
    }

    /// Starts processes and lets them open their endpoints, connect them, and begin.
    fn start(
        &self,
        processes: usize,
        part: impl Fn(usize) -> CrowdPart,
    ) -> Result<Vec<Worker>, RunError> {
        let mut workers = (0..processes)
            .map(|index| {
                let task = Task::Crowd(CrowdJob {
                    index,
                    processes,
                    part: part(index),
                    core: if index % 2 == 0 {
                        self.cores.lead
                    } else {
                        self.cores.follow
                    },
                    size_bytes: self.plan.size_bytes,
                    duration: self.plan.duration,
                    block: self.plan.block,
                });
                let carrier = self.plan.carrier;
                let mut environment =
                    self.testbed
                        .environment(Placement::OneNode, Role::Lead, carrier);
                // Processes are killed one after the other; warnings about lost peers are useless.
                environment.push(("DIPOLE_LOG", "error".into()));
                Worker::start(format!("process {index}"), &ARGUMENTS, &task, environment)
            })
            .collect::<Result<Vec<_>, _>>()?;
        for _ in ["open", "pointed"] {
            for worker in &mut workers {
                worker.recv::<Ready>(SLACK)?;
            }
            for worker in &mut workers {
                worker.send(&Ready::default())?;
            }
        }
        Ok(workers)
    }
}

/// Adds up the counters of all processes.
fn flow(counts: &[CrowdCount], size_bytes: usize) -> Flow {
    let (mut messages_per_s, mut cpu_ns, mut messages) = (0.0, 0.0, 0.0);
    let mut pairs = Vec::new();
    for (index, count) in counts.iter().enumerate() {
        let seconds = as_float(count.elapsed_ns.max(1)) / 1e9;
        for (from, &received) in count.received.iter().enumerate() {
            messages_per_s += as_float(received) / seconds;
            messages += as_float(received);
            if from != index {
                pairs.push(as_float(received) / seconds);
            }
        }
        cpu_ns += as_float(count.cpu_ns);
    }
    let equal = messages_per_s / as_float(pairs.len().max(1) as u64);
    let share = |pair: Option<f64>| pair.map_or(0.0, |pair| pair / equal.max(f64::MIN_POSITIVE));
    Flow {
        messages_per_s,
        bytes_per_s: messages_per_s * as_float(size_bytes as u64),
        cpu_ns_per_message: cpu_ns / f64::max(messages, 1.0),
        least_pair_share: share(pairs.iter().copied().min_by(f64::total_cmp)),
        most_pair_share: share(pairs.iter().copied().max_by(f64::total_cmp)),
    }
}

fn median_of<T>(rounds: &[T], figure: impl Fn(&T) -> f64) -> f64 {
    median(rounds.iter().map(figure)).unwrap_or(0.0)
}

fn middle_flow(rounds: &[Flow]) -> Flow {
    Flow {
        messages_per_s: median_of(rounds, |flow| flow.messages_per_s),
        bytes_per_s: median_of(rounds, |flow| flow.bytes_per_s),
        cpu_ns_per_message: median_of(rounds, |flow| flow.cpu_ns_per_message),
        least_pair_share: median_of(rounds, |flow| flow.least_pair_share),
        most_pair_share: median_of(rounds, |flow| flow.most_pair_share),
    }
}

fn middle(rounds: &[OneWay]) -> OneWay {
    let middle = |of: fn(&OneWay) -> Option<f64>| median(rounds.iter().filter_map(of));
    OneWay {
        p50_ns: median_of(rounds, |one_way| one_way.p50_ns),
        mean80_ns: middle(|one_way| one_way.mean80_ns),
        p99_ns: middle(|one_way| one_way.p99_ns),
        p999_ns: middle(|one_way| one_way.p999_ns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(received: &[u64]) -> CrowdCount {
        CrowdCount {
            received: received.to_vec(),
            elapsed_ns: 500_000_000,
            cpu_ns: 600,
        }
    }

    #[test]
    fn a_flow_is_the_sum_over_receivers_and_shares_are_of_an_equal_one() {
        let counts = [
            count(&[0, 10, 20]),
            count(&[30, 0, 20]),
            count(&[20, 20, 0]),
        ];
        let flow = flow(&counts, 64);
        assert_eq!(flow.messages_per_s, 240.0);
        assert_eq!(flow.bytes_per_s, 240.0 * 64.0);
        assert_eq!(flow.cpu_ns_per_message, 15.0);
        assert_eq!((flow.least_pair_share, flow.most_pair_share), (0.5, 1.5));
    }

    #[test]
    fn a_starved_pair_shows_as_nothing() {
        let flow = flow(&[count(&[0, 0]), count(&[100, 0])], 1);
        assert_eq!((flow.least_pair_share, flow.most_pair_share), (0.0, 2.0));
    }
}
