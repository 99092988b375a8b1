//! `dipole top` in a terminal provided by tmux, next to a traced program.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::jobs::{Job, PROGRAM, text};

/// A program that runs for a while and ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // `dipole run` ends its ranks when it gets SIGTERM.
        let pid = rustix::process::Pid::from_child(&self.0);
        let _gone = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _status = self.0.wait();
    }
}

/// Two traced ranks. On one node they need no Dipole node.
fn running(job: &Job) -> Running {
    let mut command = job.command(2, &["0", "1", "100000", "3000"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Running(command.spawn().expect("it starts"))
}

/// Two processes with Dipole nodes, one of which sends to the other over the network from time to time.
fn transfer(job: &Job) -> [Running; 2] {
    let dipole = |arguments: &[&str]| {
        let mut command = dipole_testbed::isolated_command(PROGRAM);
        command.args(arguments).env("DIPOLE_LINK", "udp");
        command.env("DIPOLE_RUNTIME_DIR", job.path("runtime"));
        command
            .env_remove("DIPOLE_HOSTS")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    };
    let mut receiver = dipole(&["recv", "7"]);
    let receiver = receiver.stdin(Stdio::null()).spawn().expect("it starts");
    let mut sender = dipole(&["send", "1:7"]);
    let mut sender = sender.stdin(Stdio::piped()).spawn().expect("it starts");
    let mut input = sender.stdin.take().expect("a pipe");
    // The thread ends with the sender.
    std::thread::spawn(move || {
        while input.write_all(&[7; 30_000]).is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    [Running(receiver), Running(sender)]
}

fn until(what: &str, is_so: impl Fn() -> Result<(), String>) {
    let begun = Instant::now();
    while let Err(seen) = is_so() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "no {what}: {seen}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn top(job: &Job, arguments: &[&str]) -> Output {
    let mut command = dipole_testbed::isolated_command(PROGRAM);
    command.arg("top").args(arguments).stdin(Stdio::null());
    command.env("DIPOLE_RUNTIME_DIR", job.path("runtime"));
    command.output().expect("it starts")
}

#[test]
fn with_once_it_prints_processes_and_ranks_and_without_a_terminal_it_says_what_to_do() {
    let job = Job::slowed();
    let _running = running(&job);
    let _transfer = transfer(&job);
    let traces = job.traces().to_str().expect("a plain path").to_owned();
    let arguments = ["--once", "--json", "--every", "0.3", "--trace", &traces];
    until("ranks with supersteps", || {
        let output = top(&job, &arguments);
        let said = text(&output);
        let lines: Vec<Value> = said
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        let ranks = lines.iter().filter(|line| {
            line["supersteps_per_s"].as_f64() > Some(0.0)
                && line["call"]
                    .as_str()
                    .is_some_and(|call| call.starts_with("slowed.c:"))
        });
        let processes = lines
            .iter()
            .filter(|line| line["links"]["udp"] == 1 && line["edges"].as_array().is_some());
        match (ranks.count(), processes.count() >= 2) {
            (2, true) => Ok(()),
            _ => Err(said),
        }
    });
    let output = top(&job, &["--once", "--every", "0.1"]);
    assert!(
        text(&output).contains("msg/s") && text(&output).contains("dipole send"),
        "{}",
        text(&output)
    );
    for columns in [40, 80, 200] {
        let mut once = dipole_testbed::isolated_command(PROGRAM);
        once.args(["top", "--once", "--every", "0.1", "--trace", &traces]);
        once.env("DIPOLE_RUNTIME_DIR", job.path("runtime"));
        once.env("COLUMNS", columns.to_string());
        let shown = text(&once.output().expect("it starts"));
        let widest = shown.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(columns), "{columns} columns\n{shown}");
        for part in ["dipole send", "msg/s out", "MB/s in", "slowed.c:"] {
            assert!(shown.contains(part), "{part} in {columns} columns\n{shown}");
        }
    }
    let output = top(&job, &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output).contains("dipole top --once"),
        "{}",
        text(&output)
    );
    // The same counters for Prometheus.
    let mut stats = dipole_testbed::isolated_command(PROGRAM);
    stats.args(["stats", "--prometheus"]);
    stats.env("DIPOLE_RUNTIME_DIR", job.path("runtime"));
    let told = text(&stats.output().expect("it starts"));
    let sum = told
        .lines()
        .filter(|line| line.starts_with("dipole_messages_received_total{"));
    assert!(sum.count() >= 2 && told.contains("command=\""), "{told}");
}

/// A terminal that ends with the test.
struct Tmux<'a>(&'a Path);

impl Tmux<'_> {
    fn call(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("tmux");
        command
            .arg("-S")
            .arg(self.0)
            .args(["-f", "/dev/null"])
            .args(arguments);
        command.output().expect("tmux was found")
    }

    fn shows(&self, parts: &[&str]) -> Result<(), String> {
        let screen = text(&self.call(&["capture-pane", "-p"]));
        match parts.iter().all(|part| screen.contains(part)) {
            true => Ok(()),
            false => Err(screen),
        }
    }
}

impl Drop for Tmux<'_> {
    fn drop(&mut self) {
        self.call(&["kill-server"]);
    }
}

#[test]
fn in_a_terminal_it_draws_reacts_to_keys_and_resizing_and_ends() {
    if Command::new("tmux").arg("-V").output().is_err() {
        assert!(
            std::env::var_os("DIPOLE_REQUIRE_TMUX").is_none_or(|value| value != "1"),
            "tmux is missing and DIPOLE_REQUIRE_TMUX=1 forbids to skip this test"
        );
        eprintln!(
            "SKIPPED in_a_terminal_it_draws_reacts_to_keys_and_resizing_and_ends: it needs tmux"
        );
        return;
    }
    let job = Job::slowed();
    let _running = running(&job);
    let _transfer = transfer(&job);
    let socket = job.path("tmux");
    let tmux = Tmux(&socket);
    let command = format!(
        "DIPOLE_RUNTIME_DIR={} {PROGRAM} top --every 0.2 --trace {}; echo it has ended; sleep 60",
        job.path("runtime").display(),
        job.traces().display()
    );
    until("traces", || {
        match job.traces().join("rank-1.trace").exists() {
            true => Ok(()),
            false => Err(String::new()),
        }
    });
    let started = tmux.call(&["new-session", "-d", "-x", "120", "-y", "40", &command]);
    assert!(started.status.success(), "{}", text(&started));
    until("processes and ranks", || {
        tmux.shows(&[
            "dipole top: 2 processes",
            "by messages",
            "slowed.c:",
            "rank ",
            "peers 1 over",
        ])
    });
    println!("{}", text(&tmux.call(&["capture-pane", "-p"])));
    tmux.call(&["send-keys", "s"]);
    until("another order", || tmux.shows(&["by bytes"]));
    tmux.call(&["send-keys", "p"]);
    until("a pause", || tmux.shows(&["paused"]));
    tmux.call(&["resize-window", "-x", "70", "-y", "20"]);
    until("a smaller picture", || {
        tmux.shows(&["dipole top: 2 processes", "q ends"])
    });
    tmux.call(&["send-keys", "q"]);
    until("its end", || tmux.shows(&["it has ended"]));
}
