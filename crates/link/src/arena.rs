//! Contiguous memory for messages that wait to be read: variable-length slices, allocated in
//! ring order by one owner, returned by dropping them.
//!
//! Returning is a plain store into the slice's header, from any thread and in any order; the
//! allocator reclaims returned slices at the tail. When none is in use it starts again at the
//! beginning, so light traffic stays in few cache lines.
//!
//! Slices are not counted: an arena that is dropped while some are in use is retired, and freed
//! during later drops once all its slices have been returned.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Bytes of a slice's header; payload is aligned to it.
const HEADER_BYTES: usize = 8;
const ALIGNMENT: usize = 64;
/// Header flag: the slice has been returned. The other bits hold its span in bytes.
const FREE: u64 = 1 << 63;

/// Dropped arenas that still had slices in use.
static RETIRED: Mutex<Retired> = Mutex::new(Retired {
    blocks: Vec::new(),
    sweep_at: 1,
});

/// Retired blocks. They are swept when their number has doubled since the last sweep, so each
/// drop of an arena does a bounded amount of work, however many slices are in use.
#[derive(Debug)]
struct Retired {
    blocks: Vec<Block>,
    sweep_at: usize,
}

impl Retired {
    fn add(&mut self, block: Block) {
        self.blocks.push(block);
        if self.blocks.len() >= self.sweep_at {
            let blocks = std::mem::take(&mut self.blocks).into_iter();
            self.blocks = blocks.filter_map(Block::free).collect();
            self.sweep_at = 2 * self.blocks.len() + 1;
        }
    }
}

/// The memory, and the part of it that is in use.
#[derive(Debug)]
struct Block {
    start: NonNull<u8>,
    layout: Layout,
    /// Where the next slice goes, and where the oldest one is; equal when none is in use.
    head: usize,
    tail: usize,
}

// SAFETY: it owns its memory. The range between tail and head belongs to slices, of which it
// accesses only headers, as atomics.
unsafe impl Send for Block {}

impl Block {
    fn bytes(&self) -> usize {
        self.layout.size()
    }

    fn header(&self, at: usize) -> NonNull<AtomicU64> {
        debug_assert!(at + HEADER_BYTES <= self.bytes() && at.is_multiple_of(HEADER_BYTES));
        // SAFETY: callers pass offsets of headers, which are in bounds.
        unsafe { self.start.add(at).cast() }
    }

    #[inline]
    fn header_word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: aligned, in bounds and live as long as the block; the memory was zeroed and
        // headers are accessed only as atomics.
        unsafe { self.header(at).as_ref() }
    }

    /// Reclaims returned slices at the tail; true if none is in use.
    #[inline]
    fn reclaim(&mut self) -> bool {
        while self.tail != self.head {
            if self.tail == self.bytes() {
                self.tail = 0;
                continue;
            }
            // Acquire: the thread that returned it has finished reading it.
            let header = self.header_word(self.tail).load(Ordering::Acquire);
            if header & FREE == 0 {
                return false;
            }
            self.tail += usize::try_from(header & !FREE).unwrap_or(0);
        }
        self.head = 0;
        self.tail = 0;
        true
    }

    /// Frees the memory if no slice is in use; otherwise returns the block for the next attempt.
    fn free(mut self) -> Option<Block> {
        if !self.reclaim() {
            return Some(self);
        }
        // SAFETY: allocated with this layout, and freed once, since the block is consumed. No
        // slice is in use: all headers were marked as returned, and a slice does not touch its
        // header after that.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
        None
    }
}

/// Allocates slices of one block of memory in ring order.
#[derive(Debug)]
pub struct Arena(Block);

impl Drop for Arena {
    fn drop(&mut self) {
        if let Some(block) = Block::free(Block { ..self.0 }) {
            let mut retired = RETIRED.lock().unwrap_or_else(PoisonError::into_inner);
            retired.add(block);
        }
    }
}

