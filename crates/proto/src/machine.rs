//! All peers of one process: finds the one a packet belongs to, opens and ends
//! sessions and pipes, lets each session send in turn.

mod edges;
mod packets;
mod peers;
mod pipes;
mod timers;
mod view;

pub use packets::Addressed;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use crate::config::Config;
use crate::error::ConnectError;
use crate::event::{Event, GoneReason, INDEX_BITS, PeerId};
use crate::handshake::{Cookies, HandshakePacket, Outbox};
use crate::key::{Agreement, Seal};
use crate::send::Slot;
use crate::session::{Frame, Frames, LaneStatus, Own, Phase, Renewal, Session, Transmit};
use crate::shared::Shared;
use crate::stats::{DropReason, Stats};
use crate::time::{Instant, SECOND};
use crate::timer::Timers;
use crate::wire::{Address, HEADER_BYTES, HELLO_FIXED_BYTES, Hello, LANE_BYTES, LaneAddress};

use peers::{Peer, PeerTable};

/// Packets that one session sends before the next has its turn: two full runs of
/// segmentation offload.
const TURN: u32 = 88;

/// How long peers have to prove anew that they are members: longer than a cookie is good, so that
/// one of the hellos has another, whatever strangers send meanwhile.
pub const RENEWAL_NS: u64 = 40 * SECOND;
/// Between the hellos that ask one of them to.
const RENEWAL_PAUSE_NS: u64 = SECOND / 2;

/// The protocol of one process, without sockets, clock or payload. See the crate.
#[derive(Clone, Debug)]
pub struct Machine {
    shared: Shared,
    peers: PeerTable,
    by_home: BTreeMap<Address, u32>,
    /// Open sessions by the peer's incarnation, and by its connection id.
    by_incarnation: BTreeMap<u64, u32>,
    by_connection: BTreeSet<(u32, u32)>,
    /// Idle peers that were asked last whether they live, to make room.
    asked_to_stay: Vec<PeerId>,
    /// When that may be asked again although all of them did.
    next_sweep_at: Instant,
    /// When the caller may be told again that somebody was turned away.
    report_full_at: Instant,
    incarnation: u64,
    lanes: Vec<LaneAddress>,
    cookies: Cookies,
    outbox: Outbox,
    /// Sessions that may have something to send.
    ready: VecDeque<u32>,
    /// Pipes that may have records to push.
    ready_pipes: VecDeque<PeerId>,
    turn_left: u32,
    timers: Timers,
    random: u64,
    /// Sessions that there have been.
    sessions: u64,
    /// Of the sessions that have opened since the caller last asked.
    agreements: Vec<Agreement>,
    /// Of those of them that have ended.
    ended: Vec<(u32, u64)>,
}

