//! Jobs without a shared folder continue from the images in the memory of the hosts that are left.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::checkpoints::{Jobs, err, lines, logs};
use dipole_testbed::{Testbed, built};

const RANKS: usize = 3;
/// No test depends on how fast images are copied.
const PATIENCE: Duration = Duration::from_secs(300);

/// A job of three ranks on the first three of several hosts, with the others as spares.
struct Story {
    jobs: Jobs,
    testbed: Testbed,
    files: PathBuf,
    copies: usize,
}

impl Story {
    fn new(nodes: u32, copies: usize) -> Story {
        let jobs = Jobs::new();
        let testbed = Testbed::builder().nodes(nodes).slots(1).build();
        let files = jobs.folder("files");
        Story {
            jobs,
            testbed: testbed.expect("a testbed"),
            files,
            copies,
        }
    }

    fn start(&self) -> Child {
        let mut command = self.testbed.command(1, built::program("dipole"));
        command.args(["run", "-n", "3", "--timeout", "200", "--hosts"]);
        command.arg(self.testbed.hosts_file());
        command.arg("--rsh").arg(self.testbed.remote_shell());
        command.args(["--on-loss", "restart", "--checkpoint-every", "100"]);
        command.args(["--checkpoint-copies", &self.copies.to_string()]);
        command
            .arg(&self.jobs.program)
            .arg(&self.files)
            .arg("linger");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().expect("it starts")
    }

    /// Waits until the last rank stands still and the images of `sets` sets are on as many hosts as
    /// wanted. Returns the folders of the hosts without their node, and the numbers of the sets.
    fn wait_for_copies(&self, sets: usize) -> (String, Vec<u64>) {
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < PATIENCE, "no copies for so long");
            sleep(Duration::from_millis(10));
            let place = fs::read_to_string(self.files.join("marker")).unwrap_or_default();
            let Some((folders, _)) = place.rsplit_once('-') else {
                continue;
            };
            let nodes = self.testbed.nodes();
            let copied = copied(folders, nodes, self.copies + 1);
            // As the last rank stands still, no further image follows.
            if copied.len() >= sets && newest(folders, nodes) == copied.last().copied() {
                return (folders.to_owned(), copied);
            }
        }
    }

    /// Ends all processes of a node and removes its memory.
    fn lose(&self, folders: &str, node: u32) {
        let killed = self.testbed.kill_node(node);
        killed.expect("its processes are ours");
        fs::remove_dir_all(format!("{folders}-{node}")).expect("its images");
    }

    /// Checks that the job has ended as if nothing had happened, and left nothing.
    fn check(&self, child: Child, folders: &str) -> String {
        let output = child.wait_with_output().expect("it ends");
        let text = err(&output);
        assert!(output.status.success(), "{text}");
        let (printed, logged) = self.jobs.expected();
        assert_eq!(lines(&output), printed, "{text}");
        assert_eq!(logs(&self.files), logged, "{text}");
        for node in 1..=self.testbed.nodes() {
            let folder = format!("{folders}-{node}");
            assert!(!Path::new(&folder).exists(), "{folder}: {text}");
        }
        text
    }
}

/// The sets of which each image is on `hosts` hosts, by number.
fn copied(folders: &str, nodes: u32, hosts: usize) -> Vec<u64> {
    let mut found: BTreeMap<u64, BTreeMap<String, usize>> = BTreeMap::new();
    for node in 1..=nodes {
        for (set, image) in images(&PathBuf::from(format!("{folders}-{node}"))) {
            let name = image.file_name().expect("a name").to_string_lossy();
            if name.ends_with(".image") {
                let rank = name.split("-of-").next().unwrap_or_default().to_owned();
                *found.entry(set).or_default().entry(rank).or_default() += 1;
            }
        }
    }
    let sets = found.into_iter().filter(|(_, ranks)| {
        ranks.len() == RANKS && ranks.values().all(|holders| *holders >= hosts)
    });
    sets.map(|(set, _)| set).collect()
}

/// The number of the newest set with an image, complete or not.
fn newest(folders: &str, nodes: u32) -> Option<u64> {
    let images = (1..=nodes).flat_map(|node| images(&PathBuf::from(format!("{folders}-{node}"))));
    images.map(|(set, _)| set).max()
}

