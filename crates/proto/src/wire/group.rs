//! Messages between the members of a group. Spec §12.

use alloc::vec::Vec;

use super::Malformed;
use super::cursor::{put, u32_at, u64_at};

/// Bytes before the data of a group's message.
pub const GROUP_HEAD_BYTES: usize = 56;

const VERSION: u8 = 1;
const BAD: Malformed = Malformed::BadField("group message");

/// Kind of a group message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupKind {
    /// A piece of the data that one member sends to another in a call.
    Data,
    /// A check whether the receiver is still alive.
    Probe,
    /// The sender takes part in no call from `number` on.
    Left,
    /// The generation has ended. The data contain a [`GroupEnding`].
    Ended,
}

const KINDS: [GroupKind; 4] = [
    GroupKind::Data,
    GroupKind::Probe,
    GroupKind::Left,
    GroupKind::Ended,
];

/// Kind of a collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupOperation {
    /// The barrier at the start of a generation. Its data are the members.
    Start,
    /// An internal barrier that limits how far members run ahead of each other.
    Fence,
    /// Waits until all members have called it.
    Barrier,
    /// One member's bytes are sent to all.
    Broadcast,
    /// All members' bytes are combined at one of them.
    Reduce,
    /// All members' bytes are combined at all of them.
    Allreduce,
}

const OPERATIONS: [GroupOperation; 6] = [
    GroupOperation::Start,
    GroupOperation::Fence,
    GroupOperation::Barrier,
    GroupOperation::Broadcast,
    GroupOperation::Reduce,
    GroupOperation::Allreduce,
];

impl core::fmt::Display for GroupOperation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            GroupOperation::Start => "the start of a generation",
            GroupOperation::Fence => "the group's own barrier",
            GroupOperation::Barrier => "a barrier",
            GroupOperation::Broadcast => "a broadcast",
            GroupOperation::Reduce => "a reduction",
            GroupOperation::Allreduce => "an allreduce",
        })
    }
}

/// The arguments of a collective call that must be the same for all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupCall {
    /// Operation of the call.
    pub operation: GroupOperation,
    /// Rank of the source or destination; 0 if the operation has no such rank.
    pub root: u32,
    /// Bytes of the whole; [`ANY_LENGTH`] if unknown.
    pub length: u64,
}

/// See [`GroupCall::length`].
pub const ANY_LENGTH: u64 = u64::MAX;

impl GroupCall {
    /// True if two members may have made these calls as their n-th call.
    #[must_use]
    pub fn fits(&self, other: &GroupCall) -> bool {
        let lengths = [self.length, other.length];
        self.operation == other.operation
            && self.root == other.root
            && (lengths.contains(&ANY_LENGTH) || lengths[0] == lengths[1])
    }
}

/// The head of a group's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupHead {
    /// Kind of the message.
    pub kind: GroupKind,
    /// The call that it belongs to. Unused in messages outside calls.
    pub call: GroupCall,
    /// Step of the call.
    pub round: u8,
    /// Rank that created the message: its sender, or the root of a broadcast.
    pub rank: u32,
    /// Generation of the group.
    pub generation: u64,
    /// Digest of the list of members.
    pub list: u64,
    /// Number of the call in its generation.
    pub number: u64,
    /// Position of the data in the whole.
    pub offset: u64,
}

