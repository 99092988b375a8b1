//! Rules of BSPlib that a program can break.

use thiserror::Error;

/// A rule that the calling program has broken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Misuse {
    /// A rank that is none.
    #[error("there is no rank {rank}: this program has {size}")]
    NoSuchRank {
        /// As given; negative ones as they were.
        rank: i64,
        /// How many there are.
        size: u32,
    },
    /// A number that must not be negative.
    #[error("{what} must not be negative: {value}")]
    Negative {
        /// Which.
        what: &'static str,
        /// As given.
        value: i64,
    },
    /// A pointer that must lead somewhere.
    #[error("{0} must not be NULL")]
    Null(&'static str),
    /// A handle that nobody registered.
    #[error(
        "the address {address:#x} is not registered here: register it with bsp_push_reg and bsp_sync, \
         and give the address itself, not one inside the area"
    )]
    NotRegistered {
        /// As given.
        address: u64,
    },
    /// A handle that will be registered only from the next superstep on.
    #[error(
        "the address {address:#x} has been registered in this superstep only, which takes effect after the next bsp_sync"
    )]
    NotYetRegistered {
        /// As given.
        address: u64,
    },
    /// The other rank has registered NULL.
    #[error("rank {rank} holds no part of this area: it has registered NULL")]
    NoPart {
        /// Which.
        rank: u32,
    },
    /// Beyond what the other rank has registered.
    #[error(
        "{bytes} bytes at offset {offset} reach beyond the {registered} bytes that rank {rank} has registered"
    )]
    OutOfBounds {
        /// Whose.
        rank: u32,
        /// From where.
        offset: u64,
        /// How many.
        bytes: u64,
        /// How many there are.
        registered: u64,
    },
    /// NULL with a size.
    #[error("NULL can be registered with size 0 only, not {bytes}")]
    NullWithSize {
        /// As given.
        bytes: u64,
    },
    /// A pop of an address that has not been pushed.
    #[error("the address {address:#x} has not been pushed, or has been popped already")]
    NeverPushed {
        /// As given.
        address: u64,
    },
    /// A number of ranks below one.
    #[error("a program needs at least one rank, not {most}")]
    NoRanks {
        /// As given.
        most: i64,
    },
    /// A tag of another length than tags have.
    #[error(
        "a tag of {given} bytes, where tags have {set}: set_tag_size counts from the next superstep on"
    )]
    TagSize {
        /// As given.
        given: u64,
        /// As set.
        set: u64,
    },
    /// There is no message to move.
    #[error("the queue is empty: ask bsp_qsize or bsp_get_tag before")]
    EmptyQueue,
    /// A rule of a library that stands on this one.
    #[error("{0}")]
    Rule(String),
    /// Two ranks did not do the same in a superstep.
    #[error("{one}, but {other}: all ranks must do the same in a superstep")]
    Disagree {
        /// The rank that says so; all find it out.
        speaker: u32,
        /// What one has done.
        one: String,
        /// What another has done.
        other: String,
    },
}
