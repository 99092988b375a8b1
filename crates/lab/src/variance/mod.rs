//! `dipole-lab variance`: variation of superstep times, and its effect in larger machines.
//!
//! Figures of the thesis, ch. 7: the distribution of g (here the time of a superstep divided by h)
//! with normal and log-normal fits, its prediction for more processes from links or edges alone, and
//! the distribution of one edge. Measured by jobs on this machine (`bed`), and in virtual time on
//! simulated networks (`simulated`), where the machine has no influence.

mod bed;
mod figures;
mod fit;
mod simulated;

use std::error::Error;
use std::path::{Path, PathBuf};

use clap::Args;
use dipole_bench::bsp::Link;
use dipole_bench::conditions::machine_line;
use dipole_bench::machine::{Cores, has_bpf};
use dipole_bench::output::{Output, PageFile, Record};
use dipole_bench::plan::LinkName;
use dipole_bench::statistics::{Spread, mean_and_deviation};
use dipole_bench::testbed::{On, Testbed};
use serde::Serialize;

use bed::Bed;
use fit::{Exponent, Fit, Slope};
use simulated::System;

/// 16384 words of 32 bits (figures 7.3, 7.4).
const H_BYTES: usize = 64 << 10;
const SEED: u64 = 1;
/// Number of turns of each job, because the machine drifts.
const TURNS: usize = 4;
/// Limit of simulated messages, because supersteps of many nodes take long.
const MOST_MESSAGES: usize = 12_000_000;
/// Minimum number of supersteps for a distribution.
const FEWEST: usize = 12;

/// Variation of superstep times, by jobs on this machine and on simulated networks of up to 1024 nodes
#[derive(Args, Debug)]
pub(crate) struct VarianceArgs {
    /// Number of supersteps of each relation [default: 200]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Few supersteps, to see that everything works
    #[arg(long)]
    quick: bool,
    /// Ranks of the jobs [default: 2,4,8]
    #[arg(long, value_name = "P,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(2..=64))]
    ranks: Vec<u32>,
    /// Simulated nodes [default: powers of 2 up to 128]
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(2..=1024))]
    nodes: Vec<u32>,
    /// Link of the jobs
    #[arg(long, value_enum, default_value_t = LinkName::Auto)]
    link: LinkName,
    /// All columns, however wide the terminal
    #[arg(long)]
    wide: bool,
    /// Write an HTML page of figures
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Runs the measurements and prints the results. False if a measurement failed.
pub(crate) fn execute(
    args: &VarianceArgs,
    output: &mut Output<'_>,
) -> Result<bool, Box<dyn Error>> {
    output.wide = args.wide;
    let or = |given: &[u32], default: &[u32]| match given.is_empty() {
        true => default.to_vec(),
        false => given.to_vec(),
    };
    let (ranks, nodes): (&[u32], &[u32]) = match args.quick {
        true => (&[2, 4], &[2, 4, 8]),
        false => (&[2, 4, 8], &[2, 4, 8, 16, 32, 64, 128]),
    };
    let default = if args.quick { 12 } else { 200 };
    let plan = VariancePlan {
        supersteps: args.rounds.unwrap_or(default) as usize,
        ranks: or(&args.ranks, ranks),
        nodes: or(&args.nodes, nodes),
        link: args.link,
        has_bpf: has_bpf(),
    };
    measure(&plan, Cores::choose()?, args.html.as_deref(), output)
}

/// The measurements to make.
#[derive(Clone, Debug)]
struct VariancePlan {
    /// Supersteps of each relation.
    supersteps: usize,
    ranks: Vec<u32>,
    /// Numbers of simulated nodes.
    nodes: Vec<u32>,
    link: LinkName,
    has_bpf: bool,
}

/// Number of bytes from each process to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Relation {
    /// Each process sends h bytes, evenly to all others.
    #[default]
    TotalExchange,
    /// Random, different in each superstep.
    Random,
}

/// Samples of one relation.
#[derive(Clone, Debug, Default)]
struct Sampled {
    ns: Vec<f64>,
    h_bytes: Vec<f64>,
    repeats: u64,
    lost: u64,
    /// Duration of the simulation, and peak memory of this process.
    simulated_s: Option<f64>,
    peak_bytes: Option<u64>,
}

