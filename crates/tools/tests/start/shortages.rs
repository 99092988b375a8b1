//! The first, second, third, ... system call that allocates a descriptor, a thread or room in a file
//! fails, until a whole run passes: in `dipole run` and in `dipole agent`, neither of which maps shared
//! memory. Errors name the resource, nothing hangs or stays behind, and the agent serves its next
//! callers.

use std::path::Path;
use std::process::{Command, Stdio};

use dipole_testbed::c_programs::{Finished, Process as Program};
use dipole_testbed::{Counted, FailingCalls, Resource};
use rustix::process::{Pid, Signal, kill_process};

use super::process::{Node, PATIENCE, Process, said, wait_for};

/// A command of the node under the tool that makes a call fail.
fn failing(node: &Node, words: &[std::ffi::OsString], arguments: &[&str]) -> Command {
    let plain = node.dipole(arguments);
    let mut command = dipole_testbed::isolated_command(&words[0]);
    command
        .args(&words[1..])
        .arg(plain.get_program())
        .args(plain.get_args());
    for (name, value) in plain.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// Runs a job in which the nth call fails. Returns true if it had fewer calls.
fn job(node: &Node, tool: &FailingCalls, resource: Resource, nth: u64) -> bool {
    let program = Path::new(env!("CARGO_BIN_EXE_dipole"));
    let words = tool.words(resource, nth, Counted::Program(program));
    let mut command = failing(
        node,
        &words,
        &["run", "-n", "2", "--oversubscribe", "echo", "done"],
    );
    let Finished {
        out,
        err,
        status,
        was_killed,
    } = Program::start(&mut command).wait(PATIENCE);
    let what = format!("{resource:?} {nth}: {status}\n{out}{err}");
    assert!(!was_killed, "hung: {what}");
    let count = tool.count();
    let is_right = status.success() && out == "done\ndone\n";
    let is_clear = !status.success() && resource.is_named(&err) && !err.contains("panicked");
    assert!(is_right || nth <= count && is_clear, "{what}");
    nth > count
}

fn jobs(resource: Resource) {
    let (node, tool) = (Node::new(), FailingCalls::new());
    let last = (1..).find(|nth| job(&node, &tool, resource, *nth));
    println!("{resource:?}: {last:?} runs");
}

fn status(node: &Node) -> String {
    let output = node.dipole(&["agent", "status"]).output();
    said(&output.expect("it runs"))
}

/// Runs an agent in which the nth call fails. Returns true if it had fewer calls.
fn agent(node: &Node, tool: &FailingCalls, resource: Resource, nth: u64) -> bool {
    let program = Path::new(env!("CARGO_BIN_EXE_dipole"));
    // The agent and its sessions. Whatever a session starts is part of each job.
    let words = tool.words(resource, nth, Counted::Command(program, "agent"));
    let mut agent = Process::begin(&mut failing(node, &words, &["agent"]));
    let ended = wait_for("the agent starts or ends", || {
        let ended = agent.child.try_wait().expect("our child");
        let is_up = agent.said().contains("agent of node 1");
        (ended.is_some() || is_up).then_some(ended)
    });
    let what = |agent: &Process| format!("{resource:?} {nth}: {}", agent.said());
    if let Some(status) = ended {
        assert!(!status.success(), "{}", what(&agent));
        wait_for("it says why", || {
            resource.is_named(&agent.said()).then_some(())
        });
    } else {
        // The failing call may be in the service of any one of them.
        let called = || node.call("key");
        let answers = [called(), called(), status(node)];
        let served = |it: &&String| it.contains("dipole-shim") || it.contains("agent of");
        let failed: Vec<_> = answers.iter().filter(|it| !served(it)).collect();
        assert!(failed.len() <= 1, "{answers:?} {}", what(&agent));
        for answer in failed {
            let is_named = resource.is_named(answer) || resource.is_named(&agent.said());
            assert!(is_named, "{answer} {}", what(&agent));
        }
        kill_process(Pid::from_child(&agent.child), Signal::TERM).expect("our child");
        wait_for("the agent ends", || {
            agent.child.try_wait().expect("our child")
        });
    }
    assert!(!agent.said().contains("panicked"), "{}", what(&agent));
    nth > tool.count()
}

fn agents(resource: Resource) {
    let (node, tool) = (Node::new(), FailingCalls::new());
    let last = (1..).find(|nth| agent(&node, &tool, resource, *nth));
    println!("{resource:?}: {last:?} agents");
}

#[test]
fn a_job_survives_or_reports_a_descriptor_that_is_missing() {
    jobs(Resource::Descriptors);
}

#[test]
fn a_job_survives_or_reports_a_thread_that_is_missing() {
    jobs(Resource::Threads);
}

#[test]
fn a_job_survives_or_reports_a_full_disk() {
    jobs(Resource::Files);
}

#[test]
fn an_agent_serves_on_after_a_descriptor_was_missing() {
    agents(Resource::Descriptors);
}

#[test]
fn an_agent_serves_on_after_a_thread_was_missing() {
    agents(Resource::Threads);
}

#[test]
fn an_agent_serves_on_after_a_full_disk() {
    agents(Resource::Files);
}
