//! The end of a superstep: everybody tells who has something for whom, then it is moved, and
//! takes effect: gets are read everywhere, then written, then puts.

use std::time::Duration;

use bytes::Bytes;
use dipole_link::window::Source;

use super::direct::lend;
use super::{Kept, Process, Pull, Wanted};
use crate::carrier::Carrier;
use crate::failure::Failure;
use crate::local::{FEW_ANSWERS_BYTES, FEW_BYTES, LocalParcel, Mates, Milestone, Said};
use crate::misuse::Misuse;
use crate::parcel::Parcel;
use crate::patience::Patience;
use crate::superstep::exchange::{Body, Outgoing};
use crate::superstep::facts::{Ending, Facts};
use crate::superstep::message::{Head, Kind};
use crate::superstep::pace::Pace;
use crate::superstep::queue::Queue;
use crate::superstep::record::{Malformed, Record, Records};
use crate::superstep::registrations::Registrations;

/// How long a rank waits for a message before it asks whether the others live.
const LOOK: Duration = Duration::from_millis(100);

/// What records take effect on.
struct Effects<'a> {
    registrations: &'a Registrations,
    queue: &'a mut Queue,
    tag_bytes: u64,
    mates: Option<&'a Mates>,
}

impl Effects<'_> {
    /// Where bytes of this rank's part of an area lie.
    fn place(&self, slot: u32, offset: u64, bytes: u64) -> Result<*mut u8, Malformed> {
        let address = self.registrations.own(slot, offset, bytes);
        let address = usize::try_from(address.ok_or(Malformed)?).map_err(|_| Malformed)?;
        Ok(std::ptr::with_exposed_provenance_mut(address))
    }

    /// Writes puts, and queues messages. Gets were answered before.
    fn apply(&mut self, records: Source<'_>, mate: Option<usize>) -> Result<(), Failure> {
        for record in Records::new(records) {
            match record? {
                (
                    Record::Put {
                        slot,
                        offset,
                        length,
                    },
                    data,
                ) => {
                    let place = self.place(slot, offset, length)?;
                    // SAFETY: inside a registered part, as just checked, which the program
                    // leaves to this until the superstep has ended.
                    unsafe { data.copy_to(place) };
                }
                (
                    Record::Fetch {
                        slot,
                        offset,
                        length,
                    },
                    data,
                ) => {
                    let (Some(mates), Some(mate)) = (self.mates, mate) else {
                        return Err(Malformed.into());
                    };
                    let place = self.place(slot, offset, length)?;
                    let length = usize::try_from(length).map_err(|_| Malformed)?;
                    // SAFETY: as above.
                    let into = unsafe { std::slice::from_raw_parts_mut(place, length) };
                    mates.pull(mate, data.word(0), into)?;
                }
                (Record::Message { tag, .. }, data) if tag == self.tag_bytes => {
                    let tag = usize::try_from(tag).map_err(|_| Malformed)?;
                    self.queue.push(tag, data);
                }
                (Record::Get { .. } | Record::Bring { .. } | Record::Keep { .. }, _) => {}
                (Record::Message { .. } | Record::Answer { .. }, _) => {
                    return Err(Malformed.into());
                }
            }
        }
        Ok(())
    }

    /// Reads what is asked for, and hands it over with the ticket of each get.
    fn answer(
        &self,
        records: Source<'_>,
        mut reply: impl FnMut(u64, Source<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        for record in Records::new(records) {
            let (
                Record::Get {
                    slot,
                    offset,
                    length,
                },
                ticket,
            ) = record?
            else {
                continue;
            };
            let place = self.place(slot, offset, length)?;
            let length = usize::try_from(length).map_err(|_| Malformed)?;
            // SAFETY: inside a registered part, as just checked; nothing writes there before
            // all gets have been read.
            let data = unsafe { Source::at(place, length) };
            reply(ticket.word(0), data)?;
        }
        Ok(())
    }

    /// What is wanted in memory that has been opened, with its key, and whether that is ready for it.
    fn brought(&self, records: Source<'_>) -> Result<Vec<(u64, Bytes, bool)>, Failure> {
        let mut brought = Vec::new();
        for record in Records::new(records) {
            let (record, key) = record?;
            let (Record::Bring {
                slot,
                offset,
                length,
            }
            | Record::Keep {
                slot,
                offset,
                length,
            }) = record
            else {
                continue;
            };
            let place = self.place(slot, offset, length)?;
            let length = usize::try_from(length).map_err(|_| Malformed)?;
            let is_ready = matches!(record, Record::Bring { .. });
            let data = match is_ready {
                // SAFETY: inside a registered part, as just checked, which nobody changes before
                // the superstep has ended; it does not before all is let go of.
                true => unsafe { lend(place, length) },
                // SAFETY: inside a registered part; nothing writes there before all gets have
                // been read.
                false => unsafe { Source::at(place, length) }.to_vec().into(),
            };
            brought.push((key.word(0), data, is_ready));
        }
        Ok(brought)
    }
}

