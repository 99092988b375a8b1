//! The thread that steps the engine for those who wait in `poll`, in an executor, or
//! compute.
//!
//! It starts with the first peer, which waits for acknowledgements, or before that with the
//! first exported descriptor, waiting task, or edge that connects while its owner does something
//! else.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::driver::Driver;
use crate::process::ProcessState;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ProgressThread {
    thread: Mutex<Option<JoinHandle<()>>>,
    /// It must not start again.
    stopped: AtomicBool,
}

impl ProgressThread {
    /// Starts the thread unless it runs, or was stopped.
    pub(crate) fn start(&self, driver: &Arc<Driver<ProcessState>>) -> std::io::Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_some() || self.stopped.load(Ordering::Relaxed) {
            return Ok(());
        }
        let driver = Arc::clone(driver);
        let spawned = std::thread::Builder::new()
            .name("dipole-progress".into())
            .spawn(move || {
                if let Err(error) = driver.serve() {
                    tracing::error!("descriptors are not served any more: {error:?}");
                }
            })?;
        *thread = Some(spawned);
        Ok(())
    }

    /// Ends the thread and waits for its end.
    pub(crate) fn stop(&self, driver: &Driver<ProcessState>) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = thread.take() {
            driver.stop();
            if thread.join().is_err() {
                tracing::error!("the progress thread panicked");
            }
        }
    }
}
