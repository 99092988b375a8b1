//! Users with and without permission.

use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

use dipole_bpf::grant::GrantError;
use dipole_bpf::grant::wire::Reason;
use dipole_bpf::neighbours::{Neighbours, Route};
use dipole_bpf::raw::{RawSender, Sent};
use dipole_link::{Class, Link, Outgoing};
use rustix::net::RecvFlags;

use crate::scene::{ALICE, BOB, CAROL, MALLORY, RING_BYTES, Scene, numbers, wait_for};

pub(crate) fn reason(error: &GrantError) -> Reason {
    match error {
        GrantError::Refused(refusal) => refusal.reason,
        other => panic!("no refusal: {other}"),
    }
}

#[test]
fn with_permission_packets_arrive_by_a_granted_ring_and_without_the_broker_states_why() {
    let Some(scene) = Scene::with_broker() else {
        return;
    };
    let (peer, to) = scene.peer();
    for uid in [ALICE, BOB] {
        let before = scene.counter("deposited");
        let mut link = scene.link(uid);
        assert!(link.has_rx() && !link.sends_raw());
        let at = link.local(Class::Small);
        for number in 0..100_u64 {
            peer.send_to(&number.to_le_bytes(), at).expect("sent");
        }
        assert_eq!(numbers(&mut link, 100), (0..100).collect::<Vec<_>>());
        assert_eq!(link.stats().from_ring, 100);
        assert_eq!(scene.counter("deposited"), before + 100);
        let user = &scene.status()["interfaces"][0]["users"][0];
        assert_eq!((&user["uid"], &user["rings"]), (&uid.into(), &1.into()));
        // Outgoing packets use the socket.
        let frame = Outgoing::frame(Class::Small, to, b"answer");
        assert_eq!(link.send(0, &[frame]).expect("a link"), 1);
        let mut answer = [0; 16];
        let (length, from) = peer.recv_from(&mut answer).expect("an answer");
        assert_eq!((&answer[..length], from), (&b"answer"[..], at));
        drop(link);
        wait_for("nothing attached", || {
            scene.attached().is_empty().then_some(())
        });
    }
    let refused = scene.grant(MALLORY).expect_err("no permission");
    assert_eq!(reason(&refused), Reason::User);
    let text = refused.to_string();
    assert!(
        text.contains(&format!("user {MALLORY} may not use interface net0")),
        "{text}"
    );
    assert!(scene.attached().is_empty(), "not for those who are refused");
}

/// The route from the first node to a peer.
fn route(scene: &Scene, own: SocketAddr, to: SocketAddr) -> Route {
    let interface = scene.interface();
    let all = scene
        .testbed
        .inside(1, || Neighbours::open(&interface, own.ip()));
    let mut all = all.expect("the node").expect("the kernel tells");
    let socket = scene
        .testbed
        .inside(1, || std::net::UdpSocket::bind((own.ip(), 0)));
    let socket = socket.expect("the node").expect("its own address");
    let mut now = 0;
    wait_for("a way", || {
        socket.send_to(b"who is there?", to).expect("sent");
        now += 1_000_000_000;
        all.follow(now);
        all.route(now, to.ip()).cloned()
    })
}

