//! The switch with faults, between real sockets. The tests need root, `ip` and `/dev/net/tun` and
//! print SKIPPED without them.

#![allow(missing_docs, reason = "tests")]

mod common;
#[path = "common/sockets.rs"]
mod sockets;

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use common::make;
use dipole_testbed::{FaultCounters, Faults, Testbed};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use sockets::{address, socket};

/// Waits until the switch has processed all `frames` and holds none, and returns its counters.
fn settled(testbed: &Testbed, frames: u64) -> FaultCounters {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let counters = testbed.fault_counters();
        let gone = counters.delivered + counters.undelivered + counters.dropped;
        if counters.frames == frames && gone == frames + counters.repeated {
            return counters;
        }
        assert!(Instant::now() < deadline, "{counters:?}");
        thread::yield_now();
    }
}

fn pair(testbed: &Testbed) -> (UdpSocket, UdpSocket) {
    let (from, to) = (socket(testbed, 1, 0), socket(testbed, 2, 0));
    // Large enough for everything that is sent.
    set_socket_recv_buffer_size_force(&to, 64 << 20).expect("root may");
    from.connect(address(&to)).expect("it has an address");
    (from, to)
}

#[test]
fn the_receiver_gets_what_the_switch_has_counted() {
    const SENT: u32 = 20_000;
    let faults = Faults {
        drop: 0.05,
        repeat: 0.02,
        reorder: 0.02,
        seed: 42,
        ..Faults::default()
    };
    let Some(testbed) = make(Testbed::builder().faults(faults)) else {
        return;
    };
    let (from, to) = pair(&testbed);
    for number in 0..SENT {
        from.send(&number.to_be_bytes()).expect("it is sent");
        // The first datagram triggers ARP. The others must not queue up behind it.
        if number == 0 {
            settled(&testbed, 1);
        }
    }
    let counters = settled(&testbed, u64::from(SENT));
    eprintln!("{counters:?}");
    assert_eq!(counters.undelivered, 0);
    let mut numbers = Vec::new();
    for _ in 0..counters.delivered {
        let mut bytes = [0; 4];
        assert_eq!(to.recv(&mut bytes).expect("it has been delivered"), 4);
        numbers.push(u32::from_be_bytes(bytes));
    }
    to.set_nonblocking(true).expect("a socket");
    assert!(to.recv(&mut [0; 4]).is_err(), "more than was delivered");
    assert!(!numbers.is_sorted(), "nothing was overtaken");
    numbers.sort_unstable();
    numbers.dedup();
    let lost = u64::from(SENT) - u64::try_from(numbers.len()).expect("a count");
    assert_eq!(lost, counters.dropped);
    let sent = f64::from(SENT);
    for (name, found, rate) in [
        ("dropped", counters.dropped, faults.drop),
        ("repeated", counters.repeated, faults.repeat),
        ("reordered", counters.reordered, faults.reorder),
    ] {
        let share = f64::from(u32::try_from(found).expect("a count")) / sent;
        assert!((share - rate).abs() < rate * 0.25, "{name}: {share}");
    }
}

#[test]
fn damage_and_delay_reach_the_program() {
    let delay_time = Duration::from_millis(50);
    let faults = Faults {
        delay: 1.0,
        delay_time,
        corrupt: 1.0,
        ..Faults::default()
    };
    let Some(testbed) = make(Testbed::builder().faults(faults).networks(2)) else {
        return;
    };
    let (from, to) = pair(&testbed);
    for _ in 0..20 {
        let sent = [0x55; 100];
        let began = Instant::now();
        from.send(&sent).expect("it is sent");
        let mut bytes = [0; 100];
        let arrived = loop {
            match to.recv(&mut bytes) {
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        assert_eq!(arrived.expect("it arrives"), 100);
        assert!(began.elapsed() >= delay_time);
        let pairs = bytes.iter().zip(&sent);
        let flipped: u32 = pairs.map(|(a, b)| (a ^ b).count_ones()).sum();
        assert_eq!(flipped, 1);
    }
    let counters = settled(&testbed, 20);
    assert_eq!((counters.corrupted, counters.delayed), (20, 20));
}

#[test]
fn an_interface_that_is_down_gets_nothing_from_the_switch() {
    let Some(testbed) = make(Testbed::builder().faults(Faults::default()).rate_mbit(1000)) else {
        return;
    };
    let (from, to) = pair(&testbed);
    from.send(b"one").expect("it is sent");
    assert_eq!(to.recv(&mut [0; 8]).expect("it arrives"), 3);
    testbed
        .set_interface(2, 0, false)
        .expect("there is such an interface");
    from.send(b"two").expect("it is sent");
    let counters = settled(&testbed, 2);
    assert_eq!((counters.delivered, counters.undelivered), (1, 1));
}
