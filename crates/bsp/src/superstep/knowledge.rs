//! What is known of a superstep: who talks to whom, who is asked, and the facts of its ranks.
//!
//! All of it can be united with what another rank knows, in any order and any number of times.

use super::facts::{self, Facts};

/// A set of ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranks(Vec<u64>);

impl Ranks {
    /// Room for ranks below `size`.
    #[must_use]
    pub fn new(size: u32) -> Ranks {
        Ranks(vec![0; words(size)])
    }

    /// Adds one.
    #[inline]
    pub fn insert(&mut self, rank: u32) {
        self.0[rank as usize / 64] |= 1 << (rank % 64);
    }

    /// True if it is there.
    #[must_use]
    #[inline]
    pub fn contains(&self, rank: u32) -> bool {
        let word = self.0.get(rank as usize / 64);
        word.is_some_and(|word| word >> (rank % 64) & 1 == 1)
    }

    /// Adds those of whom the words have bits.
    #[inline]
    pub fn unite(&mut self, words: impl IntoIterator<Item = u64>) {
        for (own, other) in self.0.iter_mut().zip(words) {
            *own |= other;
        }
    }

    /// Takes all out.
    #[inline]
    pub fn clear(&mut self) {
        self.0.fill(0);
    }

    /// True if there is none.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// The words behind it.
    #[must_use]
    #[inline]
    pub fn words(&self) -> &[u64] {
        &self.0
    }
}

/// Words of a set of ranks below `size`.
#[must_use]
pub fn words(size: u32) -> usize {
    size.div_ceil(64) as usize
}

/// How a row is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Form {
    Words = 0,
    Talking = 1,
    Silent = 2,
}

const FORM_SHIFT: u32 = 30;
/// Among at most so many ranks each has a number of 16 bits.
const LISTED: u32 = 1 << 16;

/// See the module.
#[derive(Clone, Debug)]
pub struct Knowledge {
    size: u32,
    words: usize,
    /// The matrix: bit j of row i if rank i sends something to rank j.
    rows: Vec<u64>,
    /// Some row has a bit.
    has_rows: bool,
    /// Ranks of which somebody gets something.
    asked: Ranks,
    /// Somebody's memory is read by another process until the superstep ends.
    pulls: bool,
    /// The facts of ranks that have some to tell, in no order.
    facts: Vec<(u32, Facts)>,
}

impl Knowledge {
    /// Nothing about `size` ranks.
    #[must_use]
    pub fn new(size: u32) -> Knowledge {
        let words = words(size);
        Knowledge {
            size,
            words,
            rows: vec![0; words * size as usize],
            has_rows: false,
            asked: Ranks::new(size),
            pulls: false,
            facts: Vec::new(),
        }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        if self.is_silent() {
            return;
        }
        self.rows.fill(0);
        self.has_rows = false;
        self.asked.clear();
        self.pulls = false;
        self.facts.clear();
    }

    /// True if nobody has anything for anybody, and nothing to tell.
    #[must_use]
    #[inline]
    pub fn is_silent(&self) -> bool {
        // Whoever gets something has asked for it by a record.
        !self.has_rows && !self.pulls && self.facts.is_empty()
    }

    /// Adds to whom a rank sends.
    #[inline]
    pub fn add_row(&mut self, rank: u32, row: impl IntoIterator<Item = u64>) {
        let start = rank as usize * self.words;
        let own = &mut self.rows[start..start + self.words];
        for (own, other) in own.iter_mut().zip(row) {
            *own |= other;
            self.has_rows |= other != 0;
        }
    }

    /// Adds ranks that somebody gets from.
    #[inline]
    pub fn add_asked(&mut self, ranks: impl IntoIterator<Item = u64>) {
        self.asked.unite(ranks);
    }

    /// Adds that memory is read until the end.
    #[inline]
    pub fn add_pulls(&mut self) {
        self.pulls = true;
    }

    /// Adds a rank's facts.
    pub fn add_facts(&mut self, rank: u32, facts: Facts) {
        if !facts.is_plain() && self.facts.iter().all(|(known, _)| *known != rank) {
            self.facts.push((rank, facts));
        }
    }

    /// True if `from` sends something to `to`.
    #[must_use]
    #[inline]
    pub fn talks(&self, from: u32, to: u32) -> bool {
        let word = from as usize * self.words + to as usize / 64;
        self.rows[word] >> (to % 64) & 1 == 1
    }

