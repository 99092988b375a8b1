//! `dipole trace`: where the time of a traced program went, and why (thesis §6.1.4).
//!
//! Results rest on durations of one clock each, so clocks of nodes need not agree: a superstep computes
//! as long as its slowest rank, and communicates as long as the rank that waited least. Only the
//! timeline compares clocks.

mod causes;
mod cores;
mod figure;
mod files;
#[cfg(test)]
mod hostile;
mod messages;
mod page;
mod perfetto;
mod prediction;
mod run;
mod summary;
mod symbols;
mod tree;
mod waits;

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use dipole_bsp::trace::Clocks;
use dipole_trace::waits::WaitFile;

use crate::output::{Failure, columns, fit, json as line, table, wrap};
pub(crate) use files::load;
use messages::Messages;
pub(crate) use page::{body, facts};
pub(crate) use run::{Run, Superstep, float};
use run::{is_at_least, milliseconds};
use summary::LEGEND;
pub(crate) use summary::{Summary, summarise};

/// Lines of the call graph that are printed.
const MOST_ROWS: usize = 30;
/// Deviations from the prediction that are printed.
const MOST_DEVIATIONS: usize = 5;

/// Show where the time of a traced program went
///
/// A program that uses endpoints or MPI and runs with DIPOLE_TRACE=DIR leaves one file per process
/// in DIR, with its waits: the call, its duration, and the peer it waited for. A BSPlib program leaves
/// one file per rank. Listed are the calls that end supersteps, the most expensive first, with the time
/// that was lost there and the cause; the functions that contain them; and the supersteps that took
/// longest beyond their prediction. If the processes also ran with DIPOLE_RECORD=DIR, the slowest
/// message, or the one chosen with --message, is shown at its sender and its receiver on one axis of
/// time.
///
/// Columns of the calls: "compute" is the computation of the slowest rank of each superstep, and "used"
/// the mean of all ranks as a share of that. "h" is the number of bytes of the rank that sent or received
/// most, and "mean" that of all ranks. "repeats" are packets that were sent again, and "stalls" waits for
/// room to send.
#[derive(Args, Debug)]
pub(crate) struct TraceArgs {
    /// Directory with the files of all ranks
    dir: PathBuf,
    /// Also write a page with the superstep figure, or with waits and messages over time
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Also write the timeline for Perfetto (ui.perfetto.dev)
    #[arg(long, value_name = "FILE")]
    perfetto: Option<PathBuf>,
    /// Only supersteps FIRST to LAST, as FIRST..LAST; the program's first is 0
    #[arg(long, value_name = "FIRST..LAST", value_parser = range)]
    steps: Option<(u32, u32)>,
    /// Also print the times of each rank below this function of the call graph, or call as FILE:LINE
    #[arg(long, value_name = "NAME")]
    below: Option<String>,
    /// Show the phases of this message, as FROM-TO/NUMBER with endpoints NODE:ENDPOINT, such as 1:8-2:7/266;
    /// the first of an edge is 0 [default: the one that took longest]
    #[arg(long, value_name = "MESSAGE")]
    message: Option<messages::MessageName>,
}

pub(crate) fn range(text: &str) -> Result<(u32, u32), String> {
    let numbers = text.split_once("..");
    let numbers = numbers.and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    let ordered = numbers.filter(|(first, last)| first <= last);
    ordered.ok_or_else(|| format!("{text} is not a range of supersteps such as 100..200"))
}

