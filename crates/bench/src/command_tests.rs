use std::collections::{BTreeMap, HashSet};

use clap::Parser;

use super::*;
use crate::work::{Carrier, Placement, name_of};

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    bench: BenchArgs,
}

fn planned(line: &str) -> Result<Vec<Group>, String> {
    let words = std::iter::once("bench").chain(line.split_whitespace());
    let program = Program::try_parse_from(words).map_err(|error| error.to_string())?;
    let setup = Setup {
        has_bpf: false,
        ..program.bench.common().setup.setup()
    };
    program
        .bench
        .plan(&setup)
        .map_err(|error| error.to_string())
}

/// Seconds that measuring takes, without starting processes.
fn measuring_seconds(groups: &[Group]) -> f64 {
    let seconds = groups.iter().flat_map(|group| {
        let rounds = f64::from(group.rounds.most);
        let entries = group.entries.iter();
        entries.map(move |entry| entry.work.duration.as_secs_f64() * rounds)
    });
    seconds.sum()
}

#[test]
fn the_standard_table_takes_well_under_two_minutes() {
    let groups = planned("").expect("a plan");
    let seconds = measuring_seconds(&groups);
    assert!((30.0..90.0).contains(&seconds), "{seconds} s");
}

#[test]
fn the_page_takes_at_most_a_minute_and_a_half() {
    let groups = planned("--html page.html").expect("a plan");
    let least_s: f64 = groups.iter().map(Group::least_seconds).sum();
    assert!((40.0..80.0).contains(&least_s), "{least_s} s");
}

#[test]
fn the_page_adds_points_of_latency_and_of_throughput_at_both_places() {
    let groups = planned("--html page.html").expect("a plan");
    let points = groups.iter().filter(|group| group.is_point);
    let mut seen = BTreeMap::new();
    for entry in points.flat_map(|group| &group.entries) {
        let key = (name_of(entry.work.kind), entry.place == Placement::TwoNodes);
        if entry.subject == Subject::Dipole {
            *seen.entry(key).or_insert(0) += 1;
        }
    }
    // A stream needs four bytes, a pingpong one.
    let expected = [
        ("pingpong", false, 12),
        ("pingpong", true, 12),
        ("stream", false, 11),
        ("stream", true, 11),
    ]
    .map(|(kind, apart, count)| ((kind.to_owned(), apart), count));
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), expected);
    assert!(measuring_seconds(&groups) < 200.0);
}

#[test]
fn shared_memory_is_measured_within_one_node() {
    for (line, place, carrier) in [
        ("pingpong", Placement::TwoNodes, Carrier::Udp),
        ("pingpong --link udp", Placement::TwoNodes, Carrier::Udp),
        ("pingpong --link shm", Placement::OneNode, Carrier::Shm),
        ("pingpong --on node", Placement::OneNode, Carrier::Shm),
        (
            "pingpong --on node --link udp",
            Placement::OneNode,
            Carrier::Udp,
        ),
        (
            "pingpong --on loopback --link auto",
            Placement::TwoNodes,
            Carrier::Udp,
        ),
    ] {
        let groups = planned(line).expect("a plan");
        let entry = &groups[0].entries[0];
        assert_eq!((entry.place, entry.carrier), (place, carrier), "{line}");
    }
}

#[test]
fn memory_operations_are_compared_with_messages_at_both_places() {
    for kind in ["put", "get", "atomic"] {
        let groups = planned(kind).expect("a plan");
        let is_apart = |group: &&Group| group.entries[0].place == Placement::TwoNodes;
        assert_eq!(groups.iter().filter(is_apart).count() * 2, groups.len());
        for group in &groups {
            let subjects = group.entries.iter().map(|entry| entry.subject);
            let subjects: Vec<_> = subjects.collect();
            assert!(subjects[0].is_memory(), "{kind}: {subjects:?}");
            assert!(subjects.contains(&Subject::Dipole), "{kind}: {subjects:?}");
        }
    }
}

#[test]
fn every_group_of_the_table_measures_dipole() {
    for group in planned("").expect("a plan") {
        let mut entries = group.entries.iter();
        let has_dipole = entries.any(|entry| entry.subject == Subject::Dipole);
        assert!(has_dipole, "{}", group.title);
    }
}

#[test]
fn different_benches_have_different_names() {
    let mut seen = HashSet::new();
    let groups = planned("").expect("a plan");
    for entry in groups.iter().flat_map(|group| &group.entries) {
        let key = (
            entry.bench.clone(),
            entry.subject,
            entry.work.size_bytes,
            entry.place,
        );
        assert!(seen.insert(key), "{entry:?}");
    }
}

#[test]
fn loss_is_compared_with_the_fault_wrapper_without_loss() {
    let groups = planned("stream --drop 0.02").expect("a plan");
    let [ref without, ref with] = groups[0].entries[..] else {
        panic!("{groups:?}")
    };
    assert_eq!(without.fault.as_deref(), Some("drop=0,seed=7"));
    assert_eq!(with.fault.as_deref(), Some("drop=0.02,seed=7"));
    assert_eq!(with.bench, "stream-drop-0.02");
}

#[test]
fn only_unreliable_messages_and_datagrams_may_be_lost() {
    let groups = planned("pingpong --unreliable").expect("a plan");
    for entry in &groups[0].entries {
        let expected = matches!(entry.subject, Subject::Dipole | Subject::BareUdpSpin);
        assert_eq!(entry.work.may_lose, expected, "{entry:?}");
        assert_eq!(entry.work.unreliable, entry.subject == Subject::Dipole);
    }
}

#[test]
fn impossible_command_lines_are_rejected_with_the_option() {
    let rejected = [
        ("--block", "--block"),
        ("--size 64", "--size"),
        ("bidir --unreliable", "--unreliable"),
        ("stream --seconds 0", "more than 0"),
        ("stream --drop 1", "below 1"),
        ("stream --drop 0.1 --subjects dipole", "--subjects"),
        ("rate --size 2 --subjects bare-shm", "at least 4 bytes"),
        ("rate --size 0", "1 byte to 1 GiB"),
        (
            "pingpong --link shm --on veth",
            "use --on node or --link udp",
        ),
        ("pingpong --threads 2", "--threads"),
        ("put --block", "--block"),
        ("mixed --unreliable", "--unreliable"),
        (
            "rate --size 64 --subjects dipole-atomic",
            "words of 8 bytes",
        ),
        ("bidir --subjects dipole-get", "one way"),
        ("bidir --threads 2 --subjects bare-shm", "two threads"),
    ];
    for (line, expected) in rejected {
        let message = planned(line).expect_err(line);
        assert!(message.contains(expected), "{line}: {message}");
    }
}

#[test]
fn a_size_may_have_a_unit() {
    for (text, bytes) in [("1", 1), ("64K", 65536), ("1MiB", 1 << 20), ("1g", 1 << 30)] {
        assert_eq!(size(text), Ok(bytes), "{text}");
    }
    for wrong in ["", "0", "K", "2G", "64X", "-1", "99999999999999999999G"] {
        assert!(size(wrong).is_err(), "{wrong}");
    }
}