impl Sampled {
    fn g(&self) -> Vec<f64> {
        let both = self.ns.iter().zip(&self.h_bytes);
        both.map(|(ns, h)| ns / h.max(1.0)).collect()
    }

    fn extend(&mut self, other: Sampled) {
        self.ns.extend(other.ns);
        self.h_bytes.extend(other.h_bytes);
    }
}

/// Predicted distribution of p processes from that of the fewest, if only one effect matters.
#[derive(Clone, Copy, Debug, Serialize)]
struct Predicted {
    /// Number of processes that the prediction is based on.
    from_p: u32,
    /// Exponent of their distribution function `F(y)`.
    exponent: f64,
    mean: f64,
    sd: f64,
    /// Largest distance to the measured distribution function.
    distance: f64,
}

/// Results for one distribution.
#[derive(Clone, Debug, Serialize)]
struct VarianceRow {
    bench: &'static str,
    system: String,
    is_simulated: bool,
    place: &'static str,
    p: u32,
    relation: Relation,
    h_bytes: f64,
    /// Time of an empty superstep, where it was measured.
    l_ns: Option<f64>,
    time_ns: f64,
    time_sd_ns: f64,
    fit: Fit,
    /// Mean g of one edge, by regression on eq. 7.2, followed by the standard deviation.
    edge_mean: f64,
    edge_sd: f64,
    by_edges: Option<Predicted>,
    by_links: Option<Predicted>,
    /// Exponent relative to the fewest processes: the ratio of the numbers if edges explain everything.
    exponent: Option<Exponent>,
    repeats: Option<u64>,
    lost: Option<u64>,
    simulated_s: Option<f64>,
    peak_bytes: Option<u64>,
    /// Measured g of each superstep.
    g_ns_per_byte: Vec<f64>,
}

/// Dependence of a system's edges on p.
#[derive(Clone, Debug, Serialize)]
struct EdgeRegression {
    bench: &'static str,
    system: String,
    /// Regression of the mean g of an edge over p.
    edge_regression: Slope,
    /// Slope relative to the mean at the fewest processes.
    relative_slope: f64,
    points: Vec<(f64, f64)>,
}

impl Record for VarianceRow {
    const HEADINGS: &'static str = "system|p|relation|n|ms|g ns/B|sd %|+A² norm|P norm|+A² log|P log|edge g|edge sd %|by edges|\
         by links|+D edges|+D links|exponent|+repeats|+lost|+s|+MiB";
    const LABELS: usize = 3;

    fn cells(&self) -> Vec<String> {
        let or = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let chance = |chance: f64| match chance < 0.001 {
            true => "<0.001".to_owned(),
            false => format!("{chance:.3}"),
        };
        let fit = &self.fit;
        vec![
            self.system.clone(),
            self.p.to_string(),
            match self.relation {
                Relation::TotalExchange => "total",
                Relation::Random => "random",
            }
            .to_owned(),
            fit.count.to_string(),
            format!("{:.3}", self.time_ns * 1e-6),
            format!("{:.3}", fit.mean),
            format!("{:.2}", fit.sd / fit.mean * 100.0),
            format!("{:.2}", fit.normal.a_squared),
            chance(fit.normal.chance),
            format!("{:.2}", fit.log_normal.a_squared),
            chance(fit.log_normal.chance),
            format!("{:.3}", self.edge_mean),
            format!("{:.2}", self.edge_sd / self.edge_mean * 100.0),
            or(self.by_edges.map(|it| format!("{:.3}", it.mean))),
            or(self.by_links.map(|it| format!("{:.3}", it.mean))),
            or(self.by_edges.map(|it| format!("{:.2}", it.distance))),
            or(self.by_links.map(|it| format!("{:.2}", it.distance))),
            or(self
                .exponent
                .map(|it| format!("{:.2}..{:.2}", it.low, it.high))),
            or(self.repeats.map(|it| it.to_string())),
            or(self.lost.map(|it| it.to_string())),
            or(self.simulated_s.map(|it| format!("{it:.1}"))),
            or(self.peak_bytes.map(|it| (it >> 20).to_string())),
        ]
    }
}

