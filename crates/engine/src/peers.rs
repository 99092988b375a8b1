//! Information about each peer, even after it has gone.

use std::collections::VecDeque;

use dipole_proto::{PathChange, PeerId};
use rustc_hash::FxHashMap;

use super::departures::{Departure, Departures};
use crate::address::NodeId;
use crate::gone::GoneReason;

/// Limit of peers whose end is remembered after another peer got their index. A program that keeps
/// edges to more peers than that gets an error without a reason for the oldest.
const MAX_PAST: usize = 65_536;

#[derive(Debug)]
struct PeerState {
    id: PeerId,
    node: u32,
    incarnation: u64,
    gone: Option<GoneReason>,
    /// It is gone and had not acknowledged everything.
    unacknowledged: bool,
}

/// Peers with a session or a connection.
#[derive(Debug, Default)]
pub(super) struct Peers {
    /// By [`PeerId::index`]; the latest peer with that index.
    states: Vec<Option<PeerState>>,
    /// Earlier peers with those indices. Edges to them still report how they left.
    past: FxHashMap<PeerId, PeerState>,
    /// Keys of `past`, oldest first.
    past_order: VecDeque<PeerId>,
    departures: Departures,
    /// Peers that owe an answer and are silent.
    suspects: Vec<PeerId>,
    /// Path changes that have not been logged yet.
    path_changes: Vec<(PeerId, PathChange)>,
    /// Number of times that a peer connected or left, or a path changed.
    changes: u64,
}

impl Peers {
    /// Records that a session began.
    pub(super) fn begin(&mut self, id: PeerId) {
        self.enter(id);
    }

    fn enter(&mut self, id: PeerId) -> &mut PeerState {
        let index = id.index();
        if self.states.len() <= index {
            self.states.resize_with(index + 1, || None);
        }
        let slot = &mut self.states[index];
        if let Some(replaced) = slot.take_if(|state| state.id != id) {
            self.past_order.push_back(replaced.id);
            self.past.insert(replaced.id, replaced);
            if self.past_order.len() > MAX_PAST
                && let Some(oldest) = self.past_order.pop_front()
            {
                self.past.remove(&oldest);
            }
        }
        // Ids are random and may come again.
        if self.past.remove(&id).is_some() {
            self.past_order.retain(|past| *past != id);
        }
        slot.get_or_insert(PeerState {
            id,
            node: 0,
            incarnation: 0,
            gone: None,
            unacknowledged: false,
        })
    }

    fn get(&self, id: PeerId) -> Option<&PeerState> {
        let latest = self.states.get(id.index())?.as_ref()?;
        match latest.id == id {
            true => Some(latest),
            false => self.past.get(&id),
        }
    }

    /// Stores a peer's identity from its handshake.
    pub(super) fn connected(&mut self, id: PeerId, node: u32, incarnation: u64) {
        let state = self.enter(id);
        state.node = node;
        state.incarnation = incarnation;
        self.changes += 1;
    }

    /// Records that a peer is gone.
    pub(super) fn left(&mut self, id: PeerId, reason: GoneReason) {
        let state = self.enter(id);
        state.gone = Some(reason);
        tracing::info!(peer = %id, node = state.node, "peer is gone: {reason}");
        let departure = Departure {
            peer: id,
            node: state.node,
            incarnation: state.incarnation,
            reason,
        };
        self.departures.push(departure);
        self.changes += 1;
    }

    /// Number of times that a peer connected or left, or a path changed.
    #[inline]
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Records that a peer that is gone had not acknowledged everything.
    pub(super) fn set_unacknowledged(&mut self, id: PeerId) {
        self.enter(id).unacknowledged = true;
    }

    /// True if a peer is gone and had acknowledged everything.
    pub(super) fn acknowledged_before_leaving(&self, id: PeerId) -> bool {
        (self.get(id)).is_some_and(|state| state.gone.is_some() && !state.unacknowledged)
    }

    /// The node that a peer reported.
    #[inline]
    pub(super) fn node(&self, id: PeerId) -> NodeId {
        NodeId(self.get(id).map_or(0, |state| state.node))
    }

    pub(super) fn incarnation(&self, id: PeerId) -> u64 {
        self.get(id).map_or(0, |state| state.incarnation)
    }

    /// Why a peer is gone, if that is remembered.
    pub(super) fn gone_reason(&self, id: PeerId) -> Option<GoneReason> {
        self.get(id)?.gone
    }

    /// Peers that have gone since the last call.
    pub(super) fn take_departures(&mut self) -> Vec<Departure> {
        self.departures.take()
    }

    /// Records that a peer owes an answer and is silent.
    pub(super) fn suspect(&mut self, id: PeerId) {
        self.suspects.push(id);
    }

    /// True if any peers are silent.
    #[inline]
    pub(super) fn has_suspects(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// Peers that fell silent since the last call.
    pub(super) fn take_suspects(&mut self) -> Vec<PeerId> {
        std::mem::take(&mut self.suspects)
    }

    /// Records a change of a path.
    pub(super) fn path_changed(&mut self, id: PeerId, change: PathChange) {
        self.path_changes.push((id, change));
        self.changes += 1;
    }

    /// Path changes since the last call.
    #[inline]
    pub(super) fn take_path_changes(&mut self) -> Vec<(PeerId, PathChange)> {
        std::mem::take(&mut self.path_changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dipole_proto::Machine;

    #[test]
    fn a_peer_is_remembered_after_another_has_taken_its_index() {
        let mut machine = Machine::new(dipole_proto::Config::default(), 1, [2, 3], &[]);
        let mut peers = Peers::default();
        let mut gone = Vec::new();
        for round in 0..64 {
            let id = machine.open_pipe(machine.greeting()).expect("room");
            peers.begin(id);
            peers.connected(id, 7, round);
            peers.left(id, GoneReason::Died);
            if round % 2 == 1 {
                peers.set_unacknowledged(id);
            }
            machine.close_pipe(id, dipole_proto::GoneReason::Died);
            gone.push(id);
        }
        let shared = gone.iter().filter(|id| id.index() == gone[0].index());
        assert!(shared.count() > 1, "indices are used again");
        for (round, id) in gone.iter().enumerate() {
            assert_eq!(peers.acknowledged_before_leaving(*id), round % 2 == 0);
            assert_eq!(peers.gone_reason(*id), Some(GoneReason::Died));
            assert_eq!(peers.incarnation(*id), round as u64);
        }
    }
}
