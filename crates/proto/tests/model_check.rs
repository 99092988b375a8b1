//! Model-checks the machine: visits every state that two processes with the smallest pools can
//! reach, and finds runs that never finish.
//!
//! With both safety rules of the thesis (§5.3) there is neither deadlock nor livelock. Without one
//! or both, the checker finds what they prevent. Method, abstractions and results are described in
//! `docs/design/model-checking.md`. Each run prints a line, and a trace for what it finds
//! (`cargo test -p dipole-proto --test model_check -- --nocapture`).
//!
//! `DIPOLE_MODEL_BOUND=n` explores runs that take longer, and extends those that must succeed: n more
//! losses, and from 3 on n - 2 more duplicates and premature time-outs. `cargo xtask model` sets it
//! to 0, which takes a minute or two; 2 takes minutes and 1 GiB, 3 takes more than 13 GiB.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

mod model;

use std::sync::atomic::Ordering;

use model::fair::Stall;
use model::memory::Ask;
use model::pipes::{Call, Exchange, READ_AT_ONCE, charge};
use model::scenario::{Scenario, Thread, bound, sizes};
use model::{run, run_pipes};

// ---- both rules ---------------------------------------------------------------

#[test]
fn with_both_rules_an_exchange_with_one_frame_and_one_message_of_pool_ends() {
    for messages in sizes(2, 3) {
        let mut scenario = Scenario::exchange(messages, 1, 1);
        scenario.drops = 1;
        scenario.duplicates = 1;
        let name = format!("both rules, {messages}+{messages} messages, 1 frame, pool of 1");
        run(&name, scenario.widened()).assert_sound();
    }
}

#[test]
fn with_both_rules_an_exchange_with_reordered_units_ends() {
    for drops in sizes(0, 1) {
        let mut scenario = Scenario::exchange(2, 2, 2);
        scenario.drops = drops;
        let name = format!("both rules, 2+2 messages, 2 frames, pool of 2, {drops} losses");
        run(&name, scenario.widened()).assert_sound();
    }
    if bound().is_some() {
        let scenario = Scenario::exchange(4, 2, 1);
        run(
            "both rules, 4+4 messages, 2 frames, pool of 1",
            scenario.widened(),
        )
        .assert_sound();
    }
}

#[test]
fn with_both_rules_holes_in_a_stream_are_filled() {
    for messages in sizes(3, 4) {
        let mut scenario = Scenario::stream(messages, 3, 2);
        scenario.capacity = 3;
        scenario.drops = 1;
        let name = format!("both rules, {messages} messages one way, 3 frames, pool of 2");
        run(&name, scenario.widened()).assert_sound();
    }
}

#[test]
fn with_both_rules_premature_time_outs_do_no_harm() {
    let mut scenario = Scenario::exchange(2, 1, 1);
    scenario.drops = 1;
    scenario.early = 1;
    run(
        "both rules, 2+2 messages, early time-outs",
        scenario.widened(),
    )
    .assert_sound();
    let mut scenario = Scenario::stream(3, 2, 2).with_phases(2);
    scenario.drops = 1;
    scenario.early = 1;
    run(
        "both rules, 3 messages one way, timers out of step",
        scenario.widened(),
    )
    .assert_sound();
}

#[test]
fn units_that_are_cut_at_any_time_arrive_once() {
    for duplicates in sizes(0, 1) {
        let mut scenario = Scenario::stream(2, 2, 1).with_narrowing();
        scenario.drops = 1;
        scenario.duplicates = duplicates;
        let name = format!(
            "both rules, 2 messages one way, path that becomes narrow, {duplicates} copies"
        );
        run(&name, scenario.widened()).assert_sound();
    }
    let scenario = Scenario::exchange(1, 1, 1).with_narrowing();
    run(
        "both rules, 1+1 messages, path that becomes narrow",
        scenario.widened(),
    )
    .assert_sound();
}

// ---- rules off ------------------------------------------------------------------

#[test]
fn without_the_first_rule_senders_that_do_not_read_livelock() {
    let scenario = Scenario::exchange(4, 2, 1).without_first_rule();
    let found = run("first rule off", scenario);
    found.assert_found(Stall::Livelock);
    found.assert_absent(Stall::Deadlock);
}

#[test]
fn without_the_second_rule_reordered_messages_fill_the_pool_forever() {
    let scenario = Scenario::exchange(2, 2, 1).without_second_rule();
    let found = run("second rule off", scenario);
    found.assert_found(Stall::Livelock);
    found.assert_absent(Stall::Deadlock);
}

