//! A peer whose records arrive in order and are never lost: a process of the same node.
//! Spec §9.
//!
//! The [`Channel`] does the work. What is left for the carrier is small: edges get
//! numbers, messages are counted instead of numbered, and long messages come in pieces or
//! are offered where they lie. The receiver copies them from there, or asks for them in
//! pieces. Whatever breaks a rule ends the pipe: there is no network to blame.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::ops::Range;

use crate::channel::{Channel, MessagePiece, MessageStart, Notice, Placed, Urgency};
use crate::error::{BeginError, ProtocolViolation};
use crate::event::{EdgeId, Event, PeerId};
use crate::shared::Shared;
use crate::time::Instant;
use crate::wire::{
    CreditRequest, EdgeKey, Greeting, Malformed, OPERATION_BYTES, PipeKind, PipeRecord, PipeTag,
    ends_to_word, key_from_word, pipe_words, reason_from_extra,
};

/// Records that wait until the peer reads its ring; one that keeps the rules asks for a few
/// per edge.
const MAX_QUEUED: usize = 4 * crate::channel::MAX_EDGES as usize;

/// An edge of the peer, by the number that it gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Inbound {
    edge: EdgeId,
    key: EdgeKey,
    /// The number of the next message to begin.
    arrived: u64,
    unreliable: u32,
}

/// A message that comes in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Stream {
    sequence: u64,
    total: u64,
    operation: bool,
    got: u64,
}

/// A long message of ours that the peer may be copying, or whose pieces are being pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Long {
    edge: EdgeId,
    key: EdgeKey,
    sequence: u64,
    /// The peer may still ask for it in pieces.
    offered: bool,
}

/// A whole message has come: hand it over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Which edge's credit it holds.
    pub edge: EdgeId,
    /// Sending and receiving endpoint.
    pub key: EdgeKey,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Pipe {
    pub(crate) id: PeerId,
    pub(crate) remote: Greeting,
    pub(crate) channel: Channel,
    inbound: Vec<Option<Inbound>>,
    /// Messages that come in pieces, by the number of their edge, in order.
    streams: BTreeMap<u32, VecDeque<Stream>>,
    /// Long messages of ours that are under way.
    long: Vec<Long>,
    /// Records that must not be overtaken by messages.
    queue: VecDeque<PipeRecord>,
    /// In the list of pipes with records to push.
    pub(crate) is_ready: bool,
}

impl Pipe {
    /// Messages of each edge are numbered from `first` on.
    pub(crate) fn new(id: PeerId, remote: Greeting, first: u64) -> Pipe {
        let mut channel = Channel::new(id, first);
        channel.open(remote.initial_credit_bytes);
        Pipe {
            id,
            remote,
            channel,
            inbound: Vec::new(),
            streams: BTreeMap::new(),
            long: Vec::new(),
            queue: VecDeque::new(),
            is_ready: false,
        }
    }

    // ---- sending ---------------------------------------------------------------

    /// Begins a message; the caller pushes it after all records that wait.
    #[inline]
    pub(crate) fn begin(&mut self, edge: EdgeId, total: u64) -> Result<MessageStart, BeginError> {
        let mut begun = self.channel.begin(edge, total)?;
        if begun.is_new {
            self.introduce(edge);
        }
        begun.is_first = !self.has_queued();
        Ok(begun)
    }

    /// Begins a message that may be dropped.
    pub(crate) fn begin_unreliable(&mut self, edge: EdgeId) -> Result<(EdgeKey, u32), BeginError> {
        let begun = self.channel.begin_unreliable(edge)?;
        if self.channel.is_introduced(edge) == Some(false) {
            self.channel.set_introduced(edge);
            self.introduce(edge);
        }
        Ok(begun)
    }

    /// Tells the peer the number of an edge.
    #[cold]
    fn introduce(&mut self, edge: EdgeId) {
        if let Some(key) = self.channel.key(edge) {
            let tag = PipeTag {
                kind: PipeKind::Open,
                extra: key.life,
                number: edge.index,
            };
            self.queue
                .push_back(PipeRecord::new(tag, &[ends_to_word(key)]));
        }
    }

