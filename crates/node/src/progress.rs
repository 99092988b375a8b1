//! The thread that steps the engine for those who wait in `poll`, in an executor, or
//! compute.
//!
//! It starts with the first peer, which waits for acknowledgements, or before that with the
//! first exported descriptor, waiting task, or edge that connects while its owner does something
//! else.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::process::ProcessState;
use dipole_driver::Driver;

/// Threads at most, where handlers do not return.
const MAX_THREADS: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ProgressThread {
    threads: Mutex<Threads>,
}

#[derive(Debug, Default)]
struct Threads {
    running: Vec<JoinHandle<()>>,
    /// No more are started.
    stopped: bool,
}

impl ProgressThread {
    /// Starts the thread unless it runs, or was stopped.
    pub(crate) fn start(
        self: &Arc<Self>,
        driver: &Arc<Driver<ProcessState>>,
    ) -> std::io::Result<()> {
        self.start_up_to(1, driver)
    }

    /// The same, and another: one steps while the other runs handlers.
    pub(crate) fn start_both(
        self: &Arc<Self>,
        driver: &Arc<Driver<ProcessState>>,
    ) -> std::io::Result<()> {
        self.start_up_to(2, driver)
    }

    /// One more, since handlers do not return.
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
            tracing::warn!("no further thread for handlers can be started: {cause}");
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
                    if let Err(error) = driver.serve(Some(&more)) {
                        tracing::error!("descriptors are not served any more: {error:?}");
                    }
                })?;
            threads.running.push(spawned);
        }
        Ok(())
    }

    /// Ends the threads and waits for their end.
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
            // A handler that this one runs may be the last to hold the node.
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
