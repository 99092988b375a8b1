//! The calls of a group.

use std::time::Duration;

use dipole_proto::wire::{
    ANY_LENGTH, GroupCall, GroupHead, GroupKind, GroupOperation, members_to_bytes,
};

use super::board::{Key, RUN_AHEAD, Transfer};
use super::error::Deadline;
use super::shape::{self, Seat};
use super::{Combine, Group, GroupError, Number};

/// When a member that is waited for is first asked whether it is still there.
const FIRST_PROBE: Duration = Duration::from_millis(20);
/// A longer message goes in pieces of this length, so that it is passed on while it comes.
const PIECE_BYTES: usize = 64 << 10;
/// Bytes that members move between two barriers of the group's own.
const RUN_AHEAD_BYTES: u64 = 32 << 20;
/// How often a thread that cannot send looks whether the generation has ended.
const SEND_SLICE: Duration = Duration::from_millis(100);
/// Rounds of a reduction: of folded ranks, of seats, and of what comes back.
const FOLD_ROUND: u8 = 0;
const FIRST_ROUND: u8 = 1;
const LAST_ROUND: u8 = 255;

/// A call in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub(super) number: u64,
    pub(super) deadline: Deadline,
    call: GroupCall,
    /// Members that cannot be reached may still come.
    pub(super) is_patient: bool,
}

impl Turn {
    pub(super) fn patient(&self, is_patient: bool) -> Turn {
        Turn {
            is_patient,
            ..*self
        }
    }

    fn root(&self) -> usize {
        self.call.root as usize
    }
}

/// A piece of a transfer: of which, and where it begins.
struct Part {
    round: u8,
    /// The rank that has begun the transfer.
    rank: u32,
    /// Bytes of the whole transfer.
    length: usize,
    at: usize,
}

impl Group {
    /// Returns when all members have called it.
    ///
    /// # Errors
    /// [`GroupError`].
    pub fn barrier(&mut self, timeout: Duration) -> Result<(), GroupError> {
        self.call_within(GroupOperation::Barrier, (0, 0), timeout, |group, turn| {
            group.disseminate(turn, &[]).map(|()| 0)
        })
    }

