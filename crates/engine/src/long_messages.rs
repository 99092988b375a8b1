//! Outgoing long messages, and the protocol's events about them.

use dipole_proto::EdgeId;

use super::packer::PacketSend;

/// An event of the protocol about long messages.
#[derive(Debug)]
pub(crate) enum LongEvent {
    /// A message can be fetched from the peer's memory.
    Fetch {
        edge: EdgeId,
        sequence: u64,
        number: u32,
        total: u64,
        address: u64,
    },
    /// The peer has fetched one of our messages.
    Taken { edge: EdgeId, sequence: u64 },
    /// The peer requests one of our messages in pieces.
    Stream { edge: EdgeId, sequence: u64 },
}

/// Identifies an outgoing long message in shared memory.
pub(crate) type LongId = (EdgeId, u64);

/// A long message being sent. It must be continued to its end, moved to the background, or
/// abandoned.
#[derive(Debug)]
pub struct LongSend(pub(super) Long);

#[derive(Debug)]
pub(super) enum Long {
    Packets(PacketSend),
    Memory(LongId),
}
