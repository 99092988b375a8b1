//! CPU time and context switches of the thread that computes, so that a trace can distinguish a rank
//! that works long from one that did not get a core.
//!
//! Reading both clocks takes two system calls. A superstep is measured only if it computes for
//! [`SHORTEST_NS`] or more, and the reading that it is compared with is renewed at most that often.

use nix::sys::resource::{UsageWho, getrusage};
use rustix::time::{ClockId, clock_gettime};

/// Shortest computation that is measured. A rank that lost its core waits longer than this for it.
const SHORTEST_NS: u64 = 200_000;

/// Use of the CPU during the computation of one superstep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CpuUse {
    /// `None` if the computation was too short to be measured.
    pub(super) cpu_ns: Option<u64>,
    pub(super) preemptions: u32,
    pub(super) sleeps: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    at_ns: u64,
    cpu_ns: u64,
    preemptions: u64,
    sleeps: u64,
}

/// Measures the use of the CPU by the calling thread.
#[derive(Debug, Default)]
pub(super) struct CpuMeter {
    last: Option<Reading>,
}

impl CpuMeter {
    /// A computation has ended that began at `began_ns`.
    pub(super) fn computed(&mut self, began_ns: u64, now_ns: u64) -> CpuUse {
        if now_ns.saturating_sub(began_ns) < SHORTEST_NS {
            return CpuUse::default();
        }
        let now = Reading::now(now_ns);
        let (Some(now), Some(last)) = (now, std::mem::replace(&mut self.last, now)) else {
            return CpuUse::default();
        };
        let grown = |now: u64, then: u64| u32::try_from(now.saturating_sub(then));
        CpuUse {
            // The last reading may be up to SHORTEST_NS before the computation began.
            cpu_ns: Some(
                now.cpu_ns
                    .saturating_sub(last.cpu_ns)
                    .min(now_ns.saturating_sub(began_ns)),
            ),
            preemptions: grown(now.preemptions, last.preemptions).unwrap_or(u32::MAX),
            sleeps: grown(now.sleeps, last.sleeps).unwrap_or(u32::MAX),
        }
    }

    /// A computation begins.
    pub(super) fn begin(&mut self, now_ns: u64) {
        let is_recent = |last: &Reading| now_ns.saturating_sub(last.at_ns) < SHORTEST_NS;
        if !self.last.as_ref().is_some_and(is_recent) {
            self.last = Reading::now(now_ns);
        }
    }
}

impl Reading {
    fn now(at_ns: u64) -> Option<Reading> {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        let seconds = u64::try_from(time.tv_sec).ok()?;
        let cpu_ns = seconds
            .checked_mul(1_000_000_000)?
            .checked_add(u64::try_from(time.tv_nsec).ok()?)?;
        let (preemptions, sleeps) = switches()?;
        Some(Reading {
            at_ns,
            cpu_ns,
            preemptions,
            sleeps,
        })
    }
}

/// Involuntary and voluntary context switches of the calling thread.
fn switches() -> Option<(u64, u64)> {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).ok()?;
    let count = |count| u64::try_from(count).ok();
    Some((
        count(usage.involuntary_context_switches())?,
        count(usage.voluntary_context_switches())?,
    ))
}

#[cfg(test)]
mod tests {
    use dipole_link::clock::monotonic_ns;

    use super::*;

    #[test]
    fn a_sleep_is_counted_and_takes_no_cpu_time() {
        let mut meter = CpuMeter::default();
        let began_ns = monotonic_ns();
        meter.begin(began_ns);
        std::thread::sleep(std::time::Duration::from_millis(20));
        let now_ns = monotonic_ns();
        let used = meter.computed(began_ns, now_ns);
        assert!(used.sleeps >= 1, "{used:?}");
        let cpu_ns = used.cpu_ns.expect("it was long enough");
        // The thread was off its core for the whole sleep.
        assert!(cpu_ns + 20_000_000 <= now_ns - began_ns, "{used:?}");
    }

    #[test]
    fn work_takes_cpu_time_whatever_else_runs_on_the_core() {
        let mut meter = CpuMeter::default();
        let began_ns = monotonic_ns();
        meter.begin(began_ns);
        let cpu = || Reading::now(0).map_or(0, |reading| reading.cpu_ns);
        let begun = cpu();
        while cpu() - begun < 3_000_000 {}
        let used = meter.computed(began_ns, monotonic_ns());
        assert!(used.cpu_ns >= Some(3_000_000), "{used:?}");
    }

    #[test]
    fn short_computations_are_not_measured_and_the_reading_is_kept_for_a_while() {
        let mut meter = CpuMeter::default();
        meter.begin(1000);
        assert_eq!(meter.computed(1000, SHORTEST_NS), CpuUse::default());
        meter.begin(SHORTEST_NS);
        assert_eq!(meter.last.expect("read").at_ns, 1000);
        meter.begin(1000 + SHORTEST_NS);
        assert_eq!(meter.last.expect("read").at_ns, 1000 + SHORTEST_NS);
    }
}
