//! Messages that wait for a matching receive: how many there are, and how much memory they may take.
//!
//! MPI lets a receiver wait for any of the messages that were sent to it, so it has to accept all of
//! them. What is limited is the memory that they take here: beyond it, [senders keep
//! them](crate::exchange). Tools show the counters.

use std::sync::Arc;

use dipole_node::{LayerCounter, Node};

/// The variable that sets the limit.
const VARIABLE: &str = "DIPOLE_UNEXPECTED_BYTES";
/// The limit if the variable is not set.
const DEFAULT_BYTES: u64 = 64 << 20;
/// Memory that a message takes in addition to its bytes, in the tables of the matcher.
pub(crate) const ENTRY_BYTES: usize = 192;

/// The unexpected messages of a process.
#[derive(Debug)]
pub(crate) struct Unexpected {
    limit: u64,
    messages: LayerCounter,
    bytes: LayerCounter,
    most_messages: LayerCounter,
    most_bytes: LayerCounter,
}

impl Unexpected {
    /// Publishes the counters and reads the limit; the error is a text.
    pub(crate) fn open(node: &Node) -> Result<Unexpected, String> {
        let limit = match dipole_node::variable(VARIABLE) {
            Some(text) => text
                .parse()
                .map_err(|_| format!("{VARIABLE}={text}: expected a number of bytes"))?,
            None => DEFAULT_BYTES,
        };
        Ok(Unexpected {
            limit,
            messages: node.layer_counter("unexpected messages"),
            bytes: node.layer_counter("unexpected bytes"),
            most_messages: node.layer_counter("most unexpected messages"),
            most_bytes: node.layer_counter("most unexpected bytes"),
        })
    }

    /// True if senders have to keep further messages.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.value() > self.limit
    }

    /// True if senders need not keep their messages any more.
    pub(crate) fn has_room(&self) -> bool {
        self.bytes.value() <= self.limit / 2
    }
}

/// The memory of one unexpected message, counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    bytes: u64,
    counters: Arc<Unexpected>,
}

impl Held {
    /// Counts a message of which `bytes` are stored in this process.
    pub(crate) fn new(counters: &Arc<Unexpected>, bytes: usize) -> Held {
        let bytes = (bytes + ENTRY_BYTES) as u64;
        let messages = counters.messages.add(1);
        counters.most_messages.raise_to(messages);
        let all = counters.bytes.add(bytes);
        counters.most_bytes.raise_to(all);
        Held {
            bytes,
            counters: Arc::clone(counters),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.counters.messages.subtract(1);
        self.counters.bytes.subtract(self.bytes);
    }
}
