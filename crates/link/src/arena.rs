//! Contiguous memory for messages that wait to be read: variable-length tokens,
//! given out in ring order by one allocator, given back by whoever drops them.
//!
//! Giving back is a plain store into the token's header, from any thread and in any
//! order; the allocator takes back what lies at the tail. When nothing is out it starts
//! again at the beginning, so that light traffic stays in few cache lines.
//!
//! Nobody counts tokens: an arena that is dropped while some are out is kept, and freed when
//! they have been given back and further ones are dropped so.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Bytes of a token's header; payload is aligned to it.
const HEADER_BYTES: usize = 8;
const ALIGNMENT: usize = 64;
/// In a header: the token has been given back. The rest is its span in bytes.
const FREE: u64 = 1 << 63;

/// Dropped arenas of which tokens were out.
static KEPT: Mutex<Kept> = Mutex::new(Kept {
    blocks: Vec::new(),
    look_at: 1,
});

/// See [`KEPT`]. They are looked through when there are twice as many as the last look left: each
/// drop of an arena does a bounded part of that, however many tokens are out.
#[derive(Debug)]
struct Kept {
    blocks: Vec<Block>,
    look_at: usize,
}

impl Kept {
    fn keep(&mut self, block: Block) {
        self.blocks.push(block);
        if self.blocks.len() >= self.look_at {
            let blocks = std::mem::take(&mut self.blocks).into_iter();
            self.blocks = blocks.filter_map(Block::free).collect();
            self.look_at = 2 * self.blocks.len() + 1;
        }
    }
}

/// The memory, and what of it is out.
#[derive(Debug)]
struct Block {
    start: NonNull<u8>,
    layout: Layout,
    /// Where the next token goes, and where the oldest lies; equal when none is out.
    head: usize,
    tail: usize,
}

// SAFETY: it owns its memory. What lies between tail and head belongs to tokens, of which it
// touches only headers, as atomics.
unsafe impl Send for Block {}

impl Block {
    fn bytes(&self) -> usize {
        self.layout.size()
    }

    fn header(&self, at: usize) -> NonNull<AtomicU64> {
        debug_assert!(at + HEADER_BYTES <= self.bytes() && at.is_multiple_of(HEADER_BYTES));
        // SAFETY: the callers give offsets of headers, which lie inside.
        unsafe { self.start.add(at).cast() }
    }

    #[inline]
    fn header_word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: aligned and inside, live as long as the block; the memory was zeroed and
        // headers are only reached as atomics.
        unsafe { self.header(at).as_ref() }
    }

    /// Takes back what was given back at the tail; true if nothing is out.
    #[inline]
    fn reclaim(&mut self) -> bool {
        while self.tail != self.head {
            if self.tail == self.bytes() {
                self.tail = 0;
                continue;
            }
            // Acquire: whoever gave it back has read it, and touches it no more.
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

    /// Frees the memory if nothing is out, else it is there for the next attempt.
    fn free(mut self) -> Option<Block> {
        if !self.reclaim() {
            return Some(self);
        }
        // SAFETY: allocated with this layout, and freed once, as the block is consumed. No token
        // is out: all headers were seen to be given back, after which a token is gone.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
        None
    }
}

/// The allocator. See the module.
#[derive(Debug)]
pub struct Arena(Block);

impl Drop for Arena {
    fn drop(&mut self) {
        if let Some(block) = Block::free(Block { ..self.0 }) {
            let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
            kept.keep(block);
        }
    }
}

impl Arena {
    /// An arena of `bytes`, rounded up to cache lines; untouched pages cost nothing.
    /// `None` if there is not so much memory, or it is 32 GiB and more.
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

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Where its tokens lie.
    #[must_use]
    pub fn base(&self) -> *const u8 {
        self.0.start.as_ptr()
    }

    /// True if no token is out.
    #[must_use]
    pub fn is_empty(&mut self) -> bool {
        self.0.reclaim()
    }

    /// Where a span would begin.
    #[inline]
    fn place(&self, span: usize) -> Option<usize> {
        let Block { head, tail, .. } = self.0;
        // One header stays between head and tail, so that full and empty differ.
        let before_tail = tail.saturating_sub(HEADER_BYTES);
        if head < tail {
            (before_tail.checked_sub(head)? >= span).then_some(head)
        } else if self.bytes() - head >= span {
            Some(head)
        } else {
            (before_tail >= span).then_some(0)
        }
    }

    /// A token of `length` bytes that `fill` writes (what it finds there is old).
    ///
    /// # Errors
    /// `fill`, if there is no room.
    #[inline]
    pub fn allocate<F: FnOnce(&mut [u8])>(&mut self, length: usize, fill: F) -> Result<Token, F> {
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
            // The rest of the block is skipped.
            let rest = (block.bytes() - block.head) as u64;
            let header = block.header_word(block.head);
            header.store(FREE | rest, Ordering::Relaxed);
        }
        block.head = at + span;
        block.header_word(at).store(span as u64, Ordering::Relaxed);
        // SAFETY: `span` bytes at `at` lie inside and between head and tail, so no token
        // that is out has any of them; initialised, since the block was zeroed.
        let place = unsafe {
            let start = block.start.add(at + HEADER_BYTES);
            std::slice::from_raw_parts_mut(start.as_ptr(), length)
        };
        // Should `fill` panic, the span is never given back, and nothing is read.
        fill(place);
        Ok(Token {
            header: block.header(at),
            length: token_length,
        })
    }
}

