//! The envelope of control messages: queries of directories, replies, announcements.
//!
//! ```text
//!  0 magic "DPC"  3 version(1) = 1   4 length(4), of all of it
//!  8 kind(1)      9 flags(1)        10 zero(2)
//! 12 from(4)     16 to(4)           20 nonce(8)
//! 28 body, in postcard's format, and zeros up to the length wanted
//!    MAC(16), if the flag AUTHENTICATED (1) is set, over everything before it
//!    CRC32C(4), over everything before it
//! ```
//!
//! With a cluster key every packet is authenticated, and packets without a valid MAC are dropped;
//! without a key no packet has a MAC. The MAC covers both nodes and the nonce, so a packet is valid
//! for one receiver only. A query has a random nonce that its reply repeats, so a recorded reply is
//! useless later. Messages that are not replies carry a sequence or time in their body.
//!
//! A message is a serde type with a number of its own:
//!
//! ```
//! use dipole_naming::address::NodeId;
//! use dipole_naming::envelope::{Authenticator, Header, Message};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Debug, PartialEq, Serialize, Deserialize)]
//! struct Greeting {
//!     text: String,
//! }
//!
//! impl Message for Greeting {
//!     const KIND: u8 = 200;
//!
//!     fn is_valid(&self) -> bool {
//!         self.text.len() < 80
//!     }
//! }
//!
//! let authenticator = Authenticator::new(None);
//! let header = Header { from: NodeId(1), to: NodeId(2), nonce: 7 };
//! let hello = Greeting { text: "hello".to_owned() };
//! let packet = authenticator.seal(header, &hello);
//! let opened = authenticator.open(&packet)?;
//! assert_eq!(opened.header, header);
//! assert_eq!(opened.read::<Greeting>()?, hello);
//! # Ok::<(), dipole_naming::envelope::EnvelopeError>(())
//! ```
//!
//! Kinds: 0 refusal (here), 1 query, 2 reply, 3 announcement ([`registry`](crate::registry)). Other
//! crates use kinds from 16 on.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::address::NodeId;
use crate::key::{ClusterKey, KeyMismatch, MAC_BYTES, MacKey};

const MAGIC: [u8; 3] = *b"DPC";
const VERSION: u8 = 1;
const HEADER_BYTES: usize = size_of::<WireHeader>();
const CRC_BYTES: usize = 4;
/// Maximum size of a packet without its body.
pub const MAX_OVERHEAD_BYTES: usize = HEADER_BYTES + MAC_BYTES + CRC_BYTES;
const AUTHENTICATED: u8 = 1;
/// Purpose for which the MAC key is derived from the cluster key.
const PURPOSE: &str = "dipole 2026 control";

/// The header as it is sent.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireHeader {
    magic: [u8; 3],
    version: u8,
    /// Length of the whole packet.
    length: U32,
    kind: u8,
    flags: u8,
    reserved: [u8; 2],
    from: U32,
    to: U32,
    nonce: U64,
}

const _: () = assert!(HEADER_BYTES == 28);

/// A message that can be sent in an envelope.
pub trait Message: Serialize + DeserializeOwned {
    /// The number of this message type.
    const KIND: u8;

    /// False for values that the format can express but no sender may send.
    fn is_valid(&self) -> bool {
        true
    }
}

/// Sender, receiver and nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Node of the sender; 0 if it has none.
    pub from: NodeId,
    /// Node of the receiver; 0 for any.
    pub to: NodeId,
    /// Random number of a query, repeated by the reply.
    pub nonce: u64,
}

/// Why a packet is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// It is shorter than an empty envelope, or does not have the length in its header.
    #[error("control packet truncated or extended to {found_bytes} bytes")]
    Length {
        /// Length of the packet in bytes.
        found_bytes: usize,
    },
    /// It does not begin with the magic bytes.
    #[error("not a control packet")]
    NoEnvelope,
    /// It has another version of this format.
    #[error("control packet of version {found}, expected version {VERSION}")]
    Version {
        /// Version in the packet.
        found: u8,
    },
    /// The checksum does not match.
    #[error("damaged control packet")]
    Checksum,
    /// A reserved bit is set.
    #[error("control packet with undefined flags")]
    Undefined,
    /// Its sender does not hold our cluster key, or holds one while we have none.
    #[error("control packet of another cluster")]
    Stranger,
    /// It is a message of another kind.
    #[error("unexpected message of kind {found}")]
    Kind {
        /// Message kind in the packet.
        found: u8,
    },
    /// The body is malformed.
    #[error("control packet with a malformed body")]
    Body,
}

