//! Every command with every kind of standard output, and every command's errors as JSON.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

const DIPOLE: &str = env!("CARGO_BIN_EXE_dipole");
const GRAPH: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../examples/graphs/paper.toml"
);

/// The kind of standard output.
#[derive(Clone, Copy, Debug, PartialEq)]
enum To {
    /// Standard output is a closed descriptor.
    Closed,
    /// A pipe without a reader.
    Pipe,
    /// Standard output is on a full disk.
    Full,
}

/// A command line, and whether it prints something where no process runs.
const COMMANDS: [(&str, bool); 31] = [
    ("run -n 1 echo words", true),
    // The test below runs these commands with a peer.
    ("send 1:7 --timeout 0 /dev/null", false),
    ("recv 2:7", false),
    ("interface status 1:9 --timeout 1", false),
    (
        "bench pingpong --on node --seconds 0.01 --rounds 1 --subjects bare-unix-spin",
        true,
    ),
    (
        "calibrate supersteps --quick --ranks 2 --link shm --rounds 1",
        true,
    ),
    ("calibrate --quick --link shm", true),
    ("predict --bytes 8 --link shm", false),
    ("graph GRAPH", true),
    ("--json graph GRAPH", true),
    ("stats", false),
    ("links", false),
    ("trace nowhere", false),
    ("replay nowhere", false),
    ("top --once", false),
    ("report report", false),
    ("agent status", false),
    ("key new a-key", true),
    ("key show the-key", true),
    // Prints nothing if the provider was not built.
    ("mpi-env openmpi", false),
    ("sockets true", false),
    ("doctor", true),
    ("completions bash", true),
    ("help", true),
    ("--version", true),
    ("manual", true),
    ("checkpoints --checkpoint-dir none", true),
    ("checkpoint 00000000000000ff --checkpoint-dir none", false),
    (
        "migrate 00000000000000ff --to 2 --checkpoint-dir none",
        false,
    ),
    ("load", false),
    ("chaos --plan --seed 7 --cut 100ms", true),
];

fn dipole(line: &str, place: &Path, to: To) -> Command {
    let mut command = match to {
        To::Closed => {
            let mut shell = Command::new("sh");
            shell.args(["-c", "exec \"$0\" \"$@\" >&-", DIPOLE]);
            shell
        }
        _ => dipole_testbed::isolated_command(DIPOLE),
    };
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DIPOLE_") {
            command.env_remove(name);
        }
    }
    let words = line.split(' ');
    command.args(words.map(|word| if word == "GRAPH" { GRAPH } else { word }));
    command.current_dir(place).stdin(Stdio::null());
    command.env("DIPOLE_RUNTIME_DIR", place.join("runtime"));
    command.env("DIPOLE_PROFILE", place.join("profile"));
    match to {
        To::Closed => {}
        To::Pipe => {
            let (reader, writer) = std::io::pipe().expect("a pipe");
            drop(reader);
            command.stdout(writer);
        }
        To::Full => {
            let full = OpenOptions::new().write(true).open("/dev/full");
            command.stdout(full.expect("Linux has it"));
        }
    }
    command.stderr(Stdio::piped());
    command
}

/// No panic, and a failed write is visible in the exit status and the message.
#[track_caller]
fn check(line: &str, output: &Output, to: To, prints: bool) {
    let text = String::from_utf8_lossy(&output.stderr);
    let status = output.status.code();
    assert!(!text.contains("panicked"), "{line}, {to:?}: {text}");
    assert!(
        status.is_some_and(|code| code != 101),
        "{line}, {to:?}: {output:?}"
    );
    match to {
        To::Pipe if prints => {
            assert_eq!(status, Some(128 + 13), "{line}, {to:?}: {text}");
        }
        To::Full if prints => {
            assert_eq!(status, Some(1), "{line}, {to:?}: {text}");
            assert!(text.contains("No space left"), "{line}, {to:?}: {text}");
        }
        _ => {}
    }
}

