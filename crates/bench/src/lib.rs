//! `dipole bench`: measures Dipole beside plain sockets and plain memory in the same run.
//!
//! Each figure comes from two processes (this program, started again), each pinned to a core of its
//! own, and each subject takes its turn in every round: the machine drifts, so only figures of one
//! table may be compared.
//! `plan` says what is measured, `testbed` where, `launch` connects two `side`s, `pingpong`,
//! `flow`, `mixed`, `port` and `memory` are the workloads, `dipole` and `peers` the subjects, `report` and `page` the
//! results; `installed` has other projects' libraries and tools as further subjects, `mpi` starts MPI's; `remote` puts the second side on another host. `crowd` and `incast` stand alone: many processes at once, on few cores or on a network
//! of their own; and so do `pacing`, which simulates (a `cluster`), `bsp`, which measures supersteps between the
//! ranks of a job, and `variance`, which does both; `crossings` counts what happens to each byte.

#![forbid(unsafe_code)]

mod bsp;
mod calibrate;
mod channel;
mod cluster;
mod control;
mod crossings;
mod crowd;
mod dipole;
mod estimate;
mod failure;
mod flow;
mod incast;
mod installed;
mod launch;
mod machine;
mod memory;
mod mixed;
mod moved;
mod mpi;
mod pacing;
mod page;
mod peers;
mod pingpong;
mod plan;
mod port;
mod remote;
mod report;
mod side;
mod statistics;
mod subject;
mod testbed;
mod variance;

use std::error::Error;
use std::fmt::Display;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

pub use bsp::{ProbeArgs, RankArgs, probe, rank};
pub use calibrate::{MessagesArgs, calibrate, check as check_predictions};
use control::{Kind, Placement, name_of};
use installed::Installed;
use machine::{Cores, Stolen};
use plan::{Group, Plan};
use remote::Remote;
use report::Measured;
use statistics::Spread;
use subject::Subject;
use testbed::{On, Testbed};

/// How this program starts itself as a side.
const SIDE_ARGUMENTS: [&str; 2] = ["bench", "--side"];
/// From this load on other programs certainly disturb.
const BUSY_LOAD: f64 = 0.7;
/// From this share of stolen time on figures are doubtful.
const STOLEN_SHARE: f64 = 0.01;
/// Rounds that not all need are measured while everything will have taken no longer than this.
const PATIENCE: Duration = Duration::from_secs(80);

/// Measure Dipole beside plain sockets and plain memory
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// What to measure; the standard table of all kinds if absent
    kind: Option<Topic>,
    /// What carries Dipole's messages
    #[arg(long, value_enum, default_value_t = LinkName::Auto)]
    link: LinkName,
    /// Where the two sides run
    #[arg(long, value_enum, default_value_t = On::Auto)]
    on: On,
    /// Message length in bytes [default: 64; stream 1 MiB, bidir 64 KiB]
    #[arg(long, value_name = "BYTES")]
    size: Option<usize>,
    /// How long each measurement takes [default: 1; 0.2 in the standard table, 0.05 for a point of a figure]
    #[arg(long)]
    seconds: Option<f64>,
    /// How often each subject takes its turn; medians and spreads are over these rounds [default: 5;
    /// in the standard table 3 to 5 and for a point of a figure 2 or 3, as long as they differ and
    /// time is left]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// One short round and few sizes, to see that everything works
    #[arg(long)]
    quick: bool,
    /// Dipole's messages are sent unreliably
    #[arg(long)]
    unreliable: bool,
    /// Waits sleep in the kernel instead of spinning
    #[arg(long)]
    block: bool,
    /// Threads of a side: with 2, one sends and one receives (bidir)
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    threads: u8,
    /// How many processes share two cores [default: 8]
    #[arg(long, value_parser = clap::value_parser!(u16).range(2..=64))]
    processes: Option<u16>,
    /// How many nodes send to one at once (incast) [default: 7]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=200))]
    senders: Option<u32>,
    /// How many ranks the jobs have (variance) [default: 2,4,8]
    #[arg(long, value_name = "P,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(2..=64))]
    ranks: Vec<u32>,
    /// How many nodes are simulated (variance) [default: powers of 2 up to 128]
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(2..=1024))]
    nodes: Vec<u32>,
    /// Subjects to measure, separated by commas [default: dipole and its usual peers]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SUBJECT,..")]
    subjects: Vec<Subject>,
    /// Beside other projects' libraries and tools, whichever are installed: Open MPI, MPICH,
    /// libfabric, UCX, Aeron, ZeroMQ, BSPonMPI, iperf3, sockperf (pingpong and stream)
    #[arg(long)]
    peers: bool,
    /// Dipole through the fault wrapper, losing this share of all packets, beside losing none
    #[arg(long, value_name = "SHARE")]
    drop: Option<f64>,
    /// All columns, however wide the terminal
    #[arg(long)]
    wide: bool,
    /// Write an HTML page of figures and tables over all sizes, in one file that needs no network
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    remote: remote::RemoteArgs,
    /// The bpf link can be used between two nodes
    #[arg(skip)]
    has_bpf: bool,
    /// This process is one side of a measurement
    #[arg(long, hide = true, exclusive = true)]
    side: bool,
}

