//! Sends answers to peers' memory operations.

use dipole_proto::{EdgeId, Instant, PeerId};

use super::Engine;
use super::content::Content;
use super::long_messages::LongSend;
use super::operations::{ANSWER_ENDPOINT, Answer, AnswerData, IDLE_NS, MAX_RETRY_NS, RETRY_NS};
use super::posted::PayloadOwner;
use super::target::Blocked;

impl Engine {
    /// Sends answers as far as there is room; returns when to retry at the latest.
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
            answers.retry_ns = (2 * answers.retry_ns).clamp(RETRY_NS, MAX_RETRY_NS);
        }
        answers.retry_at
    }

    /// Sends answers to one peer; true when none is left.
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
                // The peer is gone or does not accept answers.
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

    /// Starts sending an answer; returns the long message if it must be continued.
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
                let made = self
                    .core
                    .machine
                    .edge(peer, ANSWER_ENDPOINT, ANSWER_ENDPOINT);
                *edge.insert(made.map_err(|_| Blocked::Gone(None))?)
            }
        };
        let head = answer.operation.to_bytes();
        answer.with_data(|data| {
            let content = Content::operation(&head, data);
            if content.bytes() > self.whole_limit(peer) {
                let keep = match &answer.data {
                    AnswerData::Region(part) => PayloadOwner::Region(part),
                    // The bytes stay valid as long as the answer exists.
                    AnswerData::Copy(_) | AnswerData::None => PayloadOwner::Caller,
                };
                let long = self.begin_long_with(now, edge, content, keep)?;
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
