//! Which rank has which bytes of a stream.

/// Bytes of a stream that lie behind each other in one rank's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Whose.
    pub rank: u32,
    /// Where in the stream.
    pub offset: u64,
    /// Where in the rank's part.
    pub local: u64,
    /// How many.
    pub length: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Blocks of so many bytes in turn.
    InTurn { block: u64 },
    /// The rank of each record.
    Owners { record: u64, owners: Vec<u32> },
}

/// How the bytes of a transfer are dealt out to ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub(crate) ranks: u32,
    pub(crate) kind: Kind,
}

impl Layout {
    /// One part each, of `total` bytes: the last may be shorter.
    #[must_use]
    pub fn block(ranks: u32, total: u64) -> Layout {
        Layout::block_cyclic(ranks, total.div_ceil(u64::from(ranks.max(1))))
    }

    /// Elements of so many bytes one by one.
    #[must_use]
    pub fn cyclic(ranks: u32, element: u64) -> Layout {
        Layout::block_cyclic(ranks, element)
    }

    /// Blocks of so many bytes in turn.
    #[must_use]
    pub fn block_cyclic(ranks: u32, block: u64) -> Layout {
        Layout {
            ranks: ranks.max(1),
            kind: Kind::InTurn {
                block: block.max(1),
            },
        }
    }

    /// Records of so many bytes by a key: the rank of each, which all ranks know.
    #[must_use]
    pub fn by_key(ranks: u32, record: u64, owners: Vec<u32>) -> Layout {
        let record = record.max(1);
        Layout {
            ranks: ranks.max(1),
            kind: Kind::Owners { record, owners },
        }
    }

    /// Ranks among which it deals out.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Why so many bytes cannot be dealt out so, if they cannot.
    #[must_use]
    pub fn why_not(&self, total: u64) -> Option<String> {
        let Kind::Owners { record, owners } = &self.kind else {
            return None;
        };
        if let Some(rank) = owners.iter().find(|rank| **rank >= self.ranks) {
            return Some(format!(
                "a record is rank {rank}'s, and there are {}",
                self.ranks
            ));
        }
        let known = (owners.len() as u64).saturating_mul(*record);
        (known < total).then(|| {
            format!(
                "{total} bytes, and the ranks of {known} bytes are given: give one for each record"
            )
        })
    }

    /// Bytes of a rank's part, of `total`.
    #[must_use]
    pub fn part(&self, rank: u32, total: u64) -> u64 {
        match &self.kind {
            Kind::InTurn { block } => {
                let (blocks, rest) = (total / block, total % block);
                let (ranks, rank) = (u64::from(self.ranks), u64::from(rank));
                if rank >= ranks {
                    return 0;
                }
                let (each, last) = (blocks / ranks, blocks % ranks);
                let more = match rank.cmp(&last) {
                    std::cmp::Ordering::Less => *block,
                    std::cmp::Ordering::Equal => rest,
                    std::cmp::Ordering::Greater => 0,
                };
                each * block + more
            }
            Kind::Owners { .. } => {
                let own = self.extents(total).filter(|extent| extent.rank == rank);
                own.map(|extent| extent.length).sum()
            }
        }
    }

    /// All extents of `total` bytes, in the order of the stream.
    pub fn extents(&self, total: u64) -> impl Iterator<Item = Extent> + '_ {
        Cursor::new(self.ranks).over(self, total)
    }
}

/// Goes through a layout, which it does not keep.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    offset: u64,
    /// Bytes passed of each rank's part.
    local: Vec<u64>,
}

impl Cursor {
    pub(crate) fn new(ranks: u32) -> Cursor {
        Cursor {
            offset: 0,
            local: vec![0; ranks as usize],
        }
    }

    /// The next extent, of at most so many bytes.
    pub(crate) fn next(&mut self, layout: &Layout, total: u64, most: u64) -> Option<Extent> {
        let offset = self.offset;
        if offset >= total {
            return None;
        }
        let (rank, end) = match &layout.kind {
            Kind::InTurn { block } => {
                let number = offset / block;
                // One rank has all the rest in a row.
                let end = match layout.ranks {
                    1 => total,
                    _ => (number + 1).saturating_mul(*block),
                };
                (u32::try_from(number % u64::from(layout.ranks)).ok()?, end)
            }
            Kind::Owners { record, owners } => {
                let mut number = usize::try_from(offset / record).ok()?;
                let rank = *owners.get(number)?;
                while owners.get(number + 1) == Some(&rank)
                    && (number as u64 + 1) * record - offset < most
                {
                    number += 1;
                }
                (rank, (number as u64 + 1) * record)
            }
        };
        let length = (end.min(total) - offset).min(most);
        let local = self.local.get_mut(rank as usize)?;
        let extent = Extent {
            rank,
            offset,
            local: *local,
            length,
        };
        *local += length;
        self.offset += length;
        Some(extent)
    }

    fn over(mut self, layout: &Layout, total: u64) -> impl Iterator<Item = Extent> + '_ {
        std::iter::from_fn(move || self.next(layout, total, u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layouts() -> impl Strategy<Value = Layout> {
        prop_oneof![
            (1_u32..6, 1_u64..50).prop_map(|(ranks, block)| Layout::block_cyclic(ranks, block)),
            (1_u32..6, 0_u64..500).prop_map(|(ranks, total)| Layout::block(ranks, total)),
            (
                1_u32..6,
                1_u64..9,
                proptest::collection::vec(any::<u32>(), 500)
            )
                .prop_map(|(ranks, record, keys)| {
                    let owners = keys.into_iter().map(|key| key % ranks).collect();
                    Layout::by_key(ranks, record, owners)
                }),
        ]
    }

    proptest! {
        #[test]
        fn every_byte_is_somebodys_once_and_parts_have_no_gaps(
            layout in layouts(),
            total in 0_u64..500,
            most in 1_u64..100,
        ) {
            let mut cursor = Cursor::new(layout.ranks());
            let mut cut = Vec::new();
            while let Some(extent) = cursor.next(&layout, total, most) {
                prop_assert!(extent.length <= most);
                cut.push(extent);
            }
            let whole: Vec<Extent> = layout.extents(total).collect();
            for extents in [&cut, &whole] {
                let mut at = 0;
                let mut parts = vec![0; layout.ranks() as usize];
                for extent in extents {
                    prop_assert!(extent.length > 0);
                    prop_assert_eq!(extent.offset, at);
                    prop_assert_eq!(extent.local, parts[extent.rank as usize]);
                    parts[extent.rank as usize] += extent.length;
                    at += extent.length;
                }
                prop_assert_eq!(at, total);
                for (rank, part) in (0..).zip(&parts) {
                    prop_assert_eq!(layout.part(rank, total), *part);
                }
            }
        }
    }

    #[test]
    fn records_without_a_rank_are_told() {
        let layout = Layout::by_key(2, 10, vec![0, 1, 0]);
        assert_eq!(layout.why_not(30), None);
        assert!(layout.why_not(31).is_some());
        assert!(Layout::by_key(2, 10, vec![2]).why_not(5).is_some());
        assert_eq!(Layout::cyclic(3, 8).why_not(u64::MAX), None);
    }
}
