//! Ranks of running jobs move to other nodes, while the others keep their processes, and the result is
//! that of an undisturbed run.

mod harness;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use dipole_testbed::{Testbed, built};
use harness::{Bench, source};

/// One line for each stop of the program. They all are in the pipe at the start.
const INPUT: &str = "one\ntwo\nthree\nfour\n";
const STOPS: u32 = 4;
/// Longest wait for the job to reach a state.
const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster of three nodes with two slots each, and a program.
struct Cluster {
    testbed: Testbed,
    bench: Bench,
    program: PathBuf,
}

impl Cluster {
    /// `None` if there can be no cluster here.
    fn new() -> Option<Cluster> {
        if let Some(why) = Testbed::why_not() {
            eprintln!("SKIPPED: {why}");
            return None;
        }
        let testbed = Testbed::builder().nodes(3).slots(2).build();
        let bench = Bench::new();
        let program = bench.compile(&source("migrate.c"), &["-std=gnu11"]);
        Some(Cluster {
            testbed: testbed.expect("a testbed"),
            bench,
            program,
        })
    }

    fn folder(&self, name: &str) -> PathBuf {
        let folder = self.bench.path().join(name);
        fs::create_dir_all(&folder).expect("a new folder");
        folder
    }

    /// Like the testbed's remote shell, but refuses node 3 if the file `refuses` exists, and hides
    /// the files of the program on new processes there if the file `hides` does.
    fn remote_shell(&self, files: &Path) -> PathBuf {
        let script = files.join("remote-shell");
        let third = &self.testbed.node(3).namespace;
        let text = format!(
            "#!/bin/sh\ndest=$1\nshift\ncd {files}\n\
             if [ $dest = {third} ] && [ -e refuses ]; then echo no thanks >&2; exit 1; fi\n\
             if [ $dest = {third} ] && [ -e hides ]; then\n\
             exec ip netns exec $dest unshare -m sh -c \"mount -t tmpfs none {files}; cd /; $*\"\nfi\n\
             exec ip netns exec $dest sh -c \"$*\"\n",
            files = files.display()
        );
        fs::write(&script, text).expect("own folder");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).expect("own file");
        script
    }

    /// Starts three ranks: two on node 1, one on node 2.
    fn start(&self, name: &str, link: &str, how: &str, options: &[&str]) -> Job<'_> {
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
        Job {
            cluster: self,
            files,
            child,
        }
    }

    /// The output and the files of an undisturbed run.
    fn expected(&self) -> (Vec<String>, Vec<String>) {
        let job = self.start("undisturbed", "auto", "syncs", &[]);
        (1..=STOPS).for_each(|stop| job.go(stop));
        job.end()
    }
}

/// A running job.
struct Job<'a> {
    cluster: &'a Cluster,
    files: PathBuf,
    child: Child,
}

