//! Memory used by messages and idle peers, counted by the allocator.

use std::net::SocketAddr;

use allocation_counter::measure;
use dipole_engine::AnyLink;
use dipole_engine::{Destination, Engine};
use dipole_link::sim::{Network, NetworkConfig};
use dipole_node::{Address, Config, EndpointId, Links, Node, NodeId, ProtocolConfig};
use dipole_proto::{EdgeId, Instant, MAX_EDGES, PeerId};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

struct Testbed {
    network: Network,
    engines: Vec<Engine>,
    now: Instant,
}

fn address(host: usize, port: u16) -> SocketAddr {
    let [high, low] = u16::try_from(host + 1).expect("few").to_be_bytes();
    SocketAddr::from(([10, 0, high, low], port))
}

impl Testbed {
    fn new(hosts: usize) -> Testbed {
        let network = Network::new(1, NetworkConfig::default());
        let engines = (0..hosts)
            .map(|host| {
                let port = network
                    .attach(address(host, 1), address(host, 2))
                    .expect("a free address");
                let incarnation = host as u64 + 1;
                let config = ProtocolConfig::default();
                Engine::new(
                    AnyLink::Sim(port),
                    config,
                    incarnation,
                    [incarnation, 7],
                    None,
                )
            })
            .collect();
        Testbed {
            network,
            engines,
            now: Instant(1),
        }
    }

    /// Steps all engines until they have been idle for some virtual time.
    fn settle(&mut self) {
        for _ in 0..200 {
            for engine in &mut self.engines {
                engine.step(self.now, true).expect("a working link");
            }
            self.now = self.now.after(20_000);
            self.network.advance(self.now.0);
        }
    }

    fn edge(&mut self, from: usize, to: usize) -> (PeerId, EdgeId) {
        let destination = Destination {
            small: address(to, 1),
            incarnation: 0,
        };
        let peer = self.engines[from]
            .connect(self.now, destination)
            .expect("room");
        self.settle();
        let edge = self.engines[from].edge(peer, 1, 7).expect("open");
        (peer, edge)
    }
}

/// Sends `count` messages to the other engine and receives them there.
fn exchange(testbed: &mut Testbed, edge: EdgeId, count: usize, payload: &[u8]) -> usize {
    let mut taken = 0;
    for _ in 0..count {
        let now = testbed.now;
        testbed.engines[0]
            .send_whole(now, edge, payload, false)
            .expect("frames and credit");
        testbed.engines[0].transmit(now).expect("a working link");
        for _ in 0..3 {
            testbed.now = testbed.now.after(10_000);
            testbed.network.advance(testbed.now.0);
            for engine in &mut testbed.engines {
                engine.step(testbed.now, true).expect("a working link");
            }
        }
        let now = testbed.now;
        while let Some(message) = testbed.engines[1].take(now, 7) {
            assert_eq!(&*message, payload);
            taken += 1;
        }
    }
    taken
}

/// A packet costs more than a message, so a sender that outruns the answers fills its packets.
#[test]
fn messages_that_outrun_the_answers_share_a_packet_for_a_limited_time() {
    let mut testbed = Testbed::new(2);
    testbed.engines[1].open_endpoint(7);
    let (_, edge) = testbed.edge(0, 1);
    let now = testbed.now;
    let sender = &mut testbed.engines[0];
    let before = sender.traffic().packets_sent;
    for _ in 0..20 {
        sender
            .send_whole(now, edge, b"short", false)
            .expect("frames and credit");
        sender.transmit(now).expect("a working link");
    }
    assert_eq!(
        sender.traffic().packets_sent - before,
        16,
        "the others wait"
    );
    let deadline = sender.next_deadline(now).expect("they must leave");
    assert!(deadline <= now.after(20_000), "{deadline:?}");
    sender.transmit(deadline).expect("a working link");
    assert_eq!(sender.traffic().packets_sent - before, 17, "in one packet");
    testbed.settle();

    let now = testbed.now;
    let taken = std::iter::from_fn(|| testbed.engines[1].take(now, 7)).count();
    assert_eq!(taken, 20);
    let sender = &mut testbed.engines[0];
    let before = sender.traffic().packets_sent;
    sender
        .send_whole(now, edge, b"alone", false)
        .expect("frames and credit");
    sender.transmit(now).expect("a working link");
    let sent = sender.traffic().packets_sent - before;
    assert_eq!(sent, 1, "answered messages do not make the next one wait");
}

