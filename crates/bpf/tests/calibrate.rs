//! Calibrating a card of a namespace, and a link that does what follows from it.

#![allow(missing_docs, reason = "tests")]

mod testbed;

use std::net::IpAddr;
use std::time::Instant;

use dipole_bpf::calibrate::{
    Calibration, Choices, FileError, RUNS, Receive, SIZES, Send, SocketBy, calibrate,
};
use dipole_bpf::{Bpf, BpfOptions, Shortcuts};
use dipole_link::udp::UdpOptions;
use dipole_link::{Class, Link, Outgoing, Udp};
use dipole_testbed::Testbed;
use testbed::{Ways, card, make, receive, udp};

fn address(testbed: &Testbed, node: u32) -> IpAddr {
    testbed.node(node).addresses[0].into()
}

/// The kernel knows the other node from now on.
fn meet(testbed: &Testbed) {
    let (socket, _) = udp(testbed, 1, address(testbed, 1));
    Ways::open(testbed, 1, &card(testbed, 1, "net0"), &socket)
        .wait_for(address(testbed, 2), |_| true);
}

#[test]
fn a_card_is_calibrated_and_the_file_holds_for_it_alone() {
    let Some(testbed) = make(Testbed::builder()) else {
        return;
    };
    meet(&testbed);
    let card = card(&testbed, 1, "net0");
    let own = address(&testbed, 1);
    let listener = udp(&testbed, 2, address(&testbed, 2)).0;
    let start = Instant::now();
    let found = testbed.inside(1, || calibrate(&card, own, &[]));
    let found = found.expect("the node").expect("a card");
    eprintln!("calibrated in {:?}:\n{found}", start.elapsed());
    assert_eq!(found.socket_by, SocketBy::Neighbour);
    assert_eq!((&*found.facts.driver, found.facts.mtu), ("veth", 1500));
    for bytes in SIZES {
        for way in Send::ALL {
            assert!(found.sends.contains_key(&(way, bytes)), "{way:?} {bytes}");
        }
        for place in Receive::ALL {
            let figure = found.receives.get(&(place, bytes));
            assert!(figure.is_some_and(|one| one.median_ns > 0), "{place:?}");
        }
    }
    for frames in RUNS {
        for way in [Send::AfPacket, Send::Socket] {
            assert!(found.runs.contains_key(&(way, frames)), "{way:?} {frames}");
        }
    }
    // Nothing of it came to a port that somebody has, and nothing stays attached.
    listener.set_nonblocking(true).expect("set");
    assert!(listener.recv_from(&mut [0; 8]).is_err());
    let attached = testbed.inside(1, || dipole_bpf::hook::attached(&card));
    assert_eq!(attached.expect("the node").expect("asked"), []);

    let folder = tempfile::tempdir().expect("a folder");
    found.save(folder.path()).expect("written");
    let load = || testbed.inside(1, || Calibration::load(folder.path(), &card));
    assert_eq!(load().expect("the node").expect("good"), Some(found));
    testbed::ip(&testbed, 1, "link set net0 mtu 1400");
    let refused = load().expect("the node").expect_err("another MTU");
    assert!(
        matches!(refused, FileError::Changed { what: "MTU", .. }),
        "{refused}"
    );
}

#[test]
fn without_a_neighbour_the_socket_is_measured_on_a_pair() {
    let Some(testbed) = make(Testbed::builder()) else {
        return;
    };
    let card = card(&testbed, 1, "net0");
    let own = address(&testbed, 1);
    testbed::ip(&testbed, 1, "neighbour flush dev net0");
    let found = testbed.inside(1, || calibrate(&card, own, &[address(&testbed, 2)]));
    let found = found.expect("the node").expect("a card");
    assert_eq!(found.socket_by, SocketBy::Pair);
    assert!(found.sends.contains_key(&(Send::Socket, 64)));
    assert!(found.runs.contains_key(&(Send::AfPacket, 8)));
}

/// A link on node 1 as a file says, in which runs of so many raw frames are cheaper.
fn link_with(testbed: &Testbed, raw_frames: usize, queue: bool) -> Bpf {
    let card = card(testbed, 1, "net0");
    let folder = tempfile::tempdir().expect("a folder");
    let found = testbed.inside(1, || calibrate(&card, address(testbed, 1), &[]));
    let mut found = found.expect("the node").expect("a card");
    found.sends.clear();
    found.runs.clear();
    found.receives.clear();
    let figure = |median_ns| dipole_bpf::calibrate::Figure {
        median_ns,
        spread_ns: 1,
    };
    for frames in RUNS {
        let socket_ns = if frames <= raw_frames { 9000 } else { 10 };
        found.runs.insert((Send::AfPacket, frames), figure(1000));
        found.runs.insert((Send::Socket, frames), figure(socket_ns));
    }
    if queue {
        found.facts.queues = Some(1);
        for bytes in SIZES {
            found.sends.insert((Send::AfPacket, bytes), figure(9000));
            found.sends.insert((Send::AfXdp, bytes), figure(1000));
        }
    }
    let wanted = Choices {
        raw_run_frames: raw_frames,
        send: if queue { Send::AfXdp } else { Send::AfPacket },
        ..Choices::default()
    };
    assert_eq!(found.choices(), wanted);
    found.save(folder.path()).expect("written");
    let options = BpfOptions {
        calibrations: vec![folder.path().join("none"), folder.path().to_owned()],
        ..BpfOptions::default()
    };
    let open = || {
        let udp = Udp::bind(address(testbed, 1), &UdpOptions::default()).expect("an address");
        let shortcuts = Shortcuts::open(&udp, &options).expect("the bpf link");
        Bpf::new(udp, shortcuts)
    };
    let link = testbed.inside(1, open).expect("the node");
    assert_eq!(link.uses_queue(), [false, queue]);
    link
}

#[test]
fn runs_leave_as_raw_frames_as_far_as_calibrated_and_from_the_bulk_port() {
    let Some(testbed) = make(Testbed::builder()) else {
        return;
    };
    meet(&testbed);
    for (raw_frames, queue) in [(0, false), (1, false), (4, true)] {
        let mut link = link_with(&testbed, raw_frames, queue);
        let (there, to) = udp(&testbed, 2, address(&testbed, 2));
        let (_other, elsewhere) = udp(&testbed, 2, address(&testbed, 2));
        let payload = vec![1; 1472];
        let frame = |to| Outgoing {
            class: Class::Bulk,
            to,
            bytes: &payload,
            any_port: false,
        };
        let mut now_ns = 0;
        let mut raw = |batch: &[Outgoing<'_>]| {
            // Later each time, so that a neighbour that was stale is asked for again.
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
        // The first may be one that reminds the kernel of the neighbour.
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
fn the_program_is_gone_at_once_when_the_link_is_dropped() {
    let Some(testbed) = make(Testbed::builder()) else {
        return;
    };
    meet(&testbed);
    let card = card(&testbed, 1, "net0");
    let attached = || {
        let asked = testbed.inside(1, || dipole_bpf::hook::attached(&card));
        asked.expect("the node").expect("asked").len()
    };
    for _ in 0..20 {
        let link = link_with(&testbed, 1, false);
        assert_eq!(attached(), 1);
        drop(link);
        assert_eq!(attached(), 0);
    }
}
