//! `dipole-lab pacing`: effect of the order and pace of sending on supersteps, in virtual time.
//!
//! Figures of the thesis, ch. 4, and its tables 6.3 and 6.8, with the real engine on a simulated bus
//! (10 Mbit/s) and a simulated switch (1 Gbit/s, little memory). A seed determines all numbers; the
//! machine has no influence.

mod figures;
#[cfg(test)]
mod messages;

use std::error::Error;
use std::path::{Path, PathBuf};

use clap::Args;
use dipole_bench::output::{Output, PageFile, Record};
use dipole_bench::statistics::mean_and_deviation;
use dipole_bsp::superstep::schedule::Order;
use dipole_model::{Medium, Slots};
use serde::Serialize;

use crate::cluster::{Carrier, Cluster, Exchange, PIECE_BYTES, Relation, Setup, in_ns};

/// Bytes per slot of a switch: a quarter of a queue, so that two processes that leave the barrier at
/// different times may share it.
const SLOT_BYTES: usize = 16 << 10;
/// Factor by which a slot is longer than its bytes need, for clock drift and acknowledgements.
const SLACK: f64 = 1.03;
/// Supersteps that are not counted, in which receivers measure the capacity of their links.
const LEARNING: usize = 2;
const SEED: u64 = 1;
/// Ethernet at 10 Mbit/s on a cable of 2.5 km with four repeaters.
const BUS: Carrier = Carrier::Bus {
    propagation_ns: 25_650,
};
const SWITCH: Carrier = Carrier::Switch {
    queue_bytes: 64 << 10,
};

/// Supersteps in every order and at every pace, on a simulated bus and switch
#[derive(Args, Debug)]
pub(crate) struct PacingArgs {
    /// Number of supersteps behind each figure [default: 20]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Few points and supersteps, to see that everything works
    #[arg(long)]
    quick: bool,
    /// All columns, however wide the terminal
    #[arg(long)]
    wide: bool,
    /// Write an HTML page of figures
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Runs the subcommand `pacing`.
pub(crate) fn execute(args: &PacingArgs, output: &mut Output<'_>) -> Result<bool, Box<dyn Error>> {
    output.wide = args.wide;
    let default = if args.quick { 3 } else { 20 };
    let plan = PacingPlan {
        supersteps: args.rounds.unwrap_or(default) as usize,
        quick: args.quick,
    };
    measure(&plan, args.html.as_deref(), output)
}

/// The measurements to make.
#[derive(Clone, Copy, Debug)]
struct PacingPlan {
    /// Supersteps per number of ranks.
    supersteps: usize,
    /// Measure only some points of each figure.
    quick: bool,
}

/// One point of a figure or row of a table.
#[derive(Clone, Debug, Serialize)]
struct PacingRow {
    bench: &'static str,
    /// Figure or table of the thesis.
    figure: &'static str,
    carrier: &'static str,
    processes: usize,
    relation: &'static str,
    /// Message length, or its maximum.
    bytes: usize,
    order: &'static str,
    chunk_bytes: usize,
    /// No acknowledgements, flow control and retransmissions.
    blind: bool,
    ack_delay_ns: u64,
    /// Duration of the slot of a chunk; `None` without pacing.
    epsilon_ns: Option<u64>,
    /// Duration of a slot relative to the time that the medium needs for the chunk.
    epsilon_over_chunk: Option<f64>,
    /// Load offered at random, relative to the capacity.
    offered: Option<f64>,
    /// Frames begun on the medium, relative to the capacity.
    applied: Option<f64>,
    supersteps: usize,
    time_ns: f64,
    time_sd_ns: f64,
    least_ns: u64,
    most_ns: u64,
    /// Mean, relative to an always busy network.
    efficiency: f64,
    g_ns_per_byte: f64,
    /// Standard deviation relative to the mean.
    g_deviation: f64,
    /// Share of frames that were lost.
    lost: f64,
    /// Share of the payload that arrived.
    arrived: f64,
    /// Relative to packets with payload.
    acknowledgements: f64,
    repeats: u64,
    /// Efficiency and lost frames of the first superstep.
    first_efficiency: f64,
    first_lost: u64,
}

impl Record for PacingRow {
    const HEADINGS: &'static str = "on|p|relation|bytes|order|slot, us|+ack, us|of link|ms|+sd|+g ns/B|+sd %|lost %|+arrived|\
         +acks %|+repeats|+first|+lost";
    const LABELS: usize = 5;

