//! The messages of a superstep's end, between ranks that share no memory.
//!
//! Messages come in and go out; what they mean for memory is decided by who asks this. A rank
//! is at most one superstep ahead of another (the reduction is a barrier), so what comes is of this
//! superstep or of the next, and waits until that begins.

use std::collections::VecDeque;
use std::ops::Deref;

use bytes::Bytes;

use super::knowledge::{Knowledge, Ranks};
use super::message::{HEAD_BYTES, Head, Kind};
use super::rounds::Rounds;
use super::schedule::{Order, Turns};

/// Bytes of messages that may be kept where the link has put them: their senders' credit.
const LENT_BYTES: usize = 128 << 10;
/// Longest parcel that travels with the first round.
const INLINE_BYTES: usize = 1024;

/// A message from a rank that it cannot have meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {from} has sent a message that does not belong into superstep {superstep}")]
pub struct Unexpected {
    /// The rank.
    pub from: u32,
    /// Where it came.
    pub superstep: u32,
}

/// Which ranks share memory, and who speaks for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// The first rank of each node.
    leaders: Vec<u32>,
    /// The node of each rank, by its index in `leaders`.
    nodes: Vec<u32>,
}

impl Places {
    /// Of ranks that have such names of nodes.
    #[must_use]
    pub fn new<T: PartialEq>(names: &[T]) -> Places {
        let mut leaders: Vec<u32> = Vec::new();
        let mut nodes = Vec::with_capacity(names.len());
        for (rank, name) in (0..).zip(names) {
            let known = leaders
                .iter()
                .position(|leader| names[*leader as usize] == *name);
            let node = known.unwrap_or_else(|| {
                leaders.push(rank);
                leaders.len() - 1
            });
            nodes.push(u32::try_from(node).unwrap_or(u32::MAX));
        }
        Places { leaders, nodes }
    }

    /// Of the first ranks only.
    #[must_use]
    pub fn of_first(&self, ranks: u32) -> Places {
        Places::new(&self.nodes[..ranks as usize])
    }

    /// How many nodes there are.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.leaders.len()
    }

    /// The rank that speaks for a rank's node.
    #[must_use]
    pub fn leader(&self, rank: u32) -> u32 {
        self.leaders[self.nodes[rank as usize] as usize]
    }

    /// True if two ranks share memory.
    #[must_use]
    #[inline]
    pub fn are_together(&self, one: u32, other: u32) -> bool {
        self.nodes[one as usize] == self.nodes[other as usize]
    }

    /// The ranks of a rank's node.
    pub fn mates(&self, rank: u32) -> impl Iterator<Item = u32> {
        let node = self.nodes[rank as usize];
        let all = (0_u32..).zip(&self.nodes);
        all.filter(move |(_, of)| **of == node)
            .map(|(mate, _)| mate)
    }
}

/// Pieces of which it is known, once the first has come, how many there are.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    came: u32,
    total: Option<u32>,
}

impl Count {
    fn add(&mut self, index: u32, total: u32) -> Option<()> {
        let is_next = index == self.came && index < total;
        if !is_next || self.total.is_some_and(|known| known != total) {
            return None;
        }
        self.came += 1;
        self.total = Some(total);
        Some(())
    }

    fn is_complete(self) -> bool {
        self.total == Some(self.came)
    }
}

/// The body of a message: where the link has put it, or a copy.
#[derive(Debug)]
pub struct Body<M> {
    message: Held<M>,
    start: usize,
}

#[derive(Debug)]
enum Held<M> {
    Lent(M),
    Copied(Vec<u8>),
}

impl<M: Deref<Target = [u8]>> Deref for Body<M> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.message {
            Held::Lent(message) => &message[self.start..],
            Held::Copied(bytes) => &bytes[self.start..],
        }
    }
}

/// What goes to another rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// A message.
    Message(Vec<u8>),
    /// Bytes that belong at an offset of memory that the rank has opened under this key.
    Placed {
        /// The key.
        key: u64,
        /// Where.
        offset: u64,
        /// What.
        bytes: Bytes,
    },
}

impl Outgoing {
    /// How many bytes it has.
    #[must_use]
    pub fn length(&self) -> usize {
        match self {
            Outgoing::Message(message) => message.len(),
            Outgoing::Placed { bytes, .. } => bytes.len(),
        }
    }
}

/// Bytes for one rank that leave once all ranks have ended the superstep, and the message that says
/// that they were all.
#[derive(Debug)]
struct Placing {
    to: u32,
    placed: Vec<Outgoing>,
    last: Vec<u8>,
}

