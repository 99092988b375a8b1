//! Answers to operations of others, on their way back.
//!
//! They go by one hidden edge to each process, from and to [`EndpointId::ANY`], in the order of
//! the questions. Until an answer has been sent its question holds the credit of its edge: who
//! does not take answers asks no more.

use std::collections::VecDeque;
use std::sync::Arc;

use dipole_proto::wire::{Operation, OperationKind, Outcome};
use dipole_proto::{EdgeId, Instant, PeerId};
use rustc_hash::FxHashMap;

use crate::address::EndpointId;
use crate::content::Content;
use crate::inbox::{Buffer, Buffers};
use crate::posted::{Keep, Part};
use crate::{Blocked, Engine, LongSend};

/// Both ends of the edges by which answers go.
pub(super) const ANSWERS: u32 = EndpointId::ANY.0;
/// An edge for answers that nobody has asked for is closed after this long.
const IDLE_NS: u64 = 10_000_000_000;
/// Answers that found no room are tried again after this long whatever has happened, then after
/// twice as long, up to the longest.
const RETRY_NS: u64 = 1_000_000;
const LONGEST_RETRY_NS: u64 = 250_000_000;

/// An answer that has not been sent.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) operation: Operation,
    pub(super) data: AnswerData,
    /// The edge of the question, whose credit it holds until it is sent.
    pub(super) charge: Option<EdgeId>,
    /// The endpoint that was asked.
    pub(super) asked: u32,
}

#[derive(Debug)]
pub(super) enum AnswerData {
    None,
    /// They are read when there is room to send them.
    Region(Part),
    /// What a region held when it was closed in the middle of the answer.
    Copy(Buffer),
}

impl Answer {
    /// Shows its data to `send`.
    fn with_data(
        &self,
        send: impl FnOnce(&[u8]) -> Result<Option<LongSend>, Blocked>,
    ) -> Result<Option<LongSend>, Blocked> {
        match &self.data {
            AnswerData::None => send(&[]),
            AnswerData::Copy(buffer) => send(buffer.bytes()),
            // Memory is revoked only after its region was closed.
            AnswerData::Region(part) => part.show(send).unwrap_or(Err(Blocked::Gone(None))),
        }
    }

    /// Its region is closed. An answer that is on its way goes on from a copy.
    fn close_region(&mut self, closed: u64, has_begun: bool, buffers: &Arc<Buffers>) {
        let AnswerData::Region(part) = &self.data else {
            return;
        };
        if part.key != closed {
            return;
        }
        self.data = if has_begun {
            let mut copy = buffers.take(part.length);
            let _gone = part.show(|bytes| copy.bytes_mut().copy_from_slice(bytes));
            AnswerData::Copy(copy)
        } else {
            self.operation.kind = OperationKind::Answer(Outcome::NoRegion);
            AnswerData::None
        };
    }
}

/// The answers to one process.
#[derive(Debug, Default)]
struct PeerAnswers {
    edge: Option<EdgeId>,
    queue: VecDeque<Answer>,
    /// The first of the queue, if it is on its way in pieces.
    long: Option<LongSend>,
    used_at: Instant,
    /// In the list of those that have some to send.
    is_busy: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Answers {
    peers: FxHashMap<PeerId, PeerAnswers>,
    /// Those with answers to be sent.
    busy: Vec<PeerId>,
    /// Nothing has been sent for so long.
    retry_ns: u64,
    retry_at: Instant,
}

impl Answers {
    #[inline]
    pub(super) fn is_busy(&self) -> bool {
        !self.busy.is_empty()
    }

    pub(super) fn push(&mut self, peer: PeerId, answer: Answer) {
        let answers = self.peers.entry(peer).or_default();
        answers.queue.push_back(answer);
        if !answers.is_busy {
            answers.is_busy = true;
            self.busy.push(peer);
        }
    }

    pub(super) fn forget_peer(&mut self, peer: PeerId) {
        self.peers.remove(&peer);
        self.busy.retain(|busy| *busy != peer);
    }

    pub(super) fn close_region(&mut self, key: u64, buffers: &Arc<Buffers>) {
        for answers in self.peers.values_mut() {
            let mut has_begun = answers.long.is_some();
            for answer in &mut answers.queue {
                answer.close_region(key, has_begun, buffers);
                has_begun = false;
            }
        }
    }

    /// An endpoint is closed: the machine has taken back the credit of its edges.
    pub(super) fn close_endpoint(&mut self, endpoint: u32) {
        let queues = self.peers.values_mut().map(|answers| &mut answers.queue);
        for answer in queues.flatten().filter(|it| it.asked == endpoint) {
            answer.charge = None;
        }
    }

