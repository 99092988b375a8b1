//! The machine, model-checked: every state that two processes with the smallest
//! pools can reach is visited, and every run that never ends is looked at.
//!
//! Both of the thesis's safety rules (§5.3) on: no deadlock, no livelock. One off,
//! or both: the checker finds what they prevent. Method, abstractions and results
//! are in `docs/design/model-checking.md`; each run prints a line, and a trace for what it
//! finds (`cargo test -p dipole-proto --test model_check -- --nocapture`).
//!
//! `DIPOLE_MODEL_BOUND=n` widens the runs that must be sound: n more losses, and
//! from 3 on n - 2 more copies and time-outs that pass too early. 0 is the default;
//! 2 takes minutes and 1 GiB, 3 more than 13 GiB.

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
use model::scenario::{Scenario, Thread};
use model::{run, run_pipes};

// ---- both rules ---------------------------------------------------------------

#[test]
fn with_both_rules_an_exchange_through_one_frame_and_room_for_one_message_ends() {
    let mut scenario = Scenario::exchange(3, 1, 1);
    scenario.drops = 1;
    scenario.duplicates = 1;
    run(
        "both rules, 3+3 messages, 1 frame, pool of 1",
        scenario.widened(),
    )
    .assert_sound();
}

#[test]
fn with_both_rules_an_exchange_whose_units_overtake_each_other_ends() {
    let mut scenario = Scenario::exchange(2, 2, 2);
    scenario.drops = 1;
    run(
        "both rules, 2+2 messages, 2 frames, pool of 2",
        scenario.widened(),
    )
    .assert_sound();
    let scenario = Scenario::exchange(4, 2, 1);
    run(
        "both rules, 4+4 messages, 2 frames, pool of 1",
        scenario.widened(),
    )
    .assert_sound();
}

#[test]
fn with_both_rules_holes_in_a_stream_are_filled() {
    let mut scenario = Scenario::stream(4, 3, 2);
    scenario.capacity = 3;
    scenario.drops = 1;
    run(
        "both rules, 4 messages one way, 3 frames, pool of 2",
        scenario.widened(),
    )
    .assert_sound();
}