    fn cells(&self) -> Vec<String> {
        let slot = match (self.epsilon_ns, self.offered, self.blind) {
            (_, Some(load), _) => format!("G {load}"),
            (_, _, true) => "blind".to_owned(),
            (None | Some(0), ..) => "-".to_owned(),
            (Some(ns), ..) => format!("{:.0}", ns as f64 * 1e-3),
        };
        vec![
            self.carrier.to_owned(),
            self.processes.to_string(),
            self.relation.to_owned(),
            self.bytes.to_string(),
            self.order.to_owned(),
            slot,
            format!("{:.0}", self.ack_delay_ns as f64 * 1e-3),
            format!("{:.3}", self.efficiency),
            format!("{:.2}", self.time_ns * 1e-6),
            format!("{:.2}", self.time_sd_ns * 1e-6),
            format!("{:.2}", self.g_ns_per_byte),
            format!("{:.1}", self.g_deviation * 100.0),
            format!("{:.3}", self.lost * 100.0),
            format!("{:.3}", self.arrived),
            format!("{:.1}", self.acknowledgements * 100.0),
            self.repeats.to_string(),
            format!("{:.3}", self.first_efficiency),
            self.first_lost.to_string(),
        ]
    }
}

fn name(order: Order) -> &'static str {
    match order {
        Order::LatinSquare => "Latin square",
        Order::Random { .. } => "random",
        Order::Naive => "destination",
    }
}

const ORDERS: [Order; 3] = [
    Order::LatinSquare,
    Order::Random { seed: SEED },
    Order::Naive,
];

/// Returns a cluster on a switch that sends in a Latin square without pacing.
pub(crate) fn switch() -> Setup {
    Setup {
        processes: 8,
        carrier: SWITCH,
        mbit_per_second: 1000,
        latency_ns: 5_000,
        skew_ns: 20_000,
        order: Order::LatinSquare,
        slots: None,
        chunk_bytes: 64 << 10,
        ahead: usize::MAX,
        blind: false,
        ack_delay_ns: 25_000,
        least_timeout_ns: 1_000_000,
        seed: SEED,
    }
}

pub(crate) fn bus(processes: usize) -> Setup {
    Setup {
        processes,
        carrier: BUS,
        mbit_per_second: 10,
        latency_ns: 0,
        skew_ns: 1_000_000,
        chunk_bytes: PIECE_BYTES,
        ack_delay_ns: 1_000_000,
        least_timeout_ns: 200_000_000,
        ..switch()
    }
}

/// Adds pacing, with slots of `factor` times the time that a chunk needs.
pub(crate) fn paced(setup: Setup, chunk_bytes: usize, factor: f64) -> Setup {
    let chunk_ns = setup.message_ns(chunk_bytes) as f64;
    let medium = match setup.carrier {
        Carrier::Switch { .. } => Medium::Switch,
        Carrier::Bus { .. } => Medium::Bus,
    };
    let slots = Slots {
        bytes: u32::try_from(chunk_bytes).expect("short"),
        epsilon_ns: in_ns(chunk_ns * factor),
        medium,
    };
    let processes = u32::try_from(setup.processes).expect("few");
    Setup {
        chunk_bytes,
        slots: Some(slots),
        ..acknowledged_within(setup, slots.acknowledgement_delay_ns(processes))
    }
}

/// Sets the delay of acknowledgements, and a suitable minimum retransmission timeout.
fn acknowledged_within(setup: Setup, ack_delay_ns: u64) -> Setup {
    Setup {
        ack_delay_ns,
        least_timeout_ns: setup.least_timeout_ns.max(2 * ack_delay_ns),
        ..setup
    }
}

/// Combines the slots of one setup with the acknowledgements of another.
fn acknowledging_at_once(slotted: Setup, own: Setup) -> Setup {
    Setup {
        slots: slotted.slots,
        chunk_bytes: slotted.chunk_bytes,
        ..own
    }
}

