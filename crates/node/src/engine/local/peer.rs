//! What is kept of one process of this node: its edges, their credit, and what
//! could not be told it yet.
//!
//! A peer may be hostile. It can spoil its own edges, nothing else: numbers are
//! checked against what this side gave out, and a violation ends the connection.

use std::collections::VecDeque;

use dipole_link::shm::{ConnId, Payload};
use dipole_proto::wire::RefusedReason;
use rustc_hash::FxHashMap;

use super::super::deliver::{Arrival, LOOSE_LIMIT, Receivers};
use super::long::{Fetch, Long};
use super::tag::{Greeting, Kind, Tag, refusal_from_extra, refusal_to_extra, words};
use super::{Blocked, EAGER_BYTES, EDGE_WINDOW_BYTES, LocalCharge, LocalEdge, Pool};
use crate::GoneReason;
use crate::address::{Address, EndpointId, NodeId};
use crate::driver::WaitKey;
use crate::inbox::{Buffer, Charge};

/// Edges that one process may have to another.
const MAX_EDGES: usize = 1 << 16;

/// Answers that wait for room in its ring; an honest peer asks a few times per edge.
const MAX_PENDING: usize = 4 * MAX_EDGES;

/// What a peer did that no honest one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Misbehaved(pub(super) &'static str);

/// A control record on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) tag: Tag,
    words: [[u8; 8]; 2],
    count: usize,
}

impl Pending {
    pub(super) fn bytes(&self) -> &[u8] {
        self.words[..self.count].as_flattened()
    }
}

/// An edge to the peer.
#[derive(Debug)]
pub(super) struct Outgoing {
    source: u32,
    target: u32,
    life: u32,
    state: State,
    pub(super) credit: u64,
    /// The tag of its messages, as the link takes it.
    pub(super) message_tag: u64,
    pub(super) refused: Option<RefusedReason>,
    pub(super) long: Option<Long>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// Its source has been closed; the peer has not said that it forgot the edge.
    Closing,
    Free,
}

/// An edge from the peer.
#[derive(Debug)]
struct Incoming {
    source: Address,
    target: u32,
    life: u32,
    open: bool,
    /// Bytes that the peer may still send.
    allowed: u64,
    /// Bytes that were read and not granted again.
    owed: u64,
    /// Allowed, unread and owed together.
    window: u64,
    refusal_told: bool,
    offered: bool,
    assembly: Option<(Buffer, usize)>,
    /// The source has been closed.
    closing: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct LocalPeer {
    pub(super) conn: ConnId,
    pub(super) incarnation: u64,
    pub(super) node: u32,
    pub(super) open: bool,
    pub(super) gone: Option<GoneReason>,
    pub(super) said_bye: bool,
    pub(super) eager_bytes: usize,
    /// Its credit for new edges.
    initial_credit: u64,
    /// Ours.
    own_credit: u64,
    pub(super) edges: Vec<Outgoing>,
    by_ends: FxHashMap<(u32, u32), u32>,
    free: Vec<u32>,
    incoming: Vec<Incoming>,
    pub(super) pending: VecDeque<Pending>,
    /// In the list of those to be woken.
    pub(super) due: bool,
}

impl LocalPeer {
    pub(super) fn new(conn: ConnId, incarnation: u64, own_credit: u32) -> LocalPeer {
        LocalPeer {
            conn,
            incarnation,
            node: 0,
            open: false,
            gone: None,
            said_bye: false,
            eager_bytes: EAGER_BYTES,
            initial_credit: 0,
            own_credit: own_credit.into(),
            edges: Vec::new(),
            by_ends: FxHashMap::default(),
            free: Vec::new(),
            incoming: Vec::new(),
            pending: VecDeque::new(),
            due: false,
        }
    }

    pub(super) fn opened(&mut self, greeting: Greeting) {
        self.open = true;
        self.node = greeting.node;
        self.initial_credit = greeting.initial_credit.into();
        let overhead = dipole_proto::charge(0);
        let eager = self.initial_credit.saturating_sub(overhead);
        self.eager_bytes = usize::try_from(eager)
            .unwrap_or(usize::MAX)
            .min(EAGER_BYTES);
    }

