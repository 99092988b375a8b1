//! Which rank goes to which host.

use dipole_node::hosts::Host;

/// Hosts to try: the first ones, in order, whose slots hold all ranks, passing over `failed`.
///
/// All that are left if there are too few slots. Indices into `hosts`.
pub(super) fn candidates(hosts: &[Host], failed: &[usize], ranks: u32) -> Vec<usize> {
    let mut chosen = Vec::new();
    let mut held = 0_u32;
    for (index, host) in hosts.iter().enumerate() {
        if held >= ranks {
            break;
        }
        if !failed.contains(&index) {
            held = held.saturating_add(host.slots);
            chosen.push(index);
        }
    }
    chosen
}

/// How many ranks a host may get.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// In each round.
    pub(super) slots: u32,
    /// In all, if its owner has set a limit.
    pub(super) most: Option<u32>,
}

/// Deals ranks to hosts by their slots, in order; begins again at the first when all are full.
///
/// Returns for every rank the index into `rooms`, or how many ranks there is room for.
pub(super) fn deal(rooms: &[Room], ranks: u32) -> Result<Vec<usize>, u32> {
    let mut given = vec![0_u32; rooms.len()];
    let mut left = ranks;
    while left > 0 {
        let before = left;
        for (given, room) in given.iter_mut().zip(rooms) {
            let free = room
                .most
                .map_or(u32::MAX, |most| most.saturating_sub(*given));
            let taken = room.slots.min(free).min(left);
            *given += taken;
            left -= taken;
        }
        if left == before {
            return Err(ranks - left);
        }
    }
    // Neighbours in rank stay on one host also when the slots do not suffice.
    let all = given.iter().enumerate();
    Ok(all
        .flat_map(|(index, given)| std::iter::repeat_n(index, *given as usize))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use dipole_node::hosts::Hosts;

    #[test]
    fn ranks_fill_the_slots_in_order_and_then_begin_again() {
        let deal = |slots: &[u32], ranks| {
            let room = |slots: &u32| Room {
                slots: *slots,
                most: None,
            };
            super::deal(&slots.iter().map(room).collect::<Vec<_>>(), ranks).unwrap()
        };
        assert_eq!(deal(&[2, 1, 3], 4), [0, 0, 1, 2]);
        assert_eq!(deal(&[2, 1], 5), [0, 0, 0, 0, 1]);
        assert_eq!(deal(&[1], 3), [0, 0, 0]);
        assert_eq!(deal(&[4, 4], 2), [0, 0]);
    }

    #[test]
    fn an_owners_limit_holds_in_all_rounds() {
        let rooms = [(2, Some(1)), (2, None)].map(|(slots, most)| Room { slots, most });
        assert_eq!(deal(&rooms, 5), Ok(vec![0, 1, 1, 1, 1]));
        let rooms = [(2, Some(1)), (2, Some(3))].map(|(slots, most)| Room { slots, most });
        assert_eq!(deal(&rooms, 4), Ok(vec![0, 1, 1, 1]));
        assert_eq!(deal(&rooms, 5), Err(4));
        assert_eq!(deal(&[], 1), Err(0));
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
