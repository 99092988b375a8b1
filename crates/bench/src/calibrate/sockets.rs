//! Finds the shortest write for which a TCP program of `dipole sockets` should use shared memory.
//!
//! Both sides of a TCP stream inside this node run with the preloaded library: once with all writes
//! through shared memory, once with none.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use dipole_model::Choices;

use super::crossover::crossover;
use crate::failure::RunError;
use crate::launch::{self, Entry};
use crate::machine::Cores;
use crate::statistics::Spread;
use crate::subject::Subject;
use crate::testbed::Testbed;
use crate::work::{Carrier, Kind, Placement, Workload};

/// Name of the variable with the shortest write that uses shared memory.
pub const MIN_BYTES_VARIABLE: &str = "DIPOLE_SOCKETS_MIN_BYTES";
/// Lengths of writes, which are the candidates, too. The library uses memory from 128 KiB on in any
/// case.
const WRITES: [usize; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
/// All of these writes through shared memory, and none.
const LIMITS: [usize; 2] = [1 << 10, 128 << 10];
const ROUNDS: usize = 3;
const EACH: Duration = Duration::from_millis(60);

/// Returns the preloaded library that belongs to this program: installed with it, or built next to it.
#[must_use]
pub fn library() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.canonicalize().ok()?;
    let folder = program.parent()?;
    let installed = folder.join("../lib/dipole/libdipole-sockets.so");
    let built = folder.join("libdipole_sockets.so");
    [installed, built]
        .into_iter()
        .find_map(|path| path.canonicalize().ok())
}

/// Measures both ways. `None` if the built-in value is as good, or the library is not there.
pub(super) fn shortest_write(place: (&Testbed, Cores)) -> Result<Option<usize>, RunError> {
    let Some(library) = library() else {
        return Ok(None);
    };
    let mut times = [(); 2].map(|()| vec![Vec::new(); WRITES.len()]);
    for _ in 0..ROUNDS {
        for (limit, times) in LIMITS.into_iter().zip(&mut times) {
            let environment = [
                ("LD_PRELOAD", library.clone().into_os_string()),
                (MIN_BYTES_VARIABLE, limit.to_string().into()),
            ];
            for (&bytes, times) in WRITES.iter().zip(times) {
                times.extend(nanoseconds(bytes, &environment, place)?);
            }
        }
    }
    let [memory, tcp] = times.map(|all| -> Vec<f64> {
        let median = |all| Spread::of(all).map_or(f64::INFINITY, |ns| ns.median);
        all.into_iter().map(median).collect()
    });
    // The longest write over TCP is one byte shorter than the shortest through memory.
    let built_in = Choices::BUILT_IN_SOCKET_BYTES - 1;
    let limits = WRITES.map(|bytes| bytes - 1);
    Ok(crossover(&WRITES, (built_in, &limits), &tcp, &memory).map(|longest| longest + 1))
}

/// Measures the time of a write in a stream.
fn nanoseconds(
    bytes: usize,
    environment: &[(&'static str, OsString)],
    (testbed, cores): (&Testbed, Cores),
) -> Result<Option<f64>, RunError> {
    let entry = Entry {
        bench: "calibrate".to_owned(),
        subject: Subject::BareTcpBlock,
        work: Workload {
            block: true,
            duration: EACH,
            ..Workload::of(Kind::Stream, bytes)
        },
        place: Placement::OneNode,
        carrier: Carrier::Shm,
        fault: None,
    };
    let outcome = launch::measure_in(&entry, testbed, cores, environment)?;
    Ok(outcome.messages_per_s.map(|per_second| 1e9 / per_second))
}
