//! Peers on the same node: sends and receives the protocol's records through shared memory.
//!
//! The link is ordered and reliable, and the protocol is the machine's. This part maps
//! connections to peers, wakes sleeping peers, and copies long messages
//! (`shared_memory/long.rs`).

mod arrivals;
mod long;
mod transfer;

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use dipole_link::AnyHub;
use dipole_link::shm::{
    CloseReason, ConnId, MAX_RECORD_BYTES, PushError, ShmError, ShmEvent, ShmOptions, ShmStats,
};
use dipole_proto::wire::{Greeting, PipeKind, PipeTag, ResetReason};
use dipole_proto::{EdgeId, GoneReason, Instant, Machine, PeerId, ProtocolViolation};
use dipole_record::RecordedMachine;
use rustc_hash::FxHashMap;

use super::content::{Content, Head};
use super::core::Core;
use super::packer::blocked;
use super::target::Blocked;
use crate::address::NodeId;
use crate::inbox::Message;
use crate::reader::Reader;
use arrivals::{PipeMessage, hand_over, on_message, on_record, read_in_place};
use dipole_driver::{Polled, WaitKey};
use dipole_model::Choices;
use long::{Fetches, OutgoingLong};
use transfer::TransferChoice;

/// Records handled per poll.
const POLL_LIMIT: usize = 256;
/// Default length up to which a message goes through the ring as one record. Longer ones are split,
/// or fetched by their receiver. Unreliable messages are never longer.
const EAGER_BYTES: usize = Choices::BUILT_IN_EAGER_BYTES;
/// Lower limit for the value from a profile.
const PROFILE_MIN_EAGER_BYTES: usize = 1 << 10;

/// A connection of the hub.
#[derive(Debug)]
struct Connection {
    id: ConnId,
    /// The peer's incarnation; zero until it is known.
    incarnation: u64,
    state: State,
    received_bye: bool,
    /// The peer has new records and may be asleep.
    needs_wake: bool,
    /// How long messages are sent.
    transfer: TransferChoice,
}

/// The connection to a peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    peer: PeerId,
    id: ConnId,
    /// Longest message sent as one record.
    pub(super) eager_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Opening,
    Open(PeerId),
    Gone(GoneReason),
}

/// The shared-memory side of the engine.
#[derive(Debug)]
pub(super) struct SharedMemory {
    hub: AnyHub,
    own: Greeting,
    /// Connections, indexed by [`ConnId::index`].
    connections: Vec<Option<Connection>>,
    /// Routes to peers, indexed by [`PeerId::index`].
    by_peer: Vec<Option<Route>>,
    by_incarnation: FxHashMap<u64, ConnId>,
    /// Connections whose peers have new records and may be asleep.
    pending_wakes: Vec<ConnId>,
    /// Peers whose records found no room in the ring.
    backlogged: Vec<PeerId>,
    fetches: Fetches,
    outgoing: OutgoingLong,
    /// Longest message sent as one record.
    eager_bytes: usize,
    events: Vec<ShmEvent>,
    /// A process of this node died without disconnecting: its files may be removed.
    peer_died: bool,
}

impl SharedMemory {
    pub(super) fn open(
        open: impl FnOnce(&[u8], &ShmOptions) -> Result<AnyHub, ShmError>,
        machine: &Machine,
    ) -> Result<SharedMemory, ShmError> {
        let own = machine.greeting();
        let options = ShmOptions {
            max_connections: machine.config().max_peers as usize,
            ..ShmOptions::default()
        };
        Ok(SharedMemory {
            hub: open(&own.to_bytes(), &options)?,
            own,
            connections: Vec::new(),
            by_peer: Vec::new(),
            by_incarnation: FxHashMap::default(),
            pending_wakes: Vec::new(),
            backlogged: Vec::new(),
            fetches: Fetches::default(),
            outgoing: OutgoingLong::default(),
            eager_bytes: EAGER_BYTES,
            events: Vec::new(),
            peer_died: false,
        })
    }

    /// Applies a measured profile, from the next connection on.
    pub(super) fn apply_profile(&mut self, choices: Choices) {
        if let Some(bytes) = choices.eager_bytes {
            self.eager_bytes = bytes.clamp(
                PROFILE_MIN_EAGER_BYTES,
                MAX_RECORD_BYTES - size_of::<Head>(),
            );
        }
        self.outgoing.set_piece_bytes(choices.piece_bytes);
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.hub.descriptor()
    }

    pub(super) fn stats(&self) -> ShmStats {
        self.hub.stats()
    }

