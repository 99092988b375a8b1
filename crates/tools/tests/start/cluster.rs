//! Whole jobs through the agents of four nodes in network namespaces. Needs root; skipped with a message
//! otherwise.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use dipole_testbed::Testbed;
use dipole_testbed::built::example;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::process::{Process, new_key, said, wait_for};

const NODES: u32 = 4;

pub(crate) struct Cluster {
    pub(crate) testbed: Testbed,
}

impl Cluster {
    pub(crate) fn make() -> Option<Cluster> {
        if let Some(why) = Testbed::why_not() {
            eprintln!("SKIPPED: {why}");
            return None;
        }
        let testbed = Testbed::builder().nodes(NODES).build().expect("a testbed");
        let mut hosts = String::new();
        for node in 1..=NODES {
            let place = testbed.node(node);
            let (address, folder) = (place.addresses[0], place.runtime_dir.display());
            hosts += &format!("{node} {address} slots=2 runtime={folder}\n");
        }
        let cluster = Cluster { testbed };
        std::fs::write(cluster.path("through-agents"), hosts).expect("our own folder");
        new_key(&cluster.path("key"));
        // Every test reaches a node only through its agent.
        let ssh = cluster.path("ssh");
        std::fs::write(&ssh, "#!/bin/sh\necho no ssh here >&2\nexit 255\n").expect("our folder");
        std::fs::set_permissions(&ssh, PermissionsExt::from_mode(0o755)).expect("our own file");
        Some(cluster)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.testbed.folder().join(name)
    }

    fn dipole(&self, node: u32) -> Command {
        let mut command = self.testbed.command(node, env!("CARGO_BIN_EXE_dipole"));
        let path = std::env::var("PATH").expect("a path");
        command
            .env(
                "PATH",
                format!("{}:{path}", self.testbed.folder().display()),
            )
            .env("DIPOLE_HOSTS", self.path("through-agents"))
            .env("DIPOLE_KEY", self.path("key"))
            .env("XDG_CONFIG_HOME", self.path("none"))
            .current_dir(self.testbed.folder())
            .stdin(Stdio::null());
        command
    }

    fn agent(&self, node: u32) -> Process {
        self.agent_with(node, |_| {})
    }

    pub(crate) fn agent_with(&self, node: u32, change: impl FnOnce(&mut Command)) -> Process {
        let mut command = self.dipole(node);
        command.arg("agent").env("DIPOLE_LOG", "info");
        command.env("OF_THE_AGENT", "a secret");
        command.current_dir("/proc");
        change(&mut command);
        Process::start(&mut command, "agent of node")
    }

    /// The agents of all nodes except the first, where jobs are started.
    fn agents(&self) -> Vec<Process> {
        (2..=NODES).map(|node| self.agent(node)).collect()
    }

    /// A job that runs a script, started on node 1.
    pub(crate) fn run(&self, arguments: &[&str], script: &str) -> Command {
        let mut command = self.dipole(1);
        command
            .arg("run")
            .args(arguments)
            .args(["sh", "-c", script]);
        command
    }
}

/// A job that runs in the background.
pub(crate) struct Job {
    launcher: Child,
    lines: BufReader<ChildStdout>,
}

impl Job {
    pub(crate) fn start(command: &mut Command) -> Job {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut launcher = command.spawn().expect("it starts");
        let lines = BufReader::new(launcher.stdout.take().expect("a pipe"));
        Job { launcher, lines }
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a pipe");
        if line.is_empty() {
            let mut errors = String::new();
            let stderr = self.launcher.stderr.as_mut().expect("a pipe");
            let _no_more = stderr.read_to_string(&mut errors);
            panic!("it ended without a word: {errors}");
        }
        line.trim_end().to_owned()
    }

    pub(crate) fn pids(&mut self, count: usize) -> Vec<Pid> {
        let number = |line: String| line.parse().ok().and_then(Pid::from_raw);
        (0..count)
            .map(|_| number(self.line()).expect("a pid"))
            .collect()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.launcher), signal).expect("our child");
    }

    /// Its exit status and standard error.
    pub(crate) fn ends_saying(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        let mut stderr = self.launcher.stderr.take().expect("a pipe");
        stderr.read_to_string(&mut said).expect("a pipe");
        (self.launcher.wait().expect("our child").code(), said)
    }

    fn ends(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).expect("a pipe");
        (self.launcher.wait().expect("our child").code(), rest)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _gone = self.launcher.kill();
        let _gone = self.launcher.wait();
    }
}

