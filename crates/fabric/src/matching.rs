//! Tag matching: which receive takes which message.
//!
//! [`Matcher`] holds the receives that are waiting and the messages that arrived unexpectedly. An
//! arriving message goes to the matching receive that was posted first; a new receive takes the
//! matching message that arrived first. Receives and messages are values of the caller, and sources
//! are numbers.
//!
//! A receive is found by hash if it ignores at most `MAX_IGNORED_BITS` bits of the tag (MPI
//! libraries ignore the bits of their own protocol); all others are compared in posting order.
//! Memory grows with the number of entries and is reused, so the caller has to bound that number.
//!
//! Untagged messages have a matcher of their own, with tag 0.

/// Filter of the messages that a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Criteria {
    /// The source; `None` accepts any.
    pub source: Option<u64>,
    /// The tag, except for the bits in `ignore`.
    pub tag: u64,
    /// Tag bits that are not compared.
    pub ignore: u64,
}

impl Criteria {
    /// True if a message with this source and tag matches.
    #[must_use]
    pub fn matches(&self, source: u64, tag: u64) -> bool {
        (self.tag ^ tag) & !self.ignore == 0
            && self.source.is_none_or(|criteria| criteria == source)
    }
}

/// Identifies a waiting receive. Never identifies another one, even after its slot is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    slot: u32,
    number: u64,
}

/// The result of posting a receive.
#[derive(Debug, PartialEq, Eq)]
pub enum Posted<R, U> {
    /// An unexpected message matched; both are returned.
    Matched(U, R),
    /// No message matched yet; the receive is queued.
    Queued(Token),
}

/// Waiting receives and unexpected messages.
#[derive(Debug)]
pub struct Matcher<R, U> {
    expected: Table<Expected<R>, 2>,
    unexpected: Table<Unexpected<U>, 3>,
    /// Tag bits that some receive ignores, which hashing therefore leaves out.
    ignored: u64,
}

/// Maximum number of tag bits that hashing ignores.
const MAX_IGNORED_BITS: u32 = 8;

impl<R, U> Default for Matcher<R, U> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R, U> Matcher<R, U> {
    /// A matcher without receives and messages.
    #[must_use]
    pub fn new() -> Self {
        Matcher {
            expected: Table::new(),
            unexpected: Table::new(),
            ignored: 0,
        }
    }

    /// Posts a receive: it takes the first matching message, or waits.
    pub fn post(&mut self, criteria: Criteria, receive: R) -> Posted<R, U> {
        if let Some(message) = self.claim(&criteria) {
            return Posted::Matched(message, receive);
        }
        self.exclude_from_hash(criteria.ignore);
        let (slot, number) = self
            .expected
            .add(Expected { criteria, receive }, self.ignored);
        Posted::Queued(Token { slot, number })
    }

    /// Removes the receive that takes an arriving message.
    pub fn arrive(&mut self, source: u64, tag: u64) -> Option<R> {
        let token = self.find(source, tag)?;
        self.withdraw(token)
    }

    /// The receive that takes an arriving message. It stays, as a buffer with room for more messages
    /// does.
    #[must_use]
    pub fn find(&self, source: u64, tag: u64) -> Option<Token> {
        let table = &self.expected;
        if table.is_empty() {
            return None;
        }
        let hash = tag & !self.ignored;
        let lists = [
            ANYWHERE,
            table.list(Some(source), hash),
            table.list(None, hash),
        ];
        let first = |list| {
            let mut fits = table.walk(list, 1);
            fits.find(|&slot| table.value(slot).criteria.matches(source, tag))
        };
        let found = lists.into_iter().filter_map(first);
        let earliest = found.min_by_key(|&slot| table.number(slot))?;
        Some(Token {
            slot: earliest,
            number: table.number(earliest),
        })
    }

    /// A queued receive.
    pub fn receive_mut(&mut self, token: Token) -> Option<&mut R> {
        let is_current = self.expected.holds(token.slot, token.number);
        is_current.then(|| &mut self.expected.value_mut(token.slot).receive)
    }

