//! A collective call that waits long names the member that it waits for. This is tested in another
//! process: this test, started again.

#![allow(missing_docs, reason = "tests")]

use std::process::{Command, Stdio};
use std::time::Duration;

use dipole_group::{Group, Members};
use dipole_node::{Address, Config, Node, NodeId};

/// Set in the child process.
const CHILD: &str = "DIPOLE_TEST_NOTICES_CHILD";
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than the time after which a wait is reported.
const LATE: Duration = Duration::from_millis(2500);

#[test]
fn a_group_with_a_late_member() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    dipole_node::log::from_env().expect("a valid setting");
    let directory = tempfile::tempdir().expect("a directory");
    let join = |rank: usize| {
        let node = Node::open(Config::local(NodeId(1), directory.path().join("run")));
        let ports = [100, 101].map(|port| Address::new(1, port));
        let members = Members::first(ports.to_vec());
        Group::join(&node.expect("a node"), members, rank, PATIENCE).expect("both join")
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut late = join(1);
            std::thread::sleep(LATE);
            late.barrier(PATIENCE).expect("both are there");
        });
        join(0).barrier(PATIENCE).expect("both are there");
    });
}

#[test]
fn a_call_that_waits_for_a_member_names_it() {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--exact", "--nocapture", "a_group_with_a_late_member"]);
    command.env(CHILD, "1").env("DIPOLE_LOG", "warn");
    let output = command.stdin(Stdio::null()).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let expected = "waiting for 2 s: rank 1 (1:101) to take part in";
    assert!(text.contains(expected), "{text}");
}
