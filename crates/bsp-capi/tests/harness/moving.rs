//! Jobs in a cluster of network namespaces whose ranks move from node to node.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "a module of each test file, of which each uses only a part"
)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use dipole_testbed::{Testbed, built};

use crate::harness::{Bench, source};

/// One line for each stop of the program. They all are in the pipe at the start.
pub const INPUT: &str = "one\ntwo\nthree\nfour\n";
pub const STOPS: u32 = 4;
/// Longest wait for the job to reach a state.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster and a program.
pub struct Cluster {
    pub testbed: Testbed,
    pub bench: Bench,
    program: PathBuf,
}

impl Cluster {
    /// `None` if there can be no cluster here.
    pub fn new(nodes: u32, slots: u32) -> Option<Cluster> {
        if let Some(why) = Testbed::why_not() {
            eprintln!("SKIPPED: {why}");
            return None;
        }
        let testbed = Testbed::builder().nodes(nodes).slots(slots).build();
        let bench = Bench::new();
        let program = bench.compile(&source("migrate.c"), &["-std=gnu11"]);
        Some(Cluster {
            testbed: testbed.expect("a testbed"),
            bench,
            program,
        })
    }

    pub fn folder(&self, name: &str) -> PathBuf {
        let folder = self.bench.path().join(name);
        fs::create_dir_all(&folder).expect("a new folder");
        folder
    }

    /// Like the testbed's remote shell, but refuses nodes for which [`Job::set_refusing`] is set, and hides
    /// the files of the program from new processes on node 3 if the file `hides` exists.
    fn remote_shell(&self, files: &Path) -> PathBuf {
        let script = files.join("remote-shell");
        let third = &self.testbed.node(3).namespace;
        let text = format!(
            "#!/bin/sh\ndest=$1\nshift\ncd {files}\n\
             if [ -e refuses-$dest ]; then echo no thanks >&2; exit 1; fi\n\
             if [ $dest = {third} ] && [ -e hides ]; then\n\
             exec ip netns exec $dest unshare -m sh -c \"mount -t tmpfs none {files}; cd /; $*\"\nfi\n\
             exec ip netns exec $dest sh -c \"$*\"\n",
            files = files.display()
        );
        fs::write(&script, text).expect("own folder");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).expect("own file");
        script
    }

    /// Starts three ranks.
    pub fn start(&self, name: &str, link: &str, how: &str, options: &[&str]) -> Job<'_> {
        let files = self.folder(name);
        let mut command = self.testbed.command(1, built::program("dipole"));
        command.args(["run", "-n", "3", "--timeout", "200", "--hosts"]);
        command.arg(self.testbed.hosts_file());
        command.arg("--rsh").arg(self.remote_shell(&files));
        command
            .arg("--checkpoint-dir")
            .arg(files.join("checkpoints"));
        command
            .args(options)
            .arg(&self.program)
            .arg(&files)
            .arg(how);
        if link != "auto" {
            command.env("DIPOLE_LINK", link);
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(INPUT.as_bytes()).expect("it reads");
        let stderr = child.stderr.take().expect("a pipe");
        let messages = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&messages);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut kept = kept.lock().expect("no panic");
                kept.push_str(&line);
                kept.push('\n');
            }
        });
        Job {
            cluster: self,
            files,
            child,
            messages,
        }
    }

    /// The output and the files of an undisturbed run.
    pub fn expected(&self) -> (Vec<String>, Vec<String>) {
        let job = self.start("undisturbed", "auto", "syncs", &[]);
        (1..=STOPS).for_each(|stop| job.go(stop));
        job.end()
    }
}

/// A running job.
pub struct Job<'a> {
    cluster: &'a Cluster,
    pub files: PathBuf,
    child: Child,
    messages: Arc<Mutex<String>>,
}

