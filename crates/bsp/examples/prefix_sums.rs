//! Prefix sums of numbers in blocks: each rank adds up its numbers, sends the sum to the ranks after it,
//! and continues from the sums of the ranks before it.
//!
//! `dipole run -n 4 target/debug/examples/prefix_sums`

use dipole_bsp::{Failure, Program};

const NUMBERS: u64 = 100_000;

/// The number at an index.
fn number(at: u64) -> u64 {
    at * at % 1009
}

/// Returns the sum of all numbers as a text on rank 0.
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
    for after in program.rank() + 1..program.size() {
        program.put(after, &own, sums, program.rank() as usize)?;
    }
    program.sync()?;

    let before: u64 = program[sums].iter().sum();
    let prefixes = numbers.iter().scan(before, |sum, number| {
        *sum += number;
        Some(*sum)
    });
    let last = prefixes.last().unwrap_or(before);
    assert_eq!(
        last,
        (0..block.end).map(number).sum::<u64>(),
        "the same as sequential sums"
    );

    // The last rank knows the sum of all numbers.
    if rank + 1 == size {
        program.put(0, &[last], sums, 0)?;
    }
    program.sync()?;
    let sum = program[sums][0];
    let result = (rank == 0).then(|| format!("{NUMBERS} numbers add up to {sum}"));
    program.end()?;
    Ok(result)
}

fn main() -> Result<(), Failure> {
    if let Some(result) = prefix_sums()? {
        println!("{result}");
    }
    Ok(())
}
