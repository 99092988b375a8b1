//! The reports that the players of a graph print, and the pace at which they send.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Time limit for expected events.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// A player's report about one of its incoming edges, or its part of a broadcast or reduction.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct EdgeResult {
    /// `edge`, `broadcast` or `reduce`.
    pub(super) operation: String,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) sent: u64,
    pub(super) received: u64,
    /// In order, or with the right results.
    pub(super) in_order: bool,
    pub(super) seconds: f64,
}

/// A line that a player prints.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Report {
    Edge(EdgeResult),
    /// A member of a group was lost; the others went on.
    Lost {
        endpoint: String,
    },
}

/// How long and how often each endpoint sends.
#[derive(Clone, Copy)]
pub(super) struct Pace {
    pub(super) until: Instant,
    pub(super) between: Duration,
}
