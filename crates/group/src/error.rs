//! Errors of group calls.

use std::fmt;
use std::time::Duration;

use dipole_proto::wire::{ANY_LENGTH, GroupCall};

use super::Members;
use dipole_node::Address;
use dipole_node::{OpenError, PortError, SendError};

/// A member: rank and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// Position in the list of members.
    pub rank: usize,
    /// Address of the member's port.
    pub address: Address,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} ({})", self.rank, self.address)
    }
}

/// Why a group call failed. Except for the first two, the generation has ended for all members,
/// and their calls fail with the same error.
#[derive(thiserror::Error)]
pub enum GroupError {
    /// The list of members is invalid here, or the rank does not exist.
    #[error("cannot join the group: {cause}")]
    Members {
        /// The fault of the list.
        cause: String,
    },
    /// The member's port could not be opened.
    #[error(transparent)]
    Open(OpenError),
    /// Processes of members are gone.
    #[error(
        "members of the group are gone: {}; continue without them (reform_without)",
        List(.members)
    )]
    Gone {
        /// Members that are gone.
        members: Vec<Member>,
    },
    /// A member left the group before a call that others made.
    #[error("{member} left the group before this call; all members must make the same calls")]
    Left {
        /// The member that left.
        member: Member,
    },
    /// A member waited longer for others than its caller allowed.
    #[error(
        "{member} timed out waiting for {}; they may be late or have made other calls",
        List(.waited_for)
    )]
    TimedOut {
        /// The waiting member, possibly this one.
        member: Member,
        /// The members it waited for.
        waited_for: Vec<Member>,
    },
    /// Two members made different calls.
    #[error(
        "members made different calls: as call {number}, {} made {}, {} made {}",
        .calls[0].0, .calls[0].1, .calls[1].0, .calls[1].1
    )]
    Mismatch {
        /// Number of the call within the generation, including internal calls.
        number: u64,
        /// The two members and their calls.
        calls: [(Member, String); 2],
    },
    /// Other members have a different list or a newer generation.
    #[error(
        "other members have a different list, generation {} with {} members; give all the same \
         list",
        .theirs.generation, .theirs.addresses.len()
    )]
    Disagreement {
        /// The list that the other members have.
        theirs: Members,
    },
    /// The others have continued without this member.
    #[error(
        "the others continue without this member, as generation {} with {} members",
        .theirs.generation, .theirs.addresses.len()
    )]
    Excluded {
        /// The members of their generation.
        theirs: Members,
    },
    /// The program of this member cancelled its call ([`dipole_node::cancellable`]). For the other
    /// members it has timed out.
    #[error("the call was interrupted")]
    Interrupted,
    /// A message to a member could not be sent.
    #[error(transparent)]
    Send(SendError),
    /// The member's port is closed or broken.
    #[error(transparent)]
    Port(PortError),
}

/// The text for the user, because a `main` that returns an error prints it with `{:?}`.
impl fmt::Debug for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Formats a list of members.
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

pub(super) fn describe_call(call: &GroupCall) -> String {
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

/// The time until which a call may wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline(std::time::Instant);

impl Deadline {
    pub(super) fn after(timeout: Duration) -> Deadline {
        // Longer time-outs would overflow the clock.
        let never = Duration::from_secs(100 * 365 * 86_400);
        Deadline(std::time::Instant::now() + timeout.min(never))
    }

    pub(super) fn left(self) -> Duration {
        self.0.saturating_duration_since(std::time::Instant::now())
    }
}
