//! Processes of the same node: pushes and takes the records of the machine's pipes.
//!
//! The link keeps order and loses nothing; the protocol is the machine's. This part knows
//! which connection leads to which peer, wakes sleeping peers, and copies long messages
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
use dipole_proto::{EdgeId, GoneReason, Instant, Machine, Misbehaved, PeerId};
use rustc_hash::FxHashMap;

use super::content::{Content, Head};
use super::core::Core;
use super::packer::blocked;
use super::target::Blocked;
use crate::address::NodeId;
use crate::inbox::Message;
use crate::profile::Choices;
use crate::reader::Reader;
use arrivals::{PipeMessage, hand_over, on_message, on_record, read_there};
use dipole_driver::{Polled, WaitKey};
use long::{Fetches, OutgoingLong};
use transfer::TransferChoice;

/// Records taken in one turn.
const POLL_LIMIT: usize = 256;
/// Longest message that goes through the ring whole if nothing was measured; longer ones come in
/// pieces, or are fetched by their receiver. Unreliable ones are never longer.
const EAGER_BYTES: usize = Choices::BUILT_IN_EAGER_BYTES;
/// Shorter ones go whole, whatever a profile says.
const LEAST_EAGER_BYTES: usize = 1 << 10;

/// A connection of the hub.
#[derive(Debug)]
struct Connection {
    id: ConnId,
    /// The process there, once known; zero before.
    incarnation: u64,
    state: State,
    said_bye: bool,
    /// It has something new and may sleep.
    to_wake: bool,
    /// How long messages go.
    transfer: TransferChoice,
}

/// How messages get to a peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    peer: PeerId,
    id: ConnId,
    /// Longest message that goes whole.
    pub(super) eager_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Opening,
    Open(PeerId),
    Gone(GoneReason),
}

