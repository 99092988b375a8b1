//! `dipole bench crowd`: more processes than cores, all on one node.
//!
//! Four measurements a round: everybody sends to everybody, by two processes
//! and by all; and a ping-pong between two of all, while the others wait and
//! while the others send to each other. Processes are pinned to the two cores
//! in turn and wait as any program's would: they spin for a bounded time and
//! then sleep. Two processes and many do the same work: messages of the same
//! length, and the same number of them offered in a turn, divided among
//! the others.

pub(super) mod process;

use std::error::Error;
use std::time::Duration;

use serde::Serialize;

use super::Report;
use super::control::{
    Carrier, CrowdCount, CrowdJob, CrowdPart, Outcome, Placement, Ready, Role, Task, name_of,
};
use super::failure::RunError;
use super::launch::{SLACK, Worker};
use super::machine::Cores;
use super::plan::size;
use super::report::{Sheet, titled};
use super::statistics::{OneWay, Spread, as_float};
use super::subject::Subject;
use super::testbed::Testbed;

/// What a crowd is to do.
#[derive(Clone, Debug)]
pub(crate) struct CrowdPlan {
    pub(crate) processes: u16,
    pub(crate) size_bytes: usize,
    pub(crate) duration: Duration,
    pub(crate) rounds: u32,
    pub(crate) block: bool,
    pub(crate) carrier: Carrier,
}

/// One line of `--json`.
#[derive(Debug, Serialize)]
struct Line {
    bench: &'static str,
    subject: String,
    link: String,
    testbed: &'static str,
    size_bytes: usize,
    processes: usize,
    #[serde(flatten)]
    figures: Figures,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Figures {
    Flow(Flow),
    Pingpong(OneWay),
}

/// Everybody to everybody: all of it, and how evenly it was shared.
#[derive(Clone, Copy, Debug, Serialize)]
struct Flow {
    messages_per_s: f64,
    bytes_per_s: f64,
    cpu_ns_per_message: f64,
    /// What the slowest and the fastest ordered pair had, as a multiple of an equal share.
    least_pair_share: f64,
    most_pair_share: f64,
}

/// Measures and prints; false if a measurement failed.
pub(super) fn measure(
    plan: &CrowdPlan,
    testbed: &Testbed,
    cores: Cores,
    report: &mut Report<'_>,
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
        // With fewer there is no pair left to send to each other.
        if all >= 4 {
            busy.push(crowd.pingpong(CrowdPart::Flow { first: 2 })?);
        }
    }
    let mut lines = vec![
        crowd.line("crowd", 2, Figures::Flow(middle_flow(&pair))),
        crowd.line("crowd", all, Figures::Flow(middle_flow(&many))),
        crowd.line("crowd-pingpong-idle", all, Figures::Pingpong(middle(&idle))),
    ];
    if !busy.is_empty() {
        let figures = Figures::Pingpong(middle(&busy));
        lines.push(crowd.line("crowd-pingpong-busy", all, figures));
    }
    if report.json {
        for line in &lines {
            report.object(line)?;
        }
    } else {
        report.result(&tables(plan, &lines, report.wide))?;
    }
    Ok(true)
}

struct Crowd<'a> {
    plan: &'a CrowdPlan,
    testbed: &'a Testbed,
    cores: Cores,
}

