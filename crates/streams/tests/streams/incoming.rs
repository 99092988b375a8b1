//! TCP clients that connect to an interface, and the state of streams.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use dipole_node::{Address, Config, Endpoint, EndpointId, Node, NodeId};
use dipole_streams::{Callers, Layout, Stream, StreamError, StreamStatus, WaitsFor, status};
use dipole_testbed::Testbed;

use super::{
    BYTES, INTERFACE, PATIENCE, RANKS, Running, Scene, all_fail_with, byte, content, interfaces,
    part, ranks, setting,
};

const CLIENTS: usize = 3;
const FLOOD_BYTES: u64 = 64 << 20;

/// A rank of a job that accepts clients.
pub(super) fn rank(role: &str, own: u32, node: &Node) -> Result<(), StreamError> {
    let ranks = ranks(own, 0);
    let endpoint = node.endpoint(ranks.addresses[own as usize].endpoint)?;
    let at: SocketAddr = setting("STREAMS_TO").parse().expect("an address");
    let wait = match role {
        "impatient" => Duration::from_millis(200),
        _ => PATIENCE,
    };
    let callers = Callers {
        port: at.port(),
        wait,
    };
    let accept = || Stream::accept(&endpoint, ranks.clone(), interfaces()[0], callers, PATIENCE);
    match role {
        "serve" => {
            for _ in 0..CLIENTS {
                serve(own, accept()?)?;
            }
        }
        "late" => write_late(own, accept()?)?,
        "abandoned" => {
            // Now each rank has a connection to rank 0, and detects its death.
            accept()?.close()?;
            if own == 0 {
                println!("waits");
                thread::spawn(|| {
                    let _end = std::io::stdin().read(&mut [0]);
                    std::process::exit(9);
                });
            }
            accept()?.close()?;
        }
        _ => accept()?.close()?,
    }
    Ok(())
}

/// Receives a client's bytes, and sends them back in another layout.
fn serve(own: u32, mut stream: Stream<&Endpoint>) -> Result<(), StreamError> {
    if own == 0 {
        let head = stream.read_raw_until(|it| it.ends_with(b"\n"), 100)?;
        println!(
            "{} from {}",
            String::from_utf8_lossy(&head).trim(),
            stream.peer()
        );
    }
    let whole = content();
    let layouts = [
        Layout::block_cyclic(RANKS, 8192),
        Layout::block(RANKS, BYTES),
    ];
    let [incoming, outgoing] = layouts.map(|layout| {
        let places = part(&layout, BYTES, own).into_iter();
        let at = |place| whole[usize::try_from(place).expect("it fits")];
        (layout, places.map(at).collect::<Vec<u8>>())
    });
    let mut found = vec![0; incoming.1.len()];
    assert_eq!(stream.read(&incoming.0, BYTES, &mut found)?, BYTES);
    assert!(found == incoming.1);
    // Others may have begun to write.
    let state = stream.status()?;
    assert!(state.read.bytes > BYTES, "{state:?}");
    assert_eq!(state.peer, stream.peer());
    stream.write(&outgoing.0, BYTES, &outgoing.1)?;
    stream.close()
}

/// Writes much; rank 2 waits for its input before that.
fn write_late(own: u32, mut stream: Stream<&Endpoint>) -> Result<(), StreamError> {
    let layout = Layout::block_cyclic(RANKS, 64 << 10);
    let bytes: Vec<u8> = part(&layout, FLOOD_BYTES, own)
        .into_iter()
        .map(byte)
        .collect();
    println!("begins");
    if own == 2 {
        std::io::stdin()
            .read_line(&mut String::new())
            .expect("a pipe");
    }
    stream.write(&layout, FLOOD_BYTES, &bytes)?;
    stream.close()
}

/// A program that knows only TCP: sends a line and the bytes, gets them back and the end of the stream.
fn call(number: usize, mut socket: TcpStream) {
    let head = format!("client {number}\n");
    socket.write_all(head.as_bytes()).expect("a server");
    socket.write_all(&content()).expect("a server");
    let mut back = Vec::new();
    socket.read_to_end(&mut back).expect("a server");
    assert!(back == content(), "client {number}");
}

/// Checks that the ranks served all clients, in order, and report their addresses.
fn check_served(ranks: Vec<Running>, clients: &[SocketAddr]) {
    for (rank, running) in ranks.into_iter().enumerate() {
        let output = running.finish();
        assert!(output.status.success(), "rank {rank}: {output:?}");
        if rank == 0 {
            let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
            for (number, client) in clients.iter().enumerate() {
                let line = format!("client {number} from {client}");
                assert!(stdout.contains(&line), "{line}: {stdout}");
            }
        }
    }
}

