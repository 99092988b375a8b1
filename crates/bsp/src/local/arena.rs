//! Records for ranks of this node, in this rank's window.

use std::sync::atomic::Ordering;

use dipole_link::window::{Source, Window};

use crate::failure::Failure;
use crate::superstep::record::{HEAD_BYTES, Record, filled};

/// In front of each chunk: the position of the next chunk (0 if this is the last), and the bytes of
/// records.
const CHUNK_HEAD_BYTES: usize = 16;
const FIRST_CHUNK_BYTES: usize = 512;
const MAX_CHUNK_BYTES: usize = 1 << 20;
/// Memory that an arena keeps for later supersteps; the rest goes back to the system.
const KEPT_BYTES: usize = 64 << 20;

/// The part of a window for the records of a superstep.
#[derive(Debug)]
pub(crate) struct Arena {
    start: usize,
    end: usize,
    next: usize,
}

impl Arena {
    pub(crate) fn new(start: usize, end: usize) -> Arena {
        Arena {
            start,
            end,
            next: start,
        }
    }

    pub(crate) fn clear(&mut self, window: &Window) {
        let keep = self.start + KEPT_BYTES;
        if self.next > keep {
            window.release(keep, self.next - keep);
        }
        self.next = self.start;
    }

    /// Allocates bytes at a multiple of 64.
    fn take(&mut self, bytes: usize) -> Result<usize, Failure> {
        let at = self.next;
        let limit = self.end - self.start;
        let too_much = Failure::ArenaFull { limit };
        match bytes.checked_next_multiple_of(64) {
            Some(room) if room <= self.end - at => {
                self.next = at + room;
                Ok(at)
            }
            _ => Err(too_much),
        }
    }

    /// Copies bytes into the arena. Returns where they are.
    pub(crate) fn write(&mut self, window: &Window, bytes: &[u8]) -> Result<usize, Failure> {
        let at = self.take(bytes.len())?;
        window.write(at, Source::from(bytes));
        Ok(at)
    }
}

/// Records for another rank of this node.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LocalRecordBuffer {
    /// Start of the first chunk; 0 while the buffer is empty.
    first: usize,
    /// The chunk being filled: its start, the bytes used, and its capacity.
    chunk: usize,
    used: usize,
    room: usize,
}

impl LocalRecordBuffer {
    /// Start of the first chunk, for the reader.
    pub(crate) fn first(&self) -> usize {
        self.first
    }

    /// The records as one source, if they fit into one chunk and have at most `max` bytes.
    #[inline]
    pub(crate) fn as_inline<'a>(&self, window: &'a Window, max: usize) -> Option<Source<'a>> {
        let is_short = self.chunk == self.first && (1..=max).contains(&self.used);
        is_short.then(|| window.source(self.chunk + CHUNK_HEAD_BYTES, self.used))
    }

    /// Adds a record with its data.
    #[inline]
    pub(crate) fn push(
        &mut self,
        (window, arena): (&Window, &mut Arena),
        record: Record,
        data: &[Source<'_>],
    ) -> Result<(), Failure> {
        let bytes: usize = data.iter().map(|part| part.length()).sum();
        let wanted = HEAD_BYTES + filled(bytes);
        if wanted > self.room - self.used {
            self.begin_chunk(window, arena, wanted)?;
        }
        let mut at = self.chunk + CHUNK_HEAD_BYTES + self.used;
        window.write(at, Source::from(&record.head()[..]));
        at += HEAD_BYTES;
        for part in data {
            window.write(at, *part);
            at += part.length();
        }
        self.used += wanted;
        // Relaxed: other ranks read this after this rank has published that it arrived.
        let used = window.word(self.chunk + 8);
        used.store(self.used as u64, Ordering::Relaxed);
        Ok(())
    }

    fn begin_chunk(
        &mut self,
        window: &Window,
        arena: &mut Arena,
        wanted: usize,
    ) -> Result<(), Failure> {
        let room = (2 * self.room).clamp(FIRST_CHUNK_BYTES, MAX_CHUNK_BYTES);
        let room = room.max(wanted);
        let at = arena.take(CHUNK_HEAD_BYTES + room)?;
        window.word(at).store(0, Ordering::Relaxed);
        match self.first {
            0 => self.first = at,
            _ => window.word(self.chunk).store(at as u64, Ordering::Relaxed),
        }
        (self.chunk, self.used, self.room) = (at, 0, room);
        Ok(())
    }
}

