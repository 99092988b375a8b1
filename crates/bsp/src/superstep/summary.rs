//! The summary of a superstep: which ranks send to which, which ranks are read by gets, and the
//! collective calls of all ranks.
//!
//! Summaries of several ranks can be merged in any order and any number of times.

use super::collective::{self, CollectiveCalls};
use super::request::Request;

/// A set of ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranks(Vec<u64>);

impl Ranks {
    /// An empty set of ranks below `size`.
    #[must_use]
    pub fn new(size: u32) -> Ranks {
        Ranks(vec![0; words(size)])
    }

    /// Adds a rank to the set.
    #[inline]
    pub fn insert(&mut self, rank: u32) {
        self.0[rank as usize / 64] |= 1 << (rank % 64);
    }

    /// True if the set contains a rank.
    #[must_use]
    #[inline]
    pub fn contains(&self, rank: u32) -> bool {
        let word = self.0.get(rank as usize / 64);
        word.is_some_and(|word| word >> (rank % 64) & 1 == 1)
    }

    /// Adds the ranks whose bits are set in `words`.
    #[inline]
    pub fn unite(&mut self, words: impl IntoIterator<Item = u64>) {
        for (own, other) in self.0.iter_mut().zip(words) {
            *own |= other;
        }
    }

    /// Removes all ranks but keeps the memory.
    #[inline]
    pub fn clear(&mut self) {
        self.0.fill(0);
    }

    /// True if the set is empty.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// The set as words of 64 bits.
    #[must_use]
    #[inline]
    pub fn words(&self) -> &[u64] {
        &self.0
    }
}

/// Number of words of a set of ranks below `size`.
#[must_use]
pub fn words(size: u32) -> usize {
    size.div_ceil(64) as usize
}

/// How a row of the matrix is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Form {
    /// One bit for each rank.
    Bits = 0,
    /// The ranks in the row.
    Members = 1,
    /// The ranks that are not in the row.
    NonMembers = 2,
}

const FORM_SHIFT: u32 = 30;
/// Where the request is in the first word.
const REQUEST_SHIFT: u32 = 2;
/// Maximum number of ranks for which a listed rank fits into 16 bits.
const MAX_LISTED: u32 = 1 << 16;

/// Summary of one rank, or the merged summary of several.
#[derive(Clone, Debug)]
pub struct Summary {
    size: u32,
    words: usize,
    /// The communication matrix: bit j of row i is set if rank i sends to rank j.
    rows: Vec<u64>,
    /// A bit of the matrix is set.
    has_rows: bool,
    /// Ranks from which some rank gets data.
    get_sources: Ranks,
    /// Some rank copies memory of another process until the superstep ends.
    pulls: bool,
    /// The greatest request of a rank for the end of the superstep.
    request: Request,
    /// Ranks that made collective calls, in no order.
    collectives: Vec<(u32, CollectiveCalls)>,
}

impl Summary {
    /// An empty summary for `size` ranks.
    #[must_use]
    pub fn new(size: u32) -> Summary {
        let words = words(size);
        Summary {
            size,
            words,
            rows: vec![0; words * size as usize],
            has_rows: false,
            get_sources: Ranks::new(size),
            pulls: false,
            request: Request::None,
            collectives: Vec::new(),
        }
    }

    /// Removes all content but keeps the memory.
    pub fn clear(&mut self) {
        self.request = Request::None;
        if self.is_empty() {
            return;
        }
        self.rows.fill(0);
        self.has_rows = false;
        self.get_sources.clear();
        self.pulls = false;
        self.collectives.clear();
    }