#[test]
fn a_job_serves_clients_that_connected_before_and_while_it_runs() {
    let scene = Scene::new(None, [1; 4], [1; 2]);
    let (_interface, at) = scene.listener("127.0.0.1:0");
    let connect = || TcpStream::connect(at).expect("the interface listens");
    let early = [connect(), connect()];
    let ranks = scene.start("accept serve", at);
    let mut clients: Vec<TcpStream> = early.into();
    thread::scope(|scope| {
        let last = connect();
        clients.push(last);
        for (number, client) in clients.iter().enumerate() {
            let client = client.try_clone().expect("a descriptor");
            scope.spawn(move || call(number, client));
        }
    });
    let addresses = clients
        .iter()
        .map(|it| it.local_addr().expect("it has one"));
    check_served(ranks, &addresses.collect::<Vec<_>>());
}

#[test]
fn a_client_outside_reaches_ranks_of_two_nodes_through_an_interface() {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    let testbed = Testbed::builder().nodes(3).build().expect("a testbed");
    let scene = Scene::new(Some(&testbed), [1, 1, 2, 2], [2, 2]);
    let (_interface, at) = scene.listener(&format!("{}:7000", testbed.node(2).addresses[0]));
    let ranks = scene.start("accept serve", at);
    let clients = testbed.inside(3, || {
        [0, 1, 2].map(|number| {
            let socket = TcpStream::connect(at).expect("the interface listens");
            let address = socket.local_addr().expect("it has one");
            call(number, socket);
            address
        })
    });
    check_served(ranks, &clients.expect("a node"));
}

impl Scene<'_> {
    /// A process of the ranks' node that takes no part in their streams.
    fn observer(&self) -> Node {
        let registry = self.folder.path().join("registry");
        Node::open(Config::local(NodeId(1), registry)).expect("a node")
    }
}

/// Requests the state of the streams until it is as expected.
fn await_state(endpoint: &Endpoint, is_it: impl Fn(&[StreamStatus]) -> bool) -> Vec<StreamStatus> {
    let interface = Address::new(1, INTERFACE);
    loop {
        let all = status(endpoint, interface, PATIENCE).expect("it replies");
        if is_it(&all) {
            return all;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_state_of_a_stream_names_the_party_that_it_waits_for() {
    let scene = Scene::new(None, [1; 4], [1; 2]);
    let (_interface, at) = scene.listener("127.0.0.1:0");
    let node = scene.observer();
    let observer = node.endpoint(EndpointId(90)).expect("an endpoint");
    assert_eq!(await_state(&observer, <[StreamStatus]>::is_empty), []);
    let mut ranks = scene.start("accept late", at);
    let waits = |expected: WaitsFor| {
        let observer = &observer;
        let mut all = await_state(observer, |all| {
            all.first().is_some_and(|it| it.waits_for == expected)
        });
        assert_eq!(all.len(), 1);
        all.remove(0)
    };
    let state = waits(WaitsFor::Caller);
    assert_eq!((state.written.bytes, state.ranks.len()), (0, 4));
    let mut client = TcpStream::connect(at).expect("the interface listens");
    let state = waits(WaitsFor::Data(vec![2]));
    assert_eq!(
        state.peer,
        client.local_addr().expect("it has one").to_string()
    );
    // Blocks of 64 KiB: those of ranks 0 and 1 come first.
    assert_eq!(state.written.bytes, 2 * (64 << 10));
    let mut input = ranks[2].child.stdin.take().expect("a pipe");
    input.write_all(b"\n").expect("it reads");
    let stuck = waits(WaitsFor::PeerToRead);
    assert!(stuck.written.bytes < FLOOD_BYTES, "{stuck:?}");
    let mut bytes = Vec::new();
    client.read_to_end(&mut bytes).expect("it ends");
    assert_eq!(bytes.len() as u64, FLOOD_BYTES);
    await_state(&observer, <[StreamStatus]>::is_empty);
    for rank in ranks {
        assert!(rank.finish().status.success());
    }
}

#[test]
fn ranks_report_why_no_client_was_accepted() {
    let scene = Scene::new(None, [1; 4], [1; 2]);
    let (interface, at) = scene.listener("127.0.0.1:0");
    all_fail_with(
        scene.start("accept impatient", at),
        &["no TCP client has connected to port"],
    );
    let other: SocketAddr = "127.0.0.1:9".parse().expect("an address");
    all_fail_with(
        scene.start("accept impatient", other),
        &["it does not listen at port 9"],
    );
    let mut ranks = scene.start("accept abandoned", at);
    let _client = TcpStream::connect(at).expect("the interface listens");
    ranks[0].wait_for("waits");
    drop(ranks[0].child.stdin.take());
    all_fail_with(ranks, &["rank 0: "]);
    let node = scene.observer();
    let observer = node.endpoint(EndpointId(90)).expect("an endpoint");
    let ranks = scene.start("accept patient", at);
    await_state(&observer, |all| {
        all.iter().any(|it| it.waits_for == WaitsFor::Caller)
    });
    interface.stop();
    all_fail_with(ranks, &["has ended the stream: it closes"]);
}
