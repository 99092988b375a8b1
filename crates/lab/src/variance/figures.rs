//! The page of `dipole-lab variance --html`: figures 7.1 to 7.5 of the thesis.

use statrs::distribution::Continuous;

use super::{EdgeRegression, H_BYTES, Relation, VarianceRow, links_of};
use crate::variance::fit::{self, edge_distribution, largest_density, largest_of};
use dipole_bench::page::{Chart, Point, Scale, curves_in_order as curves, figures_page, table_of};
use dipole_bench::statistics::as_float;

/// Points of a curve that is drawn from a formula.
const STEPS: u32 = 48;
/// Limit of points of an edge's distribution.
const MOST_POINTS: usize = 60;

fn systems(lines: &[VarianceRow]) -> Vec<&str> {
    let mut systems: Vec<&str> = Vec::new();
    for line in lines {
        if !systems.contains(&&*line.system) {
            systems.push(&line.system);
        }
    }
    systems
}

fn id(figure: &str, system: &str) -> String {
    let plain = |letter: char| {
        if letter.is_alphanumeric() {
            letter
        } else {
            '-'
        }
    };
    format!("{figure}-{}", system.chars().map(plain).collect::<String>())
}

fn point(x: f64, y: f64, note: String) -> Point {
    Point {
        x,
        y,
        spread: None,
        note,
    }
}

/// Returns a histogram as the density in the middle of each class, up to the 99th percentile, because
/// outliers would compress the rest of the figure.
fn histogram(values: &[f64]) -> Vec<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    let low = sorted[0];
    let high = sorted[(count * 99).div_ceil(100).max(1) - 1];
    let classes = (1_u32..).find(|classes| (classes * classes) as usize >= count);
    let classes = classes.unwrap_or(1);
    let width = (high - low) / f64::from(classes);
    if width <= 0.0 {
        return Vec::new();
    }
    let class = |index: u32| {
        let (from, to) = (
            low + width * f64::from(index),
            low + width * f64::from(index + 1),
        );
        let is_last = index + 1 == classes;
        let within = |value: &&f64| **value >= from && (**value < to || is_last && **value <= high);
        let inside = sorted.iter().filter(within).count() as u64;
        let density = as_float(inside) / as_float(count as u64) / width;
        (f64::midpoint(from, to), density)
    };
    (0..classes).map(class).collect()
}

/// Returns a density over the range of the values.
fn drawn(values: (f64, f64), density: impl Fn(f64) -> f64) -> Vec<Point> {
    let (low, high) = values;
    let places = (0..=STEPS).map(|step| low + (high - low) * f64::from(step) / f64::from(STEPS));
    places
        .map(|x| point(x, density(x), String::new()))
        .collect()
}

/// Figure 7.1: for each system, the distribution of the largest number of processes that jobs have, too.
fn distributions(lines: &[VarianceRow]) -> Vec<Chart> {
    let mut charts = Vec::new();
    let measured = lines.iter().filter(|line| !line.is_simulated);
    let most = measured.map(|line| line.p).max();
    for system in systems(lines) {
        let own = lines
            .iter()
            .filter(|line| line.system == system && line.relation == Relation::Random);
        let fits = |line: &&VarianceRow| most.is_none_or(|most| line.p <= most);
        let Some(line) = own.filter(fits).max_by_key(|line| line.p) else {
            continue;
        };
        let histogram = histogram(&line.g_ns_per_byte);
        let ends = histogram.first().zip(histogram.last());
        let Some(range) = ends.map(|(first, last)| (first.0, last.0)) else {
            continue;
        };
        let measured = histogram
            .iter()
            .map(|&(x, y)| point(x, y, format!("{x:.3} ns/B: {y:.3}")));
        let mut named = vec![("measured".to_owned(), measured.collect())];
        if let Some(normal) = line.fit.as_normal() {
            let name = format!("normal (P {:.3})", line.fit.normal.chance);
            named.push((name, drawn(range, |x| normal.pdf(x))));
        }
        if let Some(of) = line.fit.as_log_normal() {
            let name = format!("log-normal (P {:.3})", line.fit.log_normal.chance);
            named.push((name, drawn(range, |x| of.pdf(x))));
        }
        charts.push(Chart {
            id: id("distribution", system),
            title: format!("Distribution of g: {system}, p = {} (figure 7.1)", line.p),
            text: "Random relations, up to the 99th percent. P: the chance that a sample of the fitted \
                   distribution lies as far from it (Anderson-Darling).",
            x: (Scale::Range, "g, ns per byte"),
            y: (Scale::Linear, "density"),
            curves: curves(named),
        });
    }
    charts
}