    /// The bytes of `root` come to all: there `data` are sent, elsewhere they are replaced. Of
    /// any length.
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
        self.call_within(GroupOperation::Broadcast, what, timeout, |group, turn| {
            if is_root {
                group.broadcast_on(turn, data, 0)?;
            } else {
                let before = std::mem::replace(data, group.take_broadcast(turn)?);
                group.shared.board().recycle(before);
            }
            Ok(data.len() as u64)
        })
    }

    /// The same where all know the length.
    ///
    /// # Errors
    /// [`GroupError::Mismatch`]: the lengths differ; other [`GroupError`]s.
    pub fn broadcast_slice(
        &mut self,
        root: usize,
        data: &mut [u8],
        timeout: Duration,
    ) -> Result<(), GroupError> {
        let what = (root, data.len() as u64);
        self.call_within(GroupOperation::Broadcast, what, timeout, |group, turn| {
            if root == group.rank() {
                group.broadcast_on(turn, data, 0)?;
            } else {
                let came = group.take_broadcast(turn)?;
                data.copy_from_slice(&came);
                group.shared.board().recycle(came);
            }
            Ok(data.len() as u64)
        })
    }

    /// Combines the bytes of all members, of the same length, into those of `root`; elsewhere they
    /// stay. `combine` makes of two neighbouring results one, in the place of the first, which is
    /// of the lower ranks. It must be associative, need not be commutative. In what order it is
    /// used depends on the number of members alone, so equal bytes give equal results.
    ///
    /// # Errors
    /// [`GroupError::Mismatch`]: the lengths differ; other [`GroupError`]s.
    pub fn reduce(
        &mut self,
        root: usize,
        data: &mut [u8],
        mut combine: impl FnMut(&mut [u8], &[u8]),
        timeout: Duration,
    ) -> Result<(), GroupError> {
        let what = (root, data.len() as u64);
        self.call_within(GroupOperation::Reduce, what, timeout, |group, turn| {
            let mut work = group.working_copy(data);
            let reduced = group.reduce_to_root(turn, &mut work, &mut combine);
            if reduced.is_ok() && root == group.rank() {
                data.copy_from_slice(&work);
            }
            group.work = work;
            reduced.map(|()| data.len() as u64)
        })
    }

    /// The same, and all have the result.
    ///
    /// # Errors
    /// Those of [`reduce`](Self::reduce).
    pub fn allreduce(
        &mut self,
        data: &mut [u8],
        mut combine: impl FnMut(&mut [u8], &[u8]),
        timeout: Duration,
    ) -> Result<(), GroupError> {
        let what = (0, data.len() as u64);
        self.call_within(GroupOperation::Allreduce, what, timeout, |group, turn| {
            let mut work = group.working_copy(data);
            let reduced = group.reduce_for_all(turn, &mut work, &mut combine);
            if reduced.is_ok() {
                data.copy_from_slice(&work);
            }
            group.work = work;
            reduced.map(|()| data.len() as u64)
        })
    }

    /// [`reduce`](Self::reduce) of numbers, each with those at the same place.
    ///
    /// # Errors
    /// Those of `reduce`.
    pub fn reduce_numbers<T: Number>(
        &mut self,
        root: usize,
        numbers: &mut [T],
        how: Combine,
        timeout: Duration,
    ) -> Result<(), GroupError> {
        let mut bytes = to_bytes(numbers);
        self.reduce(root, &mut bytes, how.bytes::<T>(), timeout)?;
        from_bytes(&bytes, numbers);
        Ok(())
    }

    /// [`allreduce`](Self::allreduce) of numbers, each with those at the same place.
    ///
    /// # Errors
    /// Those of `reduce`.
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

    /// A call of the program's, after one of the group's own if members might else run too far
    /// ahead of each other.
    fn call_within(
        &mut self,
        operation: GroupOperation,
        (root, length): (usize, u64),
        timeout: Duration,
        body: impl FnOnce(&mut Group, &Turn) -> Result<u64, GroupError>,
    ) -> Result<(), GroupError> {
        if root >= self.size() {
            let cause = format!("there is no rank {root} among {} members", self.size());
            return Err(GroupError::Members { cause });
        }
        let deadline = Deadline::after(timeout);
        let (calls, bytes) = self.ahead;
        if calls >= RUN_AHEAD || bytes >= RUN_AHEAD_BYTES {
            let fence = GroupCall {
                operation: GroupOperation::Fence,
                root: 0,
                length: 0,
            };
            self.call(fence, deadline, |group, turn| {
                group.disseminate(turn, &[]).map(|()| 0)
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

    /// A call. `body` returns how many bytes it turned out to be about.
    pub(super) fn call(
        &mut self,
        call: GroupCall,
        deadline: Deadline,
        body: impl FnOnce(&mut Group, &Turn) -> Result<u64, GroupError>,
    ) -> Result<(), GroupError> {
        let begun = self.shared.board().begin(call);
        let Some(number) = begun else {
            return Err(self.ended());
        };
        let turn = Turn {
            number,
            deadline,
            call,
            is_patient: false,
        };
        let done = body(self, &turn);
        if done.is_err() {
            // If it has not ended: without this member it does not go on.
            self.left(self.rank());
        }
        let length = *done.as_ref().unwrap_or(&0);
        self.shared.board().finish(length);
        self.ahead = (self.ahead.0 + 1, self.ahead.1 + length);
        done.map(drop)
    }

    /// Tells all, and hears from all, that they are here.
    pub(super) fn disseminate(&mut self, turn: &Turn, data: &[u8]) -> Result<(), GroupError> {
        let (rank, size) = (self.rank(), self.size());
        for (round, at) in (0..shape::rounds(size)).zip(0_u8..) {
            let (to, from) = shape::partners(rank, size, round);
            self.send(turn, to, at, data)?;
            self.hear(turn, from, at)?;
            if turn.number == 0 {
                // While it is there: whether it is gone shows only at an edge that was open.
                self.edge(from)?;
            }
        }
        Ok(())
    }

    /// Sends to those below in the tree what begins at `from`.
    fn broadcast_on(&mut self, turn: &Turn, data: &[u8], from: usize) -> Result<(), GroupError> {
        let (rank, root, size) = (self.rank(), turn.root(), self.size());
        for (at, piece) in pieces(data, from) {
            for child in shape::children(rank, root, size) {
                let part = Part {
                    round: 0,
                    rank: turn.call.root,
                    length: data.len(),
                    at,
                };
                self.send_piece(turn, child, &part, piece)?;
            }
        }
        Ok(())
    }

    /// What the root sent. The handler has passed it on, or as much of it as it could.
    fn take_broadcast(&mut self, turn: &Turn) -> Result<Vec<u8>, GroupError> {
        let (rank, root, size) = (self.rank(), turn.root(), self.size());
        let parent = shape::parent(rank, root, size).unwrap_or(root);
        let key = (turn.number, 0, turn.call.root);
        let Transfer {
            bytes, stuck_at, ..
        } = self.wait(turn, &key, parent)?;
        if let Some(from) = stuck_at {
            self.broadcast_on(turn, &bytes, from)?;
        }
        Ok(bytes)
    }

    fn working_copy(&mut self, data: &[u8]) -> Vec<u8> {
        let mut work = std::mem::take(&mut self.work);
        work.clear();
        work.extend_from_slice(data);
        work
    }

    /// Combines what a rank beyond the seats gives, or gives it; the own seat, if any.
    fn fold(
        &mut self,
        turn: &Turn,
        data: &mut [u8],
        combine: &mut dyn FnMut(&mut [u8], &[u8]),
    ) -> Result<Option<usize>, GroupError> {
        match shape::seat(self.rank(), self.size()) {
            Seat::Folded(into) => {
                self.send(turn, into, FOLD_ROUND, data)?;
                Ok(None)
            }
            Seat::Seated(seat, gives) => {
                if let Some(from) = gives {
                    self.combine(turn, (from, FOLD_ROUND), data, combine)?;
                }
                Ok(Some(seat))
            }
        }
    }

    /// Opens the edges that reductions take, for the same reason.
    pub(super) fn open_edges(&self) -> Result<(), GroupError> {
        let (rank, size) = (self.rank(), self.size());
        let folded = match shape::seat(rank, size) {
            Seat::Folded(into) => Some(into),
            Seat::Seated(seat, gives) => {
                for bit in 0..shape::seats(size).ilog2() {
                    self.edge(shape::seated(seat ^ (1 << bit), size))?;
                }
                gives
            }
        };
        match folded {
            Some(partner) => self.edge(partner).map(drop).map_err(GroupError::Send),
            None => Ok(()),
        }
    }

    /// Combines what `from` sends, which is of higher ranks.
    fn combine(
        &mut self,
        turn: &Turn,
        (from, round): (usize, u8),
        data: &mut [u8],
        combine: &mut dyn FnMut(&mut [u8], &[u8]),
    ) -> Result<(), GroupError> {
        let theirs = self.hear(turn, from, round)?;
        combine(data, &theirs);
        self.shared.board().recycle(theirs);
        Ok(())
    }

    fn reduce_to_root(
        &mut self,
        turn: &Turn,
        data: &mut [u8],
        combine: &mut dyn FnMut(&mut [u8], &[u8]),
    ) -> Result<(), GroupError> {
        let (rank, root, size) = (self.rank(), turn.root(), self.size());
        if let Some(seat) = self.fold(turn, data, combine)? {
            for (bit, round) in (0..shape::seats(size).ilog2()).zip(FIRST_ROUND..) {
                let distance = 1 << bit;
                if seat & distance != 0 {
                    let to = shape::seated(seat - distance, size);
                    self.send(turn, to, round, data)?;
                    break;
                }
                let from = shape::seated(seat + distance, size);
                self.combine(turn, (from, round), data, combine)?;
            }
        }
        // The order of combination is that of ranks, so the result is that of rank 0.
        match (rank, root) {
            (0, 0) => Ok(()),
            (0, _) => self.send(turn, root, LAST_ROUND, data),
            _ if rank == root => self.hear_all(turn, 0, data),
            _ => Ok(()),
        }
    }

    fn reduce_for_all(
        &mut self,
        turn: &Turn,
        data: &mut Vec<u8>,
        combine: &mut dyn FnMut(&mut [u8], &[u8]),
    ) -> Result<(), GroupError> {
        let (rank, size) = (self.rank(), self.size());
        let Some(seat) = self.fold(turn, data, combine)? else {
            return self.hear_all(turn, rank - 1, data);
        };
        for (bit, round) in (0..shape::seats(size).ilog2()).zip(FIRST_ROUND..) {
            let other = seat ^ (1 << bit);
            let partner = shape::seated(other, size);
            self.send(turn, partner, round, data)?;
            if other > seat {
                self.combine(turn, (partner, round), data, combine)?;
            } else {
                let mut theirs = self.hear(turn, partner, round)?;
                combine(&mut theirs, data);
                let ours = std::mem::replace(data, theirs);
                self.shared.board().recycle(ours);
            }
        }
        match shape::seat(rank, size) {
            Seat::Seated(_, Some(folded)) => self.send(turn, folded, LAST_ROUND, data),
            _ => Ok(()),
        }
    }

    /// The result, from a rank that has it.
    fn hear_all(&mut self, turn: &Turn, from: usize, data: &mut [u8]) -> Result<(), GroupError> {
        let result = self.hear(turn, from, LAST_ROUND)?;
        data.copy_from_slice(&result);
        self.shared.board().recycle(result);
        Ok(())
    }

    /// Waits for what a rank sends in a round.
    fn hear(&mut self, turn: &Turn, from: usize, round: u8) -> Result<Vec<u8>, GroupError> {
        let rank = u32::try_from(from).expect("fewer members than endpoints");
        Ok(self.wait(turn, &(turn.number, round, rank), from)?.bytes)
    }

    /// Waits for a message that `from` sends. From time to time it is asked whether it is
    /// still there.
    fn wait(&mut self, turn: &Turn, key: &Key, from: usize) -> Result<Transfer, GroupError> {
        let rank = u32::try_from(from).expect("fewer members than endpoints");
        let mut pause = FIRST_PROBE;
        loop {
            let (port, shared) = (&self.port, &self.shared);
            let waited = port.wait_until(pause, || shared.board().has_news(key, rank));
            waited.map_err(GroupError::Port)?;
            let (taken, has_ended, has_left) = {
                let mut board = self.shared.board();
                (
                    board.take(key),
                    board.ended().is_some(),
                    board.has_left(rank),
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
            let left = turn.deadline.left();
            if left.is_zero() {
                return Err(self.timed_out(from));
            }
            match turn.is_patient {
                true => self.tell_again(turn, from, key.1)?,
                false => self.probe(turn, key, from)?,
            }
            pause = (2 * pause).min(SEND_SLICE).min(left);
        }
    }

    /// Tells of a beginning again, since a member may have come back after it was told; it
    /// is filed once. The one that is waited for is asked whether it is still there.
    fn tell_again(&mut self, turn: &Turn, from: usize, rounds: u8) -> Result<(), GroupError> {
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
                self.compose(turn, &part, piece);
                let edge = self.edge(to)?;
                self.forget_if_lost(to, edge.try_send(&self.scratch))?;
            }
        }
        let asked = self.ask(turn, from);
        self.forget_if_lost(from, asked)
    }

    /// Sends to a rank in a round.
    fn send(&mut self, turn: &Turn, to: usize, round: u8, data: &[u8]) -> Result<(), GroupError> {
        let rank = self.roster.own_rank();
        for (at, piece) in pieces(data, 0) {
            let part = Part {
                round,
                rank,
                length: data.len(),
                at,
            };
            self.send_piece(turn, to, &part, piece)?;
        }
        Ok(())
    }

    /// Sends a piece.
    fn send_piece(
        &mut self,
        turn: &Turn,
        to: usize,
        part: &Part,
        piece: &[u8],
    ) -> Result<(), GroupError> {
        self.compose(turn, part, piece);
        loop {
            let patience = turn.deadline.left().min(SEND_SLICE);
            let sent = self.edge(to)?.send_timeout(&self.scratch, patience);
            match sent {
                Ok(()) => return Ok(()),
                Err(cause) => self.cannot_send(turn, to, cause)?,
            }
        }
    }

    /// Puts a message together.
    fn compose(&mut self, turn: &Turn, part: &Part, piece: &[u8]) {
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
                ..turn.call
            },
            round,
            rank,
            generation: self.roster.members.generation,
            list: self.roster.list,
            number: turn.number,
            offset: at as u64,
        };
        self.scratch.clear();
        self.scratch.extend(head.to_bytes());
        self.scratch.extend_from_slice(piece);
    }
}

/// The pieces of something from an offset on, and where they begin; one of nothing.
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
