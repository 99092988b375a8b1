//! Sorting by regular sampling: ranks sort their numbers, derive splitters from samples of all ranks, send
//! each other the numbers between two splitters as messages, and merge what they receive.
//!
//! `dipole run -n 4 target/debug/examples/sample_sort`

use dipole_bsp::{Failure, Program};

const NUMBERS: u64 = 50_000;

/// A pseudo-random number for an index.
fn number(at: u64) -> u64 {
    let mixed = (at + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 20
}

/// Returns the result as a text on rank 0.
pub(crate) fn sample_sort() -> Result<Option<String>, Failure> {
    let Some(mut program) = Program::begin()? else {
        return Ok(None);
    };
    let (rank, size) = (program.rank() as usize, program.size() as usize);
    let part = |rank: usize| NUMBERS * rank as u64 / size as u64;
    let mut own: Vec<u64> = (part(rank)..part(rank + 1)).map(number).collect();
    own.sort_unstable();
    let samples = program.register(vec![0_u64; size * size]);
    let ends = program.register(vec![0_u64; 2 * size]);
    program.sync()?;

    let chosen: Vec<u64> = (0..size).map(|at| own[at * own.len() / size]).collect();
    for to in 0..program.size() {
        program.put(to, &chosen, samples, rank * size)?;
    }
    program.sync()?;

    program[samples].sort_unstable();
    let splitters: Vec<u64> = (1..size).map(|at| program[samples][at * size]).collect();
    let mut rest = &own[..];
    for to in 0..size {
        let end = match splitters.get(to) {
            Some(splitter) => rest.partition_point(|number| number < splitter),
            None => rest.len(),
        };
        let (bucket, behind) = rest.split_at(end);
        program.send(u32::try_from(to).unwrap_or(u32::MAX), &[], bucket)?;
        rest = behind;
    }
    program.sync()?;

    let mut sorted: Vec<u64> = Vec::new();
    while let Some(message) = program.receive() {
        sorted.extend(message.elements::<u64>().unwrap_or_default());
    }
    sorted.sort_unstable();

    // No number is lost, and none is larger than the smallest one of the next rank. Empty parts have none.
    let smallest = sorted.first().copied().unwrap_or(u64::MAX);
    for to in 0..program.size() {
        program.put(to, &[smallest, sorted.len() as u64], ends, 2 * rank)?;
    }
    program.sync()?;
    let pairs = program[ends].chunks(2).map(|pair| (pair[0], pair[1]));
    let (firsts, lengths): (Vec<u64>, Vec<u64>) = pairs.unzip();
    let next = firsts[rank + 1..].iter().min();
    assert!(
        next.is_none_or(|next| sorted.last() <= Some(next)),
        "sorted across ranks"
    );
    assert_eq!(lengths.iter().sum::<u64>(), NUMBERS, "no number is lost");
    program.end()?;
    Ok((rank == 0).then(|| format!("{NUMBERS} numbers from {smallest} on are sorted")))
}

fn main() -> Result<(), Failure> {
    if let Some(result) = sample_sort()? {
        println!("{result}");
    }
    Ok(())
}
