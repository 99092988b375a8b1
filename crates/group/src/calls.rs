//! The collective calls of a group.

use std::sync::Arc;
use std::time::Duration;

use dipole_node::LongWait;
use dipole_proto::wire::{
    ANY_LENGTH, GroupCall, GroupHead, GroupKind, GroupOperation, members_to_bytes,
};

use super::error::Deadline;
use super::reduction::Order;
use super::shape;
use super::{Combine, Group, GroupError, Number};
use crate::state::{MAX_CALLS_AHEAD, MessageKey, PendingMessage};

/// When a member is first probed after waiting for it.
const FIRST_PROBE: Duration = Duration::from_millis(20);
/// Longer messages are split into pieces of this length, so that each is forwarded on arrival.
const PIECE_BYTES: usize = 64 << 10;
/// Bytes that members move between two internal barriers.
const MAX_BYTES_AHEAD: u64 = 32 << 20;
/// How often a thread that cannot send checks whether the generation has ended.
const SEND_RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Parameters of the call in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallContext {
    pub(super) number: u64,
    pub(super) deadline: Deadline,
    pub(super) call: GroupCall,
    /// Members that cannot be reached may still join.
    pub(super) awaits_joiners: bool,
}

impl CallContext {
    pub(super) fn with_awaits_joiners(&self, awaits_joiners: bool) -> CallContext {
        CallContext {
            awaits_joiners,
            ..*self
        }
    }

    pub(super) fn root(&self) -> usize {
        self.call.root as usize
    }
}

/// A piece of a message within a call.
struct Part {
    round: u8,
    /// The rank that started the transfer.
    rank: u32,
    /// Length of the whole message.
    length: usize,
    at: usize,
}

impl Group {
    /// Returns when all members have called it.
    ///
    /// # Errors
    /// [`GroupError`].
    pub fn barrier(&mut self, timeout: Duration) -> Result<(), GroupError> {
        self.call_within(
            GroupOperation::Barrier,
            (0, 0),
            timeout,
            |group, context| group.disseminate(context, &[]).map(|()| 0),
        )
    }

    /// Distributes the bytes of `root`, of any length, to all members. On the root `data` is sent;
    /// elsewhere it is replaced. Each node gets one copy, along [`Members::tree`](crate::Members::tree).
    ///
    /// # Errors
    /// [`GroupError`].
    pub fn broadcast(
        &mut self,
        root: usize,
        data: &mut Vec<u8>,
        timeout: Duration,
    ) -> Result<(), GroupError> {
        let is_root = root == self.rank();
        let length = if is_root {
            data.len() as u64
        } else {
            ANY_LENGTH
        };
        let what = (root, length);
        self.call_within(
            GroupOperation::Broadcast,
            what,
            timeout,
            |group, context| {
                if is_root {
                    group.send_to_children(context, data, 0)?;
                } else {
                    let before = std::mem::replace(data, group.take_broadcast(context)?);
                    group.shared.state().recycle(before);
                }
                Ok(data.len() as u64)
            },
        )
    }

    /// Like [`broadcast`](Self::broadcast), for a length that all members know.
    ///
    /// # Errors
    /// [`GroupError::Mismatch`] if the lengths differ; other [`GroupError`]s.
    pub fn broadcast_slice(
        &mut self,
        root: usize,
        data: &mut [u8],
        timeout: Duration,
    ) -> Result<(), GroupError> {
        let what = (root, data.len() as u64);
        self.call_within(
            GroupOperation::Broadcast,
            what,
            timeout,
            |group, context| {
                if root == group.rank() {
                    group.send_to_children(context, data, 0)?;
                } else {
                    let received = group.take_broadcast(context)?;
                    data.copy_from_slice(&received);
                    group.shared.state().recycle(received);
                }
                Ok(data.len() as u64)
            },
        )
    }

    /// Combines the bytes of all members, which have the same length, into `data` on `root`;
    /// elsewhere `data` stays as it is. `combine` merges its second argument, from higher ranks,
    /// into its first. It must be associative but need not be commutative. The order of merging
    /// depends only on the number of members, so equal input gives equal results.
    ///
    /// # Errors
    /// [`GroupError::Mismatch`] if the lengths differ; other [`GroupError`]s.
    pub fn reduce(
        &mut self,
        root: usize,
        data: &mut [u8],
        combine: impl FnMut(&mut [u8], &[u8]),
        timeout: Duration,
    ) -> Result<(), GroupError> {
        self.reduce_in(Order::Ranks, root, data, combine, timeout)
    }

