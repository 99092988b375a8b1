//! What a packet carries: records, each with a four-byte prefix. Spec §4.

use core::ops::Range as Bytes;

use super::Malformed;
use super::ack::{LaneAck, Range};
use super::cursor::{put, u16_at, u32_at, u64_at};
use super::header::HEADER_BYTES;
use super::operation::OPERATION_BYTES;

pub(super) const PREFIX_BYTES: usize = 4;
/// Bytes before the payload of a whole message.
pub const MESSAGE_BYTES: usize = 16;
/// Bytes before the payload of a message fragment.
pub const FRAGMENT_BYTES: usize = 32;
/// Bytes of a credit.
pub const CREDIT_BYTES: usize = 20;
/// Bytes of a wish for credit.
pub const CREDIT_REQUEST_BYTES: usize = 24;
/// Bytes of a refusal.
pub const REFUSED_BYTES: usize = 20;
/// Bytes of an edge's end.
pub const EDGE_END_BYTES: usize = 20;
/// Bytes of the news that an edge is forgotten.
pub const EDGE_FORGOTTEN_BYTES: usize = 12;
/// Bytes of the shortest probe.
pub const PROBE_BYTES: usize = 12;
/// Bytes of an echo.
pub const ECHO_BYTES: usize = 14;

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
/// Records of this range may be skipped by who doesn't know them.
const IGNORABLE: u8 = 0x80;

const FLAG_UNRELIABLE: u8 = 1;
const FLAG_OPERATION: u8 = 2;
/// The life of the edge stands above the flags.
const LIFE_SHIFT: u32 = 2;

/// One life of an edge of a session: its endpoints, and a number that tells a packet of
/// an earlier life from one of this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EdgeKey {
    /// Sending endpoint.
    pub source: u32,
    /// Receiving endpoint.
    pub target: u32,
    /// Which life, below [`EdgeKey::LIVES`].
    pub life: u8,
}

impl EdgeKey {
    /// Lives are counted modulo this.
    pub const LIVES: u8 = 64;

    /// Both endpoints, source first.
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

