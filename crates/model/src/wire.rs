//! The limit that an Ethernet sets to each message: the time that its packets occupy the wire.
//!
//! # Source
//! Directed Point §5.1 and figure 6: parameters next to their theoretical limits.

use serde::{Deserialize, Serialize};

use crate::interval::float;

/// Bytes of a packet besides the payload of its frame: preamble 8, Ethernet header 14, checksum 4,
/// gap between frames 12.
const FRAMING_BYTES: usize = 38;
/// Shortest payload of a frame.
const LEAST_PAYLOAD_BYTES: usize = 46;
/// Headers inside each frame: IPv4, UDP, and Dipole's of a data packet.
const HEADER_BYTES: usize = 20 + 8 + 32;

/// An Ethernet between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wire {
    /// Rate in 10^6 bit/s.
    pub mbit: u64,
    /// Longest payload of a frame.
    pub mtu_bytes: usize,
    /// One-way delay that does not depend on the length.
    #[serde(default)]
    pub delay_ns: f64,
}

impl Wire {
    /// Returns the time that the packets of a message of this length occupy the wire: the limit of
    /// the gaps.
    #[must_use]
    pub fn gap_ns(&self, bytes: usize) -> f64 {
        let room = self.mtu_bytes.saturating_sub(HEADER_BYTES).max(1);
        let (full, last) = (bytes / room, bytes % room);
        let frame =
            |payload: usize| (HEADER_BYTES + payload).max(LEAST_PAYLOAD_BYTES) + FRAMING_BYTES;
        let short = if last > 0 || full == 0 {
            frame(last)
        } else {
            0
        };
        let all = full.saturating_mul(frame(room)).saturating_add(short);
        float(all) * 8e3 / float(usize::try_from(self.mbit).unwrap_or(usize::MAX).max(1))
    }

    /// Returns the limit of the latency: the delay, and the time on the wire of all packets.
    #[must_use]
    pub fn latency_ns(&self, bytes: usize) -> f64 {
        self.delay_ns + self.gap_ns(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIGABIT: Wire = Wire {
        mbit: 1000,
        mtu_bytes: 1500,
        delay_ns: 0.0,
    };

    #[test]
    fn a_full_packet_takes_as_long_as_in_the_paper_and_an_empty_one_its_headers() {
        // 1538 bytes on the wire at 1 Gbit/s: the paper's 12.3 us.
        assert_eq!(GIGABIT.gap_ns(1500 - HEADER_BYTES), 12_304.0);
        assert_eq!(GIGABIT.gap_ns(0), 784.0);
        let fast = Wire {
            mbit: 10_000,
            ..GIGABIT
        };
        assert_eq!(fast.gap_ns(1440), 1230.4);
    }

    #[test]
    fn a_longer_message_takes_several_packets_and_a_delay_counts_once() {
        let two = GIGABIT.gap_ns(1441);
        assert_eq!(two, 12_304.0 + 8.0 * 99.0);
        let far = Wire {
            delay_ns: 1e6,
            ..GIGABIT
        };
        assert_eq!(far.latency_ns(1441), 1e6 + two);
        let odd = Wire {
            mbit: 0,
            mtu_bytes: 0,
            delay_ns: 0.0,
        };
        assert!(odd.gap_ns(usize::MAX).is_finite());
    }
}