/// Reply to a query from outside the cluster: it is not answered.
#[derive(Debug, Serialize, Deserialize)]
struct Refusal {
    /// True if the refusing node has a cluster key.
    has_key: bool,
}

impl Message for Refusal {
    const KIND: u8 = 0;
}

/// An intact packet from a member of our cluster.
#[derive(Clone, Copy, Debug)]
pub struct Opened<'a> {
    /// Header with sender and receiver.
    pub header: Header,
    /// Kind of the message.
    pub kind: u8,
    body: &'a [u8],
}

impl Opened<'_> {
    /// Decodes the message.
    ///
    /// # Errors [`EnvelopeError::Kind`] if it is of another kind, [`EnvelopeError::Body`] if it is
    /// malformed.
    pub fn read<M: Message>(&self) -> Result<M, EnvelopeError> {
        if self.kind != M::KIND {
            return Err(EnvelopeError::Kind { found: self.kind });
        }
        let (message, rest) =
            postcard::take_from_bytes::<M>(self.body).map_err(|_| EnvelopeError::Body)?;
        let is_padding = rest.iter().all(|byte| *byte == 0);
        match is_padding && message.is_valid() {
            true => Ok(message),
            false => Err(EnvelopeError::Body),
        }
    }
}

/// Seals packets as a member of a cluster and opens packets of other members. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Authenticator {
    key: Option<MacKey>,
}

impl Authenticator {
    /// For the cluster with this key, or for one without a key.
    #[must_use]
    pub fn new(key: Option<&ClusterKey>) -> Authenticator {
        Authenticator {
            key: key.map(|key| key.mac_key(PURPOSE)),
        }
    }

    /// Fingerprint of our key, for people to compare.
    #[must_use]
    pub fn fingerprint(&self) -> Option<String> {
        self.key.as_ref().map(MacKey::fingerprint)
    }

    /// Encodes and signs a packet.
    #[must_use]
    pub fn seal<M: Message>(&self, header: Header, message: &M) -> Vec<u8> {
        self.seal_to_length(header, message, 0)
    }

    /// Encodes a packet of at least `length_bytes`, padded with zeros after the body.
    #[must_use]
    pub fn seal_to_length<M: Message>(
        &self,
        header: Header,
        message: &M,
        length_bytes: usize,
    ) -> Vec<u8> {
        sealed(self.key.as_ref(), header, message, length_bytes)
    }

    /// Opens a packet of our cluster.
    ///
    /// # Errors [`EnvelopeError::Stranger`] if it belongs to another cluster, otherwise what is
    /// wrong with it.
    pub fn open<'a>(&self, packet: &'a [u8]) -> Result<Opened<'a>, EnvelopeError> {
        let raw = Raw::parse(packet)?;
        let is_ours = match (&self.key, raw.mac) {
            (None, None) => true,
            (Some(key), Some(mac)) => key.verify(raw.covered, mac),
            _ => false,
        };
        match is_ours {
            true => Ok(raw.opened),
            false => Err(EnvelopeError::Stranger),
        }
    }

    /// Refuses a query of this kind from another cluster: the keys differ. `None` if the packet
    /// is not such a query. The refusal is not longer than the query, and has no MAC, because its
    /// receiver could not verify one.
    #[must_use]
    pub fn refuse(&self, packet: &[u8], query_kind: u8, node: NodeId) -> Option<Vec<u8>> {
        let query = Raw::parse(packet).ok()?.opened;
        let header = Header {
            from: node,
            to: query.header.from,
            nonce: query.header.nonce,
        };
        let has_key = self.key.is_some();
        let refusal = sealed(None, header, &Refusal { has_key }, 0);
        (query.kind == query_kind && refusal.len() <= packet.len()).then_some(refusal)
    }

    /// How the keys differ, if this packet refuses the query with that nonce. Use it only to
    /// explain a missing reply: anyone can forge a refusal.
    #[must_use]
    pub fn refused(&self, packet: &[u8], nonce: u64) -> Option<KeyMismatch> {
        let raw = Raw::parse(packet).ok()?;
        let refusal: Refusal = raw.opened.read().ok()?;
        let (ours, theirs) = (self.key.is_some(), refusal.has_key);
        // Two nodes without a key have no reason to refuse.
        let is_sound = raw.mac.is_none() && raw.opened.header.nonce == nonce && (ours || theirs);
        is_sound.then(|| KeyMismatch::between(ours, theirs))
    }
}