    /// Edges that nobody has used for long; when to look again.
    pub(super) fn take_idle(&mut self, now: Instant) -> (Vec<EdgeId>, Instant) {
        let (mut idle, mut next) = (Vec::new(), Instant::NEVER);
        self.peers.retain(|_, answers| {
            let idle_at = answers.used_at.after(IDLE_NS);
            let is_idle = !answers.is_busy && now >= idle_at;
            if is_idle {
                idle.extend(answers.edge);
            } else if !answers.is_busy {
                next = next.min(idle_at);
            }
            !is_idle
        });
        if self.is_busy() {
            next = next.min(self.retry_at);
        }
        (idle, next)
    }
}

impl Engine {
    /// Sends answers as far as there is room; when to try again at the latest.
    pub(super) fn send_answers(&mut self, now: Instant) -> Instant {
        let mut at = 0;
        while let Some(peer) = self.core.operations.answers.busy.get(at).copied() {
            match self.send_answers_to(now, peer) {
                true => {
                    self.core.operations.answers.busy.swap_remove(at);
                }
                false => at += 1,
            }
        }
        let answers = &mut self.core.operations.answers;
        if !answers.is_busy() {
            answers.retry_ns = RETRY_NS;
            return now.after(IDLE_NS);
        }
        if now >= answers.retry_at {
            answers.retry_at = now.after(answers.retry_ns);
            answers.retry_ns = (2 * answers.retry_ns).clamp(RETRY_NS, LONGEST_RETRY_NS);
        }
        answers.retry_at
    }

    /// True when all to this peer have gone.
    fn send_answers_to(&mut self, now: Instant, peer: PeerId) -> bool {
        let Some(mut answers) = self.core.operations.answers.peers.remove(&peer) else {
            return true;
        };
        answers.used_at = now;
        let sent = loop {
            let is_last = answers.queue.len() == 1;
            let Some(answer) = answers.queue.front() else {
                break true;
            };
            let sent = match answers.long.take() {
                Some(long) => answer.with_data(|data| self.continue_answer(long, data)),
                None => self.begin_answer(now, (peer, &mut answers.edge), answer, is_last),
            };
            match sent {
                Ok(None) => {
                    self.core.operations.consumed.extend(answer.charge);
                    answers.queue.pop_front();
                }
                Ok(Some(long)) => {
                    answers.long = Some(long);
                    break false;
                }
                Err(Blocked::NoFrame | Blocked::NoCredit | Blocked::Opening) => break false,
                // Nobody is there to be answered, or takes answers.
                Err(_) => {
                    let charges = answers.queue.drain(..).filter_map(|answer| answer.charge);
                    self.core.operations.consumed.extend(charges);
                    break true;
                }
            }
        };
        self.flush(peer);
        answers.is_busy = !sent;
        self.core.operations.answers.peers.insert(peer, answers);
        sent
    }

    /// Begins to send an answer; what is to be continued, if anything is left of it.
    fn begin_answer(
        &mut self,
        now: Instant,
        (peer, edge): (PeerId, &mut Option<EdgeId>),
        answer: &Answer,
        is_last: bool,
    ) -> Result<Option<LongSend>, Blocked> {
        let edge = match *edge {
            Some(edge) => edge,
            None => {
                let made = self.core.machine.edge(peer, ANSWERS, ANSWERS);
                *edge.insert(made.map_err(|_| Blocked::Gone(None))?)
            }
        };
        let head = answer.operation.to_bytes();
        answer.with_data(|data| {
            let content = Content::operation(&head, data);
            if content.bytes() > self.whole_limit(peer) {
                let keep = match &answer.data {
                    AnswerData::Region(part) => Keep::Region(part),
                    // What is left of a region is here as long as the answer is.
                    AnswerData::Copy(_) | AnswerData::None => Keep::No,
                };
                let long = self.begin_kept(now, edge, content, keep)?;
                return self.continue_answer(long, data);
            }
            if is_last && matches!(self.send_alone(now, edge, content), Ok(true)) {
                return Ok(None);
            }
            self.send_whole(now, edge, content, true).map(|()| None)
        })
    }

    fn continue_answer(
        &mut self,
        mut long: LongSend,
        data: &[u8],
    ) -> Result<Option<LongSend>, Blocked> {
        let done = self.continue_long(&mut long, data)?;
        Ok((!done).then_some(long))
    }
}
