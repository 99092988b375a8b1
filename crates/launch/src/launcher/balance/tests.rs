use proptest::prelude::*;

use super::*;
use crate::load::row;

const SPEED: u32 = 1000;

/// Hosts 1, 2, ... with these cores and loads, one slot each, and the ranks that are there.
fn hosts(hosts: &[(u32, f64)], places: &[u32]) -> (Vec<Candidate>, Vec<NodeId>) {
    let ranks = |node| places.iter().filter(|at| **at == node).count();
    let candidates = (1..).zip(hosts).map(|(node, (cores, average))| Candidate {
        node: NodeId(node),
        slots: 1,
        ranks: u32::try_from(ranks(node)).unwrap(),
        load: Some(row(node, *cores, *average, SPEED)),
        is_refused: false,
    });
    let places = places.iter().copied().map(NodeId).collect();
    (candidates.collect(), places)
}

/// Rank, node, and new node of each proposal.
fn moves((candidates, places): &(Vec<Candidate>, Vec<NodeId>), x: f64) -> Vec<(u32, u32, u32)> {
    let found = proposals(candidates, places, x);
    let numbers = found.iter().map(|one| (one.rank, one.from.0, one.to.0));
    numbers.collect()
}

#[test]
fn a_rank_leaves_a_loaded_host_and_the_others_stay() {
    let job = hosts(&[(2, 1.0), (2, 6.0), (2, 1.0), (2, 0.1)], &[1, 2, 3]);
    assert_eq!(moves(&job, 1.0), [(1, 2, 4)]);
    // Two of three are loaded, but one host is free only.
    let job = hosts(&[(2, 5.0), (2, 6.0), (2, 1.0), (2, 0.1)], &[1, 2, 3]);
    assert_eq!(moves(&job, 1.0), [(1, 2, 4)]);
}

#[test]
fn x_is_added_to_hosts_without_a_rank_only() {
    // The job's own load of 1 on one core is not a reason to move to an idle host.
    let job = hosts(&[(1, 1.0), (1, 0.0)], &[1]);
    assert_eq!(moves(&job, 1.0), []);
    assert_eq!(moves(&job, 0.0), []);
    let job = hosts(&[(1, 2.0), (1, 0.5)], &[1]);
    assert_eq!(moves(&job, 1.0), [(0, 1, 2)]);
    assert_eq!(moves(&job, 1.5), []);
}

#[test]
fn equal_hosts_are_no_reason_to_move() {
    for count in 1..5 {
        let equal = vec![(2, 3.0); 5];
        let places: Vec<u32> = (1..=count).collect();
        assert_eq!(moves(&hosts(&equal, &places), 0.0), [], "{places:?}");
        let last: Vec<u32> = (1..=count).map(|node| 6 - node).collect();
        assert_eq!(moves(&hosts(&equal, &last), 0.0), [], "{last:?}");
    }
}

#[test]
fn a_free_core_is_not_left_for_another_free_core_or_a_slightly_faster_one() {
    // Both hosts have a core for the rank, although the other one has more of them.
    assert_eq!(moves(&hosts(&[(4, 3.0), (8, 0.0)], &[1]), 1.0), []);
    for (speed, expected) in [(1050, vec![]), (1200, vec![(0, 1, 2)])] {
        let mut job = hosts(&[(2, 1.0), (2, 0.0)], &[1]);
        job.0[1].load = Some(row(2, 2, 0.0, speed));
        assert_eq!(moves(&job, 1.0), expected, "{speed}");
    }
}

#[test]
fn a_rank_returns_to_a_fast_host_that_is_idle_again() {
    // The idle speed (n - L) s is 0 everywhere: the rank is all of the load, or would be.
    let mut job = hosts(&[(1, 1.0), (1, 0.0), (1, 0.0)], &[1]);
    job.0[1].load = Some(row(2, 1, 0.0, 1500));
    job.0[2].load = Some(row(3, 1, 0.0, 2000));
    assert_eq!(moves(&job, 1.0), [(0, 1, 3)]);
    job.0[2].load = Some(row(3, 1, 1.0, 2000));
    assert_eq!(moves(&job, 1.0), [(0, 1, 2)]);
    job.0[1].load = Some(row(2, 1, 1.0, 1500));
    assert_eq!(moves(&job, 1.0), []);
}

#[test]
fn hosts_of_unknown_load_keep_their_ranks_and_get_no_others() {
    let mut job = hosts(&[(2, 6.0), (2, 0.0), (2, 0.0)], &[1]);
    job.0[1].load = None;
    assert_eq!(moves(&job, 1.0), [(0, 1, 3)]);
    job.0[2].load = None;
    assert_eq!(moves(&job, 1.0), []);
    let mut job = hosts(&[(2, 6.0), (2, 6.0), (2, 0.0), (2, 0.0)], &[1, 2]);
    job.0[0].load = None;
    assert_eq!(moves(&job, 1.0), [(1, 2, 3)]);
}

#[test]
fn a_refused_host_is_skipped_and_keeps_what_it_has() {
    let mut job = hosts(&[(2, 6.0), (2, 0.0), (2, 0.5)], &[1]);
    job.0[1].is_refused = true;
    assert_eq!(moves(&job, 1.0), [(0, 1, 3)]);
    job.0[2].is_refused = true;
    assert_eq!(moves(&job, 1.0), []);
    let mut job = hosts(&[(2, 1.0), (2, 6.0)], &[1]);
    job.0[0].is_refused = true;
    assert_eq!(moves(&job, 1.0), []);
}

