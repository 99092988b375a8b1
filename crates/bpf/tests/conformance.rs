//! The bpf link passes the suite that every link must pass.

#[macro_use]
#[path = "../../link/tests/conformance/suite.rs"]
mod suite;

use std::time::Instant;

use dipole_bpf::{Bpf, BpfOptions, FastPath, RING_BYTES, RxMode, TxMode};
use dipole_link::Udp;
use dipole_link::udp::{UdpOptions, UdpStats};
use dipole_testbed::Testbed;
use suite::*;

impl Tested for Bpf {
    fn udp_stats(&self) -> Option<UdpStats> {
        Some(self.udp().stats())
    }
}

/// A link on each of three nodes in namespaces of their own.
fn in_namespaces(make: impl Fn(usize, Udp) -> Box<dyn Tested> + Sync) -> Option<World> {
    in_namespaces_with(1500, make)
}

/// The same with interfaces of this MTU.
fn in_namespaces_with(
    mtu: u32,
    make: impl Fn(usize, Udp) -> Box<dyn Tested> + Sync,
) -> Option<World> {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return None;
    }
    let testbed = Testbed::builder().nodes(3).mtu(mtu).build().unwrap();
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

/// What a link is told to use.
fn by(mtu: u32, receive: RxMode, send: TxMode) -> Option<World> {
    in_namespaces_with(mtu, |_, udp| {
        let options = BpfOptions {
            receive,
            send,
            ..BpfOptions::default()
        };
        let fast_path = FastPath::open(&udp, &options).unwrap();
        let link = Bpf::new(udp, fast_path);
        let wanted = [receive == RxMode::AfXdp, send == TxMode::AfXdp];
        assert_eq!(link.uses_af_xdp(), wanted);
        Box::new(link)
    })
}

fn bpf_at_generic_xdp() -> Option<World> {
    by(1500, RxMode::XdpRing, TxMode::AfPacket)
}

fn af_xdp_receive() -> Option<World> {
    by(1500, RxMode::AfXdp, TxMode::AfPacket)
}

/// Pieces of its memory are shorter than the longest frames.
fn af_xdp_receive_of_long_frames() -> Option<World> {
    by(9000, RxMode::AfXdp, TxMode::AfPacket)
}

fn af_xdp_send_of_long_frames() -> Option<World> {
    by(9000, RxMode::Ring, TxMode::AfXdp)
}

fn af_xdp_send() -> Option<World> {
    by(1500, RxMode::Ring, TxMode::AfXdp)
}

fn bpf() -> Option<World> {
    in_namespaces(|_, udp| shortened(udp))
}

/// Its small ring is soon full.
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

/// What is left when the ring has been taken away.
fn bpf_without_its_ring() -> Option<World> {
    in_namespaces(|_, udp| {
        let fast_path = FastPath::open(&udp, &BpfOptions::default()).unwrap();
        let mut link = Bpf::new(udp, fast_path);
        link.close_rx();
        Box::new(link)
    })
}

suites!(
    bpf,
    bpf_to_udp,
    udp_to_bpf,
    bpf_without_its_ring,
    bpf_at_generic_xdp,
    af_xdp_receive,
    af_xdp_send
);

// What overflows its ring takes the socket and may come later than what does not.
suite!(
    bpf_with_a_small_ring:
    shortest_and_longest_frames_arrive_on_both_classes_from_the_right_address,
    frames_too_long_are_refused_and_empty_ones_taken_and_lost,
    a_full_receiver_loses_frames_but_damages_none,
    frames_stay_as_they_are_until_the_next_poll,
    descriptors_become_readable_when_frames_have_come,
);

// What is too long takes the socket and may come later than what is not.
suite!(
    af_xdp_receive_of_long_frames:
    shortest_and_longest_frames_arrive_on_both_classes_from_the_right_address,
    frames_too_long_are_refused_and_empty_ones_taken_and_lost,
    frames_stay_as_they_are_until_the_next_poll,
    descriptors_become_readable_when_frames_have_come,
);
suite!(
    af_xdp_send_of_long_frames:
    frames_in_two_parts_arrive_as_one,
    shortest_and_longest_frames_arrive_on_both_classes_from_the_right_address,
    frames_too_long_are_refused_and_empty_ones_taken_and_lost,
    mixed_batches_arrive_whole_in_order_per_class_and_destination,
);
