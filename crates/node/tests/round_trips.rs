//! Round trips over a path that loses packets, in simulated time: how much longer the slowest take.

use std::net::SocketAddr;

use dipole_engine::{AnyLink, Destination, Engine};
use dipole_link::sim::{Network, NetworkConfig, PathConfig};
use dipole_node::ProtocolConfig;
use dipole_proto::{EdgeId, Instant};

const LATENCY_NS: u64 = 5_000_000;
const COUNT: usize = 20_000;
/// The pinging endpoint, and the one that answers.
const ENDPOINTS: [u32; 2] = [1, 2];

struct Side {
    engine: Engine,
    edge: Option<EdgeId>,
    deadline: Instant,
}

struct Pair {
    network: Network,
    sides: [Side; 2],
    now: Instant,
}

fn address(side: usize, port: u16) -> SocketAddr {
    let host = u8::try_from(side + 1).expect("two");
    SocketAddr::from(([10, 0, 0, host], port))
}

impl Pair {
    fn new(seed: u64, loss: f64) -> Pair {
        let path = PathConfig {
            latency_ns: LATENCY_NS,
            ..PathConfig::default()
        };
        let config = NetworkConfig {
            path,
            ..NetworkConfig::default()
        };
        let network = Network::new(seed, config);
        let sides = [0, 1].map(|side| {
            let port = network.attach(address(side, 7000), address(side, 7001));
            let link = AnyLink::from(port.expect("addresses of its own"));
            let number = side as u64 + 1;
            let config = ProtocolConfig {
                node: u32::try_from(number).expect("small"),
                ..ProtocolConfig::default()
            };
            let mut engine = Engine::new(link, config, number, [number, !number], None);
            engine.open_endpoint(ENDPOINTS[side]);
            Side {
                engine,
                edge: None,
                deadline: Instant(0),
            }
        });
        let mut pair = Pair {
            network,
            sides,
            now: Instant(1),
        };
        for side in 0..2 {
            let to = Destination {
                small: address(1 - side, 7000),
                incarnation: 0,
            };
            let engine = &mut pair.sides[side].engine;
            let peer = engine.connect(pair.now, to).expect("a place for it");
            while pair.sides[side].edge.is_none() {
                pair.advance();
                let engine = &mut pair.sides[side].engine;
                if engine.is_open(peer) == Ok(true) {
                    let edge = engine.edge(peer, ENDPOINTS[side], ENDPOINTS[1 - side]);
                    pair.sides[side].edge = edge.ok();
                }
            }
        }
        pair.network.change(|config| config.path.loss = loss);
        pair
    }

    /// Continues until the next event.
    fn advance(&mut self) {
        let own = self.sides.iter().map(|side| side.deadline.0);
        let next = own.chain(self.network.next_event_ns()).min();
        self.now = Instant(next.unwrap_or(u64::MAX).max(self.now.0 + 1));
        self.network.advance(self.now.0);
        for side in &mut self.sides {
            side.step(self.now);
        }
    }

    /// Sends a message and continues until it has arrived.
    fn pass(&mut self, from: usize) {
        let side = &mut self.sides[from];
        let edge = side.edge.expect("open");
        let sent = side.engine.send_whole(self.now, edge, &[7; 64], false);
        sent.expect("frames and credit");
        side.step(self.now);
        let to = 1 - from;
        let end = self.now.after(60_000_000_000);
        while self.sides[to]
            .engine
            .take(self.now, ENDPOINTS[to])
            .is_none()
        {
            assert!(self.now < end, "a message never arrives");
            self.advance();
        }
    }
}

impl Side {
    fn step(&mut self, now: Instant) {
        self.engine.disarm();
        self.engine.step(now, true).expect("a whole network");
        self.engine.transmit(now).expect("a whole network");
        let deadline = self.engine.next_deadline(now);
        self.deadline = deadline.unwrap_or(Instant(u64::MAX));
        if !self.engine.arm() {
            self.deadline = now.after(1000);
        }
    }
}

/// A single packet is repeated after one round trip, twice, and then at longer intervals.
#[test]
fn a_tenth_of_all_packets_lost_makes_few_round_trips_long() {
    let mut pair = Pair::new(1, 0.1);
    let mut took_ns = Vec::new();
    for _ in 0..COUNT {
        let began = pair.now;
        pair.pass(0);
        pair.pass(1);
        took_ns.push(pair.now.since(began));
    }
    took_ns.sort_unstable();
    let slowest =
        |share: usize| took_ns[COUNT - 1 - COUNT / share] as f64 / (2 * LATENCY_NS) as f64;
    let found = [10, 100, 1000].map(slowest);
    let most = [2.1, 3.1, 5.1];
    let is_right = found.iter().zip(most).all(|(found, most)| *found <= most);
    assert!(is_right, "round trips: {found:?}, at most {most:?}");
}
