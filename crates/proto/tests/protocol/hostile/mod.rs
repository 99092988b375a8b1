//! Two machines on a hostile wire: a script loses, repeats, damages, truncates, splices and forges
//! packets. Shared by `hostile_wire.rs` and the fuzzer `conversation`.
//!
//! After every step, [`play`] checks that no slot is released twice or sent while free, that
//! events refer to bytes of their packet, that the pool stays within its limit, and that every
//! drop is counted under its reason.

mod host;
mod script;

use std::collections::VecDeque;

use dipole_proto::wire::{Address, Flags, HEADER_BYTES, Header};
use dipole_proto::{Config, Instant};

pub use host::Host;
#[allow(unused_imports, reason = "the fuzzer only decodes")]
pub use script::{Action, Forgery, decode};

/// A packet between the two hosts, with its trailer.
#[derive(Clone, Debug)]
pub struct Packet {
    pub to: usize,
    pub from: Address,
    pub bytes: Vec<u8>,
}

/// Most packets remembered for repetition and splicing.
const HISTORY: usize = 64;
/// Steps within which a conversation without interference must end.
const MAX_CALM_STEPS: usize = 20_000;

/// Two machines with a session, and the wire between them.
pub struct Conversation {
    pub now: Instant,
    pub hosts: [Host; 2],
    flights: VecDeque<Packet>,
    history: VecDeque<Packet>,
    /// Per receiver: the numbers after the highest packet on lane 0 and the highest unit sent.
    next: [(u32, u32); 2],
}

/// Small limits, so that short scripts reach all of them.
pub fn small_config() -> Config {
    Config {
        packet_bytes: 512,
        frames: 32,
        window_packets: 32,
        max_peers: 3,
        pool_bytes: 16_000,
        pool_reserve_bytes: 4_000,
        initial_credit_bytes: 4_000,
        edge_window_bytes: 8_000,
        ..Config::default()
    }
}

impl Conversation {
    /// Both machines have a session; nothing has been sent yet.
    pub fn open() -> Conversation {
        let config = small_config();
        let mut conversation = Conversation {
            now: Instant(1_000_000_000),
            hosts: [Host::new(0, &config), Host::new(1, &config)],
            flights: VecDeque::new(),
            history: VecDeque::new(),
            next: [(0, 0); 2],
        };
        conversation.connect();
        for _ in 0..20 {
            conversation.collect();
            conversation.pass(|_| {});
        }
        assert!(conversation.hosts.iter().all(|host| host.edge.is_some()));
        conversation
    }

    /// The first host connects to the second.
    pub fn connect(&mut self) {
        let home = self.hosts[1].home;
        // A full table of peers is a valid result, too.
        let _refused = self.hosts[0].machine.connect(self.now, home, 0);
        self.hosts[0].events(&[]);
    }

    /// Collects what both machines want to send.
    pub fn collect(&mut self) {
        for index in 0..2 {
            let host = &mut self.hosts[index];
            for (to, from, bytes) in host.transmit(self.now) {
                let Some(to) = (0..2).find(|other| host::home(*other).ip == to.ip) else {
                    continue;
                };
                let packet = Packet { to, from, bytes };
                self.note_numbers(&packet);
                if self.history.len() == HISTORY {
                    self.history.pop_front();
                }
                self.history.push_back(packet.clone());
                self.flights.push_back(packet);
            }
        }
    }

    fn note_numbers(&mut self, packet: &Packet) {
        let header = Header::parse(&packet.bytes).expect("machines emit what parses");
        let next = &mut self.next[packet.to];
        if header.flags.has(Flags::UNIT) {
            next.1 = next.1.max(header.unit + 1);
            if header.lane == 0 {
                next.0 = next.0.max(header.number + 1);
            }
        }
    }

    /// The packet number on lane 0 and the unit that a receiver expects next.
    pub fn next_numbers(&mut self, to: usize) -> (u32, u32) {
        let next = self.next[to];
        self.next[to] = (next.0 + 1, next.1 + 1);
        next
    }

    /// Delivers the oldest packet in flight after `change`. Returns false without packets in flight.
    pub fn pass(&mut self, change: impl FnOnce(&mut Packet)) -> bool {
        let Some(mut packet) = self.flights.pop_front() else {
            return false;
        };
        change(&mut packet);
        self.arrive(&packet);
        true
    }

    /// Delivers a packet with a correct trailer.
    pub fn arrive(&mut self, packet: &Packet) {
        self.hosts[packet.to].take(self.now, packet.from, &packet.bytes, true);
    }

    /// Delivers a packet with a wrong trailer.
    pub fn arrive_damaged(&mut self, packet: &Packet) {
        self.hosts[packet.to].take(self.now, packet.from, &packet.bytes, false);
    }

    /// One of the last packets sent.
    pub fn remembered(&self, which: u8) -> Option<Packet> {
        let index = usize::from(which).checked_rem(self.history.len())?;
        self.history.get(index).cloned()
    }

    /// Advances the time by `ns`.
    pub fn wait(&mut self, ns: u64) {
        self.now = self.now.after(ns);
        for host in &mut self.hosts {
            host.machine.on_timers(self.now);
            host.events(&[]);
        }
    }

    /// Runs without interference until both applications have read everything.
    pub fn calm_down(&mut self) {
        for _ in 0..MAX_CALM_STEPS {
            for host in &mut self.hosts {
                while host.read(self.now) {}
            }
            self.collect();
            if self.pass(|_| {}) {
                continue;
            }
            if self.is_complete() {
                return;
            }
            let deadline = (self.hosts.iter_mut())
                .filter_map(|host| host.machine.next_deadline())
                .min()
                .expect("an incomplete conversation has a deadline");
            self.wait(deadline.since(self.now).max(1));
        }
        panic!(
            "the conversation does not end: {:?}",
            self.hosts.each_ref().map(|h| &h.machine)
        );
    }

    fn is_complete(&self) -> bool {
        let [a, b] = &self.hosts;
        a.sent == b.received && b.sent == a.received
    }

    /// Everything read so far is a prefix of what was sent.
    pub fn check_contents(&self) {
        let [a, b] = &self.hosts;
        assert!(b.sent.starts_with(&a.received), "second to first");
        assert!(a.sent.starts_with(&b.received), "first to second");
    }

    /// Ends all sessions. Every slot must have been released.
    pub fn end(mut self) {
        for host in &mut self.hosts {
            host.end();
        }
    }
}

/// Plays a script that may forge packets with correct trailers.
pub fn play(script: &[Action]) {
    let mut conversation = Conversation::open();
    for action in script {
        action.apply(&mut conversation);
        conversation.collect();
    }
    conversation.end();
}

/// Plays a script without forged packets: all contents must arrive.
pub fn play_honest(script: &[Action]) {
    let mut conversation = Conversation::open();
    for action in script.iter().filter(|action| action.is_honest()) {
        action.apply(&mut conversation);
        conversation.collect();
        // Waits may add up to the time-out for silent peers; then messages may be lost.
        if conversation.hosts.iter().any(|host| host.has_lost_peer) {
            return conversation.end();
        }
        conversation.check_contents();
    }
    conversation.calm_down();
    conversation.check_contents();
    conversation.end();
}

/// Adjusts the header's length to the bytes, as a forger would.
pub fn fit_length(bytes: &mut [u8]) {
    if bytes.len() >= HEADER_BYTES
        && let Ok(length) = u16::try_from(bytes.len())
    {
        bytes[2..4].copy_from_slice(&length.to_le_bytes());
    }
}
