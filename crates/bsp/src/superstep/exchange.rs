//! The messages at the end of a superstep, between ranks that share no memory.
//!
//! This module orders and matches messages; the caller decides what they do to memory. A rank is at
//! most one superstep ahead of another, because the rounds are a barrier. So a message belongs to
//! this superstep or to the next, and in the second case waits until that begins.

use std::ops::Deref;

use super::inbox::{Inbox, MessageBytes};
use super::message::{HEAD_BYTES, Head, Kind};
use super::node_map::NodeMap;
use super::outbox::Outbox;
use super::rounds::Rounds;
use super::schedule::Order;
use super::summary::{Ranks, Summary};

pub use super::inbox::Body;
pub use super::outbox::Outgoing;

/// Longest records that travel with the first round.
const INLINE_BYTES: usize = 1024;

/// A message that the sender cannot have sent at this point of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {from} has sent a message that does not belong to superstep {superstep}")]
pub struct UnexpectedMessage {
    /// Rank of the sender.
    pub from: u32,
    /// The superstep of the receiver.
    pub superstep: u32,
}

/// State of the exchange on one rank.
#[derive(Debug)]
pub struct Exchange<M> {
    own: u32,
    node_map: NodeMap,
    superstep: u32,
    rounds: Rounds,
    /// All ranks of this node have ended the superstep.
    has_begun: bool,
    summary: Summary,
    inbox: Inbox<M>,
    outbox: Outbox,
    /// Ranks to which held replies may be sent.
    ready: Ranks,
    /// Records that travel with the first round.
    inline: Option<Vec<u8>>,
}

impl<M: Deref<Target = [u8]>> Exchange<M> {
    /// Creates the state of rank `own` before its first superstep.
    #[must_use]
    pub fn new(own: u32, node_map: NodeMap) -> Exchange<M> {
        let size = node_map.ranks();
        let ranks = u32::try_from(size).unwrap_or(u32::MAX);
        Exchange {
            own,
            superstep: 0,
            rounds: Rounds::new(node_map.node(own), node_map.nodes()),
            has_begun: false,
            summary: Summary::new(ranks),
            inbox: Inbox::new(size),
            outbox: Outbox::new(own, size),
            ready: Ranks::new(ranks),
            inline: None,
            node_map,
        }
    }

    /// Creates the state of rank `own` before a later superstep, because all ranks continue there
    /// with new links.
    #[must_use]
    pub fn continued(own: u32, node_map: NodeMap, superstep: u32) -> Exchange<M> {
        Exchange {
            superstep,
            ..Exchange::new(own, node_map)
        }
    }

    /// The nodes of the ranks.
    #[must_use]
    #[inline]
    pub fn node_map(&self) -> &NodeMap {
        &self.node_map
    }

    /// The current superstep, modulo 2^32.
    #[must_use]
    #[inline]
    pub fn superstep(&self) -> u32 {
        self.superstep
    }

    /// The summary of the superstep, as far as it is known.
    #[must_use]
    #[inline]
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The summary, to add what the ranks of this node have published.
    #[inline]
    pub fn summary_mut(&mut self) -> &mut Summary {
        &mut self.summary
    }

