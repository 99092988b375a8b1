//! Operations on another process's memory. Spec §5.9.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dipole_proto::wire::{self, OperationKind};

use super::Edge;
use crate::cancel::in_slices;
use crate::error::{SendError, operation_result};
use crate::process::ProcessState;
use crate::region::RegionMemory;
use dipole_driver::{Timeout, WaitError, WaitKey};
use dipole_engine::{
    AnswerBuffer, Content, Data, MAX_GET_BYTES, Operation, OperationId, RegionKey,
};

/// Gets up to this length use a buffer of the engine and a copy, which is cheaper than lending
/// memory.
const COPIED_BYTES: usize = 4 << 10;

impl Edge {
    /// Writes bytes to a region of the target. Returns when they have been sent, like
    /// [`send`](Self::send); the next [`flush`](Self::flush) reports whether they are in place or
    /// were refused. Puts are not ordered among each other, but a message sent later on this edge
    /// arrives after them.
    ///
    /// # Errors
    /// The errors of [`send`](Self::send).
    ///
    /// # Source
    /// One-sided transfers of Nectar §2.1; the regions of active ports, GAMMA §2.
    pub fn put(&self, key: RegionKey, offset: u64, data: &[u8]) -> Result<(), SendError> {
        self.put_until(key, offset, (data, None), Timeout::Infinite)
    }

    /// Like [`put`](Self::put), but also notifies the owner once these data and everything sent
    /// earlier on this edge are there: its endpoint receives a [notice](crate::Message::notice).
    ///
    /// # Errors
    /// The errors of [`put`](Self::put).
    pub fn put_notify(
        &self,
        key: RegionKey,
        offset: u64,
        data: &[u8],
        value: u64,
    ) -> Result<(), SendError> {
        self.put_until(key, offset, (data, Some(value)), Timeout::Infinite)
    }

    /// [`put`](Self::put), or [`put_notify`](Self::put_notify) if there is a value, within `timeout`
    /// as in [`send_timeout`](Self::send_timeout).
    ///
    /// # Errors
    /// [`SendError::TimedOut`] and the errors of [`put`](Self::put).
    pub fn put_timeout(
        &self,
        key: RegionKey,
        offset: u64,
        data: &[u8],
        notice: Option<u64>,
        timeout: Duration,
    ) -> Result<(), SendError> {
        self.put_until(key, offset, (data, notice), Timeout::After(timeout))
    }

    /// [`put`](Self::put), or [`put_notify`](Self::put_notify) if there is a value, without blocking
    /// as in [`try_send`](Self::try_send).
    ///
    /// # Errors
    /// [`SendError::Full`] and the errors of [`put`](Self::put).
    pub fn try_put(
        &self,
        key: RegionKey,
        offset: u64,
        data: &[u8],
        notice: Option<u64>,
    ) -> Result<(), SendError> {
        self.put_until(key, offset, (data, notice), Timeout::Zero)
    }

    fn put_until(
        &self,
        key: RegionKey,
        offset: u64,
        (data, notice): (&[u8], Option<u64>),
        until: Timeout,
    ) -> Result<(), SendError> {
        self.check_usable()?;
        let source = self.owner.id.0;
        if !self.has_put.load(Ordering::Relaxed) {
            let target = self.inner.wait_target(self.id, self.to, until)?;
            let ends = (source, self.to.endpoint.0);
            let note =
                |state: &mut ProcessState, _| state.engine.track_unanswered_puts(target.edge, ends);
            self.inner.driver.with_last(note);
            self.has_put.store(true, Ordering::Relaxed);
        }
        let head = wire::Operation {
            kind: OperationKind::Put,
            wants_answer: false,
            gives_notice: notice.is_some(),
            id: 0,
            key: key.0,
            offset,
            value: notice.unwrap_or(0),
        };
        let head = head.to_bytes();
        let content = Content::operation(&head, data);
        self.inner
            .send_along(source, (self.id, self.to), content, until)
    }

    /// Fills `into` from a region of the target within `timeout`. Earlier puts on this edge are
    /// visible.
    ///
    /// # Errors
    /// [`SendError::OperationFailed`], [`SendError::TimedOut`] and the errors of [`send`](Self::send). On
    /// error, `into` may be partly overwritten.
    pub fn get(
        &self,
        key: RegionKey,
        offset: u64,
        into: &mut [u8],
        timeout: Duration,
    ) -> Result<(), SendError> {
        let (begun, until) = (Instant::now(), Timeout::After(timeout));
        if into.len() <= COPIED_BYTES {
            let buffer = self
                .inner
                .driver
                .with_last(|state, _| state.engine.take_buffer(into.len()));
            let length = into.len();
            let operation = Operation::Get {
                key,
                offset,
                length,
            };
            let (_, got) = self.request(operation, AnswerBuffer::Owned(buffer), until)?;
            into.copy_from_slice(&got);
            return Ok(());
        }
        let mut at = offset;
        for part in into.chunks_mut(MAX_GET_BYTES) {
            let length = part.len();
            RegionMemory::lend(part, |memory| {
                let place = AnswerBuffer::Caller {
                    memory: memory.clone(),
                    length,
                };
                let operation = Operation::Get {
                    key,
                    offset: at,
                    length,
                };
                self.request(operation, place, until.after(begun.elapsed()))
            })?;
            at = at.saturating_add(length as u64);
        }
        Ok(())
    }

