//! The machine: cores and their distance, CPU time, load, and time stolen by the host.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dipole_link::cpu;
use nix::sys::resource::{Usage, UsageWho, getrusage};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use rustix::time::{ClockId, Timespec, clock_gettime};

use serde::{Deserialize, Serialize};

use crate::statistics::{as_float, nanoseconds};

/// The two cores to which the sides are pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    pub lead: usize,
    pub follow: usize,
}

impl Cores {
    /// Returns the first two cores that this process may use, or the only one twice.
    pub fn choose() -> io::Result<Self> {
        let mut usable = cpu::usable_cores()?.into_iter();
        let lead = usable.next().unwrap_or(0);
        let follow = usable.next().unwrap_or(lead);
        Ok(Self { lead, follow })
    }

    pub fn are_one(self) -> bool {
        self.lead == self.follow
    }
}

/// Pins the calling thread, and threads that it starts, to a core.
pub fn pin(core: usize) -> io::Result<()> {
    cpu::pin_to_core(core).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("cannot stay on core {core}: {error}; is it in this process's cpuset?"),
        )
    })
}

/// Returns the CPU time of this process: user and system, all threads.
pub fn process_cpu_ns() -> u64 {
    in_nanoseconds(clock_gettime(ClockId::ProcessCPUTime))
}

/// Returns the CPU time of the calling thread.
pub fn thread_cpu_ns() -> u64 {
    in_nanoseconds(clock_gettime(ClockId::ThreadCPUTime))
}

pub fn in_nanoseconds(time: Timespec) -> u64 {
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}

/// Processor time of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTimes {
    pub user_ns: u64,
    pub system_ns: u64,
}

impl CpuTimes {
    /// Returns the times of this process, with all threads.
    #[must_use]
    pub fn own() -> CpuTimes {
        let ns = |time: nix::sys::time::TimeVal| {
            let part = |number: i64| u64::try_from(number).unwrap_or(0);
            part(time.tv_sec()) * 1_000_000_000 + part(time.tv_usec()) * 1000
        };
        let times = |usage: Usage| CpuTimes {
            user_ns: ns(usage.user_time()),
            system_ns: ns(usage.system_time()),
        };
        getrusage(UsageWho::RUSAGE_SELF).map_or_else(|_| CpuTimes::default(), times)
    }

    /// Returns the times since an earlier reading.
    #[must_use]
    pub fn since(self, earlier: CpuTimes) -> CpuTimes {
        CpuTimes {
            user_ns: self.user_ns.saturating_sub(earlier.user_ns),
            system_ns: self.system_ns.saturating_sub(earlier.system_ns),
        }
    }

    /// Returns the share of a core that this side used for communication, given the times of the
    /// soaker on the same core. `None` if neither ran.
    #[must_use]
    pub fn utilisation(self, soaker: CpuTimes) -> Option<f64> {
        let communication = self.user_ns + self.system_ns + soaker.system_ns;
        let all = communication + soaker.user_ns;
        (all > 0).then(|| as_float(communication) / as_float(all))
    }
}

const CACHE_LINE_ROUND_TRIPS: u64 = 20_000;

