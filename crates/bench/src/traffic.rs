//! Memory traffic of a byte between two programs: the stages it passes, and how often it crosses
//! memory there.

use std::iter::Sum;
use std::ops::Add;

use serde::{Deserialize, Serialize};

use crate::statistics::as_float;

/// A copy reads and writes each byte.
pub const COPY: f64 = 2.0;
const CHECKSUM: f64 = 1.0;
/// Per packet: copied into a frame, read for the checksum, copied by the kernel; and the reverse.
const PACKET: f64 = COPY + CHECKSUM + COPY;

/// Bytes that an engine has moved, by stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryTraffic {
    /// Bytes of messages that the program has received.
    pub received: u64,
    /// Bytes copied into rings of shared memory, and out of them.
    pub ring_out: u64,
    pub ring_in: u64,
    /// Bytes that the kernel has copied from the other process's memory.
    pub fetched: u64,
    pub packets_out: u64,
    pub packets_in: u64,
}

impl Add for MemoryTraffic {
    type Output = MemoryTraffic;

    fn add(self, other: MemoryTraffic) -> MemoryTraffic {
        MemoryTraffic {
            received: self.received + other.received,
            ring_out: self.ring_out + other.ring_out,
            ring_in: self.ring_in + other.ring_in,
            fetched: self.fetched + other.fetched,
            packets_out: self.packets_out + other.packets_out,
            packets_in: self.packets_in + other.packets_in,
        }
    }
}

impl Sum for MemoryTraffic {
    fn sum<I: Iterator<Item = MemoryTraffic>>(all: I) -> MemoryTraffic {
        all.fold(MemoryTraffic::default(), Add::add)
    }
}

impl MemoryTraffic {
    /// Returns the memory crossings per received byte, for both sides together.
    pub fn crossings(&self) -> Option<f64> {
        let of = |bytes: u64, each: f64| as_float(bytes) * each;
        let all = of(self.ring_out, COPY)
            + of(self.ring_in, COPY)
            + of(self.fetched, COPY)
            + of(self.packets_out, PACKET)
            + of(self.packets_in, PACKET);
        (self.received > 0).then(|| all / as_float(self.received))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_crosses_twice_and_a_packet_ten_times_on_both_sides() {
        let of = |moved: MemoryTraffic| moved.crossings();
        let received = 1000;
        let ring = MemoryTraffic {
            received,
            ring_out: 1000,
            ring_in: 1000,
            ..MemoryTraffic::default()
        };
        assert_eq!(of(ring), Some(4.0));
        let fetched = MemoryTraffic {
            received,
            fetched: 1000,
            ..MemoryTraffic::default()
        };
        assert_eq!(of(fetched), Some(2.0));
        let packets = MemoryTraffic {
            received,
            packets_out: 1100,
            packets_in: 1100,
            ..MemoryTraffic::default()
        };
        assert_eq!(of(packets), Some(11.0), "headers cross, too");
        assert_eq!(
            of(ring + fetched),
            Some(3.0),
            "half of the messages each way"
        );
        assert_eq!(of(MemoryTraffic::default()), None);
    }
}
