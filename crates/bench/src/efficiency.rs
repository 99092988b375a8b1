//! `dipole bench efficiency`: throughput, utilisation and efficiency of a stream over the length of
//! its writes.
//!
//! Throughput alone says little about communication that leaves no time to the application. On the
//! core of each side runs a soaker ([`crate::soak`]), which shows the share of the core that
//! communication takes: the utilisation. The efficiency is the throughput divided by it: what the
//! side could carry if it did nothing else. Waiting sides sleep.
//!
//! # Source
//! Gigabit Nectar §3.3, figure 7 (a) to (c).

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use dipole_page::byte_size;
use serde::Serialize;

use crate::conditions::{closing_line, on_machine, places, progress_bar};
use crate::launch::Entry;
use crate::machine::{self, Cores, Stolen};
use crate::output::{Output, PageFile, Record};
use crate::page::{self, Chart, Curve, Point, Scale};
use crate::plan::{PlanError, Setup};
use crate::setup::SetupArgs;
use crate::soak;
use crate::statistics::{Spread, as_float};
use crate::subject::Subject;
use crate::testbed::Testbed;
use crate::work::{Carrier, Kind, Placement, Workload};

/// Lengths of writes in the paper's figure.
const WRITES: [usize; 10] = [
    1 << 10,
    2 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
];
const QUICK_WRITES: [usize; 2] = [4 << 10, 64 << 10];
/// Long enough for the kernel's accounting of processor time.
const SECONDS: f64 = 0.5;
const ROUNDS: u32 = 3;

/// Options of efficiency.
#[derive(Args, Debug)]
#[command(
    mut_arg("seconds", |arg| arg.help(format!("Duration of each measurement [default: {SECONDS}]"))),
    mut_arg("rounds", |arg| arg.help(format!(
        "Number of rounds in which each subject takes its turn; figures are medians over these [default: {ROUNDS}]"
    )))
)]
pub(crate) struct EfficiencyArgs {
    #[command(flatten)]
    pub(crate) setup: SetupArgs,
    /// Write an HTML page with the three figures, in one file that needs no network
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Results of one subject and length: medians over rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct EfficiencyRow {
    bench: &'static str,
    subject: String,
    link: String,
    testbed: &'static str,
    size_bytes: usize,
    rounds: usize,
    mbit_per_s: f64,
    least_mbit_per_s: f64,
    most_mbit_per_s: f64,
    /// Share of its core that each side used for communication.
    sender_utilisation: f64,
    receiver_utilisation: f64,
    /// Throughput divided by the sender's utilisation, and by the receiver's.
    sender_mbit_per_cpu_s: f64,
    receiver_mbit_per_cpu_s: f64,
}

impl Record for EfficiencyRow {
    const HEADINGS: &'static str =
        "write|subject|link|Mbit/s|tx %|rx %|Mbit/s per CPU|+of receiver";
    const LABELS: usize = 3;

