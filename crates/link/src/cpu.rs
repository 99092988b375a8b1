//! CPU cores: the usable ones, pinning, and steal time.

use std::io;
use std::time::Duration;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores that the calling thread may run on, in ascending order.
///
/// # Errors
/// When the kernel refuses.
pub fn usable_cores() -> io::Result<Vec<usize>> {
    cores_of(None)
}

/// The cores that the first thread of a process may run on, or the calling thread.
///
/// # Errors
/// When the process does not exist.
pub fn cores_of(process: Option<Pid>) -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(process)?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|&core| set.is_set(core))
        .collect())
}

/// Pins the calling thread to one core.
///
/// # Errors
/// `InvalidInput` if the core does not exist or this process may not use it.
pub fn pin_to_core(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("core {core} exceeds the limit of {} cores", CpuSet::MAX_CPU),
        ));
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

/// Prefetches the cache line at an address that will be read soon. An unmapped address is
/// harmless.
#[inline]
pub fn prefetch(place: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint that accesses nothing, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _no_hint = place;
}

/// Yields this core to other runnable threads.
pub fn yield_core() {
    rustix::thread::sched_yield();
}

/// Steal time: how long the hypervisor ran others while this machine wanted to run, summed over
/// all cores since boot. Take the difference of two readings.
///
/// # Errors
/// `/proc/stat` cannot be read or has no such column.
pub fn steal_time() -> io::Result<Duration> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let ticks = parse_steal_ticks(&text).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "/proc/stat has no steal column in its first line",
        )
    })?;
    let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
    let whole = Duration::from_secs(ticks / ticks_per_second);
    let rest_ns = (ticks % ticks_per_second).saturating_mul(1_000_000_000) / ticks_per_second;
    Ok(whole + Duration::from_nanos(rest_ns))
}

fn parse_steal_ticks(stat: &str) -> Option<u64> {
    let mut columns = stat.lines().next()?.split_ascii_whitespace();
    if columns.next()? != "cpu" {
        return None;
    }
    columns.nth(7)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_may_use_only_its_core() {
        std::thread::spawn(|| {
            let core = *usable_cores().unwrap().last().unwrap();
            pin_to_core(core).unwrap();
            assert_eq!(usable_cores().unwrap(), [core]);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn pinning_to_a_core_that_does_not_exist_is_refused() {
        assert!(pin_to_core(CpuSet::MAX_CPU).is_err());
        assert!(pin_to_core(CpuSet::MAX_CPU - 1).is_err());
    }

    #[test]
    fn steal_time_is_the_eighth_number_of_the_first_line() {
        let text = "cpu  1 2 3 4 5 6 7 88 9 10\ncpu0 0 0 0 0 0 0 0 1 0 0\n";
        assert_eq!(parse_steal_ticks(text), Some(88));
        assert_eq!(parse_steal_ticks("cpu 1 2 3"), None);
        assert_eq!(parse_steal_ticks(""), None);
        steal_time().unwrap();
    }
}
