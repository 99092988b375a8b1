//! The only place that knows a packet's bytes. Spec §2 to §4.
//!
//! Everything is parsed once, here, into types that the rest trusts; the same
//! types emit and print themselves, so capture, viewer and fuzzer use them too.

mod ack;
mod address;
mod control;
mod cursor;
mod group;
mod header;
mod operation;
mod pipe;
mod record;
mod run;

pub use ack::{LaneAck, MAX_RANGES, Range};
pub use address::Address;
pub use control::{
    BYE_BYTES, Bye, CHALLENGE_BYTES, COUNTER_BYTES, Challenge, HELLO_FIXED_BYTES, Hello,
    LANE_BYTES, LaneAddress, MAX_LANES, RESET_BYTES, RESET_ECHO_BYTES, Reset, ResetReason,
    SHARE_BYTES, SUM_BYTES, TAG_BYTES, Trailer, Trailers,
};
pub use group::{
    ANY_LENGTH, GROUP_HEAD_BYTES, GroupCall, GroupEnding, GroupHead, GroupKind, GroupOperation,
    members_from_bytes, members_to_bytes,
};
pub use header::{CONTROL_LANE, Flags, HEADER_BYTES, Header, Kind, Part, VERSION};
pub use operation::{OPERATION_BYTES, Operation, OperationKind, Outcome};
pub use pipe::{
    GREETING_BYTES, Greeting, PIPE_VERSION, PIPE_WORDS, PipeKind, PipeRecord, PipeTag, pipe_words,
};
pub(crate) use pipe::{ends_to_word, key_from_word, reason_from_extra};
pub(crate) use record::operation_bytes;
pub use record::{
    CREDIT_BYTES, CREDIT_REQUEST_BYTES, CreditRequest, ECHO_BYTES, EDGE_END_BYTES,
    EDGE_FORGOTTEN_BYTES, EdgeKey, FRAGMENT_BYTES, MESSAGE_BYTES, PROBE_BYTES, REFUSED_BYTES,
    Record, Records, RefusedReason, emit_backlog, emit_credit, emit_credit_request, emit_echo,
    emit_edge_end, emit_edge_forgotten, emit_fragment, emit_lane_ack, emit_message, emit_probe,
    emit_refused, emit_window,
};
pub use run::{Fragment, MessageRun, Payloads};

/// Bytes of the CRC32C trailer.
pub const CRC_BYTES: usize = 4;
/// Bytes of the proof that stands before the CRC32C of a proven packet.
pub const PROOF_BYTES: usize = 16;

/// Why bytes are not a packet, or not one for this machine. Each is counted by reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Malformed {
    /// Shorter than a header, or than the header says.
    Truncated {
        /// Bytes needed.
        needed: usize,
        /// Bytes there.
        found: usize,
    },
    /// The header's length is smaller than header and trailer.
    BadLength(u16),
    /// The version nibble is not ours.
    BadVersion(u8),
    /// An unknown packet kind.
    BadKind(u8),
    /// A lane that cannot exist.
    BadLane(u8),
    /// A record that ends outside its packet.
    BadRecord {
        /// The record's kind byte.
        kind: u8,
        /// Where in the packet it begins.
        at: usize,
    },
    /// A field holds a value that the specification excludes.
    BadField(&'static str),
}

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Malformed::Truncated { needed, found } => {
                write!(f, "truncated: {needed} bytes needed, {found} there")
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
                    "record of kind {kind:#04x} at byte {at} leaves its packet"
                )
            }
            Malformed::BadField(name) => write!(f, "field {name} holds an excluded value"),
        }
    }
}

impl core::error::Error for Malformed {}

/// A packet whose header is sound, without its trailer.
///
/// The header is read from the packet's bytes wherever it is needed: a copy of its fields on
/// the stack, written and read in pieces of different size, would stall the processor until
/// the bytes of the packet before have been written.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    head: &'a [u8; HEADER_BYTES],
    bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Checks the header and the length; `trailer_bytes` is what the
    /// session agreed on (handshake packets: [`CRC_BYTES`]).
    ///
    /// # Errors
    /// [`Malformed`], with what is wrong. Spec §2.
    pub fn parse(bytes: &'a [u8], trailer_bytes: usize) -> Result<Packet<'a>, Malformed> {
        Packet::checked(bytes)?.without_trailer(trailer_bytes)
    }

    /// All bytes that the header speaks of.
    ///
    /// # Errors
    /// [`Malformed`], with what is wrong. Spec §2.
    #[inline]
    pub(crate) fn checked(bytes: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        let head = Header::check(bytes)?;
        Ok(Packet { head, bytes })
    }

    /// The same without the trailer and what lies behind it.
    ///
    /// # Errors
    /// [`Malformed`], with what is wrong. Spec §2.
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

    /// The same packet where its bytes lie decrypted.
    pub(crate) fn with_bytes<'b>(&self, bytes: &'b [u8]) -> Packet<'b> {
        debug_assert_eq!(bytes.len(), self.bytes.len(), "the same packet");
        let head = bytes.first_chunk().unwrap_or(&[0; HEADER_BYTES]);
        Packet { head, bytes }
    }

    /// The header.
    #[inline]
    #[must_use]
    pub fn header(&self) -> Header {
        Header::read(self.head)
    }

    /// The first of the packets that lie one after the other in `bytes`, and what lies behind it.
    #[must_use]
    #[inline]
    pub fn split_first(bytes: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        if bytes.len() < HEADER_BYTES {
            return (bytes, &[]);
        }
        let length = usize::from(cursor::u16_at(bytes, 2)).max(HEADER_BYTES);
        bytes.split_at_checked(length).unwrap_or((bytes, &[]))
    }

    /// Header and records without the trailer: what the trailer covers.
    #[must_use]
    pub fn covered(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bytes after the header, for handshake bodies.
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        &self.bytes[HEADER_BYTES..]
    }

    /// The run of messages that is all it carries, if so.
    #[inline]
    #[must_use]
    pub fn run(&self) -> Option<MessageRun> {
        MessageRun::parse(self.bytes)
    }

    /// The piece of a message that is all it carries, if so.
    #[inline]
    #[must_use]
    pub fn fragment(&self) -> Option<Fragment> {
        Fragment::parse(self.bytes)
    }

    /// The records, in order; each parsed as it is reached.
    #[must_use]
    pub fn records(&self) -> Records<'a> {
        Records::new(self.bytes)
    }
}
