//! All peers of one process: assigns packets to them, opens and ends sessions and pipes, and lets
//! the sessions send in turn.

mod addresses;
mod edges;
mod packets;
mod peers;
mod pipes;
mod room;
mod status;
mod timers;
mod trains;
mod view;

pub use packets::Addressed;
pub use status::PeerStatus;
pub use trains::Train;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

use crate::channel::Refusals;
use crate::config::Config;
use crate::error::ConnectError;
use crate::event::{EdgeId, Event, GoneReason, INDEX_BITS, PeerId};
use crate::handshake::{Cookies, HandshakePacket, Outbox};
use crate::key::{Agreement, Seal};
use crate::send::Slot;
use crate::session::{
    Frame, Frames, LaneStatus, Own, Phase, RENEWAL_NS, Renewal, Session, Transmit,
};
use crate::shared::Shared;
use crate::stats::{DropReason, Stats};
use crate::time::{Instant, SECOND};
use crate::timer::Timers;
use crate::wire::{
    Address, HEADER_BYTES, HELLO_FIXED_BYTES, Hello, LANE_BYTES, LaneAddress, RefusedReason,
    Trailer,
};

use peers::{Peer, PeerIndex, PeerTable};
use room::RoomSearch;

/// Packets that one session sends before the next one: two full GSO batches.
const TURN: u32 = 88;

/// Pause between the hellos that request such a proof.
const RENEWAL_PAUSE_NS: u64 = SECOND / 2;

/// The protocol of one process, without sockets, clock or payloads. See the crate.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    shared: Shared,
    peers: PeerTable,
    index: PeerIndex,
    room: RoomSearch,
    incarnation: u64,
    /// How often the lanes of this process have changed.
    lanes_serial: u32,
    cookies: Cookies,
    outbox: Outbox,
    /// Sessions that may have packets to send.
    ready: VecDeque<u32>,
    /// Pipes that may have records to push.
    ready_pipes: VecDeque<PeerId>,
    turn_left: u32,
    timers: Timers,
    random: u64,
    /// Number of sessions opened so far.
    sessions: u64,
    /// Agreements of new sessions that the caller has not taken.
    agreements: Vec<Agreement>,
    /// Index and serial of sealed sessions that have ended.
    ended: Vec<(u32, u64)>,
}

