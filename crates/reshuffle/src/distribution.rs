//! Block-cyclic distributions: the owner and the position of each element of an array.

use crate::error::ReshuffleError;

/// How the indices of one dimension are distributed: blocks of a fixed size in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dimension {
    pub(crate) extent: usize,
    pub(crate) processes: usize,
    pub(crate) block: usize,
}

impl Dimension {
    /// The process along this dimension that owns an index.
    #[must_use]
    pub fn owner(&self, index: usize) -> usize {
        index / self.block % self.processes
    }

    /// The position of an index among those of its owner.
    #[must_use]
    pub fn position(&self, index: usize) -> usize {
        let block = index / self.block;
        block / self.processes * self.block + index % self.block
    }

    /// The index at a position of the process at `coordinate`: the reverse of
    /// [`position`](Self::position).
    #[must_use]
    pub fn index(&self, coordinate: usize, position: usize) -> usize {
        let block = position / self.block * self.processes + coordinate;
        block * self.block + position % self.block
    }

    /// The number of indices of the process at `coordinate`.
    #[must_use]
    pub fn part(&self, coordinate: usize) -> usize {
        let (blocks, rest) = (self.extent / self.block, self.extent % self.block);
        let (each, last) = (blocks / self.processes, blocks % self.processes);
        let more = match coordinate.cmp(&last) {
            std::cmp::Ordering::Less => self.block,
            std::cmp::Ordering::Equal => rest,
            std::cmp::Ordering::Greater => 0,
        };
        each * self.block + more
    }
}

/// An array over a grid of processes. Ranks are numbered like the elements of an array with the grid's
/// shape: the last coordinate changes fastest. The elements of a process's part have the same order, and
/// are in its memory without gaps. Ranks beyond the grid have no elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    dimensions: Vec<Dimension>,
    ranks: u32,
}

impl Distribution {
    /// A distribution of an array with these extents in elements, over `processes` along each dimension
    /// in blocks of `blocks` indices in turn. A block of `extent.div_ceil(processes)` or more gives each
    /// process one contiguous part; a block of 1 distributes indices one by one.
    ///
    /// # Errors
    /// [`ReshuffleError::Dimensions`], [`ReshuffleError::Empty`], [`ReshuffleError::TooLarge`].
    pub fn new(
        extents: &[usize],
        processes: &[u32],
        blocks: &[usize],
    ) -> Result<Distribution, ReshuffleError> {
        if extents.len() != processes.len() || extents.len() != blocks.len() {
            return Err(ReshuffleError::Dimensions {
                extents: extents.len(),
                processes: processes.len(),
                blocks: blocks.len(),
            });
        }
        let (mut ranks, mut elements, mut dimensions) = (1_u32, 1_usize, Vec::new());
        for (index, &extent) in extents.iter().enumerate() {
            let (along, block) = (processes[index], blocks[index]);
            if along == 0 || block == 0 {
                return Err(ReshuffleError::Empty {
                    dimension: index,
                    processes: along,
                    block,
                });
            }
            ranks = ranks.checked_mul(along).ok_or(ReshuffleError::TooLarge)?;
            // With an empty dimension, the number of elements must still not overflow.
            elements = (elements.checked_mul(extent.max(1))).ok_or(ReshuffleError::TooLarge)?;
            dimensions.push(Dimension {
                extent,
                processes: usize::try_from(along).map_err(|_| ReshuffleError::TooLarge)?,
                // A longer block has the same meaning, but could cause an overflow.
                block: block.min(extent.max(1)),
            });
        }
        if isize::try_from(elements).is_err() {
            return Err(ReshuffleError::TooLarge);
        }
        Ok(Distribution { dimensions, ranks })
    }

    /// The same distribution of an array with `units` units in place of each element.
    pub(crate) fn of_units(&self, units: usize) -> Result<Distribution, ReshuffleError> {
        let list = |part: fn(&Dimension) -> usize, last| {
            let parts = self.dimensions.iter().map(part);
            parts.chain([last]).collect::<Vec<usize>>()
        };
        let along = list(|it| it.processes, 1).into_iter();
        let along: Result<Vec<u32>, _> = along.map(u32::try_from).collect();
        Distribution::new(
            &list(|it| it.extent, units),
            &along.map_err(|_| ReshuffleError::TooLarge)?,
            &list(|it| it.block, units),
        )
    }

    /// The number of processes in the grid.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The dimensions, the slowest first.
    #[must_use]
    pub fn dimensions(&self) -> &[Dimension] {
        &self.dimensions
    }

