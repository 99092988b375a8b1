//! The words at the start of a window: how far its rank is, and where its data are.

use std::sync::atomic::{Ordering, compiler_fence, fence};

use dipole_link::membarrier;
use dipole_link::window::{Source, Window};

use crate::superstep::request::Request;
use crate::superstep::summary::words;

const LINE_BYTES: usize = 64;
/// Two cache lines, for even and odd supersteps, because what a rank publishes at the end of a
/// superstep is read until the end of the next. Each has the epoch, flags, the ranks that this one
/// sends to and gets from, the position of its collective calls, and the start of its records for
/// the first ranks of the node. The last two make room for inline records if there are few records
/// and they go to a single rank of the node: its peers read this line anyway.
const ARRIVED: usize = 0;
/// One plus the index of the rank that this rank sleeps for; 0 if it is awake.
const SLEEPS: usize = 2 * LINE_BYTES;
/// The superstep whose gets this rank has replied to; the receiver and length of inline replies, and
/// these replies.
const REPLIED: usize = 3 * LINE_BYTES;
/// The superstep in which this rank no longer needs the memory of other ranks.
const FINISHED: usize = 4 * LINE_BYTES;
/// On the leader of a node: the superstep whose summary it has published, and where that is.
const KNOWN: usize = 5 * LINE_BYTES;
/// Not 0 once this rank has ended the program: an [`AbortCause`].
const ABORTED: usize = 6 * LINE_BYTES;
/// The superstep that this rank has left; all puts into its memory are complete.
const LEFT: usize = 7 * LINE_BYTES;
/// Tables that are too long for a line.
const TABLES: usize = 4096;

const FLAGS: usize = 4;
const SEND_TO: usize = 8;
const GET_FROM: usize = 16;
const COLLECTIVES: usize = 24;
const HEADS: usize = 40;
const HEADS_IN_LINE: usize = 3;
/// Inline records and replies fill the rest of their line.
const INLINE_RECORDS: usize = COLLECTIVES;
const INLINE_REPLIES: usize = 8;

const PULLS: u32 = 1;
const HAS_COLLECTIVES: u32 = 2;
/// Two bits above these flags hold the request.
const REQUEST_SHIFT: u32 = 2;
/// The length of inline records is stored above the flags.
const INLINE_LEN_SHIFT: u32 = 8;

/// Phases of the end of a superstep that other ranks wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncPhase {
    /// The rank has published what it sends and gets.
    Arrived,
    /// It has replied to all gets from its memory.
    Replied,
    /// It no longer needs the memory of other ranks.
    Finished,
    /// It has published the summary of all nodes.
    Known,
    /// It has left the superstep.
    Left,
}

/// Why a rank has ended the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum AbortCause {
    OwnError = 1,
    OtherRank = 2,
}

/// Data that a rank publishes when it arrives at the end of a superstep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival<'a> {
    /// Ranks it has records for.
    pub(crate) send_to: &'a [u64],
    /// Ranks from which this rank gets data, one bit each.
    pub(crate) get_from: &'a [u64],
    /// It copies memory outside of windows, or another rank copies its memory.
    pub(crate) pulls: bool,
    /// Its request for the end of the superstep.
    pub(crate) request: Request,
    /// Position and length of its encoded collective calls in its window, if there are any.
    pub(crate) collectives: Option<(usize, usize)>,
    /// Its records, if they are short, go to a single rank of the node, and there are no collective
    /// calls.
    pub(crate) inline: Option<Source<'a>>,
}

/// Maximum bytes of records in the block itself.
pub(crate) const INLINE_RECORD_BYTES: usize = LINE_BYTES - INLINE_RECORDS;
/// Maximum bytes of replies in the block itself.
pub(crate) const INLINE_REPLY_BYTES: usize = LINE_BYTES - INLINE_REPLIES;

/// The sync block of a window, in a program of a given number of ranks and local ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SyncBlock<'a> {
    window: &'a Window,
    words: usize,
    local_ranks: usize,
    accepts_fences: bool,
}

