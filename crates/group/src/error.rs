//! Errors of groups.

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
    /// The member's port.
    pub address: Address,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} ({})", self.rank, self.address)
    }
}

/// Why a group call failed. Except for the first two, the generation has ended for all members,
/// and their calls fail with the same error.
#[derive(Debug)]
pub enum GroupError {
    /// The list of members is invalid here, or there is no such rank.
    Members {
        /// What is wrong with it.
        cause: String,
    },
    /// The member's port could not be opened.
    Open(OpenError),
    /// Processes of members are gone.
    Gone {
        /// Which members.
        members: Vec<Member>,
    },
    /// A member left the group before a call that others made.
    Left {
        /// Which member.
        member: Member,
    },
    /// A member waited longer for others than its caller allowed.
    TimedOut {
        /// The waiting member, possibly this one.
        member: Member,
        /// The members it waited for.
        waited_for: Vec<Member>,
    },
    /// Two members made different calls.
    Mismatch {
        /// Number of the call within the generation, including internal calls.
        number: u64,
        /// The two members and their calls.
        calls: [(Member, String); 2],
    },
    /// Other members have a different list or a newer generation.
    Disagreement {
        /// Their list.
        theirs: Members,
    },
    /// The others have continued without this member.
    Excluded {
        /// The members of their generation.
        theirs: Members,
    },
    /// Sending failed.
    Send(SendError),
    /// The member's port is closed or broken.
    Port(PortError),
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

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GroupError::Members { cause } => write!(f, "cannot join the group: {cause}"),
            GroupError::Open(cause) => cause.fmt(f),
            GroupError::Gone { members } => write!(
                f,
                "members of the group are gone: {}; continue without them (reform_without)",
                List(members)
            ),
            GroupError::Left { member } => write!(
                f,
                "{member} left the group before this call; all members must make the same calls"
            ),
            GroupError::TimedOut { member, waited_for } => write!(
                f,
                "{member} timed out waiting for {}; they may be late or have made other calls",
                List(waited_for)
            ),
            GroupError::Mismatch { number, calls } => write!(
                f,
                "members made different calls: as call {number}, {} made {}, {} made {}",
                calls[0].0, calls[0].1, calls[1].0, calls[1].1
            ),
            GroupError::Disagreement { theirs } => write!(
                f,
                "other members have a different list, generation {} with {} members; \
                 give all the same list",
                theirs.generation,
                theirs.addresses.len()
            ),
            GroupError::Excluded { theirs } => write!(
                f,
                "the others continue without this member, as generation {} with {} members",
                theirs.generation,
                theirs.addresses.len()
            ),
            GroupError::Send(cause) => cause.fmt(f),
            GroupError::Port(cause) => cause.fmt(f),
        }
    }
}

impl std::error::Error for GroupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            GroupError::Open(cause) => cause.source(),
            GroupError::Send(cause) => cause.source(),
            GroupError::Port(cause) => cause.source(),
            _ => None,
        }
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
