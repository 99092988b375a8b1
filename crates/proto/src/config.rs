//! Settings that the caller chooses once per process.

use crate::time::{MICROSECOND, MILLISECOND, SECOND};
use crate::wire::{SHARE_BYTES, Trailers};
use serde::{Deserialize, Serialize};

pub use crate::wire::MIN_PACKET_BYTES;

/// A packet length that nearly every path carries.
const BASE_PACKET_BYTES: usize = 1200;
/// The payload of UDP in 576 bytes, the longest IPv4 packet that each host must accept.
pub(crate) const LEAST_PACKET_BYTES: usize = 576 - 20 - 8;
/// The longest packet (UDP payload) in a jumbo frame.
pub const MAX_PACKET_BYTES: usize = 8972;
/// Default maximum length of a message, however it is sent.
pub const MAX_MESSAGE_BYTES: u64 = 1 << 30;
/// The most that [`Config::max_message_bytes`] may be: a credit request has 32 bits for a message's
/// charge.
pub const LIMIT_OF_MAX_MESSAGE_BYTES: u64 = u32::MAX as u64 - MESSAGE_OVERHEAD_BYTES;
/// Bytes of credit and pool that a message takes in addition to its payload.
pub const MESSAGE_OVERHEAD_BYTES: u64 = 64;

/// Limits and times of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Id of this node, sent to peers.
    pub node: u32,
    /// Longest packet to accept and to send, with its trailer.
    pub packet_bytes: usize,
    /// A length that nearly every path carries. Packets get shorter only if no probe as long is
    /// answered, and then not shorter than 548 bytes, or than a sixteenth of the longest unit.
    pub base_packet_bytes: usize,
    /// Frames for units in flight to all peers together (n of the thesis, for sending).
    pub frames: u32,
    /// Packets of all peers together that may be in flight to this process without overflowing the
    /// link.
    pub window_packets: u32,
    /// Most packets in flight to or from one peer. They should fit the processor's cache: on a virtual
    /// interface 256 packets of 1472 bytes had twice the throughput of 1024.
    pub session_packets: u32,
    /// Packets that the receive queues of this process hold, of all peers together. Peers may have as
    /// many in flight while the process is off its core.
    pub queue_packets: u32,
    /// Most peers. Further hellos are refused, unless idle peers turn out to be dead.
    pub max_peers: u32,
    /// Most open incoming edges of all peers together. Messages that need another one are refused.
    pub max_edges: u32,
    /// Bytes of received messages held for the application, all peers together.
    pub pool_bytes: u64,
    /// When an arrival would leave less than this free, only the next unit in sequence is accepted
    /// (thesis §5.3, second rule). Zero disables the rule.
    pub pool_reserve_bytes: u64,
    /// Longest message to send and to accept, at most [`LIMIT_OF_MAX_MESSAGE_BYTES`].
    pub max_message_bytes: u64,
    /// Bytes that a new edge may send before its first grant.
    pub initial_credit_bytes: u32,
    /// Most unread bytes of one edge. Longer messages are admitted one at a time per endpoint.
    pub edge_window_bytes: u64,
    /// A missing packet is requested when this many later ones have arrived.
    pub reorder_packets: u32,
    /// How long an acknowledgement waits for a packet to carry it.
    pub ack_delay_ns: u64,
    /// Shortest time-out before a tail counts as lost.
    pub min_timeout_ns: u64,
    /// Longest pause between repeated ack requests, tails, hellos and credit requests.
    pub max_timeout_ns: u64,
    /// After this much silence of a peer that owes an answer, [`Event::Suspected`](crate::Event::Suspected)
    /// is reported, and again after the same time if a third party has confirmed that it is alive.
    pub suspect_after_ns: u64,
    /// After this much silence a peer that owes an answer is gone, unless a third party confirms that it is alive.
    pub peer_timeout_ns: u64,
    /// An idle peer gets a keepalive after this time without packets.
    pub idle_check_ns: u64,
    /// First number of packets, units and messages; the same in all processes. Zero except in tests
    /// that let numbers exceed 32 bits.
    pub first_number: u32,
    /// Trailers offered. All but CRC32C need a key.
    pub trailers: Trailers,
    /// Share of this process in the keys of its sessions. Only the caller interprets it.
    pub share: [u8; SHARE_BYTES],
    /// Only processes that prove to have the cluster key get a session.
    pub keyed: bool,
}

impl Default for Config {
    /// Suitable for a few peers on a segment of 1 to 100 Gbit/s.
    fn default() -> Config {
        Config {
            node: 1,
            packet_bytes: 1472,
            base_packet_bytes: BASE_PACKET_BYTES,
            frames: 4096,
            window_packets: 1024,
            session_packets: 256,
            queue_packets: 1024,
            max_peers: 4096,
            max_edges: 1 << 17,
            pool_bytes: 64 << 20,
            pool_reserve_bytes: 8 << 20,
            max_message_bytes: MAX_MESSAGE_BYTES,
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

/// A peer whose process runs is unreachable after silence for this many times `peer_timeout_ns`.
const UNREACHABLE_TIMEOUTS: u64 = 10;
/// It is given at least this long, because a busy machine may not run it for seconds.
const MIN_UNREACHABLE_NS: u64 = 10 * SECOND;

impl Config {
    /// After this much silence a peer is gone even if a third party confirms that its process is
    /// running: packets cannot get through.
    pub(crate) fn unreachable_after_ns(&self) -> u64 {
        let limit_ns = self.peer_timeout_ns.saturating_mul(UNREACHABLE_TIMEOUTS);
        limit_ns.max(MIN_UNREACHABLE_NS)
    }

    /// How long an idle peer that is to make room for another one may take to reply.
    pub(crate) fn eviction_ns(&self) -> u64 {
        self.peer_timeout_ns / 4
    }

    /// The window that a peer gets before it has sent anything.
    pub(crate) fn hello_window(&self) -> u32 {
        self.window_packets.min(self.session_packets).max(1)
    }

    /// Payload bytes that fit one packet as a whole message.
    #[must_use]
    pub fn whole_message_bytes(&self, trailer_bytes: usize) -> usize {
        self.packet_bytes - crate::wire::HEADER_BYTES - trailer_bytes - crate::wire::MESSAGE_BYTES
    }
}

/// Credit and pool bytes of a message with `length` bytes of payload.
#[must_use]
pub fn charge(length: u64) -> u64 {
    length.saturating_add(MESSAGE_OVERHEAD_BYTES)
}
