//! Unmodified programs with the library, without it, and with one end each.

#![allow(missing_docs, reason = "tests")]

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use dipole_testbed::c_programs::compile;

use common::{
    LIMIT, Place, carried, ended_within, finished, finished_within, start_server, two_nodes,
};

fn python(place: &Place, script: &str, words: &[&str], with: bool) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/py")
        .join(script);
    let mut command = place.command("python3", with);
    command.arg(script).args(words);
    command
}

#[test]
fn a_program_sees_no_difference() {
    let place = Place::new();
    let program = semantics(&place);
    let [plain, with] = [false, true]
        .map(|with| finished(place.command(&program, with).spawn().expect("it starts")));
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text(&plain), text(&with));
    let ((all, _), (rest, of)) = (carried(&plain.stderr), carried(&with.stderr));
    // The program writes from one thread and reads from another, so some data always goes over TCP.
    assert!(
        all > of / 2 && rest < all / 4 * 3,
        "{rest} of {all} used TCP: shared memory was hardly used"
    );
}

#[test]
fn unusual_calls_signals_and_descriptors_behave_as_over_tcp() {
    for with in [false, true] {
        let place = Place::new();
        let program = compiled(&place, "edges");
        let done = finished(place.command(&program, with).spawn().expect("it starts"));
        let text = String::from_utf8_lossy(&done.stdout);
        assert_eq!(text, "all calls do what they do over TCP\n", "with: {with}");
    }
}

#[test]
fn unread_bytes_are_put_back_before_something_else_reads_them() {
    let place = Place::new();
    let program = compiled(&place, "put_back");
    let [plain, with] = [false, true].map(|with| {
        let done = place.command(&program, with).spawn().expect("it starts");
        let done = ended_within(done, LIMIT);
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success(), "with: {with}: {text}");
        assert_eq!(String::from_utf8_lossy(&done.stderr), "", "with: {with}");
        text
    });
    assert_eq!(plain, with);
    assert!(with.ends_with("as before exec\n"), "{with}");
    let mut refused = place.command(&program, true);
    let refused = finished(refused.arg("refused").spawn().expect("it starts"));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("fdopen on descriptor"), "{said}");
}

#[test]
fn a_program_with_an_allocator_of_its_own_forks() {
    let place = Place::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/forks.c");
    let program = place.folder.path().join("forks");
    let mut link = Command::new("cc");
    link.args(["-O1", "-pthread", "-o"])
        .arg(&program)
        .arg(source);
    // Linked statically it registers its handlers of fork() after the library.
    let linked = link.args(["-l:libjemalloc.a", "-lm"]).output();
    if !linked.is_ok_and(|linked| linked.status.success()) {
        eprintln!("SKIPPED: libjemalloc.a (libjemalloc-dev) or cc is not installed");
        return;
    }
    let done = finished(place.command(&program, true).spawn().expect("it starts"));
    assert_eq!(
        String::from_utf8_lossy(&done.stdout),
        "forked and allocated\n"
    );
}

