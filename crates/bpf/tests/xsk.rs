//! AF_XDP sockets between two nodes with real interfaces, in copy mode.

#![allow(missing_docs, reason = "tests")]

mod testbed;

use std::net::{IpAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use dipole_bpf::InterfaceId;
use dipole_bpf::raw::{RawFrame, Sent};
use dipole_bpf::xsk::{Xsk, XskHook, XskOptions, longest_received_frame};
use dipole_testbed::Testbed;
use testbed::{Ways, interface, make, receive, six, udp};

fn address(testbed: &Testbed, v6: bool, node: u32) -> IpAddr {
    match v6 {
        true => six(0, node),
        false => testbed.node(node).addresses[0].into(),
    }
}

fn payload(length: usize) -> Vec<u8> {
    (0..=255).cycle().take(length).collect()
}

/// Offers frames in order: how many were taken, and what became of the one after those.
fn send(xsk: &mut Xsk, frames: &[RawFrame<'_>]) -> (usize, Sent) {
    let all = (0..)
        .zip(frames)
        .map(|(taken, frame)| (taken, xsk.put(frame)));
    let end = all.into_iter().find(|(_, sent)| *sent != Sent::Taken);
    xsk.flush().expect("works");
    end.unwrap_or((frames.len(), Sent::Taken))
}

const SEND_ONLY: XskOptions = XskOptions {
    queue: 0,
    pieces: 64,
    receive: false,
    zero_copy: false,
};

#[test]
fn what_it_sends_arrives_at_a_socket() {
    let Some(testbed) = make(Testbed::builder()) else {
        return;
    };
    let interface = interface(&testbed, 1, "net0");
    let xsk = testbed.inside(1, || Xsk::open(&interface, &SEND_ONLY));
    let mut xsk = xsk.expect("the node").expect("a queue of our own");
    assert!(!xsk.is_zero_copy());
    for v6 in [false, true] {
        let (own, from) = udp(&testbed, 1, address(&testbed, v6, 1));
        let (there, to) = udp(&testbed, 2, address(&testbed, v6, 2));
        let mut ways = Ways::open(&testbed, 1, &interface, &own);
        let route = ways.wait_for(to.ip(), |_| true);
        let most = route.longest_payload();
        // More than there are pieces and than the kernel sends at once.
        let payloads: Vec<_> = (0..200_usize).map(|n| payload(1 + n * 37 % most)).collect();
        let frames: Vec<_> = payloads
            .iter()
            .map(|payload| RawFrame {
                route,
                from,
                to,
                payload: [payload, &[]],
            })
            .collect();
        let deadline = Instant::now() + testbed::PATIENCE;
        let mut taken = 0;
        for (number, payload) in payloads.iter().enumerate() {
            while taken <= number {
                let (count, end) = send(&mut xsk, &frames[taken..]);
                assert_ne!(end, Sent::NotThisWay);
                taken += count;
                assert!(Instant::now() < deadline, "{taken} taken");
            }
            let (sender, got) = receive(&there);
            assert_eq!(sender, from);
            assert!(&got == payload, "frame {number}");
        }
        let long = payload(most + 1);
        let refused = RawFrame {
            payload: [&long, &[]],
            ..frames[0]
        };
        let sent = send(&mut xsk, &[refused, frames[0]]);
        assert_eq!(sent, (0, Sent::NotThisWay));
    }
}

#[test]
fn a_second_one_on_the_same_queue_is_refused_by_name() {
    let Some(testbed) = make(Testbed::builder()) else {
        return;
    };
    let interface = interface(&testbed, 1, "net0");
    let open = || {
        testbed
            .inside(1, || Xsk::open(&interface, &SEND_ONLY))
            .expect("the node")
    };
    let _first = open().expect("a queue of our own");
    let error = open().expect_err("it is taken").to_string();
    assert!(error.contains("queue 0 of interface net0"), "{error}");
}

/// The kernel gives a queue back a moment after its socket was closed.
fn open_when_free(testbed: &Testbed, interface: &InterfaceId, options: &XskOptions) -> Xsk {
    let deadline = Instant::now() + testbed::PATIENCE;
    loop {
        let opened = testbed.inside(2, || Xsk::open(interface, options));
        match opened.expect("the node") {
            Ok(xsk) => return xsk,
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy, "{error}"),
        }
        assert!(Instant::now() < deadline, "the queue does not become free");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn it_receives_what_a_socket_sends_and_others_get_the_rest() {
    let Some(testbed) = make(Testbed::builder()) else {
        return;
    };
    let interface = interface(&testbed, 2, "net0");
    let options = XskOptions {
        pieces: 64,
        ..XskOptions::default()
    };
    for v6 in [false, true] {
        let mut xsk = open_when_free(&testbed, &interface, &options);
        let (sender, from) = udp(&testbed, 1, address(&testbed, v6, 1));
        // The port is taken, so that nobody else may have it.
        let (there, to) = udp(&testbed, 2, address(&testbed, v6, 2));
        let (other, other_to) = udp(&testbed, 2, address(&testbed, v6, 2));
        let hook = testbed.inside(2, || XskHook::attach(&interface, &xsk, to));
        let hook = hook.expect("the node").expect("a program at XDP");
        // Much more than there are pieces: each is used again.
        for number in 0..300_usize {
            let sent = payload(1 + number * 29 % 1400);
            sender.send_to(&sent, to).expect("sent");
            let deadline = Instant::now() + testbed::PATIENCE;
            while xsk.poll().expect("works") == 0 {
                assert!(Instant::now() < deadline, "frame {number} does not come");
                thread::sleep(Duration::from_micros(50));
            }
            let (who, got) = xsk.frame(0);
            assert_eq!(who, from);
            assert!(got == sent, "frame {number}");
        }
        // Other ports, and what is no UDP at all.
        sender.send_to(b"other", other_to).expect("sent");
        assert_eq!(receive(&other), (from, b"other".to_vec()));
        let listener = testbed.inside(2, || TcpListener::bind((to.ip(), 0)));
        let listener = listener.expect("the node").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let stream = testbed.inside(1, || TcpStream::connect((to.ip(), port)));
        stream.expect("the node").expect("TCP is let alone");
        assert_eq!(xsk.poll().expect("works"), 0);
        assert_eq!(hook.wrong_queue().expect("counted"), 0);
        // Taken off, the socket gets what it got.
        drop(hook);
        sender.send_to(b"back", to).expect("sent");
        assert_eq!(receive(&there), (from, b"back".to_vec()));
    }
}

#[test]
fn packets_on_another_queue_are_counted_and_go_to_the_socket() {
    let Some(testbed) = make(Testbed::builder()) else {
        return;
    };
    // A second pair of interfaces, with two queues.
    let two = &testbed.node(2).namespace;
    testbed::ip(
        &testbed,
        1,
        "link add many0 numrxqueues 2 numtxqueues 2 type veth peer name many1 numrxqueues 2 \
         numtxqueues 2",
    );
    testbed::ip(&testbed, 1, &format!("link set many1 netns {two}"));
    for (node, name) in [(1, "many0"), (2, "many1")] {
        testbed::ip(
            &testbed,
            node,
            &format!("address add 192.0.2.{node}/24 dev {name}"),
        );
        testbed::ip(&testbed, node, &format!("link set {name} up"));
    }
    let interface = interface(&testbed, 2, "many1");
    let options = XskOptions {
        pieces: 64,
        queue: 1,
        ..XskOptions::default()
    };
    let xsk = testbed.inside(2, || Xsk::open(&interface, &options));
    let mut xsk = xsk.expect("the node").expect("a queue of our own");
    let (there, to) = udp(&testbed, 2, [192, 0, 2, 2]);
    let hook = testbed.inside(2, || XskHook::attach(&interface, &xsk, to));
    let hook = hook.expect("the node").expect("a program at XDP");
    // A packet's queue may depend on its ports, so several senders are tried.
    there.set_nonblocking(true).expect("set");
    let deadline = Instant::now() + testbed::PATIENCE;
    let (mut sent, mut by_socket, mut by_ring) = (0, 0, 0);
    while by_socket == 0 || by_socket + by_ring < sent {
        let (sender, _) = udp(&testbed, 1, [192, 0, 2, 1]);
        sender.send_to(b"?", to).expect("sent");
        sent += 1;
        while by_socket + by_ring < sent && Instant::now() < deadline {
            by_ring += xsk.poll().expect("works");
            by_socket += usize::from(there.recv_from(&mut [0; 8]).is_ok());
        }
        assert!(
            Instant::now() < deadline,
            "{by_socket} and {by_ring} of {sent}"
        );
    }
    let counted = hook.wrong_queue().expect("counted");
    assert_eq!(usize::try_from(counted), Ok(by_socket));
}

#[test]
fn jumbo_frames_go_in_as_far_as_a_piece_reaches() {
    let Some(testbed) = make(Testbed::builder().mtu(9000)) else {
        return;
    };
    let interface = interface(&testbed, 1, "net0");
    let xsk = testbed.inside(1, || Xsk::open(&interface, &SEND_ONLY));
    let mut xsk = xsk.expect("the node").expect("a queue of our own");
    let (own, from) = udp(&testbed, 1, address(&testbed, false, 1));
    let (there, to) = udp(&testbed, 2, address(&testbed, false, 2));
    let route = Ways::open(&testbed, 1, &interface, &own).wait_for(to.ip(), |_| true);
    let longest = dipole_bpf::xsk::PIECE_BYTES - 42;
    for (length, wanted) in [
        (longest, (1, Sent::Taken)),
        (longest + 1, (0, Sent::NotThisWay)),
    ] {
        let payload = payload(length);
        let frame = RawFrame {
            route,
            from,
            to,
            payload: [&payload, &[]],
        };
        assert_eq!(send(&mut xsk, &[frame]), wanted);
    }
    assert_eq!(receive(&there).1.len(), longest);
    assert!(longest_received_frame() < longest);
}
