//! The protocol state machine, and everything that its events change: inboxes, frames, peers.
//!
//! Both the network and shared memory feed it and handle its events at once, while the bytes
//! that the events refer to are still available.

mod operations;

use std::sync::Arc;

use dipole_proto::wire::{Payloads, RefusedReason};
use dipole_proto::{EdgeId, EdgePosition, Event, Instant, PeerId};
use dipole_record::RecordedMachine;

use super::dispatch::{Arrival, Dispatch, MessagePart, Source, UnreliablePart};
use super::long_messages::LongEvent;
use super::operations::Operations;
use super::packer::Packer;
use super::peers::Peers;
use super::posted::SentPosts;
use super::refusals::Refusals;
use crate::address::{Address, EndpointId};
use crate::gone::GoneReason;
use crate::inbox::{Charge, Origin};
use dipole_driver::{Ready, WaitKey};

/// The part of the engine that both carriers share.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) machine: RecordedMachine,
    pub(super) dispatch: Dispatch,
    pub(super) packer: Packer,
    pub(super) peers: Peers,
    pub(super) refusals: Refusals,
    /// Keys that became ready for waiting threads.
    pub(super) ready: Ready,
    /// Memory operations of peers and of this process.
    pub(super) operations: Operations,
    /// Events of long messages in shared memory.
    pub(super) long_events: Vec<LongEvent>,
    /// Completions of posted long messages.
    pub(super) sent_posts: SentPosts,
}

