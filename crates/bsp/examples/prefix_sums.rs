//! Prefix sums of numbers in blocks: each rank adds up its own, tells the sum to those behind it, and
//! goes on from what those in front told.
//!
//! `dipole run -n 4 target/debug/examples/prefix_sums`

use dipole_bsp::{Failure, Program};

const NUMBERS: u64 = 100_000;

/// What stands at a place.
fn number(at: u64) -> u64 {
    at * at % 1009
}

/// The sums at the end of each rank's block, which rank 0 returns.
pub(crate) fn prefix_sums() -> Result<Option<String>, Failure> {
    let Some(mut program) = Program::begin()? else {
        return Ok(None);
    };
    let (rank, size) = (u64::from(program.rank()), u64::from(program.size()));
    let block = NUMBERS * rank / size..NUMBERS * (rank + 1) / size;
    let numbers: Vec<u64> = block.clone().map(number).collect();
    let sums = program.register(vec![0_u64; program.size() as usize]);
    program.sync()?;

    let own = [numbers.iter().sum::<u64>()];
    for behind in program.rank() + 1..program.size() {
        program.put(behind, &own, sums, program.rank() as usize)?;
    }
    program.sync()?;

    let in_front: u64 = program[sums].iter().sum();
    let prefixes = numbers.iter().scan(in_front, |sum, number| {
        *sum += number;
        Some(*sum)
    });
    let last = prefixes.last().unwrap_or(in_front);
    assert_eq!(
        last,
        (0..block.end).map(number).sum::<u64>(),
        "as one after the other"
    );

    // The last rank knows the sum of all.
    if rank + 1 == size {
        program.put(0, &[last], sums, 0)?;
    }
    program.sync()?;
    let told = (rank == 0).then(|| format!("{NUMBERS} numbers add up to {}", program[sums][0]));
    program.end()?;
    Ok(told)
}

fn main() -> Result<(), Failure> {
    if let Some(told) = prefix_sums()? {
        println!("{told}");
    }
    Ok(())
}
