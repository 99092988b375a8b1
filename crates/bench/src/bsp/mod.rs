//! `dipole bsp probe`: what supersteps cost, as the parameters of the BSP model.
//!
//! s is the speed of a processor, l the time of an empty superstep, g the time per byte of a long
//! h-relation. `job` starts the ranks (`rank`, or an MPI program that does the same), which tell
//! `sample`s of `pattern`s; `estimate` (of the whole crate) and `row` are what is made of them.
//!
//! # Source
//! `bsp-protocols-thesis`, ch. 6: tables 6.2, 6.3, 6.6, figures 6.3 to 6.5.

pub(crate) mod job;
mod pattern;
mod rank;
mod row;
pub(crate) mod sample;
pub(crate) mod table;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use dipole_bsp::profile::{Cost, Profile, ProfileError};

use super::control::name_of;
use super::machine::{self, Cores};
use super::mpi::Library;
use super::testbed::{On, Testbed as Folder};
use super::{Report, begin_page, closing_line, machine_line, page, write_page};
use job::{Job, Peer, Place};
pub use rank::{RankArgs, rank};
pub(crate) use row::Row;
use sample::Told;

/// Seconds of each measurement.
const SECONDS: f64 = 0.03;
const QUICK_SECONDS: f64 = 0.002;
/// How often each is repeated in a round.
const SAMPLES: usize = 20;
const QUICK_SAMPLES: usize = 6;
const ROUNDS: u32 = 3;
const MOST_BYTES: usize = 4 << 20;
const QUICK_MOST_BYTES: usize = 64 << 10;
/// How long a job may take beside its measurements.
const JOB_LIMIT: Duration = Duration::from_secs(90);

/// Measure what supersteps cost here: the parameters s, l and g of the BSP model
///
/// s: Mflop/s of a rank (y += a x, 1024 long). l: an empty superstep. g: what each byte of a long
/// h-relation (h: the most bytes that a rank sends or receives) adds to that.
/// Intervals are of the median, by order statistics, with 95 % confidence. Saved, unless --quick, in
/// the profiles of the links (DIPOLE_PROFILE, by default ~/.config/dipole/profile).
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  \
    dipole bsp probe                          2 and 4 ranks, every link there is\n  \
    dipole bsp probe --ranks 2 --link shm     within this node\n  \
    sudo dipole bsp probe --peers --page bsp.html\n                                            \
    between network namespaces too, beside Open MPI and MPICH")]
pub struct ProbeArgs {
    /// How many ranks
    #[arg(long, value_name = "P,..", value_delimiter = ',', default_value = "1,2,4",
          value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: Vec<u32>,
    /// What carries messages between ranks [default: those that can be opened here]
    #[arg(long, value_enum, value_name = "LINK,..", value_delimiter = ',')]
    link: Vec<Link>,
    /// Where ranks run that share no memory
    #[arg(long, value_enum, default_value_t = Where::Auto)]
    on: Where,
    /// Shape the network between the namespaces: Mbit/s of each port of its switch
    #[arg(long, value_name = "MBIT", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rate_mbit: Option<u64>,
    /// What waits at most at a port of a shaped network
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 65_536,
        requires = "rate_mbit"
    )]
    queue_bytes: u32,
    /// Measure Open MPI and MPICH, too, if they are installed
    #[arg(long)]
    peers: bool,
    /// Seconds of each measurement [default: 0.03]
    #[arg(long)]
    seconds: Option<f64>,
    /// How often each subject takes its turn [default: 3]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// The largest h in bytes [default: 4194304]
    #[arg(long, value_name = "BYTES",
          value_parser = clap::value_parser!(u32).range(4096..=1 << 28))]
    most_bytes: Option<u32>,
    /// Few short rounds, to see that everything works
    #[arg(long)]
    quick: bool,
    /// Write an HTML page of figures and tables, in one file that needs no network
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

/// Ways between ranks, by the names that `DIPOLE_LINK` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub(crate) enum Link {
    /// Shared memory: all ranks on this node
    Shm,
    /// UDP sockets
    Udp,
    /// Plain TCP
    Tcp,
    /// Rings that the kernel fills and raw frames (needs root)
    Bpf,
}

impl ProbePlan {
    /// Supersteps by a link, timed one by one, with relations of about h bytes.
    pub(crate) fn one_by_one(count: usize, h_bytes: usize) -> ProbePlan {
        ProbePlan {
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
    pub(crate) fn name(self) -> String {
        name_of(self)
    }
}

/// Where ranks run that share no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Where {
    /// Network namespaces with enough privileges, else loopback
    Auto,
    /// A network namespace each, joined by a bridge (needs root)
    Veth,
    /// All on this node, by loopback
    Loopback,
}

/// Why nothing can be measured.
#[derive(Debug, PartialEq, thiserror::Error)]
enum ProbeError {
    #[error("--seconds {0} is no time for a measurement: give more than 0, at most 60")]
    Seconds(f64),
    #[error("--on veth: {0}; use --on loopback")]
    NoTestbed(String),
    #[error("--link bpf needs root and namespaces of its own ({0}); leave it out")]
    NoBpf(String),
    #[error("--rate-mbit shapes what joins namespaces, and there are none ({0}); leave it out")]
    NotShaped(String),
    #[error("--on veth is for links between nodes; name one of them: --link udp, tcp or bpf")]
    OnlyShm,
}

/// What is to be measured.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProbePlan {
    pub(crate) ranks: Vec<u32>,
    pub(crate) links: Vec<Link>,
    pub(crate) rounds: u32,
    pub(crate) seconds: f64,
    pub(crate) samples: usize,
    pub(crate) most_bytes: usize,
    /// How long a job may take.
    pub(crate) limit: Duration,
    /// Only supersteps timed one by one, so many of each relation.
    pub(crate) each: Option<usize>,
    /// Ranks that share no memory each have a node.
    is_apart: bool,
}

