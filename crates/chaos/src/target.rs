//! Finds the processes of a rank, and sends them signals. Process ids are those of the PID namespace
//! of the cluster, in which nothing else runs.

use std::collections::BTreeMap;
use std::fs;

use rustix::process::{Pid, Signal, kill_process};

/// Variables by which launchers give a process its rank.
const VARIABLES: [&str; 4] = [
    "DIPOLE_RANK=",
    "OMPI_COMM_WORLD_RANK=",
    "PMIX_RANK=",
    "PMI_RANK=",
];

/// The processes of each rank, in order of their ids.
pub(crate) type Ranks = BTreeMap<u32, Vec<Pid>>;

/// Finds the processes of all ranks; `known` are those found before. A process inherits the rank of
/// its parent.
pub(crate) fn ranks(known: &Ranks) -> Ranks {
    let mut ranks = Ranks::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.parse().ok());
        let Some(process) = number.and_then(Pid::from_raw) else {
            continue;
        };
        // Cannot be read, or is empty, if the process has ended.
        let Ok(environment) = fs::read(entry.path().join("environ")) else {
            continue;
        };
        if let Some(rank) = rank(&environment) {
            ranks.entry(rank).or_default().push(process);
        }
    }
    for processes in ranks.values_mut() {
        processes.sort_unstable_by_key(|process| process.as_raw_nonzero());
    }
    for (rank, processes) in known {
        // A process has no environment while it starts another program.
        if !ranks.contains_key(rank) && processes.iter().copied().any(is_running) {
            ranks.insert(*rank, processes.clone());
        }
    }
    ranks
}

/// True if the process exists and has not ended.
fn is_running(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    let stat = stat.unwrap_or_default();
    // The name of the program may contain anything.
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
    state.is_some_and(|state| !state.starts_with(['Z', 'X']))
}

/// The rank in an environment: variables that end with NUL.
fn rank(environment: &[u8]) -> Option<u32> {
    let texts = environment.split(|byte| *byte == 0);
    let texts: Vec<&str> = texts.filter_map(|text| str::from_utf8(text).ok()).collect();
    VARIABLES.iter().find_map(|variable| {
        let mut values = texts.iter().filter_map(|text| text.strip_prefix(variable));
        values.find_map(|value| value.parse().ok())
    })
}

/// Sends a signal to processes; returns how many received it.
pub(crate) fn signal(processes: &[Pid], signal: Signal) -> usize {
    let sent = processes.iter();
    sent.filter(|process| kill_process(**process, signal).is_ok())
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_found_in_the_environment_of_any_launcher() {
        assert_eq!(rank(b"A=1\0DIPOLE_RANK=3\0B=2\0"), Some(3));
        assert_eq!(rank(b"PMI_RANK=9\0OMPI_COMM_WORLD_RANK=4"), Some(4));
        assert_eq!(rank(b"PMI_RANK=x\0"), None);
        assert_eq!(rank(b"MY_DIPOLE_RANK=3\0\xff\xfe\0"), None);
        assert_eq!(rank(b""), None);
    }

    #[test]
    fn a_process_that_was_not_waited_for_has_ended() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("cat");
        let process = Pid::from_child(&child);
        assert!(is_running(process));
        drop(child.stdin.take());
        while is_running(process) {
            std::thread::yield_now();
        }
        child.wait().expect("it is a child");
        assert!(!is_running(process));
    }
}
