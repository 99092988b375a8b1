//! Placement of ranks on hosts and cores.

use dipole_node::hosts::Host;

use super::RunError;
use super::message::LocalRank;

/// Selects hosts to try: the first ones, in order, whose slots hold all ranks, skipping `failed`;
/// all remaining ones if there are too few slots. Returns indices into `hosts`.
pub(super) fn candidates(hosts: &[Host], failed: &[usize], ranks: u32) -> Vec<usize> {
    let mut chosen = Vec::new();
    let mut slots = 0_u32;
    for (index, host) in hosts.iter().enumerate() {
        if slots >= ranks {
            break;
        }
        if !failed.contains(&index) {
            slots = slots.saturating_add(host.slots);
            chosen.push(index);
        }
    }
    chosen
}

/// Number of ranks that a host takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capacity {
    /// Ranks that it takes in each round of the distribution.
    pub(super) slots: u32,
    /// Ranks that it takes in total, if its owner has set a limit.
    pub(super) max: Option<u32>,
}

/// Distributes ranks to hosts by their slots, in order; starts again at the first when all are
/// full.
///
/// Returns the index into `capacities` for every rank, or how many ranks fit in total.
pub(super) fn distribute(capacities: &[Capacity], ranks: u32) -> Result<Vec<usize>, u32> {
    let mut given = vec![0_u32; capacities.len()];
    let mut left = ranks;
    while left > 0 {
        let before = left;
        for (given, capacity) in given.iter_mut().zip(capacities) {
            let free = capacity
                .max
                .map_or(u32::MAX, |max| max.saturating_sub(*given));
            let taken = capacity.slots.min(free).min(left);
            *given += taken;
            left -= taken;
        }
        if left == before {
            return Err(ranks - left);
        }
    }
    // Consecutive ranks stay on one host even if a host gets ranks in several rounds.
    let all = given.iter().enumerate();
    Ok(all
        .flat_map(|(index, given)| std::iter::repeat_n(index, *given as usize))
        .collect())
}

/// Distributes all ranks, or as many as fit if these are at least `at_least`; returns their number
/// and the index of the host of each.
pub(super) fn place(
    capacities: &[Capacity],
    ranks: u32,
    at_least: u32,
) -> Result<(u32, Vec<usize>), RunError> {
    match distribute(capacities, ranks) {
        Ok(placed) => Ok((ranks, placed)),
        Err(capacity) if capacity >= at_least => place(capacities, capacity, at_least),
        Err(capacity) => Err(RunError::TooManyRanks { ranks, capacity }),
    }
}

/// The cores of a rank: an equal share of consecutive cores of its host. If there are more ranks
/// than cores, some ranks share a core.
pub(super) fn share(cores: &[usize], rank: LocalRank) -> &[usize] {
    let (index, count) = (rank.index as usize, (rank.count as usize).max(1));
    let begin = |index: usize| index * cores.len() / count;
    let end = begin(index + 1).max(begin(index) + 1);
    cores.get(begin(index)..end).unwrap_or(cores)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dipole_node::hosts::Hosts;

    #[test]
    fn ranks_fill_the_slots_in_order_and_then_begin_again() {
        let distribute = |slots: &[u32], ranks| {
            let capacity = |slots: &u32| Capacity {
                slots: *slots,
                max: None,
            };
            super::distribute(&slots.iter().map(capacity).collect::<Vec<_>>(), ranks).unwrap()
        };
        assert_eq!(distribute(&[2, 1, 3], 4), [0, 0, 1, 2]);
        assert_eq!(distribute(&[2, 1], 5), [0, 0, 0, 0, 1]);
        assert_eq!(distribute(&[1], 3), [0, 0, 0]);
        assert_eq!(distribute(&[4, 4], 2), [0, 0]);
    }

    #[test]
    fn ranks_share_the_cores_of_their_host_evenly() {
        let cores = [2, 3, 5, 7];
        let shares = |count| -> Vec<&[usize]> {
            (0..count)
                .map(|index| share(&cores, LocalRank { index, count }))
                .collect()
        };
        assert_eq!(shares(1), [&cores[..]]);
        assert_eq!(shares(2), [&[2, 3], &[5, 7]]);
        assert_eq!(shares(3), [&[2][..], &[3], &[5, 7]]);
        assert_eq!(shares(4), [&[2], &[3], &[5], &[7]]);
        assert_eq!(shares(6), [&[2], &[2], &[3], &[5], &[5], &[7]]);
        assert!(share(&[], LocalRank { index: 0, count: 1 }).is_empty());
    }

    #[test]
    fn an_owners_limit_holds_in_all_rounds() {
        let capacities = [(2, Some(1)), (2, None)].map(|(slots, max)| Capacity { slots, max });
        assert_eq!(distribute(&capacities, 5), Ok(vec![0, 1, 1, 1, 1]));
        let capacities = [(2, Some(1)), (2, Some(3))].map(|(slots, max)| Capacity { slots, max });
        assert_eq!(distribute(&capacities, 4), Ok(vec![0, 1, 1, 1]));
        assert_eq!(distribute(&capacities, 5), Err(4));
        assert_eq!(distribute(&[], 1), Err(0));
    }

    #[test]
    fn fewer_ranks_are_placed_if_they_are_enough() {
        let capacities = [(2, Some(2)), (2, Some(3))].map(|(slots, max)| Capacity { slots, max });
        let placed = |ranks, at_least| place(&capacities, ranks, at_least).ok();
        assert_eq!(placed(8, 5), Some((5, vec![0, 0, 1, 1, 1])));
        assert_eq!(placed(3, 1), Some((3, vec![0, 0, 1])));
        assert_eq!(placed(8, 6), None);
        assert!(place(&[], 2, 1).is_err());
    }

    #[test]
    fn only_as_many_hosts_as_needed_are_tried_and_failed_ones_replaced() {
        let hosts = Hosts::parse("1 10.0.0.1 slots=2\n2 10.0.0.2\n3 10.0.0.3 slots=4").unwrap();
        let hosts: Vec<Host> = hosts.iter().cloned().collect();
        assert_eq!(candidates(&hosts, &[], 2), [0]);
        assert_eq!(candidates(&hosts, &[], 3), [0, 1]);
        assert_eq!(candidates(&hosts, &[0], 2), [1, 2]);
        assert_eq!(candidates(&hosts, &[], 100), [0, 1, 2]);
        assert!(candidates(&hosts, &[0, 1, 2], 1).is_empty());
    }
}
