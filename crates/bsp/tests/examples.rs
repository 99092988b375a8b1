//! The examples give the same results on any number of ranks, over each link.

#![allow(missing_docs, reason = "tests")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use dipole_bsp::trace::{State, TraceFile, file_name};

#[allow(dead_code, reason = "its main function is not run here")]
#[path = "../examples/prefix_sums.rs"]
mod prefix_sums;
#[allow(dead_code, reason = "its main function is not run here")]
#[path = "../examples/sample_sort.rs"]
mod sample_sort;
#[allow(dead_code, reason = "its main function is not run here")]
#[path = "../examples/transpose.rs"]
mod transpose;

/// One rank alone, or one rank of a job: the other tests run this test again in many processes.
#[test]
fn as_a_rank() {
    let result = match std::env::var("EXAMPLE").as_deref() {
        Ok("prefix_sums") => prefix_sums::prefix_sums(),
        Ok("sample_sort") => sample_sort::sample_sort(),
        _ => transpose::transpose(),
    };
    if let Some(result) = result.expect("the example succeeds") {
        println!("example: {result}");
    }
}

/// Runs a job, and returns the results that its ranks print.
fn run(example: &str, size: usize, link: &str) -> Vec<String> {
    run_traced(example, size, link, "")
}

/// Runs an example with traces in the folder `traces`, unless that is empty.
fn run_traced(example: &str, size: usize, link: &str, traces: &str) -> Vec<String> {
    static JOB: AtomicU64 = AtomicU64::new(1);
    let job = JOB.fetch_add(1, Ordering::Relaxed);
    let registry = tempfile::tempdir().expect("a folder");
    let ranks: Vec<_> = (0..size)
        .map(|rank| {
            Command::new(std::env::current_exe().expect("this program"))
                .args(["as_a_rank", "--exact", "--nocapture"])
                .env("EXAMPLE", example)
                .env("DIPOLE_RUNTIME_DIR", registry.path())
                .env("DIPOLE_NID", "1")
                .env("DIPOLE_LINK", link)
                .env("DIPOLE_TRACE", traces)
                .env("DIPOLE_RANK", rank.to_string())
                .env("DIPOLE_SIZE", size.to_string())
                .env("DIPOLE_JOB", job.to_string())
                .env("DIPOLE_JOB_BASE", (4_000_000_000 + job * 16).to_string())
                .env("DIPOLE_RANKS", vec!["1"; size].join(","))
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .expect("this program starts")
        })
        .collect();
    let mut results = Vec::new();
    for rank in ranks {
        let output = rank.wait_with_output().expect("our own process");
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{example}, {size} ranks, {link}: {stdout}"
        );
        let lines = stdout
            .lines()
            .filter_map(|line| line.split_once("example: "));
        results.extend(lines.map(|(_, result)| result.to_owned()));
    }
    results
}

#[test]
fn examples_give_the_same_results_on_any_number_of_ranks() {
    for example in ["prefix_sums", "sample_sort", "transpose"] {
        let alone = run(example, 1, "auto");
        assert_eq!(alone.len(), 1, "{alone:?}");
        for link in ["auto", "udp"] {
            for size in [2, 3, 5] {
                assert_eq!(
                    run(example, size, link),
                    alone,
                    "{example}, {size} ranks, {link}"
                );
            }
        }
    }
}

/// Reads the traces of a run.
fn traces(folder: &Path, size: u32) -> Vec<TraceFile> {
    let read = |rank| {
        let bytes = std::fs::read(folder.join(file_name(rank))).expect("each rank has a file");
        TraceFile::parse(&bytes).expect("a valid trace")
    };
    (0..size).map(read).collect()
}

#[test]
fn a_traced_program_records_its_supersteps_with_their_sites_and_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    for link in ["shm", "udp"] {
        let within = folder.path().join(link);
        let within_text = within.to_str().expect("a plain path");
        let plain = run("transpose", 3, link);
        assert_eq!(run_traced("transpose", 3, link, within_text), plain);
        let traces = traces(&within, 3);
        let first = &traces[0];
        let epochs = |trace: &TraceFile| -> Vec<u32> {
            let steps = trace.steps.iter();
            steps.map(|step| step.epoch).collect()
        };
        for trace in &traces {
            assert_eq!(
                (trace.header.state, trace.damaged_blocks),
                (State::Ended, 0)
            );
            assert_eq!(
                (trace.header.run, epochs(trace)),
                (first.header.run, epochs(first))
            );
            for pair in trace.steps.windows(2) {
                assert!(pair[0].left_ns() <= pair[1].entered_ns, "{pair:?}");
            }
            // Transposing a matrix moves blocks to and from both other ranks.
            let peers = trace
                .steps
                .iter()
                .flat_map(|step| step.put.iter().chain(&step.get));
            assert!(peers.clone().all(|(rank, _)| *rank != trace.header.rank));
            assert!(peers.count() >= 2, "{trace:?}");
            let last = trace.steps.last().expect("supersteps");
            let site = &trace.sites[last.site as usize];
            assert!(
                site.file.ends_with("transpose.rs") && site.line > 0,
                "{site:?}"
            );
        }
    }
}

#[test]
fn a_program_that_cannot_write_its_trace_runs_without() {
    let plain = run("transpose", 2, "shm");
    assert_eq!(run_traced("transpose", 2, "shm", "/proc/self/no"), plain);
}
