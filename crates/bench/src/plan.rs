//! What is measured: the standard table, or what the command line asks for.

mod crossings;
mod peers;

use std::time::Duration;

use super::control::{Carrier, Kind, Placement, Workload, name_of};
use super::crossings::CrossingsPlan;
use super::crowd::CrowdPlan;
use super::incast::IncastPlan;
use super::launch::Entry;
use super::pacing::PacingPlan;
use super::subject::{Subject, Waits};
use super::testbed::On;
use super::variance::VariancePlan;
use super::{BenchArgs, LinkName, Topic};

/// Seconds a measurement, when the whole table is wanted.
const TABLE_SECONDS: f64 = 0.2;
/// Seconds a measurement, when one kind is.
const KIND_SECONDS: f64 = 1.0;
/// Seconds a measurement, when it is only to be seen that all works.
const QUICK_SECONDS: f64 = 0.02;
/// What starting and ending the two sides of a measurement takes.
const START_SECONDS: f64 = 0.04;
/// Medians and spreads of a table are over so many rounds.
const TABLE_ROUNDS: u32 = 5;
/// Those of the whole table if they agree.
const LEAST_TABLE_ROUNDS: u32 = 3;
const LOSS: f64 = 0.01;

/// How often each subject takes its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rounds {
    /// Enough where these agree.
    pub(crate) least: u32,
    pub(crate) most: u32,
}

/// Entries measured in turns and shown beside each other.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) title: String,
    pub(crate) rounds: Rounds,
    /// A point of the page's figures, not a table there.
    pub(crate) is_point: bool,
    /// A table where results are printed.
    pub(crate) is_table: bool,
    pub(crate) entries: Vec<Entry>,
}

impl Group {
    /// How long its least rounds take, about.
    pub(crate) fn least_seconds(&self) -> f64 {
        let seconds = |entry: &Entry| entry.work.duration.as_secs_f64() + START_SECONDS;
        self.entries.iter().map(seconds).sum::<f64>() * f64::from(self.rounds.least)
    }
}

/// All that is to be measured.
#[derive(Clone, Debug)]
pub(crate) enum Plan {
    /// Two sides at a time.
    Groups(Vec<Group>),
    /// Many processes at once.
    Crowd(CrowdPlan),
    /// Many nodes that send to one.
    Incast(IncastPlan),
    Pacing(PacingPlan),
    Variance(VariancePlan),
    Crossings(CrossingsPlan),
}

/// Why the command line makes no plan.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum PlanError {
    /// A subject cannot do the work asked for.
    #[error("{0}; choose another --size, kind or --subjects")]
    Refused(String),
    #[error(
        "{option} needs a kind: pingpong, stream, bidir, rate, mixed, port, put, get, atomic, crowd, incast, pacing, variance or crossings"
    )]
    NeedsKind { option: &'static str },
    #[error("{option} is for benches between two hosts, with --to or --server")]
    NeedsHost { option: &'static str },
    #[error("{option} is for {kind}")]
    OnlyFor {
        option: &'static str,
        kind: &'static str,
    },
    #[error(
        "--link shm needs both sides on one node, and --on {on} makes two; use --on node \
         or --link udp"
    )]
    ShmApart { on: String },
    #[error(
        "--link bpf needs an interface, and --on {on} has none; use --on veth or another --link"
    )]
    BpfNeedsInterface { on: String },
    #[error("{option} cannot go with {by}")]
    Excluded {
        option: &'static str,
        by: &'static str,
    },
    #[error("{option} {given} cannot be used: expected {expected}")]
    OutOfRange {
        option: &'static str,
        given: String,
        expected: &'static str,
    },
}

/// How the work of a group is varied.
#[derive(Clone, Copy, Debug)]
struct Variation {
    kind: Kind,
    size_bytes: usize,
    duration: Duration,
    block: bool,
    unreliable: bool,
    two_threads_a_side: bool,
    place: Placement,
    carrier: Carrier,
    rounds: Rounds,
}

