//! A file that a process fills through mapped memory, so that it survives a crash of the process.
//!
//! It has a header, a section of call sites, a section of modules and stacks, and blocks of
//! records. Each record begins with its length and is within one block. A block counts only the
//! records that are complete, so a crash loses at most the last one. Blocks are reused in turn; the
//! one with the lowest sequence number is the oldest.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;

use dipole_link::window::{Source, Window};

use crate::bytes::{take32, take64};

/// Bytes of the header.
pub const HEAD_BYTES: usize = 4096;
/// Bytes of the section of call sites.
pub(crate) const SITE_BYTES: usize = 64 << 10;
/// Offset of the section of stacks.
pub const STACKS_AT: usize = HEAD_BYTES + SITE_BYTES;
/// Bytes of the section of stacks.
pub const STACK_BYTES: usize = 192 << 10;
/// Offset of the first block.
pub const BLOCKS_AT: usize = STACKS_AT + STACK_BYTES;
/// Bytes of a block.
pub const BLOCK_BYTES: usize = 64 << 10;
/// Bytes of a block header: the sequence number (0 while unused), and the bytes of records.
pub const BLOCK_HEAD_BYTES: usize = 16;

/// A trace file that is being written.
#[derive(Debug)]
pub struct Ring {
    window: Window,
    blocks: usize,
    /// Sequence number of the current block, from 1.
    sequence: u64,
    used: usize,
    /// Bytes of call sites, without the length word.
    site_bytes: usize,
    /// Bytes of stacks, without the length word.
    stack_bytes: usize,
    record: Vec<u8>,
}

impl Ring {
    /// Creates a file at `path` with a header and `blocks` blocks, replacing an existing one. Its
    /// disk space is allocated at once, so later writes cannot fail.
    ///
    /// # Errors
    /// The folder or the file cannot be created.
    pub fn create(path: &Path, head: &[u8], blocks: usize) -> io::Result<Ring> {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let fresh = path.with_extension(format!("{}.fresh", std::process::id()));
        let created = Ring::fill(&fresh, head, blocks);
        // Readers that have mapped the old file keep it.
        let renamed = created.and_then(|ring| std::fs::rename(&fresh, path).map(|()| ring));
        if renamed.is_err() {
            let _gone = std::fs::remove_file(&fresh);
        }
        renamed
    }

    fn fill(path: &Path, head: &[u8], blocks: usize) -> io::Result<Ring> {
        let length = BLOCKS_AT + blocks * BLOCK_BYTES;
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)?;
        let window = Window::of_file(file.into(), length)?;
        window.write(0, Source::from(&head[..head.len().min(HEAD_BYTES)]));
        Ok(Ring {
            window,
            blocks,
            sequence: 0,
            used: BLOCK_BYTES,
            site_bytes: 0,
            stack_bytes: 0,
            record: Vec::new(),
        })
    }

    /// Adds an encoded call site; false if there is no room.
    pub fn add_site(&mut self, bytes: &[u8]) -> bool {
        let used = self.append(HEAD_BYTES, SITE_BYTES, self.site_bytes, bytes);
        self.site_bytes = used.unwrap_or(self.site_bytes);
        used.is_some()
    }

    /// Adds an encoded stack or module; false if there is no room.
    pub(crate) fn add_stack(&mut self, bytes: &[u8]) -> bool {
        let used = self.append(STACKS_AT, STACK_BYTES, self.stack_bytes, bytes);
        self.stack_bytes = used.unwrap_or(self.stack_bytes);
        used.is_some()
    }

    /// Appends to a section and returns its new length, if there is room.
    fn append(&self, list_at: usize, room: usize, used: usize, bytes: &[u8]) -> Option<usize> {
        if used + bytes.len() > room - 4 {
            return None;
        }
        self.window.write(list_at + 4 + used, Source::from(bytes));
        let used = used + bytes.len();
        let word = self.window.half_word(list_at);
        word.store(u32::try_from(used).ok()?.to_le(), Ordering::Release);
        Some(used)
    }

    /// Adds a record, which `encode` appends including its length. It replaces the oldest block if
    /// all are full.
    pub fn push(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        self.record.clear();
        encode(&mut self.record);
        if self.used + self.record.len() > BLOCK_BYTES - BLOCK_HEAD_BYTES {
            let at = self.block_at(self.sequence);
            self.sequence += 1;
            self.used = 0;
            // In this order, so that a reader does not take old records for new ones.
            self.window.word(at + 8).store(0, Ordering::Release);
            let sequence = self.window.word(at);
            sequence.store(self.sequence.to_le(), Ordering::Release);
        }
        let at = self.block_at(self.sequence - 1);
        let record_at = at + BLOCK_HEAD_BYTES + self.used;
        self.window.write(record_at, Source::from(&self.record[..]));
        self.used += self.record.len();
        let used = self.window.word(at + 8);
        used.store((self.used as u64).to_le(), Ordering::Release);
    }

    /// Offset of the block that is filled after `before` others.
    fn block_at(&self, before: u64) -> usize {
        let index = before % self.blocks as u64;
        BLOCKS_AT + usize::try_from(index).unwrap_or(0) * BLOCK_BYTES
    }

    /// Overwrites a number of 64 bits in the header.
    pub fn set_head(&self, at: usize, number: u64) {
        let word = self.window.word(at);
        word.store(number.to_le(), Ordering::Release);
    }

    /// Overwrites a number of 32 bits in the header.
    pub fn set_half_head(&self, at: usize, number: u32) {
        let word = self.window.half_word(at);
        word.store(number.to_le(), Ordering::Release);
    }
}