/// Measures the one-way time of a cache line between two cores: two pinned threads increment a
/// counter in turns. `None` if there is only one core.
pub fn cache_line_ns(cores: Cores) -> io::Result<Option<f64>> {
    if cores.are_one() {
        return Ok(None);
    }
    let counter = AtomicU64::new(0);
    let play = |core: usize, first: u64| -> io::Result<Duration> {
        // A side that cannot be pinned must take part, or the other would wait for ever.
        let pinned = pin(core);
        let start = Instant::now();
        for turn in 0..CACHE_LINE_ROUND_TRIPS {
            while counter.load(Ordering::Acquire) != 2 * turn + first {
                std::hint::spin_loop();
            }
            counter.store(2 * turn + first + 1, Ordering::Release);
        }
        pinned.map(|()| start.elapsed())
    };
    let elapsed = thread::scope(|scope| {
        let second = scope.spawn(|| play(cores.follow, 1));
        let first = scope.spawn(|| play(cores.lead, 0));
        let joined = first.join().and_then(|first| Ok((first, second.join()?)));
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    elapsed.1?;
    let elapsed_ns = as_float(nanoseconds(elapsed.0?));
    Ok(Some(elapsed_ns / as_float(2 * CACHE_LINE_ROUND_TRIPS)))
}

/// Time during which the host did not run two cores that were ready.
#[derive(Clone, Copy, Debug)]
pub struct Stolen {
    cores: Cores,
    ticks: u64,
    since: Instant,
}

impl Stolen {
    pub fn since_now(cores: Cores) -> Self {
        Self {
            cores,
            ticks: stolen_ticks(cores),
            since: Instant::now(),
        }
    }

    /// Returns the stolen time so far, and its share of the elapsed time of the cores.
    pub fn so_far(&self) -> (Duration, f64) {
        let ticks = stolen_ticks(self.cores).saturating_sub(self.ticks);
        let per_second = rustix::param::clock_ticks_per_second().max(1);
        let stolen = Duration::from_millis(ticks * 1000 / per_second);
        let cores = if self.cores.are_one() { 1.0 } else { 2.0 };
        let share = stolen.as_secs_f64() / (self.since.elapsed().as_secs_f64().max(1e-3) * cores);
        (stolen, share)
    }
}

fn stolen_ticks(cores: Cores) -> u64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let of = |core| stolen_of(&text, core);
    if cores.are_one() {
        of(cores.lead)
    } else {
        of(cores.lead) + of(cores.follow)
    }
}

/// Parses the eighth number of a `cpuN` line of `/proc/stat`.
fn stolen_of(text: &str, core: usize) -> u64 {
    let name = format!("cpu{core}");
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(first, _)| *first == name)
        .and_then(|(_, numbers)| numbers.split_whitespace().nth(7)?.parse().ok())
        .unwrap_or(0)
}

/// Describes system and cores, such as "Linux 6.18.0 on x86_64, 2 cores".
pub fn description() -> String {
    let system = rustix::system::uname();
    let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!(
        "{} {} on {}, {cores} cores",
        system.sysname().to_string_lossy(),
        system.release().to_string_lossy(),
        system.machine().to_string_lossy(),
    )
}

/// Returns the model name of the processor.
pub fn processor() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_owned())
}

/// Returns the load average of the last minute. Other programs make figures worthless.
pub fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg")
        .ok()?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

/// Returns the peak memory of this process.
pub fn peak_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// Moves the calling thread into a network namespace.
pub fn enter_namespace(path: &Path) -> io::Result<()> {
    let entered = File::open(path).and_then(|file| {
        let network = Some(LinkNameSpaceType::Network);
        Ok(move_into_link_name_space(file.as_fd(), network)?)
    });
    entered.map_err(|error| {
        let name = path.display();
        let text = format!("cannot enter the namespace {name}: {error}");
        io::Error::new(error.kind(), text)
    })
}

/// True if this process may use the bpf link without the ring broker.
pub fn has_bpf() -> bool {
    rustix::process::geteuid().is_root() && dipole_bpf::has_capabilities()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_time_of_the_soaker_belongs_to_communication() {
        let times = |user_ns, system_ns| CpuTimes { user_ns, system_ns };
        let side = times(10, 30);
        // The paper's formula: (10 + 30 + 20) / (10 + 30 + 20 + 40).
        assert_eq!(side.utilisation(times(40, 20)), Some(0.6));
        assert_eq!(side.utilisation(times(0, 0)), Some(1.0));
        assert_eq!(times(0, 0).utilisation(times(0, 0)), None);
        assert_eq!(side.since(times(4, 50)), times(6, 0));
    }

    #[test]
    fn time_passes_in_this_process() {
        let before = CpuTimes::own();
        // Ends only if the time of the process is read.
        while CpuTimes::own().since(before).user_ns == 0 {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn stolen_time_is_the_eighth_number_of_the_cores_own_line() {
        let text =
            "cpu  9 9 9 9 9 9 9 99 9 9\ncpu1 1 2 3 4 5 6 7 8 9 10\ncpu10 1 2 3 4 5 6 7 80 0 0\n";
        assert_eq!(stolen_of(text, 1), 8);
        assert_eq!(stolen_of(text, 10), 80);
        assert_eq!(stolen_of(text, 2), 0);
    }

    #[test]
    fn cpu_time_rises_while_we_work() {
        let (process, thread) = (process_cpu_ns(), thread_cpu_ns());
        let mut sum = 0_u64;
        while thread_cpu_ns() == thread {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(process_cpu_ns() > process);
    }
}
