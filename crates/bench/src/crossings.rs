//! `dipole bench crossings`: how often a byte crosses memory on its way, by each path that Dipole has.
//!
//! Counted: the engines' counters say how many bytes took each stage, and what a stage does with a
//! byte is known: a copy reads and writes it, a checksum reads it. Headers, repeats and
//! acknowledgements count, so that the figure is of what really went. Measured: what a byte more costs
//! both sides in CPU time, by streams of two lengths with sides that sleep while they wait, as
//! multiples of what one crossing costs `memcpy` where messages of that length lie.
//!
//! # Source
//! Gigabit Nectar §2.4, table 1: the interface (copied or shared buffers), the checksum, crossings.

use std::error::Error;

use dipole_bsp::profile::Copying;
use serde::Serialize;

use super::Report;
use super::calibrate::copies;
use super::control::{Carrier, Outcome, Placement, name_of};
use super::launch::{self, Entry};
use super::machine::Cores;
use super::moved::{COPY, Moved};
use super::plan::size;
use super::report::titled;
use super::statistics::{Spread, as_float};
use super::subject::Subject;
use super::testbed::{On, Testbed};

/// A path: streams of a shorter and a longer message by it.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub(crate) shorter: Entry,
    pub(crate) longer: Entry,
}

/// What is measured.
#[derive(Clone, Debug)]
pub(crate) struct CrossingsPlan {
    pub(crate) paths: Vec<Path>,
    pub(crate) rounds: u32,
    pub(crate) quick: bool,
    pub(crate) on: On,
}

/// One path: a line of `--json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Line {
    bench: &'static str,
    subject: String,
    link: String,
    testbed: &'static str,
    size_bytes: usize,
    /// How the program gives messages, and gets them.
    interface: &'static str,
    checksum: &'static str,
    /// By counters.
    crossings: Option<f64>,
    /// Of both sides, for a byte more.
    cpu_ns_per_byte: f64,
    copy_ns_per_byte: f64,
    /// CPU time as multiples of a crossing by `memcpy`.
    cpu_in_crossings: f64,
}

/// Measures and prints. False if some path failed.
///
/// # Errors
/// Nothing could be measured, or writing to the report failed.
pub(crate) fn measure(
    plan: &CrossingsPlan,
    cores: Cores,
    report: &mut Report<'_>,
) -> Result<bool, Box<dyn Error>> {
    let apart = plan.paths.iter();
    let apart = apart.filter(|path| path.longer.place == Placement::TwoNodes);
    let testbed = Testbed::make(if apart.count() > 0 { plan.on } else { On::Node })?;
    report.note(&super::machine_line(cores))?;
    let copies = copies::measure(cores, plan.quick)?;
    let (mut lines, mut all_well) = (Vec::new(), true);
    for path in &plan.paths {
        match line(path, plan.rounds, &testbed, cores, &copies) {
            Ok(line) => lines.extend(line),
            Err(error) => {
                all_well = false;
                let (subject, link) = (name_of(path.longer.subject), path.longer.link(&testbed));
                eprintln!("dipole bench: crossings of {subject} by {link}: {error}");
            }
        }
    }
    match report.json {
        true => lines.iter().try_for_each(|line| report.object(line))?,
        false => report.result(&table(&lines))?,
    }
    Ok(all_well)
}

fn line(
    path: &Path,
    rounds: u32,
    testbed: &Testbed,
    cores: Cores,
    copies: &[Copying],
) -> Result<Option<Line>, super::failure::RunError> {
    let (mut slopes, mut moved) = (Vec::new(), Vec::new());
    let bytes = |entry: &Entry| as_float(entry.work.size_bytes as u64);
    let further = bytes(&path.longer) - bytes(&path.shorter);
    for _ in 0..rounds {
        let [shorter, longer]: [Outcome; 2] = [
            launch::measure(&path.shorter, testbed, cores)?,
            launch::measure(&path.longer, testbed, cores)?,
        ];
        slopes.push((longer.cpu_ns_per_message - shorter.cpu_ns_per_message) / further);
        moved.extend(longer.moved);
    }
    let entry = &path.longer;
    let crossings = moved.iter().copied().sum::<Moved>().crossings();
    let size_bytes = entry.work.size_bytes;
    let fits = copies.iter().find(|level| level.bytes >= size_bytes);
    let (Some(cpu), Some(copy)) = (Spread::of(slopes), fits.or(copies.last())) else {
        return Ok(None);
    };
    let (interface, checksum) = nature(entry);
    let copy_ns_per_byte = copy.ns_per_byte.median;
    Ok(Some(Line {
        bench: "crossings",
        subject: name_of(entry.subject),
        link: entry.link(testbed),
        testbed: testbed.name(entry.place),
        size_bytes,
        interface,
        checksum,
        // Sockets are copied into the kernel, and out of it.
        crossings: crossings.or((entry.subject != Subject::Dipole).then_some(2.0 * COPY)),
        cpu_ns_per_byte: cpu.median,
        copy_ns_per_byte,
        cpu_in_crossings: cpu.median / (copy_ns_per_byte / COPY),
    }))
}

/// Where a path stands among interfaces and checksums.
fn nature(entry: &Entry) -> (&'static str, &'static str) {
    match (entry.subject, entry.carrier) {
        (Subject::Dipole, Carrier::Shm) => ("copy, share", "none"),
        (Subject::Dipole, _) => ("copy, share", "trailer"),
        _ => ("copy, copy", "header"),
    }
}

fn table(lines: &[Line]) -> String {
    let headings =
        "path|message|interface|checksum|crossings|CPU ns/B|memcpy ns/B|CPU in crossings";
    let mut table = titled(headings, 1);
    for line in lines {
        let crossings = line
            .crossings
            .map_or_else(|| "-".to_owned(), |it| format!("{it:.2}"));
        table.add_row([
            format!("{}, {}", line.subject, line.link),
            size(line.size_bytes),
            line.interface.to_owned(),
            line.checksum.to_owned(),
            crossings,
            format!("{:.3}", line.cpu_ns_per_byte),
            format!("{:.3}", line.copy_ns_per_byte),
            format!("{:.1}", line.cpu_in_crossings),
        ]);
    }
    format!(
        "{table}\ncrossings: how often a byte of a message is read or written by a processor, by the \
         engines' counters\nCPU: of both sides, for a byte more; a crossing is half of what memcpy \
         takes for a byte\n"
    )
}