/// See the module.
#[derive(Debug)]
pub struct Exchange<M> {
    own: u32,
    places: Places,
    superstep: u32,
    rounds: Rounds,
    has_begun: bool,
    knowledge: Knowledge,
    /// By rank.
    parcels: Vec<Count>,
    answers: Vec<Count>,
    /// What has come and was not taken.
    came_parcels: VecDeque<(u32, Body<M>)>,
    came_answers: VecDeque<(u32, Body<M>)>,
    /// Who may be answered with what was kept.
    ready: Ranks,
    /// Messages of the next superstep.
    early: Vec<(u32, Held<M>)>,
    /// Bytes of the links' memory that are kept.
    lent: usize,
    /// Rounds: others wait for them.
    rounds_out: VecDeque<(u32, Vec<u8>)>,
    /// Parcels and answers, by rank.
    outgoing: Vec<VecDeque<Outgoing>>,
    /// How many they are.
    waiting: usize,
    turns: Turns,
    placing: Vec<Placing>,
    /// A parcel that is to travel with the first round.
    inline: Option<Vec<u8>>,
}

impl<M: Deref<Target = [u8]>> Exchange<M> {
    /// For rank `own` of a program whose ranks are in these places, before its first superstep.
    #[must_use]
    pub fn new(own: u32, places: Places) -> Exchange<M> {
        let size = places.nodes.len();
        let node = places.nodes[own as usize] as usize;
        Exchange {
            own,
            superstep: 0,
            rounds: Rounds::new(node, places.nodes()),
            has_begun: false,
            knowledge: Knowledge::new(u32::try_from(size).unwrap_or(u32::MAX)),
            parcels: vec![Count::default(); size],
            answers: vec![Count::default(); size],
            came_parcels: VecDeque::new(),
            came_answers: VecDeque::new(),
            ready: Ranks::new(u32::try_from(size).unwrap_or(u32::MAX)),
            early: Vec::new(),
            lent: 0,
            rounds_out: VecDeque::new(),
            outgoing: vec![VecDeque::new(); size],
            waiting: 0,
            turns: Turns::new(Order::LatinSquare, own as usize, size),
            placing: Vec::new(),
            inline: None,
            places,
        }
    }

    /// The places of ranks.
    #[must_use]
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// The superstep under way, modulo 2^32.
    #[must_use]
    pub fn superstep(&self) -> u32 {
        self.superstep
    }

    /// What is known of the superstep.
    #[must_use]
    #[inline]
    pub fn knowledge(&self) -> &Knowledge {
        &self.knowledge
    }

    /// To add what the ranks of this node have said.
    #[inline]
    pub fn knowledge_mut(&mut self) -> &mut Knowledge {
        &mut self.knowledge
    }