/// The simulated network allocates for every packet, but the UDP link does not. After subtracting
/// that, what is left belongs to engine and protocol.
#[test]
fn a_message_costs_no_allocation_once_the_pools_are_warm() {
    let mut testbed = Testbed::new(2);
    testbed.engines[1].open_endpoint(7);
    let (_, edge) = testbed.edge(0, 1);
    let payload = [5; 64];
    exchange(&mut testbed, edge, 5000, &payload);
    let (mut send, mut receive) = (0, 0);
    let messages = 2000;
    for _ in 0..messages {
        let now = testbed.now;
        send += measure(|| {
            testbed.engines[0]
                .send_whole(now, edge, &payload, true)
                .expect("frames and credit");
        })
        .count_total;
        testbed.engines[0].flush(edge.peer);
        testbed.engines[0].transmit(now).expect("a working link");
        for _ in 0..3 {
            testbed.now = testbed.now.after(10_000);
            testbed.network.advance(testbed.now.0);
            for engine in &mut testbed.engines {
                engine.step(testbed.now, true).expect("a working link");
            }
        }
        let now = testbed.now;
        let mut taken = None;
        receive += measure(|| taken = testbed.engines[1].take(now, 7)).count_total;
        assert_eq!(taken.as_deref(), Some(&payload[..]));
    }
    assert_eq!(
        (send, receive),
        (0, 0),
        "allocations in {messages} messages"
    );
}

#[test]
fn real_sockets_carry_messages_without_allocating() {
    use dipole_node::{Address, Config, EndpointId, Node, NodeId};
    let directory = tempfile::tempdir().expect("a directory");
    let config = Config::local(NodeId(1), directory.path().join("dipole"));
    let node = Node::open(config).expect("opens");
    let inbox = node.endpoint(EndpointId(7)).expect("free");
    let outbox = node.endpoint(EndpointId(8)).expect("free");
    outbox.target(Address::new(1, 7)).expect("exists");
    let round = || {
        for _ in 0..1000 {
            outbox.send(&[3; 64]).expect("sent");
            assert_eq!(inbox.receive().expect("comes").len(), 64);
        }
    };
    for _ in 0..20 {
        round();
    }
    let counted = measure(round);
    assert!(
        counted.count_total <= 4,
        "{} allocations for 1000 messages",
        counted.count_total
    );
}

#[test]
fn a_message_to_a_port_is_handled_and_answered_without_allocating() {
    for links in [Links::Shm, Links::Udp] {
        let directory = tempfile::tempdir().expect("a directory");
        let config = Config::local(NodeId(1), directory.path().join("dipole"));
        let config = Config { links, ..config };
        let node = Node::open(config).expect("opens");
        let port = node.open_port(EndpointId(7), |port, message| {
            port.reply(&message, &message).expect("it is there");
        });
        let port = port.expect("free");
        let client = node.endpoint(EndpointId(8)).expect("free");
        client.target(port.address()).expect("exists");
        let round = || {
            for _ in 0..1000 {
                client.send(&[3; 64]).expect("sent");
                assert_eq!(client.receive().expect("comes").len(), 64);
            }
        };
        for _ in 0..20 {
            round();
        }
        let counted = measure(round);
        // In shared memory every 16th step checks for connections, which allocates.
        let allowed = if links == Links::Shm {
            1000 / 16 + 4
        } else {
            4
        };
        assert!(
            counted.count_total <= allowed,
            "{} allocations for 1000 messages and answers by {links:?}",
            counted.count_total
        );
    }
}

#[test]
fn an_idle_peer_costs_at_most_four_kibibytes() {
    let peers = 100;
    let mut testbed = Testbed::new(peers + 1);
    let before = testbed.engines.remove(0);
    let mut hub = before;
    let grown = measure(|| {
        for to in 1..=peers {
            let destination = Destination {
                small: address(to, 1),
                incarnation: 0,
            };
            hub.connect(testbed.now, destination).expect("room");
        }
    });
    let mut now = testbed.now;
    let mut kept = grown.bytes_current;
    for _ in 0..300 {
        kept += measure(|| {
            hub.step(now, true).expect("a working link");
        })
        .bytes_current;
        for engine in &mut testbed.engines {
            engine.step(now, true).expect("a working link");
        }
        now = now.after(20_000);
        testbed.network.advance(now.0);
    }
    assert_eq!(
        hub.machine()
            .peers()
            .filter(|peer| hub.machine().is_open(*peer))
            .count(),
        peers
    );
    let each = kept / i64::try_from(peers).expect("few");
    assert!(each <= 4096, "{each} bytes per idle peer");
    println!("{each} bytes per idle peer");
}

