//! Jobs that lose ranks continue from their last checkpoint, with the result of an undisturbed run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::harness::{Bench, source};
use dipole_testbed::{Testbed, built, isolated_command};

/// A program, and a folder for its files and checkpoints.
pub(crate) struct Jobs {
    bench: Bench,
    pub(crate) program: PathBuf,
}

impl Jobs {
    pub(crate) fn new() -> Jobs {
        let bench = Bench::new();
        let program = bench.compile(&source("restart.c"), &["-std=gnu11", "-pthread"]);
        fs::create_dir(bench.path().join("run")).expect("a new folder");
        let private = fs::Permissions::from_mode(0o700);
        fs::set_permissions(bench.path().join("run"), private).expect("own folder");
        Jobs { bench, program }
    }

    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        let folder = self.bench.path().join(name);
        fs::create_dir_all(&folder).expect("a new folder");
        folder
    }

    fn command(&self, link: &str) -> Command {
        let mut command = isolated_command(built::program("dipole"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("DIPOLE_") {
                command.env_remove(name);
            }
        }
        command.env("DIPOLE_RUNTIME_DIR", self.bench.path().join("run"));
        if link != "shm" {
            command.env("DIPOLE_LINK", link);
        }
        command.stdin(Stdio::null());
        command
    }

    /// Runs three ranks, with a fault in the middle.
    fn run(&self, link: &str, options: &[&str], fault: &str, files: &Path) -> Output {
        let mut command = self.command(link);
        command
            .args(["run", "-n", "3", "--timeout", "100"])
            .args(options);
        if !options.is_empty() {
            command
                .arg("--checkpoint-dir")
                .arg(self.folder("checkpoints"));
        }
        command.arg(&self.program).arg(files).arg(fault);
        command.output().expect("it starts")
    }

    /// The output and the files of an undisturbed run.
    pub(crate) fn expected(&self) -> (Vec<String>, Vec<String>) {
        let files = self.folder("undisturbed");
        let output = self.run("shm", &[], "none", &files);
        assert!(output.status.success(), "{output:?}");
        (lines(&output), logs(&files))
    }

    fn restart(&self, job: &str) -> Output {
        self.restart_from(job, &self.folder("checkpoints"), &[])
    }

    fn restart_from(&self, job: &str, folder: &Path, options: &[&str]) -> Output {
        let mut command = self.command("shm");
        command
            .args(["run", "--timeout", "100", "--restart", job])
            .args(options);
        command.arg("--checkpoint-dir").arg(folder);
        command.output().expect("it starts")
    }

    /// The complete checkpoints of a job, in order, and whether each holds changes only.
    fn complete(&self, job: &str) -> Vec<(u64, bool)> {
        let listed = self.checkpoints(&[job]);
        assert!(listed.status.success(), "{listed:?}");
        let complete = lines(&listed).into_iter().filter_map(|line| {
            let (name, state) = line.split_once("  ")?;
            let (_, number) = name.split_once('/')?;
            let number = number.parse().expect("a number");
            let is_complete = state.contains("MiB  complete");
            is_complete.then_some((number, state.contains("changes since")))
        });
        let mut complete: Vec<_> = complete.collect();
        complete.sort_unstable();
        complete
    }

    fn jobs(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder("checkpoints")).expect("a folder");
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        names
            .map(|name| name.to_string_lossy().into_owned())
            .collect()
    }

    fn checkpoints(&self, arguments: &[&str]) -> Output {
        let mut command = self.command("shm");
        command
            .arg("checkpoints")
            .args(arguments)
            .arg("--checkpoint-dir");
        command
            .arg(self.folder("checkpoints"))
            .output()
            .expect("it starts")
    }
}

/// The lines of the ranks, in order.
pub(crate) fn lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

pub(crate) fn logs(files: &Path) -> Vec<String> {
    let read = |rank: u32| fs::read_to_string(files.join(format!("log-{rank}")));
    (0..3).map(|rank| read(rank).expect("a log")).collect()
}

