//! Tests of each verdict and its text.

use super::super::finding::Verdict::{Broken, Good, Slow, Unknown};
use super::*;

fn host() -> Host {
    let hosts = dipole_node::hosts::Hosts::parse("2 10.0.0.2").expect("a hosts file");
    hosts.iter().next().expect("one node").clone()
}

#[test]
fn lengths_are_judged_by_what_both_sides_would_use() {
    let of = |ours, theirs, longest, known| {
        let found = size(
            &Size {
                ours,
                theirs,
                longest,
                known,
            },
            28,
            &host(),
        );
        (found.verdict, found.fact)
    };
    assert_eq!(of(1472, Some(1472), 1472, None).0, Good);
    assert_eq!(of(1472, Some(8972), 1472, None).0, Good);
    assert_eq!(of(1472, None, 1472, None).0, Good);
    // A longer packet passed as well, but will not be used.
    assert_eq!(of(8972, Some(1472), 8972, None).0, Slow);
    let (verdict, fact) = of(8972, Some(1472), 1472, None);
    assert_eq!(verdict, Slow);
    assert!(
        fact.contains("packets of 9000 bytes do not get through"),
        "{fact}"
    );
    let (verdict, fact) = of(8972, Some(8972), 1472, None);
    assert_eq!(verdict, Broken);
    assert!(
        fact.ends_with("the MTU of a device in between is smaller"),
        "{fact}"
    );
    let (verdict, fact) = of(1472, Some(1472), 972, Some(1000));
    assert_eq!(verdict, Broken);
    assert!(fact.contains("the path takes 1000"), "{fact}");
}

#[test]
fn each_answer_of_a_directory_has_its_own_words() {
    let refused = || Answer::Failed(io::ErrorKind::PermissionDenied.into());
    for (answer, verdict, words) in [
        (Answer::Right, Good, "both sides mean the same node"),
        (Answer::Wrong, Broken, "another node answers"),
        (Answer::Refused, Unknown, "the host is up"),
        (Answer::Silent, Broken, "no answer at all"),
        (refused(), Broken, "cannot be sent"),
    ] {
        let found = directory(&answer, &host(), None);
        assert_eq!(found.verdict, verdict, "{}", found.fact);
        assert!(found.fact.contains(words), "{}", found.fact);
    }
    let taken = || Err(io::ErrorKind::AddrInUse.into());
    assert_eq!(own_directory(&Answer::Right, Ok(()), &host()).verdict, Good);
    assert_eq!(
        own_directory(&Answer::Refused, Ok(()), &host()).verdict,
        Good
    );
    assert_eq!(
        own_directory(&Answer::Silent, taken(), &host()).verdict,
        Broken
    );
    assert_eq!(
        own_directory(&Answer::Wrong, Ok(()), &host()).verdict,
        Broken
    );
}

#[test]
fn losses_distance_detours_and_versions_are_said() {
    let times = |ms: u64, count| vec![Duration::from_millis(ms); count];
    assert_eq!(round_trip(&times(1, 20), 20).verdict, Good);
    assert_eq!(round_trip(&times(3, 20), 20).verdict, Slow);
    let lossy = round_trip(&times(1, 17), 20);
    assert!(
        lossy.fact.contains("3 of 20 probes got no reply"),
        "{}",
        lossy.fact
    );
    assert_eq!(round_trip(&[], 20).verdict, Unknown);
    let ip = |last| IpAddr::from([10, 0, 0, last]);
    assert_eq!(route(&Ok(ip(1)), Some(ip(1)), &host()).verdict, Good);
    assert_eq!(route(&Ok(ip(3)), Some(ip(1)), &host()).verdict, Slow);
    let local = |last| IpAddr::from([127, 0, 0, last]);
    assert_eq!(route(&Ok(local(1)), Some(local(2)), &host()).verdict, Good);
    let none = Err(io::ErrorKind::NetworkUnreachable.into());
    let found = route(&none, None, &host());
    assert!(
        found.advice.contains("ip route get 10.0.0.2"),
        "{}",
        found.advice
    );
    assert_eq!(version([0, 1, 0], [0, 1, 0], &host()).verdict, Good);
    assert_eq!(version([0, 2, 0], [0, 1, 0], &host()).verdict, Slow);
}
