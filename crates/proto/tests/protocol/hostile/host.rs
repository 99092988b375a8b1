//! One process on a hostile wire: a machine, its frames, its application.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use dipole_proto::config::MAX_MESSAGE_BYTES;
use dipole_proto::wire::{self, Address, HEADER_BYTES, LaneAddress, OPERATION_BYTES, Payloads};
use dipole_proto::{
    Config, DropReason, EdgeId, Event, Frame, Frames, Instant, Machine, MessageStart, PeerId, Slot,
};

/// The endpoint that both applications have open.
pub const TARGET: u32 = 7;
/// Most packets that one step may produce: far more than the frames allow.
const MAX_BURST: usize = 5_000;
const SCRATCH: Slot = u32::MAX;

/// Port of a host's small lane.
pub fn home(index: usize) -> Address {
    let ip = std::net::Ipv4Addr::new(10, 0, 0, if index == 0 { 1 } else { 2 });
    Address {
        ip: ip.to_ipv6_mapped().octets(),
        port: 1,
    }
}

/// Frames whose owner is always known.
struct Ledger {
    frames: Vec<Vec<u8>>,
    ends: Vec<usize>,
    free: Vec<Slot>,
    scratch: Vec<u8>,
}

impl Ledger {
    fn give_back(&mut self, slot: Slot) {
        assert!(
            (slot as usize) < self.frames.len(),
            "slot {slot} does not belong to the caller"
        );
        assert!(!self.free.contains(&slot), "slot {slot} was released twice");
        self.free.push(slot);
    }

    fn check_lent(&self, slot: Slot) {
        assert!(!self.free.contains(&slot), "slot {slot} is used while free");
    }
}

impl Frames for Ledger {
    fn filled(&mut self, slot: Slot) -> (&mut [u8], usize) {
        self.check_lent(slot);
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
        self.check_lent(slot);
        let from = &self.frames[slot as usize][bytes];
        self.scratch[HEADER_BYTES..][..from.len()].copy_from_slice(from);
        Some((SCRATCH, &mut self.scratch))
    }

    fn fill(&mut self, slot: Slot, end: usize) {
        self.check_lent(slot);
        self.ends[slot as usize] = end;
    }
}

/// A message on its way to the application.
enum Arrived {
    Whole(Vec<u8>),
    /// It is stored in pieces. For a forged message only its length is known.
    Pieces(u64, Vec<u8>),
}

/// A process on the hostile wire.
pub struct Host {
    pub machine: Machine,
    pub home: Address,
    /// The outgoing edge of the newest session.
    pub edge: Option<EdgeId>,
    /// Messages that the application has sent and read.
    pub sent: Vec<Vec<u8>>,
    pub received: Vec<Vec<u8>>,
    /// A session has ended, so messages may be missing.
    pub has_lost_peer: bool,
    index: usize,
    ledger: Ledger,
    unread: VecDeque<(EdgeId, Arrived)>,
    partial: BTreeMap<(EdgeId, u64), (u64, Vec<u8>)>,
}

/// Applications send shorter messages than this. Longer ones are forged and are only counted.
const MAX_KEPT_BYTES: u64 = 16_384;

impl Host {
    pub fn new(index: usize, config: &Config) -> Host {
        let home = home(index);
        let lanes = [(0, false), (1, true)].map(|(lane, bulk)| LaneAddress {
            lane,
            bulk,
            address: Address {
                port: 1 + u16::from(lane),
                ..home
            },
        });
        let seed = index as u64 + 1;
        let mut machine = Machine::new(config.clone(), seed, [seed, !seed], &lanes);
        machine.open_endpoint(TARGET);
        let frames = config.frames as usize;
        Host {
            machine,
            home,
            edge: None,
            sent: Vec::new(),
            received: Vec::new(),
            has_lost_peer: false,
            index,
            ledger: Ledger {
                frames: vec![vec![0; config.packet_bytes]; frames],
                ends: vec![0; frames],
                free: (0..config.frames).collect(),
                scratch: vec![0; config.packet_bytes],
            },
            unread: VecDeque::new(),
            partial: BTreeMap::new(),
        }
    }

