//! Two machines joined by a pipe, and a machine whose peer breaks every rule. Spec §9.

use dipole_proto::wire::{PipeKind, PipeTag, RefusedReason};
use dipole_proto::{
    BeginError, Config, EdgeId, Event, GoneReason, Instant, Machine, MessageStart, PeerId,
    ProtocolViolation,
};
use proptest::collection::vec;
use proptest::prelude::*;

const NOW: Instant = Instant(1);

/// One process: its machine, the messages it received, and its simulated memory.
struct Process {
    machine: Machine,
    peer: PeerId,
    received: Vec<(EdgeId, u64)>,
    fetches: Vec<(EdgeId, u64, u32, u64)>,
    refused: Vec<(u64, RefusedReason)>,
    taken: usize,
    streams: Vec<(EdgeId, u64)>,
    credits: usize,
    forgotten: usize,
    lengths: Vec<(EdgeId, u64, u64)>,
}

impl Process {
    fn new(incarnation: u64, other: &Machine) -> Process {
        let mut machine = machine(incarnation);
        let peer = machine.open_pipe(other.greeting()).expect("room");
        let mut process = Process {
            machine,
            peer,
            received: Vec::new(),
            fetches: Vec::new(),
            refused: Vec::new(),
            taken: 0,
            streams: Vec::new(),
            credits: 0,
            forgotten: 0,
            lengths: Vec::new(),
        };
        process.events();
        process
    }

