//! The points of the page's figures.

use super::{
    BenchArgs, Group, Kind, Placement, PlanError, Variation, asked_place, carrier, duration,
    keep_asked, rounds,
};

/// Seconds a point takes.
const SECONDS: f64 = 0.05;
/// So many rounds, less where the first agree.
pub(super) const ROUNDS: u32 = 3;
pub(super) const LEAST_ROUNDS: u32 = 2;
/// Sizes of messages in the figures.
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

/// The points of the page's figures: one kind of work over all sizes.
pub(super) fn points(kind: Kind, arguments: &BenchArgs) -> Result<Vec<Group>, PlanError> {
    let sizes = if arguments.quick {
        &QUICK_SIZES_BYTES[..]
    } else {
        &SIZES_BYTES
    };
    let asked = asked_place(arguments)?;
    let mut groups = Vec::new();
    for place in [Placement::TwoNodes, Placement::OneNode] {
        // Over a network and within a node stand side by side unless one was asked for.
        if asked.is_some_and(|asked| asked != place)
            && !(arguments.kind.is_none()
                && asked == Some(Placement::TwoNodes)
                && arguments.remote.to.is_none())
        {
            continue;
        }
        for &size_bytes in sizes {
            let variation = Variation {
                kind,
                size_bytes,
                duration: duration(arguments, SECONDS),
                block: arguments.block,
                unreliable: arguments.unreliable,
                two_threads_a_side: false,
                place,
                carrier: carrier(arguments, place),
                rounds: rounds(arguments, LEAST_ROUNDS, ROUNDS),
            };
            let mut group = variation.usual();
            (group.is_point, group.is_table) = (true, false);
            // One line of ours in a figure.
            group
                .entries
                .retain(|entry| entry.carrier == variation.carrier);
            // Sizes that a kind of work does not have are no points.
            group
                .entries
                .retain(|entry| entry.subject.refuses(&entry.work).is_none());
            groups.push(group);
        }
    }
    groups.retain(|group| !group.entries.is_empty());
    keep_asked(&mut groups, arguments);
    Ok(groups)
}
