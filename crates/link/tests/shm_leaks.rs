//! Ended connections leave nothing behind: no descriptor, no mapping. One test at a time counts
//! the resources of this process.

mod common;

use std::io::BufRead;
use std::sync::{Mutex, PoisonError};

use common::{Side, other, pattern, role};
use dipole_link::shm::{CloseReason, PushError};

/// Locked by the test that counts.
static COUNTING: Mutex<()> = Mutex::new(());

/// Number of descriptors and shared mappings of this process.
fn holdings() -> (usize, usize) {
    let files = std::fs::read_dir("/proc/self/fd").expect("/proc").count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    let shared = maps.lines().filter(|line| line.contains("memfd:dipole"));
    (files, shared.count())
}

#[test]
fn records_of_a_killed_process_are_read_before_its_end_and_nothing_is_leaked() {
    const RECORDS: u64 = 300;
    let _counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut side = Side::new();
    if let Some(path) = role() {
        let conn = side.connect(&path);
        for number in 0..RECORDS {
            side.push(conn, number, &pattern(number, 200));
        }
        println!("\npushed");
        // Waits until it is killed.
        side.receive();
        return;
    }
    let before = holdings();
    let test = "records_of_a_killed_process_are_read_before_its_end_and_nothing_is_leaked";
    let mut child = other(test, &side).spawn().expect("another process");
    let conn = side.opened();
    let mut lines = std::io::BufReader::new(child.stdout.take().expect("piped")).lines();
    assert!(lines.any(|line| line.is_ok_and(|line| line == "pushed")));
    drop(lines);
    let mut taken = 0;
    child.kill().expect("it lives");
    child.wait().expect("a status");
    let mut events = Vec::new();
    while taken < RECORDS {
        side.hub.poll_connections(&mut events).expect("an epoll");
        assert!(
            events.is_empty(),
            "close reported after {taken}: {events:?}"
        );
        let more = side.try_receive_up_to(4, taken);
        assert!(more > 0, "only {taken} were left");
        taken += more;
    }
    assert_eq!(side.closed(), CloseReason::HungUp);
    assert_eq!(side.hub.push(conn, 1, &[]), Err(PushError::Gone));
    assert_eq!(holdings(), before);
}

#[test]
fn thousands_of_connections_leave_nothing_behind() {
    let _counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut one, mut two) = (Side::new(), Side::new());
    let before = holdings();
    for round in 0..40 {
        let conns: Vec<_> = (0..50)
            .map(|_| one.hub.connect(&two.path()).expect("a listener"))
            .collect();
        for _ in &conns {
            two.opened();
        }
        for _ in &conns {
            one.opened();
        }
        for conn in &conns {
            one.push(*conn, round, &pattern(round, 4000));
        }
        for _ in &conns {
            assert!(two.receive().2 == pattern(round, 4000));
        }
        let (closing, told) = match round % 2 {
            0 => (&mut one, &mut two),
            _ => (&mut two, &mut one),
        };
        closing.close_all();
        for _ in &conns {
            assert_eq!(told.closed(), CloseReason::HungUp);
        }
        assert_eq!(holdings(), before, "round {round}");
    }
}
