//! Incast: many senders send to one receiver at once, through a switch with a small queue, in
//! virtual time.
//!
//! All senders start a message at the same moment, again and again. Measures the use of the
//! receiver's link, the delay of the last of a hundred messages, and the switch's drops, which must
//! be zero after the first round trip of a round.

#![allow(missing_docs, reason = "a test")]

use std::collections::VecDeque;
use std::net::SocketAddr;

use dipole_engine::AnyLink;
use dipole_engine::{Blocked, Destination, Engine, LongSend};
use dipole_link::sim::{DropReason, Network, NetworkConfig, PathConfig};
use dipole_proto::{Config, EdgeId, Instant, PeerId};

/// Endpoint that receives from all senders.
const INBOX: u32 = 1;
const OUTBOX: u32 = 100;
/// Rounds that are not counted.
const LEARNING: usize = 2;
const LATENCY_NS: u64 = 5_000;
/// Pause between two rounds.
const PAUSE_NS: u64 = 1_000_000;
/// Time until a process that found something polls again.
const POLL_NS: u64 = 1_000;

#[derive(Clone, Copy, Debug)]
struct Incast {
    senders: usize,
    message_bytes: usize,
    gbit_per_second: u64,
    queue_bytes: u64,
    rounds: usize,
}

#[derive(Clone, Debug, Default)]
struct Figures {
    lost_packets: u64,
    /// Packets lost after the first round trip of a round.
    lost_later: u64,
    efficiency: f64,
    p99_over_ideal: f64,
    mean_over_ideal: f64,
}

struct Process {
    engine: Engine,
    peer: Option<PeerId>,
    edge: Option<EdgeId>,
    /// Lengths of messages to send.
    queue: VecDeque<usize>,
    long: Option<LongSend>,
    deadline_ns: u64,
}

struct Cluster {
    network: Network,
    now_ns: u64,
    processes: Vec<Process>,
    payload: Vec<u8>,
    /// When each message was received.
    read_ns: Vec<u64>,
}

fn address(process: usize, port: u16) -> SocketAddr {
    let host = u8::try_from(process + 1).expect("few processes");
    SocketAddr::from(([10, 0, 0, host], port))
}

impl Cluster {
    fn new(incast: &Incast) -> Cluster {
        let network = Network::new(
            1,
            NetworkConfig {
                bytes_per_second: incast.gbit_per_second * 125_000_000,
                switch_queue_bytes: incast.queue_bytes,
                path: PathConfig {
                    latency_ns: LATENCY_NS,
                    ..PathConfig::default()
                },
                ..NetworkConfig::default()
            },
        );
        let processes = (0..=incast.senders).map(|index| {
            let port = network
                .attach(address(index, 7000), address(index, 7001))
                .expect("addresses of its own");
            let number = index as u64 + 1;
            let config = Config {
                node: u32::try_from(number).expect("small"),
                ..Config::default()
            };
            let link = AnyLink::from(port);
            let engine = Engine::new(link, config, number, [number, !number], None);
            Process {
                engine,
                peer: None,
                edge: None,
                queue: VecDeque::new(),
                long: None,
                deadline_ns: 0,
            }
        });
        let mut cluster = Cluster {
            processes: processes.collect(),
            network,
            now_ns: 1,
            payload: vec![7; incast.message_bytes],
            read_ns: Vec::new(),
        };
        cluster.processes[0].engine.open_endpoint(INBOX);
        for index in 1..cluster.processes.len() {
            let process = &mut cluster.processes[index];
            let to = Destination {
                small: address(0, 7000),
                incarnation: 0,
            };
            let peer = process.engine.connect(Instant(cluster.now_ns), to);
            process.peer = Some(peer.expect("a place for it"));
        }
        cluster
    }

    /// Every sender sends a message of this length; runs until all have been received.
    fn round(&mut self, bytes: usize) {
        self.read_ns.clear();
        for process in &mut self.processes[1..] {
            process.queue.push_back(bytes);
            process.deadline_ns = self.now_ns;
        }
        let senders = self.processes.len() - 1;
        self.run(|cluster| cluster.read_ns.len() == senders);
    }

    fn run(&mut self, done: impl Fn(&Cluster) -> bool) {
        let end_ns = self.now_ns + 60_000_000_000;
        while !done(self) {
            let own = self.processes.iter().map(|process| process.deadline_ns);
            let next = own.chain(self.network.next_event_ns()).min();
            self.now_ns = next.unwrap_or(u64::MAX).max(self.now_ns);
            assert!(self.now_ns < end_ns, "a message never arrives");
            self.network.advance(self.now_ns);
            for index in 0..self.processes.len() {
                self.turn(index);
            }
        }
    }

    /// Advances the simulated time.
    fn rest(&mut self, ns: u64) {
        let until_ns = self.now_ns + ns;
        self.run(|cluster| cluster.now_ns >= until_ns || cluster.is_quiet(until_ns));
        self.now_ns = until_ns;
        self.network.advance(until_ns);
    }

    fn is_quiet(&self, until_ns: u64) -> bool {
        let mut own = self.processes.iter().map(|process| process.deadline_ns);
        let event_ns = self.network.next_event_ns().unwrap_or(u64::MAX);
        event_ns > until_ns && own.all(|deadline_ns| deadline_ns > until_ns)
    }

    fn turn(&mut self, index: usize) {
        let waiting = [7000, 7001].map(|port| self.network.waiting(address(index, port)));
        let process = &mut self.processes[index];
        if waiting == [0, 0] && process.deadline_ns > self.now_ns {
            return;
        }
        let now = Instant(self.now_ns);
        process.engine.disarm();
        process.engine.step(now, true).expect("a whole network");
        while process.engine.take(now, INBOX).is_some() {
            self.read_ns.push(self.now_ns);
        }
        process.send(now, &self.payload);
        process.engine.transmit(now).expect("a whole network");
        process.deadline_ns = match process.engine.next_deadline(now) {
            Some(deadline) => deadline.0,
            None => u64::MAX,
        };
        if !process.engine.arm() {
            process.deadline_ns = process.deadline_ns.min(self.now_ns + POLL_NS);
        }
    }
}

