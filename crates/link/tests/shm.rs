//! Shared memory between real processes. A test that needs another process runs this program
//! again, with only that test and a role.

mod common;

use common::{Side, other, pattern, role, seed};
use dipole_link::shm::{CloseReason, MAX_RECORD_BYTES, PushError, ShmError, ShmEvent};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Every length up to a few pages, then samples.
fn lengths() -> impl Iterator<Item = usize> {
    (0..3000)
        .chain((3000..MAX_RECORD_BYTES).step_by(509))
        .chain([MAX_RECORD_BYTES, 0, MAX_RECORD_BYTES, 1])
}

#[test]
fn records_of_every_length_arrive_whole_and_in_order_in_another_process() {
    let mut side = Side::new();
    if let Some(path) = role() {
        let conn = side.connect(&path);
        for (number, length) in lengths().enumerate() {
            side.push(conn, number as u64, &pattern(number as u64, length));
        }
        side.flush(conn);
        return;
    }
    let mut child = other(
        "records_of_every_length_arrive_whole_and_in_order_in_another_process",
        &side,
    )
    .spawn()
    .expect("another process");
    side.opened();
    for (number, length) in lengths().enumerate() {
        let (_, tag, bytes) = side.receive();
        assert_eq!((tag, bytes.len()), (number as u64, length));
        assert!(bytes == pattern(tag, length), "record {number}");
    }
    assert!(child.wait().expect("a status").success());
    assert_eq!(side.closed(), CloseReason::HungUp);
}

#[test]
fn none_of_many_wakeups_is_lost() {
    const ROUNDS: u64 = 20_000;
    let mut side = Side::new();
    let mut random = StdRng::seed_from_u64(seed() ^ u64::from(role().is_some()));
    // A side that is about to sleep occasionally pauses.
    let mut pause = move || {
        for _ in 0..random.random_range(0..600) {
            std::hint::spin_loop();
        }
    };
    if let Some(path) = role() {
        let conn = side.connect(&path);
        for round in 0..ROUNDS {
            assert_eq!(side.receive_sleeping(&mut pause), round);
            pause();
            side.push(conn, round, &[]);
        }
        side.flush(conn);
        return;
    }
    let mut child = other("none_of_many_wakeups_is_lost", &side)
        .spawn()
        .expect("another process");
    let conn = side.opened();
    for round in 0..ROUNDS {
        pause();
        side.push(conn, round, &[]);
        assert_eq!(side.receive_sleeping(&mut pause), round);
    }
    side.flush(conn);
    assert!(child.wait().expect("a status").success());
    assert!(side.hub.stats().wakeups > 0, "no side ever slept");
}

#[test]
fn a_producer_that_sleeps_for_room_is_woken_each_time() {
    const RECORDS: u64 = 30_000;
    let mut side = Side::new();
    if let Some(path) = role() {
        let conn = side.connect(&path);
        let payload = pattern(1, 5000);
        for number in 0..RECORDS {
            side.push(conn, number, &payload[..(number % 5000) as usize]);
        }
        side.flush(conn);
        return;
    }
    let mut child = other("a_producer_that_sleeps_for_room_is_woken_each_time", &side)
        .spawn()
        .expect("another process");
    side.opened();
    let payload = pattern(1, 5000);
    for number in 0..RECORDS {
        let (_, tag, bytes) = side.receive();
        assert_eq!(tag, number);
        assert!(bytes == payload[..(number % 5000) as usize]);
    }
    assert!(child.wait().expect("a status").success());
}

#[test]
fn a_hub_can_connect_to_itself() {
    let mut side = Side::new();
    let out = side.hub.connect(&side.path()).expect("itself");
    let (one, other) = (side.opened(), side.opened());
    assert!(one == out || other == out);
    side.push(out, 3, b"to myself");
    let (from, tag, bytes) = side.receive();
    assert!(from != out && tag == 3 && bytes == b"to myself");
    // The kernel may refuse to read a process's own memory; then `can_pull` is false.
    let lent = pattern(5, 1000);
    let address = lent.as_ptr().expose_provenance() as u64;
    let mut into = vec![0; lent.len()];
    if side.hub.can_pull(out) {
        side.hub.pull(out, address, &mut into).expect("own memory");
        assert!(into == lent);
    }
}

