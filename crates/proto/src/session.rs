//! The state of a peer on another node, and how its parts work together. Spec §5.
//!
//! Arrivals are handled in `session/receive.rs`, departures in `session/transmit.rs`, time-outs in
//! `session/recover.rs`; `session/paths.rs` finds out which addresses of the peer are reachable.

mod acks;
mod addresses;
mod control_lane;
mod flow;
mod lane_choice;
mod liveness;
mod paths;
mod ranges;
mod receive;
mod recover;
mod requests;
mod retransmission;
mod sizing;
mod status;
mod trains;
mod transmit;
mod view;

use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

use crate::channel::{Channel, MessageStart, Urgency};
use crate::config::LEAST_PACKET_BYTES;
use crate::error::BeginError;
use crate::event::{EdgeId, INDEX_BITS, PeerId};
use crate::holes::Holes;
use crate::key::{self, Seal};
use crate::lane::Lane;
use crate::pace::Pace;
use crate::parts::Assemblies;
use crate::send::{SendWindow, Slot};
use crate::shared::Shared;
use crate::time::{Instant, SECOND};
use crate::wire::{Address, HEADER_BYTES, Hello, Part, SHARE_BYTES, Trailer};
use acks::Acks;
use control_lane::ControlLane;
use flow::FlowReports;
use liveness::Liveness;
use paths::Paths;
use requests::Requests;
use retransmission::Retransmission;
use sizing::Sizing;

pub use paths::LaneStatus;
pub use status::{PathStatus, SessionStatus};
pub(crate) use trains::Pieces;
pub use transmit::{Frame, Frames, Transmit};
pub use view::{LaneView, View};

/// How long peers may take to prove again that they are members. It is longer than a cookie is
/// valid, so that at least one hello gets a new cookie in spite of a flood of forged ones.
pub const RENEWAL_NS: u64 = 40 * SECOND;

/// State of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Phase {
    /// Hellos are sent until a welcome arrives. The cookie comes from the peer's challenge.
    Opening {
        cookie: u64,
        retry_at: Instant,
        retry_ns: u64,
    },
    /// Both sides know each other's connection id.
    Open,
}

/// The peer, as described in its hello or welcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Remote {
    /// Where hellos are sent to or were received from: the peer's first address for small packets.
    pub(crate) home: Address,
    pub(crate) connection: u32,
    pub(crate) incarnation: u64,
    pub(crate) node: u32,
    /// Bytes that may be sent on a new edge before any grant.
    pub(crate) initial_credit_bytes: u32,
    /// Random number that is part of the packet keys, which reveals a man in the middle.
    pub(crate) salt: u64,
    pub(crate) share: [u8; SHARE_BYTES],
}

impl Remote {
    /// The sender of a hello or welcome.
    pub(crate) fn of(hello: &Hello, home: Address) -> Remote {
        Remote {
            home,
            connection: hello.connection,
            incarnation: hello.incarnation,
            node: hello.node,
            initial_credit_bytes: hello.initial_credit_bytes,
            salt: hello.salt,
            share: hello.share,
        }
    }

    /// True if a hello or welcome comes from the peer with which this session was opened.
    pub(crate) fn matches(&self, hello: &Hello) -> bool {
        let theirs = (hello.incarnation, hello.connection, hello.salt, hello.share);
        (self.incarnation, self.connection, self.salt, self.share) == theirs
    }
}

/// A request to the peer to prove again that it holds the cluster key. Spec §3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Renewal {
    /// The cookie of the peer's challenge, once that has arrived.
    pub(crate) cookie: u64,
    /// When the next hello is sent.
    pub(crate) hello_at: Instant,
    /// An unauthenticated reset reported that the keys differ.
    pub(crate) refused: bool,
    /// When the session ends without a proof.
    pub(crate) until: Instant,
}

/// Numbers that this side has chosen for a session.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Own {
    /// See [`Agreement::serial`](crate::Agreement::serial).
    pub(crate) serial: u64,
    /// Sent to the peer; different for each session.
    pub(crate) salt: u64,
    /// Never leaves this process.
    pub(crate) secret: u64,
}

