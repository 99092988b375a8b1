//! Reasons for the end of a session.

use std::fmt;

use dipole_proto::wire::ResetReason;

use crate::key::KeyMismatch;

/// Why a peer is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GoneReason {
    /// It owed an answer and sent nothing for the configured time.
    Silent,
    /// Its node's directory reports that the process is running, but none of its packets arrive.
    Unreachable,
    /// The peer closed the session.
    Closed,
    /// Another process now has its address.
    Restarted,
    /// It no longer knows the session.
    Reset(ResetReason),
    /// It was killed or crashed. For a process of another node, that node's directory
    /// reports this.
    Died,
    /// It violated the shared-memory format and was disconnected.
    ProtocolViolation,
    /// This process has no free descriptors for memory shared with it.
    NoDescriptors,
    /// It has no free descriptors for memory shared with this process.
    NoDescriptorsAtPeer,
    /// It belongs to another cluster: its cluster key differs, or only one side has one.
    Key(KeyMismatch),
}

impl From<dipole_proto::GoneReason> for GoneReason {
    fn from(reason: dipole_proto::GoneReason) -> GoneReason {
        match reason {
            dipole_proto::GoneReason::Silent => GoneReason::Silent,
            dipole_proto::GoneReason::Unreachable => GoneReason::Unreachable,
            dipole_proto::GoneReason::Died => GoneReason::Died,
            dipole_proto::GoneReason::Closed => GoneReason::Closed,
            dipole_proto::GoneReason::Restarted => GoneReason::Restarted,
            dipole_proto::GoneReason::Reset(reason) => GoneReason::Reset(reason),
            dipole_proto::GoneReason::Key(mismatch) => GoneReason::Key(match mismatch {
                dipole_proto::KeyMismatch::Different => KeyMismatch::Different,
                dipole_proto::KeyMismatch::OnlyOurs => KeyMismatch::OnlyOurs,
                dipole_proto::KeyMismatch::OnlyTheirs => KeyMismatch::OnlyTheirs,
            }),
            dipole_proto::GoneReason::ProtocolViolation => GoneReason::ProtocolViolation,
            dipole_proto::GoneReason::NoDescriptors => GoneReason::NoDescriptors,
            dipole_proto::GoneReason::NoDescriptorsAtPeer => GoneReason::NoDescriptorsAtPeer,
        }
    }
}

impl fmt::Display for GoneReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GoneReason::Silent => dipole_proto::GoneReason::Silent.fmt(f),
            GoneReason::Unreachable => dipole_proto::GoneReason::Unreachable.fmt(f),
            GoneReason::Closed => dipole_proto::GoneReason::Closed.fmt(f),
            GoneReason::Restarted => dipole_proto::GoneReason::Restarted.fmt(f),
            GoneReason::Reset(reason) => dipole_proto::GoneReason::Reset(*reason).fmt(f),
            GoneReason::Key(mismatch) => mismatch.fmt(f),
            GoneReason::Died => dipole_proto::GoneReason::Died.fmt(f),
            GoneReason::ProtocolViolation => dipole_proto::GoneReason::ProtocolViolation.fmt(f),
            GoneReason::NoDescriptors => dipole_proto::GoneReason::NoDescriptors.fmt(f),
            GoneReason::NoDescriptorsAtPeer => dipole_proto::GoneReason::NoDescriptorsAtPeer.fmt(f),
        }
    }
}
