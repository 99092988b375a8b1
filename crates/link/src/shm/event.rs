//! Events and counters of a hub.

use super::ConnId;

/// The process at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its process id, as reported by the kernel; 0 if it is in another pid namespace.
    pub pid: i32,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// The greeting that it sent.
    pub greeting: Vec<u8>,
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The peer closed it or exited.
    HungUp,
    /// The peer's connection limit is reached.
    Full,
    /// This process, or the peer, has no free descriptors for the shared memory.
    NoDescriptors {
        /// True if the peer has none.
        at_peer: bool,
    },
    /// The peer violated the format.
    Violation {
        /// Description of the violation.
        what: &'static str,
    },
}

/// A change of a connection.
#[derive(Debug)]
pub enum ShmEvent {
    /// The connection is open: records can be pushed.
    Opened {
        /// Id of the connection.
        conn: ConnId,
        /// The process at the other end.
        peer: PeerInfo,
    },
    /// A connection that was open, or was opened by us, has ended. All its records were delivered.
    Closed {
        /// Id of the connection.
        conn: ConnId,
        /// Reason for the end.
        reason: CloseReason,
        /// True if the peer had taken all records.
        all_read: bool,
        /// Number of answers that the peer had made to them.
        answers: u64,
    },
}

/// Counters of a hub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShmStats {
    /// Number of records sent.
    pub records_out: u64,
    /// Bytes of the records sent.
    pub bytes_out: u64,
    /// Number of records received.
    pub records_in: u64,
    /// Bytes of the records received.
    pub bytes_in: u64,
    /// Wake-ups sent to sleeping peers.
    pub wakeups: u64,
    /// Number of large rings created.
    pub large_rings: u64,
    /// Bytes copied from peers' memory.
    pub pulled_bytes: u64,
    /// Connections closed because the peer violated the format.
    pub violations: u64,
    /// Connections rejected because they belong to another user.
    pub foreign_users: u64,
    /// Connections rejected because the limit is reached.
    pub rejected: u64,
}
