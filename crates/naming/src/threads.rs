//! Threads whose start outlasts a moment without free threads.

use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

/// How long a start is tried again.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

/// Starts a thread. If the system has none left, tries again for a second.
///
/// # Errors
/// No thread can be started. The message names the limits.
pub fn start<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // A failed start drops its closure, which therefore only shares the body.
    let body = Arc::new(Mutex::new(Some(body)));
    let begun = Instant::now();
    loop {
        let shared = Arc::clone(&body);
        let run = move || {
            let body = shared.lock().unwrap_or_else(PoisonError::into_inner).take();
            body.expect("only one start succeeds")()
        };
        match Builder::new().name(name.to_owned()).spawn(run) {
            Err(cause) if is_short(&cause) && begun.elapsed() < PATIENCE => sleep(PAUSE),
            started => {
                return started.map_err(|cause| {
                    let text = format!(
                        "cannot start a thread: {cause}; raise the limit of processes and threads \
                         (ulimit -u, pids.max of the control group)"
                    );
                    io::Error::new(cause.kind(), text)
                });
            }
        }
    }
}

fn is_short(cause: &io::Error) -> bool {
    matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::OutOfMemory)
}
