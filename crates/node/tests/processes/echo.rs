//! A thousand clients of one echo server, a third of which are killed during their exchanges. The
//! others get every echo, new clients are served, and the server keeps nothing for the dead ones.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dipole_node::{Address, Config, Endpoint, EndpointId, Links, Node, NodeId};
use dipole_testbed::built;

const SERVER: Address = Address {
    node: NodeId(1),
    endpoint: EndpointId(7),
};
/// Client processes, and endpoints of each. Every endpoint is a client with one open request.
const PROCESSES: u32 = 20;
const EACH: u32 = 50;
const FIRST_CLIENT: u32 = 1000;
/// Rounds that a process still makes after the stop request.
const LAST_ROUNDS: u32 = 5;
const PATIENCE: Duration = Duration::from_secs(60);
/// Sockets that the UDP link keeps connected to its busiest peers.
const CONNECTED_SOCKETS: usize = 8;
const BOTH: [Links; 2] = [Links::Shm, Links::Udp];

fn name(links: Links) -> &'static str {
    match links {
        Links::Shm => "shm",
        _ => "udp",
    }
}

fn config(runtime: &Path, links: Links) -> Config {
    let mut config = Config::local(NodeId(1), runtime.to_owned());
    config.links = links;
    // Detects clients that were killed after everything they sent had been acknowledged.
    config.protocol.idle_check_ns = 5_000_000_000;
    config
}

/// A program that uses this test's node.
fn command(program: &Path, runtime: &Path, links: Links) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DIPOLE_") {
            command.env_remove(name);
        }
    }
    command.env("DIPOLE_RUNTIME_DIR", runtime);
    command.env("DIPOLE_LINK", name(links));
    command
}

/// A client's request in a round; the echo must be identical.
fn question(client: &Endpoint, round: u32) -> Vec<u8> {
    let id = client.address().endpoint.0;
    let length = 8 + (id * 37 + round * 101) % 200;
    let mut bytes = Vec::from(id.to_le_bytes());
    bytes.extend(round.to_le_bytes());
    bytes.resize(length as usize, round.to_le_bytes()[0]);
    bytes
}

fn ask(client: &Endpoint, round: u32) {
    let sent = client.send_to_timeout(SERVER, &question(client, round), PATIENCE);
    sent.expect("the server reads");
}

fn hear(client: &Endpoint, round: u32) {
    let echo = client.receive_timeout(PATIENCE).expect("an echo");
    assert_eq!(echo.source(), SERVER);
    assert_eq!(*echo, question(client, round), "round {round}");
}

/// A process of clients, until its input ends. Does nothing when run as a test.
#[test]
fn clients() {
    let Ok(first) = std::env::var("DIPOLE_ECHO_FIRST") else {
        return;
    };
    let first: u32 = first.parse().expect("a number");
    let node = Node::open(Config::from_env().expect("set with it")).expect("a node");
    let open = |id| node.endpoint(EndpointId(id)).expect("free");
    let clients: Vec<Endpoint> = (first..first + EACH).map(open).collect();
    let told = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&told);
    std::thread::spawn(move || {
        let _ends = std::io::stdin().read_to_end(&mut Vec::new());
        tell.store(true, Ordering::Relaxed);
    });
    for client in &clients {
        ask(client, 0);
    }
    let (mut round, mut left) = (0, LAST_ROUNDS);
    while left > 0 {
        // From now on, all but one of the clients are waiting for their echoes at any time.
        for client in &clients {
            hear(client, round);
            ask(client, round + 1);
        }
        if round == 0 {
            println!("\nup");
        }
        round += 1;
        left -= u32::from(told.load(Ordering::Relaxed));
    }
    for client in &clients {
        hear(client, round);
    }
    println!("\nheard everything");
}

