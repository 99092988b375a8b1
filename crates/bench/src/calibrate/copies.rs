//! Cost of `memcpy` within each level of the memory hierarchy.
//!
//! # Source
//! Directed Point §3.2.

use std::fs;
use std::hint::black_box;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use dipole_model::CopyCost;

use crate::estimate::Estimate;
use crate::machine;
use crate::machine::Cores;
use crate::statistics::as_float;
use crate::statistics::nanoseconds;

/// Number of samples per level, and their duration.
const REPETITIONS: usize = 30;
const EACH: Duration = Duration::from_millis(2);
const QUICK_EACH: Duration = Duration::from_micros(50);
/// Copies in memory are this many times as long as the last cache, within these limits.
const BEYOND: usize = 2;
const LEAST_MEMORY: usize = 16 << 20;
const MOST_MEMORY: usize = 64 << 20;
const QUICK_MEMORY: usize = 4 << 20;

/// Measures every level on the core of the leading side.
pub fn measure(cores: Cores, is_quick: bool) -> io::Result<Vec<CopyCost>> {
    let levels = levels(Path::new("/sys/devices/system/cpu"), cores.lead);
    let largest = levels.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
    // Source and target fit into the level and leave room for other data.
    let mut all: Vec<(String, usize)> = levels
        .into_iter()
        .map(|(level, bytes)| (level, bytes / 4))
        .filter(|(_, bytes)| *bytes < MOST_MEMORY)
        .collect();
    let memory = match is_quick {
        true => QUICK_MEMORY,
        false => (BEYOND * largest).clamp(LEAST_MEMORY, MOST_MEMORY),
    };
    all.push(("memory".to_owned(), memory));
    let each = if is_quick { QUICK_EACH } else { EACH };
    // Pinning cannot be undone, so use a separate thread.
    std::thread::scope(|scope| {
        let copying = scope.spawn(|| {
            machine::pin(cores.lead)?;
            Ok(all
                .into_iter()
                .filter_map(|(level, bytes)| copy(level, bytes, each))
                .collect())
        });
        let copied = copying.join();
        copied.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn copy(level: String, bytes: usize, each: Duration) -> Option<CopyCost> {
    let (from, mut into) = (vec![1_u8; bytes], vec![0_u8; bytes]);
    let mut once = || {
        into.copy_from_slice(black_box(&from));
        black_box(&mut into);
    };
    once();
    let begun = Instant::now();
    once();
    let turns = each.as_nanos() / begun.elapsed().as_nanos().max(1);
    let turns = u64::try_from(turns).unwrap_or(u64::MAX).clamp(1, 1 << 20);
    let estimate = Estimate::of((0..REPETITIONS).map(|_| {
        let begun = Instant::now();
        for _ in 0..turns {
            once();
        }
        as_float(nanoseconds(begun.elapsed())) / as_float(turns) / as_float(bytes as u64)
    }))?;
    Some(CopyCost {
        level,
        bytes,
        ns_per_byte: estimate.measured(),
    })
}

/// Returns name and size of the data caches of a core, the nearest first. Empty if the system does
/// not publish them.
fn levels(folder: &Path, core: usize) -> Vec<(String, usize)> {
    let folder = folder.join(format!("cpu{core}/cache"));
    let caches = (0..16).map_while(|index| {
        let read = |name: &str| fs::read_to_string(folder.join(format!("index{index}/{name}")));
        let (kind, level, size) = (read("type"), read("level"), read("size"));
        Some((kind.ok()?, level.ok()?, size.ok()?))
    });
    let of_data = caches.filter(|(kind, _, _)| kind.trim() != "Instruction");
    of_data
        .filter_map(|(_, level, size)| Some((format!("L{}", level.trim()), bytes(size.trim())?)))
        .collect()
}

/// Parses a size in the kernel's format: `32K`, `1M`.
fn bytes(size: &str) -> Option<usize> {
    let (number, shift) = match size.strip_suffix('K') {
        Some(number) => (number, 10),
        None => size
            .strip_suffix('M')
            .map_or((size, 0), |number| (number, 20)),
    };
    number.parse::<usize>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_of_data_are_read_from_the_kernels_folder_and_those_of_code_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        for (index, kind, level, size) in [
            (0, "Data", "1", "32K"),
            (1, "Instruction", "1", "64K"),
            (2, "Unified", "2", "1M"),
            (3, "Unified", "3", "nonsense"),
        ] {
            let cache = folder.path().join(format!("cpu5/cache/index{index}"));
            fs::create_dir_all(&cache).expect("it can be made");
            for (name, text) in [("type", kind), ("level", level), ("size", size)] {
                fs::write(cache.join(name), format!("{text}\n")).expect("it can be written");
            }
        }
        let expected = [("L1".to_owned(), 32 << 10), ("L2".to_owned(), 1 << 20)];
        assert_eq!(levels(folder.path(), 5), expected);
        assert_eq!(levels(folder.path(), 6), []);
        assert_eq!(bytes("99999999999999999999K"), None);
    }
}
