//! The progress thread, which steps the engine while the program waits in `poll`, awaits a
//! future, or computes.
//!
//! It starts with the first peer, because peers wait for acknowledgements, or earlier with the
//! first exported descriptor, pending task, or edge that connects in the background.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::process::ProcessState;
use dipole_driver::Driver;

/// Limit for threads started because handlers do not return.
const MAX_THREADS: usize = 16;

/// The progress threads of a node.
#[derive(Debug, Default)]
pub(crate) struct ProgressThread {
    threads: Mutex<Threads>,
}

#[derive(Debug, Default)]
struct Threads {
    running: Vec<JoinHandle<()>>,
    /// No further threads may start.
    stopped: bool,
}

impl ProgressThread {
    /// Starts the thread unless it is running or was stopped.
    pub(crate) fn start(
        self: &Arc<Self>,
        driver: &Arc<Driver<ProcessState>>,
    ) -> std::io::Result<()> {
        self.start_up_to(1, driver)
    }

    /// Starts two threads, so that one steps while the other runs handlers.
    pub(crate) fn start_both(
        self: &Arc<Self>,
        driver: &Arc<Driver<ProcessState>>,
    ) -> std::io::Result<()> {
        self.start_up_to(2, driver)
    }

    /// Starts another thread because the others are stuck in handlers.
    fn start_another(self: &Arc<Self>, driver: &Arc<Driver<ProcessState>>) {
        let running = self.lock().running.len();
        if running >= MAX_THREADS {
            return;
        }
        tracing::warn!(
            "a handler of a port has kept a thread of the node for 10 ms while others wait: \
             there is one thread more, {MAX_THREADS} at most"
        );
        if let Err(cause) = self.start_up_to(running + 1, driver) {
            tracing::warn!("cannot start another thread for handlers: {cause}");
        }
    }

    fn start_up_to(
        self: &Arc<Self>,
        count: usize,
        driver: &Arc<Driver<ProcessState>>,
    ) -> std::io::Result<()> {
        let mut threads = self.lock();
        while threads.running.len() < count && !threads.stopped {
            let (own, driver) = (Arc::clone(self), Arc::clone(driver));
            let spawned = std::thread::Builder::new()
                .name("dipole-progress".into())
                .spawn(move || {
                    let more = || own.start_another(&driver);
                    driver.serve(Some(&more));
                })?;
            threads.running.push(spawned);
        }
        Ok(())
    }

    /// Stops the threads and waits for them.
    pub(crate) fn stop(&self, driver: &Driver<ProcessState>) {
        let mut threads = self.lock();
        threads.stopped = true;
        let running = std::mem::take(&mut threads.running);
        drop(threads);
        if running.is_empty() {
            return;
        }
        driver.stop();
        for thread in running {
            // The last handle may be dropped by a handler on this very thread.
            let is_own = thread.thread().id() == std::thread::current().id();
            if !is_own && thread.join().is_err() {
                tracing::error!("the progress thread panicked");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
