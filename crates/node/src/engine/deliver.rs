//! What the engine does with the protocol's events: messages into inboxes, frames
//! back to the pool.

use std::sync::Arc;

use dipole_proto::{EdgeId, Event, Machine, PathChange, PeerId};

use super::Traffic;
use super::departures::{Departure, Departures};
use super::peer::{Assembly, Incoming, LooseAssembly, Peer, find, peer_entry};
use super::rooms::Rooms;
use crate::GoneReason;
use crate::address::{Address, EndpointId, NodeId};
use crate::driver::{Ready, WaitKey};
use crate::frames::FramePool;
use crate::inbox::{Buffer, Buffers, Charge};

/// Unreliable messages that one endpoint holds at most.
pub(super) const LOOSE_LIMIT: usize = 4096;

/// The parts of the engine that events change.
pub(super) struct Receivers<'a> {
    pub(super) frames: &'a mut FramePool,
    pub(super) peers: &'a mut Vec<Option<Peer>>,
    pub(super) rooms: &'a mut Rooms,
    pub(super) buffers: &'a Arc<Buffers>,
    pub(super) traffic: &'a mut Traffic,
    pub(super) departures: &'a mut Departures,
    /// Peers that are silent though they owe an answer.
    pub(super) quiet: &'a mut Vec<PeerId>,
    /// What has become known of the ways to peers, to be told.
    pub(super) path_changes: &'a mut Vec<(PeerId, PathChange)>,
    pub(super) ready: &'a mut Ready,
    pub(super) open_frames: &'a mut usize,
    /// Endpoints with a descriptor that got a message in this turn.
    pub(super) fresh: &'a mut Vec<u32>,
}

/// A message on its way into an inbox.
pub(super) struct Arrival {
    pub(super) source: Address,
    pub(super) target: u32,
    pub(super) charged_to: Charge,
}

/// Handles all events at hand; those with bytes refer to `packet`.
#[inline]
pub(super) fn handle(machine: &mut Machine, receivers: &mut Receivers<'_>, packet: &[u8]) {
    while let Some(event) = machine.poll_event() {
        match event {
            Event::Deliver { edge, bytes } => receivers.deliver(edge, &packet[bytes]),
            Event::Released { slot } => {
                if let Some(id) = receivers.frames.release(slot)
                    && let Some(peer) = find(receivers.peers, id)
                {
                    peer.bulk_released += 1;
                    receivers.ready.notify(WaitKey::Peer(id));
                }
                receivers.ready.notify(WaitKey::Frame);
            }
            other => receivers.rare(other, packet),
        }
    }
}

