//! `dipole report`: calibration, superstep costs and a traced run as one page, and the same as JSON and
//! CSV.

mod figures;
mod tables;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use dipole_bsp::trace::Clocks;
use dipole_model::{Profile, ProfileError};
use dipole_page::{Heading, document, section};
use serde::Serialize;

use crate::output::{Failure, json as line};
use crate::trace::{self, Run, Summary};

/// Explanation of the report for readers.
const TEXT: &str = "What dipole calibrate, dipole calibrate supersteps and a traced run have found. Marks are medians; the bars \
                    through them are 95 % confidence intervals. Point at a mark for its numbers.";

/// Show measurements of this machine's links, and a traced run, as one page
///
/// The page is DIR/report.html and needs neither a network nor a script. report.json and a table (CSV) for
/// each kind of measurement are written next to it. Missing measurements are listed with the command
/// that takes them.
#[derive(Args, Debug)]
pub(crate) struct ReportArgs {
    /// Directory to write to; created if it does not exist
    dir: PathBuf,
    /// Directory with the traces of a run (DIPOLE_TRACE) to include
    #[arg(long, value_name = "DIR")]
    trace: Option<PathBuf>,
}

/// Everything that the page shows.
#[derive(Serialize)]
struct Report<'a> {
    profiles: &'a [Profile],
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<&'a Summary>,
}

/// Writes the page, the JSON and the tables.
pub(crate) fn execute(
    arguments: &ReportArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    if dipole_node::profile_dir().is_none() {
        return Err(ProfileError::NoDirectory.into());
    }
    let links = ["shm", "udp", "bpf", "tcp"];
    let profiles: Result<Vec<Option<Profile>>, ProfileError> =
        links.iter().map(|link| Profile::load(link)).collect();
    let profiles: Vec<Profile> = profiles?.into_iter().flatten().collect();
    let files = arguments.trace.as_deref().map(trace::load).transpose()?;
    if profiles.is_empty() && files.is_none() {
        return Err(format!(
            "there is nothing to report: no profile in {}, and no --trace; run `dipole calibrate` or \
             `dipole calibrate supersteps` first",
            dipole_node::profile_dir().unwrap_or_default().display()
        )
        .into());
    }
    let run = files.as_deref().map(Run::of);
    let summary = run.as_ref().map(|run| {
        let clocks = Clocks::of(run.files);
        trace::summarise(run, clocks.as_ref())
    });
    let traced = run.as_ref().zip(summary.as_ref());
    let report = Report {
        profiles: &profiles,
        trace: summary.as_ref(),
    };
    std::fs::create_dir_all(&arguments.dir)
        .map_err(|cause| trace::cannot_write(&arguments.dir, &cause))?;
    let mut written = Vec::new();
    let mut write = |name: &str, bytes: &[u8]| -> Result<(), Failure> {
        let path = arguments.dir.join(name);
        dipole_naming::files::write(&path, bytes)
            .map_err(|cause| trace::cannot_write(&path, &cause))?;
        written.push(path);
        Ok(())
    };
    write("report.html", page(&report, traced).as_bytes())?;
    write("report.json", line(&report).as_bytes())?;
    for (name, table) in tables::all(&profiles, traced) {
        write(&format!("{name}.csv"), &table.csv()?)?;
    }
    told(&written, json, out)?;
    Ok(ExitCode::SUCCESS)
}

fn told(written: &[PathBuf], json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    if json {
        writeln!(out, "{}", serde_json::json!({ "written": written }))?;
        return Ok(());
    }
    for path in written {
        writeln!(out, "{}", Path::new(path).display())?;
    }
    Ok(())
}

fn page(report: &Report<'_>, traced: Option<(&Run<'_>, &Summary)>) -> String {
    let mut facts = vec![
        (
            "Written",
            jiff::Timestamp::now().strftime("%F %R UTC").to_string(),
        ),
        ("Program", format!("dipole {}", dipole_agent::VERSION)),
    ];
    let system = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    facts.push((
        "System",
        format!(
            "{} {}, {}",
            text(system.sysname()),
            text(system.release()),
            text(system.machine())
        ),
    ));
    facts.extend(missing(report.profiles, traced.is_none()).map(|what| ("Not measured", what)));
    let mut body = String::new();
    for (title, html) in figures::sections(report.profiles) {
        body += &section(&title, &html);
    }
    if let Some((run, summary)) = traced {
        facts.extend(trace::facts(run, summary));
        body += &trace::body(run, summary);
    }
    let heading = Heading {
        title: "Dipole: what was measured",
        text: TEXT,
        facts: &facts,
    };
    document(heading, &body, report)
}

/// Measurements that are missing, and how to take them.
fn missing(profiles: &[Profile], is_untraced: bool) -> impl Iterator<Item = String> {
    let has = |of: fn(&Profile) -> bool| profiles.iter().any(of);
    let parts = [
        (
            !has(|profile| profile.point_to_point.is_some()),
            "single messages: `dipole calibrate`",
        ),
        (
            !has(|profile| !profile.cost.is_empty()),
            "supersteps: `dipole calibrate supersteps`",
        ),
        (
            is_untraced,
            "a run: with `DIPOLE_TRACE=DIR`, then `dipole report --trace DIR`",
        ),
    ];
    let absent = parts.into_iter().filter(|(is_absent, _)| *is_absent);
    absent.map(|(_, what)| what.to_owned())
}