impl Process {
    fn send(&mut self, now: Instant, payload: &[u8]) {
        let Some(peer) = self.peer else {
            return;
        };
        if self.engine.is_open(peer) != Ok(true) {
            return;
        }
        let source = OUTBOX;
        if self.edge.is_none() {
            self.edge = self.engine.edge(peer, source, INBOX).ok();
        }
        let Some(edge) = self.edge else {
            return;
        };
        while let Some(&bytes) = self.queue.front() {
            let payload = &payload[..bytes];
            if let Some(long) = &mut self.long {
                match self.engine.continue_long(long, payload) {
                    Ok(true) => self.long = None,
                    Ok(false) => return,
                    Err(blocked) => panic!("{blocked:?}"),
                }
            } else if bytes <= self.engine.whole_limit(peer) {
                match self.engine.send_whole(now, edge, payload, false) {
                    Ok(()) => {}
                    Err(Blocked::NoCredit | Blocked::NoFrame) => return,
                    Err(blocked) => panic!("{blocked:?}"),
                }
            } else {
                match self.engine.begin_long(now, edge, payload, false) {
                    Ok(long) => {
                        self.long = Some(long);
                        continue;
                    }
                    Err(Blocked::NoCredit | Blocked::NoFrame) => return,
                    Err(blocked) => panic!("{blocked:?}"),
                }
            }
            self.queue.pop_front();
        }
    }
}

fn measure(incast: &Incast) -> Figures {
    let mut cluster = Cluster::new(incast);
    cluster.round(8);
    cluster.rest(PAUSE_NS);
    let bytes_per_second = incast.gbit_per_second * 125_000_000;
    let ns_of = |bytes: u64| bytes * 1_000_000_000 / bytes_per_second;
    let packet_bytes = 1472 + 66;
    // Each packet has a header, a trailer and the head of a fragment.
    let packets = incast.message_bytes.div_ceil(1472 - 32 - 4 - 32) as u64;
    let wire_bytes = incast.message_bytes as u64 + packets * (32 + 4 + 32 + 66);
    let ideal_ns = ns_of(wire_bytes * incast.senders as u64) + LATENCY_NS + ns_of(packet_bytes);
    // During the first burst, a round trip can take as long as the switch's queue.
    let round_trip_ns = 2 * LATENCY_NS + 4 * ns_of(packet_bytes) + ns_of(incast.queue_bytes);
    let mut figures = Figures::default();
    let mut times = Vec::new();
    for round in 0..incast.rounds + LEARNING {
        let begin_ns = cluster.now_ns;
        let lost = |cluster: &Cluster| cluster.network.stats().dropped(DropReason::SwitchQueue);
        let lost_before = lost(&cluster);
        for process in &mut cluster.processes[1..] {
            process.queue.push_back(incast.message_bytes);
            process.deadline_ns = begin_ns;
        }
        cluster.read_ns.clear();
        cluster.run(|cluster| {
            cluster.now_ns > begin_ns + round_trip_ns || cluster.read_ns.len() == incast.senders
        });
        let lost_first = lost(&cluster);
        cluster.run(|cluster| cluster.read_ns.len() == incast.senders);
        let own = cluster.read_ns.iter().map(|read_ns| read_ns - begin_ns);
        let own: Vec<u64> = own.collect();
        let last = *own.iter().max().expect("at least one sender");
        // The first rounds discover what the link carries.
        if round < LEARNING {
            cluster.rest(PAUSE_NS);
            continue;
        }
        figures.efficiency += ideal_ns as f64 / last as f64 / incast.rounds as f64;
        figures.lost_packets += lost(&cluster) - lost_before;
        figures.lost_later += lost(&cluster) - lost_first;
        times.extend(own);
        cluster.rest(PAUSE_NS);
    }
    times.sort_unstable();
    let p99 = times[(times.len() * 99).div_ceil(100) - 1];
    figures.p99_over_ideal = p99 as f64 / ideal_ns as f64;
    let mean = times.iter().sum::<u64>() as f64 / times.len() as f64;
    figures.mean_over_ideal = mean / ideal_ns as f64;
    figures
}

#[test]
fn incast_fills_the_link_and_loses_nothing_after_the_first_round_trip() {
    for gbit_per_second in [1, 10, 100] {
        for (senders, queue_bytes) in [(7, 64 << 10), (64, 64 << 10), (64, 128 << 10)] {
            let incast = Incast {
                senders,
                message_bytes: 64 << 10,
                gbit_per_second,
                queue_bytes,
                rounds: 30,
            };
            let figures = measure(&incast);
            println!(
                "{senders} to 1 at {gbit_per_second} Gbit/s, queue of {} KiB: {} packets lost, \
                 {} of them later; {:.3} of the link, p99 {:.2}, mean {:.2} x ideal",
                queue_bytes >> 10,
                figures.lost_packets,
                figures.lost_later,
                figures.efficiency,
                figures.p99_over_ideal,
                figures.mean_over_ideal,
            );
            assert_eq!(figures.lost_later, 0, "{incast:?}");
            // A few messages end before they fill a fast link.
            if senders == 64 || gbit_per_second < 100 {
                assert!(figures.efficiency >= 0.92, "{incast:?}");
                assert!(figures.p99_over_ideal <= 1.3, "{incast:?}");
            }
        }
    }
}
