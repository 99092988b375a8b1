//! `dipole replay`: recordings of two real processes over loopback, and the output for them.

#![allow(missing_docs, reason = "tests")]

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const DIPOLE: &str = env!("CARGO_BIN_EXE_dipole");
const PATIENCE: Duration = Duration::from_secs(60);

/// A command with its own registry, whose processes are recorded in `DIR/r`.
fn dipole(place: &Path, line: &str) -> Command {
    let mut command = dipole_testbed::isolated_command(DIPOLE);
    command
        .current_dir(place)
        .env("DIPOLE_RUNTIME_DIR", place.join("dipole"))
        .env("DIPOLE_LINK", "udp")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .args(line.split_whitespace());
    command
}

fn ends(child: Child) -> Output {
    child.wait_with_output().expect("it ends")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Sends a file of this length between two recorded processes.
fn transfer(place: &Path, length: usize, variables: &[(&str, &str)]) {
    let content: Vec<u8> = (0..=250_u8).cycle().step_by(7).take(length).collect();
    std::fs::write(place.join("from"), &content).expect("our file");
    let start = |line: &str| {
        let mut command = dipole(place, line);
        command.env("DIPOLE_RECORD", place.join("r"));
        command.envs(variables.iter().copied());
        command.spawn().expect("it starts")
    };
    let receiver = start("recv 7 --out to");
    let sent = ends(start("send 1:7 from"));
    let received = ends(receiver);
    assert!(sent.status.success(), "{}", text(&sent.stderr));
    assert!(received.status.success(), "{}", text(&received.stderr));
    assert!(std::fs::read(place.join("to")).expect("the copy") == content);
}

fn replay(place: &Path, options: &str) -> Output {
    let mut command = dipole(place, &format!("replay r {options}"));
    command.output().expect("it starts")
}

/// The lines of `dipole --json replay` with this event.
fn events(place: &Path, event: &str) -> Vec<serde_json::Value> {
    let output = dipole(place, "--json replay r")
        .output()
        .expect("it starts");
    let lines = text(&output.stdout);
    let lines = lines.lines().map(|line| {
        let value: serde_json::Value = serde_json::from_str(line).expect("JSON");
        value
    });
    lines.filter(|value| value["event"] == event).collect()
}

/// Both processes of a transfer have replayed with the same results.
fn replays_alike(place: &Path) -> Vec<serde_json::Value> {
    let output = replay(place, "--summary");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    let processes = events(place, "process");
    assert_eq!(processes.len(), 2, "{processes:?}");
    for process in &processes {
        assert_eq!(process["same"], true, "{process}");
        assert!(process["calls"].as_u64() > Some(20), "{process}");
    }
    processes
}

#[test]
fn a_transfer_over_loopback_replays_with_the_same_results() {
    let place = tempfile::tempdir().expect("a directory");
    transfer(place.path(), 3_000_000, &[]);
    let processes = replays_alike(place.path());
    assert!(processes.iter().all(|process| process["closed"] == true));
    let whole = text(&replay(place.path(), "").stdout);
    for words in [
        "the session with node 1 is open",
        "units below",
        "closes edge",
    ] {
        assert!(whole.contains(words), "{words}");
    }
    // A part of it: the last microsecond, and the state after the handshake.
    let tail = text(&replay(place.path(), "--from -1us").stdout);
    assert!(tail.len() < whole.len());
    let early = replay(place.path(), "--summary --to 1us");
    assert_eq!(early.status.code(), Some(0));
    let other = replay(place.path(), "--node 9");
    assert!(text(&other.stderr).contains("node 9 has no recordings"));
}

#[test]
fn a_transfer_with_losses_shows_its_retransmissions() {
    let place = tempfile::tempdir().expect("a directory");
    transfer(
        place.path(),
        2_000_000,
        &[("DIPOLE_FAULT", "drop=0.05,seed=7")],
    );
    let processes = replays_alike(place.path());
    let total: u64 = (processes.iter())
        .filter_map(|process| process["retransmissions"].as_u64())
        .sum();
    assert!(total > 0, "{processes:?}");
    assert!(text(&replay(place.path(), "").stdout).contains("retransmits unit"));
}

#[test]
fn transfers_with_keys_replay_without_the_key_and_reveal_no_payload() {
    for security in ["off", "auth", "encrypt"] {
        let place = tempfile::tempdir().expect("a directory");
        let line = format!("key new --security {security} key");
        let made = dipole(place.path(), &line).output().expect("it starts");
        assert!(made.status.success(), "{}", text(&made.stderr));
        let key = place.path().join("key");
        let secret = std::fs::read_to_string(&key).expect("a key");
        transfer(
            place.path(),
            500_000,
            &[("DIPOLE_KEY", key.to_str().expect("a path"))],
        );
        // The replay needs no key.
        std::fs::remove_file(&key).expect("our file");
        replays_alike(place.path());
        let secret = secret.split_whitespace().max_by_key(|word| word.len());
        let secret = secret.expect("a word").as_bytes();
        let payload: Vec<u8> = (1000..1032).map(|at| (at * 7 % 251) as u8).collect();
        for file in std::fs::read_dir(place.path().join("r")).expect("a recording") {
            let bytes = std::fs::read(file.expect("a file").path()).expect("our file");
            let contains = |part: &[u8]| bytes.windows(part.len()).any(|it| it == part);
            assert!(!contains(secret) && !contains(&payload), "{security}");
        }
    }
}

#[test]
fn shared_memory_is_recorded_too() {
    let place = tempfile::tempdir().expect("a directory");
    transfer(place.path(), 3_000_000, &[("DIPOLE_LINK", "auto")]);
    replays_alike(place.path());
    let whole = text(&replay(place.path(), "").stdout);
    assert!(whole.contains("shares memory"), "{whole}");
}

#[test]
fn a_killed_process_is_replayed_to_its_last_write() {
    let place = tempfile::tempdir().expect("a directory");
    let start = |line: &str| {
        let mut command = dipole(place.path(), line);
        command.env("DIPOLE_RECORD", place.path().join("r"));
        command
    };
    let mut receiver = start("recv 7 --out to").spawn().expect("it starts");
    let mut sender = start("send 1:7 /dev/zero").spawn().expect("it starts");
    let begun = Instant::now();
    while std::fs::metadata(place.path().join("to.part")).map_or(0, |it| it.len()) < 1 << 20
        && std::fs::metadata(place.path().join("to")).map_or(0, |it| it.len()) < 1 << 20
    {
        assert!(begun.elapsed() < PATIENCE, "nothing arrives");
        std::thread::sleep(Duration::from_millis(5));
    }
    receiver.kill().expect("it runs");
    receiver.wait().expect("it ends");
    sender.kill().expect("it runs");
    sender.wait().expect("it ends");
    let output = replay(place.path(), "--summary");
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{shown}");
    assert_eq!(shown.matches("was killed").count(), 2, "{shown}");
    let same = "all with the same results";
    assert_eq!(shown.matches(same).count(), 2, "{shown}");
}

#[test]
fn another_user_cannot_read_a_recording() {
    let place = tempfile::tempdir().expect("a directory");
    transfer(place.path(), 1000, &[]);
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can be another user");
        return;
    }
    // Even if the directory may be searched, the files may not be read.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    for folder in [place.path().to_path_buf(), place.path().join("r")] {
        std::fs::set_permissions(folder, Clone::clone(&open)).expect("our directory");
    }
    let file = std::fs::read_dir(place.path().join("r"))
        .expect("files")
        .next();
    let file = file.expect("one").expect("a file").path();
    let read = Command::new("cat").arg(&file).uid(65_534).output();
    let read = read.expect("it starts");
    assert!(!read.status.success() && read.stdout.is_empty());
    assert!(
        text(&read.stderr).contains("denied"),
        "{}",
        text(&read.stderr)
    );
}