pub(crate) fn assert_gone(pids: &[Pid]) {
    for pid in pids {
        wait_for("the end of a rank", || {
            test_kill_process(*pid).is_err().then_some(())
        });
    }
}

#[test]
fn a_job_of_eight_ranks_starts_on_four_nodes_without_ssh() {
    let Some(cluster) = Cluster::make() else {
        return;
    };
    let agents = cluster.agents();
    let mut command = cluster.dipole(1);
    command
        .args(["run", "-n", "8", "--tag"])
        .arg(example("all_to_all"));
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("[0]"), "{text}");
    for agent in &agents {
        agent.says("work started");
        agent.says("work ended");
        assert!(agent.said().contains("all_to_all"), "{}", agent.said());
    }
}

#[test]
fn ranks_have_the_same_environment_as_over_ssh_and_nothing_of_the_agent() {
    let Some(cluster) = Cluster::make() else {
        return;
    };
    let _agents = cluster.agents();
    let script = "echo $DIPOLE_RANK $DIPOLE_NID $GIVEN $DIPOLE_LOG ${OF_THE_AGENT-hidden} \
                  ${NOTIFY_SOCKET-none} $(pwd) $DIPOLE_RUNTIME_DIR ${HOME:+home} $INHERITED";
    let mut command = cluster.run(&["-n", "8", "--env", "GIVEN=x"], script);
    command.env("DIPOLE_LOG", "error").env("INHERITED", "too");
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{}", said(&output));
    let folder = cluster.testbed.folder().display();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for rank in 0..8_u32 {
        let node = rank / 2 + 1;
        let runtime = cluster.testbed.node(node).runtime_dir.display();
        let wanted = format!("{rank} {node} x error hidden none {folder} {runtime} home too");
        assert!(text.lines().any(|line| line == wanted), "{wanted}\n{text}");
    }
    // They must not inherit descriptors of the agent, such as its listener, but their own PMI.
    let others = "ls -l /proc/$$/fd | grep socket: | grep -vc \" $PMI_FD -> \"; true";
    let output = cluster
        .run(&["-n", "4"], others)
        .output()
        .expect("it starts");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "0\n0\n0\n0\n",
        "{}",
        said(&output)
    );
}

#[test]
fn input_signals_tags_and_failures_go_through_agents() {
    let Some(cluster) = Cluster::make() else {
        return;
    };
    // Rank 0 is on node 2: its agent is the first in this file.
    let hosts = std::fs::read_to_string(cluster.path("through-agents")).expect("our file");
    let others: Vec<&str> = hosts.lines().skip(1).collect();
    std::fs::write(cluster.path("others"), others.join("\n")).expect("our own folder");
    let _agents = cluster.agents();
    let others = cluster.path("others");
    let others = others.to_str().expect("our own folder");

    let length = 3_000_000;
    let mut command = cluster.run(
        &["-n", "1", "--hosts", others],
        "wc -c; echo no more >&2; exit 7",
    );
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut launcher = command.spawn().expect("it starts");
    let mut input = launcher.stdin.take().expect("a pipe");
    input.write_all(&vec![b'x'; length]).expect("it reads");
    drop(input);
    let output = launcher.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(7), "{}", said(&output));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        length.to_string()
    );
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("no more"), "{errors}");

    let script = "trap 'echo got it; exit 0' USR1; echo ready; while :; do sleep 0.05; done";
    let mut job = Job::start(&mut cluster.run(&["-n", "6", "--tag", "--hosts", others], script));
    for _ in 0..6 {
        assert!(job.line().ends_with("ready"));
    }
    job.signal(Signal::USR1);
    let (status, rest) = job.ends();
    assert_eq!(status, Some(0));
    for rank in 0..6 {
        assert!(rest.contains(&format!("[{rank}] got it")), "{rest}");
    }
}

