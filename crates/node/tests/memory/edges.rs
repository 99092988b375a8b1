//! Opening and closing many edges: nothing is lost or leaked, and no edge holds up another, over
//! the network and in shared memory.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use allocation_counter::measure;
use dipole_engine::AnyLink;
use dipole_engine::{Destination, Engine, OperationResult, OperationStart};
use dipole_link::sim::{Network, NetworkConfig, SharedMemory, SharedMemoryConfig};
use dipole_node::{
    Address, Bytes, Config, EndpointId, Links, Node, NodeId, Operation, Outcome, ProtocolConfig,
    RegionKey, RegionMemory, Rights, SendError,
};
use dipole_proto::{EdgeId, Instant, PeerId};

/// How the two processes of a test are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carrier {
    Packets,
    Memory,
}

/// Two processes on a fault-free network or in shared memory.
struct Pair {
    network: Network,
    memory: SharedMemory,
    engines: [Engine; 2],
    peer: Option<PeerId>,
    now: Instant,
}

fn address(host: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], port))
}

impl Pair {
    fn new(carrier: Carrier) -> Pair {
        Pair::with(carrier, SharedMemoryConfig::default())
    }

    fn with(carrier: Carrier, config: SharedMemoryConfig) -> Pair {
        let network = Network::new(1, NetworkConfig::default());
        let memory = SharedMemory::new(1, config);
        let socket = |host: u8| format!("/process-{host}");
        let engines = [1, 2].map(|host| {
            let port = network
                .attach(address(host, 1), address(host, 2))
                .expect("a free address");
            let (life, secret) = (host.into(), [host.into(), 7]);
            let config = ProtocolConfig::default();
            let mut engine = Engine::new(AnyLink::Sim(port), config, life, secret, None);
            if carrier == Carrier::Memory {
                let opened = engine.open_simulated(&memory, Path::new(&socket(host)));
                opened.expect("a free name");
            }
            engine
        });
        let mut pair = Pair {
            network,
            memory,
            engines,
            peer: None,
            now: Instant(1),
        };
        pair.peer = Some(match carrier {
            Carrier::Packets => {
                let to = Destination {
                    small: address(2, 1),
                    incarnation: 0,
                };
                let peer = pair.engines[0].connect(pair.now, to).expect("room");
                pair.settle(200);
                peer
            }
            Carrier::Memory => {
                let begun = pair.engines[0].connect_memory(Path::new(&socket(2)), 2);
                let connection = begun.expect("it shares memory").expect("it is there");
                pair.settle(200);
                let peer = pair.engines[0].memory_peer(connection);
                peer.expect("it lives").expect("it is open")
            }
        });
        pair
    }

    fn edge(&mut self, source: u32, target: u32) -> EdgeId {
        let peer = self.peer.expect("they are connected");
        self.engines[0].edge(peer, source, target).expect("room")
    }

    fn settle(&mut self, turns: usize) {
        for _ in 0..turns {
            for engine in &mut self.engines {
                engine.step(self.now, true).expect("a working link");
            }
            self.now = self.now.after(20_000);
            self.network.advance(self.now.0);
            self.memory.advance(self.now.0);
        }
    }
}

/// Opens `count` pairs of endpoints, `at_once` at a time, sends one message over each, and closes
/// it; returns the number of messages that arrived.
fn come_and_go(pair: &mut Pair, count: u32, at_once: u32) -> u32 {
    let mut delivered = 0;
    for first in (0..count).step_by(at_once as usize) {
        let ids = first..count.min(first + at_once);
        for id in ids.clone() {
            pair.engines[0].open_endpoint(id);
            pair.engines[1].open_endpoint(id);
            let edge = pair.edge(id, id);
            let payload = id.to_le_bytes();
            while pair.engines[0]
                .send_whole(pair.now, edge, &payload, false)
                .is_err()
            {
                pair.settle(1);
            }
        }
        for turn in 0.. {
            let unread = ids.clone().any(|id| !pair.engines[1].has_message(id));
            if !unread {
                break;
            }
            assert!(turn < 10_000, "messages from {first} on are missing");
            pair.settle(1);
        }
        for id in ids {
            let message = pair.engines[1].take(pair.now, id).expect("it waits");
            assert_eq!(*message, id.to_le_bytes());
            delivered += 1;
            pair.engines[0].close_endpoint(id);
            pair.engines[1].close_endpoint(id);
        }
    }
    pair.settle(300);
    delivered
}

