//! Routes between nodes with real interfaces: found as the kernel finds them, and updated when they
//! change.

#![allow(missing_docs, reason = "tests")]

mod testbed;

use std::net::IpAddr;

use dipole_bpf::neighbours::FRESH_NS;
use dipole_bpf::raw::{RawSender, Sent};
use dipole_testbed::Testbed;
use testbed::{Ways, interface, ip, make, receive, set, six, udp};

fn address(testbed: &Testbed, network: usize, node: u32) -> IpAddr {
    testbed.node(node).addresses[network].into()
}

/// The hardware address of an interface in the notation of `ip`.
fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn ways(testbed: &Testbed, own: IpAddr) -> Ways {
    let (socket, _) = udp(testbed, 1, own);
    Ways::open(testbed, 1, &interface(testbed, 1, "net0"), &socket)
}

#[test]
fn a_neighbour_is_found_and_the_second_lookup_is_cached() {
    let Some(testbed) = make(Testbed::builder()) else {
        return;
    };
    for (own, peer) in [
        (address(&testbed, 0, 1), address(&testbed, 0, 2)),
        (six(0, 1), six(0, 2)),
    ] {
        let mut ways = ways(&testbed, own);
        let state = ways.all.interface_state();
        assert!(state.up && state.ethernet);
        assert_eq!(state.mtu, 1500);
        let first = ways.wait_for(peer, |_| true);
        assert_eq!((first.source, first.own_mac), (own, state.mac));
        assert_eq!((first.mtu, first.hops), (1500, 64));
        let now_ns = ways.now_ns;
        assert_eq!(ways.all.route(now_ns, peer), Some(&first));
        // An expired route is looked up again, as the serial number shows.
        let later = ways.all.route(now_ns + FRESH_NS, peer).copied();
        let later = later.or_else(|| ways.all.route(now_ns + FRESH_NS, peer).copied());
        let later = later.expect("still there");
        assert!(later.serial > first.serial);
        assert_eq!(later.mac, first.mac);
    }
}

#[test]
fn destinations_other_than_a_single_host_on_the_segment_have_no_route() {
    let Some(testbed) = make(Testbed::builder().networks(2)) else {
        return;
    };
    let own = address(&testbed, 0, 1);
    let mut four = ways(&testbed, own);
    four.wait_for(address(&testbed, 0, 2), |_| true);
    let other_interface = address(&testbed, 1, 2);
    udp(&testbed, 1, address(&testbed, 1, 1))
        .0
        .send_to(b"?", (other_interface, 9))
        .expect("sent");
    for to in [
        own,
        other_interface,
        address(&testbed, 1, 1),
        IpAddr::from([127, 0, 0, 1]),
        IpAddr::from([255, 255, 255, 255]),
        // An unused address of this segment.
        IpAddr::from([224, 0, 0, 1]),
        IpAddr::from([0, 0, 0, 0]),
        IpAddr::from([192, 0, 2, 7]),
        six(0, 2),
    ] {
        assert_eq!(four.look(to), None, "{to}");
    }
    let IpAddr::V4(v4) = own else { unreachable!() };
    let [a, b, c, _] = v4.octets();
    assert_eq!(four.look([a, b, c, 255].into()), None);
    assert_eq!(four.look([a, b, c, 250].into()), None);
    let mut six_ways = ways(&testbed, six(0, 1));
    six_ways.wait_for(six(0, 2), |_| true);
    for to in ["::1", "::", "ff02::1", "fd00:1::2", "2001:db8::1"] {
        let to = to.parse().expect("an address");
        assert_eq!(six_ways.look(to), None, "{to}");
    }
    assert_eq!(six_ways.look(six(0, 1)), None);
    assert_eq!(six_ways.look(own), None);
}

#[test]
fn behind_a_gateway_frames_go_to_the_gateway() {
    let Some(testbed) = make(Testbed::builder()) else {
        return;
    };
    let behind = IpAddr::from([192, 0, 2, 1]);
    let gateway = address(&testbed, 0, 2);
    ip(&testbed, 2, "address add 192.0.2.1/32 dev lo");
    ip(
        &testbed,
        1,
        &format!("route add 192.0.2.0/24 via {gateway}"),
    );
    let (own, from) = udp(&testbed, 1, address(&testbed, 0, 1));
    let (there, to) = udp(&testbed, 2, behind);
    let interface = interface(&testbed, 1, "net0");
    let mut ways = Ways::open(&testbed, 1, &interface, &own);
    let direct = ways.wait_for(gateway, |_| true);
    let route = ways.wait_for(behind, |_| true);
    assert_eq!(route.mac, direct.mac);
    let sender = testbed.inside(1, || RawSender::open(&interface, true));
    let mut sender = sender.expect("the node").expect("a raw socket");
    let sent = sender.send(&route, from, to, b"routed").expect("works");
    assert_eq!(sent, Sent::Taken);
    assert_eq!(receive(&there), (from, b"routed".to_vec()));
    // Another route there, through another interface.
    ip(&testbed, 1, "route replace blackhole 192.0.2.0/24");
    ways.wait_for_none(behind);
    assert!(ways.look(gateway).is_some());
}

