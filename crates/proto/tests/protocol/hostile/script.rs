//! The steps of a hostile wire, decoded from plain bytes so that a fuzzer can write scripts.

use dipole_proto::wire::{CRC_BYTES, HEADER_BYTES};

use super::host::TARGET;
use super::{Conversation, fit_length};

/// One step of a script.
#[derive(Clone, Debug)]
pub enum Action {
    /// A host sends a message of this many bytes.
    Send { host: usize, length: usize },
    /// A host sends an unreliable message.
    SendLoose { host: usize },
    /// The application of a host reads one message.
    Read { host: usize },
    /// Packets arrive unchanged.
    Pass { packets: u8 },
    /// The oldest packet in flight is lost.
    Lose,
    /// The oldest packet in flight arrives after those behind it.
    Delay,
    /// The oldest packet in flight arrives with one bit changed.
    Damage { bit: u16 },
    /// The oldest packet in flight arrives truncated.
    Cut { keep: u16 },
    /// An earlier packet arrives again.
    Repeat { which: u8 },
    /// A packet arrives for a connection that does not exist.
    Stray { which: u8, connection: u32 },
    /// Advances the time.
    Wait { microseconds: u16 },
    /// A forged packet with a correct trailer arrives.
    Forge { which: u8, forgery: Forgery },
    /// A host closes or opens its endpoint.
    Endpoint { host: usize, open: bool },
    /// A host ends its sessions.
    Disconnect { host: usize },
    /// The first host connects.
    Connect,
}

/// How a forged packet differs from an earlier one.
#[derive(Clone, Debug)]
pub enum Forgery {
    /// Some bytes are different.
    Overwrite { at: u16, bytes: Vec<u8> },
    /// It is shorter, and its length field is adjusted.
    Shorten { keep: u16 },
    /// Records or part of a body are appended.
    Append { bytes: Vec<u8> },
    /// The header of one packet with the body of another.
    Splice { body: u8 },
    /// All bytes are different.
    Replace { bytes: Vec<u8> },
    /// Like `Append`, with the next packet number and unit, so that it is accepted.
    Continue { records: Vec<u8> },
}

impl Action {
    /// True if the wire can do this without creating trailers, and both applications stay.
    pub fn is_honest(&self) -> bool {
        !matches!(
            self,
            Action::Forge { .. }
                | Action::Endpoint { .. }
                | Action::Disconnect { .. }
                | Action::Connect
        )
    }

    pub fn apply(&self, conversation: &mut Conversation) {
        let now = conversation.now;
        match *self {
            Action::Send { host, length } => conversation.hosts[host].send(now, length),
            Action::SendLoose { host } => conversation.hosts[host].send_unreliable(),
            Action::Read { host } => {
                conversation.hosts[host].read(now);
            }
            Action::Pass { packets } => {
                for _ in 0..packets {
                    conversation.pass(|_| {});
                    conversation.collect();
                }
            }
            Action::Lose => {
                conversation.flights.pop_front();
            }
            Action::Delay => {
                if let Some(packet) = conversation.flights.pop_front() {
                    conversation.flights.push_back(packet);
                }
            }
            Action::Damage { bit } => {
                if let Some(mut packet) = conversation.flights.pop_front() {
                    let at = usize::from(bit) % (packet.bytes.len() * 8);
                    packet.bytes[at / 8] ^= 1 << (at % 8);
                    conversation.arrive_damaged(&packet);
                }
            }
            Action::Cut { keep } => {
                if let Some(mut packet) = conversation.flights.pop_front() {
                    let keep = usize::from(keep) % packet.bytes.len();
                    packet.bytes.truncate(keep);
                    conversation.arrive_damaged(&packet);
                }
            }
            Action::Repeat { which } => {
                if let Some(packet) = conversation.remembered(which) {
                    conversation.arrive(&packet);
                }
            }
            Action::Stray { which, connection } => {
                if let Some(mut packet) = conversation.remembered(which) {
                    packet.bytes[4..8].copy_from_slice(&connection.to_le_bytes());
                    conversation.arrive_damaged(&packet);
                }
            }
            Action::Wait { microseconds } => conversation.wait(u64::from(microseconds) * 1000),
            Action::Forge { which, ref forgery } => forgery.apply(which, conversation),
            Action::Endpoint { host, open } => {
                let now = conversation.now;
                conversation.hosts[host].set_open(now, open);
            }
            Action::Disconnect { host } => conversation.hosts[host].end(),
            Action::Connect => conversation.connect(),
        }
    }
}

