//! Errors of reshuffles.

/// Invalid arguments. Nothing has been changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReshuffleError {
    /// Lists that belong together differ in length.
    #[error(
        "{extents} extents, {processes} numbers of processes and {blocks} block sizes: give one of \
         each for every dimension"
    )]
    Dimensions {
        /// Number of extents.
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
        /// Processes along it.
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
        /// The first one's.
        from: Vec<usize>,
        /// The second one's.
        to: Vec<usize>,
    },
    /// Memory of the wrong size.
    #[error("rank {rank}: {what} has {found} elements, not {wanted}")]
    Memory {
        /// The rank.
        rank: u32,
        /// The kind of memory.
        what: &'static str,
        /// Its elements.
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