/// How the packets of a session are sealed, by direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seals {
    pub(crate) out: Seal,
    pub(crate) incoming: Seal,
}

impl Seals {
    const OPEN: Seals = Seals {
        out: Seal::OPEN,
        incoming: Seal::OPEN,
    };

    /// The seals between two sides, each given by incarnation, connection id and salt.
    fn between(here: key::Side, there: key::Side, seal: impl Fn(u32) -> Seal) -> Seals {
        Seals {
            out: seal(key::mask(here, there)),
            incoming: seal(key::mask(there, here)),
        }
    }
}

/// Protection of the packets of a session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Keys {
    pub(crate) own: Own,
    pub(crate) seals: Seals,
    /// Set while the peer must prove its membership again, because a cluster key was withdrawn.
    pub(crate) renewal: Option<Renewal>,
}

/// A session with one peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Session {
    pub(crate) id: PeerId,
    pub(crate) keys: Keys,
    pub(crate) phase: Phase,
    pub(crate) remote: Remote,
    sizing: Sizing,
    pub(crate) lanes: Vec<Lane>,
    paths: Paths,
    control: ControlLane,
    pub(crate) window: SendWindow,
    pace: Pace,
    retransmission: Retransmission,
    /// Frames of unreliable messages to send, and whether they are bulk.
    unreliable: alloc::collections::VecDeque<(Slot, bool)>,
    /// Units of the peer that have arrived.
    units: Holes,
    /// Units of the peer that have arrived in part.
    assemblies: Assemblies,
    acks: Acks,
    pub(crate) channel: Channel,
    requests: Requests,
    liveness: Liveness,
    pub(crate) flow: FlowReports,
    /// It is in the machine's list of sessions with packets to send.
    pub(crate) is_ready: bool,
}

