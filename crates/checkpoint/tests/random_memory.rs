//! A program that maps, writes, moves, drops and removes memory at random takes images, most of which
//! hold only what has changed. A process restored from any of them has the same memory, and ends with
//! the result of the undisturbed program.
//!
//! Images are of processes with one thread, so this test has no harness. `DIPOLE_SEED` repeats one run.

#![allow(missing_docs, reason = "tests")]

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    eprintln!("SKIPPED: images are taken on x86-64 only");
}

#[cfg(target_arch = "x86_64")]
mod program;

#[cfg(target_arch = "x86_64")]
fn main() {
    program::main();
}
