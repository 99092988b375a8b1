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

use rustix::process::nice;

use crate::control::{Outcome, Ready, SIDE_ARGUMENTS, Task};
use crate::failure::RunError;
use crate::launch::{Entry, SLACK, Sides, Worker, joined};
use crate::machine::{self, Cores, CpuTimes};
use crate::stdio;
use crate::testbed::Testbed;

/// The lowest priority of ordinary processes.
const LOWEST: i32 = 19;
/// Steps of the computation between two looks at the flag: a few microseconds.
const STEPS: u32 = 2000;

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

/// Runs a measurement next to soakers, and returns also the share of its core that each side used.
pub fn measure(
    entry: &Entry,
    testbed: &Testbed,
    cores: Cores,
) -> Result<(Outcome, [f64; 2]), RunError> {
    let mut sides = Sides::start(entry, testbed, cores, &[])?;
    let mut soakers = Soakers::start(cores)?;
    soakers.begin()?;
    let outcomes = sides.run(entry.work.duration + SLACK);
    let times = soakers.end()?;
    let [lead, follow] = outcomes?;
    let share = |of: &Outcome, times| of.cpu.utilisation(times).unwrap_or(0.0);
    let shares = [share(&lead, times[0]), share(&follow, times[1])];
    Ok((joined(lead, follow), shares))
}
