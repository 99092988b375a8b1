//! A soaker: a process of low priority that computes on a core next to one side of a measurement.
//!
//! Processor time of communication is not all charged to the program that communicates: interrupts
//! and acknowledgements are charged to whatever runs at that moment. The soaker takes all time that
//! the side leaves over, so its system time belongs to communication, and its user time is what an
//! application could have used.
//!
//! # Source
//! Gigabit Nectar §3.3.1: the program `util`.

use std::hint::black_box;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::sys::resource::{Usage, UsageWho, getrusage};
use rustix::process::nice;
use serde::{Deserialize, Serialize};

use crate::control::{Ready, SIDE_ARGUMENTS, Task};
use crate::failure::RunError;
use crate::launch::{SLACK, Worker};
use crate::machine::{self, Cores};
use crate::statistics::as_float;
use crate::stdio;

/// The lowest priority of ordinary processes.
const LOWEST: i32 = 19;
/// Steps of the computation between two looks at the flag: a few microseconds.
const STEPS: u32 = 2000;

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

/// Computes on a core from the parent's first message to the second, and sends the times.
pub(crate) fn run(core: usize) -> io::Result<()> {
    machine::pin(core)?;
    nice(LOWEST)?;
    stdio::meet(Vec::new())?;
    let before = CpuTimes::own();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let told = stdio::recv::<Ready>();
            is_over.store(true, Ordering::Release);
            told
        });
        let mut number = 1_u64;
        while !is_over.load(Ordering::Acquire) {
            for _ in 0..STEPS {
                number = black_box(
                    number
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1),
                );
            }
        }
        let joined = waiting.join();
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    stdio::send(&CpuTimes::own().since(before))
}

/// The soakers on both cores of a measurement. Dropping them ends them.
pub(crate) struct Soakers([Worker; 2]);

impl Soakers {
    /// Starts both; they do not compute yet.
    pub(crate) fn start(cores: Cores) -> Result<Soakers, RunError> {
        let start = |core| {
            let task = Task::Soak(core);
            let mut worker =
                Worker::start("soaker".to_owned(), &SIDE_ARGUMENTS, &task, Vec::new())?;
            worker.recv::<Ready>(SLACK)?;
            Ok(worker)
        };
        Ok(Soakers([start(cores.lead)?, start(cores.follow)?]))
    }

    pub(crate) fn begin(&mut self) -> Result<(), RunError> {
        (self.0.iter_mut()).try_for_each(|worker| worker.send(&Ready::default()))
    }

    /// Ends the computation and returns the times on the leading and the following side's core.
    pub(crate) fn end(mut self) -> Result<[CpuTimes; 2], RunError> {
        self.begin()?;
        let [lead, follow] = &mut self.0;
        Ok([lead.recv(SLACK)?, follow.recv(SLACK)?])
    }
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
        let mut number = 0_u64;
        while CpuTimes::own().since(before).user_ns == 0 {
            number = black_box(number + 1);
        }
        assert!(number > 0);
    }
}