impl Forgery {
    fn apply(&self, which: u8, conversation: &mut Conversation) {
        let Some(mut packet) = conversation.remembered(which) else {
            return;
        };
        match self {
            Forgery::Overwrite { at, bytes } => {
                let at = usize::from(*at) % packet.bytes.len();
                for (place, byte) in packet.bytes[at..].iter_mut().zip(bytes) {
                    *place = *byte;
                }
            }
            Forgery::Shorten { keep } => {
                let keep = usize::from(*keep) % packet.bytes.len();
                packet.bytes.truncate(keep);
                fit_length(&mut packet.bytes);
            }
            Forgery::Append { bytes } => {
                packet.bytes.truncate(packet.bytes.len() - CRC_BYTES);
                packet.bytes.extend(bytes);
                packet.bytes.extend([0; CRC_BYTES]);
                fit_length(&mut packet.bytes);
            }
            Forgery::Splice { body } => {
                let Some(other) = conversation.remembered(*body) else {
                    return;
                };
                packet.bytes.truncate(HEADER_BYTES);
                packet.bytes.extend(&other.bytes[HEADER_BYTES..]);
                fit_length(&mut packet.bytes);
            }
            Forgery::Replace { bytes } => packet.bytes.clone_from(bytes),
            Forgery::Continue { records } => {
                packet.bytes.truncate(HEADER_BYTES);
                packet.bytes.extend(records);
                packet.bytes.extend([0; CRC_BYTES]);
                fit_length(&mut packet.bytes);
                // A data packet on lane 0 with the next numbers.
                let next = conversation.next_numbers(packet.to);
                packet.bytes[0] = 0x13;
                packet.bytes[1] |= 1;
                packet.bytes[8..12].copy_from_slice(&next.0.to_le_bytes());
                packet.bytes[12..16].copy_from_slice(&next.1.to_le_bytes());
                packet.bytes[28] &= 0xF0;
            }
        }
        conversation.arrive(&packet);
    }
}

/// Reads bytes, and zeros after their end.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn host(&mut self) -> usize {
        usize::from(self.byte() & 1)
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = usize::from(self.byte() & 63);
        (0..length).map(|_| self.byte()).collect()
    }

    /// A whole record of the right size, with extreme values in many fields.
    fn record(&mut self) -> Vec<u8> {
        const KINDS: [(u8, usize); 15] = [
            (0x01, 12),
            (0x02, 28),
            (0x03, 24),
            (0x04, 20),
            (0x05, 4),
            (0x06, 12),
            (0x07, 16),
            (0x10, 8),
            (0x10, 20),
            (0x11, 16),
            (0x12, 16),
            (0x13, 4),
            (0x14, 1),
            (0x15, 1),
            (0x80, 9),
        ];
        let (kind, fixed) = KINDS[usize::from(self.byte()) % KINDS.len()];
        let payload = if kind <= 3 {
            usize::from(self.byte() & 31)
        } else {
            0
        };
        let mut record = vec![kind, self.byte() & 3];
        let size = u16::try_from(fixed + payload).expect("short");
        record.extend(size.to_le_bytes());
        while record.len() < 4 + fixed {
            let field: u32 = match self.byte() % 8 {
                0 => 1,
                1 | 2 => TARGET,
                3 => u32::MAX,
                4 => 0,
                5 => u32::from(self.byte()),
                6 => u32::from(self.short()),
                _ => 0x8000_0000,
            };
            record.extend(field.to_le_bytes());
        }
        record.resize(4 + fixed + payload, 0xAB);
        record
    }

    fn records(&mut self) -> Vec<u8> {
        let count = 1 + self.byte() % 3;
        (0..count).flat_map(|_| self.record()).collect()
    }

    fn forgery(&mut self) -> Forgery {
        match self.byte() % 7 {
            0 => Forgery::Overwrite {
                at: self.short(),
                bytes: self.bytes(),
            },
            1 => Forgery::Shorten { keep: self.short() },
            2 => Forgery::Append {
                bytes: self.bytes(),
            },
            3 => Forgery::Append {
                bytes: self.records(),
            },
            4 => Forgery::Splice { body: self.byte() },
            5 => Forgery::Replace {
                bytes: self.bytes(),
            },
            _ => Forgery::Continue {
                records: self.records(),
            },
        }
    }

    fn action(&mut self) -> Action {
        match self.byte() % 24 {
            0..=2 => Action::Send {
                host: self.host(),
                length: usize::from(self.byte()),
            },
            3 => Action::Send {
                host: self.host(),
                length: usize::from(self.short() % 3_000),
            },
            4 => Action::SendLoose { host: self.host() },
            5 | 6 => Action::Read { host: self.host() },
            7..=9 => Action::Pass {
                packets: self.byte() % 8,
            },
            10 => Action::Lose,
            11 => Action::Delay,
            12 => Action::Damage { bit: self.short() },
            13 => Action::Cut { keep: self.short() },
            14 => Action::Repeat { which: self.byte() },
            15 => Action::Stray {
                which: self.byte(),
                connection: u32::from(self.short()),
            },
            16 => Action::Wait {
                microseconds: self.short(),
            },
            17..=20 => Action::Forge {
                which: self.byte(),
                forgery: self.forgery(),
            },
            21 => Action::Endpoint {
                host: self.host(),
                open: self.byte() & 3 != 0,
            },
            22 => Action::Disconnect { host: self.host() },
            _ => Action::Connect,
        }
    }
}

/// Any bytes are a valid script.
pub fn decode(bytes: &[u8]) -> Vec<Action> {
    let mut reader = Reader(bytes);
    let mut script = Vec::new();
    while !reader.0.is_empty() {
        script.push(reader.action());
    }
    script
}
