//! One remote process: owns the parts and their order, little logic. Spec §5.
//!
//! Arrivals come in through `session/receive.rs`, packets go out through
//! `session/transmit.rs`, time passes in `session/recover.rs`; `session/paths.rs` finds out
//! which of the peer's addresses can be reached.

mod paths;
mod receive;
mod recover;
mod sizing;
mod transmit;
mod view;

use alloc::vec::Vec;

use crate::channel::{Channel, MessageStart, Urgency};
use crate::error::BeginError;
use crate::event::{EdgeId, INDEX_BITS, PeerId};
use crate::holes::Holes;
use crate::key::{self, Seal};
use crate::lane::Lane;
use crate::pace::Pace;
use crate::parts::Assemblies;
use crate::replay::Replay;
use crate::rtt::RoundTrip;
use crate::send::{SendWindow, Slot};
use crate::shared::Shared;
use crate::time::Instant;
use crate::wire::{Address, Hello, LaneAddress, SHARE_BYTES, Trailer};
use paths::Paths;
use sizing::Sizing;

pub use paths::LaneStatus;
pub use transmit::{Frame, Frames, Transmit};
pub use view::{LaneView, UnitState, UnitView, View};

/// How far the handshake has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// We say hello until a welcome comes; the cookie is what the peer wants to see.
    Opening {
        cookie: u64,
        retry_at: Instant,
        retry_ns: u64,
    },
    /// Both sides know each other's connection id.
    Open,
}

/// What the peer told about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Remote {
    pub(crate) connection: u32,
    pub(crate) incarnation: u64,
    pub(crate) node: u32,
    /// What it takes on a new edge before any grant.
    pub(crate) initial_credit_bytes: u32,
    /// What it added to the keys of packets, by which who stood between shows itself.
    pub(crate) salt: u64,
    pub(crate) share: [u8; SHARE_BYTES],
}

impl Remote {
    /// As a hello or welcome says.
    pub(crate) fn of(hello: &Hello) -> Remote {
        Remote {
            connection: hello.connection,
            incarnation: hello.incarnation,
            node: hello.node,
            initial_credit_bytes: hello.initial_credit_bytes,
            salt: hello.salt,
            share: hello.share,
        }
    }

    /// True if a hello or welcome is of the side that this session was opened with.
    pub(crate) fn matches(&self, hello: &Hello) -> bool {
        let theirs = (hello.incarnation, hello.connection, hello.salt, hello.share);
        (self.incarnation, self.connection, self.salt, self.share) == theirs
    }
}

/// The peer has to prove anew that it holds the cluster key. Spec §3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Renewal {
    /// What the peer wants to see, once it has reported it.
    pub(crate) cookie: u64,
    pub(crate) ask_at: Instant,
    /// It has reported, or somebody in its name, that the keys differ.
    pub(crate) refused: bool,
    /// When the session ends.
    pub(crate) until: Instant,
}

/// What this side drew for a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Own {
    /// See [`Agreement::serial`](crate::Agreement::serial).
    pub(crate) serial: u64,
    /// Told to the peer; no other session has it.
    pub(crate) salt: u64,
    /// Known to nobody else.
    pub(crate) secret: u64,
}

/// What closes the packets of a session, by direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seals {
    pub(crate) out: Seal,
    pub(crate) incoming: Seal,
}

impl Seals {
    const OPEN: Seals = Seals {
        out: Seal::OPEN,
        incoming: Seal::OPEN,
    };
}

/// A question repeated with growing pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Backoff {
    pub(crate) at: Instant,
    pub(crate) pause_ns: u64,
}

impl Backoff {
    pub(crate) const OFF: Backoff = Backoff {
        at: Instant::NEVER,
        pause_ns: 0,
    };

    pub(crate) fn is_off(&self) -> bool {
        self.at == Instant::NEVER
    }

    /// Starts anew with the shortest pause.
    pub(crate) fn start(&mut self, now: Instant, pause_ns: u64) {
        *self = Backoff {
            at: now.after(pause_ns),
            pause_ns,
        };
    }

    /// Doubles the pause.
    pub(crate) fn again(&mut self, now: Instant, max_ns: u64) {
        self.start(now, (self.pause_ns * 2).min(max_ns));
    }
}

/// What the peer is owed in acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PendingAck {
    /// Packets accepted since the last acknowledgement.
    pub(crate) packets: u32,
    /// When to send one even if nothing else goes out.
    pub(crate) due: Instant,
    /// Send one with the next packets.
    pub(crate) now: bool,
}

impl PendingAck {
    const NONE: PendingAck = PendingAck {
        packets: 0,
        due: Instant::NEVER,
        now: false,
    };
}

