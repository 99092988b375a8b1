//! Options for opening a fast path.

/// Default size of a process's ring on each interface, in bytes.
pub const DEFAULT_RING_BYTES: u32 = 1 << 20;
/// Bounds of a ring's size, in bytes.
pub const RING_BYTES: std::ops::RangeInclusive<u32> = 64 << 10..=256 << 20;

/// Longest run of full bulk frames to one destination that is cheaper as raw frames than as one
/// message of the socket. (`docs/design/bpf.md`: one frame takes 2.5 us raw and 3.6 us through the
/// socket; two take 5.1 and 4.1 us.)
pub const DEFAULT_RAW_RUN_FRAMES: usize = 1;

/// How to open a fast path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BpfOptions {
    /// Bytes of the ring: a power of two within [`RING_BYTES`].
    pub ring_bytes: u32,
    /// The longest run of bulk frames to one destination that leaves as raw frames.
    pub raw_run_frames: usize,
}

impl Default for BpfOptions {
    fn default() -> Self {
        BpfOptions {
            ring_bytes: DEFAULT_RING_BYTES,
            raw_run_frames: DEFAULT_RAW_RUN_FRAMES,
        }
    }
}