#[test]
fn damaged_and_foreign_files_are_named_and_the_status_is_3() {
    let place = tempfile::tempdir().expect("a directory");
    transfer(place.path(), 300_000, &[]);
    let files = std::fs::read_dir(place.path().join("r")).expect("files");
    let file = files
        .map(|it| it.expect("a file").path())
        .next()
        .expect("one");
    let mut bytes = std::fs::read(&file).expect("our file");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).expect("our file");
    std::fs::write(place.path().join("r/notes.dprec"), "hello, this is text").expect("our file");
    let output = replay(place.path(), "--summary");
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{shown}");
    assert!(shown.contains("damaged at byte"), "{shown}");
    assert!(
        shown.contains("notes.dprec is left out: it is not a recording"),
        "{shown}"
    );
}

#[test]
fn a_full_disk_stops_the_recording_and_not_the_transfer() {
    let place = tempfile::tempdir().expect("a directory");
    let small = place.path().join("r");
    std::fs::create_dir(&small).expect("our directory");
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k", "none"])
        .arg(&small)
        .status();
    if !mount.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: cannot mount a tmpfs");
        return;
    }
    let run = std::panic::catch_unwind(|| transfer_and_say(place.path()));
    let replayed = replay(place.path(), "--summary");
    let gone = Command::new("umount").arg("-l").arg(&small).status();
    assert!(gone.expect("umount").success());
    let said = run.expect("the transfer");
    let words = "goes on, but is no longer recorded: cannot write to";
    assert!(said.contains(words), "{said}");
    let shown = text(&replayed.stdout);
    assert!(shown.contains("with the same results"), "{shown}");
}

