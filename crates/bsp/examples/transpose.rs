//! A square matrix in blocks of rows, transposed: each rank puts a block of its rows into every
//! rank's memory without a copy on the way, and turns the blocks that it was given.
//!
//! `dipole run -n 4 target/debug/examples/transpose`

use dipole_bsp::{Failure, Program};

/// Rows of each rank.
const ROWS: usize = 96;

/// What stands in a row and a column.
fn element(row: usize, column: usize) -> f64 {
    row as f64 + column as f64 / 65536.0
}

/// What rank 0 says of it.
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
        // Not everybody to the same rank at once.
        let to = (rank + step) % size;
        for row in 0..ROWS {
            let start = row * columns + to * ROWS;
            let at = (rank * ROWS + row) * ROWS;
            let to = u32::try_from(to).unwrap_or(u32::MAX);
            program.put_unbuffered(to, (matrix, start..start + ROWS), blocks, at)?;
        }
    }
    program.sync()?;

    // Row `column` of what came is a column of this rank's part.
    let came = program[blocks].to_vec();
    for (at, place) in program[matrix].iter_mut().enumerate() {
        let (row, column) = (at / columns, at % columns);
        *place = came[column * ROWS + row];
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
    if let Some(told) = transpose()? {
        println!("{told}");
    }
    Ok(())
}
