//! What becomes of a byte between two programs: which stages it goes through, and how often it crosses
//! memory there.

use std::iter::Sum;
use std::ops::Add;

use serde::{Deserialize, Serialize};

use super::statistics::as_float;

/// Copied: read and written.
pub(crate) const COPY: f64 = 2.0;
const CHECKSUM: f64 = 1.0;
/// In a packet: copied into a frame, read for its checksum, copied by the kernel; and back.
const PACKET: f64 = COPY + CHECKSUM + COPY;

/// Bytes that an engine has moved, by what they went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Moved {
    /// Of messages that the program has received.
    pub(crate) received: u64,
    /// Copied into rings of shared memory, and out of them.
    pub(crate) ring_out: u64,
    pub(crate) ring_in: u64,
    /// Copied by the kernel out of the other process's memory.
    pub(crate) fetched: u64,
    pub(crate) packets_out: u64,
    pub(crate) packets_in: u64,
}

impl Add for Moved {
    type Output = Moved;

    fn add(self, other: Moved) -> Moved {
        Moved {
            received: self.received + other.received,
            ring_out: self.ring_out + other.ring_out,
            ring_in: self.ring_in + other.ring_in,
            fetched: self.fetched + other.fetched,
            packets_out: self.packets_out + other.packets_out,
            packets_in: self.packets_in + other.packets_in,
        }
    }
}

impl Sum for Moved {
    fn sum<I: Iterator<Item = Moved>>(all: I) -> Moved {
        all.fold(Moved::default(), Add::add)
    }
}

impl Moved {
    /// Crossings of each byte that was received; of both sides together.
    pub(crate) fn crossings(&self) -> Option<f64> {
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
        let of = |moved: Moved| moved.crossings();
        let received = 1000;
        let ring = Moved {
            received,
            ring_out: 1000,
            ring_in: 1000,
            ..Moved::default()
        };
        assert_eq!(of(ring), Some(4.0));
        let fetched = Moved {
            received,
            fetched: 1000,
            ..Moved::default()
        };
        assert_eq!(of(fetched), Some(2.0));
        let packets = Moved {
            received,
            packets_out: 1100,
            packets_in: 1100,
            ..Moved::default()
        };
        assert_eq!(of(packets), Some(11.0), "headers cross, too");
        assert_eq!(
            of(ring + fetched),
            Some(3.0),
            "half of the messages each way"
        );
        assert_eq!(of(Moved::default()), None);
    }
}
