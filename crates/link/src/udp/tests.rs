use super::*;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn open() -> Udp {
    Udp::bind(LOOPBACK, &UdpOptions::default()).unwrap()
}

fn bulk(to: SocketAddr, bytes: &[u8]) -> Outgoing<'_> {
    Outgoing::frame(Class::Bulk, to, bytes)
}

#[test]
fn an_address_that_peers_cannot_reply_to_is_refused() {
    for ip in ["0.0.0.0", "::", "224.0.0.1", "ff02::1"] {
        let ip = ip.parse().unwrap();
        let error = Udp::bind(ip, &UdpOptions::default()).unwrap_err();
        assert!(matches!(error, OpenError::NotUnicast { ip: given } if given == ip));
    }
}

#[test]
fn a_foreign_address_and_a_port_in_use_give_different_errors() {
    let foreign = IpAddr::from([198, 51, 100, 7]);
    let error = Udp::bind(foreign, &UdpOptions::default()).unwrap_err();
    assert!(
        error.to_string().contains("no interface of this machine"),
        "{error}"
    );
    let first = open();
    let bulk_port = first.local(Class::Bulk).port();
    let options = UdpOptions {
        bulk_port,
        ..UdpOptions::default()
    };
    let error = Udp::bind(LOOPBACK, &options).unwrap_err();
    assert!(matches!(
        &error,
        OpenError::Bind {
            class: Class::Bulk,
            ..
        }
    ));
    assert!(
        error.to_string().contains("another process uses that port"),
        "{error}"
    );
}

#[test]
fn ports_are_taken_and_used_from_a_range_until_none_is_left() {
    // Ports outside the kernel's ephemeral range, on an otherwise unused address.
    let ip = IpAddr::from([127, 9, 41, 7]);
    let options = UdpOptions {
        ports: PortRange::new(20_117, 20_121),
        ..UdpOptions::default()
    };
    let mut links: Vec<Udp> = (0..2).map(|_| Udp::bind(ip, &options).unwrap()).collect();
    let ports = links
        .iter()
        .flat_map(|link| [Class::Small, Class::Bulk].map(|class| link.local(class).port()));
    let ports: std::collections::BTreeSet<u16> = ports.collect();
    assert_eq!(ports.len(), 4);
    assert!(ports.iter().all(|port| (20_117..=20_121).contains(port)));
    let error = Udp::bind(ip, &options).unwrap_err();
    assert!(matches!(error, OpenError::NoPort { .. }), "{error:?}");
    assert!(error.to_string().contains("ports 20117-20121"), "{error}");

    // Frames to a frequent destination come from these ports, too.
    let receiver = UdpSocket::bind((ip, 0)).unwrap();
    let frame = Outgoing {
        any_port: true,
        class: Class::Small,
        ..bulk(receiver.local_addr().unwrap(), &[7])
    };
    for _ in 0..100 {
        assert_eq!(links[0].send(0, &[frame]).unwrap(), 1);
        let (_, from) = receiver.recv_from(&mut [0; 8]).unwrap();
        assert_eq!(from, links[0].local(Class::Small));
    }
}

#[test]
fn busy_polling_turns_off_joining() {
    let options = UdpOptions {
        busy_poll: true,
        join_small: true,
        ..UdpOptions::default()
    };
    let link = Udp::bind(LOOPBACK, &options).unwrap();
    assert!(!matches!(link.busy_polling(), BusyPolling::Off));
    assert_eq!(link.caps().small_run_frames, 1);
    assert!(matches!(open().busy_polling(), BusyPolling::Off));
}

#[test]
fn any_loopback_address_has_long_frames() {
    let link = Udp::bind(IpAddr::from([127, 9, 8, 7]), &UdpOptions::default()).unwrap();
    assert_eq!(link.caps().max_frame_bytes, MAX_FRAME_BYTES);
    assert!(link.caps().receive_frames >= MIN_RECEIVE_FRAMES);
}

#[test]
fn a_run_leaves_and_arrives_as_one_message() {
    let (mut a, mut b) = (open(), open());
    let frames: Vec<Vec<u8>> = (0..6).map(|number| vec![number; 1000]).collect();
    let to = b.local(Class::Bulk);
    let batch: Vec<_> = frames.iter().map(|frame| bulk(to, frame)).collect();
    assert_eq!(a.send(0, &batch).unwrap(), 6);
    let found = b.poll(0, Class::Bulk).unwrap();
    let got = (0..found).map(|index| b.message(index));
    assert!(got.flat_map(|message| message.frames()).eq(frames.iter()));
    if a.uses_segmentation() {
        assert_eq!(found, 1);
        assert_eq!(a.stats().gso_batches, 1);
        assert_eq!(b.stats().gro_batches, 1);
    }
    assert_eq!((a.stats().sent_frames, b.stats().received_frames), (6, 6));
}

#[test]
fn adjacent_frames_arrive_like_others() {
    let (mut a, mut b) = (open(), open());
    let to = b.local(Class::Bulk);
    let bytes: Vec<u8> = (0..250).cycle().take(5000).collect();
    // Two frames in one entry, a gap, and one that precedes the others in memory.
    let places = [1000..3000, 3500..4500, 4500..4700, 0..1000];
    let entries = places.clone().map(|place| Outgoing {
        frame_bytes: 1000,
        ..bulk(to, &bytes[place])
    });
    assert_eq!(a.send(0, &entries).unwrap(), 5);
    let mut got = Vec::new();
    while got.len() < 5 {
        let count = b.poll(0, Class::Bulk).unwrap();
        let messages = (0..count).map(|index| b.message(index));
        got.extend(messages.flat_map(|message| message.frames().map(<[u8]>::to_vec)));
    }
    let expected = places
        .iter()
        .flat_map(|place| bytes[place.clone()].chunks(1000));
    assert!(got.iter().eq(expected));
}

