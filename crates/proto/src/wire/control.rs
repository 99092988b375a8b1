//! Bodies of the packets that open and end sessions. Spec §3.

use super::Malformed;
use super::address::Address;
use super::cursor::{put, u16_at, u32_at, u64_at};
use super::header::{MAX_LANES, MIN_PACKET_BYTES, VERSION};
use serde::{Deserialize, Serialize};

/// Trailers that a process can create and verify, as a set of bits. Spec §2.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trailers(pub u8);

/// How the packets of a session are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Trailer {
    /// A number of the session. The kernel checks the bytes by the checksum of UDP.
    Kernel,
    /// CRC32C over header and records.
    Crc32c,
    /// A counter, an authentication tag over header and records, and a sum of everything.
    Auth,
    /// Like `Auth`, with encrypted records.
    Encrypt,
}

/// Bytes of the counter in the trailer of an authenticated packet.
pub const COUNTER_BYTES: usize = 8;
/// Bytes of the tag in that trailer.
pub const TAG_BYTES: usize = 16;
/// Bytes of the sum of all preceding bytes at the end of that trailer.
pub const SUM_BYTES: usize = 4;

impl Trailer {
    /// Bytes on the wire.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Trailer::Kernel | Trailer::Crc32c => super::CRC_BYTES,
            Trailer::Auth | Trailer::Encrypt => COUNTER_BYTES + TAG_BYTES + SUM_BYTES,
        }
    }

    /// Its name in options and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Trailer::Kernel => "kernel",
            Trailer::Crc32c => "crc32c",
            Trailer::Auth => "auth",
            Trailer::Encrypt => "encrypt",
        }
    }

    fn code(self) -> u8 {
        match self {
            Trailer::Crc32c => 0,
            Trailer::Auth => 1,
            Trailer::Encrypt => 2,
            Trailer::Kernel => 3,
        }
    }

    fn from_code(code: u8) -> Result<Trailer, Malformed> {
        Ok(match code {
            0 => Trailer::Crc32c,
            1 => Trailer::Auth,
            2 => Trailer::Encrypt,
            3 => Trailer::Kernel,
            _ => return Err(Malformed::BadField("trailer")),
        })
    }
}

impl Trailers {
    /// Only CRC32C, without authentication.
    pub const CRC32C: Trailers = Trailers(1);
    /// The kernel's checksum if the peer accepts that too, otherwise CRC32C.
    pub const KERNEL: Trailers = Trailers(8 | 1);
    /// Authentication, and encryption if the peer requires it.
    pub const AUTH: Trailers = Trailers(2 | 4);
    /// Authentication and encryption.
    pub const ENCRYPT: Trailers = Trailers(4);

    /// The first trailer in both sets. Each side leaves out trailers that are weaker than it
    /// requires.
    #[must_use]
    pub fn agree(self, other: Trailers) -> Option<Trailer> {
        match self.0 & other.0 {
            both if both & 8 != 0 => Some(Trailer::Kernel),
            both if both & 1 != 0 => Some(Trailer::Crc32c),
            both if both & 2 != 0 => Some(Trailer::Auth),
            both if both & 4 != 0 => Some(Trailer::Encrypt),
            _ => None,
        }
    }
}

/// A lane on which the sender of a hello listens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneAddress {
    /// Lane number, below [`MAX_LANES`].
    pub lane: u8,
    /// The lane accepts bulk traffic.
    pub bulk: bool,
    /// Address at which the sender listens.
    pub address: Address,
}

/// Bytes of a lane in hello, welcome and lists of lanes.
pub const LANE_BYTES: usize = 2 + Address::BYTES;

impl LaneAddress {
    pub(super) fn parse(bytes: &[u8]) -> Result<LaneAddress, Malformed> {
        let lane = bytes[0];
        if usize::from(lane) >= MAX_LANES {
            return Err(Malformed::BadLane(lane));
        }
        Ok(LaneAddress {
            lane,
            bulk: bytes[1] & 1 != 0,
            address: Address::parse(&bytes[2..LANE_BYTES]),
        })
    }

    pub(super) fn emit(&self, bytes: &mut [u8]) {
        bytes[0] = self.lane;
        bytes[1] = u8::from(self.bulk);
        self.address.emit(&mut bytes[2..LANE_BYTES]);
    }
}