impl GroupHead {
    /// Encodes the head.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; GROUP_HEAD_BYTES] {
        let mut bytes = [0; GROUP_HEAD_BYTES];
        let (kind, operation) = (self.kind as u8, self.call.operation as u8);
        bytes[..4].copy_from_slice(&[VERSION, kind, operation, self.round]);
        put(&mut bytes, 4, &self.rank.to_le_bytes());
        put(&mut bytes, 8, &self.call.root.to_le_bytes());
        put(&mut bytes, 16, &self.generation.to_le_bytes());
        put(&mut bytes, 24, &self.list.to_le_bytes());
        put(&mut bytes, 32, &self.number.to_le_bytes());
        put(&mut bytes, 40, &self.offset.to_le_bytes());
        put(&mut bytes, 48, &self.call.length.to_le_bytes());
        bytes
    }

    /// Parses the head of a message. Returns it with the data.
    ///
    /// # Errors
    /// [`Malformed`] if it is too short, has another version, or its data exceed the whole.
    pub fn parse(message: &[u8]) -> Result<(GroupHead, &[u8]), Malformed> {
        let Some((bytes, data)) = message.split_at_checked(GROUP_HEAD_BYTES) else {
            return Err(Malformed::Truncated {
                needed: GROUP_HEAD_BYTES,
                found: message.len(),
            });
        };
        if bytes[0] != VERSION {
            return Err(Malformed::BadVersion(bytes[0]));
        }
        let kind = *KINDS.get(usize::from(bytes[1])).ok_or(BAD)?;
        let operation = *OPERATIONS.get(usize::from(bytes[2])).ok_or(BAD)?;
        let (offset, length) = (u64_at(bytes, 40), u64_at(bytes, 48));
        let end = offset.checked_add(data.len() as u64).ok_or(BAD)?;
        if u32_at(bytes, 12) != 0 || (kind == GroupKind::Data && end > length) {
            return Err(BAD);
        }
        let head = GroupHead {
            kind,
            call: GroupCall {
                operation,
                root: u32_at(bytes, 8),
                length,
            },
            round: bytes[3],
            rank: u32_at(bytes, 4),
            generation: u64_at(bytes, 16),
            list: u64_at(bytes, 24),
            number: u64_at(bytes, 32),
            offset,
        };
        Ok((head, data))
    }
}

/// Why a generation has ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum GroupEnding {
    /// The processes of these ranks are gone.
    Gone(Vec<u32>),
    /// This rank closed its group before a call of the others.
    Left(u32),
    /// This rank waited for those until its caller's time-out.
    TimedOut(u32, Vec<u32>),
    /// Two ranks made different calls with the same number.
    Mismatch {
        /// The number of the call.
        number: u64,
        /// The ranks and their calls.
        calls: [(u32, GroupCall); 2],
    },
    /// The members are different, or a newer generation exists.
    Other {
        /// Generation of that list.
        generation: u64,
        /// The members: node and endpoint of each.
        members: Vec<(u32, u32)>,
    },
}

impl GroupEnding {
    /// Encodes the reason.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            GroupEnding::Gone(ranks) => {
                bytes.push(0);
                push_all(&mut bytes, ranks);
            }
            GroupEnding::Left(rank) => {
                bytes.push(1);
                push_all(&mut bytes, &[*rank]);
            }
            GroupEnding::TimedOut(rank, waited_for) => {
                bytes.push(2);
                push_all(&mut bytes, &[*rank]);
                push_all(&mut bytes, waited_for);
            }
            GroupEnding::Mismatch { number, calls } => {
                bytes.push(3);
                bytes.extend(number.to_le_bytes());
                for (rank, call) in calls {
                    bytes.push(call.operation as u8);
                    push_all(&mut bytes, &[*rank, call.root]);
                    bytes.extend(call.length.to_le_bytes());
                }
            }
            GroupEnding::Other {
                generation,
                members,
            } => {
                bytes.push(4);
                bytes.extend(generation.to_le_bytes());
                bytes.extend(members_to_bytes(members));
            }
        }
        bytes
    }

    /// Parses a reason.
    ///
    /// # Errors
    /// [`Malformed`] if the reason is unknown or its length is wrong.
    pub fn parse(bytes: &[u8]) -> Result<GroupEnding, Malformed> {
        let (reason, rest) = bytes.split_first().ok_or(BAD)?;
        let first = |ranks: Vec<u32>| ranks.first().copied().ok_or(BAD);
        Ok(match (reason, rest.len()) {
            (0, _) => GroupEnding::Gone(numbers(rest)?),
            (1, 4) => GroupEnding::Left(first(numbers(rest)?)?),
            (2, 4..) => GroupEnding::TimedOut(first(numbers(&rest[..4])?)?, numbers(&rest[4..])?),
            (3, 42) => {
                let call = |at: usize| -> Result<(u32, GroupCall), Malformed> {
                    let operation = *OPERATIONS.get(usize::from(rest[at])).ok_or(BAD)?;
                    let call = GroupCall {
                        operation,
                        root: u32_at(rest, at + 5),
                        length: u64_at(rest, at + 9),
                    };
                    Ok((u32_at(rest, at + 1), call))
                };
                GroupEnding::Mismatch {
                    number: u64_at(rest, 0),
                    calls: [call(8)?, call(25)?],
                }
            }
            (4, 8..) => GroupEnding::Other {
                generation: u64_at(rest, 0),
                members: members_from_bytes(&rest[8..])?,
            },
            _ => return Err(BAD),
        })
    }
}