/// What the command line can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Topic {
    /// Work between two sides.
    Work(Kind),
    /// Round trips by endpoints and by active ports.
    Port,
    /// Operations on the other side's memory.
    Memory(Subject),
    /// Many processes on two cores.
    Crowd,
    /// Many nodes that send to one.
    Incast,
    /// Supersteps in virtual time.
    Pacing,
    /// How the times of supersteps differ.
    Variance,
    /// How often bytes cross memory.
    Crossings,
}

impl ValueEnum for Topic {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Topic::Work(Kind::Pingpong),
            Topic::Work(Kind::Stream),
            Topic::Work(Kind::Bidir),
            Topic::Work(Kind::Rate),
            Topic::Work(Kind::Mixed),
            Topic::Port,
            Topic::Memory(Subject::DipolePut),
            Topic::Memory(Subject::DipoleGet),
            Topic::Memory(Subject::DipoleAtomic),
            Topic::Crowd,
            Topic::Incast,
            Topic::Pacing,
            Topic::Variance,
            Topic::Crossings,
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Topic::Work(kind) => kind.to_possible_value(),
            Topic::Port => Some(
                PossibleValue::new("port")
                    .help("Round trips by handlers of active ports, beside those by endpoints"),
            ),
            Topic::Memory(Subject::DipolePut) => Some(
                PossibleValue::new("put")
                    .help("Puts into the other side's memory, beside messages and copies"),
            ),
            Topic::Memory(Subject::DipoleGet) => Some(
                PossibleValue::new("get")
                    .help("Gets from the other side's memory, beside messages and copies"),
            ),
            Topic::Memory(_) => Some(
                PossibleValue::new("atomic")
                    .help("Fetch-and-add on the other side's memory, beside messages"),
            ),
            Topic::Crowd => Some(
                PossibleValue::new("crowd").help("Many processes of one node on two cores at once"),
            ),
            Topic::Incast => Some(PossibleValue::new("incast").help(
                "Many nodes send a long message to one at once, by a switch of 1 Gbit/s with short \
                 queues (needs root)",
            )),
            Topic::Pacing => Some(PossibleValue::new("pacing").help(
                "Supersteps in every order and at every pace, on a simulated bus and switch",
            )),
            Topic::Crossings => Some(PossibleValue::new("crossings").help(
                "How often each byte crosses memory, by every path: counted and measured",
            )),
            Topic::Variance => Some(PossibleValue::new("variance").help(
                "How much supersteps differ, by jobs here and on simulated networks of up to 1024 nodes",
            )),
        }
    }
}

/// Ways to carry Dipole's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LinkName {
    /// Shared memory within a node; between nodes the bpf link where it may be opened, else UDP
    Auto,
    /// Shared memory, so both sides on one node
    Shm,
    /// UDP sockets, within a node too
    Udp,
    /// Rings that the kernel fills and raw frames (needs root)
    Bpf,
}

/// Measures and prints; with `json` one object a line to `out` and the rest to standard error.
/// The status tells whether every measurement succeeded.
///
/// # Errors
/// Nothing could be measured, or writing to `out` failed.
pub fn execute(
    mut arguments: BenchArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    if arguments.side {
        return Ok(side::run());
    }
    let wide = arguments.wide;
    let report = &mut Report { json, wide, out };
    if arguments.remote.server {
        remote::serve(&arguments.remote, report)?;
        return Ok(ExitCode::SUCCESS);
    }
    arguments.has_bpf = matches!(arguments.on, On::Auto | On::Veth) && has_bpf();
    let mut remote = None;
    if let Some(node) = arguments.remote.to {
        // What is wrong with the command line needs no other host.
        plan::plan(&arguments)?;
        let other = Remote::connect(&arguments.remote, node)?;
        arguments.has_bpf &= other.machine.has_bpf;
        remote = Some(other);
    }
    match measure(&arguments, remote, report)? {
        true => Ok(ExitCode::SUCCESS),
        false => Ok(ExitCode::FAILURE),
    }
}

/// The bpf link can be used by this process without anybody's help.
fn has_bpf() -> bool {
    rustix::process::geteuid().is_root() && dipole_bpf::has_capabilities()
}

/// Where results and remarks go.
struct Report<'a> {
    json: bool,
    /// All columns, and lines of any length.
    wide: bool,
    out: &'a mut dyn Write,
}

