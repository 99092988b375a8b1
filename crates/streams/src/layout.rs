//! Layouts: the distribution of the bytes of a stream over ranks.

use serde::{Deserialize, Serialize};

/// Bytes of a stream that are contiguous in one rank's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Rank that has the piece.
    pub rank: u32,
    /// Start of the bytes in the stream.
    pub offset: u64,
    /// Start of the bytes in the rank's part.
    pub local: u64,
    /// The number of bytes.
    pub length: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Kind {
    /// Blocks of `block` bytes, given to the ranks in turn.
    BlockCyclic { block: u64 },
    /// Records of `record` bytes, with the rank of each.
    ByKey { record: u64, owners: Vec<u32> },
}

/// How the bytes of a transfer are distributed over ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    ranks: u32,
    kind: Kind,
}

impl Layout {
    /// One contiguous part of `total` bytes for each rank. The last part may be shorter.
    #[must_use]
    pub fn block(ranks: u32, total: u64) -> Layout {
        Layout::block_cyclic(ranks, total.div_ceil(u64::from(ranks.max(1))))
    }

    /// Elements of `element` bytes, given to the ranks one by one.
    #[must_use]
    pub fn cyclic(ranks: u32, element: u64) -> Layout {
        Layout::block_cyclic(ranks, element)
    }

    /// Blocks of `block` bytes, given to the ranks in turn.
    #[must_use]
    pub fn block_cyclic(ranks: u32, block: u64) -> Layout {
        Layout {
            ranks: ranks.max(1),
            kind: Kind::BlockCyclic {
                block: block.max(1),
            },
        }
    }

    /// Records of `record` bytes, each with its rank in `owners`. All ranks know this list.
    #[must_use]
    pub fn by_key(ranks: u32, record: u64, owners: Vec<u32>) -> Layout {
        let record = record.max(1);
        Layout {
            ranks: ranks.max(1),
            kind: Kind::ByKey { record, owners },
        }
    }

    /// The number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// True of a layout that the constructors can have made, with ranks that exist.
    pub(crate) fn is_valid(&self) -> bool {
        self.ranks > 0
            && match &self.kind {
                Kind::BlockCyclic { block } => *block > 0,
                Kind::ByKey { record, owners } => {
                    *record > 0 && owners.iter().all(|owner| *owner < self.ranks)
                }
            }
    }

    /// Why `total` bytes cannot be distributed like this; `None` if they can.
    #[must_use]
    pub fn error(&self, total: u64) -> Option<String> {
        let Kind::ByKey { record, owners } = &self.kind else {
            return None;
        };
        if let Some(rank) = owners.iter().find(|rank| **rank >= self.ranks) {
            let ranks = self.ranks;
            return Some(format!(
                "a record belongs to rank {rank}, but there are {ranks} ranks"
            ));
        }
        let covered = (owners.len() as u64).saturating_mul(*record);
        (covered < total).then(|| {
            format!(
                "the list of owners covers {covered} of {total} bytes: give a rank for each record"
            )
        })
    }

    /// Size of a rank's part of `total` bytes.
    #[must_use]
    pub fn part(&self, rank: u32, total: u64) -> u64 {
        match &self.kind {
            Kind::BlockCyclic { block } => {
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
            Kind::ByKey { .. } => {
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

/// Iterates over the extents of a layout.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    offset: u64,
    /// Bytes of each rank's part so far.
    local: Vec<u64>,
}

impl Cursor {
    pub(crate) fn new(ranks: u32) -> Cursor {
        Cursor {
            offset: 0,
            local: vec![0; ranks as usize],
        }
    }

    /// The next extent of at most `max` bytes.
    pub(crate) fn next(&mut self, layout: &Layout, total: u64, max: u64) -> Option<Extent> {
        let offset = self.offset;
        if offset >= total {
            return None;
        }
        let (rank, end) = match &layout.kind {
            Kind::BlockCyclic { block } => {
                let number = offset / block;
                // If there is only one rank, the rest is contiguous.
                let end = match layout.ranks {
                    1 => total,
                    _ => (number + 1).saturating_mul(*block),
                };
                (u32::try_from(number % u64::from(layout.ranks)).ok()?, end)
            }
            Kind::ByKey { record, owners } => {
                let mut number = usize::try_from(offset / record).ok()?;
                let rank = *owners.get(number)?;
                while owners.get(number + 1) == Some(&rank)
                    && (number as u64 + 1) * record - offset < max
                {
                    number += 1;
                }
                (rank, (number as u64 + 1) * record)
            }
        };
        let length = (end.min(total) - offset).min(max);
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
        fn every_byte_belongs_to_one_rank_and_parts_have_no_gaps(
            layout in layouts(),
            total in 0_u64..500,
            max in 1_u64..100,
        ) {
            let mut cursor = Cursor::new(layout.ranks());
            let mut cut = Vec::new();
            while let Some(extent) = cursor.next(&layout, total, max) {
                prop_assert!(extent.length <= max);
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
    fn records_without_a_rank_are_an_error() {
        let layout = Layout::by_key(2, 10, vec![0, 1, 0]);
        assert_eq!(layout.error(30), None);
        assert!(layout.error(31).is_some());
        assert!(Layout::by_key(2, 10, vec![2]).error(5).is_some());
        assert_eq!(Layout::cyclic(3, 8).error(u64::MAX), None);
    }
}
