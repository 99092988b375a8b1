//! `dipole bench`: how fast Dipole is, beside what plain sockets and plain
//! memory do in the same run.
//!
//! Each figure comes from two processes (this program, started again), one pinned on
//! each of two cores, and each subject takes its turn in every round: the
//! machine drifts, so only what stands in one table may be compared.
//! [`plan`] says what is measured, [`bed`] where, [`launch`] brings two
//! [`side`]s together, [`pingpong`] and [`flow`] are the work, [`dipole`] and
//! [`peers`] those who do it, [`report`] what comes out.

mod bed;
mod channel;
mod control;
mod dipole;
mod flow;
mod launch;
mod machine;
mod peers;
mod pingpong;
mod plan;
mod report;
mod side;
mod statistics;
mod subject;

use std::fmt::Display;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use bed::{Bed, On};
use control::Kind;
use machine::{Cores, Stolen};
use plan::Group;
use report::Measured;
use statistics::Spread;
use subject::Subject;

/// How this program starts itself as a side.
const SIDE_ARGUMENTS: [&str; 2] = ["bench", "--side"];
/// From this load on somebody else is certainly in the way.
const BUSY_LOAD: f64 = 0.7;
/// From this share of stolen time on figures are in doubt.
const STOLEN_SHARE: f64 = 0.01;

/// Measure Dipole beside plain sockets and plain memory
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// What to measure; the standard table of all kinds if absent
    kind: Option<Kind>,
    /// What carries Dipole's packets
    #[arg(long, value_enum, default_value_t = LinkName::Udp)]
    link: LinkName,
    /// Where the two sides lie
    #[arg(long, value_enum, default_value_t = On::Auto)]
    on: On,
    /// Message length in bytes [default: 64; stream 1 MiB, bidir 64 KiB]
    #[arg(long, value_name = "BYTES")]
    size: Option<usize>,
    /// How long each measurement takes [default: 1; 0.4 in the standard table]
    #[arg(long)]
    seconds: Option<f64>,
    /// How often each subject takes its turn; medians and spreads are over these
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Dipole's messages are sent unreliably
    #[arg(long)]
    unreliable: bool,
    /// Waits sleep in the kernel instead of spinning
    #[arg(long)]
    block: bool,
    /// Who is measured, separated by commas [default: dipole and its usual peers]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SUBJECT,..")]
    subjects: Vec<Subject>,
    /// Dipole through the fault wrapper, losing this share of all packets, beside losing none
    #[arg(long, value_name = "SHARE")]
    drop: Option<f64>,
    /// This process is one of the two sides of a measurement
    #[arg(long, hide = true, exclusive = true)]
    side: bool,
}

/// Ways to carry Dipole's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LinkName {
    /// UDP sockets
    Udp,
}

/// Measures and prints; with `json` one object a line on standard output and the rest on
/// standard error.
pub(crate) fn execute(arguments: BenchArgs, json: bool) -> ExitCode {
    if arguments.side {
        return side::run();
    }
    let LinkName::Udp = arguments.link;
    match try_execute(&arguments, json) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(cause) => {
            eprintln!("dipole bench: {cause}");
            ExitCode::from(2)
        }
    }
}