/// Memory is counted per thread, so tests must not free each other's.
static ONE_BY_ONE: Mutex<()> = Mutex::new(());

fn many_endpoints_leave_nothing(carrier: Carrier) {
    let _alone = ONE_BY_ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut pair = Pair::new(carrier);
    let before = [0, 1].map(|index| pair.engines[index].holdings());
    come_and_go(&mut pair, 2000, 500);
    let count = 100_000;
    let mut delivered = 0;
    let heap = measure(|| delivered = come_and_go(&mut pair, count, 500)).bytes_current;
    assert_eq!(delivered, count);
    let after = [0, 1].map(|index| pair.engines[index].holdings());
    assert_eq!(after, before, "pool, grants and edges are as at the start");
    assert!(heap.abs() < 64 << 10, "{heap} bytes of memory are leaked");
}

#[test]
fn a_hundred_thousand_endpoints_on_the_network_deliver_everything_and_leave_nothing() {
    many_endpoints_leave_nothing(Carrier::Packets);
}

#[test]
fn a_hundred_thousand_endpoints_in_shared_memory_deliver_everything_and_leave_nothing() {
    many_endpoints_leave_nothing(Carrier::Memory);
}

/// An edge can be reopened between the same endpoints before its previous use is forgotten.
fn an_edge_is_reopened_in_order(carrier: Carrier) {
    let mut pair = Pair::new(carrier);
    pair.engines[1].open_endpoint(7);
    for life in 0..200_u32 {
        let edge = pair.edge(1, 7);
        let payload = life.to_le_bytes();
        while pair.engines[0]
            .send_whole(pair.now, edge, &payload, false)
            .is_err()
        {
            pair.settle(1);
        }
        pair.engines[0].close_edge(edge);
    }
    pair.settle(300);
    for life in 0..200_u32 {
        let message = pair.engines[1].take(pair.now, 7).expect("in order");
        assert_eq!(*message, life.to_le_bytes());
    }
    pair.settle(300);
    let held = [0, 1].map(|index| pair.engines[index].holdings());
    assert_eq!(held.map(|held| held.outgoing_edges), [0, 0]);
    assert_eq!(held.map(|held| held.incoming_edges), [0, 0]);
    assert_eq!(held[1].granted_bytes, 0);
}

#[test]
fn an_edge_on_the_network_is_reopened_in_order() {
    an_edge_is_reopened_in_order(Carrier::Packets);
}

#[test]
fn an_edge_in_shared_memory_is_reopened_in_order() {
    an_edge_is_reopened_in_order(Carrier::Memory);
}

/// A sender that reopens its edge for every message gets no credit beyond an edge's window.
fn reopened_edges_share_a_window(carrier: Carrier) {
    let mut pair = Pair::new(carrier);
    pair.engines[1].open_endpoint(7);
    let window = ProtocolConfig::default().edge_window_bytes;
    let payload = [5; 1000];
    let mut sent = 0_u64;
    'lives: while sent < 4 * window / 1000 {
        let edge = pair.edge(1, 7);
        let mut turns = 0;
        while pair.engines[0]
            .send_whole(pair.now, edge, &payload, false)
            .is_err()
        {
            pair.settle(1);
            turns += 1;
            if turns == 1000 {
                break 'lives;
            }
        }
        sent += 1;
        pair.engines[0].close_edge(edge);
        pair.settle(1);
    }
    let held = pair.engines[1].holdings().pool_bytes;
    assert!(held > window / 2, "{held} bytes: stopped too early");
    assert!(held <= window + (64 << 10), "{held} unread bytes");
}