struct Pattern<'a> {
    name: &'static str,
    bytes: usize,
    relations: &'a dyn Fn(u64) -> Relation,
}

/// Measures supersteps after some that are not counted.
fn measure_one(
    figure: &'static str,
    setup: &Setup,
    pattern: &Pattern<'_>,
    load: Option<f64>,
    supersteps: usize,
) -> PacingRow {
    let mut cluster = Cluster::new(setup);
    let mut all: Vec<(Relation, Exchange)> = Vec::new();
    for number in 0..supersteps + LEARNING {
        let relation = (pattern.relations)(number as u64);
        let exchange = match load {
            Some(load) => cluster.offer(&relation, load),
            None => cluster.exchange(&relation),
        };
        all.push((relation, exchange));
    }
    let first = all[0].1;
    let counted = &all[LEARNING..];
    let times: Vec<f64> = counted.iter().map(|(_, it)| it.ns as f64).collect();
    let g = counted
        .iter()
        .map(|(relation, it)| it.ns as f64 / relation.h() as f64);
    let g: Vec<f64> = g.collect();
    let ((time_ns, time_sd_ns), (g_mean, g_sd)) =
        (mean_and_deviation(&times), mean_and_deviation(&g));
    let sum = |of: fn(&Exchange) -> u64| counted.iter().map(|(_, it)| of(it)).sum::<u64>() as f64;
    let payload: usize = counted.iter().map(|(relation, _)| relation.total()).sum();
    let acknowledgements = sum(|it| it.acknowledgements);
    let efficiency =
        counted.iter().map(|(_, it)| it.efficiency).sum::<f64>() / counted.len() as f64;
    let chunk_ns = setup.message_ns(setup.chunk_bytes) as f64;
    let packet_ns = setup.message_ns(PIECE_BYTES) as f64;
    let epsilon = setup.slots.map(|slots| slots.epsilon_ns);
    let is_bus = matches!(setup.carrier, Carrier::Bus { .. });
    PacingRow {
        bench: "pacing",
        figure,
        carrier: if is_bus { "bus" } else { "switch" },
        processes: setup.processes,
        relation: pattern.name,
        bytes: pattern.bytes,
        order: name(setup.order),
        chunk_bytes: setup.chunk_bytes,
        blind: setup.blind,
        ack_delay_ns: setup.ack_delay_ns,
        epsilon_ns: epsilon,
        epsilon_over_chunk: epsilon.map(|ns| rounded(ns as f64 / chunk_ns)),
        offered: load,
        applied: is_bus
            .then(|| rounded(sum(|it| it.attempts) * packet_ns / times.iter().sum::<f64>())),
        supersteps,
        time_ns: time_ns.round(),
        time_sd_ns: time_sd_ns.round(),
        least_ns: counted.iter().map(|(_, it)| it.ns).min().unwrap_or(0),
        most_ns: counted.iter().map(|(_, it)| it.ns).max().unwrap_or(0),
        efficiency: rounded(efficiency),
        g_ns_per_byte: rounded(g_mean),
        g_deviation: rounded(g_sd / g_mean),
        lost: (sum(|it| it.lost) / sum(|it| it.packets) * 1e6).round() / 1e6,
        arrived: rounded(sum(|it| it.received) / payload as f64),
        acknowledgements: rounded(acknowledgements / (sum(|it| it.packets) - acknowledgements)),
        repeats: counted.iter().map(|(_, it)| it.repeats).sum(),
        first_efficiency: rounded(first.efficiency),
        first_lost: first.lost,
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

impl PacingPlan {
    fn some<T: Copy>(&self, all: &[T]) -> Vec<T> {
        let every = if self.quick { 3 } else { 1 };
        all.iter().copied().step_by(every).collect()
    }

    /// Measures offered against delivered load, without flow control and retransmissions.
    fn loads(&self) -> Vec<PacingRow> {
        let mut lines = Vec::new();
        for processes in self.some(&[8, 32]) {
            let setup = Setup {
                blind: true,
                ..bus(processes)
            };
            let bytes = (640 / processes) * PIECE_BYTES;
            let pattern = Pattern {
                name: "cyclic shift",
                bytes,
                relations: &|_| Relation::cyclic_shift(processes, bytes),
            };
            for load in self.some(&[0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 4.0]) {
                lines.push(measure_one("4.2", &setup, &pattern, Some(load), 3));
            }
        }
        for chunk_bytes in [PIECE_BYTES, 16 << 10, 64 << 10] {
            let bytes = 256 << 10;
            let pattern = Pattern {
                name: "total exchange",
                bytes,
                relations: &|_| Relation::total_exchange(8, bytes),
            };
            let setup = Setup {
                blind: true,
                order: Order::Random { seed: SEED },
                chunk_bytes,
                ..switch()
            };
            for load in self.some(&[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2]) {
                // The load of all eight interfaces.
                let mut line = measure_one("4.2", &setup, &pattern, Some(load * 8.0), 3);
                line.offered = Some(load);
                lines.push(line);
            }
        }
        lines
    }

    /// Measures the time of delivery over the duration of slots.
    fn slots(&self) -> Vec<PacingRow> {
        let mut lines = Vec::new();
        let words = 25_000;
        for (figure, delay_cycles) in [("4.3", 0.0), ("4.6", 4.0)] {
            for processes in self.some(&[2, 4, 6, 8]) {
                let pattern = Pattern {
                    name: "cyclic shift",
                    bytes: 4 * words,
                    relations: &|_| Relation::cyclic_shift(processes, 4 * words),
                };
                let base = bus(processes);
                let packet_us = base.message_ns(PIECE_BYTES) as f64 * 1e-3;
                let all_us = [
                    0, 400, 800, 1000, 1100, 1200, 1300, 1400, 1500, 1600, 1700, 1800, 2000,
                ];
                for epsilon_us in self.some(&all_us) {
                    let factor = f64::from(epsilon_us) / packet_us;
                    let mut setup = paced(base, PIECE_BYTES, factor);
                    setup.slots = setup.slots.filter(|_| epsilon_us > 0);
                    // Acknowledge once in several cycles, or every packet.
                    let cycle_us = packet_us * SLACK * processes as f64;
                    let delay_us = cycle_us * delay_cycles;
                    let delay_ns = in_ns(delay_us * 1e3).max(base.ack_delay_ns);
                    setup = acknowledged_within(setup, delay_ns);
                    let mut line = measure_one(figure, &setup, &pattern, None, self.supersteps);
                    line.epsilon_ns = Some(epsilon_us as u64 * 1000);
                    lines.push(line);
                }
            }
        }
        for (chunk_bytes, bytes) in [(SLOT_BYTES, 128 << 10), (64 << 10, 128 << 10)] {
            let pattern = Pattern {
                name: "total exchange",
                bytes,
                relations: &|_| Relation::total_exchange(8, bytes),
            };
            let all = [
                0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.03, 1.1, 1.2, 1.35, 1.5,
            ];
            for factor in self.some(&all) {
                let setup = match factor {
                    0.0 => Setup {
                        chunk_bytes,
                        ..switch()
                    },
                    _ => paced(switch(), chunk_bytes, factor),
                };
                let mut line = measure_one("4.6", &setup, &pattern, None, self.supersteps);
                line.epsilon_over_chunk = Some(factor);
                lines.push(line);
            }
        }
        lines
    }

    /// Measures total exchanges in every order, with and without pacing.
    fn orders(&self) -> Vec<PacingRow> {
        let mut lines = Vec::new();
        for bytes in self.some(&[64 << 10, 128 << 10, 1 << 20]) {
            let pattern = Pattern {
                name: "total exchange",
                bytes,
                relations: &|_| Relation::total_exchange(8, bytes),
            };
            for order in ORDERS {
                let own = Setup { order, ..switch() };
                let blind = Setup {
                    blind: true,
                    chunk_bytes: PIECE_BYTES,
                    ..own
                };
                let slotted = paced(own, SLOT_BYTES, SLACK);
                let at_once = acknowledging_at_once(slotted, own);
                for setup in [slotted, at_once, own, blind] {
                    lines.push(measure_one("6.8", &setup, &pattern, None, self.supersteps));
                }
            }
        }
        lines
    }

    /// Measures random relations, some of them skewed.
    fn relations(&self) -> Vec<PacingRow> {
        let bytes = 256 << 10;
        let pattern = Pattern {
            name: "random",
            bytes,
            relations: &|seed| Relation::random(8, bytes, seed),
        };
        let mut lines = Vec::new();
        for order in ORDERS {
            let own = Setup { order, ..switch() };
            for setup in [
                paced(own, SLOT_BYTES, SLACK),
                acknowledging_at_once(paced(own, SLOT_BYTES, SLACK), own),
                paced(own, 4 << 10, SLACK),
                own,
            ] {
                lines.push(measure_one(
                    "6.3",
                    &setup,
                    &pattern,
                    None,
                    2 * self.supersteps,
                ));
            }
        }
        lines
    }
}

fn measure(
    plan: &PacingPlan,
    html: Option<&Path>,
    output: &mut Output<'_>,
) -> Result<bool, Box<dyn Error>> {
    output.remark(&format!(
        "in virtual time, seed {SEED}, {} supersteps each after {LEARNING}",
        plan.supersteps
    ))?;
    let mut all = Vec::new();
    type Part = fn(&PacingPlan) -> Vec<PacingRow>;
    let parts: [(&str, Part); 4] = [
        ("Load and throughput (figure 4.2)", PacingPlan::loads),
        ("Slots (figures 4.3, 4.4, 4.6, 4.7)", PacingPlan::slots),
        ("Order of destinations (table 6.8)", PacingPlan::orders),
        ("Random relations (table 6.3)", PacingPlan::relations),
    ];
    for (title, part) in parts {
        let lines = part(plan);
        output.print_records(&format!("\n{title}\n"), &lines, "")?;
        all.extend(lines);
    }
    if let Some(page) = html.map(PageFile::open).transpose()? {
        page.write(&figures::page(&all), output)?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total_exchange(setup: &Setup) -> PacingRow {
        let bytes = 128 << 10;
        let pattern = Pattern {
            name: "total exchange",
            bytes,
            relations: &|_| Relation::total_exchange(8, bytes),
        };
        measure_one("6.8", setup, &pattern, None, 6)
    }

    #[test]
    fn a_paced_total_exchange_fills_the_links_and_loses_nothing() {
        let line = total_exchange(&paced(switch(), SLOT_BYTES, SLACK));
        assert!(line.efficiency >= 0.9, "{line:?}");
        assert!(line.lost <= 0.001 && line.first_lost == 0, "{line:?}");
        assert!(line.g_deviation < 0.05, "{line:?}");
        assert!(line.acknowledgements < 0.03, "{line:?}");
    }

    #[test]
    fn without_order_and_pace_it_is_slower_and_without_windows_most_is_lost() {
        let good = total_exchange(&paced(switch(), SLOT_BYTES, SLACK));
        let naive = Setup {
            order: Order::Naive,
            ..switch()
        };
        let line = total_exchange(&naive);
        assert!(line.time_ns > 1.1 * good.time_ns, "{line:?}");
        assert!(line.first_lost > 0 && line.arrived == 1.0, "{line:?}");
        let blind = Setup {
            blind: true,
            chunk_bytes: PIECE_BYTES,
            ..naive
        };
        let line = total_exchange(&blind);
        assert!(line.arrived < 0.5, "{line:?}");
    }

    #[test]
    fn on_a_bus_long_slots_make_times_that_differ_little() {
        let pattern = Pattern {
            name: "cyclic shift",
            bytes: 20_000,
            relations: &|_| Relation::cyclic_shift(4, 20_000),
        };
        let of = |setup: &Setup| measure_one("4.6", setup, &pattern, None, 6);
        let unpaced = of(&bus(4));
        let slotted = of(&paced(bus(4), PIECE_BYTES, 1.6));
        assert!(unpaced.arrived == 1.0 && slotted.arrived == 1.0);
        assert!(
            slotted.g_deviation < unpaced.g_deviation,
            "{unpaced:?} {slotted:?}"
        );
    }
}
