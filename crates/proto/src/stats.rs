//! Counters, and the reasons for which packets are dropped.

/// Why a packet, or a record in it, was not used. Each reason has a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// Not a packet of this protocol, or cut short.
    Malformed,
    /// Another protocol version.
    Version,
    /// The trailer doesn't fit the bytes (told by the caller, who checks it).
    Damaged,
    /// No session has that connection id.
    UnknownConnection,
    /// A hello whose cookie is not ours or too old.
    WrongCookie,
    /// A packet number or unit seen before.
    Duplicate,
    /// A lane that this session doesn't have, or too many holes to keep.
    Untracked,
    /// The pool is low and this is not the next unit in sequence.
    PoolLow,
    /// The pool has no room at all.
    PoolFull,
    /// The peer broke a rule (credit, contradicting pieces, records out of place).
    Violation,
    /// Handshakes beyond what is answered per second.
    Throttled,
    /// A handshake of somebody who does not prove to hold our cluster key.
    WrongKey,
    /// It needs an edge, and there are as many as there may be.
    EdgesFull,
    /// Not damaged, but its tag is wrong: somebody else made or changed it.
    Forged,
    /// A packet of the session that was taken before, or is too old to tell.
    Replayed,
    /// A handshake with somebody who offers no trailer that we take.
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

/// What the machine has done so far (thesis table 6.6, and the reasons for drops).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Units sent for the first time.
    pub units_sent: u64,
    /// Units sent again.
    pub repeats: u64,
    /// Of those, first and last of a tail that seemed lost.
    pub tail_repeats: u64,
    /// Units received for the first time.
    pub units_received: u64,
    /// Packets that carried nothing but acknowledgement state.
    pub explicit_acks: u64,
    /// Prods sent.
    pub ack_requests: u64,
    /// Units acknowledged by the structure of the computation (`ack_through`).
    pub implicit_acks: u64,
    /// Messages handed over.
    pub messages_delivered: u64,
    /// Messages whose endpoint was missing.
    pub messages_refused: u64,
    /// Unreliable packets sent.
    pub unreliable_sent: u64,
    /// Lanes given up, their units handed to another.
    pub lanes_lost: u64,
    /// Probes sent, which ask whether an address of a peer answers.
    pub probes: u64,
    drops: [u64; DropReason::ALL.len()],
}

impl Stats {
    /// Counts a drop.
    pub fn count(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }

    /// How often a reason applied.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// Reasons and their counts.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.into_iter().zip(self.drops)
    }
}
