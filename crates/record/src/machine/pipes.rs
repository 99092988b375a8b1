//! Pipes, to processes of the same node.

use dipole_proto::wire::{Greeting, OPERATION_BYTES, PipeRecord, PipeTag};
use dipole_proto::{
    BeginError, ConnectError, Delivery, EdgeId, GoneReason, Instant, MessageStart, PeerId,
    ProtocolViolation,
};

use super::RecordedMachine;
use crate::check::Check;
use crate::input::Input;

impl RecordedMachine {
    /// See [`Machine::open_pipe`](dipole_proto::Machine::open_pipe).
    ///
    /// # Errors
    /// As there.
    pub fn open_pipe(&mut self, remote: Greeting) -> Result<PeerId, ConnectError> {
        let peer = self.machine.open_pipe(remote);
        self.note(|it| it.push(&Input::OpenPipe(remote, Check::of(&peer))));
        peer
    }

    /// See [`Machine::close_pipe`](dipole_proto::Machine::close_pipe).
    pub fn close_pipe(&mut self, peer: PeerId, reason: GoneReason) {
        self.machine.close_pipe(peer, reason);
        self.note(|it| it.push(&Input::ClosePipe(peer, reason)));
    }

    /// See [`Machine::begin_whole`](dipole_proto::Machine::begin_whole).
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn begin_whole(&mut self, edge: EdgeId, total: u64) -> Result<bool, BeginError> {
        self.admit(edge)?;
        let begun = self.machine.begin_whole(edge, total);
        self.note(|it| {
            let check = Check::of(&begun);
            it.push(&Input::BeginWhole(edge, total, check));
        });
        begun
    }

    /// See [`Machine::on_pipe_message`](dipole_proto::Machine::on_pipe_message).
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn on_pipe_message(
        &mut self,
        now: Instant,
        peer: PeerId,
        number: u32,
        length: usize,
    ) -> Result<Option<Delivery>, ProtocolViolation> {
        let taken = self.machine.on_pipe_message(now, peer, number, length);
        self.note(|it| {
            let check = Check::of(&taken);
            let input = Input::PipeMessage(peer, number, length as u64, check);
            it.push_at(now, &input);
        });
        taken
    }

    /// See [`Machine::on_pipe_message_read`](dipole_proto::Machine::on_pipe_message_read).
    #[inline]
    pub fn on_pipe_message_read(
        &mut self,
        now: Instant,
        peer: PeerId,
        number: u32,
        length: usize,
        reader: u32,
    ) -> Option<Delivery> {
        let machine = &mut self.machine;
        let delivery = machine.on_pipe_message_read(now, peer, number, length, reader)?;
        self.note(|it| {
            let (length, check) = (length as u64, Check::of(&delivery));
            let input = Input::PipeMessageRead(peer, number, length, reader, check);
            it.push_at(now, &input);
        });
        Some(delivery)
    }

    /// See [`Machine::on_pipe_record`](dipole_proto::Machine::on_pipe_record).
    ///
    /// # Errors
    /// As there.
    pub fn on_pipe_record(
        &mut self,
        now: Instant,
        peer: PeerId,
        tag: PipeTag,
        payload: &[u8],
        length: usize,
    ) -> Result<(), ProtocolViolation> {
        let taken = self.machine.on_pipe_record(now, peer, tag, payload, length);
        self.note(|it| {
            it.push_at(
                now,
                &Input::PipeRecord {
                    peer,
                    tag: tag.to_word(),
                    payload: payload.into(),
                    length: length as u64,
                    check: Check::of(&taken),
                },
            );
        });
        taken
    }

    /// See [`Machine::poll_ready_pipe`](dipole_proto::Machine::poll_ready_pipe).
    pub fn poll_ready_pipe(&mut self) -> Option<PeerId> {
        if !self.machine.has_ready_pipe() {
            return None;
        }
        let peer = self.machine.poll_ready_pipe();
        self.note(|it| it.push(&Input::ReadyPipe(Check::of(&peer))));
        peer
    }

    /// See [`Machine::poll_record`](dipole_proto::Machine::poll_record).
    pub fn poll_record(&mut self, peer: PeerId) -> Option<PipeRecord> {
        let record = self.machine.poll_record(peer);
        self.note(|it| it.push(&Input::PollRecord(peer, Check::of(&record))));
        record
    }

    /// See [`Machine::pop_record`](dipole_proto::Machine::pop_record).
    pub fn pop_record(&mut self, peer: PeerId) {
        self.machine.pop_record(peer);
        self.note(|it| it.push(&Input::PopRecord(peer)));
    }

    /// See [`Machine::offer`](dipole_proto::Machine::offer).
    pub fn offer(
        &mut self,
        edge: EdgeId,
        begun: MessageStart,
        place: (u64, u64),
        head: Option<&[u8; OPERATION_BYTES]>,
    ) {
        self.machine.offer(edge, begun, place, head);
        self.note(|it| it.push(&Input::Offer(edge, begun, place, head.copied())));
    }

    /// See [`Machine::announce`](dipole_proto::Machine::announce).
    pub fn announce(
        &mut self,
        edge: EdgeId,
        begun: MessageStart,
        total: u64,
        head: Option<&[u8; OPERATION_BYTES]>,
    ) {
        self.machine.announce(edge, begun, total, head);
        self.note(|it| it.push(&Input::Announce(edge, begun, total, head.copied())));
    }

    /// See [`Machine::pieces_sent`](dipole_proto::Machine::pieces_sent).
    pub fn pieces_sent(&mut self, edge: EdgeId, sequence: u64) {
        self.machine.pieces_sent(edge, sequence);
        self.note(|it| it.push(&Input::PiecesSent(edge, sequence)));
    }

    /// See [`Machine::fetch_completed`](dipole_proto::Machine::fetch_completed).
    pub fn fetch_completed(&mut self, now: Instant, edge: EdgeId, number: u32, sequence: u64) {
        self.machine.fetch_completed(now, edge, number, sequence);
        self.note(|it| {
            it.push_at(now, &Input::FetchCompleted(edge, number, sequence));
        });
    }

    /// See [`Machine::fetch_failed`](dipole_proto::Machine::fetch_failed).
    pub fn fetch_failed(&mut self, edge: EdgeId, number: u32, sequence: u64, total: u64) {
        self.machine.fetch_failed(edge, number, sequence, total);
        self.note(|it| it.push(&Input::FetchFailed(edge, number, sequence, total)));
    }
}