    /// True if no rank has sent anything or made a collective call.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        // A get implies a record, and so a bit in the matrix.
        !self.has_rows && !self.pulls && self.collectives.is_empty()
    }

    /// Adds the ranks that a rank sends to.
    #[inline]
    pub fn add_row(&mut self, rank: u32, row: impl IntoIterator<Item = u64>) {
        let start = rank as usize * self.words;
        let own = &mut self.rows[start..start + self.words];
        for (own, other) in own.iter_mut().zip(row) {
            *own |= other;
            self.has_rows |= other != 0;
        }
    }

    /// Adds ranks from which some rank gets data.
    #[inline]
    pub fn add_get_sources(&mut self, ranks: impl IntoIterator<Item = u64>) {
        self.get_sources.unite(ranks);
    }

    /// Adds that some rank copies memory of another process until the superstep ends.
    #[inline]
    pub fn add_pulls(&mut self) {
        self.pulls = true;
    }

    /// Adds the request of a rank for the end of the superstep.
    #[inline]
    pub fn request(&mut self, request: Request) {
        self.request = self.request.max(request);
    }

    /// The greatest request of a rank for the end of the superstep.
    #[must_use]
    #[inline]
    pub fn requested(&self) -> Request {
        self.request
    }

    /// Adds the collective calls of a rank.
    pub fn add_collectives(&mut self, rank: u32, collectives: CollectiveCalls) {
        let is_new = self.collectives.iter().all(|(known, _)| *known != rank);
        if !collectives.is_default() && is_new {
            self.collectives.push((rank, collectives));
        }
    }

    /// True if rank `from` sends to rank `to`.
    #[must_use]
    #[inline]
    pub fn sends(&self, from: u32, to: u32) -> bool {
        let word = from as usize * self.words + to as usize / 64;
        self.rows[word] >> (to % 64) & 1 == 1
    }

    /// The number of ranks that send something.
    #[must_use]
    pub fn senders(&self) -> u32 {
        let rows = self.rows.chunks(self.words.max(1));
        let count = rows.filter(|row| row.iter().any(|word| *word != 0)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// True if some rank gets from this one.
    #[must_use]
    #[inline]
    pub fn is_get_source(&self, rank: u32) -> bool {
        self.get_sources.contains(rank)
    }

    /// True if some rank copies memory of another process until the superstep ends.
    #[must_use]
    #[inline]
    pub fn has_pulls(&self) -> bool {
        self.pulls
    }

    /// True if some rank made a collective call.
    #[must_use]
    #[inline]
    pub fn has_collectives(&self) -> bool {
        !self.collectives.is_empty()
    }

    /// The collective calls of a rank.
    #[must_use]
    pub fn collectives(&self, rank: u32) -> &CollectiveCalls {
        const PLAIN: &CollectiveCalls = &CollectiveCalls {
            ending: collective::Ending::Sync,
            tag_calls: 0,
            tag_bytes: 0,
            pops: Vec::new(),
            pushes: Vec::new(),
        };
        let found = self.collectives.iter().find(|(known, _)| *known == rank);
        found.map_or(PLAIN, |(_, collectives)| collectives)
    }

    /// Two ranks that made different collective calls. The first is rank 0, the second the lowest that
    /// differs.
    #[must_use]
    pub fn difference(&self) -> Option<(u32, u32, collective::Difference)> {
        if self.collectives.is_empty() {
            return None;
        }
        let first = self.collectives(0);
        (1..self.size).find_map(|rank| {
            let difference = first.difference(self.collectives(rank))?;
            Some((0, rank, difference))
        })
    }

    /// Appends the encoded summary.
    pub fn encode(&self, into: &mut Vec<u8>) {
        let sends = |row: &(usize, &[u64])| row.1.iter().any(|word| *word != 0);
        let rows = || self.rows.chunks(self.words).enumerate().filter(sends);
        let has_get_sources = !self.get_sources.is_empty();
        put_u32(
            into,
            u32::from(self.pulls)
                | u32::from(has_get_sources) << 1
                | self.request.bits() << REQUEST_SHIFT,
        );
        put_u32(into, u32::try_from(rows().count()).unwrap_or(u32::MAX));
        put_u32(
            into,
            u32::try_from(self.collectives.len()).unwrap_or(u32::MAX),
        );
        for (rank, row) in rows() {
            self.encode_row(u32::try_from(rank).unwrap_or(u32::MAX), row, into);
        }
        if has_get_sources {
            for word in self.get_sources.words() {
                put_u64(into, *word);
            }
        }
        for (rank, calls) in &self.collectives {
            put_u32(into, *rank);
            calls.encode(into);
        }
    }

    /// Merges an encoded summary, and removes it from the front of `bytes`. Returns `None` if it is
    /// not valid.
    pub fn merge(&mut self, bytes: &mut &[u8]) -> Option<()> {
        let flags = take_u32(bytes)?;
        let (rows, ranks_with_calls) = (take_u32(bytes)?, take_u32(bytes)?);
        for _ in 0..rows {
            self.merge_row(bytes)?;
        }
        if flags & 2 != 0 {
            for word in 0..self.words {
                self.get_sources.0[word] |= take_u64(bytes)?;
            }
        }
        self.pulls |= flags & 1 != 0;
        self.request(Request::from_bits(flags >> REQUEST_SHIFT));
        for _ in 0..ranks_with_calls {
            let rank = take_u32(bytes).filter(|rank| *rank < self.size)?;
            let calls = CollectiveCalls::decode(bytes)?;
            self.add_collectives(rank, calls);
        }
        Some(())
    }

    /// Encodes a row in its shortest form. The form is stored in the upper bits of the rank.
    fn encode_row(&self, rank: u32, row: &[u64], into: &mut Vec<u8>) {
        let members: u32 = row.iter().map(|word| word.count_ones()).sum();
        let non_members = self.size - members;
        let form = match 2 * members.min(non_members) as usize + 4 < 8 * self.words {
            true if self.size > MAX_LISTED => Form::Bits,
            true if members <= non_members => Form::Members,
            true => Form::NonMembers,
            false => Form::Bits,
        };
        put_u32(into, rank | (form as u32) << FORM_SHIFT);
        if form == Form::Bits {
            row.iter().for_each(|word| put_u64(into, *word));
            return;
        }
        put_u32(into, members.min(non_members));
        for (index, word) in (0_u32..).zip(row) {
            let mut bits = match form {
                Form::NonMembers => !word & self.valid_bits(index as usize),
                _ => *word,
            };
            while bits != 0 {
                let listed = 64 * index + bits.trailing_zeros();
                into.extend_from_slice(&u16::try_from(listed).unwrap_or(u16::MAX).to_le_bytes());
                bits &= bits - 1;
            }
        }
    }

    fn merge_row(&mut self, bytes: &mut &[u8]) -> Option<()> {
        let head = take_u32(bytes)?;
        let rank = head & ((1 << FORM_SHIFT) - 1);
        if rank >= self.size {
            return None;
        }
        let form = head >> FORM_SHIFT;
        if form == Form::Bits as u32 {
            for word in 0..self.words {
                let bits = take_u64(bytes)? & self.valid_bits(word);
                self.rows[rank as usize * self.words + word] |= bits;
                self.has_rows |= bits != 0;
            }
            return Some(());
        }
        let mut row = Ranks::new(self.size);
        for _ in 0..take_u32(bytes)? {
            let (listed, rest) = bytes.split_first_chunk()?;
            *bytes = rest;
            let listed = u32::from(u16::from_le_bytes(*listed));
            row.insert(Some(listed).filter(|listed| *listed < self.size)?);
        }
        if form == Form::NonMembers as u32 {
            for word in 0..self.words {
                row.0[word] = !row.0[word] & self.valid_bits(word);
            }
        } else if form != Form::Members as u32 {
            return None;
        }
        self.add_row(rank, row.0);
        Some(())
    }

    /// The bits of a word that stand for existing ranks.
    fn valid_bits(&self, word: usize) -> u64 {
        match self.size as usize - word * 64 {
            left if left < 64 => (1 << left) - 1,
            _ => u64::MAX,
        }
    }
}

fn put_u32(into: &mut Vec<u8>, value: u32) {
    into.extend_from_slice(&value.to_le_bytes());
}

fn put_u64(into: &mut Vec<u8>, value: u64) {
    into.extend_from_slice(&value.to_le_bytes());
}

fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    let (value, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u32::from_le_bytes(*value))
}

fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    let (value, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use collective::Part;

    fn with(size: u32, pairs: &[(u32, u32)], sources: &[u32], callers: &[u32]) -> Summary {
        let mut summary = Summary::new(size);
        for (from, to) in pairs {
            let mut row = Ranks::new(size);
            row.insert(to % size);
            summary.add_row(from % size, row.words().iter().copied());
        }
        let mut ranks = Ranks::new(size);
        for rank in sources {
            ranks.insert(rank % size);
        }
        summary.add_get_sources(ranks.words().iter().copied());
        for rank in callers {
            let pushes = vec![
                Part {
                    address: 8,
                    bytes: u64::from(*rank),
                    key: 0,
                };
                *rank as usize % 3 + 1
            ];
            let calls = CollectiveCalls {
                pushes,
                ..CollectiveCalls::default()
            };
            summary.add_collectives(rank % size, calls);
        }
        summary
    }

    proptest! {
        #[test]
        fn an_encoded_summary_can_be_merged_any_number_of_times(
            size in 1_u32..150,
            pairs in proptest::collection::vec(any::<(u32, u32)>(), 0..30),
            sources in proptest::collection::vec(any::<u32>(), 0..5),
            callers in proptest::collection::vec(any::<u32>(), 0..5),
        ) {
            let mut summary = with(size, &pairs, &sources, &callers);
            summary.request(Request::from_bits(u32::try_from(pairs.len() % 3).unwrap()));
            let mut bytes = Vec::new();
            summary.encode(&mut bytes);
            let mut other = Summary::new(size);
            for _ in 0..2 {
                let mut rest = &bytes[..];
                prop_assert!(other.merge(&mut rest).is_some());
                prop_assert!(rest.is_empty());
            }
            prop_assert_eq!(other.requested(), summary.requested());
            prop_assert_eq!(other.is_empty(), summary.is_empty());
            for from in 0..size {
                for to in 0..size {
                    prop_assert_eq!(other.sends(from, to), summary.sends(from, to));
                }
                prop_assert_eq!(other.is_get_source(from), summary.is_get_source(from));
                prop_assert_eq!(other.collectives(from), summary.collectives(from));
            }
            for short in 0..bytes.len() {
                prop_assert!(Summary::new(size).merge(&mut &bytes[..short]).is_none());
            }
        }

        #[test]
        fn arbitrary_bytes_are_merged_or_refused(
            size in 1_u32..70, bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut summary = Summary::new(size);
            let _refused = summary.merge(&mut &bytes[..]);
            prop_assert!(summary.senders() <= size);
        }
    }

    /// The summary of rank 0 after all rounds, and the length of the longest message, if each rank sends
    /// on everything that it knows.
    fn disseminated(size: u32, row: impl Fn(u32) -> Ranks) -> (Summary, usize) {
        // Before round k a rank knows of the 2^k ranks up to itself.
        let known_by = |last: u32, count: u32| {
            let mut summary = Summary::new(size);
            for back in 0..count.min(size) {
                let rank = (last + size - back) % size;
                summary.add_row(rank, row(rank).0);
            }
            summary
        };
        let mut summary = known_by(0, 1);
        let mut longest = 0;
        for round in 0..super::super::rounds::count(size as usize) {
            let sender = known_by((size - (1 << round)) % size, 1 << round);
            let mut bytes = Vec::new();
            sender.encode(&mut bytes);
            longest = longest.max(bytes.len());
            assert_eq!(summary.merge(&mut &bytes[..]), Some(()));
        }
        (summary, longest)
    }

    #[test]
    fn summaries_of_many_ranks_are_short_if_each_sends_to_few_or_to_almost_all() {
        const SIZE: u32 = 2048;
        let ring = |rank: u32, partners: u32| {
            let mut row = Ranks::new(SIZE);
            for step in 1..=partners {
                row.insert((rank + step * step) % SIZE);
            }
            row
        };
        let all = |rank: u32| {
            let mut row = Ranks::new(SIZE);
            (0..SIZE)
                .filter(|to| *to != rank)
                .for_each(|to| row.insert(to));
            row
        };
        let every_second = |rank: u32| {
            let mut row = Ranks::new(SIZE);
            (0..SIZE)
                .filter(|to| (to + rank).is_multiple_of(2))
                .for_each(|to| row.insert(to));
            row
        };
        // The matrix has 512 KiB, half of which is sent in the last round.
        let patterns: [(&dyn Fn(u32) -> Ranks, usize); 4] = [
            (&|rank| ring(rank, 1), 12 << 10),
            (&|rank| ring(rank, 8), 26 << 10),
            (&all, 12 << 10),
            (&every_second, 262 << 10),
        ];
        for (which, (row, most)) in patterns.into_iter().enumerate() {
            let (summary, longest) = disseminated(SIZE, row);
            for rank in 0..SIZE {
                let start = rank as usize * summary.words;
                assert_eq!(
                    summary.rows[start..start + summary.words],
                    row(rank).0,
                    "{which}"
                );
            }
            assert_eq!(summary.senders(), SIZE);
            assert!(longest <= most, "{which}: {longest} bytes");
        }
    }

    #[test]
    fn ranks_with_different_collective_calls_are_found() {
        let same = with(3, &[], &[], &[]);
        assert_eq!(same.difference(), None);
        let one = with(3, &[], &[], &[2]);
        let (first, second, what) = one.difference().expect("rank 2 alone has pushed");
        assert_eq!(
            (first, second, what),
            (0, 2, collective::Difference::Pushes)
        );
    }
}
