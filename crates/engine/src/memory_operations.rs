//! Regions opened and closed, operations begun, and what time asks of both.

use bytes::Bytes;
use dipole_link::Region as Memory;
use dipole_proto::{EdgeId, Instant, Region, Rights};

use super::Engine;
use super::content::Content;
use super::operations::{AnswerPlace, OpenRegion, OperationId, OperationResult, WATCH_AFTER_NS};
use super::posted::Posted;
use super::target::Blocked;
use crate::gone::GoneReason;
use crate::inbox::Buffer;
use crate::operation::Operation;

/// What an operation that has begun waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// For nothing: all of a message is on its way.
    Sent,
    /// A long message goes on by itself.
    GoesOn,
    /// For the target's answer.
    Asked(OperationId),
}

impl Engine {
    /// Opens memory to the peers of an endpoint; the key by which they reach it.
    pub fn open_region(&mut self, endpoint: u32, memory: Memory, rights: Rights) -> u64 {
        let regions = &mut self.core.operations.regions;
        let key = loop {
            let key = self.core.machine.draw_key();
            if !regions.contains_key(&key) {
                break key;
            }
        };
        let facts = Region {
            endpoint,
            length: memory.bytes() as u64,
            rights,
        };
        regions.insert(key, OpenRegion { facts, memory });
        key
    }

    /// Closes a region: nobody reaches its memory by its key any more.
    pub fn close_region(&mut self, key: u64) {
        let operations = &mut self.core.operations;
        if operations.regions.remove(&key).is_some() {
            let buffers = self.core.dispatch.buffers();
            operations.answers.close_region(key, buffers);
            if let Some(memory) = &mut self.memory {
                memory.close_region(key, buffers);
            }
        }
    }

    /// An endpoint is about to be closed: so are its regions.
    pub(super) fn close_regions_of(&mut self, endpoint: u32) {
        let regions = self.core.operations.regions.iter();
        let of = regions.filter(|(_, region)| region.facts.endpoint == endpoint);
        let keys: Vec<u64> = of.map(|(key, _)| *key).collect();
        for key in keys {
            self.close_region(key);
        }
        self.core.operations.answers.close_endpoint(endpoint);
    }

    /// Begins an operation along an edge. What does not fit the frames at hand goes on by itself.
    ///
    /// # Errors
    /// [`Blocked`]; nothing was begun.
    pub fn begin_operation(
        &mut self,
        now: Instant,
        edge: EdgeId,
        operation: &Operation,
        bytes: &Bytes,
    ) -> Result<Begun, Blocked> {
        self.begin_posted(now, edge, (operation, bytes, None), None)
    }

    /// The same for what was posted: a get goes `into` memory of the caller's, if that is given.
    ///
    /// # Errors
    /// [`Blocked`]; nothing was begun.
    pub fn begin_posted(
        &mut self,
        now: Instant,
        edge: EdgeId,
        (operation, bytes, into): (&Operation, &Bytes, Option<&Memory>),
        posted: Option<Posted>,
    ) -> Result<Begun, Blocked> {
        let Some(mut head) = operation.head() else {
            let sent = self.send_shared(now, edge, None, bytes, posted)?;
            return Ok(if sent { Begun::Sent } else { Begun::GoesOn });
        };
        if !head.wants_answer {
            if let Some(key) = self.core.machine.edge_key(edge) {
                let requests = &mut self.core.operations.requests;
                requests.note_unanswered(edge, key.ends(), posted);
            }
            let sent = self.send_shared(now, edge, Some(&head.to_bytes()), bytes, posted)?;
            return Ok(if sent { Begun::Sent } else { Begun::GoesOn });
        }
        let place = match *operation {
            Operation::Get { length, .. } => match into {
                Some(memory) => AnswerPlace::Memory {
                    memory: memory.clone(),
                    length,
                },
                None => AnswerPlace::Buffer(self.take_buffer(length)),
            },
            _ => AnswerPlace::None,
        };
        head.id = self.expect_answer(now, edge, (false, place), posted);
        let head_bytes = head.to_bytes();
        let sent = match operation {
            Operation::Put { .. } => {
                // Its completion comes with the answer.
                let sent = self.send_shared(now, edge, Some(&head_bytes), bytes, None);
                sent.map(drop)
            }
            _ => {
                let word = operation.word();
                let data = word.as_ref().map_or(&[][..], |word| &word[..]);
                let content = Content::operation(&head_bytes, data);
                self.send_whole(now, edge, content, false)
            }
        };
        if sent.is_err() {
            self.forget_operation(head.id);
        }
        sent.map(|()| Begun::Asked(head.id))
    }

