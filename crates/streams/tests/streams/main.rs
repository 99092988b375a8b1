//! Four processes and a plain HTTP server, connected through interface processes on one node and on several.
//! The TCP peer may be slow, and a rank or an interface may die.
//!
//! The test runs itself again as the ranks and as the interfaces.

#![allow(missing_docs, reason = "tests")]

mod incoming;

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dipole_node::{Address, Config, Endpoint, EndpointId, Node};
use dipole_streams::{
    Destinations, Interface, InterfaceConfig, Layout, Ranks, Stream, StreamError, Stripes,
};
use dipole_testbed::Testbed;

const RANKS: u32 = 4;
/// Size of each file; not a multiple of any block.
const BYTES: u64 = 1_000_003;
const INTERFACE: u32 = 500;
const PATIENCE: Duration = Duration::from_secs(20);

fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn content() -> Vec<u8> {
    (0..BYTES).map(byte).collect()
}

fn layouts() -> Vec<(&'static str, Layout)> {
    let owners = (0..BYTES.div_ceil(5000)).map(|record| u32::from(byte(record)) % RANKS);
    vec![
        ("block", Layout::block(RANKS, BYTES)),
        ("cyclic", Layout::cyclic(RANKS, 1000)),
        ("block-cyclic", Layout::block_cyclic(RANKS, 8192)),
        ("by-key", Layout::by_key(RANKS, 5000, owners.collect())),
    ]
}

/// The offsets in the stream of each byte of a rank's part.
fn part(layout: &Layout, total: u64, rank: u32) -> Vec<u64> {
    let own = layout.extents(total).filter(|it| it.rank == rank);
    own.flat_map(|it| it.offset..it.offset + it.length)
        .collect()
}

// ---- the processes ----

fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is set by the test"))
}

fn addresses() -> Vec<Address> {
    let text = setting("STREAMS_RANKS");
    text.split(',')
        .map(|it| it.parse().expect("an address"))
        .collect()
}

fn interfaces() -> Vec<Address> {
    let text = setting("STREAMS_INTERFACES");
    text.split(',')
        .map(|it| it.parse().expect("an address"))
        .collect()
}

/// The ranks of a stream. Each rank has an endpoint for each stream.
fn ranks(own: u32, stream: u32) -> Ranks {
    let addresses = addresses().into_iter();
    let addresses = addresses.map(|it| Address::new(it.node.0, it.endpoint.0 + stream));
    Ranks {
        own,
        addresses: addresses.collect(),
    }
}

