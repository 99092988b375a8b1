//! Reaching a limit is reported, loses nothing, and raising the limit helps.

use std::collections::VecDeque;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use dipole_node::{
    Address, Bound, Config, Endpoint, EndpointId, LimitReached, Links, Node, NodeId, OpenError,
    SendError, TargetError, UserLimits,
};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
const ROLE: &str = "DIPOLE_LIMITS_ROLE";

fn config(directory: &TempDir, links: Links) -> Config {
    Config {
        links,
        connect_timeout: PATIENCE,
        ..Config::local(NodeId(1), directory.path().join("dipole"))
    }
}

fn bound(limit: u32) -> Option<Bound> {
    Some(Bound {
        limit,
        set_by: "the test".to_owned(),
    })
}

fn endpoint(node: &Node, id: u32) -> Endpoint {
    node.endpoint(EndpointId(id)).expect("a free endpoint")
}

/// Adds a target while the target's process answers.
fn point(from: &Endpoint, to: &Endpoint) -> Result<(), TargetError> {
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let _none = to.receive_timeout(Duration::from_millis(1));
            }
        });
        let pointed = from.target(to.address());
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        pointed
    })
}

#[test]
fn a_process_can_open_endpoints_up_to_its_limit() {
    let directory = tempfile::tempdir().expect("a directory");
    let narrow = Config {
        max_endpoints: 2,
        ..config(&directory, Links::Auto)
    };
    let node = Node::open(narrow).expect("a node");
    let (first, second) = (endpoint(&node, 1), endpoint(&node, 2));
    first.target(Address::new(1, 2)).expect("it exists");
    first.send(b"before").expect("room");
    let error = node.endpoint(EndpointId(3)).expect_err("the limit");
    let reached = LimitReached::Endpoints { limit: 2 };
    assert!(
        matches!(&error, OpenError::Limit(found) if *found == reached),
        "{error}"
    );
    assert!(
        error.to_string().contains("DIPOLE_MAX_ENDPOINTS"),
        "{error}"
    );
    first.send(b"after").expect("room");
    for expected in [&b"before"[..], b"after"] {
        assert_eq!(&*second.receive_timeout(PATIENCE).expect("sent"), expected);
    }
    drop(first);
    endpoint(&node, 3);
    let wide = Node::open(config(&directory, Links::Auto)).expect("a node");
    let _more: Vec<Endpoint> = (10..20).map(|id| endpoint(&wide, id)).collect();
}

#[test]
fn a_users_endpoints_are_counted_over_all_live_processes() {
    let directory = tempfile::tempdir().expect("a directory");
    let limited = |limit| {
        let mut config = config(&directory, Links::Auto);
        config.user_limits.endpoints = bound(limit);
        Node::open(config).expect("a node")
    };
    let (one, other) = (limited(3), limited(3));
    let held = [endpoint(&one, 1), endpoint(&one, 2), endpoint(&other, 3)];
    for node in [&one, &other] {
        let error = node.endpoint(EndpointId(4)).expect_err("the limit");
        assert!(
            matches!(&error, OpenError::Limit(LimitReached::UserEndpoints { bound, .. }) if bound.limit == 3),
            "{error}"
        );
        assert!(error.to_string().contains("the test"), "{error}");
    }
    let lifted = limited(4);
    let fourth = endpoint(&lifted, 4);
    drop(held);
    drop(fourth);
    // Files left behind by a process that was killed.
    for id in 5..9 {
        let link = directory
            .path()
            .join(format!("dipole/node-1/endpoint-{id}"));
        std::os::unix::fs::symlink("owner-1-0", link).expect("our own");
    }
    endpoint(&one, 4);
}

