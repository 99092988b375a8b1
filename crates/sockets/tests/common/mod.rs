//! Helpers for tests with unmodified programs.

#![allow(dead_code, reason = "each test uses some of it")]

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use dipole_testbed::Testbed;

/// A program that takes longer counts as hung.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let places = test.ancestors().skip(1).take(2);
    let mut libraries = places.map(|folder| folder.join("libdipole_sockets.so"));
    let found = libraries.find(|library| library.exists());
    found.unwrap_or_else(|| panic!("no library next to {}", test.display()))
}

/// The directory in which the ends of one test find each other.
pub(crate) struct Place {
    pub(crate) folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Place {
        let folder = tempfile::tempdir().expect("a folder");
        Place { folder }
    }

    pub(crate) fn command(&self, program: impl AsRef<Path>, with: bool) -> Command {
        let mut command = Command::new(program.as_ref());
        command
            .env_remove("LD_PRELOAD")
            .env("DIPOLE_RUNTIME_DIR", self.folder.path());
        if with {
            command.env("LD_PRELOAD", library());
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

/// Waits for a program to end and checks that it succeeded.
pub(crate) fn finished(child: Child) -> Output {
    finished_within(child, LIMIT)
}

/// Waits for the end of a process within a time limit.
pub(crate) fn finished_within(child: Child, limit: Duration) -> Output {
    let output = ended_within(child, limit);
    let said = String::from_utf8_lossy(&output.stderr);
    let also = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {said}{also}", output.status);
    output
}

/// Waits for a program to end, successful or not.
pub(crate) fn ended_within(child: Child, limit: Duration) -> Output {
    let pid = child.id();
    let (told, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || told.send(child.wait_with_output()));
    let Ok(output) = wait.recv_timeout(limit) else {
        let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
        panic!("a program hangs");
    };
    output.expect("its output")
}

/// Two nodes in network namespaces; `None` with a message if they cannot be created.
pub(crate) fn two_nodes() -> Option<Testbed> {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return None;
    }
    let built = Testbed::builder().nodes(2).build();
    Some(built.expect("a testbed can be made here"))
}

/// Bytes carried over TCP and in total, from a last line `x of y`.
pub(crate) fn carried(text: &[u8]) -> (u64, u64) {
    let text = String::from_utf8_lossy(text);
    let line = text.lines().last().unwrap_or_default();
    let (some, all) = line.split_once(" of ").unwrap_or_else(|| panic!("{text}"));
    (
        some.parse().expect("a number"),
        all.parse().expect("a number"),
    )
}

/// Starts a server that prints its port first; returns that, too.
pub(crate) fn start_server(mut command: Command) -> (Child, String) {
    let mut server = command.spawn().expect("python3 starts");
    let mut line = String::new();
    let said = server.stdout.as_mut().expect("it is piped");
    // The server prints only the port before a client connects.
    while !line.ends_with('\n') {
        let mut byte = [0];
        assert_eq!(
            said.read(&mut byte).expect("its port"),
            1,
            "the server ended"
        );
        line.push(char::from(byte[0]));
    }
    (server, line.trim().to_owned())
}

/// True if all programs are installed; otherwise prints the missing ones.
pub(crate) fn has(programs: &[&str]) -> bool {
    let missing = |name: &&&str| {
        let found = Command::new("sh")
            .args(["-c", "command -v \"$0\"", name])
            .output();
        !found.is_ok_and(|found| found.status.success())
    };
    let missing = programs.iter().find(missing);
    if let Some(name) = missing {
        eprintln!("SKIPPED: {name} is not installed");
    }
    missing.is_none()
}
