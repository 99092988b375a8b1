//! Information about each peer, even after it has gone.

use dipole_proto::{PathChange, PeerId};

use super::departures::{Departure, Departures};
use crate::address::NodeId;
use crate::gone::GoneReason;

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
        slot.take_if(|state| state.id != id);
        slot.get_or_insert(PeerState {
            id,
            node: 0,
            incarnation: 0,
            gone: None,
            unacknowledged: false,
        })
    }

    fn get(&self, id: PeerId) -> Option<&PeerState> {
        let state = self.states.get(id.index())?.as_ref()?;
        (state.id == id).then_some(state)
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