#[test]
fn a_users_processes_are_counted_and_one_more_is_refused_until_another_ends() {
    const TEST: &str =
        "limits::a_users_processes_are_counted_and_one_more_is_refused_until_another_ends";
    if std::env::var_os(ROLE).is_some() {
        match Config::from_env().map(Node::open) {
            Ok(Ok(_)) => println!("OPEN"),
            Ok(Err(error)) => println!("REFUSED: {error}"),
            Err(error) => println!("WRONG: {error}"),
        }
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let opened = |limit: &str| {
        let mut other = Command::new(std::env::current_exe().expect("this"));
        other
            .args(["--exact", TEST, "--nocapture"])
            .env(ROLE, "one");
        other.env("DIPOLE_RUNTIME_DIR", directory.path().join("dipole"));
        other.env("DIPOLE_USER_PROCESSES", limit);
        let output = other.output().expect("it runs");
        String::from_utf8(output.stdout).expect("text")
    };
    // Two nodes of this process count as one process.
    let nodes = [(); 2].map(|()| Node::open(config(&directory, Links::Auto)).expect("a node"));
    let refused = opened("1");
    assert!(
        refused.contains("REFUSED") && refused.contains("DIPOLE_USER_PROCESSES"),
        "{refused}"
    );
    assert!(opened("2").contains("OPEN"));
    let mut own = config(&directory, Links::Auto);
    own.user_limits.processes = bound(1);
    Node::open(own).expect("this process is there already");
    drop(nodes);
    assert!(opened("1").contains("OPEN"));
}

fn peers_are_bounded_on_both_sides(links: Links) {
    let directory = tempfile::tempdir().expect("a directory");
    let open = |max_peers| {
        let mut config = config(&directory, links);
        config.protocol.max_peers = max_peers;
        Node::open(config).expect("a node")
    };
    let (narrow, first, second) = (open(1), open(100), open(100));
    let inbox = endpoint(&narrow, 1);
    let (from, late) = (endpoint(&first, 2), endpoint(&second, 3));
    point(&from, &inbox).expect("room for one");
    let error = point(&late, &inbox).expect_err("the peer is full");
    assert!(matches!(error, TargetError::PeerFull { .. }), "{error}");
    assert!(error.to_string().contains("DIPOLE_MAX_PEERS"), "{error}");
    let error = point(&inbox, &late).expect_err("the limit");
    assert!(
        matches!(error, TargetError::TooManyPeers { limit: 1 }),
        "{error}"
    );
    assert!(error.to_string().contains("DIPOLE_MAX_PEERS"), "{error}");
    from.send(b"still there").expect("room");
    assert_eq!(
        &*inbox.receive_timeout(PATIENCE).expect("sent"),
        b"still there"
    );
    drop((from, first));
    // The peer's goodbye makes room.
    while narrow.stats().peers + narrow.stats().local_peers > 0 {
        let _none = inbox.receive_timeout(Duration::from_millis(1));
    }
    point(&late, &inbox).expect("room again");
    late.send(b"at last").expect("room");
    assert_eq!(&*inbox.receive_timeout(PATIENCE).expect("sent"), b"at last");
}

#[test]
fn peers_in_shared_memory_are_bounded_on_both_sides() {
    peers_are_bounded_on_both_sides(Links::Shm);
}

#[test]
fn peers_on_the_network_are_bounded_on_both_sides() {
    peers_are_bounded_on_both_sides(Links::Udp);
}

fn message(number: u32, length: usize) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(length.max(4), number.to_le_bytes()[0]);
    bytes
}

/// Sends without waiting until no more is accepted; returns the number sent and the error.
fn fill(from: &Endpoint, length: usize) -> (u32, SendError) {
    let mut sent = 0;
    loop {
        match from.try_send(&message(sent, length)) {
            Ok(()) => sent += 1,
            Err(error) => return (sent, error),
        }
        assert!(sent < 1_000_000, "no limit");
    }
}

/// Steps the endpoint, because packets are acknowledged only while a thread waits.
fn step_until(endpoint: &Endpoint, is_over: impl Fn() -> bool) {
    while !is_over() {
        let _none = endpoint.receive_timeout(Duration::from_millis(1));
    }
}

/// Checks that everything sent arrives in order, and that more can be sent afterwards.
fn drains(from: &Endpoint, to: &Endpoint, sent: u32, length: usize) {
    let expected: VecDeque<u32> = (0..sent + 100).collect();
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            for number in sent..sent + 100 {
                let bytes = message(number, length);
                from.send_timeout(&bytes, PATIENCE).expect("it is read now");
            }
            from.drain(PATIENCE).expect("it is read");
        });
        for number in expected {
            let got = to.receive_timeout(PATIENCE).expect("sent");
            assert!(*got == message(number, length), "{number}");
        }
        step_until(to, || sending.is_finished());
    });
}

