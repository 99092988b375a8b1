//! The words in front of a window: how far its rank has come, and where it put what.

use std::sync::atomic::{Ordering, compiler_fence, fence};

use dipole_link::membarrier;
use dipole_link::window::{Source, Window};

use crate::superstep::knowledge::words;

const LINE_BYTES: usize = 64;
/// A line for even and one for odd supersteps: what a rank says of a superstep is read until
/// the end of the next. The epoch, flags, to whom it has records, of whom it gets, where its facts
/// are, and where its records for the first ranks of the node begin; or, instead of the last two,
/// few records for a single rank of the node: they come with the line that all look at.
const ARRIVED: usize = 0;
/// One more than the index of the rank for whose word this rank sleeps.
const SLEEPS: usize = 2 * LINE_BYTES;
/// The superstep whose gets it has answered; for whom and how many are few answers, and these.
const ANSWERED: usize = 3 * LINE_BYTES;
/// The superstep in which it needs no other rank's memory any more.
const FINISHED: usize = 4 * LINE_BYTES;
/// Of a node's leader: the superstep of which all nodes are known, and where that is written.
const KNOWN: usize = 5 * LINE_BYTES;
/// Not 0 once it has ended the program by an error: of its own, or of another rank.
const ABORTED: usize = 6 * LINE_BYTES;
/// The superstep that it has left: all that was put into its memory is there.
const LEFT: usize = 7 * LINE_BYTES;
/// What is too long for a line.
const TABLES: usize = 4096;

const FLAGS: usize = 4;
const ROW: usize = 8;
const ASKED: usize = 16;
const FACTS: usize = 24;
const HEADS: usize = 40;
const HEADS_IN_LINE: usize = 3;
/// Where few records lie in a line, which they fill up.
const FEW: usize = FACTS;
const FEW_ANSWERS: usize = 8;

const PULLS: u32 = 1;
const HAS_FACTS: u32 = 2;
/// The bytes of few records stand above the flags.
const FEW_SHIFT: u32 = 8;

/// A moment that one rank waits for another to reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Milestone {
    /// At the end of the superstep.
    Arrived,
    /// Its gets are answered.
    Answered,
    /// It needs no other memory any more.
    Finished,
    /// It knows all nodes.
    Known,
    /// It is in the next superstep.
    Left,
}

/// Who was wrong where a rank has ended the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum By {
    Itself = 1,
    Another = 2,
}

/// What a rank says at the end of a superstep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said<'a> {
    /// To whom it has records.
    pub(crate) row: &'a [u64],
    /// Of whom it gets.
    pub(crate) asked: &'a [u64],
    /// It reads, or lets others read, memory outside of windows.
    pub(crate) pulls: bool,
    /// Where its facts are in its window, if there are any.
    pub(crate) facts: Option<(usize, usize)>,
    /// Few records for the only rank of the node to whom it has any, if there are no facts.
    pub(crate) few: Option<Source<'a>>,
}

/// Most bytes of few records.
pub(crate) const FEW_BYTES: usize = LINE_BYTES - FEW;
/// Most bytes of few answers.
pub(crate) const FEW_ANSWERS_BYTES: usize = LINE_BYTES - FEW_ANSWERS;

/// The board of a window of one of so many ranks, so many of them of this node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Board<'a> {
    window: &'a Window,
    words: usize,
    mates: usize,
    accepts_fences: bool,
}

