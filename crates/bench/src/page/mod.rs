//! The page of `dipole bench --html`: figures over message length, the tables behind them, and the
//! machine, in one file without scripts that needs no network.
//!
//! Every number comes from the [`BenchRow`]s of `--json`, which the page also contains as
//! `application/json`. End-to-end throughput (message length divided by one-way time) and transmission
//! throughput (a stream) are different quantities and have separate figures (GAMMA §3.1, §3.2).

mod table;

use std::sync::OnceLock;

use dipole_page::{Heading, document, section as part};
use serde::Serialize;

use crate::conditions::{initial_load, judged};
use crate::machine;
use crate::plan::Group;
use crate::results::{BenchRow, Measurement};
use crate::statistics::as_float;
use crate::subject::Subject;
use crate::testbed::Testbed;
use crate::work::{Kind, Placement};
use dipole_page::byte_size;
pub use dipole_page::{Chart, Curve, Point, Scale};
pub use table::of_rows as table_of;

const SIZE: (Scale, &str) = (Scale::Bytes, "message size, bytes");
/// Length of the messages whose distribution is drawn.
const DISTRIBUTION_BYTES: usize = 64;

/// Names and values that describe the machine and the run.
#[derive(Clone, Debug, Serialize)]
pub struct RunInfo(Vec<(&'static str, String)>);

impl RunInfo {
    /// Adds the subjects that were not measured.
    pub fn with(mut self, absent: &[String]) -> RunInfo {
        if !absent.is_empty() {
            self.0.push(("Not measured", absent.join("; ")));
        }
        self
    }
}

/// All measurements, for the JSON in the page.
#[derive(Serialize)]
struct Data<'a, T> {
    facts: &'a RunInfo,
    measurements: &'a [T],
}

static PROGRAM_VERSION: OnceLock<&str> = OnceLock::new();

/// Sets the version that pages name, with the commit, which only the program knows.
pub fn set_program_version(version: &'static str) {
    PROGRAM_VERSION.get_or_init(|| version);
}

fn program_version() -> &'static str {
    PROGRAM_VERSION.get().unwrap_or(&env!("CARGO_PKG_VERSION"))
}

/// Collects the facts of a run. `between` describes the network between nodes.
pub fn facts(between: Option<String>, cores: String, closing: &str, failures: usize) -> RunInfo {
    let mut facts = vec![
        (
            "Measurement",
            jiff::Timestamp::now().strftime("%F %R UTC").to_string(),
        ),
        ("Program", format!("dipole {}", program_version())),
        ("Command", std::env::args().collect::<Vec<_>>().join(" ")),
        ("System", machine::description()),
    ];
    facts.extend(machine::processor().map(|processor| ("Processor", processor)));
    facts.push(("Cores used", cores));
    facts.extend(between.map(|between| ("Between nodes", between)));
    facts.push(("During the run", closing.to_owned()));
    if let Some(load) = initial_load() {
        facts.push(("Load at the start", judged(load)));
    }
    if failures > 0 {
        let text = format!("{failures} measurements; figures rest on the rounds that did not");
        facts.push(("Failed", text));
    }
    RunInfo(facts)
}

/// Returns the whole page.
pub fn page(facts: &RunInfo, groups: &[(Group, Vec<Measurement>)], testbed: &Testbed) -> String {
    let mut body = String::new();
    for place in [Placement::TwoNodes, Placement::OneNode] {
        body += &section(place, groups, testbed);
    }
    let lines = groups.iter().flat_map(|(_, measured)| measured);
    let lines: Vec<BenchRow> = lines.filter_map(|one| one.row(testbed)).collect();
    let text = "Every subject did the same work, in turns, in one run: compare within this page \
                only. Marks are medians over rounds; the bars through them reach from the best to \
                the worst round. Point at a mark for its numbers.";
    measured_page(("Dipole and its peers", text), facts, &body, &lines)
}

/// Returns a page of measurements from title and text, facts, body and data.
pub fn measured_page(
    words: (&str, &str),
    facts: &RunInfo,
    body: &str,
    measurements: &[impl Serialize],
) -> String {
    let data = Data {
        facts,
        measurements,
    };
    let (title, text) = words;
    let heading = Heading {
        title,
        text,
        facts: &facts.0,
    };
    document(heading, body, &data)
}

