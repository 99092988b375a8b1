//! Two machines on a virtual wire: everything sent arrives once and in order, whatever the wire
//! does.

use crate::pair::{Wire, connected, payload};
use dipole_proto::{BeginError, Config, DropReason, EdgeId, GoneReason};

const SECOND: u64 = 1_000_000_000;

/// Sends `count` messages of the given lengths and checks that they arrive in order.
fn converse(wire: &mut Wire, edge: EdgeId, count: u64, length: impl Fn(u64) -> usize) {
    converse_from(wire, edge, 0, count, length);
}

/// Exchanges messages from number `first` on.
fn converse_from(
    wire: &mut Wire,
    edge: EdgeId,
    first: u64,
    count: u64,
    length: impl Fn(u64) -> usize,
) {
    let (mut sent, mut received) = (first, first);
    let count = first + count;
    let finished = wire.run(120 * SECOND, |wire| {
        let now = wire.now;
        while sent < count {
            let message = payload(sent, length(sent));
            match wire.hosts[0].send(now, edge, &message) {
                Ok(_) => sent += 1,
                Err(BeginError::NoCredit { .. }) => break,
                Err(other) => panic!("{other}"),
            }
        }
        while let Some(message) = wire.hosts[1].read(now) {
            assert_eq!(
                message,
                payload(received, length(received)),
                "message {received}"
            );
            received += 1;
        }
        received == count && wire.hosts[0].machine.is_acknowledged(edge.peer)
    });
    assert!(finished, "sent {sent}, received {received} of {count}");
    let drops: Vec<_> = wire.hosts[1].machine.stats().drops().collect();
    assert_eq!(
        wire.hosts[1].machine.stats().dropped(DropReason::Violation),
        0,
        "{drops:?}"
    );
    assert_eq!(wire.hosts[1].machine.pool_used(), 0);
}

#[test]
fn messages_of_all_sizes_arrive_in_order_without_losses() {
    let (mut wire, edge) = connected(1, &Config::default());
    converse(&mut wire, edge, 300, |index| (index as usize * 37) % 5000);
    let stats = *wire.hosts[0].machine.stats();
    assert_eq!(stats.repeats, 0, "{stats:?}");
}

#[test]
fn messages_arrive_in_order_in_spite_of_loss_duplication_and_reordering() {
    for seed in 0..30 {
        let (mut wire, edge) = connected(seed, &Config::default());
        wire.loss = 0.1;
        wire.duplicate = 0.05;
        wire.reorder = 0.1;
        converse(&mut wire, edge, 200, |index| (index as usize * 91) % 9000);
    }
}

#[test]
fn one_loss_costs_about_one_retransmission() {
    let (mut wire, edge) = connected(5, &Config::default());
    wire.loss = 0.01;
    let before = wire.lost;
    converse(&mut wire, edge, 500, |_| 64 * 1024);
    let repeats = wire.hosts[0].machine.stats().repeats;
    let lost = wire.lost - before;
    assert!(lost > 100, "{lost} lost");
    assert!(
        repeats as f64 <= 1.2 * lost as f64,
        "{repeats} repeats for {lost} losses"
    );
}

#[test]
fn a_message_longer_than_any_window_gets_through() {
    let config = Config {
        edge_window_bytes: 64 << 10,
        pool_bytes: 256 << 10,
        pool_reserve_bytes: 64 << 10,
        frames: 8192,
        ..Config::default()
    };
    let (mut wire, edge) = connected(6, &config);
    wire.loss = 0.02;
    converse(&mut wire, edge, 4, |_| 3 << 20);
}

#[test]
fn the_smallest_pools_make_progress() {
    for seed in 0..20 {
        let config = Config {
            frames: 2,
            window_packets: 2,
            pool_bytes: 400,
            pool_reserve_bytes: 200,
            initial_credit_bytes: 2000,
            edge_window_bytes: 2000,
            packet_bytes: 256,
            ..Config::default()
        };
        let (mut wire, edge) = connected(seed, &config);
        wire.loss = 0.2;
        wire.reorder = 0.2;
        converse(&mut wire, edge, 60, |index| (index as usize * 7) % 100);
    }
}

