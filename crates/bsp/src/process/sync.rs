//! The end of a superstep: ranks exchange who sends what to whom, then move the data. All gets are
//! read first, then written, then the puts are written.

mod effects;
mod gets;
mod transmit;
mod waiting;

use dipole_link::window::Source;

use effects::Effects;
use waiting::Event;

use super::pending::RemoteCalls;
use super::{CLOSE_TIMEOUT, Process, Standby};
use crate::carrier::Carrier;
use crate::failure::Failure;
use crate::local::{Arrival, INLINE_RECORD_BYTES, SyncPhase};
use crate::misuse::Misuse;
use crate::record_buffer::RecordBuffer;
use crate::superstep::collective::{CollectiveCalls, Ending};
use crate::superstep::record::Malformed;
use crate::superstep::request::Request;
use crate::trace::{Phase, State};

impl<C: Carrier> Process<C> {
    /// Ends the superstep. Returns when all ranks have ended it and all puts, gets and messages
    /// have arrived.
    ///
    /// # Errors
    /// The ranks made different collective calls, [`Failure::Gone`], or [`Failure::Aborted`]. The
    /// program must end then.
    ///
    /// # Source
    /// BSP §5.1.
    pub fn sync(&mut self) -> Result<(), Failure> {
        self.end_superstep(Ending::Sync)
    }

    /// Ends the last superstep and closes all links.
    ///
    /// # Errors
    /// The errors of [`sync`](Self::sync).
    pub fn end(&mut self) -> Result<(), Failure> {
        self.end_last_superstep()?;
        self.close(CLOSE_TIMEOUT);
        Ok(())
    }

    fn end_last_superstep(&mut self) -> Result<(), Failure> {
        self.end_superstep(Ending::End)?;
        if let Some(trace) = &self.trace {
            trace.close(State::Ended);
        }
        Ok(())
    }

    /// Ends the last superstep of a parallel section, and returns the ranks for the next one; `None`,
    /// with all links closed, if the process cannot begin another.
    ///
    /// # Errors
    /// The errors of [`sync`](Self::sync).
    pub fn end_section(&mut self) -> Result<Option<Standby<C>>, Failure> {
        self.end_last_superstep()?;
        let Some(mut standby) = self.standby.take() else {
            self.close(CLOSE_TIMEOUT);
            return Ok(None);
        };
        self.close_all_memory();
        standby.put_back(self.carrier.take());
        Ok(Some(*standby))
    }

    pub(super) fn end_superstep(&mut self, ending: Ending) -> Result<(), Failure> {
        let superstep = self.exchange.superstep();
        if let Some(trace) = &mut self.trace {
            trace.enter();
        }
        if let Some(checkpoints) = &mut self.checkpoints
            && ending == Ending::Sync
        {
            let request = checkpoints.due(self.rank);
            self.exchange.summary_mut().request(request);
        }
        let ended = self.move_everything(ending);
        if ended.is_err() {
            self.reclaim_memory();
        } else if let Some(trace) = &mut self.trace {
            let counters = self
                .carrier
                .as_ref()
                .map_or_else(Default::default, Carrier::counters);
            trace.leave(superstep, self.call, counters);
        }
        ended?;
        let checkpoints = self.checkpoints.as_mut();
        match checkpoints.map_or(Request::None, |it| it.take_agreed()) {
            Request::None => Ok(()),
            Request::Checkpoint => self.checkpoint(),
            Request::Migration => self.migrate(),
            Request::Preemption => self.be_preempted(),
        }
    }

