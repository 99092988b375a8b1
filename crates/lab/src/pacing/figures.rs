//! The page of `dipole-lab pacing --html`.

use super::PacingRow;
use crate::cluster::PIECE_BYTES;
use dipole_bench::page::{Chart, Point, Scale, curves_in_order as curves, figures_page};

/// Throughput of slotted 1-persistent CSMA/CD over load (thesis (4.1)), both relative to the capacity;
/// `a` is the propagation delay relative to the time of a frame.
fn model(load: f64, a: f64) -> f64 {
    let (x, e) = (a * load, |times: f64| (-times * a * load).exp());
    let success = load * e(3.0) * (3.0 - 2.0 * e(1.0));
    let cycle = (1.0 + a) * success + 3.0
        - 3.0 * (1.0 + a) * load * (-(1.0 + a) * load).exp()
        - 3.0 * e(1.0)
        + 3.0 * load * (-(1.0 + 2.0 * a) * load).exp()
        + e(3.0)
        - (1.0 / a - 2.0) * x * (-(1.0 + 4.0 * a) * load).exp();
    success / cycle
}

fn point(x: f64, y: f64, spread: Option<(f64, f64)>, note: String) -> Point {
    Point { x, y, spread, note }
}

/// Groups rows by name, in order of appearance.
fn grouped<'a>(
    lines: impl Iterator<Item = &'a PacingRow>,
    name: impl Fn(&PacingRow) -> String,
    point: impl Fn(&PacingRow) -> Point,
) -> Vec<(String, Vec<Point>)> {
    let mut groups: Vec<(String, Vec<Point>)> = Vec::new();
    for line in lines {
        let (name, point) = (name(line), point(line));
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push(point),
            None => groups.push((name, vec![point])),
        }
    }
    groups
}

/// Chart of delivery times over the duration of a slot.
fn times<'a>(
    lines: impl Iterator<Item = &'a PacingRow>,
    name: impl Fn(&PacingRow) -> String,
    x: impl Fn(&PacingRow) -> f64,
    unit: &str,
) -> Vec<(String, Vec<Point>)> {
    grouped(lines, name, |line| {
        let ms = |ns: f64| ns * 1e-6;
        let (least, most) = (ms(line.least_ns as f64), ms(line.most_ns as f64));
        let (x, y) = (x(line), ms(line.time_ns));
        let note = format!("{x}{unit}: {y:.2} ms ({least:.2}..{most:.2})");
        point(x, y, Some((least, most)), note)
    })
}

/// Chart of shares over the duration of a slot.
fn shares<'a>(
    lines: impl Iterator<Item = &'a PacingRow>,
    name: impl Fn(&PacingRow) -> String,
    x: impl Fn(&PacingRow) -> f64,
    unit: &str,
    share: impl Fn(&PacingRow) -> f64,
) -> Vec<(String, Vec<Point>)> {
    grouped(lines, name, |line| {
        let (x, percent) = (x(line), 100.0 * share(line));
        point(x, percent, None, format!("{x}{unit}: {percent:.3} %"))
    })
}

fn loads(lines: &[PacingRow]) -> [Chart; 2] {
    let of = |carrier: &'static str| {
        let own = lines.iter().filter(|line| line.figure == "4.2");
        own.filter(move |line| line.carrier == carrier)
    };
    // Delivered load relative to the capacity.
    let carried = |line: &PacingRow| line.efficiency * line.arrived;
    let mut bus = grouped(
        of("bus"),
        |line| format!("simulated, p = {}", line.processes),
        |line| {
            let x = line.applied.unwrap_or(0.0);
            let note = format!(
                "offered {:?}: G {x:.2}, S {:.3}",
                line.offered,
                carried(line)
            );
            point(x, carried(line), None, note)
        },
    );
    let a = 25.65 / 1_230.4;
    let loads = (0..=30).map(|step| 10_f64.powf(f64::from(step) / 12.0 - 1.0));
    let by_model = loads.map(|load| point(load, model(load, a), None, String::new()));
    bus.push(("model (4.1)".to_owned(), by_model.collect()));
    let switch = grouped(
        of("switch"),
        |line| match line.chunk_bytes {
            PIECE_BYTES => "packets".to_owned(),
            bytes => format!("bursts of {} KiB", bytes >> 10),
        },
        |line| {
            let x = line.offered.unwrap_or(0.0);
            let note = format!("G {x}, S {:.3}", carried(line));
            point(x, carried(line), None, note)
        },
    );
    [
        Chart {
            id: "load-bus".into(),
            title: "Load and throughput, bus (figure 4.2)".into(),
            text: "Frames that pass by frames begun, both by what the bus carries: 10 Mbit/s, a cable of \
                   25.65 µs. Nothing is held back or repeated.",
            x: (Scale::Number, "load G"),
            y: (Scale::Linear, "throughput S"),
            curves: curves(bus),
        },
        Chart {
            id: "load-switch".into(),
            title: "Load and throughput, switch".into(),
            text: "8 processes send to the others in random orders at random times; 1 Gbit/s, queues of \
                   64 KiB. Nothing is held back or repeated. Both by what the links carry.",
            x: (Scale::Linear, "load G of each link"),
            y: (Scale::Linear, "throughput S"),
            curves: curves(switch),
        },
    ]
}

