//! `dipole calibrate supersteps`: measures the parameters of the BSP model.
//!
//! s is the speed of a processor, l the time of an empty superstep, g the time per byte of a long
//! h-relation. `job` starts the ranks (`rank`, or another program), which print `sample`s of
//! `pattern`s. `row` computes the parameters from them.
//!
//! # Source
//! `bsp-protocols-thesis`, ch. 6: tables 6.2, 6.3, 6.6, figures 6.3 to 6.5.

pub mod job;
mod page;
mod pattern;
mod rank;
mod row;
pub mod sample;
mod table;

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use dipole_model::{Cost, Profile, ProfileError};
use dipole_testbed::Testbed as Network;
use serde::Serialize;

use crate::conditions::{closing_line, machine_line};
use crate::machine::{self, Cores};
use crate::output::{Output, PageFile, Record};
use crate::page::facts;
use crate::testbed::{On, Testbed};
use crate::work::name_of;
use job::{Contender, Dipole, Job, Place};
pub use rank::{RankArgs, rank};
pub use row::Row;
use sample::RankOutput;

/// Seconds of each measurement.
const SECONDS: f64 = 0.03;
const QUICK_SECONDS: f64 = 0.002;
/// Repetitions per round.
const SAMPLES: usize = 20;
const QUICK_SAMPLES: usize = 6;
const ROUNDS: u32 = 3;
const MOST_BYTES: usize = 4 << 20;
const QUICK_MOST_BYTES: usize = 64 << 10;
/// Time limit of a job in addition to its measurements.
const JOB_LIMIT: Duration = Duration::from_secs(90);

/// Measure the parameters s, l and g of the BSP model
///
/// s: Mflop/s of a rank (y += a x, 1024 long). l: time of an empty superstep. g: additional time per
/// byte of a long h-relation (h: the most bytes that a rank sends or receives). Intervals are of the
/// median, with 95 % confidence. The results are saved, except with --quick, in the profiles of the
/// links (DIPOLE_PROFILE, by default ~/.config/dipole/profile).
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  \
    dipole calibrate supersteps                         2 and 4 ranks, every available link\n  \
    dipole calibrate supersteps --ranks 2 --link shm    within this node\n  \
    sudo dipole calibrate supersteps --page bsp.html    between network namespaces, too")]
pub struct SuperstepsArgs {
    /// Numbers of ranks
    #[arg(long, value_name = "P,..", value_delimiter = ',', default_value = "1,2,4",
          value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: Vec<u32>,
    /// Links between ranks [default: those that are available here]
    #[arg(long, value_enum, value_name = "LINK,..", value_delimiter = ',')]
    link: Vec<Link>,
    /// Placement of ranks that share no memory
    #[arg(long, value_enum, default_value_t = Where::Auto)]
    on: Where,
    /// Shape the network between the namespaces: Mbit/s of each port of its switch
    #[arg(long, value_name = "MBIT", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rate_mbit: Option<u64>,
    /// Queue of each port of a shaped network
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 65_536,
        requires = "rate_mbit"
    )]
    queue_bytes: u32,
    /// Seconds of each measurement [default: 0.03]
    #[arg(long)]
    seconds: Option<f64>,
    /// Number of rounds in which each link takes its turn [default: 3]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// The largest h in bytes [default: 4194304]
    #[arg(long, value_name = "BYTES",
          value_parser = clap::value_parser!(u32).range(4096..=1 << 28))]
    most_bytes: Option<u32>,
    /// Few short rounds, to see that everything works
    #[arg(long)]
    quick: bool,
    /// Compare with the saved profiles instead of saving
    #[arg(long)]
    check: bool,
    /// Write an HTML page of figures and tables, in one file that needs no network
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

/// Links between ranks, with the names that `DIPOLE_LINK` accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum Link {
    /// Shared memory: all ranks on this node
    Shm,
    /// UDP sockets
    Udp,
    /// Plain TCP
    Tcp,
    /// Rings that the kernel fills and raw frames (needs root)
    Bpf,
}

impl SuperstepsPlan {
    /// Creates a plan of supersteps over one link, timed one by one, with relations of about h bytes.
    pub fn one_by_one(count: usize, h_bytes: usize) -> SuperstepsPlan {
        SuperstepsPlan {
            ranks: Vec::new(),
            links: Vec::new(),
            rounds: 1,
            seconds: SECONDS,
            samples: count,
            most_bytes: h_bytes,
            limit: JOB_LIMIT,
            each: Some(count),
            is_apart: false,
        }
    }
}