    /// The edge between two endpoints: its number and life, and whether the peer must
    /// be told of it.
    pub(super) fn edge(&mut self, source: u32, target: u32) -> Option<(u32, u32, bool)> {
        if self.gone.is_some() || !self.open {
            return None;
        }
        if let Some(index) = self.by_ends.get(&(source, target)) {
            let outgoing = &mut self.edges[*index as usize];
            let again = outgoing.refused.take().is_some();
            return Some((*index, outgoing.life, again));
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.edges.len() < MAX_EDGES => u32::try_from(self.edges.len()).ok()?,
            None => return None,
        };
        let life = self
            .edges
            .get(index as usize)
            .map_or(0, |old| old.life.wrapping_add(1));
        let outgoing = Outgoing {
            source,
            target,
            life,
            state: State::Open,
            credit: self.initial_credit,
            message_tag: Tag::new(Kind::Message, index).to_word(),
            refused: None,
            long: None,
        };
        match self.edges.get_mut(index as usize) {
            Some(place) => *place = outgoing,
            None => self.edges.push(outgoing),
        }
        self.by_ends.insert((source, target), index);
        Some((index, life, true))
    }

    /// The edge, if it has not ended.
    #[inline]
    pub(super) fn outgoing(&mut self, edge: LocalEdge) -> Result<&mut Outgoing, Blocked> {
        if self.gone.is_some() {
            return Err(Blocked::Gone(self.gone));
        }
        self.edges
            .get_mut(edge.index as usize)
            .filter(|outgoing| outgoing.life == edge.life && outgoing.state == State::Open)
            .ok_or(Blocked::Gone(None))
    }

    /// The edge, if a message may be put on it now.
    #[inline]
    pub(super) fn ready(&mut self, edge: LocalEdge) -> Result<&mut Outgoing, Blocked> {
        // What was to be told before must not be overtaken.
        let crammed = !self.pending.is_empty();
        let outgoing = self.outgoing(edge)?;
        match outgoing.refused {
            Some(reason) => Err(Blocked::Refused(reason)),
            None if crammed || outgoing.long.is_some() => Err(Blocked::NoFrame),
            None => Ok(outgoing),
        }
    }

    pub(super) fn has_long(&self) -> bool {
        self.edges.iter().any(|edge| edge.long.is_some())
    }

    pub(super) fn reply(&mut self, tag: Tag, given: &[u64]) {
        let mut record = Pending {
            tag,
            words: [[0; 8]; 2],
            count: given.len(),
        };
        for (place, word) in record.words.iter_mut().zip(given) {
            *place = word.to_le_bytes();
        }
        self.pending.push_back(record);
    }

    /// Ends all edges of a source endpoint; their numbers.
    pub(super) fn close_edges(&mut self, source: u32) -> Vec<u32> {
        let mut closed = Vec::new();
        for (index, outgoing) in (0_u32..).zip(&mut self.edges) {
            if outgoing.source == source && outgoing.state == State::Open {
                outgoing.state = State::Closing;
                self.by_ends.remove(&(outgoing.source, outgoing.target));
                closed.push(index);
            }
        }
        closed
    }

    pub(super) fn sources(&self, endpoint: u32) -> impl Iterator<Item = Address> {
        let open = |incoming: &&Incoming| incoming.open;
        self.incoming
            .iter()
            .filter(open)
            .filter(move |incoming| incoming.target == endpoint)
            .map(|incoming| incoming.source)
    }

