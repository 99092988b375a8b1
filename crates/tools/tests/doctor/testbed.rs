//! Shared by the tests: the program in a clean environment, its findings, a receiver to be found, and
//! machines made of network namespaces.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// The findings of the program, and its exit status.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) status: i32,
    findings: Vec<Value>,
}

impl Report {
    /// Runs `command`, which contains `--json doctor` and other arguments.
    pub(crate) fn of(command: &mut Command) -> Report {
        let output = command.output().expect("it starts");
        let text = String::from_utf8(output.stdout).expect("text");
        let lines = text.lines();
        Report {
            status: output.status.code().expect("it ends by itself"),
            findings: lines
                .map(|line| serde_json::from_str(line).expect("an object a line"))
                .collect(),
        }
    }

    /// The verdict of a finding and its text, fact and advice joined; `subject` is the beginning of its
    /// subject.
    pub(crate) fn finding(&self, name: &str, subject: &str) -> (&str, String) {
        let found = self.find(name, subject);
        let found = found.unwrap_or_else(|| panic!("no {name} of {subject}: {self:#?}"));
        let word = |key: &str| found[key].as_str().expect("text");
        let text = format!("{} -> {}", word("fact"), word("advice"));
        (word("verdict"), text)
    }

    pub(crate) fn find(&self, name: &str, subject: &str) -> Option<&Value> {
        let mut all = self.findings.iter();
        all.find(|one| {
            let begins = one["subject"]
                .as_str()
                .is_some_and(|it| it.starts_with(subject));
            one["name"] == name && begins
        })
    }

    /// The number of findings with this name.
    pub(crate) fn count(&self, name: &str) -> usize {
        let named = self.findings.iter().filter(|one| one["name"] == name);
        named.count()
    }

    /// Fails unless the finding has the verdict and contains all of the words.
    #[track_caller]
    pub(crate) fn expect(&self, name: &str, subject: &str, verdict: &str, words: &[&str]) {
        let (found, text) = self.finding(name, subject);
        assert_eq!(found, verdict, "{name} of {subject}: {text}");
        for word in words {
            assert!(
                text.contains(word),
                "{name} of {subject} lacks `{word}`: {text}"
            );
        }
    }

    /// Fails if anything is broken.
    #[track_caller]
    pub(crate) fn expect_nothing_broken(&self) {
        let broken: Vec<&Value> = self
            .findings
            .iter()
            .filter(|one| one["verdict"] == "broken")
            .collect();
        assert!(broken.is_empty(), "{broken:#?}");
        assert_eq!(self.status, 0);
    }
}

/// Removes this project's variables from a command's environment.
pub(crate) fn cleaned(mut command: Command, runtime: &Path) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DIPOLE_") {
            command.env_remove(name);
        }
    }
    command
        .env("DIPOLE_RUNTIME_DIR", runtime)
        .stdin(Stdio::null());
    command
}

/// A process that is killed when this is dropped.
pub(crate) struct Process(Child);

