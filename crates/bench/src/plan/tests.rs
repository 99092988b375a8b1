use clap::Parser;

use super::*;

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    bench: BenchArgs,
}

fn arguments(line: &str) -> BenchArgs {
    let words = std::iter::once("bench").chain(line.split_whitespace());
    Program::try_parse_from(words)
        .expect("the line parses")
        .bench
}

fn planned(line: &str) -> Result<Vec<Group>, PlanError> {
    plan(&arguments(line)).map(|plan| match plan {
        Plan::Groups(groups) => groups,
        other => panic!("{other:?}"),
    })
}

/// Seconds that measuring takes, without what starting processes adds.
fn seconds(groups: &[Group]) -> f64 {
    groups
        .iter()
        .flat_map(|group| {
            let rounds = f64::from(group.rounds.most);
            let entries = group.entries.iter();
            entries.map(move |entry| entry.work.duration.as_secs_f64() * rounds)
        })
        .sum()
}

#[test]
fn the_standard_table_takes_well_under_two_minutes() {
    let groups = planned("").expect("a plan");
    let seconds = seconds(&groups);
    assert!((30.0..90.0).contains(&seconds), "{seconds} s");
}

#[test]
fn the_page_needs_a_minute_and_a_half_at_most() {
    let groups = planned("--html page.html").expect("a plan");
    let least_s: f64 = groups.iter().map(Group::least_seconds).sum();
    assert!((40.0..80.0).contains(&least_s), "{least_s} s");
}

#[test]
fn the_page_adds_points_of_latency_and_of_bandwidth_at_both_places() {
    let groups = planned("--html page.html").expect("a plan");
    let points = groups.iter().filter(|group| group.is_point);
    let mut seen = std::collections::BTreeMap::new();
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
    assert!(seconds(&groups) < 200.0);
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
fn a_crowd_has_eight_processes_unless_told_otherwise() {
    for (line, processes) in [("crowd", 8), ("crowd --processes 3", 3)] {
        let Ok(Plan::Crowd(crowd)) = plan(&arguments(line)) else {
            panic!("{line} is no crowd");
        };
        assert_eq!((crowd.processes, crowd.size_bytes), (processes, 64));
    }
}

#[test]
fn an_incast_is_of_seven_messages_of_64_kib_unless_told_otherwise() {
    let lines = [("incast", 7, 65_536), ("incast --senders 3 --size 9", 3, 9)];
    for (line, senders, size_bytes) in lines {
        let Ok(Plan::Incast(incast)) = plan(&arguments(line)) else {
            panic!("{line} is no incast");
        };
        assert_eq!((incast.senders, incast.size_bytes), (senders, size_bytes));
    }
}

#[test]
fn operations_on_memory_are_planned_for_both_places_and_each_beside_messages() {
    for topic in ["put", "get", "atomic"] {
        let groups = planned(topic).expect("a plan");
        let is_apart = |group: &&Group| group.entries[0].place == Placement::TwoNodes;
        assert_eq!(groups.iter().filter(is_apart).count() * 2, groups.len());
        for group in &groups {
            let subjects = group.entries.iter().map(|entry| entry.subject);
            let subjects: Vec<_> = subjects.collect();
            assert!(subjects[0].is_memory(), "{topic}: {subjects:?}");
            assert!(subjects.contains(&Subject::Dipole), "{topic}: {subjects:?}");
        }
    }
}

#[test]
fn every_group_of_the_table_measures_dipole() {
    for group in planned("").expect("a plan") {
        assert!(
            group
                .entries
                .iter()
                .any(|entry| entry.subject == Subject::Dipole),
            "{}",
            group.title
        );
    }
}

#[test]
fn benches_that_differ_have_names_that_differ() {
    let mut seen = std::collections::HashSet::new();
    for entry in planned("")
        .expect("a plan")
        .iter()
        .flat_map(|group| &group.entries)
    {
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
fn a_loss_is_measured_beside_the_same_wrapper_without_one() {
    let groups = planned("stream --drop 0.02").expect("a plan");
    let [ref without, ref with] = groups[0].entries[..] else {
        panic!("{groups:?}")
    };
    assert_eq!(without.fault.as_deref(), Some("drop=0,seed=7"));
    assert_eq!(with.fault.as_deref(), Some("drop=0.02,seed=7"));
    assert_eq!(with.bench, "stream-drop-0.02");
}

#[test]
fn only_dipole_sends_unreliably_and_only_those_who_repeat_nothing_may_lose() {
    let groups = planned("pingpong --unreliable").expect("a plan");
    for entry in &groups[0].entries {
        let expected = matches!(entry.subject, Subject::Dipole | Subject::BareUdpSpin);
        assert_eq!(entry.work.may_lose, expected, "{entry:?}");
        assert_eq!(entry.work.unreliable, entry.subject == Subject::Dipole);
    }
}

#[test]
fn what_cannot_be_done_is_refused_with_the_option_named() {
    let refusals = [
        ("--block", "--block needs a kind"),
        ("--size 64", "--size needs a kind"),
        ("bidir --unreliable", "--unreliable cannot go with bidir"),
        ("stream --seconds 0", "--seconds 0"),
        ("stream --drop 1", "--drop 1"),
        (
            "stream --drop 0.1 --subjects dipole",
            "--subjects cannot go with --drop",
        ),
        (
            "pingpong --subjects bare-udp-gso",
            "bare-udp-gso is for trains",
        ),
        ("rate --size 2 --subjects bare-shm", "at least 4 bytes"),
        ("rate --size 0", "--size 0"),
        (
            "pingpong --link shm --on veth",
            "use --on node or --link udp",
        ),
        ("pingpong --threads 2", "--threads 2 is for bidir"),
        ("pingpong --processes 4", "--processes is for crowd"),
        ("crowd --html page.html", "--html cannot go with crowd"),
        ("crowd --senders 3", "--senders is for incast"),
        ("incast --link shm", "--link shm cannot go with incast"),
        ("put --block", "--block cannot go with put"),
        ("mixed --unreliable", "--unreliable cannot go with mixed"),
        (
            "rate --size 64 --subjects dipole-atomic",
            "words of 8 bytes",
        ),
        ("bidir --subjects dipole-get", "reliably and one way"),
        (
            "bidir --threads 2 --subjects bare-shm",
            "two threads of a side",
        ),
    ];
    for (line, expected) in refusals {
        let message = planned(line).expect_err(line).to_string();
        assert!(message.contains(expected), "{line}: {message}");
    }
}
