//! The wire format of packets. No other module accesses their bytes. Spec §2 to §4.
//!
//! Packets are parsed once, into types that the other modules trust. The same types emit and print
//! packets, and are also used by capture, trace viewer and fuzzers.

mod ack;
mod address;
mod control;
mod cursor;
mod group;
mod header;
mod lanes;
mod operation;
mod pipe;
mod record;
mod run;
mod train;

pub use ack::{LaneAck, MAX_RANGES, Range};
pub use address::Address;
pub use control::{
    BYE_BYTES, Bye, CHALLENGE_BYTES, COUNTER_BYTES, Challenge, HELLO_FIXED_BYTES, Hello,
    LANE_BYTES, LaneAddress, RESET_BYTES, RESET_ECHO_BYTES, Reset, ResetReason, SHARE_BYTES,
    SUM_BYTES, TAG_BYTES, Trailer, Trailers,
};
pub use group::{
    ANY_LENGTH, GROUP_HEAD_BYTES, GroupCall, GroupEnding, GroupHead, GroupKind, GroupOperation,
    members_from_bytes, members_to_bytes,
};
pub use header::{
    CONTROL_LANE, Flags, HEADER_BYTES, Header, Kind, MAX_LANES, MIN_PACKET_BYTES, Part, VERSION,
};
pub use lanes::LaneList;
pub use operation::{OPERATION_BYTES, Operation, OperationKind, Outcome};
pub use pipe::{
    GREETING_BYTES, Greeting, PIPE_VERSION, PIPE_WORDS, PipeKind, PipeRecord, PipeTag, pipe_words,
};
pub(crate) use pipe::{ends_to_word, key_from_word, reason_from_extra};
pub(crate) use record::operation_bytes;
pub use record::{
    CREDIT_BYTES, CREDIT_REQUEST_BYTES, CreditRequest, ECHO_BYTES, EDGE_END_BYTES,
    EDGE_FORGOTTEN_BYTES, EdgeKey, FRAGMENT_BYTES, FragmentHead, LANES_BYTES, MESSAGE_BYTES,
    PROBE_BYTES, REFUSED_BYTES, Record, Records, RefusedReason, emit_backlog, emit_credit,
    emit_credit_request, emit_echo, emit_edge_end, emit_edge_forgotten, emit_fragment,
    emit_lane_ack, emit_lanes, emit_message, emit_probe, emit_refused, emit_window,
};
pub use run::{Fragment, MessageRun, Payloads};
pub use train::TRAIN_HEAD_BYTES;
pub(crate) use train::{TrainHead, TrainHeader};

/// Bytes of the CRC32C trailer.
pub const CRC_BYTES: usize = 4;
/// Bytes of the proof before the CRC32C of a proven packet.
pub const PROOF_BYTES: usize = 16;

/// Why bytes are not a valid packet. Each reason is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Malformed {
    /// Shorter than a header, or than the header's length.
    Truncated {
        /// Number of bytes needed.
        needed: usize,
        /// Number of bytes available.
        found: usize,
    },
    /// The header's length is smaller than header and trailer.
    BadLength(u16),
    /// The version is not supported.
    BadVersion(u8),
    /// The packet kind is unknown.
    BadKind(u8),
    /// The lane does not exist.
    BadLane(u8),
    /// A record that ends outside its packet.
    BadRecord {
        /// Kind of the record.
        kind: u8,
        /// Its position in the packet.
        at: usize,
    },
    /// A field has a value that the specification excludes.
    BadField(&'static str),
}

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Malformed::Truncated { needed, found } => {
                write!(f, "truncated: {needed} bytes needed, {found} available")
            }
            Malformed::BadLength(length) => write!(f, "impossible length {length}"),
            Malformed::BadVersion(version) => {
                write!(f, "version {version}, this is version {VERSION}")
            }
            Malformed::BadKind(kind) => write!(f, "unknown packet kind {kind}"),
            Malformed::BadLane(lane) => write!(f, "impossible lane {lane}"),
            Malformed::BadRecord { kind, at } => {
                write!(
                    f,
                    "record of kind {kind:#04x} at byte {at} exceeds its packet"
                )
            }
            Malformed::BadField(name) => write!(f, "field {name} has an invalid value"),
        }
    }
}

