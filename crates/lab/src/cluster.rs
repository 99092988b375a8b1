//! Processes that exchange messages in supersteps, in virtual time: the real engine on a simulated
//! network, behind a switch with little memory or on a bus.
//!
//! A superstep begins with a barrier that costs nothing but leaves the processes slightly out of
//! step. Measured is the exchange that follows, up to the last byte read. The speed of the machine
//! has no influence.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;

use dipole_bsp::superstep::pace::Pace;
use dipole_bsp::superstep::schedule::{Order, RoundRobin};
use dipole_engine::AnyLink;
use dipole_engine::{Blocked, Destination, Engine, LongSend};
use dipole_link::sim::{BusConfig, DropReason, Network, NetworkConfig, NetworkStats, PathConfig};
use dipole_model::Slots;
use dipole_proto::{Config, EdgeId, Instant, PeerId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Endpoints at which processes receive, and from which they send.
const INBOX: u32 = 1;
const OUTBOX: u32 = 100;
/// Interval after which a process that found something polls again.
const POLL_NS: u64 = 1_000;
/// Pause between two exchanges, in which all packets of the previous one arrive.
const PAUSE_NS: u64 = 1_000_000;
/// Time limit of a superstep.
const MOST_NS: u64 = 600_000_000_000;
/// Enough for everything that processes without flow control have in flight.
const FRAMES: u32 = 4096;
/// Frames of a process in a large cluster, where each sends little to each other.
const FEW_FRAMES: u32 = 256;
/// With more processes than this, each has [`FEW_FRAMES`].
const FEW_PROCESSES: usize = 64;
/// Number of peers that a process connects to at a time. All together would overflow the queues.
const CONNECTING: usize = 64;
/// Ethernet, IP and UDP headers, gap and preamble.
const FRAME_BYTES: u64 = 66;
const PACKET_BYTES: usize = 1472;
/// Payload of a packet, without header, trailer, and head of a piece.
pub(crate) const PIECE_BYTES: usize = PACKET_BYTES - 32 - 4 - 32;

/// Network that connects the nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Carrier {
    /// A switch with a full-duplex link to each process, and this much memory per port.
    Switch { queue_bytes: u64 },
    /// One medium for all processes.
    Bus { propagation_ns: u64 },
}

/// Configuration of a cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) processes: usize,
    pub(crate) carrier: Carrier,
    pub(crate) mbit_per_second: u64,
    pub(crate) latency_ns: u64,
    /// Limit of the time between two processes leaving the barrier.
    pub(crate) skew_ns: u64,
    pub(crate) order: Order,
    pub(crate) slots: Option<Slots>,
    pub(crate) chunk_bytes: usize,
    /// Limit of chunks that a process has begun but not yet handed to its sessions.
    pub(crate) ahead: usize,
    /// No acknowledgements, retransmissions and windows: lost packets stay lost.
    pub(crate) blind: bool,
    /// Time that an acknowledgement waits for a data packet.
    pub(crate) ack_delay_ns: u64,
    /// Minimum retransmission timeout.
    pub(crate) least_timeout_ns: u64,
    pub(crate) seed: u64,
}

impl Setup {
    /// Returns the time that the medium needs for this many bytes in frames.
    fn wire_ns(&self, bytes: u64) -> u64 {
        bytes * 8_000 / self.mbit_per_second
    }

    /// Returns the time of a message through an interface, including frame overhead.
    pub(crate) fn message_ns(&self, bytes: usize) -> u64 {
        let packets = bytes.div_ceil(PIECE_BYTES) as u64;
        let overhead = (PACKET_BYTES - PIECE_BYTES) as u64 + FRAME_BYTES;
        self.wire_ns(bytes as u64 + packets * overhead)
    }