/// Body of hello and welcome. Spec §3.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Lowest and highest protocol version supported.
    pub versions: (u8, u8),
    /// Longest packet that the sender accepts, in bytes.
    pub max_packet_bytes: u16,
    /// The connection id for packets to the sender.
    pub connection: u32,
    /// Random number of the sender's process. A restarted process has another one.
    pub incarnation: u64,
    /// Proves that the sender receives at its address; zero at first. A proven welcome repeats
    /// that of the hello.
    pub cookie: u64,
    /// The sender's node id.
    pub node: u32,
    /// Packets that may be in flight to the sender.
    pub window_packets: u32,
    /// Bytes that may be sent on a new edge before any grant.
    pub initial_credit_bytes: u32,
    /// Trailers that the sender accepts.
    pub trailers: Trailers,
    /// Trailer chosen (welcome only).
    pub trailer: Trailer,
    /// Incarnation of the receiver's process; zero if it is not known yet.
    pub echo: u64,
    /// Random number for this session.
    pub salt: u64,
    /// Share of the sender in the session's keys. Only the caller interprets it.
    pub share: [u8; SHARE_BYTES],
    lanes: [LaneAddress; MAX_LANES],
    lane_count: u8,
}

/// Bytes of a share of the session's keys.
pub const SHARE_BYTES: usize = 32;
/// Bytes of a hello's body before its lanes.
pub const HELLO_FIXED_BYTES: usize = 56 + SHARE_BYTES;

impl Hello {
    /// A hello with up to [`MAX_LANES`] lanes; further ones are ignored.
    #[must_use]
    pub fn new(lanes: &[LaneAddress]) -> Hello {
        let mut hello = Hello {
            versions: (VERSION, VERSION),
            max_packet_bytes: 0,
            connection: 0,
            incarnation: 0,
            cookie: 0,
            node: 0,
            window_packets: 0,
            initial_credit_bytes: 0,
            trailers: Trailers::CRC32C,
            trailer: Trailer::Crc32c,
            echo: 0,
            salt: 0,
            share: [0; SHARE_BYTES],
            lanes: [LaneAddress::default(); MAX_LANES],
            lane_count: 0,
        };
        for lane in lanes.iter().take(MAX_LANES) {
            hello.lanes[usize::from(hello.lane_count)] = *lane;
            hello.lane_count += 1;
        }
        hello
    }

    /// Returns the lanes.
    #[must_use]
    pub fn lanes(&self) -> &[LaneAddress] {
        &self.lanes[..usize::from(self.lane_count)]
    }

    /// Bytes of this body on the wire.
    #[must_use]
    pub fn bytes(&self) -> usize {
        HELLO_FIXED_BYTES + LANE_BYTES * usize::from(self.lane_count)
    }

    /// Parses a body.
    ///
    /// # Errors
    /// [`Malformed`] if the body is too short or a field has an invalid value.
    pub fn parse(body: &[u8]) -> Result<Hello, Malformed> {
        need(body, HELLO_FIXED_BYTES)?;
        let lane_count = body[46];
        if usize::from(lane_count) > MAX_LANES || lane_count == 0 {
            return Err(Malformed::BadField("lane count"));
        }
        need(
            body,
            HELLO_FIXED_BYTES + LANE_BYTES * usize::from(lane_count),
        )?;
        let mut hello = Hello::new(&[]);
        hello.versions = (body[0], body[1]);
        hello.max_packet_bytes = u16_at(body, 2);
        hello.connection = u32_at(body, 4);
        hello.incarnation = u64_at(body, 8);
        hello.cookie = u64_at(body, 16);
        hello.node = u32_at(body, 24);
        hello.window_packets = u32_at(body, 28);
        hello.initial_credit_bytes = u32_at(body, 32);
        hello.echo = u64_at(body, 36);
        hello.trailers = Trailers(body[44]);
        hello.trailer = Trailer::from_code(body[45])?;
        hello.salt = u64_at(body, 48);
        hello.share.copy_from_slice(&body[56..HELLO_FIXED_BYTES]);
        if hello.connection == 0 {
            return Err(Malformed::BadField("connection"));
        }
        if hello.window_packets == 0 {
            return Err(Malformed::BadField("window"));
        }
        if usize::from(hello.max_packet_bytes) < MIN_PACKET_BYTES {
            return Err(Malformed::BadField("packet size"));
        }
        hello.lane_count = lane_count;
        for index in 0..usize::from(lane_count) {
            let at = HELLO_FIXED_BYTES + LANE_BYTES * index;
            hello.lanes[index] = LaneAddress::parse(&body[at..at + LANE_BYTES])?;
        }
        Ok(hello)
    }

    /// Writes the body. Returns its length.
    ///
    /// # Panics
    /// When `body` is shorter than [`bytes`](Self::bytes).
    pub fn emit(&self, body: &mut [u8]) -> usize {
        body[0] = self.versions.0;
        body[1] = self.versions.1;
        put(body, 2, &self.max_packet_bytes.to_le_bytes());
        put(body, 4, &self.connection.to_le_bytes());
        put(body, 8, &self.incarnation.to_le_bytes());
        put(body, 16, &self.cookie.to_le_bytes());
        put(body, 24, &self.node.to_le_bytes());
        put(body, 28, &self.window_packets.to_le_bytes());
        put(body, 32, &self.initial_credit_bytes.to_le_bytes());
        put(body, 36, &self.echo.to_le_bytes());
        body[44] = self.trailers.0;
        body[45] = self.trailer.code();
        body[46] = self.lane_count;
        body[47] = 0;
        put(body, 48, &self.salt.to_le_bytes());
        put(body, 56, &self.share);
        for (index, lane) in self.lanes().iter().enumerate() {
            let at = HELLO_FIXED_BYTES + LANE_BYTES * index;
            lane.emit(&mut body[at..at + LANE_BYTES]);
        }
        self.bytes()
    }
}