#[test]
fn without_both_rules_separate_frames_and_pool_only_livelock() {
    let scenario = Scenario::exchange(4, 2, 1)
        .without_first_rule()
        .without_second_rule();
    let found = run("both rules off", scenario);
    found.assert_found(Stall::Livelock);
    found.assert_absent(Stall::Deadlock);
}

// ---- one pool for both directions, as in the thesis ---------------------------------

#[test]
fn with_both_rules_one_pool_for_sending_and_receiving_suffices() {
    let scenario = Scenario::exchange(3, 2, 1).with_one_pool(3);
    run("one pool, both rules", scenario.widened()).assert_sound();
}

#[test]
fn without_the_first_rule_one_pool_livelocks() {
    let scenario = Scenario::exchange(4, 2, 1)
        .with_one_pool(3)
        .without_first_rule();
    let found = run("one pool, first rule off", scenario);
    found.assert_found(Stall::Livelock);
    found.assert_absent(Stall::Deadlock);
}

#[test]
fn without_the_second_rule_one_pool_livelocks() {
    for buffers in sizes(3, 2) {
        let scenario = Scenario::exchange(2, 2, 1)
            .with_one_pool(buffers)
            .without_second_rule();
        let name = format!("one pool of {buffers}, second rule off");
        run(&name, scenario).assert_found(Stall::Livelock);
    }
}

#[test]
fn without_both_rules_one_pool_deadlocks() {
    let scenario = Scenario::exchange(3, 2, 3)
        .with_one_pool(2)
        .without_first_rule()
        .without_second_rule();
    run("one pool, both rules off", scenario).assert_found(Stall::Deadlock);
}

// ---- credit replaces the first rule when an application never reads --------------------

/// Three messages to endpoint 7, which is never read, and two to 8, which is.
fn never_read(pool_messages: u64) -> Scenario {
    let mut scenario = Scenario::exchange(0, 2, pool_messages);
    scenario.capacity = 1;
    scenario.endpoints = vec![7, 8];
    scenario.threads = [
        vec![Thread::sending(3, 7).optional(), Thread::sending(2, 8)],
        vec![Thread::reading(2, 8)],
    ];
    scenario
}

#[test]
fn with_credit_an_endpoint_that_is_never_read_does_not_block_others() {
    let mut scenario = never_read(2).with_credit(1);
    scenario.drops = 1;
    run(
        "credit of 1 message, one endpoint never read",
        scenario.widened(),
    )
    .assert_sound();
}

#[test]
fn without_credit_an_endpoint_that_is_never_read_blocks_others() {
    let found = run("no credit limit, one endpoint never read", never_read(2));
    found.assert_found(Stall::Livelock);
}

#[test]
fn credit_does_not_help_two_applications_that_only_send() {
    let scenario = Scenario::exchange(2, 2, 1)
        .with_credit(1)
        .without_first_rule();
    run("credit of 1 message, first rule off", scenario).assert_found(Stall::Livelock);
}

// ---- edges that end ---------------------------------------------------------------

#[test]
fn an_edge_that_is_closed_after_every_message_delivers_all_and_is_forgotten() {
    let mut scenario = Scenario::stream(2, 1, 2);
    scenario.threads[0] = vec![Thread::sending(2, 7).closing()];
    scenario.drops = 1;
    run("an edge of two lives", scenario.clone().widened()).assert_sound();
    scenario.duplicates = 1;
    run("an edge of two lives, a copy", scenario.widened()).assert_sound();
}

#[test]
fn lives_of_an_edge_with_reordered_units_do_not_mix() {
    let mut scenario = Scenario::stream(3, 2, 3);
    scenario.threads[0] = vec![Thread::sending(3, 7).closing()];
    run("an edge of three lives, 2 frames", scenario).assert_sound();
}

// ---- handshake -------------------------------------------------------------------

#[test]
fn crossing_hellos_make_one_session_in_spite_of_losses() {
    let mut scenario = Scenario::exchange(1, 1, 1).with_handshake();
    scenario.drops = 2;
    scenario.duplicates = 1;
    run("handshake, both call", scenario.widened()).assert_sound();
}

#[test]
fn a_restart_in_any_state_leads_to_one_new_session() {
    let mut scenario = Scenario::exchange(1, 1, 1).with_handshake();
    (scenario.restarts, scenario.capacity) = (1, 1);
    scenario.drops = 1;
    scenario.duplicates = 1;
    run("handshake, restart, 1+1 messages", scenario.widened()).assert_sound();
    let mut scenario = Scenario::exchange(0, 1, 1).with_handshake();
    scenario.restarts = 1;
    scenario.drops = 1;
    run(
        "handshake, restart, 2 packets in flight",
        scenario.widened(),
    )
    .assert_sound();
}