#[test]
fn memory_is_pulled_only_from_a_living_peer() {
    let mut side = Side::new();
    if let Some(path) = role() {
        let lent = pattern(9, 3 << 20);
        let conn = side.connect(&path);
        side.push(conn, lent.as_ptr().expose_provenance() as u64, &[]);
        side.receive();
        drop(lent);
        return;
    }
    let mut child = other("memory_is_pulled_only_from_a_living_peer", &side)
        .spawn()
        .expect("another process");
    let conn = side.opened();
    let (_, address, _) = side.receive();
    let mut into = vec![0; 3 << 20];
    match side.hub.can_pull(conn) {
        true => {
            side.hub.pull(conn, address, &mut into).expect("lent");
            assert!(into == pattern(9, 3 << 20));
            assert!(side.hub.pull(conn, 16, &mut into).is_err());
            assert!(side.hub.pull(conn, u64::MAX - 3, &mut into).is_err());
        }
        false => println!("SKIPPED: this system does not let a process read another one"),
    }
    child.kill().expect("it lives");
    child.wait().expect("a status");
    assert!(side.hub.pull(conn, address, &mut into).is_err());
    assert_eq!(side.closed(), CloseReason::HungUp);
    assert!(side.hub.pull(conn, address, &mut into).is_err());
}

#[test]
fn a_ring_fills_up_and_takes_more_after_some_was_read() {
    let (mut one, mut two) = (Side::new(), Side::new());
    let conn = one.hub.connect(&two.path()).expect("a listener");
    two.opened();
    one.opened();
    let mut pushed = 0_u64;
    let mut taken = 0_u64;
    for length in [8, 100, 8, 3000, MAX_RECORD_BYTES, 8] {
        while one.hub.push(conn, pushed, &pattern(pushed, length)).is_ok() {
            pushed += 1;
        }
        assert!(!one.hub.is_read(conn));
        assert!(pushed > taken);
        two.hub.poll(1 << 20, &mut |_, tag, payload| {
            let mut bytes = vec![0; payload.len()];
            payload.copy_to(&mut bytes);
            assert_eq!(tag, taken);
            assert!(bytes == pattern(tag, bytes.len()), "record {tag}");
            taken += 1;
            None
        });
        // Records in the large ring are not delivered together with the last of the small ring.
        while taken < pushed {
            taken += two.try_receive_up_to(1 << 20, taken);
        }
        two.hub.poll(1, &mut |_, _, _| panic!("nothing is left"));
        assert!(one.hub.is_read(conn));
    }
    assert_eq!(one.hub.stats().large_rings, 1);
    let too_long = vec![0; MAX_RECORD_BYTES + 1];
    assert_eq!(
        one.hub.push(conn, 0, &too_long),
        Err(PushError::TooLong {
            length: MAX_RECORD_BYTES + 1
        })
    );
}

#[test]
fn the_number_of_answers_is_known_once_records_are_read() {
    let (mut one, mut two) = (Side::new(), Side::new());
    let conn = one.hub.connect(&two.path()).expect("a listener");
    two.opened();
    one.opened();
    assert_eq!(one.hub.answers(conn), 0);
    let (mut pushed, mut taken, mut answers) = (0_u64, 0, 0);
    // The large ring, too, begins with what was counted before.
    for length in [8, 8, MAX_RECORD_BYTES, 8] {
        while one.hub.push(conn, pushed, &pattern(pushed, length)).is_ok() {
            pushed += 1;
        }
        let expected = answers + u64::from(length == 8);
        while taken < pushed {
            two.hub.poll(3, &mut |_, tag, _| {
                taken += 1;
                let is_answered = length == 8 && tag == pushed - 1;
                answers += u64::from(is_answered);
                is_answered.then_some(answers)
            });
        }
        two.hub.poll(1, &mut |_, _, _| panic!("nothing is left"));
        assert!(one.hub.is_read(conn));
        assert_eq!((answers, one.hub.answers(conn)), (expected, expected));
    }
    assert_eq!(one.hub.stats().large_rings, 1);
}

