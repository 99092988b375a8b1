//! Other processes of this node, by shared memory: no packets, no protocol machine.
//!
//! The link keeps order and loses nothing, so what is left of a session is small:
//! edges with credit, refusals, and long messages that their receiver fetches. It
//! costs a tenth of what the protocol's session costs per message
//! (`docs/decisions.md`), which decided for a path of its own. `local/tag.rs` says what
//! a record means, `local/peer.rs` what is kept of one process.

mod long;
mod peer;
mod tag;

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use dipole_link::AnyHub;
use dipole_link::shm::{Closing, ConnId, PushError, ShmError, ShmEvent, ShmOptions, ShmStats};
use dipole_proto::wire::ResetReason;
use rustc_hash::FxHashMap;

use super::deliver::Receivers;
use super::{Blocked, Departure};
use crate::GoneReason;
use crate::driver::WaitKey;
use long::{Fetch, PIECE_BYTES};
use peer::{LocalPeer, Misbehaved};
use tag::{Greeting, Kind, Tag};

/// Records taken in one turn.
const POLL_LIMIT: usize = 256;
/// Longest message that goes through the ring whole; longer ones are fetched by
/// their receiver.
const EAGER_BYTES: usize = 16 << 10;
/// Unread bytes of one edge, once it has been used and the pool has room.
const EDGE_WINDOW_BYTES: u64 = 1 << 20;
/// An outgoing edge to a process of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalEdge {
    pub(super) conn: ConnId,
    index: u32,
    life: u32,
}

/// Where a received message is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalCharge {
    conn: ConnId,
    index: u32,
    life: u32,
}

/// Memory for received messages of local peers.
#[derive(Debug)]
struct Pool {
    /// Bytes that wait to be read, overheads included.
    used: u64,
    /// Beyond the initial credits, promised to edges that were used.
    promised: u64,
    limit: u64,
}

impl Pool {
    /// True if a long message has begun, or there is room for it.
    fn lets_begin(&self, fetch: &Fetch) -> bool {
        let charge = dipole_proto::charge(fetch.length);
        fetch.begun.is_some() || self.used == 0 || self.used + charge <= self.limit
    }

    /// A message of `length` bytes has been read, or dropped.
    #[inline]
    fn release(&mut self, length: u64) {
        self.used = self.used.saturating_sub(dipole_proto::charge(length));
    }
}

/// See the module.
#[derive(Debug)]
pub struct Local {
    hub: AnyHub,
    own: Greeting,
    /// By [`ConnId::index`].
    peers: Vec<Option<LocalPeer>>,
    by_incarnation: FxHashMap<u64, ConnId>,
    pool: Pool,
    /// Peers that have something new and may sleep.
    due: Vec<ConnId>,
    /// Peers with control records that found no room.
    crammed: Vec<ConnId>,
    fetches: VecDeque<Fetch>,
    /// Bytes of copies of long messages.
    copied_bytes: usize,
    events: Vec<ShmEvent>,
    /// A process of this node died without a word: its files may be swept.
    died: bool,
}

impl Local {
    /// Meets processes of this node by the hub that `open` makes with a greeting.
    pub(super) fn open(
        incarnation: u64,
        config: &dipole_proto::Config,
        open: impl FnOnce(&[u8], &ShmOptions) -> Result<AnyHub, ShmError>,
    ) -> Result<Local, ShmError> {
        let own = Greeting {
            node: config.node,
            incarnation,
            initial_credit: config.initial_credit_bytes,
        };
        let options = ShmOptions {
            max_connections: config.max_peers as usize,
            ..ShmOptions::default()
        };
        Ok(Local {
            hub: open(&own.to_bytes(), &options)?,
            own,
            peers: Vec::new(),
            by_incarnation: FxHashMap::default(),
            pool: Pool {
                used: 0,
                promised: 0,
                limit: config.pool_bytes,
            },
            due: Vec::new(),
            crammed: Vec::new(),
            fetches: VecDeque::new(),
            copied_bytes: 0,
            events: Vec::new(),
            died: false,
        })
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.hub.descriptor()
    }