    /// Like [`reduce`](Self::reduce), but all members get the result.
    ///
    /// # Errors
    /// The errors of [`reduce`](Self::reduce).
    pub fn allreduce(
        &mut self,
        data: &mut [u8],
        mut combine: impl FnMut(&mut [u8], &[u8]),
        timeout: Duration,
    ) -> Result<(), GroupError> {
        let what = (0, data.len() as u64);
        self.call_within(
            GroupOperation::Allreduce,
            what,
            timeout,
            |group, context| {
                let mut work = group.working_copy(data);
                let reduced = group.reduce_for_all(context, &mut work, &mut combine);
                if reduced.is_ok() {
                    data.copy_from_slice(&work);
                }
                group.work = work;
                reduced.map(|()| data.len() as u64)
            },
        )
    }

    /// Element-wise [`reduce`](Self::reduce) of numbers. Unless these are sums of `f64`, whose last
    /// bits depend on the order, the numbers are combined on each node first, and one message
    /// leaves it.
    ///
    /// # Errors
    /// The errors of `reduce`.
    pub fn reduce_numbers<T: Number>(
        &mut self,
        root: usize,
        numbers: &mut [T],
        how: Combine,
        timeout: Duration,
    ) -> Result<(), GroupError> {
        let mut bytes = to_bytes(numbers);
        self.reduce_in(
            how.order::<T>(),
            root,
            &mut bytes,
            how.bytes::<T>(),
            timeout,
        )?;
        from_bytes(&bytes, numbers);
        Ok(())
    }

    /// Element-wise [`allreduce`](Self::allreduce) of numbers.
    ///
    /// # Errors
    /// The errors of `reduce`.
    pub fn allreduce_numbers<T: Number>(
        &mut self,
        numbers: &mut [T],
        how: Combine,
        timeout: Duration,
    ) -> Result<(), GroupError> {
        let mut bytes = to_bytes(numbers);
        self.allreduce(&mut bytes, how.bytes::<T>(), timeout)?;
        from_bytes(&bytes, numbers);
        Ok(())
    }

    /// Runs a call of the program, preceded by an internal barrier if members might otherwise run
    /// too far ahead of each other.
    pub(super) fn call_within(
        &mut self,
        operation: GroupOperation,
        (root, length): (usize, u64),
        timeout: Duration,
        body: impl FnOnce(&mut Group, &CallContext) -> Result<u64, GroupError>,
    ) -> Result<(), GroupError> {
        if root >= self.size() {
            let cause = format!("there is no rank {root} among {} members", self.size());
            return Err(GroupError::Members { cause });
        }
        let deadline = Deadline::after(timeout);
        let (calls, bytes) = self.ahead;
        if calls >= MAX_CALLS_AHEAD || bytes >= MAX_BYTES_AHEAD {
            let fence = GroupCall {
                operation: GroupOperation::Fence,
                root: 0,
                length: 0,
            };
            self.call(fence, deadline, |group, context| {
                group.disseminate(context, &[]).map(|()| 0)
            })?;
            self.ahead = (0, 0);
        }
        let call = GroupCall {
            operation,
            root: u32::try_from(root).expect("fewer members than endpoints"),
            length,
        };
        self.call(call, deadline, body)
    }

    /// Runs one call. `body` returns the number of bytes it moved.
    pub(super) fn call(
        &mut self,
        call: GroupCall,
        deadline: Deadline,
        body: impl FnOnce(&mut Group, &CallContext) -> Result<u64, GroupError>,
    ) -> Result<(), GroupError> {
        let begun = self.shared.state().begin(call);
        let Some(number) = begun else {
            return Err(self.ended());
        };
        let context = CallContext {
            number,
            deadline,
            call,
            awaits_joiners: false,
        };
        let done = body(self, &context);
        if done.is_err() {
            // End the generation if it has not ended: it cannot continue without this member.
            self.left(self.rank());
        }
        let length = *done.as_ref().unwrap_or(&0);
        self.shared.state().finish(length);
        self.ahead = (self.ahead.0 + 1, self.ahead.1 + length);
        done.map(drop)
    }