#[test]
fn without_a_free_frame_the_sender_gets_an_error_and_nothing_is_lost() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut few = config(&directory, Links::Udp);
    few.protocol.frames = 16;
    let sender = Node::open(few).expect("a node");
    let receiver = Node::open(config(&directory, Links::Udp)).expect("a node");
    let (from, to) = (endpoint(&sender, 1), endpoint(&receiver, 2));
    point(&from, &to).expect("it exists");
    // No thread of the test steps the receiver, so hardly anything is acknowledged.
    let (sent, error) = fill(&from, 1000);
    assert!(
        matches!(
            error,
            SendError::Full {
                by_receiver: false,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("DIPOLE_FRAMES"), "{error}");
    assert!(sent <= 2 * 16, "{sent} frames of 16");
    drains(&from, &to, sent, 1000);
}

fn a_pool_is_bounded(links: Links) {
    const POOL_BYTES: u64 = 1 << 20;
    const LENGTH: usize = 1000;
    let directory = tempfile::tempdir().expect("a directory");
    let mut small = config(&directory, links);
    small.set_pool_bytes(POOL_BYTES);
    let sender = Node::open(config(&directory, links)).expect("a node");
    let receiver = Node::open(small).expect("a node");
    let to = endpoint(&receiver, 1);
    let other = endpoint(&receiver, 2);
    let from = endpoint(&sender, 3);
    point(&from, &to).expect("it exists");
    // The receiver's process accepts messages, but its program reads none.
    let mut sent = 0;
    let error = loop {
        let begun = std::time::Instant::now();
        let stopped = loop {
            match from.try_send(&message(sent, LENGTH)) {
                Ok(()) => break None,
                Err(error) => {
                    let _none = other.receive_timeout(Duration::from_millis(1));
                    if begun.elapsed() > Duration::from_millis(300) {
                        break Some(error);
                    }
                }
            }
        };
        match stopped {
            None => sent += 1,
            Some(error) => break error,
        }
        assert!(
            u64::from(sent) * (LENGTH as u64) < 2 * POOL_BYTES,
            "no limit"
        );
    };
    assert!(
        matches!(
            error,
            SendError::Full {
                by_receiver: true,
                ..
            }
        ),
        "{error}"
    );
    let held = receiver.stats().pool_used_bytes;
    assert!(held > 0 && held <= POOL_BYTES, "{held}");
    drains(&from, &to, sent, LENGTH);
    // A message longer than the pool is accepted if it is alone.
    let long = vec![7; 3 << 20];
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            from.send_timeout(&long, PATIENCE).expect("it is read");
            from.drain(PATIENCE).expect("it is read");
        });
        assert!(*to.receive_timeout(PATIENCE).expect("sent") == *long);
        step_until(&to, || sending.is_finished());
    });
}

#[test]
fn a_pool_in_shared_memory_is_bounded_and_nothing_is_lost() {
    a_pool_is_bounded(Links::Shm);
}

#[test]
fn a_pool_on_the_network_is_bounded_and_nothing_is_lost() {
    a_pool_is_bounded(Links::Udp);
}

