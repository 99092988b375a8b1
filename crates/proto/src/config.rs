//! What the caller decides once per process.

use crate::time::{MICROSECOND, MILLISECOND, SECOND};
use crate::wire::{SHARE_BYTES, Trailers};

/// The smallest packet that every process can take.
pub const MIN_PACKET_BYTES: usize = 256;
/// A packet that every path is taken to carry.
const PATH_PACKET_BYTES: usize = 1200;
/// The longest packet (UDP payload) of a jumbo frame.
pub const MAX_PACKET_BYTES: usize = 8972;
/// The longest message.
pub const MAX_MESSAGE_BYTES: u64 = 1 << 30;
/// What a message costs beside its payload when credit and pool are charged.
pub const MESSAGE_OVERHEAD_BYTES: u64 = 64;

/// Capacities and times of one process's machine. All are bounds, none a goal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// This node's id, told to peers.
    pub node: u32,
    /// Longest packet taken and sent, trailer included.
    pub packet_bytes: usize,
    /// A length that every path is taken to carry: packets get no shorter than this, and
    /// units that are too long for their path are cut into parts of it.
    pub base_packet_bytes: usize,
    /// Frames for units in flight to all peers together (the thesis's n, send side).
    pub frames: u32,
    /// Packets that may be arriving from all peers together without overflowing the link.
    pub window_packets: u32,
    /// Packets in flight to or from one peer. What flies must stay in the processor's
    /// cache: on a virtual interface 256 packets of 1472 bytes carried twice what 1024 did.
    pub session_packets: u32,
    /// Peers at most; a hello beyond is refused, unless idle ones turn out to be dead.
    pub max_peers: u32,
    /// Incoming edges of all peers together that have not ended; messages that would need
    /// one more are refused, and their senders told.
    pub max_edges: u32,
    /// Bytes of received messages held for the application, all peers together.
    pub pool_bytes: u64,
    /// When an arrival would leave less than this free, only the next unit in
    /// sequence is accepted (thesis §5.3, second rule). Zero switches the rule off.
    pub pool_reserve_bytes: u64,
    /// Bytes that a new edge may send before its first grant.
    pub initial_credit_bytes: u32,
    /// Bytes of unread messages that one edge may have; longer messages are
    /// admitted one at a time per endpoint.
    pub edge_window_bytes: u64,
    /// Packets that must overtake a missing one before it is asked for.
    pub reorder_packets: u32,
    /// How long an acknowledgement waits for a packet to ride on.
    pub ack_delay_ns: u64,
    /// Shortest time-out before a lost tail is suspected.
    pub min_timeout_ns: u64,
    /// Longest back-off of ack requests, tails, hellos and credit wishes.
    pub max_timeout_ns: u64,
    /// Silence of a peer that owes an answer after which [`Event::Suspected`](crate::Event::Suspected)
    /// asks whether anybody vouches for it; again after so much further silence.
    pub suspect_after_ns: u64,
    /// Silence after which a peer that owes an answer, and for which nobody vouches, is gone.
    pub peer_timeout_ns: u64,
    /// How often a peer is asked whether it lives if no other packets are exchanged.
    pub idle_check_ns: u64,
    /// The number at which packets, units and messages begin, the same for all processes:
    /// zero but for those who want to see numbers outgrow 32 bits.
    pub first_number: u32,
    /// Trailers offered. Others than CRC32C need a key.
    pub trailers: Trailers,
    /// What this process contributes to the keys of its sessions, for the caller to understand.
    pub share: [u8; SHARE_BYTES],
    /// Only who proves to hold the cluster key gets a session.
    pub keyed: bool,
}

impl Default for Config {
    /// Suits a handful of peers on a 1-100 Gbit/s segment.
    fn default() -> Config {
        Config {
            node: 1,
            packet_bytes: 1472,
            base_packet_bytes: PATH_PACKET_BYTES,
            frames: 1024,
            window_packets: 1024,
            session_packets: 256,
            max_peers: 4096,
            max_edges: 1 << 17,
            pool_bytes: 64 << 20,
            pool_reserve_bytes: 8 << 20,
            initial_credit_bytes: 32 << 10,
            edge_window_bytes: 4 << 20,
            reorder_packets: 3,
            ack_delay_ns: 25 * MICROSECOND,
            min_timeout_ns: MILLISECOND,
            max_timeout_ns: 250 * MILLISECOND,
            suspect_after_ns: SECOND,
            peer_timeout_ns: 3 * SECOND,
            idle_check_ns: 300 * SECOND,
            first_number: 0,
            trailers: Trailers::CRC32C,
            share: [0; SHARE_BYTES],
            keyed: false,
        }
    }
}

impl Config {
    /// The window told to a peer before it sends anything.
    pub(crate) fn hello_window(&self) -> u32 {
        self.window_packets.min(self.session_packets).max(1)
    }

    /// Payload bytes that fit one packet as a whole message.
    #[must_use]
    pub fn whole_message_bytes(&self, trailer_bytes: usize) -> usize {
        self.packet_bytes - crate::wire::HEADER_BYTES - trailer_bytes - crate::wire::MESSAGE_BYTES
    }
}

/// What a message of `length` payload bytes costs in credit and pool.
#[must_use]
pub fn charge(length: u64) -> u64 {
    length.saturating_add(MESSAGE_OVERHEAD_BYTES)
}