    /// Records that an injected shortage refused.
    pub(super) fn refused(&self) -> u64 {
        self.hub.refused()
    }

    /// Number of opening and open connections.
    pub(super) fn peers(&self) -> usize {
        let connections = self.connections.iter().flatten();
        let alive = connections.filter(|found| !matches!(found.state, State::Gone(_)));
        alive.count()
    }

    /// True once after a process of this node died without disconnecting.
    pub(super) fn take_peer_died(&mut self) -> bool {
        std::mem::take(&mut self.peer_died)
    }

    /// True once after a wake-up was consumed, which may have been for a sleeping thread.
    pub(super) fn take_woken(&mut self) -> bool {
        self.hub.take_woken()
    }

    /// The opening or open connection with a process.
    pub(super) fn find_process(&self, incarnation: u64) -> Option<ConnId> {
        let id = *self.by_incarnation.get(&incarnation)?;
        let found = self.find(id)?;
        (!matches!(found.state, State::Gone(_))).then_some(id)
    }

    /// Opens a connection with a process.
    pub(super) fn connect(&mut self, socket: &Path, incarnation: u64) -> Result<ConnId, ShmError> {
        let id = self.hub.connect(socket)?;
        self.enter(id, incarnation);
        self.by_incarnation.insert(incarnation, id);
        Ok(id)
    }

    /// The peer at the other end of a connection, or of another connection with the same process:
    /// if two processes connect to each other simultaneously, they need not wait for the second.
    /// `None` while it opens; an error if the peer is gone.
    pub(super) fn peer(&self, id: ConnId) -> Result<Option<PeerId>, Option<GoneReason>> {
        let mut found = self.find(id).ok_or(None)?;
        if matches!(found.state, State::Opening)
            && let Some(other) = self.by_incarnation.get(&found.incarnation)
        {
            found = self.find(*other).unwrap_or(found);
        }
        match found.state {
            State::Opening => Ok(None),
            State::Open(peer) => Ok(Some(peer)),
            State::Gone(reason) => Err(Some(reason)),
        }
    }

    /// The route to a peer; `None` if it is not in shared memory.
    #[inline]
    pub(super) fn route(&self, peer: PeerId) -> Option<Route> {
        let route = (*self.by_peer.get(peer.index())?)?;
        (route.peer == peer).then_some(route)
    }

    fn connection(&self, peer: PeerId) -> Option<ConnId> {
        Some(self.route(peer)?.id)
    }

    /// Sends a message as one record. With `more`, the peer is not woken for it.
    #[inline]
    pub(super) fn send_whole(
        &mut self,
        machine: &mut RecordedMachine,
        (route, edge): (Route, EdgeId),
        content: Content<'_>,
        more: bool,
    ) -> Result<(), Blocked> {
        let (id, total) = (route.id, content.charged_bytes());
        let begun = machine.begin_whole(edge, total);
        // Earlier records must not be overtaken.
        if !begun.is_ok_and(|is_first| is_first) {
            self.push_records(machine);
            begun.map_err(blocked)?;
            if machine.has_queued_records(edge.peer) {
                machine.retract(edge, total);
                return Err(Blocked::NoFrame);
            }
        }
        let tag = Machine::message_tag(edge, content.head.is_some());
        let head = content.head.map_or(&[][..], |head| &head[..]);
        if let Err(error) = self.hub.push_parts(id, tag, head, content.payload) {
            machine.retract(edge, total);
            return Err(self.full_or_gone(id, &error));
        }
        if more {
            self.wake_later(id);
        } else {
            self.wake(id);
        }
        Ok(())
    }

    #[cold]
    fn full_or_gone(&mut self, id: ConnId, error: &PushError) -> Blocked {
        match error {
            PushError::Full => {
                self.hub.want_room(id);
                Blocked::NoFrame
            }
            PushError::TooLong { .. } => Blocked::TooLong {
                limit: self.eager_bytes as u64,
            },
            // Its end is reported by `poll_connections`.
            PushError::Gone => Blocked::Gone(None),
        }
    }

    /// Sends a message that may be lost; never blocks.
    pub(super) fn send_unreliable(
        &mut self,
        machine: &mut RecordedMachine,
        (route, edge): (Route, EdgeId),
        payload: &[u8],
    ) -> Result<(), Blocked> {
        if payload.len() > EAGER_BYTES {
            return Err(Blocked::TooLong {
                limit: EAGER_BYTES as u64,
            });
        }
        machine.begin_unreliable(edge).map_err(blocked)?;
        self.push_records(machine);
        if machine.has_queued_records(edge.peer) {
            return Err(Blocked::NoFrame);
        }
        let tag = Machine::piece_tag(edge, true);
        if let Err(error) = self.hub.push(route.id, tag, payload) {
            return Err(self.full_or_gone(route.id, &error));
        }
        self.wake(route.id);
        Ok(())
    }