    pub(super) fn stats(&self) -> ShmStats {
        self.hub.stats()
    }

    /// Connections, opening or open.
    pub(super) fn peers(&self) -> usize {
        self.peers
            .iter()
            .flatten()
            .filter(|peer| peer.gone.is_none())
            .count()
    }

    /// Bytes of received messages that wait to be read.
    pub(super) fn pool_used(&self) -> u64 {
        self.pool.used
    }

    /// True once after a process of this node died without a word.
    pub(super) fn take_died(&mut self) -> bool {
        std::mem::take(&mut self.died)
    }

    /// True once after a wake-up was read, maybe a sleeper's.
    pub(super) fn take_woken(&mut self) -> bool {
        self.hub.take_woken()
    }

    /// Begins, or finds, the connection with a process.
    pub(super) fn connect(&mut self, socket: &Path, incarnation: u64) -> Result<ConnId, ShmError> {
        if let Some(conn) = self.by_incarnation.get(&incarnation)
            && self.find(*conn).is_some_and(|peer| peer.gone.is_none())
        {
            return Ok(*conn);
        }
        let conn = self.hub.connect(socket)?;
        self.enter(LocalPeer::new(conn, incarnation, self.own.initial_credit));
        self.by_incarnation.insert(incarnation, conn);
        Ok(conn)
    }

    /// Whether the connection, or another with the same process, is open; an error if
    /// it is gone.
    pub(super) fn is_open(&self, conn: ConnId) -> Result<bool, Blocked> {
        match self.find(self.usable(conn)) {
            Some(peer) => match peer.gone {
                None => Ok(peer.open),
                gone => Err(Blocked::Gone(gone)),
            },
            None => Err(Blocked::Gone(None)),
        }
    }

    /// The same connection, or the open one with the same process: two that connect to
    /// each other at once have two, and need not wait for the second.
    fn usable(&self, conn: ConnId) -> ConnId {
        let other = match self.find(conn) {
            Some(peer) if !peer.open => self.by_incarnation.get(&peer.incarnation),
            _ => None,
        };
        other.copied().unwrap_or(conn)
    }

    /// The outgoing edge from `source` to `target`; usable again if the peer once
    /// refused it.
    pub(super) fn edge(&mut self, conn: ConnId, source: u32, target: u32) -> Option<LocalEdge> {
        let conn = self.usable(conn);
        let peer = find_mut(&mut self.peers, conn)?;
        let (index, life, begins) = peer.edge(source, target)?;
        if begins {
            self.control(
                conn,
                Tag::new(Kind::Open, index),
                &[u64::from(source), u64::from(target)],
            );
        }
        Some(LocalEdge { conn, index, life })
    }

    /// Longest message that goes whole.
    #[inline]
    #[must_use]
    pub fn whole_limit(&self, edge: LocalEdge) -> usize {
        self.find(edge.conn)
            .map_or(EAGER_BYTES, |peer| peer.eager_bytes)
    }

    /// Sends a message that goes whole. With `more` the peer is not woken for it.
    #[inline]
    ///
    /// # Errors
    /// [`Blocked`]; nothing was queued.
    pub fn send(&mut self, edge: LocalEdge, payload: &[u8], more: bool) -> Result<(), Blocked> {
        let (peer, hub) = (find_mut(&mut self.peers, edge.conn), &mut self.hub);
        let peer = peer.ok_or(Blocked::Gone(None))?;
        let charge = dipole_proto::charge(payload.len() as u64);
        let outgoing = peer.ready(edge)?;
        if outgoing.credit < charge {
            return Err(Blocked::NoCredit);
        }
        match hub.push(edge.conn, outgoing.message_tag, payload) {
            Ok(()) => outgoing.credit -= charge,
            Err(error) => return Err(blocked(hub, edge.conn, &error)),
        }
        if !more {
            hub.ring(edge.conn);
            peer.due = false;
        } else if !peer.due {
            peer.due = true;
            self.due.push(edge.conn);
        }
        Ok(())
    }

