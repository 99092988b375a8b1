//! Offsets between the clocks of nodes, computed from the supersteps alone.
//!
//! No rank leaves a superstep before all have entered it. So the time at which a rank leaves, by its own
//! clock, is later than the time at which each other rank entered: every superstep bounds the offset
//! between two clocks from both sides. Bounds of neighbouring supersteps also apply, widened by the
//! possible drift. The result is the middle of the bounds, with half of their distance as its error.
//! No assumption about the delay of messages is needed.

use super::format::TraceFile;
use super::step::Step;

/// Maximum drift between two clocks: one thousandth. The kernel corrects each clock by at most 500
/// millionths.
const DRIFT: i64 = 1000;
/// Limits of offsets. A bound beyond them is open, also after it was widened.
const MIN_LOW: i64 = i64::MIN / 2;
const MAX_HIGH: i64 = i64::MAX / 2;

/// The offset of a clock from rank 0's, at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    /// Offset to add to this clock's time.
    pub add_ns: i64,
    /// Maximum error of the offset.
    pub error_ns: u64,
}

/// The clocks of all ranks in a run.
#[derive(Clone, Debug)]
pub struct Clocks {
    /// The lowest rank on the node of each rank.
    leaders: Vec<u32>,
    /// By leader: offsets at supersteps, with their times by this clock. Empty for rank 0's node.
    nodes: Vec<(u32, Vec<(u64, Offset)>)>,
}

impl Clocks {
    /// Compares the clocks of all ranks of one run, given in the order of ranks. Supersteps that are
    /// missing in a file are ignored. Returns `None` if several nodes have no superstep in common, or
    /// if bounds contradict each other because the files belong to several runs.
    #[must_use]
    pub fn of(files: &[TraceFile]) -> Option<Clocks> {
        let leaders: Vec<u32> = files.iter().map(|file| file.header.leader).collect();
        let mut distinct = leaders.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let home = *leaders.first()?;
        let mut nodes = Vec::new();
        for leader in distinct {
            let offsets = match leader == home {
                true => Vec::new(),
                false => compare(files, home, leader)?,
            };
            nodes.push((leader, offsets));
        }
        Some(Clocks { leaders, nodes })
    }

    /// The offset to add to a time of a rank's clock to get rank 0's time.
    #[must_use]
    pub fn at(&self, rank: u32, time_ns: u64) -> Offset {
        let leader = self.leaders.get(rank as usize);
        let node = self.nodes.iter().find(|(own, _)| Some(own) == leader);
        let offsets = node.map_or(&[][..], |(_, offsets)| offsets);
        let after = offsets.partition_point(|(at, _)| *at < time_ns);
        let near = offsets[after.saturating_sub(1)..].iter().take(2);
        let nearest = near.min_by_key(|(at, _)| at.abs_diff(time_ns));
        nearest.map_or(
            Offset {
                add_ns: 0,
                error_ns: 0,
            },
            |(at, offset)| Offset {
                add_ns: offset.add_ns,
                error_ns: (offset.error_ns)
                    .saturating_add(at.abs_diff(time_ns) / DRIFT.unsigned_abs()),
            },
        )
    }

    /// A time of a rank's clock, converted to rank 0's clock.
    #[must_use]
    pub fn common_ns(&self, rank: u32, time_ns: u64) -> i64 {
        signed(time_ns).saturating_add(self.at(rank, time_ns).add_ns)
    }

    /// The largest error of each node except rank 0's, by the node's lowest rank.
    pub fn errors(&self) -> impl Iterator<Item = (u32, u64)> {
        let others = self.nodes.iter().filter(|(_, offsets)| !offsets.is_empty());
        others.map(|(leader, offsets)| {
            let errors = offsets.iter().map(|(_, offset)| offset.error_ns);
            (*leader, errors.max().unwrap_or(0))
        })
    }
}

