//! What is known of each peer, also after it has gone.

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

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Peers {
    /// By [`PeerId::index`]; the last that had it.
    states: Vec<Option<PeerState>>,
    departures: Departures,
    /// Peers that are silent though they owe an answer.
    suspects: Vec<PeerId>,
    /// What has become known of the paths to peers and is to be told.
    path_changes: Vec<(PeerId, PathChange)>,
    /// How often a peer has come or gone, or a path to one has changed.
    changes: u64,
}

impl Peers {
    /// A session begins.
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

    /// A peer has said who it is.
    pub(super) fn connected(&mut self, id: PeerId, node: u32, incarnation: u64) {
        let state = self.enter(id);
        state.node = node;
        state.incarnation = incarnation;
        self.changes += 1;
    }

    /// A peer is gone.
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

    /// How often a peer has come or gone, or a path to one has changed.
    #[inline]
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// A peer that is gone had not acknowledged everything.
    pub(super) fn set_unacknowledged(&mut self, id: PeerId) {
        self.enter(id).unacknowledged = true;
    }

    /// True if a peer is gone and had acknowledged everything before.
    pub(super) fn left_acknowledged(&self, id: PeerId) -> bool {
        (self.get(id)).is_some_and(|state| state.gone.is_some() && !state.unacknowledged)
    }

    /// The node that a peer said it is on.
    #[inline]
    pub(super) fn node(&self, id: PeerId) -> NodeId {
        NodeId(self.get(id).map_or(0, |state| state.node))
    }

    /// A peer's incarnation.
    pub(super) fn incarnation(&self, id: PeerId) -> u64 {
        self.get(id).map_or(0, |state| state.incarnation)
    }

    /// Why a peer is gone; `None` if that is not remembered.
    pub(super) fn gone_reason(&self, id: PeerId) -> Option<GoneReason> {
        self.get(id)?.gone
    }

    /// Peers that are gone since the last call.
    pub(super) fn take_departures(&mut self) -> Vec<Departure> {
        self.departures.take()
    }

    /// A peer owes an answer and is silent.
    pub(super) fn suspect(&mut self, id: PeerId) {
        self.suspects.push(id);
    }

    /// True if some peers are silent.
    #[inline]
    pub(super) fn has_suspects(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// Silent peers since the last call.
    pub(super) fn take_suspects(&mut self) -> Vec<PeerId> {
        std::mem::take(&mut self.suspects)
    }

    /// News of the paths to a peer.
    pub(super) fn path_changed(&mut self, id: PeerId, change: PathChange) {
        self.path_changes.push((id, change));
        self.changes += 1;
    }

    /// News of paths since the last call.
    #[inline]
    pub(super) fn take_path_changes(&mut self) -> Vec<(PeerId, PathChange)> {
        std::mem::take(&mut self.path_changes)
    }
}
