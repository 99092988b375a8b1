//! The page of `dipole trace --html`.

use dipole_page::{Heading, digits, document, escape, section, table};

use super::figure;
use super::run::{Run, float, is_at_least};
use super::summary::{LEGEND, Summary};
use super::tree::Node;

/// Introduction of the page.
const TEXT: &str = "A superstep computes as long as its slowest rank, and communicates as long as the rank that \
                    was in the call for the least time. Times are durations on one clock each.";

/// Returns the whole HTML page.
pub(crate) fn html(run: &Run<'_>, summary: &Summary) -> String {
    let facts = facts(run, summary);
    let heading = Heading {
        title: "Where the time went",
        text: TEXT,
        facts: &facts,
    };
    document(heading, &body(run, summary), summary)
}

/// Everything below the heading.
pub(crate) fn body(run: &Run<'_>, summary: &Summary) -> String {
    [
        section(
            "Supersteps",
            &figure::html(run, &summary.predictions.communicate_ns),
        ),
        section("What was lost, and why", &reasons(summary)),
        section("Calls", &(calls(summary) + &legend())),
        section(
            "Call graph",
            &(tree(&summary.tree, &summary.hottest) + &balance(&summary.tree)),
        ),
        section("Predicted and measured", &deviations(summary)),
    ]
    .concat()
}

/// Summary line of a run.
pub(crate) fn facts(run: &Run<'_>, summary: &Summary) -> Vec<(&'static str, String)> {
    let head = &run.files[0].header;
    let begun = i64::try_from(head.begun_unix_ns / 1_000_000_000).unwrap_or(0);
    let begun = jiff::Timestamp::from_second(begun).unwrap_or_default();
    let ms = |ns: u64| format!("{} ms", digits(float(ns) * 1e-6));
    let mut facts = vec![
        ("Begun", begun.strftime("%F %T UTC").to_string()),
        (
            "Ran",
            format!("{}, {} supersteps", summary.place(), summary.supersteps),
        ),
        (
            "Computation",
            format!(
                "{} as the slowest rank of each superstep (sum of maxima), {} of the rank that computed \
                 most (maximum of sums)",
                ms(summary.sum_of_max_ns),
                ms(summary.max_of_sums_ns)
            ),
        ),
        ("Communication", ms(summary.communicate_ns)),
        ("Hottest path", summary.hottest.clone()),
        ("Predicted by", summary.predictions.basis.clone()),
    ];
    for clock in &summary.clocks {
        facts.push((
            "Clocks",
            format!(
                "times of rank {}'s node and rank 0's are compared to {} us at worst",
                clock.rank,
                digits(float(clock.error_ns) * 1e-3)
            ),
        ));
    }
    facts.extend(summary.notes.iter().map(|note| ("Note", note.clone())));
    facts
}

fn reasons(summary: &Summary) -> String {
    let mut html = String::new();
    for call in &summary.calls {
        for reason in &call.reasons {
            html += &format!("<li><b>{}</b>: {}</li>", escape(&call.call), escape(reason));
        }
    }
    match html.is_empty() {
        true => "<p class=\"remark\">No significant waits.</p>\n".to_owned(),
        false => format!("<ul class=\"reasons\">{html}</ul>\n"),
    }
}

fn calls(summary: &Summary) -> String {
    let headings = [
        "call",
        "supersteps",
        "compute, ms",
        "used",
        "communicate, ms",
        "predicted, ms",
        "h, kB",
        "mean, kB",
        "repeats",
        "stalls",
    ];
    let rows: Vec<Vec<String>> = summary
        .calls
        .iter()
        .map(|call| {
            vec![
                call.call.clone(),
                call.supersteps.to_string(),
                digits(float(call.compute_ns) * 1e-6),
                format!("{:.0} %", 100.0 * call.utilisation),
                digits(float(call.communicate_ns) * 1e-6),
                digits(call.predicted_communicate_ns * 1e-6),
                format!("{:.1}", float(call.h_bytes) / 1e3),
                format!("{:.1}", call.mean_bytes / 1e3),
                call.repeats.to_string(),
                call.stalls.to_string(),
            ]
        })
        .collect();
    table(&headings, &rows)
}

fn legend() -> String {
    format!("<p class=\"remark\">{}.</p>\n", escape(LEGEND))
}

