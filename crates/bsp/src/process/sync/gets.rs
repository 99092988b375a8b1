//! The end of a superstep in which a get involves this rank: all gets are read before anything is
//! written.

use dipole_link::window::Source;

use super::super::{HeldReplies, Process};
use super::effects::{Effects, WrittenReply, write_records};
use super::waiting::Event;
use crate::carrier::Carrier;
use crate::failure::Failure;
use crate::local::{INLINE_REPLY_BYTES, LocalRecordBuffer, SyncPhase};
use crate::record_buffer::RecordBuffer;
use crate::superstep::exchange::Body;
use crate::superstep::record::Record;
use crate::trace::Phase;

/// Replies to the gets of a rank of another node.
struct RemoteReplies {
    to: u32,
    records: RecordBuffer,
    written: Vec<WrittenReply>,
}

/// Records received from ranks of other nodes.
type Received<C> = Vec<(u32, Body<<C as Carrier>::Message>)>;

impl<C: Carrier> Process<C> {
    /// Reads all gets once they have arrived, writes their replies once all gets of this rank have
    /// been read, and then applies the puts.
    pub(super) fn exchange_with_gets(&mut self, epoch: u32) -> Result<(), Failure> {
        self.pump(|process| process.has_all_records())?;
        let mut received: Received<C> = Vec::new();
        for from in 0..self.size {
            let exchange = &mut self.exchange;
            received
                .extend(std::iter::from_fn(|| exchange.take_records(from)).map(|it| (from, it)));
        }
        let own = self.pending.take_own(self.rank);
        let own_replies = self.reply_to_own(&own)?;
        let remote_replies = self.read_remote_gets(&received)?;
        self.reply_to_local(epoch)?;
        self.send_replies(remote_replies);
        self.transmit()?;
        for holder in (0..self.size).filter(|rank| self.pending.holders().contains(*rank)) {
            self.exchange.send_ready(holder);
        }
        self.write_replies(&own_replies, epoch)?;
        self.enter_phase(Phase::Apply);
        let mut received = received.iter().peekable();
        for from in 0..self.size {
            self.apply_local(from, &own, epoch)?;
            while let Some((_, body)) = received.next_if(|(sender, _)| *sender == from) {
                self.effects().apply(Source::from(&**body), None)?;
                self.exchange.release(body);
            }
        }
        self.enter_phase(Phase::Exchange);
        loop {
            self.send_held_replies();
            if self.held_for.is_empty() && self.transmit()? {
                return Ok(());
            }
            self.wait_message()?;
        }
    }

    /// Sends the replies that were held for ranks that have become ready.
    fn send_held_replies(&mut self) {
        let exchange = &mut self.exchange;
        let is_ready = |held: &mut HeldReplies| exchange.is_ready(held.to);
        let ready: Vec<_> = self.held_for.extract_if(.., is_ready).collect();
        for HeldReplies { to, chunks, writes } in ready {
            exchange.send_replies(to, chunks, writes);
        }
    }

