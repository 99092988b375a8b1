//! The numbers of a report as tables: in the page below their figures, and as CSV files.

use dipole_model::MedianInterval;
use dipole_model::Profile;

use crate::output::Failure;
use crate::trace::{Run, Summary};

/// A table of the report.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) headings: Vec<&'static str>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Table {
    fn new(headings: &[&'static str]) -> Table {
        Table {
            headings: headings.to_vec(),
            rows: Vec::new(),
        }
    }

    pub(super) fn csv(&self) -> Result<Vec<u8>, Failure> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(&self.headings)?;
        for row in &self.rows {
            writer.write_record(row)?;
        }
        Ok(writer.into_inner().map_err(|error| error.to_string())?)
    }

    pub(super) fn html(&self) -> String {
        dipole_page::table(&self.headings, &self.rows)
    }
}

/// All tables with rows, with their file names.
pub(super) fn all(
    profiles: &[Profile],
    traced: Option<(&Run<'_>, &Summary)>,
) -> Vec<(&'static str, Table)> {
    let mut tables = vec![
        ("messages", messages(profiles)),
        ("gaps", gaps(profiles)),
        ("copies", copies(profiles)),
        ("costs", costs(profiles)),
    ];
    if let Some((run, summary)) = traced {
        tables.push(("calls", calls(summary)));
        tables.push(("supersteps", supersteps(run, summary)));
    }
    tables.retain(|(_, table)| !table.rows.is_empty());
    tables
}

fn number(value: f64) -> String {
    format!("{value:.3}")
}

fn three(measured: MedianInterval) -> [String; 3] {
    [measured.median, measured.low, measured.high].map(number)
}

/// The four phases of messages of one fragment.
pub(super) fn messages(profiles: &[Profile]) -> Table {
    let mut table = Table::new(&[
        "link",
        "place",
        "bytes",
        "one way, ns",
        "low",
        "high",
        "O_s, ns",
        "L, ns",
        "O_r, ns",
        "U_r, ns",
    ]);
    for profile in profiles {
        let Some(model) = &profile.point_to_point else {
            continue;
        };
        for short in &model.short {
            let mut row = vec![
                profile.link.clone(),
                model.place.clone(),
                short.bytes.to_string(),
            ];
            row.extend(three(short.trip_ns));
            let phases = [short.o_s_ns, short.l_ns, short.o_r_ns, short.u_r_ns];
            row.extend(phases.map(|phase| number(phase.median)));
            table.rows.push(row);
        }
        for long in &model.long {
            let mut row = vec![
                profile.link.clone(),
                model.place.clone(),
                long.bytes.to_string(),
            ];
            row.extend(three(long.trip_ns));
            row.extend(["", "", "", ""].map(str::to_owned));
            table.rows.push(row);
        }
    }
    table
}

/// Gaps between one message, or fragment, and the next.
pub(super) fn gaps(profiles: &[Profile]) -> Table {
    let mut table = Table::new(&[
        "link", "place", "bytes", "of", "g_s, ns", "low", "high", "g_r, ns", "low", "high",
    ]);
    for profile in profiles {
        let Some(model) = &profile.point_to_point else {
            continue;
        };
        let short = model
            .short
            .iter()
            .map(|one| (one.bytes, "messages", one.g_s_ns, one.g_r_ns));
        let long = model
            .long
            .iter()
            .map(|one| (one.bytes, "fragments", one.g_s_ns, one.g_r_ns));
        for (bytes, of, g_s, g_r) in short.chain(long) {
            let mut row = vec![
                profile.link.clone(),
                model.place.clone(),
                bytes.to_string(),
                of.to_owned(),
            ];
            row.extend(three(g_s));
            row.extend(three(g_r));
            table.rows.push(row);
        }
    }
    table
}

/// Copying within a level of the memory hierarchy.
pub(super) fn copies(profiles: &[Profile]) -> Table {
    let mut table = Table::new(&["level", "bytes", "ns per byte", "low", "high"]);
    // All profiles of a machine have the same values.
    for copy in profiles
        .iter()
        .find(|profile| !profile.copies.is_empty())
        .map_or(&[][..], |it| &it.copies)
    {
        let mut row = vec![copy.level.clone(), copy.bytes.to_string()];
        let MedianInterval { median, low, high } = copy.ns_per_byte;
        row.extend([median, low, high].map(|value| format!("{value:.5}")));
        table.rows.push(row);
    }
    table
}

/// The parameters of the BSP model.
pub(super) fn costs(profiles: &[Profile]) -> Table {
    let mut table = Table::new(&[
        "link",
        "p",
        "nodes",
        "s, Mflop/s",
        "l, ns",
        "95 % of l, ns",
        "g, ns/byte",
        "deviation of g",
    ]);
    for profile in profiles {
        for cost in &profile.cost {
            table.rows.push(vec![
                profile.link.clone(),
                cost.p.to_string(),
                cost.nodes.to_string(),
                number(cost.s_mflops),
                number(cost.l_ns),
                number(cost.l_ci_ns),
                format!("{:.5}", cost.g_ns_per_byte),
                format!("{:.5}", cost.g_sd),
            ]);
        }
    }
    table
}

fn calls(summary: &Summary) -> Table {
    let mut table = Table::new(&[
        "call",
        "supersteps",
        "compute_ns",
        "utilisation",
        "communicate_ns",
        "predicted_communicate_ns",
        "h_bytes",
        "mean_bytes",
        "repeats",
        "stalls",
        "reasons",
    ]);
    for call in &summary.calls {
        table.rows.push(vec![
            call.call.clone(),
            call.supersteps.to_string(),
            call.compute_ns.to_string(),
            number(call.utilisation),
            call.communicate_ns.to_string(),
            number(call.predicted_communicate_ns),
            call.h_bytes.to_string(),
            number(call.mean_bytes),
            call.repeats.to_string(),
            call.stalls.to_string(),
            call.reasons.join("; "),
        ]);
    }
    table
}

fn supersteps(run: &Run<'_>, summary: &Summary) -> Table {
    let mut table = Table::new(&[
        "superstep",
        "call",
        "slowest rank",
        "compute_ns",
        "mean_compute_ns",
        "communicate_ns",
        "predicted_communicate_ns",
        "widest rank",
        "h_bytes",
        "mean_bytes",
        "repeats",
        "stalls",
    ]);
    let predicted = &summary.predictions.communicate_ns;
    for (superstep, predicted_ns) in run.supersteps.iter().zip(predicted) {
        let (slowest, most_ns) = superstep.slowest();
        let (widest, h) = superstep.widest();
        table.rows.push(vec![
            superstep.number.to_string(),
            run.calls[superstep.call].clone(),
            slowest.to_string(),
            most_ns.to_string(),
            superstep.mean_compute_ns().to_string(),
            superstep.communicate_ns().to_string(),
            number(*predicted_ns),
            widest.to_string(),
            h.to_string(),
            number(superstep.mean_h()),
            superstep.repeats().sum::<u64>().to_string(),
            superstep.stalls().to_string(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_with_commas_and_quotes_come_back_from_csv() {
        let mut table = Table::new(&["a", "b, ns"]);
        table
            .rows
            .push(vec!["x, \"y\"\n".to_owned(), String::new()]);
        let bytes = table.csv().unwrap_or_else(|_| panic!("memory takes all"));
        let mut reader = csv::Reader::from_reader(&bytes[..]);
        assert_eq!(reader.headers().expect("a line"), vec!["a", "b, ns"]);
        let rows: Vec<_> = reader.records().map(|row| row.expect("a row")).collect();
        assert_eq!(rows, [vec!["x, \"y\"\n", ""]]);
    }
}
