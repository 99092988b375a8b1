//! Operations on network namespaces: `ip` and `tc`, entering a namespace, killing its processes.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::panic;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::TestbedError;
use crate::names;

/// A killed process that still exists after this time hangs in the kernel.
const DEATH_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs `ip` with these arguments.
pub(crate) fn ip(words: &str) -> Result<(), TestbedError> {
    call("ip", words).map(drop)
}

/// Runs `tc` with these arguments.
pub(crate) fn tc(words: &str) -> Result<(), TestbedError> {
    call("tc", words).map(drop)
}

/// Runs a program and returns its output.
pub(crate) fn call(program: &str, words: &str) -> Result<String, TestbedError> {
    let failed = |cause: String| TestbedError::Command {
        command: format!("{program} {words}"),
        cause,
    };
    let output = Command::new(program)
        .args(words.split_whitespace())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let output = String::from_utf8_lossy(&output.stderr);
    Err(failed(output.trim().to_owned()))
}

/// Runs a function on a thread inside the namespace. Sockets created there stay in the namespace,
/// whichever thread uses them.
pub(crate) fn inside<T: Send>(
    namespace: &str,
    function: impl FnOnce() -> T + Send,
) -> io::Result<T> {
    let file = File::open(names::path(namespace))?;
    let result = thread::scope(|scope| {
        // The thread ends inside the namespace and is not reused.
        let entered = scope.spawn(|| {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(function())
        });
        entered.join()
    });
    result.unwrap_or_else(|panic| panic::resume_unwind(panic))
}

/// Identifies the processes of a namespace.
struct NamespaceId {
    identity: (u64, u64),
    /// Beginning of the command line of an `ip` process that is about to enter the namespace.
    entering: Vec<u8>,
}

/// Kills every process in the namespace with SIGKILL, waits until they have exited, and returns
/// their number. The calling process is never one of them.
pub(crate) fn kill_all(namespace: &str) -> io::Result<usize> {
    let id = NamespaceId {
        identity: identity(&names::path(namespace).display().to_string())?,
        entering: ["ip", "netns", "exec", namespace, ""]
            .join("\0")
            .into_bytes(),
    };
    if id.identity == identity("/proc/self/ns/net")? {
        return Err(io::Error::other("it is the namespace of this process"));
    }
    let deadline = Instant::now() + DEATH_TIMEOUT;
    // A process that exits slowly is found more than once.
    let mut killed = HashSet::new();
    // Repeat until no process is found, because those found may have forked.
    loop {
        let living = processes_in(&id)?;
        if living.is_empty() {
            return Ok(killed.len());
        }
        if Instant::now() > deadline {
            return Err(io::Error::other(format!(
                "the processes {living:?} do not exit"
            )));
        }
        for process in living {
            if kill(process, &id) {
                killed.insert(process);
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Kills a process unless its id has been reused.
fn kill(process: Pid, id: &NamespaceId) -> bool {
    let Ok(held) = pidfd_open(process, PidfdFlags::empty()) else {
        return false;
    };
    // While the pidfd is open, /proc and the signal refer to the same process.
    is_in(process, id) && pidfd_send_signal(&held, Signal::KILL).is_ok()
}

fn processes_in(id: &NamespaceId) -> io::Result<Vec<Pid>> {
    let own = rustix::process::getpid();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.parse().ok());
        let Some(process) = number.and_then(Pid::from_raw) else {
            continue;
        };
        if process != own && is_in(process, id) {
            found.push(process);
        }
    }
    Ok(found)
}

/// False for a process that has exited.
fn is_in(process: Pid, id: &NamespaceId) -> bool {
    let words = fs::read(format!("/proc/{process}/cmdline"));
    let found = || identity(&format!("/proc/{process}/ns/net"));
    // The order matters: `ip` enters the namespace before it executes the program. So a process that
    // is no longer `ip` at the first check is inside at the second.
    words.is_ok_and(|words| words.starts_with(&id.entering))
        || found().is_ok_and(|found| found == id.identity)
}

fn identity(path: &str) -> io::Result<(u64, u64)> {
    let metadata = fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}
