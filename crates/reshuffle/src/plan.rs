//! The part of one process in a reshuffle: which elements it packs for which process, in which order,
//! and where the received elements belong.

use crate::distribution::{Dimension, Distribution};
use crate::error::ReshuffleError;
use crate::message::{Message, Transfer};
use crate::piece::Piece;
use crate::rounds::schedule;
use crate::runs::{Runs, shared};

/// Carries the messages of a reshuffle between processes.
pub trait Exchange<T> {
    /// The errors of this exchange.
    type Error: From<ReshuffleError>;

    /// Memory for everything that this process sends.
    fn outgoing(&mut self) -> &mut [T];

    /// Sends the part of it that the transfer describes. Called in the order of the rounds. The data need not leave
    /// before [`finish`](Self::finish).
    ///
    /// # Errors
    /// The data cannot be sent.
    fn send(&mut self, transfer: &Transfer) -> Result<(), Self::Error>;

    /// Returns once this process has received everything.
    ///
    /// # Errors
    /// Data cannot be sent or received, or a process has ended.
    fn finish(&mut self) -> Result<(), Self::Error>;

    /// Memory with everything that this process has received.
    fn incoming(&self) -> &[T];

    /// Unpacks a message that has arrived, from this memory unless the exchange can avoid a copy.
    ///
    /// # Errors
    /// The data cannot be received.
    fn unpack(&mut self, message: &Message, target: &mut [T]) -> Result<(), Self::Error>
    where
        T: Copy,
    {
        message.unpack(&self.incoming()[message.transfer().range.clone()], target);
        Ok(())
    }

    /// Called after all messages have been unpacked. Other processes may write to the memory afterwards.
    ///
    /// # Errors
    /// A process has ended.
    fn end(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// Messages and copies of one process.
#[derive(Debug)]
pub struct Plan {
    rank: u32,
    ranks: u32,
    rounds: u32,
    source_elements: usize,
    target_elements: usize,
    sends: Vec<Message>,
    receives: Vec<Message>,
    /// Elements that this process holds both before and after.
    stays: Option<Piece>,
}

impl Plan {
    /// The plan of `rank` to move an array from one distribution to another.
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
            // A receiver's messages are in the order of their senders.
            let before = (0..rank).map(|sender| volumes.between(sender as usize, peer as usize));
            let before = before.sum::<usize>() - volumes.own_before(rank, peer);
            let transfer = Transfer {
                peer,
                round,
                range,
                at: before,
            };
            plan.sends.push(Message { transfer, piece });
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
            plan.receives.push(Message { transfer, piece });
        }
        Ok(plan)
    }

    /// The rank that executes this plan.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of processes in the larger grid.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The number of rounds for the messages of all processes.
    #[must_use]
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Elements of this process before the reshuffle.
    #[must_use]
    pub fn source_elements(&self) -> usize {
        self.source_elements
    }

    /// Elements of this process after the reshuffle.
    #[must_use]
    pub fn target_elements(&self) -> usize {
        self.target_elements
    }

    /// Messages that this process sends, in the order of their rounds.
    pub fn sends(&self) -> impl Iterator<Item = &Transfer> {
        self.sends.iter().map(Message::transfer)
    }

    /// Messages that this process receives.
    pub fn receives(&self) -> impl Iterator<Item = &Transfer> {
        self.receives.iter().map(Message::transfer)
    }

    /// Messages that this process sends, with their contents.
    #[must_use]
    pub fn outgoing(&self) -> &[Message] {
        &self.sends
    }

    /// Messages that this process receives, with their contents.
    #[must_use]
    pub fn incoming(&self) -> &[Message] {
        &self.receives
    }

    /// Elements that this process keeps, perhaps at another position.
    #[must_use]
    pub fn staying_elements(&self) -> usize {
        self.stays.as_ref().map_or(0, Piece::count)
    }

    /// Copies the elements that stay from this process's old part to its new one.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn copy_staying<T: Copy>(&self, source: &[T], target: &mut [T]) {
        if let Some(stays) = &self.stays {
            stays.copy(source, target);
        }
    }

    /// Packs the elements that stay. Needed if both parts share one memory.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn pack_staying<T: Copy>(&self, source: &[T], packed: &mut [T]) {
        if let Some(stays) = &self.stays {
            stays.pack(source, packed);
        }
    }

    /// Unpacks the elements that stay.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn unpack_staying<T: Copy>(&self, packed: &[T], target: &mut [T]) {
        if let Some(stays) = &self.stays {
            stays.unpack_as_other(packed, target);
        }
    }

    /// Elements that this process sends to others.
    #[must_use]
    pub fn outgoing_elements(&self) -> usize {
        self.sends().map(|transfer| transfer.range.len()).sum()
    }

    /// Elements that other processes send to this one.
    #[must_use]
    pub fn incoming_elements(&self) -> usize {
        self.receives().map(|transfer| transfer.range.len()).sum()
    }

    /// Reshuffles: `source` is this process's part before, `target` its part after. All processes of both
    /// grids call it.
    ///
    /// # Errors
    /// [`ReshuffleError::Memory`], and the errors of the exchange.
    pub fn run<T: Copy, E: Exchange<T>>(
        &self,
        exchange: &mut E,
        source: &[T],
        target: &mut [T],
    ) -> Result<(), E::Error> {
        self.check("the source", source.len(), self.source_elements)?;
        self.check("the target", target.len(), self.target_elements)?;
        self.pack(source, exchange)?;
        self.copy_staying(source, target);
        exchange.finish()?;
        self.unpack(exchange, target)
    }

    /// Runs the plan in place: `memory` holds this process's part before and after. Elements that stay with the
    /// process are copied to a buffer in between.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run). Except after [`ReshuffleError::Memory`], the contents of the memory
    /// are then undefined.
    pub fn run_in_place<T: Copy + Default, E: Exchange<T>>(
        &self,
        exchange: &mut E,
        memory: &mut Vec<T>,
    ) -> Result<(), E::Error> {
        self.check("the memory", memory.len(), self.source_elements)?;
        self.pack(memory, exchange)?;
        let mut staying = vec![T::default(); self.staying_elements()];
        self.pack_staying(memory, &mut staying);
        memory.resize(self.target_elements, T::default());
        self.unpack_staying(&staying, memory);
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

    /// Packs all messages, and sends each at once.
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
        for message in &self.sends {
            let transfer = message.transfer();
            message.pack(source, &mut exchange.outgoing()[transfer.range.clone()]);
            exchange.send(transfer)?;
        }
        Ok(())
    }

    fn unpack<T: Copy, E: Exchange<T>>(
        &self,
        exchange: &mut E,
        target: &mut [T],
    ) -> Result<(), E::Error> {
        let wanted = self.incoming_elements();
        let found = exchange.incoming().len().min(wanted);
        self.check("the incoming memory of the exchange", found, wanted)?;
        for message in &self.receives {
            exchange.unpack(message, target)?;
        }
        exchange.end()
    }
}

/// The elements that `rank` shares with each rank of another distribution.
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

/// The number of elements that each pair of ranks shares, by coordinates along each dimension.
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
            // Ranks outside the grid exchange no elements.
            _ => 0,
        }
    }

    /// Elements that a receiver keeps, if they come before those of a sender. They are not in its messages.
    fn own_before(&self, sender: u32, receiver: u32) -> usize {
        match receiver < sender {
            true => self.between(receiver as usize, receiver as usize),
            false => 0,
        }
    }
}