impl<'a> SyncBlock<'a> {
    pub(crate) fn new(window: &'a Window, size: u32, local_ranks: usize) -> SyncBlock<'a> {
        SyncBlock {
            window,
            words: words(size),
            local_ranks,
            accepts_fences: membarrier::register(),
        }
    }

    /// Size of the sync blocks of a program with this number of ranks.
    pub(crate) fn bytes(size: u32, local_ranks: usize) -> usize {
        let table = 2 * words(size) + local_ranks;
        (TABLES + 8 * (2 * table + local_ranks)).next_multiple_of(4096)
    }

    fn line(epoch: u32) -> usize {
        ARRIVED + (epoch as usize % 2) * LINE_BYTES
    }

    /// Position of the word for a phase.
    pub(crate) fn place(phase: SyncPhase, epoch: u32) -> usize {
        match phase {
            SyncPhase::Arrived => SyncBlock::line(epoch),
            SyncPhase::Replied => REPLIED,
            SyncPhase::Finished => FINISHED,
            SyncPhase::Known => KNOWN,
            SyncPhase::Left => LEFT,
        }
    }

    /// True once the rank has reached a phase of a superstep; otherwise the value of its word.
    #[inline]
    pub(crate) fn has_reached(&self, phase: SyncPhase, epoch: u32) -> Result<(), u32> {
        let word = self.window.half_word(SyncBlock::place(phase, epoch));
        let seen = word.load(Ordering::Acquire);
        // The word cannot be ahead, because in each superstep every rank waits for all others.
        if seen == epoch { Ok(()) } else { Err(seen) }
    }

    /// Publishes that this rank has reached a phase, and everything it has written before.
    #[inline]
    pub(crate) fn reach(&self, phase: SyncPhase, epoch: u32) {
        let word = self.window.half_word(SyncBlock::place(phase, epoch));
        word.store(epoch, Ordering::Release);
        // A rank that sleeps has set its SLEEPS word before it read this one for the last time.
        match self.accepts_fences {
            true => compiler_fence(Ordering::SeqCst),
            false => fence(Ordering::SeqCst),
        }
    }

    /// Wakes ranks that sleep on the word for a phase.
    pub(crate) fn wake(&self, phase: SyncPhase, epoch: u32) {
        self.window.wake(SyncBlock::place(phase, epoch));
    }

    /// Publishes the index of the rank that this one sleeps for, if any.
    pub(crate) fn sleep_for(&self, local_rank: Option<usize>) {
        let index = local_rank.map_or(0, |local_rank| {
            u32::try_from(local_rank + 1).unwrap_or(u32::MAX)
        });
        self.window
            .half_word(SLEEPS)
            .store(index, Ordering::Relaxed);
        if local_rank.is_some() {
            membarrier::fence_other_processes();
        }
    }

    /// True if the rank of this block sleeps for the rank with this index.
    #[inline]
    pub(crate) fn sleeps_for(&self, local_rank: usize) -> bool {
        self.window.half_word(SLEEPS).load(Ordering::Relaxed) as usize == local_rank + 1
    }

    /// Publishes that this rank has ended the program.
    pub(crate) fn abort(&self, cause: AbortCause) {
        let word = self.window.half_word(ABORTED);
        word.store(cause as u32, Ordering::SeqCst);
    }

    /// Why the rank has ended the program, if it has.
    pub(crate) fn aborted(&self) -> Option<AbortCause> {
        match self.window.half_word(ABORTED).load(Ordering::SeqCst) {
            0 => None,
            own if own == AbortCause::OwnError as u32 => Some(AbortCause::OwnError),
            _ => Some(AbortCause::OtherRank),
        }
    }

    fn table(&self, epoch: u32) -> usize {
        TABLES + (epoch as usize % 2) * 8 * (2 * self.words + self.local_ranks)
    }

    fn store(&self, at: usize, value: u64) {
        self.window.word(at).store(value, Ordering::Relaxed);
    }

    fn load(&self, at: usize) -> u64 {
        self.window.word(at).load(Ordering::Relaxed)
    }

    /// Writes what this rank publishes on arrival. It must not have reached that phase yet.
    #[inline]
    pub(crate) fn set_arrival(&self, epoch: u32, arrival: Arrival<'_>) {
        let line = SyncBlock::line(epoch);
        let collectives = arrival.collectives.map_or(0, |_| HAS_COLLECTIVES);
        let request = arrival.request.bits() << REQUEST_SHIFT;
        let mut flags = (u32::from(arrival.pulls) * PULLS) | collectives | request;
        if let Some(inline) = arrival.inline {
            flags |= u32::try_from(inline.length()).unwrap_or(0) << INLINE_LEN_SHIFT;
            self.window.write(line + INLINE_RECORDS, inline);
        }
        let half = self.window.half_word(line + FLAGS);
        half.store(flags, Ordering::Relaxed);
        if let Some((at, bytes)) = arrival.collectives {
            self.store(line + COLLECTIVES, at as u64);
            self.store(line + COLLECTIVES + 8, bytes as u64);
        }
        if self.words == 1 {
            self.store(line + SEND_TO, arrival.send_to[0]);
            self.store(line + GET_FROM, arrival.get_from[0]);
            return;
        }
        let table = self.table(epoch);
        let rows = arrival.send_to.iter().zip(arrival.get_from);
        for (word, (send_to, get_from)) in rows.enumerate() {
            self.store(table + 16 * word, *send_to);
            self.store(table + 16 * word + 8, *get_from);
        }
    }

    /// The ranks that this rank sends to and gets from, one word of each at a time.
    #[inline]
    pub(crate) fn traffic(&self, epoch: u32) -> impl Iterator<Item = (u64, u64)> + Clone {
        let (at, step) = match self.words {
            1 => (SyncBlock::line(epoch) + SEND_TO, GET_FROM - SEND_TO),
            _ => (self.table(epoch), 8),
        };
        let block = *self;
        (0..self.words).map(move |word| {
            let at = at + 16 * word;
            (block.load(at), block.load(at + step))
        })
    }

    /// True if memory is copied until the superstep ends; what the rank requests; and the encoded
    /// collective calls.
    #[inline]
    pub(crate) fn flags(&self, epoch: u32) -> (bool, Request, Option<Source<'a>>) {
        let line = SyncBlock::line(epoch);
        let flags = self.window.half_word(line + FLAGS);
        let flags = flags.load(Ordering::Relaxed);
        let collectives = (flags & HAS_COLLECTIVES != 0).then(|| self.range(line + COLLECTIVES));
        (
            flags & PULLS != 0,
            Request::from_bits(flags >> REQUEST_SHIFT),
            collectives.flatten(),
        )
    }

    /// The inline records, if there are any.
    #[inline]
    pub(crate) fn inline_records(&self, epoch: u32) -> Option<Source<'a>> {
        let line = SyncBlock::line(epoch);
        let flags = self.window.half_word(line + FLAGS);
        let bytes = (flags.load(Ordering::Relaxed) >> INLINE_LEN_SHIFT) as usize;
        (1..=INLINE_RECORD_BYTES)
            .contains(&bytes)
            .then(|| self.window.source(line + INLINE_RECORDS, bytes))
    }

