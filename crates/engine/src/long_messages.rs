//! Long messages on their way, and their events, from the protocol to the part that copies them.

use dipole_proto::EdgeId;

use super::packer::PacketSend;

/// What the machine says of long messages.
#[derive(Debug)]
pub(crate) enum LongNews {
    /// One can be copied from the peer's memory.
    Fetch {
        edge: EdgeId,
        sequence: u64,
        number: u32,
        total: u64,
        address: u64,
    },
    /// The peer has copied one of ours.
    Taken { edge: EdgeId, sequence: u64 },
    /// The peer wants one of ours in pieces.
    Stream { edge: EdgeId, sequence: u64 },
}

/// A long message of ours in shared memory.
pub(crate) type LongId = (EdgeId, u64);

/// A long message on its way; it must be continued to its end, kept, or abandoned.
#[derive(Debug)]
pub struct LongSend(pub(super) Long);

#[derive(Debug)]
pub(super) enum Long {
    Packets(PacketSend),
    Memory(LongId),
}