/// The plan for a machine that has no testbed for this reason.
fn plan(arguments: &ProbeArgs, why_not: Option<&str>) -> Result<ProbePlan, ProbeError> {
    let (seconds, samples, most_bytes, rounds) = match arguments.quick {
        true => (QUICK_SECONDS, QUICK_SAMPLES, QUICK_MOST_BYTES, 1),
        false => (SECONDS, SAMPLES, MOST_BYTES, ROUNDS),
    };
    let seconds = arguments.seconds.unwrap_or(seconds);
    if !(seconds > 0.0 && seconds <= 60.0) {
        return Err(ProbeError::Seconds(seconds));
    }
    if let (Where::Veth, Some(why)) = (arguments.on, why_not) {
        return Err(ProbeError::NoTestbed(why.to_owned()));
    }
    let is_apart = arguments.on != Where::Loopback && why_not.is_none();
    let mut links = arguments.link.clone();
    if links.is_empty() {
        links = vec![Link::Shm, Link::Udp, Link::Tcp];
        links.extend(is_apart.then_some(Link::Bpf));
    }
    if links.contains(&Link::Bpf) && !is_apart {
        let why = why_not.unwrap_or("not --on loopback");
        return Err(ProbeError::NoBpf(why.to_owned()));
    }
    if arguments.rate_mbit.is_some() && !is_apart {
        let why = why_not.unwrap_or("not --on loopback");
        return Err(ProbeError::NotShaped(why.to_owned()));
    }
    if arguments.on == Where::Veth && links == [Link::Shm] {
        return Err(ProbeError::OnlyShm);
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
    // About seventy measurements, some of which take longer than they should.
    let measuring = Duration::from_secs_f64(seconds * 70.0 * 4.0);
    Ok(ProbePlan {
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

/// Measures and prints; with `json` one object a line. The status tells whether every
/// measurement succeeded.
///
/// # Errors
/// Nothing could be measured, or writing to `out` failed.
pub fn probe(
    arguments: &ProbeArgs,
    json: bool,
    out: &mut dyn std::io::Write,
) -> Result<ExitCode, Box<dyn Error>> {
    let why_not = dipole_testbed::Testbed::why_not();
    let plan = plan(arguments, why_not.as_deref())?;
    let report = &mut Report {
        json,
        wide: false,
        out,
    };
    let file = arguments.page.as_deref().map(begin_page).transpose()?;
    let cores = Cores::choose()?;
    let stolen = machine::Stolen::since_now(cores);
    let folder = Folder::make(On::Node)?;
    report.note(&machine_line(cores))?;
    if let (false, Some(why)) = (plan.is_apart, &why_not) {
        report.note(&format!("links by loopback on one node: {why}"))?;
    }
    let most = plan.ranks.iter().copied().max().unwrap_or(1);
    let has_nodes = plan.is_apart && most > 1 && plan.links.iter().any(|link| *link != Link::Shm);
    let testbed = match has_nodes {
        true => {
            let mut builder = dipole_testbed::Testbed::builder().nodes(most);
            if let Some(rate) = arguments.rate_mbit {
                let queue = arguments.queue_bytes;
                builder = builder.rate_mbit(rate).queue_bytes(queue);
            }
            Some(builder.build()?)
        }
        false => None,
    };
    if let Some(testbed) = &testbed {
        report.note(&format!("between nodes: {}", testbed.description()))?;
    }
    let mut peers = Vec::new();
    for library in [Library::OpenMpi, Library::Mpich] {
        if arguments.peers {
            match Peer::prepare(library, folder.folder()) {
                Ok(peer) => peers.push(peer),
                Err(absent) => report.note(&absent)?,
            }
        }
    }
    let run = Run {
        plan: &plan,
        folder: &folder,
        testbed: testbed.as_ref(),
        cores,
        peers,
    };
    let mut cache_line_ns = Vec::new();
    let (mut rows, mut failures) = (Vec::new(), 0);
    for &ranks in &plan.ranks {
        let (measured, failed) = run.measure(ranks, &mut cache_line_ns)?;
        rows.extend(measured);
        failures += failed;
    }
    row::complete(&mut rows);
    if json {
        for row in &rows {
            report.object(row)?;
        }
    } else {
        report.result(&table::all(&rows))?;
    }
    let closing = closing_line(&cache_line_ns, None, stolen);
    report.note(&format!("\n{closing}"))?;
    if !arguments.quick {
        for file in save(&rows)? {
            report.note(&format!("saved in {}", file.display()))?;
        }
    }
    if let Some((path, file)) = file {
        let between = testbed.as_ref().map(dipole_testbed::Testbed::description);
        let cores = format!(
            "{} and {}, a rank each; more are not bound",
            cores.lead, cores.follow
        );
        let facts = page::facts(between, cores, &closing, failures);
        write_page(path, file, &page::of_supersteps(&facts, &rows))?;
        report.note(&format!("figures and tables are in {}", path.display()))?;
    }
    match failures {
        0 => Ok(ExitCode::SUCCESS),
        _ => Ok(ExitCode::FAILURE),
    }
}

/// Keeps what Dipole's supersteps cost in the profiles of their links.
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
            });
        }
        profile.save()
    });
    saved.collect()
}

