//! Gathers data from ranks: what the interface requests from which rank, and in which order it writes
//! the replies. Does no I/O.
//!
//! The bytes requested and not yet written are limited. So if the TCP peer is slow, the ranks have to wait,
//! and the interface needs little memory.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::layout::{Cursor, Extent, Layout};

/// Data that were not requested.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unrequested;

#[derive(Debug)]
struct PendingRequest {
    extent: Extent,
    since: Instant,
}

/// Replies that are being collected; `B` is a buffer with the bytes of a reply.
#[derive(Debug)]
pub(crate) struct Gather<B> {
    layout: Layout,
    total: u64,
    cursor: Cursor,
    window: u64,
    block: u64,
    requested: u64,
    written: u64,
    open: BTreeMap<u64, PendingRequest>,
    held: BTreeMap<u64, B>,
}

impl<B: AsRef<[u8]>> Gather<B> {
    /// Gathers `total` bytes, with at most `window` requested at a time, in blocks of at most `block`.
    pub(crate) fn new(layout: Layout, total: u64, window: u64, block: u64) -> Gather<B> {
        Gather {
            cursor: Cursor::new(layout.ranks()),
            layout,
            total,
            window,
            block,
            requested: 0,
            written: 0,
            open: BTreeMap::new(),
            held: BTreeMap::new(),
        }
    }

    /// The next bytes to request, if the window allows.
    pub(crate) fn next_request(&mut self, now: Instant) -> Option<Extent> {
        if self.requested - self.written >= self.window {
            return None;
        }
        let extent = self.cursor.next(&self.layout, self.total, self.block)?;
        self.requested += extent.length;
        self.open
            .insert(extent.offset, PendingRequest { extent, since: now });
        Some(extent)
    }

    /// Accepts the reply of a rank.
    pub(crate) fn accept_reply(
        &mut self,
        rank: u32,
        offset: u64,
        bytes: B,
    ) -> Result<(), Unrequested> {
        let is_it = |request: &PendingRequest| {
            request.extent.rank == rank && request.extent.length == bytes.as_ref().len() as u64
        };
        if !self.open.get(&offset).is_some_and(is_it) {
            return Err(Unrequested);
        }
        self.open.remove(&offset);
        self.held.insert(offset, bytes);
        Ok(())
    }

    /// The next bytes of the stream, if they have arrived. They count as written.
    pub(crate) fn take(&mut self) -> Option<B> {
        let bytes = self.held.remove(&self.written)?;
        self.written += bytes.as_ref().len() as u64;
        Some(bytes)
    }

    /// True once all bytes have been taken.
    pub(crate) fn is_done(&self) -> bool {
        self.written == self.total
    }

    /// A rank that has not replied within the timeout.
    pub(crate) fn overdue(&self, now: Instant, timeout: Duration) -> Option<u32> {
        let is_late =
            |request: &&PendingRequest| now.saturating_duration_since(request.since) >= timeout;
        self.open
            .values()
            .find(is_late)
            .map(|request| request.extent.rank)
    }

    /// Ranks that have yet to reply.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = u32> {
        self.open.values().map(|request| request.extent.rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn replies_in_any_order_are_written_in_the_order_of_the_stream(
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
                while let Some(extent) = gather.next_request(now) {
                    waiting.push(extent);
                }
                let on_the_way = gather.requested - gather.written;
                prop_assert!(on_the_way < window + 16, "the window limits the bytes requested");
                let choice = choices.next().expect("enough choices") % waiting.len();
                let extent = waiting.swap_remove(choice);
                let bytes: Vec<u8> =
                    (extent.offset..extent.offset + extent.length).map(|at| (at % 251) as u8).collect();
                prop_assert_eq!(gather.accept_reply(extent.rank + 1, extent.offset, bytes.clone()), Err(Unrequested));
                prop_assert_eq!(gather.accept_reply(extent.rank, extent.offset, bytes.clone()), Ok(()));
                prop_assert_eq!(gather.accept_reply(extent.rank, extent.offset, bytes), Err(Unrequested));
                while let Some(bytes) = gather.take() {
                    written.extend(bytes);
                }
            }
            let wanted: Vec<u8> = (0..total).map(|at| (at % 251) as u8).collect();
            prop_assert_eq!(written, wanted);
        }
    }

    #[test]
    fn a_rank_that_does_not_reply_is_named() {
        let now = Instant::now();
        let mut gather: Gather<Vec<u8>> = Gather::new(Layout::cyclic(2, 4), 8, 100, 16);
        while gather.next_request(now).is_some() {}
        let timeout = Duration::from_secs(5);
        assert_eq!(gather.overdue(now, timeout), None);
        gather
            .accept_reply(0, 0, vec![1; 4])
            .expect("it was requested");
        assert_eq!(gather.overdue(now + timeout, timeout), Some(1));
        assert_eq!(gather.awaited().collect::<Vec<_>>(), [1]);
    }
}