impl Record for EdgeRegression {
    const HEADINGS: &'static str = "system|ns/B per process|95 %|by g of the fewest";
    const LABELS: usize = 1;

    fn cells(&self) -> Vec<String> {
        let Slope {
            slope, low, high, ..
        } = self.edge_regression;
        let interval = match (low, high) {
            (Some(low), Some(high)) => format!("{low:.4}..{high:.4}"),
            _ => "two points".to_owned(),
        };
        vec![
            self.system.clone(),
            format!("{slope:.4}"),
            interval,
            format!("{:.2} %", self.relative_slope * 100.0),
        ]
    }
}

fn measure(
    plan: &VariancePlan,
    cores: Cores,
    html: Option<&Path>,
    output: &mut Output<'_>,
) -> Result<bool, Box<dyn Error>> {
    let page = html.map(PageFile::open).transpose()?;
    output.remark(&machine_line(cores))?;
    let (mut lines, mut failures) = (Vec::new(), 0);
    on_the_bed(plan, cores, output, &mut lines, &mut failures)?;
    for system in System::ALL {
        for &nodes in &plan.nodes {
            lines.extend(simulate(system, nodes, plan.supersteps));
        }
    }
    predict(&mut lines);
    let regressions = regressions(&lines);
    output.print_records(
        "\ng of supersteps with h = 64 KiB (total) or random relations (figures 7.1 to 7.5)\n",
        &lines,
        "\nP: the probability that a normal, or log-normal, sample fits as badly (Anderson-Darling). by \
         edges, by links: the mean predicted from the fewest processes of the system (eq. 7.2, 7.1). \
         exponent: power of their distribution that fits, 95 %; p divided by theirs if edges explain it\n",
    )?;
    output.print_records(
        "\nmean g of one edge over p: 0 if an edge does not depend on the number of processes\n",
        &regressions,
        "",
    )?;
    if let Some(page) = page {
        page.write(&figures::page(&lines, &regressions), output)?;
    }
    Ok(failures == 0)
}

/// Measures jobs of real processes, links in turns.
fn on_the_bed(
    plan: &VariancePlan,
    cores: Cores,
    output: &mut Output<'_>,
    lines: &mut Vec<VarianceRow>,
    failures: &mut usize,
) -> Result<(), Box<dyn Error>> {
    let links = match plan.link {
        LinkName::Shm => vec![Link::Shm],
        LinkName::Udp => vec![Link::Udp],
        LinkName::Bpf => vec![Link::Bpf],
        LinkName::Auto if plan.has_bpf => vec![Link::Shm, Link::Udp, Link::Bpf],
        LinkName::Auto => vec![Link::Shm, Link::Udp],
    };
    let most = plan.ranks.iter().copied().max().unwrap_or(2);
    let is_apart = links.iter().any(|link| *link != Link::Shm);
    let bed = Bed::make(Testbed::create(On::Node)?, cores, most, is_apart)?;
    if let Some(description) = bed.description() {
        output.remark(&format!("between nodes: {description}"))?;
    }
    let each = plan.supersteps.div_ceil(TURNS);
    for &p in &plan.ranks {
        let mut all: Vec<(Link, bed::Measured)> = links
            .iter()
            .map(|&link| (link, bed::Measured::new()))
            .collect();
        for _ in 0..TURNS {
            for (link, measured) in &mut all {
                match bed.supersteps(*link, p, each) {
                    Ok(more) => measured.extend(more),
                    Err(error) => {
                        *failures += 1;
                        eprintln!(
                            "dipole-lab: variance of {p} ranks over {}: {error}",
                            link.name()
                        );
                    }
                }
            }
        }
        for (link, measured) in all {
            let l = Spread::of(measured.l_ns.iter().copied());
            for (relation, sampled) in measured.by_relation {
                let place = bed.place(link).name(link);
                let line = VarianceRow::of(link.name(), (false, place), p, relation, &sampled);
                lines.extend(line.map(|line| VarianceRow {
                    l_ns: l.map(|l| l.median),
                    ..line
                }));
            }
        }
    }
    Ok(())
}

