//! What ranks tell of their supersteps: one JSON object a line. `peers/superstep.c` prints the same.

use serde::{Deserialize, Serialize};

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum What {
    /// A floating-point operation, by the rank alone.
    Flops,
    /// An empty superstep, by many one after the other.
    Sync,
    /// Empty supersteps, one by one.
    EachSync,
    /// A superstep in which everybody puts 8 bytes.
    Put,
    /// A total exchange.
    Exchange,
    /// A total exchange of messages of so many bytes; the call is the order of destinations.
    Ordered,
    /// All to rank 0.
    Gather,
    /// Rank 0 to all.
    Scatter,
    /// Whatever comes to everybody.
    Random,
    /// Messages to another rank, which returns them when it has them all.
    Spray,
    /// The same bytes copied by every rank for itself.
    Copy,
    /// Half a round trip of a datagram between the nodes of ranks 0 and 1.
    OneWay,
}

/// A measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) what: What,
    /// What moved the bytes.
    pub(crate) call: String,
    pub(crate) rank: u32,
    /// h of a relation, or the length of a message.
    pub(crate) bytes: usize,
    pub(crate) messages: usize,
    /// Nanoseconds, measured again and again.
    pub(crate) ns: Vec<f64>,
    /// h of each, where it varies.
    pub(crate) h: Vec<f64>,
}

/// Packets of a rank in total exchanges of the longest h.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Packets {
    pub(crate) sent: u64,
    /// Sent to be acknowledged, the first time and again.
    pub(crate) units: u64,
    pub(crate) repeats: u64,
    /// Received for the first time.
    pub(crate) received: u64,
    /// Packets that only acknowledge.
    pub(crate) explicit_acks: u64,
    /// Packets that only ask for an acknowledgement.
    pub(crate) ack_requests: u64,
    /// Units acknowledged by the end of a superstep.
    pub(crate) implicit_acks: u64,
    /// Received again.
    pub(crate) duplicates: u64,
    /// Received and of no use for other reasons.
    pub(crate) dropped: u64,
}

impl Packets {
    /// All that happened between two looks at counters, or at two ranks.
    pub(crate) fn combined(self, other: Self, how: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            sent: how(self.sent, other.sent),
            units: how(self.units, other.units),
            repeats: how(self.repeats, other.repeats),
            received: how(self.received, other.received),
            explicit_acks: how(self.explicit_acks, other.explicit_acks),
            ack_requests: how(self.ack_requests, other.ack_requests),
            implicit_acks: how(self.implicit_acks, other.implicit_acks),
            duplicates: how(self.duplicates, other.duplicates),
            dropped: how(self.dropped, other.dropped),
        }
    }
}

/// A line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Told {
    Sample(Sample),
    Packets { packets: Packets },
}
