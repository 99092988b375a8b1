//! Attacks on the broker: requests are checked, and harm no one but their sender.

use std::fs::OpenOptions;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use dipole_bpf::grant::channel::{Received, connect, recv, send};
use dipole_bpf::grant::wire::{Reason, Reply, Request};
use dipole_bpf::grant::{pin_port, preview};
use dipole_bpf::hook::{Hook, create_ring};
use dipole_link::{Class, Link};
use rustix::net::sockopt;

use crate::scene::{
    ALICE, BOB, CAROL, MALLORY, RING_BYTES, RINGS, Scene, now_ns, numbers, wait_for,
};
use crate::users::reason;

const QUESTION: Request = Request {
    dry: false,
    ring_bytes: RING_BYTES,
};

impl Scene {
    /// The refusal of a request with these bytes and files; none if the broker closes the
    /// connection.
    fn told(&self, uid: u32, bytes: &[u8], files: &[BorrowedFd<'_>]) -> Option<Reply> {
        self.being(uid, || {
            let connection = connect(&self.broker()).expect("it listens");
            send(connection.as_fd(), bytes, files).expect("sent");
            wait_for("an answer", || match recv(connection.as_fd()) {
                Received::Nothing => None,
                Received::Closed => Some(None),
                Received::Message(bytes, _) => {
                    Some(Some(Reply::decode(&bytes).expect("an answer")))
                }
            })
        })
    }

    fn refused(&self, uid: u32, files: &[BorrowedFd<'_>]) -> (Reason, String) {
        match self.told(uid, &QUESTION.encode(), files) {
            Some(Reply::Refused(refusal)) => (refusal.reason, refusal.text),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_socket_that_does_not_prove_ownership_of_its_port_gets_nothing() {
    let Some(scene) = Scene::with_broker() else {
        return;
    };
    let (address, victim) = (scene.address(1), scene.being(BOB, || scene.bound()));
    let port = victim.local_addr().expect("bound").port();
    let made: Vec<(&str, OwnedFd)> = scene.being(ALICE, || {
        let unbound = rustix::net::socket(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::DGRAM,
            None,
        );
        let connected = scene.bound();
        connected.connect((address, port)).expect("a peer");
        let shared = scene.bound();
        sockopt::set_socket_reuseaddr(&shared, true).expect("an option");
        let everywhere = UdpSocket::bind("0.0.0.0:0").expect("bound");
        let loose = UdpSocket::bind((address, 0)).expect("bound");
        let stream = TcpListener::bind((address, 0)).expect("bound");
        let file = std::fs::File::open("/dev/zero").expect("it is there");
        vec![
            ("is not bound", unbound.expect("a socket")),
            ("is connected", connected.into()),
            ("SO_REUSEADDR", shared.into()),
            ("is not bound", everywhere.into()),
            ("can be released", loose.into()),
            ("not a UDP socket", stream.into()),
            ("not a UDP socket", file.into()),
        ]
    });
    for (wanted, file) in &made {
        let (reason, text) = scene.refused(ALICE, &[file.as_fd()]);
        assert_eq!(reason, Reason::Proof, "{text}");
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    // In a namespace of its own a process can have any address: Bob's, with his port.
    let elsewhere = scene.testbed.inside(2, || {
        let socket = rustix::net::socket(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::DGRAM,
            None,
        );
        let socket = socket.expect("a socket");
        sockopt::set_ip_freebind(&socket, true).expect("an option");
        let at = std::net::SocketAddr::new(address, port);
        rustix::net::bind(&socket, &at).expect("bound");
        socket
    });
    let elsewhere = elsewhere.expect("the node");
    let (reason, text) = scene.refused(ALICE, &[elsewhere.as_fd()]);
    assert_eq!(reason, Reason::Proof, "{text}");
    assert!(text.contains("another network namespace"), "{text}");
    // Addresses of interfaces that are not granted.
    for ip in [
        scene.testbed.node(1).addresses[1].into(),
        [127, 0, 0, 1].into(),
    ] {
        let asked = scene.being(ALICE, || preview(&scene.broker(), ip, RING_BYTES));
        assert_eq!(
            self::reason(&asked.expect_err("not granted")),
            Reason::Interface
        );
    }
    // Bob's own socket, passed by another user while it is granted to Bob.
    let asked = |uid, socket: &UdpSocket| scene.told(uid, &QUESTION.encode(), &[socket.as_fd()]);
    let (grant, granted) = scene.grant(BOB).expect("he may");
    assert_eq!(
        scene.refused(ALICE, &[granted.as_fd()]).0,
        Reason::Taken,
        "his"
    );
    drop(grant);
    assert!(matches!(asked(BOB, &granted), Some(Reply::Granted(_))));
}

#[test]
fn invalid_too_long_or_too_many_rings_are_refused() {
    let Some(scene) = Scene::with_broker() else {
        return;
    };
    for bytes in [RING_BYTES * 4, RING_BYTES + 4096, 2048, 0, u32::MAX] {
        let error = scene.asked(ALICE, bytes).expect_err("no such ring");
        assert_eq!(reason(&error), Reason::Size, "{error}");
    }
    scene
        .asked(ALICE, RING_BYTES * 2)
        .expect("as long as may be");
    let socket = scene.being(ALICE, || scene.bound());
    let file: OwnedFd = std::fs::File::open("/dev/zero")
        .expect("it is there")
        .into();
    let other = scene.testbed.inside(2, || {
        let interface = dipole_bpf::interface_of(scene.address(2))
            .expect("an interface")
            .0;
        Hook::attach(&interface).expect("root may")
    });
    let other = other.expect("the node");
    let long = create_ring(RING_BYTES * 2).expect("root may");
    for (what, no_ring) in [
        ("a file", file.as_fd()),
        ("a link", other.descriptors()[0]),
        ("a map", other.descriptors()[1]),
        ("a ring of another length", long.as_fd()),
        ("the socket again", socket.as_fd()),
    ] {
        let (reason, text) = scene.refused(ALICE, &[socket.as_fd(), no_ring]);
        assert_eq!(reason, Reason::Ring, "{what}: {text}");
    }

    // A ring counts until it is closed in all processes, even after its grant has ended.
    wait_for("no rings", || (scene.status()["rings"] == 0).then_some(()));
    let grants: Vec<_> = (0..RINGS)
        .map(|_| scene.grant(ALICE).expect("she may"))
        .collect();
    let kept: Vec<OwnedFd> = grants
        .iter()
        .map(|(grant, _)| grant.ring().try_clone_to_owned().expect("a descriptor"))
        .collect();
    let full = |scene: &Scene| {
        let error = scene.asked(ALICE, RING_BYTES).expect_err("one too many");
        assert_eq!(reason(&error), Reason::Limit, "{error}");
    };
    full(&scene);
    drop(grants);
    wait_for("nothing attached", || {
        scene.attached().is_empty().then_some(())
    });
    full(&scene);
    scene.asked(BOB, RING_BYTES).expect("another user may");
    drop(kept);
    scene.asked(ALICE, RING_BYTES).expect("there is room again");
}

#[test]
fn invalid_silent_or_lingering_clients_do_not_delay_others() {
    let Some(scene) = Scene::with_broker() else {
        return;
    };
    let socket = scene.being(MALLORY, || scene.bound());
    let long = [QUESTION.encode(), vec![0; 4000]].concat();
    for bytes in [&b"?"[..], &[0; 12], &long] {
        match scene.told(MALLORY, bytes, &[socket.as_fd()]) {
            Some(Reply::Refused(refusal)) => assert_eq!(refusal.reason, Reason::Malformed),
            other => panic!("{other:?}"),
        }
    }
    let mut other = QUESTION.encode();
    other[4] = 7;
    match scene.told(MALLORY, &other, &[]) {
        Some(Reply::Refused(refusal)) => {
            assert_eq!(refusal.reason, Reason::Version);
            assert!(refusal.text.contains("version 7"), "{}", refusal.text);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(scene.refused(ALICE, &[]).0, Reason::Malformed, "no proof");

    // Sockets that linger for ten minutes when they are closed; the broker has the last copy.
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let mut unread = Vec::new();
    let silent = scene.silent(MALLORY);
    for _ in 0..12 {
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
        unread.push(listener.accept().expect("it comes"));
        sockopt::set_socket_linger(&stream, Some(Duration::from_secs(600))).expect("an option");
        stream.set_nonblocking(true).expect("a socket");
        let filler = vec![0; 1 << 20];
        while std::io::Write::write(&mut &stream, &filler).is_ok() {}
        scene.being(MALLORY, || {
            let connection = connect(&scene.broker()).expect("it listens");
            // The request is refused immediately if that user has too many open connections.
            let _refused = send(
                connection.as_fd(),
                &QUESTION.encode(),
                &[stream.as_fd(), stream.as_fd()],
            );
            drop(stream);
        });
        let (grant, _socket) = scene.grant(ALICE).expect("she is served");
        assert_eq!(grant.ring_bytes(), RING_BYTES);
    }
    drop(silent);
    // The broker closes silent connections after two seconds, which may have passed.
    wait_for("Mallory to be turned away", || {
        let _silent = scene.silent(MALLORY);
        (scene.refused_or_not(MALLORY, &socket) == Some(Reason::Busy)).then_some(())
    });
    drop(unread);
    wait_for("Mallory to get a reply again", || {
        (scene.refused_or_not(MALLORY, &socket) == Some(Reason::User)).then_some(())
    });
}

impl Scene {
    /// More connections than a user may have, on which nothing is sent.
    fn silent(&self, uid: u32) -> Vec<OwnedFd> {
        self.being(uid, || {
            (0..100)
                .map(|_| connect(&self.broker()).expect("it listens"))
                .collect()
        })
    }

    /// Why a socket gets no ring.
    fn refused_or_not(&self, uid: u32, socket: &UdpSocket) -> Option<Reason> {
        self.being(uid, || {
            let connection = connect(&self.broker()).expect("it listens");
            // The connection may have been refused before the request.
            let _sent = send(connection.as_fd(), &QUESTION.encode(), &[socket.as_fd()]);
            let heard = wait_for("an answer", || match recv(connection.as_fd()) {
                Received::Nothing => None,
                heard => Some(heard),
            });
            match heard {
                Received::Message(bytes, _) => match Reply::decode(&bytes) {
                    Ok(Reply::Refused(refusal)) => Some(refusal.reason),
                    _ => None,
                },
                _ => None,
            }
        })
    }
}

/// Addresses of the mapped pages with the readers' positions.
fn consumer_pages() -> Vec<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("it is there");
    let rings = maps
        .lines()
        .filter(|line| line.contains("rw-s") && line.contains("bpf-map"));
    let begin = |line: &str| u64::from_str_radix(line.split('-').next()?, 16).ok();
    rings.filter_map(begin).collect()
}

#[test]
fn a_user_who_corrupts_and_floods_a_ring_harms_only_himself() {
    let Some(scene) = Scene::with_broker() else {
        return;
    };
    let (peer, _) = scene.peer();
    let bad = scene.link(ALICE);
    let pages = consumer_pages();
    assert_eq!(pages.len(), 1, "one ring");
    let mut good = scene.link(BOB);
    let (to_bad, to_good) = (bad.local(Class::Small), good.local(Class::Small));
    let memory = OpenOptions::new()
        .write(true)
        .open("/proc/self/mem")
        .expect("our own");
    let mut seen = 0;
    for (round, nonsense) in [0, 1, u64::MAX, 1 << 63, 0x1234_5678_9abc_def0, 1 << 20]
        .into_iter()
        .cycle()
        .take(30)
        .enumerate()
    {
        memory
            .write_at(&u64::to_ne_bytes(nonsense), pages[0])
            .expect("our own page");
        for _ in 0..200 {
            peer.send_to(&[7; 1000], to_bad).expect("sent");
        }
        for number in 0..50 {
            let number = seen + number;
            peer.send_to(&u64::to_le_bytes(number), to_good)
                .expect("sent");
        }
        let found = numbers(&mut good, 50);
        assert_eq!(found, (seen..seen + 50).collect::<Vec<_>>(), "{round}");
        seen += 50;
    }
    assert_eq!(good.stats().from_ring, seen, "none took the socket");
    drop(bad);
    for _ in 0..200 {
        peer.send_to(&[7; 1000], to_bad).expect("sent");
    }
    peer.send_to(&u64::to_le_bytes(seen), to_good)
        .expect("sent");
    assert_eq!(numbers(&mut good, 1), [seen]);
    assert_eq!(good.poll(now_ns(), Class::Small).expect("a link"), 0);
}

#[test]
fn a_grant_ends_when_its_owner_shares_the_port() {
    let Some(scene) = Scene::with_broker() else {
        return;
    };
    let (_grant, socket) = scene.grant(CAROL).expect("she may");
    assert_eq!(scene.attached().len(), 2, "program and guard");
    // Now another process could bind the port, too.
    sockopt::set_socket_reuseaddr(&socket, true).expect("an option");
    wait_for("the grant's end", || {
        let left = scene.attached();
        (left.len() == 1).then_some(())
    });
    let loose = scene.being(ALICE, || {
        let socket = UdpSocket::bind((scene.address(1), 0)).expect("bound");
        pin_port(socket.as_fd()).expect("a port");
        // The pinned port stays bound.
        rustix::net::connect_unspec(&socket).expect("disconnect");
        socket.local_addr().expect("bound").port()
    });
    assert_ne!(loose, 0);
}