impl Arena {
    /// An arena of `bytes`, rounded up to cache lines; untouched pages take no memory. `None` if
    /// the memory is not available, or for 32 GiB and more.
    #[must_use]
    pub fn new(bytes: usize) -> Option<Arena> {
        let layout = Layout::from_size_align(bytes.max(ALIGNMENT), ALIGNMENT).ok()?;
        let layout = layout.pad_to_align();
        u32::try_from(layout.size() / HEADER_BYTES).ok()?;
        // SAFETY: the layout has a size above zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Arena(Block {
            start,
            layout,
            head: 0,
            tail: 0,
        }))
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Returns the start of the block's memory.
    #[must_use]
    pub fn base(&self) -> *const u8 {
        self.0.start.as_ptr()
    }

    /// True if no slice is in use.
    #[must_use]
    pub fn is_empty(&mut self) -> bool {
        self.0.reclaim()
    }

    /// Where a span would begin, if there is room for it.
    #[inline]
    fn place(&self, span: usize) -> Option<usize> {
        let Block { head, tail, .. } = self.0;
        // One header stays free between head and tail, so that full and empty differ.
        let before_tail = tail.saturating_sub(HEADER_BYTES);
        if head < tail {
            (before_tail.checked_sub(head)? >= span).then_some(head)
        } else if self.bytes() - head >= span {
            Some(head)
        } else {
            (before_tail >= span).then_some(0)
        }
    }

    /// Allocates a slice of `length` bytes and has `fill` write it; it starts with old contents.
    ///
    /// # Errors
    /// Returns `fill` if there is no room.
    #[inline]
    pub fn allocate<F: FnOnce(&mut [u8])>(
        &mut self,
        length: usize,
        fill: F,
    ) -> Result<ArenaSlice, F> {
        self.0.reclaim();
        let place = span(length).and_then(|span| Some((span, self.place(span)?)));
        let Some((span, at)) = place else {
            return Err(fill);
        };
        let Ok(token_length) = u32::try_from(length) else {
            return Err(fill);
        };
        let block = &mut self.0;
        if at != block.head && block.head < block.bytes() {
            // Skip the rest of the block.
            let rest = (block.bytes() - block.head) as u64;
            let header = block.header_word(block.head);
            header.store(FREE | rest, Ordering::Relaxed);
        }
        block.head = at + span;
        block.header_word(at).store(span as u64, Ordering::Relaxed);
        // SAFETY: `span` bytes at `at` are in bounds and outside the range between tail and
        // head, so no other slice has any of them; initialised, since the block was zeroed.
        let place = unsafe {
            let start = block.start.add(at + HEADER_BYTES);
            std::slice::from_raw_parts_mut(start.as_ptr(), length)
        };
        // If `fill` panics, the span is never returned, and nothing reads it.
        fill(place);
        Ok(ArenaSlice {
            header: block.header(at),
            length: token_length,
        })
    }
}

/// Bytes of a slice with its header.
#[inline]
fn span(length: usize) -> Option<usize> {
    Some(length.checked_add(2 * HEADER_BYTES - 1)? & !(HEADER_BYTES - 1))
}

/// A slice of an arena's memory; dropping it returns the memory.
#[derive(Debug)]
pub struct ArenaSlice {
    /// The payload follows it. The block lives at least until the header is marked as returned.
    header: NonNull<AtomicU64>,
    length: u32,
}

// SAFETY: it owns its bytes, and its header is an atomic; the block is freed only after the
// slice was returned, by whichever thread.
unsafe impl Send for ArenaSlice {}
// SAFETY: shared access only reads bytes that nothing writes.
unsafe impl Sync for ArenaSlice {}

impl Deref for ArenaSlice {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes after the header belong to this slice until it is dropped; nothing
        // writes them meanwhile.
        unsafe {
            let start = self.header.add(1).cast::<u8>();
            std::slice::from_raw_parts(start.as_ptr(), self.length as usize)
        }
    }
}