    /// Removes a waiting receive.
    pub fn withdraw(&mut self, token: Token) -> Option<R> {
        let is_current = self.expected.holds(token.slot, token.number);
        is_current.then(|| self.expected.take(token.slot).receive)
    }

    /// Removes the first receive that the predicate accepts.
    pub fn cancel(&mut self, mut is_it: impl FnMut(&R) -> bool) -> Option<R> {
        let table = &self.expected;
        let slot = (table.walk(ALL, 0)).find(|&slot| is_it(&table.value(slot).receive))?;
        Some(self.expected.take(slot).receive)
    }

    /// The waiting receives in posting order.
    pub fn receives(&self) -> impl Iterator<Item = &R> {
        let table = &self.expected;
        table.walk(ALL, 0).map(|slot| &table.value(slot).receive)
    }

    /// Keeps a message for which [`arrive`](Self::arrive) or [`find`](Self::find) found no receive.
    pub fn keep(&mut self, source: u64, tag: u64, message: U) {
        let message = Unexpected {
            source,
            tag,
            message,
        };
        self.unexpected.add(message, self.ignored);
    }

    /// The unexpected message that a receive would take.
    #[must_use]
    pub fn peek(&self, criteria: &Criteria) -> Option<&U> {
        let slot = self.first_unexpected(criteria)?;
        Some(&self.unexpected.value(slot).message)
    }

    /// Removes the unexpected message that a receive would take.
    pub fn claim(&mut self, criteria: &Criteria) -> Option<U> {
        let slot = self.first_unexpected(criteria)?;
        Some(self.unexpected.take(slot).message)
    }

    /// The number of waiting receives.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.expected.used
    }

    /// The number of unexpected messages.
    #[must_use]
    pub fn unexpected_count(&self) -> usize {
        self.unexpected.used
    }

    fn first_unexpected(&self, criteria: &Criteria) -> Option<u32> {
        let table = &self.unexpected;
        if table.is_empty() {
            return None;
        }
        let (list, chain) = match (criteria.ignore & !self.ignored == 0, criteria.source) {
            (true, Some(_)) => (table.list(criteria.source, criteria.tag & !self.ignored), 1),
            (true, None) => (table.list(None, criteria.tag & !self.ignored), 2),
            (false, _) => (ALL, 0),
        };
        table.walk(list, chain).find(|&slot| {
            let message = table.value(slot);
            criteria.matches(message.source, message.tag)
        })
    }

    /// Leaves the ignored bits of a receive out of hashing, if they are few.
    fn exclude_from_hash(&mut self, ignore: u64) {
        let ignored = self.ignored | ignore;
        if ignored != self.ignored && ignored.count_ones() <= MAX_IGNORED_BITS {
            self.ignored = ignored;
            self.expected.rehash(ignored);
            self.unexpected.rehash(ignored);
        }
    }
}

/// A waiting receive: in the list of all receives and in one other.
#[derive(Debug)]
struct Expected<R> {
    criteria: Criteria,
    receive: R,
}

/// An unexpected message: in the list of all messages, the list for its source and tag, and the
/// list for its tag.
#[derive(Debug)]
struct Unexpected<U> {
    source: u64,
    tag: u64,
    message: U,
}

/// The list of all entries.
const ALL: u32 = 0;
/// The list of receives that ignore too many bits to be hashed.
const ANYWHERE: u32 = 1;
/// Number of lists before the hashed ones.
const NAMED: u32 = 2;
/// Marks the absence of a slot.
const NONE: u32 = u32::MAX;

/// An entry of a [`Table`].
trait Listed<const LISTS: usize> {
    /// The lists that contain the entry, [`ALL`] first; `list` is [`Table::list`].
    fn lists(&self, ignored: u64, list: impl Fn(Option<u64>, u64) -> u32) -> [u32; LISTS];
}

