//! Messages between ranks and an interface. All numbers are little-endian; the first byte says which
//! message it is, data are what follows its numbers.

use dipole_node::Address;

use crate::layout::{Kind, Layout};

/// Bytes of data in one message at most.
pub(crate) const BLOCK_BYTES: u64 = 128 << 10;
/// Ranks of a stream at most.
pub(crate) const MAX_RANKS: usize = 65_536;

/// See the module. `transfer` counts what is written or read by all ranks together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    /// Rank 0 to the interface's own endpoint: connects to `to` for these ranks.
    Open {
        to: &'a str,
        ranks: Vec<Address>,
        patience_ms: u64,
    },
    /// The answer: where the stream's endpoint is. Rank 0 tells the others the same.
    Opened { at: Address },
    /// Bytes that stand as they are, of rank 0.
    WriteRaw { bytes: &'a [u8] },
    /// As many bytes as have come, at most so many, for rank 0.
    ReadRaw { most: u64 },
    /// Those; none at the end of the stream.
    RawBytes { bytes: &'a [u8] },
    /// All ranks write.
    Write {
        transfer: u64,
        total: u64,
        layout: Layout,
    },
    /// All ranks read.
    Read {
        transfer: u64,
        total: u64,
        layout: Layout,
    },
    /// To a rank: bytes of its part, for the stream's offset.
    Want {
        transfer: u64,
        offset: u64,
        local: u64,
        length: u64,
    },
    /// The answer.
    Data {
        transfer: u64,
        offset: u64,
        bytes: &'a [u8],
    },
    /// To a rank: bytes that were read for its part.
    Block {
        transfer: u64,
        local: u64,
        bytes: &'a [u8],
    },
    /// To all ranks: so many bytes of the transfer went to the outside, or came from it.
    Done { transfer: u64, bytes: u64 },
    /// To all ranks, or instead of an answer: the stream is over.
    Ended { why: &'a str },
    /// Rank 0 has no more to say: the outside reads the end of the stream.
    Finish,
    /// Rank 0 wants no more of it.
    Close,
}

/// Bytes that are no message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn number(&mut self) -> Result<u64, Malformed> {
        let (number, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*number))
    }

    fn half(&mut self) -> Result<u32, Malformed> {
        let (number, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(u32::from_le_bytes(*number))
    }

    fn text(&mut self) -> Result<&'a str, Malformed> {
        let bytes = std::mem::take(&mut self.0);
        std::str::from_utf8(bytes).map_err(|_| Malformed)
    }

    fn bytes(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    fn layout(&mut self) -> Result<Layout, Malformed> {
        let (kind, ranks, unit) = (self.half()?, self.half()?, self.number()?);
        if ranks == 0 || ranks as usize > MAX_RANKS || unit == 0 {
            return Err(Malformed);
        }
        match kind {
            0 => Ok(Layout::block_cyclic(ranks, unit)),
            1 => {
                let (owners, rest) = self.bytes().as_chunks();
                let owners: Vec<u32> = owners.iter().map(|it| u32::from_le_bytes(*it)).collect();
                match rest.is_empty() && owners.iter().all(|owner| *owner < ranks) {
                    true => Ok(Layout::by_key(ranks, unit, owners)),
                    false => Err(Malformed),
                }
            }
            _ => Err(Malformed),
        }
    }
}

fn put_layout(into: &mut Vec<u8>, layout: &Layout) {
    let (kind, unit, owners) = match &layout.kind {
        Kind::InTurn { block } => (0_u32, *block, &[][..]),
        Kind::Owners { record, owners } => (1, *record, &owners[..]),
    };
    into.extend_from_slice(&kind.to_le_bytes());
    into.extend_from_slice(&layout.ranks.to_le_bytes());
    into.extend_from_slice(&unit.to_le_bytes());
    into.extend(owners.iter().flat_map(|owner| owner.to_le_bytes()));
}

