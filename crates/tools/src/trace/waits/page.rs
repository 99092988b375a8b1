//! The page of waits: when each process waited, and in which calls.

use std::fmt::Write;

use dipole_page::{Axis, Heading, Scale, digits, document, escape, section, table};
use serde::Serialize;

use super::super::messages::{self, Messages};
use super::{CAUSE, Cause, Lane, MOST_ROWS, Waits, cause_name, float, milliseconds, percent};

const WIDTH: f64 = 900.0;
/// Room for the names of the rows.
const LEFT: f64 = 150.0;
const ROW: f64 = 34.0;
const BAR: f64 = 26.0;
/// Columns of a row: each shows which share of its time the process waited.
const COLUMNS: usize = 300;
/// Rows of the figure.
const MOST_LANES: usize = 64;

/// All causes, from the bottom of a column to its top.
const CAUSES: [(Cause, &str); 5] = [
    (Cause::Message, "#4e79a7"),
    (Cause::Room, "#f28e2b"),
    (Cause::Completion, "#59a14f"),
    (Cause::Target, "#b07aa1"),
    (Cause::Nothing, "#9c9c9c"),
];

/// The page's data.
#[derive(Serialize)]
struct Data<'a> {
    waits: &'a Waits,
    messages: Option<&'a Messages>,
}

/// Returns the whole HTML page.
pub(super) fn html(waits: &Waits, lanes: &[Lane], messages: Option<&Messages>) -> String {
    let count: u64 = waits.processes.iter().map(|one| one.waits).sum();
    let ran = format!("{} processes, {count} waits", waits.processes.len());
    let mut facts = vec![("Ran", ran)];
    facts.extend(waits.reasons.iter().map(|reason| ("Found", reason.clone())));
    facts.extend(waits.notes.iter().map(|note| ("Note", note.clone())));
    let heading = Heading {
        title: "Where the processes waited",
        text: "Waits of 20 us and more. The height of a column is the share of its time in which the process \
               waited, and its colour is the reason. Clocks of nodes are aligned by the time of day.",
        facts: &facts,
    };
    let mut body = section("Processes", &(figure(lanes) + &processes(waits)));
    body += &section("Calls", &calls(waits));
    body += &messages.map_or_else(String::new, messages::page::body);
    document(heading, &body, &Data { waits, messages })
}

fn processes(waits: &Waits) -> String {
    let rows: Vec<Vec<String>> = waits
        .processes
        .iter()
        .map(|one| {
            vec![
                one.name.clone(),
                one.program.clone(),
                one.host.clone(),
                milliseconds(one.lived_ns),
                milliseconds(one.waited_ns),
                percent(one.waited_ns, one.lived_ns),
                milliseconds(one.longest_ns),
                milliseconds(one.awaited_ns),
            ]
        })
        .collect();
    let headings = [
        "process",
        "program",
        "on",
        "lived, ms",
        "waited, ms",
        "of it",
        "longest, ms",
        "awaited, ms",
    ];
    table(&headings, &rows)
}

fn calls(waits: &Waits) -> String {
    let rows: Vec<Vec<String>> = waits
        .calls
        .iter()
        .take(MOST_ROWS)
        .map(|call| {
            let most = call.awaited.as_ref();
            vec![
                call.place.clone(),
                call.call.clone(),
                call.waits.to_string(),
                milliseconds(call.waited_ns),
                milliseconds(call.longest_ns),
                call.causes.join(", "),
                most.map_or_else(String::new, |(peer, ns)| {
                    format!("{peer} ({})", percent(*ns, call.waited_ns))
                }),
                call.path.clone(),
            ]
        })
        .collect();
    let headings = [
        "at",
        "call",
        "waits",
        "ms",
        "longest, ms",
        "for",
        "most for",
        "from",
    ];
    table(&headings, &rows)
}

