//! Records, the contents of packets, each with a four-byte prefix. Spec §4.

use core::ops::Range as Bytes;
use serde::{Deserialize, Serialize};

use super::Malformed;
use super::ack::{LaneAck, Range};
use super::control::{COUNTER_BYTES, LaneAddress, SUM_BYTES, TAG_BYTES};
use super::cursor::{put, u16_at, u32_at, u64_at};
use super::header::{HEADER_BYTES, MAX_LANES, MIN_PACKET_BYTES};
use super::lanes::{LaneList, MAX_LIST_BYTES, emit_list, list_bytes};
use super::operation::OPERATION_BYTES;

pub(super) const PREFIX_BYTES: usize = 4;
/// Bytes before the payload of a whole message.
pub const MESSAGE_BYTES: usize = 16;
/// Bytes before the payload of a message fragment.
pub const FRAGMENT_BYTES: usize = 32;
/// Bytes of a credit.
pub const CREDIT_BYTES: usize = 20;
/// Bytes of a credit request.
pub const CREDIT_REQUEST_BYTES: usize = 24;
/// Bytes of a refusal.
pub const REFUSED_BYTES: usize = 20;
/// Bytes of a record that ends an edge.
pub const EDGE_END_BYTES: usize = 20;
/// Bytes of a record that forgets an edge.
pub const EDGE_FORGOTTEN_BYTES: usize = 12;
/// Bytes of the shortest probe.
pub const PROBE_BYTES: usize = 12;
/// Bytes of an echo.
pub const ECHO_BYTES: usize = 14;
/// Bytes of the longest list of lanes.
pub const LANES_BYTES: usize = PREFIX_BYTES + MAX_LIST_BYTES;

// It fits into every packet, with the longest trailer.
const _: () =
    assert!(HEADER_BYTES + LANES_BYTES + COUNTER_BYTES + TAG_BYTES + SUM_BYTES <= MIN_PACKET_BYTES);

pub(super) const MESSAGE: u8 = 0x01;
pub(super) const FRAGMENT: u8 = 0x02;
const EDGE_END: u8 = 0x06;
const REFUSED: u8 = 0x07;
const EDGE_FORGOTTEN: u8 = 0x08;
const LANE_ACK: u8 = 0x10;
const CREDIT: u8 = 0x11;
const CREDIT_REQUEST: u8 = 0x12;
const WINDOW: u8 = 0x13;
const PROBE: u8 = 0x14;
const ECHO: u8 = 0x15;
const BACKLOG: u8 = 0x16;
/// Optional: without it, time-outs show that a lane is gone.
const LANES: u8 = 0x89;
/// Records of these kinds may be skipped if they are unknown.
const IGNORABLE: u8 = 0x80;

const FLAG_UNRELIABLE: u8 = 1;
const FLAG_OPERATION: u8 = 2;
/// The life of the edge is encoded in the upper bits of the flags.
const LIFE_SHIFT: u32 = 2;

/// Identifies an edge of a session. The life distinguishes successive edges between the same
/// endpoints, so that late packets of an earlier one are recognized.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct EdgeKey {
    /// Id of the sending endpoint.
    pub source: u32,
    /// Id of the receiving endpoint.
    pub target: u32,
    /// Number of the life, below [`EdgeKey::LIVES`].
    pub life: u8,
}

impl EdgeKey {
    /// Lives are numbered modulo this.
    pub const LIVES: u8 = 64;

    /// Returns both endpoints, source first.
    #[must_use]
    pub fn ends(self) -> (u32, u32) {
        (self.source, self.target)
    }

    fn flags(self) -> u8 {
        self.life << LIFE_SHIFT
    }

    #[inline]
    fn parse(flags: u8, body: &[u8]) -> EdgeKey {
        EdgeKey {
            source: u32_at(body, 0),
            target: u32_at(body, 4),
            life: flags >> LIFE_SHIFT,
        }
    }

    /// The key, if these are the flags of a reliable message to an endpoint.
    #[inline]
    pub(super) fn of_reliable(flags: u8, body: &[u8]) -> Option<EdgeKey> {
        (flags & (FLAG_UNRELIABLE | FLAG_OPERATION) == 0).then(|| EdgeKey::parse(flags, body))
    }

    fn emit(self, bytes: &mut [u8]) {
        put(bytes, 4, &self.source.to_le_bytes());
        put(bytes, 8, &self.target.to_le_bytes());
    }
}