impl Variation {
    fn bench(self) -> String {
        let block = match (self.block, self.two_threads_a_side) {
            (_, true) => "-threads",
            (true, false) => "-block",
            (false, false) => "",
        };
        let unreliable = if self.unreliable { "-unreliable" } else { "" };
        format!("{}{block}{unreliable}", name_of(self.kind))
    }

    fn entry(self, bench: String, subject: Subject, fault: Option<String>) -> Entry {
        let unreliable = self.unreliable && subject == Subject::Dipole;
        let work = Workload {
            kind: self.kind,
            size_bytes: self.size_bytes,
            duration: self.duration,
            unreliable,
            block: self.block,
            may_lose: unreliable || subject.is_datagrams(),
            threads: subject.is_threads(),
            two_threads_a_side: self.two_threads_a_side,
        };
        Entry {
            bench,
            subject,
            work,
            place: self.place,
            carrier: self.carrier,
            fault,
        }
    }

    fn group(self, subjects: &[Subject]) -> Group {
        let entries = subjects
            .iter()
            .map(|&subject| self.entry(self.bench(), subject, None))
            .collect();
        Group {
            title: self.title(),
            rounds: self.rounds,
            is_point: false,
            is_table: true,
            entries,
        }
    }

    /// Those of the usual subjects that can do this work; ours is never left out in silence.
    fn usual(self) -> Group {
        let waits = match (self.block, self.two_threads_a_side) {
            (_, true) => Waits::InThreads,
            (true, false) => Waits::Blocking,
            (false, false) => Waits::Spinning,
        };
        let mut group = self.group(Subject::usual(self.kind, waits, self.place));
        if self.carrier == Carrier::Bpf && self.place == Placement::TwoNodes {
            self.beside_udp(&mut group, waits);
        }
        group.entries.retain(|entry| {
            entry.subject == Subject::Dipole || entry.subject.refuses(&entry.work).is_none()
        });
        group
    }

    /// What carries Dipole's messages here, and what would without the bpf link.
    fn carriers(self) -> Vec<Carrier> {
        match (self.carrier, self.place) {
            (Carrier::Bpf, Placement::TwoNodes) => vec![Carrier::Bpf, Carrier::Udp],
            (carrier, _) => vec![carrier],
        }
    }

    /// Operations on memory, the same by messages, and what copies the same bytes.
    fn on_memory(self, subject: Subject) -> Group {
        let peers: &[Subject] = match (self.kind, self.place) {
            (Kind::Pingpong, _) => &[],
            (_, Placement::TwoNodes) => &[Subject::BareUdpGso],
            (Kind::Stream, Placement::OneNode) => &[Subject::BareShm, Subject::BareReadv],
            (_, Placement::OneNode) => &[Subject::BareShm],
        };
        let bench = || {
            format!(
                "{}-{}",
                name_of(subject).trim_start_matches("dipole-"),
                self.bench()
            )
        };
        let ours = self.carriers().into_iter().flat_map(|carrier| {
            [subject, Subject::Dipole]
                .map(|one| Variation { carrier, ..self }.entry(bench(), one, None))
        });
        let peers = peers.iter().map(|&peer| self.entry(bench(), peer, None));
        Group {
            title: format!("{}, {}", bench(), self.title()),
            rounds: self.rounds,
            is_point: false,
            is_table: true,
            entries: ours.chain(peers).collect(),
        }
    }

    /// What the link is worth: ours without it, and what is possible with its parts alone.
    fn beside_udp(self, group: &mut Group, waits: Waits) {
        let entry =
            |subject, carrier| Variation { carrier, ..self }.entry(self.bench(), subject, None);
        let mut added = vec![entry(Subject::Dipole, Carrier::Udp)];
        if waits == Waits::Spinning {
            added.push(entry(Subject::BareBpf, self.carrier));
        }
        group.entries.splice(1..1, added);
    }

    fn title(self) -> String {
        let place = match self.place {
            Placement::TwoNodes => "",
            Placement::OneNode => " inside one node",
        };
        format!("{} of {}{place}", self.bench(), size(self.size_bytes))
    }

