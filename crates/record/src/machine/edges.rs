//! Endpoints, edges and messages of the program.

use dipole_proto::wire::EdgeKey;
use dipole_proto::{BeginError, EdgeError, EdgeId, Instant, MessageStart, PeerId, Slot};

use super::RecordedMachine;
use crate::check::Check;
use crate::input::Input;

impl RecordedMachine {
    /// See [`Machine::open_endpoint`](dipole_proto::Machine::open_endpoint).
    pub fn open_endpoint(&mut self, target: u32) {
        self.machine.open_endpoint(target);
        self.note(|it| it.push(&Input::OpenEndpoint(target)));
    }

    /// See [`Machine::close_endpoint`](dipole_proto::Machine::close_endpoint).
    pub fn close_endpoint(&mut self, now: Instant, target: u32) {
        self.machine.close_endpoint(now, target);
        self.note(|it| it.push_at(now, &Input::CloseEndpoint(target)));
    }

    /// See [`Machine::new_random_key`](dipole_proto::Machine::new_random_key).
    pub fn new_random_key(&mut self) -> u64 {
        let key = self.machine.new_random_key();
        self.note(|it| it.push(&Input::RandomKey(Check::of(&key))));
        key
    }

    /// See [`Machine::edge`](dipole_proto::Machine::edge).
    ///
    /// # Errors
    /// As there.
    pub fn edge(&mut self, peer: PeerId, source: u32, target: u32) -> Result<EdgeId, EdgeError> {
        let edge = self.machine.edge(peer, source, target);
        self.note(|it| it.push(&Input::Edge((peer, source, target), Check::of(&edge))));
        edge
    }

    /// See [`Machine::close_edge`](dipole_proto::Machine::close_edge).
    pub fn close_edge(&mut self, edge: EdgeId) {
        self.machine.close_edge(edge);
        self.note(|it| it.push(&Input::CloseEdge(edge)));
    }

    /// See [`Machine::begin`](dipole_proto::Machine::begin).
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn begin(
        &mut self,
        now: Instant,
        edge: EdgeId,
        total: u64,
    ) -> Result<MessageStart, BeginError> {
        self.admit(edge)?;
        let begun = self.machine.begin(now, edge, total);
        self.note(|it| {
            let check = Check::of(&begun);
            it.push_at(now, &Input::Begin(edge, total, check));
        });
        begun
    }

    /// See [`Machine::retract`](dipole_proto::Machine::retract).
    pub fn retract(&mut self, edge: EdgeId, total: u64) {
        self.machine.retract(edge, total);
        self.note(|it| it.push(&Input::Retract(edge, total)));
    }

    /// See [`Machine::begin_unreliable`](dipole_proto::Machine::begin_unreliable).
    ///
    /// # Errors
    /// As there.
    pub fn begin_unreliable(&mut self, edge: EdgeId) -> Result<(EdgeKey, u32), BeginError> {
        let begun = self.machine.begin_unreliable(edge);
        self.note(|it| {
            let check = Check::of(&begun);
            it.push(&Input::BeginUnreliable(edge, check));
        });
        begun
    }

    /// See [`Machine::cancel`](dipole_proto::Machine::cancel).
    pub fn cancel(&mut self, edge: EdgeId) {
        self.machine.cancel(edge);
        self.note(|it| it.push(&Input::Cancel(edge)));
    }

    /// See [`Machine::clear_refusal`](dipole_proto::Machine::clear_refusal).
    pub fn clear_refusal(&mut self, edge: EdgeId) {
        self.machine.clear_refusal(edge);
        self.note(|it| it.push(&Input::ClearRefusal(edge)));
    }

    /// See [`Machine::edge_key`](dipole_proto::Machine::edge_key), which changes nothing.
    #[must_use]
    pub fn edge_key(&mut self, edge: EdgeId) -> Option<EdgeKey> {
        self.machine.edge_key(edge)
    }

    /// See [`Machine::queue`](dipole_proto::Machine::queue).
    #[inline]
    pub fn queue(&mut self, peer: PeerId, slots: &[Slot], bulk: bool) -> bool {
        let queued = self.machine.queue(peer, slots, bulk);
        self.note(|it| it.push(&Input::Queue(peer, slots.to_vec(), bulk, queued)));
        queued
    }

    /// See [`Machine::queue_unreliable`](dipole_proto::Machine::queue_unreliable).
    pub fn queue_unreliable(&mut self, peer: PeerId, slot: Slot, bulk: bool) -> bool {
        let queued = self.machine.queue_unreliable(peer, slot, bulk);
        self.note(|it| it.push(&Input::QueueUnreliable(peer, slot, bulk, queued)));
        queued
    }

    /// See [`Machine::consumed`](dipole_proto::Machine::consumed).
    #[inline]
    pub fn consumed(&mut self, now: Instant, edge: EdgeId, total: u64) {
        self.machine.consumed(now, edge, total);
        self.note(|it| it.push_at(now, &Input::Consumed(edge, total)));
    }
}