/// False if some measurement failed; those that did not are printed.
fn try_execute(arguments: &BenchArgs, json: bool) -> Result<bool, Box<dyn std::error::Error>> {
    let groups = plan::plan(arguments)?;
    let cores = Cores::choose()?;
    let bed = Bed::make(arguments.on)?;
    let say = |line: &dyn Display| {
        if json {
            eprintln!("{line}")
        } else {
            println!("{line}")
        }
    };
    say(&format!("on {}", bed.description()));
    if let Some(remark) = &bed.remark {
        say(&format!("not on a veth pair: {remark}"));
    }
    say(&machine_line(cores));
    let stolen = Stolen::since_now(cores);
    let total: usize = groups.iter().map(|group| group.entries.len()).sum();
    let progress = progress_bar(total as u64 * u64::from(arguments.rounds));
    let mut cache_line_ns = Vec::new();
    let mut complete = true;
    for group in &groups {
        let mut run = GroupRun {
            group,
            bed: &bed,
            cores,
            progress: &progress,
            complete: true,
        };
        let measured = run.measure(arguments.rounds, &mut cache_line_ns)?;
        complete &= run.complete;
        progress.suspend(|| {
            if json {
                for line in measured.iter().filter_map(|one| one.line(bed.name())) {
                    println!(
                        "{}",
                        serde_json::to_string(&line).expect("plain data is JSON")
                    );
                }
            } else {
                println!("\n{}", report::table(group, &measured, bed.name()));
            }
            for remark in report::remarks(&measured) {
                say(&format!("  {remark}"));
            }
        });
    }
    progress.finish_and_clear();
    say(&closing_line(&cache_line_ns, stolen, arguments.rounds));
    Ok(complete)
}

/// One group under measurement.
struct GroupRun<'a> {
    group: &'a Group,
    bed: &'a Bed,
    cores: Cores,
    progress: &'a ProgressBar,
    complete: bool,
}

impl GroupRun<'_> {
    /// Every subject in turn, and that as often as there are rounds.
    fn measure(
        &mut self,
        rounds: u32,
        cache_line_ns: &mut Vec<f64>,
    ) -> std::io::Result<Vec<Measured>> {
        let entries = self.group.entries.iter().cloned();
        let mut measured: Vec<Measured> = entries
            .map(|entry| Measured {
                entry,
                rounds: Vec::new(),
            })
            .collect();
        for _ in 0..rounds {
            cache_line_ns.extend(machine::cache_line_ns(self.cores)?);
            for one in &mut measured {
                let subject = one.entry.subject.name();
                self.progress
                    .set_message(format!("{} {subject}", one.entry.bench));
                let outcome = launch::measure(&one.entry, self.bed, self.cores);
                if let Err(error) = &outcome {
                    self.complete = false;
                    self.progress.suspend(|| {
                        eprintln!("dipole bench: {} of {subject}: {error}", self.group.title);
                    });
                }
                one.rounds.push(outcome.ok());
                self.progress.inc(1);
            }
        }
        Ok(measured)
    }
}

fn machine_line(cores: Cores) -> String {
    let place = if cores.are_one() {
        format!(
            "both sides on core {}: there is only one, so figures mean little",
            cores.lead
        )
    } else {
        format!("sides pinned to cores {} and {}", cores.lead, cores.follow)
    };
    let load = match machine::load() {
        Some(load) if load >= BUSY_LOAD => {
            format!("; load {load:.2}: others are running, figures suffer")
        }
        Some(load) => format!("; load {load:.2}"),
        None => String::new(),
    };
    format!("{}; {place}{load}", machine::description())
}

fn closing_line(cache_line_ns: &[f64], stolen: Stolen, rounds: u32) -> String {
    let cache_line = Spread::of(cache_line_ns.iter().copied()).map_or_else(
        || "cache line between the cores: not measured, there is one".to_owned(),
        |ns| {
            format!(
                "cache line between the cores {:.0} ns one way ({:.0}..{:.0})",
                ns.median, ns.least, ns.most
            )
        },
    );
    let (time, share) = stolen.so_far();
    let doubt = if share >= STOLEN_SHARE {
        ": figures are in doubt"
    } else {
        ""
    };
    format!(
        "\n{cache_line}; stolen by the host {} ms ({:.2} %){doubt}; medians of {rounds} rounds",
        time.as_millis(),
        share * 100.0
    )
}

fn progress_bar(measurements: u64) -> ProgressBar {
    // Hidden by itself where standard error is not a terminal.
    let bar = ProgressBar::new(measurements);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} ({eta})")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style)
}