impl Job<'_> {
    /// Messages of `dipole run` so far.
    pub fn messages(&self) -> String {
        self.messages.lock().expect("no panic").clone()
    }

    /// Waits until a message of `dipole run` contains this for the `count`th time.
    pub fn wait_for_message(&self, text: &str, count: usize) {
        let begun = Instant::now();
        while self.messages().matches(text).count() < count {
            let messages = self.messages();
            assert!(begun.elapsed() < PATIENCE, "never `{text}`: {messages}");
            sleep(Duration::from_millis(20));
        }
    }

    /// Lets a node refuse ranks, or not any more.
    pub fn set_refusing(&self, node: u32, refuses: bool) {
        let name = &self.cluster.testbed.node(node).namespace;
        let file = self.files.join(format!("refuses-{name}"));
        match refuses {
            true => fs::write(file, ""),
            false => fs::remove_file(file),
        }
        .expect("own folder");
    }

    /// Waits until the job stops.
    pub fn at(&self, stop: u32) {
        let file = self.files.join(format!("at-{stop}"));
        wait_until(&format!("stop {stop}"), || file.exists());
    }

    /// Ends a stop.
    pub fn go(&self, stop: u32) {
        fs::write(self.files.join(format!("go-{stop}")), "").expect("own folder");
    }

    pub fn name(&self) -> String {
        let folder = self.files.join("checkpoints");
        let mut entries = fs::read_dir(folder).expect("a folder");
        let job = entries.next().expect("a job").expect("an entry");
        job.file_name().to_string_lossy().into_owned()
    }

    pub fn migrate_command(&self, arguments: &[&str]) -> Command {
        let mut command = self.cluster.testbed.command(1, built::program("dipole"));
        command.arg("migrate").arg(self.name()).args(arguments);
        command.arg("--checkpoint-dir");
        command.arg(self.files.join("checkpoints"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn migrate(&self, arguments: &[&str]) {
        let output = self.migrate_command(arguments).output();
        let output = output.expect("it starts");
        assert!(output.status.success(), "{arguments:?}: {}", err(&output));
    }

    /// Requires that nothing is moved, for this reason.
    pub fn refused(&self, arguments: &[&str], reason: &str) {
        let output = self.migrate_command(arguments).output();
        let output = output.expect("it starts");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(err(&output).contains(reason), "{arguments:?}: {output:?}");
    }

    /// The process of a rank after a stop, and its node.
    pub fn process(&self, rank: u32) -> (String, u32) {
        let file = self.files.join(format!("pid-{rank}"));
        let process = fs::read_to_string(file).expect("its number");
        let process = process.trim().to_owned();
        let network = |path: String| fs::metadata(path).ok().map(|it| it.ino());
        let own = network(format!("/proc/{process}/ns/net"));
        assert!(own.is_some(), "rank {rank} runs as process {process}");
        let nodes = 1..=self.cluster.testbed.nodes();
        let is_there = |node: &u32| {
            let name = &self.cluster.testbed.node(*node).namespace;
            network(format!("/run/netns/{name}")) == own
        };
        let node = nodes.into_iter().find(is_there);
        (process, node.expect("a node of the testbed"))
    }

    /// The processes of the ranks after a stop.
    pub fn processes(&self) -> Vec<(String, u32)> {
        (0..3).map(|rank| self.process(rank)).collect()
    }

    /// The sorted lines that the job has printed, and the files.
    pub fn end(self) -> (Vec<String>, Vec<String>) {
        let output = self.child.wait_with_output().expect("it ends");
        assert!(
            output.status.success(),
            "{}",
            self.messages.lock().expect("no panic")
        );
        let text = String::from_utf8_lossy(&output.stdout);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        let log = |rank: u32| fs::read_to_string(self.files.join(format!("log-{rank}")));
        (
            lines,
            (0..3).map(|rank| log(rank).expect("a log")).collect(),
        )
    }
}

pub fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}: not within a minute");
        sleep(Duration::from_millis(5));
    }
}

/// The nodes of processes.
pub fn nodes(processes: &[(String, u32)]) -> Vec<u32> {
    processes.iter().map(|(_, node)| *node).collect()
}