#[test]
fn an_application_that_never_reads_blocks_only_its_own_senders() {
    let config = Config {
        initial_credit_bytes: 4000,
        edge_window_bytes: 8000,
        ..Config::default()
    };
    let (mut wire, quick) = connected(9, &config);
    wire.hosts[1].machine.open_endpoint(8);
    let stuck = wire.hosts[0].machine.edge(quick.peer, 1, 8).expect("open");
    let now = wire.now;
    let mut taken = 0;
    while wire.hosts[0].send(now, stuck, &[8; 500]).is_ok() {
        taken += 1;
    }
    assert!((1..=14).contains(&taken), "{taken}");
    assert!(wire.run(SECOND, |wire| wire.hosts[1].received.len() == taken));
    wire.hosts[1].received.clear();
    converse_unread(&mut wire, quick, taken as u64 * 564);
}

fn converse_unread(wire: &mut Wire, edge: EdgeId, held: u64) {
    let (mut sent, mut received) = (0, 0);
    assert!(wire.run(20 * SECOND, |wire| {
        let now = wire.now;
        while sent < 200 && wire.hosts[0].send(now, edge, &payload(sent, 700)).is_ok() {
            sent += 1;
        }
        while let Some(message) = wire.hosts[1].read(now) {
            assert_eq!(message, payload(received, 700));
            received += 1;
        }
        received == 200
    }));
    assert_eq!(wire.hosts[1].machine.pool_used(), held);
}

#[test]
fn a_missing_endpoint_is_reported_to_the_sender() {
    let (mut wire, edge) = connected(11, &Config::default());
    let nowhere = wire.hosts[0].machine.edge(edge.peer, 1, 99).expect("open");
    let now = wire.now;
    wire.hosts[0]
        .send(now, nowhere, b"anyone?")
        .expect("credit");
    assert!(wire.run(SECOND, |wire| !wire.hosts[0].refused.is_empty()));
    assert_eq!(wire.hosts[0].refused, [0]);
    let now = wire.now;
    assert!(matches!(
        wire.hosts[0].send(now, nowhere, b"again"),
        Err(BeginError::Refused(_))
    ));
    wire.hosts[1].machine.open_endpoint(99);
    wire.hosts[0].machine.clear_refusal(nowhere);
    wire.hosts[0]
        .send(now, nowhere, b"now")
        .expect("open again");
    assert!(wire.run(SECOND, |wire| !wire.hosts[1].received.is_empty()));
}

#[test]
fn nothing_counts_as_acknowledged_before_its_refusal_has_arrived() {
    for seed in 1..=300 {
        let (mut wire, edge) = connected(seed, &Config::default());
        let peer = wire.hosts[1].connected[0];
        let nowhere = wire.hosts[0].machine.edge(edge.peer, 1, 99).expect("open");
        (wire.loss, wire.duplicate, wire.reorder) = (0.3, 0.1, 0.3);
        let now = wire.now;
        for (edge, message) in [(nowhere, b"refused"), (edge, b"arrives")] {
            wire.hosts[0].send(now, edge, message).expect("credit");
        }
        let acknowledged = |wire: &mut Wire| wire.hosts[0].machine.is_acknowledged(edge.peer);
        if seed % 2 == 0 {
            assert!(wire.run(60 * SECOND, acknowledged), "seed {seed}");
            assert_eq!(wire.hosts[0].refused, [0], "seed {seed}");
            continue;
        }
        // A process that leaves cannot send its refusal again.
        let arrived = |wire: &mut Wire| wire.hosts[1].machine.stats().messages_refused > 0;
        assert!(wire.run(60 * SECOND, arrived), "seed {seed}");
        wire.hosts[1].machine.disconnect(peer);
        let is_over = |wire: &mut Wire| !wire.hosts[0].gone.is_empty();
        assert!(wire.run(60 * SECOND, is_over), "seed {seed}");
        let host = &wire.hosts[0];
        assert!(
            host.refused == [0] || host.left_unacknowledged == [edge.peer],
            "seed {seed}"
        );
    }
}

