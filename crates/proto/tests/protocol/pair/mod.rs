//! Machines on a virtual wire: a clock, a lossy in-memory network, and an application that checks
//! what it receives. Shared by several tests.

mod connect;
mod interfaces;
mod random;
mod trailer;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use dipole_proto::wire::{self, Address, Payloads};
use dipole_proto::{
    BeginError, Config, DropReason, EdgeId, Event, Frame, Frames, GoneReason, Instant, Machine,
    MessageStart, PathChange, PeerId, Seal, Slot, Transmit,
};

pub use connect::{connect, connected};
pub use interfaces::{BRIDGE, address};
use interfaces::{are_connected, interface_address, moved_address};
pub use random::Random;
pub use random::payload;
use trailer::{checksum_of, proof, sum};
pub use trailer::{close, is_intact, payload_of};

#[derive(Clone)]
pub struct Pool {
    pub frames: Vec<Vec<u8>>,
    ends: Vec<usize>,
    free: Vec<Slot>,
    scratch: Vec<u8>,
}

const SCRATCH: Slot = u32::MAX;

impl Pool {
    fn new(frames: usize, bytes: usize) -> Pool {
        Pool {
            frames: vec![vec![0; bytes]; frames],
            ends: vec![0; frames],
            free: (0..frames as Slot).rev().collect(),
            scratch: vec![0; bytes],
        }
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// A frame with one whole message, if a frame is free.
    pub fn pack(&mut self, begun: &MessageStart, payload: &[u8]) -> Option<Slot> {
        let slot = self.free.pop()?;
        let frame = &mut self.frames[slot as usize];
        let (sequence, at) = (begun.sequence as u32, wire::HEADER_BYTES);
        wire::emit_message(
            &mut frame[at..],
            begun.key,
            sequence,
            payload.len(),
            false,
            false,
        );
        let at = at + wire::MESSAGE_BYTES;
        frame[at..at + payload.len()].copy_from_slice(payload);
        self.ends[slot as usize] = at + payload.len();
        Some(slot)
    }
}

impl Frames for Pool {
    fn filled(&mut self, slot: Slot) -> (&mut [u8], usize) {
        (&mut self.frames[slot as usize], self.ends[slot as usize])
    }

    fn scratch(&mut self) -> Option<(Slot, &mut [u8])> {
        Some((SCRATCH, &mut self.scratch))
    }

    fn allocate(&mut self) -> Option<(Slot, &mut [u8])> {
        let slot = self.free.pop()?;
        Some((slot, &mut self.frames[slot as usize]))
    }

    fn part(&mut self, slot: Slot, bytes: Range<usize>) -> Option<(Slot, &mut [u8])> {
        let length = bytes.len();
        self.scratch[wire::HEADER_BYTES..][..length]
            .copy_from_slice(&self.frames[slot as usize][bytes]);
        Some((SCRATCH, &mut self.scratch))
    }

