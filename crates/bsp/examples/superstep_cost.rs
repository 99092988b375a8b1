//! Measures the cost of supersteps between the ranks of a job.
//!
//! `cargo build --release -p dipole-bsp --example superstep_cost`, then
//! `dipole run -n 2 target/release/examples/superstep_cost`

#![allow(missing_docs, reason = "an example")]

use std::error::Error;
use std::time::{Duration, Instant};

use dipole_bsp::Process;

const LONG: usize = 4 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let Some(mut process) = Process::begin(None)? else {
        return Ok(());
    };
    let (rank, size) = (process.rank(), process.size());
    let mut area = vec![0_u8; LONG * size as usize];
    let source = vec![1_u8; LONG];
    let address = area.as_mut_ptr().cast();
    // SAFETY: the area lives until the program has ended.
    unsafe { process.push_registration(address, area.len() as u64)? };
    process.sync()?;
    let rounds = 20_000;
    let empty = times(&mut process, rounds, |_| Ok(()))?;
    let next = (rank + 1) % size;
    let one = times(&mut process, rounds, |process| {
        // SAFETY: both live until the program has ended.
        unsafe { process.put(next, source.as_ptr(), address, 0, 8) }
    })?;
    let got = times(&mut process, rounds, |process| {
        let into = source.as_ptr().cast_mut();
        // SAFETY: nothing else uses the source until the superstep ends.
        unsafe { process.get(next, address, 0, into, 8) }
    })?;
    if rank == 0 {
        println!("{size} ranks: median, 99th percentile of a superstep");
        for (name, times) in [("empty", empty), ("put of 8", one), ("get of 8", got)] {
            println!(
                "{name:10} {:?} {:?}",
                times[rounds / 2],
                times[rounds * 99 / 100]
            );
        }
    }
    for bytes in [4096, 65_536, LONG] {
        for is_unbuffered in [false, true] {
            let before = process.stats().unwrap_or_default().protocol;
            let times = times(
                &mut process,
                400_usize.min((512 << 20) / bytes),
                |process| {
                    for step in 1..size {
                        let to = (rank + step) % size;
                        let offset = (rank as usize * LONG) as u64;
                        let (from, bytes) = (source.as_ptr(), bytes as u64);
                        // SAFETY: both live until the program has ended, and no other rank puts there.
                        unsafe {
                            match is_unbuffered {
                                true => process.put_unbuffered(to, from, address, offset, bytes)?,
                                false => process.put(to, from, address, offset, bytes)?,
                            }
                        }
                    }
                    Ok(())
                },
            )?;
            if rank == 0 {
                let median = times[times.len() / 2];
                let sent = (bytes * (size as usize - 1)) as f64;
                let name = if is_unbuffered { "hpput" } else { "put" };
                let rate = sent / median.as_secs_f64() / 1e9;
                println!("{name:6} of {bytes:8} to all: {median:?}, {rate:.2} GB/s per rank");
                if let Some(stats) = process.stats() {
                    let counts = stats.protocol;
                    let (sent, alone) = (
                        counts.units_sent - before.units_sent,
                        counts.explicit_acks - before.explicit_acks,
                    );
                    let share = 100.0 * alone as f64 / sent.max(1) as f64;
                    println!(
                        "       {sent} packets with data, {alone} with acknowledgements only: {share:.1} %"
                    );
                }
            }
        }
    }
    process.end()?;
    Ok(())
}

fn times(
    process: &mut Process<dipole_bsp::carrier::AnyCarrier>,
    rounds: usize,
    mut body: impl FnMut(
        &mut Process<dipole_bsp::carrier::AnyCarrier>,
    ) -> Result<(), dipole_bsp::Failure>,
) -> Result<Vec<Duration>, dipole_bsp::Failure> {
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let begun = Instant::now();
        body(process)?;
        process.sync()?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    Ok(times)
}