    /// True if the peer has read everything that was sent to it, and its refusals have arrived.
    pub(super) fn is_acknowledged(&mut self, machine: &Machine, peer: PeerId) -> bool {
        let Some(id) = self.connection(peer) else {
            return true;
        };
        let done = machine.is_acknowledged(peer)
            && self.hub.is_read(id)
            && self.hub.answers(id) <= machine.refusals(peer).received;
        if !done {
            self.hub.want_room(id);
        }
        done
    }

    /// True if everything sent to a peer is in its ring, and there is room for a goodbye.
    pub(super) fn can_leave(&mut self, machine: &Machine, peer: PeerId) -> bool {
        let Some(id) = self.connection(peer) else {
            return true;
        };
        let done = machine.is_acknowledged(peer) && self.hub.has_room(id);
        if !done {
            self.hub.want_room(id);
        }
        done
    }

    /// Disconnects from every peer.
    pub(super) fn send_goodbye(&mut self) {
        let ids: Vec<ConnId> = self.connections.iter().flatten().map(|it| it.id).collect();
        let bye = Machine::bye_record();
        for id in ids {
            let _room = self.hub.push(id, bye.tag, bye.bytes());
            self.hub.wake_peer(id);
            self.hub.close(id);
        }
    }

    // ---- waking and sleeping -----------------------------------------------------

    #[inline]
    fn wake(&mut self, id: ConnId) {
        self.hub.wake_peer(id);
        if !self.pending_wakes.is_empty()
            && let Some(found) = find_mut(&mut self.connections, id)
        {
            found.needs_wake = false;
        }
    }

    #[inline]
    fn wake_later(&mut self, id: ConnId) {
        if let Some(found) = find_mut(&mut self.connections, id)
            && !found.needs_wake
        {
            found.needs_wake = true;
            self.pending_wakes.push(id);
        }
    }

    /// Wakes peers that have new records.
    #[inline]
    pub(super) fn wake_peers(&mut self) {
        while let Some(id) = self.pending_wakes.pop() {
            if let Some(found) = find_mut(&mut self.connections, id)
                && std::mem::take(&mut found.needs_wake)
            {
                self.hub.wake_peer(id);
            }
        }
    }

    /// Prepares for sleep; false if something has already arrived.
    pub(super) fn arm(&mut self) -> bool {
        self.wake_peers();
        self.fetches.is_empty() && self.hub.arm()
    }

    /// Ends the sleep that [`arm`](Self::arm) prepared.
    pub(super) fn disarm(&mut self) {
        self.hub.disarm();
    }

    // ---- arriving records ------------------------------------------------------------

    /// Handles arrived records. If a thread waits at the endpoint `reader`, the next message for it
    /// is handed over directly.
    #[inline]
    pub(super) fn poll(
        &mut self,
        now: Instant,
        core: &mut Core,
        reader: Option<u32>,
    ) -> Polled<Message> {
        let mut handed = None;
        let progress = self.poll_with(now, core, &mut |core, message| {
            if let Some(reader) = reader
                && handed.is_none()
            {
                handed = hand_over(core, now, message, reader);
                return handed.is_some();
            }
            false
        });
        polled(progress, handed)
    }

    /// Handles arrived records and passes an endpoint's messages to its reader while its inbox is
    /// empty; returns their number.
    #[inline]
    pub(super) fn poll_to(
        &mut self,
        now: Instant,
        core: &mut Core,
        (endpoint, reader): (u32, &mut impl Reader),
    ) -> Polled<usize> {
        let mut read = 0;
        let progress = self.poll_with(now, core, &mut |core, message| {
            let is_read = read_in_place(core, now, message, endpoint, reader);
            read += usize::from(is_read);
            is_read
        });
        polled(progress, (read > 0).then_some(read))
    }

