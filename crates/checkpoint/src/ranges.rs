//! Sets of addresses.

/// Ranges that are in order and neither touch nor overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    list: Vec<(u64, u64)>,
}

impl FromIterator<(u64, u64)> for Ranges {
    /// The union of ranges in any order: first address, and address behind the last one.
    fn from_iter<T: IntoIterator<Item = (u64, u64)>>(ranges: T) -> Ranges {
        let mut given: Vec<(u64, u64)> = ranges.into_iter().collect();
        given.sort_unstable();
        let mut list: Vec<(u64, u64)> = Vec::with_capacity(given.len());
        for (start, end) in given.into_iter().filter(|(start, end)| start < end) {
            match list.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => list.push((start, end)),
            }
        }
        Ranges { list }
    }
}

impl Ranges {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.list.iter().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether this address is in a range, and up to which address that is so.
    pub(crate) fn at(&self, address: u64) -> (bool, u64) {
        let next = self.list.partition_point(|(_, end)| *end <= address);
        match self.list.get(next) {
            Some((start, end)) if *start <= address => (true, *end),
            Some((start, _)) => (false, *start),
            None => (false, u64::MAX),
        }
    }

    /// Addresses that are in both.
    pub(crate) fn intersect(&self, other: &Ranges) -> Ranges {
        self.overlaps(other).collect()
    }

    fn overlaps(&self, other: &Ranges) -> impl Iterator<Item = (u64, u64)> {
        let (mut one, mut two) = (0, 0);
        std::iter::from_fn(move || {
            loop {
                let ((start, end), (first, last)) = (*self.list.get(one)?, *other.list.get(two)?);
                match end <= last {
                    true => one += 1,
                    false => two += 1,
                }
                let both = (start.max(first), end.min(last));
                if both.0 < both.1 {
                    return Some(both);
                }
            }
        })
    }

    /// Addresses that are in this one only.
    pub(crate) fn without(&self, other: &Ranges) -> Ranges {
        let mut list = Vec::with_capacity(self.list.len());
        for (mut start, end) in self.iter() {
            while start < end {
                let (is_removed, until) = other.at(start);
                if !is_removed {
                    list.push((start, until.min(end)));
                }
                start = until;
            }
        }
        Ranges { list }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ranges() -> impl Strategy<Value = Vec<(u64, u64)>> {
        prop::collection::vec((0..40_u64, 0..40_u64), 0..8)
    }

    fn members(ranges: &Ranges) -> Vec<u64> {
        let is_member = |address: &u64| ranges.iter().any(|it| (it.0..it.1).contains(address));
        (0..50).filter(is_member).collect()
    }

    proptest! {
        #[test]
        fn ranges_are_sets(one in ranges(), two in ranges()) {
            let given = |list: &[(u64, u64)], at: u64| list.iter().any(|it| (it.0..it.1).contains(&at));
            let (a, b): (Ranges, Ranges) =
                (one.iter().copied().collect(), two.iter().copied().collect());
            let expected = |is: &dyn Fn(u64) -> bool| (0..50).filter(|at| is(*at)).collect::<Vec<_>>();
            prop_assert_eq!(members(&a), expected(&|at| given(&one, at)));
            let both = expected(&|at| given(&one, at) && given(&two, at));
            prop_assert_eq!(members(&a.intersect(&b)), both);
            let alone = expected(&|at| given(&one, at) && !given(&two, at));
            prop_assert_eq!(members(&a.without(&b)), alone);
            for at in 0..50 {
                let (is_in, until) = a.at(at);
                prop_assert!(until > at);
                prop_assert_eq!(is_in, given(&one, at));
                prop_assert!((at..until.min(50)).all(|it| given(&one, it) == is_in));
            }
            for pair in a.list.windows(2) {
                prop_assert!(pair[0].1 < pair[1].0);
            }
        }
    }
}
