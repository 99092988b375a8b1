//! Unmodified programs with the library in namespaces as containers have them: they share memory
//! where that is possible, and else use TCP.

#![allow(missing_docs, reason = "tests")]

mod common;

use std::path::Path;
use std::process::Command;

use common::{Place, carried, finished, has, start_server, two_nodes};
use dipole_testbed::Testbed;

/// A memory file system of its own, as small as the usual one of a container.
const OWN_SHM: &str = "mount -t tmpfs -o size=64m tmpfs /dev/shm && exec \"$@\"";

/// How an end is isolated from the machine: words before its command.
type Walls = &'static [&'static str];

const NOTHING: Walls = &[];
const MOUNTS: Walls = &["unshare", "--mount", "sh", "-c", OWN_SHM, "sh"];
const OWN_DIRECTORY: Walls = &[
    "unshare",
    "--mount",
    "sh",
    "-c",
    OWN_SHM,
    "sh",
    "env",
    "-u",
    "DIPOLE_RUNTIME_DIR",
];
const PROCESSES: Walls = &[
    "unshare",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
];
const CONTAINER: Walls = &[
    "unshare",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "sh",
    "-c",
    OWN_SHM,
    "sh",
];
const ROOTLESS: Walls = &["unshare", "--user", "--map-root-user"];
const OTHER_USER: Walls = &[
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
];

/// One end of a connection, in a container.
fn end(place: &Place, before: &[&str], walls: Walls, words: &[&str]) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/py/stream.py");
    let script = script.to_str().expect("a path of plain text");
    let preload = format!("LD_PRELOAD={}", common::library().display());
    let program = ["env", &preload, "python3", script];
    let all = [before, walls, &program, words].concat();
    let mut command = place.command(all[0], false);
    command.args(&all[1..]);
    command
}

/// Sends millions of bytes both ways between a server and a client, each with the words that enter
/// its network and its container; both compare them. True if all of them used TCP.
fn all_over_tcp(ends: [(&[&str], Walls); 2], address: &str) -> bool {
    let [(at_server, server), (at_client, client)] = ends;
    let place = Place::new();
    let readable = ["a+rx", place.folder.path().to_str().expect("plain text")];
    let changed = Command::new("chmod").args(readable).status();
    assert!(changed.expect("chmod starts").success());
    let (server, port) = start_server(end(&place, at_server, server, &["server", "0", address]));
    let client = end(&place, at_client, client, &["client", &port, address]).spawn();
    let client = finished(client.expect("it starts"));
    let ((one, all), (other, _)) = (carried(&client.stdout), carried(&finished(server).stdout));
    one >= all && other >= all
}

#[test]
fn containers_with_one_network_share_memory_only_with_their_own_processes() {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    let all_over_tcp = |server, client| all_over_tcp([(&[], server), (&[], client)], "127.0.0.1");
    assert!(!all_over_tcp(NOTHING, NOTHING));
    let is_seen = "their processes see each other";
    assert!(!all_over_tcp(MOUNTS, MOUNTS), "{is_seen}");
    // A process identifier means another process there.
    for (server, client) in [
        (PROCESSES, NOTHING),
        (NOTHING, PROCESSES),
        (PROCESSES, PROCESSES),
        (CONTAINER, CONTAINER),
        (CONTAINER, PROCESSES),
        (OWN_DIRECTORY, OWN_DIRECTORY),
        (ROOTLESS, CONTAINER),
        (NOTHING, OTHER_USER),
        (OTHER_USER, NOTHING),
    ] {
        assert!(all_over_tcp(server, client), "{server:?}, {client:?}");
    }
    // The memory of a process in another user namespace may be forbidden; both are right.
    for (server, client) in [
        (ROOTLESS, NOTHING),
        (NOTHING, ROOTLESS),
        (ROOTLESS, ROOTLESS),
    ] {
        all_over_tcp(server, client);
    }
}

#[test]
fn containers_with_networks_of_their_own_use_tcp() {
    let Some(testbed) = two_nodes() else { return };
    let namespaces = [1, 2].map(|node| testbed.node(node).namespace.clone());
    let enter = namespaces
        .each_ref()
        .map(|name| ["ip", "netns", "exec", name]);
    let address = testbed.node(1).addresses[0].to_string();
    for walls in [NOTHING, CONTAINER] {
        assert!(all_over_tcp(
            [(&enter[0], walls), (&enter[1], walls)],
            &address
        ));
    }
}

#[test]
fn a_hundred_streams_arrive_in_a_container_with_little_memory() {
    const STREAMS: &str = "iperf3 -s -1 -D -p $0 && iperf3 -c 127.0.0.1 -p $0 -P 100 -l 512K -t 2";
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    if !has(&["iperf3"]) {
        return;
    }
    let place = Place::new();
    let preload = format!("LD_PRELOAD={}", common::library().display());
    let port = dipole_testbed::free_port("127.0.0.1").to_string();
    let mut command = place.command(CONTAINER[0], false);
    command.args(&CONTAINER[1..]);
    command.args(["env", &preload, "sh", "-c", STREAMS, &port]);
    let done = finished(command.spawn().expect("it starts"));
    let text = String::from_utf8_lossy(&done.stdout);
    let mut sums = text.lines().filter(|line| line.starts_with("[SUM]"));
    assert!(
        sums.next_back()
            .is_some_and(|line| line.contains("receiver")),
        "{text}"
    );
}