pub(crate) fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_job_continues_after_a_killed_rank_over_each_link() {
    let jobs = Jobs::new();
    let (printed, logged) = jobs.expected();
    for link in ["shm", "udp", "tcp"] {
        let files = jobs.folder(&format!("killed-{link}"));
        let options = ["--checkpoint-every", "100", "--on-loss", "restart"];
        let output = jobs.run(link, &options, "kill", &files);
        assert!(output.status.success(), "{link}: {}", err(&output));
        let text = err(&output);
        assert!(
            text.contains("rank 1 was killed by signal 9"),
            "{link}: {text}"
        );
        assert!(
            text.contains("restarting the job from checkpoint"),
            "{link}: {text}"
        );
        assert_eq!(lines(&output), printed, "{link}: {text}");
        assert_eq!(logs(&files), logged, "{link}");
        assert!(
            jobs.jobs().is_empty(),
            "a job that has succeeded needs no checkpoints"
        );
    }
}

#[test]
fn a_job_is_continued_by_hand_and_over_another_link() {
    let jobs = Jobs::new();
    let (printed, logged) = jobs.expected();
    let files = jobs.folder("by-hand");
    let output = jobs.run("udp", &["--checkpoint-every", "100"], "kill", &files);
    assert_eq!(output.status.code(), Some(137), "{}", err(&output));
    let [job] = &jobs.jobs()[..] else {
        panic!("one job: {:?}", jobs.jobs());
    };
    let folder = jobs.folder("checkpoints");
    let advice = format!("run --checkpoint-dir {} --restart {job}", folder.display());
    assert!(err(&output).contains(&advice), "{}", err(&output));
    let listed = jobs.checkpoints(&["--verify"]);
    assert!(listed.status.success(), "{listed:?}");
    assert!(
        lines(&listed).iter().any(|line| line.ends_with("complete")),
        "{listed:?}"
    );
    let output = jobs.restart(job);
    assert!(output.status.success(), "{}", err(&output));
    assert_eq!(lines(&output), printed);
    assert_eq!(logs(&files), logged);
}

#[test]
fn a_damaged_image_is_named_and_never_run() {
    let jobs = Jobs::new();
    let files = jobs.folder("damaged");
    let output = jobs.run("shm", &["--checkpoint-every", "100"], "kill", &files);
    assert_eq!(output.status.code(), Some(137), "{}", err(&output));
    let job = jobs.jobs().pop().expect("a job");
    jobs.checkpoints(&["--prune", "1"]);
    let folder = jobs.folder("checkpoints").join(&job);
    let complete = fs::read_dir(folder).expect("a folder").filter_map(|entry| {
        let image = entry.expect("an entry").path().join("rank-2-of-3.image");
        image.exists().then_some(image)
    });
    for image in complete {
        let mut bytes = fs::read(&image).expect("an image");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&image, bytes).expect("own file");
    }
    let listed = jobs.checkpoints(&[&job, "--verify"]);
    assert_eq!(listed.status.code(), Some(1), "{listed:?}");
    assert!(
        lines(&listed).concat().contains("not an intact image"),
        "{listed:?}"
    );
    let output = jobs.restart(&job);
    assert_eq!(output.status.code(), Some(125), "{}", err(&output));
    assert!(
        err(&output).contains("not an intact image"),
        "{}",
        err(&output)
    );
}

/// Copies the checkpoints of a job.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a new folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let (path, to) = (entry.expect("an entry").path(), to);
        let to = to.join(path.file_name().expect("a name"));
        match path.is_dir() {
            true => copy(&path, &to),
            false => {
                fs::copy(&path, &to).expect("a copy");
            }
        }
    }
}

#[test]
fn a_job_continues_from_each_checkpoint_also_of_changes_alone() {
    let jobs = Jobs::new();
    let (printed, logged) = jobs.expected();
    let files = jobs.folder("each");
    let output = jobs.run("shm", &["--checkpoint-every", "40"], "steady", &files);
    assert_eq!(output.status.code(), Some(137), "{}", err(&output));
    let job = jobs.jobs().pop().expect("a job");
    let complete = jobs.complete(&job);
    assert!(complete.len() >= 2, "{complete:?}");
    let mut doctor = jobs.command("shm");
    let doctor = doctor.args(["doctor", "--verbose"]).output();
    let holds_changes = String::from_utf8_lossy(&doctor.expect("it starts").stdout)
        .contains("images hold only what has changed");
    let any = complete.iter().any(|(_, holds)| *holds);
    assert_eq!(any, holds_changes, "{complete:?}");
    for (number, _) in complete {
        let folder = jobs.folder(&format!("from-{number}"));
        copy(&jobs.folder("checkpoints").join(&job), &folder.join(&job));
        let output = jobs.restart_from(&format!("{job}/{number}"), &folder, &[]);
        assert!(output.status.success(), "{number}: {}", err(&output));
        assert_eq!(lines(&output), printed, "{number}");
        assert_eq!(logs(&files), logged, "{number}");
    }
}