/// Memory used by the maximum number of incoming edges, and that it is freed.
#[test]
fn edges_cost_bounded_memory_which_is_freed_with_their_sessions() {
    let bound = ProtocolConfig::default().max_edges;
    let clients = 3;
    assert!(clients * MAX_EDGES > bound);
    let mut testbed = Testbed::new(1 + clients as usize);
    testbed.engines[0].open_endpoint(7);
    let (mut held, mut taken) = (0, 0);
    for client in 1..=clients as usize {
        let (peer, _) = testbed.edge(client, 0);
        let sources: Vec<u32> = (2..=MAX_EDGES).collect();
        for some in sources.chunks(200) {
            for source in some {
                let edge = testbed.engines[client].edge(peer, *source, 7);
                let edge = edge.expect("few on this side");
                let sent = testbed.engines[client].send_whole(testbed.now, edge, b"one", false);
                sent.expect("frames and credit");
            }
            let now = testbed.now;
            testbed.engines[client].transmit(now).expect("a link");
            for _ in 0..20 {
                testbed.now = testbed.now.after(20_000);
                testbed.network.advance(testbed.now.0);
                let now = testbed.now;
                held += measure(|| {
                    testbed.engines[0].step(now, true).expect("a link");
                    while testbed.engines[0].take(now, 7).is_some() {
                        taken += 1;
                    }
                })
                .bytes_current;
                testbed.engines[client].step(now, true).expect("a link");
            }
        }
    }
    assert_eq!(taken, bound);
    let each = held / i64::from(bound);
    println!("{held} bytes for {bound} edges, {each} each");
    assert!(each <= 256, "{each} bytes for an edge");
    for client in 1..=clients as usize {
        testbed.engines[client].send_goodbye();
        for _ in 0..200 {
            testbed.now = testbed.now.after(1_000_000);
            testbed.network.advance(testbed.now.0);
            let now = testbed.now;
            testbed.engines[client].step(now, true).expect("a link");
            held += measure(|| {
                testbed.engines[0].step(now, true).expect("a link");
            })
            .bytes_current;
        }
    }
    println!("{held} bytes when their sessions had ended");
    assert!(held < 1 << 20, "{held} bytes stay");
}

#[test]
fn an_idle_endpoint_costs_at_most_512_bytes() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = Config {
        links: Links::Shm,
        ..Config::local(NodeId(1), directory.path().join("dipole"))
    };
    let node = Node::open(config).expect("a node");
    let count = 1000;
    let mut endpoints = Vec::with_capacity(count);
    let all = 0..u32::try_from(count).expect("few");
    let bytes = measure(|| {
        endpoints.extend(all.map(|id| node.endpoint(EndpointId(id)).expect("free")));
    })
    .bytes_current;
    let each = usize::try_from(bytes).expect("it takes memory") / count;
    println!("{each} bytes for an idle endpoint");
    assert!(each <= 512, "{each} bytes for an idle endpoint");
}

/// Number of processes on this node, simulated by as many nodes in one child.
const IDLE_PROCESSES: u32 = 100;

#[test]
fn an_idle_process_of_this_node_costs_at_most_four_kib() {
    let at = |runtime: &std::path::Path| Config {
        links: Links::Shm,
        ..Config::local(NodeId(1), runtime.to_owned())
    };
    if let Ok(runtime) = std::env::var("DIPOLE_IDLE_RUNTIME") {
        // A node needs about 15 descriptors, but a shell's limit is often 1024.
        let maximum = getrlimit(Resource::Nofile).maximum;
        let all = Rlimit {
            current: maximum,
            maximum,
        };
        setrlimit(Resource::Nofile, all).expect("no privileges are needed");
        let open = |id| {
            let node = Node::open(at(runtime.as_ref())).expect("a node");
            let endpoint = node.endpoint(EndpointId(id)).expect("free");
            endpoint.target(Address::new(1, 1)).expect("it steps");
            endpoint.send(b"one message").expect("it has room");
            endpoint
        };
        let _open: Vec<_> = (2..2 + IDLE_PROCESSES).map(open).collect();
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).expect("until it ends");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let runtime = directory.path().join("dipole");
    let node = Node::open(at(&runtime)).expect("a node");
    let endpoint = node.endpoint(EndpointId(1)).expect("free");
    let mut child = std::process::Command::new(std::env::current_exe().expect("this test"))
        .args([
            "--exact",
            "messages::an_idle_process_of_this_node_costs_at_most_four_kib",
        ])
        .env("DIPOLE_IDLE_RUNTIME", &runtime)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("it starts");
    let mut messages = 0;
    let heap = measure(|| {
        while messages < IDLE_PROCESSES {
            let patience = std::time::Duration::from_secs(60);
            endpoint.receive_timeout(patience).expect("each sends one");
            messages += 1;
        }
    })
    .bytes_current;
    // Kill instead of closing in order: each of a hundred nodes would wait for its goodbye to be read.
    child.kill().expect("ours to kill");
    child.wait().expect("it ends");
    // In addition to the heap there is a page of shared memory, which both sides share.
    let each = heap / i64::from(IDLE_PROCESSES) + 4096 / 2;
    println!("{each} bytes for an idle process of this node");
    assert!(
        each <= 4096,
        "{each} bytes for an idle process of this node"
    );
}
