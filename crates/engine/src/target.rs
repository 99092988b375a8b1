//! Targets of endpoints, and reasons why a message could not be sent.

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
    /// All frames are in use, or the ring is full.
    NoFrame,
    /// The receiver has not granted enough credit.
    NoCredit,
    /// Longer than a message can be, or longer than this way of sending allows now.
    TooLong {
        /// The limit in bytes.
        limit: u64,
    },
    /// The receiving endpoint refused it.
    Refused(RefusedReason),
    /// The peer is gone.
    Gone(Option<GoneReason>),
    /// The session is not open yet.
    Opening,
}

/// A target of an endpoint: address, edge, and traffic.
#[derive(Clone, Debug)]
pub struct Target {
    /// Address of the target endpoint.
    pub address: Address,
    /// Edge to the target.
    pub edge: EdgeId,
    /// Traffic of the edge.
    pub sent: Arc<Sent>,
}

impl Target {
    /// A target without any traffic yet.
    #[must_use]
    pub fn new(address: Address, edge: EdgeId) -> Target {
        Target {
            address,
            edge,
            sent: Arc::default(),
        }
    }
}

/// Traffic of an edge, counted under the engine's lock.
#[derive(Debug, Default)]
pub struct Sent {
    pub(super) messages: AtomicU64,
    pub(super) bytes: AtomicU64,
}

impl Sent {
    /// True if no message has been counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.load(Ordering::Relaxed) == 0
    }

    /// Counts a message of `bytes` bytes.
    #[inline]
    pub fn count(&self, bytes: usize) {
        let add = |counter: &AtomicU64, more| {
            counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        };
        add(&self.messages, 1);
        add(&self.bytes, bytes as u64);
    }
}

/// Keys for a thread that waits for room on an edge or for its acknowledgements. The first two are
/// those of credit.
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
