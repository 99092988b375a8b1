//! A plain snapshot of what a node has done.

use crate::engine::Traffic;

/// Counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets and bytes.
    pub traffic: Traffic,
    /// What the protocol did, and why it dropped packets.
    pub protocol: dipole_proto::Stats,
    /// Peers by packets, opening or open.
    pub peers: usize,
    /// What went through shared memory, if it is in use.
    pub local: Option<dipole_link::shm::ShmStats>,
    /// What went by rings and raw frames, if some interface has them.
    pub bpf: Option<dipole_bpf::BpfStats>,
    /// Processes of this node, opening or open.
    pub local_peers: usize,
    /// Edges from endpoints of this process, besides the targets that endpoints point at.
    pub edges: usize,
    /// Bytes of received messages that wait to be read.
    pub pool_used_bytes: u64,
    /// Frames that can be filled now.
    pub free_frames: usize,
    /// What the fault wrapper has done, if there is one.
    pub faults: Option<dipole_link::fault::FaultStats>,
}