    /// Dissemination barrier; each message carries `data`.
    pub(super) fn disseminate(
        &mut self,
        context: &CallContext,
        data: &[u8],
    ) -> Result<(), GroupError> {
        let (rank, size) = (self.rank(), self.size());
        for (round, at) in (0..shape::rounds(size)).zip(0_u8..) {
            let (to, from) = shape::partners(rank, size, round);
            self.send(context, to, at, data)?;
            self.receive(context, from, at)?;
            if context.number == 0 {
                // Open the edge now: only an open edge can show later that the member is gone.
                self.edge(from)?;
            }
        }
        Ok(())
    }

    /// Sends `data` from offset `from` on to the children in the broadcast tree.
    fn send_to_children(
        &mut self,
        context: &CallContext,
        data: &[u8],
        from: usize,
    ) -> Result<(), GroupError> {
        let roster = Arc::clone(&self.roster);
        let (rank, root) = (self.rank(), context.root());
        for (at, piece) in pieces(data, from) {
            for child in roster.placement.children(rank, root) {
                let part = Part {
                    round: 0,
                    rank: context.call.root,
                    length: data.len(),
                    at,
                };
                self.send_piece(context, child, &part, piece)?;
            }
        }
        Ok(())
    }

    /// Waits for the broadcast, and forwards whatever the handler could not forward.
    fn take_broadcast(&mut self, context: &CallContext) -> Result<Vec<u8>, GroupError> {
        let (rank, root) = (self.rank(), context.root());
        let parent = self.roster.placement.parent(rank, root).unwrap_or(root);
        let key = (context.number, 0, context.call.root);
        let PendingMessage {
            bytes,
            forward_failed_at,
            ..
        } = self.wait_message(context, &key, parent)?;
        if let Some(from) = forward_failed_at {
            self.send_to_children(context, &bytes, from)?;
        }
        Ok(bytes)
    }

    /// Waits for the message that a rank sends in a round.
    pub(super) fn receive(
        &mut self,
        context: &CallContext,
        from: usize,
        round: u8,
    ) -> Result<Vec<u8>, GroupError> {
        let rank = u32::try_from(from).expect("fewer members than endpoints");
        Ok(self
            .wait_message(context, &(context.number, round, rank), from)?
            .bytes)
    }

    /// Waits for a message from `from`.
    fn wait_message(
        &mut self,
        context: &CallContext,
        key: &MessageKey,
        from: usize,
    ) -> Result<PendingMessage, GroupError> {
        let traced = self.port.trace_wait();
        let received = self.await_message(context, key, from);
        if let Some(traced) = traced {
            let length = received.as_ref().ok().map(|message| message.bytes.len());
            let arrived = length.map(|length| (self.roster.address(from), length));
            traced.end_receive(Some(self.port.address()), arrived);
        }
        received
    }

    /// Waits for a message from `from`, and probes it from time to time.
    fn await_message(
        &mut self,
        context: &CallContext,
        key: &MessageKey,
        from: usize,
    ) -> Result<PendingMessage, GroupError> {
        let rank = u32::try_from(from).expect("fewer members than endpoints");
        let (mut pause, mut long) = (FIRST_PROBE, LongWait::new());
        loop {
            let (port, shared) = (&self.port, &self.shared);
            let waited = port.wait_until(pause, || shared.state().is_resolved(key, rank));
            waited.map_err(GroupError::Port)?;
            let (taken, has_ended, has_left) = {
                let mut state = self.shared.state();
                (
                    state.take(key),
                    state.ended().is_some(),
                    state.has_left(rank),
                )
            };
            if let Some(taken) = taken {
                return Ok(taken);
            }
            if has_ended {
                return Err(self.ended());
            }
            if has_left {
                return Err(self.left(from));
            }
            self.check_cancelled(from)?;
            let left = context.deadline.left();
            if left.is_zero() {
                return Err(self.timed_out(from));
            }
            self.report_if_long(&mut long, context, from);
            match context.awaits_joiners {
                true => self.resend_start(context, from, key.1)?,
                false => self.probe(context, key, from)?,
            }
            pause = (2 * pause).min(SEND_RETRY_INTERVAL).min(left);
        }
    }

