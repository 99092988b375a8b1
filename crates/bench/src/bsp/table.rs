//! The parameters as tables for terminals.

use crate::bsp::rank::{BY_DESTINATION, LATIN_SQUARE};
use crate::bsp::row::{Ordered, Relation, Row};
use crate::bsp::sample::Metric;
use crate::output::new_table;
use crate::statistics::as_float;
use dipole_model::Pattern;
use dipole_page::byte_size;

pub(crate) fn all(rows: &[Row]) -> String {
    let tables = [
        parameters(rows),
        empty(rows),
        relations(rows),
        contention(rows),
        orders(rows),
        spray(rows),
        packets(rows),
    ];
    tables.concat()
}

fn parameters(rows: &[Row]) -> String {
    let headings = "subject|link|p|nodes|s Mflop/s|l us|95 % of l|p50 us|p99 us|+8 B us|\
                    l / one way|g ns/B|sd|by|GB/s|copy / g|l/g";
    let mut table = new_table(headings, 2);
    for row in rows {
        table.add_row(vec![
            row.subject.to_owned(),
            link(row),
            row.p.to_string(),
            row.nodes.to_string(),
            format!("{:.0}", row.s_mflops),
            us(row.l_ns),
            format!("+-{}", us(row.l_ci_ns)),
            us(row.sync_p50_ns),
            us(row.sync_p99_ns),
            row.put_ns.map_or_else(dash, us),
            row.one_way_ns
                .map_or_else(dash, |one_way| format!("{:.2}", row.l_ns / one_way)),
            digits(row.g_ns_per_byte),
            digits(row.g_sd),
            row.call.clone(),
            digits(1.0 / row.g_ns_per_byte),
            row.copy_ns_per_byte
                .filter(|_| row.nodes == 1)
                .map_or_else(dash, |copy| format!("{:.2}", copy / row.g_ns_per_byte)),
            (row.half_h_bytes).map_or_else(dash, |h| byte_size(super::rank::whole(h))),
        ]);
    }
    format!(
        "\nparameters: l is an empty superstep, g what a byte of the longest total exchange adds \
         (median, sd of\nsingle supersteps); one way: a bare datagram between the nodes; copy: \
         memcpy by all ranks at once\n{table}\n"
    )
}

/// Table of empty supersteps with other calls than the one for l.
fn empty(rows: &[Row]) -> String {
    let mut table = new_table("subject|link|p|call|us|95 %|p99 us of batches", 2);
    let mut is_empty = true;
    for row in rows {
        for one in row.empty.iter().skip(1) {
            is_empty = false;
            table.add_row(vec![
                row.subject.to_owned(),
                link(row),
                row.p.to_string(),
                one.call.clone(),
                us(one.ns.median),
                format!("{}..{}", us(one.ns.low), us(one.ns.high)),
                us(one.ns.p99),
            ]);
        }
    }
    match is_empty {
        true => String::new(),
        false => format!(
            "\nempty supersteps by other calls (l of an MPI library is its barrier; put: a fence)\n{table}\n"
        ),
    }
}

fn relations(rows: &[Row]) -> String {
    let headings = "subject|link|p|pattern|by|h|us|p99 us|g ns/B|95 %|mean|sd|sd %|GB/s";
    let mut table = new_table(headings, 2);
    for row in rows {
        for one in longest(row) {
            let g = one.g_ns_per_byte;
            table.add_row(vec![
                row.subject.to_owned(),
                link(row),
                row.p.to_string(),
                pattern(one.pattern).to_owned(),
                one.call.clone(),
                byte_size(one.h_bytes),
                us(one.ns.median),
                us(one.ns.p99),
                digits(g.median),
                format!("{}..{}", digits(g.low), digits(g.high)),
                digits(g.mean),
                digits(g.sd),
                percent(g.sd, g.mean),
                digits(1.0 / g.median),
            ]);
        }
    }
    format!(
        "\nlong h-relations, balanced (exchange) and skewed; mean and sd of single supersteps\n{table}\n"
    )
}

/// Table of contention: relations of the same h relative to one in which no messages meet.
fn contention(rows: &[Row]) -> String {
    let mut table = new_table("subject|link|p|one to many, ns/B|many to one|exchange", 2);
    let mut is_empty = true;
    for row in rows {
        let Some(contention) = row.contention() else {
            continue;
        };
        is_empty = false;
        let factor = |pattern| {
            let factor = contention.factor(pattern);
            factor.map_or_else(dash, |factor| format!("x {factor:.2}"))
        };
        table.add_row(vec![
            row.subject.to_owned(),
            link(row),
            row.p.to_string(),
            digits(contention.one_to_many),
            factor(Pattern::ManyToOne),
            factor(Pattern::Exchange),
        ]);
    }
    match is_empty {
        true => String::new(),
        false => format!(
            "\ncontention: a byte of h when all ranks send to one, and in a complete exchange, relative to \
             one rank\nsending to all\n{table}\n"
        ),
    }
}

/// Returns the longest relation of each pattern and call.
pub(crate) fn longest(row: &Row) -> impl Iterator<Item = &Relation> {
    row.relations.iter().filter(|one| {
        let mut same = row.relations.iter();
        same.all(|other| {
            (other.pattern, &other.call) != (one.pattern, &one.call) || other.h_bytes <= one.h_bytes
        })
    })
}