// ---- processes of one node: the same channel over rings instead of packets -------------

fn send(target: u32, long: bool) -> Call {
    Call::Send { target, long }
}

fn read(endpoint: u32, count: u8) -> Call {
    Call::Read { endpoint, count }
}

/// One thread per process; both must finish.
fn one_each(first: Vec<Call>, second: Vec<Call>) -> [Vec<(Vec<Call>, bool)>; 2] {
    [vec![(first, false)], vec![(second, false)]]
}

#[test]
fn short_and_long_messages_arrive_in_order_through_rings_of_one_record() {
    let calls = |long| vec![send(7, false), send(7, long), send(7, false), read(7, 3)];
    for (slots, announced) in [(1, 0), (1, 2), (2, 0), (2, 2)] {
        let mut exchange = Exchange::new(one_each(calls(true), calls(false)));
        (exchange.slots, exchange.announced) = (slots, announced);
        exchange.credit_bytes = 8 * charge(6);
        let name = format!("rings of {slots}, a long message among others, both ways, {announced}");
        run_pipes(&name, exchange).assert_sound();
    }
    assert!(
        READ_AT_ONCE.load(Ordering::Relaxed) > 100,
        "both ways to read are compared"
    );
}

#[test]
fn a_long_message_that_cannot_be_copied_arrives_in_pieces_in_order() {
    let sender = vec![send(7, true), send(7, true), send(7, false)];
    for (refused, announced) in [(1, 0), (2, 0), (0, 3), (1, 1), (1, 2)] {
        let mut exchange = Exchange::new(one_each(sender.clone(), vec![read(7, 3)]));
        exchange.slots = 1;
        exchange.credit_bytes = 8 * charge(6);
        (exchange.refused_fetches, exchange.announced) = (refused, announced);
        run_pipes(
            &format!("{refused} of 2 copies refused, {announced}"),
            exchange,
        )
        .assert_sound();
    }
}

#[test]
fn credit_for_one_message_is_renewed_through_rings_of_one_record() {
    let calls = || vec![send(7, false), read(7, 1), send(7, false), read(7, 1)];
    let mut exchange = Exchange::new(one_each(calls(), calls()));
    (exchange.slots, exchange.credit_bytes) = (1, charge(2));
    run_pipes("rings of 1, credit of 1 message", exchange).assert_sound();
}

#[test]
fn a_reopened_edge_over_rings_delivers_in_both_lives() {
    let sender = vec![
        send(7, false),
        Call::CloseEdge { target: 7 },
        send(7, true),
        Call::CloseEdge { target: 7 },
        send(7, false),
    ];
    for (slots, announced) in [(1, 0), (1, 2), (2, 0), (2, 2)] {
        let mut exchange = Exchange::new(one_each(sender.clone(), vec![read(7, 3)]));
        (exchange.slots, exchange.announced) = (slots, announced);
        exchange.refused_fetches = 1;
        let name = format!("rings of {slots}, an edge of three lives, {announced}");
        run_pipes(&name, exchange).assert_sound();
    }
}

#[test]
fn senders_to_an_endpoint_that_closes_are_notified_of_missing_messages() {
    let sender = vec![send(7, false), send(7, true), send(7, false)];
    let reader = vec![
        Call::Open { endpoint: 7 },
        Call::Close { endpoint: 7 },
        Call::Open { endpoint: 7 },
        Call::Close { endpoint: 7 },
    ];
    let threads = [
        vec![(sender, false)],
        vec![(reader, false), (vec![read(7, 3)], true)],
    ];
    for announced in [0, 2] {
        let mut exchange = Exchange::new(threads.clone());
        (exchange.slots, exchange.announced) = (1, announced);
        exchange.refused_fetches = 1;
        let name = format!("rings of 1, an endpoint that closes, {announced}");
        run_pipes(&name, exchange).assert_sound();
    }
}

#[test]
fn with_credit_an_unread_endpoint_does_not_block_others_over_rings() {
    let sender = |target, long| (vec![send(target, long); 3], target == 8);
    let threads = [
        vec![sender(7, true), sender(8, true)],
        vec![(vec![read(7, 3)], false), (vec![read(8, 3)], true)],
    ];
    for announced in [0, 7] {
        let mut exchange = Exchange::new(threads.clone());
        (exchange.slots, exchange.announced) = (1, announced);
        exchange.credit_bytes = charge(6);
        let name = format!("rings of 1, an endpoint read by chance, {announced}");
        run_pipes(&name, exchange).assert_sound();
    }
}