#[test]
fn small_frames_are_sent_as_one_message_if_both_sides_request_it() {
    let open = |join_small| {
        let options = UdpOptions {
            join_small,
            ..UdpOptions::default()
        };
        Udp::bind(LOOPBACK, &options).unwrap()
    };
    let (mut sender, mut joining, mut plain) = (open(true), open(true), open(false));
    if joining.caps().small_run_frames == 1 {
        println!("SKIPPED: this kernel does not join datagrams");
        return;
    }
    assert_eq!(plain.caps().small_run_frames, 1);
    let frames = [vec![1; 1000], vec![2; 1000], vec![3; 10]];
    // Send through the bound socket first, then through a connected one.
    for any_port in [false, true] {
        for round in 0..40 {
            for link in [&mut joining, &mut plain] {
                let frame = |bytes| Outgoing {
                    any_port,
                    class: Class::Small,
                    ..bulk(link.local(Class::Small), bytes)
                };
                let batch = [&frames[0], &frames[1], &frames[2]].map(|bytes| frame(bytes));
                let before = sender.stats().gso_batches;
                assert_eq!(sender.send(0, &batch).unwrap(), 3);
                assert_eq!(sender.stats().gso_batches, before + 1);
                let mut got = Vec::new();
                while got.len() < 2010 {
                    let count = link.poll(0, Class::Small).unwrap();
                    // The plain call returns them joined; `recvmmsg` splits them.
                    got.extend((0..count).flat_map(|index| link.message(index).bytes.to_vec()));
                }
                assert!(got == frames.concat(), "round {round}");
            }
        }
    }
    // One that tests the path is joined with none before or after it.
    for alone in 0..3 {
        let mut batch = [&frames[0], &frames[1], &frames[2]].map(|bytes| Outgoing {
            class: Class::Small,
            ..bulk(plain.local(Class::Small), bytes)
        });
        batch[alone].alone = true;
        let before = sender.stats().gso_batches;
        assert_eq!(sender.send(0, &batch).unwrap(), 3);
        let joined = sender.stats().gso_batches - before;
        assert_eq!(joined, u64::from(alone != 1), "{alone}");
        let mut got = 0;
        while got < 3 {
            got += plain.poll(0, Class::Small).unwrap();
        }
    }
    let (joined, apart) = (joining.stats(), plain.stats());
    assert!(joined.received_frames < apart.received_frames);
    assert_eq!(apart.received_frames, 249);
}

#[test]
fn a_run_refused_for_its_destination_loses_only_that_run_and_keeps_segmentation() {
    let (mut a, mut b) = (open(), open());
    let nowhere = SocketAddr::new(LOOPBACK, 0);
    let to = b.local(Class::Bulk);
    let batch = [
        bulk(to, b"1"),
        bulk(nowhere, b"2"),
        bulk(nowhere, b"3"),
        bulk(to, b"4"),
    ];
    assert_eq!(a.send(0, &batch).unwrap(), 4);
    assert_eq!(a.stats().unreachable, 2);
    assert!(a.uses_segmentation());
    let mut got = Vec::new();
    while got.len() < 2 {
        let count = b.poll(0, Class::Bulk).unwrap();
        got.extend((0..count).map(|index| b.message(index).bytes.to_vec()));
    }
    assert_eq!(got, [b"1", b"4"]);
}

#[test]
fn empty_frames_and_the_wrong_ip_version_are_lost_and_long_frames_refused() {
    let (mut a, mut b) = (open(), open());
    let to = b.local(Class::Bulk);
    let v6 = SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 9);
    let long = vec![0; MAX_FRAME_BYTES + 1];
    let batch = [
        bulk(to, b""),
        bulk(to, &long),
        bulk(v6, b"x"),
        bulk(to, b"good"),
    ];
    assert_eq!(a.send(0, &batch).unwrap(), 1);
    assert!(a.refuses_next());
    assert_eq!(a.send(0, &batch[2..]).unwrap(), 2);
    assert!(!a.refuses_next());
    let stats = a.stats();
    assert_eq!(
        (
            stats.empty,
            stats.too_long,
            stats.unreachable,
            stats.sent_frames
        ),
        (1, 1, 1, 1)
    );
    assert_eq!(b.poll(0, Class::Bulk).unwrap(), 1);
    assert_eq!(b.message(0).bytes, b"good");
}

#[test]
fn strange_datagrams_are_counted_and_dropped() {
    let mut link = open();
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger.send_to(&[], link.local(Class::Small)).unwrap();
    stranger
        .send_to(&[0; 20_000], link.local(Class::Small))
        .unwrap();
    stranger.send_to(b"good", link.local(Class::Small)).unwrap();
    while link.poll(0, Class::Small).unwrap() == 0 {}
    assert_eq!(link.message(0).bytes, b"good");
    assert_eq!((link.stats().empty, link.stats().truncated), (1, 1));
}

#[test]
fn a_link_can_move_to_another_thread() {
    let mut link = open();
    let moved = std::thread::spawn(move || link.poll(0, Class::Bulk).unwrap());
    assert_eq!(moved.join().unwrap(), 0);
}