#[test]
fn between_namespaces_a_program_sees_no_difference_either() {
    let Some(testbed) = two_nodes() else { return };
    let place = Place::new();
    let program = semantics(&place);
    let other = testbed.node(2);
    let address = other.addresses[0].to_string();
    for node in 1..=2 {
        // Add it to the interface with the other address.
        let script = "ip addr add fd77::$0/64 nodad dev $(ip -br -4 addr | \
            awk -v at=\"$1/\" 'index($3, at) { sub(/@.*/, \"\", $1); print $1 }')";
        let own = testbed.node(node).addresses[0].to_string();
        let mut add = testbed.command(node, "sh");
        let added = add.args(["-c", script, &node.to_string(), &own]).output();
        let added = added.expect("a shell starts");
        let said = String::from_utf8_lossy(&added.stderr);
        assert!(added.status.success(), "{said}");
    }
    let file = format!("/run/netns/{}", other.namespace);
    let [plain, with] = [false, true].map(|with| {
        let mut command = testbed.command(1, "env");
        if with {
            command.arg(format!("LD_PRELOAD={}", common::library().display()));
        }
        command.arg(&program).args([&file, &address, "fd77::2"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        finished(command.spawn().expect("it starts"))
    });
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text(&plain), text(&with));
    let ((all, of), (also, _)) = (carried(&plain.stderr), carried(&with.stderr));
    assert!(all > of / 2 && also > all / 4 * 3, "{all}, {also} of {of}");
}

/// Compiles the program that exercises the socket calls.
fn semantics(place: &Place) -> PathBuf {
    compiled(place, "semantics")
}

fn compiled(place: &Place, name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{name}.c"));
    let program = place.folder.path().join(name);
    let options = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"];
    compile("cc", &source, &program, &options, &[]);
    program
}

#[test]
fn two_ends_share_memory_and_one_alone_uses_plain_tcp() {
    for (server_with, client_with) in [(true, true), (true, false), (false, true)] {
        let place = Place::new();
        let (server, port) =
            start_server(python(&place, "stream.py", &["server", "0"], server_with));
        let client = python(&place, "stream.py", &["client", &port], client_with);
        let client = finished({ client }.spawn().expect("python3 starts"));
        let server = finished(server);
        let ((one, all), (other, _)) = (carried(&client.stdout), carried(&server.stdout));
        if server_with && client_with {
            assert!(one + other < all * 2, "{one} and {other} of {all} used TCP");
        } else {
            assert!(one >= all && other >= all, "{one} and {other} of {all}");
        }
        let left = std::fs::read_dir(place.folder.path().join("sockets"));
        assert_eq!(left.map_or(0, Iterator::count), 0, "files were left");
    }
}

#[test]
fn many_clients_of_an_asyncio_server_get_their_bytes() {
    for (server_with, client_with) in [(true, true), (true, false)] {
        let place = Place::new();
        let (mut server, port) =
            start_server(python(&place, "web.py", &["server", "0"], server_with));
        let client = python(&place, "web.py", &["client", &port], client_with).spawn();
        let client = finished(client.expect("python3 starts"));
        assert_eq!(String::from_utf8_lossy(&client.stdout), "all 160\n");
        server.kill().expect("it still runs");
        let _ = server.wait();
    }
}

#[test]
fn closed_connections_leave_nothing_behind_at_either_end() {
    // 1000 at once, repeated 10 times, or DIPOLE_SOCKETS_ROUNDS times.
    let wanted = std::env::var("DIPOLE_SOCKETS_ROUNDS");
    let rounds = wanted.unwrap_or_else(|_| "3".into());
    let limit = LIMIT * rounds.parse::<u32>().expect("a number").div_ceil(10);
    let place = Place::new();
    // Use tmpfs, like the default directory: a disk takes twice as long.
    let memory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let memory = memory.expect("a folder");
    let many = |words: &[&str]| {
        let mut command = python(&place, "many.py", words, true);
        command.env("DIPOLE_RUNTIME_DIR", memory.path());
        command
    };
    let (server, port) = start_server(many(&["server", "1000", &rounds]));
    let client = many(&["client", "1000", &rounds, &port]).spawn();
    let client = finished_within(client.expect("python3 starts"), limit);
    finished(server);
    eprint!("{}", String::from_utf8_lossy(&client.stderr));
    let (by_tcp, all) = carried(&client.stdout);
    assert!(
        by_tcp < all,
        "{by_tcp} of {all}: shared memory was not used"
    );
}

#[test]
fn a_killed_peer_leaves_a_prefix_and_an_end_of_stream() {
    const WRITER: &str = "
import socket, sys
end = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
block = bytes(range(256)) * 512
while True:
    end.sendall(block)
";
    const READER: &str = "
import socket
listener = socket.create_server(('127.0.0.1', 0))
print(listener.getsockname()[1], flush=True)
end, _ = listener.accept()
all = 0
try:
    while some := end.recv(100000):
        at = all % 256
        pattern = (bytes(range(256)) * (len(some) // 256 + 2))[at : at + len(some)]
        assert some == pattern, 'not what was sent'
        if all < 20_000_000 <= all + len(some):
            print('far', flush=True)
        all += len(some)
except ConnectionResetError:
    pass
print('ended', flush=True)
";
    for _ in 0..3 {
        let place = Place::new();
        let scripted = |script: &str, words: &[&str]| {
            let mut command = place.command("python3", true);
            command.args(["-c", script]).args(words);
            command
        };
        let (mut reader, port) = start_server(scripted(READER, &[]));
        let mut writer = scripted(WRITER, &[&port]).spawn().expect("python3 starts");
        let mut said = BufReader::new(reader.stdout.take().expect("it is piped"));
        let mut line = String::new();
        said.read_line(&mut line).expect("a line");
        assert_eq!(line, "far\n");
        writer.kill().expect("it still writes");
        let _ = writer.wait();
        let begun = Instant::now();
        line.clear();
        said.read_line(&mut line).expect("a line");
        assert_eq!(line, "ended\n", "after {:?}", begun.elapsed());
        finished(reader);
    }
}

#[test]
fn redis_keeps_large_values() {
    if Command::new("redis-server")
        .arg("--version")
        .output()
        .is_err()
    {
        eprintln!("SKIPPED: redis-server is not installed");
        return;
    }
    let place = Place::new();
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = free.local_addr().expect("an address").port().to_string();
    drop(free);
    let mut server = place.command("redis-server", true);
    server.args([
        "--port",
        &port,
        "--save",
        "",
        "--appendonly",
        "no",
        "--bind",
        "127.0.0.1",
    ]);
    let mut server = server.stdout(Stdio::null()).spawn().expect("redis starts");
    let begun = Instant::now();
    while std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_err() {
        assert!(begun.elapsed() < LIMIT, "redis does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut load = place.command("redis-benchmark", true);
    load.args([
        "-p", &port, "-t", "set,get", "-d", "200000", "-n", "400", "-c", "8", "-q",
    ]);
    finished(load.spawn().expect("it starts"));
    let mut question = place.command("redis-cli", true);
    question.args(["-p", &port, "strlen", "key:__rand_int__"]);
    let answer = finished(question.spawn().expect("it starts"));
    assert_eq!(String::from_utf8_lossy(&answer.stdout).trim(), "200000");
    server.kill().expect("it still runs");
    let _ = server.wait();
}