#[test]
fn limits_come_from_the_environment_and_invalid_ones_are_reported() {
    const TEST: &str = "limits::limits_come_from_the_environment_and_invalid_ones_are_reported";
    if std::env::var_os(ROLE).is_some() {
        match Config::from_env() {
            Ok(config) => println!("{config:?}"),
            Err(error) => println!("WRONG: {error}"),
        }
        return;
    }
    let read = |name: &str, value: &str| {
        let mut other = Command::new(std::env::current_exe().expect("this"));
        other
            .args(["--exact", TEST, "--nocapture"])
            .env(ROLE, "one");
        let output = other.env(name, value).output().expect("it runs");
        String::from_utf8(output.stdout).expect("text")
    };
    for (name, value, shown) in [
        ("DIPOLE_MAX_ENDPOINTS", "77", "max_endpoints: 77"),
        ("DIPOLE_MAX_PEERS", "78", "max_peers: 78"),
        ("DIPOLE_POOL_BYTES", "2097152", "pool_bytes: 2097152"),
        ("DIPOLE_FRAMES", "79", "frames: 79"),
        (
            "DIPOLE_MAX_MESSAGE_BYTES",
            "4294967231",
            "max_message_bytes: 4294967231",
        ),
        (
            "DIPOLE_PEER_TIMEOUT_MS",
            "1500",
            "peer_timeout_ns: 1500000000",
        ),
        ("DIPOLE_PORTS", "7412-7500", "first: 7412, last: 7500"),
        ("DIPOLE_BUSY_POLL", "1", "busy_poll: true"),
        ("DIPOLE_BUSY_POLL", "0", "busy_poll: false"),
        ("DIPOLE_USER_PROCESSES", "80", "limit: 80"),
        ("DIPOLE_USER_ENDPOINTS", "81", "limit: 81"),
    ] {
        let found = read(name, value);
        assert!(found.contains(shown), "{name}: {found}");
        for wrong in ["-1", "many", "99999999999999999999"] {
            let found = read(name, wrong);
            assert!(found.contains("WRONG") && found.contains(name), "{found}");
        }
    }
    // Values that would clear a terminal, are not valid text, or are as long as possible.
    let long = "7".repeat(100_000);
    for name in ["DIPOLE_PORTS", "DIPOLE_LINK", "DIPOLE_NID"] {
        for wrong in [
            "\u{1b}[2J\u{7}",
            "7412-7500\n7-9",
            "udp\r",
            "../../udp",
            &long,
        ] {
            let found = read(name, wrong);
            let said = found.lines().find(|line| line.starts_with("WRONG"));
            let said = said.unwrap_or_else(|| panic!("{name}: {found}"));
            assert!(said.contains(name), "{said}");
            assert!(!said.contains(char::is_control), "{said:?}");
            assert!(said.len() < 1000, "{} bytes", said.len());
        }
    }
    for (name, least) in [
        ("DIPOLE_MAX_ENDPOINTS", "0"),
        ("DIPOLE_MAX_PEERS", "16384"),
        ("DIPOLE_BUSY_POLL", "2"),
        ("DIPOLE_POOL_BYTES", "1000"),
        ("DIPOLE_FRAMES", "15"),
        ("DIPOLE_MAX_MESSAGE_BYTES", "1073741823"),
        ("DIPOLE_MAX_MESSAGE_BYTES", "4294967232"),
        ("DIPOLE_PEER_TIMEOUT_MS", "0"),
        ("DIPOLE_PEER_TIMEOUT_MS", "299"),
        ("DIPOLE_PEER_TIMEOUT_MS", "86400001"),
        ("DIPOLE_PEER_TIMEOUT_MS", "3 s"),
    ] {
        let found = read(name, least);
        assert!(found.contains("a number from"), "{name}: {found}");
    }
}

/// The administrator's file applies; tested in a mount namespace with its own `/etc`.
#[test]
fn the_administrators_limits_apply_whatever_the_environment_says() {
    const TEST: &str = "limits::the_administrators_limits_apply_whatever_the_environment_says";
    const USER: u32 = 60_001;
    if std::env::var_os(ROLE).is_some() {
        let config = Config::from_env().expect("a configuration");
        match Node::open(config) {
            Err(error) => println!("REFUSED: {error}"),
            Ok(node) => {
                let _held = [1, 2].map(|id| endpoint(&node, id));
                let error = node.endpoint(EndpointId(3)).expect_err("the limit");
                println!("THEN: {error}");
            }
        }
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    std::fs::create_dir_all(at("etc/dipole")).expect("our own");
    std::fs::create_dir(at("user")).expect("our own");
    let open = |path: &Path, mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(path, mode).expect("our own");
    };
    open(directory.path(), 0o755);
    let isolated = |file: &str| {
        std::fs::write(at("etc/dipole/limits"), file).expect("our own");
        let mut command = Command::new("unshare");
        let script = "mount --bind \"$1\" /etc && shift && exec \"$@\"";
        command
            .args(["--mount", "sh", "-c", script, "sh"])
            .arg(at("etc"));
        command
    };
    let possible = isolated("").arg("true").uid(0).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: only root with mount namespaces can have an /etc of its own");
        return;
    }
    std::os::unix::fs::chown(at("user"), Some(USER), Some(USER)).expect("root may");
    // Copy in another process, so that no process started by a concurrent test inherits the
    // open file: a file that is open for writing cannot be executed.
    let this = std::env::current_exe().expect("this");
    let copied = Command::new("cp").args([this, at("program")]).status();
    assert!(copied.expect("cp").success());
    let run = |file: &str| {
        let user = USER.to_string();
        let mut command = isolated(file);
        command.args([
            "setpriv",
            "--clear-groups",
            "--reuid",
            &user,
            "--regid",
            &user,
        ]);
        command
            .arg(at("program"))
            .args(["--exact", TEST, "--nocapture"]);
        command.env(ROLE, "one").env("DIPOLE_USER_ENDPOINTS", "100");
        command.env("DIPOLE_RUNTIME_DIR", at("user/dipole"));
        let output = command.current_dir("/").output().expect("it runs");
        String::from_utf8(output.stdout).expect("text")
    };
    let found = run("0\n60001 endpoints=2 # a careful administrator\n* endpoints=1\n");
    assert!(
        found.contains("THEN: user 60001 has 2 endpoints"),
        "{found}"
    );
    assert!(found.contains("/etc/dipole/limits:2"), "{found}");
    let found = run("* processes=0\n");
    assert!(
        found.contains("REFUSED: user 60001 has 0 processes"),
        "{found}"
    );
    let found = run("* endpoints=two\n");
    assert!(
        found.contains("REFUSED: /etc/dipole/limits:1: found"),
        "{found}"
    );
}