    /// A message that has begun lies at `address` until [`Event::OfferDone`] or
    /// [`Event::PiecesRequested`]: the record to push.
    pub(crate) fn offer(
        &mut self,
        edge: EdgeId,
        begun: MessageStart,
        (total, address): (u64, u64),
        head: Option<&[u8; OPERATION_BYTES]>,
    ) {
        self.begin_long(PipeKind::Offer, edge, begun, &[total, address], head);
    }

    /// A message that has begun comes in pieces, which are pushed after this record.
    pub(crate) fn announce(
        &mut self,
        edge: EdgeId,
        begun: MessageStart,
        total: u64,
        head: Option<&[u8; OPERATION_BYTES]>,
    ) {
        debug_assert!(
            !self.has_offered(edge),
            "pieces of an offered message would come among those of a later one"
        );
        self.begin_long(PipeKind::Announce, edge, begun, &[total], head);
    }

    fn begin_long(
        &mut self,
        kind: PipeKind,
        edge: EdgeId,
        begun: MessageStart,
        words: &[u64],
        head: Option<&[u8; OPERATION_BYTES]>,
    ) {
        self.long.push(Long {
            edge,
            key: begun.key,
            sequence: begun.sequence,
            offered: kind == PipeKind::Offer,
        });
        let tag = PipeTag {
            kind,
            extra: 0,
            number: edge.index,
        };
        let record = PipeRecord::new(tag, words);
        self.queue.push_back(match head {
            Some(head) => record.with_head(head),
            None => record,
        });
    }

    /// All pieces of a message have been pushed.
    pub(crate) fn pieces_sent(&mut self, edge: EdgeId, sequence: u64) {
        self.long
            .retain(|long| (long.edge, long.sequence) != (edge, sequence));
    }

    /// True while a message of this edge is offered, whose pieces may be asked for.
    pub(crate) fn has_offered(&self, edge: EdgeId) -> bool {
        self.long
            .iter()
            .any(|long| long.offered && long.edge == edge)
    }

    /// True while long messages have not been taken, or pushed to their last piece.
    pub(crate) fn has_long(&self) -> bool {
        !self.long.is_empty()
    }

    // ---- records to push -----------------------------------------------------------

    /// True if records wait that no message may overtake.
    #[inline]
    pub(crate) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// True if [`poll_record`](Self::poll_record) may have something.
    #[inline]
    pub(crate) fn has_record(&self) -> bool {
        self.has_queued()
            || self.channel.has_grant()
            || self.channel.has_notice()
            || self.channel.credit_requests_due
    }

    /// The next record to push; the same until [`pop_record`](Self::pop_record).
    pub(crate) fn poll_record(&mut self) -> Option<PipeRecord> {
        if self.queue.is_empty() {
            self.queue_news();
        }
        self.queue.front().copied()
    }

    /// The record seen last has been pushed.
    pub(crate) fn pop_record(&mut self) {
        self.queue.pop_front();
    }

    /// Turns notices, grants and wishes into records.
    fn queue_news(&mut self) {
        self.queue_notices();
        while let Some((key, limit)) = self.channel.next_grant() {
            self.queue_keyed(PipeKind::Credit, key, limit);
        }
        if !self.channel.credit_requests_due {
            return;
        }
        let mut told = 0;
        while let Some(want) = self.channel.want(told) {
            told += 1;
            if let Some((edge, key, wish, introduced)) = want {
                if !introduced {
                    self.introduce(edge);
                }
                let tag = PipeTag {
                    kind: PipeKind::CreditRequest,
                    extra: key.life,
                    number: wish.message,
                };
                let words = [ends_to_word(key), wish.need];
                self.queue.push_back(PipeRecord::new(tag, &words));
            }
        }
        self.channel.credit_requests_sent(0);
    }