#[test]
fn a_late_refusal_does_not_concern_the_next_life_of_its_edge() {
    for seed in 1..=300 {
        let (mut wire, edge) = connected(seed, &Config::default());
        let open = |wire: &mut Wire| wire.hosts[0].machine.edge(edge.peer, 1, 99).expect("open");
        let old = open(&mut wire);
        (wire.loss, wire.duplicate, wire.reorder) = (0.3, 0.1, 0.3);
        let now = wire.now;
        wire.hosts[0].send(now, old, b"refused").expect("credit");
        let arrived = |wire: &mut Wire| wire.hosts[1].machine.stats().messages_refused > 0;
        assert!(wire.run(60 * SECOND, arrived), "seed {seed}");
        wire.hosts[1].machine.open_endpoint(99);
        wire.hosts[0].machine.close_edge(old);
        let new = open(&mut wire);
        let mut sent = 0;
        let all = |wire: &mut Wire| {
            let now = wire.now;
            if sent < 10 {
                match wire.hosts[0].send(now, new, b"arrives") {
                    Ok(_) => sent += 1,
                    Err(BeginError::NoCredit { .. }) => {}
                    Err(other) => panic!("seed {seed}: {other}"),
                }
            }
            wire.hosts[0].refused == [0] && wire.hosts[1].received.len() == 10
        };
        assert!(wire.run(60 * SECOND, all), "seed {seed}");
        let now = wire.now;
        let further = wire.hosts[0].send(now, new, b"arrives");
        assert!(
            matches!(further, Ok(_) | Err(BeginError::NoCredit { .. })),
            "seed {seed}: {further:?}"
        );
    }
}

#[test]
fn units_of_a_dead_lane_move_to_another() {
    let (mut wire, edge) = connected(13, &Config::default());
    wire.dead_ports = vec![2];
    converse(&mut wire, edge, 20, |_| 100_000);
    assert!(wire.hosts[0].machine.stats().lanes_lost > 0);
}

#[test]
fn either_of_two_interfaces_may_fail_and_recover() {
    for length in [50, 100_000] {
        let mut wire = Wire::with_interfaces(31, 2, 2, &Config::default());
        wire.hosts[1].machine.open_endpoint(7);
        let peer = wire.connect(0, 1);
        assert!(wire.run(SECOND, |wire| wire.hosts[0].machine.is_open(peer)));
        let edge = wire.hosts[0].machine.edge(peer, 1, 7).expect("open");
        let mut first = 0;
        for dead_ports in [vec![], vec![1, 2], vec![], vec![3, 4], vec![]] {
            println!("{length} bytes, dead: {dead_ports:?}");
            wire.dead_ports = dead_ports;
            let begun = wire.now;
            converse_from(&mut wire, edge, first, 20, |_| length);
            first += 20;
            assert!(wire.now.since(begun) < 2 * SECOND, "within the time-out");
        }
        assert!(wire.hosts.iter().all(|host| host.gone.is_empty()));
    }
}

#[test]
fn a_restarted_process_ends_the_old_session_and_opens_a_new_one() {
    let (mut wire, edge) = connected(17, &Config::default());
    wire.restart(1);
    wire.hosts[1].machine.open_endpoint(7);
    let now = wire.now;
    wire.hosts[0]
        .send(now, edge, b"to the dead")
        .expect("credit");
    assert!(wire.run(SECOND, |wire| !wire.hosts[0].gone.is_empty()));
    let total = wire.hosts[0].machine.config().frames as usize;
    assert_eq!(wire.hosts[0].pool.free(), total, "every frame was released");
    let peer = wire.connect(0, 1);
    assert!(wire.run(SECOND, |wire| wire.hosts[0].machine.is_open(peer)));
    let edge = wire.hosts[0].machine.edge(peer, 1, 7).expect("open");
    converse(&mut wire, edge, 10, |_| 10);
}

