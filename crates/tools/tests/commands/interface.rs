//! `dipole interface`: an interface in a process of its own serves ranks, shows its streams and is
//! stopped; also on another node.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use dipole_node::{Address, Config, EndpointId, Node, NodeId};
use dipole_streams::{Callers, Layout, Ranks, Stream};
use serde_json::Value;

const DIPOLE: &str = env!("CARGO_BIN_EXE_dipole");
const PATIENCE: Duration = Duration::from_secs(60);
const BYTES: usize = 100_000;

/// A process that ends with its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

fn dipole(place: &Path, line: &str) -> Command {
    let mut command = dipole_testbed::isolated_command(DIPOLE);
    command
        .current_dir(place)
        .env("DIPOLE_RUNTIME_DIR", place.join("dipole"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .args(line.split_whitespace());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// An interface that serves; its first line of output, as JSON.
fn serve(place: &Path, options: &str) -> (Killed, Value) {
    let mut command = dipole(place, &format!("--json interface serve {options}"));
    let mut child: Child = command.spawn().expect("it starts");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    let serving = serde_json::from_str(&line);
    let serving = serving.unwrap_or_else(|_| {
        let mut complaint = String::new();
        let mut errors = child.stderr.take().expect("a pipe");
        errors.read_to_string(&mut complaint).expect("text");
        panic!("{line}: {complaint}")
    });
    (Killed(child), serving)
}

fn request(place: &Path, line: &str) -> Output {
    dipole(place, line).output().expect("it starts")
}

#[test]
fn ranks_read_from_a_client_of_an_interface_that_a_command_holds() {
    let place = tempfile::tempdir().expect("a directory");
    let (mut interface, serving) = serve(place.path(), "1:500 --listen 127.0.0.1:0");
    assert_eq!(serving["at"], "1:500", "{serving}");
    let listens = serving["listens"][0].as_str().expect("an address");
    let node = Node::open(Config::local(NodeId(1), place.path().join("dipole")));
    let node = node.expect("a node on loopback");
    let endpoint = node.endpoint(EndpointId(7)).expect("a free endpoint");
    let ranks = Ranks {
        own: 0,
        addresses: vec![endpoint.address()],
    };
    let mut client = TcpStream::connect(listens).expect("it listens");
    client.write_all(&[7; BYTES]).expect("it is accepted");
    let port = listens
        .rsplit_once(':')
        .and_then(|(_, port)| port.parse().ok());
    let callers = Callers {
        port: port.expect("a port"),
        wait: PATIENCE,
    };
    let at = Address::new(1, 500);
    let mut stream =
        Stream::accept(&endpoint, ranks, at, callers, PATIENCE).expect("a client waits");
    let layout = Layout::block(1, BYTES as u64);
    let mut part = vec![0; BYTES];
    stream
        .read(&layout, BYTES as u64, &mut part)
        .expect("it was sent");
    assert!(part == [7; BYTES]);

    let shown = request(place.path(), "--json interface status 1:500");
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    let shown: Value = serde_json::from_slice(&shown.stdout).expect("one stream");
    assert_eq!(shown["read"]["bytes"], BYTES, "{shown}");
    assert_eq!(shown["ranks"][0], "1:7", "{shown}");
    assert_eq!(shown["waits_for"], "the next call of rank 0", "{shown}");
    let own = client.local_addr().expect("it is connected").to_string();
    assert_eq!(shown["peer"], own, "{shown}");
    let table = text(&request(place.path(), "interface status 1:500").stdout);
    assert!(table.contains(&own) && table.contains("rank 0"), "{table}");

    // It serves the open stream to its end.
    let stopped = request(place.path(), "interface stop 1:500");
    assert!(stopped.status.success(), "{}", text(&stopped.stderr));
    let printed = text(&stopped.stdout);
    assert!(printed.contains("after 1 open streams"), "{printed}");
    stream
        .write(&layout, BYTES as u64, &part)
        .expect("it still serves");
    stream.close().expect("it still serves");
    let mut back = Vec::new();
    client.read_to_end(&mut back).expect("it was sent");
    assert!(back == part);
    assert!(interface.0.wait().expect("it ends").success());
    let gone = request(place.path(), "interface status 1:500 --timeout 1");
    assert_eq!(gone.status.code(), Some(1), "{}", text(&gone.stdout));
}

#[test]
fn an_interface_of_a_program_is_shown_but_not_stopped() {
    let place = tempfile::tempdir().expect("a directory");
    let node = Node::open(Config::local(NodeId(1), place.path().join("dipole")));
    let node = node.expect("a node on loopback");
    let interface = dipole_streams::Interface::open(&node, EndpointId(500), Default::default());
    let interface = interface.expect("a free endpoint");
    let ends = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| interface.serve(|| ends.load(std::sync::atomic::Ordering::Relaxed)));
        let shown = request(place.path(), "interface status 1:500");
        let stopped = request(place.path(), "interface stop 1:500");
        ends.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(
            text(&shown.stdout),
            "no open streams\n",
            "{}",
            text(&shown.stderr)
        );
        assert_eq!(stopped.status.code(), Some(1));
        let printed = text(&stopped.stderr);
        assert!(printed.contains("belongs to a program"), "{printed}");
    });
}

#[test]
fn an_interface_is_started_on_another_node_and_stopped_from_here() {
    let place = tempfile::tempdir().expect("a directory");
    let hosts = format!(
        "1 127.0.0.1 ssh=local runtime={0}\n2 127.0.0.2 ssh=local runtime={0}2\n",
        place.path().join("dipole").display()
    );
    std::fs::write(place.path().join("hosts"), hosts).expect("our file");
    let (mut interface, serving) = serve(place.path(), "2:500 --hosts hosts --nid 1");
    assert_eq!(serving["at"], "2:500", "{serving}");
    let from_here = |what: &str| {
        let mut command = dipole(place.path(), &format!("interface {what} 2:500"));
        command.env("DIPOLE_HOSTS", place.path().join("hosts"));
        command.env("DIPOLE_NID", "1");
        command.output().expect("it starts")
    };
    let shown = from_here("status");
    assert_eq!(
        text(&shown.stdout),
        "no open streams\n",
        "{}",
        text(&shown.stderr)
    );
    let stopped = from_here("stop");
    assert!(stopped.status.success(), "{}", text(&stopped.stderr));
    assert!(interface.0.wait().expect("it ends").success());
    let unknown = request(place.path(), "interface serve 9:500 --hosts hosts --nid 1");
    assert!(
        text(&unknown.stderr).contains("does not list"),
        "{}",
        text(&unknown.stderr)
    );
}