    /// Passes a packet to the machine. Every refusal must be counted under its reason.
    pub fn take(&mut self, now: Instant, from: Address, bytes: &[u8], trailer_fits: bool) {
        let before = *self.machine.stats();
        let taken = match self.machine.address(now, from, bytes) {
            Ok(addressed) if trailer_fits => self.machine.on_packet(now, from, &addressed),
            Ok(_) => {
                self.machine.count(DropReason::Damaged);
                Err(DropReason::Damaged)
            }
            Err(reason) => Err(reason),
        };
        if let Err(reason) = taken {
            let after = self.machine.stats().dropped(reason);
            assert!(
                after > before.dropped(reason),
                "{} is not counted",
                reason.name()
            );
        }
        let whole = self.machine.take_assembled();
        self.events(whole.as_deref().unwrap_or(bytes));
    }

    /// Handles all events; `packet` is what they may refer to.
    pub fn events(&mut self, packet: &[u8]) {
        while let Some(slot) = self.machine.poll_released() {
            self.ledger.give_back(slot);
        }
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::Connected { peer, .. } => {
                    self.edge = self.machine.edge(peer, 1, TARGET).ok()
                }
                Event::Gone { peer, .. } => self.forget(peer),
                Event::Suspected { .. } | Event::Paths { .. } | Event::TooManyPeers { .. } => {}
                Event::Deliver { edge, bytes, .. } => {
                    let message = Arrived::Whole(packet[bytes].to_vec());
                    self.unread.push_back((edge, message));
                }
                Event::DeliverRun { edge, records, .. } => {
                    let messages = Payloads::new(&packet[records]);
                    let messages = messages.map(|message| Arrived::Whole(message.to_vec()));
                    self.unread.extend(messages.map(|message| (edge, message)));
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
                    let head = if operation { OPERATION_BYTES } else { 0 };
                    let end = offset + (packet[bytes.clone()].len() - head) as u64;
                    assert!(
                        end <= total && total <= MAX_MESSAGE_BYTES,
                        "{offset} of {total}"
                    );
                    match operation {
                        true => self.hold((edge, sequence), 0, 0, &[]),
                        false => self.hold((edge, sequence), offset, total, &packet[bytes]),
                    }
                }
                Event::Complete { edge, sequence, .. } => {
                    let (total, pieces) = (self.partial.remove(&(edge, sequence)))
                        .expect("only stored messages are completed");
                    let message = Arrived::Pieces(total, pieces);
                    self.unread.push_back((edge, message));
                }
                Event::Unreliable { total, bytes, .. } => {
                    assert!(packet[bytes].len() as u64 <= total);
                }
                Event::Operation { edge, bytes, .. } => {
                    assert!(packet[bytes].len() >= OPERATION_BYTES);
                    // It is charged like an empty message.
                    self.unread.push_back((edge, Arrived::Whole(Vec::new())));
                }
                Event::EdgeForgotten { .. }
                | Event::Fetch { .. }
                | Event::OfferDone { .. }
                | Event::PiecesRequested { .. }
                | Event::Credit { .. }
                | Event::Settled { .. }
                | Event::Refused { .. } => {}
            }
        }
        let (used, bound) = (self.machine.pool_used(), self.machine.config().pool_bytes);
        assert!(used <= bound, "{used} bytes in a pool of {bound}");
    }

    fn hold(&mut self, message: (EdgeId, u64), offset: u64, total: u64, piece: &[u8]) {
        let kept = if total <= MAX_KEPT_BYTES { total } else { 0 };
        let size = usize::try_from(kept).expect("bounded");
        let (_, bytes) = (self.partial.entry(message)).or_insert_with(|| (total, vec![0; size]));
        if kept > 0 && bytes.len() == size {
            let at = usize::try_from(offset).expect("below the total");
            bytes[at..at + piece.len()].copy_from_slice(piece);
        }
    }

    fn forget(&mut self, peer: PeerId) {
        self.has_lost_peer = true;
        self.unread.retain(|(edge, _)| edge.peer != peer);
        self.partial.retain(|(edge, _), _| edge.peer != peer);
        if self.edge.is_some_and(|edge| edge.peer == peer) {
            self.edge = None;
        }
    }

    /// The application opens or closes its endpoint. Closing discards unread messages.
    pub fn set_open(&mut self, now: Instant, open: bool) {
        if open {
            self.machine.open_endpoint(TARGET);
        } else {
            self.machine.close_endpoint(now, TARGET);
            self.unread.clear();
            self.partial.clear();
        }
    }

    /// The application takes the oldest message. Returns false if its inbox is empty.
    pub fn read(&mut self, now: Instant) -> bool {
        let Some((edge, message)) = self.unread.pop_front() else {
            return false;
        };
        let (total, bytes) = match message {
            Arrived::Whole(bytes) => (bytes.len() as u64, bytes),
            Arrived::Pieces(total, bytes) => (total, bytes),
        };
        self.machine.consumed(now, edge, total);
        self.received.push(bytes);
        true
    }

    /// All packets that the machine wants to send: destination, source, bytes.
    pub fn transmit(&mut self, now: Instant) -> Vec<(Address, Address, Vec<u8>)> {
        let mut packets = Vec::new();
        while let Some(transmit) = self.machine.poll_transmit(now, &mut self.ledger) {
            let mut bytes = match transmit.frame {
                Frame::Unit(slot) | Frame::Loose(slot) => {
                    self.ledger.check_lent(slot);
                    self.ledger.frames[slot as usize][..transmit.length].to_vec()
                }
                Frame::Scratch(_) => self.ledger.scratch[..transmit.length].to_vec(),
            };
            if let Frame::Loose(slot) = transmit.frame {
                self.ledger.give_back(slot);
            }
            bytes.resize(transmit.length + transmit.seal.bytes(), 0xEE);
            let port = if transmit.bulk { 2 } else { 1 };
            packets.push((transmit.to, Address { port, ..self.home }, bytes));
            assert!(packets.len() < MAX_BURST, "a step sends endlessly");
        }
        packets
    }

    /// The application sends a message, if there are frames and credit.
    pub fn send(&mut self, now: Instant, length: usize) {
        let Some(edge) = self.edge else {
            return;
        };
        let space = self.machine.packet_space(edge.peer);
        let head = wire::HEADER_BYTES + wire::FRAGMENT_BYTES;
        let piece = space.saturating_sub(head).max(1);
        let whole = wire::HEADER_BYTES + wire::MESSAGE_BYTES + length <= space;
        let frames = if whole { 1 } else { length.div_ceil(piece) };
        if space <= head || self.ledger.free.len() < frames {
            return;
        }
        let Ok(MessageStart { key, sequence, .. }) = self.machine.begin(now, edge, length as u64)
        else {
            return;
        };
        let low = u32::try_from(sequence).expect("scripts are short");
        let payload: Vec<u8> = (0..length)
            .map(|at| (at * 7 + self.sent.len() * 31 + self.index).to_le_bytes()[0])
            .collect();
        let at = wire::HEADER_BYTES;
        if whole {
            self.queue(edge.peer, false, |frame| {
                wire::emit_message(&mut frame[at..], key, low, length, false, false);
                let begin = at + wire::MESSAGE_BYTES;
                frame[begin..begin + length].copy_from_slice(&payload);
                begin + length
            });
        } else {
            for (index, chunk) in payload.chunks(piece).enumerate() {
                let place = ((index * piece) as u64, length as u64);
                self.queue(edge.peer, true, |frame| {
                    let size = chunk.len();
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
                        size,
                    );
                    frame[head..head + size].copy_from_slice(chunk);
                    head + size
                });
            }
        }
        self.sent.push(payload);
    }

    /// The application sends an unreliable message, if a frame is free.
    pub fn send_unreliable(&mut self) {
        let Some(edge) = self.edge else {
            return;
        };
        let Ok((key, number)) = self.machine.begin_unreliable(edge) else {
            return;
        };
        let Some(slot) = self.ledger.free.pop() else {
            return;
        };
        let frame = &mut self.ledger.frames[slot as usize];
        let at = wire::HEADER_BYTES;
        wire::emit_message(&mut frame[at..], key, number, 4, true, false);
        self.ledger.ends[slot as usize] = at + wire::MESSAGE_BYTES + 4;
        assert!(
            self.machine.queue_unreliable(edge.peer, slot, false),
            "the session exists"
        );
    }

    fn queue(&mut self, peer: PeerId, bulk: bool, emit: impl FnOnce(&mut [u8]) -> usize) {
        let slot = self.ledger.free.pop().expect("counted before");
        let end = emit(&mut self.ledger.frames[slot as usize]);
        self.ledger.ends[slot as usize] = end;
        assert!(
            self.machine.queue(peer, &[slot], bulk),
            "the session exists"
        );
    }

    /// Ends all sessions. Every slot must have been released.
    pub fn end(&mut self) {
        let peers: Vec<PeerId> = self.machine.peers().collect();
        for peer in peers {
            self.machine.disconnect(peer);
        }
        self.events(&[]);
        assert_eq!(
            self.ledger.free.len(),
            self.ledger.frames.len(),
            "slots are lost"
        );
        assert_eq!(self.machine.pool_used(), 0, "pool bytes are lost");
        assert_eq!(self.machine.credit_committed(), 0, "credit is lost");
    }
}
