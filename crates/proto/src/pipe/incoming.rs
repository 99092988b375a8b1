//! Records that arrive through a pipe.

use alloc::vec::Vec;
use core::ops::Range;

use super::{Delivery, Inbound, Long, MAX_QUEUED, Pipe, Stream};
use crate::channel::{MessagePiece, Placed, Urgency};
use crate::error::ProtocolViolation;
use crate::event::{EdgeId, Event};
use crate::holes::low;
use crate::shared::Shared;
use crate::time::Instant;
use crate::wire::{
    CreditRequest, EdgeKey, OPERATION_BYTES, PipeKind, PipeRecord, PipeTag, key_from_word,
    pipe_words, reason_from_extra,
};

impl Pipe {
    /// Handles a whole message of `length` bytes. Returns `None` if events say where it goes, or if no
    /// endpoint accepts it.
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

    /// Fast path for a message that the endpoint `reader` consumes at once. Returns `None` and changes
    /// nothing if the message is for another endpoint or is not a common case.
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

    /// Handles any record that is not a message. `payload` contains the words of a control record; for
    /// a piece or an unreliable message only `length` matters.
    pub(crate) fn on_record(
        &mut self,
        tag: PipeTag,
        payload: &[u8],
        length: usize,
        now: Instant,
        shared: &mut Shared,
    ) -> Result<(), ProtocolViolation> {
        if self.queue.len() + self.channel.notices() > MAX_QUEUED {
            return Err(ProtocolViolation("more requests than it reads replies"));
        }
        match tag.kind {
            PipeKind::Open => {
                let [ends] = pipe_words(payload)?;
                self.on_open(tag.number, key_from_word(ends, tag.extra)?, shared)?;
            }
            PipeKind::Message => {
                return Err(ProtocolViolation("a message where none is allowed"));
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
                let request = CreditRequest {
                    need,
                    message: tag.number,
                };
                self.channel
                    .on_credit_request(key, request, false, now, shared);
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
            PipeKind::Offer
            | PipeKind::Announce
            | PipeKind::OfferDone
            | PipeKind::RequestPieces => self.on_long_record(tag, payload, now, shared)?,
            PipeKind::Piece => self.on_piece(tag.number, length, now, shared)?,
            // The caller decides what to do when a process leaves.
            PipeKind::Bye => {}
        }
        Ok(())
    }

    /// Handles a record about a long message.
    fn on_long_record(
        &mut self,
        tag: PipeTag,
        payload: &[u8],
        now: Instant,
        shared: &mut Shared,
    ) -> Result<(), ProtocolViolation> {
        match tag.kind {
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
            _ => {}
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
            return Err(ProtocolViolation("an edge with a number out of range"));
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

    /// Frees the memory of a peak once all edges have ended.
    fn forget_numbers(&mut self) {
        if self.channel.incoming_len() == 0 {
            self.inbound = Vec::new();
        }
    }

    fn inbound(&mut self, number: u32) -> Result<&mut Inbound, ProtocolViolation> {
        match self.inbound.get_mut(number as usize) {
            Some(Some(inbound)) if self.channel.is_current(inbound.edge) => Ok(inbound),
            _ => Err(ProtocolViolation("a record for an edge that is not open")),
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

    /// Handles a whole operation of `length` bytes, including its head.
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

    /// Begins a long message of which no bytes have arrived. Returns its number, and whether it is
    /// accepted.
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

    /// The message offered under `number` was copied into this process's memory.
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

    /// The message offered under `number` cannot be copied from the peer's memory.
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
        const WRONG: ProtocolViolation = ProtocolViolation("a piece without a message");
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
}

/// The first `bytes` of a record's payload, and the position of the operation's head after them.
fn split_head(payload: &[u8], bytes: usize) -> (&[u8], Option<Range<usize>>) {
    let whole = bytes..bytes + OPERATION_BYTES;
    match payload.len() == whole.end {
        true => (&payload[..bytes], Some(whole)),
        false => (payload, None),
    }
}
