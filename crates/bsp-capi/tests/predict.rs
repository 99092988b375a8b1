//! The measured cost of supersteps determines the algorithms of collectives, and the results of `bsp_predict`, `bsp_s`, `bsp_l`, `bsp_g`
//! and `bsp_nhalf`.

mod harness;

use std::path::Path;

use dipole_bsp::trace::{TraceFile, file_name};
use dipole_model::{Cost, Profile};
use harness::{Bench, source};

const RANKS: u32 = 4;

/// Saves a profile of shared memory in which an empty superstep takes `l_ns`.
fn measured(folder: &Path, l_ns: f64) {
    let mut profile = Profile::new("shm");
    for (p, l_ns) in [(RANKS, l_ns), (RANKS / 2, l_ns / 2.0)] {
        profile.set_cost(Cost {
            p,
            nodes: 1,
            s_mflops: 1000.0,
            l_ns,
            l_ci_ns: 1.0,
            g_ns_per_byte: 0.5,
            g_sd: 0.0,
            contention: None,
        });
    }
    profile.save_to(folder).expect("a folder of our own");
}

/// The number of supersteps of a program, and its output.
fn run(bench: &Bench, program: &Path, profile: &Path, count: usize) -> (usize, String) {
    let traces = tempfile::tempdir().expect("a folder");
    let traced = traces.path().to_str().expect("plain");
    let done = bench
        .job(program, RANKS)
        .argument(&count.to_string())
        .variable("DIPOLE_PROFILE", profile.to_str().expect("plain"))
        .variable("DIPOLE_TRACE", traced)
        .run();
    let output = done.output();
    let file = std::fs::read(traces.path().join(file_name(0))).expect("a trace");
    let trace = TraceFile::parse(&file).expect("whole");
    (trace.steps.len(), output)
}

#[test]
fn collectives_use_fewer_supersteps_where_those_are_expensive_and_stay_correct() {
    let bench = Bench::new();
    let program = bench.compile(&source("predict.c"), &["-std=c11"]);
    let folder = tempfile::tempdir().expect("a folder");
    let (cheap, dear) = (folder.path().join("cheap"), folder.path().join("dear"));
    measured(&cheap, 50.0);
    measured(&dear, 1e9);
    for count in [1, 1000, 3000, 40_000] {
        let (few, _) = run(&bench, &program, &dear, count);
        let (many, _) = run(&bench, &program, &cheap, count);
        // For short values, exchanging all of them costs little.
        let is_short = count == 1;
        assert!(
            if is_short { few <= many } else { few < many },
            "{count}: {few} {many}"
        );
    }
}

#[test]
fn a_superstep_is_predicted_from_the_profile_of_rank_0_and_not_at_all_without() {
    let bench = Bench::new();
    let program = bench.compile(&source("predict.c"), &["-std=c11"]);
    let folder = tempfile::tempdir().expect("a folder");
    let nothing = folder.path().join("nothing");
    let (_, output) = run(&bench, &program, &nothing, 10);
    let unknown = "-1.000000000 -1.000000000 -1.000000000; s -1, l -1, g -1, n1/2 -1\n";
    assert_eq!(output, unknown);
    measured(folder.path(), 8000.0);
    let (_, output) = run(&bench, &program, folder.path(), 10);
    // l; 1 ms of work, 1 MB at 0.5 ns, and l; l interpolated from p = 2 and 4.
    // 1 flop takes 1 ns, a word 2 ns.
    let known = "0.000008000 0.001508000 0.000016000; s 1000, l 8000, g 2, n1/2 4000\n";
    assert_eq!(output, known);
}

#[test]
fn a_damaged_or_newer_profile_is_refused_with_its_name() {
    let bench = Bench::new();
    let program = bench.compile(&source("predict.c"), &["-std=c11"]);
    let folder = tempfile::tempdir().expect("a folder");
    for (text, expected) in [
        ("{\"version\": 1, \"link\":", "is not a link profile"),
        ("{\"version\": 99, \"link\": \"shm\"}", "has version 99"),
    ] {
        std::fs::write(folder.path().join("shm.json"), text).expect("a folder of our own");
        let path = folder.path().to_str().expect("plain");
        let done = bench
            .job(&program, 2)
            .variable("DIPOLE_PROFILE", path)
            .run();
        for rank in &done.ranks {
            assert!(!rank.status.success(), "{done:?}");
            let (what, file) = (rank.err.contains(expected), rank.err.contains("shm.json"));
            assert!(what && file, "{done:?}");
        }
    }
}