/// Assigns marks and colours in this order to curves that have points.
pub fn curves_in_order(named: Vec<(String, Vec<Point>)>) -> Vec<Curve> {
    const FAMILIES: [&str; 10] = [
        "dipole",
        "udp",
        "tcp",
        "gso",
        "shm",
        "unix",
        "pipe",
        "bpf",
        "xdp",
        "dipole-udp",
    ];
    let named = named.into_iter().filter(|(_, points)| !points.is_empty());
    let with_family = named.zip(FAMILIES);
    with_family
        .map(|((name, points), family)| Curve {
            name,
            family,
            points,
            end: None,
        })
        .collect()
}

/// Returns a page of figures, tables if there are any, and the data behind them.
pub fn figures_page(
    words: (&str, &str),
    facts: &[(&str, String)],
    charts: &[Chart],
    tables: &str,
    data: &impl Serialize,
) -> String {
    let figures: String = charts.iter().map(|chart| chart.html("")).collect();
    let mut body = part("Figures", &figures);
    if !tables.is_empty() {
        body += &part("Numbers", tables);
    }
    let (title, text) = words;
    let heading = Heading { title, text, facts };
    document(heading, &body, data)
}

/// Returns the figures and tables of one placement.
fn section(place: Placement, groups: &[(Group, Vec<Measurement>)], testbed: &Testbed) -> String {
    let here = || {
        let with_entry = |group: &Group| group.entries.first().map(|entry| entry.place);
        groups
            .iter()
            .filter(move |(group, _)| with_entry(group) == Some(place))
    };
    let points = |kind: Kind| -> Vec<BenchRow> {
        let groups = here().filter(|(group, _)| group.is_point);
        groups
            .flat_map(|(_, measured)| measured)
            .filter(|one| one.entry.work.kind == kind)
            .filter_map(|one| one.row(testbed))
            .collect()
    };
    let (latencies, streams) = (points(Kind::Pingpong), points(Kind::Stream));
    // The table's pingpong has more rounds than a point of a figure.
    let mut pingpongs = here()
        .flat_map(|(group, measured)| measured.iter().map(move |one| (group.is_point, one)))
        .filter(|(_, one)| {
            let work = &one.entry.work;
            work.kind == Kind::Pingpong && work.size_bytes == DISTRIBUTION_BYTES && !work.unreliable
        })
        .collect::<Vec<_>>();
    pingpongs.sort_by_key(|(is_point, _)| *is_point);
    let bench = pingpongs
        .first()
        .map(|(is_point, one)| (*is_point, &one.entry.bench));
    let distribution: Vec<BenchRow> = pingpongs
        .iter()
        .filter(|(is_point, one)| Some((*is_point, &one.entry.bench)) == bench)
        .filter_map(|(_, one)| one.row(testbed))
        .collect();
    let mut figures = figures(testbed.name(place), &latencies, &streams, &distribution);
    let tables: String = here()
        .filter(|(group, _)| !group.is_point)
        .map(|(group, measured)| table::of_group(group, measured, testbed))
        .collect();
    if figures.is_empty() && tables.is_empty() {
        return String::new();
    }
    if !tables.is_empty() {
        figures += &format!("<h3>Tables</h3>\n{tables}");
    }
    let title = match place {
        Placement::TwoNodes => format!("Between two nodes ({})", testbed.name(place)),
        Placement::OneNode => "Inside one node".to_owned(),
    };
    part(&title, &figures)
}

/// Charts and tables of latencies and throughputs.
fn figures(
    testbed: &str,
    latencies: &[BenchRow],
    streams: &[BenchRow],
    distribution: &[BenchRow],
) -> String {
    let details = |table: String| {
        format!("<details><summary>Numbers behind this figure</summary>{table}</details>\n")
    };
    [
        latency(testbed, latencies).html(&details(table::of_lines(latencies))),
        latency_ratio(testbed, latencies).html(""),
        distribution_chart(testbed, distribution)
            .html(&details(table::of_distribution(distribution))),
        end_to_end(testbed, latencies).html(&details(table::of_lines(latencies))),
        transmission(testbed, streams).html(&details(table::of_lines(streams))),
        transmission_ratio(testbed, streams).html(""),
    ]
    .concat()
}

fn latency(testbed: &str, latencies: &[BenchRow]) -> Chart {
    let us = |ns: f64| ns * 1e-3;
    Chart {
        id: format!("latency-{testbed}"),
        title: "Latency".into(),
        text: "One way: half of a round trip. Less is better.",
        x: SIZE,
        y: (Scale::Number, "one-way latency, µs"),
        curves: curves(latencies, |line| {
            let (least, most) = (us(line.p50_least_ns?), us(line.p50_most_ns?));
            Some((us(line.p50_ns?), least, most, "µs"))
        }),
    }
}

