//! What the machine tells its caller, and names for what it speaks of.

use core::fmt;
use core::ops::Range;

use crate::wire::{Address, EdgeKey, RefusedReason, ResetReason};

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

/// One edge of a peer, in one direction; it names nothing any more once the edge has been
/// forgotten or the peer is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EdgeId {
    /// The peer.
    pub peer: PeerId,
    /// Position among the peer's edges of that direction, used again.
    pub index: u32,
    /// How often it was used before.
    pub generation: u32,
}

/// Generations only grow: two machines that differ in nothing else behave alike.
impl core::hash::Hash for EdgeId {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        (self.peer, self.index).hash(state);
    }
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GoneReason {
    /// It owed an answer for the configured time and gave none.
    Silent,
    /// It was silent, and its node says that it has ended.
    Died,
    /// It sent a Bye.
    Closed,
    /// Another process answers at its address now.
    Restarted,
    /// It no longer knows the session.
    Reset(ResetReason),
    /// It is not of our cluster.
    Key(KeyMismatch),
    /// It broke the rules of a pipe.
    ProtocolViolation,
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
            GoneReason::Reset(ResetReason::Security) => {
                "its cluster key has another security setting than ours"
            }
            GoneReason::Key(mismatch) => return mismatch.fmt(f),
            GoneReason::ProtocolViolation => "it broke the rules and was cut off",
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
    Restored {
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
    Suspected {
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
        /// It had acknowledged everything.
        acknowledged: bool,
    },
    /// A whole message is next in order: take it from the packet.
    Deliver {
        /// On which edge.
        edge: EdgeId,
        /// Sending endpoint.
        source: u32,
        /// Receiving endpoint.
        target: u32,
        /// Its bytes.
        bytes: Range<usize>,
    },
    /// Several whole messages of one edge are next in order: take them from the packet.
    DeliverRun {
        /// On which edge.
        edge: EdgeId,
        /// Sending endpoint.
        source: u32,
        /// Receiving endpoint.
        target: u32,
        /// Their records; [`Payloads`](crate::wire::Payloads) gives their bytes.
        records: Range<usize>,
    },
    /// A piece of a message that is not complete or not next: keep it.
    Hold {
        /// On which edge.
        edge: EdgeId,
        /// Receiving endpoint.
        target: u32,
        /// Which message.
        sequence: u64,
        /// Where the piece belongs.
        offset: u64,
        /// Length of the whole message, or of an operation's data.
        total: u64,
        /// It is of an operation on memory: the bytes begin with its
        /// [head](crate::wire::Operation), whose place alone counts; what `bytes` then holds of
        /// its data is the piece. Pieces in a pipe come without it, after a first one of the
        /// head alone.
        operation: bool,
        /// The piece.
        bytes: Range<usize>,
    },
    /// An operation on memory is whole and next in order.
    Operation {
        /// On which edge. It is [consumed](crate::Machine::consumed), as a message without
        /// bytes, once it is done.
        edge: EdgeId,
        /// Endpoint that asks for it.
        source: u32,
        /// Endpoint that is asked.
        target: u32,
        /// Its head and its data.
        bytes: Range<usize>,
    },
    /// A message kept by `Hold` is complete and next in order.
    Complete {
        /// On which edge.
        edge: EdgeId,
        /// Sending endpoint.
        source: u32,
        /// Receiving endpoint.
        target: u32,
        /// Which message.
        sequence: u64,
    },
    /// A piece of an unreliable message.
    Unreliable {
        /// From whom.
        peer: PeerId,
        /// On which edge.
        key: EdgeKey,
        /// Which unreliable message; a new number discards an unfinished one.
        sequence: u32,
        /// Where the piece belongs.
        offset: u64,
        /// Length of the whole message.
        total: u64,
        /// The piece.
        bytes: Range<usize>,
    },
    /// A long message lies in the memory of a process of this node: copy it from there
    /// into what [`Event::Hold`] began, then say [`Machine::fetch_completed`](crate::Machine::fetch_completed)
    /// or [`Machine::fetch_failed`](crate::Machine::fetch_failed).
    Fetch {
        /// On which edge.
        edge: EdgeId,
        /// Which message.
        sequence: u64,
        /// The peer's number of the edge.
        number: u32,
        /// Length of the message.
        total: u64,
        /// Where it lies there.
        address: u64,
    },
    /// A long message that was offered has been taken: its memory is free.
    OfferDone {
        /// On which edge.
        edge: EdgeId,
        /// Which message.
        sequence: u64,
    },
    /// A long message that was offered cannot be copied by the peer: push it in pieces.
    PiecesRequested {
        /// On which edge.
        edge: EdgeId,
        /// Which message.
        sequence: u64,
    },
    /// An outgoing edge that was closed is forgotten by both sides.
    EdgeForgotten {
        /// Which edge it was.
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