/// A process with clients, and its output.
struct Clients {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Clients {
    fn start(runtime: &Path, links: Links, number: u32) -> Clients {
        let test = std::env::current_exe().expect("this test");
        let mut child = command(&test, runtime, links)
            .args(["--exact", "echo::clients", "--nocapture"])
            .env("DIPOLE_ECHO_FIRST", first_client(number).to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let said = BufReader::new(child.stdout.take().expect("a pipe"));
        Clients { child, said }
    }

    /// Waits for a line of its output.
    fn wait_for(&mut self, wanted: &str) {
        let mut lines = (&mut self.said).lines();
        let said = lines.any(|line| line.expect("text") == wanted);
        assert!(
            said,
            "a process of clients ended before it printed {wanted:?}"
        );
    }

    fn kill(mut self) {
        self.child.kill().expect("our child");
        self.child.wait().expect("our child");
    }

    /// Lets the process end in order, with every echo.
    fn finish(mut self) {
        drop(self.child.stdin.take());
        self.wait_for("heard everything");
        assert!(self.child.wait().expect("our child").success());
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn first_client(number: u32) -> u32 {
    FIRST_CLIENT + number * EACH
}

/// Some are killed after their first echoes, others after the first echoes of all.
fn dies_early(number: u32) -> bool {
    number % 6 == 1
}

fn dies_late(number: u32) -> bool {
    number % 6 == 4
}

/// True for clients whose process is killed.
fn dies(client: EndpointId) -> bool {
    let number = (client.0 - FIRST_CLIENT) / EACH;
    dies_early(number) || dies_late(number)
}

/// Runs all clients against a running server. `after_kills` gets the number of client processes
/// left after the kills.
fn run_clients(runtime: &Path, links: Links, after_kills: impl FnOnce(usize)) {
    let started: Vec<(u32, Clients)> = (0..PROCESSES)
        .map(|number| (number, Clients::start(runtime, links, number)))
        .collect();
    let mut running = Vec::new();
    let mut free = Vec::new();
    for (number, mut clients) in started {
        clients.wait_for("up");
        if dies_early(number) {
            clients.kill();
            free.push(number);
        } else {
            running.push((number, clients));
        }
    }
    let mut living = Vec::new();
    for (number, clients) in running {
        if dies_late(number) {
            clients.kill();
            free.push(number);
        } else {
            living.push(clients);
        }
    }
    // New clients get the numbers of killed ones.
    for number in free.drain(..2) {
        let mut newcomers = Clients::start(runtime, links, number);
        newcomers.wait_for("up");
        living.push(newcomers);
    }
    after_kills(living.len());
    for clients in living {
        clients.finish();
    }
}

/// Waits until a condition holds.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Stops the serving thread when dropped.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_server_forgets_killed_clients_and_serves_the_others() {
    for links in BOTH {
        let directory = tempfile::tempdir().expect("a directory");
        let runtime = directory.path().join("dipole");
        let node = Node::open(config(&runtime, links)).expect("a node");
        let server = node.endpoint(SERVER.endpoint).expect("free");
        let before = node.stats();
        let peers = || node.stats().peers + node.stats().local_peers;
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let Ok(message) = server.receive_timeout(Duration::from_millis(5)) else {
                        continue;
                    };
                    if let Err(error) = server.reply(&message, &message) {
                        assert!(dies(message.source().endpoint), "{error}");
                    }
                }
            });
            let _ends_also_on_failure = Done(&done);
            run_clients(&runtime, links, |living| {
                // Killed clients are forgotten while the others continue.
                wait_until("only live clients are peers", || peers() == living);
            });
            wait_until("there are no peers", || peers() == 0);
            wait_until("there are no edges", || node.stats().edges == 0);
        });
        let after = node.stats();
        assert_eq!(after.pool_used_bytes, 0);
        assert_eq!(after.free_frames, before.free_frames);
    }
}

/// A process that is killed when the test ends.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Number of a process's sockets and shared memory mappings.
fn held(pid: u32) -> (usize, usize) {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs");
    let links = descriptors.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let is_socket = |link: &PathBuf| link.to_string_lossy().starts_with("socket:");
    // Duplicates of a descriptor refer to the same socket.
    let sockets: BTreeSet<PathBuf> = links.filter(is_socket).collect();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    let is_shared = |line: &&str| line.contains("memfd:dipole");
    (sockets.len(), maps.lines().filter(is_shared).count())
}

#[test]
fn the_example_serves_a_thousand_clients_some_of_which_are_killed() {
    for links in BOTH {
        let directory = tempfile::tempdir().expect("a directory");
        let runtime = directory.path().join("dipole");
        let child = command(&built::example("echo_server"), &runtime, links)
            .arg(SERVER.endpoint.to_string())
            .stderr(Stdio::piped())
            .spawn();
        let mut server = Server(child.expect("it starts"));
        let mut said = BufReader::new(server.0.stderr.take().expect("a pipe"));
        let mut line = String::new();
        said.read_line(&mut line).expect("text");
        assert_eq!(line, "echoing at 1:7\n");
        let complaints = std::thread::spawn(move || {
            let lines = said.lines().map(|line| line.expect("text"));
            lines.collect::<Vec<String>>()
        });
        let before = held(server.0.id());
        run_clients(&runtime, links, |_| {});
        let spare = match links {
            Links::Shm => 0,
            _ => CONNECTED_SOCKETS,
        };
        wait_until("everything held for the clients is released", || {
            let (sockets, memory) = held(server.0.id());
            sockets <= before.0 + spare && memory == before.1
        });
        assert!(server.0.try_wait().expect("our child").is_none());
        drop(server);
        for complaint in complaints.join().expect("no panic") {
            let to = complaint.strip_prefix("no answer to 1:").expect(&complaint);
            let (client, _) = to.split_once(':').expect("a number and a cause");
            assert!(
                dies(EndpointId(client.parse().expect("a number"))),
                "{complaint}"
            );
        }
    }
}