/// The call graph as an indented table; the most expensive path is highlighted.
fn tree(top: &Node, hottest: &str) -> String {
    let mut rows = String::new();
    for (depth, is_hot, node) in top.rows() {
        let class = if is_hot { " class=\"own\"" } else { "" };
        let place = node.place.as_deref().unwrap_or_default();
        rows += &format!(
            "<tr{class}><th style=\"padding-left:{:.1}rem\">{} <small>{}</small></th>",
            0.65 + 1.1 * f64::from(u32::try_from(depth).unwrap_or(u32::MAX)),
            escape(&node.name),
            escape(place)
        );
        let ms = |ns: u64| digits(float(ns) * 1e-6);
        let of_all = match top.time_ns() {
            0 => 0.0,
            all => 100.0 * float(node.time_ns()) / float(all),
        };
        let balance = match node.h_bytes {
            0 => "-".to_owned(),
            h => format!("{:.0} %", 100.0 * node.mean_h_bytes / float(h)),
        };
        for cell in [
            node.supersteps.to_string(),
            format!("{of_all:.1} %"),
            ms(node.compute_ns),
            ms(node.max_of_sums_ns),
            format!("{:.0} %", 100.0 * node.used()),
            ms(node.communicate_ns),
            balance,
        ] {
            rows += &format!("<td>{cell}</td>");
        }
        rows += "</tr>\n";
    }
    format!(
        "<p class=\"remark\">Hottest path: {}. Where the sum of maxima is well above the maximum of sums, ranks are \
         slow in turns: the program is balanced as a whole, and not in its supersteps.</p>\n<div class=\"wide\">\
         <table id=\"tree\"><thead><tr><th>function</th><th>supersteps</th><th>of the time</th><th>compute, sum of \
         maxima, ms</th><th>compute, maximum of sums, ms</th><th>used by the mean rank</th><th>communicate, \
         ms</th><th>mean h by largest</th></tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n",
        escape(hottest)
    )
}

/// Nodes whose ranks are shown.
const MOST_NODES: usize = 40;

/// Times and bytes of each rank below the nodes of the call graph (thesis, figure 6.9). The first,
/// which is the whole program, is open.
fn balance(top: &Node) -> String {
    let all_ns = top.time_ns().max(1);
    let mut path: Vec<&str> = Vec::new();
    let mut html = String::from("<h3>Ranks below each function</h3>\n");
    let mut open = " open";
    let mut shown = 0;
    for (depth, _, node) in top.rows() {
        path.truncate(depth);
        path.push(&node.name);
        if shown == MOST_NODES || !is_at_least(node.time_ns(), 1, all_ns) {
            continue;
        }
        shown += 1;
        html += &format!(
            "<details{open}><summary>{}</summary>\n{}</details>\n",
            escape(&path.join(" > ")),
            ranks(node)
        );
        open = "";
    }
    html
}

fn ranks(node: &Node) -> String {
    let headings = [
        "rank",
        "computes, ms",
        "without a core, ms",
        "in calls, ms",
        "waits, ms",
        "out, kB",
        "in, kB",
        "sent again",
        "ack requests",
        "stalls",
    ];
    let rows = node.ranks.iter().enumerate().map(|(rank, part)| {
        let ms = |ns: u64| digits(float(ns) * 1e-6);
        let kilobytes = |bytes: u64| format!("{:.1}", float(bytes) * 1e-3);
        vec![
            rank.to_string(),
            ms(part.compute_ns),
            ms(part.compute_ns.saturating_sub(part.work_ns)),
            ms(part.in_calls_ns),
            ms(part.waited_ns),
            kilobytes(part.sent_bytes),
            kilobytes(part.received_bytes),
            part.repeats.to_string(),
            part.ack_requests.to_string(),
            part.stalls.to_string(),
        ]
    });
    table(&headings, &rows.collect::<Vec<_>>())
}

fn deviations(summary: &Summary) -> String {
    let predictions = &summary.predictions;
    let mut html = format!(
        "<p class=\"remark\">By {}. In all {} ms predicted{}, {} ms measured; half of the supersteps are predicted to \
         {:.0} % or better.</p>\n",
        escape(&predictions.basis),
        digits(predictions.predicted_ns * 1e-6),
        predictions.interval_text(),
        digits(predictions.measured_ns * 1e-6),
        100.0 * predictions.median_error
    );
    let headings = [
        "superstep",
        "call",
        "h, bytes",
        "predicted, ms",
        "balanced, ms",
        "measured, ms",
        "most of it, and what would help",
    ];
    let rows: Vec<Vec<String>> = predictions
        .largest
        .iter()
        .map(|one| {
            vec![
                one.superstep.to_string(),
                one.call.clone(),
                one.h_bytes.to_string(),
                digits(one.predicted_ns * 1e-6),
                digits(one.balanced_ns * 1e-6),
                digits(one.measured_ns * 1e-6),
                one.reason.clone(),
            ]
        })
        .collect();
    html += &table(&headings, &rows);
    html
}
