//! Events that the machine reports, and the ids used in them.

use core::fmt;
use core::ops::Range;
use serde::{Deserialize, Serialize};

use crate::wire::{Address, EdgeKey, RefusedReason, ResetReason};

/// A remote process to which a session or pipe exists or existed. It is the connection id in the
/// peer's packets. Ids of ended sessions are not reused soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PeerId(pub(crate) u32);

/// Bits of a connection id that form an index into the machine's table.
pub(crate) const INDEX_BITS: u32 = 14;

impl PeerId {
    /// Position in the machine's table of peers. It is reused after the peer is gone.
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

/// One edge of a peer in one direction. The id is invalid once the edge is forgotten or the peer
/// is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EdgeId {
    /// Id of the peer.
    pub peer: PeerId,
    /// Position among the peer's edges of that direction. Positions are reused.
    pub index: u32,
    /// How often the position was used before.
    pub generation: u32,
}

/// A message of an outgoing edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EdgePosition {
    /// Life of the edge, see [`EdgeKey`].
    pub life: u8,
    /// Its number among the messages of that life.
    pub sequence: u64,
}

/// Generations only grow. Machines that differ only in them behave alike.
impl core::hash::Hash for EdgeId {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        (self.peer, self.index).hash(state);
    }
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GoneReason {
    /// It owed an answer and sent none within the configured time.
    Silent,
    /// Its node reports that the process is running, but none of its packets arrive.
    Unreachable,
    /// It was silent, and its node reports that the process has ended.
    Died,
    /// It sent a Bye.
    Closed,
    /// Another process uses its address now.
    Restarted,
    /// It does not know the session any more, or refuses it.
    Reset(ResetReason),
    /// It belongs to another cluster.
    Key(KeyMismatch),
    /// It broke a rule of the protocol in a pipe.
    ProtocolViolation,
    /// This process has no free descriptors for memory shared with it.
    NoDescriptors,
    /// It has no free descriptors for memory shared with this process.
    NoDescriptorsAtPeer,
}

/// How the cluster keys of two processes differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum KeyMismatch {
    /// Both have a key, but different ones.
    Different,
    /// Only this process has one.
    OnlyOurs,
    /// Only the other process has one.
    OnlyTheirs,
}

impl KeyMismatch {
    /// The mismatch as seen from this process.
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
            KeyMismatch::Different => "it has a different cluster key than this process",
            KeyMismatch::OnlyOurs => "it has no cluster key, but this process has one",
            KeyMismatch::OnlyTheirs => "it has a cluster key, but this process has none",
        })
    }
}

impl fmt::Display for GoneReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GoneReason::Silent => {
                "it did not answer in time (DIPOLE_PEER_TIMEOUT_MS sets the limit)"
            }
            GoneReason::Unreachable => {
                "its node reports that it is running, but none of its packets arrive; check the \
                 addresses in the hosts file, routes and firewalls (`dipole doctor`)"
            }
            GoneReason::Died => "it ended without closing the session (killed or crashed)",
            GoneReason::Closed => "it closed the session",
            GoneReason::Restarted => "another process has taken its place",
            GoneReason::Reset(ResetReason::UnknownConnection) => {
                "it does not know the session any more: it was restarted, or this process did not \
                 answer it in time (DIPOLE_PEER_TIMEOUT_MS sets the limit)"
            }
            GoneReason::Reset(ResetReason::Version) => "it uses another protocol version",
            GoneReason::Reset(ResetReason::TooManyPeers) => "it has reached its limit of peers",
            GoneReason::Reset(ResetReason::Key) => "it belongs to another cluster",
            GoneReason::Reset(ResetReason::Security) => {
                "its cluster key has another security setting than that of this process"
            }
            GoneReason::Key(mismatch) => return mismatch.fmt(f),
            GoneReason::ProtocolViolation => "it violated the protocol and was cut off",
            GoneReason::NoDescriptors => {
                "this process has no free descriptors for memory shared with it; raise `ulimit -n`"
            }
            GoneReason::NoDescriptorsAtPeer => {
                "it has no free descriptors for shared memory; raise its `ulimit -n`"
            }
        })
    }
}

/// A change of the paths to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PathChange {
    /// All lanes that will answer soon have answered. Reported once per session, and after
    /// addresses of either side have changed.
    Settled,
    /// A lane has stopped answering. Its units are sent on others.
    Lost {
        /// Index of the lane.
        lane: u8,
    },
    /// A lane answers that did not answer before.
    Restored {
        /// Index of the lane.
        lane: u8,
    },
    /// The peer has announced that it listens at other addresses than before.
    Moved,
    /// The length of packets to the peer, with their trailer, has changed, because the path or the
    /// link does not carry longer ones or carries them again.
    PacketBytes {
        /// New length in bytes, including the trailer.
        bytes: usize,
    },
    /// Packets of the least length do not get through, but shorter ones do: nothing can be sent.
    TooNarrow {
        /// The least length in bytes, including the trailer.
        bytes: usize,
    },
}

