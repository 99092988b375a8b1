//! Messages between endpoints: a head, then the payload or its location.

use dipole_node::RegionKey;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub(crate) const HEAD_BYTES: usize = size_of::<RawHead>();

/// The kind of a message between endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A whole message of the program.
    Message,
    /// A message of the program that the receiver fetches.
    Offer,
    /// A receive has an offered or numbered message. Tag: its number; data: 0 or an error number.
    Taken,
    /// The sender has written to this process's memory. Tag: the number of bytes.
    RemoteWrite,
    /// An atomic operation, sent to a port. Tag: its number; data: the encoded operation.
    AtomicRequest,
    /// An atomic operation has been performed; the previous contents follow. Tag: its number;
    /// data: 0 or an error number.
    AtomicReply,
    /// The receiver has no room for unexpected messages (tag 1) or has it again (tag 0).
    Throttle,
}

/// The head of every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    /// True if the message matches tagged receives.
    pub(crate) is_tagged: bool,
    pub(crate) has_data: bool,
    pub(crate) tag: u64,
    pub(crate) data: u64,
    /// Not 0 if the sender of a whole message wants to know that a receive has it: the number to
    /// report. Below 2^48.
    pub(crate) number: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHead {
    kind: u8,
    flags: u8,
    number: [u8; 6],
    tag: U64,
    data: U64,
}

const TAGGED: u8 = 1;
const DATA: u8 = 2;

impl Head {
    /// The head of a message that does not come from the program.
    pub(crate) fn control(kind: Kind, tag: u64, data: u64) -> Head {
        Head {
            kind,
            is_tagged: false,
            has_data: false,
            tag,
            data,
            number: 0,
        }
    }

    #[inline]
    pub(crate) fn encode(&self) -> [u8; HEAD_BYTES] {
        let [number @ .., _, _] = self.number.to_le_bytes();
        let raw = RawHead {
            kind: match self.kind {
                Kind::Message => 1,
                Kind::Offer => 2,
                Kind::Taken => 3,
                Kind::RemoteWrite => 4,
                Kind::AtomicRequest => 5,
                Kind::AtomicReply => 6,
                Kind::Throttle => 7,
            },
            flags: TAGGED * u8::from(self.is_tagged) + DATA * u8::from(self.has_data),
            number,
            tag: self.tag.into(),
            data: self.data.into(),
        };
        zerocopy::transmute!(raw)
    }

    /// The head and the bytes that follow it; `None` if this is not a message of an endpoint.
    #[inline]
    pub(crate) fn decode(message: &[u8]) -> Option<(Head, &[u8])> {
        let (raw, rest) = RawHead::ref_from_prefix(message).ok()?;
        let kind = match raw.kind {
            1 => Kind::Message,
            2 => Kind::Offer,
            3 => Kind::Taken,
            4 => Kind::RemoteWrite,
            5 => Kind::AtomicRequest,
            6 => Kind::AtomicReply,
            7 => Kind::Throttle,
            _ => return None,
        };
        let [a, b, c, d, e, f] = raw.number;
        let head = Head {
            kind,
            is_tagged: raw.flags & TAGGED != 0,
            has_data: raw.flags & DATA != 0,
            tag: raw.tag.get(),
            data: raw.data.get(),
            number: u64::from_le_bytes([a, b, c, d, e, f, 0, 0]),
        };
        Some((head, rest))
    }
}

/// Location of an offered message.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub(crate) struct Offer {
    length: U64,
    key: U64,
    number: U64,
}

impl Offer {
    /// An offer of a region; `number` identifies it to the sender.
    pub(crate) fn new(length: usize, key: RegionKey, number: u64) -> Offer {
        Offer {
            length: (length as u64).into(),
            key: key.0.into(),
            number: number.into(),
        }
    }

    pub(crate) fn length(&self) -> usize {
        usize::try_from(self.length.get()).unwrap_or(usize::MAX)
    }

    pub(crate) fn key(&self) -> RegionKey {
        RegionKey(self.key.get())
    }

    pub(crate) fn number(&self) -> u64 {
        self.number.get()
    }

    pub(crate) fn encode(self) -> [u8; size_of::<Offer>()] {
        zerocopy::transmute!(self)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Offer> {
        Some(Offer::read_from_prefix(bytes).ok()?.0)
    }
}

/// The memory that an atomic operation is performed on; the operands follow.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub(crate) struct AtomicTarget {
    key: U64,
    offset: U64,
}

impl AtomicTarget {
    pub(crate) fn new(key: u64, offset: u64) -> AtomicTarget {
        AtomicTarget {
            key: key.into(),
            offset: offset.into(),
        }
    }

    pub(crate) fn key(&self) -> u64 {
        self.key.get()
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset.get()
    }

    pub(crate) fn encode(self) -> [u8; size_of::<AtomicTarget>()] {
        zerocopy::transmute!(self)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<(AtomicTarget, &[u8])> {
        AtomicTarget::read_from_prefix(bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_messages_are_decoded_and_short_ones_are_rejected() {
        use Kind::{AtomicReply, AtomicRequest, Message, RemoteWrite, Taken, Throttle};
        for kind in [
            Message,
            Kind::Offer,
            Taken,
            RemoteWrite,
            AtomicRequest,
            AtomicReply,
            Throttle,
        ] {
            for (is_tagged, has_data) in [(false, false), (true, false), (false, true)] {
                let head = Head {
                    kind,
                    is_tagged,
                    has_data,
                    tag: 0x0102_0304_0506_0708,
                    data: u64::MAX - 1,
                    number: 0x1234_5678_9abc,
                };
                let mut message = head.encode().to_vec();
                message.extend(b"rest");
                assert_eq!(Head::decode(&message), Some((head, &b"rest"[..])));
            }
        }
        let offer = Offer::new(1 << 40, RegionKey(3), 4);
        assert_eq!(Offer::decode(&offer.encode()), Some(offer));
        let target = AtomicTarget::new(5, 6);
        let mut request = target.encode().to_vec();
        request.push(7);
        assert_eq!(AtomicTarget::decode(&request), Some((target, &[7][..])));
        assert_eq!(AtomicTarget::decode(&request[..15]), None);
        assert_eq!(Head::decode(&[0; 24]), None);
        assert_eq!(Head::decode(&[1; 23]), None);
        assert_eq!(Offer::decode(&[1; 23]), None);
    }

    #[test]
    fn the_head_of_a_tagged_message_has_the_documented_layout() {
        let head = Head {
            is_tagged: true,
            number: 0x0102_0304,
            ..Head::control(Kind::Message, 2, 3)
        };
        let expected = [
            [1, 1, 4, 3, 2, 1, 0, 0],
            [2, 0, 0, 0, 0, 0, 0, 0],
            [3, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(head.encode(), expected.as_flattened());
    }
}