impl<'a> Board<'a> {
    pub(crate) fn new(window: &'a Window, size: u32, mates: usize) -> Board<'a> {
        Board {
            window,
            words: words(size),
            mates,
            accepts_fences: membarrier::register(),
        }
    }

    /// Bytes that boards of such a program take.
    pub(crate) fn bytes(size: u32, mates: usize) -> usize {
        let table = 2 * words(size) + mates;
        (TABLES + 8 * (2 * table + mates)).next_multiple_of(4096)
    }

    fn line(epoch: u32) -> usize {
        ARRIVED + (epoch as usize % 2) * LINE_BYTES
    }

    /// Where a milestone's word lies.
    pub(crate) fn place(milestone: Milestone, epoch: u32) -> usize {
        match milestone {
            Milestone::Arrived => Board::line(epoch),
            Milestone::Answered => ANSWERED,
            Milestone::Finished => FINISHED,
            Milestone::Known => KNOWN,
            Milestone::Left => LEFT,
        }
    }

    /// True once its rank has reached a milestone of a superstep; the value it had seen else.
    #[inline]
    pub(crate) fn has_reached(&self, milestone: Milestone, epoch: u32) -> Result<(), u32> {
        let word = self.window.half_word(Board::place(milestone, epoch));
        let seen = word.load(Ordering::Acquire);
        // It cannot be ahead: all wait for all in each superstep.
        if seen == epoch { Ok(()) } else { Err(seen) }
    }

    /// Says that this rank has reached a milestone, of which all it has written before is part.
    #[inline]
    pub(crate) fn reach(&self, milestone: Milestone, epoch: u32) {
        let word = self.window.half_word(Board::place(milestone, epoch));
        word.store(epoch, Ordering::Release);
        // Who sleeps has said so before it looked at the word for the last time.
        match self.accepts_fences {
            true => compiler_fence(Ordering::SeqCst),
            false => fence(Ordering::SeqCst),
        }
    }

    /// Wakes who sleeps on a milestone's word of this rank.
    pub(crate) fn wake(&self, milestone: Milestone, epoch: u32) {
        self.window.wake(Board::place(milestone, epoch));
    }

    /// Says for whom this rank sleeps, by index; nobody knows of more than one.
    pub(crate) fn sleep_for(&self, mate: Option<usize>) {
        let index = mate.map_or(0, |mate| u32::try_from(mate + 1).unwrap_or(u32::MAX));
        self.window
            .half_word(SLEEPS)
            .store(index, Ordering::Relaxed);
        if mate.is_some() {
            membarrier::fence_other_processes();
        }
    }

    /// True if its rank sleeps for the one of this index.
    #[inline]
    pub(crate) fn sleeps_for(&self, mate: usize) -> bool {
        self.window.half_word(SLEEPS).load(Ordering::Relaxed) as usize == mate + 1
    }

    /// Says that this rank has ended the program, by an error of whom.
    pub(crate) fn abort(&self, by: By) {
        let word = self.window.half_word(ABORTED);
        word.store(by as u32, Ordering::SeqCst);
    }

    /// By whose error its rank has ended the program, if it has.
    pub(crate) fn aborted(&self) -> Option<By> {
        match self.window.half_word(ABORTED).load(Ordering::SeqCst) {
            0 => None,
            own if own == By::Itself as u32 => Some(By::Itself),
            _ => Some(By::Another),
        }
    }

    fn table(&self, epoch: u32) -> usize {
        TABLES + (epoch as usize % 2) * 8 * (2 * self.words + self.mates)
    }

    fn store(&self, at: usize, value: u64) {
        self.window.word(at).store(value, Ordering::Relaxed);
    }

    fn load(&self, at: usize) -> u64 {
        self.window.word(at).load(Ordering::Relaxed)
    }

    /// Writes what this rank says of a superstep, before it has arrived there.
    #[inline]
    pub(crate) fn say(&self, epoch: u32, said: Said<'_>) {
        let line = Board::line(epoch);
        let facts = said.facts.map_or(0, |_| HAS_FACTS);
        let mut flags = (u32::from(said.pulls) * PULLS) | facts;
        if let Some(few) = said.few {
            flags |= u32::try_from(few.length()).unwrap_or(0) << FEW_SHIFT;
            self.window.write(line + FEW, few);
        }
        let half = self.window.half_word(line + FLAGS);
        half.store(flags, Ordering::Relaxed);
        if let Some((at, bytes)) = said.facts {
            self.store(line + FACTS, at as u64);
            self.store(line + FACTS + 8, bytes as u64);
        }
        if self.words == 1 {
            self.store(line + ROW, said.row[0]);
            self.store(line + ASKED, said.asked[0]);
            return;
        }
        let table = self.table(epoch);
        for (word, (row, asked)) in said.row.iter().zip(said.asked).enumerate() {
            self.store(table + 16 * word, *row);
            self.store(table + 16 * word + 8, *asked);
        }
    }

    /// To whom its rank has records, and of whom it gets, a word of each at a time.
    #[inline]
    pub(crate) fn said(&self, epoch: u32) -> impl Iterator<Item = (u64, u64)> + Clone {
        let (at, step) = match self.words {
            1 => (Board::line(epoch) + ROW, ASKED - ROW),
            _ => (self.table(epoch), 8),
        };
        let board = *self;
        (0..self.words).map(move |word| {
            let at = at + 16 * word;
            (board.load(at), board.load(at + step))
        })
    }

    /// Whether its rank needs other memory until the end, and its facts.
    #[inline]
    pub(crate) fn flags(&self, epoch: u32) -> (bool, Option<Source<'a>>) {
        let line = Board::line(epoch);
        let flags = self.window.half_word(line + FLAGS);
        let flags = flags.load(Ordering::Relaxed);
        let facts = (flags & HAS_FACTS != 0).then(|| self.range(line + FACTS));
        (flags & PULLS != 0, facts.flatten())
    }

    /// Records for the only rank of the node to whom its rank has any, if they are few.
    #[inline]
    pub(crate) fn few(&self, epoch: u32) -> Option<Source<'a>> {
        let line = Board::line(epoch);
        let flags = self.window.half_word(line + FLAGS);
        let bytes = (flags.load(Ordering::Relaxed) >> FEW_SHIFT) as usize;
        (1..=FEW_BYTES)
            .contains(&bytes)
            .then(|| self.window.source(line + FEW, bytes))
    }