impl Link {
    pub fn name(self) -> String {
        name_of(self)
    }
}

/// Placement of ranks that share no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Where {
    /// Network namespaces with enough privileges, else loopback
    Auto,
    /// A network namespace each, joined by a bridge (needs root)
    Veth,
    /// All on this node, over loopback
    Loopback,
}

/// Reason why nothing can be measured.
#[derive(Debug, PartialEq, thiserror::Error)]
enum SuperstepsError {
    #[error("--seconds {0} is not a valid duration: give more than 0, at most 60")]
    Seconds(f64),
    #[error("--on veth: {0}; use --on loopback")]
    NoTestbed(String),
    #[error("--link bpf needs root and namespaces of its own ({0}); leave it out")]
    NoBpf(String),
    #[error(
        "--rate-mbit shapes the network between namespaces, which are not available ({0}); leave it out"
    )]
    NotShaped(String),
    #[error("--on veth is for links between nodes; name one of them: --link udp, tcp or bpf")]
    OnlyShm,
    #[error(
        "no profile has these links and numbers of ranks; run dipole calibrate supersteps first"
    )]
    NoProfile,
}

/// The measurements to make.
#[derive(Clone, Debug, PartialEq)]
pub struct SuperstepsPlan {
    pub ranks: Vec<u32>,
    pub links: Vec<Link>,
    pub rounds: u32,
    pub seconds: f64,
    pub samples: usize,
    pub most_bytes: usize,
    /// Time limit of a job.
    pub limit: Duration,
    /// Measure only supersteps timed one by one, this many of each relation.
    pub each: Option<usize>,
    /// Ranks that share no memory each run on their own node.
    is_apart: bool,
}

/// Makes the plan. `why_not` is the reason why this machine cannot create a testbed, if any.
fn plan(
    arguments: &SuperstepsArgs,
    why_not: Option<&str>,
) -> Result<SuperstepsPlan, SuperstepsError> {
    let (seconds, samples, most_bytes, rounds) = match arguments.quick {
        true => (QUICK_SECONDS, QUICK_SAMPLES, QUICK_MOST_BYTES, 1),
        false => (SECONDS, SAMPLES, MOST_BYTES, ROUNDS),
    };
    let seconds = arguments.seconds.unwrap_or(seconds);
    if !(seconds > 0.0 && seconds <= 60.0) {
        return Err(SuperstepsError::Seconds(seconds));
    }
    if let (Where::Veth, Some(why)) = (arguments.on, why_not) {
        return Err(SuperstepsError::NoTestbed(why.to_owned()));
    }
    let is_apart = arguments.on != Where::Loopback && why_not.is_none();
    let mut links = arguments.link.clone();
    if links.is_empty() {
        links = vec![Link::Shm, Link::Udp, Link::Tcp];
        links.extend(is_apart.then_some(Link::Bpf));
    }
    if links.contains(&Link::Bpf) && !is_apart {
        let why = why_not.unwrap_or("not --on loopback");
        return Err(SuperstepsError::NoBpf(why.to_owned()));
    }
    if arguments.rate_mbit.is_some() && !is_apart {
        let why = why_not.unwrap_or("not --on loopback");
        return Err(SuperstepsError::NotShaped(why.to_owned()));
    }
    if arguments.on == Where::Veth && links == [Link::Shm] {
        return Err(SuperstepsError::OnlyShm);
    }
    let mut seen = Vec::new();
    links.retain(|link| {
        !seen.contains(link) && {
            seen.push(*link);
            true
        }
    });
    let mut ranks = arguments.ranks.clone();
    ranks.sort_unstable();
    ranks.dedup();
    // There are about 70 measurements, some of which take longer than planned.
    let measuring = Duration::from_secs_f64(seconds * 70.0 * 4.0);
    Ok(SuperstepsPlan {
        ranks,
        links,
        rounds: arguments.rounds.unwrap_or(rounds),
        seconds,
        samples,
        most_bytes: arguments
            .most_bytes
            .map_or(most_bytes, |most| most as usize),
        limit: JOB_LIMIT + measuring,
        each: None,
        is_apart,
    })
}