    fn fill(&mut self, slot: Slot, end: usize) {
        self.ends[slot as usize] = end;
    }
}

/// One process: a machine, its frames, and what its application has received.
pub struct Host {
    pub machine: Machine,
    /// Replaces the cluster key after a key change.
    pub other_secret: Option<[u8; 32]>,
    pub pool: Pool,
    pub home: Address,
    pub connected: Vec<PeerId>,
    pub gone: Vec<(PeerId, GoneReason)>,
    /// Those of them that left before all messages to them had arrived, as far as known.
    pub left_unacknowledged: Vec<PeerId>,
    pub quiet: Vec<PeerId>,
    pub turned_away: Vec<Address>,
    pub changes: Vec<PathChange>,
    pub refused: Vec<u64>,
    pub credits: usize,
    /// Outgoing edges that both sides have forgotten.
    pub forgotten: usize,
    /// Complete messages in order of arrival, with their incoming edge.
    pub received: VecDeque<(EdgeId, Vec<u8>)>,
    pub unreliable: Vec<Vec<u8>>,
    /// Complete operations in order of arrival: edge, head and data.
    pub operations: Vec<(EdgeId, Vec<u8>)>,
    /// Operations that have arrived in part.
    begun: BTreeSet<(EdgeId, u64)>,
    partial: BTreeMap<(EdgeId, u64), Vec<u8>>,
}

pub struct Wire {
    pub now: Instant,
    pub hosts: Vec<Host>,
    flights: BTreeMap<(u64, u64), (Address, Address, Vec<u8>)>,
    sequence: u64,
    pub random: Random,
    pub loss: f64,
    pub duplicate: f64,
    pub reorder: f64,
    pub latency_ns: u64,
    /// Packets to these ports are lost.
    pub dead_ports: Vec<u16>,
    /// Packets on these networks are lost.
    pub dead_networks: Vec<u8>,
    /// The network of each interface of each host. Each interface has a small and a bulk lane, with
    /// ports 1, 2, 3 and so on. Networks are not connected to each other.
    networks: Vec<Vec<u8>>,
    /// The interfaces on which each host listens. What it sends to the networks of the others, and
    /// what arrives there, is lost.
    listening: Vec<Vec<usize>>,
    /// How often each host was renumbered. Packets to its former addresses are lost.
    generations: Vec<u8>,
    pub lost: u64,
    pub sent: u64,
    /// Packets that arrived at each interface of each host.
    pub arrived: Vec<[u64; 4]>,
    /// A network that drops packets longer than this.
    pub longest_on: Option<(u8, usize)>,
    /// The links refuse packets longer than this.
    pub refused_above: Option<usize>,
    /// All packets sent: source, destination, bytes.
    pub seen: Option<Vec<(Address, Address, Vec<u8>)>>,
    /// Called with packets of one sender and the host that is about to receive them.
    pub watch: Option<Watch>,
    /// Called with each packet sent, and its sender.
    pub watch_sent: Option<fn(&Host, Instant, &Transmit)>,
    /// A process that does not run until this time; its packets wait.
    pub stopped: Option<(usize, Instant)>,
    /// Its waiting bulk packets are handled this much later.
    pub bulk_later_ns: u64,
}

/// Is called with packets that a host is about to receive, the time and the source.
pub type Watch = fn(&Host, Instant, Address, &[Vec<u8>]);

impl Wire {
    pub fn new(seed: u64, hosts: usize, config: &Config) -> Wire {
        Wire::with_interfaces(seed, hosts, 1, config)
    }

    pub fn with_interfaces(seed: u64, hosts: usize, interfaces: u8, config: &Config) -> Wire {
        let networks: Vec<u8> = (0..interfaces).collect();
        Wire::with_networks(seed, &vec![&networks[..]; hosts], config)
    }

    /// Hosts with an interface on each of the networks listed for them.
    pub fn with_networks(seed: u64, networks: &[&[u8]], config: &Config) -> Wire {
        let mut wire = Wire {
            now: Instant(1_000_000_000),
            hosts: Vec::new(),
            flights: BTreeMap::new(),
            sequence: 0,
            random: Random(seed),
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            latency_ns: 5_000,
            dead_ports: Vec::new(),
            dead_networks: Vec::new(),
            networks: networks.iter().map(|own| own.to_vec()).collect(),
            listening: networks
                .iter()
                .map(|own| (0..own.len()).collect())
                .collect(),
            generations: vec![0; networks.len()],
            lost: 0,
            sent: 0,
            arrived: vec![[0; 4]; networks.len()],
            longest_on: None,
            refused_above: None,
            seen: None,
            watch: None,
            watch_sent: None,
            stopped: None,
            bulk_later_ns: 0,
        };
        for index in 0..networks.len() {
            let host = wire.host(index, config);
            wire.hosts.push(host);
        }
        wire
    }

    pub fn host(&mut self, index: usize, config: &Config) -> Host {
        let lanes = self.lanes_on(index, &self.listening[index]);
        let config = Config {
            node: index as u32 + 1,
            ..config.clone()
        };
        let incarnation = self.random.next();
        let secret = [self.random.next(), self.random.next()];
        Host {
            pool: Pool::new(config.frames as usize, config.packet_bytes),
            other_secret: None,
            machine: Machine::new(config, incarnation, secret, &lanes),
            home: lanes[0].address,
            connected: Vec::new(),
            gone: Vec::new(),
            left_unacknowledged: Vec::new(),
            quiet: Vec::new(),
            turned_away: Vec::new(),
            changes: Vec::new(),
            refused: Vec::new(),
            credits: 0,
            forgotten: 0,
            received: VecDeque::new(),
            unreliable: Vec::new(),
            operations: Vec::new(),
            begun: BTreeSet::new(),
            partial: BTreeMap::new(),
        }
    }

