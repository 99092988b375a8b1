//! The end of a superstep in which somebody gets: all that is asked for is read before anything is written.

use dipole_link::window::Source;

use super::super::{Kept, Process};
use super::effects::{Effects, take_answers};
use crate::carrier::Carrier;
use crate::failure::Failure;
use crate::local::{FEW_ANSWERS_BYTES, LocalParcel, Mates, Milestone};
use crate::parcel::Parcel;
use crate::superstep::exchange::Body;
use crate::superstep::record::Record;
use crate::trace::Phase;

impl<C: Carrier> Process<C> {
    /// Gets are read when all have been asked for, written when all of this rank's have been
    /// read, and then puts.
    pub(super) fn exchange_with_gets(&mut self, epoch: u32) -> Result<(), Failure> {
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
        self.enter_phase(Phase::Apply);
        for (_, body) in &came {
            self.effects().apply(Source::from(&**body), None)?;
            self.exchange.let_go(body);
        }
        self.enter_phase(Phase::Exchange);
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
        let in_turn = self.mates.as_ref().map(Mates::others_in_turn);
        for mate in in_turn.into_iter().flatten() {
            let rank = self.mates.as_ref().map(|mates| mates.rank(mate));
            if !rank.is_some_and(|rank| self.asked.contains(rank)) {
                continue;
            }
            self.wait_for(mate, (Milestone::Answered, epoch), None)?;
            let answers = self.mates.iter().flat_map(|mates| mates.answers(mate));
            for records in answers {
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
    pub(super) fn let_others_finish(&mut self, epoch: u32) -> Result<(), Failure> {
        let Some(mates) = &self.mates else {
            return Ok(());
        };
        mates.reach(Milestone::Finished, epoch);
        for mate in mates.others_in_order() {
            self.wait_for(mate, (Milestone::Finished, epoch), None)?;
        }
        Ok(())
    }
}
