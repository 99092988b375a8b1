//! Errors of planning and executing a reshuffle.

/// Invalid arguments. Nothing has been changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReshuffleError {
    /// Lists that belong together differ in length.
    #[error(
        "{extents} extents, {processes} numbers of processes and {blocks} block sizes: give one of \
         each for every dimension"
    )]
    Dimensions {
        /// Number of dimensions with an extent.
        extents: usize,
        /// Number of process counts.
        processes: usize,
        /// Number of block sizes.
        blocks: usize,
    },
    /// No processes, or empty blocks.
    #[error(
        "dimension {dimension} has {processes} processes and blocks of {block}: both must be at least 1"
    )]
    Empty {
        /// The dimension, counted from 0.
        dimension: usize,
        /// Number of processes along the dimension.
        processes: u32,
        /// Elements in a block.
        block: usize,
    },
    /// The number of elements or processes overflows.
    #[error(
        "the array or its grid of processes is too large: products of extents and of processes must fit 63 and 32 bits"
    )]
    TooLarge,
    /// The distributions have different extents.
    #[error("an array of {from:?} elements cannot become one of {to:?}: extents must be the same")]
    Extents {
        /// Extents of the first distribution.
        from: Vec<usize>,
        /// Extents of the second distribution.
        to: Vec<usize>,
    },
    /// Memory of the wrong size.
    #[error("rank {rank}: {what} has {found} elements, not {wanted}")]
    Memory {
        /// Rank that holds the memory.
        rank: u32,
        /// The kind of memory.
        what: &'static str,
        /// Elements that the memory has.
        found: usize,
        /// The elements that it needs.
        wanted: usize,
    },
    /// There are fewer processes than a distribution needs.
    #[error(
        "the distributions need {wanted} processes, but there are {found}: start more, or choose smaller grids"
    )]
    Processes {
        /// Processes in the larger grid.
        wanted: u32,
        /// Processes in the program.
        found: u32,
    },
}