    /// How many ranks send something.
    #[must_use]
    pub fn senders(&self) -> u32 {
        let rows = self.rows.chunks(self.words.max(1));
        let count = rows.filter(|row| row.iter().any(|word| *word != 0)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// True if somebody gets from the rank.
    #[must_use]
    #[inline]
    pub fn is_asked(&self, rank: u32) -> bool {
        self.asked.contains(rank)
    }

    /// True if memory is read until the end.
    #[must_use]
    #[inline]
    pub fn has_pulls(&self) -> bool {
        self.pulls
    }

    /// True if some rank had facts to tell.
    #[must_use]
    #[inline]
    pub fn has_facts(&self) -> bool {
        !self.facts.is_empty()
    }

    /// The facts of a rank.
    #[must_use]
    pub fn facts(&self, rank: u32) -> &Facts {
        const PLAIN: &Facts = &Facts {
            ending: facts::Ending::Sync,
            tag_calls: 0,
            tag_bytes: 0,
            pops: Vec::new(),
            pushes: Vec::new(),
        };
        let found = self.facts.iter().find(|(known, _)| *known == rank);
        found.map_or(PLAIN, |(_, facts)| facts)
    }

    /// Two ranks that did not do the same, the first with the lowest numbers.
    #[must_use]
    pub fn difference(&self) -> Option<(u32, u32, facts::Difference)> {
        if self.facts.is_empty() {
            return None;
        }
        let first = self.facts(0);
        (1..self.size).find_map(|rank| {
            let difference = first.difference(self.facts(rank))?;
            Some((0, rank, difference))
        })
    }

    /// Writes all that is known.
    pub fn encode(&self, into: &mut Vec<u8>) {
        let flags = u32::from(self.pulls);
        let talking = |row: &(usize, &[u64])| row.1.iter().any(|word| *word != 0);
        let rows = || self.rows.chunks(self.words).enumerate().filter(talking);
        let has_asked = !self.asked.is_empty();
        facts::put(into, flags | u32::from(has_asked) << 1);
        facts::put(into, u32::try_from(rows().count()).unwrap_or(u32::MAX));
        facts::put(into, u32::try_from(self.facts.len()).unwrap_or(u32::MAX));
        for (rank, row) in rows() {
            self.encode_row(u32::try_from(rank).unwrap_or(u32::MAX), row, into);
        }
        if has_asked {
            for word in self.asked.words() {
                facts::put_long(into, *word);
            }
        }
        for (rank, facts) in &self.facts {
            facts::put(into, *rank);
            facts.encode(into);
        }
    }

    /// Adds what was written, and takes it off the front of `bytes`; `None` if it is nothing
    /// that could have been written.
    pub fn absorb(&mut self, bytes: &mut &[u8]) -> Option<()> {
        let flags = facts::take(bytes)?;
        let (rows, told) = (facts::take(bytes)?, facts::take(bytes)?);
        for _ in 0..rows {
            self.absorb_row(bytes)?;
        }
        if flags & 2 != 0 {
            for word in 0..self.words {
                self.asked.0[word] |= facts::take_long(bytes)?;
            }
        }
        self.pulls |= flags & 1 != 0;
        for _ in 0..told {
            let rank = facts::take(bytes).filter(|rank| *rank < self.size)?;
            let facts = Facts::decode(bytes)?;
            self.add_facts(rank, facts);
        }
        Some(())
    }

    /// Writes a row in the shortest form: its words, the ranks in it, or those that are not. The
    /// form stands above the rank.
    fn encode_row(&self, rank: u32, row: &[u64], into: &mut Vec<u8>) {
        let talking: u32 = row.iter().map(|word| word.count_ones()).sum();
        let silent = self.size - talking;
        let form = match 2 * talking.min(silent) as usize + 4 < 8 * self.words {
            true if self.size > LISTED => Form::Words,
            true if talking <= silent => Form::Talking,
            true => Form::Silent,
            false => Form::Words,
        };
        facts::put(into, rank | (form as u32) << FORM_SHIFT);
        if form == Form::Words {
            row.iter().for_each(|word| facts::put_long(into, *word));
            return;
        }
        facts::put(into, talking.min(silent));
        for (index, word) in (0_u32..).zip(row) {
            let mut bits = match form {
                Form::Silent => !word & self.within(index as usize),
                _ => *word,
            };
            while bits != 0 {
                let listed = 64 * index + bits.trailing_zeros();
                into.extend_from_slice(&u16::try_from(listed).unwrap_or(u16::MAX).to_le_bytes());
                bits &= bits - 1;
            }
        }
    }

    fn absorb_row(&mut self, bytes: &mut &[u8]) -> Option<()> {
        let head = facts::take(bytes)?;
        let rank = head & ((1 << FORM_SHIFT) - 1);
        if rank >= self.size {
            return None;
        }
        let form = head >> FORM_SHIFT;
        if form == Form::Words as u32 {
            for word in 0..self.words {
                let bits = facts::take_long(bytes)? & self.within(word);
                self.rows[rank as usize * self.words + word] |= bits;
                self.has_rows |= bits != 0;
            }
            return Some(());
        }
        let mut row = Ranks::new(self.size);
        for _ in 0..facts::take(bytes)? {
            let (listed, rest) = bytes.split_first_chunk()?;
            *bytes = rest;
            let listed = u32::from(u16::from_le_bytes(*listed));
            row.insert(Some(listed).filter(|listed| *listed < self.size)?);
        }
        if form == Form::Silent as u32 {
            for word in 0..self.words {
                row.0[word] = !row.0[word] & self.within(word);
            }
        } else if form != Form::Talking as u32 {
            return None;
        }
        self.add_row(rank, row.0);
        Some(())
    }

    /// The bits of a word that stand for ranks there are.
    fn within(&self, word: usize) -> u64 {
        match self.size as usize - word * 64 {
            left if left < 64 => (1 << left) - 1,
            _ => u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use facts::Part;

    fn with(size: u32, pairs: &[(u32, u32)], asked: &[u32], telling: &[u32]) -> Knowledge {
        let mut known = Knowledge::new(size);
        for (from, to) in pairs {
            let mut row = Ranks::new(size);
            row.insert(to % size);
            known.add_row(from % size, row.words().iter().copied());
        }
        let mut ranks = Ranks::new(size);
        for rank in asked {
            ranks.insert(rank % size);
        }
        known.add_asked(ranks.words().iter().copied());
        for rank in telling {
            let pushes = vec![
                Part {
                    address: 8,
                    bytes: u64::from(*rank),
                    key: 0,
                };
                *rank as usize % 3 + 1
            ];
            let facts = Facts {
                pushes,
                ..Facts::default()
            };
            known.add_facts(rank % size, facts);
        }
        known
    }

    proptest! {
        #[test]
        fn what_is_written_is_known_by_who_absorbs_it(
            size in 1_u32..150,
            pairs in proptest::collection::vec(any::<(u32, u32)>(), 0..30),
            asked in proptest::collection::vec(any::<u32>(), 0..5),
            telling in proptest::collection::vec(any::<u32>(), 0..5),
        ) {
            let known = with(size, &pairs, &asked, &telling);
            let mut bytes = Vec::new();
            known.encode(&mut bytes);
            let mut other = Knowledge::new(size);
            for _ in 0..2 {
                let mut rest = &bytes[..];
                prop_assert!(other.absorb(&mut rest).is_some());
                prop_assert!(rest.is_empty());
            }
            for from in 0..size {
                for to in 0..size {
                    prop_assert_eq!(other.talks(from, to), known.talks(from, to));
                }
                prop_assert_eq!(other.is_asked(from), known.is_asked(from));
                prop_assert_eq!(other.facts(from), known.facts(from));
            }
            for short in 0..bytes.len() {
                prop_assert!(Knowledge::new(size).absorb(&mut &bytes[..short]).is_none());
            }
        }

        #[test]
        fn any_bytes_are_absorbed_or_refused(
            size in 1_u32..70, bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut known = Knowledge::new(size);
            let _refused = known.absorb(&mut &bytes[..]);
            prop_assert!(known.senders() <= size);
        }
    }

    /// What a rank knows of those in a pattern, and the bytes of the longest message, when each
    /// rank tells what it has been told.
    fn disseminated(size: u32, row: impl Fn(u32) -> Ranks) -> (Knowledge, usize) {
        // Before round k a rank knows of the 2^k ranks up to itself.
        let known_by = |last: u32, count: u32| {
            let mut known = Knowledge::new(size);
            for back in 0..count.min(size) {
                let rank = (last + size - back) % size;
                known.add_row(rank, row(rank).0);
            }
            known
        };
        let mut known = known_by(0, 1);
        let mut longest = 0;
        for round in 0..super::super::rounds::count(size as usize) {
            let teller = known_by((size - (1 << round)) % size, 1 << round);
            let mut told = Vec::new();
            teller.encode(&mut told);
            longest = longest.max(told.len());
            assert_eq!(known.absorb(&mut &told[..]), Some(()));
        }
        (known, longest)
    }

    #[test]
    fn many_ranks_of_whom_each_talks_to_few_or_to_almost_all_need_few_bytes() {
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
        // The matrix has 512 KiB, of which half are told in the last round.
        let patterns: [(&dyn Fn(u32) -> Ranks, usize); 4] = [
            (&|rank| ring(rank, 1), 12 << 10),
            (&|rank| ring(rank, 8), 26 << 10),
            (&all, 12 << 10),
            (&every_second, 262 << 10),
        ];
        for (which, (row, most)) in patterns.into_iter().enumerate() {
            let (known, longest) = disseminated(SIZE, row);
            for rank in 0..SIZE {
                let start = rank as usize * known.words;
                assert_eq!(
                    known.rows[start..start + known.words],
                    row(rank).0,
                    "{which}"
                );
            }
            assert_eq!(known.senders(), SIZE);
            assert!(longest <= most, "{which}: {longest} bytes");
        }
    }

    #[test]
    fn ranks_that_differ_are_found() {
        let same = with(3, &[], &[], &[]);
        assert_eq!(same.difference(), None);
        let one = with(3, &[], &[], &[2]);
        let (first, second, what) = one.difference().expect("rank 2 alone has pushed");
        assert_eq!((first, second, what), (0, 2, facts::Difference::Pushes));
    }
}