fn end_to_end(testbed: &str, latencies: &[BenchRow]) -> Chart {
    Chart {
        id: format!("end-to-end-{testbed}"),
        title: "End-to-end throughput".into(),
        text: "Message length divided by one-way time, from the same round trips: one message at a time. \
               More is better.",
        x: SIZE,
        y: (Scale::Number, "end-to-end throughput, GB/s"),
        curves: curves(latencies, |line| {
            let size_bytes = as_float(line.size_bytes as u64);
            Some((
                line.end_to_end_bytes_per_s? * 1e-9,
                size_bytes / line.p50_most_ns?,
                size_bytes / line.p50_least_ns?,
                "GB/s",
            ))
        }),
    }
}

fn transmission(testbed: &str, streams: &[BenchRow]) -> Chart {
    Chart {
        id: format!("transmission-{testbed}"),
        title: "Transmission throughput".into(),
        text: "One-way stream, each message is sent immediately. Not comparable with end-to-end \
               throughput. More is better.",
        x: SIZE,
        y: (Scale::Number, "transmission throughput, GB/s"),
        curves: curves(streams, |line| {
            let giga = |bytes: f64| bytes * 1e-9;
            Some((
                giga(line.bytes_per_s?),
                giga(line.least_bytes_per_s?),
                giga(line.most_bytes_per_s?),
                "GB/s",
            ))
        }),
    }
}

/// Latency relative to Dipole. On logarithmic axes a factor of two is easily overlooked.
fn latency_ratio(testbed: &str, latencies: &[BenchRow]) -> Chart {
    Chart {
        id: format!("latency-ratio-{testbed}"),
        title: "Latency relative to Dipole".into(),
        text: "Time of a message divided by Dipole's: above 1 Dipole is faster.",
        x: SIZE,
        y: (Scale::Number, "latency / Dipole's"),
        curves: ratios(latencies, |line| line.p50_ns),
    }
}

/// Throughput relative to Dipole.
fn transmission_ratio(testbed: &str, streams: &[BenchRow]) -> Chart {
    Chart {
        id: format!("transmission-ratio-{testbed}"),
        title: "Transmission throughput relative to Dipole".into(),
        text: "Throughput divided by Dipole's: below 1 Dipole is faster.",
        x: SIZE,
        y: (Scale::Number, "throughput / Dipole's"),
        curves: ratios(streams, |line| line.bytes_per_s),
    }
}

fn distribution_chart(testbed: &str, distribution: &[BenchRow]) -> Chart {
    Chart {
        id: format!("distribution-{testbed}"),
        title: format!(
            "Distribution of latencies of {}",
            byte_size(DISTRIBUTION_BYTES)
        ),
        text: "How long the given share of messages took at most, one way. Less is better. A curve ends \
               at the largest share beyond which enough messages were measured; before the edge of the \
               figure a label names it.",
        x: (Scale::Nines, "share of messages, %"),
        y: (Scale::Number, "one-way latency, µs"),
        curves: distribution
            .iter()
            .map(|line| distribution_curve(line, distribution))
            .collect(),
    }
}

/// Returns one curve for each subject. `figure` returns value, minimum, maximum and unit.
fn curves(
    lines: &[BenchRow],
    figure: impl Fn(&BenchRow) -> Option<(f64, f64, f64, &'static str)>,
) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for line in lines {
        let Some((y, least, most, unit)) = figure(line) else {
            continue;
        };
        let point = Point {
            x: as_float(line.size_bytes as u64),
            y,
            spread: Some((least, most)),
            note: format!(
                "{}, {}: {} {unit} ({}..{})",
                line.subject,
                byte_size(line.size_bytes),
                table::digits(y),
                table::digits(least),
                table::digits(most)
            ),
        };
        let name = curve_name(line, lines);
        match curves.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => curve.points.push(point),
            None => curves.push(Curve {
                family: family_of(line, lines),
                name,
                points: vec![point],
                end: None,
            }),
        }
    }
    curves
}

