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

/// Deals ranks to hosts by their slots, in order; begins again at the first when all are full.
///
/// Returns for every rank the index into `slots`, which must not be empty.
pub(super) fn deal(slots: &[u32], ranks: u32) -> Vec<usize> {
    let round = slots
        .iter()
        .enumerate()
        .flat_map(|(index, slots)| std::iter::repeat_n(index, *slots as usize));
    let mut dealt: Vec<usize> = round.cycle().take(ranks as usize).collect();
    // Neighbours in rank stay on one host also when the slots do not suffice.
    dealt.sort_unstable();
    dealt
}

#[cfg(test)]
mod tests {
    use super::*;
    use dipole_node::hosts::Hosts;

    #[test]
    fn ranks_fill_the_slots_in_order_and_then_begin_again() {
        assert_eq!(deal(&[2, 1, 3], 4), [0, 0, 1, 2]);
        assert_eq!(deal(&[2, 1], 5), [0, 0, 0, 0, 1]);
        assert_eq!(deal(&[1], 3), [0, 0, 0]);
        assert_eq!(deal(&[4, 4], 2), [0, 0]);
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