/// An event. `bytes` are positions in the packet that was just passed in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Event {
    /// The session is open in both directions.
    Connected {
        /// Id of the peer.
        peer: PeerId,
        /// Node on which the peer runs, as it reports.
        node: u32,
        /// Incarnation of the peer.
        incarnation: u64,
    },
    /// The peer owes an answer and has been silent. A third party may report that its process is
    /// alive ([`Machine::confirm_alive`](crate::Machine::confirm_alive)) or that it has ended
    /// ([`Machine::give_up`](crate::Machine::give_up)).
    Suspected {
        /// Id of the peer.
        peer: PeerId,
    },
    /// A process was refused because the limit of peers is reached and none of the idle peers is
    /// dead. Reported at most once per second.
    TooManyPeers {
        /// Address of the process.
        from: Address,
    },
    /// The paths to a peer have changed. [`Machine::lanes`](crate::Machine::lanes) returns their
    /// present state.
    Paths {
        /// Id of the peer.
        peer: PeerId,
        /// The change of the paths.
        change: PathChange,
    },
    /// The session has ended. Messages that had not arrived are lost.
    Gone {
        /// Id of the peer.
        peer: PeerId,
        /// Reason for the end.
        reason: GoneReason,
        /// The peer had acknowledged everything.
        acknowledged: bool,
    },
    /// A whole message is next in order: take it from the packet.
    Deliver {
        /// Id of the edge.
        edge: EdgeId,
        /// Id of the sending endpoint.
        source: u32,
        /// Id of the receiving endpoint.
        target: u32,
        /// Range of the payload in the packet.
        bytes: Range<usize>,
    },
    /// Several whole messages of one edge are next in order: take them from the packet.
    DeliverRun {
        /// Id of the edge.
        edge: EdgeId,
        /// Id of the sending endpoint.
        source: u32,
        /// Id of the receiving endpoint.
        target: u32,
        /// Their records; [`Payloads`](crate::wire::Payloads) returns the payloads.
        records: Range<usize>,
    },
    /// A piece of a message that is incomplete or not next in order: store it.
    Hold {
        /// Id of the edge.
        edge: EdgeId,
        /// Id of the receiving endpoint.
        target: u32,
        /// Number of the message.
        sequence: u64,
        /// Position of the piece in the message.
        offset: u64,
        /// Length of the whole message, or of an operation's data.
        total: u64,
        /// The piece belongs to an operation on memory. `bytes` begins with the operation's
        /// [head](crate::wire::Operation), and `offset` is the position of the data after it. In a
        /// pipe only the first piece, which has no data, contains the head.
        operation: bool,
        /// Range of the piece in the packet.
        bytes: Range<usize>,
    },
    /// An operation on memory is complete and next in order.
    Operation {
        /// Its edge. When the operation is done, it must be [consumed](crate::Machine::consumed) as
        /// an empty message.
        edge: EdgeId,
        /// Endpoint that requests it.
        source: u32,
        /// Endpoint that owns the memory.
        target: u32,
        /// Its head and its data.
        bytes: Range<usize>,
    },
    /// A message stored by `Hold` is complete and next in order.
    Complete {
        /// Id of the edge.
        edge: EdgeId,
        /// Id of the sending endpoint.
        source: u32,
        /// Id of the receiving endpoint.
        target: u32,
        /// Number of the message.
        sequence: u64,
    },
    /// A piece of an unreliable message.
    Unreliable {
        /// Id of the peer.
        peer: PeerId,
        /// Key of the edge.
        key: EdgeKey,
        /// Number of the message. A new number discards an unfinished one.
        sequence: u32,
        /// Position of the piece in the message.
        offset: u64,
        /// Length of the whole message.
        total: u64,
        /// Range of the piece in the packet.
        bytes: Range<usize>,
    },
    /// A long message is in the memory of a process of this node. Copy it from there into the
    /// message that [`Event::Hold`] has begun, then call
    /// [`Machine::fetch_completed`](crate::Machine::fetch_completed) or
    /// [`Machine::fetch_failed`](crate::Machine::fetch_failed).
    Fetch {
        /// Id of the edge.
        edge: EdgeId,
        /// Number of the message.
        sequence: u64,
        /// The peer's number of the edge.
        number: u32,
        /// Length of the message.
        total: u64,
        /// Its address in the peer's memory.
        address: u64,
    },
    /// A long message that was offered has been copied or refused: its memory is free.
    OfferDone {
        /// Id of the edge.
        edge: EdgeId,
        /// Number of the message.
        sequence: u64,
    },
    /// The peer cannot copy a long message that was offered: push it in pieces.
    PiecesRequested {
        /// Id of the edge.
        edge: EdgeId,
        /// Number of the message.
        sequence: u64,
    },
    /// Both sides have forgotten an outgoing edge that was closed.
    EdgeForgotten {
        /// Id of the edge.
        edge: EdgeId,
    },
    /// After refusals, it is known which of all acknowledged messages the peer has refused.
    Settled {
        /// The peer.
        peer: PeerId,
    },
    /// An outgoing edge that waited for credit may send now.
    Credit {
        /// Id of the edge.
        edge: EdgeId,
    },
    /// The peer refuses messages of an outgoing edge.
    Refused {
        /// The peer.
        peer: PeerId,
        /// Source and target of the edge.
        ends: (u32, u32),
        /// Id of the edge, unless it has ended.
        edge: Option<EdgeId>,
        /// The first refused message.
        sequence: u64,
        /// Messages from this one on are not concerned: the edge was opened again before it was sent.
        before: EdgePosition,
        /// Why they are refused.
        reason: RefusedReason,
    },
}