    /// Atomically adds `value` to a 64-bit word of a region of the target, wrapping around; returns
    /// the previous value.
    ///
    /// # Errors
    /// [`SendError::OperationFailed`] and the errors of [`send`](Self::send): it was not executed.
    /// [`SendError::TimedOut`], [`SendError::PeerGone`]: it may have been, or may still be.
    pub fn fetch_add(
        &self,
        key: RegionKey,
        offset: u64,
        value: u64,
        timeout: Duration,
    ) -> Result<u64, SendError> {
        let operation = Operation::FetchAdd { key, offset, value };
        let (word, _) = self.request(operation, AnswerBuffer::None, Timeout::After(timeout))?;
        Ok(word)
    }

    /// Atomically replaces a 64-bit word of a region of the target by `new` if it equals
    /// `expected`; returns the previous value.
    ///
    /// # Errors
    /// The errors of [`fetch_add`](Self::fetch_add).
    pub fn compare_swap(
        &self,
        key: RegionKey,
        offset: u64,
        expected: u64,
        new: u64,
        timeout: Duration,
    ) -> Result<u64, SendError> {
        let operation = Operation::CompareSwap {
            key,
            offset,
            expected,
            new,
        };
        let (word, _) = self.request(operation, AnswerBuffer::None, Timeout::After(timeout))?;
        Ok(word)
    }

    /// Waits until all operations on this edge have completed.
    pub(super) fn fence(&self, until: Timeout) -> Result<(), SendError> {
        let head = wire::Operation {
            kind: OperationKind::Fence,
            wants_answer: true,
            gives_notice: false,
            id: 0,
            key: 0,
            offset: 0,
            value: 0,
        };
        self.run_operation(head, &[], AnswerBuffer::None, until)
            .map(drop)
    }

    fn request(
        &self,
        operation: Operation,
        place: AnswerBuffer,
        until: Timeout,
    ) -> Result<(u64, Data), SendError> {
        let word = operation.word();
        let data = word.as_ref().map_or(&[][..], |word| &word[..]);
        match operation.head() {
            Some(head) => self.run_operation(head, data, place, until),
            None => Ok((0, Data::default())),
        }
    }

    /// Sends a request to the target and waits for the answer: a word, and the data read if they
    /// go to a buffer.
    fn run_operation(
        &self,
        head: wire::Operation,
        data: &[u8],
        place: AnswerBuffer,
        until: Timeout,
    ) -> Result<(u64, Data), SendError> {
        self.check_usable()?;
        let (begun, driver) = (Instant::now(), &self.inner.driver);
        let mut place = Some(place);
        let asked = driver.sending(|state, clock| {
            let (engine, edges, _) = state.parts();
            edges.start_operation_fast(engine, self.id, (head, data), &mut place, clock)
        });
        let id = match asked.map_err(SendError::Broken)? {
            Some(id) => id,
            None => self.start_operation_slow(head, data, place, until)?,
        };
        let what = |_: &ProcessState| format!("endpoint {} to answer", self.to);
        let keys = [WaitKey::Operation(id)];
        let until = until.after(begun.elapsed());
        let traced = self.inner.trace_wait(until);
        let answered = in_slices(until, |left| {
            let answered = driver.wait(left, &keys, &what, |state, _| {
                state.engine.take_operation(id)
            });
            answered.map_err(|error| match error {
                WaitError::TimedOut { waited } => SendError::TimedOut {
                    target: self.to,
                    waited,
                },
                WaitError::Interrupted { .. } => SendError::Interrupted { target: self.to },
                WaitError::Broken(cause) => SendError::Broken(cause),
            })
        });
        if let Some(traced) = traced {
            traced.end_operation(Some(self.to), answered.is_ok());
        }
        match answered {
            Ok(result) => operation_result(result, self.to),
            Err(error) => {
                driver.with_last(|state, _| drop(state.engine.forget_operation(id)));
                Err(error)
            }
        }
    }

    /// Sends the request once the edge is open and there is room.
    fn start_operation_slow(
        &self,
        mut head: wire::Operation,
        data: &[u8],
        place: Option<AnswerBuffer>,
        until: Timeout,
    ) -> Result<OperationId, SendError> {
        let begun = Instant::now();
        let connected = |left| self.inner.wait_target(self.id, self.to, left);
        let target = in_slices(until, connected)?;
        let is_fence = head.kind == OperationKind::Fence;
        let place = place.unwrap_or(AnswerBuffer::None);
        let driver = &self.inner.driver;
        let id = driver.with_last(|state, now| {
            state
                .engine
                .expect_answer(now, target.edge, (is_fence, place), None)
        });
        head.id = id;
        let bytes = head.to_bytes();
        let content = Content::operation(&bytes, data);
        let source = self.owner.id.0;
        // It is too short to be sent in part.
        let send = |left| (self.inner).send_to_target(source, &target, content, left, false);
        let sent = in_slices(until.after(begun.elapsed()), send);
        if sent.is_err() {
            driver.with_last(|state, _| drop(state.engine.forget_operation(id)));
        }
        sent.map(|()| id)
    }
}