    /// Sends a message that may be lost; never waits.
    ///
    /// # Errors
    /// [`Blocked`]; nothing was queued.
    pub fn send_loose(&mut self, edge: LocalEdge, payload: &[u8]) -> Result<(), Blocked> {
        if payload.len() > PIECE_BYTES {
            return self.offer(edge, payload, true);
        }
        let (peer, hub) = (find_mut(&mut self.peers, edge.conn), &mut self.hub);
        let peer = peer.ok_or(Blocked::Gone(None))?;
        peer.ready(edge)?;
        let tag = Tag::new(Kind::Loose, edge.index);
        hub.push(edge.conn, tag.to_word(), payload)
            .map_err(|error| blocked(hub, edge.conn, &error))?;
        hub.ring(edge.conn);
        Ok(())
    }

    /// True if the peer has everything in its token buffer pools.
    pub(super) fn is_acknowledged(&mut self, conn: ConnId) -> bool {
        let Some(peer) = find_mut(&mut self.peers, conn) else {
            return true;
        };
        if peer.gone.is_some() {
            return true;
        }
        let done = peer.pending.is_empty() && !peer.has_long() && self.hub.is_read(conn);
        if !done {
            self.hub.want_room(conn);
        }
        done
    }

    /// True if every peer has everything.
    pub(super) fn is_all_acknowledged(&mut self) -> bool {
        let conns: Vec<ConnId> = self.conns().collect();
        conns.into_iter().all(|conn| self.is_acknowledged(conn))
    }

    /// A long message has been read.
    pub(super) fn consumed_long(&mut self, length: u64) {
        self.pool.release(length);
    }

    /// A message charged here has been read.
    #[inline]
    pub(super) fn consumed(&mut self, charge: LocalCharge, length: u64) {
        let charged = dipole_proto::charge(length);
        self.pool.release(length);
        let Some(peer) = find_mut(&mut self.peers, charge.conn) else {
            return;
        };
        if let Some(bytes) = peer.consumed(charge, charged, &mut self.pool) {
            self.control(charge.conn, Tag::new(Kind::Credit, charge.index), &[bytes]);
        }
    }

    /// An endpoint of this process has been closed: its edges end.
    pub(super) fn close_endpoint(&mut self, endpoint: u32) {
        for conn in self.conns().collect::<Vec<_>>() {
            let Some(peer) = find_mut(&mut self.peers, conn) else {
                continue;
            };
            for index in peer.close_edges(endpoint) {
                self.control(conn, Tag::new(Kind::Close, index), &[]);
            }
        }
    }

    /// Endpoints that send to `endpoint` and are still there.
    pub(super) fn sources(&self, endpoint: u32) -> impl Iterator<Item = crate::Address> {
        self.peers
            .iter()
            .flatten()
            .flat_map(move |peer| peer.sources(endpoint))
    }

    /// Says goodbye to everybody.
    pub(super) fn say_goodbye(&mut self) {
        for conn in self.conns().collect::<Vec<_>>() {
            self.control(conn, Tag::new(Kind::Bye, 0), &[]);
            self.hub.ring(conn);
            self.hub.close(conn);
        }
    }

    /// Wakes peers that have something new.
    #[inline]
    pub(super) fn ring_due(&mut self) {
        while let Some(conn) = self.due.pop() {
            if let Some(peer) = find_mut(&mut self.peers, conn)
                && peer.due
            {
                peer.due = false;
                self.hub.ring(conn);
            }
        }
    }

    /// Before sleeping: false if something is there.
    pub(super) fn arm(&mut self) -> bool {
        self.ring_due();
        // What found no room has asked for it; a message that waits for the pool goes on
        // when one is read.
        let fetching = self
            .fetches
            .front()
            .is_some_and(|fetch| self.pool.lets_begin(fetch));
        !fetching && self.hub.arm()
    }

    /// After sleeping.
    pub(super) fn disarm(&mut self) {
        self.hub.disarm();
    }