/// Why a message was refused. Spec §5.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RefusedReason {
    /// The endpoint does not exist.
    NoEndpoint,
    /// The endpoint was closed.
    Closed,
    /// The message is longer than the receiver accepts.
    TooLong,
    /// The receiver has reached its limit of edges.
    TooManyEdges,
    /// The message exceeds the granted credit, which violates the protocol.
    OverCredit,
}

impl RefusedReason {
    pub(crate) fn code(self) -> u32 {
        self as u32
    }

    pub(crate) fn from_code(code: u32) -> Result<RefusedReason, Malformed> {
        Ok(match code {
            0 => RefusedReason::NoEndpoint,
            1 => RefusedReason::Closed,
            2 => RefusedReason::TooLong,
            3 => RefusedReason::TooManyEdges,
            4 => RefusedReason::OverCredit,
            _ => return Err(Malformed::BadField("refusal reason")),
        })
    }
}

/// A parsed record. `payload` is a range of bytes of the packet.
#[derive(Clone, Debug)]
pub enum Record<'a> {
    /// A message or an operation, or a piece of one.
    Message {
        /// Key of the edge.
        key: EdgeKey,
        /// Number of the message on its edge, low 32 bits.
        sequence: u32,
        /// Position of the payload in the message.
        offset: u64,
        /// Bytes of the whole message, or of an operation's data.
        total: u64,
        /// It is not retransmitted.
        unreliable: bool,
        /// It is an operation on memory: the payload begins with its [head](super::Operation).
        operation: bool,
        /// Position of the payload in the packet.
        payload: Bytes<usize>,
    },
    /// The source endpoint sends nothing more on this edge.
    EdgeEnd {
        /// Key of the edge.
        key: EdgeKey,
        /// The number after the last message.
        sequence: u32,
        /// Credit requests in control packets below this number may be for edges that have ended.
        control: u32,
    },
    /// An edge that ended is forgotten: its endpoints may be connected again.
    EdgeForgotten {
        /// Key of the edge at the receiver.
        key: EdgeKey,
    },
    /// A message of the receiver was refused.
    Refused {
        /// Id of the sending endpoint.
        source: u32,
        /// Id of the receiving endpoint.
        target: u32,
        /// Number of the message.
        sequence: u32,
        /// Why it was refused.
        reason: RefusedReason,
    },
    /// The lanes on which the sender listens from now on.
    Lanes(LaneList<'a>),
    /// The arrivals of a lane.
    LaneAck(LaneAck<'a>),
    /// Credit of an edge.
    Credit {
        /// Key of the edge.
        key: EdgeKey,
        /// Cumulative bytes that may be charged.
        limit: u64,
    },
    /// A request for credit.
    CreditRequest {
        /// Key of the edge.
        key: EdgeKey,
        /// The credit that it needs.
        request: CreditRequest,
    },
    /// Limit of packets in flight.
    Window {
        /// Maximum number of packets in flight.
        packets: u32,
    },
    /// A test whether packets arrive on a lane. The echo goes back the same way.
    Probe {
        /// The lane on which it is sent.
        lane: u8,
        /// A number that only a receiver of the probe can know.
        token: u64,
    },
    /// The answer to a probe.
    Echo {
        /// The lane of the probe.
        lane: u8,
        /// The token of the probe.
        token: u64,
        /// Length of the packet with the probe, including its trailer.
        length: u16,
    },
    /// Units wait at the sender of this record because it has no grants.
    Backlog {
        /// The unit number after the last one that waits.
        end: u32,
    },
}

impl Record<'_> {
    /// True for records that must be part of a unit. Spec §4.1.
    #[must_use]
    pub fn is_sequenced(&self) -> bool {
        match self {
            Record::Message { unreliable, .. } => !unreliable,
            Record::EdgeEnd { .. }
            | Record::EdgeForgotten { .. }
            | Record::Refused { .. }
            | Record::Lanes(_) => true,
            Record::LaneAck(_)
            | Record::Credit { .. }
            | Record::CreditRequest { .. }
            | Record::Window { .. }
            | Record::Probe { .. }
            | Record::Echo { .. }
            | Record::Backlog { .. } => false,
        }
    }
}

/// The credit that an edge needs for its next message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CreditRequest {
    /// Cumulative bytes charged, including that message.
    pub need: u64,
    /// Charge of the message itself. The rest of `need` was charged before, although those messages
    /// may still be in flight.
    pub message: u32,
}

impl CreditRequest {
    #[inline]
    fn parse(body: &[u8]) -> CreditRequest {
        CreditRequest {
            need: u64_at(body, 8),
            message: u32_at(body, 16),
        }
    }
}