    /// Returns the minimum time of an exchange: that of the busiest interface, or of the bus.
    pub(crate) fn ideal_ns(&self, relation: &Relation) -> u64 {
        let count = self.processes;
        let message = |from: usize, to: usize| self.message_ns(relation.bytes[from][to]);
        match self.carrier {
            Carrier::Bus { .. } => {
                let all = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
                all.map(|(from, to)| message(from, to)).sum()
            }
            Carrier::Switch { .. } => {
                let sums = (0..count).flat_map(|one| {
                    let out: u64 = (0..count).map(|to| message(one, to)).sum();
                    let back: u64 = (0..count).map(|from| message(from, one)).sum();
                    [out, back]
                });
                // The last packet also passes the switch's link.
                let last_ns = self.message_ns(PIECE_BYTES) + self.latency_ns;
                sums.max().unwrap_or(0) + last_ns
            }
        }
    }
}

/// Number of bytes from each process to each other.
#[derive(Clone, Debug)]
pub(crate) struct Relation {
    /// Bytes by sender and receiver.
    pub(crate) bytes: Vec<Vec<usize>>,
}

impl Relation {
    fn of(processes: usize, mut bytes: impl FnMut(usize, usize) -> usize) -> Relation {
        let mut row = |from: usize| -> Vec<usize> {
            let mut one = |to: usize| if to == from { 0 } else { bytes(from, to) };
            (0..processes).map(&mut one).collect()
        };
        Relation {
            bytes: (0..processes).map(&mut row).collect(),
        }
    }

    /// Each process sends this much to every other.
    pub(crate) fn total_exchange(processes: usize, bytes: usize) -> Relation {
        Relation::of(processes, |_, _| bytes)
    }

    /// Each process sends this much to the next.
    pub(crate) fn cyclic_shift(processes: usize, bytes: usize) -> Relation {
        Relation::of(processes, |from, to| {
            if to == (from + 1) % processes {
                bytes
            } else {
                0
            }
        })
    }

    /// Each pair sends with probability 1/2, up to this much.
    pub(crate) fn random(processes: usize, most_bytes: usize, seed: u64) -> Relation {
        let mut dice = StdRng::seed_from_u64(seed);
        Relation::of(processes, |_, _| match dice.random_bool(0.5) {
            true => dice.random_range(1..=most_bytes),
            false => 0,
        })
    }

    fn sent_by(&self, from: usize) -> usize {
        self.bytes[from].iter().sum()
    }

    /// Returns what each process receives.
    fn received(&self) -> Vec<usize> {
        let mut all = vec![0; self.bytes.len()];
        for row in &self.bytes {
            for (sum, bytes) in all.iter_mut().zip(row) {
                *sum += bytes;
            }
        }
        all
    }

    /// Returns h of the h-relation in bytes.
    pub(crate) fn h(&self) -> usize {
        let sent = (0..self.bytes.len()).map(|rank| self.sent_by(rank));
        sent.chain(self.received()).max().unwrap_or(0)
    }

    pub(crate) fn total(&self) -> usize {
        self.bytes.iter().flatten().sum()
    }

    fn senders(&self) -> u32 {
        let senders = (0..self.bytes.len()).filter(|&rank| self.sent_by(rank) > 0);
        u32::try_from(senders.count()).unwrap_or(u32::MAX)
    }
}

/// Result of an exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Exchange {
    pub(crate) ns: u64,
    /// Minimum time of the exchange divided by its time.
    pub(crate) efficiency: f64,
    /// Frames handed to the network.
    pub(crate) packets: u64,
    /// Frames lost to full queues or too many collisions.
    pub(crate) lost: u64,
    /// Packets with acknowledgements only.
    pub(crate) acknowledgements: u64,
    pub(crate) repeats: u64,
    /// Bytes of payload that arrived.
    pub(crate) received: u64,
    /// Attempts to send on the bus, and collisions.
    pub(crate) attempts: u64,
    pub(crate) collisions: u64,
}

/// Schedule by which a process sends its chunks.
enum Leaving {
    Paced(Pace),
    /// Each chunk leaves at a random moment of its interval.
    Random {
        interval_ns: f64,
        /// Beginning of the next interval.
        at_ns: f64,
        dice: StdRng,
    },
}

