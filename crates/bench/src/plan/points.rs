//! The points of the page's figures.

use super::{Group, PlanError, Setup, Variation, keep_subjects};
use crate::subject::Subject;
use crate::work::{Kind, Placement};

/// Seconds per point.
const SECONDS: f64 = 0.05;
/// Maximum of rounds; fewer if the first agree.
pub const ROUNDS: u32 = 3;
pub const LEAST_ROUNDS: u32 = 2;
/// Message lengths in the figures.
const SIZES_BYTES: [usize; 12] = [
    1,
    4,
    16,
    64,
    256,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
];
const QUICK_SIZES_BYTES: [usize; 4] = [4, 64, 4 << 10, 1 << 20];

/// Work of the figures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PointWork {
    pub(crate) kind: Kind,
    pub(crate) block: bool,
    pub(crate) unreliable: bool,
}

/// Returns one kind of work over all lengths. With `both_places` the figures also show the inside
/// of a node, even if the table is for two nodes only.
pub(crate) fn points(
    work: PointWork,
    setup: &Setup,
    both_places: bool,
    subjects: &[Subject],
) -> Result<Vec<Group>, PlanError> {
    let sizes = if setup.quick {
        &QUICK_SIZES_BYTES[..]
    } else {
        &SIZES_BYTES
    };
    let only = setup.placement()?;
    let shows_both = both_places && only == Some(Placement::TwoNodes) && !setup.is_remote;
    let mut groups = Vec::new();
    for place in [Placement::TwoNodes, Placement::OneNode] {
        if only.is_some_and(|only| only != place) && !shows_both {
            continue;
        }
        for &size_bytes in sizes {
            let variation = Variation {
                kind: work.kind,
                size_bytes,
                duration: setup.duration(SECONDS),
                block: work.block,
                unreliable: work.unreliable,
                two_threads_a_side: false,
                place,
                carrier: setup.carrier(place),
                rounds: setup.rounds(LEAST_ROUNDS, ROUNDS),
            };
            let mut group = variation.usual();
            (group.is_point, group.is_table) = (true, false);
            // A figure has one curve for Dipole, and no points for impossible lengths.
            group.entries.retain(|entry| {
                entry.carrier == variation.carrier && entry.subject.refuses(&entry.work).is_none()
            });
            groups.push(group);
        }
    }
    groups.retain(|group| !group.entries.is_empty());
    keep_subjects(&mut groups, subjects);
    Ok(groups)
}