#[test]
fn credit_does_not_help_two_applications_that_only_send_over_rings() {
    let calls = || vec![send(7, false), send(7, false), read(7, 2)];
    let mut exchange = Exchange::new(one_each(calls(), calls()));
    exchange.credit_bytes = charge(2);
    let found = run_pipes("rings, credit of 1 message, no reads", exchange.clone());
    found.assert_found(Stall::Deadlock);
    exchange.reads_when_blocked = Some(7);
    exchange.threads = one_each(
        vec![send(7, false), send(7, false)],
        vec![send(7, false), send(7, false)],
    );
    run_pipes("the same, a blocked sender reads", exchange).assert_absent(Stall::Livelock);
}

// ---- operations on memory ---------------------------------------------------------------

fn ask(ask: Ask) -> Call {
    Call::Ask { target: 7, ask }
}

fn put(long: bool, notice: bool) -> Call {
    ask(Ask::Put { long, notice })
}

/// Requests of the first process; the second reads all notices and messages.
fn operations(asks: Vec<Call>, owner: Vec<(Vec<Call>, bool)>) -> Exchange {
    let mut exchange = Exchange::new([vec![(asks, false)], owner]);
    exchange.credit_bytes = 4 * charge(6);
    exchange
}

#[test]
fn operations_are_done_once_in_order_and_inside_their_region() {
    let asks = vec![
        ask(Ask::Add),
        put(true, true),
        ask(Ask::Beyond),
        ask(Ask::Add),
        put(false, false),
        send(7, true),
        ask(Ask::Get),
        ask(Ask::Misaligned),
        ask(Ask::Add),
    ];
    for (slots, announced, refused) in [(1, 0, 0), (1, 2, 1), (1, 6, 0), (2, 0, 2), (2, 6, 0)] {
        let reader = vec![(vec![read(7, 2)], false)];
        let mut exchange = operations(asks.clone(), reader);
        (exchange.slots, exchange.announced) = (slots, announced);
        exchange.refused_fetches = refused;
        let name =
            format!("operations, rings of {slots}, {announced} announced, {refused} refused");
        run_pipes(&name, exchange).assert_sound();
    }
}

#[test]
fn a_closed_region_is_not_changed_and_all_operations_are_answered() {
    let asks = vec![
        put(true, true),
        ask(Ask::Add),
        put(true, false),
        ask(Ask::Add),
        put(false, true),
    ];
    for (slots, announced, refused) in [(1, 0, 1), (1, 1, 0), (1, 5, 0), (2, 0, 2), (2, 4, 1)] {
        let threads = vec![(vec![Call::Revoke], false), (vec![read(7, 2)], true)];
        let mut exchange = operations(asks.clone(), threads);
        (exchange.slots, exchange.announced) = (slots, announced);
        exchange.refused_fetches = refused;
        let name = format!("a region is closed, rings of {slots}, {announced}, {refused} refused");
        run_pipes(&name, exchange).assert_sound();
    }
}

#[test]
fn two_sides_request_operations_with_credit_for_one() {
    let calls = vec![ask(Ask::Add), put(true, false), ask(Ask::Add)];
    for (slots, announced) in [(1, 0), (1, 2), (2, 2)] {
        let mut exchange = Exchange::new(one_each(calls.clone(), calls[..2].to_vec()));
        (exchange.slots, exchange.announced) = (slots, announced);
        exchange.credit_bytes = charge(0);
        let name = format!("credit of one question, both ask, rings of {slots}, {announced}");
        run_pipes(&name, exchange).assert_sound();
    }
}

#[test]
fn operations_on_a_closing_endpoint_are_answered_and_messages_refused() {
    let asks = vec![
        ask(Ask::Add),
        send(7, false),
        put(true, false),
        ask(Ask::Add),
    ];
    let owner = vec![Call::Open { endpoint: 7 }, Call::Close { endpoint: 7 }];
    for (slots, announced) in [(1, 0), (1, 2), (2, 0)] {
        let threads = vec![(owner.clone(), false), (vec![read(7, 1)], true)];
        let mut exchange = operations(asks.clone(), threads);
        (exchange.slots, exchange.announced) = (slots, announced);
        exchange.refused_fetches = 1;
        let name = format!("operations on a closing endpoint, rings of {slots}, {announced}");
        run_pipes(&name, exchange).assert_sound();
    }
}
