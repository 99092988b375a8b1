//! What ranks tell of their supersteps: one JSON object a line. `peers/superstep.c` prints the same.

use serde::{Deserialize, Serialize};

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
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
pub struct Sample {
    pub what: Metric,
    /// What moved the bytes.
    pub call: String,
    pub rank: u32,
    /// h of a relation, or the length of a message.
    pub bytes: usize,
    pub messages: usize,
    /// Nanoseconds, measured again and again.
    pub ns: Vec<f64>,
    /// h of each, where it varies.
    pub h: Vec<f64>,
}

/// Packets of a rank in total exchanges of the longest h.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Packets {
    pub sent: u64,
    /// Sent to be acknowledged, the first time and again.
    pub units: u64,
    pub repeats: u64,
    /// Received for the first time.
    pub received: u64,
    /// Packets that only acknowledge.
    pub explicit_acks: u64,
    /// Packets that only ask for an acknowledgement.
    pub prods: u64,
    /// Units acknowledged by the end of a superstep.
    pub implicit_acks: u64,
    /// Received again.
    pub duplicates: u64,
    /// Received and of no use for other reasons.
    pub dropped: u64,
}

impl Packets {
    /// All that happened between two looks at counters, or at two ranks.
    pub fn combined(self, other: Self, how: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            sent: how(self.sent, other.sent),
            units: how(self.units, other.units),
            repeats: how(self.repeats, other.repeats),
            received: how(self.received, other.received),
            explicit_acks: how(self.explicit_acks, other.explicit_acks),
            prods: how(self.prods, other.prods),
            implicit_acks: how(self.implicit_acks, other.implicit_acks),
            duplicates: how(self.duplicates, other.duplicates),
            dropped: how(self.dropped, other.dropped),
        }
    }
}

/// A line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RankOutput {
    Sample(Sample),
    Packets { packets: Packets },
}
