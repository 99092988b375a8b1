//! The set of holes agrees with a plain set of numbers for any order of arrivals.

#![cfg_attr(fuzzing, no_main)]

use std::collections::BTreeSet;

use dipole_fuzz::fuzz_target;
use dipole_proto::{Arrival, Holes, MAX_HOLES};

fuzz_target!(|bytes: &[u8]| {
    let mut holes = Holes::default();
    // Everything below `settled` counts as arrived.
    let (mut settled, mut arrived) = (0, BTreeSet::new());
    for step in bytes.chunks_exact(3) {
        let value = u64::from(u16::from_le_bytes([step[1], step[2]]));
        if step[0] & 15 == 0 {
            let floor = holes.next() + value % 64;
            holes.settle(floor);
            settled = settled.max(floor);
            arrived = arrived.split_off(&settled);
        } else {
            // Mostly close to the expected number, sometimes far away.
            let number = if step[0] & 1 == 0 {
                value
            } else {
                (holes.top() + 8).saturating_sub(value % 64)
            };
            let known = number < settled || arrived.contains(&number);
            let expected = holes.classify(number);
            let before = holes.clone();
            let arrival = holes.record(number);
            assert_eq!(arrival, expected);
            match arrival {
                Arrival::New => assert!(!known && arrived.insert(number)),
                Arrival::Duplicate => assert!(known),
                Arrival::Refused => assert!(!known && holes == before),
            }
        }
        check(&holes, settled, &arrived);
    }
});

fn check(holes: &Holes, settled: u64, arrived: &BTreeSet<u64>) {
    let missing: Vec<_> = holes.missing().collect();
    assert!(missing.len() <= MAX_HOLES);
    assert!(missing.iter().all(|hole| hole.start < hole.end));
    assert!(missing.windows(2).all(|pair| pair[0].end < pair[1].start));
    assert_eq!(arrived.last().map_or(settled, |last| last + 1), holes.top());
    let open: u64 = missing.iter().map(|hole| hole.end - hole.start).sum();
    assert_eq!(settled + open + arrived.len() as u64, holes.top());
    assert_eq!(
        missing.first().map_or(holes.top(), |hole| hole.start),
        holes.next()
    );
    assert_eq!(holes.is_whole(), missing.is_empty());
    for hole in &missing {
        assert!(arrived.range(hole.start..hole.end).next().is_none());
    }
}