impl Machine {
    /// A machine for a process that listens on `lanes`. `incarnation` must be
    /// random, and `secret` known to nobody else.
    #[must_use]
    pub fn new(
        config: Config,
        incarnation: u64,
        secret: [u64; 2],
        lanes: &[LaneAddress],
    ) -> Machine {
        Machine {
            shared: Shared::new(config),
            peers: PeerTable::default(),
            by_home: BTreeMap::new(),
            by_incarnation: BTreeMap::new(),
            by_connection: BTreeSet::new(),
            asked_to_stay: Vec::new(),
            next_sweep_at: Instant(0),
            report_full_at: Instant(0),
            incarnation: incarnation.max(1),
            lanes: lanes.to_vec(),
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

    /// The configuration given.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// This process's incarnation.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }

    /// Counts a drop that the caller found (a damaged packet).
    pub fn count(&mut self, reason: DropReason) {
        self.shared.count(reason);
    }

    // ---- peers ------------------------------------------------------------

    /// Opens a session to the process at `home`, its first small address, or
    /// returns the one that exists. [`Event::Connected`] or [`Event::Gone`] follows.
    /// `incarnation` is the process meant, zero for whoever is there.
    ///
    /// # Errors
    /// [`ConnectError::TooManyPeers`]; idle peers are asked then whether they live, so that
    /// there may be room a little later.
    pub fn connect(
        &mut self,
        now: Instant,
        home: Address,
        incarnation: u64,
    ) -> Result<PeerId, ConnectError> {
        if let Some(index) = self.by_home.get(&home)
            && let Some(session) = self.peers.session_at(*index)
        {
            return Ok(session.id);
        }
        // The same process, met by another of its interfaces.
        let met = self.by_incarnation.get(&incarnation);
        let met = met.filter(|_| incarnation != 0);
        if let Some(session) = met.and_then(|index| self.peers.session_at(*index)) {
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

    /// Ends a session and says goodbye. Nothing more arrives or is delivered on it.
    pub fn disconnect(&mut self, peer: PeerId) {
        self.send_bye(peer);
        self.remove(peer, GoneReason::Closed);
    }

    fn send_bye(&mut self, peer: PeerId) {
        if let Some(session) = self.session_mut(peer)
            && session.is_open()
        {
            let number = session.bye_header().number;
            let remote = session.remote.connection;
            let seal = session.seals.out;
            let packet = HandshakePacket::Bye(remote, number, self.incarnation, seal);
            let to = self.session(peer).map(Session::bye_address);
            if let Some(to) = to {
                self.outbox.push(to, packet);
            }
        }
    }

    /// A cluster key that was taken until now is not any more: every peer must prove once more,
    /// with one that is, that it is a member. Who has not after [`RENEWAL_NS`] is gone. Spec §3.2.
    pub fn renew_proofs(&mut self, now: Instant) {
        if !self.shared.config.keyed {
            return;
        }
        let mut ask_at = now;
        for session in self.peers.sessions_mut() {
            if !session.is_open() {
                continue;
            }
            session.renewal = Some(Renewal {
                cookie: 0,
                ask_at,
                refused: false,
                until: now.after(RENEWAL_NS),
            });
            // Thousands are not asked at once.
            ask_at = ask_at.after(RENEWAL_PAUSE_NS / 512);
            let index = session_index(session.id);
            self.timers.arm(index, session.deadline(&self.shared));
        }
    }

    /// True while a peer has not proven anew that it is a member.
    #[must_use]
    pub fn is_unproven(&self, peer: PeerId) -> bool {
        self.session(peer)
            .is_some_and(|session| session.renewal.is_some())
    }

    /// Acknowledges with the next packet all that a peer has sent and was not told of.
    pub fn acknowledge(&mut self, peer: PeerId) {
        if let Some(session) = self.session_mut(peer) {
            session.acknowledge_now();
            self.reschedule(peer);
        }
    }

    /// Peers that exist, open or opening.
    pub fn peers(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.peers.ids()
    }

    /// True if there are as many peers as may be.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.peers.in_use() >= self.shared.config.max_peers as usize
    }

    /// True if there is a peer that packets lead to.
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

    /// True if the peer has acknowledged every message sent to it; that an edge ended is
    /// nothing to wait for, since goodbye says it too. Of a pipe this is known as
    /// far as long messages go; that its records were read, its carrier knows.
    #[must_use]
    pub fn is_acknowledged(&self, peer: PeerId) -> bool {
        match self.peers.get(peer) {
            Some(Peer::Session(session)) => session.is_acknowledged(),
            Some(Peer::Pipe(pipe)) => !pipe.has_long(),
            None => true,
        }
    }

    /// The node that a peer says it is on.
    #[inline]
    #[must_use]
    pub fn node(&self, peer: PeerId) -> Option<u32> {
        match self.peers.get(peer)? {
            Peer::Session(session) => Some(session.remote.node),
            Peer::Pipe(pipe) => Some(pipe.remote.node),
        }
    }

    /// Frames queued to a peer that have not been sent at all.
    #[must_use]
    pub fn queued(&self, peer: PeerId) -> usize {
        self.session(peer)
            .map_or(0, |session| session.window.queued())
    }

    /// Frames of this peer that are queued, in flight or lost; those behind a missing unit count
    /// until it has arrived.
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

    /// Longest packet that this session carries now, without its trailer. It falls and rises
    /// with what the path carries; units that were filled before are cut. Spec §5.8.
    #[must_use]
    pub fn packet_space(&self, peer: PeerId) -> usize {
        self.session(peer).map_or(0, |session| {
            let trailer = session.seals.out.bytes();
            session.packet_bytes().saturating_sub(trailer)
        })
    }

    /// The link did not take a packet because it is too long. What it carried is sent again
    /// in shorter ones, except unreliable messages. Spec §5.8.
    pub fn packet_too_long(&mut self, now: Instant, transmit: &Transmit) {
        let Some(peer) = transmit.peer else {
            return;
        };
        let bytes = transmit.length + transmit.seal.bytes();
        self.with(peer, |session, shared| {
            session.packet_refused(bytes, now, shared);
        });
    }

    /// The ways to a peer: its addresses, and which of them answer. Spec §5.3.
    pub fn lanes(&self, peer: PeerId) -> impl Iterator<Item = LaneStatus> + '_ {
        self.session(peer)
            .into_iter()
            .flat_map(Session::lane_states)
    }

    /// Keeps asking an otherwise quiet peer whether it lives.
    pub fn watch(&mut self, now: Instant, peer: PeerId, watched: bool) {
        self.with(peer, |session, shared| session.watch(watched, now, shared));
    }

    /// The application knows that a message from this peer must come: ack requests are
    /// sent until it does or `expecting` is withdrawn (thesis §5.2).
    pub fn expect(&mut self, now: Instant, peer: PeerId, expecting: bool) {
        self.with(peer, |session, shared| {
            session.expect(expecting, now, shared)
        });
    }

    /// A third party knows that the peer's process lives: its silence is forgiven.
    pub fn vouch(&mut self, now: Instant, peer: PeerId) {
        self.with(peer, |session, _| session.vouch(now));
    }

    /// A third party knows that the peer's process has ended.
    pub fn give_up(&mut self, peer: PeerId) {
        self.remove(peer, GoneReason::Died);
    }

    /// The structure of the computation proves that every unit below `unit` has
    /// arrived at the peer (thesis §5.2.1, coarse-grained acknowledgement).
    pub fn ack_through(&mut self, now: Instant, peer: PeerId, unit: u64) {
        self.with(peer, |session, shared| {
            session.ack_through(unit, now, shared)
        });
    }

    /// The number that the next new unit to this peer will get.
    #[must_use]
    pub fn next_unit(&self, peer: PeerId) -> u64 {
        self.session(peer).map_or(0, |session| session.window.top())
    }

    // ---- output ----------------------------------------------------------------

    /// The packet that carries a frame which was just filled, if nothing else is to be sent to
    /// this peer: the short way for a lone message. `None`, and nothing has changed, if it has
    /// to be [queued](Self::queue).
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

    /// The next packet to send; call until `None`.
    pub fn poll_transmit(&mut self, now: Instant, frames: &mut impl Frames) -> Option<Transmit> {
        if let Some(transmit) = self.poll_handshake(frames) {
            return Some(transmit);
        }
        // Once each, and the first once more in a new turn.
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
                    session.is_ready = false;
                    self.ready.pop_front();
                    self.turn_left = TURN;
                }
                return transmit;
            }
            self.ready.pop_front();
            // Notices wait for a frame, which may be free next time.
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

    /// True if [`poll_transmit`](Self::poll_transmit) may have something.
    #[must_use]
    pub fn has_transmit(&self) -> bool {
        !self.ready.is_empty() || self.outbox.front().is_some()
    }

    /// True if [`poll_event`](Self::poll_event) or [`poll_released`](Self::poll_released) has
    /// something.
    #[inline]
    #[must_use]
    pub fn has_event(&self) -> bool {
        !self.shared.events.is_empty() || !self.shared.released.is_empty()
    }

    /// A frame whose unit has arrived, or never will: it is the caller's again.
    #[inline]
    pub fn poll_released(&mut self) -> Option<Slot> {
        self.shared.released.pop()
    }

    /// The unit that the last packet completed, if it came in parts: what events point into
    /// then, instead of the packet.
    #[inline]
    pub fn take_assembled(&mut self) -> Option<Vec<u8>> {
        self.shared.assembled.take()
    }

    /// What the sides of a session that has just opened, and whose packets are closed with
    /// [`Seal::Session`], have told each other. To be asked for after each packet outside
    /// sessions, before anything is sent.
    pub fn take_agreement(&mut self) -> Option<Agreement> {
        self.agreements.pop()
    }

    /// Index and serial number of an [`Agreement`] whose session is over, and whose last packet
    /// has been handed out: its keys are of no more use.
    #[inline]
    pub fn take_ended_session(&mut self) -> Option<(u32, u64)> {
        match self.outbox.front() {
            None => self.ended.pop(),
            Some(_) => None,
        }
    }

    /// What happened, oldest first. Events that point into a packet, or a unit that it
    /// [completed](Self::take_assembled), must be handled before the next packet is given.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.shared.events.pop_front()
    }