/// A transfer whose recording does not fit; returns what both processes have said.
fn transfer_and_say(place: &Path) -> String {
    std::fs::write(place.join("from"), vec![1; 30_000_000]).expect("our file");
    let start = |line: &str| {
        let mut command = dipole(place, line);
        command.env("DIPOLE_RECORD", place.join("r"));
        command.spawn().expect("it starts")
    };
    let receiver = start("recv 7 --out to");
    let sent = ends(start("send 1:7 from"));
    let received = ends(receiver);
    assert!(sent.status.success(), "{}", text(&sent.stderr));
    assert!(received.status.success(), "{}", text(&received.stderr));
    text(&sent.stderr) + &text(&received.stderr)
}

#[test]
fn invalid_limits_and_directories_are_named() {
    let place = tempfile::tempdir().expect("a directory");
    let wrong = dipole(place.path(), "send 1:7 --timeout 0 /dev/null")
        .env("DIPOLE_RECORD_BYTES", "many")
        .output()
        .expect("it starts");
    assert!(
        text(&wrong.stderr).contains("DIPOLE_RECORD_BYTES"),
        "{}",
        text(&wrong.stderr)
    );
    // A process that cannot be recorded runs without.
    let unrecorded = dipole(place.path(), "send 1:7 --timeout 0 /dev/null")
        .env("DIPOLE_RECORD", "/dev/null/r")
        .output()
        .expect("it starts");
    let said = text(&unrecorded.stderr);
    assert!(
        said.contains("is not recorded: cannot create a file in /dev/null/r"),
        "{said}"
    );
}

/// Starts a program in a namespace as a node of a cluster of two.
fn node(place: &Path, namespace: &str, number: usize, line: &str) -> Child {
    let inside = dipole(place, line);
    let mut command = Command::new("ip");
    command
        .args(["netns", "exec", namespace, DIPOLE])
        .args(line.split_whitespace());
    for (name, value) in inside.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
        .current_dir(place)
        .env("DIPOLE_RUNTIME_DIR", place.join(format!("dipole{number}")))
        .env("DIPOLE_NID", number.to_string())
        .env("DIPOLE_HOSTS", place.join("hosts"))
        .env("DIPOLE_RECORD", place.join("r"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().expect("ip starts")
}

/// Kills a process if the test fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

/// Sets a property of the cable's end in a namespace.
fn set_link(namespace: &str, property: &str) -> bool {
    let device = dipole_testbed::Pair::INTERFACE;
    let line = format!("-n {namespace} link set {device} {property}");
    let status = Command::new("ip").args(line.split_whitespace()).status();
    status.is_ok_and(|status| status.success())
}

#[test]
fn the_reason_of_a_hang_is_in_the_output() {
    let pair = match dipole_testbed::Pair::create() {
        Ok(pair) => pair,
        Err(why) => {
            eprintln!("SKIPPED: {why}");
            return;
        }
    };
    let [one, other] = pair.namespaces();
    // Without segmentation offload, each packet is checked against the MTU of the other end.
    if !set_link(one, "gso_max_segs 1") {
        eprintln!("SKIPPED: this version of ip cannot limit segmentation offload");
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let hosts = "1 10.97.0.1\n2 10.97.0.2\n";
    std::fs::write(place.path().join("hosts"), hosts).expect("our file");
    let receiver = Killed(node(place.path(), other, 2, "recv 7 --out to"));
    let sender = Killed(node(
        place.path(),
        one,
        1,
        "send 2:7 --timeout 30 /dev/zero",
    ));
    let begun = Instant::now();
    let has_sent = || text(&replay(place.path(), "").stdout).contains("delivers");
    while !has_sent() {
        assert!(begun.elapsed() < PATIENCE, "nothing arrives");
        std::thread::sleep(Duration::from_millis(50));
    }
    // Packets that are longer than this get lost now, like in a tunnel with a wrong MTU. It is less
    // than IPv4 permits. Short ones pass, so both processes see that the other one is alive.
    assert!(set_link(other, "mtu 400"));
    // The files of running processes can be replayed, too.
    loop {
        let shown = text(&replay(place.path(), "--from -5s").stdout);
        let hangs = shown.contains("the peer has not received it, so packets to the peer are lost");
        if hangs && shown.matches("retransmits unit").count() > 3 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{shown}");
        std::thread::sleep(Duration::from_millis(100));
    }
    drop((sender, receiver));
    let output = replay(place.path(), "--summary");
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{shown}");
    assert!(
        shown.contains("are not acknowledged; the oldest, unit"),
        "{shown}"
    );
    assert!(shown.contains("so packets to the peer are lost"), "{shown}");
    eprintln!("{shown}");
}