/// Iterates over the records of a packet; stops after the first malformed one.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Records<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Records<'a> {
        Records {
            bytes,
            at: HEADER_BYTES,
        }
    }

    /// True after the last record.
    #[inline]
    pub(crate) fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    #[inline]
    fn parse_next(&mut self) -> Result<Option<Record<'a>>, Malformed> {
        loop {
            let rest = &self.bytes[self.at..];
            if rest.is_empty() {
                return Ok(None);
            }
            let bad = Malformed::BadRecord {
                kind: rest[0],
                at: self.at,
            };
            if rest.len() < PREFIX_BYTES {
                return Err(bad);
            }
            let (kind, flags) = (rest[0], rest[1]);
            let size = usize::from(u16_at(rest, 2));
            if rest.len() < PREFIX_BYTES + size {
                return Err(bad);
            }
            let body = &rest[PREFIX_BYTES..PREFIX_BYTES + size];
            let begin = self.at + PREFIX_BYTES;
            self.at = begin + size;
            if kind & IGNORABLE != 0 && kind != LANES {
                continue;
            }
            return parse_body(kind, flags, body, begin, bad).map(Some);
        }
    }
}

#[inline]
fn parse_body(
    kind: u8,
    flags: u8,
    body: &[u8],
    begin: usize,
    bad: Malformed,
) -> Result<Record<'_>, Malformed> {
    let need = |bytes: usize| if body.len() < bytes { Err(bad) } else { Ok(()) };
    Ok(match kind {
        MESSAGE => parse_message(flags, body, begin, bad)?,
        FRAGMENT => parse_fragment(flags, body, begin, bad)?,
        EDGE_END => {
            need(16)?;
            Record::EdgeEnd {
                key: EdgeKey::parse(flags, body),
                sequence: u32_at(body, 8),
                control: u32_at(body, 12),
            }
        }
        EDGE_FORGOTTEN => {
            need(8)?;
            Record::EdgeForgotten {
                key: EdgeKey::parse(flags, body),
            }
        }
        REFUSED => {
            need(16)?;
            Record::Refused {
                source: u32_at(body, 0),
                target: u32_at(body, 4),
                sequence: u32_at(body, 8),
                reason: RefusedReason::from_code(u32_at(body, 12))?,
            }
        }
        LANES => Record::Lanes(LaneList::parse(body)?),
        LANE_ACK => Record::LaneAck(LaneAck::parse(flags, body)?),
        CREDIT => {
            need(16)?;
            Record::Credit {
                key: EdgeKey::parse(flags, body),
                limit: u64_at(body, 8),
            }
        }
        CREDIT_REQUEST => {
            need(20)?;
            Record::CreditRequest {
                key: EdgeKey::parse(flags, body),
                request: CreditRequest::parse(body),
            }
        }
        WINDOW => {
            need(4)?;
            Record::Window {
                packets: u32_at(body, 0),
            }
        }
        // The bytes after the token only pad the packet to its length.
        PROBE => {
            need(8)?;
            Record::Probe {
                lane: flags,
                token: u64_at(body, 0),
            }
        }
        ECHO => {
            need(10)?;
            Record::Echo {
                lane: flags,
                token: u64_at(body, 0),
                length: u16_at(body, 8),
            }
        }
        BACKLOG => {
            need(4)?;
            let end = u32_at(body, 0);
            Record::Backlog { end }
        }
        _ => return Err(bad),
    })
}

#[inline]
fn parse_message(
    flags: u8,
    body: &[u8],
    begin: usize,
    bad: Malformed,
) -> Result<Record<'_>, Malformed> {
    let operation = is_operation(flags)?;
    let head = operation_bytes(operation);
    if body.len() < 12 + head {
        return Err(bad);
    }
    let payload = begin + 12..begin + body.len();
    Ok(Record::Message {
        key: EdgeKey::parse(flags, body),
        sequence: u32_at(body, 8),
        offset: 0,
        total: (payload.len() - head) as u64,
        unreliable: flags & FLAG_UNRELIABLE != 0,
        operation,
        payload,
    })
}

#[inline]
fn parse_fragment(
    flags: u8,
    body: &[u8],
    begin: usize,
    bad: Malformed,
) -> Result<Record<'_>, Malformed> {
    let operation = is_operation(flags)?;
    let head = operation_bytes(operation);
    if body.len() < 28 + head {
        return Err(bad);
    }
    let payload = begin + 28..begin + body.len();
    let offset = u64_at(body, 12);
    let total = u64_at(body, 20);
    let length = (payload.len() - head) as u64;
    match offset.checked_add(length) {
        Some(end) if end <= total && length > 0 => {}
        _ => return Err(Malformed::BadField("fragment")),
    }
    Ok(Record::Message {
        key: EdgeKey::parse(flags, body),
        sequence: u32_at(body, 8),
        offset,
        total,
        unreliable: flags & FLAG_UNRELIABLE != 0,
        operation,
        payload,
    })
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match self.parse_next() {
            Ok(record) => record.map(Ok),
            Err(error) => {
                self.at = self.bytes.len();
                Some(Err(error))
            }
        }
    }
}

