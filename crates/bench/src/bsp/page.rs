//! The page of `dipole calibrate supersteps --page`: l and g over the number of ranks, time over h,
//! latency of bursts over the number of messages, and tables of the parameters.

use crate::bsp::row::Row;
use crate::bsp::table::{by_order, link, longest, pattern};
use crate::page::{Chart, Curve, Point, RunInfo, Scale, measured_page};
use crate::statistics::as_float;
use dipole_page::{digits, escape};

/// A column of the tables: heading, factor, value.
type Column = (&'static str, f64, fn(&Row) -> Option<f64>);

const PARAMETERS: [Column; 11] = [
    ("s, Mflop/s", 1.0, |row| Some(row.s_mflops)),
    ("l, µs", 1e-3, |row| Some(row.l_ns)),
    ("95 % of l, ± µs", 1e-3, |row| Some(row.l_ci_ns)),
    ("one by one: median, µs", 1e-3, |row| Some(row.sync_p50_ns)),
    ("99 %, µs", 1e-3, |row| Some(row.sync_p99_ns)),
    ("with a put of 8 bytes, µs", 1e-3, |row| row.put_ns),
    ("bare datagram one way, µs", 1e-3, |row| row.one_way_ns),
    ("g, ns/byte", 1.0, |row| Some(row.g_ns_per_byte)),
    ("standard deviation of g", 1.0, |row| Some(row.g_sd)),
    ("memcpy, ns/byte", 1.0, |row| row.copy_ns_per_byte),
    ("l/g, bytes", 1.0, |row| row.half_h_bytes),
];

/// Returns the whole page.
pub(super) fn of_supersteps(facts: &RunInfo, rows: &[Row]) -> String {
    let mut body = String::new();
    let mut ranks: Vec<u32> = rows.iter().map(|row| row.p).collect();
    ranks.dedup();
    if ranks.len() > 1 {
        let figures = [latency(rows), gap(rows)].map(|chart| chart.html(""));
        body += &format!(
            "<section>\n<h2>By ranks</h2>\n{}</section>\n",
            figures.concat()
        );
    }
    for p in ranks {
        let these: Vec<&Row> = rows.iter().filter(|row| row.p == p).collect();
        let ranks = if p == 1 { "rank" } else { "ranks" };
        body += &format!("<section>\n<h2>{p} {ranks}</h2>\n");
        let behind = behind(&relations(&these)) + &orders(&these);
        body += &exchange(p, &these).html(&behind);
        for bytes in [4, 256, 1400] {
            body += &spray(p, bytes, &these).html("");
        }
        body += &format!("<h3>Parameters</h3>\n{}</section>\n", parameters(&these));
    }
    let text = "l is the time of an empty superstep, g the time per byte of a long h-relation, s the \
                speed of a processor (the BSP model). Every subject did the same work, in turns, in \
                one run: compare within this page only. Marks are medians; the bars through them \
                are their 95 % confidence intervals. Point at a mark for its numbers.";
    measured_page(("What supersteps cost", text), facts, &body, rows)
}

fn latency(rows: &[Row]) -> Chart {
    // The first entry is the call that l is measured with.
    let spread = |row: &Row| {
        let l = row.empty.first()?.ns;
        Some((l.low * 1e-3, l.high * 1e-3))
    };
    let point = |row: &Row| Point {
        x: f64::from(row.p),
        y: row.l_ns * 1e-3,
        spread: spread(row),
        note: format!(
            "{}, {} ranks: {} µs",
            name(row),
            row.p,
            digits(row.l_ns * 1e-3)
        ),
    };
    Chart {
        id: "l".into(),
        title: "l, an empty superstep".into(),
        text: "Of MPI libraries: a barrier. Less is better.",
        x: (Scale::Linear, "ranks"),
        y: (Scale::Number, "l, µs"),
        curves: by_ranks(rows, |_| true, point),
    }
}

fn gap(rows: &[Row]) -> Chart {
    let best = |row: &Row| {
        let same = longest(row).find(|one| one.call == row.call);
        same.map(|one| one.g_ns_per_byte)
    };
    let point = |row: &Row| Point {
        x: f64::from(row.p),
        y: row.g_ns_per_byte,
        // A logarithmic axis has no 0.
        spread: best(row).map(|g| (g.low.max(g.median * 0.1), g.high)),
        note: format!(
            "{}, {} ranks, by {}: {} ns/byte",
            name(row),
            row.p,
            row.call,
            digits(row.g_ns_per_byte)
        ),
    };
    Chart {
        id: "g".into(),
        title: "g, a byte of a long total exchange".into(),
        text: "By the better call of each subject; of MPI libraries that is MPI_Alltoallv or \
               MPI_Put. Less is better.",
        x: (Scale::Linear, "ranks"),
        y: (Scale::Number, "g, ns/byte"),
        curves: by_ranks(rows, |row| row.g_ns_per_byte > 0.0, point),
    }
}

/// A curve for each subject and link, over the number of ranks.
fn by_ranks(
    rows: &[Row],
    is_shown: impl Fn(&Row) -> bool,
    point: impl Fn(&Row) -> Point,
) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for row in rows.iter().filter(|row| is_shown(row)) {
        // A single rank uses no link and is shown with the links of its node.
        match curves.iter_mut().find(|curve| curve.name == name(row)) {
            Some(curve) => curve.points.push(point(row)),
            None => curves.push(curve(row, vec![point(row)])),
        }
    }
    curves
}

