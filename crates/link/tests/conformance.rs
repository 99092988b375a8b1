//! What every link must do, whatever it is made of.
//!
//! Each link gives a connected pair and a clock; the same checks run on all. A
//! frame without bytes is not allowed on any link: it counts as taken and is
//! never delivered.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use dipole_bed::Bed;
use dipole_link::bpf::calibrate::{Receive, Send};
use dipole_link::bpf::{Bpf, BpfOptions, Forced, RING_BYTES, Shortcuts};
use dipole_link::fault::Plan;
use dipole_link::sim::{Network, NetworkConfig};
use dipole_link::udp::UdpOptions;
use dipole_link::wait::{Sleeper, Woken};
use dipole_link::{AnyLink, Capture, Class, Fault, Link, Outgoing, Udp};

/// Where time comes from: links in the world wait, simulated ones are told.
enum Clock {
    Real(Instant),
    Virtual(u64),
}

impl Clock {
    fn now_ns(&self) -> u64 {
        match self {
            Clock::Real(start) => u64::try_from(start.elapsed().as_nanos()).unwrap(),
            Clock::Virtual(now_ns) => *now_ns,
        }
    }

    /// Lets something happen.
    fn pass(&mut self) {
        match self {
            Clock::Real(_) => std::thread::yield_now(),
            Clock::Virtual(now_ns) => *now_ns += 1_000,
        }
    }
}

/// Three links that reach each other.
struct World {
    links: Vec<AnyLink>,
    clock: Clock,
    /// Held so that captures have a place, and namespaces are there, as long as they run.
    _directory: Option<tempfile::TempDir>,
    _bed: Option<Bed>,
}

type Make = fn() -> Option<World>;

fn sim() -> Option<World> {
    let config = NetworkConfig {
        max_frame_bytes: 8972,
        ..NetworkConfig::default()
    };
    let network = Network::new(1, config);
    let links = (1..4).map(|node| {
        let address = |port| SocketAddr::from(([10, 0, 0, node], port));
        network.attach(address(1000), address(1001)).unwrap().into()
    });
    Some(World {
        links: links.collect(),
        clock: Clock::Virtual(0),
        _directory: None,
        _bed: None,
    })
}

fn udp_on(ip: &str, wrap: impl Fn(Udp, usize) -> AnyLink) -> World {
    let ip: IpAddr = ip.parse().unwrap();
    let open = |index| wrap(Udp::bind(ip, &UdpOptions::default()).unwrap(), index);
    let clock = Clock::Real(Instant::now());
    World {
        links: (0..3).map(open).collect(),
        clock,
        _directory: None,
        _bed: None,
    }
}

fn udp_v4() -> Option<World> {
    Some(udp_on("127.0.0.1", |link, _| link.into()))
}

fn udp_v6() -> Option<World> {
    if std::net::UdpSocket::bind("[::1]:0").is_err() {
        eprintln!("SKIPPED: this machine has no ::1");
        return None;
    }
    Some(udp_on("::1", |link, _| link.into()))
}

fn udp_without_segmentation() -> Option<World> {
    let options = UdpOptions {
        segmentation: false,
        ..UdpOptions::default()
    };
    let open = |_| Udp::bind([127, 0, 0, 1].into(), &options).unwrap().into();
    let clock = Clock::Real(Instant::now());
    Some(World {
        links: (0..3).map(open).collect(),
        clock,
        _directory: None,
        _bed: None,
    })
}

fn fault() -> Option<World> {
    Some(udp_on("127.0.0.1", |link, _| {
        Fault::new(link.into(), Plan::default()).into()
    }))
}

fn capture() -> Option<World> {
    let directory = tempfile::tempdir().unwrap();
    let wrap = |link: Udp, index: usize| {
        let path = directory.path().join(format!("{index}.pcap"));
        Capture::create(link.into(), &path, 0).unwrap().into()
    };
    let mut world = udp_on("127.0.0.1", wrap);
    world._directory = Some(directory);
    Some(world)
}

/// A link on each of three nodes in namespaces of their own.
fn in_namespaces(make: impl Fn(usize, Udp) -> AnyLink + Sync) -> Option<World> {
    in_namespaces_with(1500, make)
}

