//! What one process does: which elements it packs for whom, in which order, and where what it gets
//! belongs.

use std::ops::Range;

use crate::distribution::{Dimension, Distribution};
use crate::error::ReshuffleError;
use crate::rounds::schedule;
use crate::runs::{Runs, shared};

/// Carries the messages of a reshuffle between processes.
pub trait Exchange<T> {
    /// What can go wrong on the way.
    type Error: From<ReshuffleError>;

    /// Memory for all that this process sends.
    fn outgoing(&mut self) -> &mut [T];

    /// Sends a part of it to where the transfer says; called in the order of the rounds. It need not
    /// leave before [`finish`](Self::finish).
    ///
    /// # Errors
    /// The way is broken.
    fn send(&mut self, transfer: &Transfer) -> Result<(), Self::Error>;

    /// Returns when all that this process gets is there.
    ///
    /// # Errors
    /// The way is broken, or a process is gone.
    fn finish(&mut self) -> Result<(), Self::Error>;

    /// Memory with all that this process got.
    fn incoming(&self) -> &[T];
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Whom it goes to or comes from.
    pub peer: u32,
    /// In which round, from 0.
    pub round: u32,
    /// Which elements of the outgoing or incoming memory of this process it is.
    pub range: Range<usize>,
    /// Where it begins in the incoming memory of its receiver, in elements.
    pub at: usize,
}

/// Elements that this process and another share, and where they are in its part.
#[derive(Clone, Debug)]
struct Piece {
    /// Along each dimension, the slowest first.
    runs: Vec<Runs>,
    /// Elements between neighbours along each dimension, here and there.
    own_strides: Vec<usize>,
    other_strides: Vec<usize>,
}

/// See the module.
#[derive(Debug)]
pub struct Plan {
    rank: u32,
    ranks: u32,
    rounds: u32,
    source_elements: usize,
    target_elements: usize,
    sends: Vec<(Transfer, Piece)>,
    receives: Vec<(Transfer, Piece)>,
    /// What this process has before and after.
    stays: Option<Piece>,
}

impl Plan {
    /// What `rank` does to get an array from one distribution to another.
    ///
    /// # Errors
    /// [`ReshuffleError::Extents`].
    pub fn new(from: &Distribution, to: &Distribution, rank: u32) -> Result<Plan, ReshuffleError> {
        if from.extents() != to.extents() {
            return Err(ReshuffleError::Extents {
                from: from.extents(),
                to: to.extents(),
            });
        }
        let ranks = from.ranks().max(to.ranks());
        let volumes = Volumes::new(from, to);
        let (mut sends, mut stays) = (Vec::new(), None);
        for (peer, piece) in pieces(from, rank, to) {
            match peer == rank {
                true => stays = Some(piece),
                false => sends.push((peer, piece)),
            }
        }
        let receives = pieces(to, rank, from)
            .into_iter()
            .filter(|(peer, _)| *peer != rank);
        let moves = |from: usize, to: usize| from != to && volumes.between(from, to) > 0;
        let (order, rounds) = schedule(ranks as usize, rank as usize, moves);
        let mut plan = Plan {
            rank,
            ranks,
            rounds,
            source_elements: from.elements(rank),
            target_elements: to.elements(rank),
            sends: Vec::new(),
            receives: Vec::new(),
            stays,
        };
        let mut at = 0;
        for (round, peer) in order {
            let peer = u32::try_from(peer).unwrap_or(u32::MAX);
            let Some(found) = sends.iter().position(|(to, _)| *to == peer) else {
                continue;
            };
            let (_, piece) = sends.swap_remove(found);
            let range = at..at + piece.count();
            at = range.end;
            // Each receiver has its messages in the order of their senders.
            let before = (0..rank).map(|sender| volumes.between(sender as usize, peer as usize));
            let before = before.sum::<usize>() - volumes.own_before(rank, peer);
            let transfer = Transfer {
                peer,
                round,
                range,
                at: before,
            };
            plan.sends.push((transfer, piece));
        }
        let mut at = 0;
        let mut receives: Vec<(u32, Piece)> = receives.collect();
        receives.sort_unstable_by_key(|(peer, _)| *peer);
        for (peer, piece) in receives {
            let range = at..at + piece.count();
            let transfer = Transfer {
                peer,
                round: 0,
                at,
                range: range.clone(),
            };
            at = range.end;
            plan.receives.push((transfer, piece));
        }
        Ok(plan)
    }

    /// The rank that does this.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Processes of the larger grid.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Rounds in which all processes' messages go.
    #[must_use]
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Elements that this process has before.
    #[must_use]
    pub fn source_elements(&self) -> usize {
        self.source_elements
    }