/// Measures Dipole, prints, and saves the profiles of the links; with `json` one object per line.
/// The exit code is success if every measurement succeeded.
///
/// # Errors
/// Nothing could be measured, or writing to `out` failed.
pub fn calibrate(
    arguments: &SuperstepsArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    let wide = false;
    let output = &mut Output { json, wide, out };
    let testbed = Testbed::create(On::Node)?;
    let saves = !arguments.check && !arguments.quick;
    // A job that fails later, or the end of this process, costs no earlier measurement.
    let keep = |row: &Row| match saves {
        true => save(std::slice::from_ref(row)).map(drop),
        false => Ok(()),
    };
    let (rows, has_failed) = measure(arguments, &testbed, &[], &keep, output)?;
    if arguments.check {
        check(&rows, output)?;
    } else if saves {
        for file in save(&rows)? {
            output.remark(&format!("saved in {}", file.display()))?;
        }
    }
    match has_failed {
        false => Ok(ExitCode::SUCCESS),
        true => Ok(ExitCode::FAILURE),
    }
}

/// Keeps a row of one contender, which later rounds may replace.
pub type Keep<'a> = &'a dyn Fn(&Row) -> Result<(), ProfileError>;

/// Measures Dipole and other contenders and prints the results. True if a measurement failed. `keep`
/// gets the row of a contender after each of its jobs.
///
/// # Errors
/// Nothing could be measured, or the results cannot be written.
pub fn measure(
    arguments: &SuperstepsArgs,
    testbed: &Testbed,
    others: &[Box<dyn Contender>],
    keep: Keep<'_>,
    output: &mut Output<'_>,
) -> Result<(Vec<Row>, bool), Box<dyn Error>> {
    let why_not = Network::why_not();
    let plan = plan(arguments, why_not.as_deref())?;
    let file = arguments.page.as_deref().map(PageFile::open).transpose()?;
    let cores = Cores::choose()?;
    let stolen = machine::Stolen::since_now(cores);
    output.remark(&machine_line(cores))?;
    if let (false, Some(why)) = (plan.is_apart, &why_not) {
        output.remark(&format!("links over loopback on one node: {why}"))?;
    }
    let network = network(arguments, &plan)?;
    if let Some(network) = &network {
        output.remark(&format!("between nodes: {}", network.description()))?;
    }
    let run = Run {
        plan: &plan,
        testbed,
        network: network.as_ref(),
        cores,
        others,
        keep,
    };
    let mut cache_line_ns = Vec::new();
    let (mut rows, mut failures) = (Vec::new(), 0);
    for &ranks in &plan.ranks {
        let (measured, failed) = run.measure(ranks, &mut cache_line_ns)?;
        rows.extend(measured);
        failures += failed;
    }
    row::complete(&mut rows);
    match output.json {
        true => rows.iter().try_for_each(|row| output.print_json(row))?,
        false => output.print(&table::all(&rows))?,
    }
    let closing = closing_line(&cache_line_ns, None, stolen);
    output.remark(&format!("\n{closing}"))?;
    if let Some(file) = file {
        let between = network.as_ref().map(Network::description);
        let cores = format!(
            "{} and {}, one rank each; further ranks are not pinned",
            cores.lead, cores.follow
        );
        let facts = facts(between, cores, &closing, failures);
        file.write(&page::of_supersteps(&facts, &rows), output)?;
    }
    Ok((rows, failures > 0))
}

/// Creates namespaces for ranks that share no memory, if they are needed.
fn network(
    arguments: &SuperstepsArgs,
    plan: &SuperstepsPlan,
) -> Result<Option<Network>, Box<dyn Error>> {
    let most = plan.ranks.iter().copied().max().unwrap_or(1);
    if !plan.is_apart || most < 2 || plan.links.iter().all(|link| *link == Link::Shm) {
        return Ok(None);
    }
    let mut builder = Network::builder().nodes(most);
    if let Some(rate) = arguments.rate_mbit {
        let queue = arguments.queue_bytes;
        builder = builder.rate_mbit(rate).queue_bytes(queue);
    }
    Ok(Some(builder.build()?))
}

/// Saved and measured parameters of one number of ranks.
#[derive(Debug, Serialize)]
struct CheckRow {
    check: &'static str,
    link: String,
    p: u32,
    nodes: u32,
    saved_l_ns: f64,
    measured_l_ns: f64,
    saved_g_ns_per_byte: f64,
    measured_g_ns_per_byte: f64,
}

