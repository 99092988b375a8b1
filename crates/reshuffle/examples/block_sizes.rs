//! Measures how fast an array is reshuffled from blocks of different sizes to blocks of 8 KiB, compared
//! with a plain copy of as many bytes, and with a stream of them to the next rank: the left half of
//! figure 12 of Gigabit Nectar. The results are checked.
//!
//! `dipole run -n 4 target/release/examples/block_sizes [MIB_OF_EACH_RANK]`

use std::hint::black_box;
use std::time::Instant;

use dipole_bsp::{Failure, Program};
use dipole_reshuffle::{Bsp, BspError, Distribution, Plan};

/// Size of the blocks after the reshuffle.
const TARGET_BYTES: usize = 8 << 10;
const TIMES: usize = 5;
type Item = f64;

pub(crate) fn measure(program: &mut Program, mib: usize) -> Result<(), BspError> {
    let (rank, size) = (program.rank(), program.size());
    let each = (mib << 20) / size_of::<Item>();
    let elements = each * size as usize;
    let to = TARGET_BYTES / size_of::<Item>();
    let to = Distribution::new(&[elements], &[size], &[to])?;
    let mut target = vec![0.0; to.elements(rank)];
    let source: Vec<Item> = (0..each).map(|at| at as Item).collect();
    let mut copied = source.clone();
    let mut best = f64::INFINITY;
    for _ in 0..TIMES {
        // All ranks copy at once, because they share the memory bandwidth in a reshuffle, too.
        program.sync()?;
        let began = Instant::now();
        copied.copy_from_slice(black_box(&source));
        black_box(&copied);
        best = best.min(began.elapsed().as_secs_f64());
    }
    let bytes = (each * size_of::<Item>()) as f64 / 1e6;
    let bare = bytes / best;
    let stream = bytes / stream(program, each)?;
    if rank == 0 {
        println!(
            "{mib} MiB on each of {size} ranks to blocks of {TARGET_BYTES} B; each copies {bare:.0} MB/s, streams {stream:.0} MB/s"
        );
        println!(
            "{:>12} {:>12} {:>14} {:>12} {:>18}",
            "block, B", "plan, us", "MB/s per rank", "of a copy", "moved, of a stream"
        );
    }
    let mut block = 1;
    while block <= each {
        let from = Distribution::new(&[elements], &[size], &[block])?;
        let began = Instant::now();
        let plan = Plan::new(&from, &to, rank)?;
        let planned = began.elapsed().as_secs_f64() * 1e6;
        // Each element holds its index.
        let mut source = vec![0.0; from.elements(rank)];
        for (at, element) in source.iter_mut().enumerate() {
            let number = at / block * size as usize + rank as usize;
            *element = (number * block + at % block) as Item;
        }
        let mut exchange = Bsp::new(program, &plan)?;
        let mut best = f64::INFINITY;
        for _ in 0..TIMES {
            let began = Instant::now();
            plan.run(&mut exchange, &source, &mut target)?;
            best = best.min(began.elapsed().as_secs_f64());
        }
        exchange.close()?;
        let stride = TARGET_BYTES / size_of::<Item>();
        for (at, found) in target.iter().enumerate() {
            let number = at / stride * size as usize + rank as usize;
            assert_eq!(
                *found,
                (number * stride + at % stride) as Item,
                "block {block}, position {at}"
            );
        }
        if rank == 0 {
            let (rate, bytes) = (bytes / best, block * size_of::<Item>());
            let moved = (plan.outgoing_elements() * size_of::<Item>()) as f64 / 1e6 / best;
            let (of_copy, of_stream) = (rate / bare, moved / stream);
            println!("{bytes:>12} {planned:>12.0} {rate:>14.0} {of_copy:>12.2} {of_stream:>18.2}");
        }
        block *= 4;
    }
    Ok(())
}

/// Seconds in which each rank puts its elements into the next one's memory, in one piece.
fn stream(program: &mut Program, each: usize) -> Result<f64, BspError> {
    let next = (program.rank() + 1) % program.size();
    let (from, to) = (
        program.register(vec![1.0; each]),
        program.register(vec![0.0; each]),
    );
    program.sync()?;
    let mut best = f64::INFINITY;
    for _ in 0..TIMES {
        let began = Instant::now();
        program.put_unbuffered(next, (from, 0..each), to, 0)?;
        program.sync()?;
        best = best.min(began.elapsed().as_secs_f64());
    }
    for area in [from, to] {
        program.unregister::<Item>(area)?;
    }
    program.sync()?;
    Ok(best)
}

fn main() -> Result<(), BspError> {
    let Some(mut program) = Program::begin()? else {
        return Ok(());
    };
    let mib = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(8);
    measure(&mut program, mib)?;
    program.end().map_err(Failure::into)
}
