//! Testbeds as their users see them. The tests need root and `ip` and print SKIPPED without them.

#![allow(missing_docs, reason = "tests")]

mod common;
#[path = "common/sockets.rs"]
mod sockets;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::make;
use dipole_testbed::{Offloads, Testbed};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{RcvBuf, UdpGroSegment, UdpGsoSegment};
use rustix::net::sockopt::{Ipv4PathMtuDiscovery, set_ip_mtu_discover};
use sockets::{address, socket};

#[test]
fn four_nodes_reach_each_other_on_both_networks() {
    let Some(testbed) = make(Testbed::builder().nodes(4).networks(2)) else {
        return;
    };
    for network in 0..2 {
        let sockets: Vec<_> = (1..=4)
            .map(|node| socket(&testbed, node, network))
            .collect();
        for from in &sockets {
            for to in sockets.iter().filter(|to| address(to) != address(from)) {
                from.send_to(b"ping", address(to)).expect("it is sent");
                let (length, sender) = to.recv_from(&mut [0; 16]).expect("it arrives");
                assert_eq!((length, sender), (4, address(from)));
            }
        }
    }
}

#[test]
fn a_program_on_a_node_finds_itself_in_its_environment_and_in_the_hosts_file() {
    let Some(testbed) = make(Testbed::builder().slots(3)) else {
        return;
    };
    let script = "echo $DIPOLE_NID $DIPOLE_RUNTIME_DIR; cat $DIPOLE_HOSTS; ip -o address";
    let output = testbed.command(2, "sh").args(["-c", script]).output();
    let text = String::from_utf8(output.expect("sh runs").stdout).expect("text");
    let place = testbed.node(2);
    let runtime = place.runtime_dir.display();
    assert!(text.starts_with(&format!("2 {runtime}\n")), "{text}");
    let line = format!(
        "2 10.0.0.2 port=7411 slots=3 runtime={runtime} ssh={}\n",
        place.namespace
    );
    assert!(text.contains(&line), "{text}");
    assert!(text.contains("inet 10.0.0.2/24") && text.contains("127.0.0.1"));
    let mut remote = Command::new(testbed.remote_shell());
    let output = remote.args([&testbed.node(1).namespace, "ip", "-o", "address"]);
    let text = String::from_utf8(output.output().expect("it runs").stdout).expect("text");
    assert!(text.contains("inet 10.0.0.1/24"), "{text}");
}

#[test]
fn an_interface_down_stops_its_network_and_no_other() {
    let Some(testbed) = make(Testbed::builder().networks(2)) else {
        return;
    };
    let reaches = |network| {
        let (from, to) = (socket(&testbed, 1, network), socket(&testbed, 2, network));
        // Long enough for a busy machine; only reached when nothing arrives.
        let patience = Duration::from_secs(2);
        to.set_read_timeout(Some(patience)).expect("a time");
        // An error counts as unreachable, too.
        let _may_be_refused = from.send_to(b"ping", address(&to));
        to.recv_from(&mut [0; 16]).is_ok()
    };
    assert!(reaches(0) && reaches(1));
    testbed
        .set_interface(2, 0, false)
        .expect("there is such an interface");
    assert!(!reaches(0) && reaches(1));
    testbed
        .set_interface(2, 0, true)
        .expect("there is such an interface");
    assert!(reaches(0) && reaches(1));
    assert!(testbed.set_interface(1, 2, false).is_err());
}

#[test]
fn a_shaped_network_passes_no_more_than_its_rate() {
    const RATE_MBIT: u32 = 50;
    let builder = Testbed::builder().rate_mbit(u64::from(RATE_MBIT));
    let Some(testbed) = make(builder.queue_bytes(64 << 10)) else {
        return;
    };
    let (from, to) = (socket(&testbed, 1, 0), socket(&testbed, 2, 0));
    let goal = address(&to);
    let patience = Some(Duration::from_millis(500));
    to.set_read_timeout(patience).expect("a time");
    let began = Instant::now();
    let sender = thread::spawn(move || {
        while began.elapsed() < Duration::from_secs(1) {
            // A full queue may reject datagrams, which does not matter here.
            let _may_be_refused = from.send_to(&[0; 1400], goal);
        }
    });
    let (mut bytes, mut last) = (0.0, began);
    while let Ok(length) = to.recv(&mut [0; 2048]) {
        bytes += f64::from(u32::try_from(length).expect("a datagram"));
        last = Instant::now();
    }
    sender.join().expect("it sends");
    let mbit = bytes * 8.0 / 1e6 / (last - began).as_secs_f64();
    eprintln!("{mbit:.1} Mbit/s arrived");
    // Without a shaper it is hundreds to thousands. The lower bound allows for a busy machine.
    assert!(mbit < f64::from(RATE_MBIT) * 1.25, "{mbit}");
    assert!(mbit > f64::from(RATE_MBIT) / 20.0, "{mbit}");
}

#[test]
fn a_long_datagram_passes_where_the_mtu_allows_it_and_not_elsewhere() {
    for (mtu, passes) in [(9000, true), (1500, false)] {
        let Some(testbed) = make(Testbed::builder().mtu(mtu)) else {
            return;
        };
        let (from, to) = (socket(&testbed, 1, 0), socket(&testbed, 2, 0));
        set_ip_mtu_discover(&from, Ipv4PathMtuDiscovery::DO).expect("don't fragment");
        let sent = from.send_to(&[7; 8900], address(&to));
        assert_eq!(sent.is_ok(), passes, "MTU {mtu}: {sent:?}");
        if passes {
            let length = to.recv(&mut [0; 9000]).expect("it arrives");
            assert_eq!(length, 8900);
        }
    }
}