    /// A message has come.
    #[inline]
    pub(super) fn message(
        &mut self,
        edge: u32,
        payload: &Payload<'_>,
        pool: &mut Pool,
        receivers: &mut Receivers<'_>,
    ) -> Result<(), Misbehaved> {
        let conn = self.conn;
        let incoming = self.open_incoming(edge)?;
        let charge = dipole_proto::charge(payload.len() as u64);
        if incoming.allowed < charge {
            return Err(Misbehaved("more than it was granted"));
        }
        incoming.allowed -= charge;
        let arrival = Arrival {
            source: incoming.source,
            target: incoming.target,
            charged_to: Charge::Local(LocalCharge {
                conn,
                index: edge,
                life: incoming.life,
            }),
        };
        if receivers.push_with(&arrival, payload.len(), |place| payload.copy_to(place)) {
            pool.used += charge;
        } else {
            // Nobody will read it: it counts as read.
            incoming.owed += charge;
            self.refuse(edge);
        }
        Ok(())
    }

    /// Any record that is no message.
    pub(super) fn control(
        &mut self,
        tag: Tag,
        payload: &Payload<'_>,
        pool: &mut Pool,
        fetches: &mut VecDeque<Fetch>,
        copied: &mut usize,
        receivers: &mut Receivers<'_>,
    ) -> Result<(), Misbehaved> {
        const SHORT: Misbehaved = Misbehaved("a record of the wrong length");
        // It asks and asks and reads no answer.
        if self.pending.len() > MAX_PENDING {
            return Err(Misbehaved("more questions than it takes answers"));
        }
        match tag.kind {
            Kind::Open => {
                let [source, target] = words(payload).ok_or(SHORT)?;
                self.open_edge(tag.edge, source, target)
            }
            Kind::Message => self.message(tag.edge, payload, pool, receivers),
            Kind::Loose => self.loose(tag.edge, payload, receivers),
            Kind::Credit => {
                let [bytes] = words(payload).ok_or(SHORT)?;
                let outgoing = self.answered(tag.edge)?;
                outgoing.credit = outgoing.credit.saturating_add(bytes);
                receivers.ready.notify(WaitKey::Connection(self.conn));
                Ok(())
            }
            Kind::Refused => {
                let reason = refusal_from_extra(tag.extra).ok_or(Misbehaved("no reason"))?;
                self.answered(tag.edge)?.refused = Some(reason);
                receivers.ready.notify(WaitKey::Connection(self.conn));
                Ok(())
            }
            Kind::Offer => {
                let [length, address] = words(payload).ok_or(SHORT)?;
                self.offered(tag.edge, length, address, fetches, receivers)
            }
            Kind::Stream => {
                if let Some(long) = &mut self.answered(tag.edge)?.long {
                    long.streamed.get_or_insert(0);
                }
                receivers.ready.notify(WaitKey::Connection(self.conn));
                Ok(())
            }
            Kind::Taken => {
                let long = self.answered(tag.edge)?.long.take();
                let copy = long.and_then(|long| long.copy);
                *copied -= copy.map_or(0, |copy| copy.len());
                receivers.ready.notify(WaitKey::Connection(self.conn));
                receivers.ready.notify(WaitKey::AnyPeer);
                Ok(())
            }
            Kind::Piece => self.piece(tag.edge, payload, pool, receivers),
            Kind::Close => {
                let incoming = self.open_incoming(tag.edge)?;
                incoming.closing = true;
                // A long message on its way is still fetched.
                if !incoming.offered && incoming.assembly.is_none() {
                    self.close_incoming(tag.edge, pool);
                }
                Ok(())
            }
            Kind::Closed => {
                let outgoing = self.answered(tag.edge)?;
                if outgoing.state == State::Closing {
                    outgoing.state = State::Free;
                    let long = outgoing.long.take().and_then(|long| long.copy);
                    *copied -= long.map_or(0, |copy| copy.len());
                    self.free.push(tag.edge);
                }
                Ok(())
            }
            Kind::Bye => {
                self.said_bye = true;
                Ok(())
            }
        }
    }