fn prefix(bytes: &mut [u8], kind: u8, flags: u8, size: usize) {
    bytes[0] = kind;
    bytes[1] = flags;
    let size = u16::try_from(size).expect("a record fits its packet");
    put(bytes, 2, &size.to_le_bytes());
}

fn message_flags(unreliable: bool, operation: bool) -> u8 {
    (u8::from(unreliable) * FLAG_UNRELIABLE) | (u8::from(operation) * FLAG_OPERATION)
}

/// True if the flags are those of an operation, which is never unreliable.
#[inline]
fn is_operation(flags: u8) -> Result<bool, Malformed> {
    match flags & (FLAG_UNRELIABLE | FLAG_OPERATION) {
        FLAG_OPERATION => Ok(true),
        0 | FLAG_UNRELIABLE => Ok(false),
        _ => Err(Malformed::BadField("flags of a message")),
    }
}

/// Bytes of a payload that are not data.
#[inline]
pub(crate) fn operation_bytes(operation: bool) -> usize {
    match operation {
        true => OPERATION_BYTES,
        false => 0,
    }
}

/// Writes the prefix and fields of a whole message with a payload of `length` bytes. The payload
/// follows at [`MESSAGE_BYTES`]; that of an operation begins with its head.
///
/// # Panics
/// If `bytes` is too short, or `length` does not fit a packet.
#[inline]
pub fn emit_message(
    bytes: &mut [u8],
    key: EdgeKey,
    sequence: u32,
    length: usize,
    unreliable: bool,
    operation: bool,
) {
    let bytes = &mut bytes[..MESSAGE_BYTES];
    prefix(
        bytes,
        MESSAGE,
        message_flags(unreliable, operation) | key.flags(),
        MESSAGE_BYTES - PREFIX_BYTES + length,
    );
    key.emit(bytes);
    put(bytes, 12, &sequence.to_le_bytes());
}

/// The fields of a piece of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FragmentHead {
    /// Key of the edge.
    pub key: EdgeKey,
    /// Number of the message on its edge, low 32 bits.
    pub sequence: u32,
    /// Position of the piece in the message, or in an operation's data.
    pub offset: u64,
    /// Bytes of the whole message, or of an operation's data.
    pub total: u64,
    /// It is not retransmitted.
    pub unreliable: bool,
    /// It is an operation on memory: the payload begins with its [head](super::Operation).
    pub operation: bool,
}

/// Writes the prefix and fields of a piece of a message. Its payload of `length` bytes, including
/// the head of an operation, follows at [`FRAGMENT_BYTES`].
///
/// # Panics
/// If `bytes` is too short, or `length` does not fit a packet.
pub fn emit_fragment(bytes: &mut [u8], head: FragmentHead, length: usize) {
    let bytes = &mut bytes[..FRAGMENT_BYTES];
    prefix(
        bytes,
        FRAGMENT,
        message_flags(head.unreliable, head.operation) | head.key.flags(),
        FRAGMENT_BYTES - PREFIX_BYTES + length,
    );
    head.key.emit(bytes);
    put(bytes, 12, &head.sequence.to_le_bytes());
    put(bytes, 16, &head.offset.to_le_bytes());
    put(bytes, 24, &head.total.to_le_bytes());
}

/// Writes the end of an edge. Returns [`EDGE_END_BYTES`].
pub fn emit_edge_end(bytes: &mut [u8], key: EdgeKey, sequence: u32, control: u32) -> usize {
    prefix(bytes, EDGE_END, key.flags(), EDGE_END_BYTES - PREFIX_BYTES);
    key.emit(bytes);
    put(bytes, 12, &sequence.to_le_bytes());
    put(bytes, 16, &control.to_le_bytes());
    EDGE_END_BYTES
}

/// Writes that an edge is forgotten. Returns [`EDGE_FORGOTTEN_BYTES`].
pub fn emit_edge_forgotten(bytes: &mut [u8], key: EdgeKey) -> usize {
    let size = EDGE_FORGOTTEN_BYTES - PREFIX_BYTES;
    prefix(bytes, EDGE_FORGOTTEN, key.flags(), size);
    key.emit(bytes);
    EDGE_FORGOTTEN_BYTES
}