    /// The key of a reliable message to an endpoint, if these are the flags of one.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusedReason {
    /// No such endpoint in that process.
    NoEndpoint,
    /// The endpoint was closed.
    Closed,
    /// Longer than the receiver takes.
    TooLong,
    /// The receiver has as many edges as it can keep.
    TooManyEdges,
    /// More than the receiver had granted: the sender broke a rule.
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

/// One record, parsed. `payload` is a range of bytes of the packet.
#[derive(Clone, Debug)]
pub enum Record<'a> {
    /// A piece of a message or of an operation, or all of it.
    Message {
        /// The edge.
        key: EdgeKey,
        /// Number of the message on its edge, low 32 bits.
        sequence: u32,
        /// Where the payload belongs in the message.
        offset: u64,
        /// Bytes of the whole message, or of an operation's data.
        total: u64,
        /// Sent without repeats.
        unreliable: bool,
        /// An operation on memory: the payload begins with its [head](super::Operation).
        operation: bool,
        /// Where the payload lies in the packet.
        payload: Bytes<usize>,
    },
    /// The source endpoint sends nothing more on this edge.
    EdgeEnd {
        /// The edge.
        key: EdgeKey,
        /// The number after the last message's.
        sequence: u32,
        /// Wishes in control packets below this number may be of edges that have ended.
        control: u32,
    },
    /// An edge that ended is forgotten: its endpoints may be used again.
    EdgeForgotten {
        /// The edge (ours).
        key: EdgeKey,
    },
    /// A message of ours was not accepted.
    Refused {
        /// Sending endpoint (ours).
        source: u32,
        /// Receiving endpoint.
        target: u32,
        /// Which message.
        sequence: u32,
        /// Why.
        reason: RefusedReason,
    },
    /// What has arrived on a lane.
    LaneAck(LaneAck<'a>),
    /// How far an edge may send.
    Credit {
        /// The edge.
        key: EdgeKey,
        /// Cumulative charged bytes allowed.
        limit: u64,
    },
    /// An edge waits for credit.
    CreditRequest {
        /// The edge.
        key: EdgeKey,
        /// What for.
        wish: CreditRequest,
    },
    /// Packets that the receiver of this record may have in flight.
    Window {
        /// Packets.
        packets: u32,
    },
    /// Does this arrive? Asked of one lane, to be answered the way it came.
    Probe {
        /// The lane it was sent on.
        lane: u8,
        /// What only a receiver of the probe can know.
        token: u64,
    },
    /// The answer: a probe of that lane has arrived.
    Echo {
        /// The lane of the probe.
        lane: u8,
        /// The token of the probe.
        token: u64,
        /// Length of the packet that brought it, trailer included.
        length: u16,
    },
    /// The sender of this record may not send all that it has.
    Backlog {
        /// The unit number after the last that waits.
        end: u32,
    },
}

impl Record<'_> {
    /// True for records that only make sense inside a unit. Spec §4.1.
    #[must_use]
    pub fn is_sequenced(&self) -> bool {
        match self {
            Record::Message { unreliable, .. } => !unreliable,
            Record::EdgeEnd { .. } | Record::EdgeForgotten { .. } | Record::Refused { .. } => true,
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

/// What an edge waits for: that its next message may be charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CreditRequest {
    /// Cumulative bytes charged once that message is.
    pub need: u64,
    /// What the message itself is charged. The rest of `need` was charged before, though
    /// the messages may still be on their way.
    pub message: u32,
}

/// Walks the records of a packet; stops after the first malformed one.
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

    /// True after the last byte.
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
            if kind & IGNORABLE != 0 {
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
        MESSAGE => {
            let operation = is_operation(flags)?;
            let head = operation_bytes(operation);
            need(12 + head)?;
            let payload = begin + 12..begin + body.len();
            Record::Message {
                key: EdgeKey::parse(flags, body),
                sequence: u32_at(body, 8),
                offset: 0,
                total: (payload.len() - head) as u64,
                unreliable: flags & FLAG_UNRELIABLE != 0,
                operation,
                payload,
            }
        }
        FRAGMENT => {
            let operation = is_operation(flags)?;
            let head = operation_bytes(operation);
            need(28 + head)?;
            let payload = begin + 28..begin + body.len();
            let offset = u64_at(body, 12);
            let total = u64_at(body, 20);
            let length = (payload.len() - head) as u64;
            match offset.checked_add(length) {
                Some(end) if end <= total && length > 0 => {}
                _ => return Err(Malformed::BadField("fragment")),
            }
            Record::Message {
                key: EdgeKey::parse(flags, body),
                sequence: u32_at(body, 8),
                offset,
                total,
                unreliable: flags & FLAG_UNRELIABLE != 0,
                operation,
                payload,
            }
        }
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
                wish: CreditRequest {
                    need: u64_at(body, 8),
                    message: u32_at(body, 16),
                },
            }
        }
        WINDOW => {
            need(4)?;
            Record::Window {
                packets: u32_at(body, 0),
            }
        }
        // What follows the token only makes the packet as long as it shall be.
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
            Record::Backlog {
                end: u32_at(body, 0),
            }
        }
        _ => return Err(bad),
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

/// Whether a message's flags are those of an operation, which is never unreliable.
#[inline]
fn is_operation(flags: u8) -> Result<bool, Malformed> {
    match flags & (FLAG_UNRELIABLE | FLAG_OPERATION) {
        FLAG_OPERATION => Ok(true),
        0 | FLAG_UNRELIABLE => Ok(false),
        _ => Err(Malformed::BadField("flags of a message")),
    }
}

/// Bytes of a payload that are no data.
#[inline]
pub(crate) fn operation_bytes(operation: bool) -> usize {
    match operation {
        true => OPERATION_BYTES,
        false => 0,
    }
}

/// Writes the head of a whole message with a payload of `length` bytes, which follows at
/// [`MESSAGE_BYTES`]; that of an operation begins with its own head.
///
/// # Panics
/// When `bytes` is shorter, or `length` does not fit a packet.
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