#[test]
fn every_command_handles_a_standard_output_that_cannot_be_written() {
    let help = dipole_testbed::isolated_command(DIPOLE)
        .arg("--help")
        .output()
        .expect("help");
    let help = String::from_utf8(help.stdout).expect("text");
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.map_while(|line| line.split_whitespace().next());
    let tried: BTreeSet<&str> = COMMANDS
        .iter()
        .flat_map(|(line, _)| line.split(' '))
        .collect();
    let missing: Vec<&str> = listed.filter(|name| !tried.contains(name)).collect();
    assert!(missing.is_empty(), "not tried: {missing:?}");

    let place = tempfile::tempdir().expect("a directory");
    let key = dipole_node::ClusterKey::random().expect("random bytes");
    key.save(&place.path().join("the-key"))
        .expect("our own file");
    for (line, prints) in COMMANDS {
        for to in [To::Closed, To::Pipe, To::Full] {
            let output = dipole(line, place.path(), to).output().expect("it starts");
            check(line, &output, to, prints);
            let _made_anew = std::fs::remove_file(place.path().join("a-key"));
        }
    }
}

fn ends(child: Child) -> Output {
    child.wait_with_output().expect("it ends")
}

#[test]
fn both_sides_of_a_transfer_handle_an_output_that_cannot_be_written() {
    for to in [To::Closed, To::Pipe, To::Full] {
        let place = tempfile::tempdir().expect("a directory");
        let content = vec![7; 300_000];
        std::fs::write(place.path().join("file"), &content).expect("our own file");
        let start = |line: &str, to| {
            let mut command = dipole(line, place.path(), to);
            command.spawn().expect("it starts")
        };
        // The stream itself cannot be written: both report that.
        let receiver = start("recv 7", to);
        let sender = ends(start("send 1:7 file", To::Closed));
        let received = ends(receiver);
        check("recv 7", &received, to, true);
        if to != To::Closed {
            assert_eq!(sender.status.code(), Some(1), "{to:?}: {sender:?}");
        }
        // The sender's messages cannot be written; the file arrives.
        let receiver = start("recv 8 --out copy", To::Closed);
        let sent = ends(start("--json send 1:8 file", to));
        check("--json send", &sent, to, true);
        let received = ends(receiver);
        assert!(received.status.success(), "{to:?}: {received:?}");
        let copy = std::fs::read(place.path().join("copy")).expect("it is there");
        assert!(copy == content, "{to:?}");
    }
}

#[test]
fn errors_of_every_command_are_json_on_request() {
    let place = tempfile::tempdir().expect("a directory");
    for (line, status) in [
        ("run -n 0 x", 2),
        ("run -n 1 --hosts /nowhere x", 1),
        ("send 1:7 /nowhere", 1),
        ("recv 7 --hosts /nowhere", 1),
        ("recv 99999999999", 2),
        ("bench pingpong --to 2 --hosts /nowhere", 2),
        ("calibrate supersteps --ranks x", 2),
        ("calibrate --link x", 2),
        ("predict --bytes 8 --link udp", 1),
        ("graph /nowhere", 2),
        ("stats 99999999", 1),
        ("links 99999999", 1),
        ("trace /nowhere", 1),
        ("agent status", 1),
        ("agent --rules /nowhere", 1),
        ("key show /nowhere", 1),
        ("mpi-env nothing", 2),
        ("mpi-env mpich --ulfm", 2),
        ("sockets", 2),
        ("top --every 0", 2),
        ("report /nowhere/report", 1),
        ("interface status 1:9 --timeout 1", 1),
        ("interface serve 7", 2),
        ("doctor --timeout x", 2),
        ("completions nosh", 2),
        ("nothing", 2),
    ] {
        let line = format!("--json {line}");
        let output = dipole(&line, place.path(), To::Closed).output();
        let output = output.expect("it starts");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{line}: {text}");
        let event: serde_json::Value =
            serde_json::from_str(text.trim()).unwrap_or_else(|_| panic!("{line}: {text}"));
        assert_eq!(event["event"], "error", "{line}: {text}");
        let words = event["text"].as_str().expect("text");
        assert!(words.len() > 10, "{line}: {text}");
        // Words that only programmers understand.
        for word in ["invalid digit", "ParseIntError", "target type"] {
            assert!(!words.contains(word), "{line}: {text}");
        }
    }
}
