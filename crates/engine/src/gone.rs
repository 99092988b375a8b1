//! Why a peer is gone.

use std::fmt;

use dipole_proto::wire::ResetReason;

use crate::key::KeyMismatch;

/// Why a peer process is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GoneReason {
    /// It owed an answer for the configured time and gave none.
    Silent,
    /// It said goodbye.
    Closed,
    /// Another process answers at its address now.
    Restarted,
    /// It no longer knows the session.
    Reset(ResetReason),
    /// It ended without a word: killed or crashed. Between nodes, the directory of its node
    /// says so.
    Died,
    /// It broke the format of the memory shared with it and was cut off.
    Misbehaved,
    /// It is not of our cluster: it has another cluster key, or only one side has one.
    Key(KeyMismatch),
}

impl From<dipole_proto::GoneReason> for GoneReason {
    fn from(reason: dipole_proto::GoneReason) -> GoneReason {
        match reason {
            dipole_proto::GoneReason::Silent => GoneReason::Silent,
            dipole_proto::GoneReason::Died => GoneReason::Died,
            dipole_proto::GoneReason::Closed => GoneReason::Closed,
            dipole_proto::GoneReason::Restarted => GoneReason::Restarted,
            dipole_proto::GoneReason::Reset(reason) => GoneReason::Reset(reason),
            dipole_proto::GoneReason::Key(mismatch) => GoneReason::Key(match mismatch {
                dipole_proto::KeyMismatch::Different => KeyMismatch::Different,
                dipole_proto::KeyMismatch::OnlyOurs => KeyMismatch::OnlyOurs,
                dipole_proto::KeyMismatch::OnlyTheirs => KeyMismatch::OnlyTheirs,
            }),
            dipole_proto::GoneReason::Misbehaved => GoneReason::Misbehaved,
        }
    }
}

impl fmt::Display for GoneReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GoneReason::Silent => dipole_proto::GoneReason::Silent.fmt(f),
            GoneReason::Closed => dipole_proto::GoneReason::Closed.fmt(f),
            GoneReason::Restarted => dipole_proto::GoneReason::Restarted.fmt(f),
            GoneReason::Reset(reason) => dipole_proto::GoneReason::Reset(*reason).fmt(f),
            GoneReason::Key(mismatch) => mismatch.fmt(f),
            GoneReason::Died => dipole_proto::GoneReason::Died.fmt(f),
            GoneReason::Misbehaved => dipole_proto::GoneReason::Misbehaved.fmt(f),
        }
    }
}