    /// Dipole through the fault wrapper: nothing lost, then a share of all packets.
    fn loss_group(self, loss: f64) -> Group {
        let entry = |loss: f64| {
            let bench = format!("{}-drop-{loss}", self.bench());
            self.entry(bench, Subject::Dipole, Some(format!("drop={loss},seed=7")))
        };
        let title = format!("{} through the fault wrapper", self.title());
        Group {
            title,
            rounds: self.rounds,
            is_point: false,
            is_table: true,
            entries: vec![entry(0.0), entry(loss)],
        }
    }
}

/// Turns the command line into a plan.
pub(crate) fn plan(arguments: &BenchArgs) -> Result<Plan, PlanError> {
    check_numbers(arguments)?;
    check_options(arguments)?;
    if let Some(option) = arguments.remote.needless() {
        return Err(PlanError::NeedsHost { option });
    }
    let mut groups = match arguments.kind {
        Some(Topic::Crowd) => return crowd(arguments).map(Plan::Crowd),
        Some(Topic::Incast) => return incast(arguments).map(Plan::Incast),
        Some(Topic::Pacing) => return Ok(Plan::Pacing(pacing(arguments))),
        Some(Topic::Variance) => return Ok(Plan::Variance(variance(arguments))),
        Some(Topic::Crossings) if !arguments.peers => {
            return crossings::plan(arguments).map(Plan::Crossings);
        }
        kind if arguments.peers => peers::groups(kind, arguments)?,
        None => table(arguments)?,
        Some(Topic::Crossings) => Vec::new(),
        Some(Topic::Port) => vec![ports(arguments)?],
        Some(Topic::Memory(subject)) => memory(subject, arguments)?,
        Some(Topic::Work(Kind::Mixed)) => mixed(arguments)?,
        Some(Topic::Work(kind)) => vec![of_kind(kind, arguments)?],
    };
    if arguments.html.is_some() && !arguments.peers {
        let kinds = [Kind::Pingpong, Kind::Stream].into_iter();
        for kind in kinds.filter(|&kind| {
            arguments
                .kind
                .is_none_or(|topic| topic == Topic::Work(kind))
        }) {
            groups.extend(points::points(kind, arguments)?);
        }
    }
    for entry in groups.iter().flat_map(|group| &group.entries) {
        if arguments.remote.to.is_some() && entry.subject.installed().is_some() {
            return Err(PlanError::Refused(format!(
                "{} is measured on this host, and --to names another",
                name_of(entry.subject)
            )));
        }
        if let Some(why) = entry.subject.refuses(&entry.work) {
            return Err(PlanError::Refused(why));
        }
    }
    Ok(Plan::Groups(groups))
}

/// The places that the command line wants measured, and what carries Dipole's
/// messages there. `None`: it does not say.
fn asked_place(arguments: &BenchArgs) -> Result<Option<Placement>, PlanError> {
    if arguments.remote.to.is_some() {
        return match arguments.link {
            LinkName::Shm => Err(PlanError::Excluded {
                option: "--link shm",
                by: "--to: its sides are on two hosts",
            }),
            _ => Ok(Some(Placement::TwoNodes)),
        };
    }
    match (arguments.on, arguments.link) {
        (on @ (On::Veth | On::Loopback), LinkName::Shm) => {
            Err(PlanError::ShmApart { on: name_of(on) })
        }
        (on @ (On::Loopback | On::Node), LinkName::Bpf) => {
            Err(PlanError::BpfNeedsInterface { on: name_of(on) })
        }
        (On::Auto, LinkName::Bpf) => Ok(Some(Placement::TwoNodes)),
        (On::Node, _) | (On::Auto, LinkName::Shm) => Ok(Some(Placement::OneNode)),
        (On::Veth | On::Loopback, _) => Ok(Some(Placement::TwoNodes)),
        (On::Auto, LinkName::Auto | LinkName::Udp) => Ok(None),
    }
}

