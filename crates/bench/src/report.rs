//! Results: one JSON object a line, or tables.

use std::fmt;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use super::control::{Kind, Outcome, name_of};
use super::launch::{Entry, leading_figure};
use super::plan::{Group, size};
use super::statistics::{Spread, as_float};
use super::subject::Subject;
use super::testbed::Testbed;

/// Rounds agree whose figures differ by no more than this share of their median.
const CLOSE_SHARE: f64 = 0.05;

/// The rounds of one entry; a failed one has no outcome.
pub(crate) struct Measured {
    pub(crate) entry: Entry,
    pub(crate) rounds: Vec<Option<Outcome>>,
}

/// One line of `--json`: medians over the rounds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) bench: String,
    pub(crate) subject: String,
    pub(crate) link: String,
    /// Where the sides ran: "veth", "loopback" or "node".
    pub(crate) testbed: &'static str,
    pub(crate) size_bytes: usize,
    /// How many rounds the medians are over.
    pub(crate) rounds: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_ns: Option<f64>,
    /// The fastest and the slowest round's median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_least_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_most_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mean80_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p999_ns: Option<f64>,
    /// Of round trips beside a stream: `p99_ns` over that of the same alone, round by round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99_over_alone: Option<f64>,
    /// Size by the median one-way time: M11's end-to-end throughput.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) end_to_end_bytes_per_s: Option<f64>,
    /// Share of messages and the one-way time in nanoseconds they stay within.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) percentiles: Vec<(f64, f64)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) messages_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_per_s: Option<f64>,
    /// The slowest and the fastest round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) least_bytes_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) most_bytes_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_ns_per_message: Option<f64>,
    /// What a processor that does nothing else would carry, in Mbit/s: a message's bits by the CPU
    /// time of both sides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mbit_per_cpu_s: Option<f64>,
}

impl Measured {
    fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.rounds.iter().flatten()
    }

    /// No round failed, and their leading figures lie so close that more of them would hardly move
    /// the median.
    pub(crate) fn agrees(&self) -> bool {
        let figures = self.outcomes().map(|outcome| leading_figure(outcome).0);
        self.outcomes().count() == self.rounds.len()
            && Spread::of(figures)
                .is_some_and(|spread| spread.most - spread.least <= CLOSE_SHARE * spread.median)
    }

    fn median(&self, figure: impl Fn(&Outcome) -> Option<f64>) -> Option<f64> {
        Spread::of(self.outcomes().filter_map(figure)).map(|spread| spread.median)
    }

    /// `None` if every round failed.
    pub(crate) fn line(&self, testbed: &Testbed) -> Option<Line> {
        self.outcomes().next()?;
        let spread = |get: fn(&Outcome) -> Option<f64>| {
            Spread::of(self.outcomes().filter_map(get)).map(|spread| Spread {
                median: tenth(spread.median),
                least: tenth(spread.least),
                most: tenth(spread.most),
            })
        };
        let median = |get| spread(get).map(|spread| spread.median);
        let size_bytes = self.entry.work.size_bytes;
        let p50 = spread(|outcome| outcome.one_way.map(|times| times.p50_ns));
        let bytes = spread(|outcome| outcome.bytes_per_s);
        Some(Line {
            bench: self.entry.bench.clone(),
            subject: name_of(self.entry.subject),
            link: self.entry.link(testbed),
            testbed: testbed.name(self.entry.place),
            size_bytes,
            rounds: self.outcomes().count(),
            p50_ns: p50.map(|p50| p50.median),
            p50_least_ns: p50.map(|p50| p50.least),
            p50_most_ns: p50.map(|p50| p50.most),
            mean80_ns: median(|outcome| outcome.one_way?.mean80_ns),
            p99_ns: median(|outcome| outcome.one_way?.p99_ns),
            p999_ns: median(|outcome| outcome.one_way?.p999_ns),
            end_to_end_bytes_per_s: p50
                .map(|p50| tenth(as_float(size_bytes as u64) * 1e9 / p50.median.max(0.1))),
            p99_over_alone: None,
            percentiles: self.percentiles(),
            messages_per_s: median(|outcome| outcome.messages_per_s),
            bytes_per_s: bytes.map(|bytes| bytes.median),
            least_bytes_per_s: bytes.map(|bytes| bytes.least),
            most_bytes_per_s: bytes.map(|bytes| bytes.most),
            cpu_ns_per_message: median(|outcome| Some(outcome.cpu_ns_per_message)),
            mbit_per_cpu_s: self.mbit_per_cpu_s().map(tenth),
        })
    }

    fn mbit_per_cpu_s(&self) -> Option<f64> {
        let cpu_ns = self.median(|outcome| Some(outcome.cpu_ns_per_message))?;
        let bits = 8.0 * as_float(self.entry.work.size_bytes as u64);
        (cpu_ns > 0.0).then(|| bits * 1e3 / cpu_ns)
    }

    /// The distribution, share by share the median over the rounds that know it.
    fn percentiles(&self) -> Vec<(f64, f64)> {
        let longest = self
            .outcomes()
            .max_by_key(|outcome| outcome.percentiles.len());
        let shares = longest.into_iter().flat_map(|outcome| &outcome.percentiles);
        shares
            .filter_map(|&(share, _)| {
                let of = |outcome: &Outcome| {
                    let known = outcome.percentiles.iter();
                    known
                        .copied()
                        .find(|(own, _)| *own == share)
                        .map(|(_, ns)| ns)
                };
                Some((share, tenth(self.median(of)?)))
            })
            .collect()
    }

    pub(crate) fn label(&self) -> String {
        match &self.entry.fault {
            None if self.entry.bench.starts_with("mixed") => {
                let is_alone = self.entry.work.kind != Kind::Mixed;
                let mark = if is_alone { "" } else { " +" };
                format!("{}{mark}", name_of(self.entry.subject))
            }
            None => name_of(self.entry.subject),
            Some(_) => self.entry.bench.clone(),
        }
    }

    /// Others are compared with this one.
    pub(crate) fn is_reference(&self, first: bool) -> bool {
        self.entry.subject != Subject::Dipole || (first && self.entry.fault.is_some())
    }

    /// This one's leading figure as a multiple of the other's, round by round.
    pub(crate) fn ratio(&self, other: &Measured) -> Option<f64> {
        let rounds = self.rounds.iter().zip(&other.rounds);
        let ratios = rounds.filter_map(|(own, others)| {
            let (own, others) = (
                leading_figure(own.as_ref()?),
                leading_figure(others.as_ref()?),
            );
            (others.0 > 0.0).then(|| own.0 / others.0)
        });
        Spread::of(ratios).map(|spread| spread.median)
    }
}

