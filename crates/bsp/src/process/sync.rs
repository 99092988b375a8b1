//! The end of a superstep: everybody tells who has something for whom, then it is moved, and
//! takes effect: gets are read everywhere, then written, then puts.

mod effects;
mod gets;
mod transmit;
mod waiting;

use std::time::Duration;

use dipole_link::window::Source;

use effects::Effects;

use super::{Process, Pull};
use crate::carrier::Carrier;
use crate::failure::Failure;
use crate::local::{FEW_BYTES, LocalParcel, Mates, Milestone, Said};
use crate::misuse::Misuse;
use crate::parcel::Parcel;
use crate::superstep::facts::{Ending, Facts};
use crate::superstep::pace::Pace;
use crate::superstep::record::Malformed;
use crate::trace::{Phase, State};

impl<C: Carrier> Process<C> {
    /// Ends the superstep: returns when all ranks have ended it and everything they have put,
    /// got and sent is where it belongs.
    ///
    /// # Errors
    /// The ranks did not do the same, [`Failure::Gone`], [`Failure::Aborted`]; the program must
    /// end then.
    ///
    /// # Source
    /// BSP §5.1.
    pub fn sync(&mut self) -> Result<(), Failure> {
        self.end_superstep(Ending::Sync)
    }

    /// Ends the last superstep; nothing else can be done then.
    ///
    /// # Errors
    /// Those of [`sync`](Self::sync).
    pub fn end(&mut self) -> Result<(), Failure> {
        self.end_superstep(Ending::End)?;
        if let Some(trace) = &self.trace {
            trace.close(State::Ended);
        }
        self.close(Duration::from_secs(5));
        Ok(())
    }

    pub(super) fn end_superstep(&mut self, ending: Ending) -> Result<(), Failure> {
        let superstep = self.exchange.superstep();
        if let Some(trace) = &mut self.trace {
            trace.enter();
        }
        let ended = self.move_everything(ending);
        if ended.is_err() {
            self.take_memory_back();
        } else if let Some(trace) = &mut self.trace {
            let counters = self.carrier.as_ref().map_or((0, 0), Carrier::counters);
            trace.leave(superstep, self.call, counters);
        }
        ended
    }

    fn move_everything(&mut self, ending: Ending) -> Result<(), Failure> {
        let epoch = self.exchange.superstep().wrapping_add(1);
        self.collect_facts(ending);
        self.send_parcels();
        self.enter_phase(Phase::Barrier);
        self.arrive(epoch)?;
        self.transmit()?;
        self.gather(epoch)?;
        self.enter_phase(Phase::Exchange);
        self.queue.clear();
        if self.exchange.knowledge().is_silent() {
            // Nobody has set another size of tags, and the rounds have been sent.
            self.clear_arena(epoch);
            self.exchange.advance()?;
            self.leave(epoch);
            return Ok(());
        }
        self.agree()?;
        self.exchange.place_all();
        if self.slots.is_some() {
            self.set_pace(self.exchange.knowledge().senders());
        }
        self.pull()?;
        let (asks, is_asked) = (
            !self.asked.is_empty(),
            self.exchange.knowledge().is_asked(self.rank),
        );
        if asks || is_asked {
            self.exchange_with_gets(epoch)?;
        } else {
            self.exchange_without_gets(epoch)?;
        }
        if self.exchange.knowledge().has_pulls() {
            self.let_others_finish(epoch)?;
        }
        self.begin_superstep(epoch)?;
        self.leave(epoch);
        Ok(())
    }

    /// Something else begins, for the trace.
    #[inline]
    fn enter_phase(&mut self, phase: Phase) {
        if let Some(trace) = &mut self.trace {
            trace.phase(phase);
        }
    }

    /// Says to the ranks of this node that its memory is as it is to be.
    #[inline]
    fn leave(&self, epoch: u32) {
        if let Some(mates) = &self.mates {
            mates.reach(Milestone::Left, epoch);
        }
    }

    /// Waits until a rank of this node has left the superstep before this one.
    pub(super) fn wait_left(&mut self, mate: usize) -> Result<(), Failure> {
        let epoch = self.exchange.superstep();
        self.wait_for(mate, (Milestone::Left, epoch), None)
    }

    fn collect_facts(&mut self, ending: Ending) {
        self.facts.ending = ending;
        self.facts.tag_calls = self.tag_calls;
        if self.tag_calls > 0 {
            self.facts.tag_bytes = self.tags.set;
        }
        self.facts.pushes.extend(self.registrations.pushes());
        let pops = self.registrations.pops();
        self.facts.pops.extend_from_slice(pops);
    }

    /// Hands over what was recorded for ranks of other nodes.
    fn send_parcels(&mut self) {
        if self.exchange.places().nodes() == 1 {
            return;
        }
        for ((to, parcel), direct) in (0..).zip(&mut self.remote).zip(&mut self.direct) {
            if to != self.rank && !(parcel.is_empty() && direct.is_empty()) {
                let placed = std::mem::take(direct);
                self.exchange.send_parcel(to, parcel.take(), placed);
            }
        }
        if self.slots.is_some() {
            self.set_pace(self.size);
        }
    }

