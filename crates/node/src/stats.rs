//! Snapshot of a node's counters.

use dipole_bpf::BpfStats;
use dipole_link::shm::ShmStats;

use dipole_engine::Traffic;
use dipole_proto::DropReason;

use crate::waits::Waits;

/// Names of values that may decrease or do not count, also of the layers above; all others only
/// grow.
pub const GAUGES: [&str; 10] = [
    "network peers",
    "shared-memory peers",
    "edges",
    "unread bytes",
    "free frames",
    "start time in seconds",
    "unexpected messages",
    "unexpected bytes",
    "most unexpected messages",
    "most unexpected bytes",
];

/// A snapshot of the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets and their bytes.
    pub traffic: Traffic,
    /// Protocol counters, including dropped packets by reason.
    pub protocol: dipole_proto::Stats,
    /// Peers over the network, including opening sessions.
    pub peers: usize,
    /// Traffic through shared memory, if it is in use.
    pub local: Option<dipole_link::shm::ShmStats>,
    /// Traffic through receive rings and raw frames, if any interface has them.
    pub bpf: Option<dipole_bpf::BpfStats>,
    /// Peers in shared memory, including opening connections.
    pub local_peers: usize,
    /// Edges from endpoints of this process, including those to targets.
    pub edges: usize,
    /// Messages that targets did not get because of their [policies](crate::OverflowPolicy), or because
    /// they were removed while messages waited for room.
    pub target_dropped: u64,
    /// Bytes of unread messages.
    pub pool_used_bytes: u64,
    /// Number of free frames.
    pub free_frames: usize,
    /// How long calls waited.
    pub waits: Waits,
    /// When the process opened its node, in seconds since 1970.
    pub started_s: u64,
    /// Injected faults, if fault injection is on.
    pub faults: Option<dipole_link::fault::FaultStats>,
    /// Injected shortages of resources above the link, if fault injection is on.
    pub shortages: Option<u64>,
}

/// Names of the reasons for which packets are dropped.
pub fn drop_reasons() -> impl Iterator<Item = &'static str> {
    DropReason::ALL.into_iter().map(DropReason::name)
}

impl Stats {
    /// All counters with readable names.
    #[must_use]
    pub fn values(&self) -> Vec<(String, u64)> {
        let Stats {
            traffic,
            protocol,
            peers,
            local,
            bpf,
            local_peers,
            edges,
            target_dropped,
            pool_used_bytes,
            free_frames,
            waits,
            started_s,
            faults: _,
            shortages,
        } = *self;
        let mut values = vec![
            ("network peers", peers as u64),
            ("shared-memory peers", local_peers as u64),
            ("edges", edges as u64),
            ("unread bytes", pool_used_bytes),
            ("free frames", free_frames as u64),
            ("start time in seconds", started_s),
            ("messages sent", protocol.messages_sent),
            ("messages received", protocol.messages_delivered),
            ("message bytes sent", protocol.message_bytes_sent),
            ("message bytes received", protocol.message_bytes_delivered),
            ("messages refused", protocol.messages_refused),
            ("packets sent", traffic.packets_sent),
            ("packets received", traffic.packets_received),
            ("packet bytes sent", traffic.bytes_sent),
            ("packet bytes received", traffic.bytes_received),
            ("link full", traffic.link_full),
            ("units sent", protocol.units_sent),
            ("units received", protocol.units_received),
            ("units repeated", protocol.repeats),
            ("units repeated as a tail", protocol.tail_repeats),
            ("packets of acknowledgements alone", protocol.explicit_acks),
            ("ack requests", protocol.ack_requests),
            ("probes", protocol.probes),
            ("lanes lost", protocol.lanes_lost),
            ("unreliable packets sent", protocol.unreliable_sent),
            ("unreliable messages dropped", traffic.unreliable_dropped),
            ("messages dropped for slow targets", target_dropped),
            ("waits", waits.total()),
            ("wait nanoseconds", waits.total_ns()),
        ];
        values.extend(shortages.map(|count| ("injected shortages", count)));
        values.extend(local.into_iter().flat_map(memory_values));
        values.extend(bpf.into_iter().flat_map(bpf_values));
        let dropped = protocol
            .drops()
            .map(|(reason, count)| (format!("dropped: {}", reason.name()), count));
        let buckets = waits
            .up_to()
            .map(|(limit, count)| (format!("waits up to: {limit} s"), count));
        let values = values
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value));
        values.chain(buckets).chain(dropped).collect()
    }
}

/// Counters of shared memory.
fn memory_values(memory: ShmStats) -> [(&'static str, u64); 10] {
    let ShmStats {
        records_out,
        bytes_out,
        records_in,
        bytes_in,
        wakeups,
        large_rings,
        pulled_bytes,
        violations,
        foreign_users,
        rejected,
    } = memory;
    [
        ("memory records sent", records_out),
        ("memory records received", records_in),
        ("memory bytes sent", bytes_out),
        ("memory bytes received", bytes_in),
        ("memory bytes fetched", pulled_bytes),
        ("memory wake-ups", wakeups),
        ("memory large rings", large_rings),
        ("memory format violations", violations),
        ("memory connections from other users", foreign_users),
        ("memory connections rejected", rejected),
    ]
}

/// Counters of the fast path.
fn bpf_values(bpf: BpfStats) -> [(&'static str, u64); 6] {
    let BpfStats {
        from_ring,
        from_socket,
        raw,
        socket,
        joined,
        raw_bulk,
    } = bpf;
    [
        ("bpf received from ring", from_ring),
        ("bpf received from socket", from_socket),
        ("bpf sent as raw frames", raw),
        ("bpf sent by socket", socket),
        ("bpf sent in runs", joined),
        ("bpf bulk sent as raw frames", raw_bulk),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_names_are_unique() {
        let mut stats = Stats {
            local: Some(ShmStats::default()),
            bpf: Some(BpfStats::default()),
            ..Stats::default()
        };
        stats.traffic.packets_sent = 7;
        stats.protocol.count(dipole_proto::DropReason::Forged);
        let values = stats.values();
        let names: std::collections::BTreeSet<_> = values.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), values.len());
        for wanted in [("packets sent", 7), ("dropped: forged", 1)] {
            assert!(values.contains(&(wanted.0.to_owned(), wanted.1)));
        }
    }
}