    /// Resends the start messages, because a member may have restarted after it received them
    /// (duplicates are ignored), and probes the member this call waits for.
    fn resend_start(
        &mut self,
        context: &CallContext,
        from: usize,
        rounds: u8,
    ) -> Result<(), GroupError> {
        let (own, rank, size) = (self.roster.own_rank(), self.rank(), self.size());
        let list = members_to_bytes(&self.roster.members.pairs());
        for round in 0..=rounds {
            let (to, _) = shape::partners(rank, size, u32::from(round));
            for (at, piece) in pieces(&list, 0) {
                let part = Part {
                    round,
                    rank: own,
                    length: list.len(),
                    at,
                };
                self.build_message(context, &part, piece);
                let edge = self.edge(to)?;
                self.forget_if_lost(to, edge.try_send(&self.scratch))?;
            }
        }
        let asked = self.send_probe(context, from);
        self.forget_if_lost(from, asked)
    }

    /// Sends a message to a rank in a round.
    pub(super) fn send(
        &mut self,
        context: &CallContext,
        to: usize,
        round: u8,
        data: &[u8],
    ) -> Result<(), GroupError> {
        let rank = self.roster.own_rank();
        for (at, piece) in pieces(data, 0) {
            let part = Part {
                round,
                rank,
                length: data.len(),
                at,
            };
            self.send_piece(context, to, &part, piece)?;
        }
        Ok(())
    }

    /// Sends a piece of a message.
    fn send_piece(
        &mut self,
        context: &CallContext,
        to: usize,
        part: &Part,
        piece: &[u8],
    ) -> Result<(), GroupError> {
        self.build_message(context, part, piece);
        let mut long = LongWait::new();
        loop {
            let patience = context.deadline.left().min(SEND_RETRY_INTERVAL);
            let edge = self.edge(to)?;
            let sent = long.part(|| edge.send_timeout(&self.scratch, patience));
            match sent {
                Ok(()) => return Ok(()),
                Err(cause) => {
                    self.check_cancelled(to)?;
                    self.on_send_error(context, to, cause)?;
                }
            }
        }
    }

    /// Logs a wait for a member that lasts long.
    fn report_if_long(&self, wait: &mut LongWait, context: &CallContext, waiting_for: usize) {
        if let Some(waited) = wait.due() {
            let (seconds, member) = (waited.as_secs(), self.member(waiting_for));
            let operation = context.call.operation;
            tracing::warn!("waiting for {seconds} s: {member} to take part in {operation}");
        }
    }

    /// Ends the generation if the program has cancelled this call, which waits for a member.
    fn check_cancelled(&self, waiting_for: usize) -> Result<(), GroupError> {
        if dipole_node::is_cancelled() {
            self.timed_out(waiting_for);
            return Err(GroupError::Interrupted);
        }
        Ok(())
    }

    /// Writes head and piece of a message to `scratch`.
    fn build_message(&mut self, context: &CallContext, part: &Part, piece: &[u8]) {
        let Part {
            round,
            rank,
            length,
            at,
        } = *part;
        let head = GroupHead {
            kind: GroupKind::Data,
            call: GroupCall {
                length: length as u64,
                ..context.call
            },
            round,
            rank,
            generation: self.roster.members.generation,
            list: self.roster.list,
            number: context.number,
            offset: at as u64,
        };
        self.scratch.clear();
        self.scratch.extend(head.to_bytes());
        self.scratch.extend_from_slice(piece);
    }
}

/// Splits the data after `from` into pieces with their offsets; empty data gives one empty piece.
fn pieces(data: &[u8], from: usize) -> impl Iterator<Item = (usize, &[u8])> {
    let empty = (data.len() == from).then_some((from, &[][..]));
    let cut = data[from..].chunks(PIECE_BYTES).enumerate();
    empty
        .into_iter()
        .chain(cut.map(move |(at, piece)| (from + at * PIECE_BYTES, piece)))
}

fn to_bytes<T: Number>(numbers: &[T]) -> Vec<u8> {
    let bytes = numbers.iter().flat_map(|number| number.to_bytes());
    bytes.collect()
}

fn from_bytes<T: Number>(bytes: &[u8], numbers: &mut [T]) {
    for (number, bytes) in numbers.iter_mut().zip(bytes.as_chunks().0) {
        *number = T::from_bytes(*bytes);
    }
}
