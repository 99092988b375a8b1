//! A Dipole stream next to TCP on a narrow network: a bulk connection and an interactive one.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dipole_testbed::Testbed;

const RATE_MBIT: u64 = 200;
/// The node with the narrow interface, to which all others send.
const RECEIVER: u32 = 3;
const BLOCK_BYTES: usize = 64 << 10;
/// Bytes of a request and its reply, like a keystroke and its echo.
const WORD_BYTES: usize = 64;
const TYPING_PAUSE: Duration = Duration::from_millis(10);

/// Measurements while both run.
#[derive(Default)]
struct Meters {
    tcp_bytes: AtomicU64,
    dipole_bytes: AtomicU64,
    ended: AtomicBool,
}

impl Meters {
    fn goes_on(&self) -> bool {
        !self.ended.load(Ordering::Relaxed)
    }

    fn read(&self) -> [u64; 2] {
        [&self.dipole_bytes, &self.tcp_bytes].map(|meter| meter.load(Ordering::Relaxed))
    }
}

/// `dipole recv` and `dipole send`, fed as long as the meters run.
struct Stream {
    receiver: Child,
    sender: Child,
}

impl Stream {
    fn start(testbed: &Testbed, from: u32, endpoint: u32) -> Stream {
        let spawn = |command: &mut Command| command.spawn().expect("it starts");
        let dipole = |node| testbed.command(node, env!("CARGO_BIN_EXE_dipole"));
        let target = format!("{RECEIVER}:{endpoint}");
        let receiver = spawn(
            dipole(RECEIVER)
                .args(["recv", &target])
                .stdin(Stdio::null())
                .stdout(Stdio::null()),
        );
        let sender = spawn(dipole(from).args(["send", &target]).stdin(Stdio::piped()));
        Stream { receiver, sender }
    }

    fn feed(&mut self, meters: &Meters) {
        let mut input = self.sender.stdin.take().expect("a pipe");
        let block = vec![7; BLOCK_BYTES];
        while meters.goes_on() {
            input.write_all(&block).expect("the sender goes on");
            meters
                .dipole_bytes
                .fetch_add(BLOCK_BYTES as u64, Ordering::Relaxed);
        }
        drop(input);
        assert!(self.sender.wait().expect("a child of ours").success());
        assert!(self.receiver.wait().expect("a child of ours").success());
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        for child in [&mut self.sender, &mut self.receiver] {
            let _ended = child.kill();
            let _waited = child.wait();
        }
    }
}

fn connection(testbed: &Testbed, from: u32) -> (TcpStream, TcpStream) {
    let listen = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a listener");
    let listener = testbed.inside(RECEIVER, listen).expect("a namespace");
    let port = listener.local_addr().expect("it is bound").port();
    let to = SocketAddr::from((testbed.node(RECEIVER).addresses[0], port));
    let connect = || TcpStream::connect(to).expect("it listens");
    let ours = testbed.inside(from, connect).expect("a namespace");
    // The setting of most machines; the result should not depend on this machine's default.
    rustix::net::sockopt::set_tcp_congestion(&ours, "cubic").expect("every kernel has it");
    let (theirs, _) = listener.accept().expect("it connected");
    for stream in [&ours, &theirs] {
        stream.set_nodelay(true).expect("a TCP stream");
    }
    (ours, theirs)
}

fn fill((mut ours, mut theirs): (TcpStream, TcpStream), meters: &Meters) {
    thread::scope(|scope| {
        scope.spawn(move || {
            let block = vec![7; BLOCK_BYTES];
            while meters.goes_on() {
                ours.write_all(&block).expect("it goes on");
            }
        });
        let mut block = vec![0; BLOCK_BYTES];
        while let Ok(length @ 1..) = theirs.read(&mut block) {
            meters.tcp_bytes.fetch_add(length as u64, Ordering::Relaxed);
        }
    });
}