    fn move_everything(&mut self, ending: Ending) -> Result<(), Failure> {
        let epoch = self.exchange.superstep().wrapping_add(1);
        self.collective.collect(ending);
        self.send_records();
        self.enter_phase(Phase::Barrier);
        self.arrive(epoch)?;
        self.transmit()?;
        self.gather_summary(epoch)?;
        self.enter_phase(Phase::Exchange);
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.agree(self.exchange.summary().requested());
        }
        self.queue.clear();
        if self.exchange.summary().is_empty() {
            // No rank has changed the tag size, and all rounds have been sent.
            if let Some(shared) = &mut self.shared {
                shared.advance_empty();
            }
            self.exchange.advance()?;
            self.leave(epoch);
            return Ok(());
        }
        self.check_collectives()?;
        self.exchange.start_remote_writes();
        if self.pacer.is_paced() {
            self.set_senders(self.exchange.summary().senders());
        }
        self.pull()?;
        let gets = !self.pending.get_from().is_empty();
        if gets || self.exchange.summary().is_get_source(self.rank) {
            self.exchange_with_gets(epoch)?;
        } else {
            self.exchange_without_gets(epoch)?;
        }
        if self.exchange.summary().has_pulls() {
            self.wait_finished(epoch)?;
        }
        self.begin_superstep()?;
        self.leave(epoch);
        Ok(())
    }

    /// Records in the trace that another phase begins.
    #[inline]
    fn enter_phase(&mut self, phase: Phase) {
        if let Some(trace) = &mut self.trace {
            trace.phase(phase);
        }
    }

    /// Notifies the ranks of this node that this rank has left the superstep.
    #[inline]
    fn leave(&self, epoch: u32) {
        if let Some(shared) = &self.shared {
            shared.ranks().reach(SyncPhase::Left, epoch);
        }
    }

    /// Waits until a rank of this node has left the previous superstep.
    pub(super) fn wait_left(&mut self, local_rank: usize) -> Result<(), Failure> {
        let epoch = self.exchange.superstep();
        self.wait_for(Event::new(local_rank, SyncPhase::Left, epoch), None)
    }

    /// Hands what was recorded for ranks of other nodes to the exchange.
    fn send_records(&mut self) {
        if self.exchange.node_map().nodes() == 1 {
            return;
        }
        for RemoteCalls { to, chunks, writes } in self.pending.take_remote(self.rank) {
            self.exchange.send_records(to, chunks, writes);
        }
        if self.pacer.is_paced() {
            self.set_senders(self.size);
        }
    }

    /// Sets the number of ranks that send in this superstep, for pacing.
    pub(super) fn set_senders(&mut self, senders: u32) {
        let superstep = u64::from(self.exchange.superstep());
        let seed = (superstep << 32) | u64::from(self.rank);
        self.pacer.begin(senders, seed);
    }

    /// Publishes to the ranks of this node what this one sends and gets, and that it has arrived.
    fn arrive(&mut self, epoch: u32) -> Result<(), Failure> {
        let (send_to, get_from) = (self.pending.send_to(), self.pending.get_from());
        let summary = self.exchange.summary_mut();
        summary.add_row(self.rank, send_to.words().iter().copied());
        summary.add_get_sources(get_from.words().iter().copied());
        let pulls = self.pending.has_pulls();
        if pulls {
            summary.add_pulls();
        }
        let request = summary.requested();
        let calls = self.collective.calls();
        let has_calls = !calls.is_default();
        if has_calls {
            summary.add_collectives(self.rank, calls.clone());
        }
        let Some(shared) = &mut self.shared else {
            return Ok(());
        };
        let mut collectives = None;
        if has_calls {
            self.scratch.clear();
            calls.encode(&mut self.scratch);
            let at = shared.write(&self.scratch)?;
            collectives = Some((at, self.scratch.len()));
        }
        let ranks = shared.ranks();
        let own = ranks.block(ranks.own());
        let mut receivers = ranks.others().filter(|(_, rank)| send_to.contains(*rank));
        let inline = match (receivers.next(), receivers.next()) {
            (Some((local_rank, _)), None) if !has_calls => {
                let buffer = shared.buffer(local_rank);
                buffer.as_inline(&ranks.window, INLINE_RECORD_BYTES)
            }
            _ => None,
        };
        if inline.is_none() {
            for (local_rank, rank) in ranks.others() {
                if send_to.contains(rank) {
                    own.set_records(epoch, local_rank, shared.buffer(local_rank).first());
                }
            }
        }
        own.set_arrival(
            epoch,
            Arrival {
                send_to: send_to.words(),
                get_from: get_from.words(),
                pulls,
                request,
                collectives,
                inline,
            },
        );
        ranks.reach(SyncPhase::Arrived, epoch);
        Ok(())
    }

    /// Waits until the summary covers all ranks.
    fn gather_summary(&mut self, epoch: u32) -> Result<(), Failure> {
        let others = (self.shared.as_ref()).map(|shared| shared.ranks().others_in_order());
        for local_rank in others.into_iter().flatten() {
            self.wait_for(Event::new(local_rank, SyncPhase::Arrived, epoch), None)?;
            self.read_arrival(local_rank, epoch)?;
        }
        if self.exchange.node_map().nodes() == 1 {
            return Ok(());
        }
        if self.exchange.is_leader() {
            self.exchange.begin_rounds()?;
            self.pump(|process| process.exchange.is_known())?;
            return self.publish_summary(epoch);
        }
        self.read_summary(epoch)
    }

    /// Adds what a rank of this node has published on arrival to the summary.
    #[inline]
    fn read_arrival(&mut self, local_rank: usize, epoch: u32) -> Result<(), Failure> {
        let Some(shared) = &self.shared else {
            return Ok(());
        };
        let ranks = shared.ranks();
        let (rank, block) = (ranks.rank(local_rank), ranks.block(local_rank));
        let summary = self.exchange.summary_mut();
        summary.add_row(rank, block.traffic(epoch).map(|(send_to, _)| send_to));
        summary.add_get_sources(block.traffic(epoch).map(|(_, get_from)| get_from));
        let (pulls, request, collectives) = block.flags(epoch);
        summary.request(request);
        if pulls {
            summary.add_pulls();
        }
        if let Some(collectives) = collectives {
            let bytes = collectives.to_vec();
            let calls = CollectiveCalls::decode(&mut &bytes[..]);
            summary.add_collectives(rank, calls.ok_or(Malformed)?);
        }
        Ok(())
    }

    /// Publishes the leader's summary of all nodes to the ranks of this node.
    fn publish_summary(&mut self, epoch: u32) -> Result<(), Failure> {
        let Some(shared) = &mut self.shared else {
            return Ok(());
        };
        self.scratch.clear();
        self.exchange.summary().encode(&mut self.scratch);
        let at = shared.write(&self.scratch)?;
        let ranks = shared.ranks();
        ranks.block(ranks.own()).set_known(at, self.scratch.len());
        ranks.reach(SyncPhase::Known, epoch);
        Ok(())
    }

    /// Waits for the summary that the leader of this node publishes.
    fn read_summary(&mut self, epoch: u32) -> Result<(), Failure> {
        let leader = self.exchange.node_map().leader(self.rank);
        let Some(shared) = &self.shared else {
            return Ok(());
        };
        let leader = shared.ranks().index(leader).unwrap_or(0);
        let known = Event::new(leader, SyncPhase::Known, epoch);
        self.wait_for(known, Some("ranks of other nodes"))?;
        let Some(shared) = &self.shared else {
            return Ok(());
        };
        let block = shared.ranks().block(leader);
        let summary = block.known().ok_or(Malformed)?.to_vec();
        let merged = self.exchange.summary_mut().merge(&mut &summary[..]);
        Ok(merged.ok_or(Malformed)?)
    }

    /// Fails unless all ranks made the same collective calls.
    fn check_collectives(&self) -> Result<(), Failure> {
        let summary = self.exchange.summary();
        match summary.difference() {
            None => Ok(()),
            Some((one, other, difference)) => {
                let describe = |rank| summary.collectives(rank).describe(&difference, rank);
                let misuse = Misuse::Disagree {
                    reporter: one,
                    one: describe(one),
                    other: describe(other),
                };
                Err(misuse.into())
            }
        }
    }

    /// Copies the memory that unbuffered gets from ranks of this node read.
    fn pull(&mut self) -> Result<(), Failure> {
        let Some(shared) = &self.shared else {
            return Ok(());
        };
        for pull in self.pending.take_pulls() {
            let length = usize::try_from(pull.get.bytes).unwrap_or(usize::MAX);
            // SAFETY: the caller of the get promised that the destination is writable and not
            // used otherwise until the superstep ends.
            let into = unsafe { std::slice::from_raw_parts_mut(pull.get.into, length) };
            shared.ranks().pull(pull.local_rank, pull.address, into)?;
        }
        Ok(())
    }

    #[inline]
    fn effects(&mut self) -> Effects<'_> {
        Effects {
            registrations: self.collective.registrations(),
            queue: &mut self.queue,
            tag_bytes: self.collective.tag_bytes(),
            ranks: self.shared.as_ref().map(|shared| shared.ranks()),
        }
    }

    /// Applies the records of this rank (`own`), or of another rank of this node.
    fn apply_local(&mut self, rank: u32, own: &[Vec<u8>], epoch: u32) -> Result<(), Failure> {
        let sends = self.exchange.summary().sends(rank, self.rank);
        let ranks = self.shared.as_ref().map(|shared| shared.ranks());
        let mut effects = Effects {
            registrations: self.collective.registrations(),
            queue: &mut self.queue,
            tag_bytes: self.collective.tag_bytes(),
            ranks,
        };
        if rank == self.rank {
            for chunk in own {
                effects.apply(RecordBuffer::records(chunk), None)?;
            }
        } else if let Some(ranks) = ranks
            && let Some(local_rank) = ranks.index(rank)
            && sends
        {
            for records in ranks.records(local_rank, epoch) {
                effects.apply(records, Some(local_rank))?;
            }
        }
        Ok(())
    }

    /// Applies the records of a rank of another node as they arrive.
    fn apply_remote(&mut self, rank: u32) -> Result<(), Failure> {
        let sends = self.exchange.summary().sends(rank, self.rank);
        if !sends || self.exchange.node_map().share_node(rank, self.rank) {
            return Ok(());
        }
        loop {
            while let Some(body) = self.exchange.take_records(rank) {
                self.enter_phase(Phase::Apply);
                self.effects().apply(Source::from(&*body), None)?;
                self.exchange.release(&body);
            }
            self.enter_phase(Phase::Exchange);
            if self.exchange.has_all_records(rank) {
                return Ok(());
            }
            self.wait_message()?;
        }
    }

    /// True if all records from ranks of other nodes have arrived.
    fn has_all_records(&self) -> bool {
        self.missing_records().next().is_none()
    }

    /// Ranks of other nodes whose records have not all arrived.
    fn missing_records(&self) -> impl Iterator<Item = u32> {
        let (exchange, own) = (&self.exchange, self.rank);
        let is_missing = move |rank: &u32| {
            exchange.summary().sends(*rank, own)
                && !exchange.node_map().share_node(*rank, own)
                && !exchange.has_all_records(*rank)
        };
        (0..self.size).filter(is_missing)
    }

    /// Ranks of other nodes whose replies have not all arrived.
    fn missing_replies(&self) -> impl Iterator<Item = u32> {
        (0..self.size).filter(|rank| self.awaits_replies(*rank))
    }

    /// True if more replies must arrive from a rank, which is on another node.
    fn awaits_replies(&self, rank: u32) -> bool {
        self.pending.get_from().contains(rank)
            && !self.exchange.node_map().share_node(rank, self.rank)
            && !self.exchange.has_all_replies(rank)
    }

    /// Applies all records, because no get involves this rank. They are applied rank by rank, so that
    /// one of several puts to the same place remains as a whole, and the result is reproducible.
    fn exchange_without_gets(&mut self, epoch: u32) -> Result<(), Failure> {
        let own = self.pending.take_own(self.rank);
        self.enter_phase(Phase::Apply);
        for rank in 0..self.size {
            self.apply_local(rank, &own, epoch)?;
            self.apply_remote(rank)?;
        }
        if self.exchange.node_map().nodes() == 1 {
            return Ok(());
        }
        while !self.transmit()? {
            self.wait_message()?;
        }
        Ok(())
    }

    /// Waits until no rank of this node needs the memory of another one for this superstep.
    fn wait_finished(&mut self, epoch: u32) -> Result<(), Failure> {
        let Some(shared) = &self.shared else {
            return Ok(());
        };
        shared.ranks().reach(SyncPhase::Finished, epoch);
        for local_rank in shared.ranks().others_in_order() {
            self.wait_for(Event::new(local_rank, SyncPhase::Finished, epoch), None)?;
        }
        Ok(())
    }

    fn begin_superstep(&mut self) -> Result<(), Failure> {
        let closed = self.collective.commit(self.exchange.summary());
        self.close_memory(closed);
        self.pending.clear();
        if let Some(shared) = &mut self.shared {
            shared.advance();
        }
        self.exchange.advance()?;
        Ok(())
    }
}