    fn queue_notices(&mut self) {
        // The end of an edge waits for its long messages, and keeps its place meanwhile.
        for _ in 0..self.channel.notices() {
            let Some(notice) = self.channel.peek_notice().copied() else {
                return;
            };
            if let Notice::End { key, .. } = notice
                && self.long.iter().any(|long| long.key == key)
            {
                self.channel.postpone_notice();
                continue;
            }
            self.channel.pop_notice();
            match notice {
                Notice::Refused {
                    key,
                    sequence,
                    reason,
                } => {
                    let tag = PipeTag {
                        kind: PipeKind::Refused,
                        extra: u8::try_from(reason.code()).unwrap_or(u8::MAX),
                        number: low(sequence),
                    };
                    self.queue
                        .push_back(PipeRecord::new(tag, &[ends_to_word(key)]));
                }
                Notice::End { key, sequence } => {
                    self.queue_keyed(PipeKind::End, key, sequence);
                }
                Notice::Forgotten { key } => self.queue_keyed(PipeKind::Forgotten, key, 0),
            }
        }
    }

    fn queue_keyed(&mut self, kind: PipeKind, key: EdgeKey, value: u64) {
        let tag = PipeTag {
            kind,
            extra: key.life,
            number: 0,
        };
        self.queue
            .push_back(PipeRecord::new(tag, &[ends_to_word(key), value]));
    }

    // ---- arriving records ------------------------------------------------------------

    /// A whole message of `length` bytes has come. `None` if events tell where it goes, or
    /// nobody wants it.
    #[inline]
    pub(crate) fn on_message(
        &mut self,
        number: u32,
        length: usize,
        now: Instant,
        shared: &mut Shared,
    ) -> Result<Option<Delivery>, ProtocolViolation> {
        let inbound = self.inbound.get_mut(number as usize);
        let Some(Some(inbound)) = inbound else {
            return Err(ProtocolViolation("a message on an edge that is not open"));
        };
        let (edge, key, sequence) = (inbound.edge, inbound.key, inbound.arrived);
        let total = length as u64;
        if self.channel.take_next(edge, sequence, total, shared) {
            inbound.arrived += 1;
            return Ok(Some(Delivery { edge, key }));
        }
        if !self.channel.is_current(edge) {
            return Err(ProtocolViolation("a message on an edge that has ended"));
        }
        let piece = MessagePiece::whole(sequence, 0..length);
        inbound.arrived += 1;
        let (placed, _) = self.channel.place(edge.index, piece, now, shared);
        match placed {
            Placed::Deliver => Ok(Some(Delivery { edge, key })),
            Placed::Held | Placed::Discarded => Ok(None),
            Placed::Violation => Err(ProtocolViolation("more than it was granted")),
        }
    }

    /// The same for a message that its reader, an endpoint, has at once: it is consumed. `None`
    /// if it is not for that endpoint, or not what nearly all are; then nothing has changed.
    #[inline]
    pub(crate) fn on_message_read(
        &mut self,
        number: u32,
        length: usize,
        reader: u32,
        now: Instant,
        shared: &mut Shared,
    ) -> Option<(Delivery, bool)> {
        let inbound = self.inbound.get_mut(number as usize)?.as_mut()?;
        let (edge, key) = (inbound.edge, inbound.key);
        if key.target != reader {
            return None;
        }
        let total = length as u64;
        let tell = (self.channel).take_read(edge, inbound.arrived, total, now, shared)?;
        inbound.arrived += 1;
        let tells = tell != Urgency::None || self.channel.has_notice();
        Some((Delivery { edge, key }, tells))
    }

