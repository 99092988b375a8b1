//! Compares the programs, run by the interpreter, with their rules as plain code.

use std::collections::HashMap;

use proptest::prelude::*;

use super::assembler::Program;
use super::dispatch::{self, PASSED, TAKEN};
use super::guard;
use super::interpreter::{Input, Maps, Ring, run};
use super::maps::{self, Reason, key};
use super::model::damaged_packet;
use super::model::{self, Around, Fate, PORT, fate, our_address, packet, samples};
use super::packet::skb;
use crate::hook::drain;
use crate::layout::RECORD_HEADER_BYTES;

fn input<'a>(frame: &'a [u8], around: Around, linear: usize) -> Input<'a> {
    let fields = HashMap::from([
        (skb::LEN, u32::try_from(frame.len()).unwrap()),
        (skb::PKT_TYPE, if around.other_host { 3 } else { 0 }),
        (skb::VLAN_PRESENT, around.tagged.into()),
        (skb::IFINDEX, model::INTERFACE),
        (skb::GSO_SIZE, if around.merged { 100 } else { 0 }),
    ]);
    Input {
        frame,
        linear: linear.min(frame.len()),
        fields,
        data: [skb::DATA, skb::DATA_END],
        cookie: 0,
    }
}

fn ours(version: u8) -> [u8; maps::KEY_BYTES] {
    key(our_address(version), model::INTERFACE, PORT)
}

fn maps_with_room(room: usize) -> Maps {
    let ring = |version| {
        let records = Vec::new();
        (ours(version), Ring { room, records })
    };
    Maps::Ingress {
        rings: HashMap::from([4, 6].map(ring)),
        counters: [0; Reason::ALL.len()],
        full: HashMap::from([4, 6].map(|version| (ours(version), 0))),
    }
}

/// Checks that the program follows the rules on one packet, whose first `linear` bytes are contiguous.
fn check(program: &Program, frame: &[u8], around: Around, linear: usize, room: usize) {
    let mut after = maps_with_room(room);
    let returned = run(program, &input(frame, around, linear), &mut after)
        .unwrap_or_else(|wrong| panic!("{wrong}"));
    let mut wanted = maps_with_room(room);
    let Maps::Ingress {
        rings,
        counters,
        full,
    } = &mut wanted
    else {
        unreachable!()
    };
    let known = |key: &[u8; maps::KEY_BYTES]| [ours(4), ours(6)].contains(key);
    match fate(frame, around, known) {
        None => assert_eq!(returned, PASSED),
        Some(Fate::Refused(reason, _)) => {
            assert_eq!(returned, PASSED);
            counters[reason as usize] += 1;
        }
        Some(Fate::Taken { key, class, .. }) if RECORD_HEADER_BYTES + class > room => {
            assert_eq!(returned, PASSED);
            counters[Reason::Full as usize] += 1;
            *full.get_mut(&key).unwrap() += 1;
        }
        Some(Fate::Taken {
            key,
            source,
            port,
            version,
            payload,
            class,
        }) => {
            assert_eq!(returned, TAKEN);
            counters[Reason::Deposited as usize] += 1;
            let Maps::Ingress { rings: found, .. } = &after else {
                unreachable!()
            };
            let records = &found[&key].records;
            assert_eq!(records.len(), 1);
            let deposit = drain::read(&records[0]);
            let reserved = RECORD_HEADER_BYTES + class;
            assert_eq!(
                deposit,
                drain::Deposit {
                    source,
                    port,
                    version,
                    payload,
                    reserved
                }
            );
            let ring = rings.get_mut(&key).unwrap();
            ring.room -= reserved;
            ring.records.clone_from(records);
        }
    }
    assert_eq!(after, wanted);
}

#[test]
fn every_rule_holds_for_every_sample() {
    let mut fates = Vec::new();
    let program = dispatch::program();
    for (what, frame, around) in samples() {
        eprintln!("{what}");
        for linear in [0, 14, 41, 42, 61, 62, usize::MAX] {
            check(&program, &frame, around, linear, usize::MAX);
        }
        let known = |key: &[u8; maps::KEY_BYTES]| [ours(4), ours(6)].contains(key);
        if let Some(Fate::Refused(reason, _)) = fate(&frame, around, known) {
            fates.push(reason);
        }
    }
    // The samples cover all reasons except those that need a full ring or a changing frame.
    for reason in &Reason::ALL[2..7] {
        assert!(fates.contains(reason), "{reason:?}");
    }
}

#[test]
fn a_full_ring_is_counted_and_the_packet_passes() {
    let program = dispatch::program();
    for version in [4, 6] {
        let frame = packet(version, 64, 0);
        check(&program, &frame, Around::default(), usize::MAX, 151);
        check(&program, &frame, Around::default(), usize::MAX, 152);
    }
}