/// Figure 7.2: the density at p = 4 as predicted from p = 2, by links and by edges.
fn predictions(lines: &[VarianceRow]) -> Vec<Chart> {
    let mut charts = Vec::new();
    for system in systems(lines) {
        let of = |p: u32| {
            let mut own = lines.iter().filter(|line| line.system == system);
            own.find(|line| line.p == p && line.relation == Relation::TotalExchange)
        };
        let (Some(two), Some(four)) = (of(2), of(4)) else {
            continue;
        };
        let Some(normal) = two.fit.as_normal() else {
            continue;
        };
        let reach = 4.0 * two.fit.sd;
        let range = (two.fit.mean - reach, two.fit.mean + 1.5 * reach);
        let range = (range.0.max(0.0), range.1);
        let measured = histogram(&four.g_ns_per_byte);
        let measured = measured
            .iter()
            .map(|&(x, y)| point(x, y, format!("{x:.3} ns/B: {y:.3}")));
        let named = vec![
            ("measured, p = 4".to_owned(), measured.collect()),
            ("p = 2, normal".to_owned(), drawn(range, |x| normal.pdf(x))),
            (
                "predicted by 6 links".to_owned(),
                drawn(range, |x| largest_density(&normal, links_of(4), x)),
            ),
            (
                "predicted by edges".to_owned(),
                drawn(range, |x| largest_density(&normal, 2.0, x)),
            ),
        ];
        charts.push(Chart {
            id: id("links", system),
            title: format!("Density at p = 4 predicted from p = 2: {system} (figure 7.2)"),
            text: "If variance came from the 6 links alone, or from twice as many edges. Total exchanges.",
            x: (Scale::Range, "g, ns per byte"),
            y: (Scale::Linear, "density"),
            curves: curves(named),
        });
    }
    charts
}

/// Figure 7.3: the distributions of one edge.
fn edges(lines: &[VarianceRow]) -> Vec<Chart> {
    let mut charts = Vec::new();
    for system in systems(lines) {
        let own = lines
            .iter()
            .filter(|line| line.system == system && line.relation == Relation::TotalExchange);
        let named = own.map(|line| {
            let all = edge_distribution(&line.g_ns_per_byte, line.p);
            // Without the slowest percent, which would compress the rest of the figure.
            let kept = (all.len() * 99).div_ceil(100);
            let every = kept.div_ceil(MOST_POINTS).max(1);
            let points = all[..kept].iter().step_by(every).map(|&(g, share)| {
                let note = format!("p = {}: {share:.3} at most {g:.3} ns/B", line.p);
                point(g, share, note)
            });
            (format!("p = {}", line.p), points.collect())
        });
        // With many processes nearly all supersteps are in the slowest percent of an edge.
        let named: Vec<(String, Vec<Point>)> = named
            .filter(|(_, points): &(_, Vec<_>)| points.len() > 1)
            .collect();
        if named.is_empty() {
            continue;
        }
        charts.push(Chart {
            id: id("edges", system),
            title: format!("Edge distributions: {system} (figure 7.3)"),
            text: "The share of an edge's supersteps that take at most so long (eq. 7.2), up to the 99th \
                   percent; the closer the curves, the less an edge knows of the number of processes.",
            x: (Scale::Range, "g of an edge, ns per byte"),
            y: (Scale::Linear, "share"),
            curves: curves(named),
        });
    }
    charts
}

/// Figure 7.4: time of the same h-relation.
fn times(lines: &[VarianceRow]) -> Chart {
    let named = systems(lines).into_iter().map(|system| {
        let own = lines
            .iter()
            .filter(|line| line.system == system && line.relation == Relation::TotalExchange);
        let points = own.map(|line| {
            let (ms, sd) = (line.time_ns * 1e-6, line.time_sd_ns * 1e-6);
            Point {
                x: f64::from(line.p),
                y: ms,
                spread: Some(((ms - sd).max(ms * 0.05), ms + sd)),
                note: format!("{system}, p = {}: {ms:.4} ms, sd {sd:.4}", line.p),
            }
        });
        (system.to_owned(), points.collect())
    });
    Chart {
        id: "times".to_owned(),
        title: format!(
            "Time of an h-relation of {} words (figure 7.4)",
            H_BYTES / 4
        ),
        text: "Total exchanges, mean; bars reach a standard deviation to both sides. Jobs here have 2 cores' \
               worth of turns, simulated nodes a processor each.",
        x: (Scale::Number, "processes"),
        y: (Scale::Number, "time, ms"),
        curves: curves(named.collect()),
    }
}