    /// Handles arrived records; true if there were any. `hand` takes a message, or leaves it to its
    /// inbox.
    #[inline]
    fn poll_with(
        &mut self,
        now: Instant,
        core: &mut Core,
        hand: &mut impl FnMut(&mut Core, &PipeMessage<'_>) -> bool,
    ) -> bool {
        let connections = &mut self.connections;
        let node = NodeId(self.own.node);
        let mut broken = None;
        let taken = self.hub.poll(POLL_LIMIT, &mut |id, word, payload| {
            let found = find_mut(connections, id)?;
            let State::Open(peer) = found.state else {
                return None;
            };
            let done = match PipeTag::from_word(word) {
                Ok(tag) if tag.kind == PipeKind::Message => {
                    let message = PipeMessage {
                        peer,
                        node,
                        number: tag.number,
                        payload,
                    };
                    if hand(core, &message) {
                        return None;
                    }
                    match on_message(core, now, &message) {
                        Ok(true) => return None,
                        other => other.map(drop),
                    }
                }
                Ok(tag) => {
                    found.received_bye |= tag.kind == PipeKind::Bye;
                    on_record(core, now, peer, tag, &payload)
                }
                Err(_) => Err(ProtocolViolation("a record of an unknown kind")),
            };
            if let Err(why) = done {
                broken = Some((id, why));
            }
            Some(core.machine.refusals(peer).made)
        });
        if self.is_idle(core) && self.pending_wakes.is_empty() && broken.is_none() {
            return taken > 0;
        }
        if let Some((id, why)) = broken {
            tracing::warn!("disconnected a process of this node: {why}");
            self.hub.close(id);
            self.end(id, GoneReason::ProtocolViolation, core);
        }
        self.poll_long(now, core);
        if core.machine.has_ready_pipe() || !self.backlogged.is_empty() {
            self.push_records(&mut core.machine);
        }
        self.wake_peers();
        taken > 0
    }

    #[inline]
    fn is_idle(&self, core: &Core) -> bool {
        self.fetches.is_empty()
            && !self.outgoing.has_streams()
            && self.backlogged.is_empty()
            && core.long_events.is_empty()
            && !core.machine.has_ready_pipe()
    }

    /// Sends the protocol's pending records as far as there is room.
    pub(super) fn push_records(&mut self, machine: &mut RecordedMachine) {
        for index in (0..self.backlogged.len()).rev() {
            let peer = self.backlogged[index];
            if self.push_records_to(machine, peer) {
                self.backlogged.swap_remove(index);
            }
        }
        while let Some(peer) = machine.poll_ready_pipe() {
            if !self.backlogged.contains(&peer) && !self.push_records_to(machine, peer) {
                self.backlogged.push(peer);
            }
        }
    }

    /// Sends a peer's pending records; false if some found no room.
    fn push_records_to(&mut self, machine: &mut RecordedMachine, peer: PeerId) -> bool {
        let Some(id) = self.connection(peer) else {
            return true;
        };
        self.hub.set_answers(id, machine.refusals(peer).made);
        while let Some(record) = machine.poll_record(peer) {
            match self.hub.push_notice(id, record.tag, record.bytes()) {
                Ok(()) => machine.pop_record(peer),
                Err(PushError::Full) => {
                    self.hub.want_room(id);
                    self.wake_later(id);
                    return false;
                }
                // Its end is reported by `poll_connections`.
                Err(_) => return true,
            }
        }
        self.wake_later(id);
        true
    }

    // ---- connections -------------------------------------------------------------------

    /// Handles new and closed connections. Rare.
    pub(super) fn poll_connections(&mut self, core: &mut Core) -> io::Result<()> {
        let mut events = std::mem::take(&mut self.events);
        self.hub.poll_connections(&mut events)?;
        for event in events.drain(..) {
            match event {
                ShmEvent::Opened { conn, peer } => self.on_opened(conn, &peer.greeting, core),
                ShmEvent::Closed {
                    conn,
                    reason: why,
                    all_read,
                    answers,
                } => {
                    let found = self.find(conn);
                    let received_bye = found.is_some_and(|found| found.received_bye);
                    let was_open = found.is_some_and(|it| matches!(it.state, State::Open(_)));
                    let reason = match why {
                        _ if received_bye => GoneReason::Closed,
                        CloseReason::Full => GoneReason::Reset(ResetReason::TooManyPeers),
                        // It ended before the connection was open.
                        CloseReason::HungUp if !was_open => GoneReason::Restarted,
                        CloseReason::HungUp => GoneReason::Died,
                        CloseReason::Violation { .. } => GoneReason::ProtocolViolation,
                        CloseReason::NoDescriptors { at_peer: false } => GoneReason::NoDescriptors,
                        CloseReason::NoDescriptors { at_peer: true } => {
                            GoneReason::NoDescriptorsAtPeer
                        }
                    };
                    self.peer_died |= reason == GoneReason::Died;
                    self.end_after(conn, reason, (all_read, answers), core);
                }
            }
        }
        self.events = events;
        Ok(())
    }

    fn on_opened(&mut self, id: ConnId, greeting: &[u8], core: &mut Core) {
        let greeting = Greeting::from_bytes(greeting).ok();
        let Some(greeting) = greeting.filter(|found| found.node == self.own.node) else {
            tracing::warn!(
                "a process at this node's sockets has another version or belongs to another node; \
                 same-node traffic with it goes by UDP"
            );
            self.hub.close(id);
            self.end(id, GoneReason::ProtocolViolation, core);
            return;
        };
        if self.find(id).is_none() {
            self.enter(id, greeting.incarnation);
        }
        let expected = self.find(id).map(|found| found.incarnation);
        if expected != Some(greeting.incarnation) {
            // The peer may have seen the connection open, so send a bye: otherwise it would assume that this process died.
            let bye = Machine::bye_record();
            let _room = self.hub.push(id, bye.tag, bye.bytes());
            self.hub.close(id);
            self.end(id, GoneReason::Restarted, core);
            return;
        }
        let Ok(peer) = core.machine.open_pipe(greeting) else {
            tracing::warn!("rejected a process of this node: there are too many peers");
            self.hub.close(id);
            let full = GoneReason::Reset(ResetReason::TooManyPeers);
            self.end(id, full, core);
            return;
        };
        let overhead = dipole_proto::charge(0);
        let eager = u64::from(greeting.initial_credit_bytes).saturating_sub(overhead);
        if let Some(found) = find_mut(&mut self.connections, id) {
            found.state = State::Open(peer);
        }
        let index = peer.index();
        if self.by_peer.len() <= index {
            self.by_peer.resize(index + 1, None);
        }
        self.by_peer[index] = Some(Route {
            peer,
            id,
            eager_bytes: usize::try_from(eager)
                .unwrap_or(usize::MAX)
                .min(self.eager_bytes),
        });
        let known = self.by_incarnation.get(&greeting.incarnation);
        let known_open = known.is_some_and(|known| {
            self.find(*known)
                .is_some_and(|found| matches!(found.state, State::Open(_)))
        });
        if !known_open {
            self.by_incarnation.insert(greeting.incarnation, id);
        }
        core.handle_events(&[][..]);
    }

    /// Ends a connection and releases what was held for it.
    fn end(&mut self, id: ConnId, reason: GoneReason, core: &mut Core) {
        let left = (self.hub.is_read(id), self.hub.answers(id));
        self.end_after(id, reason, left, core);
    }

    /// Ends a connection; `all_read` is true if the peer had read everything, with so many answers.
    fn end_after(
        &mut self,
        id: ConnId,
        reason: GoneReason,
        (all_read, answers): (bool, u64),
        core: &mut Core,
    ) {
        let Some(found) = find_mut(&mut self.connections, id) else {
            return;
        };
        if matches!(found.state, State::Gone(_)) {
            return;
        }
        let before = std::mem::replace(&mut found.state, State::Gone(reason));
        let incarnation = found.incarnation;
        if self.by_incarnation.get(&incarnation) == Some(&id) {
            self.by_incarnation.remove(&incarnation);
        }
        if let State::Open(peer) = before {
            self.by_peer[peer.index()] = None;
            self.backlogged.retain(|backlogged| *backlogged != peer);
            self.fetches.forget(peer);
            let all_answered = answers <= core.machine.refusals(peer).received;
            core.machine.close_pipe(peer, reason);
            core.handle_events(&[][..]);
            self.outgoing.forget(peer, core);
            self.allow_fetch_again();
            if !(all_read && all_answered) {
                core.peers.set_unacknowledged(peer);
            }
        }
        core.ready.notify(WaitKey::AnyPeer);
    }

    fn enter(&mut self, id: ConnId, incarnation: u64) {
        let index = id.index();
        if self.connections.len() <= index {
            self.connections.resize_with(index + 1, || None);
        }
        self.connections[index] = Some(Connection {
            id,
            incarnation,
            state: State::Opening,
            received_bye: false,
            needs_wake: false,
            transfer: TransferChoice::default(),
        });
    }

    #[inline]
    fn find(&self, id: ConnId) -> Option<&Connection> {
        let found = self.connections.get(id.index())?.as_ref()?;
        (found.id == id).then_some(found)
    }
}

#[inline]
fn find_mut(connections: &mut [Option<Connection>], id: ConnId) -> Option<&mut Connection> {
    let found = connections.get_mut(id.index())?.as_mut()?;
    (found.id == id).then_some(found)
}

#[inline]
fn polled<T>(progress: bool, handed: Option<T>) -> Polled<T> {
    match handed {
        Some(handed) => Polled::Ready(handed),
        None if progress => Polled::Progress,
        None => Polled::Nothing,
    }
}