/// A session with one peer. See the module.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) id: PeerId,
    pub(crate) own: Own,
    pub(crate) phase: Phase,
    pub(crate) remote: Remote,
    /// Where hellos go and come from: the peer's first small address.
    pub(crate) home: Address,
    /// What closes packets to the peer, and what must close packets from it.
    pub(crate) seals: Seals,
    sizing: Sizing,
    /// Units that come in parts.
    assemblies: Assemblies,
    pub(crate) lanes: Vec<Lane>,
    next_bulk_lane: usize,
    paths: Paths,
    control_number: u64,
    control_seen: Replay,
    pub(crate) window: SendWindow,
    pace: Pace,
    trip: RoundTrip,
    unreliable: alloc::collections::VecDeque<(Slot, bool)>,
    /// Units of the peer that have arrived.
    units: Holes,
    pending_ack: PendingAck,
    /// Its edges.
    pub(crate) channel: Channel,
    /// Wishes for credit on edges that are not known count only from this control packet on.
    credit_requests_from: u64,
    ack_request: Backoff,
    ack_request_due: bool,
    tail: Backoff,
    want: Backoff,
    /// Arrivals counted when the tail timer was last set.
    tail_arrivals: u64,
    /// Repeats that may go beyond the pace: first and last of a tail.
    forced: u32,
    /// Those repeats keep away from lanes that let time-outs pass.
    detour: bool,
    /// Which of our ways leads to where the newest arrival came from, as an index:
    /// answers go back there.
    heard_on: usize,
    /// Prods since the peer was last heard: each tries the next interface.
    unanswered: usize,
    /// Since when the peer owes us some sign of life.
    pub(crate) asked_at: Option<Instant>,
    /// It has been silent for long enough to ask others about it.
    doubted: bool,
    pub(crate) last_heard: Instant,
    keepalive_at: Instant,
    /// When the peer must have answered, since others want its place.
    evicted_at: Instant,
    /// A key went with which the peer may have proven that it is a member.
    pub(crate) renewal: Option<Renewal>,
    /// Somebody waits for this peer: ask now and then whether it lives.
    watched: bool,
    expecting: bool,
    sender_period: u64,
    announced_window: u32,
    /// The window has changed since the peer was told.
    pub(crate) window_due: bool,
    /// The unit number after those that the peer knows to wait.
    announced_backlog: u64,
    /// The same of the peer's units.
    backlog: u64,
    pub(crate) is_ready: bool,
}

impl Session {
    /// Numbers begin at `first`.
    pub(crate) fn new(
        id: PeerId,
        own: Own,
        home: Address,
        phase: Phase,
        first: u64,
        now: Instant,
    ) -> Session {
        let secret = own.secret;
        Session {
            id,
            own,
            phase,
            remote: Remote::default(),
            home,
            seals: Seals::OPEN,
            sizing: Sizing::new(0, 0),
            assemblies: Assemblies::default(),
            lanes: Vec::new(),
            next_bulk_lane: 0,
            paths: Paths::new(secret),
            control_number: first,
            control_seen: Replay::starting_at(first),
            window: SendWindow::starting_at(first),
            pace: Pace::new(1),
            trip: RoundTrip::default(),
            unreliable: alloc::collections::VecDeque::new(),
            units: Holes::starting_at(first),
            pending_ack: PendingAck::NONE,
            channel: Channel::new(id, first),
            credit_requests_from: 0,
            ack_request: Backoff::OFF,
            ack_request_due: false,
            tail: Backoff::OFF,
            tail_arrivals: 0,
            want: Backoff::OFF,
            forced: 0,
            detour: false,
            heard_on: 0,
            unanswered: 0,
            asked_at: Some(now),
            doubted: false,
            last_heard: now,
            keepalive_at: Instant::NEVER,
            evicted_at: Instant::NEVER,
            renewal: None,
            watched: false,
            expecting: false,
            sender_period: u64::MAX,
            announced_window: 0,
            window_due: false,
            announced_backlog: first,
            backlog: first,
            is_ready: false,
        }
    }