/// What carries Dipole's messages at a place.
fn carrier(arguments: &BenchArgs, place: Placement) -> Carrier {
    match (arguments.link, place) {
        (LinkName::Bpf, Placement::TwoNodes) => Carrier::Bpf,
        (LinkName::Auto, Placement::TwoNodes) if arguments.has_bpf => Carrier::Bpf,
        (LinkName::Udp, _) | (_, Placement::TwoNodes) => Carrier::Udp,
        (LinkName::Auto | LinkName::Shm | LinkName::Bpf, Placement::OneNode) => Carrier::Shm,
    }
}

fn duration(arguments: &BenchArgs, usual_s: f64) -> Duration {
    let usual_s = if arguments.quick {
        QUICK_SECONDS
    } else {
        usual_s
    };
    Duration::from_secs_f64(arguments.seconds.unwrap_or(usual_s))
}

/// As the command line says, else so many at least and at most.
fn rounds(arguments: &BenchArgs, least: u32, most: u32) -> Rounds {
    let quick = arguments.quick.then_some(1);
    let (least, most) = match arguments.rounds.or(quick) {
        Some(rounds) => (rounds, rounds),
        None => (least, most),
    };
    Rounds { least, most }
}

/// All of them, however much they agree.
fn full_rounds(arguments: &BenchArgs) -> Rounds {
    rounds(arguments, TABLE_ROUNDS, TABLE_ROUNDS)
}

fn check_options(arguments: &BenchArgs) -> Result<(), PlanError> {
    let is_crowd = arguments.kind == Some(Topic::Crowd);
    if arguments.processes.is_some() && !is_crowd {
        return Err(PlanError::OnlyFor {
            option: "--processes",
            kind: "crowd",
        });
    }
    let is_incast = arguments.kind == Some(Topic::Incast);
    if arguments.senders.is_some() && !is_incast {
        return Err(PlanError::OnlyFor {
            option: "--senders",
            kind: "incast",
        });
    }
    if arguments.threads == 2 && arguments.kind != Some(Topic::Work(Kind::Bidir)) {
        return Err(PlanError::OnlyFor {
            option: "--threads 2",
            kind: "bidir",
        });
    }
    let is_variance = arguments.kind == Some(Topic::Variance);
    for (option, numbers) in [("--ranks", &arguments.ranks), ("--nodes", &arguments.nodes)] {
        if !is_variance && !numbers.is_empty() {
            let kind = "variance";
            return Err(PlanError::OnlyFor { option, kind });
        }
    }
    if arguments.kind == Some(Topic::Pacing) || is_variance {
        let excluded = [
            ("--unreliable", arguments.unreliable),
            ("--drop", arguments.drop.is_some()),
            ("--subjects", !arguments.subjects.is_empty()),
            ("--on", arguments.on != On::Auto),
            ("--to", arguments.remote.to.is_some()),
            ("--link", arguments.link != LinkName::Auto && !is_variance),
            ("--block", arguments.block),
            ("--size", arguments.size.is_some()),
            ("--seconds", arguments.seconds.is_some()),
        ];
        if let Some(option) = first_given(&excluded) {
            let by = if is_variance { "variance" } else { "pacing" };
            return Err(PlanError::Excluded { option, by });
        }
    }
    if is_crowd || is_incast {
        let by = if is_crowd { "crowd" } else { "incast" };
        let excluded = [
            ("--on veth", arguments.on == On::Veth),
            ("--on loopback", arguments.on == On::Loopback),
            ("--to", arguments.remote.to.is_some()),
            ("--on node", is_incast && arguments.on == On::Node),
            ("--link shm", is_incast && arguments.link == LinkName::Shm),
            ("--block", is_incast && arguments.block),
        ];
        if let Some(option) = first_given(&excluded) {
            return Err(PlanError::Excluded { option, by });
        }
        check_own_subjects(arguments, by)?;
    }
    Ok(())
}

