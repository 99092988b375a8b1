//! The command line of `dipole bench`.

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::efficiency::{self, EfficiencyArgs};
use crate::output::Output;
use crate::plan::{self, FlowWork, Group, PlanError, PointWork, Setup};
use crate::remote::{self, Remote, RemoteArgs, ServerArgs};
use crate::run::{self, NoExternals};
use crate::setup::SetupArgs;
use crate::subject::Subject;
use crate::testbed::Testbed;
use crate::work::Kind;

/// Compare Dipole with plain sockets and plain memory
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    kind: Option<BenchKind>,
    #[command(flatten)]
    table: TableArgs,
}

/// Kind of measurement; by default, the standard table of all kinds.
#[derive(Subcommand, Debug)]
enum BenchKind {
    /// Round trips: the one-way latency
    Pingpong(FlowArgs),
    /// One way, each message is sent immediately: the transmission throughput
    Stream(FlowArgs),
    /// Both ways at the same time
    Bidir(BidirArgs),
    /// One way, small messages that may be batched: messages per second
    Rate(FlowArgs),
    /// Round trips next to a stream of long messages
    Mixed(ShortArgs),
    /// Round trips by handlers of active ports, compared with endpoints
    Port(ShortArgs),
    /// Puts into the other side's memory, compared with messages and copies
    Put(MemoryArgs),
    /// Gets from the other side's memory, compared with messages and copies
    Get(MemoryArgs),
    /// Fetch-and-add on the other side's memory, compared with messages
    Atomic(MemoryArgs),
    /// Throughput, utilisation and efficiency of streams over the length of writes, with a soaker on
    /// the core of each side
    Efficiency(EfficiencyArgs),
    /// Take part in benches of other nodes, one after the other, until a signal
    Server(ServerArgs),
}

/// Options of all kinds of `dipole bench`.
#[derive(Args, Debug)]
struct CommonArgs {
    #[command(flatten)]
    setup: SetupArgs,
    #[command(flatten)]
    remote: RemoteArgs,
}

/// Options of the standard table.
#[derive(Args, Debug)]
struct TableArgs {
    #[command(flatten)]
    common: CommonArgs,
    #[command(flatten)]
    results: ResultArgs,
}

/// Choice of subjects and of the form of results.
#[derive(Args, Debug)]
struct ResultArgs {
    /// Subjects to measure, separated by commas [default: dipole and its usual peers]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SUBJECT,..")]
    subjects: Vec<Subject>,
    /// Write an HTML page of figures and tables over all sizes, in one file that needs no network
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Options of pingpong, stream and rate.
#[derive(Args, Debug)]
struct FlowArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Message length in bytes [default: 64; stream 1 MiB]
    #[arg(long, value_name = "BYTES", value_parser = size)]
    size: Option<usize>,
    /// Send Dipole's messages unreliably
    #[arg(long)]
    unreliable: bool,
    /// Sleep in the kernel while waiting, instead of spinning
    #[arg(long)]
    block: bool,
    /// Compare Dipole with this share of all packets lost, by the fault wrapper, with Dipole without loss
    #[arg(long, value_name = "SHARE", value_parser = share, conflicts_with = "subjects")]
    drop: Option<f64>,
    #[command(flatten)]
    results: ResultArgs,
}

#[derive(Args, Debug)]
struct BidirArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Message length in bytes [default: 64 KiB]
    #[arg(long, value_name = "BYTES", value_parser = size)]
    size: Option<usize>,
    /// Threads of a side: with 2, one sends and one receives
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    threads: u8,
    /// Compare Dipole with this share of all packets lost, by the fault wrapper, with Dipole without loss
    #[arg(long, value_name = "SHARE", value_parser = share, conflicts_with = "subjects")]
    drop: Option<f64>,
    #[command(flatten)]
    results: ResultArgs,
}

/// Options of mixed and port.
#[derive(Args, Debug)]
struct ShortArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Message length in bytes [default: 64; mixed 1 KiB]
    #[arg(long, value_name = "BYTES", value_parser = size)]
    size: Option<usize>,
    /// Sleep in the kernel while waiting, instead of spinning
    #[arg(long)]
    block: bool,
}

/// Options of put, get and atomic.
#[derive(Args, Debug)]
struct MemoryArgs {
    #[command(flatten)]
    common: CommonArgs,
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..1.0).contains(&share) => Ok(share),
        _ => Err("expected a share from 0 to below 1".to_owned()),
    }
}

/// Parses a message length.
///
/// # Errors
/// It is not a number from 1 to 1 GiB.
pub fn size(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let factor = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        _ => return Err("expected a number, or one with K, M or G (KiB, MiB, GiB)".to_owned()),
    };
    let bytes = (digits.parse().ok()).and_then(|number: usize| number.checked_mul(factor));
    match bytes {
        Some(bytes) if (1..=1 << 30).contains(&bytes) => Ok(bytes),
        _ => Err("expected 1 byte to 1 GiB, for example 64K or 1MiB".to_owned()),
    }
}

