//! Tests of hooks with IPv6, VLAN tags, foreign frames and fewer privileges.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use dipole_testbed::Testbed;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::drain::{Deposit, Drain};
use super::guard_tests::frame_socket;
use super::tests::{attach, interface, mac, socket, testbed, wait_for};
use super::*;
use crate::grant::ring_info;
use crate::program::model;

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split_whitespace()).status();
    assert!(status.unwrap().success(), "ip {words}");
}

#[test]
fn ipv6_packets_are_deposited_and_their_fragments_reach_the_socket() {
    let Some(testbed) = testbed() else { return };
    let [sender, ours] = [1, 2].map(|node| {
        let namespace = &testbed.node(node).namespace;
        ip(&format!(
            "-n {namespace} address add fd00:5::{node}/64 dev net0 nodad"
        ));
        let bound = testbed.inside(node, || UdpSocket::bind(format!("[fd00:5::{node}]:0")));
        bound.unwrap().unwrap()
    });
    ours.set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let to = ours.local_addr().unwrap();
    let ring = create_ring(1 << 16).unwrap();
    let mut drain = Drain::open(ring.as_fd());
    let hook = attach(&testbed, 2);
    hook.add(to.ip(), to.port(), ring.as_fd()).unwrap();
    for length in [1, 1400, 8_900] {
        sender.send_to(&vec![8; length], to).unwrap();
        let found = wait_for(&mut drain, 1);
        assert_eq!(found[0].payload, vec![8; length]);
        assert_eq!(source(&found[0]), sender.local_addr().unwrap());
    }
    sender.send_to(&[7; 20_000], to).unwrap();
    let mut buffer = vec![0; 30_000];
    assert_eq!(ours.recv(&mut buffer).unwrap(), 20_000);
    assert_eq!(drain.take(), []);
}

#[test]
fn a_tagged_packet_is_passed_on() {
    let Some(testbed) = testbed() else { return };
    let to = testbed.node(2).addresses[0];
    let mut frame = model::packet(4, 10, 0);
    frame[26..30].copy_from_slice(&testbed.node(1).addresses[0].octets());
    frame[30..34].copy_from_slice(&to.octets());
    frame[..6].copy_from_slice(&mac(&testbed, 2));
    model::set_checksum(&mut frame);
    // VLAN tag 5, before the EtherType.
    let tagged = [&frame[..12], &[0x81, 0, 0, 5], &frame[12..]].concat();
    let (mut sender, _) = frame_socket(&testbed, 1, &interface(&testbed, 1));
    let hook = attach(&testbed, 2);
    let ring = create_ring(4096).unwrap();
    let mut drain = Drain::open(ring.as_fd());
    hook.add(to.into(), model::PORT, ring.as_fd()).unwrap();
    sender.write_all(&tagged).unwrap();
    sender.write_all(&frame).unwrap();
    assert_eq!(wait_for(&mut drain, 1).len(), 1);
    let wanted = Counters {
        deposited: 1,
        ..Counters::default()
    };
    assert_eq!(hook.counters().unwrap(), wanted);
}

fn source(deposit: &Deposit) -> SocketAddr {
    assert_eq!(deposit.version, 6);
    (IpAddr::from(deposit.source), deposit.port).into()
}

/// Runs a function in a node, on a thread with only these capabilities.
fn with_only<T: Send>(
    testbed: &Testbed,
    capabilities: CapabilitySet,
    function: impl FnOnce() -> T + Send,
) -> T {
    let ran = testbed.inside(2, || {
        let sets = CapabilitySets {
            effective: capabilities,
            permitted: capabilities,
            inheritable: CapabilitySet::empty(),
        };
        set_capabilities(None, sets).unwrap();
        function()
    });
    ran.unwrap()
}

#[test]
fn two_capabilities_suffice_and_a_missing_one_is_named() {
    let Some(testbed) = testbed() else { return };
    let interface = interface(&testbed, 2);
    let both = CapabilitySet::BPF | CapabilitySet::NET_ADMIN;
    let hook = with_only(&testbed, both, || Hook::attach(&interface)).unwrap();
    let ring = with_only(&testbed, both, || create_ring(4096)).unwrap();
    with_only(&testbed, both, || {
        let own = testbed.node(2).addresses[0].into();
        hook.add(own, 9, ring.as_fd()).unwrap();
        hook.remove(own, 9).unwrap();
        hook.counters().unwrap();
    });
    // Querying the size of a ring needs no capability.
    let size = with_only(&testbed, CapabilitySet::empty(), || ring_info(ring.as_fd()));
    assert_eq!(size.unwrap().bytes, 4096);
    let guard = with_only(&testbed, both, || Guard::attach(&interface));
    assert_eq!(guard.unwrap().refused().unwrap(), 0);

    let attempt = |capabilities| with_only(&testbed, capabilities, || Hook::attach(&interface));
    let refused = attempt(CapabilitySet::NET_ADMIN).unwrap_err().to_string();
    assert!(
        refused.contains("net0: creating a BPF map needs CAP_BPF ("),
        "{refused}"
    );
    let refused = attempt(CapabilitySet::BPF).unwrap_err().to_string();
    assert!(refused.contains("needs CAP_NET_ADMIN ("), "{refused}");
    assert!(refused.contains("grant rings on net0"), "{refused}");
}

#[test]
fn another_hosts_frames_are_not_taken() {
    let Some(testbed) = testbed() else { return };
    let hook = attach(&testbed, 2);
    let ring = create_ring(4096).unwrap();
    let ours = socket(&testbed, 2);
    let to = ours.local_addr().unwrap();
    hook.add(to.ip(), to.port(), ring.as_fd()).unwrap();
    // A neighbour entry with an unused hardware address, so that the bridge floods the frame.
    let namespace = &testbed.node(1).namespace;
    ip(&format!(
        "-n {namespace} neighbour replace {} lladdr 02:00:00:00:00:99 dev net0",
        to.ip()
    ));
    socket(&testbed, 1).send_to(b"astray", to).unwrap();
    let own = mac(&testbed, 2);
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while hook.counters().unwrap().other_hosts == 0 {
        assert!(std::time::Instant::now() < deadline, "{own:?}");
        std::thread::yield_now();
    }
    assert_eq!(Drain::open(ring.as_fd()).take(), []);
    assert_ne!(own, model::MAC);
}
