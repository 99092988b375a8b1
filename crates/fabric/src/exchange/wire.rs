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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        for kind in [Kind::Message, Kind::Offer, Kind::Fetched] {
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
        assert_eq!(Head::decode(&[0; 24]), None);
        assert_eq!(Head::decode(&[1; 23]), None);
        assert_eq!(Offer::decode(&[1; 23]), None);
    }
}