#[test]
fn notices_at_the_end_need_not_be_read() {
    let (mut one, mut two) = (Side::new(), Side::new());
    let conn = one.hub.connect(&two.path()).expect("a listener");
    two.opened();
    one.opened();
    let notice = |one: &mut Side, tag| one.hub.push_notice(conn, tag, &[]).expect("room");
    let take = |two: &mut Side, taken: &mut u64, until: u64| {
        while *taken < until {
            *taken += two.try_receive_up_to(1, *taken);
        }
    };
    // A side that goes to sleep has published what it took.
    let rest = |two: &mut Side| {
        assert!(two.hub.arm());
        two.hub.disarm();
    };
    let mut taken = 0;
    one.push(conn, 0, &[]);
    take(&mut two, &mut taken, 1);
    rest(&mut two);
    notice(&mut one, 1);
    assert!(one.hub.is_read(conn));
    one.push(conn, 2, &[]);
    notice(&mut one, 3);
    assert!(!one.hub.is_read(conn), "a record lies between two notices");
    take(&mut two, &mut taken, 4);
    rest(&mut two);
    assert!(one.hub.is_read(conn));
    // A notice in the large ring does not hide records in the small one.
    let mut pushed = 4;
    while one.hub.stats().large_rings == 0 {
        if one.hub.stats().records_out % 5 == 4 {
            one.push(conn, pushed, &[]);
        } else if one.hub.push_notice(conn, pushed, &[]).is_err() {
            take(&mut two, &mut taken, pushed - 1);
            continue;
        }
        pushed += 1;
    }
    assert!(!one.hub.is_read(conn));
    take(&mut two, &mut taken, pushed);
    rest(&mut two);
    assert!(one.hub.is_read(conn));
}

#[test]
fn room_noticed_by_another_push_is_reported_to_the_sleeping_sender() {
    let (mut one, mut two) = (Side::new(), Side::new());
    let conn = one.hub.connect(&two.path()).expect("a listener");
    two.opened();
    one.opened();
    let (mut pushed, mut taken) = (0, 0);
    // First the small ring fills up, and the large ring replaces it; then that fills up.
    for _ in 0..2 {
        while one.hub.push(conn, pushed, &[]).is_ok() {
            pushed += 1;
        }
        one.hub.want_room(conn);
        while !one.hub.arm() {}
        assert!(!one.hub.take_woken());
        while taken < pushed {
            taken += two.try_receive_up_to(1 << 20, taken);
        }
        one.push(conn, pushed, &[]);
        pushed += 1;
        assert!(one.hub.take_woken(), "the sleeper checks again");
        assert!(!one.hub.take_woken());
        // The reader need not send a wake-up for room that no sender waits for.
        let bells = two.hub.stats().wakeups;
        while taken < pushed {
            taken += two.try_receive_up_to(1 << 20, taken);
        }
        assert_eq!(two.hub.stats().wakeups, bells);
        one.hub.disarm();
    }
    assert_eq!(one.hub.stats().large_rings, 1);
}

#[test]
fn records_pushed_before_closing_are_read() {
    let (mut one, mut two) = (Side::new(), Side::new());
    for count in [1, 8, 200] {
        let conn = one.hub.connect(&two.path()).expect("a listener");
        two.opened();
        one.opened();
        // A wake-up that is never read: closing then resets the socket.
        assert!(two.hub.arm());
        two.hub.disarm();
        let mut taken = 0;
        for number in 0..count {
            while one.hub.push(conn, number, &pattern(number, 300)).is_err() {
                taken += two.try_receive_up_to(1, taken);
            }
        }
        assert!(one.hub.arm());
        two.ring_all();
        one.hub.close(conn);
        while taken < count {
            let more = two.try_receive_up_to(16, taken);
            assert!(more > 0, "{taken} of {count}");
            taken += more;
        }
        assert_eq!(two.closed(), CloseReason::HungUp);
    }
}

#[test]
fn records_of_an_exited_process_are_read_before_those_of_its_successor() {
    const COUNT: u64 = 20;
    let mut reader = Side::new();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    // The successor connects or is connected to; the reader has seen the end first, or not.
    for (connects, sees) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut first = Side::at(&path, b"first");
        let conn = first.hub.connect(&reader.path()).expect("a listener");
        reader.opened();
        first.opened();
        let mut taken = 0;
        for number in 0..COUNT {
            while first.hub.push(conn, number, &pattern(number, 8)).is_err() {
                taken += reader.try_receive_up_to(1, taken);
            }
        }
        drop(first);
        if sees {
            reader.poll_connections();
        }
        let mut second = Side::at(&path, b"second");
        if connects {
            second.hub.connect(&reader.path()).expect("a listener");
        } else {
            reader.hub.connect(&path).expect("a listener");
        }
        while taken < COUNT {
            for _ in 0..3 {
                second.poll_connections();
                reader.poll_connections();
            }
            assert!(
                reader.take_opened().is_none(),
                "{taken} of {COUNT} are read"
            );
            taken += reader.try_receive_up_to(1, taken);
        }
        while reader.take_opened().is_none() {
            second.poll_connections();
            reader.poll_connections();
        }
        assert_eq!(reader.closed(), CloseReason::HungUp);
        drop(second);
        assert_eq!(reader.closed(), CloseReason::HungUp);
    }
}

