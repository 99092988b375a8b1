//! Events that a launcher reports through PMIx, here by the stand-in: a rank that has failed, and
//! requests to save the job.

use std::path::{Path, PathBuf};
use std::process::{Child, Output};

use dipole_testbed::{built, c_programs};
use rustix::process::{Pid, Signal, kill_process};

use super::clean;
use super::nodes::Nodes;
use super::pmix::wait_until;
use super::stand_in::StandIn;

/// The statuses of the PMIx Standard.
const CHECKPOINT: &str = "event-106";
const PREEMPT: &str = "event-108";
const ABORTED_BY_SIGNAL: &str = "event-402";

/// `supersteps.c`, next to its library.
pub(crate) fn supersteps(folder: &Path) -> PathBuf {
    for name in ["libbsp.so", "libbsp.so.0"] {
        let library = built::libraries().join("libbsp.so");
        std::os::unix::fs::symlink(library, folder.join(name)).expect("a link");
    }
    let program = folder.join("supersteps");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/launchers/supersteps.c");
    let libraries = c_programs::link_options(folder, "bsp");
    let libraries = libraries.each_ref().map(String::as_str);
    c_programs::compile("cc", &source, &program, &["-std=gnu11"], &libraries);
    program
}

/// Makes the launcher report an event about a rank.
fn report(job: &Path, event: &str, rank: u32) {
    std::fs::write(job.join(event), format!("{rank}\n")).expect("a file");
}

pub(crate) fn wait_until_running(job: &Path, ranks: usize) {
    let is_running = |rank| job.join(format!("running-{rank}")).exists();
    wait_until("all ranks run", || (0..ranks).all(is_running));
}

fn signal(rank: &Child, signal: Signal) {
    kill_process(Pid::from_child(rank), signal).expect("it has not been waited for");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_rank_that_the_launcher_reports_as_failed_is_given_up_at_once() {
    let Some(nodes) = Nodes::new(2, 1) else {
        return;
    };
    let stand_in = StandIn::new();
    let job = stand_in.job("failed");
    let program = supersteps(&job);
    let start = |rank: usize| {
        let node = u32::try_from(rank + 1).expect("a node");
        let mut command = nodes.command(node, &program);
        command.arg(&job);
        stand_in.set_variables(&mut command, &job, (rank, 2));
        command.env_remove("DIPOLE_RUNTIME_DIR");
        // Silence alone would take longer than this test waits.
        command.env("DIPOLE_PEER_TIMEOUT_MS", "600000");
        command.spawn().expect("a rank")
    };
    let (mut survivor, mut failed) = (start(0), start(1));
    wait_until_running(&job, 2);
    signal(&failed, Signal::STOP);
    report(&job, ABORTED_BY_SIGNAL, 1);
    wait_until("the survivor ends", || {
        survivor.try_wait().expect("its status").is_some()
    });
    signal(&failed, Signal::KILL);
    failed.wait().expect("its end");
    let output = survivor.wait_with_output().expect("its output");
    assert!(!output.status.success());
    let said = text(&output.stderr);
    assert!(said.contains("killed or crashed"), "{said}");
}

/// Ends a job with a file, and returns the output of each rank.
fn ended(job: &Path, ranks: Vec<Child>) -> Vec<Output> {
    std::fs::write(job.join("end"), "").expect("a file");
    let ended = ranks.into_iter().map(Child::wait_with_output);
    ended.map(|output| output.expect("its end")).collect()
}

#[test]
fn a_job_saves_itself_when_the_launcher_requests_it_and_ends_when_it_is_preempted() {
    let stand_in = StandIn::new();
    let job = stand_in.job("saved");
    let program = supersteps(&job);
    let folder = job.join("checkpoints");
    let start = |rank: usize| {
        // Closes the descriptors that this test has inherited, as launchers do.
        let mut command = clean(built::program("dipole"));
        let (own, rank_text) = (std::process::id().to_string(), rank.to_string());
        command.args(["rank-exec", "--parent", &own, "--rank", &rank_text]);
        command.args([&program, &job]);
        stand_in.set_variables(&mut command, &job, (rank, 3));
        command.env("DIPOLE_CHECKPOINT_DIR", folder.join("0000000000000011"));
        command.spawn().expect("a rank")
    };
    let ranks: Vec<Child> = (0..3).map(start).collect();
    wait_until_running(&job, 3);
    let is_saved = |set: u32| {
        let set = folder.join(format!("0000000000000011/set-{set}"));
        let names = std::fs::read_dir(set).into_iter().flatten().flatten();
        let images = names.filter(|name| name.path().extension() == Some("image".as_ref()));
        images.count() == 3
    };
    report(&job, CHECKPOINT, 0);
    wait_until("the job is saved", || is_saved(1));
    report(&job, PREEMPT, 0);
    let outputs = ranks.into_iter().map(Child::wait_with_output);
    let outputs: Vec<Output> = outputs.map(|output| output.expect("its end")).collect();
    for output in &outputs {
        assert_eq!(output.status.code(), Some(75), "{output:?}");
    }
    assert!(is_saved(2));
    let said = text(&outputs[0].stderr);
    assert!(said.contains("which ends with checkpoint 2"), "{said}");
    assert!((0..3).all(|rank| job.join(format!("finalized-{rank}")).exists()));

    let mut restart = clean(built::program("dipole"));
    restart.args(["run", "--restart", "11", "--checkpoint-dir"]);
    std::fs::write(job.join("end"), "").expect("a file");
    let output = restart.arg(&folder).output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
    let said = text(&output.stdout);
    for rank in 0..3 {
        let line = format!("rank {rank}: right to the end");
        assert!(said.contains(&line), "{line}: {said}");
    }
}

#[test]
fn launchers_without_events_are_used_as_before() {
    let stand_in = StandIn::new();
    let job = stand_in.job("none");
    let program = supersteps(&job);
    let start = |rank| {
        let mut command = clean(&program);
        command.arg(&job).env("STAND_IN_FAULT", "no events");
        stand_in.set_variables(&mut command, &job, (rank, 2));
        command.spawn().expect("a rank")
    };
    let ranks: Vec<Child> = (0..2).map(start).collect();
    wait_until_running(&job, 2);
    for output in ended(&job, ranks) {
        assert!(output.status.success(), "{output:?}");
    }
}
