//! Rules of a node's owner for work of other users.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use crate::process::{Node, Process, said, wait_for};

/// An agent with these rules, on a machine where `who` reports these users.
fn agent(node: &Node, rules: &str, users: &str) -> Process {
    let file = node.write("rules.toml", rules);
    let text: String = users
        .split_whitespace()
        .map(|user| format!("echo {user} tty1\n"))
        .collect();
    std::fs::create_dir_all(node.path("bin")).expect("our own directory");
    let who = node.write("bin/who", &format!("#!/bin/sh\n{text}"));
    std::fs::set_permissions(&who, std::fs::Permissions::from_mode(0o755)).expect("our own file");
    let mut command = node.dipole(&["agent", "--rules"]);
    command
        .arg(file)
        .env("DIPOLE_LOG", "info")
        .env("USER", "owner");
    command.env("PATH", path(node));
    Process::start(&mut command, "agent of node 1")
}

fn path(node: &Node) -> String {
    let usual = std::env::var("PATH").expect("a path");
    format!("{}:{usual}", node.path("bin").display())
}

fn refusal(node: &Node) -> String {
    let mut command = node.dipole(&["--json", "agent", "status"]);
    command.env("PATH", path(node)).env("USER", "owner");
    let output = command.output().expect("it runs");
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    status["refuses"].as_str().unwrap_or_default().to_owned()
}

fn assert_refused(node: &Node, agent: &Process, why: &str) {
    let said = node.call("key");
    assert!(
        said.contains("refuses work") && said.contains(why),
        "{said}"
    );
    agent.says("work refused");
    assert!(agent.said().contains(why), "{}", agent.said());
    assert!(!agent.said().contains("work started"));
    assert!(refusal(node).contains(why), "{}", refusal(node));
}

fn assert_welcome(node: &Node) {
    let said = node.call("key");
    assert!(said.contains("dipole-shim"), "{said}");
    assert_eq!(refusal(node), "");
}

#[test]
fn a_loaded_machine_refuses() {
    let node = Node::new();
    let agent = agent(&node, "max-load = 0.0\n", "");
    let begun_load = || {
        let text = std::fs::read_to_string("/proc/loadavg").expect("Linux");
        !text.starts_with("0.00 ")
    };
    // A load of zero is not above it.
    let mut worker = Command::new("sh");
    worker
        .args(["-c", "while :; do :; done"])
        .stdin(Stdio::null());
    let mut worker = worker.spawn().expect("sh runs");
    wait_for("some load", || begun_load().then_some(()));
    assert_refused(&node, &agent, "per core is above the owner's 0");
    worker.kill().expect("our child");
    worker.wait().expect("our child");
}

#[test]
fn other_hours_refuse_and_the_whole_week_does_not() {
    let node = Node::new();
    // All days except today and its neighbours, on whatever day the test runs.
    let output = Command::new("date").arg("+%u").output().expect("date runs");
    let today: usize = said(&output).trim().parse().expect("a day");
    let day = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"][(today + 2) % 7];
    let never = agent(&node, &format!("hours = ['{day}']\n"), "");
    assert_refused(&node, &never, &format!("outside the owner's hours ({day})"));
    // A change takes effect without a restart.
    node.write(
        "rules.toml",
        "hours = ['Mon-Fri 19:00-07:00', 'Sat-Sun', 'Mon-Sun']\n",
    );
    assert_welcome(&node);
    // An invalid rule refuses everything.
    node.write("rules.toml", "max-ranks = 4\nhours = 'always'\n");
    let said = node.call("key");
    assert!(said.contains("rules.toml, line 2"), "{said}");
}

#[test]
fn a_logged_in_user_refuses() {
    let node = Node::new();
    let anybody = agent(&node, "users-logged-in = 'refuse'\n", "owner");
    assert_refused(&node, &anybody, "owner is logged in");
    drop(anybody);
    let others = agent(&node, "users-logged-in = 'refuse-others'\n", "owner owner");
    assert_welcome(&node);
    drop(others);
    let others = agent(&node, "users-logged-in = 'refuse-others'\n", "owner guest");
    assert_refused(&node, &others, "guest is logged in");
    drop(others);
    let nobody = agent(&node, "users-logged-in = 'refuse'\n", "");
    assert_welcome(&node);
    drop(nobody);
}

#[test]
fn the_owners_limit_of_ranks_applies_to_all_callers_together() {
    let node = Node::new();
    let first_agent = agent(&node, "max-ranks = 4\n", "");
    let hold = |node: &Node| {
        let mut command = node.caller("key");
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        command.spawn().expect("it starts")
    };
    let jobs = || node.status()["jobs"].as_array().expect("a list").clone();
    let mut first = hold(&node);
    wait_for("a job", || (jobs().len() == 1).then_some(()));
    // One slot of four is left: less than requested, but better than none.
    let mut second = hold(&node);
    wait_for("two jobs", || (jobs().len() == 2).then_some(()));
    let ranks: Vec<_> = jobs().iter().map(|job| job["ranks"].as_u64()).collect();
    assert_eq!(ranks.iter().flatten().sum::<u64>(), 4);
    let said = node.call("key");
    assert!(
        said.contains("4 ranks run there, and the owner allows at most 4"),
        "{said}"
    );
    // The next agent counts them as well.
    first_agent.kill();
    let _next = agent(&node, "max-ranks = 4\n", "");
    let said = node.call("key");
    assert!(said.contains("4 ranks run there"), "{said}");
    drop(first.stdin.take());
    first.wait().expect("our child");
    wait_for("a place", || refusal(&node).is_empty().then_some(()));
    drop(second.stdin.take());
    second.wait().expect("our child");
    wait_for("nothing left", || jobs().is_empty().then_some(()));
}

#[test]
fn an_agent_does_not_start_with_invalid_rules() {
    let node = Node::new();
    let file = node.write("rules.toml", "# mine\nmax-laod = 1\n");
    let attempts = [
        node.dipole(&["agent", "--rules"]).arg(&file).output(),
        node.dipole(&["agent"])
            .env("DIPOLE_AGENT_RULES", &file)
            .output(),
        {
            std::fs::create_dir_all(node.path("config/dipole")).expect("our own directory");
            std::fs::copy(&file, node.path("config/dipole/agent.toml")).expect("our own file");
            node.dipole(&["agent"]).output()
        },
    ];
    for output in attempts {
        let output = output.expect("it runs");
        assert!(!output.status.success());
        let said = said(&output);
        assert!(
            said.contains("line 2") && said.contains("max-laod"),
            "{said}"
        );
        assert!(said.contains("max-load = 1.0"), "{said}");
    }
}
