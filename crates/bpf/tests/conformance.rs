//! Runs the conformance suite on the bpf link.

#[macro_use]
#[path = "../../link/tests/conformance/suite.rs"]
mod suite;

use std::time::Instant;

use dipole_bpf::{Bpf, BpfOptions, FastPath, RING_BYTES};
use dipole_link::Udp;
use dipole_link::udp::{UdpOptions, UdpStats};
use dipole_testbed::Testbed;
use suite::*;

impl Tested for Bpf {
    fn udp_stats(&self) -> Option<UdpStats> {
        Some(self.udp().stats())
    }
}

/// A link on each of three nodes in separate namespaces.
fn in_namespaces(make: impl Fn(usize, Udp) -> Box<dyn Tested> + Sync) -> Option<World> {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return None;
    }
    let testbed = Testbed::builder().nodes(3).mtu(1500).build().unwrap();
    let open = |node: u32| {
        let ip = testbed.node(node).addresses[0].into();
        let open = || {
            let udp = Udp::bind(ip, &UdpOptions::default()).unwrap();
            make(node as usize - 1, udp)
        };
        testbed.inside(node, open).unwrap()
    };
    Some(World {
        links: (1..=3).map(open).collect(),
        clock: Clock::Real(Instant::now()),
        _held: Box::new(testbed),
    })
}

fn shortened(udp: Udp) -> Box<dyn Tested> {
    let fast_path = FastPath::open(&udp, &BpfOptions::default()).unwrap();
    Box::new(Bpf::new(udp, fast_path))
}

fn bpf() -> Option<World> {
    in_namespaces(|_, udp| shortened(udp))
}

/// A link whose small ring fills up soon.
fn bpf_with_a_small_ring() -> Option<World> {
    in_namespaces(|_, udp| {
        let options = BpfOptions {
            ring_bytes: *RING_BYTES.start(),
            ..BpfOptions::default()
        };
        let fast_path = FastPath::open(&udp, &options).unwrap();
        Box::new(Bpf::new(udp, fast_path))
    })
}

fn bpf_to_udp() -> Option<World> {
    in_namespaces(|node, udp| match node {
        0 => shortened(udp),
        _ => Box::new(udp),
    })
}

fn udp_to_bpf() -> Option<World> {
    in_namespaces(|node, udp| match node {
        0 => Box::new(udp),
        _ => shortened(udp),
    })
}

/// A link whose ring was closed.
fn bpf_without_its_ring() -> Option<World> {
    in_namespaces(|_, udp| {
        let fast_path = FastPath::open(&udp, &BpfOptions::default()).unwrap();
        let mut link = Bpf::new(udp, fast_path);
        link.close_rx();
        Box::new(link)
    })
}

suites!(bpf, bpf_to_udp, udp_to_bpf, bpf_without_its_ring);

// Packets that overflow the ring use the socket and may arrive later than others.
suite!(
    bpf_with_a_small_ring:
    shortest_and_longest_frames_arrive_on_both_classes_from_the_right_address,
    frames_too_long_are_refused_and_empty_ones_taken_and_lost,
    a_full_receiver_loses_frames_but_damages_none,
    frames_stay_as_they_are_until_the_next_poll,
    descriptors_become_readable_when_frames_have_come,
);
