//! Programs with several parallel sections.

use crate::harness::{Bench, source};

#[test]
fn sections_follow_each_other_with_other_functions_and_numbers_of_ranks() {
    let bench = Bench::new();
    let program = bench.compile(&source("sections.c"), &["-std=gnu11"]);
    for size in [1, 2, 3, 4, 8] {
        assert_eq!(bench.job(&program, size).run().output(), "ended\n");
    }
    for link in ["udp", "tcp"] {
        let job = bench.job(&program, 4).variable("DIPOLE_LINK", link);
        assert_eq!(job.run().output(), "ended\n", "{link}");
    }
    for nodes in [[1, 1], [2, 2], [3, 1]] {
        let job = bench.job(&program, 1).nodes(&nodes);
        assert_eq!(job.run().output(), "ended\n", "{nodes:?}");
    }
    let lossy = bench.job(&program, 4).nodes(&[2, 2]);
    let lossy = lossy.variable("DIPOLE_FAULT", "drop=0.02,seed=3");
    assert_eq!(lossy.run().output(), "ended\n", "with loss");
}

#[test]
fn the_other_ranks_end_if_rank_0_does_so_without_handlers() {
    let bench = Bench::new();
    let program = bench.compile(&source("sections.c"), &["-std=gnu11"]);
    for nodes in [&[3][..], &[2, 1]] {
        let job = bench.job(&program, 1).nodes(nodes).argument("_exit");
        assert_eq!(job.run().output(), "ended\n", "{nodes:?}");
    }
}
