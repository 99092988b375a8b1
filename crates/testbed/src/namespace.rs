//! What is done to and inside a network namespace: `ip` and `tc`, entering it,
//! ending its processes.

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

/// A killed process that is not gone after this time hangs in the kernel.
const DEATH_TIMEOUT: Duration = Duration::from_secs(5);

/// Calls `ip` with these words.
pub(crate) fn ip(words: &str) -> Result<(), TestbedError> {
    call("ip", words).map(drop)
}

/// Calls `tc` with these words.
pub(crate) fn tc(words: &str) -> Result<(), TestbedError> {
    call("tc", words).map(drop)
}

/// Calls a program with these words; what it printed.
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
    let said = String::from_utf8_lossy(&output.stderr);
    Err(failed(said.trim().to_owned()))
}

/// Runs a function on a thread that is in the namespace. Sockets made there stay
/// there, whoever uses them.
pub(crate) fn inside<T: Send>(
    namespace: &str,
    function: impl FnOnce() -> T + Send,
) -> io::Result<T> {
    let file = File::open(names::path(namespace))?;
    let result = thread::scope(|scope| {
        // The thread ends in the namespace and is never used for anything else.
        let entered = scope.spawn(|| {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(function())
        });
        entered.join()
    });
    result.unwrap_or_else(|panic| panic::resume_unwind(panic))
}

/// How the processes of a namespace are known.
struct Place {
    identity: (u64, u64),
    /// How the command line of `ip` begins that is about to enter it.
    entering: Vec<u8>,
}

/// Ends every process in the namespace with SIGKILL and waits until they are gone.
/// Says how many there were; the calling process is never one of them.
pub(crate) fn kill_all(namespace: &str) -> io::Result<usize> {
    let place = Place {
        identity: identity(&names::path(namespace).display().to_string())?,
        entering: ["ip", "netns", "exec", namespace, ""]
            .join("\0")
            .into_bytes(),
    };
    if place.identity == identity("/proc/self/ns/net")? {
        return Err(io::Error::other("it is the namespace of this process"));
    }
    let deadline = Instant::now() + DEATH_TIMEOUT;
    // One that takes its time to end is found more than once.
    let mut killed = HashSet::new();
    // Again until there is none: those found may have made others meanwhile.
    loop {
        let living = processes_in(&place)?;
        if living.is_empty() {
            return Ok(killed.len());
        }
        if Instant::now() > deadline {
            return Err(io::Error::other(format!("{living:?} do not end")));
        }
        for process in living {
            if kill(process, &place) {
                killed.insert(process);
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Kills one process unless its number has gone to another meanwhile.
fn kill(process: Pid, place: &Place) -> bool {
    let Ok(held) = pidfd_open(process, PidfdFlags::empty()) else {
        return false;
    };
    // Held now: what the number names in /proc is what the signal goes to.
    is_in(process, place) && pidfd_send_signal(&held, Signal::KILL).is_ok()
}

fn processes_in(place: &Place) -> io::Result<Vec<Pid>> {
    let own = rustix::process::getpid();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.parse().ok());
        let Some(process) = number.and_then(Pid::from_raw) else {
            continue;
        };
        if process != own && is_in(process, place) {
            found.push(process);
        }
    }
    Ok(found)
}

/// A process that has ended, waited for or not, is nowhere.
fn is_in(process: Pid, place: &Place) -> bool {
    let words = fs::read(format!("/proc/{process}/cmdline"));
    let found = || identity(&format!("/proc/{process}/ns/net"));
    // In this order: `ip` enters before it becomes the program, so who is no longer
    // `ip` at the first look is inside at the second.
    words.is_ok_and(|words| words.starts_with(&place.entering))
        || found().is_ok_and(|found| found == place.identity)
}

fn identity(path: &str) -> io::Result<(u64, u64)> {
    let metadata = fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}