impl Machine {
    /// A machine for a process that listens on `lanes`. `incarnation` must be random, and `secret`
    /// must not be known to anyone else.
    #[must_use]
    pub fn new(
        config: Config,
        incarnation: u64,
        secret: [u64; 2],
        lanes: &[LaneAddress],
    ) -> Machine {
        Machine {
            shared: Shared::new(config, lanes),
            peers: PeerTable::default(),
            index: PeerIndex::default(),
            room: RoomSearch::default(),
            incarnation: incarnation.max(1),
            lanes_serial: 0,
            cookies: Cookies::new(secret),
            outbox: Outbox::new(),
            ready: VecDeque::new(),
            ready_pipes: VecDeque::new(),
            turn_left: TURN,
            timers: Timers::default(),
            random: secret[0] ^ secret[1].rotate_left(32) ^ incarnation,
            sessions: 0,
            agreements: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// Returns the configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Returns the incarnation of this process.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }

    /// Counts a packet that the caller has dropped.
    pub fn count(&mut self, reason: DropReason) {
        self.shared.count(reason);
    }

    // ---- peers ------------------------------------------------------------

    /// Opens a session to the process at `home`, its first address for small packets, or returns
    /// the existing one. [`Event::Connected`] or [`Event::Gone`] follows. `incarnation` is that of
    /// the intended process, or zero for any.
    ///
    /// # Errors
    /// [`ConnectError::TooManyPeers`]. Idle peers are then probed, so there may be
    /// room a little later.
    pub fn connect(
        &mut self,
        now: Instant,
        home: Address,
        incarnation: u64,
    ) -> Result<PeerId, ConnectError> {
        // The second look-up finds a process that was reached through another interface.
        let known = self.index.at_home(home);
        let known = known.or_else(|| self.index.of_process(incarnation));
        if let Some(session) = known.and_then(|index| self.peers.session_at(index)) {
            return Ok(session.id);
        }
        let retry_ns = 4 * self.shared.config.min_timeout_ns;
        let phase = Phase::Opening {
            cookie: 0,
            retry_at: now.after(retry_ns),
            retry_ns,
        };
        let Some(id) = self.add_session(home, phase, now) else {
            self.make_room(now);
            return Err(ConnectError::TooManyPeers {
                limit: self.shared.config.max_peers,
            });
        };
        if let Some(session) = self.session_mut(id) {
            session.remote.incarnation = incarnation;
        }
        self.send_hello(id, 0);
        self.refresh_deadline(id);
        Ok(id)
    }

    /// Sends a Bye and ends the session. Nothing more is delivered from it.
    pub fn disconnect(&mut self, peer: PeerId) {
        self.send_bye(peer);
        self.remove(peer, GoneReason::Closed);
    }

    fn send_bye(&mut self, peer: PeerId) {
        let incarnation = self.incarnation;
        if let Some(session) = self.session_mut(peer)
            && session.is_open()
        {
            let farewell = session.farewell(incarnation);
            let to = session.bye_address();
            self.outbox.push(to, HandshakePacket::Bye(farewell));
        }
    }

    /// Makes every peer prove its membership again, because a cluster key was withdrawn. Peers that
    /// do not within [`RENEWAL_NS`] are gone. Spec §3.2.
    pub fn renew_proofs(&mut self, now: Instant) {
        if !self.shared.config.keyed {
            return;
        }
        let mut hello_at = now;
        for session in self.peers.sessions_mut() {
            if !session.is_open() {
                continue;
            }
            session.keys.renewal = Some(Renewal {
                cookie: 0,
                hello_at,
                refused: false,
                until: now.after(RENEWAL_NS),
            });
            // Spread the requests if there are thousands of peers.
            hello_at = hello_at.after(RENEWAL_PAUSE_NS / 512);
            let index = session_index(session.id);
            self.timers.arm(index, session.deadline(&self.shared));
        }
    }

    /// True while a peer must prove its membership again.
    #[must_use]
    pub fn is_unproven(&self, peer: PeerId) -> bool {
        self.session(peer)
            .is_some_and(|session| session.keys.renewal.is_some())
    }

    /// Acknowledges with the next packet everything that a peer has sent.
    pub fn acknowledge(&mut self, peer: PeerId) {
        if let Some(session) = self.session_mut(peer) {
            session.acknowledge_now();
            self.reschedule(peer);
        }
    }

    /// All peers, open or opening.
    pub fn peers(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.peers.ids()
    }

    /// True if the limit of peers is reached.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.peers.in_use() >= self.shared.config.max_peers as usize
    }

    /// True if there are peers on other nodes.
    #[must_use]
    pub fn has_sessions(&self) -> bool {
        self.peers.sessions().next().is_some()
    }

    /// True once the handshake with this peer is complete.
    #[must_use]
    pub fn is_open(&self, peer: PeerId) -> bool {
        match self.peers.get(peer) {
            Some(Peer::Session(session)) => session.is_open(),
            Some(Peer::Pipe(_)) => true,
            None => false,
        }
    }

    /// True if the peer has acknowledged every message. Ends of edges do not count, because a Bye
    /// implies them. For a pipe this covers long messages only; its carrier knows which records
    /// were read.
    #[must_use]
    pub fn is_acknowledged(&self, peer: PeerId) -> bool {
        match self.peers.get(peer) {
            Some(Peer::Session(session)) => session.is_acknowledged(),
            Some(Peer::Pipe(pipe)) => !pipe.has_long(),
            None => true,
        }
    }

    /// True if leaving a session loses neither messages nor refusals. For a pipe see
    /// [`is_acknowledged`](Self::is_acknowledged).
    #[must_use]
    pub fn can_leave(&self, peer: PeerId) -> bool {
        match self.peers.get(peer) {
            Some(Peer::Session(session)) => session.can_leave(),
            _ => self.is_acknowledged(peer),
        }
    }

    /// Why the peer refuses messages of an edge, if it has refused one.
    #[must_use]
    pub fn refusal(&self, edge: EdgeId) -> Option<RefusedReason> {
        self.peers.get(edge.peer)?.channel().refusal(edge)
    }

    /// The refusals between this process and a peer.
    #[must_use]
    pub fn refusals(&self, peer: PeerId) -> Refusals {
        let peer = self.peers.get(peer);
        peer.map_or_else(Refusals::default, |peer| peer.channel().refusals())
    }

    /// The node on which a peer runs, as it has reported.
    #[inline]
    #[must_use]
    pub fn node(&self, peer: PeerId) -> Option<u32> {
        match self.peers.get(peer)? {
            Peer::Session(session) => Some(session.remote.node),
            Peer::Pipe(pipe) => Some(pipe.remote.node),
        }
    }

    /// Frames queued to a peer that were never sent.
    #[must_use]
    pub fn queued(&self, peer: PeerId) -> usize {
        self.session(peer)
            .map_or(0, |session| session.window.queued())
    }

    /// Frames of this peer that are queued, in flight or lost. Frames behind a missing unit count
    /// until that has arrived.
    #[must_use]
    pub fn frames_held(&self, peer: PeerId) -> usize {
        self.session(peer)
            .map_or(0, |session| session.window.held())
    }

    /// The smoothed round trip to a peer in ns.
    #[must_use]
    pub fn round_trip_ns(&self, peer: PeerId) -> Option<u64> {
        self.session(peer)?.round_trip_ns()
    }

    /// How packets to and from this peer are closed.
    #[must_use]
    pub fn trailer(&self, peer: PeerId) -> Trailer {
        let session = self.session(peer);
        session.map_or(Trailer::Crc32c, |session| session.keys.seals.out.trailer())
    }

    /// Length of the longest packet to this peer, without its trailer. It falls and rises with what
    /// the path carries; units filled before that are sent in parts. Spec §5.8.
    #[must_use]
    pub fn packet_space(&self, peer: PeerId) -> usize {
        self.session(peer).map_or(0, |session| {
            let trailer = session.keys.seals.out.bytes();
            session.packet_bytes().saturating_sub(trailer)
        })
    }

    /// The link has refused a packet because of its length. Its contents are sent again in shorter
    /// packets, except for unreliable messages. Spec §5.8.
    pub fn packet_too_long(&mut self, now: Instant, transmit: &Transmit) {
        let Some(peer) = transmit.peer else {
            return;
        };
        let bytes = transmit.length + transmit.seal.bytes();
        self.with(peer, |session, shared| {
            session.packet_refused(bytes, now, shared);
        });
    }

    /// The addresses of a peer and which of them answer. Spec §5.3.
    pub fn lanes(&self, peer: PeerId) -> impl Iterator<Item = LaneStatus> + '_ {
        self.session(peer)
            .into_iter()
            .flat_map(Session::lane_states)
    }

