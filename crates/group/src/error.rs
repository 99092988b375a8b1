//! Why a group does not go on.

use std::fmt;
use std::time::Duration;

use dipole_proto::wire::{ANY_LENGTH, GroupCall};

use super::Members;
use dipole_node::Address;
use dipole_node::{OpenError, PortError, SendError};

/// A member: its rank, and its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// Its place in the list of members.
    pub rank: usize,
    /// Its port.
    pub address: Address,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} ({})", self.rank, self.address)
    }
}

/// Why a call of a group was not done. But for the first two, the generation has ended for all
/// of its members, who get the same error from their calls.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// The list of members cannot be that of a group here, or a rank is none of it.
    #[error("this cannot be a group's member: {cause}")]
    Members {
        /// What is wrong with it.
        cause: String,
    },
    /// The member's own port cannot be opened.
    #[error(transparent)]
    Open(OpenError),
    /// Processes of members are gone.
    #[error(
        "members of the group are gone: {}; go on without them (reform_without)",
        List(.members)
    )]
    Gone {
        /// Whose.
        members: Vec<Member>,
    },
    /// A member closed its group before a call that others made.
    #[error("{member} closed its group before this call; all members make the same calls")]
    Left {
        /// Which.
        member: Member,
    },
    /// A member waited for others as long as its caller allowed.
    #[error(
        "{member} waited in vain for {}; are they late, or do they make other calls?",
        List(.waited_for)
    )]
    TimedOut {
        /// Who waited; it may be this one.
        member: Member,
        /// For whom.
        waited_for: Vec<Member>,
    },
    /// Two members did not make the same call.
    #[error(
        "members do not make the same calls: as call {number}, {} made {}, {} made {}",
        .calls[0].0, .calls[0].1, .calls[1].0, .calls[1].1
    )]
    Mismatch {
        /// The how many-th call of the generation it was, the group's own included.
        number: u64,
        /// What each of the two called.
        calls: [(Member, String); 2],
    },
    /// Others have another list of members, or a newer generation.
    #[error(
        "others have another list of members, generation {} of {} members; give all the same \
         list",
        .theirs.generation, .theirs.addresses.len()
    )]
    Disagreement {
        /// Theirs.
        theirs: Members,
    },
    /// Others go on without this member.
    #[error(
        "the others go on without this member, as generation {} of {} members",
        .theirs.generation, .theirs.addresses.len()
    )]
    Excluded {
        /// The members they go on with.
        theirs: Members,
    },
    /// Nothing can be sent.
    #[error(transparent)]
    Send(SendError),
    /// The member's own port has ended.
    #[error(transparent)]
    Port(PortError),
}

/// Members in words.
struct List<'a>(&'a [Member]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, member) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{member}")?;
        }
        Ok(())
    }
}

pub(super) fn in_words(call: &GroupCall) -> String {
    let GroupCall {
        operation,
        root,
        length,
    } = call;
    match *length {
        ANY_LENGTH => format!("{operation} of rank {root}"),
        0 => format!("{operation}"),
        length => format!("{operation} of {length} bytes, root {root}"),
    }
}

/// For how long somebody may be waited for, from now on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline(std::time::Instant);

impl Deadline {
    pub(super) fn after(timeout: Duration) -> Deadline {
        // A time that no clock shows is never.
        let never = Duration::from_secs(100 * 365 * 86_400);
        Deadline(std::time::Instant::now() + timeout.min(never))
    }

    pub(super) fn left(self) -> Duration {
        self.0.saturating_duration_since(std::time::Instant::now())
    }
}
