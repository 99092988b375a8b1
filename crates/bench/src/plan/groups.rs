//! The groups of the standard table and of each kind of work.

use super::{
    Group, KIND_SECONDS, PlanError, Setup, TABLE_ROUNDS, TABLE_SECONDS, Variation, keep_subjects,
};
use crate::launch::Entry;
use crate::subject::Subject;
use crate::work::{Kind, Placement};

/// Minimum of rounds in the standard table, if they agree.
const LEAST_TABLE_ROUNDS: u32 = 3;
/// Share of packets lost in the standard table.
const LOSS: f64 = 0.01;

/// Work in which messages flow from side to side.
#[derive(Clone, Debug)]
pub(crate) struct FlowWork {
    pub(crate) kind: Kind,
    pub(crate) size: Option<usize>,
    pub(crate) block: bool,
    pub(crate) unreliable: bool,
    pub(crate) two_threads_a_side: bool,
    /// Share of packets that the fault wrapper drops.
    pub(crate) drop: Option<f64>,
    pub(crate) subjects: Vec<Subject>,
}

/// Returns the groups of the standard table.
pub(crate) fn table(setup: &Setup, subjects: &[Subject]) -> Result<Vec<Group>, PlanError> {
    let base = |place, kind, size_bytes| Variation {
        rounds: setup.rounds(LEAST_TABLE_ROUNDS, TABLE_ROUNDS),
        ..variation(setup, kind, size_bytes, place, TABLE_SECONDS)
    };
    let place = setup.placement()?;
    let mut groups = Vec::new();
    if place != Some(Placement::OneNode) {
        let base = |kind, size_bytes| base(Placement::TwoNodes, kind, size_bytes);
        let pingpong = base(Kind::Pingpong, 64);
        let stream = base(Kind::Stream, 1 << 20);
        let blocking = Variation {
            block: true,
            ..pingpong
        };
        let unreliable = Variation {
            unreliable: true,
            ..pingpong
        };
        groups.extend([
            pingpong.usual(),
            blocking.usual(),
            unreliable.group(&[Subject::Dipole, Subject::BareUdpSpin]),
            stream.usual(),
            base(Kind::Rate, 64).usual(),
            base(Kind::Bidir, 64 << 10).usual(),
            stream.loss_group(LOSS),
        ]);
    }
    if !setup.is_remote {
        let base = |kind, size_bytes| base(Placement::OneNode, kind, size_bytes);
        let pingpong = base(Kind::Pingpong, 64);
        let blocking = Variation {
            block: true,
            ..pingpong
        };
        groups.extend([
            pingpong.usual(),
            base(Kind::Pingpong, 1400).usual(),
            blocking.usual(),
            base(Kind::Rate, 64).group(&[Subject::Dipole, Subject::BareShm]),
            base(Kind::Stream, 4 << 10).usual(),
            base(Kind::Stream, 64 << 10).usual(),
            base(Kind::Stream, 1 << 20).usual(),
        ]);
    }
    keep_subjects(&mut groups, subjects);
    Ok(groups)
}

fn variation(
    setup: &Setup,
    kind: Kind,
    size_bytes: usize,
    place: Placement,
    seconds: f64,
) -> Variation {
    Variation {
        kind,
        size_bytes,
        duration: setup.duration(seconds),
        block: false,
        unreliable: false,
        two_threads_a_side: false,
        place,
        carrier: setup.carrier(place),
        rounds: setup.full_rounds(),
    }
}

/// Returns the group of one kind of work.
pub(crate) fn flow(setup: &Setup, work: &FlowWork) -> Result<Group, PlanError> {
    let default_size = match work.kind {
        Kind::Pingpong | Kind::Rate => 64,
        Kind::Stream => 1 << 20,
        Kind::Bidir => 64 << 10,
        Kind::Mixed => 1 << 10,
    };
    let place = setup.placement()?.unwrap_or(Placement::TwoNodes);
    let size_bytes = work.size.unwrap_or(default_size);
    let variation = Variation {
        block: work.block,
        unreliable: work.unreliable,
        two_threads_a_side: work.two_threads_a_side,
        ..variation(setup, work.kind, size_bytes, place, KIND_SECONDS)
    };
    Ok(match (work.drop, work.subjects.is_empty()) {
        (Some(loss), _) => variation.loss_group(loss),
        (None, false) => variation.group(&work.subjects),
        (None, true) => variation.usual(),
    })
}

/// Returns a group of round trips with endpoints and with active ports.
pub(crate) fn ports(setup: &Setup, size: Option<usize>, block: bool) -> Result<Group, PlanError> {
    let work = FlowWork {
        kind: Kind::Pingpong,
        size,
        block,
        unreliable: false,
        two_threads_a_side: false,
        drop: None,
        subjects: Vec::new(),
    };
    let pingpong = flow(setup, &work)?;
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

/// Returns groups of short messages, alone and next to a stream of long ones.
pub(crate) fn mixed(
    setup: &Setup,
    size: Option<usize>,
    block: bool,
) -> Result<Vec<Group>, PlanError> {
    let group = |place| {
        let variation = Variation {
            block,
            two_threads_a_side: true,
            ..variation(
                setup,
                Kind::Mixed,
                size.unwrap_or(1 << 10),
                place,
                KIND_SECONDS,
            )
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
                "{}, alone and (+) next to messages of 1 MiB",
                variation.title()
            ),
            rounds: variation.rounds,
            is_point: false,
            is_table: true,
            entries: entries.collect(),
        }
    };
    Ok(setup.placements()?.into_iter().map(group).collect())
}

/// Returns groups of memory operations and what they are compared with.
pub(crate) fn memory(subject: Subject, setup: &Setup) -> Result<Vec<Group>, PlanError> {
    let words = [(Kind::Pingpong, 8), (Kind::Rate, 8)];
    let long = (Kind::Stream, 1 << 20);
    let works = match subject {
        Subject::DipoleGet => vec![words[0], (Kind::Pingpong, 1 << 20), long],
        Subject::DipolePut => vec![words[0], words[1], long],
        _ => words.to_vec(),
    };
    let places = setup.placements()?.into_iter();
    let all = places.flat_map(|place| works.iter().map(move |&work| (place, work)));
    let groups = all.map(|(place, (kind, size_bytes))| {
        variation(setup, kind, size_bytes, place, TABLE_SECONDS).on_memory(subject)
    });
    Ok(groups.collect())
}