impl Leaving {
    fn next(&mut self, now_ns: u64, bytes: usize) -> u64 {
        match self {
            Leaving::Paced(pace) => pace.next(now_ns, bytes),
            Leaving::Random {
                interval_ns,
                at_ns,
                dice,
            } => {
                let leaves_ns = *at_ns + dice.random_range(0.0..*interval_ns);
                *at_ns += *interval_ns;
                in_ns(leaves_ns).max(now_ns)
            }
        }
    }
}

/// Converts a non-negative time to whole nanoseconds.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times of a simulation are far below 2^53 ns"
)]
pub(crate) fn in_ns(time: f64) -> u64 {
    time.round() as u64
}

struct Sending {
    long: LongSend,
    bytes: usize,
}

struct Process {
    engine: Engine,
    edges: Vec<Option<EdgeId>>,
    peers: Vec<Option<PeerId>>,
    turns: RoundRobin,
    pace: Leaving,
    /// Bytes left for each receiver.
    left: Vec<usize>,
    /// Sum of `left`.
    left_bytes: usize,
    /// Receiver, length and earliest time of the next chunk.
    next: Option<(usize, usize, u64)>,
    sending: Vec<Sending>,
    received: usize,
    /// Bytes received in this exchange.
    expected: usize,
    begin_ns: u64,
    deadline_ns: u64,
}

pub(crate) struct Cluster {
    setup: Setup,
    network: Network,
    now_ns: u64,
    processes: Vec<Process>,
    /// Deadlines of processes, including outdated ones.
    deadlines: BinaryHeap<Reverse<(u64, usize)>>,
    /// Processes with packets that they have not read yet.
    waiting: Vec<usize>,
    payload: Vec<u8>,
    dice: StdRng,
}

fn address(process: usize, port: u16) -> SocketAddr {
    let [high, low] = u16::try_from(process + 1)
        .expect("few processes")
        .to_be_bytes();
    SocketAddr::from(([10, 0, high, low], port))
}

fn process_at(address: SocketAddr) -> Option<usize> {
    let SocketAddr::V4(address) = address else {
        return None;
    };
    let [_, _, high, low] = address.ip().octets();
    usize::from(u16::from_be_bytes([high, low])).checked_sub(1)
}

impl Cluster {
    /// Creates a cluster in which all processes are connected.
    pub(crate) fn new(setup: &Setup) -> Cluster {
        let count = setup.processes;
        // Interface queues of a bus are short; otherwise retransmissions would wait for seconds.
        let (switch_queue_bytes, transmit_queue_bytes, bus) = match setup.carrier {
            Carrier::Switch { queue_bytes } => (queue_bytes, 1 << 20, None),
            Carrier::Bus { propagation_ns } => (0, 16 << 10, Some(BusConfig { propagation_ns })),
        };
        let config = NetworkConfig {
            bytes_per_second: setup.mbit_per_second * 125_000,
            switch_queue_bytes,
            transmit_queue_bytes,
            bus,
            path: PathConfig {
                latency_ns: setup.latency_ns,
                ..PathConfig::default()
            },
            ..NetworkConfig::default()
        };
        let network = Network::new(setup.seed, config);
        let processes = (0..count).map(|index| {
            let port = network
                .attach(address(index, 7000), address(index, 7001))
                .expect("addresses of its own");
            let number = index as u64 + 1;
            let config = Config {
                node: u32::try_from(number).expect("few processes"),
                packet_bytes: PACKET_BYTES,
                frames: if count > FEW_PROCESSES {
                    FEW_FRAMES
                } else {
                    FRAMES
                },
                ack_delay_ns: setup.ack_delay_ns,
                // Retransmissions need slots, too, so wait until each process has had some.
                min_timeout_ns: setup.least_timeout_ns,
                max_timeout_ns: setup.least_timeout_ns.saturating_mul(8).max(250_000_000),
                // On a crowded bus some processes wait for seconds.
                peer_timeout_ns: 60_000_000_000,
                suspect_after_ns: 60_000_000_000,
                ..Config::default()
            };
            let link = AnyLink::from(port);
            let mut engine = Engine::new(link, config, number, [number, !number], None);
            engine.open_endpoint(INBOX);
            Process {
                engine,
                edges: vec![None; count],
                peers: vec![None; count],
                turns: RoundRobin::new(setup.order, index, count),
                pace: Leaving::Paced(Pace::new(None, 1, 0)),
                left: vec![0; count],
                left_bytes: 0,
                next: None,
                sending: Vec::new(),
                received: 0,
                expected: 0,
                begin_ns: 0,
                deadline_ns: 0,
            }
        });
        let mut cluster = Cluster {
            setup: *setup,
            processes: processes.collect(),
            network,
            now_ns: 1,
            deadlines: (0..count).map(|index| Reverse((0, index))).collect(),
            waiting: Vec::new(),
            payload: vec![7; setup.chunk_bytes],
            dice: StdRng::seed_from_u64(setup.seed),
        };
        cluster.connect();
        cluster
    }