/// Figure 7.5: the mean at p = 4 over the deviation at p = 2.
fn deviations(lines: &[VarianceRow]) -> Vec<Chart> {
    let mut charts = Vec::new();
    for system in systems(lines) {
        let of = |p: u32| {
            let mut own = lines.iter().filter(|line| line.system == system);
            own.find(|line| line.p == p && line.relation == Relation::TotalExchange)
        };
        let (Some(two), Some(four)) = (of(2), of(4)) else {
            continue;
        };
        let (mean, sd) = (two.fit.mean, two.fit.sd);
        let most = 2.0 * sd;
        let by = |count: f64| {
            let places = (0..=16).map(|step| most * f64::from(step) / 16.0);
            let points = places.map(|sd| {
                let (predicted, _) = largest_of((mean, sd), count);
                point(sd, predicted, format!("sd {sd:.4}: {predicted:.4} ns/B"))
            });
            points.collect::<Vec<_>>()
        };
        let found = format!(
            "measured: sd {sd:.4} at p = 2, mean {:.4} at p = 4",
            four.fit.mean
        );
        let named = vec![
            ("measured".to_owned(), vec![point(sd, four.fit.mean, found)]),
            ("predicted by 6 links".to_owned(), by(links_of(4))),
            ("predicted by edges".to_owned(), by(2.0)),
        ];
        charts.push(Chart {
            id: id("deviation", system),
            title: format!("Mean at p = 4 by the deviation at p = 2: {system} (figure 7.5)"),
            text: "What a mean as measured at p = 2 becomes with four processes, if only its deviation were \
                   another (eq. 7.1), beside what was measured.",
            x: (Scale::Linear, "standard deviation at p = 2, ns per byte"),
            y: (Scale::Linear, "mean of g at p = 4, ns per byte"),
            curves: curves(named),
        });
    }
    charts
}

fn numbers(lines: &[VarianceRow]) -> String {
    let headings = [
        "system",
        "p",
        "relation",
        "supersteps",
        "time, ms",
        "g, ns/B",
        "sd, %",
        "P normal",
        "P log-normal",
        "edge g",
        "edge sd, %",
        "by edges",
        "by links",
        "exponent",
    ];
    let or = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.3}"));
    let rows = lines.iter().map(|line| {
        let fit = &line.fit;
        vec![
            line.system.clone(),
            line.p.to_string(),
            match line.relation {
                Relation::TotalExchange => "total exchange".to_owned(),
                Relation::Random => "random".to_owned(),
            },
            fit.count.to_string(),
            format!("{:.4}", line.time_ns * 1e-6),
            format!("{:.4}", fit.mean),
            format!("{:.2}", fit.sd / fit.mean * 100.0),
            format!("{:.4}", fit.normal.chance),
            format!("{:.4}", fit.log_normal.chance),
            format!("{:.4}", line.edge_mean),
            format!("{:.2}", line.edge_sd / line.edge_mean * 100.0),
            or(line.by_edges.map(|it| it.mean)),
            or(line.by_links.map(|it| it.mean)),
            or(line.exponent.map(|it| it.likely)),
        ]
    });
    table_of("All distributions", &headings, &rows.collect::<Vec<_>>())
}

fn slopes(regressions: &[EdgeRegression]) -> String {
    if regressions.is_empty() {
        return String::new();
    }
    let rows = regressions.iter().map(|line| {
        let fit::Slope {
            slope, low, high, ..
        } = line.edge_regression;
        let or = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.5}"));
        vec![
            line.system.clone(),
            format!("{slope:.5}"),
            or(low),
            or(high),
            format!("{:.2}", line.relative_slope * 100.0),
        ]
    });
    let headings = [
        "system",
        "ns/B for each process more",
        "from (95 %)",
        "to",
        "by g of the fewest, %",
    ];
    table_of(
        "Mean g of an edge over p",
        &headings,
        &rows.collect::<Vec<_>>(),
    )
}

/// Returns the page with all figures.
pub(super) fn page(lines: &[VarianceRow], regressions: &[EdgeRegression]) -> String {
    let mut charts = distributions(lines);
    charts.extend(predictions(lines));
    charts.extend(edges(lines));
    charts.push(times(lines));
    charts.extend(deviations(lines));
    let facts = [
        ("Program", format!("dipole {}", env!("CARGO_PKG_VERSION"))),
        ("Command", std::env::args().collect::<Vec<_>>().join(" ")),
        ("System", dipole_bench::machine::description()),
    ];
    let words = (
        "Variance of supersteps",
        "How much supersteps differ, and what that makes of larger machines. By jobs on this machine, and \
         simulated in virtual time with the engine that programs use.",
    );
    let tables = numbers(lines) + &slopes(regressions);
    figures_page(words, &facts, &charts, &tables, &lines)
}

#[cfg(test)]
mod tests {
    use statrs::distribution::Normal;

    use super::*;

    #[test]
    fn a_histogram_is_a_density() {
        let values: Vec<f64> = (0..1000).map(|index| f64::from(index) / 100.0).collect();
        let classes = histogram(&values);
        let width = classes[1].0 - classes[0].0;
        let sum: f64 = classes.iter().map(|(_, density)| density * width).sum();
        assert!((sum - 0.99).abs() < 0.02, "{sum}");
        assert!(histogram(&[1.0; 9]).is_empty());
    }

    #[test]
    fn a_density_that_is_drawn_ends_where_it_shall() {
        let normal = Normal::new(1.0, 0.1).expect("a distribution");
        let points = drawn((0.5, 1.5), |x| normal.pdf(x));
        assert_eq!(
            (points[0].x, points.last().map(|it| it.x)),
            (0.5, Some(1.5))
        );
    }
}