impl Core {
    /// Handles all pending events; those with bytes refer to `source`.
    #[inline]
    pub(super) fn handle_events(&mut self, source: &(impl Source + ?Sized)) {
        self.release_frames();
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::Deliver {
                    edge,
                    source: from,
                    target,
                    bytes,
                } => {
                    let arrival = self.arrival(edge.peer, from, target, Charge::Edge(edge));
                    let ready = &mut self.ready;
                    self.dispatch
                        .deliver(&arrival, bytes.len(), ready, |place| {
                            source.copy(bytes, place);
                        });
                }
                Event::DeliverRun {
                    edge,
                    source: from,
                    target,
                    records,
                } => {
                    let arrival = self.arrival(edge.peer, from, target, Charge::Edge(edge));
                    let run = Payloads::new(source.records(records));
                    self.dispatch.deliver_run(&arrival, run, &mut self.ready);
                }
                Event::Operation {
                    edge,
                    source: from,
                    target,
                    bytes,
                } => self.on_operation(edge, (from, target), bytes, source),
                other => self.handle_rare(other, source),
            }
        }
    }

    /// Frees the frames whose units have been acknowledged.
    #[inline]
    fn release_frames(&mut self) {
        let mut told = None;
        let mut is_any_free = false;
        while let Some(slot) = self.machine.poll_released() {
            is_any_free = true;
            let streamed = self.packer.release(slot);
            if let Some(peer) = streamed
                && told != streamed
            {
                told = streamed;
                self.ready.notify(WaitKey::Peer(peer));
            }
        }
        if is_any_free {
            self.ready.notify(WaitKey::Frame);
        }
    }

    /// Describes a message from an endpoint of a peer.
    #[inline]
    pub(super) fn arrival(&self, peer: PeerId, from: u32, target: u32, charge: Charge) -> Arrival {
        Arrival {
            origin: Origin {
                source: Address {
                    node: self.peers.node(peer),
                    endpoint: EndpointId(from),
                },
                peer,
            },
            target,
            charge,
        }
    }

    fn handle_rare(&mut self, event: Event, source: &(impl Source + ?Sized)) {
        match event {
            Event::Hold {
                edge,
                target,
                sequence,
                offset,
                total,
                operation,
                bytes,
            } => {
                let part = MessagePart {
                    edge,
                    target,
                    sequence,
                    offset,
                    total,
                    bytes,
                };
                match operation || self.operations.is_arriving(edge, sequence) {
                    true => self.hold_operation(part, operation, source),
                    false => {
                        let next = || self.machine.next_message(edge);
                        self.dispatch.hold(part, source, next);
                    }
                }
            }
            Event::Complete {
                edge,
                source: from,
                target,
                sequence,
            } => {
                if self.operations.is_arriving(edge, sequence) {
                    return self.complete_operation(edge, from, sequence);
                }
                let arrival = self.arrival(edge.peer, from, target, Charge::Edge(edge));
                self.dispatch.complete(&arrival, sequence, &mut self.ready);
            }
            Event::Unreliable {
                peer,
                key,
                sequence,
                offset,
                total,
                bytes,
            } => {
                let arrival = self.arrival(peer, key.source, key.target, Charge::None);
                let part = UnreliablePart {
                    peer,
                    key,
                    sequence,
                    offset,
                    total,
                    bytes,
                };
                self.dispatch
                    .unreliable(&arrival, part, source, &mut self.ready);
            }
            other => self.handle_news(other),
        }
    }

    /// Handles an event that refers to no bytes of a packet.
    fn handle_news(&mut self, event: Event) {
        match event {
            Event::Connected {
                peer,
                node,
                incarnation,
            } => {
                self.peers.connected(peer, node, incarnation);
                self.ready.notify(WaitKey::Peer(peer));
                self.ready.notify(WaitKey::AnyPeer);
                tracing::debug!(%peer, node, "session open");
            }
            Event::Suspected { peer } => self.peers.suspect(peer),
            Event::TooManyPeers { from } => {
                let from = crate::net::from_wire(from);
                tracing::warn!(
                    "rejected {from}: the limit of peers is reached, and all are alive; \
                     raise DIPOLE_MAX_PEERS"
                );
            }
            Event::Paths { peer, change } => self.peers.path_changed(peer, change),
            Event::Gone {
                peer,
                reason,
                acknowledged,
            } => self.on_gone(peer, GoneReason::from(reason), acknowledged),
            Event::Refused {
                peer,
                ends,
                edge,
                before,
                reason,
                ..
            } => self.on_refused((peer, ends), edge.map(|edge| (edge, before)), reason),
            Event::Settled { peer } => {
                self.ready.notify(WaitKey::Peer(peer));
                self.ready.notify(WaitKey::AnyPeer);
            }
            Event::EdgeForgotten { edge } => {
                self.operations.forget_edge(edge);
                self.ready.notify(WaitKey::Edge(edge));
            }
            Event::Credit { edge } => {
                self.ready.notify(WaitKey::Edge(edge));
            }
            Event::Fetch {
                edge,
                sequence,
                number,
                total,
                address,
            } => self.long_events.push(LongEvent::Fetch {
                edge,
                sequence,
                number,
                total,
                address,
            }),
            Event::OfferDone { edge, sequence } => {
                self.long_events.push(LongEvent::Taken { edge, sequence });
                self.ready.notify(WaitKey::Peer(edge.peer));
                self.ready.notify(WaitKey::AnyPeer);
            }
            Event::PiecesRequested { edge, sequence } => {
                self.long_events.push(LongEvent::Stream { edge, sequence });
                self.ready.notify(WaitKey::Peer(edge.peer));
            }
            Event::Deliver { .. }
            | Event::DeliverRun { .. }
            | Event::Operation { .. }
            | Event::Hold { .. }
            | Event::Complete { .. }
            | Event::Unreliable { .. } => {}
        }
    }

    fn on_refused(
        &mut self,
        (peer, ends): (PeerId, (u32, u32)),
        edge: Option<(EdgeId, EdgePosition)>,
        reason: RefusedReason,
    ) {
        self.refusals.record(peer, ends, reason);
        if let Some((edge, before)) = edge {
            self.refuse_operations(edge, before, reason);
            self.ready.notify(WaitKey::Edge(edge));
        }
        self.ready.notify(WaitKey::Peer(peer));
        self.ready.notify(WaitKey::AnyPeer);
    }

    fn on_gone(&mut self, peer: PeerId, reason: GoneReason, acknowledged: bool) {
        let packed = !self.packer.is_filling(peer) && !self.packer.has_long(peer);
        self.packer.forget(peer);
        self.dispatch.forget_peer(peer);
        self.forget_operations(peer, reason);
        self.peers.left(peer, reason);
        if !(acknowledged && packed) {
            self.peers.set_unacknowledged(peer);
        }
        self.ready.notify(WaitKey::Peer(peer));
        self.ready.notify(WaitKey::AnyPeer);
    }

    /// Opens an inbox for messages to `endpoint`.
    pub(super) fn open_endpoint(&mut self, endpoint: u32) {
        let buffers = Arc::clone(self.dispatch.buffers());
        self.dispatch.endpoints.open(endpoint, buffers);
        self.machine.open_endpoint(endpoint);
    }

    /// Closes an inbox: unread messages are dropped, new ones are refused, and its edges end.
    pub(super) fn close_endpoint(&mut self, now: Instant, endpoint: u32) {
        self.ready.notify(WaitKey::Endpoint(endpoint));
        // The protocol takes back the credit of all unread messages.
        drop(self.dispatch.endpoints.close(endpoint));
        self.dispatch.forget_target(endpoint);
        self.machine.close_endpoint(now, endpoint);
    }
}