impl Session {
    /// A session whose packets, units and messages are numbered from `first` on.
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
            keys: Keys {
                own,
                seals: Seals::OPEN,
                renewal: None,
            },
            phase,
            remote: Remote {
                home,
                ..Remote::default()
            },
            sizing: Sizing::new(0, 0, 0),
            lanes: Vec::new(),
            paths: Paths::new(secret),
            control: ControlLane::starting_at(first),
            window: SendWindow::starting_at(first),
            pace: Pace::new(1, 1),
            retransmission: Retransmission::new(),
            unreliable: alloc::collections::VecDeque::new(),
            units: Holes::starting_at(first),
            assemblies: Assemblies::default(),
            acks: Acks::NONE,
            channel: Channel::new(id, first),
            requests: Requests::new(),
            liveness: Liveness::new(now),
            flow: FlowReports::new(first),
            is_ready: false,
        }
    }

    /// Opens the session with the contents of the peer's hello or welcome.
    pub(crate) fn open(
        &mut self,
        hello: &Hello,
        trailer: Trailer,
        own_incarnation: u64,
        now: Instant,
        shared: &mut Shared,
    ) {
        self.remote = Remote::of(hello, self.remote.home);
        let keyed = shared.config.keyed;
        let (serial, salt) = (self.keys.own.serial, self.keys.own.salt);
        let here = (own_incarnation, self.id.connection(), salt);
        let there = (hello.incarnation, hello.connection, hello.salt);
        self.keys.seals = Seals::between(here, there, |mask| match trailer {
            Trailer::Kernel => Seal::Kernel { token: mask },
            Trailer::Crc32c => Seal::Crc32c {
                mask: if keyed { mask } else { 0 },
            },
            Trailer::Auth | Trailer::Encrypt => Seal::Session {
                serial,
                index: self.id.connection() & ((1 << INDEX_BITS) - 1),
                encrypts: trailer == Trailer::Encrypt,
            },
        });
        let most = shared.config.packet_bytes;
        let most = most.min(usize::from(hello.max_packet_bytes));
        // The longest unit must not have more parts than a header can number.
        let around = HEADER_BYTES + self.keys.seals.out.bytes();
        let least = around + most.saturating_sub(around).div_ceil(Part::MOST);
        let base = shared.config.base_packet_bytes;
        self.sizing = Sizing::new(least.max(base.min(LEAST_PACKET_BYTES)), base, most);
        let usual = shared.config.session_packets;
        self.pace = Pace::new(shared.config.frames, usual);
        self.pace.grant(hello.window_packets);
        self.flow.announce_window(shared.config.hello_window());
        self.channel.open(hello.initial_credit_bytes);
        if let Phase::Opening { .. } = self.phase
            && let Some(since) = self.liveness.owed_since()
        {
            self.retransmission
                .round_trip
                .sample(now.since(since).max(1));
        }
        self.phase = Phase::Open;
        self.open_lanes(hello, now, shared);
        self.heard(now);
        self.rest_keepalive(now, shared);
    }

    /// True if the peer sends handshake packets from this address.
    pub(crate) fn is_small(&self, from: Address) -> bool {
        let mut small = self.lanes.iter().filter(|lane| !lane.bulk);
        self.remote.home == from || small.any(|lane| lane.to == from)
    }

    /// True if the peer has answered from this IP address.
    pub(crate) fn has_answered_from(&self, ip: [u8; 16]) -> bool {
        let mut lanes = self.lanes.iter();
        self.remote.home.ip == ip || lanes.any(|lane| lane.path.is_proven() && lane.to.ip == ip)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Begins a message. Without credit, it is requested from the peer until granted.
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
            begun.space = self
                .packet_bytes()
                .saturating_sub(self.keys.seals.out.bytes());
            begun.is_first = self.window.is_drained();
        }
        match begun {
            Err(BeginError::NoCredit { .. }) => {
                if self.channel.needs_credit() {
                    self.requests.start_credit(now, &shared.config);
                    self.liveness.expect_reply(now);
                } else {
                    // While messages of an earlier life are unread, the peer owes no answer.
                    self.keep_alive_soon(now, shared);
                }
            }
            Ok(_) if self.channel.needs_credit() => self.cancel_reply_if_idle(),
            _ => {}
        }
        begun
    }

    /// Withdraws the request for credit of this edge.
    pub(crate) fn cancel(&mut self, edge: EdgeId) {
        self.channel.cancel(edge);
        self.cancel_reply_if_idle();
    }

    /// Closes one handle of an outgoing edge.
    pub(crate) fn close_edge(&mut self, edge: EdgeId, shared: &mut Shared) {
        self.channel.close_edge(edge, shared);
        self.cancel_reply_if_idle();
    }

    /// Ends the edges of a source endpoint.
    pub(crate) fn close_source(&mut self, source: u32, shared: &mut Shared) {
        self.channel.close_source(source, shared);
        self.cancel_reply_if_idle();
    }

    /// Notes that the peer owes no reply if nothing is left that requires one.
    fn cancel_reply_if_idle(&mut self) {
        let needs_reply = !self.window.is_empty()
            || self.channel.needs_credit()
            || self.requests.awaits_ack()
            || self.liveness.is_watched();
        if !needs_reply && self.is_open() {
            self.liveness.cancel_reply();
        }
    }

    pub(crate) fn queue(&mut self, slots: &[Slot], bulk: bool) {
        self.window.queue(slots, bulk);
    }

    pub(crate) fn queue_unreliable(&mut self, slot: Slot, bulk: bool) {
        self.unreliable.push_back((slot, bulk));
    }

    /// The application has released a message of `total` bytes. Returns true if something must
    /// be sent to the peer.
    #[inline]
    pub(crate) fn consumed(
        &mut self,
        edge: EdgeId,
        total: u64,
        now: Instant,
        shared: &mut Shared,
    ) -> bool {
        let urgency = self.channel.consumed(edge, total, now, shared);
        self.schedule_grant(urgency, now, shared);
        urgency != Urgency::None || self.channel.has_notice()
    }

    /// Schedules the packet that carries a grant.
    #[inline]
    pub(crate) fn schedule_grant(&mut self, urgency: Urgency, now: Instant, shared: &Shared) {
        match urgency {
            Urgency::None => {}
            Urgency::Soon => self.acks.send_by(now.after(shared.config.ack_delay_ns)),
            Urgency::Now => self.acks.send_now(),
        }
    }

    /// Releases everything that the edges of a closed endpoint hold.
    pub(crate) fn close_target(&mut self, target: u32, now: Instant, shared: &mut Shared) {
        let urgency = self.channel.close_target(target, now, shared);
        self.schedule_grant(urgency, now, shared);
    }

    /// Ends the session and releases all its frames and memory.
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

    /// Called when a packet shows that the peer is alive.
    fn heard(&mut self, now: Instant) {
        let still_owes = !self.window.is_empty() || self.channel.needs_credit();
        self.liveness.heard(now, still_owes);
        self.requests.heard();
    }

    /// A third party knows that the peer's process is alive.
    pub(crate) fn confirm_alive(&mut self, now: Instant, runs: bool) {
        self.liveness.confirm_alive(now, runs);
    }

    /// True if the peer's process runs, but its packets do not arrive.
    pub(crate) fn is_unreachable(&self, now: Instant, shared: &Shared) -> bool {
        self.liveness.is_unreachable(now, &shared.config)
    }

    pub(crate) fn watch(&mut self, watched: bool, now: Instant, shared: &Shared) {
        if self.liveness.set_watched(watched) {
            self.rest_keepalive(now, shared);
        }
    }

    /// The application knows that a message must come from this peer.
    pub(crate) fn expect(&mut self, expecting: bool, now: Instant, shared: &Shared) {
        self.requests.set_expecting(expecting);
        self.arm_ack_request(now, shared);
    }

    /// True if a dead peer must be detected soon: the application watches it, or a message that
    /// has arrived in part holds memory, or an edge waits for its earlier life to be forgotten.
    fn needs_keepalive(&self) -> bool {
        self.liveness.is_watched()
            || self.channel.awaits_pieces()
            || self.channel.awaits_forgotten()
    }

    fn keep_alive_soon(&mut self, now: Instant, shared: &Shared) {
        let soon = now.after(shared.config.peer_timeout_ns / 4);
        self.liveness.keep_alive_by(soon);
    }

    fn rest_keepalive(&mut self, now: Instant, shared: &Shared) {
        let at = now.after(self.keepalive_ns(shared));
        self.liveness.set_keepalive(at);
    }

    fn keepalive_ns(&self, shared: &Shared) -> u64 {
        match self.needs_keepalive() {
            true => shared.config.peer_timeout_ns / 4,
            false => shared.config.idle_check_ns,
        }
    }

    /// When the last packet from the peer arrived, if neither side owes anything.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        let owes_nothing = self.liveness.owed_since().is_none() && self.unreliable.is_empty();
        (self.is_open() && owes_nothing).then_some(self.liveness.last_heard())
    }

    /// Another process needs the place of this idle peer: the peer must reply by then.
    pub(crate) fn evict_unless_heard(&mut self, by: Instant, now: Instant, shared: &Shared) {
        self.liveness.evict_at(by);
        self.send_keepalive(now, shared);
    }

    /// True while the peer must reply to keep its place.
    pub(crate) fn is_evicting(&self) -> bool {
        self.liveness.is_evicting()
    }

    /// True if the peer has acknowledged every message, and its refusals of them have arrived.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.window.has_only_notices() && self.window.is_settled()
    }

    /// True if neither side loses anything when this one leaves.
    pub(crate) fn can_leave(&self) -> bool {
        self.window.has_only_notices() && !self.owes_refusals()
    }

    /// Sends the window with the next packet.
    pub(crate) fn announce_window(&mut self) {
        self.flow.set_window_due(true);
        self.acks.send_now();
    }

    /// Acknowledges with the next packet whatever has not been acknowledged.
    pub(crate) fn acknowledge_now(&mut self) {
        self.acks.flush();
    }

    /// The smoothed round trip; `None` before the first measurement.
    pub(crate) fn round_trip_ns(&self) -> Option<u64> {
        self.retransmission.round_trip.smoothed_ns()
    }
}