    /// The process at `index` dies and another one starts at its address.
    pub fn restart(&mut self, index: usize) {
        let config = self.hosts[index].machine.config().clone();
        self.hosts[index] = self.host(index, &config);
    }

    pub fn connect(&mut self, from: usize, to: usize) -> PeerId {
        self.connect_by(from, to, 0)
    }

    /// Opens a session to an interface of the other host.
    pub fn connect_by(&mut self, from: usize, to: usize, interface: usize) -> PeerId {
        let home = interface_address(to, self.networks[to][interface], 1 + 2 * interface as u16);
        let home = moved_address(&self.generations, home);
        let now = self.now;
        self.hosts[from]
            .machine
            .connect(now, home, 0)
            .expect("room for a peer")
    }

    /// Runs until `done`. Returns false if that takes longer than `limit_ns` of virtual time.
    pub fn run(&mut self, limit_ns: u64, mut done: impl FnMut(&mut Wire) -> bool) -> bool {
        let end = self.now.after(limit_ns);
        loop {
            let running: Vec<usize> = (0..self.hosts.len())
                .filter(|host| self.runs(*host))
                .collect();
            for index in &running {
                self.step(*index);
            }
            if done(self) {
                return true;
            }
            if running
                .iter()
                .any(|host| self.hosts[*host].machine.has_transmit())
            {
                continue;
            }
            let arrival = self.flights.keys().next().map(|(at, _)| Instant(*at));
            let timer = running
                .iter()
                .filter_map(|host| self.hosts[*host].machine.next_deadline());
            let timer = timer
                .chain(
                    self.stopped
                        .map(|(_, until)| until)
                        .filter(|until| *until > self.now),
                )
                .min();
            let next = arrival.into_iter().chain(timer).min();
            match next {
                Some(next) if next <= end => self.now = self.now.max(next),
                _ => {
                    self.now = end;
                    return false;
                }
            }
            self.deliver();
        }
    }

    fn runs(&self, host: usize) -> bool {
        self.stopped
            .is_none_or(|(stopped, until)| stopped != host || self.now >= until)
    }

    fn deliver(&mut self) {
        while let Some(entry) = self.flights.first_entry() {
            if entry.key().0 > self.now.0 {
                break;
            }
            let ((_, sequence), (from, to, bytes)) = entry.remove_entry();
            if to != moved_address(&self.generations, to) {
                self.lost += 1;
                continue;
            }
            let now = self.now;
            if let Some((host, until)) = self.stopped
                && !self.runs(host)
                && self.hosts[host].home.ip[15] == to.ip[15]
            {
                let later_ns = u64::from(to.port.is_multiple_of(2)) * self.bulk_later_ns;
                let at = until.after(later_ns);
                self.flights.insert((at.0, sequence), (from, to, bytes));
                continue;
            }
            // Like the kernel, deliver consecutive packets of one sender together.
            let mut packets = vec![bytes];
            while let Some(entry) = self.flights.first_entry()
                && entry.key().0 <= now.0
                && (entry.get().0, entry.get().1) == (from, to)
            {
                packets.push(entry.remove().2);
            }
            for (index, host) in self.hosts.iter_mut().enumerate() {
                if host.home.ip[15] == to.ip[15] {
                    let interface = usize::from(to.port.saturating_sub(1) / 2);
                    self.arrived[index][interface.min(3)] += packets.len() as u64;
                    if let Some(watch) = self.watch {
                        watch(host, now, from, &packets);
                    }
                    host.take_all(now, from, &packets);
                }
            }
        }
    }