    /// Takes what the peer sent in its hello or welcome; the session is open. `own` are
    /// the lanes that this process listens on.
    pub(crate) fn open(
        &mut self,
        hello: &Hello,
        own: &[LaneAddress],
        trailer: Trailer,
        own_incarnation: u64,
        now: Instant,
        shared: &mut Shared,
    ) {
        self.remote = Remote::of(hello);
        let here = (own_incarnation, self.id.connection(), self.own.salt);
        let there = (hello.incarnation, hello.connection, hello.salt);
        let seal = |from, to| match trailer {
            Trailer::Crc32c => Seal::Crc32c {
                mask: match shared.config.keyed {
                    true => key::mask(from, to),
                    false => 0,
                },
            },
            Trailer::Auth | Trailer::Encrypt => Seal::Session {
                serial: self.own.serial,
                index: self.id.connection() & ((1 << INDEX_BITS) - 1),
                encrypts: trailer == Trailer::Encrypt,
            },
        };
        self.seals = Seals {
            out: seal(here, there),
            incoming: seal(there, here),
        };
        let most = shared.config.packet_bytes;
        let most = most.min(usize::from(hello.max_packet_bytes));
        self.sizing = Sizing::new(shared.config.base_packet_bytes, most);
        let frames = shared.config.frames.min(shared.config.session_packets);
        self.pace = Pace::new(frames);
        self.pace.grant(hello.window_packets);
        self.announced_window = shared.config.hello_window();
        self.channel.open(hello.initial_credit_bytes);
        if let Phase::Opening { .. } = self.phase
            && let Some(asked) = self.asked_at
        {
            self.trip.sample(now.since(asked).max(1));
        }
        self.phase = Phase::Open;
        self.open_lanes(hello, own, now, shared);
        self.heard(now);
        self.rest_keepalive(now, shared);
    }

    /// True if the peer sends packets outside sessions from there.
    pub(crate) fn is_small(&self, from: Address) -> bool {
        let mut small = self.lanes.iter().filter(|lane| !lane.bulk);
        self.home == from || small.any(|lane| lane.to == from)
    }

    /// True if the peer has answered from this IP address.
    pub(crate) fn has_answered_from(&self, ip: [u8; 16]) -> bool {
        let mut lanes = self.lanes.iter();
        self.home.ip == ip || lanes.any(|lane| lane.path.is_proven() && lane.to.ip == ip)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Begins a message; without credit the peer is asked, again and again.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        edge: EdgeId,
        total: u64,
        now: Instant,
        shared: &Shared,
    ) -> Result<MessageStart, BeginError> {
        if !self.is_open() {
            return Err(BeginError::Opening);
        }
        let mut begun = self.channel.begin(edge, total);
        if let Ok(begun) = &mut begun {
            begun.space = self.packet_bytes().saturating_sub(self.seals.out.bytes());
            begun.is_first = self.window.is_drained();
        }
        match begun {
            Err(BeginError::NoCredit { .. }) => {
                if self.channel.is_wanting() {
                    if self.want.is_off() {
                        self.want.start(now, shared.config.min_timeout_ns);
                    }
                    self.ask(now);
                } else {
                    // The peer owes no answer while messages of an earlier life lie unread.
                    self.keep_alive_soon(now, shared);
                }
            }
            Ok(_) if self.channel.is_wanting() => self.clear_refusal(),
            _ => {}
        }
        begun
    }

    /// Nobody waits for credit on this edge any more.
    pub(crate) fn cancel(&mut self, edge: EdgeId) {
        self.channel.cancel(edge);
        self.clear_refusal();
    }

    /// One handle of an outgoing edge less.
    pub(crate) fn close_edge(&mut self, edge: EdgeId, shared: &mut Shared) {
        self.channel.close_edge(edge, shared);
        self.clear_refusal();
    }

    /// The edges of a source endpoint end.
    pub(crate) fn close_source(&mut self, source: u32, shared: &mut Shared) {
        self.channel.close_source(source, shared);
        self.clear_refusal();
    }

    /// No answer is owed any more if nothing that asks for one is left.
    fn clear_refusal(&mut self) {
        let asks = !self.window.is_empty()
            || self.channel.is_wanting()
            || !self.ack_request.is_off()
            || self.watched;
        if !asks && self.is_open() {
            self.asked_at = None;
            self.doubted = false;
        }
    }

    pub(crate) fn queue(&mut self, slot: Slot, bulk: bool) {
        self.window.queue(slot, bulk);
    }

    pub(crate) fn queue_unreliable(&mut self, slot: Slot, bulk: bool) {
        self.unreliable.push_back((slot, bulk));
    }

    /// The application gave back a message of `total` bytes; true if that changes what the
    /// peer may send.
    #[inline]
    pub(crate) fn consumed(
        &mut self,
        edge: EdgeId,
        total: u64,
        now: Instant,
        shared: &mut Shared,
    ) -> bool {
        let tell = self.channel.consumed(edge, total, now, shared);
        self.tell(tell, now, shared);
        tell != Urgency::None || self.channel.has_notice()
    }