/// The table of a group; its first number compares each subject with the first.
pub(crate) fn table(group: &Group, measured: &[Measured], testbed: &Testbed, wide: bool) -> String {
    if measured.is_empty() {
        return String::new();
    }
    let is_latency = measured
        .iter()
        .flat_map(Measured::outcomes)
        .any(|outcome| outcome.one_way.is_some());
    let headings = match is_latency {
        true => "subject|link|x first|p50 us|+min..max|p99 us|+p99.9 us|CPU ns/msg|+Mbit/s per CPU",
        false => "subject|link|x first|GB/s|+min..max|k msg/s|CPU ns/msg|+Mbit/s per CPU",
    };
    let mut table = Sheet::new(headings, 2, wide);
    for one in measured {
        let ratio = number(one.ratio(&measured[0]), 2);
        let mut row = vec![one.label(), one.entry.link(testbed), ratio];
        row.extend(figures(one, is_latency));
        table.row(row);
    }
    let better = if is_latency {
        "one way, less is better"
    } else {
        "more is better"
    };
    let title = format!("{} ({better})", group.title);
    let title = if wide { title } else { folded(&title) };
    format!("{title}\n{table}")
}

/// A table whose columns fit a terminal of 80 columns; those with `+` before their heading are left
/// out unless all are wanted.
pub(crate) struct Sheet {
    table: Table,
    shown: Vec<bool>,
}

impl Sheet {
    /// An empty one with these headings, with `|` between them; the first stand over labels.
    pub(crate) fn new(headings: &str, labels: usize, wide: bool) -> Sheet {
        let all = headings.split('|').map(|heading| {
            let plain = heading.trim_start_matches('+');
            (plain, wide || plain == heading)
        });
        let (names, shown): (Vec<&str>, Vec<bool>) = all.unzip();
        let names = names.into_iter().zip(&shown);
        let names: Vec<&str> = names
            .filter_map(|(name, is_shown)| is_shown.then_some(name))
            .collect();
        Sheet {
            table: titled(&names.join("|"), labels),
            shown,
        }
    }

    /// Adds a row, with a cell for every column.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().zip(&self.shown);
        let cells = cells.filter_map(|(cell, is_shown)| is_shown.then_some(cell));
        self.table.add_row(cells);
    }
}

impl fmt::Display for Sheet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.table.fmt(f)
    }
}

/// Text whose lines are broken between words to fit a terminal.
pub(crate) fn folded(text: &str) -> String {
    const COLUMNS: usize = 80;
    let mut folded = String::new();
    let mut used = 0;
    for (index, word) in text.split(' ').enumerate() {
        // A word may end one line of the text and begin the next.
        let first = word.split('\n').next().unwrap_or(word);
        if index > 0 && !word.is_empty() && used + 1 + first.chars().count() > COLUMNS {
            folded += "\n  ";
            used = 2;
        } else if index > 0 {
            folded.push(' ');
            used += 1;
        }
        folded += word;
        used = match word.rsplit_once('\n') {
            Some((_, last)) => last.chars().count(),
            None => used + word.chars().count(),
        };
    }
    folded
}

