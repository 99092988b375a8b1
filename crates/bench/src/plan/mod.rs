//! The plan of a measurement: groups of subjects, their work, and where it is done.

mod groups;
mod points;

use std::time::Duration;

use clap::ValueEnum;
use dipole_page::byte_size;

use crate::launch::Entry;
use crate::subject::{Subject, Waits};
use crate::testbed::On;
use crate::work::{Carrier, Kind, Placement, Workload, name_of};

pub(crate) use groups::{FlowWork, flow, memory, mixed, ports, table};
pub use points::{LEAST_ROUNDS, ROUNDS};
pub(crate) use points::{PointWork, points};

/// Seconds per measurement in the standard table.
pub const TABLE_SECONDS: f64 = 0.2;
/// Seconds per measurement of a single kind.
pub const KIND_SECONDS: f64 = 1.0;
/// Seconds per measurement with `--quick`.
const QUICK_SECONDS: f64 = 0.02;
/// Time to start and end the two sides of a measurement.
const START_SECONDS: f64 = 0.04;
/// Rounds of a table.
pub const TABLE_ROUNDS: u32 = 5;

/// Links that carry Dipole's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LinkName {
    /// Shared memory within a node; between nodes the bpf link where it is available, else UDP
    Auto,
    /// Shared memory, so both sides on one node
    Shm,
    /// UDP sockets, within a node too
    Udp,
    /// Rings that the kernel fills and raw frames (needs root)
    Bpf,
}

/// Number of rounds, in which each subject takes its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounds {
    /// Minimum, which suffices if the rounds agree.
    pub least: u32,
    pub most: u32,
}

/// Subjects that are measured in turns and compared with each other.
#[derive(Clone, Debug)]
pub struct Group {
    pub title: String,
    pub rounds: Rounds,
    /// On the page, a point of the figures instead of a table.
    pub is_point: bool,
    /// True if results are printed as a table.
    pub is_table: bool,
    pub entries: Vec<Entry>,
}

impl Group {
    /// Returns roughly how long the minimum of rounds takes.
    pub fn least_seconds(&self) -> f64 {
        let seconds = |entry: &Entry| entry.work.duration.as_secs_f64() + START_SECONDS;
        self.entries.iter().map(seconds).sum::<f64>() * f64::from(self.rounds.least)
    }

    /// Returns the number of measurements in all rounds.
    pub fn most_measurements(&self) -> u64 {
        self.entries.len() as u64 * u64::from(self.rounds.most)
    }
}

/// Reason why the command line cannot be executed.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// A subject cannot do the work.
    #[error("{0}; choose another --size, kind or --subjects")]
    Refused(String),
    #[error(
        "--link shm needs both sides on one node, and --on {on} makes two; use --on node \
         or --link udp"
    )]
    ShmApart { on: String },
    #[error(
        "--link bpf needs an interface, and --on {on} has none; use --on veth or another --link"
    )]
    BpfNeedsInterface { on: String },
    #[error("--link shm cannot be combined with --to, which puts the sides on two hosts")]
    ShmRemote,
}

/// Where and how long to measure.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub link: LinkName,
    pub on: On,
    /// The other side is on another host.
    pub is_remote: bool,
    /// The bpf link is available between the nodes.
    pub has_bpf: bool,
    pub seconds: Option<f64>,
    pub rounds: Option<u32>,
    pub quick: bool,
}