impl BenchArgs {
    fn common(&self) -> &CommonArgs {
        match &self.kind {
            None | Some(BenchKind::Efficiency(_) | BenchKind::Server(_)) => &self.table.common,
            Some(BenchKind::Pingpong(flow) | BenchKind::Stream(flow) | BenchKind::Rate(flow)) => {
                &flow.common
            }
            Some(BenchKind::Bidir(bidir)) => &bidir.common,
            Some(BenchKind::Mixed(short) | BenchKind::Port(short)) => &short.common,
            Some(BenchKind::Put(memory) | BenchKind::Get(memory) | BenchKind::Atomic(memory)) => {
                &memory.common
            }
        }
    }

    fn html(&self) -> Option<&PathBuf> {
        let results = match &self.kind {
            None => &self.table.results,
            Some(BenchKind::Pingpong(flow) | BenchKind::Stream(flow) | BenchKind::Rate(flow)) => {
                &flow.results
            }
            Some(BenchKind::Bidir(bidir)) => &bidir.results,
            Some(_) => return None,
        };
        results.html.as_ref()
    }

    /// Returns the groups to measure.
    fn plan(&self, setup: &Setup) -> Result<Vec<Group>, PlanError> {
        let groups = match &self.kind {
            None => table(&self.table, setup)?,
            Some(BenchKind::Pingpong(args)) => flow(Kind::Pingpong, args, setup)?,
            Some(BenchKind::Stream(args)) => flow(Kind::Stream, args, setup)?,
            Some(BenchKind::Rate(args)) => flow(Kind::Rate, args, setup)?,
            Some(BenchKind::Bidir(args)) => vec![plan::flow(
                setup,
                &FlowWork {
                    kind: Kind::Bidir,
                    size: args.size,
                    block: false,
                    unreliable: false,
                    two_threads_a_side: args.threads == 2,
                    drop: args.drop,
                    subjects: args.results.subjects.clone(),
                },
            )?],
            Some(BenchKind::Mixed(args)) => plan::mixed(setup, args.size, args.block)?,
            Some(BenchKind::Port(args)) => vec![plan::ports(setup, args.size, args.block)?],
            Some(BenchKind::Put(_)) => plan::memory(Subject::DipolePut, setup)?,
            Some(BenchKind::Get(_)) => plan::memory(Subject::DipoleGet, setup)?,
            Some(BenchKind::Atomic(_)) => plan::memory(Subject::DipoleAtomic, setup)?,
            Some(BenchKind::Efficiency(_) | BenchKind::Server(_)) => Vec::new(),
        };
        plan::check(&groups)?;
        Ok(groups)
    }
}

fn table(args: &TableArgs, setup: &Setup) -> Result<Vec<Group>, PlanError> {
    let subjects = &args.results.subjects;
    let mut groups = plan::table(setup, subjects)?;
    if args.results.html.is_some() {
        for kind in [Kind::Pingpong, Kind::Stream] {
            let work = PointWork {
                kind,
                block: false,
                unreliable: false,
            };
            groups.extend(plan::points(work, setup, true, subjects)?);
        }
    }
    Ok(groups)
}

fn flow(kind: Kind, args: &FlowArgs, setup: &Setup) -> Result<Vec<Group>, PlanError> {
    let subjects = &args.results.subjects;
    let work = FlowWork {
        kind,
        size: args.size,
        block: args.block,
        unreliable: args.unreliable,
        two_threads_a_side: false,
        drop: args.drop,
        subjects: subjects.clone(),
    };
    let mut groups = vec![plan::flow(setup, &work)?];
    if args.results.html.is_some() && kind != Kind::Rate {
        let work = PointWork {
            kind,
            block: args.block,
            unreliable: args.unreliable,
        };
        groups.extend(plan::points(work, setup, false, subjects)?);
    }
    Ok(groups)
}

/// Measures and prints; with `json` one object per line to `out` and remarks to standard error.
/// The exit code is success if every measurement succeeded.
///
/// # Errors
/// Nothing could be measured, or writing to `out` failed.
pub fn execute(
    arguments: &BenchArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    let common = arguments.common();
    let wide = common.setup.is_wide();
    let output = &mut Output { json, wide, out };
    if let Some(BenchKind::Server(server)) = &arguments.kind {
        remote::serve(server, output)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(BenchKind::Efficiency(efficiency)) = &arguments.kind {
        output.wide = efficiency.setup.is_wide();
        return efficiency::measure(efficiency, &efficiency.setup.setup(), output);
    }
    let mut setup = common.setup.setup();
    setup.is_remote = common.remote.to.is_some();
    let mut groups = arguments.plan(&setup)?;
    let testbed = match common.remote.to {
        Some(node) => {
            let remote = Remote::connect(&common.remote, node)?;
            setup.has_bpf &= remote.machine.has_bpf;
            groups = arguments.plan(&setup)?;
            Testbed::of_hosts(remote)?
        }
        None => Testbed::create(setup.testbed_for(&groups))?,
    };
    let html = arguments.html().map(PathBuf::as_path);
    match run::measure(groups, &testbed, &NoExternals, html, output)? {
        true => Ok(ExitCode::SUCCESS),
        false => Ok(ExitCode::FAILURE),
    }
}

#[cfg(test)]
#[path = "command_tests.rs"]
mod tests;