/// The same with cards of this MTU.
fn in_namespaces_with(mtu: u32, make: impl Fn(usize, Udp) -> AnyLink + Sync) -> Option<World> {
    if let Some(why) = Bed::why_not() {
        eprintln!("SKIPPED: {why}");
        return None;
    }
    let bed = Bed::builder().nodes(3).mtu(mtu).build().unwrap();
    let open = |node: u32| {
        let ip = bed.node(node).addresses[0].into();
        let open = || {
            let udp = Udp::bind(ip, &UdpOptions::default()).unwrap();
            make(node as usize - 1, udp)
        };
        bed.inside(node, open).unwrap()
    };
    Some(World {
        links: (1..=3).map(open).collect(),
        clock: Clock::Real(Instant::now()),
        _directory: None,
        _bed: Some(bed),
    })
}

fn shortened(udp: Udp) -> AnyLink {
    let shortcuts = Shortcuts::open(&udp, &BpfOptions::default()).unwrap();
    Bpf::new(udp, shortcuts).into()
}

/// What a link is told to use.
fn forced(mtu: u32, receive: Option<Receive>, send: Option<Send>) -> Option<World> {
    in_namespaces_with(mtu, |_, udp| {
        let options = BpfOptions {
            forced: Forced { receive, send },
            ..BpfOptions::default()
        };
        let shortcuts = Shortcuts::open(&udp, &options).unwrap();
        let link = Bpf::new(udp, shortcuts);
        let wanted = [receive == Some(Receive::AfXdp), send == Some(Send::AfXdp)];
        assert_eq!(link.uses_queue(), wanted);
        link.into()
    })
}

fn bpf_at_generic_xdp() -> Option<World> {
    forced(1500, Some(Receive::XdpGeneric), None)
}

fn af_xdp_receive() -> Option<World> {
    forced(1500, Some(Receive::AfXdp), None)
}

/// Pieces of its memory are shorter than the longest frames.
fn af_xdp_receive_of_long_frames() -> Option<World> {
    forced(9000, Some(Receive::AfXdp), None)
}

fn af_xdp_send_of_long_frames() -> Option<World> {
    forced(9000, Some(Receive::Tcx), Some(Send::AfXdp))
}

fn af_xdp_send() -> Option<World> {
    forced(1500, Some(Receive::Tcx), Some(Send::AfXdp))
}

fn bpf() -> Option<World> {
    in_namespaces(|_, udp| shortened(udp))
}

/// Its small ring is soon full.
fn bpf_with_a_small_ring() -> Option<World> {
    in_namespaces(|_, udp| {
        let options = BpfOptions {
            ring_bytes: *RING_BYTES.start(),
            ..BpfOptions::default()
        };
        let shortcuts = Shortcuts::open(&udp, &options).unwrap();
        Bpf::new(udp, shortcuts).into()
    })
}

fn bpf_to_udp() -> Option<World> {
    in_namespaces(|node, udp| match node {
        0 => shortened(udp),
        _ => udp.into(),
    })
}

fn udp_to_bpf() -> Option<World> {
    in_namespaces(|node, udp| match node {
        0 => udp.into(),
        _ => shortened(udp),
    })
}

/// What is left when the ring has been taken away.
fn bpf_without_its_ring() -> Option<World> {
    in_namespaces(|_, udp| {
        let shortcuts = Shortcuts::open(&udp, &BpfOptions::default()).unwrap();
        let mut link = Bpf::new(udp, shortcuts);
        link.close_ring();
        link.into()
    })
}

/// Bytes that tell a frame from every other.
fn content(number: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (number.wrapping_mul(31) ^ at.wrapping_mul(7) ^ (at >> 8)).to_le_bytes()[0])
        .collect()
}