    /// Any record but a message. `payload` are the words of a control record; of a piece or
    /// an unreliable message only `length` counts.
    pub(crate) fn on_record(
        &mut self,
        tag: PipeTag,
        payload: &[u8],
        length: usize,
        now: Instant,
        shared: &mut Shared,
    ) -> Result<(), ProtocolViolation> {
        if self.queue.len() + self.channel.notices() > MAX_QUEUED {
            return Err(ProtocolViolation("more questions than it takes answers"));
        }
        match tag.kind {
            PipeKind::Open => {
                let [ends] = pipe_words(payload)?;
                self.on_open(tag.number, key_from_word(ends, tag.extra)?, shared)?;
            }
            PipeKind::Message => {
                return Err(ProtocolViolation("a message where none can be"));
            }
            PipeKind::Unreliable => self.on_unreliable(tag.number, length, shared)?,
            PipeKind::Credit => {
                let [ends, limit] = pipe_words(payload)?;
                let key = key_from_word(ends, tag.extra)?;
                self.channel.on_credit(key, limit, shared);
            }
            PipeKind::CreditRequest => {
                let [ends, need] = pipe_words(payload)?;
                let key = key_from_word(ends, tag.extra)?;
                let wish = CreditRequest {
                    need,
                    message: tag.number,
                };
                self.channel
                    .on_credit_request(key, wish, false, now, shared);
            }
            PipeKind::Refused => {
                let [ends] = pipe_words(payload)?;
                let key = key_from_word(ends, 0)?;
                let reason = reason_from_extra(tag.extra)?;
                self.channel
                    .on_refused(key.ends(), tag.number, reason, shared);
            }
            PipeKind::End => {
                let [ends, sequence] = pipe_words(payload)?;
                let key = key_from_word(ends, tag.extra)?;
                self.channel.on_end(key, low(sequence), shared);
                self.forget_numbers();
            }
            PipeKind::Forgotten => {
                let [ends, _] = pipe_words(payload)?;
                let key = key_from_word(ends, tag.extra)?;
                self.channel.on_forgotten(key, shared);
            }
            PipeKind::Operation => self.on_operation(tag.number, length, now, shared)?,
            PipeKind::Offer => {
                let (words, head) = split_head(payload, 16);
                let [total, address] = pipe_words(words)?;
                self.on_offer(tag.number, (total, address), head, now, shared)?;
            }
            PipeKind::Announce => {
                let (words, head) = split_head(payload, 8);
                let [total] = pipe_words(words)?;
                let is_operation = head.is_some();
                let (_, sequence, _) = self.on_long(tag.number, total, head, now, shared)?;
                self.expect_pieces(tag.number, sequence, total, is_operation);
            }
            PipeKind::OfferDone => {
                let [number] = pipe_words(payload)?;
                if let Some(long) = self.take_long(number, tag.number) {
                    shared.event(Event::OfferDone {
                        edge: long.edge,
                        sequence: long.sequence,
                    });
                }
            }
            PipeKind::RequestPieces => {
                let [number] = pipe_words(payload)?;
                let found = self.find_long(number, tag.number);
                if let Some(long) = found.filter(|long| long.offered) {
                    long.offered = false;
                    shared.event(Event::PiecesRequested {
                        edge: long.edge,
                        sequence: long.sequence,
                    });
                }
            }
            PipeKind::Piece => self.on_piece(tag.number, length, now, shared)?,
            // What it means that a process leaves is for the caller to say.
            PipeKind::Bye => {}
        }
        Ok(())
    }

    fn on_open(
        &mut self,
        number: u32,
        key: EdgeKey,
        shared: &mut Shared,
    ) -> Result<(), ProtocolViolation> {
        if number >= crate::channel::MAX_EDGES {
            return Err(ProtocolViolation("an edge of an impossible number"));
        }
        let Some(index) = self.channel.find_or_open_in(key, shared) else {
            return Err(ProtocolViolation("more edges than a process may have"));
        };
        let at = number as usize;
        if self.inbound.len() <= at {
            if self.inbound.is_empty() {
                // Most peers have one edge.
                self.inbound.reserve_exact(at + 1);
            }
            self.inbound.resize(at + 1, None);
        }
        self.inbound[at] = Some(Inbound {
            edge: self.channel.incoming_id(index),
            key,
            arrived: shared.config.first_number.into(),
            unreliable: 0,
        });
        Ok(())
    }