/// Table of exchanges by Latin square and by order of destination.
pub(crate) fn by_order(row: &Row) -> impl Iterator<Item = (&Ordered, &Ordered)> {
    let square = (row.orders.iter()).filter(|one| one.order == LATIN_SQUARE);
    square.filter_map(|square| {
        let naive = row
            .orders
            .iter()
            .find(|one| one.order == BY_DESTINATION && one.message_bytes == square.message_bytes)?;
        Some((square, naive))
    })
}

fn orders(rows: &[Row]) -> String {
    let headings = "link|p|message|Latin square us|95 %|sd %|by destination us|95 %|sd %|x";
    let mut table = new_table(headings, 1);
    let mut is_empty = true;
    for row in rows {
        for (square, naive) in by_order(row) {
            is_empty = false;
            let mut cells = vec![
                link(row),
                row.p.to_string(),
                byte_size(square.message_bytes),
            ];
            for one in [square.ns, naive.ns] {
                cells.push(us(one.median));
                cells.push(format!("{}..{}", us(one.low), us(one.high)));
                cells.push(percent(one.sd, one.mean));
            }
            cells.push(format!("{:.2}", naive.ns.median / square.ns.median));
            table.add_row(cells);
        }
    }
    match is_empty {
        true => String::new(),
        false => format!(
            "\ntotal exchange, to the next rank first (Latin square) and to rank 0 first; single \
             supersteps\n{table}\n"
        ),
    }
}

fn spray(rows: &[Row]) -> String {
    let counts = counts(rows);
    if counts.is_empty() {
        return String::new();
    }
    let mut headings = "subject|link|p|by|bytes".to_owned();
    for count in &counts {
        headings += &format!("|{count}");
    }
    let mut table = new_table(&headings, 2);
    for row in rows {
        let mut lines: Vec<(&str, usize)> = Vec::new();
        for one in &row.spray {
            if !lines.contains(&(&one.call, one.size_bytes)) {
                lines.push((&one.call, one.size_bytes));
            }
        }
        for (call, bytes) in lines {
            let mut cells = vec![
                row.subject.to_owned(),
                link(row),
                row.p.to_string(),
                call.to_owned(),
                bytes.to_string(),
            ];
            cells.extend(counts.iter().map(|count| {
                let mut same = row.spray.iter();
                let one = same.find(|one| {
                    (&*one.call, one.size_bytes, one.messages) == (call, bytes, *count)
                });
                one.map_or_else(dash, |one| us(one.ns.median))
            }));
            table.add_row(cells);
        }
    }
    format!(
        "\nspray latency, us a message (half of there and back), by the number of messages\n{table}\n"
    )
}

fn counts(rows: &[Row]) -> Vec<usize> {
    let all = rows.iter().flat_map(|row| &row.spray);
    let mut counts: Vec<usize> = all.map(|one| one.messages).collect();
    counts.sort_unstable();
    counts.dedup();
    counts
}

fn packets(rows: &[Row]) -> String {
    let headings = "link|p|packets|units|received|repeats|only acks|ack_requests|duplicates|\
                    dropped";
    let mut table = new_table(headings, 1);
    let mut is_empty = true;
    for row in rows {
        if let Some(packets) = row.packets {
            is_empty = false;
            let share = |count: u64| {
                let units = as_float(packets.units.max(1));
                format!("{count} ({:.1} %)", 100.0 * as_float(count) / units)
            };
            table.add_row(vec![
                link(row),
                row.p.to_string(),
                packets.sent.to_string(),
                packets.units.to_string(),
                packets.received.to_string(),
                share(packets.repeats),
                share(packets.explicit_acks),
                share(packets.ack_requests),
                packets.duplicates.to_string(),
                packets.dropped.to_string(),
            ]);
        }
    }
    match is_empty {
        true => String::new(),
        false => format!(
            "\npackets of all ranks in the longest total exchanges; shares are of the units sent, \
             again too; only acks:\npackets with no unit\n{table}\n"
        ),
    }
}

pub(crate) fn pattern(what: Metric) -> &'static str {
    match what {
        Metric::Exchange => "exchange",
        Metric::Gather => "gather",
        Metric::Scatter => "scatter",
        Metric::Random => "random",
        _ => "other",
    }
}

pub(crate) fn link(row: &Row) -> String {
    match &*row.link {
        "shm" => "shm".to_owned(),
        link => format!("{link}/{}", row.testbed),
    }
}

fn us(ns: f64) -> String {
    digits(ns * 1e-3)
}

fn percent(part: f64, whole: f64) -> String {
    match 100.0 * part / whole {
        share if share.is_finite() => format!("{share:.0}"),
        _ => dash(),
    }
}

/// Formats with three significant digits; `-` after a division by zero.
fn digits(value: f64) -> String {
    match value.abs() {
        size if !size.is_finite() => dash(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn dash() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_divided_by_nothing_is_a_dash() {
        assert_eq!(digits(1.0 / 0.0), "-");
        assert_eq!(percent(0.0, 0.0), "-");
        assert_eq!(
            (digits(-12.34), percent(1.0, 4.0)),
            ("-12.3".to_owned(), "25".to_owned())
        );
    }
}
