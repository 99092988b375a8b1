//! Tests of guarded sockets on real interfaces, in network namespaces.

use std::fs::File;
use std::io::Write;
use std::net::IpAddr;
use std::time::Duration;

use dipole_link::sys::set_option;
use dipole_testbed::Testbed;

use super::tests::{interface, mac, socket, testbed};
use super::*;
use crate::program::model;
use crate::raw::packet_socket;

/// A socket that sends raw frames on a node's interface, and its cookie.
pub(super) fn frame_socket(testbed: &Testbed, node: u32, interface: &InterfaceId) -> (File, u64) {
    let socket = testbed.inside(node, || packet_socket(interface));
    let socket = socket.unwrap().unwrap();
    let cookie = rustix::net::sockopt::socket_cookie(&socket).unwrap();
    (socket.into(), cookie)
}

#[test]
fn a_guarded_socket_sends_only_what_it_may() {
    let Some(testbed) = testbed() else { return };
    let interface = interface(&testbed, 1);
    let guard = testbed
        .inside(1, || Guard::attach(&interface))
        .unwrap()
        .unwrap();
    let receiver = socket(&testbed, 2);
    receiver
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let IpAddr::V4(own) = testbed.node(1).addresses[0].into() else {
        unreachable!()
    };
    let [mac, to_mac] = [1, 2].map(|node| mac(&testbed, node));
    let frame = |marker: u8| {
        let mut frame = model::packet(4, 1, 0);
        frame[..6].copy_from_slice(&to_mac);
        frame[6..12].copy_from_slice(&mac);
        frame[26..30].copy_from_slice(&own.octets());
        frame[30..34].copy_from_slice(&testbed.node(2).addresses[0].octets());
        frame[36..38].copy_from_slice(&receiver.local_addr().unwrap().port().to_be_bytes());
        model::set_checksum(&mut frame);
        frame[42] = marker;
        frame
    };
    let changed = |at: usize| {
        let mut frame = frame(99);
        frame[at] ^= 1;
        frame
    };
    let (mut granted, cookie) = frame_socket(&testbed, 1, &interface);
    let allowed = AllowedSource {
        mac,
        address: own.into(),
        ports: [1, model::FROM_PORT],
    };
    guard.allow(cookie, &allowed).unwrap();
    let received = || {
        let mut buffer = [0; 100];
        assert_eq!(receiver.recv(&mut buffer).unwrap(), 1);
        buffer[0]
    };
    // Source MAC, version, fragment, protocol, source address, source port.
    for (count, at) in (1..).zip([6, 11, 12, 14, 20, 21, 23, 26, 29, 34, 35]) {
        // The sender may or may not get an error.
        let _told = granted.write(&changed(at));
        assert_eq!(guard.refused().unwrap(), count, "byte {at}");
    }
    granted.write_all(&frame(1)).unwrap();
    assert_eq!(received(), 1);

    let before = guard.refused().unwrap();
    guard.forbid(cookie).unwrap();
    let _told = granted.write(&frame(2));
    assert_eq!(guard.refused().unwrap(), before + 1);
    // A forbidden socket may not send an all-zero source either.
    let _told = granted.write(&[0; 100]);
    assert_eq!(guard.refused().unwrap(), before + 2);

    // Other sockets are not affected.
    let (mut free, _) = frame_socket(&testbed, 1, &interface);
    free.write_all(&frame(3)).unwrap();
    assert_eq!(received(), 3);
    guard.forget(cookie).unwrap();
    granted.write_all(&frame(4)).unwrap();
    assert_eq!(received(), 4);
    assert_eq!(guard.refused().unwrap(), before + 2);

    // Frames that bypass the guard: documented, so a change must be noticed.
    guard.forbid(cookie).unwrap();
    let bypass = libc::PACKET_QDISC_BYPASS;
    set_option(granted.as_fd(), libc::SOL_PACKET, bypass, 1_i32).unwrap();
    granted.write_all(&frame(5)).unwrap();
    assert_eq!(received(), 5);
}