impl Drop for ArenaSlice {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: live until it is marked as returned by the last statement: the block is freed
        // only after that mark was seen, and nothing here touches the header after it.
        let header = unsafe { self.header.as_ref() };
        // Otherwise only the allocator writes the header, and not while the slice is in use.
        let span = header.load(Ordering::Relaxed);
        // Release: all reads happened before.
        header.store(FREE | span, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    fn token(arena: &mut Arena, length: usize, byte: u8) -> Option<ArenaSlice> {
        arena.allocate(length, |place| place.fill(byte)).ok()
    }

    #[test]
    fn a_slice_holds_what_was_written_until_it_is_dropped() {
        let rounds = if cfg!(miri) { 300 } else { 20_000 };
        for seed in 0..10 {
            let mut random = StdRng::seed_from_u64(seed);
            let mut arena = Arena::new(4096).unwrap();
            let mut out: Vec<(ArenaSlice, usize, u8)> = Vec::new();
            for round in 0..rounds {
                let byte = u8::try_from(round % 251).unwrap();
                let length = random.random_range(0..900);
                match token(&mut arena, length, byte) {
                    Some(token) => out.push((token, length, byte)),
                    None => assert!(!out.is_empty(), "an empty arena has room"),
                }
                while out.len() > 12 || random.random_bool(0.4) && !out.is_empty() {
                    let index = random.random_range(0..out.len());
                    let (token, length, byte) = out.swap_remove(index);
                    assert_eq!(&*token, vec![byte; length].as_slice(), "seed {seed}");
                }
            }
            out.clear();
            assert!(arena.is_empty());
        }
    }

    #[test]
    fn more_memory_than_exists_is_refused() {
        assert!(Arena::new(usize::MAX).is_none());
        // Miri aborts where a system would refuse.
        if !cfg!(miri) {
            assert!(Arena::new(1 << 60).is_none());
        }
    }

    #[test]
    fn all_of_an_empty_arena_can_be_used_again_from_the_start() {
        let mut arena = Arena::new(1024).unwrap();
        let whole = 1024 - HEADER_BYTES;
        for _ in 0..3 {
            let all = token(&mut arena, whole, 1).expect("empty");
            assert_eq!(all.as_ptr().addr(), arena.base().addr() + HEADER_BYTES);
            assert!(token(&mut arena, 0, 2).is_none());
        }
        assert!(token(&mut arena, whole + 1, 1).is_none());
    }

    #[test]
    fn slices_outlive_the_arena_and_may_be_dropped_by_another_thread() {
        let mut arena = Arena::new(4096).unwrap();
        let tokens: Vec<ArenaSlice> = (0..10)
            .map(|byte| token(&mut arena, 100, byte).unwrap())
            .collect();
        drop(arena);
        std::thread::spawn(move || {
            for (byte, token) in (0..).zip(&tokens) {
                assert_eq!(**token, [byte; 100]);
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn retired_blocks_are_freed_after_their_slices_were_returned() {
        let mut retired = Retired {
            blocks: Vec::new(),
            sweep_at: 1,
        };
        let mut out = Vec::new();
        for number in 0..100_u8 {
            let mut arena = Arena::new(64).unwrap();
            out.push(token(&mut arena, 10, number).unwrap());
            retired.add(Block { ..arena.0 });
            std::mem::forget(arena);
        }
        assert_eq!(retired.blocks.len(), 100);
        let last = out.pop().unwrap();
        drop(out);
        let mut more = 0;
        while retired.blocks.len() > 1 {
            more += 1;
            assert!(more <= 200, "as many again at most");
            let arena = Arena::new(64).unwrap();
            retired.add(Block { ..arena.0 });
            std::mem::forget(arena);
        }
        assert_eq!(*last, [99; 10]);
        drop(last);
        assert!(retired.blocks.pop().and_then(Block::free).is_none());
    }

    #[test]
    fn a_thread_that_drops_slices_makes_room_for_one_that_allocates() {
        let mut arena = Arena::new(2048).unwrap();
        let (give, take) = std::sync::mpsc::sync_channel::<ArenaSlice>(4);
        let reader = std::thread::spawn(move || {
            let mut count = 0_u32;
            for token in take {
                assert_eq!(*token, count.to_le_bytes());
                count += 1;
            }
            count
        });
        let total = if cfg!(miri) { 100 } else { 20_000 };
        for number in 0_u32..total {
            let token = loop {
                let filled =
                    arena.allocate(4, |place| place.copy_from_slice(&number.to_le_bytes()));
                match filled {
                    Ok(token) => break token,
                    Err(_) => std::thread::yield_now(),
                }
            };
            give.send(token).unwrap();
        }
        drop(give);
        assert_eq!(reader.join().unwrap(), total);
    }
}