    /// True if this rank speaks for its node.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.places.leader(self.own) == self.own
    }

    /// Sends records to a rank of another node: all chunks of its parcel, with room for a head in
    /// front of each. A short one waits for the rounds to begin if it can travel with the first. What
    /// is to be placed in the rank's memory waits for [`place_all`](Self::place_all), and the parcel
    /// is not complete before.
    pub fn send_parcel(&mut self, to: u32, chunks: Vec<Vec<u8>>, placed: Vec<Outgoing>) {
        let travels = self.is_leader()
            && placed.is_empty()
            && self.places.leaders[self.rounds.to(0)] == to
            && chunks.len() == 1
            && chunks[0].len() <= INLINE_BYTES;
        if travels {
            self.inline = chunks.into_iter().next();
        } else {
            let placing = self.send_chunks(Kind::Parcel, (to, chunks), placed);
            self.placing.extend(placing);
        }
    }

    /// All ranks have ended the superstep: what is to be placed in their memory may leave.
    pub fn place_all(&mut self) {
        for placing in std::mem::take(&mut self.placing) {
            self.place(placing);
        }
    }

    fn place(&mut self, Placing { to, placed, last }: Placing) {
        self.waiting += placed.len() + 1;
        let outgoing = &mut self.outgoing[to as usize];
        outgoing.extend(placed);
        outgoing.push_back(Outgoing::Message(last));
    }

    /// Sends answers to a rank of another node, and what is to be placed in its memory.
    pub fn send_answers(&mut self, to: u32, chunks: Vec<Vec<u8>>, placed: Vec<Outgoing>) {
        let placing = self.send_chunks(Kind::Answers, (to, chunks), placed);
        if let Some(placing) = placing {
            self.place(placing);
        }
    }

    /// Tells a rank of another node that it may place here what it keeps.
    pub fn send_ready(&mut self, to: u32) {
        let ready = Head::new(Kind::Ready, self.superstep).encode();
        self.outgoing[to as usize].push_back(Outgoing::Message(ready.to_vec()));
        self.waiting += 1;
    }

    /// True if a rank has said that.
    #[must_use]
    pub fn is_ready(&self, rank: u32) -> bool {
        self.ready.contains(rank)
    }

    /// Sends messages; if something is to be placed the last, without records, comes behind it.
    fn send_chunks(
        &mut self,
        kind: Kind,
        (to, chunks): (u32, Vec<Vec<u8>>),
        placed: Vec<Outgoing>,
    ) -> Option<Placing> {
        let places = !placed.is_empty();
        let total = chunks.len() + usize::from(places);
        let total = u32::try_from(total).unwrap_or(u32::MAX);
        for (index, mut chunk) in (0..).zip(chunks) {
            let head = Head {
                index,
                total,
                ..Head::new(kind, self.superstep)
            };
            chunk[..HEAD_BYTES].copy_from_slice(&head.encode());
            self.outgoing[to as usize].push_back(Outgoing::Message(chunk));
            self.waiting += 1;
        }
        let last = Head {
            index: total.saturating_sub(1),
            total,
            ..Head::new(kind, self.superstep)
        };
        places.then(|| Placing {
            to,
            placed,
            last: last.encode().to_vec(),
        })
    }

    /// Sends to the others in another order from now on.
    pub fn set_order(&mut self, order: Order) {
        self.turns = Turns::new(order, self.own as usize, self.places.nodes.len());
    }

    /// Begins the rounds, when all ranks of this node are at the end of the superstep and what they
    /// said has been added. Only leaders do.
    ///
    /// # Errors
    /// What has come of other nodes already makes no sense.
    pub fn begin_rounds(&mut self) -> Result<(), Unexpected> {
        self.has_begun = true;
        if !self.rounds.is_over() {
            self.send_round();
        }
        self.finish_rounds()
    }

    fn send_round(&mut self) {
        let round = self.rounds.current();
        let to = self.places.leaders[self.rounds.to(round)];
        let mut message = vec![0; HEAD_BYTES];
        self.knowledge.encode(&mut message);
        let inline = match round {
            0 => self.inline.take(),
            _ => None,
        };
        let knowledge = message.len() - HEAD_BYTES;
        let head = Head {
            round: u8::try_from(round).unwrap_or(u8::MAX),
            knowledge: u32::try_from(knowledge).unwrap_or(u32::MAX),
            total: u32::from(inline.is_some()),
            ..Head::new(Kind::Round, self.superstep)
        };
        message[..HEAD_BYTES].copy_from_slice(&head.encode());
        if let Some(chunk) = inline {
            message.extend_from_slice(&chunk[HEAD_BYTES..]);
        }
        self.rounds_out.push_back((to, message));
    }

    fn finish_rounds(&mut self) -> Result<(), Unexpected> {
        while self.has_begun && !self.rounds.is_over() {
            let from = self.rounds.from(self.rounds.current());
            let Some(told) = self.rounds.finish() else {
                return Ok(());
            };
            let mut told = &told[..];
            let absorbed = self.knowledge.absorb(&mut told);
            if absorbed.is_none() || !told.is_empty() {
                return Err(self.unexpected(self.places.leaders[from]));
            }
            if !self.rounds.is_over() {
                self.send_round();
            }
        }
        Ok(())
    }

    fn unexpected(&self, from: u32) -> Unexpected {
        Unexpected {
            from,
            superstep: self.superstep,
        }
    }

    /// True when all is known of all nodes (to a leader).
    #[must_use]
    #[inline]
    pub fn is_known(&self) -> bool {
        self.has_begun && self.rounds.is_over()
    }

    /// Nodes that this one still waits for, by their leaders, as far as it can tell.
    #[must_use]
    pub fn waits_for(&self) -> Option<u32> {
        let waits = self.has_begun && !self.rounds.is_over();
        waits.then(|| self.places.leaders[self.rounds.from(self.rounds.current())])
    }

    /// Takes a message of a superstep.
    ///
    /// # Errors
    /// It makes no sense.
    pub fn accept(&mut self, from: u32, head: Head, message: M) -> Result<(), Unexpected> {
        let length = message.len();
        let message = if self.lent + length <= LENT_BYTES {
            self.lent += length;
            Held::Lent(message)
        } else {
            Held::Copied(message.to_vec())
        };
        if head.superstep == self.superstep {
            self.file(from, head, message)
        } else if head.superstep == self.superstep.wrapping_add(1) {
            self.early.push((from, message));
            Ok(())
        } else {
            Err(self.unexpected(from))
        }
    }

    fn file(&mut self, from: u32, head: Head, message: Held<M>) -> Result<(), Unexpected> {
        let unexpected = self.unexpected(from);
        let start = HEAD_BYTES;
        let counted = |count: &mut Count| count.add(head.index, head.total).ok_or(unexpected);
        match head.kind {
            Kind::Parcel => {
                counted(&mut self.parcels[from as usize])?;
                self.came_parcels.push_back((from, Body { message, start }));
            }
            Kind::Answers => {
                counted(&mut self.answers[from as usize])?;
                self.came_answers.push_back((from, Body { message, start }));
            }
            Kind::Round => {
                let node = self.places.nodes[from as usize] as usize;
                if self.places.leaders[node] != from {
                    return Err(unexpected);
                }
                let body = Body { message, start };
                let knowledge = body.get(..head.knowledge as usize).ok_or(unexpected)?;
                let round = usize::from(head.round);
                (self.rounds.accept(round, node, knowledge)).ok_or(unexpected)?;
                if head.total == 1 {
                    (self.parcels[from as usize].add(0, 1)).ok_or(unexpected)?;
                    let start = start + head.knowledge as usize;
                    self.came_parcels.push_back((from, Body { start, ..body }));
                } else {
                    self.let_go(&body);
                }
                self.finish_rounds()?;
            }
            Kind::Ready => {
                self.ready.insert(from);
                self.let_go(&Body { message, start });
            }
            Kind::Start | Kind::Hello | Kind::Abort | Kind::Alive => return Err(unexpected),
        }
        Ok(())
    }

    /// Gives back what was taken, once it has been read.
    pub fn let_go(&mut self, body: &Body<M>) {
        if let Held::Lent(message) = &body.message {
            self.lent -= message.len();
        }
    }

    /// The next records that came from a rank.
    pub fn take_parcel(&mut self) -> Option<(u32, Body<M>)> {
        self.came_parcels.pop_front()
    }

    /// The next answers that came from a rank.
    pub fn take_answers(&mut self) -> Option<(u32, Body<M>)> {
        self.came_answers.pop_front()
    }

    /// True if a rank's parcel has come whole.
    #[must_use]
    pub fn has_parcel(&self, from: u32) -> bool {
        self.parcels[from as usize].is_complete()
    }

    /// True if a rank's answers have come whole.
    #[must_use]
    pub fn has_answers(&self, from: u32) -> bool {
        self.answers[from as usize].is_complete()
    }

    /// True if there is a message to send.
    #[must_use]
    #[inline]
    pub fn has_transmit(&self) -> bool {
        !self.rounds_out.is_empty() || self.waiting > 0
    }

    /// True if the next message is one for which others wait, and no bulk.
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        !self.rounds_out.is_empty()
    }

    /// What to send next: rounds first, then something to each rank in turn.
    pub fn poll_transmit(&mut self) -> Option<(u32, Outgoing)> {
        if let Some((to, round)) = self.rounds_out.pop_front() {
            return Some((to, Outgoing::Message(round)));
        }
        let outgoing = &mut self.outgoing;
        let to = self.turns.next(|to| !outgoing[to].is_empty())?;
        let next = outgoing[to].pop_front()?;
        self.waiting -= 1;
        Some((u32::try_from(to).unwrap_or(u32::MAX), next))
    }

    /// Begins the next superstep, when everything of this one has been taken and sent.
    ///
    /// # Errors
    /// What came early makes no sense.
    pub fn advance(&mut self) -> Result<(), Unexpected> {
        self.superstep = self.superstep.wrapping_add(1);
        self.knowledge.clear();
        if self.places.nodes() == 1 {
            return Ok(());
        }
        self.has_begun = false;
        self.rounds.clear();
        self.parcels.fill(Count::default());
        self.answers.fill(Count::default());
        self.ready.clear();
        for (from, message) in std::mem::take(&mut self.early) {
            let head = match &message {
                Held::Lent(message) => Head::decode(message),
                Held::Copied(bytes) => Head::decode(bytes),
            };
            let (head, _) = head.ok_or(self.unexpected(from))?;
            self.file(from, head, message)?;
        }
        Ok(())
    }
}
