//! The `dipole` program: starts jobs, pipes streams, measures, examines.

#![forbid(unsafe_code)]

mod calibrate;
mod checkpoints;
mod doctor;
mod endpoint_file;
mod graph;
mod interface;
mod key;
mod manual;
mod migrate;
mod mpi;
mod output;
mod pipe;
mod predict;
mod processes;
mod replay;
mod report;
mod sockets;
mod top;
mod trace;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use output::{Failure, Output, has_colours};
use tracing_subscriber::EnvFilter;

/// Low-latency messages over ordinary networks.
#[derive(Parser, Debug)]
#[command(name = "dipole", version = dipole_agent::VERSION, propagate_version = true)]
struct Arguments {
    /// Print JSON, one object per line, instead of text
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Run(dipole_launch::RunArgs),
    Checkpoint(checkpoints::CheckpointArgs),
    Checkpoints(checkpoints::CheckpointsArgs),
    Migrate(migrate::MigrateArgs),
    Send(pipe::SendArgs),
    Recv(pipe::RecvArgs),
    Interface(interface::InterfaceArgs),
    Bench(dipole_bench::BenchArgs),
    Calibrate(calibrate::CalibrateArgs),
    Predict(predict::PredictArgs),
    Graph(graph::GraphArgs),
    Stats(processes::StatsArgs),
    Links(processes::LinksArgs),
    Top(top::TopArgs),
    Trace(trace::TraceArgs),
    Replay(replay::ReplayArgs),
    Report(report::ReportArgs),
    Chaos(Box<dipole_chaos::ChaosArgs>),
    Agent(dipole_agent::AgentArgs),
    Load(dipole_agent::LoadArgs),
    Key(key::KeyArgs),
    MpiEnv(mpi::MpiEnvArgs),
    Sockets(sockets::SocketsArgs),
    Doctor(doctor::DoctorArgs),
    /// Print the completions of a shell
    Completions {
        /// Shell for which completions are printed
        shell: clap_complete::Shell,
    },
    /// Prints all manual pages, each after a line of 0x01 and its name (for `xtask install`).
    #[command(hide = true)]
    Manual,
    /// Serves a path of /dev/dipole that a program has opened (started by `sockets`).
    #[command(hide = true)]
    EndpointFile(endpoint_file::EndpointFileArgs),
    /// Measures as one of two sides (started by `bench` and `calibrate`).
    #[command(hide = true)]
    BenchSide,
    /// Measures supersteps as a rank (started by `calibrate supersteps`).
    #[command(hide = true)]
    SuperstepRank(dipole_bench::RankArgs),
    /// Ends a host's processes when its parent dies (started by `run`).
    #[command(hide = true)]
    Guard(dipole_launch::GuardArgs),
    /// Starts and supervises a host's ranks (started by `guard`).
    #[command(hide = true)]
    Shim(dipole_launch::ShimArgs),
    /// Reaches a node through its agent (started by `run`).
    #[command(hide = true)]
    Reach(dipole_launch::ReachArgs),
    /// Serves one caller of the agent (started by `agent`).
    #[command(hide = true)]
    AgentSession(dipole_agent::SessionArgs),
    /// Runs a cluster of namespaces under faults (started by `chaos`).
    #[command(hide = true)]
    ChaosCluster(dipole_chaos::ClusterArgs),
    /// Becomes a rank (started by `shim`).
    #[command(hide = true)]
    RankExec(dipole_launch::RankExecArgs),
    /// Copies images of ranks between hosts (started by `shim`).
    #[command(hide = true)]
    KeepImages(dipole_launch::KeeperArgs),
}

impl Command {
    /// True for the agent and its sessions, whose output is their log.
    fn is_agent(&self) -> bool {
        match self {
            Command::Agent(args) => args.serves(),
            Command::AgentSession(_) => true,
            _ => false,
        }
    }
}