#[test]
fn with_both_rules_time_outs_that_pass_too_early_do_no_harm() {
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
fn units_that_are_cut_at_any_moment_arrive_once() {
    let mut scenario = Scenario::stream(2, 2, 1).with_narrowing();
    scenario.drops = 1;
    scenario.duplicates = 1;
    run(
        "both rules, 2 messages one way, path that becomes narrow",
        scenario.widened(),
    )
    .assert_sound();
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
fn without_the_second_rule_messages_out_of_order_fill_the_pool_for_ever() {
    let scenario = Scenario::exchange(3, 2, 1).without_second_rule();
    let found = run("second rule off", scenario);
    found.assert_found(Stall::Livelock);
    found.assert_absent(Stall::Deadlock);
}

#[test]
fn without_both_rules_our_separate_frames_and_pool_still_only_livelock() {
    let scenario = Scenario::exchange(4, 2, 1)
        .without_first_rule()
        .without_second_rule();
    let found = run("both rules off", scenario);
    found.assert_found(Stall::Livelock);
    found.assert_absent(Stall::Deadlock);
}

// ---- one pool for both directions, as in the thesis ---------------------------------

#[test]
fn with_both_rules_one_pool_for_sending_and_receiving_ends_too() {
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
    let scenario = Scenario::exchange(2, 2, 2)
        .with_one_pool(2)
        .without_second_rule();
    run("one pool, second rule off", scenario).assert_found(Stall::Livelock);
}

#[test]
fn without_both_rules_one_pool_deadlocks() {
    let scenario = Scenario::exchange(3, 2, 3)
        .with_one_pool(2)
        .without_first_rule()
        .without_second_rule();
    run("one pool, both rules off", scenario).assert_found(Stall::Deadlock);
}

// ---- credit: what replaces the first rule when an application never reads ------------

/// Three messages to endpoint 7, which nobody reads, and two to 8, which is read.
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
fn an_endpoint_that_is_never_read_holds_up_nobody_else_thanks_to_credit() {
    let mut scenario = never_read(2).with_credit(1);
    scenario.drops = 1;
    run(
        "credit of 1 message, one endpoint never read",
        scenario.widened(),
    )
    .assert_sound();
}

#[test]
fn without_credit_an_endpoint_that_is_never_read_holds_up_the_others() {
    let found = run("no credit limit, one endpoint never read", never_read(2));
    found.assert_found(Stall::Livelock);
}

#[test]
fn credit_does_not_save_two_applications_that_both_only_send() {
    let scenario = Scenario::exchange(2, 2, 1)
        .with_credit(1)
        .without_first_rule();
    run("credit of 1 message, first rule off", scenario).assert_found(Stall::Livelock);
}

// ---- edges that end ---------------------------------------------------------------

#[test]
fn an_edge_that_is_closed_after_every_message_and_used_again_delivers_all_and_is_forgotten() {
    let mut scenario = Scenario::stream(2, 1, 2);
    scenario.threads[0] = vec![Thread::sending(2, 7).closing()];
    scenario.drops = 1;
    run("an edge of two lives", scenario.clone().widened()).assert_sound();
    scenario.duplicates = 1;
    run("an edge of two lives, a copy", scenario.widened()).assert_sound();
}

#[test]
fn lives_of_an_edge_whose_units_overtake_each_other_do_not_mix() {
    let mut scenario = Scenario::stream(3, 2, 3);
    scenario.threads[0] = vec![Thread::sending(3, 7).closing()];
    run("an edge of three lives, 2 frames", scenario).assert_sound();
}

// ---- handshake -------------------------------------------------------------------

#[test]
fn crossing_hellos_make_one_session_whatever_is_lost_or_repeated() {
    let mut scenario = Scenario::exchange(1, 1, 1).with_handshake();
    scenario.drops = 2;
    scenario.duplicates = 1;
    run("handshake, both call", scenario.widened()).assert_sound();
}

#[test]
fn a_restart_in_any_state_ends_in_one_new_session() {
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

// ---- processes of one node: the same channel over rings instead of packets -----------------

fn send(target: u32, long: bool) -> Call {
    Call::Send { target, long }
}

fn read(endpoint: u32, count: u8) -> Call {
    Call::Read { endpoint, count }
}

/// One thread a process, each to its end.
fn one_each(first: Vec<Call>, second: Vec<Call>) -> [Vec<(Vec<Call>, bool)>; 2] {
    [vec![(first, false)], vec![(second, false)]]
}

#[test]
fn through_rings_of_one_record_whole_and_long_messages_arrive_in_order() {
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
fn a_long_message_that_may_not_be_copied_comes_in_pieces_in_its_turn() {
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
fn credit_for_one_message_is_given_back_through_rings_of_one_record() {
    let calls = || vec![send(7, false), read(7, 1), send(7, false), read(7, 1)];
    let mut exchange = Exchange::new(one_each(calls(), calls()));
    (exchange.slots, exchange.credit_bytes) = (1, charge(2));
    run_pipes("rings of 1, credit of 1 message", exchange).assert_sound();
}

#[test]
fn an_edge_that_is_closed_and_opened_again_over_rings_delivers_in_both_lives() {
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
fn whoever_sends_to_an_endpoint_that_closes_and_opens_is_told_what_is_missing() {
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
fn over_rings_an_endpoint_that_is_never_read_holds_up_nobody_else_thanks_to_credit() {
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
fn over_rings_too_credit_does_not_save_two_applications_that_both_only_send() {
    let calls = || vec![send(7, false), send(7, false), read(7, 2)];
    let mut exchange = Exchange::new(one_each(calls(), calls()));
    exchange.credit_bytes = charge(2);
    let found = run_pipes("rings, credit of 1 message, nobody reads", exchange.clone());
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

/// Asks of the first process; the second reads notices and messages, as many as there are.
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
fn a_region_that_is_closed_at_any_moment_changes_no_more_and_all_is_answered() {
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
fn both_ask_each_other_with_credit_for_one_question() {
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
fn operations_on_an_endpoint_that_closes_are_answered_and_messages_refused() {
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
        let name = format!("asked while an endpoint closes, rings of {slots}, {announced}");
        run_pipes(&name, exchange).assert_sound();
    }
}