    /// The memory of a busier time is given back.
    fn forget_numbers(&mut self) {
        if self.channel.incoming_len() == 0 {
            self.inbound = Vec::new();
        }
    }

    fn inbound(&mut self, number: u32) -> Result<&mut Inbound, ProtocolViolation> {
        match self.inbound.get_mut(number as usize) {
            Some(Some(inbound)) if self.channel.is_current(inbound.edge) => Ok(inbound),
            _ => Err(ProtocolViolation("a record of an edge that is not open")),
        }
    }

    fn on_unreliable(
        &mut self,
        number: u32,
        length: usize,
        shared: &mut Shared,
    ) -> Result<(), ProtocolViolation> {
        let peer = self.id;
        let inbound = self.inbound(number)?;
        inbound.unreliable = inbound.unreliable.wrapping_add(1);
        let (key, sequence) = (inbound.key, inbound.unreliable);
        if !shared.endpoints.contains_key(&key.target) {
            shared.stats.messages_refused += 1;
            return Ok(());
        }
        shared.event(Event::Unreliable {
            peer,
            key,
            sequence,
            offset: 0,
            total: length as u64,
            bytes: 0..length,
        });
        Ok(())
    }

    /// A whole operation of `length` bytes, its head among them.
    fn on_operation(
        &mut self,
        number: u32,
        length: usize,
        now: Instant,
        shared: &mut Shared,
    ) -> Result<(), ProtocolViolation> {
        let data = length
            .checked_sub(OPERATION_BYTES)
            .ok_or(ProtocolViolation("an operation without a head"))?;
        let inbound = self.inbound(number)?;
        let (edge, key) = (inbound.edge, inbound.key);
        let piece = MessagePiece {
            length: data as u64,
            total: data as u64,
            operation: true,
            ..MessagePiece::whole(inbound.arrived, 0..length)
        };
        inbound.arrived += 1;
        match self.channel.place(edge.index, piece, now, shared).0 {
            Placed::Deliver => shared.event(Event::Operation {
                edge,
                source: key.source,
                target: key.target,
                bytes: 0..length,
            }),
            Placed::Held | Placed::Discarded => {}
            Placed::Violation => return Err(ProtocolViolation("more than it was granted")),
        }
        Ok(())
    }

    fn on_offer(
        &mut self,
        number: u32,
        (total, address): (u64, u64),
        head: Option<Range<usize>>,
        now: Instant,
        shared: &mut Shared,
    ) -> Result<(), ProtocolViolation> {
        let (edge, sequence, placed) = self.on_long(number, total, head, now, shared)?;
        match placed {
            Placed::Held => shared.event(Event::Fetch {
                edge,
                sequence,
                number,
                total,
                address,
            }),
            _ => {
                self.channel.filled(edge, sequence, now, shared);
                self.answer(PipeKind::OfferDone, number, sequence);
            }
        }
        Ok(())
    }

    /// A long message begins, of which nothing has come: its number, and whether it is wanted.
    fn on_long(
        &mut self,
        number: u32,
        total: u64,
        head: Option<Range<usize>>,
        now: Instant,
        shared: &mut Shared,
    ) -> Result<(EdgeId, u64, Placed), ProtocolViolation> {
        if total == 0 {
            return Err(ProtocolViolation("a long message without bytes"));
        }
        let inbound = self.inbound(number)?;
        let (edge, sequence) = (inbound.edge, inbound.arrived);
        inbound.arrived += 1;
        let piece = MessagePiece {
            sequence,
            offset: 0,
            length: 0,
            total,
            operation: head.is_some(),
            bytes: head.unwrap_or(0..0),
        };
        match self.channel.place(edge.index, piece, now, shared).0 {
            Placed::Violation => Err(ProtocolViolation("more than it was granted")),
            placed => Ok((edge, sequence, placed)),
        }
    }

