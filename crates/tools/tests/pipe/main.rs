//! `dipole send` and `dipole recv` as two processes.

mod faults;
mod notices;
mod trees;

use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(60);

/// A process that is killed if the test fails.
struct Running(Option<Child>);

impl Running {
    fn start(command: &mut Command) -> Running {
        Running(Some(
            command
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap(),
        ))
    }

    fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }

    fn ends(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn dipole(runtime: &Path, arguments: &[&str]) -> Command {
    let mut command = dipole_testbed::isolated_command(env!("CARGO_BIN_EXE_dipole"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DIPOLE_") {
            command.env_remove(name);
        }
    }
    command
        .env("DIPOLE_RUNTIME_DIR", runtime.join("dipole"))
        .stdin(Stdio::null())
        .args(arguments);
    command
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The lines of `--json`.
fn events(output: &Output) -> Vec<serde_json::Value> {
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Bytes in which no two pieces are alike.
fn content(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[0]
        })
        .collect()
}

#[test]
fn a_file_arrives_byte_for_byte_and_both_sides_report_it() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let content = content(5_000_003);
    std::fs::write(&from, &content).unwrap();
    let receiver = Running::start(
        dipole(
            folder.path(),
            &["--json", "recv", "7", "--progress", "--out"],
        )
        .arg(&to),
    );
    let sender = Running::start(dipole(folder.path(), &["--json", "send", "1:7"]).arg(&from));
    let (sent, received) = (sender.ends(), receiver.ends());
    assert!(sent.status.success(), "{}", err(&sent));
    assert!(received.status.success(), "{}", err(&received));
    assert!(err(&received).contains("received"), "{}", err(&received));
    assert!(std::fs::read(&to).unwrap() == content);
    let sent: serde_json::Value = serde_json::from_slice(&sent.stdout).unwrap();
    let received: serde_json::Value = serde_json::from_slice(&received.stdout).unwrap();
    assert_eq!(sent["bytes"], 5_000_003);
    for field in ["bytes", "messages", "crc32c"] {
        assert_eq!(sent[field], received[field]);
    }
    // Both have announced their end, so nothing is left to be reported.
    let stats = dipole(folder.path(), &["stats"]).output().unwrap();
    let told = String::from_utf8_lossy(&stats.stdout).into_owned() + &err(&stats);
    assert!(!told.contains("died"), "{told}");
}

#[test]
fn a_file_arrives_complete_despite_loss_duplicates_and_damage() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("from");
    let content = content(3_000_000);
    std::fs::write(&from, &content).unwrap();
    let plan = "drop=0.02,repeat=0.01,reorder=0.01,corrupt=0.01,seed=7";
    let receiver = Running::start(&mut dipole(folder.path(), &["recv", "7", "--fault", plan]));
    let sender =
        Running::start(dipole(folder.path(), &["send", "1:7", "--fault", plan]).arg(&from));
    let (received, sent) = (receiver.ends(), sender.ends());
    assert!(sent.status.success(), "{}", err(&sent));
    assert!(received.status.success(), "{}", err(&received));
    assert!(received.stdout == content);
}

#[test]
fn lines_arrive_as_they_are_typed() {
    let folder = tempfile::tempdir().unwrap();
    let mut receiver = Running::start(&mut dipole(folder.path(), &["recv", "1:9", "--lines"]));
    let mut sender = Running::start(
        dipole(folder.path(), &["send", "1:9", "--lines", "--from", "8"]).stdin(Stdio::piped()),
    );
    let mut input = sender.child().stdin.take().unwrap();
    let mut output = receiver.child().stdout.take().unwrap();
    // Each line arrives before the next is written.
    for line in ["first\n", "\n", "third line\n"] {
        input.write_all(line.as_bytes()).unwrap();
        let mut read = vec![0; line.len()];
        output.read_exact(&mut read).unwrap();
        assert_eq!(read, line.as_bytes());
    }
    input.write_all(b"no line break").unwrap();
    drop(input);
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "no line break\n");
    let ended = sender.ends();
    assert!(ended.status.success(), "{}", err(&ended));
    let ended = receiver.ends();
    assert!(ended.status.success(), "{}", err(&ended));
}