/// What all measurements have in common.
struct Run<'a> {
    plan: &'a ProbePlan,
    folder: &'a Folder,
    testbed: Option<&'a dipole_testbed::Testbed>,
    cores: Cores,
    peers: Vec<Peer>,
}

/// One subject by one link; no peer is Dipole.
struct Turn<'a> {
    peer: Option<&'a Peer>,
    link: Link,
    told: Vec<Told>,
    /// It would take its time again.
    has_failed: bool,
}

impl Run<'_> {
    /// All subjects with so many ranks, in turns; and how many turns failed.
    fn measure(
        &self,
        ranks: u32,
        cache_line_ns: &mut Vec<f64>,
    ) -> Result<(Vec<Row>, usize), Box<dyn Error>> {
        let mut turns = self.turns(ranks);
        let mut failures = 0;
        // More ranks than cores are left to the scheduler, whoever starts them.
        let cores = [self.cores.lead, self.cores.follow];
        let cores = match ranks as usize <= cores.len() && !self.cores.are_one() {
            true => &cores[..ranks as usize],
            false => &[],
        };
        for _ in 0..self.plan.rounds {
            cache_line_ns.extend(machine::cache_line_ns(self.cores)?);
            for turn in turns.iter_mut().filter(|turn| !turn.has_failed) {
                let place = self.place(turn.link, ranks);
                let (plan, link) = (self.plan, turn.link);
                let job = Job {
                    plan,
                    ranks,
                    link,
                    place,
                    cores,
                };
                let told = match turn.peer {
                    None => job.dipole(),
                    Some(peer) => job.peer(peer),
                };
                match told {
                    Ok(told) => turn.told.extend(told),
                    Err(error) => {
                        failures += 1;
                        turn.has_failed = true;
                        let (name, link) = (turn.name(), link.name());
                        eprintln!("dipole bsp probe: {name}, {ranks} ranks by {link}: {error}");
                    }
                }
            }
        }
        let mut rows = Vec::new();
        for turn in &turns {
            let place = self.place(turn.link, ranks);
            let (nodes, testbed) = (place.nodes(ranks), place.name(turn.link));
            let (name, link) = (turn.name(), turn.link);
            let row = Row::of(
                &turn.told,
                name,
                ranks,
                nodes,
                (link, testbed),
                !cores.is_empty(),
            );
            if row.is_none() && !turn.has_failed {
                failures += 1;
                let link = link.name();
                eprintln!(
                    "dipole bsp probe: {name}, {ranks} ranks by {link}: they ended before all was \
                     measured, without an error"
                );
            }
            rows.extend(row);
        }
        Ok((rows, failures))
    }

    fn place(&self, link: Link, ranks: u32) -> Place<'_> {
        match self.testbed {
            Some(testbed) if link != Link::Shm && ranks > 1 => Place::Apart(testbed),
            _ => Place::Here(self.folder.folder()),
        }
    }

    /// Dipole by every link, its peers by shared memory and by TCP.
    fn turns(&self, ranks: u32) -> Vec<Turn<'_>> {
        let of = |peer, link| Turn {
            peer,
            link,
            told: Vec::new(),
            has_failed: false,
        };
        // One rank alone uses no link.
        let used = if ranks == 1 { 1 } else { self.plan.links.len() };
        let links = &self.plan.links[..used];
        let mut turns: Vec<Turn<'_>> = links.iter().map(|&link| of(None, link)).collect();
        let has_memory = links.contains(&Link::Shm);
        let has_network = links.iter().any(|link| *link != Link::Shm);
        for (is_used, link) in [(has_memory, Link::Shm), (has_network, Link::Tcp)] {
            let peers = self.peers.iter().filter(|_| is_used);
            turns.extend(peers.map(|peer| of(Some(peer), link)));
        }
        turns
    }
}

impl Turn<'_> {
    fn name(&self) -> &'static str {
        self.peer.map_or("dipole", |peer| peer.library.name())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        probe: ProbeArgs,
    }

    fn planned(line: &str, why_not: Option<&str>) -> Result<ProbePlan, ProbeError> {
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