#[test]
fn reopened_edges_on_the_network_share_a_window() {
    reopened_edges_share_a_window(Carrier::Packets);
}

#[test]
fn reopened_edges_in_shared_memory_share_a_window() {
    reopened_edges_share_a_window(Carrier::Memory);
}

/// Long messages to an endpoint that is never read must not hold up other endpoints.
fn a_stuck_endpoint_does_not_hold_up_others(links: Links) {
    const LONG: usize = 1 << 20;
    const PATIENCE: Duration = Duration::from_secs(60);
    let directory = tempfile::tempdir().expect("a directory");
    let config = Config {
        links,
        ..Config::local(NodeId(1), directory.path().join("dipole"))
    };
    let (from, to) = (
        Node::open(config.clone()).expect("opens"),
        Node::open(config).expect("opens"),
    );
    let endpoint = |node: &Node, id| node.endpoint(EndpointId(id)).expect("free");
    let (stuck, lively) = (endpoint(&to, 10), endpoint(&to, 11));
    let (to_stuck, to_lively) = (endpoint(&from, 1), endpoint(&from, 2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            to_stuck.target(stuck.address()).expect("it exists");
            to_lively.target(lively.address()).expect("it exists");
            let message = vec![7; LONG];
            let mut taken = 0;
            while taken < 200 {
                match to_stuck.send_timeout(&message, Duration::from_millis(100)) {
                    Ok(()) => taken += 1,
                    Err(SendError::TimedOut { .. }) => break,
                    Err(other) => panic!("{other}"),
                }
            }
            assert!(taken < 200, "unread messages are accepted without limit");
            for _ in 0..200 {
                to_lively.send_timeout(&message, PATIENCE).expect("room");
            }
        });
        for _ in 0..200 {
            let message = lively.receive_timeout(PATIENCE).expect("in time");
            assert_eq!(message.len(), LONG);
        }
    });
    assert_eq!(stuck.address(), Address::new(1, 10));
}

#[test]
fn an_unread_endpoint_does_not_hold_up_others_in_shared_memory() {
    a_stuck_endpoint_does_not_hold_up_others(Links::Shm);
}

#[test]
fn an_unread_endpoint_does_not_hold_up_others_on_the_network() {
    a_stuck_endpoint_does_not_hold_up_others(Links::Udp);
}

/// Gets from a region that is closed after this many steps of either process, and whose memory is
/// then overwritten; returns whether the get succeeded.
fn get_and_close(steps: usize) -> bool {
    const BYTES: usize = 1 << 20;
    let mut pair = Pair::new(Carrier::Memory);
    pair.engines[1].open_endpoint(7);
    let edge = pair.edge(7, 7);
    let memory = RegionMemory::new(BYTES).expect("memory");
    let held: Vec<u8> = (0..=250).cycle().take(BYTES).collect();
    memory.write(0, &held).expect("it fits");
    let key = pair.engines[1].open_region(7, memory.clone(), Rights::ALL);
    let get = Operation::Get {
        key: RegionKey(key),
        offset: 0,
        length: BYTES,
    };
    let begin = |pair: &mut Pair| {
        let begun = pair.engines[0].begin_operation(pair.now, edge, &get, &Bytes::new());
        match begun.expect("there is room") {
            OperationStart::AwaitsAnswer(id) => id,
            other => panic!("{other:?}"),
        }
    };
    // The first get uses the ring; then fetching is tried.
    let id = begin(&mut pair);
    pair.settle(50);
    assert!(pair.engines[0].take_operation(id).is_some());
    let id = begin(&mut pair);
    for step in 0..steps {
        pair.engines[(step + 1) % 2]
            .step(pair.now, true)
            .expect("a working link");
        pair.now = pair.now.after(1000);
        pair.memory.advance(pair.now.0);
    }
    pair.engines[1].close_region(key);
    let overwrite = |bytes: &[u8]| pair.memory.overwrite(Path::new("/process-2"), bytes);
    memory.show(0, BYTES, overwrite).expect("all of it");
    memory.write(0, &vec![0xff; BYTES]).expect("all of it");
    memory.revoke();
    pair.settle(100);
    match pair.engines[0].take_operation(id) {
        Some(OperationResult::Done(_, data)) => {
            assert!(data[..] == held, "after {steps} steps: wrong contents");
            true
        }
        Some(OperationResult::Refused(Outcome::NoRegion)) => false,
        other => panic!("after {steps} steps: {other:?}"),
    }
}