#[test]
fn an_empty_stream_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Running::start(&mut dipole(folder.path(), &["recv", "7"]));
    let sender = Running::start(&mut dipole(folder.path(), &["send", "1:7"]));
    let (received, sent) = (receiver.ends(), sender.ends());
    assert!(sent.status.success(), "{}", err(&sent));
    assert!(received.status.success() && received.stdout.is_empty());
}

/// How these processes find each other as separate nodes, without a common directory.
fn two_nodes(folder: &Path, port: u16) -> (Command, Command) {
    let hosts = folder.join("hosts");
    let text = format!("1 127.0.0.1 port={port}\n2 127.0.0.2 port={port}\n");
    std::fs::write(&hosts, text).unwrap();
    let node = |nid: &str, words: &[&str]| {
        let mut command = dipole(folder, words);
        command.env("DIPOLE_RUNTIME_DIR", folder.join(nid));
        command.arg("--hosts").arg(&hosts).args(["--nid", nid]);
        command
    };
    let receiver = node("1", &["recv", "7", "--silence", "100000"]);
    (receiver, node("2", &["send", "1:7"]))
}

#[test]
fn when_one_side_ends_the_other_ends_at_once_and_reports_why() {
    let ends = [
        ("send", Signal::KILL),
        ("send", Signal::INT),
        ("recv", Signal::KILL),
        ("recv", Signal::TERM),
    ];
    std::thread::scope(|scope| {
        for (port, (ends, signal)) in (7611..).zip(ends) {
            scope.spawn(move || one_ends(ends, signal, None));
            scope.spawn(move || one_ends(ends, signal, Some(port)));
        }
    });
}

/// On one node, or on two whose directories have this port.
fn one_ends(ends: &str, signal: Signal, port: Option<u16>) {
    let folder = tempfile::tempdir().unwrap();
    let (mut recv, mut send) = match port {
        Some(port) => two_nodes(folder.path(), port),
        None => (
            dipole(folder.path(), &["recv", "7", "--silence", "100000"]),
            dipole(folder.path(), &["send", "1:7"]),
        ),
    };
    let mut receiver = Running::start(&mut recv);
    let mut sender = Running::start(send.stdin(Stdio::piped()));
    let mut input = sender.child().stdin.take().unwrap();
    input.write_all(b"half").unwrap();
    let mut half = [0; 4];
    let mut output = receiver.child().stdout.take().unwrap();
    output.read_exact(&mut half).unwrap();
    let (mut first, last) = match ends {
        "send" => (sender, receiver),
        _ => (receiver, sender),
    };
    let pid = Pid::from_child(first.child());
    kill_process(pid, signal).unwrap();
    let last = last.ends();
    assert_eq!(last.status.code(), Some(1));
    let says = err(&last);
    let why = match (signal, ends) {
        (Signal::INT, _) => "interrupted there (SIGINT)",
        (Signal::TERM, _) => "terminated there (SIGTERM)",
        (_, "send") => "was cut after 4 bytes: the process of endpoint",
        _ => "is gone",
    };
    assert!(says.contains(why), "{ends}, {signal:?}, {port:?}: {says}");
    // A peer that has announced its end is not waited for.
    let unknown = says.contains("unacknowledged") || says.contains("stopped answering");
    assert!(!unknown, "{ends}, {signal:?}, {port:?}: {says}");
}