/// Of a kind that says itself whom it compares, and how they send.
fn check_own_subjects(arguments: &BenchArgs, by: &'static str) -> Result<(), PlanError> {
    let excluded = [
        ("--unreliable", arguments.unreliable),
        ("--drop", arguments.drop.is_some()),
        ("--subjects", !arguments.subjects.is_empty()),
        ("--html", arguments.html.is_some()),
    ];
    match first_given(&excluded) {
        Some(option) => Err(PlanError::Excluded { option, by }),
        None => Ok(()),
    }
}

/// The first of these options that the command line has.
fn first_given(options: &[(&'static str, bool)]) -> Option<&'static str> {
    let mut given = options.iter().filter(|(_, is_given)| *is_given);
    given.next().map(|(option, _)| *option)
}

fn crowd(arguments: &BenchArgs) -> Result<CrowdPlan, PlanError> {
    Ok(CrowdPlan {
        processes: arguments.processes.unwrap_or(8),
        size_bytes: arguments.size.unwrap_or(64).max(1),
        duration: duration(arguments, KIND_SECONDS),
        rounds: full_rounds(arguments).most,
        block: arguments.block,
        carrier: carrier(arguments, Placement::OneNode),
    })
}

fn incast(arguments: &BenchArgs) -> Result<IncastPlan, PlanError> {
    Ok(IncastPlan {
        senders: arguments.senders.unwrap_or(7),
        size_bytes: arguments.size.unwrap_or(64 << 10),
        duration: duration(arguments, KIND_SECONDS),
        turns: full_rounds(arguments).most,
        carrier: carrier(arguments, Placement::TwoNodes),
    })
}

fn variance(arguments: &BenchArgs) -> VariancePlan {
    let supersteps = arguments
        .rounds
        .unwrap_or(if arguments.quick { 12 } else { 200 });
    let or = |given: &[u32], usual: &[u32]| match given.is_empty() {
        true => usual.to_vec(),
        false => given.to_vec(),
    };
    let (ranks, nodes): (&[u32], &[u32]) = match arguments.quick {
        true => (&[2, 4], &[2, 4, 8]),
        false => (&[2, 4, 8], &[2, 4, 8, 16, 32, 64, 128]),
    };
    VariancePlan {
        supersteps: supersteps as usize,
        ranks: or(&arguments.ranks, ranks),
        nodes: or(&arguments.nodes, nodes),
        link: arguments.link,
        has_bpf: arguments.has_bpf,
    }
}

fn pacing(arguments: &BenchArgs) -> PacingPlan {
    let supersteps = arguments
        .rounds
        .unwrap_or(if arguments.quick { 3 } else { 20 });
    PacingPlan {
        supersteps: supersteps as usize,
        quick: arguments.quick,
    }
}

fn check_numbers(arguments: &BenchArgs) -> Result<(), PlanError> {
    let out_of_range = |option, given: String, expected| {
        Err(PlanError::OutOfRange {
            option,
            given,
            expected,
        })
    };
    if let Some(seconds) = arguments.seconds
        && !(seconds > 0.0 && seconds <= 3600.0)
    {
        return out_of_range(
            "--seconds",
            seconds.to_string(),
            "more than 0, at most 3600",
        );
    }
    if let Some(loss) = arguments.drop
        && !(0.0..1.0).contains(&loss)
    {
        return out_of_range("--drop", loss.to_string(), "a share from 0 to below 1");
    }
    if let Some(bytes) = arguments.size
        && !(1..=1 << 30).contains(&bytes)
    {
        return out_of_range("--size", bytes.to_string(), "1 byte to 1 GiB");
    }
    Ok(())
}

fn table(arguments: &BenchArgs) -> Result<Vec<Group>, PlanError> {
    let for_a_kind = [
        ("--size", arguments.size.is_some()),
        ("--block", arguments.block),
        ("--unreliable", arguments.unreliable),
        ("--drop", arguments.drop.is_some()),
    ];
    if let Some(option) = first_given(&for_a_kind) {
        return Err(PlanError::NeedsKind { option });
    }
    let duration = duration(arguments, TABLE_SECONDS);
    let base = |place, kind, size_bytes| Variation {
        kind,
        size_bytes,
        duration,
        block: false,
        unreliable: false,
        two_threads_a_side: false,
        place,
        carrier: carrier(arguments, place),
        rounds: rounds(arguments, LEAST_TABLE_ROUNDS, TABLE_ROUNDS),
    };
    let place = asked_place(arguments)?;
    let mut groups = Vec::new();
    if place != Some(Placement::OneNode) {
        let base = |kind, size_bytes| base(Placement::TwoNodes, kind, size_bytes);
        let pingpong = base(Kind::Pingpong, 64);
        let stream = base(Kind::Stream, 1 << 20);
        groups.extend([
            pingpong.usual(),
            Variation {
                block: true,
                ..pingpong
            }
            .usual(),
            Variation {
                unreliable: true,
                ..pingpong
            }
            .group(&[Subject::Dipole, Subject::BareUdpSpin]),
            stream.usual(),
            base(Kind::Rate, 64).usual(),
            base(Kind::Bidir, 64 << 10).usual(),
            stream.loss_group(LOSS),
        ]);
    }
    if arguments.remote.to.is_some() {
        keep_asked(&mut groups, arguments);
        return Ok(groups);
    }
    let base = |kind, size_bytes| base(Placement::OneNode, kind, size_bytes);
    let pingpong = base(Kind::Pingpong, 64);
    groups.extend([
        pingpong.usual(),
        base(Kind::Pingpong, 1400).usual(),
        Variation {
            block: true,
            ..pingpong
        }
        .usual(),
        base(Kind::Rate, 64).group(&[Subject::Dipole, Subject::BareShm]),
        base(Kind::Stream, 4 << 10).usual(),
        base(Kind::Stream, 64 << 10).usual(),
        base(Kind::Stream, 1 << 20).usual(),
    ]);
    keep_asked(&mut groups, arguments);
    Ok(groups)
}

/// Keeps the subjects that the command line names, if it names any.
fn keep_asked(groups: &mut Vec<Group>, arguments: &BenchArgs) {
    if !arguments.subjects.is_empty() {
        for group in &mut *groups {
            group
                .entries
                .retain(|entry| arguments.subjects.contains(&entry.subject));
        }
        groups.retain(|group| !group.entries.is_empty());
    }
}

fn of_kind(kind: Kind, arguments: &BenchArgs) -> Result<Group, PlanError> {
    let usual_size = match kind {
        Kind::Pingpong | Kind::Rate => 64,
        Kind::Stream => 1 << 20,
        Kind::Bidir => 64 << 10,
        Kind::Mixed => 1 << 10,
    };
    let place = asked_place(arguments)?.unwrap_or(Placement::TwoNodes);
    let variation = Variation {
        kind,
        size_bytes: arguments.size.unwrap_or(usual_size),
        duration: duration(arguments, KIND_SECONDS),
        block: arguments.block,
        unreliable: arguments.unreliable,
        two_threads_a_side: arguments.threads == 2,
        place,
        carrier: carrier(arguments, place),
        rounds: full_rounds(arguments),
    };
    let excluded = [
        ("--unreliable", variation.unreliable),
        ("--block", variation.block),
    ];
    if let (Kind::Bidir, Some(option)) = (kind, first_given(&excluded)) {
        return Err(PlanError::Excluded {
            option,
            by: "bidir",
        });
    }
    if let Some(loss) = arguments.drop {
        if !arguments.subjects.is_empty() {
            return Err(PlanError::Excluded {
                option: "--subjects",
                by: "--drop",
            });
        }
        return Ok(variation.loss_group(loss));
    }
    if !arguments.subjects.is_empty() {
        return Ok(variation.group(&arguments.subjects));
    }
    Ok(variation.usual())
}

/// Round trips by endpoints and by active ports, beside each other.
fn ports(arguments: &BenchArgs) -> Result<Group, PlanError> {
    check_own_subjects(arguments, "port")?;
    let pingpong = of_kind(Kind::Pingpong, arguments)?;
    let ours = pingpong.entries.iter();
    let ours = ours.filter(|entry| entry.subject == Subject::Dipole);
    let subjects = [Subject::Dipole, Subject::DipolePort, Subject::DipolePorts];
    let entries = ours.flat_map(|entry| {
        subjects.map(|subject| Entry {
            subject,
            ..entry.clone()
        })
    });
    Ok(Group {
        entries: entries.collect(),
        ..pingpong
    })
}

/// Short messages alone and beside long ones, in turns.
fn mixed(arguments: &BenchArgs) -> Result<Vec<Group>, PlanError> {
    check_own_subjects(arguments, "mixed")?;
    let asked = asked_place(arguments)?;
    let places = [Placement::TwoNodes, Placement::OneNode].into_iter();
    let places = places.filter(|&place| asked.is_none_or(|asked| asked == place));
    let group = |place| {
        let variation = Variation {
            kind: Kind::Mixed,
            size_bytes: arguments.size.unwrap_or(1 << 10),
            duration: duration(arguments, KIND_SECONDS),
            block: arguments.block,
            unreliable: false,
            two_threads_a_side: true,
            place,
            carrier: carrier(arguments, place),
            rounds: full_rounds(arguments),
        };
        let subjects = variation.carriers().into_iter();
        let subjects = subjects.map(|carrier| (Subject::Dipole, carrier));
        let subjects = subjects.chain([(Subject::BareTcpBlock, variation.carrier)]);
        let entries = subjects.flat_map(|(subject, carrier)| {
            [(Kind::Pingpong, "mixed-alone"), (Kind::Mixed, "mixed")].map(|(kind, bench)| {
                let varied = Variation {
                    kind,
                    carrier,
                    ..variation
                };
                varied.entry(bench.to_owned(), subject, None)
            })
        });
        Group {
            title: format!(
                "{}, alone and (+) beside messages of 1 MiB",
                variation.title()
            ),
            rounds: variation.rounds,
            is_point: false,
            is_table: true,
            entries: entries.collect(),
        }
    };
    Ok(places.map(group).collect())
}

/// Operations on memory beside the messages and the copies that they are compared with.
fn memory(subject: Subject, arguments: &BenchArgs) -> Result<Vec<Group>, PlanError> {
    let by = match subject {
        Subject::DipolePut => "put",
        Subject::DipoleGet => "get",
        _ => "atomic",
    };
    let excluded = [
        ("--size", arguments.size.is_some()),
        ("--block", arguments.block),
    ];
    if let Some(option) = first_given(&excluded) {
        return Err(PlanError::Excluded { option, by });
    }
    check_own_subjects(arguments, by)?;
    let words = [(Kind::Pingpong, 8), (Kind::Rate, 8)];
    let long = (Kind::Stream, 1 << 20);
    let works = match subject {
        Subject::DipoleGet => vec![words[0], (Kind::Pingpong, 1 << 20), long],
        Subject::DipolePut => vec![words[0], words[1], long],
        _ => words.to_vec(),
    };
    let asked = asked_place(arguments)?;
    let places = [Placement::TwoNodes, Placement::OneNode].into_iter();
    let places = places.filter(|&place| asked.is_none_or(|asked| asked == place));
    Ok(places
        .flat_map(|place| works.iter().map(move |&work| (place, work)))
        .map(|(place, (kind, size_bytes))| {
            Variation {
                kind,
                size_bytes,
                duration: duration(arguments, TABLE_SECONDS),
                block: false,
                unreliable: false,
                two_threads_a_side: false,
                place,
                carrier: carrier(arguments, place),
                rounds: full_rounds(arguments),
            }
            .on_memory(subject)
        })
        .collect())
}

/// A size as people write it.
pub(crate) fn size(bytes: usize) -> String {
    match bytes {
        bytes if bytes > 0 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes if bytes > 0 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

mod points;
#[cfg(test)]
mod tests;