#[test]
fn images_of_an_abandoned_attempt_never_complete_a_new_checkpoint() {
    let jobs = Jobs::new();
    let (printed, logged) = jobs.expected();
    let files = jobs.folder("abandoned");
    let every = ["--checkpoint-every", "40"];
    let output = jobs.run("shm", &every, "steady", &files);
    assert_eq!(output.status.code(), Some(137), "{}", err(&output));
    let job = jobs.jobs().pop().expect("a job");
    let oldest = jobs.complete(&job)[0].0;
    let checkpoints = jobs.folder("checkpoints");
    let abandoned = checkpoints.join(&job).join("set-50");
    fs::create_dir(&abandoned).expect("a new folder");
    fs::write(abandoned.join("rank-0-of-3.image"), "old").expect("own folder");
    // The job fails at the same place again.
    fs::remove_file(files.join("marker")).expect("own file");
    let output = jobs.restart_from(&format!("{job}/{oldest}"), &checkpoints, &every);
    assert_eq!(output.status.code(), Some(137), "{}", err(&output));
    let complete = jobs.complete(&job);
    let newest = complete.last().expect("a checkpoint").0;
    assert!(newest > 50, "{complete:?}");
    let output = jobs.restart(&job);
    assert!(output.status.success(), "{}", err(&output));
    assert_eq!(lines(&output), printed);
    assert_eq!(logs(&files), logged);
}

#[test]
fn a_program_that_cannot_be_saved_gets_the_reason_and_goes_on() {
    let jobs = Jobs::new();
    let (printed, _) = jobs.expected();
    for (fault, reason) in [
        ("thread", "it has a thread of its own"),
        ("socket", "which cannot be saved; close it"),
    ] {
        let files = jobs.folder(fault);
        let output = jobs.run("shm", &["--checkpoint-every", "200"], fault, &files);
        assert!(output.status.success(), "{}", err(&output));
        assert!(err(&output).contains(reason), "{}", err(&output));
        assert_eq!(lines(&output), printed);
    }
}

#[test]
fn wrong_jobs_and_intervals_are_refused() {
    let jobs = Jobs::new();
    for (arguments, status, reason) in [
        (
            &["run", "--restart", "xyz"][..],
            1,
            "not a job with checkpoints",
        ),
        (
            &["run", "--restart", "00000000000000ff"],
            1,
            "no complete checkpoint",
        ),
        (
            &["run", "-n", "1", "--checkpoint-every", "0s", "true"],
            2,
            "60s",
        ),
        (
            &["checkpoint", "../../etc"],
            1,
            "has no checkpoints of a job",
        ),
        (
            &["checkpoints", "00000000000000ff"],
            1,
            "has no checkpoints of a job",
        ),
    ] {
        let mut command = jobs.command("shm");
        command
            .args(arguments)
            .env("XDG_STATE_HOME", jobs.bench.path());
        let output = command.output().expect("it starts");
        assert_eq!(
            output.status.code(),
            Some(status),
            "{arguments:?}: {output:?}"
        );
        assert!(err(&output).contains(reason), "{arguments:?}: {output:?}");
    }
}

#[test]
fn a_job_continues_on_another_node_when_one_is_lost() {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    let jobs = Jobs::new();
    let (printed, logged) = jobs.expected();
    let testbed = Testbed::builder()
        .nodes(3)
        .slots(2)
        .build()
        .expect("a testbed");
    let files = jobs.folder("lost");
    let mut command = testbed.command(1, built::program("dipole"));
    command.args([
        "run",
        "-n",
        "3",
        "--timeout",
        "100",
        "--on-loss",
        "restart",
        "--hosts",
    ]);
    command
        .arg(testbed.hosts_file())
        .arg("--rsh")
        .arg(testbed.remote_shell());
    command.args(["--checkpoint-every", "100", "--checkpoint-dir"]);
    command.arg(jobs.folder("checkpoints"));
    command.arg(&jobs.program).arg(&files).arg("lose");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().expect("it starts");
    let begun = std::time::Instant::now();
    while !files.join("marker").exists() {
        assert!(begun.elapsed().as_secs() < 300, "no checkpoint for so long");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    testbed.kill_node(2).expect("its processes are ours");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", err(&output));
    assert_eq!(lines(&output), printed, "{}", err(&output));
    assert_eq!(logs(&files), logged);
}
