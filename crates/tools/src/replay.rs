//! `dipole replay`: what the protocol core of recorded processes did, and what it waits for.

mod lines;
mod process;
mod reasons;
mod time;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use dipole_naming::lines::printable;
use dipole_record::{Recording, Step, recordings};

use crate::output::{Failure, json as line};
use lines::Printer;
pub(crate) use process::Process;
pub(crate) use time::Window;
use time::{Moment, seconds};

/// Status if a file is damaged, or the core behaves differently than when it was recorded.
const DIFFERS: u8 = 3;
/// A pause of all processes that is longer than this gets a line.
const STALL_NS: u64 = 500_000_000;

/// Replay the protocol core of recorded processes
///
/// A process that runs with DIPOLE_RECORD=DIR leaves files in DIR with all inputs of its protocol core:
/// packets without their payloads, calls of the program, times and seeds. They are fed to the same core,
/// and every result is compared with the recorded one. Listed are packets, retransmissions, credit and
/// events of all processes in order of time, then the state of each session at the end, with what it
/// waits for.
#[derive(Args, Debug)]
pub(crate) struct ReplayArgs {
    /// Directory with the recordings (DIPOLE_RECORD)
    dir: PathBuf,
    /// Only processes of this node
    #[arg(long, value_name = "NODE")]
    node: Option<u32>,
    /// Print what happened from this time on, as 1.5s or 200ms since the first recording began; -2s counts from the end
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    from: Option<Moment>,
    /// Stop at this time, and show the state then
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    to: Option<Moment>,
    /// Print only totals and the state at the end
    #[arg(long)]
    summary: bool,
}

/// Runs the subcommand and prints the result.
pub(crate) fn execute(
    args: &ReplayArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let (mut found, refused) = recordings(&args.dir)?;
    if let Some(node) = args.node {
        found.retain(|recording| recording.first.node == node);
        if found.is_empty() {
            let dir = args.dir.display();
            return Err(format!("node {node} has no recordings in {dir}").into());
        }
    }
    let window = window(args, &found);
    let mut is_intact = refused.is_empty();
    for (path, cause) in &refused {
        let name = printable(&path.display().to_string());
        match json {
            true => {
                let value = serde_json::json!({
                    "event": "damaged", "file": name, "cause": cause.to_string(),
                });
                writeln!(out, "{}", line(&value))?;
            }
            false => writeln!(out, "{name} is left out: {cause}")?,
        }
    }
    let mut processes: Vec<Process> = found
        .into_iter()
        .map(|recording| Process::new(recording, &window))
        .collect();
    let printer = Printer::new(json, &window, &processes);
    let mut last_ns = None;
    while let Some((index, at_ns, step)) = next_step(&mut processes) {
        is_intact &= matches!(
            step,
            Step::File { .. } | Step::Observed(..) | Step::Partial(_)
        );
        processes[index].count(&step);
        if args.summary && matches!(step, Step::Observed(..)) || at_ns < window.from_ns {
            continue;
        }
        if let Some(last_ns) = last_ns.replace(at_ns)
            && at_ns.saturating_sub(last_ns) > STALL_NS
        {
            printer.pause(at_ns, at_ns - last_ns, out)?;
        }
        printer.step(&processes[index], at_ns, &step, out)?;
    }
    is_intact &= processes.iter().all(|process| !process.has_panicked);
    let states: BTreeMap<u64, _> = (processes.iter())
        .filter_map(|process| Some((process.header.incarnation, process.steps.replay()?)))
        .collect();
    for process in &processes {
        printer.end(process, &states, out)?;
    }
    Ok(match is_intact {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(DIFFERS),
    })
}

/// The next step in order of time: index of the process, time, step.
fn next_step(processes: &mut [Process]) -> Option<(usize, u64, Step)> {
    let times = processes.iter_mut().enumerate();
    let times = times.filter_map(|(index, process)| Some((process.next_at_ns()?, index)));
    let (at_ns, index) = times.min()?;
    Some((index, at_ns, processes[index].take()?))
}

/// The part of the recordings to print, in nanoseconds since 1970.
fn window(args: &ReplayArgs, found: &[Recording]) -> Window {
    let starts = found.iter().map(process::begins_at_ns);
    let begin_ns = starts.min().unwrap_or(0);
    let counts_back = |moment: &Option<Moment>| moment.is_some_and(Moment::is_before_end);
    let end_ns = match counts_back(&args.from) || counts_back(&args.to) {
        true => end_ns(found),
        false => begin_ns,
    };
    let absolute = |moment: Moment| moment.absolute(begin_ns, end_ns);
    Window {
        begin_ns,
        from_ns: args.from.map_or(0, absolute),
        to_ns: args.to.map_or(u64::MAX, absolute),
    }
}

/// When the last recording ends.
fn end_ns(found: &[Recording]) -> u64 {
    let ends = found.iter().map(|recording| {
        let mut process = Process::new(recording.clone(), &Window::ALL);
        while process.take().is_some() {}
        process.now_ns()
    });
    ends.max().unwrap_or(0)
}

/// A duration for people: seconds with three digits, or less.
fn duration(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{} us", ns / 1000),
        10_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{} s", seconds(ns, 1)),
    }
}
