//! The page of `dipole trace --html`.

use dipole_bsp::trace::total;
use dipole_page::{Heading, digits, document, escape, section, table};

use super::figure;
use super::run::{Run, float};
use super::summary::Summary;
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
        section("Calls", &calls(summary)),
        section(
            "Call graph",
            &(tree(&summary.tree, &summary.hottest) + &balance(run)),
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
        "sent again",
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

/// Totals of each rank (thesis, figure 6.9).
fn balance(run: &Run<'_>) -> String {
    let rows: Vec<Vec<String>> = (0..run.ranks())
        .map(|rank| {
            let sum = |of: &dyn Fn(&super::run::Superstep<'_>) -> u64| {
                let values = run.supersteps.iter().map(of);
                float(total(values))
            };
            vec![
                rank.to_string(),
                digits(sum(&|one| one.steps[rank].compute_ns()) * 1e-6),
                digits(sum(&|one| one.steps[rank].sync_ns()) * 1e-6),
                format!("{:.1}", sum(&|one| one.out[rank]) * 1e-3),
                format!("{:.1}", sum(&|one| one.inward[rank]) * 1e-3),
                format!("{:.0}", sum(&|one| u64::from(one.steps[rank].repeats))),
                format!("{:.0}", sum(&|one| u64::from(one.steps[rank].ack_requests))),
                format!("{:.0}", sum(&|one| u64::from(one.steps[rank].stalls))),
            ]
        })
        .collect();
    let headings = [
        "rank",
        "computes, ms",
        "in calls, ms",
        "out, kB",
        "in, kB",
        "sent again",
        "ack requests",
        "stalls",
    ];
    format!("<h3>Ranks</h3>\n{}", table(&headings, &rows))
}

fn deviations(summary: &Summary) -> String {
    let predictions = &summary.predictions;
    let mut html = format!(
        "<p class=\"remark\">By {}. In all {} ms predicted, {} ms measured; half of the supersteps are predicted to \
         {:.0} % or better.</p>\n",
        escape(&predictions.basis),
        digits(predictions.predicted_ns * 1e-6),
        digits(predictions.measured_ns * 1e-6),
        100.0 * predictions.median_error
    );
    let headings = [
        "superstep",
        "call",
        "h, bytes",
        "predicted, ms",
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
                digits(one.measured_ns * 1e-6),
                one.reason.clone(),
            ]
        })
        .collect();
    html += &table(&headings, &rows);
    html
}
