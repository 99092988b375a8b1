//! The examples find the same on any number of ranks, by each link.

#![allow(missing_docs, reason = "tests")]

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

#[allow(dead_code, reason = "its main is not run here")]
#[path = "../examples/prefix_sums.rs"]
mod prefix_sums;
#[allow(dead_code, reason = "its main is not run here")]
#[path = "../examples/sample_sort.rs"]
mod sample_sort;
#[allow(dead_code, reason = "its main is not run here")]
#[path = "../examples/transpose.rs"]
mod transpose;

/// One rank alone, or a rank of a job: the other test runs this again, as many processes.
#[test]
fn as_a_rank() {
    let told = match std::env::var("EXAMPLE").as_deref() {
        Ok("prefix_sums") => prefix_sums::prefix_sums(),
        Ok("sample_sort") => sample_sort::sample_sort(),
        _ => transpose::transpose(),
    };
    if let Some(told) = told.expect("it ends well") {
        println!("found: {told}");
    }
}

/// What the ranks of a job have found.
fn run(example: &str, size: usize, link: &str) -> Vec<String> {
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
    let mut found = Vec::new();
    for rank in ranks {
        let output = rank.wait_with_output().expect("our own process");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{example}, {size} ranks, {link}: {said}"
        );
        let lines = said.lines().filter_map(|line| line.split_once("found: "));
        found.extend(lines.map(|(_, told)| told.to_owned()));
    }
    found
}

#[test]
fn examples_find_the_same_on_any_number_of_ranks() {
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