    /// Elements that it has afterwards.
    #[must_use]
    pub fn target_elements(&self) -> usize {
        self.target_elements
    }

    /// Messages that it sends, in the order of their rounds.
    pub fn sends(&self) -> impl Iterator<Item = &Transfer> {
        self.sends.iter().map(|(transfer, _)| transfer)
    }

    /// Messages that it gets.
    pub fn receives(&self) -> impl Iterator<Item = &Transfer> {
        self.receives.iter().map(|(transfer, _)| transfer)
    }

    /// Elements that this process sends to others.
    #[must_use]
    pub fn outgoing_elements(&self) -> usize {
        self.sends().map(|transfer| transfer.range.len()).sum()
    }

    /// Elements that others send to it.
    #[must_use]
    pub fn incoming_elements(&self) -> usize {
        self.receives().map(|transfer| transfer.range.len()).sum()
    }

    /// Reshuffles: `source` is this process's part before, `target` afterwards. All processes
    /// of both grids call it.
    ///
    /// # Errors
    /// [`ReshuffleError::Memory`], and what the exchange says.
    pub fn run<T: Copy, E: Exchange<T>>(
        &self,
        exchange: &mut E,
        source: &[T],
        target: &mut [T],
    ) -> Result<(), E::Error> {
        self.check("the source", source.len(), self.source_elements)?;
        self.check("the target", target.len(), self.target_elements)?;
        self.pack(source, exchange)?;
        if let Some(stays) = &self.stays {
            stays.each(|from, to, length| copy(source, from, target, to, length));
        }
        exchange.finish()?;
        self.unpack(exchange, target)
    }

    /// The same in place: `memory` holds this process's part before, and afterwards. Of what
    /// stays with the process, but elsewhere, a copy is made meanwhile.
    ///
    /// # Errors
    /// Those of [`run`](Self::run); unless the memory was wrong it may hold anything.
    pub fn run_in_place<T: Copy + Default, E: Exchange<T>>(
        &self,
        exchange: &mut E,
        memory: &mut Vec<T>,
    ) -> Result<(), E::Error> {
        self.check("the memory", memory.len(), self.source_elements)?;
        self.pack(memory, exchange)?;
        let stays = self.stays.as_ref().map(|piece| {
            let mut copied = Vec::with_capacity(piece.count());
            piece.each(|from, _, length| copied.extend_from_slice(&memory[from..from + length]));
            (piece, copied)
        });
        memory.resize(self.target_elements, T::default());
        if let Some((piece, copied)) = stays {
            let mut at = 0;
            piece.each(|_, to, length| {
                copy(&copied, at, memory, to, length);
                at += length;
            });
        }
        exchange.finish()?;
        self.unpack(exchange, memory)
    }

    fn check(&self, what: &'static str, found: usize, wanted: usize) -> Result<(), ReshuffleError> {
        let rank = self.rank;
        match found == wanted {
            true => Ok(()),
            false => Err(ReshuffleError::Memory {
                rank,
                what,
                found,
                wanted,
            }),
        }
    }

    /// Packs all messages, and sends each as soon as it is.
    fn pack<T: Copy, E: Exchange<T>>(
        &self,
        source: &[T],
        exchange: &mut E,
    ) -> Result<(), E::Error> {
        let room = exchange.outgoing().len();
        let wanted = self.outgoing_elements();
        self.check(
            "the outgoing memory of the exchange",
            room.min(wanted),
            wanted,
        )?;
        for (transfer, piece) in &self.sends {
            let packed = &mut exchange.outgoing()[transfer.range.clone()];
            let mut at = 0;
            piece.each(|from, _, length| {
                copy(source, from, packed, at, length);
                at += length;
            });
            exchange.send(transfer)?;
        }
        Ok(())
    }

    fn unpack<T: Copy, E: Exchange<T>>(
        &self,
        exchange: &E,
        target: &mut [T],
    ) -> Result<(), E::Error> {
        let incoming = exchange.incoming();
        let wanted = self.incoming_elements();
        let found = incoming.len().min(wanted);
        self.check("the incoming memory of the exchange", found, wanted)?;
        for (transfer, piece) in &self.receives {
            let packed = &incoming[transfer.range.clone()];
            let mut at = 0;
            piece.each(|to, _, length| {
                copy(packed, at, target, to, length);
                at += length;
            });
        }
        Ok(())
    }
}

/// A run of one element is not worth a call.
#[inline]
fn copy<T: Copy>(from: &[T], start: usize, to: &mut [T], place: usize, length: usize) {
    match length {
        1 => to[place] = from[start],
        _ => to[place..place + length].copy_from_slice(&from[start..start + length]),
    }
}