/// The chunks of a record buffer in another rank's window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunks<'a> {
    window: &'a Window,
    at: usize,
    /// Records that are not in an arena. Then there are no others.
    inline: Option<Source<'a>>,
}

impl<'a> Chunks<'a> {
    /// Chunks starting at `first`.
    pub(crate) fn new(window: &'a Window, first: u64) -> Chunks<'a> {
        let at = usize::try_from(first).unwrap_or(0);
        let inline = None;
        Chunks { window, at, inline }
    }

    /// Reads from these records only.
    pub(crate) fn inline(window: &'a Window, inline: Source<'a>) -> Chunks<'a> {
        Chunks {
            window,
            at: 0,
            inline: Some(inline),
        }
    }
}

impl<'a> Iterator for Chunks<'a> {
    type Item = Source<'a>;

    #[inline]
    fn next(&mut self) -> Option<Source<'a>> {
        if let Some(inline) = self.inline.take() {
            return Some(inline);
        }
        // Only a faulty rank writes invalid positions. The bounds of the window hold anyway.
        let is_inside = self.at.is_multiple_of(8)
            && self.at != 0
            && self.at <= self.window.length() - CHUNK_HEAD_BYTES;
        if !is_inside {
            return None;
        }
        let word = |at| usize::try_from(self.window.word(at).load(Ordering::Relaxed));
        let (next, used) = (word(self.at).ok()?, word(self.at + 8).ok()?);
        let start = self.at + CHUNK_HEAD_BYTES;
        if used > self.window.length() - start {
            return None;
        }
        // Chunks are allocated in increasing order.
        self.at = if next > self.at { next } else { 0 };
        Some(self.window.source(start, used))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superstep::record::Records;

    #[test]
    fn buffers_of_one_arena_are_read_as_they_were_written() {
        let window = Window::create(64 << 20).expect("memory");
        let mut arena = Arena::new(4096, 32 << 20);
        for _ in 0..2 {
            arena.clear(&window);
            let mut buffers = [LocalRecordBuffer::default(); 3];
            for index in 0..3000_usize {
                let data = vec![u8::try_from(index % 251).expect("small"); index % 700];
                let record = Record::Put {
                    slot: 1,
                    offset: index as u64,
                    length: data.len() as u64,
                };
                let place = (&window, &mut arena);
                let buffer = &mut buffers[index % 3];
                buffer
                    .push(place, record, &[Source::from(&data[..])])
                    .expect("room");
            }
            for (which, buffer) in buffers.iter().enumerate() {
                let chunks = Chunks::new(&window, buffer.first() as u64);
                let mut index = which;
                for record in chunks.flat_map(Records::new) {
                    let (record, data) = record.expect("as written");
                    assert!(matches!(record, Record::Put { offset, .. } if offset == index as u64));
                    assert_eq!(data.length(), index % 700);
                    let expected = u8::try_from(index % 251).expect("small");
                    assert!(data.to_vec().iter().all(|byte| *byte == expected));
                    index += 3;
                }
                assert_eq!(index, 3000 + which);
            }
        }
    }

    #[test]
    fn a_full_arena_refuses_records() {
        let window = Window::create(16 << 20).expect("memory");
        let mut arena = Arena::new(4096, 8192);
        let mut buffer = LocalRecordBuffer::default();
        let long = vec![0; 8192];
        let record = Record::Message {
            tag: 0,
            length: 8192,
        };
        let refused = buffer.push((&window, &mut arena), record, &[Source::from(&long[..])]);
        assert!(matches!(refused, Err(Failure::ArenaFull { limit: 4096 })));
    }

    #[test]
    fn invalid_positions_in_a_window_end_the_chunks() {
        let window = Window::create(16 << 20).expect("memory");
        for first in [0, 4, 1 << 24, u64::MAX] {
            assert_eq!(Chunks::new(&window, first).count(), 0);
        }
        window.word(4096).store(4096, Ordering::Relaxed);
        assert_eq!(Chunks::new(&window, 4096).count(), 1, "no cycle");
        window.word(4096 + 8).store(u64::MAX, Ordering::Relaxed);
        assert_eq!(Chunks::new(&window, 4096).count(), 0);
    }
}