/// Writes a refusal. Returns [`REFUSED_BYTES`].
pub fn emit_refused(
    bytes: &mut [u8],
    (source, target): (u32, u32),
    sequence: u32,
    reason: RefusedReason,
) -> usize {
    prefix(bytes, REFUSED, 0, REFUSED_BYTES - PREFIX_BYTES);
    put(bytes, 4, &source.to_le_bytes());
    put(bytes, 8, &target.to_le_bytes());
    put(bytes, 12, &sequence.to_le_bytes());
    put(bytes, 16, &reason.code().to_le_bytes());
    REFUSED_BYTES
}

/// Writes the arrivals of a lane with as many of `ranges` as fit. Returns the length, or zero if
/// not even the fixed part fits.
pub fn emit_lane_ack(
    bytes: &mut [u8],
    lane: u8,
    (next, top): (u32, u32),
    ranges: &[Range],
) -> usize {
    let mut count = ranges.len().min(super::MAX_RANGES);
    while PREFIX_BYTES + LaneAck::body_bytes(count) > bytes.len() {
        if count == 0 {
            return 0;
        }
        count -= 1;
    }
    // Ranges that do not fit are neither missing nor acknowledged: `top` ends before them.
    let top = ranges.get(count).map_or(top, |cut| cut.start);
    let size = LaneAck::body_bytes(count);
    prefix(bytes, LANE_ACK, lane, size);
    LaneAck::emit(
        &mut bytes[PREFIX_BYTES..],
        next,
        top,
        ranges[..count].iter().copied(),
    );
    PREFIX_BYTES + size
}

/// Writes a credit. Returns [`CREDIT_BYTES`].
pub fn emit_credit(bytes: &mut [u8], key: EdgeKey, limit: u64) -> usize {
    prefix(bytes, CREDIT, key.flags(), CREDIT_BYTES - PREFIX_BYTES);
    key.emit(bytes);
    put(bytes, 12, &limit.to_le_bytes());
    CREDIT_BYTES
}

/// Writes a credit request. Returns [`CREDIT_REQUEST_BYTES`].
pub fn emit_credit_request(bytes: &mut [u8], key: EdgeKey, request: CreditRequest) -> usize {
    let size = CREDIT_REQUEST_BYTES - PREFIX_BYTES;
    prefix(bytes, CREDIT_REQUEST, key.flags(), size);
    key.emit(bytes);
    put(bytes, 12, &request.need.to_le_bytes());
    put(bytes, 20, &request.message.to_le_bytes());
    CREDIT_REQUEST_BYTES
}

/// Writes a window. Returns its length.
pub fn emit_window(bytes: &mut [u8], packets: u32) -> usize {
    prefix(bytes, WINDOW, 0, 4);
    put(bytes, 4, &packets.to_le_bytes());
    8
}

/// Writes a backlog. Returns its length.
pub fn emit_backlog(bytes: &mut [u8], end: u32) -> usize {
    prefix(bytes, BACKLOG, 0, 4);
    put(bytes, 4, &end.to_le_bytes());
    8
}

/// Writes a list of up to [`MAX_LANES`] lanes. Returns its length.
///
/// # Panics
/// When `bytes` is shorter than [`LANES_BYTES`].
pub fn emit_lanes(bytes: &mut [u8], serial: u32, lanes: &[LaneAddress]) -> usize {
    let lanes = &lanes[..lanes.len().min(MAX_LANES)];
    let end = PREFIX_BYTES + list_bytes(lanes.len());
    prefix(bytes, LANES, 0, end - PREFIX_BYTES);
    emit_list(&mut bytes[PREFIX_BYTES..end], serial, lanes);
    end
}

/// Fills `bytes` with a probe of a lane, up to the longest possible record. Returns its length.
///
/// # Panics
/// If there are fewer than [`PROBE_BYTES`].
pub fn emit_probe(bytes: &mut [u8], lane: u8, token: u64) -> usize {
    let length = bytes.len().min(PREFIX_BYTES + usize::from(u16::MAX));
    bytes[..length].fill(0);
    prefix(bytes, PROBE, lane, length - PREFIX_BYTES);
    put(bytes, PREFIX_BYTES, &token.to_le_bytes());
    length
}

/// Writes an echo. Returns [`ECHO_BYTES`].
pub fn emit_echo(bytes: &mut [u8], lane: u8, token: u64, length: u16) -> usize {
    prefix(bytes, ECHO, lane, ECHO_BYTES - PREFIX_BYTES);
    put(bytes, 4, &token.to_le_bytes());
    put(bytes, 12, &length.to_le_bytes());
    ECHO_BYTES
}
