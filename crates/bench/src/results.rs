//! Results of the rounds: rows of `--json` and tables.

use dipole_page::byte_size;
use serde::Serialize;

use crate::control::Outcome;
use crate::launch::{Entry, leading_figure};
use crate::output::{ResultTable, fold};
use crate::plan::Group;
use crate::statistics::{Spread, as_float};
use crate::subject::Subject;
use crate::testbed::Testbed;
use crate::work::Kind;

/// Rounds agree if their figures differ by at most this share of their median.
const CLOSE_SHARE: f64 = 0.05;

/// The rounds of one entry. A failed round has no outcome.
pub struct Measurement {
    pub entry: Entry,
    pub rounds: Vec<Option<Outcome>>,
}

/// Medians over the rounds of one entry.
#[derive(Clone, Debug, Serialize)]
pub struct BenchRow {
    pub bench: String,
    pub subject: String,
    pub link: String,
    /// Placement of the sides: "veth", "loopback", "hosts" or "node".
    pub testbed: &'static str,
    pub size_bytes: usize,
    /// Rounds measured for this entry.
    pub rounds: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ns: Option<f64>,
    /// Medians of the fastest and of the slowest round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_least_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_most_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean80_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p999_ns: Option<f64>,
    /// For round trips next to a stream: `p99_ns` relative to the same round trips alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_over_alone: Option<f64>,
    /// End-to-end throughput: message length divided by the median one-way time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_to_end_bytes_per_s: Option<f64>,
    /// Shares of messages, and the one-way time in nanoseconds that this share does not exceed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub percentiles: Vec<(f64, f64)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<f64>,
    /// Throughput of the slowest and of the fastest round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub least_bytes_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most_bytes_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ns_per_message: Option<f64>,
    /// Bits of a message divided by the CPU time of both sides: the throughput of a fully used
    /// processor in Mbit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mbit_per_cpu_s: Option<f64>,
}

impl Measurement {
    pub fn new(entry: Entry) -> Measurement {
        Measurement {
            entry,
            rounds: Vec::new(),
        }
    }

    /// Number of failed rounds.
    pub fn failures(&self) -> usize {
        self.rounds.iter().filter(|round| round.is_none()).count()
    }

    fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.rounds.iter().flatten()
    }

    /// True if no round failed and the figures are so close that more rounds would hardly change the
    /// median.
    pub fn agrees(&self) -> bool {
        let figures = self.outcomes().map(|outcome| leading_figure(outcome).0);
        self.outcomes().count() == self.rounds.len()
            && Spread::of(figures)
                .is_some_and(|spread| spread.most - spread.least <= CLOSE_SHARE * spread.median)
    }

    fn median(&self, figure: impl Fn(&Outcome) -> Option<f64>) -> Option<f64> {
        Spread::of(self.outcomes().filter_map(figure)).map(|spread| spread.median)
    }

    /// Returns the row. `None` if every round failed.
    pub fn row(&self, testbed: &Testbed) -> Option<BenchRow> {
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
        Some(BenchRow {
            bench: self.entry.bench.clone(),
            subject: self.entry.subject.name(),
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

    /// Returns the distribution: for each share the median over the rounds that have it.
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

    pub fn label(&self) -> String {
        match &self.entry.fault {
            None if self.entry.bench.starts_with("mixed") => {
                let is_alone = self.entry.work.kind != Kind::Mixed;
                let mark = if is_alone { "" } else { " +" };
                format!("{}{mark}", self.entry.subject.name())
            }
            None => self.entry.subject.name(),
            Some(_) => self.entry.bench.clone(),
        }
    }

    /// True if other subjects are compared with this one.
    pub fn is_reference(&self, first: bool) -> bool {
        self.entry.subject != Subject::Dipole || (first && self.entry.fault.is_some())
    }

    /// Returns the median over rounds of this figure relative to another's.
    pub fn ratio(&self, other: &Measurement) -> Option<f64> {
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

/// Returns the table of a group. Its first number compares each subject with the first.
pub fn table(group: &Group, measured: &[Measurement], testbed: &Testbed, wide: bool) -> String {
    if measured.is_empty() {
        return String::new();
    }
    let is_latency = measured
        .iter()
        .flat_map(Measurement::outcomes)
        .any(|outcome| outcome.one_way.is_some());
    let headings = match is_latency {
        true => "subject|link|x first|p50 us|+min..max|p99 us|+p99.9 us|CPU ns/msg|+Mbit/s per CPU",
        false => "subject|link|x first|GB/s|+min..max|k msg/s|CPU ns/msg|+Mbit/s per CPU",
    };
    let mut table = ResultTable::new(headings, 2, wide);
    for one in measured {
        let ratio = number(one.ratio(&measured[0]), 2);
        let mut cells = vec![one.label(), one.entry.link(testbed), ratio];
        cells.extend(figures(one, is_latency));
        table.add_row(cells);
    }
    let better = if is_latency {
        "one way, less is better"
    } else {
        "more is better"
    };
    let title = format!("{} ({better})", group.title);
    let title = if wide { title } else { fold(&title) };
    format!("{title}\n{table}")
}

fn figures(one: &Measurement, is_latency: bool) -> Vec<String> {
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

/// Returns the median over rounds of the p99 next to a stream, relative to that alone.
pub fn p99_over_alone(one: &Measurement, all: &[Measurement]) -> Option<f64> {
    let is_same = |other: &&Measurement| {
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

/// Returns the remarks of all subjects, without duplicates.
pub fn remarks(measured: &[Measurement]) -> Vec<String> {
    let mut remarks = Vec::new();
    for one in measured {
        // Remarks of the last round only, because the figures in remarks differ in every round.
        if let Some(outcome) = one.outcomes().last() {
            remarks.extend(outcome.remarks.iter().map(|remark| {
                format!(
                    "{} {}: {remark}",
                    one.label(),
                    byte_size(one.entry.work.size_bytes)
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