/// Writes the head of a piece at `offset` of a message of `total` bytes; its payload of
/// `length` bytes follows at [`FRAGMENT_BYTES`], and that of an operation begins with its own
/// head, which counts for `length` alone.
///
/// # Panics
/// When `bytes` is shorter, or `length` does not fit a packet.
pub fn emit_fragment(
    bytes: &mut [u8],
    key: EdgeKey,
    sequence: u32,
    (offset, total): (u64, u64),
    length: usize,
    unreliable: bool,
    operation: bool,
) {
    let bytes = &mut bytes[..FRAGMENT_BYTES];
    prefix(
        bytes,
        FRAGMENT,
        message_flags(unreliable, operation) | key.flags(),
        FRAGMENT_BYTES - PREFIX_BYTES + length,
    );
    key.emit(bytes);
    put(bytes, 12, &sequence.to_le_bytes());
    put(bytes, 16, &offset.to_le_bytes());
    put(bytes, 24, &total.to_le_bytes());
}

/// Writes an edge's end; returns its bytes, [`EDGE_END_BYTES`].
pub fn emit_edge_end(bytes: &mut [u8], key: EdgeKey, sequence: u32, control: u32) -> usize {
    prefix(bytes, EDGE_END, key.flags(), EDGE_END_BYTES - PREFIX_BYTES);
    key.emit(bytes);
    put(bytes, 12, &sequence.to_le_bytes());
    put(bytes, 16, &control.to_le_bytes());
    EDGE_END_BYTES
}

/// Writes that an edge is forgotten; returns its bytes, [`EDGE_FORGOTTEN_BYTES`].
pub fn emit_edge_forgotten(bytes: &mut [u8], key: EdgeKey) -> usize {
    let size = EDGE_FORGOTTEN_BYTES - PREFIX_BYTES;
    prefix(bytes, EDGE_FORGOTTEN, key.flags(), size);
    key.emit(bytes);
    EDGE_FORGOTTEN_BYTES
}

/// Writes a refusal; returns its bytes, [`REFUSED_BYTES`].
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

/// Writes the arrivals of a lane with as many of `ranges` as fit; returns its
/// bytes, or zero when not even the fixed part fits.
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
    // What is cut off is neither told missing nor told arrived: `top` ends there.
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

/// Writes a credit; returns its bytes, [`CREDIT_BYTES`].
pub fn emit_credit(bytes: &mut [u8], key: EdgeKey, limit: u64) -> usize {
    prefix(bytes, CREDIT, key.flags(), CREDIT_BYTES - PREFIX_BYTES);
    key.emit(bytes);
    put(bytes, 12, &limit.to_le_bytes());
    CREDIT_BYTES
}

/// Writes a wish for credit; returns its bytes, [`CREDIT_REQUEST_BYTES`].
pub fn emit_credit_request(bytes: &mut [u8], key: EdgeKey, wish: CreditRequest) -> usize {
    let size = CREDIT_REQUEST_BYTES - PREFIX_BYTES;
    prefix(bytes, CREDIT_REQUEST, key.flags(), size);
    key.emit(bytes);
    put(bytes, 12, &wish.need.to_le_bytes());
    put(bytes, 20, &wish.message.to_le_bytes());
    CREDIT_REQUEST_BYTES
}

/// Writes a window; returns its bytes.
pub fn emit_window(bytes: &mut [u8], packets: u32) -> usize {
    prefix(bytes, WINDOW, 0, 4);
    put(bytes, 4, &packets.to_le_bytes());
    8
}

/// Writes how much waits; returns its bytes.
pub fn emit_backlog(bytes: &mut [u8], end: u32) -> usize {
    prefix(bytes, BACKLOG, 0, 4);
    put(bytes, 4, &end.to_le_bytes());
    8
}

/// Fills all of `bytes` with a probe of a lane; returns them, at most what a record's
/// size can tell.
///
/// # Panics
/// When there are fewer than [`PROBE_BYTES`].
pub fn emit_probe(bytes: &mut [u8], lane: u8, token: u64) -> usize {
    let length = bytes.len().min(PREFIX_BYTES + usize::from(u16::MAX));
    bytes[..length].fill(0);
    prefix(bytes, PROBE, lane, length - PREFIX_BYTES);
    put(bytes, PREFIX_BYTES, &token.to_le_bytes());
    length
}

/// Writes the answer to a probe; returns its bytes, [`ECHO_BYTES`].
pub fn emit_echo(bytes: &mut [u8], lane: u8, token: u64, length: u16) -> usize {
    prefix(bytes, ECHO, lane, ECHO_BYTES - PREFIX_BYTES);
    put(bytes, 4, &token.to_le_bytes());
    put(bytes, 12, &length.to_le_bytes());
    ECHO_BYTES
}