#[test]
fn the_mtu_is_the_minimum_of_interface_and_route() {
    let Some(testbed) = make(Testbed::builder()) else {
        return;
    };
    let peer = address(&testbed, 0, 2);
    let mut four = ways(&testbed, address(&testbed, 0, 1));
    assert_eq!(four.wait_for(peer, |_| true).longest_payload(), 1472);
    ip(
        &testbed,
        1,
        &format!("route add {peer}/32 dev net0 mtu 1300"),
    );
    assert_eq!(four.wait_for(peer, |_| true).longest_payload(), 1272);
    ip(
        &testbed,
        1,
        &format!("route replace {peer}/32 dev net0 mtu 9000"),
    );
    assert_eq!(four.wait_for(peer, |_| true).mtu, 1500);
    ip(&testbed, 1, "link set net0 mtu 1400");
    assert_eq!(four.wait_for(peer, |_| true).mtu, 1400);
    let mut six_ways = ways(&testbed, six(0, 1));
    assert_eq!(
        six_ways.wait_for(six(0, 2), |_| true).longest_payload(),
        1352
    );
}

#[test]
fn when_a_neighbour_changes_its_hardware_address_frames_follow_once_the_kernel_knows() {
    let Some(testbed) = make(Testbed::builder()) else {
        return;
    };
    for (version, network, own, peer) in [
        ("ipv4", 0, address(&testbed, 0, 1), address(&testbed, 0, 2)),
        ("ipv6", 0, six(0, 1), six(0, 2)),
    ] {
        // Sooner than the default of five seconds.
        let folder = format!("net/{version}/neigh/net{network}");
        set(
            &testbed,
            1,
            &format!("{folder}/delay_first_probe_time"),
            "1",
        );
        set(&testbed, 1, &format!("{folder}/retrans_time_ms"), "50");
        let interface = interface(&testbed, 1, "net0");
        let (socket, from) = udp(&testbed, 1, own);
        let (there, to) = udp(&testbed, 2, peer);
        let mut ways = Ways::open(&testbed, 1, &interface, &socket);
        let old = ways.wait_for(peer, |_| true);
        // The address changes without any announcement.
        let mut new = old.mac;
        new[5] ^= 0x55;
        ip(
            &testbed,
            2,
            &format!("link set net0 address {}", mac_text(new)),
        );
        let stale = format!("neighbour change {peer} dev net0 lladdr");
        ip(
            &testbed,
            1,
            &format!("{stale} {} nud stale", mac_text(old.mac)),
        );
        // One packet makes the kernel probe; later ones still use the old address.
        assert_eq!(ways.look(peer), None);
        assert_eq!(ways.look(peer).map(|route| route.mac), Some(old.mac));
        socket.send_to(b"?", (peer, 9)).expect("sent");
        let found = ways.wait_for(peer, |route| route.mac == new);
        let sender = testbed.inside(1, || RawSender::open(&interface, true));
        let mut sender = sender.expect("the node").expect("a raw socket");
        assert_eq!(
            sender.send(&found, from, to, b"new").expect("works"),
            Sent::Taken
        );
        assert_eq!(receive(&there), (from, b"new".to_vec()));
    }
}

#[test]
fn a_neighbour_that_the_kernel_removes_is_forgotten() {
    let Some(testbed) = make(Testbed::builder()) else {
        return;
    };
    let peer = address(&testbed, 0, 2);
    let mut ways = ways(&testbed, address(&testbed, 0, 1));
    ways.wait_for(peer, |_| true);
    ip(&testbed, 1, &format!("neighbour del {peer} dev net0"));
    ways.wait_for_none(peer);
    ways.wait_for(peer, |_| true);
}

#[test]
fn a_lost_interface_or_address_leaves_no_route() {
    let Some(testbed) = make(Testbed::builder()) else {
        return;
    };
    let (own, peer) = (address(&testbed, 0, 1), address(&testbed, 0, 2));
    let mut ways = ways(&testbed, own);
    ways.wait_for(peer, |_| true);
    testbed.set_interface(1, 0, false).expect("ip works");
    ways.wait_for_none(peer);
    testbed.set_interface(1, 0, true).expect("ip works");
    ways.wait_for(peer, |_| true);
    ip(&testbed, 1, &format!("address del {own}/24 dev net0"));
    ways.wait_for_none(peer);
    ip(&testbed, 1, &format!("address add {own}/24 dev net0"));
    ways.wait_for(peer, |_| true);
    // Loss of carrier: the other end of the cable goes down.
    ip(&testbed, 1, "link del net0");
    ways.wait_for_none(peer);
    assert!(!ways.all.interface_state().up);
}

#[test]
fn an_overflow_of_notifications_causes_everything_to_be_queried_again() {
    let Some(testbed) = make(Testbed::builder()) else {
        return;
    };
    let (own, peer) = (address(&testbed, 0, 1), address(&testbed, 0, 2));
    let mut ways = ways(&testbed, own);
    let before = ways.wait_for(peer, |_| true);
    // More notifications than the socket holds, then a change of the interface; none was read.
    let folder = testbed.folder().join("many");
    let lines: Vec<_> = (0..20_000)
        .map(|n: u32| {
            let [_, high, middle, low] = n.to_be_bytes();
            format!("route add blackhole 203.{high}.{middle}.{low}/32\n")
        })
        .collect();
    std::fs::write(&folder, lines.concat()).expect("a file");
    ip(&testbed, 1, &format!("-batch {}", folder.display()));
    ip(&testbed, 1, "link set net0 mtu 1300");
    let after = ways.wait_for(peer, |_| true);
    assert_eq!((before.mtu, after.mtu), (1500, 1300));
}