impl<'a> Message<'a> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, numbers): (u8, &[u64]) = match self {
            Message::Open { patience_ms, .. } => (1, &[*patience_ms]),
            Message::Opened { .. } => (2, &[]),
            Message::WriteRaw { .. } => (3, &[]),
            Message::ReadRaw { most } => (4, &[*most]),
            Message::RawBytes { .. } => (5, &[]),
            Message::Write {
                transfer, total, ..
            } => (6, &[*transfer, *total]),
            Message::Read {
                transfer, total, ..
            } => (7, &[*transfer, *total]),
            Message::Want {
                transfer,
                offset,
                local,
                length,
            } => (8, &[*transfer, *offset, *local, *length]),
            Message::Data {
                transfer, offset, ..
            } => (9, &[*transfer, *offset]),
            Message::Block {
                transfer, local, ..
            } => (10, &[*transfer, *local]),
            Message::Done { transfer, bytes } => (11, &[*transfer, *bytes]),
            Message::Ended { .. } => (12, &[]),
            Message::Finish => (13, &[]),
            Message::Close => (14, &[]),
        };
        let mut all = vec![kind];
        all.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        match self {
            Message::Open { to, ranks, .. } => {
                all.extend_from_slice(&(ranks.len() as u64).to_le_bytes());
                for rank in ranks {
                    all.extend_from_slice(&rank.node.0.to_le_bytes());
                    all.extend_from_slice(&rank.endpoint.0.to_le_bytes());
                }
                all.extend_from_slice(to.as_bytes());
            }
            Message::Opened { at } => {
                all.extend_from_slice(&at.node.0.to_le_bytes());
                all.extend_from_slice(&at.endpoint.0.to_le_bytes());
            }
            Message::WriteRaw { bytes }
            | Message::RawBytes { bytes }
            | Message::Data { bytes, .. }
            | Message::Block { bytes, .. } => all.extend_from_slice(bytes),
            Message::Write { layout, .. } | Message::Read { layout, .. } => {
                put_layout(&mut all, layout);
            }
            Message::Ended { why } => all.extend_from_slice(why.as_bytes()),
            _ => {}
        }
        all
    }

    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Message<'a>, Malformed> {
        let (kind, rest) = bytes.split_first().ok_or(Malformed)?;
        let mut from = Reader(rest);
        let message = match kind {
            1 => {
                let patience_ms = from.number()?;
                let count = usize::try_from(from.number()?).map_err(|_| Malformed)?;
                if count == 0 || count > MAX_RANKS {
                    return Err(Malformed);
                }
                let mut ranks = Vec::new();
                for _ in 0..count {
                    ranks.push(Address::new(from.half()?, from.half()?));
                }
                Message::Open {
                    to: from.text()?,
                    ranks,
                    patience_ms,
                }
            }
            2 => Message::Opened {
                at: Address::new(from.half()?, from.half()?),
            },
            3 => Message::WriteRaw {
                bytes: from.bytes(),
            },
            4 => Message::ReadRaw {
                most: from.number()?,
            },
            5 => Message::RawBytes {
                bytes: from.bytes(),
            },
            6 => {
                let (transfer, total) = (from.number()?, from.number()?);
                Message::Write {
                    transfer,
                    total,
                    layout: from.layout()?,
                }
            }
            7 => {
                let (transfer, total) = (from.number()?, from.number()?);
                Message::Read {
                    transfer,
                    total,
                    layout: from.layout()?,
                }
            }
            8 => Message::Want {
                transfer: from.number()?,
                offset: from.number()?,
                local: from.number()?,
                length: from.number()?,
            },
            9 => {
                let (transfer, offset) = (from.number()?, from.number()?);
                Message::Data {
                    transfer,
                    offset,
                    bytes: from.bytes(),
                }
            }
            10 => {
                let (transfer, local) = (from.number()?, from.number()?);
                Message::Block {
                    transfer,
                    local,
                    bytes: from.bytes(),
                }
            }
            11 => Message::Done {
                transfer: from.number()?,
                bytes: from.number()?,
            },
            12 => Message::Ended { why: from.text()? },
            13 => Message::Finish,
            14 => Message::Close,
            _ => return Err(Malformed),
        };
        match from.0.is_empty() {
            true => Ok(message),
            false => Err(Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn all_messages_are_read_as_they_were_written() {
        let (transfer, total) = (3, 1 << 40);
        let bytes = &b"bytes"[..];
        let layout = Layout::by_key(2, 7, vec![0, 1, 1]);
        let ranks = vec![Address::new(1, 2), Address::new(u32::MAX, 4_000_000_000)];
        let all = [
            Message::Open {
                to: "10.0.0.9:80",
                ranks,
                patience_ms: 5,
            },
            Message::Opened {
                at: Address::new(3, 501),
            },
            Message::WriteRaw { bytes },
            Message::ReadRaw { most: 9 },
            Message::RawBytes { bytes: &[] },
            Message::Write {
                transfer,
                total,
                layout: Layout::cyclic(3, 8),
            },
            Message::Read {
                transfer,
                total,
                layout,
            },
            Message::Want {
                transfer,
                offset: 4,
                local: 5,
                length: 6,
            },
            Message::Data {
                transfer,
                offset: 4,
                bytes,
            },
            Message::Block {
                transfer,
                local: 5,
                bytes,
            },
            Message::Done { transfer, bytes: 6 },
            Message::Ended { why: "refused" },
            Message::Finish,
            Message::Close,
        ];
        for message in all {
            assert_eq!(Message::decode(&message.encode()), Ok(message.clone()));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..80), kind in 0_u8..16) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            if let Ok(message) = Message::decode(&bytes) {
                let again = message.encode();
                prop_assert_eq!(Message::decode(&again), Ok(message));
            }
        }
    }
}
