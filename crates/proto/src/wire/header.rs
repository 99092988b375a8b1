//! The 32-byte header of every packet. Spec §2.2.

use core::fmt;
use serde::{Deserialize, Serialize};

use super::Malformed;
use super::cursor::{put, u16_at, u32_at};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 32;
/// The packet length that every process must accept.
pub const MIN_PACKET_BYTES: usize = 256;
/// The protocol version of this implementation.
pub const VERSION: u8 = 1;
/// The lane of packets that are not retransmitted: acknowledgements, ack requests, datagrams.
pub const CONTROL_LANE: u8 = 15;

/// Most lanes of a session: four interfaces, small and bulk each.
pub const MAX_LANES: usize = 8;

/// Kind of a packet. Spec §2.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Requests a session.
    Hello,
    /// Answers a hello without a valid cookie, without keeping state.
    Challenge,
    /// Opens the session.
    Welcome,
    /// Records: at most one unit, and unsequenced records.
    Data,
    /// Carries acknowledgements only.
    Ack,
    /// Acknowledgements, and a request for an answer.
    AckRequest,
    /// The connection named in the body is not known.
    Reset,
    /// Queries another node for the address of an endpoint.
    Lookup,
    /// The answer to a `Lookup`.
    Found,
    /// The sender ends the session.
    Bye,
}

impl Kind {
    #[inline]
    fn from_bits(bits: u8) -> Option<Kind> {
        Some(match bits {
            0 => Kind::Hello,
            1 => Kind::Challenge,
            2 => Kind::Welcome,
            3 => Kind::Data,
            4 => Kind::Ack,
            5 => Kind::AckRequest,
            6 => Kind::Reset,
            7 => Kind::Lookup,
            8 => Kind::Found,
            9 => Kind::Bye,
            _ => return None,
        })
    }

    fn bits(self) -> u8 {
        self as u8
    }

    /// True for kinds that could do harm if they were forged.
    fn may_be_proven(self) -> bool {
        matches!(
            self,
            Kind::Hello | Kind::Welcome | Kind::Reset | Kind::Lookup | Kind::Found
        )
    }
}

/// The flags byte. Spec §2.4.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// The packet carries a unit; `unit` is valid.
    pub const UNIT: Flags = Flags(1);
    /// `unit_next`, `lane_next`, `lane_end` and the acknowledged lane are valid.
    pub const ACK: Flags = Flags(1 << 1);
    /// The sender runs low on frames: acknowledge after n/2p packets.
    pub const ACK_WANTED: Flags = Flags(1 << 2);
    /// Last packet of a burst: acknowledge soon, even if only a few packets have arrived.
    pub const LAST: Flags = Flags(1 << 3);
    /// Bulk class. The BPF program passes the packet to the socket.
    pub const BULK: Flags = Flags(1 << 4);
    /// The unit was sent before.
    pub const REPEAT: Flags = Flags(1 << 5);
    /// The checksum is preceded by a proof that the sender has the cluster key.
    pub const PROVEN: Flags = Flags(1 << 6);
    /// The sender has refused messages and does not know that the peer has received all refusals.
    pub const REFUSING: Flags = Flags(1 << 7);

    /// True if all flags of `other` are set.
    #[must_use]
    pub fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Sets the flags of `other`.
    pub fn set(&mut self, other: Flags) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Flags::UNIT, "unit"),
            (Flags::ACK, "ack"),
            (Flags::ACK_WANTED, "ack-wanted"),
            (Flags::LAST, "last"),
            (Flags::BULK, "bulk"),
            (Flags::REPEAT, "repeat"),
            (Flags::PROVEN, "proven"),
            (Flags::REFUSING, "refusing"),
        ];
        let mut first = true;
        for (flag, name) in names {
            if self.has(flag) {
                if !first {
                    f.write_str("+")?;
                }
                f.write_str(name)?;
                first = false;
            }
        }
        if first {
            f.write_str("-")?;
        }
        Ok(())
    }
}

/// The part of a unit that a packet carries. Spec §5.8.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Part {
    /// Index of the part.
    pub index: u8,
    /// Index of the last part.
    pub last: u8,
}

impl Part {
    /// A unit that is not cut into parts.
    pub const WHOLE: Part = Part { index: 0, last: 0 };
    /// Most parts of a unit.
    pub const MOST: usize = 16;

    /// True unless the unit was cut.
    #[inline]
    #[must_use]
    pub fn is_whole(self) -> bool {
        self.last == 0
    }

    fn from_bits(bits: u8) -> Part {
        Part {
            index: bits & 15,
            last: bits >> 4,
        }
    }

    fn bits(self) -> u8 {
        self.index | self.last << 4
    }
}