impl Report<'_> {
    /// Prints a line for people: beside the JSON objects, not among them.
    fn note(&mut self, line: &dyn Display) -> io::Result<()> {
        let text = match self.wide {
            true => line.to_string(),
            false => report::folded(&line.to_string()),
        };
        match self.json {
            true => writeln!(io::stderr(), "{text}"),
            false => writeln!(self.out, "{text}"),
        }
    }

    fn result(&mut self, line: &dyn Display) -> io::Result<()> {
        writeln!(self.out, "{line}")
    }

    /// What has been printed can be read from now on.
    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn object(&mut self, line: &impl Serialize) -> io::Result<()> {
        self.result(&serde_json::to_string(line)?)
    }
}

/// False if some measurement failed; those that did not are printed.
fn measure(
    arguments: &BenchArgs,
    remote: Option<Remote>,
    report: &mut Report<'_>,
) -> Result<bool, Box<dyn Error>> {
    let plan = plan::plan(arguments)?;
    let cores = Cores::choose()?;
    let mut groups = match plan {
        Plan::Groups(groups) => groups,
        Plan::Crowd(plan) => {
            let testbed = Testbed::make(On::Node)?;
            report.note(&format!("{} processes on one node", plan.processes))?;
            report.note(&machine_line(cores))?;
            return crowd::measure(&plan, &testbed, cores, report);
        }
        Plan::Variance(plan) => {
            return variance::measure(&plan, cores, arguments.html.as_deref(), report);
        }
        Plan::Crossings(plan) => return crossings::measure(&plan, cores, report),
        Plan::Pacing(plan) => return pacing::measure(&plan, arguments.html.as_deref(), report),
        Plan::Incast(plan) => {
            report.note(&machine_line(cores))?;
            return incast::measure(&plan, cores, report);
        }
    };
    let page = arguments.html.as_deref().map(begin_page).transpose()?;
    let mut entries = groups.iter().flat_map(|group| &group.entries);
    let apart = entries.any(|entry| entry.place == Placement::TwoNodes);
    let testbed = match remote {
        Some(remote) => Testbed::of_hosts(remote)?,
        None => Testbed::make(if apart { arguments.on } else { On::Node })?,
    };
    if apart {
        report.note(&format!("on {}", testbed.description()))?;
    } else {
        report.note(&"on one node")?;
    }
    if let Some(remark) = &testbed.remark {
        report.note(&format!("not on a veth pair: {remark}"))?;
    }
    let places = places(cores, testbed.remote());
    report.note(&on_machine(&places))?;
    let installed = keep_installed(&mut groups, &testbed, report)?;
    let run = Run {
        testbed: &testbed,
        installed: &installed,
        cores,
        stolen: Stolen::since_now(cores),
        progress: progress_bar(
            groups
                .iter()
                .map(|group| group.entries.len() as u64 * u64::from(group.rounds.most))
                .sum(),
        ),
    };
    let mut cache_line_ns = Vec::new();
    let mut failures = 0;
    let mut finished = Vec::new();
    let begun = Instant::now();
    let least_s: f64 = groups.iter().map(Group::least_seconds).sum();
    let mut planned_s = 0.0;
    for group in groups {
        planned_s += group.least_seconds();
        let until = begun + PATIENCE.mul_f64(planned_s / least_s);
        let measured = run.measure(&group, until, &mut cache_line_ns)?;
        failures += measured
            .iter()
            .flat_map(|one| &one.rounds)
            .filter(|round| round.is_none())
            .count();
        run.progress
            .suspend(|| print_group(&group, &measured, &testbed, report))?;
        finished.push((group, measured));
    }
    run.progress.finish_and_clear();
    let closing = closing_line(&cache_line_ns, testbed.remote(), run.stolen);
    report.note(&format!("\n{closing}"))?;
    if let Some((path, file)) = page {
        let between = apart.then(|| testbed.description());
        let facts = page::facts(between, places, &closing, failures).with(&installed.absent);
        write_page(path, file, &page::page(&facts, &finished, &testbed))?;
        report.note(&format!("figures and tables are in {}", path.display()))?;
    }
    Ok(failures == 0)
}

/// Of the subjects that must be installed keeps those that are, and says which are not.
fn keep_installed(
    groups: &mut Vec<Group>,
    testbed: &Testbed,
    report: &mut Report<'_>,
) -> Result<Installed, Box<dyn Error>> {
    let entries = groups.iter().flat_map(|group| &group.entries);
    let installed = Installed::find(entries.map(|entry| entry.subject), testbed.folder())?;
    for line in &installed.absent {
        report.note(line)?;
    }
    for group in &mut *groups {
        group.entries.retain(|entry| installed.has(entry.subject));
    }
    groups.retain(|group| !group.entries.is_empty());
    match groups.is_empty() {
        true => Err("nothing of what was asked for is installed here".into()),
        false => Ok(installed),
    }
}