    /// Plans when the peer hears of a grant.
    #[inline]
    pub(crate) fn tell(&mut self, tell: Urgency, now: Instant, shared: &Shared) {
        match tell {
            Urgency::None => {}
            Urgency::Soon => {
                let due = now.after(shared.config.ack_delay_ns);
                self.pending_ack.due = self.pending_ack.due.min(due);
            }
            Urgency::Now => self.pending_ack.now = true,
        }
    }

    /// An endpoint was closed: gives back what its edges held.
    pub(crate) fn close_target(&mut self, target: u32, now: Instant, shared: &mut Shared) {
        let tell = self.channel.close_target(target, now, shared);
        self.tell(tell, now, shared);
    }

    /// The structure of the computation proves that all units below `unit` arrived.
    pub(crate) fn ack_through(&mut self, unit: u64, now: Instant, shared: &mut Shared) {
        let before = self.window.base();
        self.units_arrived(unit, shared);
        shared.stats.implicit_acks += self.window.base().saturating_sub(before);
        self.settle_lanes();
        self.clear_refusal();
        self.progress(now, shared);
    }

    /// Ends the session: every slot goes back, all memory is forgotten.
    pub(crate) fn end(mut self, shared: &mut Shared) {
        for slot in self.window.clear() {
            shared.released.push(slot);
        }
        for (slot, _) in self.unreliable {
            shared.released.push(slot);
        }
        shared.assemblies -= self.assemblies.len();
        self.channel.end(shared);
        shared.forget_peer(self.id);
    }

    /// The peer owes us an answer from now on.
    fn ask(&mut self, now: Instant) {
        self.asked_at.get_or_insert(now);
    }

    /// The peer lives.
    fn heard(&mut self, now: Instant) {
        self.last_heard = now;
        self.unanswered = 0;
        self.doubted = false;
        self.evicted_at = Instant::NEVER;
        self.asked_at = (!self.window.is_empty() || self.channel.is_wanting()).then_some(now);
    }

    /// The peer's process is known to live, though it says nothing.
    pub(crate) fn vouch(&mut self, now: Instant) {
        if let Some(asked) = &mut self.asked_at {
            *asked = now;
            self.doubted = false;
        }
    }

    pub(crate) fn watch(&mut self, watched: bool, now: Instant, shared: &Shared) {
        if self.watched != watched {
            self.watched = watched;
            self.rest_keepalive(now, shared);
        }
    }

    /// The application knows that something must come from this peer.
    pub(crate) fn expect(&mut self, expecting: bool, now: Instant, shared: &Shared) {
        self.expecting = expecting;
        self.arm_ack_request(now, shared);
    }

    /// Somebody waits, or a message has arrived in part and holds memory.
    fn needs_keepalive(&self) -> bool {
        self.watched || self.channel.awaits_pieces() || self.channel.awaits_forgotten()
    }

    fn keep_alive_soon(&mut self, now: Instant, shared: &Shared) {
        let soon = now.after(shared.config.peer_timeout_ns / 4);
        self.keepalive_at = self.keepalive_at.min(soon);
    }

    fn rest_keepalive(&mut self, now: Instant, shared: &Shared) {
        self.keepalive_at = now.after(self.keepalive_ns(shared));
    }

    fn keepalive_ns(&self, shared: &Shared) -> u64 {
        match self.needs_keepalive() {
            true => shared.config.peer_timeout_ns / 4,
            false => shared.config.idle_check_ns,
        }
    }

    /// When the peer was last heard, if nothing is owed to or by it.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        let idle = self.is_open() && self.asked_at.is_none() && self.unreliable.is_empty();
        idle.then_some(self.last_heard)
    }

    /// Others want the place of this idle peer: it must answer by then, or is gone.
    pub(crate) fn evict_unless_heard(&mut self, by: Instant, now: Instant, shared: &Shared) {
        self.evicted_at = by;
        self.ask_for_life(now, shared);
    }

    /// True while the peer has not answered that question.
    pub(crate) fn is_asked_to_stay(&self) -> bool {
        self.evicted_at != Instant::NEVER
    }

    /// True if the peer has every message that was sent.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.window.has_only_notices()
    }

    /// The window is told with the next packet.
    pub(crate) fn announce_window(&mut self) {
        (self.window_due, self.pending_ack.now) = (true, true);
    }

    /// What has arrived and was not told of is, with the next packet.
    pub(crate) fn acknowledge_now(&mut self) {
        self.pending_ack.now |= self.pending_ack.packets > 0;
    }

    /// The smoothed round trip, if one was measured.
    pub(crate) fn round_trip_ns(&self) -> Option<u64> {
        self.trip.smoothed_ns()
    }
}
