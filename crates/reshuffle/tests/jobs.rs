//! Reshuffles between the ranks of real jobs, over each link, in place and between two memories.

#![allow(missing_docs, reason = "tests")]

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use dipole_bsp::Program;
use dipole_reshuffle::{Bsp, BspError, Distribution, Plan, ReshuffleError};

#[allow(dead_code, reason = "its main function is not run here")]
#[path = "../examples/block_sizes.rs"]
mod block_sizes;

/// A rank's part of an array whose elements are numbered in order.
fn part(of: &Distribution, rank: u32) -> Vec<u64> {
    let extents = of.extents();
    let mut part = vec![0; of.elements(rank)];
    for number in 0..extents.iter().product() {
        let mut rest = number;
        let mut index = vec![0; extents.len()];
        for (coordinate, extent) in index.iter_mut().zip(&extents).rev() {
            (*coordinate, rest) = (rest % extent, rest / extent);
        }
        if let Some((owner, position)) = of.find(&index)
            && owner == rank
        {
            part[position] = number as u64 + 1;
        }
    }
    part
}

fn reshuffle(program: &mut Program) -> Result<(), BspError> {
    let (rank, size) = (program.rank(), program.size());
    let extents = [30, 17, 23];
    let all = [
        Distribution::new(
            &extents,
            &[size, 1, 1],
            &[30_usize.div_ceil(size as usize), 17, 23],
        )?,
        Distribution::new(&extents, &[1, 1, size], &[30, 17, 1])?,
        Distribution::new(&extents, &[1, size, 1], &[4, 3, 2])?,
        Distribution::new(&extents, &[1, 1, 1], &[1, 1, 1])?,
    ];
    for from in &all {
        for to in &all {
            let plan = Plan::new(from, to, rank)?;
            let mut exchange = Bsp::new(program, &plan)?;
            let (mut source, wanted) = (part(from, rank), part(to, rank));
            // Run twice with different values, to detect stale data.
            for factor in [1, 3] {
                let scaled = |it: &[u64]| {
                    it.iter()
                        .map(|number| number * factor)
                        .collect::<Vec<u64>>()
                };
                let mut target = vec![0; plan.target_elements()];
                plan.run(&mut exchange, &scaled(&source), &mut target)?;
                assert_eq!(target, scaled(&wanted), "{from:?} to {to:?}");
            }
            plan.run_in_place(&mut exchange, &mut source)?;
            assert_eq!(source, wanted, "in place: {from:?} to {to:?}");
            exchange.close()?;
        }
    }
    // A grid that is too large for the job is refused before anything is sent.
    let larger = Distribution::new(&[9], &[size + 1], &[1])?;
    let plan = Plan::new(&larger, &larger, rank)?;
    let refused = Bsp::<u64>::new(program, &plan).map(drop);
    let (wanted, found) = (size + 1, size);
    match refused {
        Err(BspError::Reshuffle(error)) => {
            assert_eq!(error, ReshuffleError::Processes { wanted, found });
        }
        other => panic!("{other:?}"),
    }
    block_sizes::measure(program, 1)
}

/// One rank alone, or one rank of a job: the other test runs this one again in many processes.
#[test]
fn as_a_rank() {
    let mut program = Program::begin().expect("all start").expect("it takes part");
    reshuffle(&mut program).expect("it succeeds");
    program.end().expect("all end");
}

#[test]
fn arrays_are_reshuffled_on_any_number_of_ranks() {
    static JOB: AtomicU64 = AtomicU64::new(1);
    for (size, link) in [(1, "auto"), (2, "auto"), (5, "auto"), (3, "udp")] {
        let job = JOB.fetch_add(1, Ordering::Relaxed);
        let registry = tempfile::tempdir().expect("a folder");
        let ranks: Vec<_> = (0..size)
            .map(|rank| {
                Command::new(std::env::current_exe().expect("this program"))
                    .args(["as_a_rank", "--exact", "--nocapture"])
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
                    .stderr(Stdio::piped())
                    .spawn()
                    .expect("this program starts")
            })
            .collect();
        for rank in ranks {
            let output = rank.wait_with_output().expect("our own process");
            assert!(output.status.success(), "{size} ranks, {link}: {output:?}");
        }
    }
}