fn main() -> ExitCode {
    let matches = match manual::with_notes(Arguments::command()).try_get_matches() {
        Ok(matches) => matches,
        // Help goes to standard output, which may be full.
        Err(asked) if !asked.use_stderr() => {
            let mut out = Output::new(std::io::stdout());
            let text = asked.render();
            let printed = match has_colours(&std::io::stdout()) {
                true => write!(out, "{}", text.ansi()),
                false => write!(out, "{text}"),
            };
            let done = printed.map(|()| ExitCode::SUCCESS).map_err(Failure::from);
            return out.report("help", done, false, &mut std::io::stderr());
        }
        Err(wrong) if std::env::args_os().any(|word| word == "--json") => {
            let failure = Failure::with_status(2, plain(&wrong.render().to_string()));
            let out = Output::new(std::io::stdout());
            return out.report("usage", Err(failure), true, &mut std::io::stderr());
        }
        Err(wrong) => {
            let text = wrong.render();
            let text = match has_colours(&std::io::stderr()) {
                true => plain(&text.ansi().to_string()),
                false => plain(&text.to_string()),
            };
            // If standard error is closed or full, too, only the status is left.
            let _unread = write!(std::io::stderr(), "{text}");
            return ExitCode::from(2);
        }
    };
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    // Warnings are on by default, because they name what a program waits for. An agent with a JSON log
    // logs everything.
    let json = arguments.json;
    let logs_json = json && arguments.command.is_agent();
    let usual = if logs_json { "info" } else { "warn" };
    let wanted = match dipole_node::log::filter() {
        Ok(wanted) => wanted,
        Err(wrong) => {
            eprintln!("dipole: {wrong}");
            return ExitCode::from(2);
        }
    };
    let is_asked = wanted.is_some();
    let filter = wanted.unwrap_or_else(|| EnvFilter::new(usual));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false);
    if logs_json {
        log.json().flatten_event(true).init();
    } else if !is_asked && !arguments.command.is_agent() {
        // Log lines appear among the messages of a command.
        log.without_time()
            .with_ansi(has_colours(&std::io::stderr()))
            .init();
    } else {
        log.with_ansi(has_colours(&std::io::stderr())).init();
    }
    let mut out = Output::new(std::io::stdout());
    let command = match matches.subcommand_name().unwrap_or_default() {
        // Its user has typed `chaos`.
        "chaos-cluster" => "chaos",
        other => other,
    };
    let done = run(arguments.command, json, &mut out);
    out.report(command, done, json, &mut std::io::stderr())
}

/// A usage error without the standard library's wording for invalid numbers.
fn plain(text: &str) -> String {
    [
        ("invalid digit found in string", "expected a whole number"),
        (
            "cannot parse integer from empty string",
            "expected a whole number",
        ),
        (
            "number too large to fit in target type",
            "too large a number",
        ),
        (
            "number too small to fit in target type",
            "too small a number",
        ),
        ("invalid float literal", "expected a number"),
        ("cannot parse float from empty string", "expected a number"),
    ]
    .iter()
    .fold(text.to_owned(), |text, (found, said)| {
        text.replace(found, said)
    })
}

fn run(command: Command, json: bool, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    dipole_bench::page::set_program_version(dipole_agent::VERSION);
    match command {
        Command::Run(args) => dipole_launch::execute(args, json).map_err(|error| {
            let status = if error.is::<clap::Error>() { 2 } else { 1 };
            Failure::with_status(status, error)
        }),
        Command::Checkpoint(args) => checkpoints::request(&args, out),
        Command::Checkpoints(args) => checkpoints::list(&args, json, out),
        Command::Migrate(args) => migrate::execute(&args, json, out),
        Command::Send(args) => pipe::send(&args, json, out),
        Command::Recv(args) => pipe::recv(&args, json, out),
        Command::Interface(args) => interface::execute(&args, json, out),
        Command::Bench(args) => {
            dipole_bench::execute(&args, json, out).map_err(|error| Failure::with_status(2, error))
        }
        Command::BenchSide => Ok(dipole_bench::side::run()),
        Command::SuperstepRank(args) => {
            dipole_bench::rank(&args)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Calibrate(args) => calibrate::execute(&args, json, out),
        Command::Predict(args) => predict::execute(&args, json, out),
        Command::Stats(args) => processes::stats(&args, json, out),
        Command::Links(args) => processes::links(&args, json, out),
        Command::Top(args) => top::execute(&args, json, out),
        Command::Report(args) => report::execute(&args, json, out),
        Command::Chaos(args) => dipole_chaos::execute(*args, json, out)
            .map_err(|error| Failure::with_status(dipole_chaos::error_status(&*error), error)),
        Command::ChaosCluster(args) => Ok(dipole_chaos::cluster(&args)?),
        Command::Trace(args) => trace::execute(&args, json, out),
        Command::Replay(args) => replay::execute(&args, json, out),
        Command::Graph(args) => graph::execute(&args, json, out),
        Command::Agent(args) => {
            dipole_agent::execute(&args, json, out)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Load(args) => {
            dipole_agent::load(&args, json, out)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Key(args) => key::execute(&args, json, out),
        Command::MpiEnv(args) => mpi::execute(&args, json, out),
        Command::Sockets(args) => sockets::execute(&args),
        Command::EndpointFile(args) => endpoint_file::execute(&args),
        Command::Doctor(args) => doctor::execute(args, json, out),
        Command::Completions { shell } => manual::completions(shell, Arguments::command(), out),
        Command::Manual => manual::pages(Arguments::command(), out),
        Command::Guard(args) => Ok(dipole_launch::guard(args)),
        Command::Shim(args) => Ok(dipole_launch::shim(&args)),
        Command::Reach(args) => Ok(dipole_launch::reach(&args)),
        Command::AgentSession(args) => Ok(dipole_agent::session(&args)),
        Command::RankExec(args) => Ok(dipole_launch::rank_exec(&args)),
        Command::KeepImages(args) => Ok(dipole_launch::keep_images(&args)),
    }
}
