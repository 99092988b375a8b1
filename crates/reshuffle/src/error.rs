//! Why something cannot be reshuffled.

/// See the module. Whatever is refused has changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReshuffleError {
    /// Lists that belong together differ in length.
    #[error(
        "{extents} extents, {processes} numbers of processes and {blocks} block sizes: give one of \
         each for every dimension"
    )]
    Dimensions {
        /// Extents that were given.
        extents: usize,
        /// Numbers of processes.
        processes: usize,
        /// Block sizes.
        blocks: usize,
    },
    /// No processes, or blocks of nothing.
    #[error(
        "dimension {dimension} has {processes} processes and blocks of {block}: both must be at least 1"
    )]
    Empty {
        /// Which, from 0.
        dimension: usize,
        /// Processes along it.
        processes: u32,
        /// Elements of a block.
        block: usize,
    },
    /// Elements or processes cannot be counted.
    #[error(
        "the array or its grid of processes is too large: products of extents and of processes must fit 63 and 32 bits"
    )]
    TooLarge,
    /// Two distributions of different arrays.
    #[error("an array of {from:?} elements cannot become one of {to:?}: extents must be the same")]
    Extents {
        /// Of the one.
        from: Vec<usize>,
        /// Of the other.
        to: Vec<usize>,
    },
    /// Memory that is not a process's part.
    #[error("rank {rank}: {what} has {found} elements, not {wanted}")]
    Memory {
        /// Whose.
        rank: u32,
        /// Which memory.
        what: &'static str,
        /// Its length.
        found: usize,
        /// What the distribution says.
        wanted: usize,
    },
    /// There are fewer processes than a distribution wants.
    #[error(
        "the distributions want {wanted} processes, and there are {found}: start more, or choose smaller grids"
    )]
    Processes {
        /// Processes of the larger grid.
        wanted: u32,
        /// Those there are.
        found: u32,
    },
}
