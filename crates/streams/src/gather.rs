//! What an interface asks ranks for, and in which order it writes what they answer; without I/O.
//!
//! So many bytes at most are asked for and not yet written, so an outside that takes them slowly
//! makes the ranks wait, and the interface needs no more memory than that.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::layout::{Cursor, Extent, Layout};

/// An answer that nobody asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unasked;

#[derive(Debug)]
struct Asked {
    extent: Extent,
    since: Instant,
}

/// See the module; `B` are bytes.
#[derive(Debug)]
pub(crate) struct Gather<B> {
    layout: Layout,
    total: u64,
    cursor: Cursor,
    window: u64,
    block: u64,
    asked: u64,
    written: u64,
    open: BTreeMap<u64, Asked>,
    held: BTreeMap<u64, B>,
}

impl<B: AsRef<[u8]>> Gather<B> {
    /// Of `total` bytes, with at most `window` on their way, in pieces of at most `block`.
    pub(crate) fn new(layout: Layout, total: u64, window: u64, block: u64) -> Gather<B> {
        Gather {
            cursor: Cursor::new(layout.ranks()),
            layout,
            total,
            window,
            block,
            asked: 0,
            written: 0,
            open: BTreeMap::new(),
            held: BTreeMap::new(),
        }
    }

    /// What to ask for next, if there is room.
    pub(crate) fn ask(&mut self, now: Instant) -> Option<Extent> {
        if self.asked - self.written >= self.window {
            return None;
        }
        let extent = self.cursor.next(&self.layout, self.total, self.block)?;
        self.asked += extent.length;
        self.open
            .insert(extent.offset, Asked { extent, since: now });
        Some(extent)
    }

    /// A rank has answered.
    pub(crate) fn arrived(&mut self, rank: u32, offset: u64, bytes: B) -> Result<(), Unasked> {
        let is_it = |asked: &Asked| {
            asked.extent.rank == rank && asked.extent.length == bytes.as_ref().len() as u64
        };
        if !self.open.get(&offset).is_some_and(is_it) {
            return Err(Unasked);
        }
        self.open.remove(&offset);
        self.held.insert(offset, bytes);
        Ok(())
    }

    /// The next bytes of the stream, once they are there; they count as written.
    pub(crate) fn take(&mut self) -> Option<B> {
        let bytes = self.held.remove(&self.written)?;
        self.written += bytes.as_ref().len() as u64;
        Some(bytes)
    }

    /// All has been taken.
    pub(crate) fn is_done(&self) -> bool {
        self.written == self.total
    }

    /// A rank that has not answered for so long.
    pub(crate) fn late(&self, now: Instant, patience: Duration) -> Option<u32> {
        let is_late = |asked: &&Asked| now.saturating_duration_since(asked.since) >= patience;
        self.open
            .values()
            .find(is_late)
            .map(|asked| asked.extent.rank)
    }

    /// Ranks that are to answer.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = u32> {
        self.open.values().map(|asked| asked.extent.rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn answers_in_any_order_are_written_in_the_streams(
            ranks in 1_u32..5,
            block in 1_u64..40,
            total in 0_u64..600,
            window in 1_u64..100,
            choices in proptest::collection::vec(any::<usize>(), 700),
        ) {
            let now = Instant::now();
            let layout = Layout::block_cyclic(ranks, block);
            let mut gather = Gather::new(layout, total, window, 16);
            let (mut waiting, mut written) = (Vec::new(), Vec::new());
            let mut choices = choices.into_iter();
            while !gather.is_done() {
                while let Some(extent) = gather.ask(now) {
                    waiting.push(extent);
                }
                let on_the_way = gather.asked - gather.written;
                prop_assert!(on_the_way < window + 16, "the window bounds what is held");
                let choice = choices.next().expect("as many as bytes") % waiting.len();
                let extent = waiting.swap_remove(choice);
                let bytes: Vec<u8> =
                    (extent.offset..extent.offset + extent.length).map(|at| (at % 251) as u8).collect();
                prop_assert_eq!(gather.arrived(extent.rank + 1, extent.offset, bytes.clone()), Err(Unasked));
                prop_assert_eq!(gather.arrived(extent.rank, extent.offset, bytes.clone()), Ok(()));
                prop_assert_eq!(gather.arrived(extent.rank, extent.offset, bytes), Err(Unasked));
                while let Some(bytes) = gather.take() {
                    written.extend(bytes);
                }
            }
            let wanted: Vec<u8> = (0..total).map(|at| (at % 251) as u8).collect();
            prop_assert_eq!(written, wanted);
        }
    }

    #[test]
    fn who_does_not_answer_is_named() {
        let now = Instant::now();
        let mut gather: Gather<Vec<u8>> = Gather::new(Layout::cyclic(2, 4), 8, 100, 16);
        while gather.ask(now).is_some() {}
        let patience = Duration::from_secs(5);
        assert_eq!(gather.late(now, patience), None);
        gather.arrived(0, 0, vec![1; 4]).expect("it was asked for");
        assert_eq!(gather.late(now + patience, patience), Some(1));
        assert_eq!(gather.awaited().collect::<Vec<_>>(), [1]);
    }
}
