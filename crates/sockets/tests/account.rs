//! The line about the bytes of both ways that a program prints when it exits.

#![allow(missing_docs, reason = "tests")]

mod common;

use std::collections::HashMap;
use std::process::Command;

use common::{Place, finished};

/// Both ends of connections in one program, which reads after each write.
const PROGRAM: &str = "
import os, socket, sys
listener = socket.create_server(('127.0.0.1', 0))
def connected():
    a = socket.create_connection(listener.getsockname())
    return a, listener.accept()[0]
def send(a, b, length, times=1):
    for _ in range(times):
        sent = 0
        while sent < length:
            some = a.send(bytes(length - sent))
            sent += some
            while some:
                some -= len(b.recv(some))
";

/// Runs statements; returns what the line says: totals by name, and reasons.
fn line_of(statements: &str, with: bool, log: Option<&str>) -> Option<HashMap<String, u64>> {
    let place = Place::new();
    let mut command: Command = place.command("python3", with);
    command.args(["-c", &format!("{PROGRAM}{statements}")]);
    command.env_remove("DIPOLE_LOG");
    if let Some(log) = log {
        command.env("DIPOLE_LOG", log);
    }
    let done = finished(command.spawn().expect("python3 starts"));
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    let line = said.lines().next()?;
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(line.starts_with("dipole-sockets: python3["), "{line}");
    let number_before = |text: &str| {
        let before = line.split(text).next().unwrap_or_default();
        let word = before.rsplit(' ').next().unwrap_or_default();
        word.parse().unwrap_or_else(|_| panic!("{text}: {line}"))
    };
    let mut found = HashMap::from([
        ("connections".into(), number_before(" TCP connections")),
        (
            "memory".into(),
            number_before(" bytes through shared memory, "),
        ),
        ("tcp".into(), number_before(" over TCP; received")),
    ]);
    let reasons = line.split_once("bytes over TCP by reason: ");
    for reason in reasons.map_or("", |(_, reasons)| reasons).split(", ") {
        if let Some((name, bytes)) = reason.split_once(' ') {
            found.insert(name.into(), bytes.parse().expect("a number"));
        }
    }
    Some(found)
}

#[test]
fn bytes_are_counted_by_way_and_reason() {
    let found = line_of(
        "a, b = connected()\nsend(a, b, 65536, 40)\na.close()\nb.close()",
        true,
        Some("info"),
    );
    let found = found.expect("a line");
    assert_eq!(found["connections"], 2);
    assert!(found["memory"] > 20 * 65536, "{found:?}");
    assert_eq!(found["memory"] + found["tcp"], 40 * 65536);
    // Each byte over TCP was sent by one end and received by the other.
    let by_reason = found.get("small-or-early").unwrap_or(&0) + found.get("no-room").unwrap_or(&0);
    assert_eq!(by_reason, 2 * found["tcp"], "{found:?}");
}

#[test]
fn each_reason_has_its_name() {
    for (statements, reason, bytes) in [
        (
            "a, b = connected()\nsend(a, b, 1000, 10)",
            "few-bytes",
            20_000,
        ),
        (
            "a, b = connected()\nsend(a, b, 100, 10)\nos.dup2(b.fileno(), 1)",
            "dup2",
            1000,
        ),
        (
            "a, b = connected()\nif os.fork() == 0: os._exit(0)\nos.wait()\nsend(a, b, 65536, 10)",
            "fork",
            2 * 655_360,
        ),
        (
            "os.close(0)\na, b = connected()\nassert a.fileno() == 0\nsend(a, b, 100, 10)\nb.close()",
            "standard-descriptor",
            1000,
        ),
    ] {
        let found = line_of(statements, true, Some("info")).expect("a line");
        assert_eq!(found.get(reason), Some(&bytes), "{statements}: {found:?}");
        assert_eq!(found["memory"], 0, "{found:?}");
    }
}

#[test]
fn a_peer_without_the_library_is_the_reason() {
    // The other end is a process without the library.
    let found = line_of(
        "
reader = '''
import socket, sys
end = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
while end.recv(1 << 20): pass
'''
import subprocess
plain = dict(os.environ, LD_PRELOAD='')
child = subprocess.Popen([sys.executable, '-c', reader, str(listener.getsockname()[1])], env=plain)
end = listener.accept()[0]
for _ in range(20): end.sendall(bytes(65536))
end.close()
child.wait()
",
        true,
        Some("dipole_sockets=debug"),
    );
    let found = found.expect("a line");
    assert_eq!(found.get("no-peer"), Some(&(20 * 65536)), "{found:?}");
}

#[test]
fn a_forked_child_counts_from_the_fork_on() {
    let found = line_of(
        "
a, b = connected()
send(a, b, 65536, 20)
if os.fork() == 0:
    send(a, b, 1000)
    # It prints a line of its own, which is not wanted here.
    os.close(2)
    sys.exit(0)
assert os.wait()[1] == 0
b.close()
a.close()
",
        true,
        Some("info"),
    );
    let found = found.expect("a line");
    assert_eq!(
        found["memory"] + found["tcp"],
        20 * 65536 + 1000,
        "{found:?}"
    );
}

#[test]
fn without_the_log_or_a_connection_nothing_is_printed() {
    let small = "a, b = connected()\nsend(a, b, 1000)";
    assert_eq!(line_of(small, true, None), None);
    assert_eq!(line_of(small, true, Some("warn")), None);
    assert_eq!(line_of(small, false, Some("info")), None);
    assert_eq!(line_of("listener.close()", true, Some("info")), None);
}