/// Records read from the blocks of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Records<T> {
    /// The records, oldest first.
    pub records: Vec<T>,
    /// Older records were overwritten.
    pub is_wrapped: bool,
    /// Number of blocks with unreadable records: the file is truncated or damaged.
    pub damaged_blocks: usize,
}

impl<T> Records<T> {
    /// Reads the blocks of a file, from [`BLOCKS_AT`] on. `decode` gets a record without its
    /// length. A record that it rejects is lost, and so is the rest of that block.
    #[must_use]
    pub fn of(bytes: &[u8], decode: impl Fn(&[u8]) -> Option<T>) -> Records<T> {
        let mut damaged = 0;
        let mut blocks: Vec<(u64, Vec<T>)> = Vec::new();
        for block in bytes.chunks(BLOCK_BYTES) {
            let mut at = block;
            let (Some(sequence), Some(used)) = (take64(&mut at), take64(&mut at)) else {
                damaged += 1;
                continue;
            };
            if sequence == 0 {
                continue;
            }
            let used = usize::try_from(used).unwrap_or(usize::MAX);
            let mut left = &at[..used.min(at.len())];
            let mut records = Vec::new();
            let mut is_whole = used <= at.len();
            while !left.is_empty() {
                match take(&mut left).and_then(&decode) {
                    Some(record) => records.push(record),
                    None => {
                        is_whole = false;
                        break;
                    }
                }
            }
            damaged += usize::from(!is_whole);
            blocks.push((sequence, records));
        }
        blocks.sort_by_key(|(sequence, _)| *sequence);
        Records {
            is_wrapped: blocks.first().is_some_and(|(sequence, _)| *sequence > 1),
            records: blocks
                .into_iter()
                .flat_map(|(_, records)| records)
                .collect(),
            damaged_blocks: damaged,
        }
    }
}

fn take<'a>(records: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = take32(records)? as usize;
    let (record, rest) = records.split_at_checked(length)?;
    *records = rest;
    Some(record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::put32;

    #[test]
    fn a_full_ring_keeps_the_newest_and_a_new_run_replaces_the_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a/b/rank-3.trace");
        let mut ring = Ring::create(&path, b"head", 3).expect("it can be written");
        assert!(ring.add_site(b"site"));
        let read = || {
            let bytes = std::fs::read(&path).expect("it is there");
            assert_eq!(
                (&bytes[..4], &bytes[HEAD_BYTES + 4..][..4]),
                (&b"head"[..], &b"site"[..])
            );
            Records::of(&bytes[BLOCKS_AT..], |mut record| take32(&mut record))
        };
        for number in 0..4000 {
            ring.push(|into| {
                put32(into, 64);
                put32(into, number);
                into.resize(68, 0);
            });
            if number == 10 {
                assert_eq!((read().records.len(), read().is_wrapped), (11, false));
            }
        }
        let found = read();
        assert!(found.is_wrapped && found.damaged_blocks == 0 && found.records.len() > 1500);
        let first = found.records[0];
        assert!(found.records.into_iter().eq(first..4000));
        ring.set_half_head(0, u32::from_le_bytes(*b"haed"));
        let bytes = std::fs::read(&path).expect("it is there");
        assert_eq!(&bytes[..4], b"haed");
        let mut again = Ring::create(&path, b"head", 1).expect("it can be written");
        assert!(again.add_site(b"site"));
        again.push(|into| put32(into, 0));
        assert_eq!(read().records, [0; 0], "a record without a number");
        let entries = std::fs::read_dir(directory.path().join("a/b")).expect("it is there");
        assert_eq!(entries.count(), 1, "nothing else is left");
    }
}