/// Sends requests continuously; returns the time that each took.
fn type_words(
    (mut ours, mut theirs): (TcpStream, TcpStream),
    goes_on: impl Fn() -> bool,
) -> Vec<Duration> {
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut word = [0; WORD_BYTES];
            while theirs.read_exact(&mut word).is_ok() {
                theirs.write_all(&word).expect("a client");
            }
        });
        let mut word = [7; WORD_BYTES];
        let mut took = Vec::new();
        while goes_on() {
            let asked = Instant::now();
            ours.write_all(&word).expect("it goes on");
            ours.read_exact(&mut word).expect("it goes on");
            took.push(asked.elapsed());
            thread::sleep(TYPING_PAUSE);
        }
        drop(ours);
        took.sort_unstable();
        took
    })
}

fn words_of(took: &[Duration]) -> String {
    let at = |share: usize| took[(took.len() - 1) * share / 100].as_secs_f64() * 1e3;
    let (median, p99, most) = (at(50), at(99), at(100));
    let count = took.len();
    format!("{count} questions, median {median:.2} ms, p99 {p99:.2} ms, most {most:.2} ms")
}

/// Dipole has this many streams, each from a different node, and TCP has one connection.
fn share_the_network(from_dipole: &[u32], from_tcp: u32) {
    let builder = Testbed::builder().nodes(4).rate_mbit(RATE_MBIT);
    let Some(testbed) = crate::testbed(builder) else {
        return;
    };
    let phase = crate::phase();
    let alone = Instant::now();
    let idle = type_words(connection(&testbed, from_tcp), || {
        alone.elapsed() < phase / 3
    });
    println!("typing alone: {}", words_of(&idle));
    let streams = from_dipole.iter().zip(7..);
    let mut streams: Vec<Stream> = streams
        .map(|(&from, endpoint)| Stream::start(&testbed, from, endpoint))
        .collect();
    let meters = Meters::default();
    let (rates, typed) = thread::scope(|scope| {
        for stream in &mut streams {
            scope.spawn(|| stream.feed(&meters));
        }
        let bulk = connection(&testbed, from_tcp);
        scope.spawn(|| fill(bulk, &meters));
        let words = connection(&testbed, from_tcp);
        let typist = scope.spawn(|| type_words(words, || meters.goes_on()));
        // Both reach their steady rate after a while.
        thread::sleep(phase / 2);
        let (before, begun) = (meters.read(), Instant::now());
        thread::sleep(phase);
        let (after, seconds) = (meters.read(), begun.elapsed().as_secs_f64());
        meters.ended.store(true, Ordering::Relaxed);
        let rate = |which: usize| (after[which] - before[which]) as f64 * 8e-6 / seconds;
        ([rate(0), rate(1)], typist.join().expect("no panic"))
    });
    let [dipole, tcp] = rates;
    println!(
        "Dipole from nodes {from_dipole:?} {dipole:.0} Mbit/s, TCP (cubic) from node {from_tcp} \
         {tcp:.0} Mbit/s, {:.0} of {RATE_MBIT} together; typing beside them: {}",
        dipole + tcp,
        words_of(&typed)
    );
    // At least a fifth where a half would be fair, and in proportion for more streams.
    let least = (dipole + tcp) * 0.4 / (from_dipole.len() as f64 + 1.0);
    assert!(
        dipole > least * from_dipole.len() as f64,
        "Dipole has too little"
    );
    assert!(tcp > least, "TCP has too little");
    assert!(
        typed.len() > 10,
        "the interactive connection stalls for seconds"
    );
}

#[test]
fn a_stream_and_tcp_share_an_interface() {
    share_the_network(&[1], 1);
}

#[test]
fn a_stream_and_tcp_from_another_node_share_a_switch_port() {
    share_the_network(&[1], 2);
}

/// Two streams that lose packets at one receiver are paced by its grants.
#[test]
fn two_streams_and_tcp_share_a_switch_port() {
    share_the_network(&[1, 2], 4);
}