#[test]
fn several_files_arrive_by_their_names_with_modes_and_times() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    std::fs::create_dir(&from).unwrap();
    std::fs::create_dir(&to).unwrap();
    let names = ["empty", "large", "run me"];
    let modified = SystemTime::UNIX_EPOCH + Duration::from_millis(1_234_567_890_123);
    for (name, length) in names.iter().zip([0, 1_000_003, 100]) {
        let path = from.join(name);
        std::fs::write(&path, content(length)).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o751)).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(modified).unwrap();
    }
    // An existing file is replaced.
    std::fs::write(to.join("large"), "old").unwrap();
    let receiver =
        Running::start(dipole(folder.path(), &["--json", "recv", "7", "--out"]).arg(&to));
    let mut send = dipole(folder.path(), &["send", "1:7"]);
    let sender = Running::start(send.args(names.map(|name| from.join(name))));
    let (sent, received) = (sender.ends(), receiver.ends());
    assert!(sent.status.success(), "{}", err(&sent));
    assert!(received.status.success(), "{}", err(&received));
    let told = events(&received);
    for (name, told) in names.iter().zip(&told) {
        let (here, there) = (from.join(name), to.join(name));
        assert!(std::fs::read(&there).unwrap() == std::fs::read(here).unwrap());
        let found = there.metadata().unwrap();
        assert_eq!(found.permissions().mode() & 0o7777, 0o751);
        assert_eq!(found.modified().unwrap(), modified);
        assert_eq!(told["file"], *name);
        assert!(!to.join(format!("{name}.part")).exists());
    }
    assert_eq!(told.len(), 4);
    assert_eq!(told[3]["files"], 3);
}

#[test]
fn several_files_and_unnamed_ones_need_a_suitable_destination() {
    let folder = tempfile::tempdir().unwrap();
    let (file, other) = (folder.path().join("a"), folder.path().join("c"));
    std::fs::write(&file, "a").unwrap();
    std::fs::write(&other, "c").unwrap();
    for (out, files, why) in [
        ("b", &[&file, &other][..], "sends several files"),
        ("", &[], "has no file name"),
    ] {
        let out = folder.path().join(out);
        let receiver = Running::start(dipole(folder.path(), &["recv", "7", "--out"]).arg(&out));
        let sender = Running::start(dipole(folder.path(), &["send", "1:7"]).args(files));
        for side in [receiver.ends(), sender.ends()] {
            assert_eq!(side.status.code(), Some(1));
            assert!(err(&side).contains(why), "{}", err(&side));
        }
    }
}

#[test]
fn an_interrupted_file_keeps_a_temporary_name_and_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let part = folder.path().join("to.part");
    let whole = content(5_000_003);
    std::fs::write(&from, &whole).unwrap();
    // Interrupted: the sender's input stalls after 4 bytes, and it is killed.
    let receiver = || {
        let mut recv = dipole(folder.path(), &["--json", "recv", "7", "--resume", "--out"]);
        Running::start(recv.arg(&to))
    };
    let first = receiver();
    let mut sender = Running::start(dipole(folder.path(), &["send", "1:7"]).stdin(Stdio::piped()));
    let mut input = sender.child().stdin.take().unwrap();
    input.write_all(&whole[..4]).unwrap();
    let started = Instant::now();
    while std::fs::metadata(&part).map_or(0, |found| found.len()) < 4 {
        assert!(started.elapsed() < PATIENCE, "nothing arrives");
        std::thread::yield_now();
    }
    sender.child().kill().unwrap();
    assert_eq!(first.ends().status.code(), Some(1));
    assert!(!to.exists() && part.exists());
    // A matching beginning is kept, another one is not.
    let mut other = whole[..4_000_000].to_vec();
    other[17] ^= 1;
    for (there, resumed) in [(&whole[..4_000_000], true), (&other, false)] {
        std::fs::write(&part, there).unwrap();
        let receiver = receiver();
        let sender = Running::start(dipole(folder.path(), &["send", "1:7"]).arg(&from));
        let (sent, received) = (sender.ends(), receiver.ends());
        assert!(sent.status.success(), "{}", err(&sent));
        assert!(std::fs::read(&to).unwrap() == whole && !part.exists());
        let told: serde_json::Value = serde_json::from_slice(&received.stdout).unwrap();
        assert_eq!(told["bytes"], 5_000_003);
        assert_eq!(told["messages"].as_u64().unwrap() < 16, resumed, "{told}");
    }
}