/// Body of a challenge. Spec §3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// Cookie for the next hello.
    pub cookie: u64,
    /// The incarnation in the hello.
    pub echo: u64,
}

/// Bytes of a challenge's body.
pub const CHALLENGE_BYTES: usize = 16;

impl Challenge {
    /// Parses a body.
    ///
    /// # Errors
    /// [`Malformed::Truncated`].
    pub fn parse(body: &[u8]) -> Result<Challenge, Malformed> {
        need(body, CHALLENGE_BYTES)?;
        Ok(Challenge {
            cookie: u64_at(body, 0),
            echo: u64_at(body, 8),
        })
    }

    /// Writes the body. Returns its length.
    pub fn emit(&self, body: &mut [u8]) -> usize {
        put(body, 0, &self.cookie.to_le_bytes());
        put(body, 8, &self.echo.to_le_bytes());
        CHALLENGE_BYTES
    }
}

/// Reason of a reset. Spec §3.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ResetReason {
    /// The connection id does not belong to a session.
    UnknownConnection,
    /// The hello offers no supported version.
    Version,
    /// The limit of peers is reached.
    TooManyPeers,
    /// The hello does not prove that its sender has the cluster key.
    Key,
    /// The hello offers no acceptable trailer.
    Security,
}

/// Body of a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reset {
    /// The refused connection id: that of the sender of a hello, or that in the header of another
    /// packet.
    pub connection: u32,
    /// Reason for the reset.
    pub reason: ResetReason,
    /// The incarnation in the refused hello, if either side has a cluster key. It is absent in a
    /// reset of a session.
    pub echo: Option<u64>,
}

/// Bytes of a reset's body.
pub const RESET_BYTES: usize = 8;
/// Bytes of a reset's body with an echo.
pub const RESET_ECHO_BYTES: usize = 16;

impl Reset {
    /// Parses a body.
    ///
    /// # Errors
    /// [`Malformed`] for a short body or an unknown reason.
    pub fn parse(body: &[u8]) -> Result<Reset, Malformed> {
        need(body, RESET_BYTES)?;
        let reason = match u32_at(body, 4) {
            0 => ResetReason::UnknownConnection,
            1 => ResetReason::Version,
            2 => ResetReason::TooManyPeers,
            3 => ResetReason::Key,
            4 => ResetReason::Security,
            _ => return Err(Malformed::BadField("reset reason")),
        };
        Ok(Reset {
            connection: u32_at(body, 0),
            reason,
            echo: (body.len() >= RESET_ECHO_BYTES).then(|| u64_at(body, 8)),
        })
    }

    /// Writes the body. Returns its length.
    pub fn emit(&self, body: &mut [u8]) -> usize {
        put(body, 0, &self.connection.to_le_bytes());
        let reason: u32 = match self.reason {
            ResetReason::UnknownConnection => 0,
            ResetReason::Version => 1,
            ResetReason::TooManyPeers => 2,
            ResetReason::Key => 3,
            ResetReason::Security => 4,
        };
        put(body, 4, &reason.to_le_bytes());
        let Some(echo) = self.echo else {
            return RESET_BYTES;
        };
        put(body, 8, &echo.to_le_bytes());
        RESET_ECHO_BYTES
    }
}

/// Body of a bye: the sender's incarnation, so that a stray packet cannot end a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bye {
    /// Incarnation of the sender's process.
    pub incarnation: u64,
}

/// Bytes of a bye's body.
pub const BYE_BYTES: usize = 8;

impl Bye {
    /// Parses a body.
    ///
    /// # Errors
    /// [`Malformed::Truncated`].
    pub fn parse(body: &[u8]) -> Result<Bye, Malformed> {
        need(body, BYE_BYTES)?;
        Ok(Bye {
            incarnation: u64_at(body, 0),
        })
    }

    /// Writes the body. Returns its length.
    pub fn emit(&self, body: &mut [u8]) -> usize {
        put(body, 0, &self.incarnation.to_le_bytes());
        BYE_BYTES
    }
}

fn need(body: &[u8], needed: usize) -> Result<(), Malformed> {
    if body.len() < needed {
        return Err(Malformed::Truncated {
            needed,
            found: body.len(),
        });
    }
    Ok(())
}