/// Kind of an intact packet, from its header. The packet is not authenticated.
#[must_use]
pub fn kind_of(packet: &[u8]) -> Option<u8> {
    Some(Raw::parse(packet).ok()?.opened.kind)
}

fn sealed<M: Message>(
    key: Option<&MacKey>,
    header: Header,
    message: &M,
    length_bytes: usize,
) -> Vec<u8> {
    let trailer_bytes = CRC_BYTES + key.map_or(0, |_| MAC_BYTES);
    let mut front = WireHeader {
        magic: MAGIC,
        version: VERSION,
        length: U32::ZERO,
        kind: M::KIND,
        flags: key.map_or(0, |_| AUTHENTICATED),
        reserved: [0; 2],
        from: header.from.0.into(),
        to: header.to.0.into(),
        nonce: header.nonce.into(),
    };
    let mut packet = Vec::with_capacity(length_bytes.max(128));
    packet.extend(front.as_bytes());
    let mut packet =
        postcard::to_extend(message, packet).expect("messages hold nothing postcard cannot write");
    packet.resize(
        packet.len().max(length_bytes.saturating_sub(trailer_bytes)),
        0,
    );
    let length = u32::try_from(packet.len() + trailer_bytes).expect("shorter than 4 GiB");
    front.length = length.into();
    packet[..HEADER_BYTES].copy_from_slice(front.as_bytes());
    if let Some(key) = key {
        packet.extend(key.mac(&packet));
    }
    packet.extend(crc(&packet));
    packet
}

/// An intact packet that is not authenticated yet.
struct Raw<'a> {
    opened: Opened<'a>,
    /// Bytes covered by the MAC.
    covered: &'a [u8],
    mac: Option<&'a [u8]>,
}

impl Raw<'_> {
    fn parse(packet: &[u8]) -> Result<Raw<'_>, EnvelopeError> {
        let length = EnvelopeError::Length {
            found_bytes: packet.len(),
        };
        let (checked, sum) = packet.split_last_chunk::<CRC_BYTES>().ok_or(length)?;
        let (front, rest) = WireHeader::ref_from_prefix(checked).map_err(|_| length)?;
        if front.magic != MAGIC {
            return Err(EnvelopeError::NoEnvelope);
        }
        if front.version != VERSION {
            return Err(EnvelopeError::Version {
                found: front.version,
            });
        }
        if usize::try_from(front.length.get()) != Ok(packet.len()) {
            return Err(length);
        }
        if crc(checked) != *sum {
            return Err(EnvelopeError::Checksum);
        }
        if front.flags & !AUTHENTICATED != 0 || front.reserved != [0; 2] {
            return Err(EnvelopeError::Undefined);
        }
        let (body, mac) = match front.flags {
            0 => (rest, None),
            _ => {
                let (body, mac) = rest.split_last_chunk::<MAC_BYTES>().ok_or(length)?;
                (body, Some(&mac[..]))
            }
        };
        Ok(Raw {
            opened: Opened {
                header: Header {
                    from: NodeId(front.from.get()),
                    to: NodeId(front.to.get()),
                    nonce: front.nonce.get(),
                },
                kind: front.kind,
                body,
            },
            covered: &packet[..HEADER_BYTES + body.len()],
            mac,
        })
    }
}