#[test]
fn files_of_one_name_and_pipes_that_stay_empty_are_refused_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["x", "y"] {
        std::fs::create_dir(at(name)).unwrap();
        std::fs::write(at(name).join("same"), name).unwrap();
    }
    let pipe = at("pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
    for (files, why) in [
        (
            vec![at("x").join("same"), at("y").join("same")],
            "would both arrive as `same`",
        ),
        (vec![pipe], "no process wrote to this pipe within 1 s"),
    ] {
        let mut send = dipole(folder.path(), &["send", "1:7", "--timeout", "1"]);
        let sent = Running::start(send.args(files)).ends();
        assert_eq!(sent.status.code(), Some(1));
        assert!(err(&sent).contains(why), "{}", err(&sent));
    }
}

#[test]
fn a_named_pipe_is_read_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let (pipe, to) = (folder.path().join("pipe"), folder.path().join("to"));
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
    let content = content(1_000_003);
    let receiver = Running::start(dipole(folder.path(), &["recv", "7", "--out"]).arg(&to));
    let sender = Running::start(dipole(folder.path(), &["send", "1:7"]).arg(&pipe));
    std::fs::write(&pipe, &content).unwrap();
    for side in [sender.ends(), receiver.ends()] {
        assert!(side.status.success(), "{}", err(&side));
    }
    assert!(std::fs::read(&to).unwrap() == content);
}

#[test]
fn a_file_that_changes_while_it_is_sent_is_an_error_on_both_sides() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    std::fs::write(&from, content(1000)).unwrap();
    let file = File::options().append(true).open(&from).unwrap();
    // It is opened, and waits for its receiver.
    let sender = Running::start(dipole(folder.path(), &["send", "1:7"]).arg(&from));
    let started = Instant::now();
    while !folder.path().join("dipole").exists() {
        assert!(started.elapsed() < PATIENCE, "the sender does not start");
        std::thread::yield_now();
    }
    (&file).write_all(b"more").unwrap();
    let receiver = Running::start(dipole(folder.path(), &["recv", "7", "--out"]).arg(&to));
    for side in [sender.ends(), receiver.ends()] {
        assert_eq!(side.status.code(), Some(1));
        let said = err(&side);
        assert!(said.contains("changed while it was sent"), "{said}");
    }
    assert!(!to.exists());
}

#[test]
fn an_interrupted_receiver_of_a_file_names_the_option_that_continues() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("to");
    let part = folder.path().join("to.part");
    let mut receiver = Running::start(dipole(folder.path(), &["recv", "7", "--out"]).arg(&to));
    let mut sender = Running::start(dipole(folder.path(), &["send", "1:7"]).stdin(Stdio::piped()));
    let mut input = sender.child().stdin.take().unwrap();
    input.write_all(b"half").unwrap();
    let started = Instant::now();
    while std::fs::metadata(&part).map_or(0, |found| found.len()) < 4 {
        assert!(started.elapsed() < PATIENCE, "nothing arrives");
        std::thread::yield_now();
    }
    kill_process(Pid::from_child(receiver.child()), Signal::INT).unwrap();
    for side in [receiver.ends(), sender.ends()] {
        assert!(!side.status.success());
        assert!(err(&side).contains("--resume"), "{}", err(&side));
    }
    assert!(part.exists());
}

