//! The state of edges for tools that explain a hang.

use super::Channel;
use crate::wire::{EdgeKey, RefusedReason};

/// The state of an outgoing edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutgoingStatus {
    /// Its endpoints.
    pub key: EdgeKey,
    /// Number of the next message.
    pub next: u64,
    /// Bytes of credit left.
    pub credit_left: u64,
    /// Bytes of credit granted so far, as far as this side knows.
    pub limit: u64,
    /// Bytes of credit that a waiting message lacks; `None` if none waits.
    pub credit_missing: Option<u64>,
    /// It was closed, and the peer has not yet forgotten it.
    pub is_ending: bool,
    /// Why the peer refuses its messages.
    pub refused: Option<RefusedReason>,
}

/// The state of an incoming edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncomingStatus {
    /// Its endpoints.
    pub key: EdgeKey,
    /// Number of the next message to deliver.
    pub next: u64,
    /// Bytes that were delivered or have partly arrived, and that the program has not consumed,
    /// with the overhead of each message.
    pub unread_bytes: u64,
    /// Messages that have partly arrived, or wholly but out of order.
    pub incomplete: usize,
    /// Bytes that the peer may still send.
    pub granted_left: u64,
    /// Bytes granted so far.
    pub granted: u64,
    /// Bytes that the peer has requested beyond its grant.
    pub requested: u64,
}

impl Channel {
    /// The outgoing edges.
    pub(crate) fn outgoing_status(&self) -> impl Iterator<Item = OutgoingStatus> + '_ {
        self.outgoing.iter().map(|(_, edge)| edge.status())
    }

    /// The incoming edges.
    pub(crate) fn incoming_status(&self) -> impl Iterator<Item = IncomingStatus> + '_ {
        self.incoming.iter().map(|(_, edge)| edge.status())
    }
}
