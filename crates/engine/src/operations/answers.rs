//! Answers to peers' memory operations.
//!
//! They use one hidden edge per peer, from and to [`EndpointId::ANY`], in the order of the
//! requests. Until its answer has been sent, a request holds credit, so that a peer that does not
//! read answers cannot send more requests.

use std::collections::VecDeque;
use std::sync::Arc;

use dipole_proto::wire::{Operation, OperationKind, Outcome};
use dipole_proto::{EdgeId, Instant, PeerId};
use rustc_hash::FxHashMap;

use crate::address::EndpointId;
use crate::inbox::{Buffer, Buffers};
use crate::long_messages::LongSend;
use crate::posted::RegionPart;
use crate::target::Blocked;

/// Id of both endpoints of the hidden edges.
pub(crate) const ANSWER_ENDPOINT: u32 = EndpointId::ANY.0;
/// A hidden edge is closed after being idle for this long.
pub(crate) const IDLE_NS: u64 = 10_000_000_000;
/// Answers that found no room are retried after this time; it doubles up to the maximum.
pub(crate) const RETRY_NS: u64 = 1_000_000;
pub(crate) const MAX_RETRY_NS: u64 = 250_000_000;

/// An answer that waits to be sent.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) operation: Operation,
    pub(crate) data: AnswerData,
    /// The edge of the request, which holds credit until the answer has been sent.
    pub(crate) charge: Option<EdgeId>,
    /// The endpoint that the request was sent to.
    pub(crate) target: u32,
}

#[derive(Debug)]
pub(crate) enum AnswerData {
    None,
    /// Read from the region when there is room to send.
    Region(RegionPart),
    /// Copied because the region was closed while the answer was being sent.
    Copy(Buffer),
}

impl Answer {
    /// Passes its data to `send`.
    pub(crate) fn with_data(
        &self,
        send: impl FnOnce(&[u8]) -> Result<Option<LongSend>, Blocked>,
    ) -> Result<Option<LongSend>, Blocked> {
        match &self.data {
            AnswerData::None => send(&[]),
            AnswerData::Copy(buffer) => send(buffer.bytes()),
            // Memory is revoked only after its region has been closed.
            AnswerData::Region(part) => part.with_bytes(send).unwrap_or(Err(Blocked::Gone(None))),
        }
    }

    /// Handles the closing of its region. An answer that is being sent continues from a copy.
    fn close_region(&mut self, closed: u64, has_begun: bool, buffers: &Arc<Buffers>) {
        let AnswerData::Region(part) = &self.data else {
            return;
        };
        if part.key != closed {
            return;
        }
        self.data = if has_begun {
            let mut copy = buffers.take(part.length);
            let _gone = part.with_bytes(|bytes| copy.bytes_mut().copy_from_slice(bytes));
            AnswerData::Copy(copy)
        } else {
            self.operation.kind = OperationKind::Answer(Outcome::NoRegion);
            AnswerData::None
        };
    }
}

#[derive(Debug, Default)]
pub(crate) struct PeerAnswers {
    pub(crate) edge: Option<EdgeId>,
    pub(crate) queue: VecDeque<Answer>,
    /// The first answer of the queue, if it is being sent in pieces.
    pub(crate) long: Option<LongSend>,
    pub(crate) used_at: Instant,
    /// It is in the list of peers with pending answers.
    pub(crate) is_busy: bool,
}

/// Answers to all peers.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    pub(crate) peers: FxHashMap<PeerId, PeerAnswers>,
    /// Peers with pending answers.
    pub(crate) busy: Vec<PeerId>,
    /// The current retry interval.
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

    /// An endpoint was closed, and the protocol has taken back the credit of its edges.
    pub(crate) fn close_endpoint(&mut self, endpoint: u32) {
        let queues = self.peers.values_mut().map(|answers| &mut answers.queue);
        for answer in queues.flatten().filter(|it| it.target == endpoint) {
            answer.charge = None;
        }
    }

    /// Takes edges that have long been idle, and returns when to check again.
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
