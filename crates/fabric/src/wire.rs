//! What endpoints say to each other: a head, then a message's bytes or where they lie.

/// Bytes of a head.
pub(crate) const HEAD_BYTES: usize = 24;
/// Bytes of what follows the head of an offer.
pub(crate) const OFFER_BYTES: usize = 24;

/// What a message of Dipole is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A message of the program, whole.
    Message,
    /// A message of the program that its receiver is to fetch.
    Offer,
    /// One has been fetched; the tag is its number, the data 0 or why it was not.
    Fetched,
    /// The sender has written to this process's memory; the tag is how many bytes.
    Written,
    /// An atomic operation that is asked for, to a port; the tag is its number, the data say
    /// which.
    Update,
    /// One has been done, and what was there follows; the tag is its number, the data 0 or why
    /// it was not.
    Updated,
}

/// Begins every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    /// Matched with receives that want tags.
    pub(crate) is_tagged: bool,
    pub(crate) has_data: bool,
    pub(crate) tag: u64,
    pub(crate) data: u64,
}

const TAGGED: u8 = 1;
const DATA: u8 = 2;

impl Head {
    #[inline]
    pub(crate) fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[0] = match self.kind {
            Kind::Message => 1,
            Kind::Offer => 2,
            Kind::Fetched => 3,
            Kind::Written => 4,
            Kind::Update => 5,
            Kind::Updated => 6,
        };
        bytes[1] = TAGGED * u8::from(self.is_tagged) + DATA * u8::from(self.has_data);
        bytes[8..16].copy_from_slice(&self.tag.to_le_bytes());
        bytes[16..].copy_from_slice(&self.data.to_le_bytes());
        bytes
    }

    /// The head and what follows it; `None` of something else.
    #[inline]
    pub(crate) fn decode(message: &[u8]) -> Option<(Head, &[u8])> {
        let (head, rest) = message.split_first_chunk::<HEAD_BYTES>()?;
        let kind = match head[0] {
            1 => Kind::Message,
            2 => Kind::Offer,
            3 => Kind::Fetched,
            4 => Kind::Written,
            5 => Kind::Update,
            6 => Kind::Updated,
            _ => return None,
        };
        let head = Head {
            kind,
            is_tagged: head[1] & TAGGED != 0,
            has_data: head[1] & DATA != 0,
            tag: u64::from_le_bytes(*head[8..].first_chunk()?),
            data: u64::from_le_bytes(*head[16..].first_chunk()?),
        };
        Some((head, rest))
    }
}

/// Where an offered message lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Its length.
    pub(crate) length: u64,
    /// The region that it is.
    pub(crate) key: u64,
    /// Its sender's number of it.
    pub(crate) number: u64,
}

impl Offer {
    pub(crate) fn encode(&self) -> [u8; OFFER_BYTES] {
        let mut bytes = [0; OFFER_BYTES];
        bytes[..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.key.to_le_bytes());
        bytes[16..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Offer> {
        let (words, _) = bytes.as_chunks::<8>();
        let [length, key, number] = words.get(..3)?.try_into().ok()?;
        Some(Offer {
            length: u64::from_le_bytes(length),
            key: u64::from_le_bytes(key),
            number: u64::from_le_bytes(number),
        })
    }
}

/// Which memory an atomic operation is done on; operands follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Update {
    pub(crate) key: u64,
    pub(crate) offset: u64,
}

impl Update {
    pub(crate) fn encode(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.key.to_le_bytes());
        bytes[8..].copy_from_slice(&self.offset.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<(Update, &[u8])> {
        let (head, operands) = bytes.split_first_chunk::<16>()?;
        let update = Update {
            key: u64::from_le_bytes(*head.first_chunk()?),
            offset: u64::from_le_bytes(*head.last_chunk()?),
        };
        Some((update, operands))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        use Kind::{Fetched, Message, Offer as Offered, Update as Asked, Updated, Written};
        for kind in [Message, Offered, Fetched, Written, Asked, Updated] {
            for (is_tagged, has_data) in [(false, false), (true, false), (false, true)] {
                let head = Head {
                    kind,
                    is_tagged,
                    has_data,
                    tag: 0x0102_0304_0506_0708,
                    data: u64::MAX - 1,
                };
                let mut message = head.encode().to_vec();
                message.extend(b"rest");
                assert_eq!(Head::decode(&message), Some((head, &b"rest"[..])));
            }
        }
        let offer = Offer {
            length: 1 << 40,
            key: 3,
            number: 4,
        };
        assert_eq!(Offer::decode(&offer.encode()), Some(offer));
        let update = Update { key: 5, offset: 6 };
        let mut asked = update.encode().to_vec();
        asked.push(7);
        assert_eq!(Update::decode(&asked), Some((update, &[7][..])));
        assert_eq!(Update::decode(&asked[..15]), None);
        assert_eq!(Head::decode(&[0; 24]), None);
        assert_eq!(Head::decode(&[1; 23]), None);
        assert_eq!(Offer::decode(&[1; 23]), None);
    }
}