#[test]
fn a_receiver_that_keeps_listening_accepts_one_sender_after_another() {
    let folder = tempfile::tempdir().unwrap();
    let mut receiver = Running::start(&mut dipole(folder.path(), &["recv", "7", "--keep"]));
    let mut output = receiver.child().stdout.take().unwrap();
    for text in ["one", "two"] {
        let mut send = dipole(folder.path(), &["send", "1:7"]);
        let mut sender = Running::start(send.stdin(Stdio::piped()));
        sender
            .child()
            .stdin
            .take()
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        let mut read = [0; 3];
        output.read_exact(&mut read).unwrap();
        assert_eq!(read, text.as_bytes());
        assert!(sender.ends().status.success());
    }
    kill_process(Pid::from_child(receiver.child()), Signal::TERM).unwrap();
    assert_eq!(receiver.ends().status.code(), Some(128 + 15));
}

#[test]
fn a_node_that_the_hosts_file_does_not_list_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hosts");
    std::fs::write(&hosts, "3 127.0.0.1\n").unwrap();
    for words in [&[][..], &["--nid", "5"]] {
        let mut recv = dipole(folder.path(), &["recv", "7", "--hosts"]);
        let ended = Running::start(recv.arg(&hosts).args(words)).ends();
        assert_eq!(ended.status.code(), Some(1));
        assert!(
            err(&ended).contains("the hosts file does not list"),
            "{}",
            err(&ended)
        );
    }
}

#[test]
fn an_output_that_cannot_be_written_fails_on_both_sides() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("from");
    // The sender is in the middle of the longer file.
    for bytes in [100_000, 50_000_000] {
        let receiver = Running::start(&mut dipole(
            folder.path(),
            &["recv", "7", "--out", "/dev/full"],
        ));
        std::fs::write(&from, content(bytes)).unwrap();
        let sender = Running::start(dipole(folder.path(), &["send", "1:7"]).arg(&from));
        let (received, sent) = (receiver.ends(), sender.ends());
        assert_eq!(received.status.code(), Some(1));
        assert!(
            err(&received).contains("No space left"),
            "{}",
            err(&received)
        );
        assert_eq!(sent.status.code(), Some(1));
        assert!(err(&sent).contains("No space left"), "{}", err(&sent));
    }
}

#[test]
fn lines_and_bytes_do_not_mix() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Running::start(&mut dipole(folder.path(), &["recv", "7", "--lines"]));
    let mut sender = Running::start(dipole(folder.path(), &["send", "1:7"]).stdin(Stdio::piped()));
    sender
        .child()
        .stdin
        .take()
        .unwrap()
        .write_all(b"bytes")
        .unwrap();
    let (received, sent) = (receiver.ends(), sender.ends());
    assert_eq!(received.status.code(), Some(1));
    assert!(err(&received).contains("not lines"), "{}", err(&received));
    assert_eq!(sent.status.code(), Some(1));
}

#[test]
fn a_taken_endpoint_another_node_and_a_missing_file_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = Running::start(dipole(folder.path(), &["recv", "7"]).stdin(Stdio::null()));
    let pid = first.child().id();
    // The first one has it as soon as its link exists.
    let link = folder.path().join("dipole/node-1/endpoint-7");
    let started = Instant::now();
    while !link.exists() {
        assert!(first.child().try_wait().unwrap().is_none());
        assert!(started.elapsed() < PATIENCE, "endpoint 7 was not opened");
        std::thread::yield_now();
    }
    let second = Running::start(&mut dipole(folder.path(), &["recv", "7"])).ends();
    assert_eq!(second.status.code(), Some(1));
    assert!(
        err(&second).contains(&format!("process {pid}")),
        "{}",
        err(&second)
    );
    let other = Running::start(&mut dipole(folder.path(), &["recv", "2:7"])).ends();
    assert!(err(&other).contains("this is node 1"), "{}", err(&other));
    let missing = Running::start(&mut dipole(folder.path(), &["send", "1:7", "/nowhere/x"])).ends();
    assert!(err(&missing).contains("/nowhere/x"), "{}", err(&missing));
}