    /// The extents of the array.
    #[must_use]
    pub fn extents(&self) -> Vec<usize> {
        self.dimensions.iter().map(|it| it.extent).collect()
    }

    /// The coordinates of a rank in the grid; `None` beyond it.
    pub(crate) fn coordinates(&self, rank: u32) -> Option<Vec<usize>> {
        let mut rest = rank as usize;
        let mut coordinates = vec![0; self.dimensions.len()];
        for (coordinate, it) in coordinates.iter_mut().zip(&self.dimensions).rev() {
            (*coordinate, rest) = (rest % it.processes, rest / it.processes);
        }
        (rank < self.ranks).then_some(coordinates)
    }

    /// The extents of a rank's part; `None` beyond the grid.
    #[must_use]
    pub fn part(&self, rank: u32) -> Option<Vec<usize>> {
        let coordinates = self.coordinates(rank)?;
        let each = self.dimensions.iter().zip(coordinates);
        Some(each.map(|(it, coordinate)| it.part(coordinate)).collect())
    }

    /// The indices of a rank's elements along each dimension, in the order of their positions; `None`
    /// beyond the grid.
    #[must_use]
    pub fn indices(&self, rank: u32) -> Option<Vec<Vec<usize>>> {
        let coordinates = self.coordinates(rank)?;
        let each = self.dimensions.iter().zip(coordinates);
        let indices = each.map(|(it, coordinate)| {
            let positions = 0..it.part(coordinate);
            positions.map(|at| it.index(coordinate, at)).collect()
        });
        Some(indices.collect())
    }

    /// The number of elements of a rank.
    #[must_use]
    pub fn elements(&self, rank: u32) -> usize {
        self.part(rank).map_or(0, |part| part.iter().product())
    }

    /// The owner of an element, and its position in that part; `None` if the element does not exist.
    #[must_use]
    pub fn find(&self, element: &[usize]) -> Option<(u32, usize)> {
        if element.len() != self.dimensions.len() {
            return None;
        }
        let (mut rank, mut position) = (0, 0);
        for (it, &index) in self.dimensions.iter().zip(element) {
            if index >= it.extent {
                return None;
            }
            let owner = it.owner(index);
            rank = rank * it.processes + owner;
            position = position * it.part(owner) + it.position(index);
        }
        u32::try_from(rank).ok().map(|rank| (rank, position))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_the_right_length_and_positions_have_no_gaps() {
        for (extent, processes, block) in [(0, 3, 2), (1, 3, 5), (17, 3, 2), (12, 3, 2), (9, 4, 1)]
        {
            let it = Distribution::new(&[extent], &[processes], &[block]).expect("valid");
            for rank in 0..processes {
                let own = (0..extent).filter_map(|index| it.find(&[index]));
                let positions: Vec<usize> = own.filter(|at| at.0 == rank).map(|at| at.1).collect();
                let wanted: Vec<usize> = (0..it.elements(rank)).collect();
                assert_eq!(positions, wanted, "{extent} {processes} {block}");
                let own: Vec<usize> = (0..extent)
                    .filter(|index| it.find(&[*index]).is_some_and(|at| at.0 == rank))
                    .collect();
                assert_eq!(it.indices(rank), Some(vec![own]));
            }
        }
    }

    #[test]
    fn invalid_arguments_are_refused_by_name() {
        let new = Distribution::new;
        let (extents, processes, blocks) = (1, 2, 1);
        let lists = ReshuffleError::Dimensions {
            extents,
            processes,
            blocks,
        };
        assert_eq!(new(&[5], &[1, 1], &[1]), Err(lists));
        let (dimension, processes, block) = (1, 2, 0);
        let empty = ReshuffleError::Empty {
            dimension,
            processes,
            block,
        };
        assert_eq!(new(&[5, 5], &[1, 2], &[1, 0]), Err(empty));
        assert_eq!(
            new(&[usize::MAX], &[1], &[1]),
            Err(ReshuffleError::TooLarge)
        );
        assert_eq!(
            new(&[0, 1 << 40, 1 << 40], &[1; 3], &[1; 3]),
            Err(ReshuffleError::TooLarge)
        );
        assert_eq!(
            new(&[9, 9], &[1 << 16; 2], &[1; 2]),
            Err(ReshuffleError::TooLarge)
        );
        let huge = new(&[7], &[u32::MAX], &[usize::MAX]).expect("blocks may be longer");
        assert_eq!((huge.elements(0), huge.elements(1)), (7, 0));
        assert_eq!((huge.find(&[7]), huge.find(&[1, 1])), (None, None));
    }
}
