//! `dipole run` with real processes: which ones start, what they see, how all of them end.

mod hosts;
mod placement;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

const PATIENCE: Duration = Duration::from_secs(60);

fn dipole() -> Command {
    let mut command = dipole_testbed::isolated_command(env!("CARGO_BIN_EXE_dipole"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DIPOLE_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    dipole().arg("run").args(arguments).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn status(output: &Output) -> i32 {
    output
        .status
        .code()
        .unwrap_or_else(|| panic!("killed: {}", err(output)))
}

fn lines(output: &Output) -> BTreeSet<String> {
    out(output).lines().map(str::to_owned).collect()
}

fn pid(number: i32) -> Pid {
    Pid::from_raw(number).unwrap()
}

/// Waits until a process has ended; fails if it does not.
fn assert_gone(number: i32) {
    let handle = match pidfd_open(pid(number), PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => return,
        other => other.unwrap(),
    };
    let timeout = Timespec {
        tv_sec: PATIENCE.as_secs().cast_signed(),
        tv_nsec: 0,
    };
    let mut watched = [PollFd::new(&handle, PollFlags::IN)];
    let ready = poll(&mut watched, Some(&timeout)).unwrap();
    if ready == 0 {
        let _ = kill_process(pid(number), Signal::KILL);
        panic!("process {number} was left behind");
    }
}

/// A running job; its launcher is killed if a test fails.
struct Job {
    launcher: Child,
    lines: BufReader<ChildStdout>,
}

impl Job {
    fn start(command: &mut Command) -> Job {
        let mut launcher = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(launcher.stdout.take().unwrap());
        Job { launcher, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the job ended without a word");
        line.trim_end().to_owned()
    }

    fn numbers(&mut self, count: usize) -> Vec<i32> {
        (0..count).map(|_| self.line().parse().unwrap()).collect()
    }

    fn id(&self) -> i32 {
        self.launcher.id().cast_signed()
    }

    fn signal(&self, signal: Signal) {
        kill_process(pid(self.id()), signal).unwrap();
    }

    fn ends(&mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).unwrap();
        (self.launcher.wait().unwrap().code(), rest)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

/// The parent of a process.
fn parent_of(number: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{number}/stat")).unwrap();
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    fields[1].parse().unwrap()
}

/// Every rank prints its pid and that of a daemon in a session of its own.
const WITH_DAEMON: &str = "setsid sleep 1000 </dev/null >/dev/null 2>&1 & \
                           echo $$; echo $!; trap '' TERM; while :; do sleep 1000; done";

/// Creates an executable shell script.
fn script(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("rsh");
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn hosts_file(folder: &Path, text: &str) -> String {
    let path = folder.join("hosts");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn every_rank_sees_its_place_in_the_job() {
    let output = run(&[
        "-n",
        "3",
        "sh",
        "-c",
        "echo $DIPOLE_RANK/$DIPOLE_SIZE $DIPOLE_RANKS $DIPOLE_NID ${DIPOLE_HOSTS-none} \
         $((DIPOLE_JOB_BASE >= 0x80000000)) ${DIPOLE_JOB:+job} ${DIPOLE_RUNTIME_DIR:+dir}",
    ]);
    assert_eq!(status(&output), 0, "{}", err(&output));
    let expected = (0..3).map(|rank| format!("{rank}/3 1x3 1 none 1 job dir"));
    assert_eq!(lines(&output), expected.collect());
}

#[test]
fn arguments_after_the_program_belong_to_the_program() {
    let output = run(&["-n", "1", "echo", "--json", "-n", "2", "--", "--hosts"]);
    assert_eq!(out(&output), "--json -n 2 -- --hosts\n");
}

#[test]
fn lines_carry_their_rank_when_asked_and_are_never_mixed() {
    let say = "for i in 1 2 3 4 5 6 7 8 9; do printf 'a%s' $DIPOLE_RANK; printf 'b%s\\n' $i; done; \
               echo oops >&2; printf end";
    let output = run(&["-n", "4", "--tag", "sh", "-c", say]);
    let mut expected = BTreeSet::new();
    for rank in 0..4 {
        expected.extend((1..10).map(|i| format!("[{rank}] a{rank}b{i}")));
        expected.insert(format!("[{rank}] end"));
        assert!(err(&output).contains(&format!("[{rank}] oops\n")));
    }
    assert_eq!(lines(&output), expected);
    assert_eq!(out(&output).lines().count(), 40);
}

#[test]
fn json_reports_starts_output_ends_and_the_status() {
    let output = dipole()
        .args(["--json", "run", "-n", "2", "sh", "-c"])
        .arg("echo r$DIPOLE_RANK; exit 0")
        .output()
        .unwrap();
    let events: Vec<serde_json::Value> = out(&output)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for name in ["started", "output", "exited"] {
        let ranks: BTreeSet<u64> = events
            .iter()
            .filter(|event| event["event"] == name)
            .map(|event| event["rank"].as_u64().unwrap())
            .collect();
        assert_eq!(ranks, BTreeSet::from([0, 1]), "{name}");
    }
    let last = events.last().unwrap();
    assert_eq!(
        (&last["event"], &last["status"]),
        (&"done".into(), &0.into())
    );
}

#[test]
fn standard_input_of_any_length_goes_only_to_rank_0() {
    let mut child = dipole()
        .args(["run", "-n", "3", "--tag", "sh", "-c", "wc -c"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(&vec![b'x'; 3_000_000])
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let expected = ["[0] 3000000", "[1] 0", "[2] 0"];
    assert_eq!(lines(&output), expected.map(str::to_owned).into());
}

#[test]
fn a_rank_that_does_not_read_does_not_delay_the_job() {
    let mut job = Job::start(
        dipole()
            .args(["run", "-n", "1", "sh", "-c", "echo r; exec sleep 1000"])
            .stdin(Stdio::piped()),
    );
    let mut stdin = job.launcher.stdin.take().unwrap();
    assert_eq!(job.line(), "r");
    let feeder = std::thread::spawn(move || while stdin.write_all(&[0; 4096]).is_ok() {});
    job.signal(Signal::INT);
    assert_eq!(job.ends().0, Some(130));
    feeder.join().unwrap();
}

#[test]
fn the_status_is_that_of_the_first_failed_rank_and_the_others_are_terminated() {
    let output = run(&[
        "-n",
        "3",
        "sh",
        "-c",
        "[ $DIPOLE_RANK = 1 ] && exit 42; exec sleep 1000",
    ]);
    assert_eq!(status(&output), 42);
    assert!(err(&output).contains("rank 1 ended with status 42; ending the others"));
    let output = run(&["-n", "2", "sh", "-c", "kill -SEGV $$; sleep 1000"]);
    assert_eq!(status(&output), 128 + 11, "{}", err(&output));
    let output = run(&["-n", "2", "/nowhere/program"]);
    assert_eq!(status(&output), 127);
    assert!(err(&output).contains("cannot start `/nowhere/program`: "));
    // It is reported once, for any number of ranks.
    let output = run(&["-n", "4", "no-such-program"]);
    assert_eq!(status(&output), 127);
    assert_eq!(
        err(&output).matches("cannot start").count(),
        1,
        "{}",
        err(&output)
    );
    assert_eq!(err(&output).lines().count(), 1, "{}", err(&output));
    let output = run(&["-n", "2", "/etc"]);
    assert_eq!(status(&output), 126, "{}", err(&output));
}

#[test]
fn a_failed_rank_does_not_cost_others_the_output_with_which_they_end() {
    let script = "[ $DIPOLE_RANK = 1 ] && exit 3; sleep 0.3; echo rank $DIPOLE_RANK is done";
    let output = run(&["-n", "4", "sh", "-c", script]);
    assert_eq!(status(&output), 3, "{}", err(&output));
    let done = [0, 2, 3].map(|rank| format!("rank {rank} is done"));
    assert_eq!(lines(&output), done.into(), "{}", err(&output));
}

#[test]
fn a_rank_that_ignores_sigterm_is_killed_after_the_grace() {
    let output = run(&[
        "-n",
        "2",
        "--grace",
        "0.2",
        "sh",
        "-c",
        "[ $DIPOLE_RANK = 1 ] && exit 5; trap '' TERM; while :; do sleep 1000; done",
    ]);
    assert_eq!(status(&output), 5);
}

#[test]
fn signals_to_the_launcher_reach_every_rank() {
    for (signal, name) in [
        (Signal::INT, "INT"),
        (Signal::TERM, "TERM"),
        (Signal::HUP, "HUP"),
        (Signal::USR1, "USR1"),
    ] {
        let handle =
            format!("trap 'echo got; exit 0' {name}; echo ready; sleep 1000 </dev/null & wait");
        let mut job = Job::start(dipole().args(["run", "-n", "2", "sh", "-c", &handle]));
        assert_eq!((job.line(), job.line()), ("ready".into(), "ready".into()));
        job.signal(signal);
        assert_eq!(job.ends(), (Some(0), "got\ngot\n".to_owned()), "{name}");
    }
}

#[test]
fn a_rank_ended_by_the_signal_gives_128_and_its_number() {
    let mut job =
        Job::start(dipole().args(["run", "-n", "2", "sh", "-c", "echo r; exec sleep 1000"]));
    assert_eq!((job.line(), job.line()), ("r".into(), "r".into()));
    job.signal(Signal::INT);
    assert_eq!(job.ends().0, Some(130));
}

#[test]
fn a_second_signal_ends_ranks_that_ignore_the_first() {
    let stubborn = "trap '' INT TERM; echo r; while :; do sleep 1000; done";
    let mut job =
        Job::start(dipole().args(["run", "-n", "1", "--grace", "0.1", "sh", "-c", stubborn]));
    assert_eq!(job.line(), "r");
    job.signal(Signal::INT);
    // Two pending signals of a kind are merged, so the second is another one.
    job.signal(Signal::TERM);
    assert!(matches!(job.ends().0, Some(130 | 143)));
}

#[test]
fn a_closed_output_ends_the_job() {
    let mut job = Job::start(dipole().args(["run", "-n", "2", "sh", "-c", "echo $$; exec yes"]));
    let rank: i32 = job.line().parse().unwrap();
    let Job { launcher, .. } = &mut job;
    let mut launcher = std::mem::replace(launcher, Command::new("true").spawn().unwrap());
    drop(job);
    assert_eq!(launcher.wait().unwrap().code(), Some(128 + 13));
    assert_gone(rank);
}

#[test]
fn when_the_launcher_is_killed_nothing_is_left() {
    let mut job = Job::start(dipole().args(["run", "-n", "2", "sh", "-c", WITH_DAEMON]));
    let mut processes = job.numbers(4);
    let shim = parent_of(parent_of_rank(&processes, job.id()));
    processes.push(shim);
    job.signal(Signal::KILL);
    for process in processes {
        assert_gone(process);
    }
}

/// The shim above the ranks: the first process whose grandparent is the launcher.
fn parent_of_rank(processes: &[i32], launcher: i32) -> i32 {
    processes
        .iter()
        .map(|process| parent_of(*process))
        .find(|shim| parent_of(parent_of(*shim)) == launcher)
        .expect("one of them is a rank")
}

#[test]
fn when_a_rank_is_killed_the_others_and_all_daemons_end() {
    let mut job =
        Job::start(dipole().args(["run", "-n", "2", "--grace", "0.1", "sh", "-c", WITH_DAEMON]));
    let processes = job.numbers(4);
    let shim = parent_of_rank(&processes, job.id());
    let rank = *processes
        .iter()
        .find(|process| parent_of(**process) == shim)
        .unwrap();
    kill_process(pid(rank), Signal::KILL).unwrap();
    assert_eq!(job.ends().0, Some(137));
    for process in processes {
        assert_gone(process);
    }
}

#[test]
fn when_the_shim_is_killed_nothing_is_left_and_the_job_fails() {
    let mut job = Job::start(dipole().args(["run", "-n", "2", "sh", "-c", WITH_DAEMON]));
    let processes = job.numbers(4);
    let shim = parent_of_rank(&processes, job.id());
    kill_process(pid(shim), Signal::KILL).unwrap();
    assert_eq!(job.ends().0, Some(137));
    for process in processes {
        assert_gone(process);
    }
}

#[test]
fn when_the_guard_is_killed_nothing_is_left_and_the_job_fails() {
    let mut job = Job::start(dipole().args(["run", "-n", "2", "sh", "-c", WITH_DAEMON]));
    let processes = job.numbers(4);
    let guard = parent_of(parent_of_rank(&processes, job.id()));
    kill_process(pid(guard), Signal::KILL).unwrap();
    assert_eq!(job.ends().0, Some(137));
    for process in processes {
        assert_gone(process);
    }
}

#[test]
fn daemons_do_not_outlive_a_successful_job() {
    let mut job = Job::start(dipole().args([
        "run",
        "-n",
        "1",
        "sh",
        "-c",
        "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $!",
    ]));
    let daemon = job.numbers(1)[0];
    assert_eq!(job.ends().0, Some(0));
    assert_gone(daemon);
}

#[test]
fn a_job_ends_when_its_time_is_up() {
    let output = run(&["-n", "2", "--timeout", "0.2", "sleep", "1000"]);
    assert_eq!(status(&output), 124);
    assert!(
        err(&output).contains("timed out (--timeout)"),
        "{}",
        err(&output)
    );
}

#[test]
fn each_output_of_each_rank_goes_to_a_file_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let files = folder.path().join("new/folder");
    let script = "printf '\\377 %s' $DIPOLE_RANK; [ $DIPOLE_RANK = 0 ] || echo error >&2";
    let directory = files.to_str().unwrap();
    let output = run(&["-n", "2", "--output-dir", directory, "sh", "-c", script]);
    assert_eq!(
        (status(&output), &*out(&output)),
        (0, ""),
        "{}",
        err(&output)
    );
    for (name, content) in [
        ("0.out", &b"\xff 0"[..]),
        ("0.err", b""),
        ("1.out", b"\xff 1"),
        ("1.err", b"error\n"),
    ] {
        assert_eq!(std::fs::read(files.join(name)).unwrap(), content, "{name}");
    }
}

#[test]
fn a_stopped_launcher_stops_its_ranks_and_continues_them_with_it() {
    // A shell that starts commands waits for its stopped child in state D, not T.
    let script = "echo $$; exec sleep 1000";
    let mut job = Job::start(dipole().args(["run", "-n", "2", "sh", "-c", script]));
    let ranks = job.numbers(2);
    let are = |state: &str| {
        let started = Instant::now();
        for number in ranks.iter().copied().chain([job.id()]) {
            let is = || {
                let text = std::fs::read_to_string(format!("/proc/{number}/status")).unwrap();
                text.contains("State:\tT") == (state == "stopped")
            };
            while !is() {
                assert!(started.elapsed() < PATIENCE, "{number} is not {state}");
                std::thread::yield_now();
            }
        }
    };
    job.signal(Signal::TSTP);
    are("stopped");
    job.signal(Signal::CONT);
    are("running");
    job.signal(Signal::TERM);
    assert_eq!(job.ends().0, Some(128 + 15));
}

#[test]
fn an_output_error_is_not_mistaken_for_a_closed_pipe() {
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut command = dipole();
    command.args(["run", "-n", "2", "echo", "x"]).stdout(full);
    let output = command.output().unwrap();
    assert_eq!(status(&output), 1);
    assert!(err(&output).contains("No space left"), "{}", err(&output));
}

#[test]
fn a_variable_without_a_name_is_refused() {
    assert_eq!(status(&run(&["-n", "1", "--env", "=x", "true"])), 2);
}

#[test]
fn fewer_ranks_are_refused_where_they_have_no_meaning() {
    for arguments in [
        &["-n", "2", "--at-least", "3", "true"][..],
        &["-n", "2", "--at-least", "1", "true", ":", "-n", "1", "true"],
        &["-n", "2", "--at-least", "0", "true"],
    ] {
        let output = run(arguments);
        assert_eq!(status(&output), 2, "{arguments:?}: {}", err(&output));
        assert!(err(&output).contains("--at-least"), "{}", err(&output));
    }
}
