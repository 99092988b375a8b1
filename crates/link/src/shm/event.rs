//! What a hub tells: who came, who went and why, and counters.

use super::ConnId;

/// Who is at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerFacts {
    /// Its process, as the kernel says; 0 if it cannot be seen from here.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// What it told with its connection.
    pub greeting: Vec<u8>,
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Closing {
    /// Its process closed it or ended.
    HungUp,
    /// It has as many connections as it may.
    Full,
    /// It broke the format.
    Broke {
        /// How.
        what: &'static str,
    },
}

/// News of connections.
#[derive(Debug)]
pub enum ShmEvent {
    /// Records can be pushed.
    Opened {
        /// Which.
        conn: ConnId,
        /// Who.
        facts: PeerFacts,
    },
    /// It is over: it had been opened, or begun here. Everything that came has been shown.
    Closed {
        /// Which.
        conn: ConnId,
        /// Why.
        why: Closing,
        /// The peer had taken everything that was pushed.
        all_read: bool,
    },
}

/// Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShmStats {
    /// Records pushed.
    pub records_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
    /// Records taken.
    pub records_in: u64,
    /// Their bytes.
    pub bytes_in: u64,
    /// Sleeping peers woken.
    pub bells: u64,
    /// Large rings made.
    pub rings: u64,
    /// Bytes fetched from peers' memory.
    pub pulled_bytes: u64,
    /// Connections cut off because the peer broke the format.
    pub broken: u64,
    /// Connections of other users' processes, closed unheard.
    pub strangers: u64,
    /// Connections closed because there were as many as there may be.
    pub turned_away: u64,
}