fn crc(bytes: &[u8]) -> [u8; CRC_BYTES] {
    dipole_link::crc32c::crc32c(bytes).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::key::KEY_BYTES;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Note {
        text: String,
        numbers: Vec<u64>,
    }

    impl Message for Note {
        const KIND: u8 = 9;

        fn is_valid(&self) -> bool {
            self.text != "forbidden"
        }
    }

    const HEADER: Header = Header {
        from: NodeId(3),
        to: NodeId(0x0102_0304),
        nonce: 0x1122_3344_5566_7788,
    };

    fn with(byte: Option<u8>) -> Authenticator {
        let key = byte.map(|byte| ClusterKey::new([byte; KEY_BYTES]));
        Authenticator::new(key.as_ref())
    }

    fn note() -> Note {
        Note {
            text: "news".to_owned(),
            numbers: vec![1, u64::MAX],
        }
    }

    #[test]
    fn members_read_what_members_write_and_refuse_all_others() {
        for ours in [None, Some(1), Some(2)] {
            for theirs in [None, Some(1), Some(2)] {
                let packet = with(theirs).seal(HEADER, &note());
                match with(ours).open(&packet) {
                    Ok(opened) if ours == theirs => {
                        assert_eq!(opened.header, HEADER);
                        assert_eq!(opened.read::<Note>(), Ok(note()));
                    }
                    opened => {
                        assert_ne!(ours, theirs);
                        assert_eq!(opened.unwrap_err(), EnvelopeError::Stranger);
                    }
                }
            }
        }
    }

    #[test]
    fn a_packet_has_the_requested_length_unless_its_message_needs_more() {
        for key in [None, Some(1)] {
            let shortest = with(key).seal(HEADER, &note()).len();
            for length in [0, 1, shortest - 1, shortest, shortest + 1, 1472, 8972] {
                let packet = with(key).seal_to_length(HEADER, &note(), length);
                assert_eq!(packet.len(), length.max(shortest));
                let opened = with(key).open(&packet).unwrap();
                assert_eq!(opened.read::<Note>(), Ok(note()));
            }
        }
    }

    #[test]
    fn every_changed_bit_and_every_cut_is_refused() {
        for key in [None, Some(1)] {
            let packet = with(key).seal_to_length(HEADER, &note(), 80);
            for bit in 0..packet.len() * 8 {
                let mut bad = packet.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(with(key).open(&bad).is_err(), "bit {bit}");
            }
            for length in 0..packet.len() {
                assert!(with(key).open(&packet[..length]).is_err(), "{length}");
            }
            assert!(with(key).open(&[&packet[..], &[0]].concat()).is_err());
        }
    }

    #[test]
    fn a_body_is_refused_as_another_message_with_trailing_bytes_or_with_invalid_values() {
        let none = with(None);
        let read = |packet: &[u8]| none.open(packet).unwrap().read::<Note>();
        let refusal = sealed(None, HEADER, &Refusal { has_key: true }, 0);
        assert_eq!(read(&refusal), Err(EnvelopeError::Kind { found: 0 }));
        let mut longer = none.seal_to_length(HEADER, &note(), 80);
        let end = longer.len() - CRC_BYTES;
        longer[end - 1] = 1;
        let sum = crc(&longer[..end]);
        longer[end..].copy_from_slice(&sum);
        assert_eq!(read(&longer), Err(EnvelopeError::Body));
        let bad = Note {
            text: "forbidden".to_owned(),
            ..note()
        };
        assert_eq!(read(&none.seal(HEADER, &bad)), Err(EnvelopeError::Body));
    }

    #[test]
    fn a_refusal_states_how_the_keys_differ_and_is_never_longer_than_the_query() {
        for (ours, theirs, mismatch) in [
            (None, Some(1), KeyMismatch::OnlyTheirs),
            (Some(1), None, KeyMismatch::OnlyOurs),
            (Some(1), Some(2), KeyMismatch::Different),
        ] {
            let question = with(ours).seal(HEADER, &note());
            assert_eq!(with(theirs).refuse(&question, 8, NodeId(5)), None);
            let refusal = with(theirs).refuse(&question, 9, NodeId(5)).unwrap();
            assert!(refusal.len() <= question.len());
            assert_eq!(with(ours).refused(&refusal, HEADER.nonce), Some(mismatch));
            assert_eq!(with(ours).refused(&refusal, 1), None);
            assert_eq!(with(ours).refused(&question, HEADER.nonce), None);
        }
        let nothing = sealed(None, HEADER, &Refusal { has_key: false }, 0);
        assert_eq!(with(None).refused(&nothing, HEADER.nonce), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            keyed in any::<bool>(),
        ) {
            let authenticator = with(keyed.then_some(1));
            let opened = authenticator.open(&bytes);
            prop_assert!(opened.is_err());
            let _ = authenticator.refuse(&bytes, 9, NodeId(1));
            let _ = authenticator.refused(&bytes, 1);
        }

        #[test]
        fn any_body_is_read_or_refused(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let opened = Opened { header: HEADER, kind: Note::KIND, body: &body };
            if let Ok(note) = opened.read::<Note>() {
                let packet = with(None).seal(HEADER, &note);
                prop_assert_eq!(with(None).open(&packet).unwrap().read::<Note>(), Ok(note));
            }
        }
    }
}