    /// The next operation on an edge waits for an answer under the id that this returns.
    pub fn expect_answer(
        &mut self,
        now: Instant,
        edge: EdgeId,
        wanted: (bool, AnswerPlace),
        posted: Option<Posted>,
    ) -> OperationId {
        let operations = &mut self.core.operations;
        operations.tend_at = operations.tend_at.min(now.after(WATCH_AFTER_NS));
        operations.requests.expect(now, edge, wanted, posted)
    }

    /// Puts that nobody waits for are about to be sent on an edge: what is refused of them the
    /// next fence tells.
    pub fn note_unanswered(&mut self, edge: EdgeId, ends: (u32, u32)) {
        (self.core.operations.requests).note_unanswered(edge, ends, None);
    }

    /// What an operation came to, once that is known.
    pub fn take_operation(&mut self, id: OperationId) -> Option<OperationResult> {
        self.core.operations.requests.take(id)
    }

    /// Nobody waits for an answer any more; its place, whose it is again.
    pub fn forget_operation(&mut self, id: OperationId) -> Option<AnswerPlace> {
        self.core.operations.requests.forget(id)
    }

    /// A buffer for what is got.
    pub fn take_buffer(&self, length: usize) -> Buffer {
        self.core.dispatch.buffers().take(length)
    }

    /// The next posted message that has gone, or whose peer is gone, since it was begun.
    pub fn next_sent_post(&mut self) -> Option<(Posted, Result<(), Option<GoneReason>>)> {
        self.core.sent_posts.pop_front()
    }

    /// The next posted operation that has its result.
    pub fn next_finished(&mut self) -> Option<(Posted, OperationResult)> {
        self.core.operations.requests.next_finished()
    }

    /// True if something that was posted is done since it was begun.
    #[inline]
    pub fn has_finished(&self) -> bool {
        self.core.operations.requests.has_finished() || !self.core.sent_posts.is_empty()
    }

    /// Sends answers, and gives back the credit of what is done.
    #[inline]
    pub(super) fn tend_operations(&mut self, now: Instant) {
        let operations = &self.core.operations;
        if operations.answers.is_busy() || !operations.consumed.is_empty() {
            self.tend_busy(now);
        }
    }

    /// True once after something was done for others.
    #[inline]
    pub fn take_served(&mut self) -> bool {
        std::mem::take(&mut self.core.operations.has_served)
    }

    fn tend_busy(&mut self, now: Instant) {
        self.core.operations.has_served = true;
        if self.core.operations.answers.is_busy() {
            let tend_at = self.send_answers(now);
            let operations = &mut self.core.operations;
            operations.tend_at = operations.tend_at.min(tend_at);
        }
        for edge in self.core.operations.consumed.drain(..) {
            self.core.machine.consumed(now, edge, 0);
        }
        self.push_records();
    }

    /// What time asks for: answers that found no room, their edges that nobody uses, peers that
    /// owe answers.
    #[inline]
    pub(super) fn time_operations(&mut self, now: Instant) {
        if now >= self.core.operations.tend_at {
            self.sweep_operations(now);
        }
    }

    #[cold]
    fn sweep_operations(&mut self, now: Instant) {
        let operations = &mut self.core.operations;
        let (idle, again) = operations.answers.take_idle(now);
        let (owing, watch_at) = operations.requests.owing(now);
        operations.tend_at = again.min(watch_at);
        for edge in idle {
            self.close_edge(edge);
        }
        for peer in owing {
            self.core.machine.watch(now, peer, true);
        }
    }

    /// When [`time_operations`](Self::time_operations) has something to do.
    pub(super) fn operations_deadline(&self) -> Option<Instant> {
        let at = self.core.operations.tend_at;
        (at != Instant::NEVER).then_some(at)
    }
}
