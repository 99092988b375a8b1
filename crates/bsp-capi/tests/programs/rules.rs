//! Guarantees of the library, over each link and on several numbers of ranks. `c/rules.c` contains the rules.

use crate::harness::{Bench, source};

/// Links that need no privileges.
const LINKS: [&str; 3] = ["auto", "udp", "tcp"];

#[test]
fn every_rule_holds_over_each_link() {
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
            let output = bench
                .job(&program, size)
                .variable("DIPOLE_LINK", link)
                .run()
                .output();
            assert_eq!(
                output.lines().count(),
                rules,
                "{link}, {size} ranks: {output}"
            );
        }
    }
}

#[test]
fn puts_and_messages_take_effect_in_the_order_of_the_ranks_however_late_rank_0_is() {
    let bench = Bench::new();
    let program = bench.compile(&source("order.c"), &["-std=c11"]);
    // Waiting ranks probe rank 0 every 500 ms.
    for (launched, wanted, late) in [(4, 4, "0"), (4, 2, "1200"), (3, 1, "700")] {
        let right = format!("in order on {wanted} ranks\n");
        let job = || {
            let job = bench.job(&program, launched);
            job.argument(&format!("{wanted}")).argument(late)
        };
        for link in LINKS {
            let done = job().variable("DIPOLE_LINK", link).run();
            assert_eq!(done.output(), right, "{link}");
        }
        if launched == 4 {
            for link in ["auto", "tcp,shm"] {
                let done = job().nodes(&[2, 2]).variable("DIPOLE_LINK", link).run();
                assert_eq!(done.output(), right, "two nodes, {link}");
            }
        }
    }
}

#[test]
fn each_rank_reports_an_invalid_dipole_log_and_continues() {
    let bench = Bench::new();
    let program = bench.compile(&source("collectives.c"), &["-std=c11"]);
    let job = bench.job(&program, 2).variable("DIPOLE_LOG", "foo,,=");
    let done = job.run();
    assert_eq!(done.output(), "collected\n");
    let wrong = "libbsp: DIPOLE_LOG: found `foo,,=`";
    assert_eq!(format!("{done:?}").matches(wrong).count(), 2, "{done:?}");
}

#[test]
fn every_rule_holds_on_two_nodes_with_packet_loss() {
    let bench = Bench::new();
    let program = bench.compile(&source("rules.c"), &["-std=gnu11"]);
    for fault in ["", "drop=0.01,seed=7"] {
        let job = bench.job(&program, 4).nodes(&[2, 2]);
        let output = job.variable("DIPOLE_FAULT", fault).run().output();
        assert!(output.lines().count() > 25, "{output}");
    }
    for link in ["tcp", "tcp,shm"] {
        let job = bench.job(&program, 4).nodes(&[2, 2]);
        let output = job.variable("DIPOLE_LINK", link).run().output();
        assert!(output.lines().count() > 25, "{link}: {output}");
    }
}

#[test]
fn collectives_of_every_length_are_correct() {
    let bench = Bench::new();
    let program = bench.compile(&source("collectives.c"), &["-std=c11"]);
    for link in LINKS {
        for size in [1, 2, 3, 4, 5, 8] {
            let output = bench
                .job(&program, size)
                .variable("DIPOLE_LINK", link)
                .run()
                .output();
            assert_eq!(output, "collected\n", "{link}, {size} ranks");
        }
    }
}

#[test]
fn the_multicore_dialect_has_large_areas_and_its_own_results() {
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
            // Surplus ranks print nothing.
            let output = done.output();
            assert_eq!(
                output,
                format!("first\n{processes} processes\nlast\n"),
                "{link}"
            );
        }
    }
}

#[test]
fn memory_of_ranks_on_the_same_node_is_read_before_the_superstep_ends() {
    let bench = Bench::new();
    let program = bench.compile(&source("direct.c"), &["-std=gnu11"]);
    for size in [1, 2, 4] {
        assert_eq!(bench.job(&program, size).run().output(), "read\n", "{size}");
    }
    let done = bench.job(&program, 2).nodes(&[1, 1]).run();
    let messages = done.messages();
    let is_reported =
        |message: &&str| message.contains("bsp_direct_get at ") && message.contains("use bsp_get");
    assert!(
        messages.len() == 1 && messages.iter().all(is_reported),
        "{done:?}"
    );
    assert!(
        done.ranks.iter().all(|rank| !rank.status.success()),
        "{done:?}"
    );
}

#[test]
fn one_rank_reports_a_long_wait_and_none_while_rank_0_may_be_waiting_for_input() {
    let bench = Bench::new();
    let program = bench.compile(&source("late.c"), &["-std=gnu11"]);
    for (argument, log, lines) in [("sleeps", "", 1), ("asks", "", 0), ("sleeps", "off", 0)] {
        let job = bench.job(&program, 3).argument(argument);
        let done = job.variable("DIPOLE_WAIT_LOG", log).run();
        let text = format!("{done:?}");
        assert_eq!(done.output(), "", "{text}");
        assert_eq!(
            text.matches(" has waited ").count(),
            lines,
            "{argument}: {text}"
        );
    }
}
