//! Tables of the page. Each cell with a measured number has its exact value as `data-value`, in the
//! unit of `--json`, and its name there as `data-field`.

pub(super) use dipole_page::digits;

use crate::plan::Group;
use crate::results::{self, BenchRow, Measurement};
use crate::testbed::Testbed;
use dipole_page::byte_size;
use dipole_page::escape;

/// A column: name in `--json`, heading, factor, value.
type Column = (
    &'static str,
    &'static str,
    f64,
    fn(&BenchRow) -> Option<f64>,
);

const LATENCY: [Column; 9] = [
    ("p50_ns", "median, µs", 1e-3, |line| line.p50_ns),
    ("p50_least_ns", "best round", 1e-3, |line| line.p50_least_ns),
    ("p50_most_ns", "worst round", 1e-3, |line| line.p50_most_ns),
    ("mean80_ns", "mean of the middle 80 %, µs", 1e-3, |line| {
        line.mean80_ns
    }),
    ("p99_ns", "99 %, µs", 1e-3, |line| line.p99_ns),
    ("p999_ns", "99.9 %, µs", 1e-3, |line| line.p999_ns),
    ("end_to_end_bytes_per_s", "end to end, GB/s", 1e-9, |line| {
        line.end_to_end_bytes_per_s
    }),
    CPU,
    BY_CPU,
];

const THROUGHPUT: [Column; 6] = [
    ("bytes_per_s", "median, GB/s", 1e-9, |line| line.bytes_per_s),
    ("least_bytes_per_s", "worst round", 1e-9, |line| {
        line.least_bytes_per_s
    }),
    ("most_bytes_per_s", "best round", 1e-9, |line| {
        line.most_bytes_per_s
    }),
    ("messages_per_s", "thousand messages/s", 1e-3, |line| {
        line.messages_per_s
    }),
    CPU,
    BY_CPU,
];

const CPU: Column = (
    "cpu_ns_per_message",
    "CPU of both sides, ns/message",
    1.0,
    |line| line.cpu_ns_per_message,
);

const BY_CPU: Column = ("mbit_per_cpu_s", "Mbit/s per CPU", 1.0, |line| {
    line.mbit_per_cpu_s
});

/// Returns a standard table with ratios to the peers.
pub(super) fn of_group(group: &Group, measured: &[Measurement], testbed: &Testbed) -> String {
    let references: Vec<&Measurement> = measured
        .iter()
        .enumerate()
        .filter(|(index, one)| one.is_reference(*index == 0))
        .map(|(_, one)| one)
        .collect();
    let lines: Vec<(&Measurement, BenchRow)> = measured
        .iter()
        .filter_map(|one| Some((one, one.row(testbed)?)))
        .collect();
    let Some((_, first)) = lines.first() else {
        return String::new();
    };
    let columns = columns(first);
    let mut headings = headings(columns, &["subject", "link"]);
    for reference in &references {
        headings += &format!("<th>× {}</th>", escape(&reference.label()));
    }
    let mut rows = String::new();
    // Rows are only highlighted among rows of other subjects.
    let has_peers = lines.iter().any(|(_, line)| !is_own(line));
    for (one, line) in &lines {
        rows += &row(
            line,
            has_peers && is_own(line),
            columns,
            &[one.label(), line.link.clone()],
            &references
                .iter()
                .map(|reference| {
                    let ratio = one.ratio(reference);
                    format!("<td>{}</td>", ratio.map_or_else(String::new, digits))
                })
                .collect::<String>(),
        );
    }
    let remarks: String = results::remarks(measured)
        .iter()
        .map(|remark| format!("<p class=\"remark\">{}</p>\n", escape(remark)))
        .collect();
    format!(
        "<h4>{}</h4>\n{}{remarks}",
        escape(&group.title),
        table(&headings, &rows)
    )
}

/// Returns the numbers behind a figure over lengths.
pub(super) fn of_lines(lines: &[BenchRow]) -> String {
    let Some(first) = lines.first() else {
        return String::new();
    };
    let columns = columns(first);
    let rows: String = lines
        .iter()
        .map(|line| {
            let labels = [
                byte_size(line.size_bytes),
                line.subject.clone(),
                line.link.clone(),
            ];
            row(line, is_own(line), columns, &labels, "")
        })
        .collect();
    table(&headings(columns, &["size", "subject", "link"]), &rows)
}

/// Returns the numbers behind a distribution.
pub(super) fn of_distribution(lines: &[BenchRow]) -> String {
    let mut headings = "<th>share of messages</th>".to_owned();
    for line in lines {
        headings += &format!("<th>{}, µs</th>", escape(&line.subject));
    }
    let longest = lines.iter().max_by_key(|line| line.percentiles.len());
    let shares = longest.into_iter().flat_map(|line| &line.percentiles);
    let rows: String = shares
        .map(|&(share, _)| {
            let cells: String = lines
                .iter()
                .map(|line| {
                    let mut known = line.percentiles.iter();
                    known.find(|(own, _)| *own == share).map_or_else(
                        || "<td></td>".to_owned(),
                        |(_, ns)| format!("<td data-value=\"{ns}\">{}</td>", digits(ns * 1e-3)),
                    )
                })
                .collect();
            format!(
                "<tr data-share=\"{share}\"><th>{}</th>{cells}</tr>\n",
                dipole_page::share(share)
            )
        })
        .collect();
    table(&headings, &rows)
}

/// Returns a table with a title, headings and cells.
pub fn of_rows(title: &str, headings: &[&str], rows: &[Vec<String>]) -> String {
    let headings: String = headings
        .iter()
        .map(|heading| format!("<th>{}</th>", escape(heading)))
        .collect();
    let cells = |row: &Vec<String>| -> String {
        let cells = row.iter().map(|cell| format!("<td>{}</td>", escape(cell)));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let rows: String = rows.iter().map(cells).collect();
    format!("<h3>{}</h3>\n{}", escape(title), table(&headings, &rows))
}

fn columns(line: &BenchRow) -> &'static [Column] {
    if line.p50_ns.is_some() {
        &LATENCY
    } else {
        &THROUGHPUT
    }
}

fn headings(columns: &[Column], first: &[&str]) -> String {
    let headings = columns.iter().map(|(_, heading, ..)| *heading);
    first
        .iter()
        .copied()
        .chain(headings)
        .map(|heading| format!("<th>{heading}</th>"))
        .collect()
}

fn is_own(line: &BenchRow) -> bool {
    line.subject == "dipole"
}

fn row(
    line: &BenchRow,
    stands_out: bool,
    columns: &[Column],
    labels: &[String],
    more: &str,
) -> String {
    let class = if stands_out { " class=\"own\"" } else { "" };
    let mut row = format!(
        "<tr{class} data-bench=\"{}\" data-subject=\"{}\" data-link=\"{}\" data-testbed=\"{}\" \
         data-size=\"{}\">",
        escape(&line.bench),
        line.subject,
        escape(&line.link),
        line.testbed,
        line.size_bytes
    );
    for label in labels {
        row += &format!("<th>{}</th>", escape(label));
    }
    for (field, _, factor, value) in columns {
        row += &match value(line) {
            None => "<td></td>".to_owned(),
            Some(value) => format!(
                "<td data-field=\"{field}\" data-value=\"{value}\">{}</td>",
                digits(value * factor)
            ),
        };
    }
    format!("{row}{more}</tr>\n")
}

fn table(headings: &str, rows: &str) -> String {
    format!(
        "<div class=\"wide\"><table><thead><tr>{headings}</tr></thead>\n<tbody>\n{rows}</tbody>\
         </table></div>\n"
    )
}