impl<R> Listed<2> for Expected<R> {
    fn lists(&self, ignored: u64, list: impl Fn(Option<u64>, u64) -> u32) -> [u32; 2] {
        let hashed = self.criteria.ignore & !ignored == 0;
        let own = match hashed {
            true => list(self.criteria.source, self.criteria.tag & !ignored),
            false => ANYWHERE,
        };
        [ALL, own]
    }
}

impl<U> Listed<3> for Unexpected<U> {
    fn lists(&self, ignored: u64, list: impl Fn(Option<u64>, u64) -> u32) -> [u32; 3] {
        let tag = self.tag & !ignored;
        [ALL, list(Some(self.source), tag), list(None, tag)]
    }
}

/// Entries in slots. Each is in several linked lists, in the order of insertion.
#[derive(Debug)]
struct Table<T, const LISTS: usize> {
    slots: Vec<Slot<T, LISTS>>,
    free: Vec<u32>,
    used: usize,
    /// The number of the next entry.
    next: u64,
    /// First and last slot of each list: [`ALL`], [`ANYWHERE`], a power of two of lists by source
    /// and tag, and as many by tag alone.
    ends: Vec<Ends>,
}

#[derive(Debug)]
struct Slot<T, const LISTS: usize> {
    value: Option<T>,
    number: u64,
    links: [Link; LISTS],
}

#[derive(Clone, Copy, Debug)]
struct Link {
    list: u32,
    previous: u32,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    first: u32,
    last: u32,
}

const EMPTY: Ends = Ends {
    first: NONE,
    last: NONE,
};

const UNLINKED: Link = Link {
    list: ALL,
    previous: NONE,
    next: NONE,
};

/// Initial number of hashed lists of either kind.
const FIRST_LISTS: u32 = 64;

impl<T: Listed<LISTS>, const LISTS: usize> Table<T, LISTS> {
    fn new() -> Self {
        Table {
            slots: Vec::new(),
            free: Vec::new(),
            used: 0,
            next: 0,
            ends: vec![EMPTY; (NAMED + 2 * FIRST_LISTS) as usize],
        }
    }