#[test]
fn a_silent_peer_is_gone_after_the_time_out_and_no_sooner() {
    let (mut wire, edge) = connected(19, &Config::default());
    wire.loss = 1.0;
    let now = wire.now;
    wire.hosts[0].send(now, edge, b"hello?").expect("credit");
    let timeout = wire.hosts[0].machine.config().peer_timeout_ns;
    assert!(!wire.run(timeout - SECOND, |wire| !wire.hosts[0].gone.is_empty()));
    assert!(wire.run(2 * SECOND, |wire| !wire.hosts[0].gone.is_empty()));
    assert_eq!(wire.hosts[0].gone[0].1, GoneReason::Silent);
}

#[test]
fn a_silent_peer_stays_while_a_third_party_vouches_for_it() {
    let (mut wire, edge) = connected(19, &Config::default());
    wire.loss = 1.0;
    let now = wire.now;
    wire.hosts[0].send(now, edge, b"hello?").expect("credit");
    for count in 1..=10 {
        assert!(wire.run(2 * SECOND, |wire| wire.hosts[0].quiet.len() == count));
        let now = wire.now;
        wire.hosts[0].machine.confirm_alive(now, edge.peer, false);
    }
    assert!(wire.hosts[0].gone.is_empty());
    wire.hosts[0].machine.give_up(edge.peer);
    assert!(wire.run(SECOND, |wire| !wire.hosts[0].gone.is_empty()));
    assert_eq!(wire.hosts[0].gone[0].1, GoneReason::Died);
    let total = wire.hosts[0].machine.config().frames as usize;
    assert_eq!(wire.hosts[0].pool.free(), total, "every frame was released");
}

#[test]
fn a_running_peer_whose_packets_never_arrive_is_unreachable_after_ten_time_outs() {
    let (mut wire, edge) = connected(19, &Config::default());
    wire.loss = 1.0;
    let begun = wire.now;
    wire.hosts[0].send(begun, edge, b"hello?").expect("credit");
    let limit_ns = 10 * wire.hosts[0].machine.config().peer_timeout_ns;
    let mut count = 0;
    while wire.hosts[0].gone.is_empty() {
        count += 1;
        assert!(wire.run(2 * SECOND, |wire| wire.hosts[0].quiet.len() == count));
        let now = wire.now;
        wire.hosts[0].machine.confirm_alive(now, edge.peer, true);
        wire.run(0, |_| true);
    }
    assert_eq!(wire.hosts[0].gone[0].1, GoneReason::Unreachable);
    let took_ns = wire.now.since(begun);
    assert!(
        (limit_ns..limit_ns + 2 * SECOND).contains(&took_ns),
        "{took_ns} ns"
    );
}

#[test]
fn both_sides_may_connect_at_the_same_time() {
    let mut wire = Wire::new(23, 2, &Config::default());
    let there = wire.connect(0, 1);
    let back = wire.connect(1, 0);
    assert!(wire.run(SECOND, |wire| {
        wire.hosts[0].machine.is_open(there) && wire.hosts[1].machine.is_open(back)
    }));
    assert_eq!(wire.hosts[0].machine.peers().count(), 1);
    assert_eq!(wire.hosts[1].machine.peers().count(), 1);
}

#[test]
fn a_bye_ends_both_sides() {
    let (mut wire, edge) = connected(29, &Config::default());
    wire.hosts[0].machine.disconnect(edge.peer);
    assert!(wire.run(SECOND, |wire| !wire.hosts[1].gone.is_empty()));
    assert_eq!(wire.hosts[1].gone[0].1, GoneReason::Closed);
}

#[test]
fn unreliable_messages_are_never_duplicated() {
    let (mut wire, edge) = connected(31, &Config::default());
    wire.duplicate = 0.5;
    wire.loss = 0.2;
    for index in 0..100_u32 {
        let begun = wire.hosts[0].machine.begin_unreliable(edge);
        let (key, number) = begun.expect("open");
        assert!(wire.hosts[0].send_records(edge.peer, true, |bytes| {
            dipole_proto::wire::emit_message(bytes, key, number, 4, true, false);
            bytes[16..20].copy_from_slice(&index.to_le_bytes());
            20
        }));
    }
    wire.run(SECOND, |_| false);
    let mut seen = wire.hosts[1].unreliable.clone();
    assert!((50..100).contains(&seen.len()), "{}", seen.len());
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), wire.hosts[1].unreliable.len());
}