fn print_group(
    group: &Group,
    measured: &[Measured],
    testbed: &Testbed,
    report: &mut Report<'_>,
) -> io::Result<()> {
    if report.json {
        for one in measured {
            if let Some(mut line) = one.line(testbed) {
                line.p99_over_alone = report::p99_over_alone(one, measured);
                report.object(&line)?;
            }
        }
    } else if group.is_table {
        let table = report::table(group, measured, testbed, report.wide);
        report.result(&format!("\n{table}"))?;
    }
    if group.is_table {
        for remark in report::remarks(measured) {
            report.note(&format!("  {remark}"))?;
        }
    }
    Ok(())
}

/// Opens the page's file before minutes are spent on what goes into it.
fn begin_page(path: &Path) -> io::Result<(&Path, fs::File)> {
    let file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path);
    file.map(|file| (path, file))
        .map_err(|error| cannot_write(path, &error))
}

fn write_page(path: &Path, mut file: fs::File, text: &str) -> io::Result<()> {
    let written = file
        .set_len(0)
        .and_then(|()| io::Write::write_all(&mut file, text.as_bytes()));
    written.map_err(|error| cannot_write(path, &error))
}

fn cannot_write(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!(
            "cannot write the page to {}: {error}; name a file in a folder that can be written",
            path.display()
        ),
    )
}

/// What all groups have in common.
struct Run<'a> {
    testbed: &'a Testbed,
    installed: &'a Installed,
    cores: Cores,
    stolen: Stolen,
    progress: ProgressBar,
}

impl Run<'_> {
    /// Every subject of the group in turn, and that as often as it takes until the rounds agree, or
    /// the time is up.
    fn measure(
        &self,
        group: &Group,
        until: Instant,
        cache_line_ns: &mut Vec<f64>,
    ) -> io::Result<Vec<Measured>> {
        let entries = group.entries.iter().cloned();
        let mut measured: Vec<Measured> = entries
            .map(|entry| Measured {
                entry,
                rounds: Vec::new(),
            })
            .collect();
        for round in 1..=group.rounds.most {
            if self.testbed.remote().is_none() {
                cache_line_ns.extend(machine::cache_line_ns(self.cores)?);
            }
            for one in &mut measured {
                let subject = name_of(one.entry.subject);
                self.progress
                    .set_message(format!("{} {subject}", one.entry.bench));
                let installed = self.installed.measure(&one.entry, self.testbed, self.cores);
                let outcome = installed
                    .unwrap_or_else(|| launch::measure(&one.entry, self.testbed, self.cores));
                if let Err(error) = &outcome {
                    self.progress.suspend(|| {
                        eprintln!("dipole bench: {} of {subject}: {error}", group.title);
                    });
                }
                one.rounds.push(outcome.ok());
                self.progress.inc(1);
            }
            let is_enough = || measured.iter().all(Measured::agrees) || Instant::now() >= until;
            if round >= group.rounds.least && is_enough() {
                let spared = u64::from(group.rounds.most - round) * group.entries.len() as u64;
                self.progress.inc(spared);
                break;
            }
        }
        Ok(measured)
    }
}

fn machine_line(cores: Cores) -> String {
    on_machine(&places(cores, None))
}

/// Where the sides run.
fn places(cores: Cores, remote: Option<&Remote>) -> String {
    if let Some(remote) = remote {
        let (other, core) = (remote.other.0, remote.machine.core);
        format!(
            "this side pinned to core {}, the other one to core {core} of node {other}",
            cores.lead
        )
    } else if cores.are_one() {
        format!(
            "both sides on core {}: there is only one, so figures mean little",
            cores.lead
        )
    } else {
        format!("sides pinned to cores {} and {}", cores.lead, cores.follow)
    }
}

fn on_machine(place: &str) -> String {
    let load = match machine::load() {
        Some(load) if load >= BUSY_LOAD => {
            format!("; load {load:.2}: others are running, figures suffer")
        }
        Some(load) => format!("; load {load:.2}"),
        None => String::new(),
    };
    format!("{}; {place}{load}", machine::description())
}

fn closing_line(cache_line_ns: &[f64], remote: Option<&Remote>, stolen: Stolen) -> String {
    let cache_line = Spread::of(cache_line_ns.iter().copied()).map_or_else(
        || match remote {
            Some(remote) => format!("nothing is known of what disturbed node {}", remote.other.0),
            None => "cache line between the cores: not measured, there is one".to_owned(),
        },
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
        "{cache_line}; stolen by the host {} ms ({:.2} %){doubt}; figures are medians over rounds",
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
