//! `dipole send` and `dipole recv` as two processes.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

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
    let mut command = Command::new(env!("CARGO_BIN_EXE_dipole"));
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

/// Bytes in which no piece looks like another.
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
fn a_file_arrives_byte_for_byte_and_both_say_so() {
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
}

#[test]
fn a_file_arrives_whole_through_loss_repeats_and_damage() {
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
    // Each line is there before the next is written.
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
fn an_empty_stream_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Running::start(&mut dipole(folder.path(), &["recv", "7"]));
    let sender = Running::start(&mut dipole(folder.path(), &["send", "1:7"]));
    let (received, sent) = (receiver.ends(), sender.ends());
    assert!(sent.status.success(), "{}", err(&sent));
    assert!(received.status.success() && received.stdout.is_empty());
}

#[test]
fn a_sender_that_is_killed_leaves_a_cut_stream_which_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut receiver = Running::start(&mut dipole(folder.path(), &["recv", "7", "--silence", "3"]));
    let mut sender = Running::start(dipole(folder.path(), &["send", "1:7"]).stdin(Stdio::piped()));
    let mut input = sender.child().stdin.take().unwrap();
    input.write_all(b"half").unwrap();
    let mut half = [0; 4];
    let mut output = receiver.child().stdout.take().unwrap();
    output.read_exact(&mut half).unwrap();
    sender.child().kill().unwrap();
    let received = receiver.ends();
    assert_eq!(received.status.code(), Some(1));
    assert!(
        err(&received).contains("dipole recv: "),
        "{}",
        err(&received)
    );
    assert!(
        err(&received).contains("was cut after 4 bytes"),
        "{}",
        err(&received)
    );
}

#[test]
fn an_output_that_cannot_be_written_fails_on_both_sides() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Running::start(&mut dipole(
        folder.path(),
        &["recv", "7", "--out", "/dev/full"],
    ));
    let from = folder.path().join("from");
    std::fs::write(&from, content(100_000)).unwrap();
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
    // The first has it once its link is there.
    let link = folder.path().join("dipole/node-1/endpoint-7");
    let started = Instant::now();
    while !link.exists() {
        assert!(first.child().try_wait().unwrap().is_none());
        assert!(started.elapsed() < PATIENCE, "nobody opened endpoint 7");
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