#[test]
fn nothing_is_left_when_the_launcher_is_killed() {
    let Some(cluster) = Cluster::make() else {
        return;
    };
    let _agents = cluster.agents();
    let script = "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $$; echo $!; trap '' TERM; \
                  while :; do sleep 1000; done";
    let mut job = Job::start(&mut cluster.run(&["-n", "8"], script));
    let pids = job.pids(16);
    job.signal(Signal::KILL);
    assert_gone(&pids);
}

#[test]
fn nothing_is_left_when_the_launchers_machine_is_disconnected() {
    let Some(cluster) = Cluster::make() else {
        return;
    };
    let _agents = cluster.agents();
    let script = "echo $$; while :; do sleep 1000; done";
    let mut job = Job::start(&mut cluster.run(&["-n", "8"], script));
    let pids = job.pids(8);
    cluster
        .testbed
        .set_interface(1, 0, false)
        .expect("an interface");
    let mut errors = job.launcher.stderr.take().expect("a pipe");
    let (status, _) = job.ends();
    assert_eq!(status, Some(137), "the other hosts are lost");
    let mut said = String::new();
    errors.read_to_string(&mut said).expect("a pipe");
    assert!(said.contains("its machine does not respond"), "{said}");
    assert_gone(&pids);
}

#[test]
fn a_job_ends_soon_after_its_nodes_know_that_a_host_is_lost() {
    let Some(cluster) = Cluster::make() else {
        return;
    };
    let _agents: Vec<Process> = (1..=NODES).map(|node| cluster.agent(node)).collect();
    let state = |node: u32| {
        let mut status = cluster.dipole(1);
        let output = status.args(["--json", "agent", "status"]).output();
        let output = output.expect("it runs").stdout;
        let status: serde_json::Value = serde_json::from_slice(&output).expect("JSON");
        let members = status["members"].as_array().expect("members").clone();
        let member = members.iter().find(|member| member["node"] == node);
        member.map(|member| member["state"].as_str().expect("a state").to_owned())
    };
    for node in 2..=NODES {
        wait_for("a member", || (state(node)? == "up").then_some(()));
    }
    let script = "echo $$; while :; do sleep 1000; done";
    let mut job = Job::start(&mut cluster.run(&["-n", "8"], script));
    let pids = job.pids(8);
    let testbed = &cluster.testbed;
    testbed.set_interface(3, 0, false).expect("an interface");
    let cut = Instant::now();
    let ended = std::thread::spawn(move || {
        let (status, said) = job.ends_saying();
        (status, said, cut.elapsed())
    });
    wait_for("the report of the loss", || {
        (state(3)? == "down").then_some(())
    });
    let known = cut.elapsed();
    let (status, said, ended) = ended.join().expect("no panic");
    println!(
        "known to node 1 {known:.1?} after the cut, the job ended {ended:.1?} after it: {said}"
    );
    assert_eq!(status, Some(137), "{said}");
    assert!(
        said.contains("is lost (") && said.contains("node 3"),
        "{said}"
    );
    assert_gone(&pids);
}

#[test]
fn a_job_continues_when_agents_are_killed_and_the_next_agents_know_it() {
    let Some(cluster) = Cluster::make() else {
        return;
    };
    let agents = cluster.agents();
    let go = cluster.path("go");
    let script = format!(
        "echo $$; while [ ! -e {} ]; do sleep 0.05; done; echo done",
        go.display()
    );
    let mut job = Job::start(&mut cluster.run(&["-n", "8"], &script));
    job.pids(8);
    for agent in agents {
        agent.kill();
    }
    let next = cluster.agent(3);
    let output = cluster
        .dipole(3)
        .args(["--json", "agent", "status"])
        .output();
    let output = output.expect("it runs");
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(status["jobs"][0]["ranks"], 2, "{status}");
    let output = cluster.dipole(3).args(["agent", "status"]).output();
    let table = said(&output.expect("it runs"));
    assert!(
        table.contains("accepts work") && table.contains("sh -c"),
        "{table}"
    );
    // One that gets SIGTERM also leaves the job alone.
    kill_process(Pid::from_child(&next.child), Signal::TERM).expect("our child");
    next.says("agent ends");
    std::fs::write(&go, "").expect("our own folder");
    let (status, rest) = job.ends();
    assert_eq!(status, Some(0));
    assert_eq!(rest, "done\n".repeat(8));
}