    /// So many ranks send in this superstep.
    pub(super) fn set_pace(&mut self, senders: u32) {
        let superstep = u64::from(self.exchange.superstep());
        let seed = (superstep << 32) | u64::from(self.rank);
        self.pace = Pace::new(self.slots, senders, seed);
    }

    /// Says to the ranks of this node what this one has, and that it has come.
    fn arrive(&mut self, epoch: u32) -> Result<(), Failure> {
        let knowledge = self.exchange.knowledge_mut();
        knowledge.add_row(self.rank, self.row.words().iter().copied());
        knowledge.add_asked(self.asked.words().iter().copied());
        let pulls = self.is_pulled || !self.pulls.is_empty();
        if pulls {
            knowledge.add_pulls();
        }
        let has_facts = !self.facts.is_plain();
        if has_facts {
            knowledge.add_facts(self.rank, self.facts.clone());
        }
        let Some(mates) = &self.mates else {
            return Ok(());
        };
        let own = mates.board(mates.own());
        let mut talking = mates.others().filter(|(_, rank)| self.row.contains(*rank));
        let few = match (talking.next(), talking.next()) {
            (Some((mate, _)), None) if !has_facts => self.local[mate].few(&mates.window, FEW_BYTES),
            _ => None,
        };
        if few.is_none() {
            for (mate, rank) in mates.others() {
                if self.row.contains(rank) {
                    own.set_records(epoch, mate, self.local[mate].first());
                }
            }
        }
        let mut facts = None;
        if has_facts {
            self.spread.clear();
            self.facts.encode(&mut self.spread);
            let arena = &mut self.arenas[self.exchange.superstep() as usize % 2];
            let at = arena.write(&mates.window, &self.spread)?;
            facts = Some((at, self.spread.len()));
        }
        own.say(
            epoch,
            Said {
                row: self.row.words(),
                asked: self.asked.words(),
                pulls,
                facts,
                few,
            },
        );
        mates.reach(Milestone::Arrived, epoch);
        Ok(())
    }

    /// Waits until it is known of all ranks what they have for whom.
    fn gather(&mut self, epoch: u32) -> Result<(), Failure> {
        let others = self.mates.as_ref().map(Mates::others_in_order);
        for mate in others.into_iter().flatten() {
            self.wait_for(mate, (Milestone::Arrived, epoch), None)?;
            self.hear(mate, epoch)?;
        }
        if self.exchange.places().nodes() == 1 {
            return Ok(());
        }
        if self.exchange.is_leader() {
            self.exchange.begin_rounds()?;
            self.pump(|process| process.exchange.is_known())?;
            return self.spread_knowledge(epoch);
        }
        self.learn(epoch)
    }

    /// Reads what a rank of this node has said when it arrived.
    #[inline]
    fn hear(&mut self, mate: usize, epoch: u32) -> Result<(), Failure> {
        let Some(mates) = &self.mates else {
            return Ok(());
        };
        let (rank, board) = (mates.rank(mate), mates.board(mate));
        let knowledge = self.exchange.knowledge_mut();
        knowledge.add_row(rank, board.said(epoch).map(|(row, _)| row));
        knowledge.add_asked(board.said(epoch).map(|(_, asked)| asked));
        let (pulls, facts) = board.flags(epoch);
        if pulls {
            knowledge.add_pulls();
        }
        if let Some(facts) = facts {
            let bytes = facts.to_vec();
            let facts = Facts::decode(&mut &bytes[..]);
            knowledge.add_facts(rank, facts.ok_or(Malformed)?);
        }
        Ok(())
    }

    /// Tells the ranks of this node what is known of the others.
    fn spread_knowledge(&mut self, epoch: u32) -> Result<(), Failure> {
        let Some(mates) = &self.mates else {
            return Ok(());
        };
        self.spread.clear();
        self.exchange.knowledge().encode(&mut self.spread);
        let arena = &mut self.arenas[self.exchange.superstep() as usize % 2];
        let at = arena.write(&mates.window, &self.spread)?;
        let own = mates.board(mates.own());
        own.set_known(at, self.spread.len());
        mates.reach(Milestone::Known, epoch);
        Ok(())
    }

    /// Waits for what the leader of this node tells of the others.
    fn learn(&mut self, epoch: u32) -> Result<(), Failure> {
        let leader = self.exchange.places().leader(self.rank);
        let Some(mates) = &self.mates else {
            return Ok(());
        };
        let mate = mates.index(leader).unwrap_or(0);
        let milestone = (Milestone::Known, epoch);
        self.wait_for(mate, milestone, Some("ranks of other nodes"))?;
        let Some(mates) = &self.mates else {
            return Ok(());
        };
        let known = mates.board(mate).known().ok_or(Malformed)?.to_vec();
        let absorbed = self.exchange.knowledge_mut().absorb(&mut &known[..]);
        Ok(absorbed.ok_or(Malformed)?)
    }