    fn open_edge(&mut self, index: u32, source: u64, target: u64) -> Result<(), Misbehaved> {
        const WRONG: Misbehaved = Misbehaved("an edge that cannot be");
        let (Ok(source), Ok(target)) = (u32::try_from(source), u32::try_from(target)) else {
            return Err(WRONG);
        };
        let source = Address {
            node: NodeId(self.node),
            endpoint: EndpointId(source),
        };
        let index = index as usize;
        if let Some(known) = self.incoming.get_mut(index).filter(|known| known.open) {
            // The sender points at it again after a refusal.
            if (known.source, known.target) != (source, target) {
                return Err(WRONG);
            }
            known.refusal_told = false;
            return Ok(());
        }
        let life = self
            .incoming
            .get(index)
            .map_or(0, |old| old.life.wrapping_add(1));
        let new = Incoming {
            source,
            target,
            life,
            open: true,
            allowed: self.own_credit,
            owed: 0,
            window: self.own_credit,
            refusal_told: false,
            offered: false,
            assembly: None,
            closing: false,
        };
        let next = self.incoming.len();
        match self.incoming.get_mut(index) {
            Some(place) => *place = new,
            None if index == next && index < MAX_EDGES => self.incoming.push(new),
            None => return Err(WRONG),
        }
        Ok(())
    }

    fn loose(
        &mut self,
        edge: u32,
        payload: &Payload<'_>,
        receivers: &mut Receivers<'_>,
    ) -> Result<(), Misbehaved> {
        let incoming = self.open_incoming(edge)?;
        let arrival = Arrival {
            source: incoming.source,
            target: incoming.target,
            charged_to: Charge::None,
        };
        match receivers.rooms.get(arrival.target) {
            None => self.refuse(edge),
            Some(room) if room.inbox.len() >= LOOSE_LIMIT => receivers.traffic.loose_dropped += 1,
            Some(_) => {
                receivers.push_with(&arrival, payload.len(), |place| payload.copy_to(place));
            }
        }
        Ok(())
    }

    fn offered(
        &mut self,
        edge: u32,
        length: u64,
        address: u64,
        fetches: &mut VecDeque<Fetch>,
        receivers: &mut Receivers<'_>,
    ) -> Result<(), Misbehaved> {
        let conn = self.conn;
        let incoming = self.open_incoming(edge)?;
        if incoming.offered || incoming.assembly.is_some() {
            return Err(Misbehaved("a second long message on one edge"));
        }
        if length > dipole_proto::MAX_MESSAGE_BYTES {
            return Err(Misbehaved("a message that is too long"));
        }
        if receivers.rooms.get(incoming.target).is_none() {
            self.refuse(edge);
            self.reply(Tag::new(Kind::Taken, edge), &[]);
            return Ok(());
        }
        incoming.offered = true;
        fetches.push_back(Fetch {
            conn,
            edge,
            life: incoming.life,
            address,
            length,
            begun: None,
        });
        Ok(())
    }

    /// A long message has been fetched.
    pub(super) fn fetched(
        &mut self,
        edge: u32,
        life: u32,
        buffer: Buffer,
        pool: &mut Pool,
        receivers: &mut Receivers<'_>,
    ) {
        let length = buffer.bytes().len() as u64;
        let incoming = self.incoming.get_mut(edge as usize);
        let Some(incoming) = incoming.filter(|incoming| incoming.life == life) else {
            pool.release(length);
            return;
        };
        incoming.offered = false;
        let closing = incoming.closing;
        let arrival = Arrival {
            source: incoming.source,
            target: incoming.target,
            charged_to: Charge::LocalLong,
        };
        if receivers.push_buffer(&arrival, buffer).is_err() {
            pool.release(length);
            self.refuse(edge);
        }
        if closing {
            self.close_incoming(edge, pool);
        }
    }

    fn close_incoming(&mut self, edge: u32, pool: &mut Pool) {
        let own_credit = self.own_credit;
        if let Some(incoming) = self.incoming.get_mut(edge as usize) {
            incoming.open = false;
            let extra = incoming.window.saturating_sub(own_credit);
            pool.promised = pool.promised.saturating_sub(extra);
        }
        self.reply(Tag::new(Kind::Closed, edge), &[]);
    }

    /// A long message will come in pieces.
    pub(super) fn assemble(&mut self, edge: u32, life: u32, buffer: Buffer, pool: &mut Pool) {
        let incoming = self.incoming.get_mut(edge as usize);
        match incoming.filter(|incoming| incoming.life == life) {
            Some(incoming) => {
                incoming.offered = false;
                incoming.assembly = Some((buffer, 0));
            }
            None => pool.release(buffer.bytes().len() as u64),
        }
    }