    /// Sends keepalives to an otherwise idle peer.
    pub fn watch(&mut self, now: Instant, peer: PeerId, watched: bool) {
        self.with(peer, |session, shared| session.watch(watched, now, shared));
    }

    /// The application knows that a message from this peer must come. Ack requests are sent until it
    /// arrives or `expecting` is cleared (thesis §5.2).
    pub fn expect(&mut self, now: Instant, peer: PeerId, expecting: bool) {
        self.with(peer, |session, shared| {
            session.expect(expecting, now, shared)
        });
    }

    /// A third party knows that the peer's process is alive, so its silence does not count. If the
    /// process `runs` (it is not stopped), the peer is gone nevertheless after ten times
    /// `peer_timeout_ns`: then packets do not get through.
    pub fn confirm_alive(&mut self, now: Instant, peer: PeerId, runs: bool) {
        self.with(peer, |session, _| session.confirm_alive(now, runs));
        let session = self.session(peer).filter(|_| runs);
        if session.is_some_and(|session| session.is_unreachable(now, &self.shared)) {
            self.remove(peer, GoneReason::Unreachable);
        }
    }

    /// A third party knows that the peer's process has ended.
    pub fn give_up(&mut self, peer: PeerId) {
        self.remove(peer, GoneReason::Died);
    }

    /// The number of the next new unit to this peer.
    #[must_use]
    pub fn next_unit(&self, peer: PeerId) -> u64 {
        self.session(peer).map_or(0, |session| session.window.top())
    }

    // ---- output ----------------------------------------------------------------

    /// Fast path: the packet with a frame that was just filled, if nothing else is to be sent to
    /// this peer. Returns `None` and changes nothing if the frame must be [queued](Self::queue).
    #[inline]
    pub fn transmit_alone(
        &mut self,
        now: Instant,
        peer: PeerId,
        slot: Slot,
        frames: &mut impl Frames,
    ) -> Option<Transmit> {
        let session = self.peers.session_mut(peer)?;
        if session.is_ready {
            return None;
        }
        let transmit = session.transmit_alone(slot, now, frames, &mut self.shared)?;
        let deadline = session.deadline(&self.shared);
        self.timers.arm(session_index(peer), deadline);
        self.wake(peer);
        Some(transmit)
    }