#[test]
fn lives_of_an_unread_edge_get_no_more_credit_than_the_pool_holds() {
    let config = Config {
        initial_credit_bytes: 1000,
        edge_window_bytes: 64 << 10,
        pool_bytes: 12_000,
        pool_reserve_bytes: 4_000,
        peer_timeout_ns: 8 * SECOND,
        ..Config::default()
    };
    let (mut wire, mut edge) = connected(43, &config);
    let mut sent = 0;
    let mut send = |wire: &mut Wire| {
        let now = wire.now;
        let sender = &mut wire.hosts[0];
        while sent < 20 && sender.send(now, edge, &payload(sent, 900)).is_ok() {
            sent += 1;
            sender.machine.close_edge(edge);
            edge = sender.machine.edge(edge.peer, 1, 7).expect("open");
        }
        assert!(wire.hosts[1].machine.credit_committed() <= 8000);
        sent
    };
    // Wait longer than a peer that owes an answer may be silent; this one owes none.
    wire.run(SECOND, |wire| send(wire) == 20);
    let before = wire.sent;
    wire.run(20 * SECOND, |wire| send(wire) == 20);
    assert!((4..10).contains(&send(&mut wire)));
    assert!(wire.sent - before <= 24, "{} packets", wire.sent - before);
    assert!(wire.hosts[0].quiet.is_empty());
    let mut received = 0;
    assert!(wire.run(20 * SECOND, |wire| {
        let now = wire.now;
        while let Some(message) = wire.hosts[1].read(now) {
            assert_eq!(message, payload(received, 900));
            received += 1;
        }
        send(wire) == 20 && received == 20
    }));
    assert!(wire.hosts.iter().all(|host| host.gone.is_empty()));
    assert_eq!(wire.hosts[1].machine.pool_used(), 0);
}

#[test]
fn the_death_of_a_peer_that_has_not_forgotten_an_edge_is_detected() {
    let config = Config {
        pool_bytes: 40_000,
        pool_reserve_bytes: 4_000,
        ..Config::default()
    };
    let (mut wire, edge) = connected(47, &config);
    let now = wire.now;
    let sender = &mut wire.hosts[0];
    sender.send(now, edge, &payload(0, 9000)).expect("credit");
    sender.machine.close_edge(edge);
    wire.run(SECOND, |_| false);
    let sender = &mut wire.hosts[0].machine;
    let edge = sender.edge(edge.peer, 1, 7).expect("open");
    let begun = sender.begin(wire.now, edge, 1);
    assert!(matches!(begun, Err(BeginError::NoCredit { .. })));
    wire.hosts[1].home.ip[15] = 9;
    assert!(wire.run(6 * SECOND, |wire| !wire.hosts[0].gone.is_empty()));
}

#[test]
fn numbers_outgrow_32_bits_unnoticed() {
    for seed in 0..20 {
        let config = Config {
            first_number: u32::MAX - 40 * (seed as u32 % 3),
            ..Config::default()
        };
        let (mut wire, edge) = connected(seed, &config);
        (wire.loss, wire.duplicate, wire.reorder) = (0.1, 0.05, 0.1);
        // Continue with messages of one packet.
        converse(&mut wire, edge, 100, |index| (index as usize * 91) % 3000);
        assert!(wire.hosts[0].machine.next_unit(edge.peer) > 1 << 32);
        wire.run(SECOND, |_| false);
        (wire.loss, wire.duplicate, wire.reorder) = (0.0, 0.0, 0.0);
        let before = wire.hosts[0].machine.stats().repeats;
        converse_from(&mut wire, edge, 100, 100, |_| 5000);
        assert_eq!(wire.hosts[0].machine.stats().repeats, before);
    }
}