#[test]
fn a_get_from_a_region_closed_meanwhile_returns_its_old_contents() {
    let done: Vec<bool> = (0..20).map(get_and_close).collect();
    assert!(!done[0], "it was closed before the request");
    assert!(done[19], "it was closed afterwards");
}

/// Gets from two regions, several at once, of which one region is closed after this many steps;
/// returns how many gets failed because of that.
///
/// Closing it forbids fetching for a while, so that answers offered before are requested in pieces,
/// whatever way was chosen for those after them.
fn get_from_two_regions(steps: usize) -> usize {
    const BYTES: usize = 1 << 20;
    const GETS: usize = 24;
    const AT_ONCE: usize = 4;
    let config = SharedMemoryConfig {
        ring_bytes: BYTES / 2,
        socket_ns: 2000,
        ..SharedMemoryConfig::default()
    };
    let mut pair = Pair::with(Carrier::Memory, config);
    pair.engines[1].open_endpoint(7);
    let edge = pair.edge(7, 7);
    let regions = [3, 5].map(|factor| {
        let memory = RegionMemory::new(BYTES).expect("memory");
        let held: Vec<u8> = (0..=250).cycle().step_by(factor).take(BYTES).collect();
        memory.write(0, &held).expect("it fits");
        let key = pair.engines[1].open_region(7, memory.clone(), Rights::ALL);
        (key, held)
    });
    let mut waiting = Vec::new();
    let (mut begun, mut refused) = (0, 0);
    for step in 0.. {
        assert!(
            step < 10_000,
            "after {steps} steps: {waiting:?} not answered"
        );
        if step == steps {
            pair.engines[1].close_region(regions[0].0);
        }
        while begun < GETS && waiting.len() < AT_ONCE {
            // Their lengths differ, so that bytes of one are not mistaken for those of another.
            let region = begun % 2;
            let get = Operation::Get {
                key: RegionKey(regions[region].0),
                offset: 0,
                length: BYTES - 4096 * begun,
            };
            match pair.engines[0].begin_operation(pair.now, edge, &get, &Bytes::new()) {
                Ok(OperationStart::AwaitsAnswer(id)) => waiting.push((id, region, begun)),
                Ok(other) => panic!("{other:?}"),
                Err(_) => break,
            }
            begun += 1;
        }
        waiting.retain(
            |&(id, region, number)| match pair.engines[0].take_operation(id) {
                None => true,
                Some(OperationResult::Done(_, data)) => {
                    let held = &regions[region].1[..BYTES - 4096 * number];
                    assert!(
                        data[..] == *held,
                        "after {steps} steps: get {number} is wrong"
                    );
                    false
                }
                Some(OperationResult::Refused(Outcome::NoRegion)) if region == 0 => {
                    refused += 1;
                    false
                }
                Some(other) => panic!("after {steps} steps: {other:?}"),
            },
        );
        if begun == GETS && waiting.is_empty() {
            return refused;
        }
        pair.engines[(step + 1) % 2]
            .step(pair.now, true)
            .expect("a working link");
        pair.now = pair.now.after(1000);
        pair.memory.advance(pair.now.0);
    }
    unreachable!("the steps are limited")
}

#[test]
fn gets_in_flight_are_answered_in_full_when_another_region_is_closed() {
    let refused = get_from_two_regions(0);
    assert!(refused > 0, "it was closed before the first request");
    for steps in 1..60 {
        get_from_two_regions(steps);
    }
}