impl Crowd<'_> {
    fn line(&self, bench: &'static str, processes: usize, figures: Figures) -> Line {
        let testbed = self.testbed.name(Placement::OneNode);
        Line {
            bench,
            subject: name_of(Subject::Dipole),
            link: Subject::Dipole.link(self.plan.carrier, testbed),
            testbed,
            size_bytes: self.plan.size_bytes,
            processes,
            figures,
        }
    }

    /// Everybody sends to everybody.
    fn flow(&self, processes: usize) -> Result<Flow, RunError> {
        let mut workers = self.start(processes, |_| CrowdPart::Flow { first: 0 })?;
        let limit = self.plan.duration + SLACK;
        let counts = workers
            .iter_mut()
            .map(|worker| worker.recv::<CrowdCount>(limit))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(flow(&counts, self.plan.size_bytes))
    }

    /// Two of all processes, on different cores, ask and answer; the others do `rest`.
    fn pingpong(&self, rest: CrowdPart) -> Result<OneWay, RunError> {
        let part = |index| match index {
            0 => CrowdPart::Ping,
            1 => CrowdPart::Echo,
            _ => rest,
        };
        let mut workers = self.start(usize::from(self.plan.processes), part)?;
        // Where each round trip takes a scheduler's turn, those that must be made take long.
        let outcome: Outcome = workers[0].verdict(self.plan.duration + SLACK)?;
        Ok(outcome.one_way.unwrap_or_default())
    }

    /// Starts processes, lets them open their endpoints, then point them at each other, then begin.
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
                // They are ended one after the other; that some are gone is no news.
                environment.push(("DIPOLE_LOG", "error".into()));
                Worker::start(format!("process {index}"), &task, environment)
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

/// Adds up what each process counted.
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

fn median<T>(rounds: &[T], figure: impl Fn(&T) -> f64) -> f64 {
    Spread::of(rounds.iter().map(figure)).map_or(0.0, |spread| spread.median)
}

fn middle_flow(rounds: &[Flow]) -> Flow {
    Flow {
        messages_per_s: median(rounds, |flow| flow.messages_per_s),
        bytes_per_s: median(rounds, |flow| flow.bytes_per_s),
        cpu_ns_per_message: median(rounds, |flow| flow.cpu_ns_per_message),
        least_pair_share: median(rounds, |flow| flow.least_pair_share),
        most_pair_share: median(rounds, |flow| flow.most_pair_share),
    }
}

fn middle(rounds: &[OneWay]) -> OneWay {
    let middle = |of: fn(&OneWay) -> Option<f64>| {
        Spread::of(rounds.iter().filter_map(of)).map(|spread| spread.median)
    };
    OneWay {
        p50_ns: median(rounds, |one_way| one_way.p50_ns),
        mean80_ns: middle(|one_way| one_way.mean80_ns),
        p99_ns: middle(|one_way| one_way.p99_ns),
        p999_ns: middle(|one_way| one_way.p999_ns),
    }
}

fn tables(plan: &CrowdPlan, lines: &[Line], wide: bool) -> String {
    let headings = "processes|link|x first|k msg/s|+GB/s|CPU ns/msg|least pair|most pair";
    let mut flows = Sheet::new(headings, 1, wide);
    let mut pings = titled("the others|p50 us|mean80 us|p99 us|p99.9 us", 1);
    let mut first = None;
    for line in lines {
        match &line.figures {
            Figures::Flow(flow) => {
                let base = *first.get_or_insert(flow.messages_per_s);
                flows.row([
                    line.processes.to_string(),
                    line.link.clone(),
                    format!("{:.2}", flow.messages_per_s / base.max(f64::MIN_POSITIVE)),
                    format!("{:.1}", flow.messages_per_s * 1e-3),
                    format!("{:.3}", flow.bytes_per_s * 1e-9),
                    format!("{:.0}", flow.cpu_ns_per_message),
                    format!("{:.2}", flow.least_pair_share),
                    format!("{:.2}", flow.most_pair_share),
                ]);
            }
            Figures::Pingpong(one_way) => {
                let others = if line.bench.ends_with("idle") {
                    "wait"
                } else {
                    "all to all"
                };
                let times = [
                    Some(one_way.p50_ns),
                    one_way.mean80_ns,
                    one_way.p99_ns,
                    one_way.p999_ns,
                ];
                let times = times
                    .map(|ns| ns.map_or_else(|| "-".to_owned(), |ns| format!("{:.2}", ns * 1e-3)));
                pings.add_row(std::iter::once(others.to_owned()).chain(times));
            }
        }
    }
    let (size, all, rounds) = (size(plan.size_bytes), plan.processes, plan.rounds);
    format!(
        "\nall to all, {size} (pairs: what the slowest and the fastest ordered pair had of an \
         equal share)\n{flows}\n\npingpong of {size} between two of {all} processes (one way: \
         half of a round trip)\n{pings}\n\nfigures are medians of {rounds} rounds"
    )
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