fn simulate(system: System, nodes: u32, supersteps: usize) -> Vec<VarianceRow> {
    let pairs = nodes as usize * (nodes as usize - 1);
    let count = supersteps.min((MOST_MESSAGES / pairs).max(FEWEST));
    let relations = [Relation::TotalExchange, Relation::Random].into_iter();
    let lines = relations.filter_map(|relation| {
        let sampled = simulated::supersteps(system, nodes as usize, relation, count, SEED)?;
        let of = (true, "virtual time");
        VarianceRow::of(system.name().to_owned(), of, nodes, relation, &sampled)
    });
    lines.collect()
}

impl VarianceRow {
    /// Computes a row. `None` if there are too few samples, or all are equal.
    fn of(
        system: String,
        (is_simulated, place): (bool, &'static str),
        p: u32,
        relation: Relation,
        sampled: &Sampled,
    ) -> Option<VarianceRow> {
        let g = sampled.g();
        let fit = Fit::of(&g)?;
        let (time_ns, time_sd_ns) = mean_and_deviation(&sampled.ns);
        let (edge_mean, edge_sd) = fit::edge_of(&g, p)?;
        let (h_bytes, _) = mean_and_deviation(&sampled.h_bytes);
        Some(VarianceRow {
            bench: "variance",
            system,
            is_simulated,
            place,
            p,
            relation,
            h_bytes,
            l_ns: None,
            time_ns,
            time_sd_ns,
            fit,
            edge_mean,
            edge_sd,
            by_edges: None,
            by_links: None,
            exponent: None,
            repeats: is_simulated.then_some(sampled.repeats),
            lost: is_simulated.then_some(sampled.lost),
            simulated_s: sampled.simulated_s,
            peak_bytes: sampled.peak_bytes,
            g_ns_per_byte: g,
        })
    }
}

/// Returns the number of links of p fully connected processes.
fn links_of(p: u32) -> f64 {
    f64::from(p) * f64::from(p - 1) / 2.0
}

/// Compares each distribution with its prediction from the fewest processes of the system.
fn predict(lines: &mut [VarianceRow]) {
    let fewest: Vec<VarianceRow> = lines.to_vec();
    for line in lines {
        let same = fewest
            .iter()
            .filter(|one| (&one.system, one.relation) == (&line.system, line.relation));
        let Some(first) = same.min_by_key(|one| one.p).filter(|one| one.p < line.p) else {
            continue;
        };
        let Some(normal) = first.fit.as_normal() else {
            continue;
        };
        let by = |exponent: f64| {
            let (mean, sd) = fit::largest_of((first.fit.mean, first.fit.sd), exponent);
            Predicted {
                from_p: first.p,
                exponent,
                mean,
                sd,
                distance: fit::distance_to(&line.g_ns_per_byte, &normal, exponent),
            }
        };
        line.by_edges = Some(by(f64::from(line.p) / f64::from(first.p)));
        line.by_links = Some(by(links_of(line.p) / links_of(first.p)));
        line.exponent = fit::exponent(&line.g_ns_per_byte, &normal);
    }
}

/// Returns the regressions of every system with several numbers of processes.
fn regressions(lines: &[VarianceRow]) -> Vec<EdgeRegression> {
    let mut systems: Vec<&str> = Vec::new();
    for line in lines {
        if !systems.contains(&&*line.system) {
            systems.push(&line.system);
        }
    }
    let of = |system: &str| {
        let own = lines.iter().filter(|line| line.system == system);
        let own = own.filter(|line| line.relation == Relation::TotalExchange);
        let points: Vec<(f64, f64)> = own
            .map(|line| (f64::from(line.p), line.edge_mean))
            .collect();
        let edge_regression = fit::slope(&points)?;
        let first = points.first()?.1;
        Some(EdgeRegression {
            bench: "variance",
            system: system.to_owned(),
            edge_regression,
            relative_slope: edge_regression.slope / first,
            points,
        })
    };
    systems.into_iter().filter_map(of).collect()
}
