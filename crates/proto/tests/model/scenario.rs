//! Scenarios: limits, threads, and what the network may do.

use dipole_proto::Config;

use super::host::message_charge;

/// A thread of an application: it sends `count` messages, each call blocking until it succeeds,
/// and then reads.
#[derive(Clone)]
pub struct Thread {
    pub source: u32,
    pub target: u32,
    pub count: u8,
    /// The endpoint that it reads.
    pub reads: Option<u32>,
    /// Messages sent to that endpoint.
    pub expects: u8,
    /// It may stay unfinished, because its peer never reads.
    pub optional: bool,
    /// It closes its edge after every message.
    pub closes: bool,
}

impl Thread {
    pub fn sending(count: u8, target: u32) -> Thread {
        Thread {
            source: 1,
            target,
            count,
            reads: None,
            expects: 0,
            optional: false,
            closes: false,
        }
    }

    pub fn reading(count: u8, endpoint: u32) -> Thread {
        Thread {
            source: 1,
            target: 0,
            count: 0,
            reads: Some(endpoint),
            expects: count,
            optional: false,
            closes: false,
        }
    }

    pub fn both(count: u8, endpoint: u32) -> Thread {
        Thread {
            target: endpoint,
            count,
            ..Thread::reading(count, endpoint)
        }
    }

    pub fn closing(self) -> Thread {
        Thread {
            closes: true,
            ..self
        }
    }

    pub fn optional(self) -> Thread {
        Thread {
            optional: true,
            ..self
        }
    }
}

#[derive(Clone)]
pub struct Scenario {
    pub config: Config,
    pub endpoints: Vec<u32>,
    pub threads: [Vec<Thread>; 2],
    /// A thread whose send fails reads (thesis §5.3, first rule).
    pub first_rule: bool,
    /// Buffers shared by sending and receiving, as in the thesis. Without, they are separate.
    pub one_pool: Option<usize>,
    /// Most packets in flight in each direction; a sender waits for room.
    pub capacity: usize,
    pub drops: u8,
    pub duplicates: u8,
    pub restarts: u8,
    /// How often a link may switch to short packets, which hold part of a message.
    pub narrowings: u8,
    /// How often a time-out may pass although a packet is still in flight.
    pub early: u8,
    /// Begin before the handshake, and verify each session by its messages.
    pub handshake: bool,
    pub max_states: usize,
}

/// Every time-out has this length: only the order of events matters.
const TIMEOUT_NS: u64 = 1;

impl Scenario {
    /// Two hosts that send `count` messages to each other and then read them, with the smallest
    /// pools, unlimited credit, both rules, and a perfect network.
    pub fn exchange(count: u8, frames: u32, pool_messages: u64) -> Scenario {
        Scenario {
            config: Config {
                packet_bytes: 256,
                frames,
                window_packets: 4,
                max_peers: 2,
                pool_bytes: pool_messages * message_charge(),
                pool_reserve_bytes: message_charge(),
                initial_credit_bytes: 1 << 16,
                edge_window_bytes: 1 << 16,
                reorder_packets: 1,
                ack_delay_ns: 0,
                min_timeout_ns: TIMEOUT_NS,
                max_timeout_ns: TIMEOUT_NS,
                suspect_after_ns: u64::MAX,
                peer_timeout_ns: u64::MAX,
                idle_check_ns: u64::MAX,
                ..Config::default()
            },
            endpoints: vec![7],
            threads: [vec![Thread::both(count, 7)], vec![Thread::both(count, 7)]],
            first_rule: true,
            one_pool: None,
            capacity: 2,
            drops: 0,
            duplicates: 0,
            restarts: 0,
            narrowings: 0,
            early: 0,
            handshake: false,
            max_states: 40_000_000,
        }
    }

    /// Without the second rule: arrivals are accepted in any order.
    pub fn without_second_rule(mut self) -> Scenario {
        self.config.pool_reserve_bytes = 0;
        self
    }

    pub fn without_first_rule(mut self) -> Scenario {
        self.first_rule = false;
        self
    }

    /// Credit for this many messages per edge, instead of unlimited.
    pub fn with_credit(mut self, messages: u64) -> Scenario {
        let bytes = messages * message_charge();
        self.config.initial_credit_bytes = bytes as u32;
        self.config.edge_window_bytes = bytes;
        self
    }

    /// Messages in one direction only.
    pub fn stream(count: u8, frames: u32, pool_messages: u64) -> Scenario {
        let mut scenario = Scenario::exchange(count, frames, pool_messages);
        scenario.threads = [
            vec![Thread::sending(count, 7)],
            vec![Thread::reading(count, 7)],
        ];
        scenario
    }

    /// Sending and receiving share this many buffers. Without the second rule any arrival takes one;
    /// the machine's own pool is large enough.
    pub fn with_one_pool(mut self, buffers: usize) -> Scenario {
        self.one_pool = Some(buffers);
        self
    }

    /// Once, at any time, units become too long and are cut into two parts.
    pub fn with_narrowing(mut self) -> Scenario {
        // Header, two thirds of a message's record, checksum.
        self.config.base_packet_bytes = 32 + 12 + 4;
        self.narrowings = 1;
        self
    }

    /// Starts with the first hello.
    pub fn with_handshake(mut self) -> Scenario {
        self.handshake = true;
        self
    }

    /// Time-outs of several steps, so that timers may fire in any order.
    pub fn with_phases(mut self, steps: u64) -> Scenario {
        self.config.min_timeout_ns = steps;
        self.config.max_timeout_ns = steps;
        self
    }

    /// Returns the scenario with the extensions of `DIPOLE_MODEL_BOUND`.
    pub fn widened(mut self) -> Scenario {
        let bound = bound().unwrap_or(0);
        self.drops += bound;
        self.duplicates += bound.saturating_sub(2);
        self.early += bound.saturating_sub(2);
        self
    }

    /// Most bytes that one edge may have granted and not consumed.
    pub fn edge_bound(&self) -> u64 {
        let initial = u64::from(self.config.initial_credit_bytes);
        self.config.edge_window_bytes.max(initial)
    }
}

/// The size of a run that takes seconds, and with `DIPOLE_MODEL_BOUND` that of a longer one.
pub fn sizes<T>(usual: T, long: T) -> impl Iterator<Item = T> {
    std::iter::once(usual).chain(bound().map(|_| long))
}

/// The value of `DIPOLE_MODEL_BOUND`. Without it only runs are explored that take seconds.
pub fn bound() -> Option<u8> {
    let text = std::env::var("DIPOLE_MODEL_BOUND").ok()?;
    let bound = text.parse();
    Some(bound.expect("DIPOLE_MODEL_BOUND is a small number"))
}