    fn expect_pieces(&mut self, number: u32, sequence: u64, total: u64, operation: bool) {
        self.streams.entry(number).or_default().push_back(Stream {
            sequence,
            total,
            operation,
            got: 0,
        });
    }

    fn answer(&mut self, kind: PipeKind, number: u32, sequence: u64) {
        let tag = PipeTag {
            kind,
            extra: 0,
            number: low(sequence),
        };
        self.queue.push_back(PipeRecord::new(tag, &[number.into()]));
    }

    /// The message offered under `number` lies in our memory.
    pub(crate) fn fetch_completed(
        &mut self,
        edge: EdgeId,
        number: u32,
        sequence: u64,
        now: Instant,
        shared: &mut Shared,
    ) {
        self.channel.filled(edge, sequence, now, shared);
        self.answer(PipeKind::OfferDone, number, sequence);
    }

    /// The message offered under `number` cannot be copied from where it lies.
    pub(crate) fn fetch_failed(&mut self, edge: EdgeId, number: u32, sequence: u64, total: u64) {
        let operation = self.channel.is_operation(edge, sequence);
        self.expect_pieces(number, sequence, total, operation);
        self.answer(PipeKind::RequestPieces, number, sequence);
    }

    fn on_piece(
        &mut self,
        number: u32,
        length: usize,
        now: Instant,
        shared: &mut Shared,
    ) -> Result<(), ProtocolViolation> {
        const WRONG: ProtocolViolation = ProtocolViolation("a piece of no message");
        let edge = self.inbound(number)?.edge;
        let streams = self.streams.get_mut(&number).ok_or(WRONG)?;
        let stream = streams.front_mut().ok_or(WRONG)?;
        let length = length as u64;
        if length == 0 || length > stream.total - stream.got {
            return Err(WRONG);
        }
        let end = usize::try_from(length).map_err(|_| WRONG)?;
        let piece = MessagePiece {
            sequence: stream.sequence,
            offset: stream.got,
            length,
            total: stream.total,
            operation: stream.operation,
            bytes: 0..end,
        };
        stream.got += length;
        if stream.got == stream.total {
            streams.pop_front();
            if streams.is_empty() {
                self.streams.remove(&number);
            }
        }
        match self.channel.place(edge.index, piece, now, shared).0 {
            Placed::Violation => Err(WRONG),
            Placed::Deliver | Placed::Held | Placed::Discarded => Ok(()),
        }
    }

    fn find_long(&mut self, number: u64, sequence: u32) -> Option<&mut Long> {
        self.long
            .iter_mut()
            .find(|long| u64::from(long.edge.index) == number && low(long.sequence) == sequence)
    }

    fn take_long(&mut self, number: u64, sequence: u32) -> Option<Long> {
        let found = *self.find_long(number, sequence)?;
        self.long.retain(|long| *long != found);
        Some(found)
    }

    /// The peer is gone: everything that was held for it is given back.
    pub(crate) fn end(self, shared: &mut Shared) {
        self.channel.end(shared);
        shared.forget_peer(self.id);
    }

    /// Everything that decides what happens next, for model checkers.
    pub(crate) fn hash_state(&self, hasher: &mut impl core::hash::Hasher) {
        use core::hash::Hash;
        self.channel.hash_state(hasher);
        (self.id, self.remote.incarnation, &self.inbound).hash(hasher);
        (&self.streams, &self.long, &self.queue).hash(hasher);
    }
}

/// The first `bytes` of a record's payload, and where the head of an operation lies behind them.
fn split_head(payload: &[u8], bytes: usize) -> (&[u8], Option<Range<usize>>) {
    let whole = bytes..bytes + OPERATION_BYTES;
    match payload.len() == whole.end {
        true => (&payload[..bytes], Some(whole)),
        false => (payload, None),
    }
}

impl From<Malformed> for ProtocolViolation {
    fn from(_: Malformed) -> ProtocolViolation {
        ProtocolViolation("a record of the wrong form")
    }
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "records carry the low 32 bits"
)]
fn low(sequence: u64) -> u32 {
    sequence as u32
}