    /// The next packet to send. To be called until it returns `None`.
    pub fn poll_transmit(&mut self, now: Instant, frames: &mut impl Frames) -> Option<Transmit> {
        if let Some(transmit) = self.poll_handshake(frames) {
            return Some(transmit);
        }
        // Visit each session once, and the first one again with a new turn.
        for _ in 0..=self.ready.len() {
            let Some(index) = self.ready.front().copied() else {
                break;
            };
            let Some(session) = self.peers.session_at_mut(index) else {
                self.ready.pop_front();
                continue;
            };
            let transmit = if self.turn_left > 0 {
                session.poll_transmit(now, frames, &mut self.shared)
            } else {
                None
            };
            if transmit.is_some() {
                self.turn_left -= 1;
                let deadline = session.deadline(&self.shared);
                self.timers.arm(index, deadline);
                if !session.has_transmit() {
                    self.end_turn();
                }
                return transmit;
            }
            self.ready.pop_front();
            // Notices wait for a free frame.
            let waits = self.turn_left == 0 || session.has_notice();
            self.turn_left = TURN;
            if waits {
                self.ready.push_back(index);
            } else {
                session.is_ready = false;
            }
        }
        None
    }

    /// The first session in line has nothing more to send.
    fn end_turn(&mut self) {
        let first = self.ready.pop_front();
        if let Some(session) = first.and_then(|index| self.peers.session_at_mut(index)) {
            session.is_ready = false;
        }
        self.turn_left = TURN;
    }

    /// True if [`poll_transmit`](Self::poll_transmit) may return a packet.
    #[must_use]
    pub fn has_transmit(&self) -> bool {
        !self.ready.is_empty() || self.outbox.front().is_some()
    }

    /// True if [`poll_event`](Self::poll_event) or [`poll_released`](Self::poll_released) will
    /// return something.
    #[inline]
    #[must_use]
    pub fn has_event(&self) -> bool {
        !self.shared.events.is_empty() || !self.shared.released.is_empty()
    }

    /// A frame that belongs to the caller again, because its unit has arrived or is abandoned.
    #[inline]
    pub fn poll_released(&mut self) -> Option<Slot> {
        self.shared.released.pop()
    }

    /// The unit that the last packet has completed, if it arrived in parts. Events then refer to these
    /// bytes instead of the packet.
    #[inline]
    pub fn take_assembled(&mut self) -> Option<Vec<u8>> {
        self.shared.assembled.take()
    }

    /// Parameters that both sides of a new session have agreed on, if its packets are sealed with
    /// [`Seal::Session`]. To be called after each handshake packet, before anything is sent.
    pub fn take_agreement(&mut self) -> Option<Agreement> {
        self.agreements.pop()
    }

    /// Index and serial number of an [`Agreement`] whose session has ended and has no packets left
    /// to send: its keys may be erased.
    #[inline]
    pub fn take_ended_session(&mut self) -> Option<(u32, u64)> {
        match self.outbox.front() {
            None => self.ended.pop(),
            Some(_) => None,
        }
    }