/// Returns the bytes per packet of a stream at the receiving interface.
fn packet_bytes(offloads: Offloads) -> Option<f64> {
    let testbed = make(Testbed::builder().offloads(offloads))?;
    let place = testbed.node(2).addresses[0];
    let listener = testbed.inside(2, || TcpListener::bind((place, 0)));
    let listener = listener.expect("a node").expect("a free port");
    let goal = listener.local_addr().expect("it is bound");
    let connected = testbed.inside(1, || TcpStream::connect(goal));
    let mut stream = connected.expect("a node").expect("it listens");
    let (mut accepted, _) = listener.accept().expect("it has connected");
    let writer = thread::spawn(move || stream.write_all(&vec![0; 20 << 20]));
    let mut rest = Vec::new();
    accepted.read_to_end(&mut rest).expect("it ends");
    writer.join().expect("no panic").expect("it is written");
    assert_eq!(rest.len(), 20 << 20);
    let counter = |name: &str| -> f64 {
        let path = format!("/sys/class/net/net0/statistics/rx_{name}");
        let output = testbed
            .command(2, "cat")
            .arg(path)
            .output()
            .expect("cat runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.trim().parse().expect("a number")
    };
    Some(counter("bytes") / counter("packets"))
}

#[test]
fn packets_cross_the_wire_one_by_one_unless_offloads_are_on() {
    for (offloads, alone) in [
        (Offloads::On, false),
        (Offloads::Off, true),
        (Offloads::GroOnly, true),
    ] {
        let Some(bytes) = packet_bytes(offloads) else {
            return;
        };
        assert_eq!(bytes <= 1514.0, alone, "{offloads:?}: {bytes}");
    }
}

#[test]
fn killing_a_node_ends_its_processes_and_no_others() {
    let Some(testbed) = make(Testbed::builder()) else {
        return;
    };
    let start = |node| {
        let mut command = testbed.command(node, "sh");
        command.args(["-c", "echo there; exec sleep 1000"]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("sh runs");
        let output = child.stdout.take().expect("a pipe");
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).expect("a line");
        child
    };
    let (mut first, mut second) = (start(1), start(2));
    assert_eq!(testbed.kill_node(1).expect("it ends"), 1);
    assert_eq!(first.wait().expect("ours").signal(), Some(9));
    assert!(second.try_wait().expect("ours").is_none());
    assert_eq!(testbed.kill_node(1).expect("nothing to do"), 0);
    drop(testbed);
    assert_eq!(second.wait().expect("ours").signal(), Some(9));
}

#[test]
fn the_hosts_file_names_the_interfaces_on_all_networks() {
    let Some(testbed) = make(Testbed::builder().networks(3)) else {
        return;
    };
    let text = std::fs::read_to_string(testbed.hosts_file()).expect("it is written");
    assert!(
        text.contains("2 10.0.0.2 interfaces=10.1.0.2,10.2.0.2 port="),
        "{text}"
    );
}

/// Sends datagrams in bursts. Returns the longest `recv` of a socket with UDP_GRO, and the bytes per
/// packet at the receiving interface.
fn joined_bytes(offloads: Offloads) -> Option<(usize, f64)> {
    const DATAGRAM_BYTES: usize = 1000;
    const RUNS: usize = 200;
    const RUN_DATAGRAMS: usize = 40;
    let testbed = make(Testbed::builder().offloads(offloads))?;
    let (from, to) = (socket(&testbed, 1, 0), socket(&testbed, 2, 0));
    setsockopt(&to, UdpGroSegment, &true).expect("a kernel from 5.0 on");
    setsockopt(&to, RcvBuf, &(8 << 20)).expect("a size");
    let goal = address(&to);
    let sender = thread::spawn(move || {
        setsockopt(&from, UdpGsoSegment, &1000).expect("a kernel from 4.18 on");
        for _ in 0..RUNS {
            let run = vec![7; RUN_DATAGRAMS * DATAGRAM_BYTES];
            from.send_to(&run, goal).expect("it is sent");
        }
    });
    to.set_read_timeout(Some(Duration::from_secs(2)))
        .expect("a time");
    let (mut longest, mut bytes) = (0, 0);
    let mut buffer = vec![0; 1 << 16];
    // Some may be lost where the queue is short, but most must arrive.
    while bytes < RUNS * RUN_DATAGRAMS * DATAGRAM_BYTES {
        let Ok(length) = to.recv(&mut buffer) else {
            break;
        };
        (longest, bytes) = (longest.max(length), bytes + length);
    }
    sender.join().expect("it sends");
    assert!(bytes > 0, "something arrives");
    let counter = |name: &str| -> f64 {
        let path = format!("/sys/class/net/net0/statistics/rx_{name}");
        let output = testbed
            .command(2, "cat")
            .arg(path)
            .output()
            .expect("cat runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.trim().parse().expect("a number")
    };
    Some((longest, counter("bytes") / counter("packets")))
}

#[test]
fn gro_joins_datagrams_that_have_crossed_separately() {
    let Some((longest, on_the_wire)) = joined_bytes(Offloads::GroOnly) else {
        return;
    };
    eprintln!("up to {longest} bytes joined, {on_the_wire:.0} per packet on the wire");
    assert!(on_the_wire <= 1514.0, "{on_the_wire}");
    assert!(longest > 1000, "{longest}: nothing was joined");
    let (longest, on_the_wire) = joined_bytes(Offloads::Off).expect("it was made before");
    assert!(on_the_wire <= 1514.0, "{on_the_wire}");
    assert_eq!(longest, 1000, "something was joined");
}
