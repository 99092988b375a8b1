//! Programs that use only files read and write endpoints under `dipole sockets`.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use dipole_testbed::{Testbed, built};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A program that runs longer than this hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// A node for one test.
struct Place {
    folder: tempfile::TempDir,
    library: PathBuf,
}

impl Place {
    fn new() -> Place {
        Place {
            folder: tempfile::tempdir().expect("a folder"),
            library: built::libraries().join("libdipole_sockets.so"),
        }
    }

    fn command(&self, program: &str, words: &[&str]) -> Command {
        let mut command = dipole_testbed::isolated_command(program);
        command
            .args(words)
            .env_remove("DIPOLE_HOSTS")
            .env_remove("DIPOLE_NID")
            .env("DIPOLE_RUNTIME_DIR", self.folder.path())
            .env("DIPOLE_PROGRAM", env!("CARGO_BIN_EXE_dipole"))
            .env("LD_PRELOAD", &self.library)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn start(&self, program: &str, words: &[&str]) -> Child {
        let mut command = self.command(program, words);
        command.spawn().expect("the program starts")
    }

    fn python(&self, script: &str) -> Child {
        self.start("python3", &["-c", script])
    }
}

/// Waits for a program's end.
fn end(child: Child) -> Output {
    let pid = child.id();
    let (told, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || told.send(child.wait_with_output()));
    let Ok(output) = wait.recv_timeout(LIMIT) else {
        let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
        panic!("a program hangs");
    };
    output.expect("its output")
}

/// Waits for a program's end, which must be successful; returns its output.
fn finished(child: Child) -> Vec<u8> {
    let output = end(child);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    output.stdout
}

fn line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).expect("a line");
    line.trim_end().to_owned()
}

/// A receiver that reports when its endpoint is open, because sending before that would be too early.
fn opened(mut child: Child) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut said = BufReader::new(child.stdout.take().expect("it is piped"));
    let first = line(&mut said);
    if first != "open" {
        let mut rest = String::new();
        let stderr = child.stderr.take();
        let _ = stderr.map(|mut stderr| stderr.read_to_string(&mut rest));
        panic!("it said {first:?} {rest}");
    }
    (child, said)
}

