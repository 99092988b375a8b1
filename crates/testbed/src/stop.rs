use std::process::Child;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Stops a child, and returns when all its threads have stopped: one of them has to run before that.
///
/// # Panics
/// If it has ended.
pub fn stop(child: &Child) {
    let child = Pid::from_child(child);
    kill_process(child, Signal::STOP).expect("our child");
    let stopped = waitpid(Some(child), WaitOptions::UNTRACED).expect("our child");
    assert!(
        stopped.is_some_and(|(_, status)| status.stopped()),
        "it has ended"
    );
}
