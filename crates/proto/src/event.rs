//! What the machine tells its caller, and names for what it speaks of.

use core::fmt;
use core::ops::Range;

use crate::send::Slot;
use crate::wire::{Address, RefusedReason, ResetReason};

/// A remote process that a session leads to, or led to. It is the connection id
/// that the peer's packets carry; ids of ended sessions are not used again soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub(crate) u32);

/// Bits of a connection id that are an index into the machine's table.
pub(crate) const INDEX_BITS: u32 = 14;

impl PeerId {
    /// Position in the machine's table of sessions; reused after the peer is gone.
    #[must_use]
    pub fn index(self) -> usize {
        (self.0 & ((1 << INDEX_BITS) - 1)) as usize
    }

    /// The connection id on the wire.
    #[must_use]
    pub fn connection(self) -> u32 {
        self.0
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// One edge of a session, in one direction; valid as long as its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EdgeId {
    /// The session.
    pub peer: PeerId,
    /// Position among the session's edges of that direction.
    pub index: u32,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GoneReason {
    /// It owed an answer for the configured time and gave none.
    Silent,
    /// It was silent, and its node says that it has ended.
    Died,
    /// It said goodbye.
    Closed,
    /// Another process answers at its address now.
    Restarted,
    /// It no longer knows the session.
    Reset(ResetReason),
    /// It is not of our cluster.
    Key(KeyMismatch),
}

/// How the cluster keys of two processes differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyMismatch {
    /// Both have one, but not the same.
    Different,
    /// Only we have one.
    OnlyOurs,
    /// Only the other has one.
    OnlyTheirs,
}

impl KeyMismatch {
    /// What it is, seen from here.
    #[must_use]
    pub fn between(ours: bool, theirs: bool) -> KeyMismatch {
        match (ours, theirs) {
            (true, false) => KeyMismatch::OnlyOurs,
            (false, true) => KeyMismatch::OnlyTheirs,
            _ => KeyMismatch::Different,
        }
    }
}

impl fmt::Display for KeyMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeyMismatch::Different => "it has another cluster key than this process",
            KeyMismatch::OnlyOurs => "it has no cluster key, this process has one",
            KeyMismatch::OnlyTheirs => "it has a cluster key, this process has none",
        })
    }
}

impl fmt::Display for GoneReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GoneReason::Silent => "it did not answer in time",
            GoneReason::Died => "it ended without a goodbye (killed or crashed)",
            GoneReason::Closed => "it closed the session",
            GoneReason::Restarted => "another process has taken its place",
            GoneReason::Reset(ResetReason::UnknownConnection) => "it no longer knows the session",
            GoneReason::Reset(ResetReason::Version) => "it speaks another protocol version",
            GoneReason::Reset(ResetReason::TooManyPeers) => "it takes no further peers",
            GoneReason::Reset(ResetReason::Key) => "it is of another cluster",
            GoneReason::Key(mismatch) => return mismatch.fmt(f),
        })
    }
}

/// What has become known of the ways to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathChange {
    /// All lanes that will answer soon have answered; told once per session.
    Settled,
    /// A lane has stopped answering; its units go on over others.
    Lost {
        /// Which.
        lane: u8,
    },
    /// A lane answers that did not.
    Back {
        /// Which.
        lane: u8,
    },
    /// Packets to the peer are as long as this from now on, trailer included: the path, or
    /// the link, takes no longer ones, or does so again.
    PacketBytes {
        /// How long.
        bytes: usize,
    },
}

/// One thing that happened. `bytes` are positions in the packet just given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The session is open in both directions.
    Connected {
        /// With whom.
        peer: PeerId,
        /// The peer's node id, as it says.
        node: u32,
        /// The peer's incarnation.
        incarnation: u64,
    },
    /// The peer owes an answer and has been silent: whoever knows its process may say
    /// that it lives ([`Machine::vouch`](crate::Machine::vouch)) or that it has ended
    /// ([`Machine::give_up`](crate::Machine::give_up)).
    Quiet {
        /// Who.
        peer: PeerId,
    },
    /// A process was turned away because there are as many peers as there may be, and none of
    /// the idle ones is dead. Told once a second at most.
    TooManyPeers {
        /// Where it is.
        from: Address,
    },
    /// What is known of the ways to a peer has changed; all of it is told by
    /// [`Machine::lanes`](crate::Machine::lanes).
    Paths {
        /// Which peer.
        peer: PeerId,
        /// What has changed.
        change: PathChange,
    },
    /// The session has ended; what had not arrived never will by this session.
    Gone {
        /// With whom.
        peer: PeerId,
        /// Why.
        reason: GoneReason,
    },
    /// The slot's unit has arrived, or never will: the frame is the caller's again.
    Released {
        /// Which frame.
        slot: Slot,
    },
    /// A peer uses an edge for the first time.
    EdgeOpened {
        /// The new edge.
        edge: EdgeId,
        /// Sending endpoint.
        source: u32,
        /// Receiving endpoint.
        target: u32,
    },
    /// A whole message is next in order: take it from the packet.
    Deliver {
        /// On which edge.
        edge: EdgeId,
        /// Its bytes.
        bytes: Range<usize>,
    },
    /// A piece of a message that is not complete or not next: keep it.
    Hold {
        /// On which edge.
        edge: EdgeId,
        /// Which message.
        sequence: u64,
        /// Where the piece belongs.
        offset: u64,
        /// Length of the whole message.
        total: u64,
        /// The piece.
        bytes: Range<usize>,
    },
    /// A message kept by `Hold` is complete and next in order.
    Complete {
        /// On which edge.
        edge: EdgeId,
        /// Which message.
        sequence: u64,
    },
    /// A piece of an unreliable message.
    Loose {
        /// On which edge.
        edge: EdgeId,
        /// Which unreliable message; a new number discards an unfinished one.
        sequence: u32,
        /// Where the piece belongs.
        offset: u64,
        /// Length of the whole message.
        total: u64,
        /// The piece.
        bytes: Range<usize>,
    },
    /// Data for an open region.
    Placed {
        /// From whom.
        peer: PeerId,
        /// Which region.
        region: u32,
        /// Notification number, zero for none.
        notify: u32,
        /// Where the data belong.
        offset: u64,
        /// The data.
        bytes: Range<usize>,
    },
    /// A peer opened a region of its memory to us.
    RegionOpened {
        /// Whose.
        peer: PeerId,
        /// Which.
        region: u32,
        /// Key for placements.
        key: u64,
        /// Bytes.
        length: u64,
    },
    /// A peer closed a region.
    RegionClosed {
        /// Whose.
        peer: PeerId,
        /// Which.
        region: u32,
    },
    /// The source of an incoming edge sends nothing more.
    EdgeEnded {
        /// Which edge.
        edge: EdgeId,
    },
    /// An outgoing edge that waited for credit got some.
    Credit {
        /// Which edge.
        edge: EdgeId,
    },
    /// Messages of an outgoing edge were not taken, from this one on.
    Refused {
        /// Which edge.
        edge: EdgeId,
        /// The first message concerned.
        sequence: u64,
        /// Why.
        reason: RefusedReason,
    },
}