/// The parsed header. Numbers are the low 32 bits; lanes and sessions widen them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Kind of the packet.
    pub kind: Kind,
    /// See [`Flags`].
    pub flags: Flags,
    /// Length of the packet, including header and trailer. Another packet may follow.
    pub length: u16,
    /// The receiver's connection id; zero in handshake packets that have none.
    pub connection: u32,
    /// Packet number on its lane.
    pub number: u32,
    /// Number of the unit, if [`Flags::UNIT`].
    pub unit: u32,
    /// Lowest unit that the packet's sender has not received.
    pub unit_next: u32,
    /// Lowest number of `ack_lane` not received: the acknowledgement field of the thesis.
    pub lane_next: u32,
    /// First number received after the first hole, or `lane_next` without a hole: the end-of-hole
    /// field of the thesis.
    pub lane_end: u32,
    /// Lane of this packet.
    pub lane: u8,
    /// Lane of the acknowledgement fields.
    pub ack_lane: u8,
    /// Part of the unit in this packet.
    pub part: Part,
    /// Distance from `number` down to the lowest number that may still be requested.
    pub settled: u16,
}

impl Header {
    /// Parses the first 32 bytes.
    ///
    /// # Errors
    /// [`Malformed`] if the slice is too short, or version, kind or lane are not known.
    pub fn parse(bytes: &[u8]) -> Result<Header, Malformed> {
        Header::check(bytes).map(Header::read)
    }

    /// The first 32 bytes, if they form a valid header.
    #[inline]
    pub(super) fn check(bytes: &[u8]) -> Result<&[u8; HEADER_BYTES], Malformed> {
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(Malformed::Truncated {
                needed: HEADER_BYTES,
                found: bytes.len(),
            });
        };
        if bytes[0] >> 4 != VERSION {
            return Err(Malformed::BadVersion(bytes[0] >> 4));
        }
        let kind = Kind::from_bits(bytes[0] & 15).ok_or(Malformed::BadKind(bytes[0] & 15))?;
        for lane in [bytes[28] & 15, bytes[28] >> 4] {
            if usize::from(lane) >= MAX_LANES && lane != CONTROL_LANE {
                return Err(Malformed::BadLane(lane));
            }
        }
        let part = Part::from_bits(bytes[29]);
        let in_unit = kind == Kind::Data && Flags(bytes[1]).has(Flags::UNIT);
        if part.index > part.last || !part.is_whole() && !in_unit {
            return Err(Malformed::BadField("part"));
        }
        let excluded = match kind.may_be_proven() {
            true => Flags::REFUSING,
            false => Flags::PROVEN,
        };
        if Flags(bytes[1]).has(excluded) {
            return Err(Malformed::BadField("flags"));
        }
        Ok(bytes)
    }

    /// The fields of a [checked](Self::check) header.
    #[inline]
    pub(super) fn read(bytes: &[u8; HEADER_BYTES]) -> Header {
        Header {
            kind: Kind::from_bits(bytes[0] & 15).expect("a kind that was checked"),
            flags: Flags(bytes[1]),
            length: u16_at(bytes, 2),
            connection: u32_at(bytes, 4),
            number: u32_at(bytes, 8),
            unit: u32_at(bytes, 12),
            unit_next: u32_at(bytes, 16),
            lane_next: u32_at(bytes, 20),
            lane_end: u32_at(bytes, 24),
            lane: bytes[28] & 15,
            ack_lane: bytes[28] >> 4,
            part: Part::from_bits(bytes[29]),
            settled: u16_at(bytes, 30),
        }
    }

    /// Writes the header into the first 32 bytes.
    ///
    /// # Panics
    /// When `bytes` is shorter than a header.
    pub fn emit(&self, bytes: &mut [u8]) {
        let bytes = &mut bytes[..HEADER_BYTES];
        bytes[0] = VERSION << 4 | self.kind.bits();
        bytes[1] = self.flags.0;
        put(bytes, 2, &self.length.to_le_bytes());
        put(bytes, 4, &self.connection.to_le_bytes());
        put(bytes, 8, &self.number.to_le_bytes());
        put(bytes, 12, &self.unit.to_le_bytes());
        put(bytes, 16, &self.unit_next.to_le_bytes());
        put(bytes, 20, &self.lane_next.to_le_bytes());
        put(bytes, 24, &self.lane_end.to_le_bytes());
        bytes[28] = self.lane | self.ack_lane << 4;
        bytes[29] = self.part.bits();
        put(bytes, 30, &self.settled.to_le_bytes());
    }

    /// The header of a handshake packet.
    #[must_use]
    pub fn handshake(kind: Kind, connection: u32) -> Header {
        Header {
            kind,
            flags: Flags::default(),
            length: 0,
            connection,
            number: 0,
            unit: 0,
            unit_next: 0,
            lane_next: 0,
            lane_end: 0,
            lane: CONTROL_LANE,
            ack_lane: CONTROL_LANE,
            part: Part::WHOLE,
            settled: 0,
        }
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} to {:#010x} lane {} number {} flags {:?} length {}",
            self.kind, self.connection, self.lane, self.number, self.flags, self.length
        )?;
        if self.flags.has(Flags::UNIT) {
            write!(f, " unit {}", self.unit)?;
            if !self.part.is_whole() {
                write!(f, " part {} of 0..={}", self.part.index, self.part.last)?;
            }
        }
        if self.flags.has(Flags::ACK) {
            write!(
                f,
                " ack unit<{} lane {}<{}",
                self.unit_next, self.ack_lane, self.lane_next
            )?;
            if self.lane_end != self.lane_next {
                write!(f, " hole {}..{}", self.lane_next, self.lane_end)?;
            }
        }
        Ok(())
    }
}