/// Writes what gets have brought.
fn take_answers(wanted: &[Wanted], records: Source<'_>) -> Result<(), Failure> {
    for record in Records::new(records) {
        let (
            Record::Answer {
                ticket,
                offset,
                length,
            },
            data,
        ) = record?
        else {
            return Err(Malformed.into());
        };
        let get = usize::try_from(ticket).ok().and_then(|at| wanted.get(at));
        let get = get.ok_or(Malformed)?;
        let end = offset.checked_add(length).ok_or(Malformed)?;
        if end > get.bytes {
            return Err(Malformed.into());
        }
        let at = usize::try_from(offset).map_err(|_| Malformed)?;
        // SAFETY: inside the destination of that get, which its caller leaves to this until
        // the superstep has ended.
        unsafe { data.copy_to(get.into.add(at)) };
    }
    Ok(())
}

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
        self.close(Duration::from_secs(5));
        Ok(())
    }

    pub(super) fn end_superstep(&mut self, ending: Ending) -> Result<(), Failure> {
        let ended = self.move_everything(ending);
        if ended.is_err() {
            self.take_memory_back();
        }
        ended
    }

    fn move_everything(&mut self, ending: Ending) -> Result<(), Failure> {
        let epoch = self.exchange.superstep().wrapping_add(1);
        self.collect_facts(ending);
        self.send_parcels();
        self.arrive(epoch)?;
        self.transmit()?;
        self.gather(epoch)?;
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

    /// Says to the ranks of this node that its memory is as it is to be.
    #[inline]
    fn leave(&self, epoch: u32) {
        if let Some(mates) = &self.mates {
            mates.reach(Milestone::Left, epoch);
        }
    }

    /// Waits until a rank of this node has left the superstep before this one.
    pub(super) fn wait_left(&self, mate: usize) -> Result<(), Failure> {
        let (Some(mates), epoch) = (&self.mates, self.exchange.superstep()) else {
            return Ok(());
        };
        let mut patience = Patience::new();
        let pause = &mut |rank| {
            tell(
                &self.call,
                self.rank,
                epoch.wrapping_add(1),
                &mut patience,
                &[rank],
            );
            Ok(())
        };
        mates.wait(mate, Milestone::Left, epoch, pause)
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
        let mut patience = Patience::new();
        if let Some(mates) = &self.mates {
            for (mate, rank) in mates.others() {
                let pause = &mut |rank| {
                    tell(&self.call, self.rank, epoch, &mut patience, &[rank]);
                    Ok(())
                };
                mates.wait(mate, Milestone::Arrived, epoch, pause)?;
                let board = mates.board(mate);
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
            }
        }
        if self.exchange.places().nodes() == 1 {
            return Ok(());
        }
        if self.exchange.is_leader() {
            self.exchange.begin_rounds()?;
            self.pump(|process| process.exchange.is_known())?;
            return self.spread_knowledge(epoch);
        }
        self.learn(epoch, &mut patience)
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
    fn learn(&mut self, epoch: u32, patience: &mut Patience) -> Result<(), Failure> {
        let leader = self.exchange.places().leader(self.rank);
        let Some(mates) = &self.mates else {
            return Ok(());
        };
        let mate = mates.index(leader).unwrap_or(0);
        let pause = &mut |_| {
            let words = "ranks of other nodes";
            tell_words(&self.call, self.rank, epoch, patience, words);
            Ok(())
        };
        mates.wait(mate, Milestone::Known, epoch, pause)?;
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
        for (mate, rank) in mates.others_in_turn() {
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
        self.apply_local(&own, epoch)?;
        if self.exchange.places().nodes() == 1 {
            return Ok(());
        }
        loop {
            while let Some((_, body)) = self.exchange.take_parcel() {
                self.effects().apply(Source::from(&*body), None)?;
                self.exchange.let_go(&body);
            }
            if self.is_complete() && self.transmit()? {
                return Ok(());
            }
            self.wait_message()?;
        }
    }

    /// Gets are read when all have been asked for, written when all of this rank's have been
    /// read, and then puts.
    fn exchange_with_gets(&mut self, epoch: u32) -> Result<(), Failure> {
        self.pump(|process| process.is_complete())?;
        let mut came: Vec<(u32, Body<C::Message>)> = Vec::new();
        while let Some(parcel) = self.exchange.take_parcel() {
            came.push(parcel);
        }
        let own = self.remote[self.rank as usize].take();
        let own_answers = self.answer_all(&own, &came, epoch)?;
        for chunk in &own_answers {
            take_answers(&self.wanted, Parcel::records(chunk))?;
        }
        for of in (0..self.size).filter(|rank| self.keeping.contains(*rank)) {
            self.exchange.send_ready(of);
        }
        self.take_local_answers(epoch)?;
        self.take_remote_answers()?;
        self.apply_local(&own, epoch)?;
        for (_, body) in &came {
            self.effects().apply(Source::from(&**body), None)?;
            self.exchange.let_go(body);
        }
        loop {
            self.send_kept();
            if self.kept.is_empty() && self.transmit()? {
                return Ok(());
            }
            self.wait_message()?;
        }
    }

    /// Answers those who have become ready for what was kept.
    fn send_kept(&mut self) {
        let exchange = &mut self.exchange;
        let is_ready = |kept: &mut Kept| exchange.is_ready(kept.to);
        let ready: Vec<_> = self.kept.extract_if(.., is_ready).collect();
        for Kept { to, chunks, placed } in ready {
            exchange.send_answers(to, chunks, placed);
        }
    }

    /// Answers all gets of this rank's memory; returns the answers to its own.
    fn answer_all(
        &mut self,
        own: &[Vec<u8>],
        came: &[(u32, Body<C::Message>)],
        epoch: u32,
    ) -> Result<Vec<Vec<u8>>, Failure> {
        let chunk_bytes = self.chunk_bytes;
        let mut answers = vec![(self.rank, Parcel::new(self.chunk_bytes), Vec::new())];
        let effects = Effects {
            registrations: &self.registrations,
            queue: &mut self.queue,
            tag_bytes: self.tags.sent,
            mates: self.mates.as_ref(),
        };
        let record = |ticket: u64| {
            move |offset: u64, length: u64| Record::Answer {
                ticket,
                offset,
                length,
            }
        };
        for chunk in own {
            let mine = &mut answers[0].1;
            effects.answer(Parcel::records(chunk), |ticket, data| {
                mine.push_cut(data, record(ticket));
                Ok(())
            })?;
        }
        for (from, body) in came {
            let known = answers.iter().position(|(to, ..)| to == from);
            let index = known.unwrap_or_else(|| {
                answers.push((*from, Parcel::new(chunk_bytes), Vec::new()));
                answers.len() - 1
            });
            let (_, theirs, direct) = &mut answers[index];
            effects.answer(Source::from(&**body), |ticket, data| {
                theirs.push_cut(data, record(ticket));
                Ok(())
            })?;
            direct.extend(effects.brought(Source::from(&**body))?);
        }
        if let Some(mates) = &self.mates {
            let arena = &mut self.arenas[self.exchange.superstep() as usize % 2];
            let board = mates.board(mates.own());
            let mut asking = Vec::new();
            for (mate, rank) in mates.others() {
                if !self.exchange.knowledge().talks(rank, self.rank) {
                    continue;
                }
                let mut theirs = LocalParcel::default();
                for records in mates.records(mate, epoch) {
                    effects.answer(records, |ticket, data| {
                        let record = record(ticket)(0, data.length() as u64);
                        theirs.push((&mates.window, arena), record, &[data])
                    })?;
                }
                board.set_answers(mate, theirs.first());
                if theirs.first() != 0 {
                    asking.push((mate, theirs));
                }
            }
            let few = match &asking[..] {
                [(mate, theirs)] => {
                    (theirs.few(&mates.window, FEW_ANSWERS_BYTES)).map(|few| (*mate, few))
                }
                _ => None,
            };
            board.set_few_answers(few);
            mates.reach(Milestone::Answered, epoch);
        }
        let own_answers = answers[0].1.take();
        for (to, parcel, direct) in &mut answers[1..] {
            let pieces = direct
                .iter()
                .map(|(key, data, _)| self.placed(*key, 0, data));
            let (to, chunks, placed) = (*to, parcel.take(), pieces.flatten().collect::<Vec<_>>());
            if direct.iter().any(|(.., is_ready)| !is_ready) {
                self.kept.push(Kept { to, chunks, placed });
            } else if !(chunks.is_empty() && placed.is_empty()) {
                self.exchange.send_answers(to, chunks, placed);
            }
        }
        self.transmit()?;
        Ok(own_answers)
    }

    fn take_local_answers(&mut self, epoch: u32) -> Result<(), Failure> {
        let Some(mates) = &self.mates else {
            return Ok(());
        };
        let mut patience = Patience::new();
        for (mate, rank) in mates.others_in_turn() {
            if !self.asked.contains(rank) {
                continue;
            }
            let pause = &mut |rank| {
                tell(&self.call, self.rank, epoch, &mut patience, &[rank]);
                Ok(())
            };
            mates.wait(mate, Milestone::Answered, epoch, pause)?;
            for records in mates.answers(mate) {
                take_answers(&self.wanted, records)?;
            }
        }
        Ok(())
    }

    fn take_remote_answers(&mut self) -> Result<(), Failure> {
        loop {
            while let Some((_, body)) = self.exchange.take_answers() {
                take_answers(&self.wanted, Source::from(&*body))?;
                self.exchange.let_go(&body);
            }
            self.send_kept();
            if self.unanswered().next().is_none() {
                return Ok(());
            }
            self.wait_message()?;
        }
    }

    /// Others may still copy memory of this rank.
    fn let_others_finish(&mut self, epoch: u32) -> Result<(), Failure> {
        let Some(mates) = &self.mates else {
            return Ok(());
        };
        mates.reach(Milestone::Finished, epoch);
        let mut patience = Patience::new();
        for (mate, _) in mates.others() {
            let pause = &mut |rank| {
                tell(&self.call, self.rank, epoch, &mut patience, &[rank]);
                Ok(())
            };
            mates.wait(mate, Milestone::Finished, epoch, pause)?;
        }
        Ok(())
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

    /// Sends what there is room for, and whose slot has begun; true if nothing is left, and no
    /// memory of the program's is read any more.
    #[inline]
    fn transmit(&mut self) -> Result<bool, Failure> {
        while self.has_unsent() {
            if !self.carrier()?.has_room()? {
                return Ok(false);
            }
            if self.slots.is_some() && !self.exchange.is_urgent() {
                if !self.transmit_in_slot()? {
                    return Ok(false);
                }
            } else if let Some((to, next)) = self.exchange.poll_transmit() {
                self.hand_over(to, next)?;
            }
        }
        Ok(!self.is_placing())
    }

    fn hand_over(&mut self, to: u32, what: Outgoing) -> Result<(), Failure> {
        let carrier = self.carrier()?;
        match what {
            Outgoing::Message(message) => carrier.send(to, message),
            Outgoing::Placed { key, offset, bytes } => carrier.place(to, key, offset, bytes),
        }
    }

    /// Sends the next chunk if its slot has begun.
    fn transmit_in_slot(&mut self) -> Result<bool, Failure> {
        let now = self.begun.elapsed();
        let chunk = self.next_chunk.take().or_else(|| {
            let (to, chunk) = self.exchange.poll_transmit()?;
            let now_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
            let due = Duration::from_nanos(self.pace.next(now_ns, chunk.length()));
            Some((due, to, chunk))
        });
        match chunk {
            Some((due, to, chunk)) if due <= now => {
                self.hand_over(to, chunk)?;
                Ok(true)
            }
            early => {
                self.next_chunk = early;
                Ok(false)
            }
        }
    }

    #[inline]
    fn has_unsent(&self) -> bool {
        self.exchange.has_transmit() || self.next_chunk.is_some()
    }

    /// Sends and takes messages until `is_done` and everything is sent.
    #[inline]
    fn pump(&mut self, is_done: impl Fn(&Self) -> bool) -> Result<(), Failure> {
        loop {
            let is_sent = self.transmit()?;
            if is_sent && is_done(self) {
                return Ok(());
            }
            self.wait_message()?;
        }
    }

    /// Sends what there is room for and waits for a message, or for room, unless the last has been sent by this.
    fn wait_message(&mut self) -> Result<(), Failure> {
        let mut patience = None;
        loop {
            let has_waited = self.has_unsent() || self.is_placing();
            let is_sent = self.transmit()?;
            if has_waited && is_sent {
                // That may be all that its caller waits for.
                return Ok(());
            }
            let (was_full, was_placing) = (self.has_unsent(), self.is_placing());
            let slot = self.next_chunk.as_ref().map(|(due, ..)| *due);
            let patience_now = slot.map_or(LOOK, |due| {
                due.saturating_sub(self.begun.elapsed()).min(LOOK)
            });
            if let Some((from, message)) = self.carrier()?.receive(patience_now)? {
                return self.take(from, message);
            }
            let has_placed = was_placing && !self.is_placing();
            if has_placed || was_full && self.carrier()?.has_room()? {
                return Ok(());
            }
            let waits: Vec<u32> = match self.exchange.waits_for() {
                Some(rank) => vec![rank],
                None if self.is_complete() => {
                    let unready = self.kept.iter().map(|kept| kept.to);
                    self.unanswered().chain(unready).collect()
                }
                None => self.missing().collect(),
            };
            if let Some(mates) = &self.mates {
                mates.check()?;
            }
            self.carrier()?.check(&waits)?;
            let epoch = self.exchange.superstep().wrapping_add(1);
            let patience = patience.get_or_insert_with(Patience::new);
            tell(&self.call, self.rank, epoch, patience, &waits);
        }
    }

    /// Takes a message of another rank.
    pub(super) fn take(&mut self, from: u32, message: C::Message) -> Result<(), Failure> {
        match Head::decode(&message) {
            Some((head, _)) if head.kind == Kind::Abort => Err(Failure::Aborted { rank: from }),
            // That it has come is the answer.
            Some((head, _)) if head.kind == Kind::Alive => Ok(()),
            Some((head, _)) => Ok(self.exchange.accept(from, head, message)?),
            None => Err(Malformed.into()),
        }
    }

    pub(super) fn carrier(&mut self) -> Result<&mut C, Failure> {
        let closed = || std::io::ErrorKind::NotConnected.into();
        let carrier = self.carrier.as_mut().ok_or_else(closed);
        carrier.map_err(Failure::system("messages to other nodes"))
    }

    pub(super) fn close(&mut self, patience: Duration) {
        if let Some(mut carrier) = self.carrier.take() {
            carrier.close(patience);
        }
    }
}

/// Says for which ranks a rank waits, now and then.
fn tell(call: &super::Call, rank: u32, epoch: u32, patience: &mut Patience, waits: &[u32]) {
    let names: Vec<_> = waits.iter().map(ToString::to_string).collect();
    let words = match waits {
        [] => "other nodes to take what is sent to them".to_owned(),
        [_] => format!("rank {}", names[0]),
        _ => format!("ranks {}", names.join(", ")),
    };
    tell_words(call, rank, epoch, patience, &words);
}

fn tell_words(call: &super::Call, rank: u32, epoch: u32, patience: &mut Patience, waits: &str) {
    if let Some(waited) = patience.word() {
        let waited = waited.as_secs();
        // The first is the one in which all begin.
        let superstep = match epoch {
            1 => String::new(),
            _ => format!(", superstep {}", epoch.wrapping_sub(2)),
        };
        eprintln!("bsp: rank {rank}{superstep}: {call} has waited {waited} s for {waits}");
    }
}
