//! A message that is sent in the background goes on although its application makes no further call.

use std::net::SocketAddr;

use dipole_engine::{AnyLink, Destination, Engine};
use dipole_link::sim::{Network, NetworkConfig};
use dipole_node::{Bytes, Operation};
use dipole_proto::{Config, Instant};

use crate::scenario::{MICROSECOND, SECOND};

const INBOX: u32 = 1;
const LONG: usize = 20_000;

/// Two processes, which run only when packets arrive or at their deadlines.
struct Pair {
    network: Network,
    engines: [Engine; 2],
    deadlines_ns: [u64; 2],
    now_ns: u64,
    /// Lengths of the messages that the second one has received.
    received: Vec<usize>,
}

fn address(process: usize, port: u16) -> SocketAddr {
    let host = u8::try_from(process + 1).expect("two");
    SocketAddr::from(([10, 0, 0, host], port))
}

impl Pair {
    fn new() -> Pair {
        let network = Network::new(1, NetworkConfig::default());
        let engine = |index: usize| {
            let port = network.attach(address(index, 7000), address(index, 7001));
            let number = index as u64 + 1;
            let config = Config {
                node: u32::try_from(number).expect("small"),
                frames: 16,
                ..Config::default()
            };
            let link = AnyLink::from(port.expect("addresses of its own"));
            Engine::new(link, config, number, [number, !number], None)
        };
        Pair {
            engines: [engine(0), engine(1)],
            network,
            deadlines_ns: [0; 2],
            now_ns: 1,
            received: Vec::new(),
        }
    }

    /// Runs for this time.
    fn run(&mut self, ns: u64) {
        let end_ns = self.now_ns + ns;
        loop {
            let own = self.deadlines_ns.into_iter();
            let next = own.chain(self.network.next_event_ns()).min();
            self.now_ns = next.unwrap_or(u64::MAX).max(self.now_ns).min(end_ns);
            self.network.advance(self.now_ns);
            if self.now_ns == end_ns {
                return;
            }
            for index in 0..2 {
                let arrived = [7000, 7001].map(|port| self.network.waiting(address(index, port)));
                if arrived != [0, 0] || self.deadlines_ns[index] <= self.now_ns {
                    self.turn(index);
                }
            }
        }
    }

    fn turn(&mut self, index: usize) {
        let (now, engine) = (Instant(self.now_ns), &mut self.engines[index]);
        engine.disarm();
        engine.step(now, true).expect("a whole network");
        while let Some(message) = engine.take(now, INBOX) {
            self.received.push(message.len());
        }
        self.sleep(index);
    }

    fn sleep(&mut self, index: usize) {
        let engine = &mut self.engines[index];
        let deadline = engine.next_deadline(Instant(self.now_ns));
        self.deadlines_ns[index] = deadline.map_or(u64::MAX, |deadline| deadline.0);
        if !engine.arm() {
            self.deadlines_ns[index] = self.now_ns + MICROSECOND;
        }
    }
}

#[test]
fn a_message_in_the_background_goes_on_when_unreliable_ones_return_their_frames() {
    let mut pair = Pair::new();
    pair.engines[1].open_endpoint(INBOX);
    let to = Destination {
        small: address(1, 7000),
        incarnation: 0,
    };
    let peer = pair.engines[0].connect(Instant(1), to).expect("room");
    pair.run(SECOND);
    assert_eq!(pair.engines[0].is_open(peer), Ok(true));
    let edge = pair.engines[0].edge(peer, 100, INBOX).expect("open");
    let (engine, now) = (&mut pair.engines[0], Instant(pair.now_ns));
    engine.disarm();
    let mut loose = 0;
    while engine.send_unreliable(now, edge, &[7; 1000]).is_ok() {
        loose += 1;
    }
    assert_eq!(engine.free_frames(), 0);
    let message = Bytes::from(vec![7; LONG]);
    let begun = engine.begin_operation(now, edge, &Operation::Message, &message);
    begun.expect("credit");
    engine.transmit(now).expect("a whole network");
    pair.sleep(0);
    pair.run(SECOND / 10);
    assert_eq!(pair.received.len(), loose + 1);
    assert!(pair.received.contains(&LONG));
}