impl Job<'_> {
    /// Waits until the job stops.
    fn at(&self, stop: u32) {
        let file = self.files.join(format!("at-{stop}"));
        wait_until(&format!("stop {stop}"), || file.exists());
    }

    /// Ends a stop.
    fn go(&self, stop: u32) {
        fs::write(self.files.join(format!("go-{stop}")), "").expect("own folder");
    }

    fn name(&self) -> String {
        let folder = self.files.join("checkpoints");
        let mut entries = fs::read_dir(folder).expect("a folder");
        let job = entries.next().expect("a job").expect("an entry");
        job.file_name().to_string_lossy().into_owned()
    }

    fn migrate_command(&self, arguments: &[&str]) -> Command {
        let mut command = self.cluster.testbed.command(1, built::program("dipole"));
        command.arg("migrate").arg(self.name()).args(arguments);
        command.arg("--checkpoint-dir");
        command.arg(self.files.join("checkpoints"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn migrate(&self, arguments: &[&str]) {
        let output = self.migrate_command(arguments).output();
        let output = output.expect("it starts");
        assert!(output.status.success(), "{arguments:?}: {}", err(&output));
    }

    /// Requires that nothing is moved, for this reason.
    fn refused(&self, arguments: &[&str], reason: &str) {
        let output = self.migrate_command(arguments).output();
        let output = output.expect("it starts");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(err(&output).contains(reason), "{arguments:?}: {output:?}");
    }

    /// The process of a rank after a stop, and its node.
    fn process(&self, rank: u32) -> (String, u32) {
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
    fn processes(&self) -> Vec<(String, u32)> {
        (0..3).map(|rank| self.process(rank)).collect()
    }

    /// The sorted lines that the job has printed, and the files.
    fn end(self) -> (Vec<String>, Vec<String>) {
        let output = self.child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{}", err(&output));
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

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}: not within a minute");
        sleep(Duration::from_millis(5));
    }
}

/// The nodes of processes.
fn nodes(processes: &[(String, u32)]) -> Vec<u32> {
    processes.iter().map(|(_, node)| *node).collect()
}

#[test]
fn ranks_move_and_return_while_the_others_keep_their_processes() {
    let Some(cluster) = Cluster::new() else {
        return;
    };
    let expected = cluster.expected();
    for link in ["auto", "udp", "tcp"] {
        let job = cluster.start(&format!("moved-{link}"), link, "syncs", &[]);
        job.at(1);
        let before = job.processes();
        assert_eq!(nodes(&before), [1, 1, 2], "{link}");
        job.migrate(&["--rank", "1", "--to", "3"]);
        job.go(1);
        job.at(2);
        let moved = job.processes();
        assert_eq!(nodes(&moved), [1, 3, 2], "{link}");
        assert_eq!((&moved[0], &moved[2]), (&before[0], &before[2]), "{link}");
        // Back again, and another one in the same stop.
        job.migrate(&["--rank", "1", "--to", "1"]);
        job.migrate(&["--rank", "2"]);
        job.go(2);
        job.at(3);
        let returned = job.processes();
        assert_eq!(nodes(&returned), [1, 1, 3], "{link}");
        assert_eq!(returned[0], before[0], "{link}");
        // Rank 0, with the input that it has not read; then all ranks are on one node or two.
        job.migrate(&["--to", "2,3"]);
        job.go(3);
        job.at(4);
        let last = job.processes();
        assert_eq!(nodes(&last), [2, 2, 3], "{link}");
        assert_eq!(last[2], returned[2], "{link}");
        job.go(4);
        assert_eq!(job.end(), expected, "{link}");
    }
}

#[test]
fn a_refused_migration_leaves_the_job_where_it_is() {
    let Some(cluster) = Cluster::new() else {
        return;
    };
    let expected = cluster.expected();
    let job = cluster.start("refused", "auto", "syncs", &[]);
    job.at(1);
    for (arguments, reason) in [
        (&["--to", "7"][..], "`7` is not a host of this job"),
        (&["--rank", "3", "--to", "2"], "rank 3 does not exist"),
        (&["--rank", "1", "--to", "1"], "rank 1 is on node 1"),
        (&["--to", "1,2"], "all ranks are on node 1"),
        (&["--to", "3"], "too few free slots for the 3 ranks"),
    ] {
        job.refused(arguments, reason);
    }
    let mut unknown = cluster.testbed.command(1, built::program("dipole"));
    unknown.args([
        "migrate",
        "00000000000000ff",
        "--to",
        "2",
        "--checkpoint-dir",
    ]);
    let output = unknown
        .arg(cluster.bench.path())
        .output()
        .expect("it starts");
    assert!(
        err(&output).contains("has no checkpoints of a job"),
        "{output:?}"
    );
    // The host does not start anything, or cannot restore the rank.
    for (file, reason) in [
        ("refuses", "no thanks"),
        ("hides", "rank 1 could not be restored (status 125)"),
    ] {
        fs::write(job.files.join(file), "").expect("own folder");
        job.refused(&["--rank", "1", "--to", "3"], reason);
        fs::remove_file(job.files.join(file)).expect("own file");
    }
    job.go(1);
    job.at(2);
    assert_eq!(nodes(&job.processes()), [1, 1, 2]);
    // The next migration works.
    job.migrate(&["--rank", "1", "--to", "3"]);
    job.go(2);
    (3..=STOPS).for_each(|stop| job.go(stop));
    assert_eq!(job.end(), expected);
}

#[test]
fn a_rank_that_cannot_be_saved_stays() {
    let Some(cluster) = Cluster::new() else {
        return;
    };
    let expected = cluster.expected();
    let job = cluster.start("socket", "auto", "socket", &[]);
    job.at(1);
    let before = job.processes();
    job.refused(
        &["--rank", "1", "--to", "3"],
        "rank 1 cannot be saved: this program cannot be saved: its descriptor",
    );
    // The others can move.
    job.migrate(&["--rank", "2", "--to", "3"]);
    job.go(1);
    job.at(2);
    let moved = job.processes();
    assert_eq!(nodes(&moved), [1, 1, 3]);
    assert_eq!(moved[..2], before[..2]);
    (2..=STOPS).for_each(|stop| job.go(stop));
    assert_eq!(job.end(), expected);
}

#[test]
fn the_loss_of_the_new_node_before_the_ranks_move_costs_nothing() {
    let Some(cluster) = Cluster::new() else {
        return;
    };
    let expected = cluster.expected();
    let job = cluster.start("lost-target", "auto", "computes", &[]);
    job.at(1);
    let before = job.processes();
    let migrating = job.migrate_command(&["--rank", "1", "--to", "3"]).spawn();
    let migrating = migrating.expect("it starts");
    let order = job.files.join("checkpoints").join(job.name());
    let order = order.join("migration-order");
    wait_until("an order", || order.exists());
    // Rank 0 ends no superstep, so nothing has moved yet.
    cluster
        .testbed
        .kill_node(3)
        .expect("its processes are ours");
    let output = migrating.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(err(&output).contains("node 3"), "{output:?}");
    assert!(!order.exists());
    job.go(1);
    job.at(2);
    assert_eq!(job.processes(), before);
    // A superstep that takes too long: the order is withdrawn.
    job.refused(
        &["--rank", "1", "--to", "3", "--timeout", "1"],
        "no superstep has ended",
    );
    assert!(!order.exists());
    (2..=STOPS).for_each(|stop| job.go(stop));
    assert_eq!(job.end(), expected);
}

#[test]
fn the_loss_of_a_rank_during_a_migration_restarts_the_job() {
    let Some(cluster) = Cluster::new() else {
        return;
    };
    let expected = cluster.expected();
    let options = ["--checkpoint-every", "50", "--on-loss", "restart"];
    let job = cluster.start("lost-rank", "auto", "computes", &options);
    job.at(1);
    let migrating = job.migrate_command(&["--rank", "1", "--to", "3"]).spawn();
    let migrating = migrating.expect("it starts");
    let folder = job.files.join("checkpoints").join(job.name());
    wait_until("an order", || folder.join("migration-order").exists());
    cluster
        .testbed
        .kill_node(2)
        .expect("its processes are ours");
    let output = migrating.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(err(&output).contains("is lost"), "{output:?}");
    (1..=STOPS).for_each(|stop| job.go(stop));
    let (mut printed, logged) = job.end();
    // What was printed since the checkpoint is printed again, and input is not given again.
    printed.retain(|line| !line.starts_with("stop"));
    let mut lines = expected.0;
    lines.retain(|line| !line.starts_with("stop"));
    assert_eq!((printed, logged), (lines, expected.1));
}