    /// Writes inline replies for a single rank of the node, or removes them.
    pub(crate) fn set_inline_replies(&self, inline: Option<(usize, Source<'_>)>) {
        let mut word = 0;
        if let Some((local_rank, replies)) = inline {
            let receiver = (local_rank + 1) << INLINE_LEN_SHIFT;
            word = u32::try_from(receiver | replies.length()).unwrap_or(0);
            self.window.write(REPLIED + INLINE_REPLIES, replies);
        }
        let half = self.window.half_word(REPLIED + 4);
        half.store(word, Ordering::Relaxed);
    }

    /// Inline replies for a rank of the node, if there are any.
    pub(crate) fn inline_replies(&self, local_rank: usize) -> Option<Source<'a>> {
        let word = self.window.half_word(REPLIED + 4).load(Ordering::Relaxed);
        let bytes = (word & ((1 << INLINE_LEN_SHIFT) - 1)) as usize;
        let is_receiver = (word >> INLINE_LEN_SHIFT) as usize == local_rank + 1;
        (is_receiver && bytes <= INLINE_REPLY_BYTES)
            .then(|| self.window.source(REPLIED + INLINE_REPLIES, bytes))
    }

    /// The bytes whose position and length are stored at `at`, if they are inside the window.
    fn range(&self, at: usize) -> Option<Source<'a>> {
        let start = usize::try_from(self.load(at)).ok()?;
        let bytes = usize::try_from(self.load(at + 8)).ok()?;
        let end = start.checked_add(bytes)?;
        (end <= self.window.length()).then(|| self.window.source(start, bytes))
    }

    fn records_at(&self, epoch: u32, local_rank: usize) -> usize {
        match local_rank {
            0..HEADS_IN_LINE => SyncBlock::line(epoch) + HEADS + 8 * local_rank,
            _ => self.table(epoch) + 8 * (2 * self.words + local_rank),
        }
    }

    fn replies_at(&self, local_rank: usize) -> usize {
        TABLES + 8 * (2 * (2 * self.words + self.local_ranks) + local_rank)
    }

    /// Publishes the start of this rank's records for a rank of the node.
    pub(crate) fn set_records(&self, epoch: u32, local_rank: usize, first: usize) {
        self.store(self.records_at(epoch, local_rank), first as u64);
    }

    /// Start of the records for a rank of the node.
    pub(crate) fn records(&self, epoch: u32, local_rank: usize) -> u64 {
        self.load(self.records_at(epoch, local_rank))
    }

    /// Publishes the start of this rank's replies to a rank of the node.
    pub(crate) fn set_replies(&self, local_rank: usize, first: usize) {
        self.store(self.replies_at(local_rank), first as u64);
    }

    /// Start of the replies to a rank of the node.
    pub(crate) fn replies(&self, local_rank: usize) -> u64 {
        self.load(self.replies_at(local_rank))
    }

    /// Publishes the position of the summary of all nodes.
    pub(crate) fn set_known(&self, at: usize, bytes: usize) {
        self.store(KNOWN + 8, at as u64);
        self.store(KNOWN + 16, bytes as u64);
    }

    /// The summary of all nodes.
    pub(crate) fn known(&self) -> Option<Source<'a>> {
        self.range(KNOWN + 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_words_are_read_for_few_and_for_many_ranks() {
        for (size, local_ranks) in [(2, 2), (64, 4), (65, 65), (200, 70)] {
            let window = Window::create(16 << 20).expect("memory");
            let block = SyncBlock::new(&window, size, local_ranks);
            for epoch in 1..4 {
                let rows: Vec<u64> = (0..words(size) as u64).map(|word| word + 7).collect();
                let get_from: Vec<u64> = rows.iter().map(|row| row + 100).collect();
                assert!(block.has_reached(SyncPhase::Arrived, epoch).is_err());
                block.set_arrival(
                    epoch,
                    Arrival {
                        send_to: &rows,
                        get_from: &get_from,
                        pulls: epoch == 2,
                        request: Request::from_bits(epoch % 3),
                        collectives: (epoch == 3).then_some((8192, 16)),
                        inline: None,
                    },
                );
                for local_rank in 0..local_ranks {
                    block.set_records(epoch, local_rank, local_rank + 64);
                    block.set_replies(local_rank, local_rank + 640);
                }
                block.reach(SyncPhase::Arrived, epoch);
                assert!(block.has_reached(SyncPhase::Arrived, epoch).is_ok());
                let traffic: Vec<_> = block.traffic(epoch).collect();
                let expected: Vec<_> = rows.iter().copied().zip(get_from).collect();
                assert_eq!(traffic, expected);
                let (pulls, request, collectives) = block.flags(epoch);
                let expected = (epoch == 2, Request::from_bits(epoch % 3));
                assert_eq!((pulls, request), expected);
                assert_eq!(collectives.is_some(), epoch == 3);
                for local_rank in 0..local_ranks {
                    assert_eq!(block.records(epoch, local_rank), local_rank as u64 + 64);
                    assert_eq!(block.replies(local_rank), local_rank as u64 + 640);
                }
            }
            let inline = [4; INLINE_RECORD_BYTES];
            let arrival = Arrival {
                send_to: &vec![1; words(size)],
                get_from: &vec![2; words(size)],
                pulls: true,
                request: Request::Migration,
                collectives: None,
                inline: Some(Source::from(&inline[..])),
            };
            block.set_arrival(4, arrival);
            let read = block.inline_records(4).map(Source::to_vec);
            assert_eq!(read, Some(inline.to_vec()));
            assert!(block.inline_records(3).is_none());
            let (pulls, request, collectives) = block.flags(4);
            assert!(pulls && request == Request::Migration && collectives.is_none());
            assert!(block.traffic(4).all(|words| words == (1, 2)));
            let replies = [7; INLINE_REPLY_BYTES];
            block.set_inline_replies(Some((1, Source::from(&replies[..]))));
            block.reach(SyncPhase::Replied, 4);
            let read = block.inline_replies(1).map(Source::to_vec);
            assert_eq!(read, Some(replies.to_vec()));
            assert!(block.inline_replies(0).is_none());
            block.set_inline_replies(None);
            assert!(block.inline_replies(1).is_none());
            assert!(SyncBlock::bytes(size, local_ranks) <= 16 << 10);
        }
    }
}
