//! Where messages go, and why one could not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dipole_driver::WaitKey;
use dipole_proto::EdgeId;
use dipole_proto::wire::RefusedReason;

use crate::address::Address;
use crate::gone::GoneReason;

/// Why a message was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// All frames, or the ring, are in use.
    NoFrame,
    /// The receiver has not granted enough credit.
    NoCredit,
    /// Longer than a message can be (or, unreliably or at once, than fits now).
    TooLong {
        /// The limit in bytes.
        limit: u64,
    },
    /// The receiving endpoint took nothing.
    Refused(RefusedReason),
    /// The session has ended.
    Gone(Option<GoneReason>),
    /// The session is not open yet.
    Opening,
}

/// Where an endpoint points.
#[derive(Clone, Debug)]
pub struct Target {
    /// The endpoint there.
    pub address: Address,
    /// The edge to it.
    pub edge: EdgeId,
    /// What has gone along the edge.
    pub sent: Arc<Sent>,
}

impl Target {
    /// An edge along which nothing has gone.
    #[must_use]
    pub fn new(address: Address, edge: EdgeId) -> Target {
        Target {
            address,
            edge,
            sent: Arc::default(),
        }
    }
}

/// What has gone along an edge; counted under the engine's lock.
#[derive(Debug, Default)]
pub struct Sent {
    pub(super) messages: AtomicU64,
    pub(super) bytes: AtomicU64,
}

impl Sent {
    /// Counts a message of so many bytes.
    #[inline]
    pub fn count(&self, bytes: usize) {
        let add = |counter: &AtomicU64, more| {
            counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        };
        add(&self.messages, 1);
        add(&self.bytes, bytes as u64);
    }
}

/// What a thread that cannot send along an edge, or waits until all of it is acknowledged,
/// waits for.
#[inline]
#[must_use]
pub fn wait_keys(edge: EdgeId) -> [WaitKey; 4] {
    [
        WaitKey::Edge(edge),
        WaitKey::Peer(edge.peer),
        WaitKey::Frame,
        WaitKey::RingSpace,
    ]
}