impl World {
    /// Sends all of a batch from the first link, waiting while it is full.
    fn send(&mut self, batch: &[Outgoing<'_>]) {
        let mut taken = 0;
        while taken < batch.len() {
            taken += self.links[0]
                .send(self.clock.now_ns(), &batch[taken..])
                .unwrap();
            self.clock.pass();
        }
    }

    /// Polls a link until so many frames have come.
    fn receive(&mut self, link: usize, class: Class, count: usize) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut got = Vec::new();
        let start = Instant::now();
        while got.len() < count {
            let found = self.links[link].poll(self.clock.now_ns(), class).unwrap();
            for index in 0..found {
                let frame = self.links[link].frame(index);
                assert_eq!(frame.class, class);
                got.push((frame.from, frame.bytes.to_vec()));
            }
            self.clock.pass();
            // A guard against hanging for ever, far from any speed.
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{} of {count} came",
                got.len()
            );
        }
        got
    }

    fn nothing_more(&mut self, link: usize) {
        for _ in 0..100 {
            for class in [Class::Small, Class::Bulk] {
                assert_eq!(
                    self.links[link].poll(self.clock.now_ns(), class).unwrap(),
                    0
                );
            }
            self.clock.pass();
        }
    }
}

fn shortest_and_longest_frames_arrive_on_both_classes_from_the_right_address(make: Make) {
    let Some(mut world) = make() else { return };
    let longest = world.links[0].caps().max_frame_bytes;
    assert!(longest >= 1200);
    for from in [Class::Small, Class::Bulk] {
        for class in [Class::Small, Class::Bulk] {
            for len in [1, 2, longest - 1, longest] {
                let bytes = content(len, len);
                let to = world.links[1].local(class);
                world.send(&[Outgoing {
                    any_port: false,
                    class: from,
                    to,
                    bytes: &bytes,
                }]);
                let got = world.receive(1, class, 1);
                assert!(
                    got == [(world.links[0].local(from), bytes)],
                    "{from:?} {class:?} {len}"
                );
            }
        }
    }
    world.nothing_more(1);
}

fn frames_too_long_or_empty_are_taken_and_lost(make: Make) {
    let Some(mut world) = make() else { return };
    let longest = world.links[0].caps().max_frame_bytes;
    let long = content(1, longest + 1);
    let vast = content(1, 70_000);
    for class in [Class::Small, Class::Bulk] {
        let to = world.links[1].local(class);
        let frames: [&[u8]; 6] = [b"first", &long, b"", b"middle", &vast, b"last"];
        let batch = frames.map(|bytes| Outgoing {
            any_port: false,
            class,
            to,
            bytes,
        });
        world.send(&batch);
        let got = world.receive(1, class, 3);
        let bytes: Vec<_> = got.iter().map(|(_, bytes)| &bytes[..]).collect();
        assert_eq!(bytes, [&b"first"[..], b"middle", b"last"]);
    }
    world.nothing_more(1);
    if let Some(udp) = world.links[0].udp() {
        assert_eq!((udp.stats().too_long, udp.stats().empty), (4, 2));
    }
}

fn mixed_batches_arrive_whole_in_order_per_class_and_destination(make: Make) {
    let Some(mut world) = make() else { return };
    for count in (1..=200).step_by(7).chain([64, 65, 128, 200]) {
        let frames: Vec<_> = (0..count)
            .map(|number| {
                // Runs of equal frames with breaks in length, target and class.
                let class = if number / 11 % 3 == 0 {
                    Class::Small
                } else {
                    Class::Bulk
                };
                let target = 1 + number / 17 % 2;
                let len = if number % 13 == 12 { 1 + number } else { 1200 };
                (class, target, content(number + count, len))
            })
            .collect();
        let batch: Vec<_> = frames
            .iter()
            .map(|(class, target, bytes)| Outgoing {
                any_port: false,
                class: *class,
                to: world.links[*target].local(*class),
                bytes,
            })
            .collect();
        world.send(&batch);
        for target in [1, 2] {
            for class in [Class::Small, Class::Bulk] {
                let expected: Vec<_> = frames
                    .iter()
                    .filter(|frame| (frame.0, frame.1) == (class, target))
                    .collect();
                let got = world.receive(target, class, expected.len());
                assert_eq!(got.len(), expected.len());
                let from = world.links[0].local(class);
                for (got, expected) in got.iter().zip(expected) {
                    assert!(got.0 == from && got.1 == expected.2, "batch of {count}");
                }
            }
        }
    }
    world.nothing_more(1);
    world.nothing_more(2);
}

