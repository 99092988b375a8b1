//! Records for one rank, collected during a superstep.

use dipole_link::window::Source;

use crate::superstep::message::HEAD_BYTES as MESSAGE_HEAD_BYTES;
use crate::superstep::record::{HEAD_BYTES, Record, filled};

/// Longest message of records. Longer data are split, except those that must stay together.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;
/// Shortest limit of a message; below it, the headers cost too much.
const MIN_CHUNK_BYTES: usize = 4 << 10;

/// Records in this process's memory, in chunks. Each chunk becomes a message once its header is
/// filled in.
#[derive(Debug)]
pub(crate) struct RecordBuffer {
    chunks: Vec<Vec<u8>>,
    /// Longest chunk, except for data that must stay together.
    max_bytes: usize,
}

impl RecordBuffer {
    /// An empty buffer whose chunks have at most `max_bytes` bytes.
    pub(crate) fn new(max_bytes: usize) -> RecordBuffer {
        RecordBuffer {
            chunks: Vec::new(),
            max_bytes: max_bytes.clamp(MIN_CHUNK_BYTES, CHUNK_BYTES),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Adds a record whose data stay together.
    pub(crate) fn push(&mut self, record: Record, data: &[Source<'_>]) {
        let bytes: usize = data.iter().map(|part| part.length()).sum();
        let room = HEAD_BYTES + filled(bytes);
        let chunk = self.chunk(room, room);
        chunk.extend_from_slice(&record.head());
        for part in data {
            part.append_to(chunk);
        }
        chunk.resize(chunk.len() + filled(bytes) - bytes, 0);
    }

    /// Adds data in as many records as they need. `record` makes the record for an offset and a
    /// length.
    pub(crate) fn push_split(&mut self, data: Source<'_>, record: impl Fn(u64, u64) -> Record) {
        const MIN_BYTES: usize = HEAD_BYTES + 1024;
        let max_bytes = self.max_bytes;
        let mut done = 0;
        while done < data.length() {
            let left = data.length() - done;
            let chunk = self.chunk(
                (HEAD_BYTES + filled(left)).min(MIN_BYTES),
                HEAD_BYTES + filled(left),
            );
            let room = (max_bytes - chunk.len() - HEAD_BYTES) & !7;
            let length = left.min(room);
            chunk.extend_from_slice(&record(done as u64, length as u64).head());
            data.part(done, length).append_to(chunk);
            chunk.resize(chunk.len().next_multiple_of(8), 0);
            done += length;
        }
    }

    /// A chunk with room for at least `min` bytes. `wanted` bytes are still to be added.
    fn chunk(&mut self, min: usize, wanted: usize) -> &mut Vec<u8> {
        let fits = |chunk: &Vec<u8>| chunk.len() + min <= self.max_bytes;
        if !self.chunks.last().is_some_and(fits) {
            let usual = match self.chunks.len() {
                0 => (MESSAGE_HEAD_BYTES + wanted).clamp(256, self.max_bytes),
                _ => self.max_bytes,
            };
            let mut chunk = Vec::with_capacity(usual.max(MESSAGE_HEAD_BYTES + min));
            chunk.resize(MESSAGE_HEAD_BYTES, 0);
            self.chunks.push(chunk);
        }
        let last = self.chunks.len() - 1;
        &mut self.chunks[last]
    }

    /// Takes the chunks. Each has room in front for the header of a message.
    pub(crate) fn take(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.chunks)
    }

    pub(crate) fn records(chunk: &[u8]) -> Source<'_> {
        Source::from(&chunk[MESSAGE_HEAD_BYTES..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superstep::record::Records;

    #[test]
    fn long_data_are_split_unless_they_must_stay_together() {
        let data: Vec<u8> = (0..300_000_u32).map(|byte| byte.to_le_bytes()[0]).collect();
        let mut buffer = RecordBuffer::new(CHUNK_BYTES);
        buffer.push(
            Record::Message { tag: 2, length: 1 },
            &[Source::from(&[1, 2][..]), Source::from(&[3][..])],
        );
        buffer.push_split(Source::from(&data[..]), |offset, length| Record::Put {
            slot: 1,
            offset: 100 + offset,
            length,
        });
        let whole = Record::Message {
            tag: 0,
            length: data.len() as u64,
        };
        buffer.push(whole, &[Source::from(&data[..])]);
        let chunks = buffer.take();
        assert!(buffer.is_empty());
        assert_eq!(chunks.len(), 6);
        let mut found = vec![0; data.len()];
        let (mut messages, mut next) = (Vec::new(), 100);
        for chunk in &chunks {
            for record in Records::new(RecordBuffer::records(chunk)) {
                match record.expect("as written") {
                    (Record::Put { offset, length, .. }, bytes) => {
                        assert_eq!(offset, next);
                        next += length;
                        let at = usize::try_from(offset - 100).expect("inside");
                        bytes.copy_into(&mut found[at..at + bytes.length()]);
                    }
                    (_, bytes) => messages.push(bytes.to_vec()),
                }
            }
        }
        assert!(found == data);
        assert!(messages == [vec![1, 2, 3], data]);
    }
}