    /// True if this rank leads its node.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.node_map.leader(self.own) == self.own
    }

    /// Sends all chunks of records for a rank of another node; each chunk has room in front for a
    /// header. Short records wait for the first round if they can travel with it. `writes` wait for
    /// [`start_remote_writes`](Self::start_remote_writes), and the records are complete only after
    /// them.
    pub fn send_records(&mut self, to: u32, chunks: Vec<Vec<u8>>, writes: Vec<Outgoing>) {
        let is_inline = self.is_leader()
            && writes.is_empty()
            && self.node_map.leader_of_node(self.rounds.to(0)) == to
            && chunks.len() == 1
            && chunks[0].len() <= INLINE_BYTES;
        if is_inline {
            self.inline = chunks.into_iter().next();
        } else {
            let head = Head::new(Kind::Records, self.superstep);
            let writes = self.outbox.push_chunks(head, to, chunks, writes);
            self.outbox.delay(writes);
        }
    }

    /// Starts the writes into other ranks' memory, because all ranks have ended the superstep.
    pub fn start_remote_writes(&mut self) {
        self.outbox.start_writes();
    }

    /// Sends replies to a rank of another node, and writes into its memory.
    pub fn send_replies(&mut self, to: u32, chunks: Vec<Vec<u8>>, writes: Vec<Outgoing>) {
        let head = Head::new(Kind::Replies, self.superstep);
        if let Some(writes) = self.outbox.push_chunks(head, to, chunks, writes) {
            self.outbox.push_writes(writes);
        }
    }

    /// Allows a rank of another node to send the replies that it holds for this one.
    pub fn send_ready(&mut self, to: u32) {
        let ready = Head::new(Kind::Ready, self.superstep).encode();
        self.outbox.push(to, Outgoing::Message(ready.to_vec()));
    }

    /// True if a rank allows this one to send the replies that it holds.
    #[must_use]
    pub fn is_ready(&self, rank: u32) -> bool {
        self.ready.contains(rank)
    }

    /// Sets the order in which this rank sends to the others.
    pub fn set_order(&mut self, order: Order) {
        self.outbox.set_order(order, self.own);
    }

    /// Begins the rounds. Only leaders do, once all ranks of the node have ended the superstep and
    /// what they published has been added.
    ///
    /// # Errors
    /// An early message of another leader is invalid.
    pub fn begin_rounds(&mut self) -> Result<(), UnexpectedMessage> {
        self.has_begun = true;
        if !self.rounds.is_over() {
            self.send_round();
        }
        self.finish_rounds()
    }

    fn send_round(&mut self) {
        let round = self.rounds.current();
        let to = self.node_map.leader_of_node(self.rounds.to(round));
        let mut message = vec![0; HEAD_BYTES];
        self.summary.encode(&mut message);
        let inline = match round {
            0 => self.inline.take(),
            _ => None,
        };
        let summary_bytes = message.len() - HEAD_BYTES;
        let head = Head {
            round: u8::try_from(round).unwrap_or(u8::MAX),
            summary_bytes: u32::try_from(summary_bytes).unwrap_or(u32::MAX),
            total: u32::from(inline.is_some()),
            ..Head::new(Kind::Round, self.superstep)
        };
        message[..HEAD_BYTES].copy_from_slice(&head.encode());
        if let Some(chunk) = inline {
            message.extend_from_slice(&chunk[HEAD_BYTES..]);
        }
        self.outbox.push_round(to, message);
    }

    fn finish_rounds(&mut self) -> Result<(), UnexpectedMessage> {
        while self.has_begun && !self.rounds.is_over() {
            let from = self.rounds.from(self.rounds.current());
            let Some(received) = self.rounds.finish() else {
                return Ok(());
            };
            let mut rest = &received[..];
            let merged = self.summary.merge(&mut rest);
            if merged.is_none() || !rest.is_empty() {
                return Err(self.unexpected(self.node_map.leader_of_node(from)));
            }
            if !self.rounds.is_over() {
                self.send_round();
            }
        }
        Ok(())
    }

    fn unexpected(&self, from: u32) -> UnexpectedMessage {
        UnexpectedMessage {
            from,
            superstep: self.superstep,
        }
    }

    /// True if the summary covers all nodes. Only leaders may use this.
    #[must_use]
    #[inline]
    pub fn is_known(&self) -> bool {
        self.has_begun && self.rounds.is_over()
    }

    /// The leader whose round this rank waits for.
    #[must_use]
    pub fn awaited_leader(&self) -> Option<u32> {
        let waits = self.has_begun && !self.rounds.is_over();
        waits.then(|| {
            let node = self.rounds.from(self.rounds.current());
            self.node_map.leader_of_node(node)
        })
    }

    /// Accepts a message.
    ///
    /// # Errors
    /// The message is not valid at this point.
    pub fn accept(&mut self, from: u32, head: Head, message: M) -> Result<(), UnexpectedMessage> {
        let message = self.inbox.hold(message);
        if head.superstep == self.superstep {
            self.dispatch(from, head, message)
        } else if head.superstep == self.superstep.wrapping_add(1) {
            self.inbox.push_early(from, message);
            Ok(())
        } else {
            Err(self.unexpected(from))
        }
    }

    /// Handles a message of this superstep.
    fn dispatch(
        &mut self,
        from: u32,
        head: Head,
        message: MessageBytes<M>,
    ) -> Result<(), UnexpectedMessage> {
        let unexpected = self.unexpected(from);
        let (index, total) = (head.index, head.total);
        let body = Body::new(message, HEAD_BYTES);
        match head.kind {
            Kind::Records => {
                let pushed = self.inbox.records.push(from, index, total, body);
                pushed.ok_or(unexpected)?;
            }
            Kind::Replies => {
                let pushed = self.inbox.replies.push(from, index, total, body);
                pushed.ok_or(unexpected)?;
            }
            Kind::Round => {
                let node = self.node_map.node(from);
                if self.node_map.leader_of_node(node) != from {
                    return Err(unexpected);
                }
                let summary_bytes = head.summary_bytes as usize;
                let summary = body.get(..summary_bytes).ok_or(unexpected)?;
                let round = usize::from(head.round);
                (self.rounds.accept(round, node, summary)).ok_or(unexpected)?;
                if total == 1 {
                    let records = body.after(summary_bytes);
                    let pushed = self.inbox.records.push(from, 0, 1, records);
                    pushed.ok_or(unexpected)?;
                } else {
                    self.release(&body);
                }
                self.finish_rounds()?;
            }
            Kind::Ready => {
                self.ready.insert(from);
                self.release(&body);
            }
            Kind::Start | Kind::Hello | Kind::Abort | Kind::Probe => return Err(unexpected),
        }
        Ok(())
    }

    /// Gives memory back to the link, once what was taken has been read.
    pub fn release(&mut self, body: &Body<M>) {
        self.inbox.release(body);
    }

    /// The next records that have arrived from a rank.
    pub fn take_records(&mut self, from: u32) -> Option<Body<M>> {
        self.inbox.records.take(from)
    }

    /// The next replies that have arrived from a rank.
    pub fn take_replies(&mut self, from: u32) -> Option<Body<M>> {
        self.inbox.replies.take(from)
    }

    /// True if all records from a rank have arrived.
    #[must_use]
    pub fn has_all_records(&self, from: u32) -> bool {
        self.inbox.records.is_complete(from)
    }

    /// True if all replies from a rank have arrived.
    #[must_use]
    pub fn has_all_replies(&self, from: u32) -> bool {
        self.inbox.replies.is_complete(from)
    }

    /// True if there is something to send.
    #[must_use]
    #[inline]
    pub fn has_transmit(&self) -> bool {
        self.outbox.has_next()
    }

    /// True if the next message is a round, which other nodes wait for.
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        self.outbox.has_round()
    }

    /// The next data to send: rounds first, then something to each rank in turn.
    pub fn poll_transmit(&mut self) -> Option<(u32, Outgoing)> {
        self.outbox.next()
    }

    /// Begins the next superstep, once everything of this one has been taken and sent.
    ///
    /// # Errors
    /// A message that arrived early is invalid.
    pub fn advance(&mut self) -> Result<(), UnexpectedMessage> {
        self.superstep = self.superstep.wrapping_add(1);
        self.summary.clear();
        if self.node_map.nodes() == 1 {
            return Ok(());
        }
        self.has_begun = false;
        self.rounds.clear();
        self.ready.clear();
        for (from, message) in self.inbox.advance() {
            let (head, _) = Head::decode(&message).ok_or(self.unexpected(from))?;
            self.dispatch(from, head, message)?;
        }
        Ok(())
    }
}