/// An empty table with these headings, with `|` between them; the first stand over labels.
pub(crate) fn titled(headings: &str, labels: usize) -> Table {
    let headings: Vec<&str> = headings.split('|').collect();
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_header(headings);
    for numbers in table.column_iter_mut().skip(labels) {
        numbers.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn figures(one: &Measured, is_latency: bool) -> Vec<String> {
    let cpu = number(one.median(|outcome| Some(outcome.cpu_ns_per_message)), 0);
    let by_cpu = number(one.mbit_per_cpu_s(), 0);
    let unit = if is_latency { 1e-3 } else { 1e-9 };
    let leading = Spread::of(
        one.outcomes()
            .map(|outcome| leading_figure(outcome).0 * unit),
    );
    let spread = leading.map_or_else(dash, |leading| {
        format!(
            "{}..{}",
            number(Some(leading.least), 2),
            number(Some(leading.most), 2)
        )
    });
    let median = number(leading.map(|leading| leading.median), 3);
    if !is_latency {
        let rate = one.median(|outcome| outcome.messages_per_s.map(|rate| rate * 1e-3));
        return vec![median, spread, number(rate, 1), cpu, by_cpu];
    }
    let time = |get: fn(&Outcome) -> Option<f64>| {
        number(one.median(get).map(|nanoseconds| nanoseconds * 1e-3), 2)
    };
    vec![
        median,
        spread,
        time(|outcome| outcome.one_way?.p99_ns),
        time(|outcome| outcome.one_way?.p999_ns),
        cpu,
        by_cpu,
    ]
}

/// How much longer the slowest round trips take beside a stream than alone; the median of rounds.
pub(crate) fn p99_over_alone(one: &Measured, all: &[Measured]) -> Option<f64> {
    let is_same = |other: &&Measured| {
        other.entry.work.kind == Kind::Pingpong
            && other.entry.subject == one.entry.subject
            && other.entry.carrier == one.entry.carrier
    };
    if one.entry.work.kind != Kind::Mixed {
        return None;
    }
    let alone = all.iter().find(is_same)?;
    let rounds = one.rounds.iter().zip(&alone.rounds);
    let ratios = rounds.filter_map(|(beside, alone)| {
        let p99 = |outcome: &Option<Outcome>| outcome.as_ref()?.one_way?.p99_ns;
        Some(p99(beside)? / p99(alone)?.max(1.0))
    });
    Spread::of(ratios).map(|spread| (spread.median * 1e3).round() / 1e3)
}

/// The remarks of subjects, each once.
pub(crate) fn remarks(measured: &[Measured]) -> Vec<String> {
    let mut remarks = Vec::new();
    for one in measured {
        // Of the last round only: the figures in remarks differ in every round.
        if let Some(outcome) = one.outcomes().last() {
            remarks.extend(outcome.remarks.iter().map(|remark| {
                format!(
                    "{} {}: {remark}",
                    one.label(),
                    size(one.entry.work.size_bytes)
                )
            }));
        }
        if let Some(ratio) = p99_over_alone(one, measured) {
            let label = one.label();
            remarks.push(format!(
                "{label}: p99 {ratio:.2} x that alone, round by round"
            ));
        }
    }
    remarks
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(dash, |value| format!("{value:.digits$}"))
}

fn dash() -> String {
    "-".to_owned()
}

fn tenth(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sheet_leaves_out_what_only_those_want_who_want_all() {
        let text = |wide| {
            let mut sheet = Sheet::new("name|a|+b", 1, wide);
            sheet.row(["x", "17", "29"].map(str::to_owned));
            sheet.to_string()
        };
        assert!(text(true).contains("29") && text(true).contains("b"));
        assert!(text(false).contains("17"));
        assert!(!text(false).contains("29") && !text(false).contains("b"));
    }

    #[test]
    fn lines_are_folded_between_words() {
        let text = format!("  {} end\n{}", "word ".repeat(20).trim(), "a".repeat(90));
        let folded = folded(&text);
        let lines: Vec<&str> = folded.lines().collect();
        assert_eq!(lines.len(), 3, "{folded}");
        assert!(lines[0].starts_with("  word") && lines[0].len() <= 80);
        assert_eq!(lines[1], "  word word word word word end");
        assert_eq!(lines[2].len(), 90, "no word is cut");
        assert_eq!(super::folded("short\n  and so on"), "short\n  and so on");
    }
}