#[test]
fn cat_dd_and_a_shell_send_and_receive() {
    let place = Place::new();
    let seed = std::env::var("DIPOLE_SEED").map_or(17, |seed| seed.parse().expect("a number"));
    println!("DIPOLE_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut bytes = vec![0_u8; 2_000_000 + random.random_range(0..1000)];
    random.fill(&mut bytes[..]);
    let file = place.folder.path().join("file");
    std::fs::write(&file, &bytes).expect("a file");
    let file = file.to_str().expect("a name");

    // The shell opens it, and `cat`, which inherits the descriptor, reads it.
    let script = "exec < /dev/dipole/7; echo open; exec cat";
    let (reader, mut said) = opened(place.start("sh", &["-c", script]));
    let sent = place.start("sh", &["-c", "cat \"$0\" > /dev/dipole/1:7", file]);
    finished(sent);
    let mut got = Vec::new();
    said.read_to_end(&mut got).expect("all of it");
    assert!(got == bytes, "{} of {} bytes", got.len(), bytes.len());
    finished(reader);

    let copy = place.folder.path().join("copy");
    let copy = copy.to_str().expect("a name");
    let script = "exec < /dev/dipole/8; echo open; exec dd of=\"$0\"";
    let (reader, _said) = opened(place.start("sh", &["-c", script, copy]));
    let from = format!("if={file}");
    finished(place.start("dd", &[&from, "of=/dev/dipole/1:8", "bs=100k"]));
    finished(reader);
    let got = std::fs::read(copy).expect("a copy");
    assert!(got == bytes, "{} of {} bytes", got.len(), bytes.len());
}

#[test]
fn a_file_goes_from_node_to_node() {
    let place = Place::new();
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    let testbed = Testbed::builder().nodes(2).build();
    let testbed = testbed.expect("a testbed can be made here");
    let bytes: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    let file = place.folder.path().join("file");
    std::fs::write(&file, &bytes).expect("a file");
    let run = |node: u32, script: &str| {
        let mut command = testbed.command(node, "env");
        command
            .arg(format!("LD_PRELOAD={}", place.library.display()))
            .args(["sh", "-c", script])
            .arg(&file)
            .env("DIPOLE_PROGRAM", env!("CARGO_BIN_EXE_dipole"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().expect("a shell starts")
    };
    let (reader, mut said) = opened(run(2, "exec < /dev/dipole/7; echo open; exec cat"));
    finished(run(1, "cat \"$0\" > /dev/dipole/2:7"));
    let mut got = Vec::new();
    said.read_to_end(&mut got).expect("all of it");
    assert!(got == bytes, "{} of {} bytes", got.len(), bytes.len());
    finished(reader);
}

#[test]
fn a_read_returns_one_message_and_leaves_the_rest_of_a_longer_one() {
    let place = Place::new();
    let (reader, mut said) = opened(place.python(
        "
import os, select
fd = os.open('/dev/dipole/7', os.O_RDONLY)
poll = select.epoll()
poll.register(fd, select.EPOLLIN)
assert poll.poll(0) == [], 'nothing was sent'
print('open', flush=True)
lengths = []
while poll.poll(60):
    some = os.read(fd, 1500)
    if not some:
        break
    lengths.append(len(some))
print(*lengths, flush=True)
",
    ));
    let writer = place.python(
        "
import os
fd = os.open('/dev/dipole/1:7', os.O_WRONLY)
for length in [10, 20, 4000, 1, 1]:
    os.write(fd, b'm' * length)
",
    );
    finished(writer);
    assert_eq!(line(&mut said), "10 20 1500 1500 1000 1 1");
    finished(reader);
}

#[test]
fn a_stream_ends_with_its_last_sender_and_a_killed_server_is_an_error() {
    let place = Place::new();
    let reads = "
import os
fd = os.open('/dev/dipole/7', os.O_RDONLY)
print('open', flush=True)
try:
    while some := os.read(fd, 100):
        print(some.decode(), flush=True)
    print('end', flush=True)
except ConnectionResetError:
    print('reset', flush=True)
";
    let writes = "
import os, sys
fd = os.open('/dev/dipole/1:7', os.O_WRONLY)
os.write(fd, b'first')
print('open', flush=True)
sys.stdin.read()
";
    let writer = || {
        let mut command = place.command("python3", &["-c", writes]);
        opened(command.stdin(Stdio::piped()).spawn().expect("it starts")).0
    };
    let (reader, mut said) = opened(place.python(reads));
    let (mut one, mut other) = (writer(), writer());
    assert_eq!([line(&mut said), line(&mut said)], ["first", "first"]);
    // A killed program closes its files.
    one.kill().expect("it lives");
    let _ = one.wait();
    let mut input = other.stdin.take().expect("it is piped");
    input.write_all(b"more").expect("it reads");
    drop(input);
    finished(other);
    assert_eq!(line(&mut said), "end");
    finished(reader);

    let (reader, mut said) = opened(place.python(reads));
    let mut one = writer();
    assert_eq!(line(&mut said), "first");
    // The server of the path, of this reader only: its arguments contain the endpoint.
    let own = place.folder.path().to_str().expect("a name").to_owned();
    let server = std::fs::read_dir("/proc").expect("processes").flatten();
    let mut servers = server.filter(|entry| {
        let read = |file: &str| std::fs::read(entry.path().join(file)).unwrap_or_default();
        let words = read("cmdline").ends_with(b"\0endpoint-file\x007\0");
        words && String::from_utf8_lossy(&read("environ")).contains(&own)
    });
    let server = servers.next().expect("a process serves the path");
    let pid = server.file_name();
    let killed = Command::new("kill").arg("-9").arg(pid).status();
    assert!(killed.expect("kill runs").success());
    assert_eq!(line(&mut said), "reset");
    finished(reader);
    one.kill().expect("it lives");
    let _ = one.wait();
}

#[test]
fn shutting_down_the_unused_direction_changes_nothing() {
    let place = Place::new();
    let (reader, mut said) = opened(place.python(
        "
import os, socket, time
fd = os.open('/dev/dipole/7', os.O_RDONLY)
end = socket.socket(fileno=fd)
end.shutdown(socket.SHUT_WR)
# The server looks every 0.1 s whether the file is still open.
time.sleep(0.5)
print('open', flush=True)
print(*iter(lambda: os.read(fd, 100).decode(), ''), flush=True)
",
    ));
    let writer = place.python(
        "
import os, socket
fd = os.open('/dev/dipole/1:7', os.O_WRONLY)
end = socket.socket(fileno=fd)
end.shutdown(socket.SHUT_RD)
# Writes of nothing have no effect.
for text in ['one', '', '', 'two']:
    end.send(text.encode())
end.shutdown(socket.SHUT_WR)
",
    );
    finished(writer);
    assert_eq!(line(&mut said), "one two");
    finished(reader);
}

#[test]
fn a_failed_open_reports_the_reason() {
    let place = Place::new();
    let (mut holder, _said) = opened(place.python(
        "
import os, time
fd = os.open('/dev/dipole/7', os.O_RDONLY)
print('open', flush=True)
time.sleep(1000)
",
    ));
    for (path, how, errno, text) in [
        (
            "7",
            "O_RDONLY",
            "EADDRINUSE",
            "end that process or choose another",
        ),
        ("7", "O_WRONLY", "EACCES", "it is read-only"),
        ("1:7", "O_RDWR", "EACCES", "it is write-only"),
        ("no-number", "O_RDONLY", "EINVAL", "neither an endpoint"),
        ("1:2:3", "O_WRONLY", "EINVAL", "neither an endpoint"),
    ] {
        let script = format!(
            "
import errno, os
try:
    os.open('/dev/dipole/{path}', os.{how})
except OSError as error:
    print(errno.errorcode[error.errno])
"
        );
        let output = end(place.python(&script));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            String::from_utf8_lossy(&output.stdout).trim(),
            errno,
            "{path}: {said}"
        );
        assert!(said.contains(text), "{path}: {said}");
    }
    holder.kill().expect("it lives");
    let _ = holder.wait();

    let mut command = place.command("cat", &["/dev/dipole/9"]);
    command.env_remove("DIPOLE_PROGRAM");
    let output = end(command.spawn().expect("cat starts"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("start the program with `dipole sockets`"),
        "{said}"
    );
}