    fn events(&mut self) {
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::Hold {
                    edge,
                    sequence,
                    total,
                    ..
                } => self.lengths.push((edge, sequence, total)),
                Event::Complete { edge, sequence, .. } => {
                    let held = self.lengths.iter();
                    let held = held.rev().find(|held| (held.0, held.1) == (edge, sequence));
                    self.received.push((edge, held.expect("it was held").2));
                }
                Event::Fetch {
                    edge,
                    sequence,
                    number,
                    total,
                    ..
                } => self.fetches.push((edge, sequence, number, total)),
                Event::OfferDone { .. } => self.taken += 1,
                Event::PiecesRequested { edge, sequence } => self.streams.push((edge, sequence)),
                Event::Refused {
                    sequence, reason, ..
                } => self.refused.push((sequence, reason)),
                Event::Credit { .. } => self.credits += 1,
                Event::EdgeForgotten { .. } => self.forgotten += 1,
                Event::Connected { .. } | Event::Gone { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn consume(&mut self) {
        for (edge, length) in self.received.drain(..) {
            self.machine.consumed(NOW, edge, length);
        }
        self.events();
    }
}

fn machine(incarnation: u64) -> Machine {
    let config = Config {
        initial_credit_bytes: 4096,
        edge_window_bytes: 64 << 10,
        ..Config::default()
    };
    Machine::new(config, incarnation, [incarnation, 5], &[])
}

fn pair() -> [Process; 2] {
    [Process::new(1, &machine(2)), Process::new(2, &machine(1))]
}

/// A pair with an edge from endpoint 1 of the first process to 7 of the second.
fn joined() -> ([Process; 2], EdgeId) {
    let mut pair = pair();
    pair[1].machine.open_endpoint(7);
    let edge = pair[0].machine.edge(pair[0].peer, 1, 7).expect("room");
    (pair, edge)
}

/// Two joined processes with a long message offered on the edge.
fn offered() -> ([Process; 2], EdgeId, MessageStart) {
    let (mut pair, edge) = joined();
    let begun = pair[0].machine.begin(NOW, edge, 3000).expect("credit");
    pair[0].machine.offer(edge, begun, (3000, 0x1000), None);
    (pair, edge, begun)
}

/// Pushes the records of both processes until none is left.
fn exchange(pair: &mut [Process; 2]) {
    loop {
        let mut moved = false;
        for from in 0..2 {
            let [one, two] = &mut *pair;
            let (sender, receiver) = match from {
                0 => (one, two),
                _ => (two, one),
            };
            while sender.machine.poll_ready_pipe().is_some() {}
            while let Some(record) = sender.machine.poll_record(sender.peer) {
                sender.machine.pop_record(sender.peer);
                let tag = PipeTag::from_word(record.tag).expect("sound");
                let bytes = record.bytes();
                let taken =
                    receiver
                        .machine
                        .on_pipe_record(NOW, receiver.peer, tag, bytes, bytes.len());
                taken.expect("an honest record");
                receiver.events();
                moved = true;
            }
            sender.events();
        }
        if !moved {
            return;
        }
    }
}

/// A whole message, pushed as the caller of a machine does.
fn send(pair: &mut [Process; 2], edge: EdgeId, length: usize) -> Result<(), BeginError> {
    let begun = pair[0].machine.begin(NOW, edge, length as u64);
    exchange(pair);
    begun?;
    deliver(&mut pair[1], Machine::message_tag(edge, false), length);
    exchange(pair);
    Ok(())
}

fn deliver(to: &mut Process, tag: u64, length: usize) {
    let number = PipeTag::from_word(tag).expect("sound").number;
    let delivery = to.machine.on_pipe_message(NOW, to.peer, number, length);
    if let Some(delivery) = delivery.expect("honest") {
        to.received.push((delivery.edge, length as u64));
    }
    to.events();
}

#[test]
fn credit_is_requested_and_granted_when_messages_are_read() {
    let (mut pair, edge) = joined();
    let mut sent = 0;
    while send(&mut pair, edge, 936).is_ok() {
        sent += 1;
        assert!(sent < 1000, "an unread edge accepts one window and no more");
    }
    assert_eq!(pair[1].received.len(), sent);
    pair[1].consume();
    exchange(&mut pair);
    assert!(pair[0].credits > 0, "its sender is notified");
    send(&mut pair, edge, 936).expect("room again");
}

#[test]
fn a_long_message_delays_later_ones_of_its_edge_until_it_is_copied() {
    let (mut pair, edge, _) = offered();
    exchange(&mut pair);
    send(&mut pair, edge, 5).expect("credit");
    assert!(
        pair[1].received.is_empty(),
        "the long one is delivered first"
    );
    let (on, sequence, number, _) = pair[1].fetches.remove(0);
    pair[1].machine.fetch_completed(NOW, on, number, sequence);
    pair[1].events();
    exchange(&mut pair);
    let lengths: Vec<u64> = pair[1].received.iter().map(|(_, length)| *length).collect();
    assert_eq!((lengths, pair[0].taken), (vec![3000, 5], 1));
}

#[test]
fn a_message_that_cannot_be_copied_is_sent_in_pieces() {
    let (mut pair, edge, begun) = offered();
    exchange(&mut pair);
    let (on, sequence, number, total) = pair[1].fetches.remove(0);
    pair[1].machine.fetch_failed(on, number, sequence, total);
    exchange(&mut pair);
    assert_eq!(pair[0].streams, [(edge, begun.sequence)]);
    for _ in 0..3 {
        push_piece(&mut pair[1], edge).expect("a piece of it");
    }
    pair[0].machine.pieces_sent(edge, begun.sequence);
    assert_eq!(pair[1].received.len(), 1);
    assert!(pair[0].machine.is_acknowledged(pair[0].peer));
}

fn push_piece(to: &mut Process, edge: EdgeId) -> Result<(), ProtocolViolation> {
    let tag = PipeTag::from_word(Machine::piece_tag(edge, false)).expect("sound");
    let taken = to.machine.on_pipe_record(NOW, to.peer, tag, &[], 1000);
    to.events();
    taken
}

#[test]
fn later_messages_and_the_end_wait_for_an_announced_message() {
    let (mut pair, edge) = joined();
    let begun = pair[0].machine.begin(NOW, edge, 3000).expect("credit");
    pair[0].machine.announce(edge, begun, 3000, None);
    exchange(&mut pair);
    send(&mut pair, edge, 5).expect("credit");
    pair[0].machine.close_edge(edge);
    exchange(&mut pair);
    for _ in 0..3 {
        assert!(
            pair[1].received.is_empty(),
            "the long one is delivered first"
        );
        assert!(!pair[0].machine.is_acknowledged(pair[0].peer));
        push_piece(&mut pair[1], edge).expect("a piece of it");
    }
    let lengths: Vec<u64> = pair[1].received.iter().map(|(_, length)| *length).collect();
    assert_eq!(lengths, [3000, 5]);
    pair[0].machine.pieces_sent(edge, begun.sequence);
    exchange(&mut pair);
    assert_eq!(pair[0].forgotten, 1, "the edge ends after it");
    assert!(push_piece(&mut pair[1], edge).is_err(), "a piece too many");
}

#[test]
fn an_announced_message_to_a_missing_endpoint_is_refused_and_holds_no_credit() {
    let mut pair = pair();
    let edge = pair[0].machine.edge(pair[0].peer, 1, 9).expect("room");
    let begun = pair[0].machine.begin(NOW, edge, 3000).expect("credit");
    pair[0].machine.announce(edge, begun, 3000, None);
    exchange(&mut pair);
    assert_eq!(pair[0].refused, [(0, RefusedReason::NoEndpoint)]);
    for _ in 0..3 {
        push_piece(&mut pair[1], edge).expect("a piece of it");
        assert_eq!(pair[1].machine.pool_used(), 0);
    }
    pair[0].machine.pieces_sent(edge, begun.sequence);
    pair[1].machine.open_endpoint(9);
    pair[0].machine.clear_refusal(edge);
    send(&mut pair, edge, 5).expect("open now");
    assert_eq!(pair[1].received.len(), 1);
}

#[test]
fn an_edge_ends_after_its_offers_and_both_sides_forget_it() {
    let (mut pair, edge, _) = offered();
    pair[0].machine.close_edge(edge);
    exchange(&mut pair);
    assert_eq!(pair[0].forgotten, 0, "its message has not been fetched");
    let (on, sequence, number, _) = pair[1].fetches.remove(0);
    pair[1].machine.fetch_completed(NOW, on, number, sequence);
    pair[1].events();
    exchange(&mut pair);
    assert_eq!(pair[0].forgotten, 1);
    assert_eq!(pair[1].machine.edges(), (0, 1), "its message is unread");
    pair[1].consume();
    assert_eq!(pair[1].machine.edges(), (0, 0));
    assert_eq!(pair[1].machine.credit_committed(), 0);
    assert_eq!(pair[1].machine.pool_used(), 0);
}

#[test]
fn a_late_credit_request_of_an_ended_edge_does_not_affect_its_next_life() {
    let mut pair = pair();
    pair[1].machine.open_endpoint(7);
    let edge = pair[0].machine.edge(pair[0].peer, 1, 7).expect("room");
    let earlier = pair[0].machine.edge_key(edge).expect("open");
    send(&mut pair, edge, 10).expect("credit");
    pair[0].machine.close_edge(edge);
    exchange(&mut pair);
    pair[1].consume();
    let edge = pair[0].machine.edge(pair[0].peer, 1, 7).expect("room");
    send(&mut pair, edge, 10).expect("credit");
    pair[1].consume();
    let granted = pair[1].machine.credit_committed();
    let tag = |life| PipeTag {
        kind: PipeKind::CreditRequest,
        extra: life,
        number: 30_000,
    };
    let ends = u64::from(earlier.source) << 32 | u64::from(earlier.target);
    let words = [ends, 30_074].map(u64::to_le_bytes);
    let later = pair[0].machine.edge_key(edge).expect("open");
    for (life, is_granted) in [(earlier.life, false), (later.life, true)] {
        let (peer, bytes) = (pair[1].peer, words.as_flattened());
        let machine = &mut pair[1].machine;
        let taken = machine.on_pipe_record(NOW, peer, tag(life), bytes, bytes.len());
        taken.expect("sound");
        assert_eq!(machine.credit_committed() > granted, is_granted);
    }
}

#[test]
fn a_message_to_a_missing_endpoint_is_refused_and_its_sender_notified() {
    let mut pair = pair();
    let edge = pair[0].machine.edge(pair[0].peer, 1, 9).expect("room");
    send(&mut pair, edge, 10).expect("credit");
    assert_eq!(pair[0].refused, [(0, RefusedReason::NoEndpoint)]);
    assert_eq!(
        pair[0].machine.begin(NOW, edge, 1),
        Err(BeginError::Refused(RefusedReason::NoEndpoint))
    );
    pair[1].machine.open_endpoint(9);
    pair[0].machine.clear_refusal(edge);
    send(&mut pair, edge, 10).expect("open now");
    assert_eq!(pair[1].received.len(), 1);
}

#[derive(Clone, Debug)]
enum Said {
    Message(u32, usize),
    Record(u8, u8, u32, Vec<u64>, usize),
    Read,
    Close(u32),
}

fn record() -> impl Strategy<Value = Said> {
    let small = || prop_oneof![4 => 0_u32..4, 1 => any::<u32>()];
    let word = || prop_oneof![3 => (0_u64..3, 6_u64..9).prop_map(|(a, b)| a << 32 | b), 2 => 0_u64..9000, 1 => any::<u64>()];
    prop_oneof![
        4 => (small(), 0_usize..5000).prop_map(|(number, length)| Said::Message(number, length)),
        8 => (0_u8..14, 0_u8..66, small(), vec(word(), 0..3), 0_usize..5000).prop_map(
            |(kind, extra, number, words, length)| Said::Record(kind, extra, number, words, length)
        ),
        2 => Just(Said::Read),
        1 => (6_u32..9).prop_map(Said::Close),
    ]
}

proptest! {
    #[test]
    fn invalid_records_harm_only_their_own_pipe(script in vec(record(), 0..200)) {
        let mut process = Process::new(1, &machine(2));
        for endpoint in 6..9 {
            process.machine.open_endpoint(endpoint);
        }
        let bound = process.machine.config().pool_bytes;
        for record in script {
            let (machine, peer) = (&mut process.machine, process.peer);
            let taken = match record {
                Said::Message(number, length) => {
                    machine.on_pipe_message(NOW, peer, number, length).map(|delivery| {
                        let delivered = delivery.map(|delivery| (delivery.edge, length as u64));
                        process.received.extend(delivered);
                    })
                }
                Said::Record(kind, extra, number, words, length) => {
                    let word = u64::from(kind) << 56 | u64::from(extra) << 48 | u64::from(number);
                    match PipeTag::from_word(word) {
                        Ok(tag) if tag.kind != PipeKind::Message => {
                            let bytes: Vec<u8> =
                                words.iter().flat_map(|word| word.to_le_bytes()).collect();
                            let length = match tag.kind {
                                PipeKind::Piece | PipeKind::Unreliable => length,
                                _ => bytes.len(),
                            };
                            machine.on_pipe_record(NOW, peer, tag, &bytes, length)
                        }
                        _ => Ok(()),
                    }
                }
                Said::Read => {
                    let unread: Vec<_> = process.received.drain(..).collect();
                    for (edge, length) in unread {
                        machine.consumed(NOW, edge, length);
                    }
                    Ok(())
                }
                Said::Close(endpoint) => {
                    // The contents of its inbox are dropped, and the machine is informed.
                    machine.close_endpoint(NOW, endpoint);
                    machine.open_endpoint(endpoint);
                    process.received.clear();
                    Ok(())
                }
            };
            // Unreliable messages hold no credit.
            while let Some(event) = process.machine.poll_event() {
                match event {
                    Event::Hold { edge, sequence, total, .. } => {
                        process.lengths.push((edge, sequence, total));
                    }
                    Event::Complete { edge, sequence, .. } => {
                        let held = process.lengths.iter();
                        let mut held = held.rev().filter(|held| (held.0, held.1) == (edge, sequence));
                        let length = held.next().expect("it was held").2;
                        process.received.push((edge, length));
                    }
                    Event::Fetch { edge, sequence, number, .. } => {
                        process.machine.fetch_completed(NOW, edge, number, sequence);
                    }
                    _ => {}
                }
            }
            prop_assert!(process.machine.pool_used() <= bound);
            if taken.is_err() {
                break;
            }
        }
        process.machine.close_pipe(process.peer, GoneReason::ProtocolViolation);
        prop_assert_eq!(process.machine.pool_used(), 0);
        prop_assert_eq!(process.machine.credit_committed(), 0);
        prop_assert_eq!(process.machine.edges(), (0, 0));
    }
}