#[test]
fn without_user_limits_nothing_is_limited() {
    assert_eq!(UserLimits::default().processes, None);
    let directory = tempfile::tempdir().expect("a directory");
    let node = Node::open(config(&directory, Links::Auto)).expect("a node");
    let held: Vec<Endpoint> = (0..200).map(|id| endpoint(&node, id)).collect();
    assert_eq!(held.len(), 200);
}

/// Lowers the limit of descriptors of this process so that `free` more can be opened.
fn leave_descriptors(free: u64) {
    let held: Vec<_> = (0..=free)
        .map(|_| std::fs::File::open("/").expect("room"))
        .collect();
    let last = held.last().map(std::os::fd::AsRawFd::as_raw_fd);
    let limit = rustix::process::Rlimit {
        current: last.and_then(|last| u64::try_from(last).ok()),
        ..rustix::process::getrlimit(rustix::process::Resource::Nofile)
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).expect("a lower limit");
}

#[test]
fn a_peer_without_descriptors_for_shared_memory_gets_packets_or_is_named() {
    const TEST: &str =
        "limits::a_peer_without_descriptors_for_shared_memory_gets_packets_or_is_named";
    const RUNTIME: &str = "DIPOLE_TEST_RUNTIME";
    let at = |runtime: &Path, links| Config {
        links,
        connect_timeout: Duration::from_secs(1),
        ..Config::local(NodeId(1), runtime.to_owned())
    };
    if let Some(runtime) = std::env::var_os(RUNTIME) {
        let node = Node::open(at(Path::new(&runtime), Links::Auto)).expect("a node");
        let here = endpoint(&node, 7);
        let free = std::env::var(ROLE).expect("set");
        leave_descriptors(free.parse().expect("a number"));
        println!("READY");
        let message = here.receive_timeout(PATIENCE).expect("it arrives");
        assert_eq!(message[..], *b"over UDP");
        return;
    }
    // An accepted socket takes one descriptor, the memory and the bell take two.
    for free in ["0", "1", "2"] {
        let directory = tempfile::tempdir().expect("a directory");
        let runtime = directory.path().join("dipole");
        let mut child = Command::new(std::env::current_exe().expect("this"))
            .args(["--exact", TEST, "--nocapture"])
            .env(ROLE, free)
            .env(RUNTIME, &runtime)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut ready = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        while !line.contains("READY") {
            line.clear();
            let length = std::io::BufRead::read_line(&mut ready, &mut line).expect("text");
            assert!(length > 0, "{free}: the child has ended");
        }
        let shared = Node::open(at(&runtime, Links::Shm)).expect("a node");
        let refused = endpoint(&shared, 8).target(Address::new(1, 7));
        let text = refused.expect_err("no descriptors").to_string();
        assert!(
            text.contains("no free descriptors") && text.contains("ulimit -n"),
            "{text}"
        );
        let any = Node::open(at(&runtime, Links::Auto)).expect("a node");
        let sender = endpoint(&any, 9);
        sender
            .send_to(Address::new(1, 7), b"over UDP")
            .expect("packets pass");
        sender.drain(PATIENCE).expect("it arrives");
        assert!(child.wait().expect("a child").success(), "{free}");
    }
}