    fn step(&mut self, index: usize) {
        let now = self.now;
        let host = &mut self.hosts[index];
        host.machine.on_timers(now);
        host.events(&[]);
        let (mut like, mut train) = (None, VecDeque::new());
        loop {
            if train.is_empty() {
                train = host.next_train(now, like);
            }
            let next = train.pop_front();
            let Some(transmit) = next else {
                break;
            };
            like = Some(transmit);
            if let Some(watch) = self.watch_sent
                && train.is_empty()
            {
                watch(host, now, &transmit);
            }
            let bytes = match transmit.frame {
                Frame::Unit(slot) => host.pool.frames[slot as usize][..transmit.length].to_vec(),
                Frame::Loose(slot) => {
                    let bytes = host.pool.frames[slot as usize][..transmit.length].to_vec();
                    host.pool.free.push(slot);
                    bytes
                }
                Frame::Scratch(_) => host.pool.scratch[..transmit.length].to_vec(),
            };
            let mut bytes = bytes;
            close(&mut bytes, transmit.seal, host.secret());
            if self.refused_above.is_some_and(|most| bytes.len() > most) {
                host.machine.packet_too_long(now, &transmit);
                host.events(&[]);
                continue;
            }
            // Like the kernel, use the interface on the destination's network.
            let ports = if transmit.bulk {
                [2, 4, 6, 8]
            } else {
                [1, 3, 5, 7]
            };
            let networks = &self.networks[index];
            let interface = networks.iter().position(|one| *one == transmit.to.ip[14]);
            let interface = interface.unwrap_or(0);
            let from = interface_address(index, networks[interface], ports[interface]);
            let from = moved_address(&self.generations, from);
            self.sent += 1;
            if let Some(seen) = &mut self.seen {
                seen.push((from, transmit.to, bytes.clone()));
            }
            let copies = 1 + u64::from(self.random.chance(self.duplicate));
            for _ in 0..copies {
                let dead = self.dead_ports.contains(&transmit.to.port)
                    || self.dead_networks.contains(&transmit.to.ip[14])
                    || transmit.to.ip[14] >= BRIDGE
                    || self
                        .longest_on
                        .is_some_and(|(on, most)| on == transmit.to.ip[14] && bytes.len() > most)
                    || !are_connected((&self.networks, &self.listening), index, transmit.to)
                    || from.ip[14] != transmit.to.ip[14];
                if dead || self.random.chance(self.loss) {
                    self.lost += 1;
                    continue;
                }
                let mut delay = self.latency_ns;
                if self.random.chance(self.reorder) {
                    delay += self.random.below(10 * self.latency_ns);
                }
                self.sequence += 1;
                let key = (now.0 + delay, self.sequence);
                self.flights.insert(key, (from, transmit.to, bytes.clone()));
            }
        }
    }
}

impl Host {
    /// Serves as the cluster key: the share, which is not used for anything else here.
    pub fn secret(&self) -> Option<[u8; 32]> {
        let config = self.machine.config();
        config
            .keyed
            .then_some(self.other_secret.unwrap_or(config.share))
    }

    /// Last eight bytes of the packet in the scratch frame.
    pub fn scratch_u64(&self, at: usize) -> u64 {
        let bytes = self.pool.scratch[at..at + 8].try_into();
        u64::from_le_bytes(bytes.expect("eight"))
    }

    /// The next packets to send, those of a train together.
    fn next_train(&mut self, now: Instant, like: Option<Transmit>) -> VecDeque<Transmit> {
        let mut slots = [0; 64];
        let train = like
            .and_then(|like| (self.machine).transmit_train(now, &like, &mut self.pool, &mut slots));
        let Some((first, count)) = train else {
            return self
                .machine
                .poll_transmit(now, &mut self.pool)
                .into_iter()
                .collect();
        };
        let frames = slots[..count].iter().map(|slot| Frame::Unit(*slot));
        frames.map(|frame| Transmit { frame, ..first }).collect()
    }

    /// Receives packets, those of a train together.
    pub fn take_all(&mut self, now: Instant, from: Address, packets: &[Vec<u8>]) {
        let mut left = packets.iter().peekable();
        while let Some(bytes) = left.next() {
            let addressed = self.machine.clone().address(now, from, bytes);
            let addressed = addressed.ok().filter(|_| is_intact(bytes));
            let train = addressed.and_then(|it| self.machine.begin_train(&it));
            let Some(mut train) = train else {
                self.take(now, from, bytes);
                continue;
            };
            let mut payloads = payload_of(bytes).to_vec();
            while let Some(next) = left.peek().filter(|next| is_intact(next))
                && let Some(flags) = train.expects(next)
            {
                train.add(flags);
                payloads.extend(payload_of(next));
                left.next();
            }
            self.machine.on_train(now, from, train);
            self.events(&payloads);
        }
    }