#[test]
fn a_job_reports_which_nodes_refuse_and_why_and_runs_on_the_others() {
    let Some(cluster) = Cluster::make() else {
        return;
    };
    let rules = cluster.path("rules.toml");
    std::fs::write(&rules, "max-ranks = 0\n").expect("our own folder");
    let other_key = cluster.path("other-key");
    new_key(&other_key);
    let _refuses = cluster.agent_with(2, |command| {
        command.arg("--rules").arg(&rules);
    });
    let _other = cluster.agent_with(3, |command| {
        command.env("DIPOLE_KEY", &other_key);
    });
    // Nodes 1 and 4 have two slots each, and 4 has no agent.
    let all = ["-n", "8", "--oversubscribe"];
    let output = cluster.run(&all, "echo $DIPOLE_NID").output();
    let output = output.expect("it starts");
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1\n".repeat(8));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    for wanted in [
        "node 2 (10.0.0.2) skipped: refuses work: 0 ranks run there, and the owner allows at most 0",
        "node 3 (10.0.0.3) skipped: the agent at 10.0.0.3:7411 does not hold the cluster key",
        "node 4 (10.0.0.4): no agent answers at 10.0.0.4:7411",
        "start `dipole agent` there with this cluster key, or make `ssh` work",
    ] {
        assert!(errors.contains(wanted), "{wanted}\n{errors}");
    }

    // If only nodes with limits are left, a job gets no more than these allow.
    std::fs::write(&rules, "max-ranks = 3\n").expect("our own folder");
    let hosts = std::fs::read_to_string(cluster.path("through-agents")).expect("our file");
    let second = hosts.lines().nth(1).expect("four lines");
    std::fs::write(cluster.path("second"), second).expect("our own folder");
    let file = cluster.path("second");
    let file = file.to_str().expect("our own folder");
    let output = cluster
        .run(&["-n", "4", "--hosts", file], "echo started")
        .output();
    let output = output.expect("it starts");
    assert!(!output.status.success());
    let text = said(&output);
    assert!(
        text.contains("4 ranks are too many") && !text.contains("started\n"),
        "{text}"
    );
    // The agent may still hold the slots that the refused job requested.
    let began = Instant::now();
    let text = loop {
        let output = cluster
            .run(&["-n", "2", "--hosts", file], "echo started")
            .output();
        let text = said(&output.expect("it starts"));
        if !text.contains("too many") || began.elapsed() > Duration::from_secs(10) {
            break text;
        }
    };
    assert_eq!(text, "started\n".repeat(2));
}

#[test]
fn eight_ranks_start_soon_and_idle_agents_sleep() {
    let runs: usize = std::env::var("DIPOLE_STARTS").map_or(2, |text| text.parse().expect("runs"));
    let idle = Duration::from_secs(if runs > 2 { 30 } else { 1 });
    let Some(cluster) = Cluster::make() else {
        return;
    };
    let agents = cluster.agents();
    let mut took = Vec::new();
    for _ in 0..runs {
        let mut command = cluster.dipole(1);
        command.args(["--json", "run", "-n", "8", "true"]);
        let begun = Instant::now();
        let mut job = Job::start(&mut command);
        let mut started = 0;
        while started < 8 {
            started += usize::from(job.line().contains("\"event\":\"started\""));
        }
        took.push(begun.elapsed());
        assert_eq!(job.ends().0, Some(0));
    }
    took.sort();
    let (median, least, most) = (took[runs / 2], took[0], took[runs - 1]);
    println!(
        "8 ranks on 4 nodes: {median:?} to the last start ({least:?} to {most:?}, {runs} runs)"
    );
    let fact = |process: &Process, name: &str| -> u64 {
        let file = format!("/proc/{}/status", process.child.id());
        let text = std::fs::read_to_string(file).expect("it runs");
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let word = line.and_then(|line| line.split_whitespace().next());
        word.expect("a line").parse().expect("a number")
    };
    for agent in &agents {
        let before = fact(agent, "voluntary_ctxt_switches:");
        std::thread::sleep(idle / 3);
        let woken = fact(agent, "voluntary_ctxt_switches:") - before;
        let own = fact(agent, "RssAnon:");
        println!(
            "an agent has {own} KiB and woke {woken} times in {:?}",
            idle / 3
        );
        assert!(own < 20 * 1024, "{own} KiB");
    }
}
