//! Compares plans with a slow model that visits every element.

#![allow(missing_docs, reason = "tests")]

use dipole_reshuffle::{Distribution, Exchange, Plan, ReshuffleError, Transfer};
use proptest::prelude::*;

/// An exchange of one process whose messages the test delivers.
struct TestExchange {
    outgoing: Vec<u64>,
    incoming: Vec<u64>,
    sent: Vec<Transfer>,
}

impl Exchange<u64> for TestExchange {
    type Error = ReshuffleError;

    fn outgoing(&mut self) -> &mut [u64] {
        &mut self.outgoing
    }

    fn send(&mut self, transfer: &Transfer) -> Result<(), ReshuffleError> {
        self.sent.push(transfer.clone());
        Ok(())
    }

    fn finish(&mut self) -> Result<(), ReshuffleError> {
        Ok(())
    }

    fn incoming(&self) -> &[u64] {
        &self.incoming
    }
}

/// All elements of an array: their indices and a number for each.
fn elements(extents: &[usize]) -> Vec<(Vec<usize>, u64)> {
    let mut all = vec![Vec::new()];
    for &extent in extents {
        let longer = |index: Vec<usize>| (0..extent).map(move |at| [&index[..], &[at]].concat());
        all = all.into_iter().flat_map(longer).collect();
    }
    all.into_iter().zip(1..).collect()
}

/// The parts of all ranks in a distribution, according to the model.
fn parts(of: &Distribution, ranks: u32) -> Vec<Vec<u64>> {
    let mut parts: Vec<_> = (0..ranks).map(|rank| vec![0; of.elements(rank)]).collect();
    for (index, number) in elements(&of.extents()) {
        let (rank, position) = of.find(&index).expect("an element");
        parts[rank as usize][position] = number;
    }
    parts
}

fn check(from: &Distribution, to: &Distribution) {
    let ranks = from.ranks().max(to.ranks()) + 1;
    let plan = |rank| Plan::new(from, to, rank).expect("the same array");
    let plans: Vec<Plan> = (0..ranks).map(plan).collect();
    let (before, after) = (parts(from, ranks), parts(to, ranks));
    // The first run only determines what arrives. Its results do not count.
    let mut incoming: Vec<Vec<u64>> = plans
        .iter()
        .map(|plan| vec![0; plan.incoming_elements()])
        .collect();
    let mut all = Vec::new();
    for (plan, part) in plans.iter().zip(&before) {
        let mut exchange = exchange(plan, &[]);
        exchange.incoming = vec![0; plan.incoming_elements()];
        let mut unused = vec![0; plan.target_elements()];
        plan.run(&mut exchange, part, &mut unused).expect("it runs");
        for transfer in exchange.sent {
            let into = &mut incoming[transfer.peer as usize][transfer.at..][..transfer.range.len()];
            assert!(
                into.iter().all(|number| *number == 0),
                "nothing is sent twice"
            );
            into.copy_from_slice(&exchange.outgoing[transfer.range.clone()]);
            all.push((
                transfer.round,
                plan.rank(),
                transfer.peer,
                transfer.range.len(),
            ));
        }
    }
    for (((plan, before), after), incoming) in plans.iter().zip(&before).zip(&after).zip(&incoming)
    {
        let mut exchange = exchange(plan, incoming);
        let mut target = vec![0; plan.target_elements()];
        plan.run(&mut exchange, before, &mut target)
            .expect("it runs");
        assert_eq!(&target, after, "rank {} of {from:?} to {to:?}", plan.rank());
        let mut memory = before.clone();
        plan.run_in_place(&mut exchange, &mut memory)
            .expect("it runs");
        assert_eq!(
            &memory,
            after,
            "in place: rank {} of {from:?} to {to:?}",
            plan.rank()
        );
    }
    // Only elements that move are sent, and each rank has one message at a time.
    let moves = |(index, _): &(Vec<usize>, u64)| {
        from.find(index).map(|at| at.0) != to.find(index).map(|at| at.0)
    };
    let moved = elements(&from.extents())
        .iter()
        .filter(|it| moves(it))
        .count();
    assert_eq!(all.iter().map(|it| it.3).sum::<usize>(), moved);
    for (end, whose) in [(0, "a sender"), (1, "a receiver")] {
        let ends = all.iter().map(|it| (it.0, [it.1, it.2][end]));
        let different: std::collections::BTreeSet<_> = ends.collect();
        assert_eq!(
            different.len(),
            all.len(),
            "{whose} has one message in each round"
        );
    }
    assert!(all.iter().all(|it| it.0 < plans[0].rounds() && it.3 > 0));
}

