//! The records of one rank for another, while they are recorded.

use dipole_link::window::Source;

use crate::superstep::message::HEAD_BYTES as MESSAGE_HEAD_BYTES;
use crate::superstep::record::{HEAD_BYTES, Record, filled};

/// Longest message of records: long ones are cut, except what must stay together.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;
/// Shorter ones are not worth their heads.
const LEAST_CHUNK_BYTES: usize = 4 << 10;

/// Records in memory of this process, in chunks that are messages once they have a head.
#[derive(Debug)]
pub(crate) struct Parcel {
    chunks: Vec<Vec<u8>>,
    /// Longest chunk, but for what must stay together.
    most: usize,
}

impl Parcel {
    /// An empty one whose chunks have at most so many bytes.
    pub(crate) fn new(most: usize) -> Parcel {
        Parcel {
            chunks: Vec::new(),
            most: most.clamp(LEAST_CHUNK_BYTES, CHUNK_BYTES),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Adds a record with its data.
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

    /// Adds data in as many records as they take; `record` makes the one of so many bytes at an
    /// offset.
    pub(crate) fn push_cut(&mut self, data: Source<'_>, record: impl Fn(u64, u64) -> Record) {
        const LEAST: usize = HEAD_BYTES + 1024;
        let most = self.most;
        let mut done = 0;
        while done < data.length() {
            let left = data.length() - done;
            let chunk = self.chunk(
                (HEAD_BYTES + filled(left)).min(LEAST),
                HEAD_BYTES + filled(left),
            );
            let room = (most - chunk.len() - HEAD_BYTES) & !7;
            let length = left.min(room);
            chunk.extend_from_slice(&record(done as u64, length as u64).head());
            data.part(done, length).append_to(chunk);
            chunk.resize(chunk.len().next_multiple_of(8), 0);
            done += length;
        }
    }

    /// The chunk for a record of at least `least` bytes, of which `wanted` are still to come.
    fn chunk(&mut self, least: usize, wanted: usize) -> &mut Vec<u8> {
        let fits = |chunk: &Vec<u8>| chunk.len() + least <= self.most;
        if !self.chunks.last().is_some_and(fits) {
            let usual = match self.chunks.len() {
                0 => (MESSAGE_HEAD_BYTES + wanted).clamp(256, self.most),
                _ => self.most,
            };
            let mut chunk = Vec::with_capacity(usual.max(MESSAGE_HEAD_BYTES + least));
            chunk.resize(MESSAGE_HEAD_BYTES, 0);
            self.chunks.push(chunk);
        }
        let last = self.chunks.len() - 1;
        &mut self.chunks[last]
    }

    /// The chunks, each with room for the head of a message in front.
    pub(crate) fn take(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.chunks)
    }

    /// The records in a chunk.
    pub(crate) fn records(chunk: &[u8]) -> Source<'_> {
        Source::from(&chunk[MESSAGE_HEAD_BYTES..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superstep::record::Records;

    #[test]
    fn long_data_are_cut_and_what_belongs_together_is_not() {
        let data: Vec<u8> = (0..300_000_u32).map(|byte| byte.to_le_bytes()[0]).collect();
        let mut parcel = Parcel::new(CHUNK_BYTES);
        parcel.push(
            Record::Message { tag: 2, length: 1 },
            &[Source::from(&[1, 2][..]), Source::from(&[3][..])],
        );
        parcel.push_cut(Source::from(&data[..]), |offset, length| Record::Put {
            slot: 1,
            offset: 100 + offset,
            length,
        });
        let whole = Record::Message {
            tag: 0,
            length: data.len() as u64,
        };
        parcel.push(whole, &[Source::from(&data[..])]);
        let chunks = parcel.take();
        assert!(parcel.is_empty());
        assert_eq!(chunks.len(), 6);
        let mut found = vec![0; data.len()];
        let (mut messages, mut next) = (Vec::new(), 100);
        for chunk in &chunks {
            for record in Records::new(Parcel::records(chunk)) {
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