/// Returns the figures of all other curves relative to Dipole over its first link.
fn ratios(lines: &[BenchRow], figure: impl Fn(&BenchRow) -> Option<f64>) -> Vec<Curve> {
    let own = Subject::Dipole.name();
    let Some(first) = lines.iter().find(|line| line.subject == own) else {
        return Vec::new();
    };
    let is_base = |line: &BenchRow| line.subject == own && line.link == first.link;
    let mut curves: Vec<Curve> = Vec::new();
    for line in lines.iter().filter(|line| !is_base(line)) {
        let same = |base: &&BenchRow| is_base(base) && base.size_bytes == line.size_bytes;
        let base = lines.iter().find(same).and_then(&figure);
        let (Some(value), Some(base)) = (figure(line), base) else {
            continue;
        };
        let name = curve_name(line, lines);
        let point = Point {
            x: as_float(line.size_bytes as u64),
            y: value / base,
            spread: None,
            note: format!(
                "{name}, {}: {} times {}",
                byte_size(line.size_bytes),
                table::digits(value / base),
                curve_name(first, lines)
            ),
        };
        match curves.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => curve.points.push(point),
            None => curves.push(Curve {
                family: family_of(line, lines),
                name,
                points: vec![point],
                end: None,
            }),
        }
    }
    curves
}

/// Returns the name of a curve, with the link for Dipole and for subjects with several links.
fn curve_name(line: &BenchRow, lines: &[BenchRow]) -> String {
    let chooses = line.subject == Subject::Dipole.name();
    match chooses || is_by_several_links(line, lines) {
        true => format!("{} ({})", line.subject, link_of(line)),
        false => line.subject.clone(),
    }
}

/// Returns the class of colour and mark of a row.
fn family_of(line: &BenchRow, lines: &[BenchRow]) -> &'static str {
    match family(&line.subject) {
        "dipole" if link_of(line) == "udp" && is_by_several_links(line, lines) => "dipole-udp",
        family => family,
    }
}

fn is_by_several_links(line: &BenchRow, lines: &[BenchRow]) -> bool {
    let mut same = lines.iter().filter(|one| one.subject == line.subject);
    same.any(|one| one.link != line.link)
}

/// Returns the link of a row without the testbed.
fn link_of(line: &BenchRow) -> &str {
    line.link.split('/').next().unwrap_or(&line.link)
}

fn distribution_curve(line: &BenchRow, lines: &[BenchRow]) -> Curve {
    let points = line.percentiles.iter().map(|&(share, ns)| Point {
        x: share,
        y: ns * 1e-3,
        spread: None,
        note: format!(
            "{}, {} within {} µs",
            line.subject,
            dipole_page::share(share),
            table::digits(ns * 1e-3)
        ),
    });
    Curve {
        name: curve_name(line, lines),
        family: family_of(line, lines),
        points: points.collect(),
        end: line.percentiles.last().map(|&(share, _)| {
            let share = dipole_page::share(share);
            format!("beyond {share}: too few messages")
        }),
    }
}

/// Returns the class of colour and mark of a subject, the same in every figure.
fn family(subject: &str) -> &'static str {
    const FAMILIES: [(&str, &str); 7] = [
        ("bpf", "bpf"),
        ("gso", "gso"),
        ("udp", "udp"),
        ("tcp", "tcp"),
        ("unix", "unix"),
        ("pipe", "pipe"),
        ("shm", "shm"),
    ];
    if subject == Subject::Dipole.name() {
        return "dipole";
    }
    // External subjects have a colour of their own.
    const EXTERNAL: [&str; 9] = [
        "open-mpi",
        "mpich",
        "libfabric",
        "ucx",
        "aeron",
        "zeromq",
        "bsponmpi",
        "iperf3",
        "sockperf",
    ];
    if let Some(name) = EXTERNAL.into_iter().find(|name| *name == subject) {
        return name;
    }
    let known = FAMILIES
        .into_iter()
        .find(|(part, _)| subject.contains(part));
    known.map_or("pipe", |(_, family)| family)
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn subjects_in_one_figure_have_different_colours() {
        use crate::subject::Waits;
        for place in [Placement::TwoNodes, Placement::OneNode] {
            for waits in [Waits::Spinning, Waits::Blocking] {
                for kind in [Kind::Pingpong, Kind::Stream] {
                    let subjects = Subject::usual(kind, waits, place);
                    let families: std::collections::HashSet<_> = subjects
                        .iter()
                        .map(|subject| family(&subject.name()))
                        .collect();
                    assert_eq!(families.len(), subjects.len(), "{subjects:?}");
                }
            }
        }
        for subject in Subject::value_variants() {
            let style = format!(".{}", family(&subject.name()));
            assert!(dipole_page::STYLE.contains(&style), "{subject:?}");
        }
    }
}
