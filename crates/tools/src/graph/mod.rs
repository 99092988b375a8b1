//! `dipole graph`: checks, prints and draws a directed point graph (DP §2) from a file, runs it with
//! processes on this machine, and compares it with what is running.
//!
//! [`model`] has the graph and its rules, [`mod@print`] and [`svg`] show it, [`play`] runs it, and
//! [`watch`] shows the endpoints and edges in the registries of this machine's nodes.

mod collective;
mod edge;
mod group;
mod model;
mod play;
mod print;
mod report;
mod svg;
mod watch;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::output::Failure;
use model::Graph;

/// Check, draw, run or watch a directed point graph
#[derive(Args, Debug)]
pub(crate) struct GraphArgs {
    /// The graph, in TOML (nodes, edges, process, broadcast, reduce); with --watch it may be left out
    #[arg(required_unless_present = "watch")]
    file: Option<PathBuf>,
    /// Draw it into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Start its processes here, send along all edges and trees, and check what arrives
    #[arg(long, conflicts_with = "watch")]
    run: bool,
    /// How long --run sends, in seconds
    #[arg(long, default_value_t = 2.0, value_name = "S", value_parser = seconds)]
    seconds: f64,
    /// Messages a second that --run sends from each endpoint
    #[arg(long, default_value_t = 1000.0, value_name = "N", value_parser = rate)]
    rate: f64,
    /// Show the endpoints and edges that exist on this machine, and refresh them
    #[arg(long)]
    watch: bool,
    /// Seconds between two refreshes of --watch
    #[arg(long, default_value_t = 1.0, value_name = "S", value_parser = seconds)]
    every: f64,
    /// Refreshes of --watch before it ends [default: no limit]
    #[arg(long, value_name = "N")]
    times: Option<u64>,
    /// Plays one process of the graph (started by --run).
    #[arg(long, hide = true, value_name = "INDEX")]
    play: Option<usize>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && (0.01..=1e6).contains(&value) => Ok(value),
        _ => Err("expected seconds from 0.01 to 1000000".into()),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && (0.1..=1e7).contains(&value) => Ok(value),
        _ => Err("expected messages a second from 0.1 to 10000000".into()),
    }
}

/// Executes the command; with `json`, one object per line.
pub(crate) fn execute(
    arguments: &GraphArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let graph = arguments.file.as_deref().map(load).transpose()?;
    let done = match (&graph, arguments) {
        (graph, GraphArgs { watch: true, .. }) => watch::watch(
            graph.as_ref(),
            Duration::from_secs_f64(arguments.every),
            arguments.times,
            json,
        ),
        (
            Some(graph),
            GraphArgs {
                play: Some(index), ..
            },
        ) => play::play(graph, *index, arguments.seconds, arguments.rate, out),
        (Some(graph), _) => show(graph, arguments, json, out),
        (None, _) => Err("name a graph file".into()),
    };
    match done.map_err(|error| Failure::with_status(2, error))? {
        true => Ok(ExitCode::SUCCESS),
        false => Ok(ExitCode::FAILURE),
    }
}

/// Reads a graph file; an error has one line per fault.
fn load(file: &Path) -> Result<Graph, Failure> {
    Graph::load(file).map_err(|errors| {
        let faults = if errors.len() == 1 { "fault" } else { "faults" };
        let mut text = format!("{} {faults} in {}", errors.len(), file.display());
        for error in &errors {
            text += &format!("\n  {error}");
        }
        Failure::with_status(2, text)
    })
}

type Done = Result<bool, Box<dyn std::error::Error>>;

fn show(graph: &Graph, arguments: &GraphArgs, json: bool, out: &mut dyn Write) -> Done {
    for warning in &graph.warnings {
        eprintln!("{warning}");
    }
    if let Some(file) = &arguments.svg {
        dipole_naming::files::write(file, svg::draw(graph).as_bytes())
            .map_err(|cause| format!("cannot write {}: {cause}", file.display()))?;
    }
    if arguments.run {
        return play::run(graph, arguments.seconds, arguments.rate, json, out);
    }
    if json {
        writeln!(out, "{}", serde_json::to_string(&print::summary(graph))?)?;
    } else {
        writeln!(out, "{}", print::table(graph))?;
    }
    Ok(true)
}