/// See the module.
#[derive(Debug)]
pub(super) struct SharedMemory {
    hub: AnyHub,
    own: Greeting,
    /// By [`ConnId::index`].
    connections: Vec<Option<Connection>>,
    /// By [`PeerId::index`].
    by_peer: Vec<Option<Route>>,
    by_incarnation: FxHashMap<u64, ConnId>,
    /// Connections whose peers have something new and may sleep.
    to_wake: Vec<ConnId>,
    /// Peers with records that found no room in the ring.
    backlogged: Vec<PeerId>,
    fetches: Fetches,
    outgoing: OutgoingLong,
    /// Longest message that goes whole.
    eager_bytes: usize,
    events: Vec<ShmEvent>,
    /// A process of this node died without a word: its files may be swept.
    died: bool,
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
            to_wake: Vec::new(),
            backlogged: Vec::new(),
            fetches: Fetches::default(),
            outgoing: OutgoingLong::default(),
            eager_bytes: EAGER_BYTES,
            events: Vec::new(),
            died: false,
        })
    }

    /// Lets messages go as measurements say, from the next connection on.
    pub(super) fn choose(&mut self, choices: Choices) {
        if let Some(bytes) = choices.eager_bytes {
            self.eager_bytes = bytes.clamp(LEAST_EAGER_BYTES, MAX_RECORD_BYTES - size_of::<Head>());
        }
        self.outgoing.choose(choices.piece_bytes);
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.hub.descriptor()
    }

    pub(super) fn stats(&self) -> ShmStats {
        self.hub.stats()
    }

    /// Connections, opening or open.
    pub(super) fn peers(&self) -> usize {
        let connections = self.connections.iter().flatten();
        let alive = connections.filter(|found| !matches!(found.state, State::Gone(_)));
        alive.count()
    }

    /// True once after a process of this node died without a word.
    pub(super) fn take_died(&mut self) -> bool {
        std::mem::take(&mut self.died)
    }

    /// True once after a wake-up was read, maybe a sleeper's.
    pub(super) fn take_woken(&mut self) -> bool {
        self.hub.take_woken()
    }

    /// The connection with a process, opening or open.
    pub(super) fn find_process(&self, incarnation: u64) -> Option<ConnId> {
        let id = *self.by_incarnation.get(&incarnation)?;
        let found = self.find(id)?;
        (!matches!(found.state, State::Gone(_))).then_some(id)
    }

    /// Begins a connection with a process.
    pub(super) fn connect(&mut self, socket: &Path, incarnation: u64) -> Result<ConnId, ShmError> {
        let id = self.hub.connect(socket)?;
        self.enter(id, incarnation);
        self.by_incarnation.insert(incarnation, id);
        Ok(id)
    }

    /// The peer at the other end of a connection, or of another with the same process: two
    /// that connect to each other at once have two, and need not wait for the second.
    /// `None` while it opens; an error if it is gone.
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

    /// How messages get to a peer; `None` if it does not share memory with us.
    #[inline]
    pub(super) fn route(&self, peer: PeerId) -> Option<Route> {
        let route = (*self.by_peer.get(peer.index())?)?;
        (route.peer == peer).then_some(route)
    }

    /// The connection that leads to a peer.
    fn connection(&self, peer: PeerId) -> Option<ConnId> {
        Some(self.route(peer)?.id)
    }

    /// Sends a message that goes whole. With `more` the peer is not woken for it.
    #[inline]
    pub(super) fn send_whole(
        &mut self,
        machine: &mut Machine,
        (route, edge): (Route, EdgeId),
        content: Content<'_>,
        more: bool,
    ) -> Result<(), Blocked> {
        let (id, total) = (route.id, content.charged_bytes());
        let begun = machine.begin_whole(edge, total);
        // What was to be told before must not be overtaken.
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

    /// Sends a message that may be lost; never waits.
    pub(super) fn send_unreliable(
        &mut self,
        machine: &mut Machine,
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

    /// True if the peer has taken everything that was sent to it.
    pub(super) fn is_acknowledged(&mut self, machine: &Machine, peer: PeerId) -> bool {
        let Some(id) = self.connection(peer) else {
            return true;
        };
        let done = machine.is_acknowledged(peer) && self.hub.is_read(id);
        if !done {
            self.hub.want_room(id);
        }
        done
    }

    /// True if all that was sent to a peer lies in its ring, and a goodbye may follow.
    pub(super) fn may_leave(&mut self, machine: &Machine, peer: PeerId) -> bool {
        let Some(id) = self.connection(peer) else {
            return true;
        };
        let done = machine.is_acknowledged(peer) && self.hub.has_room(id);
        if !done {
            self.hub.want_room(id);
        }
        done
    }

    /// Says goodbye to every process.
    pub(super) fn say_goodbye(&mut self) {
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
        if !self.to_wake.is_empty()
            && let Some(found) = find_mut(&mut self.connections, id)
        {
            found.to_wake = false;
        }
    }

    #[inline]
    fn wake_later(&mut self, id: ConnId) {
        if let Some(found) = find_mut(&mut self.connections, id)
            && !found.to_wake
        {
            found.to_wake = true;
            self.to_wake.push(id);
        }
    }

    /// Wakes peers that have something new.
    #[inline]
    pub(super) fn wake_peers(&mut self) {
        while let Some(id) = self.to_wake.pop() {
            if let Some(found) = find_mut(&mut self.connections, id)
                && std::mem::take(&mut found.to_wake)
            {
                self.hub.wake_peer(id);
            }
        }
    }

    /// Before sleeping: false if something is there.
    pub(super) fn arm(&mut self) -> bool {
        self.wake_peers();
        self.fetches.is_empty() && self.hub.arm()
    }

    /// After sleeping.
    pub(super) fn disarm(&mut self) {
        self.hub.disarm();
    }

    // ---- arriving records ------------------------------------------------------------

    /// Takes what has come. `reader` is an endpoint at which somebody waits: a message for it
    /// that comes first is handed over at once.
    #[inline]
    pub(super) fn poll(
        &mut self,
        now: Instant,
        core: &mut Core,
        reader: Option<u32>,
    ) -> Polled<Message> {
        let mut handed = None;
        let came = self.poll_with(now, core, &mut |core, message| {
            if let Some(reader) = reader
                && handed.is_none()
            {
                handed = hand_over(core, now, message, reader);
                return handed.is_some();
            }
            false
        });
        polled(came, handed)
    }

    /// Takes what has come. Messages of an endpoint go to its reader as long as none waits in the
    /// inbox: how many.
    #[inline]
    pub(super) fn poll_to(
        &mut self,
        now: Instant,
        core: &mut Core,
        (endpoint, reader): (u32, &mut impl Reader),
    ) -> Polled<usize> {
        let mut read = 0;
        let came = self.poll_with(now, core, &mut |core, message| {
            let is_read = read_there(core, now, message, endpoint, reader);
            read += usize::from(is_read);
            is_read
        });
        polled(came, (read > 0).then_some(read))
    }

    /// Takes what has come; true if anything has. `hand` takes a message, or leaves it to its
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
            let Some(found) = find_mut(connections, id) else {
                return;
            };
            let State::Open(peer) = found.state else {
                return;
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
                        return;
                    }
                    on_message(core, now, &message)
                }
                Ok(tag) => {
                    found.said_bye |= tag.kind == PipeKind::Bye;
                    on_record(core, now, peer, tag, &payload)
                }
                Err(_) => Err(Misbehaved("a record of no known kind")),
            };
            if let Err(why) = done {
                broken = Some((id, why));
            }
        });
        if self.is_idle(core) && self.to_wake.is_empty() && broken.is_none() {
            return taken > 0;
        }
        if let Some((id, why)) = broken {
            tracing::warn!("a process of this node is cut off: {why}");
            self.hub.close(id);
            self.end(id, GoneReason::Misbehaved, core);
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
            && core.long_news.is_empty()
            && !core.machine.has_ready_pipe()
    }

    /// Pushes the records of the machine's pipes as far as there is room.
    pub(super) fn push_records(&mut self, machine: &mut Machine) {
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

    /// False if some found no room.
    fn push_records_to(&mut self, machine: &mut Machine, peer: PeerId) -> bool {
        let Some(id) = self.connection(peer) else {
            return true;
        };
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

    /// Connections that come and go. Rare.
    pub(super) fn poll_connections(&mut self, core: &mut Core) -> io::Result<()> {
        let mut events = std::mem::take(&mut self.events);
        self.hub.poll_connections(&mut events)?;
        for event in events.drain(..) {
            match event {
                ShmEvent::Opened { conn, peer } => self.opened(conn, &peer.greeting, core),
                ShmEvent::Closed {
                    conn,
                    reason: why,
                    all_read,
                } => {
                    let found = self.find(conn);
                    let said_bye = found.is_some_and(|found| found.said_bye);
                    let was_open = found.is_some_and(|it| matches!(it.state, State::Open(_)));
                    let reason = match why {
                        _ if said_bye => GoneReason::Closed,
                        CloseReason::Full => GoneReason::Reset(ResetReason::TooManyPeers),
                        // It had no time to say hello.
                        CloseReason::HungUp if !was_open => GoneReason::Restarted,
                        CloseReason::HungUp => GoneReason::Died,
                        CloseReason::Violation { .. } => GoneReason::Misbehaved,
                    };
                    self.died |= reason == GoneReason::Died;
                    self.end_after(conn, reason, all_read, core);
                }
            }
        }
        self.events = events;
        Ok(())
    }

    fn opened(&mut self, id: ConnId, greeting: &[u8], core: &mut Core) {
        let greeting = Greeting::from_bytes(greeting).ok();
        let Some(greeting) = greeting.filter(|found| found.node == self.own.node) else {
            tracing::warn!(
                "a process at this node's sockets is another version's or another node's; \
                 same-node traffic with it goes by UDP"
            );
            self.hub.close(id);
            self.end(id, GoneReason::Misbehaved, core);
            return;
        };
        if self.find(id).is_none() {
            self.enter(id, greeting.incarnation);
        }
        let expected = self.find(id).map(|found| found.incarnation);
        if expected != Some(greeting.incarnation) {
            // It may have seen the connection open: no process has died.
            let bye = Machine::bye_record();
            let _room = self.hub.push(id, bye.tag, bye.bytes());
            self.hub.close(id);
            self.end(id, GoneReason::Restarted, core);
            return;
        }
        let Ok(peer) = core.machine.open_pipe(greeting) else {
            tracing::warn!("a process of this node is turned away: there are too many peers");
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

    /// A connection has ended; what was held for it is given back.
    fn end(&mut self, id: ConnId, reason: GoneReason, core: &mut Core) {
        let all_read = self.hub.is_read(id);
        self.end_after(id, reason, all_read, core);
    }

    /// Ends a connection whose peer had taken all that was pushed, or not.
    fn end_after(&mut self, id: ConnId, reason: GoneReason, all_read: bool, core: &mut Core) {
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
            core.machine.close_pipe(peer, reason);
            core.handle_events(&[][..]);
            self.outgoing.forget(peer, core);
            self.show_again();
            if !all_read {
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
            said_bye: false,
            to_wake: false,
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
fn polled<T>(came: bool, handed: Option<T>) -> Polled<T> {
    match handed {
        Some(handed) => Polled::Got(handed),
        None if came => Polled::Came,
        None => Polled::Nothing,
    }
}
