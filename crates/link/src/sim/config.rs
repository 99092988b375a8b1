//! Configuration of the simulated network; all of it may change during a run.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::BusConfig;

/// Burst loss (Gilbert-Elliott model): a path is in a good or a bad state and may change it with
/// every frame.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bursts {
    /// Probability per frame that a good path turns bad; 0 disables bursts.
    pub begin: f64,
    /// Probability per frame that a bad path turns good.
    pub end: f64,
    /// Probability that a frame is lost while the path is bad.
    pub loss: f64,
}

/// One direction between two addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathConfig {
    /// Delay of every frame.
    pub latency_ns: u64,
    /// Maximum additional random delay; frames stay in order.
    pub jitter_ns: u64,
    /// Probability that a frame is lost.
    pub loss: f64,
    /// Losses in bursts, in addition to random losses.
    pub bursts: Bursts,
    /// Probability that a frame arrives twice.
    pub duplicate: f64,
    /// Probability that later frames overtake a frame.
    pub reorder: f64,
    /// Maximum extra delay of an overtaken frame.
    pub reorder_ns: u64,
    /// Probability that a frame is damaged: bits flipped or the end cut off.
    pub corrupt: f64,
    /// Maximum bits flipped by one corruption.
    pub corrupt_bits: u32,
}

/// Configuration of the whole network.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkConfig {
    /// Longest frame that interfaces take; longer ones are refused.
    pub max_frame_bytes: usize,
    /// Longest frame that the switch forwards; it silently drops longer ones.
    pub switch_frame_bytes: usize,
    /// Speed of every interface in each direction, or of the bus; 0 for unlimited.
    pub bytes_per_second: u64,
    /// Connects everything by a bus of that speed instead of a switch; fixed when the network is
    /// created.
    pub bus: Option<BusConfig>,
    /// Transmit queue of an interface in bytes; `send` takes no more when it is full.
    pub transmit_queue_bytes: u64,
    /// Queue of the switch for one interface in bytes; it drops frames when the queue is full.
    pub switch_queue_bytes: u64,
    /// Receive queue of a socket in frames; more are dropped.
    pub receive_queue_frames: usize,
    /// Probability that a small frame is delivered joined to the one before it, where a kernel
    /// may join them: from one sender and of one length, except for a shorter last frame.
    pub join: f64,
    /// Sockets drop damaged frames, as a kernel does that checks UDP's checksum.
    pub checks_frames: bool,
    /// Path between addresses that are not in [`paths`](Self::paths).
    pub path: PathConfig,
    /// Paths by sender and receiver.
    pub paths: BTreeMap<(IpAddr, IpAddr), PathConfig>,
    /// Sender and receiver pairs that are cut off in this direction.
    pub cuts: BTreeSet<(IpAddr, IpAddr)>,
    /// Interfaces that are dead in both directions.
    pub dead_interfaces: BTreeSet<IpAddr>,
}

impl Default for NetworkConfig {
    /// 25 Gbit/s, 5 us, no faults except overflow.
    fn default() -> Self {
        NetworkConfig {
            max_frame_bytes: 1472,
            switch_frame_bytes: usize::MAX,
            bytes_per_second: 3_125_000_000,
            bus: None,
            transmit_queue_bytes: 1 << 20,
            switch_queue_bytes: 1 << 20,
            receive_queue_frames: 1024,
            join: 0.0,
            checks_frames: false,
            path: PathConfig {
                latency_ns: 5_000,
                corrupt_bits: 3,
                ..PathConfig::default()
            },
            paths: BTreeMap::new(),
            cuts: BTreeSet::new(),
            dead_interfaces: BTreeSet::new(),
        }
    }
}

impl NetworkConfig {
    /// Cuts the direction from `from` to `to`.
    pub fn cut(&mut self, from: IpAddr, to: IpAddr) {
        self.cuts.insert((from, to));
    }

    /// Cuts both directions between every address in `these` and every address in `those`.
    pub fn partition(&mut self, these: &[IpAddr], those: &[IpAddr]) {
        for &this in these {
            for &that in those {
                self.cuts.insert((this, that));
                self.cuts.insert((that, this));
            }
        }
    }

    /// Removes all cuts and partitions.
    pub fn heal(&mut self) {
        self.cuts.clear();
    }

    /// Disables or enables an interface.
    pub fn set_interface(&mut self, ip: IpAddr, alive: bool) {
        if alive {
            self.dead_interfaces.remove(&ip);
        } else {
            self.dead_interfaces.insert(ip);
        }
    }

    pub(super) fn path_between(&self, from: IpAddr, to: IpAddr) -> &PathConfig {
        self.paths.get(&(from, to)).unwrap_or(&self.path)
    }

    pub(super) fn is_cut(&self, from: IpAddr, to: IpAddr) -> bool {
        self.cuts.contains(&(from, to))
    }

    pub(super) fn is_dead(&self, ip: IpAddr) -> bool {
        self.dead_interfaces.contains(&ip)
    }

    /// Transmission time of a frame.
    pub(super) fn wire_ns(&self, bytes: usize) -> u64 {
        // Includes Ethernet, IP and UDP headers, gap and preamble.
        let bytes = bytes as u64 + 66;
        bytes
            .saturating_mul(1_000_000_000)
            .checked_div(self.bytes_per_second)
            .unwrap_or(0)
    }

    /// Bytes that an interface transmits in this time.
    pub(super) fn wire_bytes(&self, time_ns: u64) -> u64 {
        let bytes = u128::from(time_ns) * u128::from(self.bytes_per_second) / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}
