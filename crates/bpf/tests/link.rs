//! A bpf link sends short packets as raw frames, and detaches its program when it is dropped.

#![allow(missing_docs, reason = "tests")]

mod testbed;

use std::net::IpAddr;

use dipole_bpf::{Bpf, BpfOptions, FastPath};
use dipole_link::udp::UdpOptions;
use dipole_link::{Class, Link, Outgoing, Udp};
use dipole_testbed::Testbed;
use testbed::{Ways, interface, make, receive, udp};

fn address(bed: &Testbed, node: u32) -> IpAddr {
    bed.node(node).addresses[0].into()
}

/// Makes the kernel resolve the other node.
fn resolve(bed: &Testbed) {
    let (socket, _) = udp(bed, 1, address(bed, 1));
    Ways::open(bed, 1, &interface(bed, 1, "net0"), &socket).wait_for(address(bed, 2), |_| true);
}

/// A link on node 1 that sends runs of up to this many bulk frames as raw frames.
fn link_with(bed: &Testbed, raw_run_frames: usize) -> Bpf {
    let options = BpfOptions {
        raw_run_frames,
        ..BpfOptions::default()
    };
    let open = || {
        let udp = Udp::bind(address(bed, 1), &UdpOptions::default()).expect("an address");
        let fast_path = FastPath::open(&udp, &options).expect("the bpf link");
        Bpf::new(udp, fast_path)
    };
    bed.inside(1, open).expect("the node")
}

#[test]
fn runs_are_sent_as_raw_frames_up_to_the_given_length_and_from_the_bulk_port() {
    let Some(bed) = make(Testbed::builder()) else {
        return;
    };
    resolve(&bed);
    for raw_frames in [0, 1, 4] {
        let mut link = link_with(&bed, raw_frames);
        let (there, to) = udp(&bed, 2, address(&bed, 2));
        let (_other, elsewhere) = udp(&bed, 2, address(&bed, 2));
        let payload = vec![1; 1472];
        let frame = |to| Outgoing::frame(Class::Bulk, to, &payload);
        let mut now_ns = 0;
        let mut raw = |batch: &[Outgoing<'_>]| {
            // Later each time, so that a stale neighbour is looked up again.
            now_ns += 1_000_000;
            let before = link.stats().raw_bulk;
            assert_eq!(link.send(now_ns, batch).expect("works"), batch.len());
            for _ in batch.iter().filter(|frame| frame.to == to) {
                let (from, bytes) = receive(&there);
                assert_eq!(from, link.local(Class::Bulk));
                assert!(bytes == payload);
            }
            usize::try_from(link.stats().raw_bulk - before).expect("few")
        };
        // The first may go through the socket to make the kernel confirm the neighbour.
        raw(&[frame(to)]);
        for run in [1, 2, 4, 5] {
            let wanted = if run <= raw_frames { run } else { 0 };
            assert_eq!(raw(&vec![frame(to); run]), wanted, "{run} of {raw_frames}");
        }
        let mixed = [frame(to), frame(elsewhere), frame(to)];
        let wanted = if raw_frames > 0 { 3 } else { 0 };
        assert_eq!(raw(&mixed), wanted);
    }
}

#[test]
fn a_run_of_small_frames_goes_into_a_ring_as_one_record() {
    let Some(bed) = make(Testbed::builder()) else {
        return;
    };
    resolve(&bed);
    let open = |node| {
        let options = UdpOptions {
            join_small: true,
            ..UdpOptions::default()
        };
        let open = || {
            let udp = Udp::bind(address(&bed, node), &options).expect("an address");
            let fast_path = FastPath::open(&udp, &BpfOptions::default()).expect("the bpf link");
            Bpf::new(udp, fast_path)
        };
        bed.inside(node, open).expect("the node")
    };
    let (mut from, mut to) = (open(1), open(2));
    let longest = from.caps().small_run_frames;
    let frames: Vec<Vec<u8>> = (0..9).map(|number| vec![number; 1472]).collect();
    let there = to.local(Class::Small);
    for run in [2, 6, longest.min(9)] {
        let batch = frames[..run].iter().map(|bytes| Outgoing {
            any_port: true,
            ..Outgoing::frame(Class::Small, there, bytes)
        });
        let batch: Vec<_> = batch.collect();
        let joined = from.stats().joined;
        assert_eq!(from.send(0, &batch).expect("works"), run);
        assert!(from.stats().joined >= joined + run.min(6) as u64);
        let mut got = Vec::new();
        while got.len() < run * 1472 {
            let count = to.poll(0, Class::Small).expect("works");
            got.extend((0..count).flat_map(|index| to.message(index).bytes.to_vec()));
        }
        assert!(got == frames[..run].concat(), "{run} frames");
    }
    assert_eq!(to.stats().from_socket, 0);
}

#[test]
fn the_program_is_gone_at_once_when_the_link_is_dropped() {
    let Some(bed) = make(Testbed::builder()) else {
        return;
    };
    resolve(&bed);
    let interface = interface(&bed, 1, "net0");
    let attached = || {
        let asked = bed.inside(1, || dipole_bpf::hook::attached(&interface));
        asked.expect("the node").expect("asked").len()
    };
    for _ in 0..20 {
        let link = link_with(&bed, 1);
        assert_eq!(attached(), 1);
        drop(link);
        assert_eq!(attached(), 0);
    }
}