    /// The oldest event. Events that refer to a packet, or to a unit that it has
    /// [completed](Self::take_assembled), must be handled before the next packet.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.shared.events.pop_front()
    }

    fn poll_handshake(&mut self, frames: &mut impl Frames) -> Option<Transmit> {
        let (to, packet) = self.outbox.front()?;
        let (slot, bytes) = frames.scratch()?;
        let seal = match packet {
            HandshakePacket::Bye(farewell) => farewell.seal,
            HandshakePacket::Hello(_) | HandshakePacket::Reset(_) => self.handshake_seal(),
            HandshakePacket::Challenge(..) => Seal::OPEN,
        };
        let length = packet.emit(bytes, seal);
        let transmit = Transmit {
            to: *to,
            bulk: false,
            frame: Frame::Scratch(slot),
            length,
            seal,
            peer: None,
            any_port: false,
            alone: false,
        };
        self.outbox.pop();
        Some(transmit)
    }

    /// Seal of Hello, Welcome and Reset.
    fn handshake_seal(&self) -> Seal {
        match self.shared.config.keyed {
            true => Seal::Proof,
            false => Seal::OPEN,
        }
    }

    fn send_hello(&mut self, peer: PeerId, cookie: u64) {
        let Some(session) = self.session(peer) else {
            return;
        };
        let (home, echo) = (session.hello_address(), session.remote.incarnation);
        let mut hello = self.own_hello(peer);
        hello.cookie = cookie;
        hello.echo = echo;
        self.outbox.push(home, packets::hello_packet(hello));
    }

    fn own_hello(&self, peer: PeerId) -> Hello {
        let config = &self.shared.config;
        // The shortest packets have no room for all lanes.
        let rest = HEADER_BYTES + HELLO_FIXED_BYTES + self.handshake_seal().bytes();
        let room = config.packet_bytes.saturating_sub(rest) / LANE_BYTES;
        let lanes = &self.shared.lanes;
        let mut hello = Hello::new(&lanes[..lanes.len().min(room)]);
        hello.max_packet_bytes = u16::try_from(config.packet_bytes).unwrap_or(u16::MAX);
        hello.connection = peer.connection();
        hello.incarnation = self.incarnation;
        hello.node = config.node;
        hello.window_packets = config.hello_window();
        hello.initial_credit_bytes = config.initial_credit_bytes;
        hello.trailers = config.trailers;
        hello.share = config.share;
        if let Some(session) = self.session(peer) {
            hello.salt = session.keys.own.salt;
        }
        hello
    }

    fn add_session(&mut self, home: Address, phase: Phase, now: Instant) -> Option<PeerId> {
        let (limit, random) = (self.shared.config.max_peers, self.next_random());
        let first = u64::from(self.shared.config.first_number);
        let cookies = &self.cookies;
        let serial = self.sessions;
        let id = self.peers.add(limit, random, |id| {
            let own = Own {
                serial,
                salt: cookies.salt(serial),
                secret: cookies.session_secret(id.connection()),
            };
            Peer::Session(Box::new(Session::new(id, own, home, phase, first, now)))
        })?;
        self.sessions += 1;
        let index = session_index(id);
        self.index.insert_home(home, index);
        Some(id)
    }

    fn remove(&mut self, peer: PeerId, reason: GoneReason) {
        let acknowledged = self.is_acknowledged(peer);
        match self.peers.remove(peer) {
            Some(Peer::Session(session)) => {
                let index = session_index(peer);
                if session.is_open() {
                    self.shared.processes -= 1;
                }
                self.index.remove(&session.remote, index);
                self.timers.disarm(index);
                if let Seal::Session { serial, index, .. } = session.keys.seals.out {
                    self.ended.push((index, serial));
                }
                session.end(&mut self.shared);
            }
            Some(Peer::Pipe(pipe)) => pipe.end(&mut self.shared),
            None => return,
        }
        self.shared.event(Event::Gone {
            peer,
            reason,
            acknowledged,
        });
    }

    /// Gives free turns for long messages to edges that wait for them.
    fn retry_long_messages(&mut self, now: Instant) {
        while let Some(edge) = self.shared.next_waiting() {
            match self.peers.get_mut(edge.peer) {
                Some(Peer::Session(session)) => {
                    let urgency = session.channel.retry_grant(edge, now, &mut self.shared);
                    session.schedule_grant(urgency, now, &self.shared);
                }
                Some(Peer::Pipe(pipe)) => {
                    pipe.channel.retry_grant(edge, now, &mut self.shared);
                }
                None => {}
            }
            self.reschedule(edge.peer);
        }
    }

    fn session(&self, peer: PeerId) -> Option<&Session> {
        self.peers.session(peer)
    }

    fn session_mut(&mut self, peer: PeerId) -> Option<&mut Session> {
        self.peers.session_mut(peer)
    }

    /// Runs an action on a session, then updates its deadline and its place in the send queue.
    fn with(&mut self, peer: PeerId, action: impl FnOnce(&mut Session, &mut Shared)) {
        let Some(session) = self.peers.session_mut(peer) else {
            return;
        };
        action(session, &mut self.shared);
        self.reschedule(peer);
    }

    /// Updates a peer's deadline and its place in the send queue.
    fn reschedule(&mut self, peer: PeerId) {
        self.refresh_deadline(peer);
        self.wake(peer);
        self.wake_pipe(peer);
    }

    fn wake(&mut self, peer: PeerId) {
        if let Some(session) = self.peers.session_mut(peer)
            && !session.is_ready
            && session.has_transmit()
        {
            session.is_ready = true;
            self.ready.push_back(session_index(peer));
        }
    }

    fn refresh_deadline(&mut self, peer: PeerId) {
        if let Some(session) = self.peers.session_mut(peer) {
            let deadline = session.deadline(&self.shared);
            self.timers.arm(session_index(peer), deadline);
        }
    }

    /// SplitMix64 over the secret, so that connection ids are hard to predict.
    fn next_random(&mut self) -> u32 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        u32::try_from((mixed ^ mixed >> 31) >> 32).unwrap_or(1)
    }
}

fn session_index(peer: PeerId) -> u32 {
    peer.connection() & ((1 << INDEX_BITS) - 1)
}