    fn poll_handshake(&mut self, frames: &mut impl Frames) -> Option<Transmit> {
        let (to, packet) = self.outbox.front()?;
        let (slot, bytes) = frames.scratch()?;
        let seal = match packet {
            HandshakePacket::Bye(.., seal) => *seal,
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
        };
        self.outbox.pop();
        Some(transmit)
    }

    /// What closes hello, welcome and reset.
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
        let (home, echo) = (session.home, session.remote.incarnation);
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
        let lanes = self.lanes.len().min(room);
        let mut hello = Hello::new(&self.lanes[..lanes]);
        hello.max_packet_bytes = u16::try_from(config.packet_bytes).unwrap_or(u16::MAX);
        hello.connection = peer.connection();
        hello.incarnation = self.incarnation;
        hello.node = config.node;
        hello.window_packets = config.hello_window();
        hello.initial_credit_bytes = config.initial_credit_bytes;
        hello.trailers = config.trailers;
        hello.share = config.share;
        if let Some(session) = self.session(peer) {
            hello.salt = session.own.salt;
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
        self.by_home.insert(home, index);
        Some(id)
    }

    fn remove(&mut self, peer: PeerId, reason: GoneReason) {
        let acknowledged = self.is_acknowledged(peer);
        match self.peers.remove(peer) {
            Some(Peer::Session(session)) => {
                let index = session_index(peer);
                if session.is_open() {
                    self.shared.processes -= 1;
                    let incarnation = session.remote.incarnation;
                    if self.by_incarnation.get(&incarnation) == Some(&index) {
                        self.by_incarnation.remove(&incarnation);
                    }
                    self.by_connection
                        .remove(&(session.remote.connection, index));
                }
                self.by_home.remove(&session.home);
                self.timers.disarm(index);
                if let Seal::Session { serial, index, .. } = session.seals.out {
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

    /// All places are taken: true if idle peers are asked whether they live, so that there may
    /// be one soon. Looks at all peers, but seldom: again only after one has turned out dead,
    /// or a while after all have answered.
    fn make_room(&mut self, now: Instant) -> bool {
        let asked = core::mem::take(&mut self.asked_to_stay);
        let sessions = |peer: &PeerId| self.session(*peer);
        if asked
            .iter()
            .filter_map(sessions)
            .any(Session::is_asked_to_stay)
        {
            self.asked_to_stay = asked;
            return true;
        }
        let all_live = asked.iter().all(|peer| self.session(*peer).is_some());
        if all_live && now < self.next_sweep_at {
            self.asked_to_stay = asked;
            return false;
        }
        let config = &self.shared.config;
        let (suspect_after_ns, patience_ns) = (config.suspect_after_ns, config.peer_timeout_ns / 4);
        self.next_sweep_at = now.after(config.peer_timeout_ns);
        let sessions = self.peers.sessions();
        let mut idle: Vec<(Instant, PeerId)> = sessions
            .filter_map(|session| Some((session.idle_since()?, session.id)))
            .filter(|(heard, _)| now.since(*heard) >= suspect_after_ns)
            .collect();
        idle.sort_unstable();
        idle.truncate(MOST_ASKED_TO_STAY);
        let by = now.after(patience_ns);
        for (_, peer) in &idle {
            self.with(*peer, |session, shared| {
                session.evict_unless_heard(by, now, shared);
            });
        }
        self.asked_to_stay = idle.into_iter().map(|(_, peer)| peer).collect();
        !self.asked_to_stay.is_empty()
    }

    /// Gives turns for over-long messages that are free to edges that wait for them.
    fn retry_oversize(&mut self, now: Instant) {
        while let Some(edge) = self.shared.next_waiting() {
            match self.peers.get_mut(edge.peer) {
                Some(Peer::Session(session)) => {
                    let tell = session.channel.retry_grant(edge, now, &mut self.shared);
                    session.tell(tell, now, &self.shared);
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

    /// Runs something on a session, then lets it send and keeps its deadline.
    fn with(&mut self, peer: PeerId, action: impl FnOnce(&mut Session, &mut Shared)) {
        let Some(session) = self.peers.session_mut(peer) else {
            return;
        };
        action(session, &mut self.shared);
        self.reschedule(peer);
    }

    /// Lets a peer send and keeps its deadline.
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

    /// SplitMix64 over the secret: connection ids that nobody can foresee cheaply.
    fn next_random(&mut self) -> u32 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        u32::try_from((mixed ^ mixed >> 31) >> 32).unwrap_or(1)
    }
}

/// Idle peers that are asked at once whether they live, when others want their places.
const MOST_ASKED_TO_STAY: usize = 64;

fn session_index(peer: PeerId) -> u32 {
    peer.connection() & ((1 << INDEX_BITS) - 1)
}
