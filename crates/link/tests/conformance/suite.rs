//! Requirements for every link, and the environment they run in. The tests of this crate and of
//! `dipole-bpf` pass in their links.
//!
//! Each link provides a connected pair and a clock; the same checks run on all of them. An empty
//! frame is not allowed on any link: it counts as taken and is never delivered.

use std::any::Any;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use dipole_link::udp::UdpStats;
use dipole_link::wait::{Sleeper, WakeReason};
use dipole_link::{Class, Link, Outgoing, Udp};

/// The clock: real links wait, simulated ones advance their time.
pub(crate) enum Clock {
    Real(Instant),
    #[allow(dead_code, reason = "only the simulated link has it")]
    Virtual(u64),
}

impl Clock {
    fn now_ns(&self) -> u64 {
        match self {
            Clock::Real(start) => u64::try_from(start.elapsed().as_nanos()).unwrap(),
            Clock::Virtual(now_ns) => *now_ns,
        }
    }

    /// Yields the core, or advances the virtual time by 1 us.
    fn pass(&mut self) {
        match self {
            Clock::Real(_) => std::thread::yield_now(),
            Clock::Virtual(now_ns) => *now_ns += 1_000,
        }
    }
}

/// A link that can report the counters of its UDP sockets.
pub(crate) trait Tested: Link + Send {
    fn udp_stats(&self) -> Option<UdpStats>;
}

impl Tested for Udp {
    fn udp_stats(&self) -> Option<UdpStats> {
        Some(self.stats())
    }
}

/// Three links that can reach each other.
pub(crate) struct World {
    pub(crate) links: Vec<Box<dyn Tested>>,
    pub(crate) clock: Clock,
    /// Kept alive while the links run.
    pub(crate) _held: Box<dyn Any>,
}

pub(crate) type Make = fn() -> Option<World>;

/// Distinct bytes for each frame.
fn content(number: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (number.wrapping_mul(31) ^ at.wrapping_mul(7) ^ (at >> 8)).to_le_bytes()[0])
        .collect()
}