/// Runs the subcommand and prints the result.
pub(crate) fn execute(
    arguments: &TraceArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let waited = waits::load(&arguments.dir)?;
    let messages = messages::load(&arguments.dir, arguments.message)?;
    // BSP ranks that use endpoints as well have files of both kinds.
    if !files::are_there(&arguments.dir) && (!waited.is_empty() || messages.is_some()) {
        return tell_waits((&waited, messages.as_ref()), arguments, json, out);
    }
    let files = files::load(&arguments.dir)?;
    let mut run = Run::of(&files);
    run.keep(arguments.steps)?;
    let clocks = Clocks::of(&files);
    let summary = summarise(&run, clocks.as_ref());
    if let Some(path) = &arguments.html {
        let page = page::html(&run, &summary);
        dipole_naming::files::write(path, page.as_bytes())
            .map_err(|cause| cannot_write(path, &cause))?;
    }
    if let Some(path) = &arguments.perfetto {
        let clocks = clocks.ok_or(
            "there is no timeline: clocks of nodes are compared by supersteps that all ranks have \
             kept, and no such supersteps exist",
        )?;
        let file =
            dipole_naming::files::create(path).map_err(|cause| cannot_write(path, &cause))?;
        perfetto::write(&files, &clocks, BufWriter::new(file))
            .map_err(|cause| cannot_write(path, &cause))?;
    }
    match json {
        true => writeln!(out, "{}", line(&summary))?,
        false => fitted(out, |text| {
            print(&summary, text)?;
            if let Some(name) = &arguments.below {
                ranks(&summary, name, text)?;
            }
            match &messages {
                Some(messages) => messages::print(messages, text),
                None => Ok(()),
            }
        })?,
    }
    if json && let Some(messages) = &messages {
        writeln!(out, "{}", line(messages))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the waits of programs that use endpoints or MPI, and their messages.
fn tell_waits(
    (files, messages): (&[WaitFile], Option<&Messages>),
    arguments: &TraceArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    if arguments.steps.is_some() || arguments.below.is_some() {
        return Err(
            "--steps and --below are for programs in supersteps; these files are of programs that use \
             endpoints or MPI"
                .into(),
        );
    }
    let waits = (!files.is_empty()).then(|| waits::summarise(files));
    if let Some(path) = &arguments.html {
        match (&waits, messages) {
            (Some(waits), messages) => waits::write_page(files, waits, messages, path)?,
            (None, Some(messages)) => messages::write_page(messages, path)?,
            (None, None) => {}
        }
    }
    if let Some(path) = &arguments.perfetto {
        waits::write_timeline(files, path)?;
    }
    if json {
        for text in [waits.as_ref().map(line), messages.map(line)] {
            text.map_or(Ok(()), |text| writeln!(out, "{text}"))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    fitted(out, |text| {
        if let Some(waits) = &waits {
            waits::print(waits, text)?;
        }
        messages.map_or(Ok(()), |messages| messages::print(messages, text))
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn cannot_write(path: &Path, cause: &std::io::Error) -> Failure {
    format!("cannot write {}: {cause}", path.display()).into()
}

/// Prints a report whose lines are no longer than the terminal is wide.
fn fitted(
    out: &mut dyn Write,
    print: impl FnOnce(&mut dyn Write) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut text = Vec::new();
    print(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    writeln!(out, "{}", wrap(text.trim_end_matches('\n'), columns()))?;
    Ok(())
}

fn print(summary: &Summary, out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(
        out,
        "{}, {} supersteps",
        summary.place(),
        summary.supersteps
    )?;
    writeln!(
        out,
        "computation {} ms as the slowest rank of each superstep, {} ms of the rank that computed \
         most; communication {} ms",
        milliseconds(summary.sum_of_max_ns),
        milliseconds(summary.max_of_sums_ns),
        milliseconds(summary.communicate_ns)
    )?;
    let mut rows = table([
        "call",
        "steps",
        "compute ms",
        "used",
        "comm ms",
        "h kB",
        "mean kB",
        "repeats",
    ]);
    for call in &summary.calls {
        rows.add_row([
            call.call.clone(),
            call.supersteps.to_string(),
            milliseconds(call.compute_ns),
            format!("{:.0} %", 100.0 * call.utilisation),
            milliseconds(call.communicate_ns),
            format!("{:.1}", float(call.h_bytes) / 1e3),
            format!("{:.1}", call.mean_bytes / 1e3),
            call.repeats.to_string(),
        ]);
    }
    writeln!(out, "{}\n{LEGEND}", fit(&rows, columns()))?;
    for call in &summary.calls {
        for reason in &call.reasons {
            writeln!(out, "{}: {reason}", call.call)?;
        }
    }
    tree(summary, out)?;
    deviations(summary, out)?;
    for clock in &summary.clocks {
        writeln!(
            out,
            "clocks: times of rank {}'s node and rank 0's are compared to {:.1} us at worst",
            clock.rank,
            float(clock.error_ns) / 1e3
        )?;
    }
    for note in &summary.notes {
        writeln!(out, "note: {note}")?;
    }
    Ok(())
}

/// The call graph, as deep as there is room for.
fn tree(summary: &Summary, out: &mut dyn Write) -> Result<(), Failure> {
    let mut rows = table([
        "function",
        "steps",
        "of all",
        "sum of max ms",
        "max of sums ms",
        "used",
    ]);
    let all = summary.tree.time_ns().max(1);
    let nodes = summary.tree.rows();
    let shown = nodes
        .iter()
        .filter(|(.., node)| is_at_least(node.time_ns(), 1, all));
    for (depth, is_hot, node) in shown.take(MOST_ROWS) {
        let mark = if *is_hot { "*" } else { " " };
        rows.add_row([
            format!("{}{mark} {}", "  ".repeat(*depth), node.name),
            node.supersteps.to_string(),
            format!("{:.0} %", 100.0 * float(node.time_ns()) / float(all)),
            milliseconds(node.compute_ns),
            milliseconds(node.max_of_sums_ns),
            format!("{:.0} %", 100.0 * node.used()),
        ]);
    }
    let rows = fit(&rows, columns());
    writeln!(out, "{rows}\nhottest path: {}", summary.hottest)?;
    Ok(())
}

/// The times of each rank below a function (thesis, figure 6.9).
fn ranks(summary: &Summary, name: &str, out: &mut dyn Write) -> Result<(), Failure> {
    let rows = summary.tree.rows();
    let found: Vec<_> = rows.iter().filter(|(.., node)| node.name == name).collect();
    if found.is_empty() {
        return Err(format!(
            "the call graph has no {name}; its functions and calls are in the table of functions, such \
             as {}",
            summary.tree.name
        )
        .into());
    }
    for (.., node) in found {
        let mut rows = table([
            "rank",
            "compute ms",
            "without a core ms",
            "in calls ms",
            "waited ms",
            "out kB",
            "in kB",
        ]);
        for (rank, part) in node.ranks.iter().enumerate() {
            rows.add_row([
                rank.to_string(),
                milliseconds(part.compute_ns),
                milliseconds(part.compute_ns.saturating_sub(part.work_ns)),
                milliseconds(part.in_calls_ns),
                milliseconds(part.waited_ns),
                format!("{:.1}", float(part.sent_bytes) / 1e3),
                format!("{:.1}", float(part.received_bytes) / 1e3),
            ]);
        }
        let rows = fit(&rows, columns());
        writeln!(
            out,
            "ranks below {name}, {} supersteps\n{rows}",
            node.supersteps
        )?;
    }
    Ok(())
}

fn deviations(summary: &Summary, out: &mut dyn Write) -> Result<(), Failure> {
    let predictions = &summary.predictions;
    writeln!(
        out,
        "predicted by {}: {:.3} ms in all{}, measured {:.3} ms",
        predictions.basis,
        predictions.predicted_ns * 1e-6,
        predictions.interval_text(),
        predictions.measured_ns * 1e-6
    )?;
    for one in predictions.largest.iter().take(MOST_DEVIATIONS) {
        writeln!(
            out,
            "superstep {} ({}): {:.3} ms, predicted {:.3}, balanced {:.3}: {}",
            one.superstep,
            one.call,
            one.measured_ns * 1e-6,
            one.predicted_ns * 1e-6,
            one.balanced_ns * 1e-6,
            one.reason
        )?;
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use dipole_bsp::trace::{Header, Site, State, TraceFile};

    /// A file of a rank without supersteps.
    pub(crate) fn file(rank: u32) -> TraceFile {
        TraceFile {
            header: Header {
                state: State::Ended,
                rank,
                size: 3,
                nodes: 1,
                leader: 0,
                first: 1,
                run: 5,
                begun_ns: 0,
                begun_unix_ns: 0,
                link: "shm".into(),
                host: String::new(),
                cores: Vec::new(),
                quota: 0,
            },
            sites: vec![Site {
                call: "bsp_sync".into(),
                file: "a/lu.c".into(),
                line: 30,
            }],
            modules: Vec::new(),
            stacks: Vec::new(),
            steps: Vec::new(),
            is_wrapped: false,
            damaged_blocks: 0,
        }
    }
}