/// How long a process waited in each column, by cause, in nanoseconds.
fn waited(lane: &Lane, column_ns: u64) -> Vec<[u64; CAUSES.len()]> {
    let mut columns = vec![[0; CAUSES.len()]; COLUMNS];
    for slice in &lane.slices {
        let name = slice.texts.iter().find(|(name, _)| *name == CAUSE);
        let cause = CAUSES
            .iter()
            .position(|(cause, _)| name.is_some_and(|(_, text)| text == cause_name(*cause)));
        let Some(cause) = cause else { continue };
        let mut from_ns = slice.from_ns;
        while from_ns < slice.to_ns {
            let column = from_ns / column_ns;
            let to_ns = slice.to_ns.min((column + 1) * column_ns);
            if let Some(waited) = columns.get_mut(usize::try_from(column).unwrap_or(COLUMNS)) {
                waited[cause] += to_ns - from_ns;
            }
            from_ns = to_ns;
        }
    }
    columns
}

fn figure(lanes: &[Lane]) -> String {
    let ends = lanes.iter().flat_map(|lane| &lane.slices);
    let end_ns = ends.map(|slice| slice.to_ns).max().unwrap_or(0);
    let milliseconds = [0.0, float(end_ns) * 1e-6];
    let Some(axis) = Axis::over(Scale::Linear, milliseconds.into_iter()) else {
        return String::new();
    };
    let x = |ms: f64| LEFT + axis.position(ms) * (WIDTH - LEFT - 20.0);
    let shown = &lanes[..lanes.len().min(MOST_LANES)];
    let rows = (0_u32..).map(f64::from);
    let bottom = rows.clone().nth(shown.len()).unwrap_or(0.0) * ROW;
    let mut svg = format!(
        "<figure class=\"full\">{}<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {}\" role=\"img\" \
         aria-label=\"waits of each process over time\">\n",
        legend(),
        bottom + 40.0
    );
    for tick in axis.ticks() {
        let at = x(tick.value);
        let _text = writeln!(
            svg,
            "<g class=\"axes\"><path d=\"M{at:.1} 0V{bottom:.1}\"/>\
             <text class=\"x\" x=\"{at:.1}\" y=\"{:.1}\">{}</text></g>",
            bottom + 16.0,
            escape(&tick.label)
        );
    }
    let column_ns = end_ns / COLUMNS as u64 + 1;
    let column_ms = float(column_ns) * 1e-6;
    for (lane, row) in shown.iter().zip(rows) {
        let foot = row * ROW + (ROW + BAR) / 2.0;
        let _text = writeln!(
            svg,
            "<text class=\"key\" style=\"text-anchor: start\" x=\"0\" y=\"{:.1}\">{}</text>",
            foot - BAR * 0.3,
            escape(&lane.name)
        );
        for (column, waited) in (0_u32..).map(f64::from).zip(waited(lane, column_ns)) {
            let from_ms = column * column_ms;
            let (left, right) = (x(from_ms), x(from_ms + column_ms));
            let mut top = foot;
            for ((cause, colour), ns) in CAUSES.iter().zip(waited) {
                let share = float(ns) / float(column_ns);
                if share < 0.01 {
                    continue;
                }
                let height = share.min(1.0) * BAR;
                top -= height;
                let _text = writeln!(
                    svg,
                    "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{height:.1}\" \
                     fill=\"{colour}\"><title>{} ms: {:.0} % {}</title></rect>",
                    right - left,
                    digits(from_ms),
                    100.0 * share,
                    cause_name(*cause)
                );
            }
        }
    }
    let _text = writeln!(
        svg,
        "<text class=\"key\" style=\"text-anchor: end\" x=\"{WIDTH:.1}\" y=\"{:.1}\">ms</text></svg>",
        bottom + 34.0
    );
    if lanes.len() > shown.len() {
        let left = lanes.len() - shown.len();
        let _text = writeln!(svg, "<p class=\"remark\">{left} more are not shown.</p>");
    }
    svg + "</figure>\n"
}

fn legend() -> String {
    let entries: String = CAUSES
        .iter()
        .map(|(cause, colour)| {
            format!(
                "<li><svg width=\"12\" height=\"12\"><rect width=\"12\" height=\"12\" fill=\"{colour}\"/>\
                 </svg>{}</li>",
                cause_name(*cause)
            )
        })
        .collect();
    format!("<ul class=\"legend\">{entries}</ul>")
}