/// Bounds of the offset from a clock to another one, at a time of this clock. An event that one side
/// saw after the other had caused it bounds the offset from one side.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The time, by this clock.
    pub at_ns: u64,
    /// The least that has to be added to this clock's time.
    pub low: i64,
    /// The most that has to be added.
    pub high: i64,
}

impl Bounds {
    /// The offsets at the times of these bounds, which are in order of time. Bounds also apply to
    /// other times, widened by the possible drift. `None` if they contradict each other, or leave
    /// one side open.
    #[must_use]
    pub fn offsets(mut bounds: Vec<Bounds>) -> Option<Vec<(u64, Offset)>> {
        for at in 1..bounds.len() {
            let before = bounds[at - 1];
            bounds[at].tighten(&before);
        }
        for at in (1..bounds.len()).rev() {
            let after = bounds[at];
            bounds[at - 1].tighten(&after);
        }
        let is_sound = |it: &Bounds| it.low <= it.high && it.low > MIN_LOW && it.high < MAX_HIGH;
        let are_sound = !bounds.is_empty() && bounds.iter().all(is_sound);
        are_sound.then(|| {
            let offsets = bounds.iter().map(|bounds| {
                let offset = Offset {
                    add_ns: bounds.low.midpoint(bounds.high),
                    error_ns: bounds.low.abs_diff(bounds.high).div_ceil(2),
                };
                (bounds.at_ns, offset)
            });
            offsets.collect()
        })
    }

    /// Applies the bounds of another time, widened by the drift since then.
    fn tighten(&mut self, other: &Bounds) {
        let drift = signed(self.at_ns.abs_diff(other.at_ns)) / DRIFT + 1;
        self.low = self.low.max(other.low.saturating_sub(drift));
        self.high = self.high.min(other.high.saturating_add(drift));
    }
}

fn compare(files: &[TraceFile], home: u32, leader: u32) -> Option<Vec<(u64, Offset)>> {
    let ranks_of = |leader| {
        files
            .iter()
            .filter(move |file| file.header.leader == leader)
    };
    let (here, there) = (spans(ranks_of(home)), spans(ranks_of(leader)));
    let mut bounds: Vec<Bounds> = Vec::new();
    let mut others = there.iter().peekable();
    for (epoch, entered, left) in &here {
        while others.next_if(|(other, ..)| other < epoch).is_some() {}
        let Some((_, their_entry, their_leave)) = others.next_if(|(other, ..)| other == epoch)
        else {
            continue;
        };
        // The clocks may also drift between the two times that are compared.
        let drift = signed(their_leave.abs_diff(*their_entry)) / DRIFT;
        bounds.push(Bounds {
            at_ns: *their_entry,
            // The node left after home had entered, and the other way round.
            low: (signed(*entered).saturating_sub(signed(*their_leave))).saturating_sub(drift),
            high: signed(*left).saturating_sub(signed(*their_entry)),
        });
    }
    Bounds::offsets(bounds)
}

/// For each superstep that all ranks of a node have: when the last rank entered and the first left.
fn spans<'a>(files: impl Iterator<Item = &'a TraceFile>) -> Vec<(u32, u64, u64)> {
    let mut spans: Option<Vec<(u32, u64, u64)>> = None;
    for file in files {
        let own = file.steps.iter().map(|step| (step.epoch, step));
        let Some(others) = spans.take() else {
            spans = Some(own.map(|(epoch, step)| span(epoch, step)).collect());
            continue;
        };
        let mut own = own.peekable();
        let mut both = Vec::new();
        for (epoch, entered, left) in others {
            while own.next_if(|(other, _)| *other < epoch).is_some() {}
            if let Some((_, step)) = own.next_if(|(other, _)| *other == epoch) {
                both.push((
                    epoch,
                    entered.max(step.entered_ns),
                    left.min(step.left_ns()),
                ));
            }
        }
        spans = Some(both);
    }
    spans.unwrap_or_default()
}

fn span(epoch: u32, step: &Step) -> (u32, u64, u64) {
    (epoch, step.entered_ns, step.left_ns())
}