impl Process {
    /// Starts a receiver at endpoint 7 of a node; its output is discarded.
    pub(crate) fn receiver(mut dipole: Command, node: u32, hosts: &Path) -> Process {
        let (endpoint, node) = (format!("{node}:7"), node.to_string());
        dipole
            .args(["recv", &endpoint, "--nid", &node, "--hosts"])
            .arg(hosts);
        dipole.stdout(Stdio::null()).stderr(Stdio::null());
        Process(dipole.spawn().expect("it starts"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Queries until a node replies, because a process that has just started may not listen yet.
pub(crate) fn once_answered(ask: impl Fn() -> Report, subject: &str) -> Report {
    let started = Instant::now();
    loop {
        let report = ask();
        if report.finding("directory", subject).0 == "good" {
            return report;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "{report:#?}");
    }
}

/// Machines 1 and 2, and optionally a bridge between them, as namespaces that exist as long as this.
pub(crate) struct Testbed {
    names: Vec<String>,
    pub(crate) directory: TempDir,
}

/// Runs `ip`; true if it succeeded.
pub(crate) fn ip(arguments: &str) -> bool {
    Command::new("ip")
        .args(arguments.split_whitespace())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Testbeds made by this process, whose tests run at once.
static MADE: AtomicU32 = AtomicU32::new(0);

impl Testbed {
    /// Creates the testbed; `None`, with the reason, if that is not possible. With `bridged` the two are
    /// connected by a bridge in a third namespace instead of a veth pair.
    pub(crate) fn make(bridged: bool) -> Option<Testbed> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: network namespaces need root");
            return None;
        }
        let (process, number) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let testbed = Testbed {
            names: ["a", "b", "c"]
                .map(|side| format!("dpd{process}n{number}{side}"))
                .into(),
            directory: tempfile::tempdir().expect("a directory"),
        };
        let [a, b, c] = &testbed.names[..] else {
            unreachable!("three names")
        };
        let mut steps = vec![format!("netns add {a}"), format!("netns add {b}")];
        if bridged {
            steps.extend([
                format!("netns add {c}"),
                format!("-n {c} link add br0 type bridge"),
                format!("-n {c} link set br0 up"),
            ]);
            for (side, name) in [("a", a), ("b", b)] {
                steps.extend([
                    format!("link add eth0 netns {name} type veth peer name port{side} netns {c}"),
                    format!("-n {c} link set port{side} master br0 up"),
                ]);
            }
        } else {
            steps.push(format!(
                "link add eth0 netns {a} type veth peer name eth0 netns {b}"
            ));
        }
        for (number, name) in [(1, a), (2, b)] {
            steps.extend([
                format!("-n {name} addr add 10.98.0.{number}/24 dev eth0"),
                format!("-n {name} link set lo up"),
                format!("-n {name} link set eth0 up"),
            ]);
        }
        if !steps.iter().all(|step| ip(step)) {
            eprintln!("SKIPPED: `ip netns` makes no namespaces here (iproute2, veth, bridge?)");
            return None;
        }
        testbed.write_hosts("1 10.98.0.1\n2 10.98.0.2\n");
        Some(testbed)
    }

    pub(crate) fn write_hosts(&self, text: &str) {
        std::fs::write(self.hosts(), text).expect("our own directory");
    }

    pub(crate) fn hosts(&self) -> PathBuf {
        self.directory.path().join("hosts")
    }

    /// Runs `ip` inside a machine (or the bridge, 3).
    #[track_caller]
    pub(crate) fn ip(&self, machine: usize, arguments: &str) {
        let mut command = Command::new("ip");
        command.args(["-n", &self.names[machine - 1]]);
        let output = command.args(arguments.split_whitespace()).output();
        let output = output.expect("ip starts");
        assert!(output.status.success(), "ip {arguments}: {output:?}");
    }

    /// Sets firewall rules inside a machine; true if that succeeded.
    pub(crate) fn nft(&self, machine: usize, rules: &str) -> bool {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[machine - 1], "nft", rules]);
        let status = command.stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    pub(crate) fn dipole(&self, machine: usize) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[machine - 1]]);
        command.arg(env!("CARGO_BIN_EXE_dipole"));
        cleaned(
            command,
            &self.directory.path().join(format!("runtime-{machine}")),
        )
    }

    pub(crate) fn receiver(&self) -> Process {
        self.receiver_with(None)
    }

    /// Starts a receiver, with a cluster key if one is given.
    pub(crate) fn receiver_with(&self, key: Option<&PathBuf>) -> Process {
        let mut dipole = self.dipole(2);
        if let Some(key) = key {
            dipole.env("DIPOLE_KEY", key);
        }
        Process::receiver(dipole, 2, &self.hosts())
    }

    /// The findings of machine 1.
    pub(crate) fn report(&self) -> Report {
        self.report_with(&[])
    }

    /// Runs the doctor with environment variables.
    pub(crate) fn report_with(&self, variables: &[(&str, &str)]) -> Report {
        let mut command = self.dipole(1);
        command.envs(variables.iter().copied());
        command.args(["--json", "doctor", "--timeout", "0.5", "--hosts"]);
        Report::of(command.arg(self.hosts()))
    }

    /// The findings of machine 1 once machine 2 replies.
    pub(crate) fn report_once_answered(&self) -> Report {
        once_answered(|| self.report(), "node 2")
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&format!("netns del {name}"));
        }
    }
}
