//! A process that sends arbitrary packets after a correct handshake, from its own socket.
//! Specification §2, §4.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use dipole_link::crc32c::crc32c;
use dipole_proto::wire::{
    self, Address, FRAGMENT_BYTES, HEADER_BYTES, LaneAddress, MESSAGE_BYTES, Operation,
};
use dipole_proto::{Config, EdgeId, Event, Frame, Frames, Instant, Machine, PeerId, Seal, Slot};

use super::{Carrier, Ends, Head, Piece};

const FRAMES: u32 = 256;
const FRAME_BYTES: usize = 1472;

pub(crate) struct Packets {
    socket: UdpSocket,
    machine: Machine,
    frames: Ledger,
    begun: std::time::Instant,
    peer: Option<PeerId>,
    asked: Vec<Operation>,
}

struct Ledger {
    frames: Vec<[u8; FRAME_BYTES]>,
    ends: Vec<usize>,
    free: Vec<Slot>,
    scratch: [u8; FRAME_BYTES],
}

impl Frames for Ledger {
    fn filled(&mut self, slot: Slot) -> (&mut [u8], usize) {
        (&mut self.frames[slot as usize], self.ends[slot as usize])
    }

    fn scratch(&mut self) -> Option<(Slot, &mut [u8])> {
        Some((FRAMES, &mut self.scratch))
    }

    fn allocate(&mut self) -> Option<(Slot, &mut [u8])> {
        let slot = self.free.pop()?;
        Some((slot, &mut self.frames[slot as usize]))
    }

    fn part(&mut self, slot: Slot, bytes: Range<usize>) -> Option<(Slot, &mut [u8])> {
        let from = &self.frames[slot as usize][bytes];
        self.scratch[HEADER_BYTES..][..from.len()].copy_from_slice(from);
        Some((FRAMES, &mut self.scratch))
    }

    fn fill(&mut self, slot: Slot, end: usize) {
        self.ends[slot as usize] = end;
    }
}

fn wire_address(address: SocketAddr) -> Address {
    let ip = match address.ip() {
        IpAddr::V4(four) => four.to_ipv6_mapped(),
        IpAddr::V6(six) => six,
    };
    Address {
        ip: ip.octets(),
        port: address.port(),
    }
}

impl Packets {
    /// Starts a handshake with the process at this port.
    pub(crate) fn new(socket: UdpSocket, to: SocketAddr) -> Packets {
        socket.set_nonblocking(true).expect("a socket");
        let address = wire_address(socket.local_addr().expect("bound"));
        let lanes = [(0, false), (1, true)].map(|(lane, bulk)| LaneAddress {
            lane,
            bulk,
            address,
        });
        // Each attacker has a different node id, so that the victim can distinguish them.
        static LAST: AtomicU32 = AtomicU32::new(1);
        let config = Config {
            node: 1 + LAST.fetch_add(1, Ordering::Relaxed),
            packet_bytes: FRAME_BYTES,
            frames: FRAMES,
            ..Config::default()
        };
        let incarnation = rand::random();
        let mut machine = Machine::new(config, incarnation, [incarnation, 1], &lanes);
        let to = wire_address(to);
        machine.connect(Instant(1), to, 0).expect("room for one");
        Packets {
            socket,
            machine,
            frames: Ledger {
                frames: vec![[0; FRAME_BYTES]; FRAMES as usize],
                ends: vec![0; FRAMES as usize],
                free: (0..FRAMES).collect(),
                scratch: [0; FRAME_BYTES],
            },
            begun: std::time::Instant::now(),
            peer: None,
            asked: Vec::new(),
        }
    }

    fn now(&self) -> Instant {
        Instant(1 + u64::try_from(self.begun.elapsed().as_nanos()).expect("short"))
    }