/// What `rank` shares with the ranks of another distribution, where that is anything.
fn pieces(own: &Distribution, rank: u32, other: &Distribution) -> Vec<(u32, Piece)> {
    let (Some(coordinates), Some(part)) = (own.coordinates(rank), own.part(rank)) else {
        return Vec::new();
    };
    let dimensions = own.dimensions().iter().zip(other.dimensions());
    let along: Vec<Vec<Runs>> = (dimensions.zip(&coordinates))
        .map(|((own, other), coordinate)| shared(own, *coordinate, other))
        .collect();
    let peers = (0..other.ranks()).filter_map(|peer| {
        let theirs = other.coordinates(peer)?;
        let runs = along.iter().zip(&theirs).map(|(runs, at)| &runs[*at]);
        if runs.clone().any(Runs::is_empty) {
            return None;
        }
        let runs = runs.cloned().collect();
        Some((peer, Piece::new(runs, &part, &other.part(peer)?)))
    });
    peers.collect()
}

impl Piece {
    /// Of parts of these shapes.
    fn new(mut runs: Vec<Runs>, own: &[usize], other: &[usize]) -> Piece {
        let strides = |part: &[usize]| {
            let mut strides = vec![1; part.len()];
            for at in (1..part.len()).rev() {
                strides[at - 1] = strides[at] * part[at];
            }
            strides
        };
        let (mut own_strides, mut other_strides) = (strides(own), strides(other));
        // Rows that are whole on both sides lie behind each other: one run of single elements.
        let mut row = 1;
        while let [.., before, last] = &mut runs[..] {
            let dimension = own_strides.len() - 1;
            if !last.is_all(own[dimension] * row, other[dimension] * row) {
                break;
            }
            row *= own[dimension];
            *before = before.times(row);
            runs.pop();
            own_strides.pop();
            other_strides.pop();
        }
        Piece {
            runs,
            own_strides,
            other_strides,
        }
    }

    fn count(&self) -> usize {
        self.runs.iter().map(Runs::count).product()
    }

    /// Calls `each` with the beginnings here and there and the length of each run, in the order of
    /// the array.
    #[inline]
    fn each(&self, mut each: impl FnMut(usize, usize, usize)) {
        match &self.runs[..] {
            // An array of no dimensions is one element.
            [] => each(0, 0, 1),
            _ => self.each_from(0, (0, 0), &mut each),
        }
    }

    fn each_from(
        &self,
        dimension: usize,
        (own, other): (usize, usize),
        each: &mut impl FnMut(usize, usize, usize),
    ) {
        let runs = &self.runs[dimension];
        if dimension + 1 == self.runs.len() {
            runs.each(|here, there, length| each(own + here, other + there, length));
            return;
        }
        let strides = (self.own_strides[dimension], self.other_strides[dimension]);
        runs.each(|here, there, length| {
            for at in 0..length {
                let own = own + (here + at) * strides.0;
                let other = other + (there + at) * strides.1;
                self.each_from(dimension + 1, (own, other), each);
            }
        });
    }
}

/// How many elements each pair of ranks shares, along each dimension by coordinates.
struct Volumes<'a> {
    from: &'a Distribution,
    to: &'a Distribution,
    along: Vec<Vec<Vec<usize>>>,
}

impl Volumes<'_> {
    fn new<'a>(from: &'a Distribution, to: &'a Distribution) -> Volumes<'a> {
        let table = |(from, to): (&Dimension, &Dimension)| {
            let rows = (0..from.processes).map(|coordinate| shared(from, coordinate, to));
            rows.map(|row| row.iter().map(Runs::count).collect())
                .collect()
        };
        let dimensions = from.dimensions().iter().zip(to.dimensions());
        Volumes {
            from,
            to,
            along: dimensions.map(table).collect(),
        }
    }

    fn between(&self, from: usize, to: usize) -> usize {
        let (mut from, mut to, mut count) = (from, to, 1);
        for (at, table) in self.along.iter().enumerate().rev() {
            let (rows, columns) = (self.from.dimensions()[at], self.to.dimensions()[at]);
            count *= table[from % rows.processes][to % columns.processes];
            from /= rows.processes;
            to /= columns.processes;
        }
        match (from, to) {
            (0, 0) => count,
            // Beyond a grid.
            _ => 0,
        }
    }

    /// What a receiver has from itself, and does not get, if that counts before a sender's.
    fn own_before(&self, sender: u32, receiver: u32) -> usize {
        match receiver < sender {
            true => self.between(receiver as usize, receiver as usize),
            false => 0,
        }
    }
}