impl Record for CheckRow {
    const HEADINGS: &'static str =
        "link|ranks|nodes|saved l, us|measured l, us|saved g, ns/B|measured g, ns/B";
    const LABELS: usize = 1;

    fn cells(&self) -> Vec<String> {
        vec![
            self.link.clone(),
            self.p.to_string(),
            self.nodes.to_string(),
            format!("{:.2}", self.saved_l_ns * 1e-3),
            format!("{:.2}", self.measured_l_ns * 1e-3),
            format!("{:.3}", self.saved_g_ns_per_byte),
            format!("{:.3}", self.measured_g_ns_per_byte),
        ]
    }
}

/// Compares the measured parameters with the saved profiles.
fn check(rows: &[Row], output: &mut Output<'_>) -> Result<(), Box<dyn Error>> {
    let mut checked = Vec::new();
    for row in rows.iter().filter(|row| row.subject == "dipole") {
        let costs = Profile::load(&row.link)?.map(|profile| profile.cost);
        let mut costs = costs.into_iter().flatten();
        if let Some(cost) = costs.find(|cost| (cost.p, cost.nodes) == (row.p, row.nodes)) {
            checked.push(CheckRow {
                check: "superstep",
                link: row.link.clone(),
                p: row.p,
                nodes: row.nodes,
                saved_l_ns: cost.l_ns,
                measured_l_ns: row.l_ns,
                saved_g_ns_per_byte: cost.g_ns_per_byte,
                measured_g_ns_per_byte: row.g_ns_per_byte,
            });
        }
    }
    if checked.is_empty() {
        return Err(SuperstepsError::NoProfile.into());
    }
    Ok(output.print_records("\n", &checked, "")?)
}

/// Saves the costs of Dipole's supersteps in the profiles of their links.
fn save(rows: &[Row]) -> Result<Vec<PathBuf>, ProfileError> {
    let mut links: Vec<&str> = Vec::new();
    let own = rows.iter().filter(|row| row.subject == "dipole");
    for row in own.clone() {
        if !links.contains(&&*row.link) {
            links.push(&row.link);
        }
    }
    let saved = links.into_iter().map(|link| {
        let mut profile = Profile::load(link)?.unwrap_or_else(|| Profile::new(link));
        for row in own.clone().filter(|row| row.link == link) {
            profile.set_cost(Cost {
                p: row.p,
                nodes: row.nodes,
                s_mflops: row.s_mflops,
                l_ns: row.l_ns,
                l_ci_ns: row.l_ci_ns,
                g_ns_per_byte: row.g_ns_per_byte,
                g_sd: row.g_sd,
                contention: row.contention(),
            });
        }
        profile.save()
    });
    saved.collect()
}

/// Everything that the measurements of a run share.
struct Run<'a> {
    plan: &'a SuperstepsPlan,
    testbed: &'a Testbed,
    network: Option<&'a Network>,
    cores: Cores,
    others: &'a [Box<dyn Contender>],
    keep: Keep<'a>,
}

/// The measurements of one contender over one link.
struct Series<'a> {
    contender: &'a dyn Contender,
    link: Link,
    output: Vec<RankOutput>,
    /// A failed series is not continued, because failures can take long.
    has_failed: bool,
}

