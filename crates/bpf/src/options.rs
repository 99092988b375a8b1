//! Options for opening a fast path.

/// Default size of a process's ring on each interface, in bytes.
pub const DEFAULT_RING_BYTES: u32 = 1 << 20;
/// Bounds of a ring's size, in bytes.
pub const RING_BYTES: std::ops::RangeInclusive<u32> = 64 << 10..=256 << 20;

/// Longest run of full bulk frames to one destination that is cheaper as raw frames than as one
/// message of the socket. (`docs/design/bpf.md`: one frame takes 2.5 us raw and 3.6 us through the
/// socket; two take 5.1 and 4.1 us.)
pub const DEFAULT_RAW_RUN_FRAMES: usize = 1;

/// How small packets are received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxMode {
    /// A ring that is filled at TCX, or at generic XDP where the kernel has no TCX.
    #[default]
    Ring,
    /// A ring that is filled at generic XDP.
    XdpRing,
    /// An AF_XDP socket, which takes the interface's first queue.
    AfXdp,
}

/// How raw frames are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TxMode {
    /// AF_PACKET, bypassing the queueing discipline.
    #[default]
    AfPacket,
    /// An AF_XDP socket, copied, which takes the interface's first queue.
    AfXdp,
}

/// The word for it in configurations.
impl std::str::FromStr for RxMode {
    type Err = ();

    fn from_str(text: &str) -> Result<RxMode, ()> {
        match text {
            "ring" => Ok(RxMode::Ring),
            "xdp-ring" => Ok(RxMode::XdpRing),
            "af-xdp" => Ok(RxMode::AfXdp),
            _ => Err(()),
        }
    }
}

/// The word for it in configurations.
impl std::str::FromStr for TxMode {
    type Err = ();

    fn from_str(text: &str) -> Result<TxMode, ()> {
        match text {
            "af-packet" => Ok(TxMode::AfPacket),
            "af-xdp" => Ok(TxMode::AfXdp),
            _ => Err(()),
        }
    }
}

/// How to open a fast path. The defaults were the fastest on every machine measured so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BpfOptions {
    /// Bytes of the ring: a power of two within [`RING_BYTES`].
    pub ring_bytes: u32,
    /// How small packets are received.
    pub receive: RxMode,
    /// How raw frames are sent.
    pub send: TxMode,
    /// The longest run of bulk frames to one destination that leaves as raw frames.
    pub raw_run_frames: usize,
}

impl Default for BpfOptions {
    fn default() -> Self {
        BpfOptions {
            ring_bytes: DEFAULT_RING_BYTES,
            receive: RxMode::default(),
            send: TxMode::default(),
            raw_run_frames: DEFAULT_RAW_RUN_FRAMES,
        }
    }
}
