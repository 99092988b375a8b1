//! Communication patterns: which rank sends to which in which round, as pure functions.
//!
//! In round k of a barrier, rank r sends to r + 2^k and receives from r - 2^k, so that after
//! ceil(log2 n) rounds each rank has received from all. A broadcast uses a binomial tree of the same
//! edges. A reduction combines neighbours, so that each intermediate result covers a contiguous
//! range of ranks: the largest power of two of the ranks take slots and combine in pairs, after
//! each remaining rank has sent its data to a neighbour.

/// Rounds of a barrier; also the depth of a broadcast.
pub(super) fn rounds(size: usize) -> u32 {
    size.next_power_of_two().trailing_zeros()
}

/// The ranks that a rank sends to and receives from in a round of a barrier.
pub(super) fn partners(rank: usize, size: usize, round: u32) -> (usize, usize) {
    let distance = 1 << round;
    ((rank + distance) % size, (rank + size - distance) % size)
}

/// The rank that sends the broadcast to `rank`; none for the root.
pub(super) fn parent(rank: usize, root: usize, size: usize) -> Option<usize> {
    let place = (rank + size - root) % size;
    (place != 0).then(|| ((place & (place - 1)) + root) % size)
}

/// The ranks to which a rank forwards a broadcast, largest subtree first.
pub(super) fn children(rank: usize, root: usize, size: usize) -> impl Iterator<Item = usize> {
    let place = (rank + size - root) % size;
    let bits = match place {
        0 => rounds(size),
        _ => place.trailing_zeros(),
    };
    let below = (0..bits).rev().map(move |bit| place + (1 << bit));
    below
        .filter(move |child| *child < size)
        .map(move |child| (child + root) % size)
}

/// A rank's role in a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReductionRole {
    /// Sends its data to that rank and waits for the result.
    Folded(usize),
    /// Has a slot, and first combines the data of a folded rank, if any.
    Active(usize, Option<usize>),
}

/// Slots of a reduction: the largest power of two that is not greater than the size.
pub(super) fn slots(size: usize) -> usize {
    1 << size.ilog2()
}

pub(super) fn role(rank: usize, size: usize) -> ReductionRole {
    let extra = size - slots(size);
    match (rank < 2 * extra, rank % 2) {
        (true, 0) => ReductionRole::Active(rank / 2, Some(rank + 1)),
        (true, _) => ReductionRole::Folded(rank - 1),
        (false, _) => ReductionRole::Active(rank - extra, None),
    }
}

pub(super) fn rank_of_slot(slot: usize, size: usize) -> usize {
    let extra = size - slots(size);
    match slot < extra {
        true => 2 * slot,
        false => slot + extra,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: std::ops::Range<usize> = 1..40;

    #[test]
    fn after_the_last_round_every_rank_has_heard_from_every_rank() {
        for size in SIZES {
            let mut heard: Vec<u64> = (0..size).map(|rank| 1 << rank).collect();
            for round in 0..rounds(size) {
                let before = heard.clone();
                for (rank, heard) in heard.iter_mut().enumerate() {
                    let (to, from) = partners(rank, size, round);
                    assert_eq!(partners(to, size, round).1, rank);
                    *heard |= before[from];
                }
            }
            assert!(heard.iter().all(|heard| *heard == (1 << size) - 1));
            assert!(1 << rounds(size) >= size && (size == 1 || 1 << (rounds(size) - 1) < size));
        }
    }

    #[test]
    fn a_broadcast_reaches_each_rank_once_over_edges_of_the_barrier() {
        for size in SIZES {
            for root in 0..size {
                let mut reached = vec![root];
                let mut at = 0;
                while let Some(rank) = reached.get(at).copied() {
                    for child in children(rank, root, size) {
                        assert_eq!(parent(child, root, size), Some(rank));
                        assert!((0..rounds(size)).any(|k| partners(rank, size, k).0 == child));
                        reached.push(child);
                    }
                    at += 1;
                }
                assert_eq!(parent(root, root, size), None);
                reached.sort_unstable();
                assert!(reached.into_iter().eq(0..size));
            }
        }
    }

    #[test]
    fn slots_follow_rank_order_and_each_rank_has_one_role() {
        for size in SIZES {
            let mut ranks = Vec::new();
            for taken in 0..slots(size) {
                let rank = rank_of_slot(taken, size);
                ranks.push(rank);
                let ReductionRole::Active(found, gives) = role(rank, size) else {
                    panic!("rank {rank} of {size} has a slot");
                };
                assert_eq!(found, taken);
                if let Some(gives) = gives {
                    assert_eq!(role(gives, size), ReductionRole::Folded(rank));
                    ranks.push(gives);
                }
            }
            assert!(ranks.into_iter().eq(0..size));
        }
    }
}