    fn connect(&mut self) {
        let count = self.processes.len();
        let mut nearest = 1;
        while nearest < count {
            let distances = nearest..(nearest + CONNECTING).min(count);
            nearest = distances.end;
            let now = Instant(self.now_ns);
            for index in 0..count {
                for other in (0..count).filter(|&other| other != index) {
                    if !distances.contains(&((other + count - index) % count)) {
                        continue;
                    }
                    let to = Destination {
                        small: address(other, 7000),
                        incarnation: 0,
                    };
                    let process = &mut self.processes[index];
                    let peer = process.engine.connect(now, to).expect("a place for it");
                    process.peers[other] = Some(peer);
                }
                self.wake_at(index, self.now_ns);
            }
            self.run_until_all(Process::is_connected);
        }
        for process in &mut self.processes {
            for (peer, edge) in process.peers.iter().zip(&mut process.edges) {
                let Some(peer) = *peer else { continue };
                *edge = process.engine.edge(peer, OUTBOX, INBOX).ok();
            }
        }
        self.rest();
    }

    pub(crate) fn exchange(&mut self, relation: &Relation) -> Exchange {
        let (slots, senders) = (self.setup.slots, relation.senders());
        self.exchange_when(relation, |_, seed| {
            Leaving::Paced(Pace::new(slots, senders, seed))
        })
    }

    /// Runs one superstep in which chunks are sent at random times, so that all processes together
    /// offer this share of the capacity of one interface.
    pub(crate) fn offer(&mut self, relation: &Relation, load: f64) -> Exchange {
        let chunk_ns = self.setup.message_ns(self.setup.chunk_bytes) as f64;
        let interval_ns = chunk_ns * f64::from(relation.senders()) / load;
        self.exchange_when(relation, |begin_ns, seed| Leaving::Random {
            interval_ns,
            at_ns: begin_ns as f64,
            dice: StdRng::seed_from_u64(seed),
        })
    }

    fn exchange_when(
        &mut self,
        relation: &Relation,
        mut leaving: impl FnMut(u64, u64) -> Leaving,
    ) -> Exchange {
        let before = self.counters();
        let begin_ns = self.now_ns;
        let received = relation.received();
        for (rank, process) in self.processes.iter_mut().enumerate() {
            let late_ns = self.dice.random_range(0..=self.setup.skew_ns);
            process.begin_ns = begin_ns + late_ns;
            process.deadline_ns = process.begin_ns;
            process.left.clone_from(&relation.bytes[rank]);
            process.left_bytes = process.left.iter().sum();
            process.pace = leaving(process.begin_ns, self.dice.random());
            process.turns = RoundRobin::new(self.setup.order, rank, self.setup.processes);
            process.received = 0;
            process.expected = received[rank];
        }
        for rank in 0..self.processes.len() {
            let begin_ns = self.processes[rank].begin_ns;
            self.wake_at(rank, begin_ns);
        }
        match self.setup.blind {
            true => self.run(|cluster| {
                let sent = cluster.processes.iter().all(Process::has_sent);
                sent && cluster.network.next_event_ns().is_none()
            }),
            false => {
                self.run_until_all(|process| {
                    process.has_sent() && process.received == process.expected
                });
            }
        }
        let ns = self.now_ns - begin_ns;
        self.rest();
        let after = self.counters();
        let difference = |of: fn(&Exchange) -> u64| of(&after) - of(&before);
        Exchange {
            ns,
            efficiency: self.setup.ideal_ns(relation) as f64 / ns as f64,
            packets: difference(|it| it.packets),
            lost: difference(|it| it.lost),
            acknowledgements: difference(|it| it.acknowledgements),
            repeats: difference(|it| it.repeats),
            received: self.processes.iter().map(|it| it.received as u64).sum(),
            attempts: difference(|it| it.attempts),
            collisions: difference(|it| it.collisions),
        }
    }