/// The images in the folder of a host, with their sets.
fn images(folder: &Path) -> Vec<(u64, PathBuf)> {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    let sets = entries(folder).filter_map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        Some((name.strip_prefix("set-")?.parse().ok()?, entry.path()))
    });
    let images = sets.flat_map(|(set, folder)| {
        let images: Vec<_> = entries(&folder).map(|entry| (set, entry.path())).collect();
        images
    });
    images.collect()
}

fn is_possible() -> bool {
    match Testbed::why_not() {
        Some(why) => {
            eprintln!("SKIPPED: {why}");
            false
        }
        None => true,
    }
}

#[test]
fn a_job_without_a_shared_folder_continues_from_the_copy_of_a_neighbour() {
    if !is_possible() {
        return;
    }
    let story = Story::new(4, 1);
    let child = story.start();
    let (folders, _) = story.wait_for_copies(1);
    story.lose(&folders, 2);
    let text = story.check(child, &folders);
    assert!(
        text.contains("restarting the job from checkpoint"),
        "{text}"
    );
}

#[test]
fn with_two_copies_a_job_survives_the_loss_of_two_hosts_at_once() {
    if !is_possible() {
        return;
    }
    let story = Story::new(5, 2);
    let child = story.start();
    let (folders, _) = story.wait_for_copies(1);
    story.lose(&folders, 2);
    story.lose(&folders, 3);
    let text = story.check(child, &folders);
    assert!(
        text.contains("restarting the job from checkpoint"),
        "{text}"
    );
}

#[test]
fn if_a_copy_is_damaged_the_job_continues_from_an_older_checkpoint() {
    if !is_possible() {
        return;
    }
    let story = Story::new(4, 1);
    let child = story.start();
    let (folders, copied) = story.wait_for_copies(2);
    let older = copied[copied.len() - 2];
    // Node 3 has the only copies of the images of rank 1 once node 2 is lost.
    let mut damaged = 0;
    for (set, image) in images(&PathBuf::from(format!("{folders}-3"))) {
        let name = image.file_name().expect("a name").to_string_lossy();
        if set > older && name.starts_with("rank-1-") {
            let mut bytes = fs::read(&image).expect("an image");
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(&image, bytes).expect("own file");
            damaged += 1;
        }
    }
    assert!(damaged > 0, "{copied:?}");
    story.lose(&folders, 2);
    let text = story.check(child, &folders);
    assert!(text.contains("not an intact image"), "{text}");
    let restarted = format!("restarting the job from checkpoint {older}");
    assert!(text.contains(&restarted), "{text}");
}

#[test]
fn images_are_removed_when_the_launcher_is_killed() {
    if !is_possible() {
        return;
    }
    let story = Story::new(3, 1);
    let mut child = story.start();
    let (folders, _) = story.wait_for_copies(1);
    child.kill().expect("our own child");
    child.wait().expect("our own child");
    let begun = Instant::now();
    for node in 1..=3 {
        let folder = format!("{folders}-{node}");
        while Path::new(&folder).exists() {
            assert!(begun.elapsed() < PATIENCE, "{folder} is left");
            sleep(Duration::from_millis(10));
        }
    }
}

fn refused(testbed: &Testbed, words: &[&str]) -> Output {
    let mut command = testbed.command(1, "sh");
    let small = "mount -t tmpfs -o size=64m none /dev/shm && exec \"$0\" \"$@\"";
    command.arg("-c").arg(small).arg(built::program("dipole"));
    command.args(["run", "-n", "1", "--checkpoint-copies", "1"]);
    command.env_remove("DIPOLE_HOSTS");
    command.args(words).stdin(Stdio::null());
    command.output().expect("it starts")
}

#[test]
fn too_little_memory_and_options_without_effect_are_refused_with_the_reason() {
    if !is_possible() {
        return;
    }
    let testbed = Testbed::builder().nodes(2).build().expect("a testbed");
    for (words, status, reason) in [
        (&["--on-loss", "restart", "true"][..], 1, "MiB free"),
        (&["true"], 2, "add --on-loss restart"),
        (
            &["--checkpoint-dir", "/tmp", "--on-loss", "restart", "true"],
            2,
            "cannot be used with",
        ),
    ] {
        let output = refused(&testbed, words);
        let text = err(&output);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {text}");
        assert!(text.contains(reason), "{words:?}: {text}");
    }
}