    /// Appends an entry; returns its slot and number.
    fn add(&mut self, value: T, ignored: u64) -> (u32, u64) {
        if self.used >= self.hashed() as usize {
            let more = NAMED + 4 * self.hashed();
            self.ends.resize(more as usize, EMPTY);
            self.rehash(ignored);
        }
        let number = self.next;
        self.next += 1;
        self.used += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                value: None,
                number,
                links: [UNLINKED; LISTS],
            });
            u32::try_from(self.slots.len() - 1).expect("memory ends before 2^32 entries")
        });
        let lists = value.lists(ignored, |source, tag| self.list(source, tag));
        let entry = &mut self.slots[slot as usize];
        entry.value = Some(value);
        entry.number = number;
        self.link(slot, lists);
        (slot, number)
    }

    fn take(&mut self, slot: u32) -> T {
        let links = self.slots[slot as usize].links;
        for (chain, link) in links.into_iter().enumerate() {
            match link.previous {
                NONE => self.ends[link.list as usize].first = link.next,
                previous => self.slots[previous as usize].links[chain].next = link.next,
            }
            match link.next {
                NONE => self.ends[link.list as usize].last = link.previous,
                next => self.slots[next as usize].links[chain].previous = link.previous,
            }
        }
        self.used -= 1;
        self.free.push(slot);
        let value = self.slots[slot as usize].value.take();
        value.expect("a slot in a list is used")
    }

    /// Builds all lists again, keeping the order of the entries.
    fn rehash(&mut self, ignored: u64) {
        let mut slot = self.ends[ALL as usize].first;
        self.ends.fill(EMPTY);
        while slot != NONE {
            let next = self.slots[slot as usize].links[0].next;
            let lists = (self.value(slot)).lists(ignored, |source, tag| self.list(source, tag));
            self.link(slot, lists);
            slot = next;
        }
    }

    /// Appends an entry to its lists.
    fn link(&mut self, slot: u32, lists: [u32; LISTS]) {
        for (chain, list) in lists.into_iter().enumerate() {
            let ends = &mut self.ends[list as usize];
            let previous = ends.last;
            ends.last = slot;
            match previous {
                NONE => ends.first = slot,
                previous => self.slots[previous as usize].links[chain].next = slot,
            }
            self.slots[slot as usize].links[chain] = Link {
                list,
                previous,
                next: NONE,
            };
        }
    }

    /// The slots of a list, in order; `chain` is the index of the list among those of its entries.
    fn walk(&self, list: u32, chain: usize) -> impl Iterator<Item = u32> + '_ {
        let next = move |slot: u32| (slot != NONE).then_some(slot);
        std::iter::successors(next(self.ends[list as usize].first), move |&slot| {
            next(self.slots[slot as usize].links[chain].next)
        })
    }

    /// The list for a tag, from one source or from any.
    fn list(&self, source: Option<u64>, tag: u64) -> u32 {
        // Fibonacci hashing: the upper bits of the product depend on all bits.
        const RATIO: u64 = 0x9E37_79B9_7F4A_7C15;
        let of_source = source.map_or(0, |source| source.wrapping_mul(RATIO).rotate_left(29));
        let mixed = (tag ^ of_source ^ (tag >> 32)).wrapping_mul(RATIO);
        let kind = if source.is_some() { 0 } else { self.hashed() };
        #[allow(clippy::cast_possible_truncation, reason = "32 bits are left")]
        let upper = (mixed >> 32) as u32;
        NAMED + kind + (upper & (self.hashed() - 1))
    }

    /// The number of lists by source and tag, which is also the number by tag alone.
    fn hashed(&self) -> u32 {
        #[allow(clippy::cast_possible_truncation, reason = "they are named by 32 bits")]
        let lists = self.ends.len() as u32;
        (lists - NAMED) / 2
    }

    fn is_empty(&self) -> bool {
        self.used == 0
    }

    fn holds(&self, slot: u32, number: u64) -> bool {
        let entry = self.slots.get(slot as usize);
        entry.is_some_and(|entry| entry.number == number && entry.value.is_some())
    }

    fn number(&self, slot: u32) -> u64 {
        self.slots[slot as usize].number
    }

    fn value(&self, slot: u32) -> &T {
        let value = self.slots[slot as usize].value.as_ref();
        value.expect("a slot in a list is used")
    }

    fn value_mut(&mut self, slot: u32) -> &mut T {
        let value = self.slots[slot as usize].value.as_mut();
        value.expect("a slot in a list is used")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// MPI libraries ignore the bits of their own protocol in every receive.
    const PROTOCOL: u64 = 0x3 << 62;
    const ANY_TAG: u64 = PROTOCOL | 0xffff_ffff;

    fn criteria(source: Option<u64>, tag: u64, ignore: u64) -> Criteria {
        Criteria {
            source,
            tag,
            ignore,
        }
    }

    fn queued<R, U>(posted: Posted<R, U>) -> Token {
        match posted {
            Posted::Queued(token) => token,
            Posted::Matched(..) => panic!("no message was kept"),
        }
    }

    #[test]
    fn receive_posted_first_takes_the_message_whatever_its_kind() {
        let mut matcher = Matcher::<u32, ()>::new();
        queued(matcher.post(criteria(None, 0, ANY_TAG), 1));
        queued(matcher.post(criteria(Some(5), 7, PROTOCOL), 2));
        queued(matcher.post(criteria(None, 7, 0), 3));
        assert_eq!(matcher.arrive(5, 7), Some(1));
        assert_eq!(matcher.arrive(5, 7 | 1 << 62), Some(2));
        assert_eq!(matcher.arrive(5, 7), Some(3));
        assert_eq!(matcher.arrive(5, 7), None);
    }

    #[test]
    fn receive_takes_the_message_that_came_first() {
        let mut matcher = Matcher::<(), u32>::new();
        matcher.keep(1, 7, 10);
        matcher.keep(2, 7, 20);
        matcher.keep(2, 8, 30);
        assert_eq!(matcher.peek(&criteria(Some(2), 0, ANY_TAG)), Some(&20));
        assert_eq!(matcher.claim(&criteria(Some(2), 8, 0)), Some(30));
        let posted = matcher.post(criteria(None, 7, PROTOCOL), ());
        assert_eq!(posted, Posted::Matched(10, ()));
        assert_eq!((matcher.unexpected_count(), matcher.waiting()), (1, 0));
    }

    #[test]
    fn receive_that_was_found_goes_on_waiting_until_it_is_withdrawn() {
        let mut matcher = Matcher::<u32, ()>::new();
        let token = queued(matcher.post(criteria(None, 0, 0), 3));
        for left in (0..3).rev() {
            assert_eq!(matcher.find(9, 0), Some(token));
            let room = matcher.receive_mut(token).expect("it waits");
            *room -= 1;
            assert_eq!(*room, left);
        }
        assert_eq!(matcher.withdraw(token), Some(0));
        assert_eq!(matcher.withdraw(token), None);
        assert_eq!(matcher.find(9, 0), None);
    }

    #[test]
    fn token_of_a_receive_that_is_gone_does_not_name_the_next_one_in_its_slot() {
        let mut matcher = Matcher::<u32, ()>::new();
        let gone = queued(matcher.post(criteria(None, 1, 0), 1));
        assert_eq!(matcher.arrive(0, 1), Some(1));
        queued(matcher.post(criteria(None, 1, 0), 2));
        assert_eq!(matcher.receive_mut(gone), None);
        assert_eq!(matcher.withdraw(gone), None);
        assert_eq!(matcher.cancel(|&receive| receive == 2), Some(2));
    }

    #[test]
    fn nothing_grows_while_as_many_wait_as_before() {
        let mut matcher = Matcher::<u64, u64>::new();
        let round = |matcher: &mut Matcher<u64, u64>, first: u64| {
            for tag in first..first + 200 {
                queued(matcher.post(criteria(Some(1), tag, PROTOCOL), tag));
                matcher.keep(2, tag, tag);
            }
            for tag in first..first + 200 {
                assert_eq!(matcher.arrive(1, tag), Some(tag));
                assert_eq!(matcher.claim(&criteria(Some(2), tag, 0)), Some(tag));
            }
        };
        round(&mut matcher, 0);
        let sizes = |matcher: &Matcher<u64, u64>| {
            let (expected, unexpected) = (&matcher.expected, &matcher.unexpected);
            let of = (expected.slots.capacity(), expected.ends.len());
            (of, unexpected.slots.capacity(), unexpected.ends.len())
        };
        let before = sizes(&matcher);
        for turn in 1..50 {
            round(&mut matcher, turn * 1000);
        }
        assert_eq!(sizes(&matcher), before);
    }

    #[test]
    fn tags_and_sources_that_count_up_spread_over_the_lists() {
        let mut matcher = Matcher::<(), u64>::new();
        for source in 0..32 {
            for tag in 0..32 {
                matcher.keep(source, tag << 32 | 5, 0);
            }
        }
        let table = &matcher.unexpected;
        let longest = (NAMED..NAMED + table.hashed()).map(|list| table.walk(list, 1).count());
        assert!(longest.max() < Some(16));
    }

    /// Two lists that are searched from the front.
    #[derive(Default)]
    struct Model {
        expected: Vec<(Criteria, u32)>,
        unexpected: Vec<(u64, u64, u32)>,
    }

    impl Model {
        fn claim(&mut self, criteria: &Criteria) -> Option<u32> {
            let at = self.at(criteria)?;
            Some(self.unexpected.remove(at).2)
        }

        fn at(&self, criteria: &Criteria) -> Option<usize> {
            let mut messages = self.unexpected.iter();
            messages.position(|&(source, tag, _)| criteria.matches(source, tag))
        }

        fn arrive(&mut self, source: u64, tag: u64) -> Option<u32> {
            let mut expected = self.expected.iter();
            let at = expected.position(|(criteria, _)| criteria.matches(source, tag))?;
            Some(self.expected.remove(at).1)
        }

        fn cancel(&mut self, receive: u32) -> Option<u32> {
            let mut expected = self.expected.iter();
            let at = expected.position(|&(_, posted)| posted == receive)?;
            Some(self.expected.remove(at).1)
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Post(Criteria),
        Arrive(u64, u64),
        Peek(Criteria),
        Claim(Criteria),
        /// Cancels one of the receives posted so far, by its identifier.
        Cancel(prop::sample::Index),
        /// Cancels one by its token.
        Withdraw(prop::sample::Index),
    }

    fn tags() -> impl Strategy<Value = u64> {
        (0..4u64, 0..3u64, 0..4u64)
            .prop_map(|(low, context, bits)| bits << 62 | context << 32 | low)
    }

    fn any_criteria() -> impl Strategy<Value = Criteria> {
        let ignore = prop_oneof![
            4 => Just(PROTOCOL),
            2 => Just(0),
            2 => Just(ANY_TAG),
            1 => Just(u64::MAX),
            1 => Just(1),
            1 => Just(0x3ff << 30),
        ];
        (prop::option::weighted(0.7, 0..5u64), tags(), ignore)
            .prop_map(|(source, tag, ignore)| criteria(source, tag, ignore))
    }

    fn steps() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => any_criteria().prop_map(Step::Post),
            8 => (0..5u64, tags()).prop_map(|(source, tag)| Step::Arrive(source, tag)),
            2 => any_criteria().prop_map(Step::Peek),
            1 => any_criteria().prop_map(Step::Claim),
            1 => any::<prop::sample::Index>().prop_map(Step::Cancel),
            1 => any::<prop::sample::Index>().prop_map(Step::Withdraw),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn matcher_decides_as_two_plain_lists_do(steps in prop::collection::vec(steps(), 1..400)) {
            let (mut matcher, mut model) = (Matcher::<u32, u32>::new(), Model::default());
            let mut tokens = Vec::new();
            for (name, step) in (0u32..).zip(steps) {
                match step {
                    Step::Post(criteria) => match (matcher.post(criteria, name), model.claim(&criteria)) {
                        (Posted::Matched(message, receive), claimed) => {
                            prop_assert_eq!(receive, name);
                            prop_assert_eq!(Some(message), claimed);
                        }
                        (Posted::Queued(token), claimed) => {
                            prop_assert_eq!(claimed, None);
                            model.expected.push((criteria, name));
                            tokens.push((token, name));
                        }
                    },
                    Step::Arrive(source, tag) => {
                        let taken = model.arrive(source, tag);
                        prop_assert_eq!(matcher.arrive(source, tag), taken);
                        if taken.is_none() {
                            matcher.keep(source, tag, name);
                            model.unexpected.push((source, tag, name));
                        }
                    }
                    Step::Peek(criteria) => {
                        let seen = model.at(&criteria).map(|at| &model.unexpected[at].2);
                        prop_assert_eq!(matcher.peek(&criteria), seen);
                    }
                    Step::Claim(criteria) => {
                        prop_assert_eq!(matcher.claim(&criteria), model.claim(&criteria));
                    }
                    Step::Cancel(index) if !tokens.is_empty() => {
                        let receive = index.get(&tokens).1;
                        let cancelled = matcher.cancel(|&posted| posted == receive);
                        prop_assert_eq!(cancelled, model.cancel(receive));
                    }
                    Step::Withdraw(index) if !tokens.is_empty() => {
                        let &(token, receive) = index.get(&tokens);
                        prop_assert_eq!(matcher.withdraw(token), model.cancel(receive));
                    }
                    Step::Cancel(_) | Step::Withdraw(_) => {}
                }
                prop_assert_eq!(matcher.waiting(), model.expected.len());
                prop_assert_eq!(matcher.unexpected_count(), model.unexpected.len());
            }
        }
    }
}