impl World {
    /// Sends a whole batch from the first link, waiting while it is full.
    fn send(&mut self, batch: &[Outgoing<'_>]) {
        let mut left = batch.to_vec();
        while !left.is_empty() {
            let mut taken = self.links[0].send(self.clock.now_ns(), &left).unwrap();
            left.retain_mut(|entry| {
                let count = entry.count().min(taken);
                taken -= count;
                let is_done = count == entry.count();
                *entry = entry.after(count);
                !is_done
            });
            self.clock.pass();
        }
    }

    /// Polls a link until this many frames have arrived.
    fn receive(&mut self, link: usize, class: Class, count: usize) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut got = Vec::new();
        let start = Instant::now();
        while got.len() < count {
            let found = self.links[link].poll(self.clock.now_ns(), class).unwrap();
            for index in 0..found {
                let message = self.links[link].message(index);
                assert_eq!(message.class, class);
                let frames = message.frames();
                got.extend(frames.map(|frame| (message.from, frame.to_vec())));
            }
            self.clock.pass();
            // Protects against hanging; unrelated to speed.
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

pub(crate) fn shortest_and_longest_frames_arrive_on_both_classes_from_the_right_address(
    make: Make,
) {
    let Some(mut world) = make() else { return };
    let longest = world.links[0].caps().max_frame_bytes;
    assert!(longest >= 1200);
    for from in [Class::Small, Class::Bulk] {
        for class in [Class::Small, Class::Bulk] {
            for len in [1, 2, longest - 1, longest] {
                let bytes = content(len, len);
                let to = world.links[1].local(class);
                world.send(&[Outgoing::frame(from, to, &bytes)]);
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

pub(crate) fn frames_too_long_are_refused_and_empty_ones_taken_and_lost(make: Make) {
    let Some(mut world) = make() else { return };
    let longest = world.links[0].caps().max_frame_bytes;
    let long = content(1, longest + 1);
    let vast = content(1, 70_000);
    for class in [Class::Small, Class::Bulk] {
        let to = world.links[1].local(class);
        let frames: [&[u8]; 6] = [b"first", &long, b"", b"middle", &vast, b"last"];
        let batch = frames.map(|bytes| Outgoing::frame(class, to, bytes));
        // Each case behaves as if the previous frame had been removed.
        for (from, taken) in [(0, 1), (2, 2), (5, 1)] {
            let sent = world.links[0].send(0, &batch[from..]);
            assert_eq!(sent.expect("works"), taken, "{class:?} from {from}");
            assert_eq!(world.links[0].refuses_next(), from < 5);
        }
        let got = world.receive(1, class, 3);
        let bytes: Vec<_> = got.iter().map(|(_, bytes)| &bytes[..]).collect();
        assert_eq!(bytes, [&b"first"[..], b"middle", b"last"]);
    }
    world.nothing_more(1);
    if let Some(stats) = world.links[0].udp_stats() {
        assert_eq!((stats.too_long, stats.empty), (4, 2));
    }
}

pub(crate) fn mixed_batches_arrive_whole_in_order_per_class_and_destination(make: Make) {
    let Some(mut world) = make() else { return };
    for count in (1..=200).step_by(7).chain([64, 65, 128, 200]) {
        let frames: Vec<_> = (0..count)
            .map(|number| {
                // Runs of equal frames, interrupted by changes of length, target and class.
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
            .map(|(class, target, bytes)| {
                Outgoing::frame(*class, world.links[*target].local(*class), bytes)
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

pub(crate) fn frames_in_two_parts_arrive_as_one(make: Make) {
    let Some(mut world) = make() else { return };
    let longest = world.links[0].caps().max_frame_bytes;
    for class in [Class::Small, Class::Bulk] {
        for len in [1, 2, 63, 700, longest - 1, longest] {
            let to = world.links[1].local(class);
            // Each entry holds 1, 2 or 100 frames, the last of which may be shorter.
            let lengths = [1, len, 2 * len - 1, 2 * len, 99 * len + 1, 100 * len];
            let areas = lengths.map(|bytes| content(bytes, bytes));
            let entries = areas.each_ref().map(|bytes| Outgoing {
                frame_bytes: len,
                ..Outgoing::frame(class, to, bytes)
            });
            for entry in &entries {
                world.send(std::slice::from_ref(entry));
                let expected = entry.bytes.chunks(len);
                let got = world.receive(1, class, expected.len());
                let got = got.iter().map(|(_, bytes)| &bytes[..]);
                assert!(got.eq(expected), "{class:?}, frames of {len} bytes");
            }
            // Together with others.
            let few = &entries[..4];
            world.send(few);
            let expected: Vec<&[u8]> = few.iter().flat_map(|it| it.bytes.chunks(len)).collect();
            let got = world.receive(1, class, expected.len());
            let got = got.iter().map(|(_, bytes)| &bytes[..]);
            assert!(got.eq(expected), "{class:?}, entries of {len} bytes");
        }
    }
    world.nothing_more(1);
}

pub(crate) fn a_full_receiver_loses_frames_but_damages_none(make: Make) {
    let Some(mut world) = make() else { return };
    let count = 3 * world.links[1].caps().receive_frames + 100;
    let len = world.links[0].caps().max_frame_bytes;
    for class in [Class::Small, Class::Bulk] {
        let to = world.links[1].local(class);
        for number in 0..count {
            let mut bytes = content(number, len);
            bytes[..8].copy_from_slice(&(number as u64).to_be_bytes());
            world.send(&[Outgoing::frame(class, to, &bytes)]);
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
            let messages = (0..found).map(|index| world.links[1].message(index));
            for bytes in messages.flat_map(|message| message.frames()) {
                let number = u64::from_be_bytes(bytes[..8].try_into().unwrap());
                let expected = content(usize::try_from(number).unwrap(), len);
                assert!(bytes[8..] == expected[8..], "frame {number} is damaged");
                numbers.push(number);
            }
        }
        assert!(numbers.is_sorted() && !numbers.is_empty());
        assert!(numbers.len() < count, "nothing was lost of {count}");
        // Frames still arrive as before.
        world.send(&[Outgoing::frame(class, to, b"after")]);
        assert_eq!(world.receive(1, class, 1)[0].1, b"after");
    }
}

pub(crate) fn frames_stay_as_they_are_until_the_next_poll(make: Make) {
    let Some(mut world) = make() else { return };
    for class in [Class::Small, Class::Bulk] {
        let to = world.links[1].local(class);
        let first = content(1, 1000);
        world.send(&[Outgoing::frame(class, to, &first)]);
        let start = Instant::now();
        while world.links[1].poll(world.clock.now_ns(), class).unwrap() == 0 {
            world.clock.pass();
            assert!(start.elapsed() < Duration::from_secs(60));
        }
        // More frames arrive, and the link itself sends.
        world.send(&[Outgoing::frame(class, to, &content(2, 1000))]);
        let back = world.links[0].local(class);
        let now_ns = world.clock.now_ns();
        world.links[1]
            .send(now_ns, &[Outgoing::frame(class, back, b"back")])
            .unwrap();
        assert_eq!(world.links[1].message(0).bytes, first);
        assert_eq!(world.receive(1, class, 1)[0].1, content(2, 1000));
        assert_eq!(world.receive(0, class, 1)[0].1, b"back");
    }
}

pub(crate) fn a_frame_beyond_the_last_poll_panics(make: Make) {
    let Some(world) = make() else { return };
    let ask = std::panic::AssertUnwindSafe(|| world.links[0].message(0).bytes.len());
    assert!(std::panic::catch_unwind(ask).is_err());
}

pub(crate) fn descriptors_become_readable_when_frames_have_come(make: Make) {
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
        assert_eq!(sleeper.sleep(none).unwrap(), WakeReason::TimedOut);
        world.send(&[Outgoing::frame(class, to, b"wake")]);
        assert_eq!(
            sleeper.sleep(Some(Duration::from_secs(60))).unwrap(),
            WakeReason::Readable
        );
        world.links[1].disarm();
        world.receive(1, class, 1);
        world.nothing_more(1);
        assert!(world.links[1].arm());
        assert_eq!(sleeper.sleep(none).unwrap(), WakeReason::TimedOut);
        // A frame is pending, so arming must fail.
        world.links[1].disarm();
        world.send(&[Outgoing::frame(class, to, b"seen")]);
        let start = Instant::now();
        while world.links[1].arm() && sleeper.sleep(none).unwrap() != WakeReason::Readable {
            assert!(start.elapsed() < Duration::from_secs(60));
        }
        world.receive(1, class, 1);
    }
}

pub(crate) fn an_unreachable_destination_harms_nobody_else(make: Make) {
    let Some(mut world) = make() else { return };
    for class in [Class::Small, Class::Bulk] {
        let good = world.links[1].local(class);
        // The port of a link that was dropped.
        let mut gone = good;
        gone.set_port(if good.port() == 9 { 10 } else { 9 });
        let other = match good {
            SocketAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 9)),
            SocketAddr::V6(_) => SocketAddr::from(([127, 0, 0, 1], 9)),
        };
        for _ in 0..3 {
            let frame = |to, bytes| Outgoing::frame(class, to, bytes);
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

pub(crate) fn an_empty_batch_and_an_empty_poll_do_nothing(make: Make) {
    let Some(mut world) = make() else { return };
    assert_eq!(world.links[0].send(0, &[]).unwrap(), 0);
    world.nothing_more(0);
    assert_eq!(world.links[0].next_deadline_ns(), None);
}

/// Runs the whole suite on one link.
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
            frames_too_long_are_refused_and_empty_ones_taken_and_lost,
            mixed_batches_arrive_whole_in_order_per_class_and_destination,
            frames_in_two_parts_arrive_as_one,
            a_full_receiver_loses_frames_but_damages_none,
            frames_stay_as_they_are_until_the_next_poll,
            a_frame_beyond_the_last_poll_panics,
            descriptors_become_readable_when_frames_have_come,
            an_unreachable_destination_harms_nobody_else,
            an_empty_batch_and_an_empty_poll_do_nothing,
        );
    )*};
}
