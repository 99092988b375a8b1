//! Short messages that share packets, and their completions, which wait until the packets leave.

use crate::completion::{Entry, Sinks};
use crate::wire::HEAD_BYTES;

/// A batch leaves when it fills about one packet, so that the receiver works on that packet while
/// the next one is gathered.
const PACKET_BYTES: usize = 1300;
/// Bytes that a message takes in a packet in addition to its payload.
const OVERHEAD_BYTES: usize = HEAD_BYTES + 16;

/// Messages that the node holds back until [`flush_edges`](dipole_node::Endpoint::flush_edges).
#[derive(Default)]
pub(super) struct Batch {
    /// Completions, and whether the program wants to see each.
    completions: Vec<(bool, Entry)>,
    bytes: usize,
}

impl Batch {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.completions.is_empty()
    }

    /// Adds a message; true if the batch fills a packet.
    pub(super) fn push(&mut self, notify: bool, entry: Entry) -> bool {
        self.bytes += entry.length + OVERHEAD_BYTES;
        self.completions.push((notify, entry));
        self.bytes >= PACKET_BYTES
    }

    /// Completes all messages after they have left.
    pub(super) fn complete(&mut self, sinks: &Sinks) {
        self.bytes = 0;
        for (notify, entry) in self.completions.drain(..) {
            sinks.complete(notify, entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_full_when_it_fills_a_packet_and_empty_after_completion() {
        let mut batch = Batch::default();
        let entry = |length| Entry {
            length,
            ..Entry::default()
        };
        assert!(!batch.push(true, entry(600)));
        assert!(batch.push(true, entry(700)));
        batch.complete(&Sinks::default());
        assert!(batch.is_empty());
        assert!(!batch.push(false, entry(600)));
    }
}