fn a_full_receiver_loses_frames_but_damages_none(make: Make) {
    let Some(mut world) = make() else { return };
    let count = 3 * world.links[1].caps().receive_frames + 100;
    let len = world.links[0].caps().max_frame_bytes;
    for class in [Class::Small, Class::Bulk] {
        let to = world.links[1].local(class);
        for number in 0..count {
            let mut bytes = content(number, len);
            bytes[..8].copy_from_slice(&(number as u64).to_be_bytes());
            world.send(&[Outgoing {
                any_port: false,
                class,
                to,
                bytes: &bytes,
            }]);
        }
        if let Clock::Virtual(now_ns) = &mut world.clock {
            *now_ns += 1_000_000_000;
        }
        let mut numbers = Vec::new();
        loop {
            let found = world.links[1].poll(world.clock.now_ns(), class).unwrap();
            if found == 0 {
                break;
            }
            for index in 0..found {
                let bytes = world.links[1].frame(index).bytes;
                let number = u64::from_be_bytes(bytes[..8].try_into().unwrap());
                let expected = content(usize::try_from(number).unwrap(), len);
                assert!(bytes[8..] == expected[8..], "frame {number} is damaged");
                numbers.push(number);
            }
        }
        assert!(numbers.is_sorted() && !numbers.is_empty());
        assert!(numbers.len() < count, "nothing was lost of {count}");
        // It works as before.
        world.send(&[Outgoing {
            any_port: false,
            class,
            to,
            bytes: b"after",
        }]);
        assert_eq!(world.receive(1, class, 1)[0].1, b"after");
    }
}

fn frames_stay_as_they_are_until_the_next_poll(make: Make) {
    let Some(mut world) = make() else { return };
    for class in [Class::Small, Class::Bulk] {
        let to = world.links[1].local(class);
        let first = content(1, 1000);
        world.send(&[Outgoing {
            any_port: false,
            class,
            to,
            bytes: &first,
        }]);
        let start = Instant::now();
        while world.links[1].poll(world.clock.now_ns(), class).unwrap() == 0 {
            world.clock.pass();
            assert!(start.elapsed() < Duration::from_secs(60));
        }
        // More comes in, and the link itself sends.
        world.send(&[Outgoing {
            any_port: false,
            class,
            to,
            bytes: &content(2, 1000),
        }]);
        let back = world.links[0].local(class);
        let now_ns = world.clock.now_ns();
        world.links[1]
            .send(
                now_ns,
                &[Outgoing {
                    any_port: false,
                    class,
                    to: back,
                    bytes: b"back",
                }],
            )
            .unwrap();
        assert_eq!(world.links[1].frame(0).bytes, first);
        assert_eq!(world.receive(1, class, 1)[0].1, content(2, 1000));
        assert_eq!(world.receive(0, class, 1)[0].1, b"back");
    }
}

fn a_frame_beyond_the_last_poll_panics(make: Make) {
    let Some(world) = make() else { return };
    let ask = std::panic::AssertUnwindSafe(|| world.links[0].frame(0).bytes.len());
    assert!(std::panic::catch_unwind(ask).is_err());
}

fn descriptors_become_readable_when_frames_have_come(make: Make) {
    let Some(mut world) = make() else { return };
    if matches!(world.clock, Clock::Virtual(_)) {
        assert!(
            world.links[1].descriptors().is_empty(),
            "virtual time has no descriptors"
        );
        return;
    }
    for class in [Class::Small, Class::Bulk] {
        let to = world.links[1].local(class);
        let none = Some(Duration::ZERO);
        let sleeper = Sleeper::new(&world.links[1].descriptors()).unwrap();
        while !world.links[1].arm() {
            world.nothing_more(1);
        }
        assert_eq!(sleeper.sleep(none).unwrap(), Woken::TimedOut);
        world.send(&[Outgoing {
            any_port: false,
            class,
            to,
            bytes: b"wake",
        }]);
        assert_eq!(
            sleeper.sleep(Some(Duration::from_secs(60))).unwrap(),
            Woken::Readable
        );
        world.links[1].disarm();
        world.receive(1, class, 1);
        world.nothing_more(1);
        assert!(world.links[1].arm());
        assert_eq!(sleeper.sleep(none).unwrap(), Woken::TimedOut);
        // Something is there: nobody may sleep.
        world.links[1].disarm();
        world.send(&[Outgoing {
            any_port: false,
            class,
            to,
            bytes: b"seen",
        }]);
        let start = Instant::now();
        while world.links[1].arm() && sleeper.sleep(none).unwrap() != Woken::Readable {
            assert!(start.elapsed() < Duration::from_secs(60));
        }
        world.receive(1, class, 1);
    }
}