/// Bytes of a token with its header.
#[inline]
fn span(length: usize) -> Option<usize> {
    Some(length.checked_add(2 * HEADER_BYTES - 1)? & !(HEADER_BYTES - 1))
}

/// Memory of an arena that is out: read it, drop it.
#[derive(Debug)]
pub struct Token {
    /// Behind it lies the payload. Its block lives until this has been marked as given back.
    header: NonNull<AtomicU64>,
    length: u32,
}

// SAFETY: its bytes are its own, and its header is an atomic; the block frees them only after
// it was given back, whichever thread did that.
unsafe impl Send for Token {}
// SAFETY: shared, it only lets read bytes that nobody writes.
unsafe impl Sync for Token {}

impl Deref for Token {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes behind the header belong to this token until it is dropped;
        // nobody writes them meanwhile.
        unsafe {
            let start = self.header.add(1).cast::<u8>();
            std::slice::from_raw_parts(start.as_ptr(), self.length as usize)
        }
    }
}

impl Drop for Token {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: live until it is marked, in the last line, as given back: the block is freed
        // by who has seen that mark, and after it nothing here touches the header.
        let header = unsafe { self.header.as_ref() };
        // Only the allocator writes it otherwise, and not while the token is out.
        let span = header.load(Ordering::Relaxed);
        // Release: all reading came before.
        header.store(FREE | span, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    fn token(arena: &mut Arena, length: usize, byte: u8) -> Option<Token> {
        arena.allocate(length, |place| place.fill(byte)).ok()
    }

    #[test]
    fn a_token_holds_what_was_written_until_it_is_dropped() {
        let rounds = if cfg!(miri) { 300 } else { 20_000 };
        for seed in 0..10 {
            let mut random = StdRng::seed_from_u64(seed);
            let mut arena = Arena::new(4096).unwrap();
            let mut out: Vec<(Token, usize, u8)> = Vec::new();
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
    fn more_memory_than_there_can_be_is_refused() {
        assert!(Arena::new(usize::MAX).is_none());
        // Miri ends where the system would refuse.
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
    fn tokens_outlive_the_arena_and_may_be_dropped_elsewhere() {
        let mut arena = Arena::new(4096).unwrap();
        let tokens: Vec<Token> = (0..10)
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
    fn what_is_kept_for_tokens_is_freed_after_they_were_given_back() {
        let mut kept = Kept {
            blocks: Vec::new(),
            look_at: 1,
        };
        let mut out = Vec::new();
        for number in 0..100_u8 {
            let mut arena = Arena::new(64).unwrap();
            out.push(token(&mut arena, 10, number).unwrap());
            kept.keep(Block { ..arena.0 });
            std::mem::forget(arena);
        }
        assert_eq!(kept.blocks.len(), 100);
        let last = out.pop().unwrap();
        drop(out);
        let mut more = 0;
        while kept.blocks.len() > 1 {
            more += 1;
            assert!(more <= 200, "as many again at most");
            let arena = Arena::new(64).unwrap();
            kept.keep(Block { ..arena.0 });
            std::mem::forget(arena);
        }
        assert_eq!(*last, [99; 10]);
        drop(last);
        assert!(kept.blocks.pop().and_then(Block::free).is_none());
    }

    #[test]
    fn a_thread_that_drops_makes_room_for_one_that_allocates() {
        let mut arena = Arena::new(2048).unwrap();
        let (give, take) = std::sync::mpsc::sync_channel::<Token>(4);
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