    /// Takes what has come; true if anything did.
    #[inline]
    pub(super) fn poll(&mut self, receivers: &mut Receivers<'_>) -> bool {
        let (peers, pool) = (&mut self.peers, &mut self.pool);
        let fetches = &mut self.fetches;
        let copied = &mut self.copied_bytes;
        let mut replies = false;
        let mut broken = None;
        let taken = self.hub.poll(POLL_LIMIT, &mut |conn, word, payload| {
            let Some(peer) = find_mut(peers, conn) else {
                return;
            };
            let done = match Tag::from_word(word) {
                Some(tag) if tag.kind == Kind::Message => {
                    peer.message(tag.edge, &payload, pool, receivers)
                }
                Some(tag) => peer.control(tag, &payload, pool, fetches, copied, receivers),
                None => Err(Misbehaved("a record of no known kind")),
            };
            replies |= !peer.pending.is_empty();
            if let Err(why) = done {
                broken = Some((conn, why));
            }
        });
        if taken == 0 && self.fetches.is_empty() && self.crammed.is_empty() {
            return false;
        }
        if let Some((conn, Misbehaved(what))) = broken {
            tracing::warn!("a process of this node is cut off: it sent {what}");
            self.hub.close(conn);
            self.gone(conn, GoneReason::Misbehaved, receivers);
        }
        if replies || !self.crammed.is_empty() {
            self.flush_pending();
        }
        if self.copied_bytes > 0 {
            self.stream_copies();
        }
        if !self.fetches.is_empty() {
            self.fetch(receivers);
        }
        self.ring_due();
        taken > 0
    }

    /// Connections that come and go. Rare.
    pub(super) fn attend(&mut self, receivers: &mut Receivers<'_>) -> io::Result<()> {
        let mut events = std::mem::take(&mut self.events);
        self.hub.attend(&mut events)?;
        for event in events.drain(..) {
            match event {
                ShmEvent::Opened { conn, facts } => {
                    self.opened(conn, &facts.greeting, receivers);
                }
                ShmEvent::Closed { conn, why } => {
                    let said_bye = self.find(conn).is_some_and(|peer| peer.said_bye);
                    let was_open = self.find(conn).is_some_and(|peer| peer.open);
                    let reason = match why {
                        _ if said_bye => GoneReason::Closed,
                        Closing::Full => GoneReason::Reset(ResetReason::TooManyPeers),
                        // It had no time to say hello.
                        Closing::HungUp if !was_open => GoneReason::Restarted,
                        Closing::HungUp => GoneReason::Died,
                        Closing::Broke { .. } => GoneReason::Misbehaved,
                    };
                    self.died |= reason == GoneReason::Died;
                    self.gone(conn, reason, receivers);
                }
            }
        }
        self.events = events;
        Ok(())
    }

    fn opened(&mut self, conn: ConnId, greeting: &[u8], receivers: &mut Receivers<'_>) {
        let greeting = Greeting::from_bytes(greeting).filter(|found| found.node == self.own.node);
        let Some(greeting) = greeting else {
            tracing::warn!(
                "a process at this node's sockets is another version's or another node's; \
                 same-node traffic with it goes by UDP"
            );
            self.hub.close(conn);
            self.gone(conn, GoneReason::Misbehaved, receivers);
            return;
        };
        if self.find(conn).is_none() {
            self.enter(LocalPeer::new(
                conn,
                greeting.incarnation,
                self.own.initial_credit,
            ));
        }
        let restarted = match find_mut(&mut self.peers, conn) {
            Some(peer) if peer.incarnation == greeting.incarnation => {
                peer.opened(greeting);
                false
            }
            _ => true,
        };
        let known = self.by_incarnation.get(&greeting.incarnation);
        if !restarted && known.is_none_or(|known| !self.find(*known).is_some_and(|peer| peer.open))
        {
            self.by_incarnation.insert(greeting.incarnation, conn);
        }
        if restarted {
            self.hub.close(conn);
            self.gone(conn, GoneReason::Restarted, receivers);
        }
        receivers.ready.notify(WaitKey::Connection(conn));
        receivers.ready.notify(WaitKey::AnyPeer);
    }