    fn counters(&self) -> Exchange {
        let network: NetworkStats = self.network.stats();
        let machine = |of: fn(&dipole_proto::Stats) -> u64| -> u64 {
            let engines = self.processes.iter().map(|process| &process.engine);
            engines.map(|engine| of(engine.machine().stats())).sum()
        };
        Exchange {
            packets: network.sent,
            lost: network.dropped(DropReason::SwitchQueue)
                + network.dropped(DropReason::Collisions),
            acknowledgements: machine(|stats| stats.explicit_acks),
            repeats: machine(|stats| stats.repeats),
            attempts: network.attempts,
            collisions: network.collisions,
            ..Exchange::default()
        }
    }

    fn run_until_all(&mut self, is_done: impl Fn(&Process) -> bool) {
        let count = self.processes.len();
        let mut first = 0;
        self.run(|cluster| {
            // A process that is done stays done.
            while first < count && is_done(&cluster.processes[first]) {
                first += 1;
            }
            first == count
        });
    }

    fn run(&mut self, mut done: impl FnMut(&mut Cluster) -> bool) {
        let end_ns = self.now_ns + MOST_NS;
        let mut due = Vec::new();
        while !done(self) {
            let next = self.next_ns();
            self.now_ns = next.unwrap_or(u64::MAX).max(self.now_ns);
            assert!(self.now_ns < end_ns, "a message never arrives");
            self.network.advance(self.now_ns);
            due.append(&mut self.waiting);
            let arrived = self.network.take_arrivals();
            due.extend(arrived.into_iter().filter_map(process_at));
            while let Some(Reverse((at_ns, index))) = self.deadlines.peek().copied()
                && at_ns <= self.now_ns
            {
                self.deadlines.pop();
                if self.processes[index].deadline_ns == at_ns {
                    due.push(index);
                }
            }
            due.sort_unstable();
            due.dedup();
            for index in due.drain(..) {
                self.turn(index);
            }
        }
    }

    /// Returns the time of the next event in a process or the network.
    fn next_ns(&mut self) -> Option<u64> {
        while let Some(Reverse((at_ns, index))) = self.deadlines.peek().copied()
            && self.processes[index].deadline_ns != at_ns
        {
            self.deadlines.pop();
        }
        let own = self.deadlines.peek().map(|Reverse((at_ns, _))| *at_ns);
        own.into_iter().chain(self.network.next_event_ns()).min()
    }

    fn wake_at(&mut self, index: usize, at_ns: u64) {
        self.processes[index].deadline_ns = at_ns;
        if at_ns < u64::MAX {
            self.deadlines.push(Reverse((at_ns, index)));
        }
    }

    /// Lets time pass until no packet of the previous exchange is in flight.
    fn rest(&mut self) {
        let until_ns = self.now_ns + PAUSE_NS;
        self.run(|cluster| {
            let next = cluster.next_ns();
            cluster.now_ns >= until_ns || next.is_none_or(|at_ns| at_ns > until_ns)
        });
        self.now_ns = self.now_ns.max(until_ns);
        self.network.advance(self.now_ns);
    }