    fn cells(&self) -> Vec<String> {
        vec![
            byte_size(self.size_bytes),
            self.subject.clone(),
            self.link.clone(),
            format!("{:.0}", self.mbit_per_s),
            format!("{:.0}", 100.0 * self.sender_utilisation),
            format!("{:.0}", 100.0 * self.receiver_utilisation),
            format!("{:.0}", self.sender_mbit_per_cpu_s),
            format!("{:.0}", self.receiver_mbit_per_cpu_s),
        ]
    }
}

/// Rounds of one subject and length: Mbit/s, and the utilisation of sender and receiver.
struct Measured {
    entry: Entry,
    rounds: Vec<[f64; 3]>,
}

impl Measured {
    fn row(&self, testbed: &Testbed) -> Option<EfficiencyRow> {
        let spread = |of: &dyn Fn(&[f64; 3]) -> f64| Spread::of(self.rounds.iter().map(of));
        let rate = spread(&|round| round[0])?;
        let median = |of: &dyn Fn(&[f64; 3]) -> f64| Some(spread(of)?.median);
        Some(EfficiencyRow {
            bench: "efficiency",
            subject: self.entry.subject.name(),
            link: self.entry.link(testbed),
            testbed: testbed.name(self.entry.place),
            size_bytes: self.entry.work.size_bytes,
            rounds: self.rounds.len(),
            mbit_per_s: rate.median,
            least_mbit_per_s: rate.least,
            most_mbit_per_s: rate.most,
            sender_utilisation: median(&|round| round[1])?,
            receiver_utilisation: median(&|round| round[2])?,
            sender_mbit_per_cpu_s: median(&|round| round[0] / round[1].max(1e-9))?,
            receiver_mbit_per_cpu_s: median(&|round| round[0] / round[2].max(1e-9))?,
        })
    }
}

/// Measures and prints; with `json` one object per line.
///
/// # Errors
/// Nothing could be measured, or the results cannot be written.
pub(crate) fn measure(
    arguments: &EfficiencyArgs,
    setup: &Setup,
    output: &mut Output<'_>,
) -> Result<ExitCode, Box<dyn Error>> {
    let cores = Cores::choose()?;
    let page = arguments.html.as_deref().map(PageFile::open).transpose()?;
    let mut all = entries(setup)?;
    let testbed = Testbed::create(setup.on)?;
    let places = places(cores, None);
    output.remark(&format!("on {}", testbed.description()))?;
    output.remark(&on_machine(&places))?;
    let rounds = match setup.quick {
        true => 1,
        false => setup.rounds.unwrap_or(ROUNDS),
    };
    let progress = progress_bar(u64::from(rounds) * all.len() as u64);
    let stolen = Stolen::since_now(cores);
    let (mut cache_line_ns, mut failures) = (Vec::new(), 0);
    for _ in 0..rounds {
        cache_line_ns.extend(machine::cache_line_ns(cores)?);
        for one in &mut all {
            let (subject, size) = (one.entry.subject.name(), one.entry.work.size_bytes);
            progress.set_message(format!("{subject}, {}", byte_size(size)));
            match soak::measure(&one.entry, &testbed, cores) {
                Ok((outcome, [sender, receiver])) => {
                    let rate = outcome.bytes_per_s.map(|bytes| bytes * 8e-6);
                    one.rounds.extend(rate.map(|rate| [rate, sender, receiver]));
                }
                Err(error) => {
                    failures += 1;
                    progress.suspend(|| eprintln!("dipole bench efficiency: {subject}: {error}"));
                }
            }
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    let rows: Vec<EfficiencyRow> = all.iter().filter_map(|one| one.row(&testbed)).collect();
    output.print_records(
        "\nstreams, sides sleep while they wait; tx, rx: share of the sender's and the receiver's core,\n\
         by a soaker on it; Mbit/s per CPU: of the sender\n",
        &rows,
        "",
    )?;
    let closing = closing_line(&cache_line_ns, None, stolen);
    output.remark(&closing)?;
    if let Some(file) = page {
        let facts = page::facts(Some(testbed.description()), places, &closing, failures);
        let words = (
            "Throughput, utilisation and efficiency",
            "Streams over the length of their writes. Utilisation is the share of a core that \
             communication takes, measured by a soaker that computes on the same core.",
        );
        let figures: String = charts(&rows).iter().map(|chart| chart.html("")).collect();
        file.write(&page::measured_page(words, &facts, &figures, &rows), output)?;
    }
    Ok(match failures {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Returns Dipole over each link, and TCP, for every length.
fn entries(setup: &Setup) -> Result<Vec<Measured>, PlanError> {
    let place = setup.placement()?.unwrap_or(Placement::TwoNodes);
    let first = setup.carrier(place);
    let mut subjects = vec![(Subject::Dipole, first)];
    if first == Carrier::Bpf {
        subjects.push((Subject::Dipole, Carrier::Udp));
    }
    subjects.push((Subject::BareTcpBlock, first));
    let writes = match setup.quick {
        true => &QUICK_WRITES[..],
        false => &WRITES,
    };
    let duration = setup.duration(SECONDS);
    let all = writes.iter().flat_map(|&bytes| {
        subjects.iter().map(move |&(subject, carrier)| Measured {
            entry: entry((subject, carrier), place, bytes, duration),
            rounds: Vec::new(),
        })
    });
    Ok(all.collect())
}

fn entry(
    (subject, carrier): (Subject, Carrier),
    place: Placement,
    bytes: usize,
    duration: Duration,
) -> Entry {
    Entry {
        bench: "efficiency".to_owned(),
        subject,
        work: Workload {
            duration,
            block: true,
            ..Workload::of(Kind::Stream, bytes)
        },
        place,
        carrier,
        fault: None,
    }
}

/// Draws the three figures; utilisation and efficiency are the sender's, as in the paper.
fn charts(rows: &[EfficiencyRow]) -> [Chart; 3] {
    let chart = |id: &str, title: &str, text, y, figure: &dyn Fn(&EfficiencyRow) -> f64| Chart {
        id: id.to_owned(),
        title: title.to_owned(),
        text,
        x: (Scale::Bytes, "length of a write, bytes"),
        y: (Scale::Number, y),
        curves: curves(rows, figure),
    };
    [
        chart(
            "throughput",
            "Throughput",
            "Bytes that arrive at the receiving program. More is better.",
            "throughput, Mbit/s",
            &|row| row.mbit_per_s,
        ),
        chart(
            "utilisation",
            "Utilisation of the sender",
            "Share of the sender's core that communication takes. Less is better.",
            "utilisation, %",
            &|row| 100.0 * row.sender_utilisation,
        ),
        chart(
            "efficiency",
            "Efficiency of the sender",
            "Throughput divided by utilisation: what a fully used core could send. More is better.",
            "efficiency, Mbit/s per CPU",
            &|row| row.sender_mbit_per_cpu_s,
        ),
    ]
}

fn curves(rows: &[EfficiencyRow], figure: &dyn Fn(&EfficiencyRow) -> f64) -> Vec<Curve> {
    let mut named: Vec<(String, Vec<Point>)> = Vec::new();
    for row in rows {
        let name = format!("{} ({})", row.subject, row.link);
        let y = figure(row);
        let point = Point {
            x: as_float(row.size_bytes as u64),
            y,
            spread: None,
            note: format!("{name}, {}: {y:.1}", byte_size(row.size_bytes)),
        };
        match named.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push(point),
            None => named.push((name, vec![point])),
        }
    }
    page::curves_in_order(named)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        arguments: EfficiencyArgs,
    }

    #[test]
    fn the_help_has_the_defaults_that_are_used() {
        let program = Program::try_parse_from(["bench"]).expect("no arguments are needed");
        let setup = program.arguments.setup.setup();
        assert_eq!((setup.seconds, setup.rounds), (None, None));
        let help = <Program as clap::CommandFactory>::command().render_long_help();
        let help = help.to_string();
        for default in [
            format!("[default: {SECONDS}]"),
            format!("[default: {ROUNDS}]"),
        ] {
            assert!(help.contains(&default), "{default}: {help}");
        }
        assert!(!help.contains("standard table"), "{help}");
    }
}