fn any_around() -> impl Strategy<Value = Around> {
    let rarely = || prop::bool::weighted(0.05);
    (rarely(), rarely(), rarely()).prop_map(|(tagged, other_host, merged)| Around {
        tagged,
        other_host,
        merged,
    })
}

const COOKIE: u64 = 7;
const SENDER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Result of the egress program for a frame of a guarded socket; counts refused frames.
fn guarded(version: u8, frame: &[u8], around: Around, cookie: u64) -> (i32, u64) {
    let ports = [1, model::FROM_PORT];
    let allowed = maps::allowed(SENDER_MAC, model::their_address(version), ports);
    let mut maps = Maps::Egress {
        allowed: HashMap::from([(COOKIE, allowed)]),
        refused: 0,
    };
    let mut input = input(frame, around, usize::MAX);
    input.cookie = cookie;
    let returned = run(&guard::program(), &input, &mut maps);
    let returned = returned.unwrap_or_else(|wrong| panic!("{wrong}"));
    let Maps::Egress { refused, .. } = maps else {
        unreachable!()
    };
    (returned, refused)
}

/// The rules for guarded sockets, as plain code.
fn may_leave(version: u8, frame: &[u8], around: Around) -> bool {
    let good = packet(version, 1, 0);
    let same = |from: usize, to: usize| frame.get(from..to) == good.get(from..to);
    let whole = frame.len() >= if version == 4 { 42 } else { 62 };
    let header = match version {
        4 => {
            same(14, 15)
                && same(23, 24)
                && same(26, 30)
                && (same(34, 36) || frame[34..36] == [0, 1])
        }
        _ => {
            frame.get(14).is_some_and(|first| first >> 4 == 6)
                && same(20, 21)
                && same(22, 38)
                && (same(54, 56) || frame.get(54..56) == Some(&[0, 1]))
        }
    };
    let fragment = version == 4 && (frame[20] & 0x3f != 0 || frame[21] != 0);
    whole && same(6, 14) && header && !fragment && !around.tagged && !around.merged
}

#[test]
fn a_guarded_socket_may_send_only_from_its_own_address() {
    for version in [4, 6] {
        let good = packet(version, 50, 0);
        let plain = Around::default();
        assert_eq!(guarded(version, &good, plain, COOKIE), (guard::PASSES, 0));
        // Frames of other sockets pass.
        assert_eq!(guarded(version, &[1; 20], plain, 8), (guard::PASSES, 0));
        assert_eq!(
            guarded(version, &[1; 20], plain, COOKIE),
            (guard::REFUSES, 1)
        );
        let other = packet(10 - version, 50, 0);
        assert_eq!(guarded(version, &other, plain, COOKIE), (guard::REFUSES, 1));
        for around in [
            Around {
                tagged: true,
                ..plain
            },
            Around {
                merged: true,
                ..plain
            },
        ] {
            assert_eq!(guarded(version, &good, around, COOKIE), (guard::REFUSES, 1));
        }
        for at in 0..70 {
            for bit in 0..8 {
                let mut frame = good.clone();
                frame[at] ^= 1 << bit;
                let wanted = match may_leave(version, &frame, plain) {
                    true => (guard::PASSES, 0),
                    false => (guard::REFUSES, 1),
                };
                assert_eq!(
                    guarded(version, &frame, plain, COOKIE),
                    wanted,
                    "{version} {at} {bit}"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn damaged_packets_meet_the_rules_and_nothing_is_read_out_of_bounds(
        frame in damaged_packet(),
        around in any_around(),
        linear in 0_usize..130,
        room in prop_oneof![4 => Just(usize::MAX), 1 => 0_usize..10_000],
    ) {
        let program = dispatch::program();
        check(&program, &frame, around, linear, room);
    }

    #[test]
    fn frames_that_leave_come_from_whom_they_say(
        frame in damaged_packet(),
        around in any_around(),
        version in prop::sample::select(vec![4_u8, 6]),
    ) {
        let long = frame.len() >= 42;
        let wanted = match long && may_leave(version, &frame, around) {
            true => (guard::PASSES, 0),
            false => (guard::REFUSES, 1),
        };
        prop_assert_eq!(guarded(version, &frame, around, COOKIE), wanted);
    }

    #[test]
    fn random_bytes_meet_the_rules(
        frame in prop::collection::vec(any::<u8>(), 0..200),
        around in any_around(),
        linear in 0_usize..130,
    ) {
        let program = dispatch::program();
        check(&program, &frame, around, linear, usize::MAX);
    }
}