impl Setup {
    /// Returns the only placement to measure. `None` if both are wanted.
    ///
    /// # Errors
    /// [`PlanError`]: link and testbed exclude each other.
    pub fn placement(&self) -> Result<Option<Placement>, PlanError> {
        if self.is_remote {
            return match self.link {
                LinkName::Shm => Err(PlanError::ShmRemote),
                _ => Ok(Some(Placement::TwoNodes)),
            };
        }
        match (self.on, self.link) {
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

    /// Returns the placements to measure.
    ///
    /// # Errors
    /// [`PlanError`]: link and testbed exclude each other.
    pub fn placements(&self) -> Result<Vec<Placement>, PlanError> {
        Ok(match self.placement()? {
            Some(place) => vec![place],
            None => vec![Placement::TwoNodes, Placement::OneNode],
        })
    }

    /// Returns the testbed for these groups.
    pub fn testbed_for(&self, groups: &[Group]) -> On {
        let mut entries = groups.iter().flat_map(|group| &group.entries);
        match entries.any(|entry| entry.place == Placement::TwoNodes) {
            true => self.on,
            false => On::Node,
        }
    }

    /// Returns the link that carries Dipole's messages.
    pub fn carrier(&self, place: Placement) -> Carrier {
        match (self.link, place) {
            (LinkName::Bpf, Placement::TwoNodes) => Carrier::Bpf,
            (LinkName::Auto, Placement::TwoNodes) if self.has_bpf => Carrier::Bpf,
            (LinkName::Udp, _) | (_, Placement::TwoNodes) => Carrier::Udp,
            (LinkName::Auto | LinkName::Shm | LinkName::Bpf, Placement::OneNode) => Carrier::Shm,
        }
    }

    /// Returns the duration of a measurement.
    pub fn duration(&self, default_s: f64) -> Duration {
        let default_s = if self.quick { QUICK_SECONDS } else { default_s };
        Duration::from_secs_f64(self.seconds.unwrap_or(default_s))
    }

    /// Returns the number of rounds; by default between `least` and `most`.
    pub fn rounds(&self, least: u32, most: u32) -> Rounds {
        let quick = self.quick.then_some(1);
        let (least, most) = match self.rounds.or(quick) {
            Some(rounds) => (rounds, rounds),
            None => (least, most),
        };
        Rounds { least, most }
    }

    /// Returns the number of rounds if it does not depend on how much they agree.
    pub fn full_rounds(&self) -> Rounds {
        self.rounds(TABLE_ROUNDS, TABLE_ROUNDS)
    }
}

/// The work of a group, before its subjects are known.
#[derive(Clone, Copy, Debug)]
pub struct Variation {
    pub kind: Kind,
    pub size_bytes: usize,
    pub duration: Duration,
    pub block: bool,
    pub unreliable: bool,
    pub two_threads_a_side: bool,
    pub place: Placement,
    pub carrier: Carrier,
    pub rounds: Rounds,
}

impl Variation {
    /// Name of the work in results.
    pub fn bench(self) -> String {
        let block = match (self.block, self.two_threads_a_side) {
            (_, true) => "-threads",
            (true, false) => "-block",
            (false, false) => "",
        };
        let unreliable = if self.unreliable { "-unreliable" } else { "" };
        format!("{}{block}{unreliable}", name_of(self.kind))
    }

    /// Creates the entry of a subject.
    pub fn entry(self, bench: String, subject: Subject, fault: Option<String>) -> Entry {
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

    /// Creates a group of these subjects.
    pub fn group(self, subjects: &[Subject]) -> Group {
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

    /// Creates a group of the default subjects that can do this work. Dipole is always included, so
    /// that an error is reported if it cannot.
    pub(crate) fn usual(self) -> Group {
        let waits = match (self.block, self.two_threads_a_side) {
            (_, true) => Waits::InThreads,
            (true, false) => Waits::Blocking,
            (false, false) => Waits::Spinning,
        };
        let mut group = self.group(Subject::usual(self.kind, waits, self.place));
        if self.carrier == Carrier::Bpf && self.place == Placement::TwoNodes {
            self.add_udp(&mut group, waits);
        }
        group.entries.retain(|entry| {
            entry.subject == Subject::Dipole || entry.subject.refuses(&entry.work).is_none()
        });
        group
    }

    /// Returns the links to measure: the one in use and, if that is bpf, UDP for comparison.
    pub fn carriers(self) -> Vec<Carrier> {
        match (self.carrier, self.place) {
            (Carrier::Bpf, Placement::TwoNodes) => vec![Carrier::Bpf, Carrier::Udp],
            (carrier, _) => vec![carrier],
        }
    }

    /// Creates a group of memory operations, messages of the same length, and copies.
    pub(crate) fn on_memory(self, subject: Subject) -> Group {
        let peers: &[Subject] = match (self.kind, self.place) {
            (Kind::Pingpong, _) => &[],
            (_, Placement::TwoNodes) => &[Subject::BareUdpGso],
            (Kind::Stream, Placement::OneNode) => &[Subject::BareShm, Subject::BareReadv],
            (_, Placement::OneNode) => &[Subject::BareShm],
        };
        let bench = || {
            format!(
                "{}-{}",
                subject.name().trim_start_matches("dipole-"),
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

    /// Adds Dipole over UDP, and the mechanism of the bpf link without a protocol.
    pub(crate) fn add_udp(self, group: &mut Group, waits: Waits) {
        let entry =
            |subject, carrier| Variation { carrier, ..self }.entry(self.bench(), subject, None);
        let mut added = vec![entry(Subject::Dipole, Carrier::Udp)];
        if waits == Waits::Spinning {
            added.push(entry(Subject::BareBpf, self.carrier));
        }
        group.entries.splice(1..1, added);
    }

    pub(crate) fn title(self) -> String {
        let place = match self.place {
            Placement::TwoNodes => "",
            Placement::OneNode => " inside one node",
        };
        format!("{} of {}{place}", self.bench(), byte_size(self.size_bytes))
    }

    /// Creates a group of Dipole with the fault wrapper: without loss, and with this share lost.
    pub(crate) fn loss_group(self, loss: f64) -> Group {
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

/// Rejects subjects that cannot do their work.
///
/// # Errors
/// [`PlanError::Refused`].
pub fn check(groups: &[Group]) -> Result<(), PlanError> {
    let mut entries = groups.iter().flat_map(|group| &group.entries);
    match entries.find_map(|entry| entry.subject.refuses(&entry.work)) {
        Some(why) => Err(PlanError::Refused(why)),
        None => Ok(()),
    }
}

/// Removes all subjects but these, unless the list is empty.
pub fn keep_subjects(groups: &mut Vec<Group>, subjects: &[Subject]) {
    if !subjects.is_empty() {
        for group in &mut *groups {
            group
                .entries
                .retain(|entry| subjects.contains(&entry.subject));
        }
        groups.retain(|group| !group.entries.is_empty());
    }
}