#[test]
fn a_close_that_was_not_reported_is_reported_before_sleeping() {
    let (mut one, mut two) = (Side::new(), Side::new());
    let conn = one.hub.connect(&two.path()).expect("a listener");
    two.opened();
    one.opened();
    one.push(conn, 0, &[]);
    one.hub.close(conn);
    // A record is unread, so the close is not reported yet, and the epoll never reports it again.
    let mut events = Vec::new();
    two.hub.poll_connections(&mut events).expect("an epoll");
    assert!(events.is_empty());
    assert_eq!(two.try_receive_up_to(1, 0), 1);
    assert!(!two.hub.arm(), "asleep with an end untold");
    two.hub.poll_connections(&mut events).expect("an epoll");
    assert!(matches!(events[..], [ShmEvent::Closed { .. }]));
    assert!(two.hub.arm());
}

#[test]
fn a_side_that_goes_to_sleep_has_published_everything_it_took() {
    let (mut one, mut two) = (Side::new(), Side::new());
    let conn = one.hub.connect(&two.path()).expect("a listener");
    two.opened();
    one.opened();
    for count in 1..=5 {
        for number in 0..count {
            one.push(conn, number, &pattern(number, 8));
        }
        assert!(!one.hub.is_read(conn));
        one.hub.want_room(conn);
        // A report of room from the last round may be pending.
        while !one.hub.arm() {}
        // Exactly as many as there are, so that the ring is not found empty.
        while two.try_receive_up_to(usize::try_from(count).expect("few"), 0) == 0 {}
        assert!(two.hub.arm());
        one.wait("everything to be read", &mut || (), |one| {
            one.hub.is_read(conn).then_some(())
        });
        two.hub.disarm();
        one.hub.disarm();
    }
    assert!(two.hub.stats().wakeups > 0);
}

#[test]
fn both_sides_get_greetings_and_credentials() {
    let (mut one, mut two) = (Side::greeting(b"one"), Side::greeting(&[7; 64]));
    let conn = one.hub.connect(&two.path()).expect("a listener");
    let theirs = two.opened_facts();
    let ours = one.opened_facts();
    assert_eq!(ours.0, conn);
    assert_eq!(theirs.1.greeting, b"one");
    assert_eq!(ours.1.greeting, [7; 64]);
    assert_eq!(u32::try_from(ours.1.pid), Ok(std::process::id()));
    assert_eq!(
        (ours.1.uid, ours.1.gid),
        (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw()
        )
    );
}

#[test]
fn a_socket_path_that_is_too_long_is_reached_through_its_directory() {
    let folder = tempfile::tempdir().expect("a folder");
    let deep = folder.path().join("d".repeat(90)).join("e".repeat(90));
    std::fs::create_dir_all(&deep).expect("folders");
    let mut one = Side::at(&deep.join("one"), b"");
    let mut two = Side::at(&deep.join("two"), b"");
    let conn = one.hub.connect(&two.path()).expect("a listener");
    two.opened();
    one.opened();
    one.push(conn, 1, b"far");
    assert_eq!(two.receive().2, b"far");
    let path = two.path();
    assert!(path.exists());
    drop(two);
    assert!(!path.exists(), "the socket file is left");
}

#[test]
fn unreachable_sockets_and_long_greetings_are_errors_that_name_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut side = Side::new();
    let nowhere = folder.path().join("nowhere");
    for error in [
        side.hub.connect(&nowhere).expect_err("no listener"),
        Side::try_at(&nowhere.join("x"), b"").expect_err("no such folder"),
        Side::try_at(&side.path(), b"").expect_err("taken"),
    ] {
        assert!(matches!(error, ShmError::Socket { .. }));
        let text = error.to_string();
        assert!(
            text.contains("socket /") && text.contains("error"),
            "{text}"
        );
    }
    let error = Side::try_at(&nowhere, &[0; 65]).expect_err("a long greeting");
    assert!(error.to_string().contains("65 bytes"));
}
