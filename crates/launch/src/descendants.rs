//! Finds the processes below this one in /proc and kills all of them.
//!
//! A subreaper inherits every orphan below it, so processes that a rank starts cannot leave the
//! tree, however they detach themselves.

use std::collections::{HashMap, HashSet};
use std::io;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, pidfd_open, pidfd_send_signal,
    set_child_subreaper, wait,
};

/// Makes this process inherit the orphans among its descendants.
pub(super) fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

struct Process {
    parent: i32,
    started: u64,
    zombie: bool,
}

fn look_up(pid: i32) -> Option<Process> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in brackets and may contain brackets.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(Process {
        parent: fields.get(1)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        zombie: matches!(*fields.first()?, "Z" | "X"),
    })
}

/// Sends SIGKILL to every present descendant.
///
/// A process that forks meanwhile may leave a new one, so this must be repeated until no child is
/// left.
pub(super) fn kill_once() {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return;
    };
    let processes: HashMap<i32, Process> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, look_up(pid)?)))
        .collect();
    let mut below = HashSet::from([getpid().as_raw_nonzero().get()]);
    let mut found: Vec<i32> = Vec::new();
    loop {
        let next: Vec<i32> = processes
            .iter()
            .filter(|(pid, process)| below.contains(&process.parent) && !below.contains(pid))
            .map(|(pid, _)| *pid)
            .collect();
        if next.is_empty() {
            break;
        }
        below.extend(&next);
        found.extend(next);
    }
    for pid in found {
        let seen = &processes[&pid];
        if seen.zombie {
            continue;
        }
        let Some(Ok(handle)) = Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty()))
        else {
            continue;
        };
        // The handle always refers to one process. Checks that it is the one found above.
        if look_up(pid).is_some_and(|now| now.started == seen.started) {
            let _ = pidfd_send_signal(&handle, Signal::KILL);
        }
    }
}

/// Kills and reaps until this process has no child. No other thread may wait for children.
pub(super) fn end_all() {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            // Killed processes take a moment to die, and no event reports the death of any of them.
            Ok(None) => {
                kill_once();
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            Err(_) => return,
        }
    }
}
