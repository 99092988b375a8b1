//! Dipole beside other projects' libraries and tools.

use clap::ValueEnum;

use super::super::control::{Kind, Placement};
use super::super::subject::Subject;
use super::super::{BenchArgs, Topic};
use super::points::{LEAST_ROUNDS, ROUNDS};
use super::{Group, PlanError, Variation, asked_place, carrier, duration, keep_asked, rounds};

/// Seconds a measurement beside other projects' tools, some of which take a second to start.
const PEERS_SECONDS: f64 = 0.2;
const PEERS_SIZES_BYTES: [usize; 5] = [64, 1 << 10, 8 << 10, 64 << 10, 1 << 20];
const PEERS_QUICK_SIZES_BYTES: [usize; 2] = [64, 64 << 10];

/// Dipole, what bare sockets or memory can do, and all other projects that can do the same.
pub(super) fn groups(kind: Option<Topic>, arguments: &BenchArgs) -> Result<Vec<Group>, PlanError> {
    let excluded = |by| {
        Err(PlanError::Excluded {
            option: "--peers",
            by,
        })
    };
    let kinds = match kind {
        None => vec![Kind::Pingpong, Kind::Stream],
        Some(Topic::Work(kind @ (Kind::Pingpong | Kind::Stream))) => vec![kind],
        Some(_) => return excluded("this kind: others are measured in pingpong and stream"),
    };
    for (option, is_given) in [
        (
            "--to: others are measured on this host",
            arguments.remote.to.is_some(),
        ),
        ("--drop", arguments.drop.is_some()),
        ("--block", arguments.block),
        ("--unreliable", arguments.unreliable),
    ] {
        if is_given {
            return excluded(option);
        }
    }
    let sizes = match (arguments.size, arguments.quick) {
        (Some(size), _) => vec![size],
        (None, true) => PEERS_QUICK_SIZES_BYTES.to_vec(),
        (None, false) => PEERS_SIZES_BYTES.to_vec(),
    };
    let asked = asked_place(arguments)?;
    let places = [Placement::TwoNodes, Placement::OneNode].into_iter();
    let places = places.filter(|&place| asked.is_none_or(|asked| asked == place));
    let works = places.flat_map(|place| kinds.iter().map(move |&kind| (place, kind)));
    let works = works.flat_map(|work| sizes.iter().map(move |&size_bytes| (work, size_bytes)));
    let found = works.map(|((place, kind), size_bytes)| {
        let variation = Variation {
            kind,
            size_bytes,
            duration: duration(arguments, PEERS_SECONDS),
            block: false,
            unreliable: false,
            two_threads_a_side: false,
            place,
            carrier: carrier(arguments, place),
            rounds: rounds(arguments, LEAST_ROUNDS, ROUNDS),
        };
        let bare = match place {
            Placement::TwoNodes => Subject::BareTcpSpin,
            Placement::OneNode => Subject::BareShm,
        };
        let mut group = variation.group(&[bare]);
        let others = Subject::value_variants().iter();
        let others = others.filter(|subject| subject.installed().is_some());
        let others = others.map(|&subject| variation.entry(variation.bench(), subject, None));
        group.entries.extend(others);
        let ours = variation.carriers().into_iter();
        let ours = ours.map(|carrier| Variation {
            carrier,
            ..variation
        });
        let ours = ours.map(|varied| varied.entry(varied.bench(), Subject::Dipole, None));
        group.entries.splice(0..0, ours);
        group
            .entries
            .retain(|entry| entry.subject.refuses(&entry.work).is_none());
        group.is_point = true;
        group
    });
    let mut groups: Vec<Group> = found.collect();
    keep_asked(&mut groups, arguments);
    Ok(groups)
}
