//! The events of a run: the last ones for a report, and a hash of all of them.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::hash::{Hash, Hasher};

use dipole_node::GoneReason;
use rustc_hash::FxHasher;

/// Number of latest events in a report.
const KEPT: usize = 60;

/// Kind of a traced event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// A process started; `life` counts the starts on this node.
    Began { life: u32 },
    /// The process crashed.
    Crashed,
    /// The process disconnected and ended.
    Left,
    /// The process is not stepped for a while.
    Paused { until_ns: u64 },
    /// The process is stuck until all others have finished.
    Stuck,
    /// All clocks jumped.
    Jumped { by_ns: u64 },
    /// The network changed.
    Network(&'static str),
    /// An endpoint opened.
    Opened { endpoint: u32 },
    /// An endpoint closed.
    Closed { endpoint: u32 },
    /// A flow requests a session.
    Connecting { flow: usize, to: usize },
    /// A flow begins a stream.
    Stream { flow: usize, stream: u32 },
    /// A message was accepted.
    Sent {
        stream: u32,
        index: u32,
        bytes: usize,
    },
    /// A credit request was withdrawn.
    Cancelled { stream: u32, bytes: usize },
    /// An unreliable message was accepted.
    SentLoose {
        stream: u32,
        index: u32,
        bytes: usize,
    },
    /// The sender was notified of a refusal.
    Refused { stream: u32 },
    /// A peer is gone.
    Gone { peer: u32, reason: GoneReason },
    /// A message was received.
    Read {
        stream: u32,
        index: u32,
        bytes: usize,
    },
    /// The run's next stage began.
    Stage(&'static str),
}

#[derive(Clone, Copy, Debug, Hash)]
struct Note {
    at_ns: u64,
    node: usize,
    what: What,
}

/// The trace of a run.
pub struct Trace {
    last: VecDeque<Note>,
    hasher: FxHasher,
    verbose: bool,
}

impl Trace {
    pub fn new(verbose: bool) -> Trace {
        Trace {
            last: VecDeque::with_capacity(KEPT),
            hasher: FxHasher::default(),
            verbose,
        }
    }

    pub fn note(&mut self, at_ns: u64, node: usize, what: What) {
        let note = Note { at_ns, node, what };
        note.hash(&mut self.hasher);
        if self.verbose {
            eprintln!("{}", line(&note));
        }
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(note);
    }

    /// Hash of all events; equal runs have equal hashes.
    pub fn hash(&self) -> u64 {
        self.hasher.finish()
    }

    /// The last events, one per line.
    pub fn report(&self) -> String {
        let mut report = String::new();
        for note in &self.last {
            let _infallible = writeln!(report, "  {}", line(note));
        }
        report
    }
}

fn line(note: &Note) -> String {
    format!(
        "{:>14.6} ms  node {:<2} {:?}",
        note.at_ns as f64 / 1e6,
        note.node + 1,
        note.what
    )
}