impl Receivers<'_> {
    #[inline]
    fn deliver(&mut self, edge: EdgeId, bytes: &[u8]) {
        let arrival = incoming(self.peers, edge).map(|incoming| Arrival {
            source: incoming.source,
            target: incoming.target,
            charged_to: Charge::Net(edge),
        });
        if let Some(arrival) = arrival {
            self.push_with(&arrival, bytes.len(), |place| place.copy_from_slice(bytes));
        }
    }

    /// Puts a message that `fill` writes into its inbox; false if there is none.
    #[inline]
    pub(super) fn push_with(
        &mut self,
        arrival: &Arrival,
        length: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        let Some(room) = self.rooms.get_mut(arrival.target) else {
            return false;
        };
        room.inbox
            .push_with(arrival.charged_to, arrival.source, length, fill);
        if room.exported && !room.fresh {
            room.fresh = true;
            self.fresh.push(arrival.target);
        }
        self.ready.notify(WaitKey::Endpoint(arrival.target));
        true
    }

    /// The same with a long message; gives it back if there is no inbox.
    pub(super) fn push_buffer(&mut self, arrival: &Arrival, buffer: Buffer) -> Result<(), Buffer> {
        let Some(room) = self.rooms.get_mut(arrival.target) else {
            return Err(buffer);
        };
        room.inbox
            .push_buffer(arrival.charged_to, arrival.source, buffer);
        if room.exported && !room.fresh {
            room.fresh = true;
            self.fresh.push(arrival.target);
        }
        self.ready.notify(WaitKey::Endpoint(arrival.target));
        Ok(())
    }

    fn rare(&mut self, event: Event, packet: &[u8]) {
        match event {
            Event::Hold {
                edge,
                sequence,
                offset,
                total,
                bytes,
            } => self.hold(edge, sequence, (offset, total), &packet[bytes]),
            Event::Complete { edge, sequence } => self.complete(edge, sequence),
            Event::Loose {
                edge,
                sequence,
                offset,
                total,
                bytes,
            } => self.loose(edge, sequence, (offset, total), &packet[bytes]),
            Event::EdgeOpened {
                edge,
                source,
                target,
            } => {
                let peer = peer_entry(self.peers, edge.peer);
                debug_assert_eq!(peer.incoming.len(), edge.index as usize);
                peer.incoming.push(Incoming {
                    source: Address {
                        node: NodeId(peer.node),
                        endpoint: EndpointId(source),
                    },
                    target,
                    assemblies: Vec::new(),
                    loose: None,
                });
            }
            Event::Connected {
                peer,
                node,
                incarnation,
            } => {
                let entry = peer_entry(self.peers, peer);
                entry.node = node;
                entry.incarnation = incarnation;
                self.ready.notify(WaitKey::Peer(peer));
                self.ready.notify(WaitKey::AnyPeer);
                tracing::debug!(%peer, node, "session open");
            }
            Event::Quiet { peer } => self.quiet.push(peer),
            Event::TooManyPeers { from } => {
                let from = crate::net::from_wire(from);
                tracing::warn!(
                    "{from} was turned away: there are as many peers as may be, and all live; \
                     raise DIPOLE_MAX_PEERS"
                );
            }
            Event::Paths { peer, change } => self.path_changes.push((peer, change)),
            Event::Gone { peer, reason } => {
                let entry = peer_entry(self.peers, peer);
                let reason = GoneReason::from(reason);
                entry.gone = Some(reason);
                entry.incoming = Vec::new();
                entry.bulk_mark = Vec::new();
                if let Some(open) = entry.open.take() {
                    self.frames.put_back(open.slot);
                    *self.open_frames -= 1;
                }
                self.departures.push(Departure {
                    peer: Some(peer),
                    node: entry.node,
                    incarnation: entry.incarnation,
                    reason,
                });
                self.ready.notify(WaitKey::Peer(peer));
                self.ready.notify(WaitKey::AnyPeer);
                tracing::info!(%peer, node = entry.node, "peer is gone: {reason}");
            }
            Event::Credit { edge } | Event::Refused { edge, .. } => {
                self.ready.notify(WaitKey::Edge(edge));
            }
            Event::EdgeEnded { .. } => {}
            Event::Deliver { .. }
            | Event::Released { .. }
            | Event::Placed { .. }
            | Event::RegionOpened { .. }
            | Event::RegionClosed { .. } => {}
        }
    }

    fn hold(&mut self, edge: EdgeId, sequence: u64, (offset, total): (u64, u64), bytes: &[u8]) {
        let Some(incoming) = incoming(self.peers, edge) else {
            return;
        };
        let assemblies = &mut incoming.assemblies;
        let known = assemblies
            .iter()
            .rposition(|assembly| assembly.sequence == sequence);
        let index = known.unwrap_or_else(|| {
            let buffer = self.buffers.take(length(total));
            assemblies.push(Assembly { sequence, buffer });
            assemblies.len() - 1
        });
        let at = length(offset);
        assemblies[index].buffer.bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn complete(&mut self, edge: EdgeId, sequence: u64) {
        let Some(incoming) = incoming(self.peers, edge) else {
            return;
        };
        let found = incoming
            .assemblies
            .iter()
            .position(|assembly| assembly.sequence == sequence);
        let Some(index) = found else {
            return;
        };
        let assembly = incoming.assemblies.swap_remove(index);
        let arrival = Arrival {
            source: incoming.source,
            target: incoming.target,
            charged_to: Charge::Net(edge),
        };
        // The machine gives back the credit of what nobody takes.
        let _unwanted = self.push_buffer(&arrival, assembly.buffer);
    }

    fn loose(&mut self, edge: EdgeId, sequence: u32, (offset, total): (u64, u64), bytes: &[u8]) {
        let Some(incoming) = incoming(self.peers, edge) else {
            return;
        };
        let arrival = Arrival {
            source: incoming.source,
            target: incoming.target,
            charged_to: Charge::None,
        };
        let Some(room) = self.rooms.get(incoming.target) else {
            return;
        };
        if room.inbox.len() >= LOOSE_LIMIT {
            self.traffic.loose_dropped += 1;
            return;
        }
        if bytes.len() as u64 == total {
            self.push_with(&arrival, bytes.len(), |place| place.copy_from_slice(bytes));
            return;
        }
        let current = incoming
            .loose
            .take()
            .filter(|loose| loose.sequence == sequence);
        let mut loose = current.unwrap_or_else(|| LooseAssembly {
            sequence,
            got: 0,
            buffer: self.buffers.take(length(total)),
        });
        let at = length(offset);
        if let Some(place) = loose.buffer.bytes_mut().get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
            loose.got += bytes.len() as u64;
        }
        if loose.got == total {
            let _unwanted = self.push_buffer(&arrival, loose.buffer);
        } else {
            incoming.loose = Some(loose);
        }
    }
}

#[inline]
fn incoming(peers: &mut [Option<Peer>], edge: EdgeId) -> Option<&mut Incoming> {
    find(peers, edge.peer)?
        .incoming
        .get_mut(edge.index as usize)
}

/// A length that the protocol has checked against the longest message.
fn length(bytes: u64) -> usize {
    usize::try_from(bytes).expect("no message is longer than memory")
}