#[test]
fn more_ranks_than_hosts_fill_the_slots_of_the_best() {
    let mut job = hosts(&[(4, 9.0), (4, 2.0), (4, 0.0)], &[1, 1, 2, 2]);
    for one in &mut job.0 {
        one.slots = 2;
    }
    // The highest ranks of a host leave first, and rank 0 only if all do.
    assert_eq!(moves(&job, 1.0), [(0, 1, 3), (1, 1, 3)]);
    job.0[2].slots = 1;
    assert_eq!(moves(&job, 1.0), [(1, 1, 3)]);
    // Nowhere to go: hosts hold more ranks than they have slots.
    let crowded = hosts(&[(1, 9.0), (1, 5.0)], &[1, 1, 1, 2, 2]);
    assert_eq!(moves(&crowded, 1.0), []);
}

#[test]
fn an_idle_cluster_is_left_as_dipole_run_fills_it() {
    // Four cores and slots each: the ranks are all of the load.
    let mut job = hosts(&[(4, 4.0), (4, 2.0), (4, 0.0)], &[1, 1, 1, 1, 2, 2]);
    for one in &mut job.0 {
        one.slots = 4;
    }
    assert_eq!(moves(&job, 1.0), []);
}

prop_compose! {
    /// Hosts with foreign load, slots and ranks of the job.
    fn cluster()(
        given in prop::collection::vec(
            (1_u32..5, 0.0..8.0_f64, 1_u32..4, 0_u32..4, any::<(bool, bool)>(), 1_u32..4),
            1..9,
        ),
    ) -> (Vec<Candidate>, Vec<NodeId>) {
        let mut places = Vec::new();
        let candidates = (1..).zip(given).map(|(node, (cores, average, slots, ranks, is, speed))| {
            places.extend(std::iter::repeat_n(NodeId(node), ranks as usize));
            let (is_unknown, is_refused) = is;
            let known = row(node, cores, average + f64::from(ranks), speed * SPEED);
            Candidate {
                node: NodeId(node),
                slots,
                ranks,
                load: (!is_unknown).then_some(known),
                is_refused,
            }
        });
        let candidates = candidates.collect();
        (candidates, places)
    }
}

/// The same hosts after the ranks have moved. Their loads follow if `x` is the load of a rank.
fn after(
    (candidates, places): &(Vec<Candidate>, Vec<NodeId>),
    found: &[Proposal],
    x: f64,
) -> (Vec<Candidate>, Vec<NodeId>) {
    let (mut candidates, mut places) = (candidates.clone(), places.clone());
    for one in found {
        places[one.rank as usize] = one.to;
        for host in &mut candidates {
            let load = host.load.as_mut().filter(|load| load.node == host.node);
            let sign = match host.node {
                node if node == one.from => -1.0,
                node if node == one.to => 1.0,
                _ => continue,
            };
            let load = load.expect("ranks move between hosts of known load");
            load.load += sign * x;
            host.ranks = host
                .ranks
                .saturating_add_signed(if sign < 0.0 { -1 } else { 1 });
        }
    }
    (candidates, places)
}

proptest! {
    #[test]
    fn proposals_respect_slots_refusals_and_unknown_loads(job in cluster(), x in 0.0..2.0_f64) {
        let found = proposals(&job.0, &job.1, x);
        let (moved, _) = after(&job, &found, 0.0);
        for (before, after) in job.0.iter().zip(&moved) {
            if before.load.is_none() {
                prop_assert_eq!(before.ranks, after.ranks);
            }
            if after.ranks > before.ranks {
                prop_assert!(!before.is_refused && after.ranks <= before.slots, "{:?}", after);
            }
        }
        for one in &found {
            prop_assert_eq!(job.1[one.rank as usize], one.from);
            prop_assert_ne!(one.from, one.to);
        }
        let mut ranks: Vec<u32> = found.iter().map(|one| one.rank).collect();
        ranks.dedup();
        prop_assert_eq!(ranks.len(), found.len());
    }

    /// A job does not return because of the load that it has taken with it, or because of load
    /// averages that do not show this yet.
    #[test]
    fn a_job_that_has_moved_stays(job in cluster(), x in 0.0..2.0_f64, shown in 0.0..=1.0_f64) {
        let mut job = job;
        // A rank whose move is not worth it may stay between ranks that have moved, so all hosts have
        // the same speed and are busy here.
        for load in job.0.iter_mut().filter_map(|one| one.load.as_mut()) {
            load.speed = SPEED;
            load.load += f64::from(load.cores);
        }
        let found = proposals(&job.0, &job.1, x);
        let moved = after(&job, &found, x * shown);
        let again = proposals(&moved.0, &moved.1, x);
        let returns: Vec<_> = again
            .iter()
            .filter(|two| found.iter().any(|one| one.from == two.to && one.to == two.from))
            .collect();
        prop_assert!(returns.is_empty(), "{:?} {:?}", found, returns);
    }

    #[test]
    fn a_rank_moves_only_if_it_gets_more_speed_although_x_is_added(job in cluster(), x in 0.0..2.0_f64) {
        let find = |node: NodeId| job.0.iter().find(|one| one.node == node).copied().unwrap();
        for one in proposals(&job.0, &job.1, x) {
            let (here, there) = (find(one.from).load.unwrap(), find(one.to).load.unwrap());
            let speed = |load: NodeLoad, average: f64| {
                f64::from(load.speed) * (f64::from(load.cores) / average).min(1.0)
            };
            // The host that is left is compared with all its slots filled.
            let from = find(one.from);
            let further = f64::from(from.slots.saturating_sub(from.ranks));
            let full = speed(here, here.load + x * further);
            prop_assert!(speed(there, there.load + x) >= WORTH * full, "{:?} {:?}", here, there);
        }
    }
}