/// Reads the header of an HTTP response.
fn response(stream: &mut Stream<&Endpoint>) -> Result<String, StreamError> {
    let head = stream.read_raw_until(|it| it.ends_with(b"\r\n\r\n"), 4096)?;
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn put_and_get(own: u32, node: &Node, to: &str) -> Result<(), StreamError> {
    let ranks = ranks(own, 0);
    let endpoint = node.endpoint(ranks.addresses[own as usize].endpoint)?;
    let mut stream = Stream::open(&endpoint, ranks, interfaces()[0], to, PATIENCE)?;
    for (name, layout) in layouts() {
        let places = part(&layout, BYTES, own);
        let bytes: Vec<u8> = places.iter().map(|at| byte(*at)).collect();
        if own == 0 {
            let head =
                format!("PUT /{name} HTTP/1.1\r\nHost: x\r\nContent-Length: {BYTES}\r\n\r\n");
            stream.write_raw(head.as_bytes())?;
        }
        stream.write(&layout, BYTES, &bytes)?;
        if own == 0 {
            let head = response(&mut stream)?;
            assert!(head.starts_with("HTTP/1.1 201"), "{head}");
            stream.write_raw(format!("GET /{name} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())?;
            let head = response(&mut stream)?;
            let length = format!("Content-Length: {BYTES}");
            assert!(
                head.starts_with("HTTP/1.1 200") && head.contains(&length),
                "{head}"
            );
        }
        let mut back = vec![0; bytes.len()];
        let came = stream.read(&layout, BYTES, &mut back)?;
        assert_eq!((came, back == bytes), (BYTES, true), "{name}");
    }
    // Reads more than there is: the peer closes the stream, and all ranks get the number of bytes read.
    if own == 0 {
        stream.write_raw(b"GET /block HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
        response(&mut stream)?;
    }
    let layout = Layout::block_cyclic(RANKS, 10_000);
    let wanted = BYTES + 100_000;
    let mut back = vec![0; part(&layout, wanted, own).len()];
    assert_eq!(stream.read(&layout, wanted, &mut back)?, BYTES);
    for (found, at) in back.iter().zip(part(&layout, wanted, own)) {
        assert_eq!(*found, if at < BYTES { byte(at) } else { 0 });
    }
    let misused = stream.write(&layout, BYTES, &[1]);
    assert!(
        matches!(misused, Err(StreamError::Misuse(_))),
        "{misused:?}"
    );
    stream.close()
}

/// Writes a file over two streams through two interfaces, as two files.
fn striped(own: u32, node: &Node, to: &str) -> Result<(), StreamError> {
    const BLOCK: u64 = 30_000;
    let sets = [ranks(own, 0), ranks(own, 1)];
    let mut endpoints = Vec::new();
    for set in &sets {
        endpoints.push(node.endpoint(set.addresses[own as usize].endpoint)?);
    }
    let mut streams = Vec::new();
    for ((endpoint, set), interface) in endpoints.iter().zip(sets).zip(interfaces()) {
        streams.push(Stream::open(endpoint, set, interface, to, PATIENCE)?);
    }
    let mut stripes = Stripes::new(streams, BLOCK)?;
    let split = stripes.split(BYTES);
    let layout = |_: u64| Layout::block_cyclic(RANKS, 4096);
    let over = Layout::block_cyclic(2, BLOCK);
    let parts: Vec<Vec<u8>> = (0..2)
        .map(|stripe| {
            let whole = part(&over, BYTES, stripe);
            let own = part(&layout(0), split[stripe as usize], own);
            let whole_at = |at| whole[usize::try_from(at).expect("it fits")];
            own.into_iter().map(|at| byte(whole_at(at))).collect()
        })
        .collect();
    if own == 0 {
        for (number, (stream, bytes)) in stripes.streams().iter_mut().zip(&split).enumerate() {
            let head = format!(
                "PUT /stripe{number} HTTP/1.1\r\nHost: x\r\nContent-Length: {bytes}\r\n\r\n"
            );
            stream.write_raw(head.as_bytes())?;
        }
    }
    stripes.write(layout, BYTES, &[&parts[0], &parts[1]])?;
    if own == 0 {
        for (number, stream) in stripes.streams().iter_mut().enumerate() {
            assert!(response(stream)?.starts_with("HTTP/1.1 201"));
            stream
                .write_raw(format!("GET /stripe{number} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())?;
            response(stream)?;
        }
    }
    let (mut one, mut other) = (vec![0; parts[0].len()], vec![0; parts[1].len()]);
    let came = stripes.read(layout, BYTES, &mut [&mut one, &mut other])?;
    assert_eq!(
        (came, one == parts[0], other == parts[1]),
        (BYTES, true, true)
    );
    stripes.close()
}

/// Writes much more than the peer reads at first.
fn flood(own: u32, node: &Node, to: &str, dies: bool) -> Result<(), StreamError> {
    let total = 64 << 20;
    let ranks = ranks(own, 0);
    let endpoint = node.endpoint(ranks.addresses[own as usize].endpoint)?;
    let mut stream = Stream::open(&endpoint, ranks, interfaces()[0], to, PATIENCE)?;
    let layout = Layout::block_cyclic(RANKS, 64 << 10);
    let bytes: Vec<u8> = part(&layout, total, own).into_iter().map(byte).collect();
    println!("begins");
    if dies {
        thread::spawn(|| {
            thread::sleep(Duration::from_millis(500));
            std::process::exit(9);
        });
    }
    stream.write(&layout, total, &bytes)?;
    stream.close()
}

/// Runs as a process of the other tests' jobs. Does nothing on its own.
#[test]
fn as_a_process() {
    if std::env::var_os("STREAMS_ROLE").is_none() {
        return;
    }
    let node = Node::open(Config::from_env().expect("a valid environment")).expect("a node");
    let role = setting("STREAMS_ROLE");
    if let Some(number) = role.strip_prefix("interface ") {
        let number: u32 = number.parse().expect("a number");
        let allowed: SocketAddr = setting("STREAMS_TO").parse().expect("an address");
        let config = InterfaceConfig {
            destinations: Destinations::Only(vec![allowed]),
            ..InterfaceConfig::default()
        };
        let id = EndpointId(INTERFACE + 100 * number);
        let interface = Interface::open(&node, id, config).expect("an interface");
        if let Ok(at) = std::env::var("STREAMS_LISTEN") {
            let at = interface.control().listen(at.parse().expect("an address"));
            println!("listens {}", at.expect("a free port"));
        }
        println!("serves");
        // Serves until the test closes its input.
        let over = &AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(move || {
                let _end = std::io::stdin().read(&mut [0]);
                over.store(true, Ordering::Relaxed);
            });
            interface
                .serve(|| over.load(Ordering::Relaxed))
                .expect("it serves");
        });
        return;
    }
    let own: u32 = setting("STREAMS_RANK").parse().expect("a number");
    let to = setting("STREAMS_TO");
    let done = match &role[..] {
        "put and get" => put_and_get(own, &node, &to),
        "striped" => striped(own, &node, &to),
        "flood" => flood(own, &node, &to, false),
        "dies" => flood(own, &node, &to, own == 2),
        role => match role.strip_prefix("accept ") {
            Some(role) => incoming::rank(role, own, &node),
            None => panic!("{role}"),
        },
    };
    if let Err(error) = done {
        eprintln!("stream: {error}");
        std::process::exit(3);
    }
    node.close(Duration::from_secs(5)).expect("it closes");
}

// ---- what starts them ----

struct Scene<'a> {
    folder: tempfile::TempDir,
    testbed: Option<&'a Testbed>,
    /// The nodes of the ranks and of the interfaces.
    ranks: [u32; RANKS as usize],
    interfaces: [u32; 2],
}

struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

impl Running {
    fn start(command: &mut Command) -> Running {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        Running { child, out }
    }

    /// Ends its input, which stops an interface, and waits for its end.
    fn stop(mut self) {
        drop(self.child.stdin.take());
        assert!(self.finish().status.success());
    }

    /// Reads lines of output until one contains a text; returns that line.
    fn wait_for(&mut self, wanted: &str) -> String {
        let mut line = String::new();
        while !line.contains(wanted) {
            line.clear();
            assert_ne!(
                self.out.read_line(&mut line).expect("a pipe"),
                0,
                "it ended before {wanted}"
            );
        }
        line
    }

    /// Waits for the process to end, which must happen in time.
    fn finish(mut self) -> Output {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("our own process") {
                let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
                self.out.read_to_end(&mut stdout).expect("a pipe");
                let mut err = self.child.stderr.take().expect("a pipe");
                err.read_to_end(&mut stderr).expect("a pipe");
                return Output {
                    status,
                    stdout,
                    stderr,
                };
            }
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "the process hangs"
            );
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl<'a> Scene<'a> {
    fn new(testbed: Option<&'a Testbed>, ranks: [u32; 4], interfaces: [u32; 2]) -> Scene<'a> {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("files")).expect("a folder");
        Scene {
            folder,
            testbed,
            ranks,
            interfaces,
        }
    }

    fn files(&self) -> std::path::PathBuf {
        self.folder.path().join("files")
    }

    fn on(&self, node: u32, program: &Path) -> Command {
        match self.testbed {
            Some(testbed) => testbed.command(node, program),
            None => {
                let mut command = Command::new(program);
                command.env("DIPOLE_RUNTIME_DIR", self.folder.path().join("registry"));
                command.env("DIPOLE_NID", node.to_string());
                command
            }
        }
    }

    fn process(&self, node: u32, role: &str, to: SocketAddr) -> Command {
        let mut command = self.on(node, &std::env::current_exe().expect("this program"));
        let list = |all: Vec<String>| all.join(",");
        let ranks = (0..)
            .zip(self.ranks)
            .map(|(rank, node)| format!("{node}:{}", 1000 + 10 * rank));
        let interfaces = (0..).zip(self.interfaces);
        let interfaces =
            interfaces.map(|(number, node)| format!("{node}:{}", INTERFACE + 100 * number));
        command
            .args(["as_a_process", "--exact", "--nocapture"])
            .env("STREAMS_ROLE", role)
            .env("STREAMS_RANKS", list(ranks.collect()))
            .env("STREAMS_INTERFACES", list(interfaces.collect()))
            .env("STREAMS_TO", to.to_string());
        command
    }

    fn interface(&self, number: u32, to: SocketAddr) -> Running {
        let node = self.interfaces[number as usize];
        let mut running =
            Running::start(&mut self.process(node, &format!("interface {number}"), to));
        running.wait_for("serves");
        running
    }

    /// Starts the first interface, which listens at an address. Returns it with its port.
    fn listener(&self, at: &str) -> (Running, SocketAddr) {
        let to = "127.0.0.1:9".parse().expect("an address");
        let mut command = self.process(self.interfaces[0], "interface 0", to);
        let mut running = Running::start(command.env("STREAMS_LISTEN", at));
        let line = running.wait_for("listens");
        running.wait_for("serves");
        let (_, at) = line.trim().split_once(' ').expect("an address");
        (running, at.parse().expect("an address"))
    }

    fn start(&self, role: &str, to: SocketAddr) -> Vec<Running> {
        let all = (0..).zip(self.ranks);
        let start = |(rank, node): (u32, u32)| {
            Running::start(
                self.process(node, role, to)
                    .env("STREAMS_RANK", rank.to_string()),
            )
        };
        all.map(start).collect()
    }

    /// Starts an HTTP server on a node. Returns its address.
    fn server(&self, node: u32) -> (Running, SocketAddr) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/py/server.py");
        let mut command = self.on(node, Path::new("python3"));
        let mut running = Running::start(command.arg(script).arg(self.files()));
        let mut line = String::new();
        running
            .out
            .read_line(&mut line)
            .expect("it prints its port");
        let port: u16 = line.trim().parse().expect("a port");
        let host = match self.testbed {
            Some(testbed) => testbed.node(node).addresses[0].to_string(),
            None => "127.0.0.1".into(),
        };
        let address = format!("{host}:{port}").parse().expect("an address");
        (running, address)
    }

    fn run(&self, role: &str, to: SocketAddr) {
        for (rank, running) in self.start(role, to).into_iter().enumerate() {
            let output = running.finish();
            assert!(output.status.success(), "rank {rank}: {output:?}");
        }
    }

    fn check_files(&self) {
        let read = |name: &str| std::fs::read(self.files().join(name)).expect("it was put");
        for (name, _) in layouts() {
            assert!(read(name) == content(), "{name}");
        }
        let (whole, mut stripes) = (content(), [Vec::new(), Vec::new()]);
        for (number, block) in whole.chunks(30_000).enumerate() {
            stripes[number % 2].extend_from_slice(block);
        }
        assert!(read("stripe0") == stripes[0] && read("stripe1") == stripes[1]);
    }
}

fn has_python() -> bool {
    let found = Command::new("python3").arg("--version").output().is_ok();
    if !found {
        eprintln!("SKIPPED: python3 is not installed; this test needs its HTTP server");
    }
    found
}

fn exchange(scene: &Scene<'_>, server: u32) {
    let (_server, to) = scene.server(server);
    let _interfaces = [scene.interface(0, to), scene.interface(1, to)];
    scene.run("put and get", to);
    scene.run("striped", to);
    scene.check_files();
}

#[test]
fn four_processes_of_a_node_write_to_and_read_from_an_http_server() {
    if has_python() {
        exchange(&Scene::new(None, [1; 4], [1; 2]), 1);
    }
}

#[test]
fn four_processes_of_two_nodes_use_interfaces_on_other_nodes() {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    if has_python() {
        let testbed = Testbed::builder()
            .nodes(3)
            .build()
            .expect("a testbed can be made");
        exchange(&Scene::new(Some(&testbed), [1, 1, 2, 2], [2, 3]), 3);
    }
}

/// A listener that never accepts a connection, so nothing is read.
fn silent_listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it has one");
    (listener, address)
}

#[test]
fn a_slow_peer_makes_the_ranks_wait_and_loses_nothing() {
    let scene = Scene::new(None, [1; 4], [1; 2]);
    let (listener, to) = silent_listener();
    let _interface = scene.interface(0, to);
    let mut ranks = scene.start("flood", to);
    let (mut peer, _) = listener.accept().expect("the interface connects");
    for rank in &mut ranks {
        rank.wait_for("begins");
    }
    thread::sleep(Duration::from_millis(500));
    for rank in &mut ranks {
        let ended = rank.child.try_wait().expect("our own process");
        assert!(ended.is_none(), "a rank has continued: {ended:?}");
    }
    let mut bytes = Vec::new();
    peer.read_to_end(&mut bytes)
        .expect("it is closed in the end");
    assert_eq!(bytes.len(), 64 << 20);
    assert!((0..).zip(&bytes).all(|(at, found)| byte(at) == *found));
    for rank in ranks {
        let output = rank.finish();
        assert!(output.status.success(), "{output:?}");
    }
}

/// Checks that all ranks fail soon, with one of these errors.
fn all_fail_with(ranks: Vec<Running>, errors: &[&str]) {
    for (rank, running) in ranks.into_iter().enumerate() {
        let began = Instant::now();
        let output = running.finish();
        if output.status.code() == Some(9) {
            continue;
        }
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "rank {rank}: {output:?}");
        assert!(
            errors.iter().any(|error| stderr.contains(error)),
            "rank {rank}: {stderr}"
        );
        assert!(began.elapsed() < PATIENCE, "rank {rank} fails late");
    }
}

#[test]
fn when_a_rank_dies_the_others_fail_and_name_it() {
    let scene = Scene::new(None, [1; 4], [1; 2]);
    let (listener, to) = silent_listener();
    let _interface = scene.interface(0, to);
    let ranks = scene.start("dies", to);
    let (_peer, _) = listener.accept().expect("the interface connects");
    all_fail_with(ranks, &["has ended the stream: rank 2: "]);
}

#[test]
fn when_the_interface_dies_all_all_fail_with() {
    let scene = Scene::new(None, [1; 4], [1; 2]);
    let (listener, to) = silent_listener();
    let mut interface = scene.interface(0, to);
    let mut ranks = scene.start("flood", to);
    let (_peer, _) = listener.accept().expect("the interface connects");
    for rank in &mut ranks {
        rank.wait_for("begins");
    }
    thread::sleep(Duration::from_millis(300));
    interface.child.kill().expect("our own process");
    all_fail_with(ranks, &["1:501"]);
}

#[test]
fn a_destination_that_is_not_allowed_or_not_reachable_is_reported() {
    let scene = Scene::new(None, [1; 4], [1; 2]);
    let (listener, to) = silent_listener();
    drop(listener);
    let _interface = scene.interface(0, to);
    all_fail_with(scene.start("flood", to), &["cannot connect to"]);
    let elsewhere = "127.0.0.1:9".parse().expect("an address");
    all_fail_with(
        scene.start("flood", elsewhere),
        &["not among the destinations"],
    );
}