    /// Reads the gets of this rank from its own memory.
    fn reply_to_own(&mut self, own: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, Failure> {
        let mut replies = RecordBuffer::new(self.pacer.chunk_bytes());
        let effects = self.effects();
        for chunk in own {
            effects.read_gets(RecordBuffer::records(chunk), |ticket, data| {
                replies.push_split(data, reply(ticket));
                Ok(())
            })?;
        }
        Ok(replies.take())
    }

    /// Reads the gets of ranks of other nodes from this rank's memory.
    fn read_remote_gets(&mut self, received: &Received<C>) -> Result<Vec<RemoteReplies>, Failure> {
        let chunk_bytes = self.pacer.chunk_bytes();
        let effects = self.effects();
        let mut replies: Vec<RemoteReplies> = Vec::new();
        for (from, body) in received {
            let known = replies.iter().position(|replies| replies.to == *from);
            let index = known.unwrap_or_else(|| {
                replies.push(RemoteReplies {
                    to: *from,
                    records: RecordBuffer::new(chunk_bytes),
                    written: Vec::new(),
                });
                replies.len() - 1
            });
            let theirs = &mut replies[index];
            effects.read_gets(Source::from(&**body), |ticket, data| {
                theirs.records.push_split(data, reply(ticket));
                Ok(())
            })?;
            let written = effects.read_written_gets(Source::from(&**body))?;
            theirs.written.extend(written);
        }
        Ok(replies)
    }

    /// Replies to the gets of ranks of this node, in this rank's window.
    fn reply_to_local(&mut self, epoch: u32) -> Result<(), Failure> {
        let Some(shared) = &mut self.shared else {
            return Ok(());
        };
        let (ranks, arena) = shared.ranks_and_arena();
        let effects = Effects {
            registrations: self.collective.registrations(),
            queue: &mut self.queue,
            tag_bytes: self.collective.tag_bytes(),
            ranks: Some(ranks),
        };
        let block = ranks.block(ranks.own());
        let mut replied = Vec::new();
        for (local_rank, rank) in ranks.others() {
            if !self.exchange.summary().sends(rank, self.rank) {
                continue;
            }
            let mut theirs = LocalRecordBuffer::default();
            for records in ranks.records(local_rank, epoch) {
                effects.read_gets(records, |ticket, data| {
                    let record = reply(ticket)(0, data.length() as u64);
                    theirs.push((&ranks.window, arena), record, &[data])
                })?;
            }
            block.set_replies(local_rank, theirs.first());
            if theirs.first() != 0 {
                replied.push((local_rank, theirs));
            }
        }
        let inline = match &replied[..] {
            [(local_rank, theirs)] => theirs
                .as_inline(&ranks.window, INLINE_REPLY_BYTES)
                .map(|inline| (*local_rank, inline)),
            _ => None,
        };
        block.set_inline_replies(inline);
        ranks.reach(SyncPhase::Replied, epoch);
        Ok(())
    }

    /// Sends replies to ranks of other nodes, or holds them until those ranks are ready.
    fn send_replies(&mut self, replies: Vec<RemoteReplies>) {
        for mut theirs in replies {
            let writes = (theirs.written.iter())
                .flat_map(|reply| self.remote_writes(reply.key, 0, &reply.data));
            let (to, writes) = (theirs.to, writes.collect::<Vec<_>>());
            let chunks = theirs.records.take();
            if theirs.written.iter().any(|reply| !reply.is_ready) {
                self.held_for.push(HeldReplies { to, chunks, writes });
            } else if !(chunks.is_empty() && writes.is_empty()) {
                self.exchange.send_replies(to, chunks, writes);
            }
        }
    }

    /// Writes the replies to all gets of this rank, in rank order.
    fn write_replies(&mut self, own: &[Vec<u8>], epoch: u32) -> Result<(), Failure> {
        for from in 0..self.size {
            if from == self.rank {
                for chunk in own {
                    write_records(self.pending.gets(), RecordBuffer::records(chunk))?;
                }
            } else if !self.pending.get_from().contains(from) {
                continue;
            } else if self.exchange.node_map().share_node(from, self.rank) {
                self.write_local_replies(from, epoch)?;
            } else {
                self.write_remote_replies(from)?;
            }
        }
        Ok(())
    }

    fn write_local_replies(&mut self, from: u32, epoch: u32) -> Result<(), Failure> {
        let shared = self.shared.as_ref();
        let Some(local_rank) = shared.and_then(|shared| shared.ranks().index(from)) else {
            return Ok(());
        };
        self.wait_for(Event::new(local_rank, SyncPhase::Replied, epoch), None)?;
        let shared = self.shared.iter();
        for records in shared.flat_map(|shared| shared.ranks().replies(local_rank)) {
            write_records(self.pending.gets(), records)?;
        }
        Ok(())
    }

    fn write_remote_replies(&mut self, from: u32) -> Result<(), Failure> {
        loop {
            while let Some(body) = self.exchange.take_replies(from) {
                write_records(self.pending.gets(), Source::from(&*body))?;
                self.exchange.release(&body);
            }
            self.send_held_replies();
            if !self.awaits_replies(from) {
                return Ok(());
            }
            self.wait_message()?;
        }
    }
}

/// Makes the record of a reply, given its offset and length.
fn reply(ticket: u64) -> impl Fn(u64, u64) -> Record {
    move |offset, length| Record::Reply {
        ticket,
        offset,
        length,
    }
}
