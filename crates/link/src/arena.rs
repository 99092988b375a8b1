//! Contiguous memory for messages that wait to be read: variable-length tokens,
//! given out in ring order by one allocator, given back by whoever drops them.
//!
//! Giving back is a plain store into the token's header, from any thread and in any
//! order; the allocator takes back what lies at the tail. When nothing is out it starts
//! again at the beginning, so that light traffic stays in few cache lines.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a token's header; payload is aligned to it.
const HEADER_BYTES: usize = 8;
const ALIGNMENT: usize = 64;
/// In a header: the token has been given back. The rest is its span in bytes.
const FREE: u64 = 1 << 63;

/// The memory itself; lives as long as the arena or any of its tokens.
#[derive(Debug)]
struct Block {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: who may touch which bytes is decided by `Arena` and `Token`: the bytes of a
// token that is out belong to it, headers are atomics.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    fn header(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at + HEADER_BYTES <= self.layout.size() && at.is_multiple_of(HEADER_BYTES));
        // SAFETY: the callers give offsets of headers, which lie inside and are
        // aligned; the memory was zeroed and headers are only reached as atomics.
        unsafe { self.start.add(at).cast().as_ref() }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, freed once, when nobody refers to it.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// The allocator. See the module.
#[derive(Debug)]
pub struct Arena {
    block: Arc<Block>,
    /// Where the next token goes, and where the oldest lies; equal when none is out.
    head: usize,
    tail: usize,
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
        Some(Arena {
            block: Arc::new(Block { start, layout }),
            head: 0,
            tail: 0,
        })
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.block.layout.size()
    }

    /// Where its tokens lie.
    #[must_use]
    pub fn base(&self) -> *const u8 {
        self.block.start.as_ptr()
    }

    /// True if no token is out.
    #[must_use]
    pub fn is_empty(&mut self) -> bool {
        self.reclaim();
        self.head == self.tail
    }

    /// Where a span would begin.
    #[inline]
    fn place(&self, span: usize) -> Option<usize> {
        // One header stays between head and tail, so that full and empty differ.
        let before_tail = self.tail.saturating_sub(HEADER_BYTES);
        if self.head < self.tail {
            (before_tail.checked_sub(self.head)? >= span).then_some(self.head)
        } else if self.bytes() - self.head >= span {
            Some(self.head)
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
        self.reclaim();
        let place = span(length).and_then(|span| Some((span, self.place(span)?)));
        let Some((span, at)) = place else {
            return Err(fill);
        };
        let (Ok(token_at), Ok(token_length)) =
            (u32::try_from(at / HEADER_BYTES), u32::try_from(length))
        else {
            return Err(fill);
        };
        if at != self.head && self.head < self.bytes() {
            // The rest of the block is skipped.
            let rest = (self.bytes() - self.head) as u64;
            let header = self.block.header(self.head);
            header.store(FREE | rest, Ordering::Relaxed);
        }
        self.head = at + span;
        self.block.header(at).store(span as u64, Ordering::Relaxed);
        // SAFETY: `span` bytes at `at` lie inside and between head and tail, so no token
        // that is out has any of them; initialised, since the block was zeroed.
        let place = unsafe {
            let start = self.block.start.add(at + HEADER_BYTES);
            std::slice::from_raw_parts_mut(start.as_ptr(), length)
        };
        // Should `fill` panic, the span is never given back, and nothing is read.
        fill(place);
        Ok(Token {
            block: Arc::clone(&self.block),
            at: token_at,
            length: token_length,
        })
    }

    /// Takes back what was given back at the tail.
    #[inline]
    fn reclaim(&mut self) {
        while self.tail != self.head {
            if self.tail == self.bytes() {
                self.tail = 0;
                continue;
            }
            // Acquire: whoever gave it back has read it.
            let header = self.block.header(self.tail).load(Ordering::Acquire);
            if header & FREE == 0 {
                return;
            }
            self.tail += usize::try_from(header & !FREE).unwrap_or(0);
        }
        self.head = 0;
        self.tail = 0;
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
    block: Arc<Block>,
    /// Counted in headers, so that a token is two words: many are moved.
    at: u32,
    length: u32,
}

impl Token {
    /// Where its header lies in the block.
    #[inline]
    fn at(&self) -> usize {
        self.at as usize * HEADER_BYTES
    }
}

impl Deref for Token {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes behind the header belong to this token until it is dropped;
        // nobody writes them meanwhile.
        unsafe {
            let start = self.block.start.add(self.at() + HEADER_BYTES);
            std::slice::from_raw_parts(start.as_ptr(), self.length as usize)
        }
    }
}

impl Drop for Token {
    #[inline]
    fn drop(&mut self) {
        let header = self.block.header(self.at());
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
