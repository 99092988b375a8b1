//! Messages between ranks that share no memory.
//!
//! A head of 24 bytes, then a body: knowledge, records, or both.

/// Bytes of a head.
pub const HEAD_BYTES: usize = 24;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// From rank 0 to all: how many of them take part. The number is `total`.
    Start,
    /// A rank is there; to those of its node it says how to share memory.
    Hello,
    /// What a node knows of the superstep, in a round of its end; perhaps with the whole parcel of
    /// its sender to its receiver.
    Round,
    /// Records of a superstep.
    Parcel,
    /// Answers to gets of a superstep.
    Answers,
    /// The job ends with an error.
    Abort,
    /// Somebody waits: whether this rank's process lives is seen from whether it takes this.
    Alive,
    /// The sender's memory has been read for all who get of it: what is kept for it may be placed there.
    Ready,
}

/// The head of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// What it is.
    pub kind: Kind,
    /// Of a round: which.
    pub round: u8,
    /// The superstep it belongs to, modulo 2^32.
    pub superstep: u32,
    /// Of parcels and answers: which of them.
    pub index: u32,
    /// Of parcels and answers: how many there are from this rank to that one; of a round: 1 if
    /// a parcel comes with it.
    pub total: u32,
    /// Of a round: bytes of knowledge.
    pub knowledge: u32,
}

const KINDS: [Kind; 8] = [
    Kind::Start,
    Kind::Hello,
    Kind::Round,
    Kind::Parcel,
    Kind::Answers,
    Kind::Abort,
    Kind::Alive,
    Kind::Ready,
];
/// Tells messages of this runtime from others'.
const MARK: u16 = 0xB5B1;

impl Head {
    /// A head of a kind, all numbers 0.
    #[must_use]
    pub const fn new(kind: Kind, superstep: u32) -> Head {
        Head {
            kind,
            round: 0,
            superstep,
            index: 0,
            total: 0,
            knowledge: 0,
        }
    }

    /// As bytes.
    #[must_use]
    pub fn encode(self) -> [u8; HEAD_BYTES] {
        let kind = KINDS.iter().position(|kind| *kind == self.kind);
        let mut bytes = [0; HEAD_BYTES];
        bytes[..2].copy_from_slice(&MARK.to_le_bytes());
        bytes[2] = kind
            .and_then(|kind| u8::try_from(kind).ok())
            .unwrap_or(u8::MAX);
        bytes[3] = self.round;
        let numbers = [self.superstep, self.index, self.total, self.knowledge];
        for (place, number) in bytes[4..].as_chunks_mut::<4>().0.iter_mut().zip(numbers) {
            *place = number.to_le_bytes();
        }
        bytes
    }

    /// From the front of a message.
    #[must_use]
    pub fn decode(message: &[u8]) -> Option<(Head, &[u8])> {
        let (head, body) = message.split_first_chunk::<HEAD_BYTES>()?;
        if head[..2] != MARK.to_le_bytes() {
            return None;
        }
        let number = |at: usize| {
            let word = head[at..].first_chunk().copied().unwrap_or_default();
            u32::from_le_bytes(word)
        };
        let head = Head {
            kind: *KINDS.get(usize::from(head[2]))?,
            round: head[3],
            superstep: number(4),
            index: number(8),
            total: number(12),
            knowledge: number(16),
        };
        Some((head, body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_come_back_as_they_were_written() {
        for (index, kind) in (1..).zip(KINDS) {
            let head = Head {
                round: 3,
                index,
                total: 7,
                knowledge: 9,
                ..Head::new(kind, 11)
            };
            let mut bytes = head.encode().to_vec();
            bytes.push(42);
            assert_eq!(Head::decode(&bytes), Some((head, &[42][..])));
            assert_eq!(Head::decode(&bytes[..HEAD_BYTES - 1]), None);
            bytes[0] ^= 1;
            assert_eq!(Head::decode(&bytes), None);
        }
        let mut bytes = Head::new(Kind::Abort, 0).encode();
        bytes[2] = 8;
        assert_eq!(Head::decode(&bytes), None);
    }
}