fn push_all(bytes: &mut Vec<u8>, numbers: &[u32]) {
    bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
}

fn numbers(bytes: &[u8]) -> Result<Vec<u32>, Malformed> {
    let (numbers, rest) = bytes.as_chunks::<4>();
    match rest {
        [] => Ok(numbers
            .iter()
            .map(|number| u32::from_le_bytes(*number))
            .collect()),
        _ => Err(BAD),
    }
}

/// Encodes a list of members: node and endpoint of each.
#[must_use]
pub fn members_to_bytes(members: &[(u32, u32)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(members.len() * 8);
    for (node, endpoint) in members {
        push_all(&mut bytes, &[*node, *endpoint]);
    }
    bytes
}

/// Parses a list of members.
///
/// # Errors
/// [`Malformed`] if the length is wrong.
pub fn members_from_bytes(bytes: &[u8]) -> Result<Vec<(u32, u32)>, Malformed> {
    let numbers = numbers(bytes)?;
    let (pairs, rest) = numbers.as_chunks::<2>();
    match rest {
        [] => Ok(pairs
            .iter()
            .map(|[node, endpoint]| (*node, *endpoint))
            .collect()),
        _ => Err(BAD),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn head(kind: GroupKind) -> GroupHead {
        GroupHead {
            kind,
            call: GroupCall {
                operation: GroupOperation::Broadcast,
                root: 3,
                length: 10,
            },
            round: 2,
            rank: 4,
            generation: 5,
            list: 0x0123_4567_89AB_CDEF,
            number: 7,
            offset: 6,
        }
    }

    #[test]
    fn a_head_is_decoded_as_encoded() {
        for kind in KINDS {
            for operation in OPERATIONS {
                let mut sent = head(kind);
                sent.call.operation = operation;
                let mut message = sent.to_bytes().to_vec();
                message.extend(b"four");
                assert_eq!(GroupHead::parse(&message), Ok((sent, &b"four"[..])));
            }
        }
    }

    #[test]
    fn invalid_messages_are_not_parsed() {
        let whole = head(GroupKind::Data).to_bytes();
        assert!(GroupHead::parse(&whole[..55]).is_err());
        for (at, value) in [(0, 2), (1, 4), (2, 6), (12, 1)] {
            let mut bytes = whole;
            bytes[at] = value;
            assert!(GroupHead::parse(&bytes).is_err(), "{at}");
        }
        let mut long = whole.to_vec();
        long.extend(b"fives");
        assert!(GroupHead::parse(&long).is_err());
    }

    #[test]
    fn an_ending_is_decoded_as_encoded_and_other_lengths_are_refused() {
        let call = head(GroupKind::Data).call;
        let endings = [
            GroupEnding::Gone(vec![1, 2, 3]),
            GroupEnding::Left(7),
            GroupEnding::TimedOut(1, vec![2, 3]),
            GroupEnding::Mismatch {
                number: 9,
                calls: [(1, call), (2, call)],
            },
            GroupEnding::Other {
                generation: 2,
                members: vec![(1, 2), (3, 4)],
            },
        ];
        for ending in endings {
            let mut bytes = ending.to_bytes();
            assert_eq!(GroupEnding::parse(&bytes), Ok(ending));
            bytes.push(0);
            assert!(GroupEnding::parse(&bytes).is_err());
        }
        assert!(GroupEnding::parse(&[]).is_err());
        assert!(GroupEnding::parse(&[5]).is_err());
    }

    #[test]
    fn calls_match_if_their_known_arguments_are_equal() {
        let call = head(GroupKind::Data).call;
        let any = GroupCall {
            length: ANY_LENGTH,
            ..call
        };
        let longer = GroupCall { length: 11, ..call };
        assert!(call.fits(&call) && call.fits(&any) && any.fits(&longer));
        assert!(!call.fits(&longer));
        assert!(!call.fits(&GroupCall { root: 4, ..call }));
    }
}