    fn turn(&mut self, index: usize) {
        let process = &mut self.processes[index];
        let now = Instant(self.now_ns);
        process.engine.disarm();
        process.engine.step(now, true).expect("a whole network");
        while let Some(message) = process.engine.take(now, INBOX) {
            process.received += message.len();
        }
        process.send(now, &self.setup, &self.payload);
        process.engine.transmit(now).expect("a whole network");
        let engine_ns = process.engine.next_deadline(now);
        let engine_ns = engine_ns.map_or(u64::MAX, |deadline| deadline.0);
        let mut deadline_ns = engine_ns.min(process.next_send_ns(self.now_ns));
        if !process.engine.arm() {
            deadline_ns = deadline_ns.min(self.now_ns + POLL_NS);
        }
        self.wake_at(index, deadline_ns);
        let is_waiting = |port| self.network.waiting(address(index, port)) > 0;
        if [7000, 7001].into_iter().any(is_waiting) {
            self.waiting.push(index);
        }
    }
}

impl Process {
    fn is_connected(&self) -> bool {
        let mut peers = self.peers.iter().flatten();
        peers.all(|peer| self.engine.is_open(*peer) == Ok(true))
    }

    fn has_sent(&self) -> bool {
        self.next.is_none() && self.sending.is_empty() && self.left_bytes == 0
    }

    /// Returns when the next chunk may be sent, if the process waits for that.
    fn next_send_ns(&self, now_ns: u64) -> u64 {
        if now_ns < self.begin_ns {
            return self.begin_ns;
        }
        let at_ns = self.next.map_or(u64::MAX, |(_, _, at_ns)| at_ns);
        if at_ns > now_ns { at_ns } else { u64::MAX }
    }

    fn send(&mut self, now: Instant, setup: &Setup, payload: &[u8]) {
        if now.0 < self.begin_ns {
            return;
        }
        let engine = &mut self.engine;
        self.sending.retain_mut(|sending| {
            let payload = &payload[..sending.bytes];
            let done = engine.continue_long(&mut sending.long, payload);
            !done.expect("peers stay until the end")
        });
        while self.sending.len() < setup.ahead {
            let Some((to, bytes, at_ns)) = self.take_turn(now.0, setup.chunk_bytes) else {
                return;
            };
            if at_ns > now.0 || !self.begin(now, to, &payload[..bytes], setup.blind) {
                return;
            }
            self.next = None;
        }
    }

    fn take_turn(&mut self, now_ns: u64, chunk_bytes: usize) -> Option<(usize, usize, u64)> {
        if self.next.is_none() && self.left_bytes > 0 {
            let left = &mut self.left;
            let to = self.turns.next(|to| left[to] > 0)?;
            let bytes = left[to].min(chunk_bytes);
            left[to] -= bytes;
            self.left_bytes -= bytes;
            self.next = Some((to, bytes, self.pace.next(now_ns, bytes)));
        }
        self.next
    }

    /// Begins a chunk; true if one was begun.
    fn begin(&mut self, now: Instant, to: usize, payload: &[u8], blind: bool) -> bool {
        let edge = self.edges[to].expect("connected");
        let engine = &mut self.engine;
        let begun = if blind {
            let pieces = payload.chunks(PIECE_BYTES);
            let sent = pieces.map_while(|piece| engine.send_unreliable(now, edge, piece).ok());
            // The rest of a chunk that has begun is lost, too.
            match sent.count() {
                0 => Err(Blocked::NoFrame),
                _ => Ok(None),
            }
        } else if payload.len() <= engine.whole_limit(edge.peer) {
            let sent = engine.send_whole(now, edge, payload, false);
            sent.map(|()| None)
        } else {
            let begun = engine.begin_long(now, edge, payload, false);
            begun.map(Some)
        };
        match begun {
            Ok(None) => true,
            Ok(Some(mut long)) => {
                let done = engine.continue_long(&mut long, payload);
                if !done.expect("peers stay until the end") {
                    let bytes = payload.len();
                    self.sending.push(Sending { long, bytes });
                }
                true
            }
            Err(Blocked::NoCredit | Blocked::NoFrame) => false,
            Err(blocked) => panic!("{blocked:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_processes_than_one_octet_counts_have_addresses_of_their_own() {
        for process in [0, 1, 254, 255, 256, 1023] {
            assert_eq!(process_at(address(process, 7000)), Some(process));
        }
        assert_ne!(address(0, 7000), address(256, 7000));
    }
}