impl Run<'_> {
    /// Measures all contenders in turns with this number of ranks. Returns also the number of
    /// failures.
    fn measure(
        &self,
        ranks: u32,
        cache_line_ns: &mut Vec<f64>,
    ) -> Result<(Vec<Row>, usize), Box<dyn Error>> {
        let mut all = self.series(ranks);
        let mut failures = 0;
        // More ranks than cores are left to the scheduler.
        let cores = [self.cores.lead, self.cores.follow];
        let cores = match ranks as usize <= cores.len() && !self.cores.are_one() {
            true => &cores[..ranks as usize],
            false => &[],
        };
        for _ in 0..self.plan.rounds {
            cache_line_ns.extend(machine::cache_line_ns(self.cores)?);
            for series in all.iter_mut().filter(|series| !series.has_failed) {
                let job = Job {
                    plan: self.plan,
                    ranks,
                    link: series.link,
                    place: self.place(series.link, ranks),
                    cores,
                };
                match job.run(series.contender) {
                    Ok(output) => {
                        series.output.extend(output);
                        if let Some(row) = self.row(series, ranks, cores) {
                            (self.keep)(&row)?;
                        }
                    }
                    Err(error) => {
                        failures += 1;
                        series.has_failed = true;
                        series.report(ranks, &error.to_string());
                    }
                }
            }
        }
        let mut rows = Vec::new();
        for series in &all {
            let row = self.row(series, ranks, cores);
            if row.is_none() && !series.has_failed {
                failures += 1;
                series.report(ranks, "the ranks ended early without an error");
            }
            rows.extend(row);
        }
        Ok((rows, failures))
    }

    /// The result of all jobs of a series so far.
    fn row(&self, series: &Series<'_>, ranks: u32, cores: &[usize]) -> Option<Row> {
        let place = self.place(series.link, ranks);
        let configuration = row::Configuration {
            subject: series.contender.name(),
            p: ranks,
            nodes: place.nodes(ranks),
            link: series.link,
            testbed: place.name(series.link),
            is_bound: !cores.is_empty(),
        };
        Row::of(&series.output, &configuration)
    }

    fn place(&self, link: Link, ranks: u32) -> Place<'_> {
        match self.network {
            Some(network) if link != Link::Shm && ranks > 1 => Place::Apart(network),
            _ => Place::Here(self.testbed.folder()),
        }
    }

    /// Dipole over every link, the others through shared memory and over TCP.
    fn series(&self, ranks: u32) -> Vec<Series<'_>> {
        let of = |contender, link| Series {
            contender,
            link,
            output: Vec::new(),
            has_failed: false,
        };
        // A single rank uses no link.
        let used = if ranks == 1 { 1 } else { self.plan.links.len() };
        let links = &self.plan.links[..used];
        let mut all: Vec<Series<'_>> = links.iter().map(|&link| of(&Dipole, link)).collect();
        let has_memory = links.contains(&Link::Shm);
        let has_network = links.iter().any(|link| *link != Link::Shm);
        for (is_used, link) in [(has_memory, Link::Shm), (has_network, Link::Tcp)] {
            let others = self.others.iter().filter(|_| is_used);
            all.extend(others.map(|other| of(&**other, link)));
        }
        all
    }
}

impl Series<'_> {
    fn report(&self, ranks: u32, error: &str) {
        let (name, link) = (self.contender.name(), self.link.name());
        eprintln!("dipole calibrate supersteps: {name}, {ranks} ranks over {link}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        probe: SuperstepsArgs,
    }

    fn planned(line: &str, why_not: Option<&str>) -> Result<SuperstepsPlan, SuperstepsError> {
        let words = std::iter::once("probe").chain(line.split_whitespace());
        plan(&Line::parse_from(words).probe, why_not)
    }

    #[test]
    fn without_privileges_links_lie_on_one_node_and_bpf_is_left_out() {
        let plan = planned("", Some("only root makes namespaces")).expect("a plan");
        assert_eq!(plan.links, [Link::Shm, Link::Udp, Link::Tcp]);
        assert!(!plan.is_apart);
        let plan = planned("", None).expect("a plan");
        assert_eq!(plan.links, [Link::Shm, Link::Udp, Link::Tcp, Link::Bpf]);
        assert!(plan.is_apart);
        assert_eq!(plan.ranks, [1, 2, 4]);
    }

    #[test]
    fn what_is_named_twice_is_measured_once() {
        let plan = planned("--ranks 4,2,4 --link udp,shm,udp", None).expect("a plan");
        assert_eq!(plan.ranks, [2, 4]);
        assert_eq!(plan.links, [Link::Udp, Link::Shm]);
    }

    #[test]
    fn what_cannot_be_measured_is_refused_with_a_way_out() {
        let refused = |line, why_not| planned(line, why_not).expect_err("refused").to_string();
        let why = Some("no root");
        assert!(refused("--seconds 0", None).contains("more than 0"));
        assert!(refused("--seconds nan", None).contains("more than 0"));
        assert_eq!(
            refused("--on veth", why),
            "--on veth: no root; use --on loopback"
        );
        assert!(refused("--link bpf", why).contains("no root"));
        assert!(refused("--link bpf --on loopback", None).contains("leave it out"));
        assert!(refused("--link shm --on veth", None).contains("--link udp"));
        assert!(refused("--rate-mbit 100", why).contains("no root"));
        assert!(refused("--rate-mbit 100 --on loopback", None).contains("leave it out"));
    }
}
