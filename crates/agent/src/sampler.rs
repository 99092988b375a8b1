//! Measures the load of this machine every now and then, in a thread of its own: the list of users
//! and that of jobs may block.

use std::hint::black_box;
use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use dipole_naming::threads;
use dipole_node::registry::Registry;
use rustix::time::{ClockId, clock_gettime};

use super::jobs::Jobs;
use super::load::{Figures, MAX_SPEED, Timing};
use super::rules;

/// Maximum time between two measurements. The five-minute load average changes little meanwhile.
const SAMPLE_EVERY: Duration = Duration::from_secs(30);
/// Length of the vectors that measure the speed: both fit into the first-level cache.
const VECTOR: usize = 1024;
/// Operations of one measurement of the speed: it takes about a millisecond.
const PASSES: u32 = 1000;
/// Number of measurements of the speed, of which the best counts.
const ATTEMPTS: usize = 5;

/// Receives the measurements and when they were taken.
#[derive(Debug)]
pub(super) struct Sampler(Receiver<(Instant, Figures)>);

impl Sampler {
    /// Starts the thread. The speed of a core is measured unless it is given.
    pub(super) fn start(
        registry: &Registry,
        speed: Option<u32>,
        timing: Timing,
    ) -> io::Result<Sampler> {
        let (sender, receiver) = channel();
        let (registry, every) = (registry.clone(), timing.min.min(SAMPLE_EVERY));
        threads::start("dipole-load", move || {
            let speed = speed.unwrap_or_else(measure_speed);
            loop {
                match measure(&registry, speed) {
                    Ok(figures) if sender.send((Instant::now(), figures)).is_err() => return,
                    Ok(_) => {}
                    Err(cause) => tracing::debug!(%cause, "cannot measure the load"),
                }
                std::thread::sleep(every);
            }
        })?;
        Ok(Sampler(receiver))
    }

    /// The latest measurement, unless it was taken before.
    pub(super) fn take(&self) -> Option<(Instant, Figures)> {
        self.0.try_iter().last()
    }
}

fn measure(registry: &Registry, speed: u32) -> io::Result<Figures> {
    let averages = std::fs::read_to_string("/proc/loadavg")?;
    let load = averages.split_whitespace().nth(1).and_then(hundredths);
    let load = load.ok_or_else(|| io::Error::other("/proc/loadavg holds no load"))?;
    let memory = std::fs::read_to_string("/proc/meminfo")?;
    let memory_mib = mebibytes(&memory, "MemTotal:");
    let count = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
    Ok(Figures {
        load,
        cores: rules::cores()?,
        speed,
        memory_mib,
        available_mib: mebibytes(&memory, "MemAvailable:").min(memory_mib),
        // Some machines record no logins.
        users: rules::logged_in().map_or(0, |users| count(users.len())),
        jobs: count(Jobs::of(registry)?.living()?.len()),
    })
}

/// Parses a load average, which has two decimals.
fn hundredths(text: &str) -> Option<u32> {
    let (whole, decimals) = text.split_once('.')?;
    let (whole, decimals): (u32, u32) = (whole.parse().ok()?, decimals.parse().ok()?);
    whole.checked_mul(100)?.checked_add(decimals)
}

/// A line of `/proc/meminfo` in MiB; 0 if it is missing.
fn mebibytes(text: &str, name: &str) -> u32 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.map_or(0, |kib| u32::try_from(kib / 1024).unwrap_or(u32::MAX))
}

/// Speed of a core in Mflop/s: multiplications and additions of vectors, by processor time, so that
/// other processes do not matter.
fn measure_speed() -> u32 {
    let x = vec![1.0_f64; VECTOR];
    let mut y = vec![0.5_f64; VECTOR];
    let pass = |y: &mut [f64]| {
        for (y, x) in y.iter_mut().zip(black_box(&x)) {
            *y = *y * 0.999 + *x;
        }
        black_box(y);
    };
    let attempts = (0..ATTEMPTS).map(|_| {
        let begun = processor_time();
        (0..PASSES).for_each(|_| pass(&mut y));
        processor_time().saturating_sub(begun)
    });
    let best_ns = attempts.min().unwrap_or_default().as_nanos().max(1);
    let operations = 2 * VECTOR as u128 * u128::from(PASSES);
    let speed = u32::try_from(operations * 1000 / best_ns).unwrap_or(MAX_SPEED);
    speed.clamp(1, MAX_SPEED)
}

/// Processor time that this thread has used.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dipole_node::NodeId;

    #[test]
    fn load_averages_and_memory_are_read_as_the_kernel_writes_them() {
        assert_eq!(hundredths("12.07"), Some(1207));
        assert_eq!(hundredths("0.00"), Some(0));
        for wrong in ["", "1", "x.10", "1.x", "99999999.00"] {
            assert_eq!(hundredths(wrong), None, "{wrong}");
        }
        let text = "MemTotal:       16310264 kB\nMemFree:  1 kB\nMemAvailable:    9000000 kB\n";
        assert_eq!(mebibytes(text, "MemTotal:"), 15_927);
        assert_eq!(mebibytes(text, "MemAvailable:"), 8789);
        assert_eq!(mebibytes(text, "SwapTotal:"), 0);
    }

    #[test]
    fn this_machine_has_cores_memory_and_speed() {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::open(&folder.path().join("runtime"), NodeId(1)).unwrap();
        let figures = measure(&registry, measure_speed()).unwrap();
        assert!(figures.cores > 0 && figures.speed > 0, "{figures:?}");
        assert!(figures.memory_mib >= figures.available_mib && figures.available_mib > 0);
        assert_eq!(figures.jobs, 0);
    }
}