    fn events(&mut self, packet: &[u8]) {
        while let Some(slot) = self.machine.poll_released() {
            self.frames.free.push(slot);
        }
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::Connected { peer, .. } => self.peer = Some(peer),
                Event::Gone { .. } => self.peer = None,
                Event::Operation { edge, bytes, .. } => {
                    let head = packet[bytes].first_chunk().expect("a head");
                    self.asked.extend(Operation::parse(head, 0));
                    self.machine.consumed(self.now(), edge, 0);
                }
                _ => {}
            }
        }
    }

    fn begin(&mut self, ends: Ends, total: u64) -> Option<(EdgeId, wire::EdgeKey, u32)> {
        let (now, peer) = (self.now(), self.peer?);
        let edge = self.machine.edge(peer, ends.0, ends.1).ok()?;
        let begun = self.machine.begin(now, edge, total).ok()?;
        let low = u32::try_from(begun.sequence).expect("a short life");
        Some((edge, begun.key, low))
    }

    fn queue(&mut self, edge: EdgeId, record: &[u8]) {
        let slot = self.frames.free.pop().expect("few packets");
        let end = HEADER_BYTES + record.len();
        self.frames.frames[slot as usize][HEADER_BYTES..end].copy_from_slice(record);
        self.frames.ends[slot as usize] = end;
        assert!(self.machine.queue(edge.peer, &[slot], false));
    }

    fn queue_message(&mut self, ends: Ends, is_operation: bool, payload: &[u8]) {
        let total = if is_operation {
            0
        } else {
            payload.len() as u64
        };
        let Some((edge, key, sequence)) = self.begin(ends, total) else {
            return;
        };
        let mut record = vec![0; MESSAGE_BYTES];
        wire::emit_message(
            &mut record,
            key,
            sequence,
            payload.len(),
            false,
            is_operation,
        );
        record.extend(payload);
        self.queue(edge, &record);
    }

    fn transmit(&mut self) {
        let now = self.now();
        while let Some(transmit) = self.machine.poll_transmit(now, &mut self.frames) {
            let frame = match transmit.frame {
                Frame::Unit(slot) | Frame::Loose(slot) => &self.frames.frames[slot as usize],
                Frame::Scratch(_) => &self.frames.scratch,
            };
            let mut packet = frame[..transmit.length].to_vec();
            let Seal::Crc32c { mask } = transmit.seal else {
                panic!("the nodes use no key");
            };
            packet.extend((crc32c(&packet) ^ mask).to_le_bytes());
            if let Frame::Loose(slot) = transmit.frame {
                self.frames.free.push(slot);
            }
            let to = SocketAddr::new(
                Ipv6Addr::from(transmit.to.ip).to_canonical(),
                transmit.to.port,
            );
            let _lost = self.socket.send_to(&packet, to);
        }
    }
}

impl Carrier for Packets {
    fn is_open(&self) -> bool {
        self.peer.is_some()
    }

    fn message(&mut self, ends: Ends, bytes: &[u8]) {
        self.queue_message(ends, false, bytes);
    }

    fn whole(&mut self, ends: Ends, head: Head, data: &[u8]) {
        self.queue_message(ends, true, &[&head[..], data].concat());
    }

    fn pieces(&mut self, ends: Ends, pieces: &[Piece]) {
        let Some((edge, key, sequence)) = self.begin(ends, 0) else {
            return;
        };
        for piece in pieces {
            let mut record = vec![0; FRAGMENT_BYTES];
            let (place, length) = ((piece.offset, piece.total), piece.data.len());
            let length = piece.head.len() + length;
            wire::emit_fragment(
                &mut record,
                wire::FragmentHead {
                    key,
                    sequence,
                    offset: place.0,
                    total: place.1,
                    unreliable: false,
                    operation: true,
                },
                length,
            );
            record.extend(piece.head);
            record.extend(&piece.data);
            self.queue(edge, &record);
        }
    }

    fn turn(&mut self) {
        let now = self.now();
        let mut packet = vec![0; 1 << 16];
        while let Ok((length, from)) = self.socket.recv_from(&mut packet) {
            let (from, bytes) = (wire_address(from), &packet[..length]);
            if let Ok(addressed) = self.machine.address(now, from, bytes) {
                let _dropped = self.machine.on_packet(now, from, &addressed);
            }
            self.events(bytes);
        }
        self.machine.on_timers(now);
        self.events(&[]);
        self.transmit();
    }

    fn asked(&mut self) -> Option<Operation> {
        self.asked.pop()
    }
}
