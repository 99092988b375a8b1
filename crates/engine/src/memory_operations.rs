//! Opens and closes regions, starts operations, and handles their timers.

use bytes::Bytes;
use dipole_link::Region as Memory;
use dipole_proto::{EdgeId, Instant, Region, Rights};

use super::Engine;
use super::content::Content;
use super::operations::{AnswerBuffer, OpenRegion, OperationId, OperationResult, WATCH_AFTER_NS};
use super::posted::PostedOperation;
use super::target::Blocked;
use crate::gone::GoneReason;
use crate::inbox::Buffer;
use crate::operation::Operation;

/// State of an operation that has been started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationStart {
    /// Completely sent; there is no answer.
    Sent,
    /// A long message is being sent in the background.
    InBackground,
    /// Waiting for the target's answer.
    AwaitsAnswer(OperationId),
}

impl Engine {
    /// Opens memory to the peers of an endpoint; returns its key.
    pub fn open_region(&mut self, endpoint: u32, memory: Memory, rights: Rights) -> u64 {
        let regions = &mut self.core.operations.regions;
        let key = loop {
            let key = self.core.machine.new_random_key();
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

    /// Closes a region, so that its key becomes invalid.
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

    /// Closes the regions of an endpoint that is about to close.
    pub(super) fn close_regions_of(&mut self, endpoint: u32) {
        let regions = self.core.operations.regions.iter();
        let of = regions.filter(|(_, region)| region.facts.endpoint == endpoint);
        let keys: Vec<u64> = of.map(|(key, _)| *key).collect();
        for key in keys {
            self.close_region(key);
        }
        self.core.operations.answers.close_endpoint(endpoint);
    }

    /// Starts an operation on an edge. What does not fit into free frames is sent in the background.
    ///
    /// # Errors
    /// [`Blocked`]; nothing was started.
    pub fn begin_operation(
        &mut self,
        now: Instant,
        edge: EdgeId,
        operation: &Operation,
        bytes: &Bytes,
    ) -> Result<OperationStart, Blocked> {
        self.begin_posted(now, edge, (operation, bytes, None), None)
    }

    /// Like [`begin_operation`](Self::begin_operation), for a posted one. A get is stored `into` the
    /// caller's memory, if that is given.
    ///
    /// # Errors
    /// [`Blocked`]; nothing was started.
    pub fn begin_posted(
        &mut self,
        now: Instant,
        edge: EdgeId,
        (operation, bytes, into): (&Operation, &Bytes, Option<&Memory>),
        posted: Option<PostedOperation>,
    ) -> Result<OperationStart, Blocked> {
        let Some(mut head) = operation.head() else {
            let sent = self.send_shared(now, edge, None, bytes, posted)?;
            return Ok(if sent {
                OperationStart::Sent
            } else {
                OperationStart::InBackground
            });
        };
        if !head.wants_answer {
            if let Some(key) = self.core.machine.edge_key(edge) {
                let requests = &mut self.core.operations.requests;
                requests.track_unanswered_puts(edge, key.ends(), posted);
            }
            let sent = self.send_shared(now, edge, Some(&head.to_bytes()), bytes, posted)?;
            return Ok(if sent {
                OperationStart::Sent
            } else {
                OperationStart::InBackground
            });
        }
        let place = match *operation {
            Operation::Get { length, .. } => match into {
                Some(memory) => AnswerBuffer::Caller {
                    memory: memory.clone(),
                    length,
                },
                None => AnswerBuffer::Owned(self.take_buffer(length)),
            },
            _ => AnswerBuffer::None,
        };
        head.id = self.expect_answer(now, edge, (false, place), posted);
        let head_bytes = head.to_bytes();
        let sent = match operation {
            Operation::Put { .. } => {
                // It completes with the answer.
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
        sent.map(|()| OperationStart::AwaitsAnswer(head.id))
    }

    /// Registers an operation that waits for an answer, and returns its id.
    pub fn expect_answer(
        &mut self,
        now: Instant,
        edge: EdgeId,
        wanted: (bool, AnswerBuffer),
        posted: Option<PostedOperation>,
    ) -> OperationId {
        let position = self.core.machine.edge_position(edge).unwrap_or_default();
        let operations = &mut self.core.operations;
        operations.timer_at = operations.timer_at.min(now.after(WATCH_AFTER_NS));
        operations
            .requests
            .expect(now, (edge, position), wanted, posted)
    }

    /// Announces puts without an answer on an edge, so that the next fence reports refusals.
    pub fn track_unanswered_puts(&mut self, edge: EdgeId, ends: (u32, u32)) {
        (self.core.operations.requests).track_unanswered_puts(edge, ends, None);
    }

    /// Takes the result of an operation, if it is known.
    pub fn take_operation(&mut self, id: OperationId) -> Option<OperationResult> {
        self.core.operations.requests.take(id)
    }

    /// Stops waiting for an answer, and returns its buffer.
    pub fn forget_operation(&mut self, id: OperationId) -> Option<AnswerBuffer> {
        self.core.operations.requests.forget(id)
    }

    /// A buffer for the data of a get.
    pub fn take_buffer(&self, length: usize) -> Buffer {
        self.core.dispatch.buffers().take(length)
    }

    /// Takes the next posted message that has been sent, or whose peer is gone.
    pub fn next_sent_post(&mut self) -> Option<(PostedOperation, Result<(), Option<GoneReason>>)> {
        self.core.sent_posts.pop_front()
    }

    /// Takes the next posted operation with a result.
    pub fn next_finished(&mut self) -> Option<(PostedOperation, OperationResult)> {
        self.core.operations.requests.next_finished()
    }

    /// True if a posted operation has finished.
    #[inline]
    pub fn has_finished(&self) -> bool {
        self.core.operations.requests.has_finished() || !self.core.sent_posts.is_empty()
    }

    /// Sends pending answers and returns the credit of executed operations.
    #[inline]
    pub(super) fn tend_operations(&mut self, now: Instant) {
        let operations = &self.core.operations;
        if operations.answers.is_busy() || !operations.consumed.is_empty() {
            self.send_answers_and_credit(now);
        }
    }

    /// True once after an operation of a peer was executed.
    #[inline]
    pub fn take_served(&mut self) -> bool {
        std::mem::take(&mut self.core.operations.has_served)
    }

    fn send_answers_and_credit(&mut self, now: Instant) {
        self.core.operations.has_served = true;
        if self.core.operations.answers.is_busy() {
            let timer_at = self.send_answers(now);
            let operations = &mut self.core.operations;
            operations.timer_at = operations.timer_at.min(timer_at);
        }
        for edge in self.core.operations.consumed.drain(..) {
            self.core.machine.consumed(now, edge, 0);
        }
        self.push_records();
    }

    /// Handles timers: retries answers, closes idle answer edges, and probes peers whose answers
    /// are overdue.
    #[inline]
    pub(super) fn on_operation_timer(&mut self, now: Instant) {
        if now >= self.core.operations.timer_at {
            self.sweep_operations(now);
        }
    }

    #[cold]
    fn sweep_operations(&mut self, now: Instant) {
        let operations = &mut self.core.operations;
        let (idle, again) = operations.answers.take_idle(now);
        let (overdue, watch_at) = operations.requests.overdue_peers(now);
        operations.timer_at = again.min(watch_at);
        for edge in idle {
            self.close_edge(edge);
        }
        for peer in overdue {
            self.core.machine.watch(now, peer, true);
        }
    }

    /// When [`on_operation_timer`](Self::on_operation_timer) must be called.
    pub(super) fn operations_deadline(&self) -> Option<Instant> {
        let at = self.core.operations.timer_at;
        (at != Instant::NEVER).then_some(at)
    }
}
