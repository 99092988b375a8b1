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
use crate::inbox::{Buffer, Buffers};
use crate::long_messages::LongSend;
use crate::posted::Part;
use crate::target::Blocked;

/// Both ends of the edges by which answers go.
pub(crate) const ANSWERS: u32 = EndpointId::ANY.0;
/// An edge for answers that nobody has asked for is closed after this long.
pub(crate) const IDLE_NS: u64 = 10_000_000_000;
/// Answers that found no room are tried again after this long whatever has happened, then after
/// twice as long, up to the longest.
pub(crate) const RETRY_NS: u64 = 1_000_000;
pub(crate) const LONGEST_RETRY_NS: u64 = 250_000_000;

/// An answer that has not been sent.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) operation: Operation,
    pub(crate) data: AnswerData,
    /// The edge of the question, whose credit it holds until it is sent.
    pub(crate) charge: Option<EdgeId>,
    /// The endpoint that was asked.
    pub(crate) asked: u32,
}

#[derive(Debug)]
pub(crate) enum AnswerData {
    None,
    /// They are read when there is room to send them.
    Region(Part),
    /// What a region held when it was closed in the middle of the answer.
    Copy(Buffer),
}

impl Answer {
    /// Shows its data to `send`.
    pub(crate) fn with_data(
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
pub(crate) struct PeerAnswers {
    pub(crate) edge: Option<EdgeId>,
    pub(crate) queue: VecDeque<Answer>,
    /// The first of the queue, if it is on its way in pieces.
    pub(crate) long: Option<LongSend>,
    pub(crate) used_at: Instant,
    /// In the list of those that have some to send.
    pub(crate) is_busy: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    pub(crate) peers: FxHashMap<PeerId, PeerAnswers>,
    /// Those with answers to be sent.
    pub(crate) busy: Vec<PeerId>,
    /// Nothing has been sent for so long.
    pub(crate) retry_ns: u64,
    pub(crate) retry_at: Instant,
}

impl Answers {
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        !self.busy.is_empty()
    }

    pub(crate) fn push(&mut self, peer: PeerId, answer: Answer) {
        let answers = self.peers.entry(peer).or_default();
        answers.queue.push_back(answer);
        if !answers.is_busy {
            answers.is_busy = true;
            self.busy.push(peer);
        }
    }

    pub(crate) fn forget_peer(&mut self, peer: PeerId) {
        self.peers.remove(&peer);
        self.busy.retain(|busy| *busy != peer);
    }

    pub(crate) fn close_region(&mut self, key: u64, buffers: &Arc<Buffers>) {
        for answers in self.peers.values_mut() {
            let mut has_begun = answers.long.is_some();
            for answer in &mut answers.queue {
                answer.close_region(key, has_begun, buffers);
                has_begun = false;
            }
        }
    }

    /// An endpoint is closed: the machine has taken back the credit of its edges.
    pub(crate) fn close_endpoint(&mut self, endpoint: u32) {
        let queues = self.peers.values_mut().map(|answers| &mut answers.queue);
        for answer in queues.flatten().filter(|it| it.asked == endpoint) {
            answer.charge = None;
        }
    }

    /// Edges that nobody has used for long; when to look again.
    pub(crate) fn take_idle(&mut self, now: Instant) -> (Vec<EdgeId>, Instant) {
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