    /// All ranks must have ended the superstep in the same way.
    fn agree(&self) -> Result<(), Failure> {
        let known = self.exchange.knowledge();
        match known.difference() {
            None => Ok(()),
            Some((one, other, difference)) => {
                let told = |rank| known.facts(rank).told(&difference, rank);
                let misuse = Misuse::Disagree {
                    speaker: one,
                    one: told(one),
                    other: told(other),
                };
                Err(misuse.into())
            }
        }
    }

    /// Copies what was got without a copy on the way.
    fn pull(&mut self) -> Result<(), Failure> {
        let Some(mates) = &self.mates else {
            return Ok(());
        };
        for Pull {
            mate,
            address,
            wanted,
        } in self.pulls.drain(..)
        {
            let length = usize::try_from(wanted.bytes).unwrap_or(usize::MAX);
            // SAFETY: the destination of a get, left to this until the superstep has ended.
            let into = unsafe { std::slice::from_raw_parts_mut(wanted.into, length) };
            mates.pull(mate, address, into)?;
        }
        Ok(())
    }

    fn effects(&mut self) -> Effects<'_> {
        Effects {
            registrations: &self.registrations,
            queue: &mut self.queue,
            tag_bytes: self.tags.sent,
            mates: self.mates.as_ref(),
        }
    }

    /// Applies what ranks of this node have recorded, this one first.
    fn apply_local(&mut self, own: &[Vec<u8>], epoch: u32) -> Result<(), Failure> {
        let knowledge = self.exchange.knowledge();
        let mut effects = Effects {
            registrations: &self.registrations,
            queue: &mut self.queue,
            tag_bytes: self.tags.sent,
            mates: self.mates.as_ref(),
        };
        for chunk in own {
            effects.apply(Parcel::records(chunk), None)?;
        }
        let Some(mates) = &self.mates else {
            return Ok(());
        };
        // Beginning behind this rank: not everybody reads the same memory at once.
        for mate in mates.others_in_turn() {
            let rank = mates.rank(mate);
            if knowledge.talks(rank, self.rank) {
                for records in mates.records(mate, epoch) {
                    effects.apply(records, Some(mate))?;
                }
            }
        }
        Ok(())
    }

    /// Ranks of other nodes that have sent something, of which not all has come.
    fn is_complete(&self) -> bool {
        self.missing().next().is_none()
    }

    fn missing(&self) -> impl Iterator<Item = u32> {
        let (exchange, own) = (&self.exchange, self.rank);
        let is_missing = move |rank: &u32| {
            exchange.knowledge().talks(*rank, own)
                && !exchange.places().are_together(*rank, own)
                && !exchange.has_parcel(*rank)
        };
        (0..self.size).filter(is_missing)
    }

    /// Ranks of other nodes whose answers have not all come.
    fn unanswered(&self) -> impl Iterator<Item = u32> {
        let (exchange, own) = (&self.exchange, self.rank);
        let is_missing = move |rank: &u32| {
            self.asked.contains(*rank)
                && !exchange.places().are_together(*rank, own)
                && !exchange.has_answers(*rank)
        };
        (0..self.size).filter(is_missing)
    }

    /// Everything takes effect as it comes, since nobody gets from or for this rank.
    fn exchange_without_gets(&mut self, epoch: u32) -> Result<(), Failure> {
        let own = self.remote[self.rank as usize].take();
        self.enter_phase(Phase::Apply);
        self.apply_local(&own, epoch)?;
        if self.exchange.places().nodes() == 1 {
            return Ok(());
        }
        loop {
            while let Some((_, body)) = self.exchange.take_parcel() {
                self.enter_phase(Phase::Apply);
                self.effects().apply(Source::from(&*body), None)?;
                self.exchange.let_go(&body);
            }
            self.enter_phase(Phase::Exchange);
            if self.is_complete() && self.transmit()? {
                return Ok(());
            }
            self.wait_message()?;
        }
    }

    fn begin_superstep(&mut self, epoch: u32) -> Result<(), Failure> {
        self.tags.advance();
        self.tag_calls = 0;
        let gone = match self.exchange.knowledge().has_facts() {
            true => self.registrations.commit(self.exchange.knowledge()),
            false => Vec::new(),
        };
        self.close_memory(gone);
        self.facts.clear();
        self.row.clear();
        self.asked.clear();
        self.wanted.clear();
        self.keeping.clear();
        self.is_pulled = false;
        self.local.fill(LocalParcel::default());
        self.clear_arena(epoch);
        self.exchange.advance()?;
        Ok(())
    }

    /// Makes room for the records of the next superstep, where those of the one before were.
    #[inline]
    fn clear_arena(&mut self, epoch: u32) {
        if let Some(mates) = &self.mates {
            self.arenas[epoch as usize % 2].clear(&mates.window);
        }
    }
}