    /// Writes answers for the only rank of the node that has asked, if they are few; else none are.
    pub(crate) fn set_few_answers(&self, few: Option<(usize, Source<'_>)>) {
        let mut told = 0;
        if let Some((mate, answers)) = few {
            told = u32::try_from((mate + 1) << FEW_SHIFT | answers.length()).unwrap_or(0);
            self.window.write(ANSWERED + FEW_ANSWERS, answers);
        }
        let half = self.window.half_word(ANSWERED + 4);
        half.store(told, Ordering::Relaxed);
    }

    /// Answers for a rank of the node, if it is the only one and they are few.
    pub(crate) fn few_answers(&self, mate: usize) -> Option<Source<'a>> {
        let told = self.window.half_word(ANSWERED + 4).load(Ordering::Relaxed);
        let bytes = (told & ((1 << FEW_SHIFT) - 1)) as usize;
        let is_its = (told >> FEW_SHIFT) as usize == mate + 1 && bytes <= FEW_ANSWERS_BYTES;
        is_its.then(|| self.window.source(ANSWERED + FEW_ANSWERS, bytes))
    }

    /// The bytes of which a place and a length are written at `at`, if they are inside.
    fn range(&self, at: usize) -> Option<Source<'a>> {
        let start = usize::try_from(self.load(at)).ok()?;
        let bytes = usize::try_from(self.load(at + 8)).ok()?;
        let end = start.checked_add(bytes)?;
        (end <= self.window.length()).then(|| self.window.source(start, bytes))
    }

    fn head_place(&self, epoch: u32, mate: usize) -> usize {
        match mate {
            0..HEADS_IN_LINE => Board::line(epoch) + HEADS + 8 * mate,
            _ => self.table(epoch) + 8 * (2 * self.words + mate),
        }
    }

    fn answers_place(&self, mate: usize) -> usize {
        TABLES + 8 * (2 * (2 * self.words + self.mates) + mate)
    }

    /// Says where this rank's records for a rank of the node begin.
    pub(crate) fn set_records(&self, epoch: u32, mate: usize, first: usize) {
        self.store(self.head_place(epoch, mate), first as u64);
    }

    /// Where they begin.
    pub(crate) fn records(&self, epoch: u32, mate: usize) -> u64 {
        self.load(self.head_place(epoch, mate))
    }

    /// Says where this rank's answers for a rank of the node begin.
    pub(crate) fn set_answers(&self, mate: usize, first: usize) {
        self.store(self.answers_place(mate), first as u64);
    }

    /// Where they begin.
    pub(crate) fn answers(&self, mate: usize) -> u64 {
        self.load(self.answers_place(mate))
    }

    /// Says where the knowledge of all nodes is.
    pub(crate) fn set_known(&self, at: usize, bytes: usize) {
        self.store(KNOWN + 8, at as u64);
        self.store(KNOWN + 16, bytes as u64);
    }

    /// Where it is.
    pub(crate) fn known(&self) -> Option<Source<'a>> {
        self.range(KNOWN + 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_read_for_few_and_for_many_ranks() {
        for (size, mates) in [(2, 2), (64, 4), (65, 65), (200, 70)] {
            let window = Window::create(16 << 20).expect("memory");
            let board = Board::new(&window, size, mates);
            for epoch in 1..4 {
                let rows: Vec<u64> = (0..words(size) as u64).map(|word| word + 7).collect();
                let asked: Vec<u64> = rows.iter().map(|row| row + 100).collect();
                assert!(board.has_reached(Milestone::Arrived, epoch).is_err());
                board.say(
                    epoch,
                    Said {
                        row: &rows,
                        asked: &asked,
                        pulls: epoch == 2,
                        facts: (epoch == 3).then_some((8192, 16)),
                        few: None,
                    },
                );
                for mate in 0..mates {
                    board.set_records(epoch, mate, mate + 64);
                    board.set_answers(mate, mate + 640);
                }
                board.reach(Milestone::Arrived, epoch);
                assert!(board.has_reached(Milestone::Arrived, epoch).is_ok());
                let said: Vec<_> = board.said(epoch).collect();
                let expected: Vec<_> = rows.iter().copied().zip(asked).collect();
                assert_eq!(said, expected);
                let (pulls, facts) = board.flags(epoch);
                assert_eq!((pulls, facts.is_some()), (epoch == 2, epoch == 3));
                for mate in 0..mates {
                    assert_eq!(board.records(epoch, mate), mate as u64 + 64);
                    assert_eq!(board.answers(mate), mate as u64 + 640);
                }
            }
            let few = [4; FEW_BYTES];
            let said = Said {
                row: &vec![1; words(size)],
                asked: &vec![2; words(size)],
                pulls: true,
                facts: None,
                few: Some(Source::from(&few[..])),
            };
            board.say(4, said);
            assert_eq!(board.few(4).map(Source::to_vec), Some(few.to_vec()));
            assert!(board.few(3).is_none() && board.flags(4).0 && board.flags(4).1.is_none());
            assert!(board.said(4).all(|said| said == (1, 2)));
            let answers = [7; FEW_ANSWERS_BYTES];
            board.set_few_answers(Some((1, Source::from(&answers[..]))));
            board.reach(Milestone::Answered, 4);
            assert_eq!(
                board.few_answers(1).map(Source::to_vec),
                Some(answers.to_vec())
            );
            assert!(board.few_answers(0).is_none());
            board.set_few_answers(None);
            assert!(board.few_answers(1).is_none());
            assert!(Board::bytes(size, mates) <= 16 << 10);
        }
    }
}