fn an_unreachable_destination_harms_nobody_else(make: Make) {
    let Some(mut world) = make() else { return };
    for class in [Class::Small, Class::Bulk] {
        let good = world.links[1].local(class);
        // A port where nobody is: of a link that has gone.
        let mut gone = good;
        gone.set_port(if good.port() == 9 { 10 } else { 9 });
        let other = match good {
            SocketAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 9)),
            SocketAddr::V6(_) => SocketAddr::from(([127, 0, 0, 1], 9)),
        };
        for _ in 0..3 {
            let frame = |to, bytes| Outgoing {
                any_port: false,
                class,
                to,
                bytes,
            };
            let batch = [
                frame(gone, &b"lost"[..]),
                frame(good, b"one"),
                frame(other, b"lost"),
                frame(other, b"lost"),
                frame(good, b"two"),
            ];
            world.send(&batch);
            let got = world.receive(1, class, 2);
            assert_eq!((&got[0].1[..], &got[1].1[..]), (&b"one"[..], &b"two"[..]));
        }
    }
    world.nothing_more(1);
}

fn an_empty_batch_and_an_empty_poll_do_nothing(make: Make) {
    let Some(mut world) = make() else { return };
    assert_eq!(world.links[0].send(0, &[]).unwrap(), 0);
    world.nothing_more(0);
    assert_eq!(world.links[0].next_deadline_ns(), None);
}

/// The whole suite for one link.
macro_rules! suite {
    ($make:ident: $($check:ident),* $(,)?) => {
        mod $make {
            $(#[test] fn $check() { super::$check(super::$make); })*
        }
    };
}

macro_rules! suites {
    ($($make:ident),*) => {$(
        suite!(
            $make:
            shortest_and_longest_frames_arrive_on_both_classes_from_the_right_address,
            frames_too_long_or_empty_are_taken_and_lost,
            mixed_batches_arrive_whole_in_order_per_class_and_destination,
            a_full_receiver_loses_frames_but_damages_none,
            frames_stay_as_they_are_until_the_next_poll,
            a_frame_beyond_the_last_poll_panics,
            descriptors_become_readable_when_frames_have_come,
            an_unreachable_destination_harms_nobody_else,
            an_empty_batch_and_an_empty_poll_do_nothing,
        );
    )*};
}

suites!(
    sim,
    udp_v4,
    udp_v6,
    udp_without_segmentation,
    fault,
    capture,
    bpf,
    bpf_to_udp,
    udp_to_bpf,
    bpf_without_its_ring,
    bpf_at_generic_xdp,
    af_xdp_receive,
    af_xdp_send
);

// What overflows its ring takes the socket and may come later than what does not.
suite!(
    bpf_with_a_small_ring:
    shortest_and_longest_frames_arrive_on_both_classes_from_the_right_address,
    frames_too_long_or_empty_are_taken_and_lost,
    a_full_receiver_loses_frames_but_damages_none,
    frames_stay_as_they_are_until_the_next_poll,
    descriptors_become_readable_when_frames_have_come,
);

// What is too long takes the socket and may come later than what is not.
suite!(
    af_xdp_receive_of_long_frames:
    shortest_and_longest_frames_arrive_on_both_classes_from_the_right_address,
    frames_too_long_or_empty_are_taken_and_lost,
    frames_stay_as_they_are_until_the_next_poll,
    descriptors_become_readable_when_frames_have_come,
);
suite!(
    af_xdp_send_of_long_frames:
    shortest_and_longest_frames_arrive_on_both_classes_from_the_right_address,
    frames_too_long_or_empty_are_taken_and_lost,
    mixed_batches_arrive_whole_in_order_per_class_and_destination,
);
