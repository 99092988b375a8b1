//! Rules of BSPlib that a program can break.

use thiserror::Error;

/// A rule that the program has broken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Misuse {
    /// The rank does not exist.
    #[error("rank {rank} does not exist: this program has {size} ranks")]
    NoSuchRank {
        /// The rank given; it may be negative.
        rank: i64,
        /// The number of ranks.
        size: u32,
    },
    /// A negative number where only 0 and positive ones are valid.
    #[error("{what} must not be negative: {value}")]
    Negative {
        /// Name of the argument.
        what: &'static str,
        /// Value of the argument.
        value: i64,
    },
    /// A NULL pointer where an address is needed.
    #[error("{0} must not be NULL")]
    Null(&'static str),
    /// The address is not registered.
    #[error(
        "the address {address:#x} is not registered here: register it with bsp_push_reg and bsp_sync, \
         and give the address itself, not one inside the area"
    )]
    NotRegistered {
        /// The address in the call.
        address: u64,
    },
    /// The registration of the address takes effect in the next superstep.
    #[error(
        "the address {address:#x} has been registered in this superstep only, which takes effect after the next bsp_sync"
    )]
    NotYetRegistered {
        /// The address in the call.
        address: u64,
    },
    /// The other rank has registered NULL for this area.
    #[error("rank {rank} holds no part of this area: it has registered NULL")]
    NoPart {
        /// The rank without a part.
        rank: u32,
    },
    /// The bytes exceed what the other rank has registered.
    #[error(
        "{bytes} bytes at offset {offset} reach beyond the {registered} bytes that rank {rank} has registered"
    )]
    OutOfBounds {
        /// The rank that owns the memory.
        rank: u32,
        /// Where the bytes begin in its part.
        offset: u64,
        /// The number of bytes.
        bytes: u64,
        /// The number of bytes registered.
        registered: u64,
    },
    /// NULL was registered with a size other than 0.
    #[error("NULL can be registered with size 0 only, not {bytes}")]
    NullWithSize {
        /// The size in the call.
        bytes: u64,
    },
    /// The address of a pop is not registered.
    #[error("the address {address:#x} has not been pushed, or has been popped already")]
    NeverPushed {
        /// The address in the call.
        address: u64,
    },
    /// The maximum number of ranks is not positive.
    #[error("a program needs at least one rank, not {max}")]
    NoRanks {
        /// The maximum in the call.
        max: i64,
    },
    /// The tag does not have the current tag size.
    #[error(
        "a tag of {given} bytes, but tags have {set}: set_tag_size takes effect in the next superstep"
    )]
    TagSize {
        /// Bytes of the tag in the call.
        given: u64,
        /// The current tag size.
        set: u64,
    },
    /// A move from an empty queue.
    #[error("the queue is empty: call bsp_qsize or bsp_get_tag before")]
    EmptyQueue,
    /// A checkpoint was requested, but the launcher has given no folder.
    #[error(
        "the job was started without a place for checkpoints: start it with dipole run \
         --checkpoint-every or --checkpoint-dir"
    )]
    NoCheckpoints,
    /// A rule of a library built on this one was broken.
    #[error("{0}")]
    Rule(String),
    /// Two ranks did not make the same collective calls in a superstep.
    #[error("{one}, but {other}: all ranks must do the same in a superstep")]
    Disagree {
        /// The rank that reports this; all ranks detect it.
        reporter: u32,
        /// The calls of one rank.
        one: String,
        /// The calls of another rank.
        other: String,
    },
}