/// Sends a frame on a guarded socket.
fn sent(socket: &impl AsFd, route: &Route, from: SocketAddr, to: SocketAddr, payload: &[u8]) {
    let socket = socket.as_fd().try_clone_to_owned().expect("a descriptor");
    let mut sender = RawSender::from_socket(socket);
    match sender.send(route, from, to, payload) {
        // A frame that the guard drops looks to the sender like a full interface.
        Ok(Sent::Taken | Sent::Full) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn raw_frames_must_have_their_owners_address_and_their_socket_receives_nothing() {
    let Some(scene) = Scene::with_broker() else {
        return;
    };
    let (peer, to) = scene.peer();
    let (mut grant, socket) = scene.grant(CAROL).expect("she may");
    let own = socket.local_addr().expect("bound");
    let sender = grant.take_sender().expect("she may send raw frames");
    let way = route(&scene, own, to);
    let mut buffer = [0; 64];
    let mut next = || loop {
        let (length, from) = peer.recv_from(&mut buffer).expect("it comes");
        let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
        if text != "who is there?" {
            break (text, from);
        }
    };
    scene.being(CAROL, || sent(&sender, &way, own, to, b"mine"));
    assert_eq!(next(), ("mine".to_owned(), own));
    assert_eq!(scene.counter("refused"), 0);
    let mut foreign_port = own;
    foreign_port.set_port(own.port() ^ 1);
    let mut foreign_address = own;
    foreign_address.set_ip(scene.address(2));
    scene.being(CAROL, || {
        sent(&sender, &way, foreign_port, to, b"another's port");
        sent(&sender, &way, foreign_address, to, b"another's address");
        let mut strange = way;
        strange.own_mac = [2, 0, 0, 0, 0, 9];
        sent(&sender, &strange, own, to, b"another's interface");
        sent(&sender, &way, own, to, b"mine again");
    });
    // Frames arrive in order, so a forged frame that passed would have arrived first.
    assert_eq!(next(), ("mine again".to_owned(), own));
    assert_eq!(scene.counter("refused"), 3);

    // The socket receives no packets.
    scene.being(CAROL, || {
        peer.send_to(b"to you", own).expect("sent");
        let heard = rustix::net::recv(&sender, &mut [0; 64], RecvFlags::DONTWAIT);
        assert_eq!(heard.err(), Some(rustix::io::Errno::AGAIN));
    });

    // After the grant has ended the socket can no longer send, although it is still open.
    drop(grant);
    wait_for("the grant's end", || {
        let status = scene.status();
        let users = status["interfaces"][0]["users"].as_array();
        users.is_some_and(Vec::is_empty).then_some(())
    });
    let before = scene.counter("refused");
    scene.being(CAROL, || sent(&sender, &way, own, to, b"mine no more"));
    assert_eq!(scene.counter("refused"), before + 1);
    assert_eq!(scene.attached().len(), 1, "the guard stays for the socket");
    drop(sender);
    wait_for("nothing attached", || {
        scene.attached().is_empty().then_some(())
    });
}

#[test]
fn programs_of_an_unprivileged_user_use_granted_rings() {
    let Some(scene) = Scene::with_broker() else {
        return;
    };
    // Another process may use the default port.
    let hosts = scene.path("hosts-of-alice");
    let lines = [1, 2].map(|node| format!("{node} {} port=7499\n", scene.address(node)));
    std::fs::write(&hosts, lines.concat()).expect("our own folder");
    let mut receiver = Command::new(scene.program());
    receiver
        .args(["recv", "1:7", "--nid", "1", "--hosts"])
        .arg(&hosts);
    receiver.env("DIPOLE_RUNTIME_DIR", scene.runtime_of(ALICE));
    receiver.env("DIPOLE_BROKER", scene.broker());
    receiver.env("DIPOLE_RING_BYTES", RING_BYTES.to_string());
    receiver.env("DIPOLE_LINK", "bpf");
    receiver.stdout(Stdio::piped());
    let receiver = scene.being(ALICE, || receiver.spawn().expect("it starts"));
    let mut sender = scene.testbed.command(2, env!("CARGO_BIN_EXE_dipole"));
    sender
        .args(["send", "1:7", "--nid", "2", "--hosts"])
        .arg(&hosts);
    sender.env("DIPOLE_RUNTIME_DIR", scene.runtime_of(0));
    sender.env("DIPOLE_LINK", "udp").stdin(Stdio::piped());
    let mut sender = sender.spawn().expect("it starts");
    let text = b"by a ring that was granted";
    let mut stdin = sender.stdin.take().expect("piped");
    stdin.write_all(text).expect("it reads");
    drop(stdin);
    assert!(sender.wait().expect("our child").success());
    let received = receiver.wait_with_output().expect("our child");
    assert!(received.status.success(), "{received:?}");
    assert_eq!(received.stdout, text);
    // One grant to see whether there is a broker, and one for the link.
    let log = scene.said();
    let uid = format!("uid={ALICE}");
    let granted = log.lines().filter(|line| line.contains("ring granted"));
    assert_eq!(
        granted.filter(|line| line.contains(&uid)).count(),
        2,
        "{log}"
    );
}
