//! Counters, and the reasons for which packets are dropped.

use serde::{Deserialize, Serialize};

/// Why a packet, or a record in it, was dropped. Each reason has a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DropReason {
    /// It is not a packet of this protocol, or it is truncated.
    Malformed,
    /// It has another protocol version.
    Version,
    /// Its trailer does not match its bytes. Counted by the caller.
    Damaged,
    /// No session has that connection id.
    UnknownConnection,
    /// Its cookie was not created here, or is too old.
    WrongCookie,
    /// Its packet number or unit has arrived before.
    Duplicate,
    /// Its lane does not exist in this session, or it would open too many holes.
    Untracked,
    /// The pool is low, and this is not the next unit in sequence.
    PoolLow,
    /// The pool is full.
    PoolFull,
    /// The peer broke a rule: credit, contradicting pieces, misplaced records.
    Violation,
    /// It is a handshake packet beyond the rate that is answered.
    Throttled,
    /// It is a handshake packet without a proof by this process's cluster key.
    WrongKey,
    /// It needs another edge, and the limit is reached.
    EdgesFull,
    /// It is undamaged, but its tag is wrong: it was not sent by the peer.
    Forged,
    /// It has arrived before, or is too old to know.
    Replayed,
    /// It is a handshake packet without an acceptable trailer.
    Security,
}

impl DropReason {
    /// All reasons, in the order of [`Stats::drops`].
    pub const ALL: [DropReason; 16] = [
        DropReason::Malformed,
        DropReason::Version,
        DropReason::Damaged,
        DropReason::UnknownConnection,
        DropReason::WrongCookie,
        DropReason::Duplicate,
        DropReason::Untracked,
        DropReason::PoolLow,
        DropReason::PoolFull,
        DropReason::Violation,
        DropReason::Throttled,
        DropReason::WrongKey,
        DropReason::EdgesFull,
        DropReason::Forged,
        DropReason::Replayed,
        DropReason::Security,
    ];

    /// A name for tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DropReason::Malformed => "malformed",
            DropReason::Version => "version",
            DropReason::Damaged => "damaged",
            DropReason::UnknownConnection => "unknown-connection",
            DropReason::WrongCookie => "wrong-cookie",
            DropReason::Duplicate => "duplicate",
            DropReason::Untracked => "untracked",
            DropReason::PoolLow => "pool-low",
            DropReason::PoolFull => "pool-full",
            DropReason::Violation => "violation",
            DropReason::Throttled => "throttled",
            DropReason::WrongKey => "wrong-key",
            DropReason::EdgesFull => "edges-full",
            DropReason::Forged => "forged",
            DropReason::Replayed => "replayed",
            DropReason::Security => "security",
        }
    }
}

/// Counters of a machine (table 6.6 of the thesis, and drops by reason).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Units sent for the first time.
    pub units_sent: u64,
    /// Number of units sent again.
    pub repeats: u64,
    /// Of those, first and last pieces of a tail that seemed lost.
    pub tail_repeats: u64,
    /// Units received for the first time.
    pub units_received: u64,
    /// Packets that carried nothing but acknowledgement state.
    pub explicit_acks: u64,
    /// Number of `AckRequest` packets sent.
    pub ack_requests: u64,
    /// Messages begun, without unreliable ones; a memory operation is a message without bytes.
    pub messages_sent: u64,
    /// Bytes of these messages.
    pub message_bytes_sent: u64,
    /// Number of messages delivered.
    pub messages_delivered: u64,
    /// Bytes of these messages.
    pub message_bytes_delivered: u64,
    /// Messages refused because their endpoint does not exist.
    pub messages_refused: u64,
    /// Number of unreliable packets sent.
    pub unreliable_sent: u64,
    /// Lanes given up after time-outs.
    pub lanes_lost: u64,
    /// Probes of peers' addresses sent.
    pub probes: u64,
    drops: [u64; DropReason::ALL.len()],
}

impl Stats {
    /// Counts a message that was begun.
    #[inline]
    pub(crate) fn count_begun(&mut self, bytes: u64) {
        self.messages_sent += 1;
        self.message_bytes_sent += bytes;
    }

    /// Undoes [`count_begun`](Self::count_begun).
    pub(crate) fn uncount_begun(&mut self, bytes: u64) {
        self.messages_sent = self.messages_sent.saturating_sub(1);
        self.message_bytes_sent = self.message_bytes_sent.saturating_sub(bytes);
    }

    /// Counts messages that were delivered.
    #[inline]
    pub(crate) fn count_delivered(&mut self, count: u64, bytes: u64) {
        self.messages_delivered += count;
        self.message_bytes_delivered += bytes;
    }

    /// Counts a dropped packet.
    pub fn count(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }

    /// How many packets were dropped for a reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// All reasons and their counts.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.into_iter().zip(self.drops)
    }
}
