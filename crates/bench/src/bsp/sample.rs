//! Output of ranks: JSON objects, one per line. `peers/superstep.c` prints the same.

use serde::{Deserialize, Serialize};

/// The kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// A floating-point operation, computed by one rank.
    Flops,
    /// An empty superstep, in batches.
    Sync,
    /// Empty supersteps, timed one by one.
    EachSync,
    /// A superstep in which each rank puts 8 bytes.
    Put,
    /// Every rank sends to every other rank.
    Exchange,
    /// A total exchange of messages of one length. The call is the order of destinations.
    Ordered,
    /// All ranks send to rank 0.
    Gather,
    /// Rank 0 sends to all ranks.
    Scatter,
    /// A random h-relation.
    Random,
    /// A burst of messages to another rank, which returns them when it has received all.
    Spray,
    /// Copies of the same length by every rank.
    Copy,
    /// Half a round trip of a datagram between the nodes of ranks 0 and 1.
    OneWay,
}

/// Samples of one measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub what: Metric,
    /// The call that moved the bytes.
    pub call: String,
    pub rank: u32,
    /// h of a relation, or the length of a message.
    pub bytes: usize,
    pub messages: usize,
    /// Times of all repetitions.
    pub ns: Vec<f64>,
    /// h of each repetition, if it varies.
    pub h: Vec<f64>,
}

/// Packet counters of a rank during total exchanges of the longest h.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Packets {
    pub sent: u64,
    /// Packets that need an acknowledgement, including retransmissions.
    pub units: u64,
    pub repeats: u64,
    /// Packets received for the first time.
    pub received: u64,
    /// Packets with acknowledgements only.
    pub explicit_acks: u64,
    /// Packets that only ask for an acknowledgement.
    pub ack_requests: u64,
    /// Packets received again.
    pub duplicates: u64,
    /// Packets dropped for other reasons.
    pub dropped: u64,
}

impl Packets {
    /// Combines each pair of counters.
    pub fn combined(self, other: Self, how: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            sent: how(self.sent, other.sent),
            units: how(self.units, other.units),
            repeats: how(self.repeats, other.repeats),
            received: how(self.received, other.received),
            explicit_acks: how(self.explicit_acks, other.explicit_acks),
            ack_requests: how(self.ack_requests, other.ack_requests),
            duplicates: how(self.duplicates, other.duplicates),
            dropped: how(self.dropped, other.dropped),
        }
    }
}

/// A line that a rank prints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RankOutput {
    Sample(Sample),
    Packets { packets: Packets },
}