fn exchange(p: u32, rows: &[&Row]) -> Chart {
    let curves = rows.iter().map(|row| {
        let relations = row.relations.iter();
        let of_call =
            relations.filter(|one| one.call == row.call && pattern(one.pattern) == "exchange");
        let points = of_call.map(|one| Point {
            x: as_float(one.h_bytes as u64),
            y: one.ns.median * 1e-3,
            spread: Some((one.ns.low * 1e-3, one.ns.high * 1e-3)),
            note: format!(
                "{}, h = {}: {} µs",
                name(row),
                one.h_bytes,
                digits(one.ns.median * 1e-3)
            ),
        });
        curve(row, points.collect())
    });
    Chart {
        id: format!("exchange-{p}"),
        title: "Total exchange".into(),
        text: "Time of a superstep in which all ranks send to all ranks, by the better call of \
               each subject. Less is better.",
        x: (Scale::Bytes, "h, bytes"),
        y: (Scale::Number, "time of a superstep, µs"),
        curves: curves.collect(),
    }
}

fn spray(p: u32, bytes: usize, rows: &[&Row]) -> Chart {
    let curves = rows.iter().filter_map(|row| {
        let first = row.spray.first()?;
        let these =
            (row.spray.iter()).filter(|one| one.size_bytes == bytes && one.call == first.call);
        let points = these.map(|one| Point {
            x: as_float(one.messages as u64),
            y: one.ns.median * 1e-3,
            spread: Some((one.ns.low * 1e-3, one.ns.high * 1e-3)),
            note: format!(
                "{}, {} messages: {} µs each",
                name(row),
                one.messages,
                digits(one.ns.median * 1e-3)
            ),
        });
        Some(curve(row, points.collect()))
    });
    Chart {
        id: format!("spray-{p}-{bytes}"),
        title: format!("Spray latency of {bytes} bytes"),
        text: "A rank sends so many messages to another, which returns them when it has them all: \
               half of the time, by their number. Less is better.",
        x: (Scale::Bytes, "messages"),
        y: (Scale::Number, "time per message, µs"),
        curves: curves.collect(),
    }
}

fn curve(row: &Row, points: Vec<Point>) -> Curve {
    let family = match (row.subject, &*row.link) {
        ("dipole", "shm") => "shm",
        ("dipole", "udp") => "udp",
        ("dipole", "tcp") => "tcp",
        ("dipole", _) => "dipole",
        ("open-mpi", "shm") => "unix",
        ("open-mpi", _) => "gso",
        ("mpich", "tcp") => "peer",
        _ => "pipe",
    };
    Curve {
        name: name(row),
        family,
        points,
        end: None,
    }
}

fn name(row: &Row) -> String {
    format!("{}, {}", row.subject, link(row))
}

fn parameters(rows: &[&Row]) -> String {
    let mut headings = vec!["subject"];
    headings.extend(PARAMETERS.map(|(heading, ..)| heading));
    headings.push("g by");
    let lines = rows.iter().map(|row| {
        let mut cells = vec![name(row)];
        cells.extend(PARAMETERS.map(|(_, scale, figure)| {
            let shown = figure(row).map(|value| digits(value * scale));
            shown.unwrap_or_else(|| "–".to_owned())
        }));
        cells.push(row.call.clone());
        cells
    });
    in_table(&headings, lines)
}

/// Table of balanced and skewed relations with the largest h.
fn relations(rows: &[&Row]) -> String {
    let headings = [
        "subject",
        "pattern",
        "by",
        "h",
        "g, ns/byte",
        "mean",
        "sd",
        "99 %",
    ];
    let lines = rows.iter().flat_map(|row| {
        longest(row).map(|one| {
            let g = one.g_ns_per_byte;
            let mut cells = vec![
                name(row),
                pattern(one.pattern).to_owned(),
                one.call.clone(),
                one.h_bytes.to_string(),
            ];
            cells.extend([g.median, g.mean, g.sd, g.p99].map(digits));
            cells
        })
    });
    in_table(&headings, lines)
}

/// Table of total exchanges by order of destinations; empty if that was not measured.
fn orders(rows: &[&Row]) -> String {
    let headings = [
        "subject",
        "bytes of a message",
        "Latin square, µs",
        "sd",
        "by destination, µs",
        "sd",
        "times",
    ];
    let lines = rows.iter().flat_map(|row| {
        by_order(row).map(|(square, naive)| {
            let mut cells = vec![name(row), square.message_bytes.to_string()];
            let (square, naive) = (square.ns, naive.ns);
            for one in [square, naive] {
                cells.extend([one.median, one.sd].map(|ns| digits(ns * 1e-3)));
            }
            cells.push(digits(naive.median / square.median));
            cells
        })
    });
    let lines: Vec<Vec<String>> = lines.collect();
    if lines.is_empty() {
        return String::new();
    }
    format!(
        "<details><summary>Total exchange with and without the Latin square</summary>{}</details>\n",
        in_table(&headings, lines.into_iter())
    )
}

fn in_table(headings: &[&str], lines: impl Iterator<Item = Vec<String>>) -> String {
    let cells = |name: &str, cells: &[String]| {
        let each = cells
            .iter()
            .map(|cell| format!("<{name}>{}</{name}>", escape(cell)));
        format!("<tr>{}</tr>", each.collect::<String>())
    };
    let headings: Vec<String> = headings.iter().map(ToString::to_string).collect();
    let body: String = lines.map(|line| cells("td", &line)).collect();
    format!(
        "<div class=\"wide\"><table><thead>{}</thead><tbody>{body}</tbody></table></div>\n",
        cells("th", &headings)
    )
}

fn behind(table: &str) -> String {
    format!(
        "<details><summary>Balanced and skewed relations of the largest h</summary>{table}</details>\n"
    )
}