fn exchange(plan: &Plan, incoming: &[u64]) -> TestExchange {
    TestExchange {
        outgoing: vec![0; plan.outgoing_elements()],
        incoming: incoming.to_vec(),
        sent: Vec::new(),
    }
}

/// The extent of a dimension, and its distribution before and after.
fn dimension() -> impl Strategy<Value = (usize, [(u32, usize); 2])> {
    let side = || (1_u32..4, 1_usize..7);
    (0_usize..14, [side(), side()])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn every_element_arrives_where_it_belongs(dimensions in proptest::collection::vec(dimension(), 0..4)) {
        let extents: Vec<usize> = dimensions.iter().map(|it| it.0).collect();
        let of = |side: usize| {
            let processes: Vec<u32> = dimensions.iter().map(|it| it.1[side].0).collect();
            let blocks: Vec<usize> = dimensions.iter().map(|it| it.1[side].1).collect();
            Distribution::new(&extents, &processes, &blocks).expect("valid")
        };
        check(&of(0), &of(1));
    }

    #[test]
    fn long_dimensions_are_reshuffled_by_periods(extent in 0_usize..3000, sides in [(1_u32..9, 1_usize..40), (1_u32..9, 1_usize..40)]) {
        let [from, to] = sides.map(|(processes, block)| {
            Distribution::new(&[extent], &[processes], &[block]).expect("valid")
        });
        check(&from, &to);
    }
}

#[test]
fn arrays_of_four_dimensions_are_reshuffled() {
    let new = |processes: &[u32], blocks: &[usize]| {
        Distribution::new(&[5, 4, 6, 7], processes, blocks).expect("valid")
    };
    check(
        &new(&[2, 1, 2, 2], &[1, 4, 2, 3]),
        &new(&[1, 2, 3, 1], &[5, 1, 1, 7]),
    );
    check(
        &new(&[4, 1, 1, 1], &[1, 1, 1, 1]),
        &new(&[2, 1, 1, 2], &[2, 9, 9, 4]),
    );
}

#[test]
fn planning_takes_no_longer_for_a_longer_array() {
    // With 2^52 elements, visiting each of them would take days.
    let extent = 1 << 52;
    let from = Distribution::new(&[extent], &[8], &[1]).expect("valid");
    let to = Distribution::new(&[extent], &[8], &[1024]).expect("valid");
    let plan = Plan::new(&from, &to, 3).expect("the same array");
    assert_eq!(plan.outgoing_elements(), (1 << 49) / 8 * 7);
    assert_eq!(plan.rounds(), 7);
}

#[test]
fn different_arrays_and_memory_of_the_wrong_size_are_refused() {
    let new = |extent| Distribution::new(&[extent], &[2], &[1]).expect("valid");
    let error = Plan::new(&new(4), &new(5), 0).expect_err("another array");
    assert!(matches!(error, ReshuffleError::Extents { .. }), "{error}");
    let plan = Plan::new(&new(4), &new(4), 0).expect("the same array");
    let mut none = exchange(&plan, &[]);
    let refused = plan.run(&mut none, &[1, 2, 3], &mut [0; 2]);
    let (rank, what, found, wanted) = (0, "the source", 3, 2);
    assert_eq!(
        refused,
        Err(ReshuffleError::Memory {
            rank,
            what,
            found,
            wanted
        })
    );
}
