//! What a program may rely on, by every link and on several numbers of ranks. The rules are in `c/rules.c`.

mod harness;

use harness::{Bench, source};

/// Links that need no privileges.
const LINKS: [&str; 3] = ["auto", "udp", "tcp"];

#[test]
fn every_rule_holds_by_each_link() {
    let bench = Bench::new();
    let program = bench.compile(&source("rules.c"), &["-std=gnu11"]);
    let rules = std::fs::read_to_string(source("rules.c")).expect("the program is there");
    let rules = rules
        .lines()
        .filter(|line| line.starts_with("    RULE("))
        .count();
    assert!(rules > 25);
    for link in LINKS {
        for size in [1, 2, 3, 4] {
            let said = bench
                .job(&program, size)
                .variable("DIPOLE_LINK", link)
                .run()
                .output();
            assert_eq!(said.lines().count(), rules, "{link}, {size} ranks: {said}");
        }
    }
}

#[test]
fn a_dipole_log_that_is_no_filter_is_said_by_each_rank_and_harms_nothing() {
    let bench = Bench::new();
    let program = bench.compile(&source("collectives.c"), &["-std=c11"]);
    let job = bench.job(&program, 2).variable("DIPOLE_LOG", "foo,,=");
    let done = job.run();
    assert_eq!(done.output(), "collected\n");
    let wrong = "libbsp: DIPOLE_LOG: found `foo,,=`";
    assert_eq!(format!("{done:?}").matches(wrong).count(), 2, "{done:?}");
}

#[test]
fn every_rule_holds_on_two_nodes_though_packets_are_lost() {
    let bench = Bench::new();
    let program = bench.compile(&source("rules.c"), &["-std=gnu11"]);
    for fault in ["", "drop=0.01,seed=7"] {
        let job = bench.job(&program, 4).nodes(&[2, 2]);
        let said = job.variable("DIPOLE_FAULT", fault).run().output();
        assert!(said.lines().count() > 25, "{said}");
    }
    for link in ["tcp", "tcp,shm"] {
        let job = bench.job(&program, 4).nodes(&[2, 2]);
        let said = job.variable("DIPOLE_LINK", link).run().output();
        assert!(said.lines().count() > 25, "{link}: {said}");
    }
}

#[test]
fn collectives_of_every_length_are_right() {
    let bench = Bench::new();
    let program = bench.compile(&source("collectives.c"), &["-std=c11"]);
    for link in LINKS {
        for size in [1, 2, 3, 4, 5, 8] {
            let said = bench
                .job(&program, size)
                .variable("DIPOLE_LINK", link)
                .run()
                .output();
            assert_eq!(said, "collected\n", "{link}, {size} ranks");
        }
    }
}

#[test]
fn the_other_dialect_has_large_areas_and_other_answers() {
    let bench = Bench::new();
    let program = bench.compile(&source("multicore.c"), &["-std=gnu11"]);
    for link in LINKS {
        for (launched, wanted) in [(1, 1), (3, 3), (4, 2), (2, 9)] {
            let job = bench.job(&program, launched).argument(&format!("{wanted}"));
            let done = job
                .variable("DIPOLE_LINK", link)
                .variable("LATE", "3")
                .run();
            let processes = wanted.min(launched);
            // Ranks that are too many end without a word.
            let said = done.output();
            assert_eq!(
                said,
                format!("first\n{processes} processes\nlast\n"),
                "{link}"
            );
        }
    }
}

#[test]
fn memory_of_the_node_s_ranks_is_read_before_the_superstep_ends() {
    let bench = Bench::new();
    let program = bench.compile(&source("direct.c"), &["-std=gnu11"]);
    for size in [1, 2, 4] {
        assert_eq!(bench.job(&program, size).run().output(), "read\n", "{size}");
    }
    let done = bench.job(&program, 2).nodes(&[1, 1]).run();
    let complaints = done.complaints();
    let told = |said: &&str| said.contains("bsp_direct_get at ") && said.contains("use bsp_get");
    assert!(
        complaints.len() == 1 && complaints.iter().all(told),
        "{done:?}"
    );
    assert!(
        done.ranks.iter().all(|rank| !rank.status.success()),
        "{done:?}"
    );
}