    fn piece(
        &mut self,
        edge: u32,
        payload: &Payload<'_>,
        pool: &mut Pool,
        receivers: &mut Receivers<'_>,
    ) -> Result<(), Misbehaved> {
        const WRONG: Misbehaved = Misbehaved("a piece of no message");
        let incoming = self.open_incoming(edge)?;
        let life = incoming.life;
        let (buffer, got) = incoming.assembly.as_mut().ok_or(WRONG)?;
        let place = buffer.bytes_mut().get_mut(*got..*got + payload.len());
        payload.copy_to(place.ok_or(WRONG)?);
        *got += payload.len();
        if *got == buffer.bytes().len()
            && let Some((buffer, _)) = incoming.assembly.take()
        {
            self.fetched(edge, life, buffer, pool, receivers);
        }
        Ok(())
    }

    /// A message of an edge has been read; what is to be granted now.
    #[inline]
    pub(super) fn consumed(
        &mut self,
        charge: LocalCharge,
        charged: u64,
        pool: &mut Pool,
    ) -> Option<u64> {
        let incoming = self
            .incoming
            .get_mut(charge.index as usize)
            .filter(|incoming| incoming.open && incoming.life == charge.life)?;
        incoming.owed += charged;
        if incoming.owed < incoming.window / 4 {
            return None;
        }
        // The edge is in use: it gets a wider window if the pool has one.
        let more = EDGE_WINDOW_BYTES.saturating_sub(incoming.window);
        if more > 0 && pool.promised + more <= pool.limit / 2 {
            pool.promised += more;
            incoming.window += more;
            incoming.owed += more;
        }
        let granted = std::mem::take(&mut incoming.owed);
        incoming.allowed += granted;
        Some(granted)
    }

    /// Tells the peer, once, that nobody takes messages of this edge.
    fn refuse(&mut self, edge: u32) {
        let Some(incoming) = self.incoming.get_mut(edge as usize) else {
            return;
        };
        let granted = std::mem::take(&mut incoming.owed);
        incoming.allowed += granted;
        let told = std::mem::replace(&mut incoming.refusal_told, true);
        if granted > 0 {
            self.reply(Tag::new(Kind::Credit, edge), &[granted]);
        }
        if !told {
            let tag = Tag {
                extra: refusal_to_extra(RefusedReason::NoEndpoint),
                ..Tag::new(Kind::Refused, edge)
            };
            self.reply(tag, &[]);
        }
    }

    /// The session has ended: its part of the pool is given back; bytes of its copies.
    pub(super) fn end(&mut self, reason: GoneReason, pool: &mut Pool) -> usize {
        self.gone = Some(reason);
        let own_credit = self.own_credit;
        for incoming in self.incoming.drain(..).filter(|incoming| incoming.open) {
            let extra = incoming.window.saturating_sub(own_credit);
            pool.promised = pool.promised.saturating_sub(extra);
            if let Some((buffer, _)) = incoming.assembly {
                pool.release(buffer.bytes().len() as u64);
            }
        }
        let copied = self
            .edges
            .drain(..)
            .filter_map(|edge| edge.long?.copy)
            .map(|copy| copy.len())
            .sum();
        self.pending = VecDeque::new();
        self.by_ends = FxHashMap::default();
        copied
    }

    #[inline]
    fn open_incoming(&mut self, edge: u32) -> Result<&mut Incoming, Misbehaved> {
        self.incoming
            .get_mut(edge as usize)
            .filter(|incoming| incoming.open)
            .ok_or(Misbehaved("a record of an edge that is not open"))
    }

    /// The outgoing edge that the peer answers.
    fn answered(&mut self, edge: u32) -> Result<&mut Outgoing, Misbehaved> {
        self.edges
            .get_mut(edge as usize)
            .ok_or(Misbehaved("an answer to an edge that never was"))
    }
}
