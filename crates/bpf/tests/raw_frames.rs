//! Raw frames between two nodes with real interfaces, received through a UDP socket.

#![allow(missing_docs, reason = "tests")]

mod testbed;

use std::net::{IpAddr, SocketAddr, UdpSocket};

use dipole_bpf::headers::Template;
use dipole_bpf::raw::{RawSender, Sent};
use dipole_testbed::Testbed;
use rustix::net::SendFlags;
use testbed::{interface, make, receive, six, udp};

/// A sender in node 1, a socket in node 2, and the route between them.
struct Pair {
    testbed: Testbed,
    ways: testbed::Ways,
    sender: RawSender,
    _own: UdpSocket,
    from: SocketAddr,
    there: UdpSocket,
    to: SocketAddr,
}

fn pair(mtu: u32, v6: bool, bypass: bool) -> Option<Pair> {
    let testbed = make(Testbed::builder().mtu(mtu))?;
    let address = |node: u32| match v6 {
        true => six(0, node),
        false => IpAddr::from(testbed.node(node).addresses[0]),
    };
    let interface = interface(&testbed, 1, "net0");
    let (own, from) = udp(&testbed, 1, address(1));
    let (there, to) = udp(&testbed, 2, address(2));
    let ways = testbed::Ways::open(&testbed, 1, &interface, &own);
    let sender = testbed.inside(1, || RawSender::open(&interface, bypass));
    let sender = sender.expect("the node").expect("a raw socket");
    Some(Pair {
        testbed,
        ways,
        sender,
        _own: own,
        from,
        there,
        to,
    })
}

fn payload(length: usize) -> Vec<u8> {
    (0..=255).cycle().take(length).collect()
}

#[test]
fn frames_of_every_length_arrive_with_both_ip_versions_with_and_without_queueing() {
    for (mtu, v6, bypass) in [
        (1500, false, true),
        (1500, false, false),
        (9000, true, true),
        (9000, true, false),
    ] {
        let Some(mut pair) = pair(mtu, v6, bypass) else {
            return;
        };
        let route = pair.ways.wait_for(pair.to.ip(), |_| true);
        assert_eq!(route.mtu, usize::try_from(mtu).expect("small"));
        let most = route.longest_payload();
        for length in [1, 2, 3, 63, 64, 1400, most - 1, most] {
            let bytes = payload(length);
            let sent = pair.sender.send(&route, pair.from, pair.to, &bytes);
            assert_eq!(sent.expect("works"), Sent::Taken);
            let (from, got) = receive(&pair.there);
            assert_eq!(from, pair.from);
            assert!(got == bytes, "{length} bytes");
        }
        let sent = pair
            .sender
            .send(&route, pair.from, pair.to, &payload(most + 1));
        assert_eq!(sent.expect("works"), Sent::CannotSend);
    }
}

#[test]
fn many_frames_leave_in_order() {
    let Some(mut pair) = pair(1500, false, true) else {
        return;
    };
    let route = pair.ways.wait_for(pair.to.ip(), |_| true);
    let payloads: Vec<_> = (1..=65).map(payload).collect();
    for payload in &payloads {
        let mut offer = || pair.sender.send(&route, pair.from, pair.to, payload);
        loop {
            match offer().expect("works") {
                Sent::Taken => break,
                Sent::Full => std::thread::yield_now(),
                Sent::CannotSend => panic!("{} bytes", payload.len()),
            }
        }
    }
    for payload in &payloads {
        let (from, got) = receive(&pair.there);
        assert_eq!(from, pair.from);
        assert!(&got == payload, "{} bytes", payload.len());
    }
}

#[test]
fn the_kernel_verifies_our_checksum() {
    let Some(mut pair) = pair(1500, false, true) else {
        return;
    };
    let route = pair.ways.wait_for(pair.to.ip(), |_| true);
    let template = Template::new(&route.ethernet(), pair.from, pair.to, route.hops);
    let template = template.expect("one version");
    let bytes = payload(100);
    let headers = template.finish(1, &bytes);
    let mut frame = [&headers[..template.bytes()], &bytes].concat();
    *frame.last_mut().expect("not empty") ^= 1;
    rustix::net::send(&pair.sender, &frame, SendFlags::empty()).expect("sent");
    // The next frame arrives, so the wrong one was dropped: veth keeps the order.
    let sent = pair.sender.send(&route, pair.from, pair.to, b"right");
    assert_eq!(sent.expect("works"), Sent::Taken);
    assert_eq!(receive(&pair.there).1, b"right");
}

#[test]
fn an_interface_that_is_down_refuses_frames_until_it_is_up_again() {
    let Some(mut pair) = pair(1500, false, true) else {
        return;
    };
    let route = pair.ways.wait_for(pair.to.ip(), |_| true);
    pair.testbed.set_interface(1, 0, false).expect("ip works");
    for _ in 0..2 {
        let sent = pair.sender.send(&route, pair.from, pair.to, b"lost");
        assert_eq!(sent.expect("works"), Sent::CannotSend);
    }
    pair.testbed.set_interface(1, 0, true).expect("ip works");
    let route = pair.ways.wait_for(pair.to.ip(), |_| true);
    let sent = pair.sender.send(&route, pair.from, pair.to, b"again");
    assert_eq!(sent.expect("works"), Sent::Taken);
    assert_eq!(receive(&pair.there).1, b"again");
}