    /// Receives a packet. A wrong checksum is counted as damage.
    pub fn take(&mut self, now: Instant, from: Address, bytes: &[u8]) {
        if let Ok(mut addressed) = self.machine.address(now, from, bytes) {
            let covered = addressed.packet.covered();
            let (rest, mask) = checksum_of(addressed.seal, covered);
            if bytes[rest..rest + wire::CRC_BYTES] == (sum(&bytes[..rest]) ^ mask).to_le_bytes() {
                addressed.proven = addressed.requests_proof
                    && bytes[covered.len()..rest] == proof(covered, self.secret());
                let end = covered.len() + wire::COUNTER_BYTES;
                let forged = matches!(addressed.seal, Seal::Session { .. })
                    && bytes[end..rest] != proof(&bytes[..end], self.secret());
                if forged {
                    self.machine.count(DropReason::Forged);
                } else {
                    let _counted = self.machine.on_packet(now, from, &addressed);
                }
            } else {
                self.machine.count(DropReason::Damaged);
            }
        }
        let whole = self.machine.take_assembled();
        self.events(whole.as_deref().unwrap_or(bytes));
    }

    fn events(&mut self, packet: &[u8]) {
        while let Some(slot) = self.machine.poll_released() {
            assert!(
                !self.pool.free.contains(&slot),
                "slot {slot} released twice"
            );
            self.pool.free.push(slot);
        }
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::Connected { peer, .. } => self.connected.push(peer),
                Event::Gone {
                    peer,
                    reason,
                    acknowledged,
                } => {
                    self.gone.push((peer, reason));
                    let lost = (!acknowledged).then_some(peer);
                    self.left_unacknowledged.extend(lost);
                }
                Event::Suspected { peer } => self.quiet.push(peer),
                Event::TooManyPeers { from } => self.turned_away.push(from),
                Event::Paths { change, .. } => self.changes.push(change),
                Event::Deliver { edge, bytes, .. } => {
                    self.received.push_back((edge, packet[bytes].to_vec()));
                }
                Event::DeliverRun { edge, records, .. } => {
                    let messages = Payloads::new(&packet[records]);
                    (self.received).extend(messages.map(|message| (edge, message.to_vec())));
                }
                Event::Hold {
                    edge,
                    sequence,
                    offset,
                    total,
                    operation,
                    bytes,
                    ..
                } => {
                    let (head, data) = match operation {
                        true => packet[bytes].split_at(wire::OPERATION_BYTES),
                        false => (&[][..], &packet[bytes]),
                    };
                    let message = self.partial.entry((edge, sequence)).or_insert_with(|| {
                        let mut message = head.to_vec();
                        message.resize(head.len() + total as usize, 0);
                        message
                    });
                    if operation {
                        self.begun.insert((edge, sequence));
                    }
                    let at = head.len() + offset as usize;
                    message[at..at + data.len()].copy_from_slice(data);
                }
                Event::Complete { edge, sequence, .. } => {
                    let message = self.partial.remove(&(edge, sequence)).expect("was held");
                    match self.begun.remove(&(edge, sequence)) {
                        true => self.operations.push((edge, message)),
                        false => self.received.push_back((edge, message)),
                    }
                }
                Event::Unreliable { bytes, .. } => self.unreliable.push(packet[bytes].to_vec()),
                Event::Operation { edge, bytes, .. } => {
                    self.operations.push((edge, packet[bytes].to_vec()));
                }
                Event::Refused { sequence, .. } => self.refused.push(sequence),
                Event::Credit { .. } => self.credits += 1,
                Event::EdgeForgotten { .. } => self.forgotten += 1,
                Event::Settled { .. } => {}
                pipe @ (Event::Fetch { .. }
                | Event::OfferDone { .. }
                | Event::PiecesRequested { .. }) => {
                    panic!("{pipe:?} in a session")
                }
            }
        }
    }

    /// Takes the oldest message and releases its credit.
    pub fn read(&mut self, now: Instant) -> Option<Vec<u8>> {
        let (edge, message) = self.received.pop_front()?;
        self.machine.consumed(now, edge, message.len() as u64);
        Some(message)
    }

    /// Sends a whole message, or returns why not. Uses frames only if there are enough.
    pub fn send(&mut self, now: Instant, edge: EdgeId, payload: &[u8]) -> Result<u64, BeginError> {
        let space = self.machine.packet_space(edge.peer);
        let whole = payload.len() + wire::MESSAGE_BYTES + wire::HEADER_BYTES <= space;
        let piece = space
            .saturating_sub(wire::HEADER_BYTES + wire::FRAGMENT_BYTES)
            .max(1);
        let needed = if whole {
            1
        } else {
            payload.len().div_ceil(piece)
        };
        if self.pool.free.len() < needed || space == 0 {
            return Err(BeginError::NoCredit { left: 0 });
        }
        let total = payload.len() as u64;
        let begun = self.machine.begin(now, edge, total)?;
        let MessageStart { key, sequence, .. } = begun;
        let low = sequence as u32;
        if whole {
            let slot = self.pool.pack(&begun, payload).expect("counted");
            assert!(self.machine.queue(edge.peer, &[slot], false));
            return Ok(sequence);
        }
        for (index, chunk) in payload.chunks(piece).enumerate() {
            let slot = self.pool.free.pop().expect("counted");
            let frame = &mut self.pool.frames[slot as usize];
            let at = wire::HEADER_BYTES;
            let place = ((index * piece) as u64, total);
            wire::emit_fragment(
                &mut frame[at..],
                wire::FragmentHead {
                    key,
                    sequence: low,
                    offset: place.0,
                    total: place.1,
                    unreliable: false,
                    operation: false,
                },
                chunk.len(),
            );
            let at = at + wire::FRAGMENT_BYTES;
            frame[at..at + chunk.len()].copy_from_slice(chunk);
            self.pool.ends[slot as usize] = at + chunk.len();
            assert!(self.machine.queue(edge.peer, &[slot], true));
        }
        Ok(sequence)
    }

    /// Sends as many messages as credit allows in one packet. Returns how many.
    pub fn send_packed(&mut self, now: Instant, messages: &[(EdgeId, Vec<u8>)]) -> usize {
        let Some(slot) = self.pool.free.pop() else {
            return 0;
        };
        let frame = &mut self.pool.frames[slot as usize];
        let (mut at, mut packed) = (wire::HEADER_BYTES, 0);
        for (edge, payload) in messages {
            let needed = wire::MESSAGE_BYTES + payload.len();
            let Ok(begun) = self.machine.begin(now, *edge, payload.len() as u64) else {
                break;
            };
            if at + needed > begun.space {
                self.machine.retract(*edge, payload.len() as u64);
                break;
            }
            let sequence = begun.sequence as u32;
            let place = &mut frame[at..at + needed];
            wire::emit_message(place, begun.key, sequence, payload.len(), false, false);
            place[wire::MESSAGE_BYTES..].copy_from_slice(payload);
            at += needed;
            packed += 1;
        }
        if packed == 0 {
            self.pool.free.push(slot);
            return 0;
        }
        self.pool.ends[slot as usize] = at;
        assert!(self.machine.queue(messages[0].0.peer, &[slot], false));
        packed
    }

    /// Queues a frame with records that `emit` writes; `unreliable` if they are unreliable.
    pub fn send_records(
        &mut self,
        peer: PeerId,
        unreliable: bool,
        emit: impl FnOnce(&mut [u8]) -> usize,
    ) -> bool {
        let Some(slot) = self.pool.free.pop() else {
            return false;
        };
        let frame = &mut self.pool.frames[slot as usize];
        let at = wire::HEADER_BYTES;
        self.pool.ends[slot as usize] = at + emit(&mut frame[at..]);
        if unreliable {
            self.machine.queue_unreliable(peer, slot, false)
        } else {
            self.machine.queue(peer, &[slot], false)
        }
    }
}
