//! Transposes a square matrix that is stored in blocks of rows: each rank puts a block of its rows into
//! every rank's memory without an intermediate copy, and transposes the blocks that it receives.
//!
//! `dipole run -n 4 target/debug/examples/transpose`

use dipole_bsp::{Failure, Program};

/// Rows of each rank.
const ROWS: usize = 96;

/// The element in a row and a column.
fn element(row: usize, column: usize) -> f64 {
    row as f64 + column as f64 / 65536.0
}

/// Returns the result as a text on rank 0.
pub(crate) fn transpose() -> Result<Option<String>, Failure> {
    let Some(mut program) = Program::begin()? else {
        return Ok(None);
    };
    let (rank, size) = (program.rank() as usize, program.size() as usize);
    let (columns, first) = (ROWS * size, ROWS * rank);
    let own = (0..ROWS * columns).map(|at| element(first + at / columns, at % columns));
    let matrix = program.register(own.collect::<Vec<f64>>());
    let blocks = program.register(vec![0.0_f64; ROWS * columns]);
    program.sync()?;

    for step in 0..size {
        // Each rank starts with itself, so that they do not all put to the same rank.
        let to = (rank + step) % size;
        for row in 0..ROWS {
            let start = row * columns + to * ROWS;
            let at = (rank * ROWS + row) * ROWS;
            let to = u32::try_from(to).unwrap_or(u32::MAX);
            program.put_unbuffered(to, (matrix, start..start + ROWS), blocks, at)?;
        }
    }
    program.sync()?;

    // Row `column` of the received blocks is a column of this rank's part.
    let received = program[blocks].to_vec();
    for (at, into) in program[matrix].iter_mut().enumerate() {
        let (row, column) = (at / columns, at % columns);
        *into = received[column * ROWS + row];
    }
    let is_right =
        |(at, found): (usize, &f64)| *found == element(at % columns, first + at / columns);
    assert!(
        program[matrix].iter().enumerate().all(is_right),
        "transposed"
    );
    program.end()?;
    Ok((rank == 0).then(|| format!("{ROWS} rows of each rank are columns now")))
}

fn main() -> Result<(), Failure> {
    if let Some(result) = transpose()? {
        println!("{result}");
    }
    Ok(())
}