impl core::error::Error for Malformed {}

/// A packet with a valid header, without its trailer.
///
/// The header is read from the packet's bytes each time. A copy of its fields on the stack, written
/// and read with different widths, would stall the processor until the stores of the previous
/// packet are complete (store forwarding).
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    head: &'a [u8; HEADER_BYTES],
    bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Checks header and length. `trailer_bytes` is the length of the session's trailer, or
    /// [`CRC_BYTES`] for handshake packets.
    ///
    /// # Errors
    /// [`Malformed`]. Spec §2.
    pub fn parse(bytes: &'a [u8], trailer_bytes: usize) -> Result<Packet<'a>, Malformed> {
        Packet::checked(bytes)?.without_trailer(trailer_bytes)
    }

    /// The bytes of the packet according to its header.
    ///
    /// # Errors
    /// [`Malformed`]. Spec §2.
    #[inline]
    pub(crate) fn checked(bytes: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        let head = Header::check(bytes)?;
        Ok(Packet { head, bytes })
    }

    /// The packet without its trailer and any bytes after it.
    ///
    /// # Errors
    /// [`Malformed`]. Spec §2.
    #[inline]
    pub(crate) fn without_trailer(self, trailer_bytes: usize) -> Result<Packet<'a>, Malformed> {
        let found = self.bytes.len();
        let needed = usize::from(self.header().length);
        if needed < HEADER_BYTES + trailer_bytes {
            return Err(Malformed::BadLength(self.header().length));
        }
        if found < needed {
            return Err(Malformed::Truncated { needed, found });
        }
        Ok(Packet {
            bytes: &self.bytes[..needed - trailer_bytes],
            ..self
        })
    }

    /// The same packet, whose decrypted bytes are elsewhere.
    pub(crate) fn with_bytes<'b>(&self, bytes: &'b [u8]) -> Packet<'b> {
        debug_assert_eq!(bytes.len(), self.bytes.len(), "the same packet");
        let head = bytes.first_chunk().unwrap_or(&[0; HEADER_BYTES]);
        Packet { head, bytes }
    }

    /// Returns the header.
    #[inline]
    #[must_use]
    pub fn header(&self) -> Header {
        Header::read(self.head)
    }

    /// Splits off the first of several consecutive packets.
    #[must_use]
    #[inline]
    pub fn split_first(bytes: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        if bytes.len() < HEADER_BYTES {
            return (bytes, &[]);
        }
        let length = usize::from(cursor::u16_at(bytes, 2)).max(HEADER_BYTES);
        bytes.split_at_checked(length).unwrap_or((bytes, &[]))
    }

    /// Header and records, which the trailer covers.
    #[must_use]
    pub fn covered(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bytes after the header, for handshake bodies.
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        &self.bytes[HEADER_BYTES..]
    }

    /// The run of messages, if the packet contains nothing else.
    #[inline]
    #[must_use]
    pub fn run(&self) -> Option<MessageRun> {
        MessageRun::parse(self.bytes)
    }

    /// True if its first record is a piece of a message.
    #[inline]
    pub(crate) fn begins_with_piece(&self) -> bool {
        self.bytes.get(HEADER_BYTES) == Some(&record::FRAGMENT)
    }

    /// The piece of a message, if the packet contains nothing else.
    #[inline]
    #[must_use]
    pub fn fragment(&self) -> Option<Fragment> {
        Fragment::parse(self.bytes)
    }

    /// The records in order. Each one is parsed when the iterator reaches it.
    #[must_use]
    pub fn records(&self) -> Records<'a> {
        Records::new(self.bytes)
    }
}