fn slots(lines: &[PacingRow]) -> Vec<Chart> {
    let mut charts = Vec::new();
    for (figure, text, deviation) in [
        (
            "4.3",
            "Cyclic shift of 25,000 words on a bus of 10 Mbit/s; every packet is acknowledged within 1 ms. \
             Bars reach from the shortest to the longest. 0: without slots.",
            "4.4",
        ),
        (
            "4.6",
            "The same with acknowledgements that wait for four cycles of slots, to ride on data or to \
             acknowledge several.",
            "4.7",
        ),
    ] {
        let own = || {
            let of_figure = lines.iter().filter(move |line| line.figure == figure);
            of_figure.filter(|line| line.carrier == "bus")
        };
        let x = |line: &PacingRow| line.epsilon_ns.unwrap_or(0) as f64 * 1e-3;
        let name = |line: &PacingRow| format!("p = {}", line.processes);
        charts.push(Chart {
            id: format!("slots-{figure}"),
            title: format!("Delivery time against slots, bus (figure {figure})"),
            text,
            x: (Scale::Linear, "length of a slot, µs"),
            y: (Scale::Linear, "delivery time, ms"),
            curves: curves(times(own(), name, x, " µs")),
        });
        charts.push(Chart {
            id: format!("deviation-{figure}"),
            title: format!("Its standard deviation (figure {deviation})"),
            text: "By the mean.",
            x: (Scale::Linear, "length of a slot, µs"),
            y: (Scale::Linear, "deviation, %"),
            curves: curves(shares(own(), name, x, " µs", |line| line.g_deviation)),
        });
    }
    let own = || {
        let of_figure = lines.iter().filter(|line| line.figure == "4.6");
        of_figure.filter(|line| line.carrier == "switch")
    };
    let x = |line: &PacingRow| line.epsilon_over_chunk.unwrap_or(0.0);
    let name = |line: &PacingRow| format!("slots of {} KiB", line.chunk_bytes >> 10);
    charts.push(Chart {
        id: "slots-switch".into(),
        title: "Delivery time against slots, switch".into(),
        text: "Total exchange of 128 KiB, 8 processes, 1 Gbit/s, queues of 64 KiB. Bars reach from the \
               shortest to the longest. 0: without slots.",
        x: (Scale::Linear, "length of a slot by what its bytes need"),
        y: (Scale::Linear, "delivery time, ms"),
        curves: curves(times(own(), name, x, "")),
    });
    charts.push(Chart {
        id: "losses-switch".into(),
        title: "Lost packets against slots, switch".into(),
        text: "In the same supersteps.",
        x: (Scale::Linear, "length of a slot by what its bytes need"),
        y: (Scale::Linear, "lost packets, %"),
        curves: curves(shares(own(), name, x, "", |line| line.lost)),
    });
    charts
}

/// Returns the page with all figures.
pub(super) fn page(lines: &[PacingRow]) -> String {
    let mut charts: Vec<Chart> = loads(lines).into();
    charts.extend(slots(lines));
    let facts = [
        ("Program", format!("dipole {}", env!("CARGO_PKG_VERSION"))),
        ("Command", std::env::args().collect::<Vec<_>>().join(" ")),
        ("Packets", format!("{PIECE_BYTES} bytes of payload each")),
    ];
    figures_page(
        (
            "Order and pace of supersteps",
            "Simulated in virtual time, with the engine that programs use.",
        ),
        &facts,
        &charts,
        "",
        &lines,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_rises_with_the_load_and_falls_again() {
        let a = 25.65 / 1_200.0;
        assert!((model(0.01, a) - 0.01).abs() < 1e-3);
        let most = model(10.0, a);
        assert!(most > 0.8 && most < 0.9, "{most}");
        assert!(model(1.0, a) < most && model(200.0, a) < 0.1);
    }
}
