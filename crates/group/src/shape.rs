//! Who sends to whom in which round: pure functions of rank and size.
//!
//! A barrier disseminates: in round k rank r tells r + 2^k and hears from r - 2^k, so after
//! ceil(log2 n) rounds each has heard from all. A broadcast goes down a binomial tree, whose
//! edges are those of the barrier. A reduction combines neighbours, so that what is combined is
//! always a range of ranks in order: ranks beyond the largest power of two give theirs to a
//! neighbour first, the others take seats and combine pair by pair.

/// Rounds of a barrier, and the depth of a broadcast.
pub(super) fn rounds(size: usize) -> u32 {
    size.next_power_of_two().trailing_zeros()
}

/// Whom a rank tells in a round of a barrier, and from whom it hears.
pub(super) fn partners(rank: usize, size: usize, round: u32) -> (usize, usize) {
    let distance = 1 << round;
    ((rank + distance) % size, (rank + size - distance) % size)
}

/// From whom a rank has a broadcast; none of the root.
pub(super) fn parent(rank: usize, root: usize, size: usize) -> Option<usize> {
    let place = (rank + size - root) % size;
    (place != 0).then(|| ((place & (place - 1)) + root) % size)
}

/// To whom a rank passes a broadcast on, first those who have most to pass on.
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

/// A rank's part in a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seat {
    /// It gives what it has to that rank.
    Folded(usize),
    /// It has a seat, after it has combined what that rank gives, if any.
    Seated(usize, Option<usize>),
}

/// Seats of a reduction: the largest power of two that is not greater than the size.
pub(super) fn seats(size: usize) -> usize {
    1 << size.ilog2()
}

pub(super) fn seat(rank: usize, size: usize) -> Seat {
    let extra = size - seats(size);
    match (rank < 2 * extra, rank % 2) {
        (true, 0) => Seat::Seated(rank / 2, Some(rank + 1)),
        (true, _) => Seat::Folded(rank - 1),
        (false, _) => Seat::Seated(rank - extra, None),
    }
}

/// Which rank has a seat.
pub(super) fn seated(seat: usize, size: usize) -> usize {
    let extra = size - seats(size);
    match seat < extra {
        true => 2 * seat,
        false => seat + extra,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: std::ops::Range<usize> = 1..40;

    #[test]
    fn after_its_rounds_everybody_has_heard_from_everybody() {
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
    fn a_broadcast_reaches_each_rank_once_along_edges_of_the_barrier() {
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
    fn seats_are_taken_in_the_order_of_ranks_and_each_rank_has_one_part() {
        for size in SIZES {
            let mut ranks = Vec::new();
            for taken in 0..seats(size) {
                let rank = seated(taken, size);
                ranks.push(rank);
                let Seat::Seated(found, gives) = seat(rank, size) else {
                    panic!("rank {rank} of {size} has a seat");
                };
                assert_eq!(found, taken);
                if let Some(gives) = gives {
                    assert_eq!(seat(gives, size), Seat::Folded(rank));
                    ranks.push(gives);
                }
            }
            assert!(ranks.into_iter().eq(0..size));
        }
    }
}