fn signed(time_ns: u64) -> i64 {
    i64::try_from(time_ns).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::trace::{Header, State};

    /// A file of a rank that entered and left supersteps at these times.
    fn file(rank: u32, leader: u32, spans: &[(u64, u64)]) -> TraceFile {
        let step = |(epoch, (entered_ns, left_ns)): (u32, &(u64, u64))| Step {
            epoch,
            began_ns: entered_ns.saturating_sub(1),
            entered_ns: *entered_ns,
            barrier_ns: left_ns - entered_ns,
            ..Step::default()
        };
        TraceFile {
            header: Header {
                state: State::Ended,
                rank,
                size: 3,
                nodes: 2,
                leader,
                first: 0,
                run: 1,
                begun_ns: 0,
                begun_unix_ns: 0,
                link: "udp".into(),
                host: String::new(),
                cores: Vec::new(),
                quota: 0,
            },
            sites: Vec::new(),
            modules: Vec::new(),
            stacks: Vec::new(),
            steps: (0..).zip(spans).map(step).collect(),
            is_wrapped: false,
            damaged_blocks: 0,
        }
    }

    proptest! {
        /// Ranks 0 and 1 share a node. Rank 2 is on another one, whose clock is ahead and drifts.
        #[test]
        fn offsets_are_found_within_their_error(
            ahead in -1_000_000_000..1_000_000_000_i64,
            drift_ppm in -400..400_i64,
            steps in vec((0..3_000_000_u64, [0..500_000_u64, 0..500_000, 0..500_000],
                [1..90_000_u64, 1..90_000, 1..90_000]), 1..40),
        ) {
            let mut now = 2_000_000_000_u64;
            let by = |time: u64| {
                let since = signed(time) - 2_000_000_000;
                u64::try_from(signed(time) + ahead + since * drift_ppm / 1_000_000).expect("positive")
            };
            let mut spans = [Vec::new(), Vec::new(), Vec::new()];
            let mut truth = Vec::new();
            for (gap, late, after) in steps {
                let entries = late.map(|late| now + gap + late);
                let last = entries.into_iter().max().expect("three");
                let leaves = after.map(|after| last + after);
                for rank in 0..2 {
                    spans[rank].push((entries[rank], leaves[rank]));
                }
                spans[2].push((by(entries[2]), by(leaves[2])));
                truth.push((entries[2], by(entries[2])));
                now = leaves.into_iter().max().expect("three");
            }
            let files = [file(0, 0, &spans[0]), file(1, 0, &spans[1]), file(2, 2, &spans[2])];
            let clocks = Clocks::of(&files).expect("bounds that can hold");
            for (real, shown) in truth {
                let offset = clocks.at(2, shown);
                let wrong = (signed(shown) + offset.add_ns).abs_diff(signed(real));
                prop_assert!(wrong <= offset.error_ns + 2, "{wrong} {offset:?}");
            }
            prop_assert_eq!(clocks.at(1, 5).add_ns, 0);
            prop_assert_eq!(clocks.errors().count(), 1);
        }
    }

    #[test]
    fn the_error_is_half_of_a_symmetric_round_trip_and_contradictions_are_refused() {
        let here = [(1000, 1100), (2000, 2100)];
        let there = [(5000, 5100), (6000, 6100)];
        let clocks = Clocks::of(&[file(0, 0, &here), file(1, 1, &there)]).expect("two nodes");
        assert_eq!(
            clocks.at(1, 5000),
            Offset {
                add_ns: -4000,
                error_ns: 100
            }
        );
        assert_eq!(clocks.common_ns(1, 5050), 1050);
        let other = [(5000, 5100), (9000, 9100)];
        assert!(Clocks::of(&[file(0, 0, &here), file(1, 1, &other)]).is_none());
        assert!(Clocks::of(&[file(0, 0, &here), file(1, 1, &[])]).is_none());
    }
}
