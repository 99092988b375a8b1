//! What the simulated network is like; all of it may change during a run.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::BusConfig;

/// Loss in bursts (Gilbert and Elliott): a path is in a good or a bad state and
/// may change it with every frame.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bursts {
    /// Probability per frame that a good path turns bad; 0 for no bursts.
    pub begin: f64,
    /// Probability per frame that a bad path turns good.
    pub end: f64,
    /// Probability that a frame is lost while the path is bad.
    pub loss: f64,
}

/// One direction between two addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathConfig {
    /// Time every frame takes.
    pub latency_ns: u64,
    /// Up to this much more, at random; frames stay in order.
    pub jitter_ns: u64,
    /// Probability that a frame is lost.
    pub loss: f64,
    /// Loss in bursts, besides.
    pub bursts: Bursts,
    /// Probability that a frame arrives twice.
    pub duplicate: f64,
    /// Probability that a frame is overtaken by later ones.
    pub reorder: f64,
    /// How much later an overtaken frame arrives, at most.
    pub reorder_ns: u64,
    /// Probability that a frame is damaged: bits flipped or the end cut off.
    pub corrupt: f64,
    /// Bits that one damage flips at most.
    pub corrupt_bits: u32,
}

/// The whole network.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkConfig {
    /// Longest frame that interfaces take; longer ones are refused.
    pub max_frame_bytes: usize,
    /// Longest frame that the switch passes on; it drops longer ones without a word.
    pub switch_frame_bytes: usize,
    /// Speed of every interface, in each direction, or of the bus; 0 for no limit.
    pub bytes_per_second: u64,
    /// A bus of that speed carries everything, no switch; decided when the network is made.
    pub bus: Option<BusConfig>,
    /// Bytes that wait in an interface before `send` takes no more.
    pub transmit_queue_bytes: u64,
    /// Bytes that wait in the switch for one interface before it drops.
    pub switch_queue_bytes: u64,
    /// Frames that wait in one socket before the system drops.
    pub receive_queue_frames: usize,
    /// Probability that a small frame comes out of its socket in one piece with the one before
    /// it, where a kernel may join them: from one sender, of one length but for a shorter last.
    pub join: f64,
    /// The path between addresses that [`paths`](Self::paths) does not name.
    pub path: PathConfig,
    /// Paths by sender and receiver.
    pub paths: BTreeMap<(IpAddr, IpAddr), PathConfig>,
    /// Directions, sender and receiver, in which nothing passes.
    pub cuts: BTreeSet<(IpAddr, IpAddr)>,
    /// Multihomed that are dead in both directions.
    pub dead_interfaces: BTreeSet<IpAddr>,
}

impl Default for NetworkConfig {
    /// 25 Gbit/s, 5 us, nothing goes wrong but overflow.
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
    /// Stops everything from `from` to `to`, not the other way.
    pub fn cut(&mut self, from: IpAddr, to: IpAddr) {
        self.cuts.insert((from, to));
    }

    /// Stops everything between every one of `these` and every one of `those`.
    pub fn partition(&mut self, these: &[IpAddr], those: &[IpAddr]) {
        for &this in these {
            for &that in those {
                self.cuts.insert((this, that));
                self.cuts.insert((that, this));
            }
        }
    }

    /// Ends all cuts and partitions.
    pub fn heal(&mut self) {
        self.cuts.clear();
    }

    /// Kills an interface or brings it back.
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

    /// How long an interface needs for a frame.
    pub(super) fn wire_ns(&self, bytes: usize) -> u64 {
        // Ethernet, IP and UDP headers, gap and preamble travel too.
        let bytes = bytes as u64 + 66;
        bytes
            .saturating_mul(1_000_000_000)
            .checked_div(self.bytes_per_second)
            .unwrap_or(0)
    }

    /// How many bytes an interface moves in this time.
    pub(super) fn wire_bytes(&self, time_ns: u64) -> u64 {
        let bytes = u128::from(time_ns) * u128::from(self.bytes_per_second) / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}