    /// The connection has ended; what it held is given back.
    fn gone(&mut self, conn: ConnId, reason: GoneReason, receivers: &mut Receivers<'_>) {
        let pool = &mut self.pool;
        self.fetches.retain(|fetch| {
            if fetch.conn == conn && fetch.begun.is_some() {
                pool.release(fetch.length);
            }
            fetch.conn != conn
        });
        let Some(peer) = find_mut(&mut self.peers, conn) else {
            return;
        };
        if peer.gone.is_some() {
            return;
        }
        let was_open = peer.open;
        self.copied_bytes -= peer.end(reason, pool);
        if self.by_incarnation.get(&peer.incarnation) == Some(&conn) {
            self.by_incarnation.remove(&peer.incarnation);
        }
        if was_open {
            tracing::info!(
                node = self.own.node,
                "a process of this node is gone: {reason}"
            );
            receivers.departures.push(Departure {
                peer: None,
                node: self.own.node,
                incarnation: peer.incarnation,
                reason,
            });
        }
        receivers.ready.notify(WaitKey::Connection(conn));
        receivers.ready.notify(WaitKey::AnyPeer);
    }

    fn enter(&mut self, peer: LocalPeer) {
        let index = peer.conn.index();
        if self.peers.len() <= index {
            self.peers.resize_with(index + 1, || None);
        }
        self.peers[index] = Some(peer);
    }

    #[inline]
    fn find(&self, conn: ConnId) -> Option<&LocalPeer> {
        self.peers
            .get(conn.index())?
            .as_ref()
            .filter(|peer| peer.conn == conn)
    }

    fn conns(&self) -> impl Iterator<Item = ConnId> {
        self.peers
            .iter()
            .flatten()
            .filter(|peer| peer.gone.is_none())
            .map(|peer| peer.conn)
    }

    /// Sends a control record now, or when there is room; wakes the peer at the end
    /// of this turn.
    fn control(&mut self, conn: ConnId, tag: Tag, words: &[u64]) {
        let Some(peer) = find_mut(&mut self.peers, conn) else {
            return;
        };
        if peer.gone.is_some() {
            return;
        }
        peer.reply(tag, words);
        self.push_pending(conn);
    }

    fn flush_pending(&mut self) {
        self.crammed.clear();
        for index in 0..self.peers.len() {
            if let Some(peer) = &self.peers[index]
                && !peer.pending.is_empty()
            {
                self.push_pending(peer.conn);
            }
        }
    }

    fn push_pending(&mut self, conn: ConnId) {
        let Some(peer) = find_mut(&mut self.peers, conn) else {
            return;
        };
        if !peer.open {
            return;
        }
        while let Some(record) = peer.pending.front() {
            match self.hub.push(conn, record.tag.to_word(), record.bytes()) {
                Ok(()) => {}
                Err(PushError::Full) => {
                    self.hub.want_room(conn);
                    if !self.crammed.contains(&conn) {
                        self.crammed.push(conn);
                    }
                    break;
                }
                // Its end is reported by `attend`.
                Err(_) => {
                    peer.pending.clear();
                    break;
                }
            }
            peer.pending.pop_front();
        }
        if !peer.due {
            peer.due = true;
            self.due.push(conn);
        }
    }
}

fn find_mut(peers: &mut [Option<LocalPeer>], conn: ConnId) -> Option<&mut LocalPeer> {
    peers
        .get_mut(conn.index())?
        .as_mut()
        .filter(|peer| peer.conn == conn)
}

fn blocked(hub: &mut AnyHub, conn: ConnId, error: &PushError) -> Blocked {
    match error {
        PushError::Full => {
            hub.want_room(conn);
            Blocked::NoFrame
        }
        PushError::TooLong { .. } => Blocked::TooLong {
            limit: EAGER_BYTES as u64,
        },
        // Its end is reported by `attend`.
        PushError::Gone => Blocked::Gone(None),
    }
}
