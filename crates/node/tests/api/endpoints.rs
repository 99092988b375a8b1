//! Endpoints over real sockets on loopback, through the public API.

use std::time::Duration;

use dipole_node::{
    Address, Config, Endpoint, EndpointId, Links, Node, NodeId, OpenError, ReceiveError, SendError,
};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);

fn config(directory: &TempDir, links: Links) -> Config {
    Config {
        links,
        ..Config::local(NodeId(1), directory.path().join("dipole"))
    }
}

fn node(directory: &TempDir, links: Links) -> Node {
    Node::open(config(directory, links)).expect("a node on loopback")
}

fn endpoint(node: &Node, id: u32) -> Endpoint {
    node.endpoint(EndpointId(id)).expect("a free endpoint")
}

/// Endpoints 1:1 and 1:2 in two nodes of this process; the second is a target of the first.
fn pair(directory: &TempDir, links: Links) -> (Endpoint, Endpoint) {
    let (left, right) = (node(directory, links), node(directory, links));
    let (from, to) = (endpoint(&left, 1), endpoint(&right, 2));
    std::thread::scope(|scope| {
        // A peer answers the handshake while it waits for something.
        let answering = scope.spawn(|| to.receive_timeout(PATIENCE));
        from.target(Address::new(1, 2)).expect("it exists");
        from.send(b"hello").expect("it reads");
        let first = answering.join().expect("no panic").expect("in time");
        assert_eq!(&*first, b"hello");
    });
    (from, to)
}

/// An inbox 1:7 and an outbox 1:8 in one node, with the inbox as target.
fn inner_edge(directory: &TempDir, links: Links) -> (Endpoint, Endpoint) {
    let node = node(directory, links);
    let (inbox, outbox) = (endpoint(&node, 7), endpoint(&node, 8));
    outbox.target(Address::new(1, 7)).expect("it exists");
    (inbox, outbox)
}

fn pattern(index: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| u8::try_from((at * 31 + index * 7) % 251).expect("small"))
        .collect()
}

#[test]
fn several_messages_are_received_in_one_call() {
    for links in [Links::Udp, Links::Shm] {
        let directory = tempfile::tempdir().expect("a directory");
        let (from, to) = pair(&directory, links);
        let mut messages = Vec::new();
        let none = to.receive_many_timeout(&mut messages, 8, Duration::ZERO);
        assert!(
            matches!(none, Err(ReceiveError::TimedOut { .. })),
            "{none:?}"
        );
        assert_eq!(to.receive_many(&mut messages, 0).expect("at once"), 0);
        let lengths = [0, 5, 1000, 40_000, 3, 3, 200_000, 1];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for (index, length) in lengths.into_iter().enumerate() {
                    from.send(&pattern(index, length)).expect("it reads");
                }
            });
            while messages.len() < lengths.len() {
                let before = messages.len();
                let taken = to.receive_many_timeout(&mut messages, 3, PATIENCE);
                let taken = taken.expect("in time");
                assert!((1..=3).contains(&taken) && messages.len() == before + taken);
            }
        });
        for (index, message) in messages.iter().enumerate() {
            assert!(**message == pattern(index, lengths[index]), "{index}");
            assert_eq!(message.source(), from.address());
        }
    }
}

#[test]
fn messages_are_acknowledged_while_the_receiver_makes_no_calls() {
    for links in [Links::Udp, Links::Shm] {
        let directory = tempfile::tempdir().expect("a directory");
        let (from, to) = pair(&directory, links);
        for number in 0..20_u8 {
            from.send(&[number]).expect("it reads");
            assert_eq!(*to.receive_timeout(PATIENCE).expect("in time"), [number]);
            from.drain(PATIENCE).expect("it lies in the other process");
        }
        // A message need not be received, either.
        from.send(b"unread").expect("room");
        from.drain(PATIENCE).expect("it lies in the other process");
    }
}

fn messages_of_all_sizes_arrive_whole_and_in_order(links: Links) {
    let directory = tempfile::tempdir().expect("a directory");
    let (from, to) = pair(&directory, links);
    let lengths = [0, 1, 64, 1400, 1500, 9000, 65_536, 1 << 20, 5 << 20, 3, 0];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (index, length) in lengths.iter().enumerate() {
                from.send(&pattern(index, *length)).expect("sent");
            }
            from.drain(PATIENCE).expect("acknowledged");
        });
        for (index, length) in lengths.iter().enumerate() {
            let message = to.receive_timeout(PATIENCE).expect("in time");
            assert_eq!(&*message, pattern(index, *length).as_slice(), "{length}");
            assert_eq!(message.source(), Address::new(1, 1));
        }
        // Stay for the sender's last acknowledgements.
        let _nothing = to.receive_timeout(Duration::from_millis(300));
    });
}

fn many_small_messages_are_packed_and_keep_their_order(links: Links) {
    let directory = tempfile::tempdir().expect("a directory");
    let (from, to) = pair(&directory, links);
    let count = 50_000_u32;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for index in 0..count {
                from.send_more(&index.to_le_bytes()).expect("sent");
            }
            from.flush().expect("sent");
            from.drain(PATIENCE).expect("acknowledged");
        });
        for index in 0..count {
            let message = to.receive_timeout(PATIENCE).expect("in time");
            assert_eq!(*message, index.to_le_bytes());
        }
        let _nothing = to.receive_timeout(Duration::from_millis(300));
    });
}

fn try_send_reports_a_lost_peer_and_messages_that_are_too_long(links: Links) {
    let directory = tempfile::tempdir().expect("a directory");
    let (from, to) = pair(&directory, links);
    if links == Links::Udp {
        let error = from.try_send(&vec![0; 64 << 20]).expect_err("too long");
        assert!(matches!(error, SendError::TooLong { .. }), "{error}");
    }
    drop(to);
    let until = std::time::Instant::now() + PATIENCE;
    for length in [200_000, 20] {
        let error = loop {
            match from.try_send(&pattern(0, length)) {
                Ok(()) | Err(SendError::Full { .. }) => {}
                Err(error) => break error,
            }
            assert!(std::time::Instant::now() < until, "{length} bytes");
        };
        let is_gone = matches!(
            error,
            SendError::PeerGone { .. } | SendError::Refused { .. }
        );
        assert!(is_gone, "{length} bytes: {error}");
    }
}

fn opening_a_taken_endpoint_names_its_owner(links: Links) {
    let directory = tempfile::tempdir().expect("a directory");
    let (first, second) = (node(&directory, links), node(&directory, links));
    let held = endpoint(&first, 5);
    match second.endpoint(EndpointId(5)) {
        Err(OpenError::Taken { pid, address, .. }) => {
            assert_eq!(pid, std::process::id());
            assert_eq!(address, Address::new(1, 5));
        }
        other => panic!("{other:?}"),
    }
    drop(held);
    endpoint(&second, 5);
}

fn an_endpoint_of_the_same_process_can_be_a_target(links: Links) {
    let directory = tempfile::tempdir().expect("a directory");
    let (inbox, outbox) = inner_edge(&directory, links);
    for index in 0..100 {
        let message = pattern(index, index * 100);
        outbox.send(&message).expect("sent");
        assert_eq!(&*inbox.receive_timeout(PATIENCE).expect("in time"), message);
    }
}

fn several_targets_each_get_a_copy(links: Links) {
    let directory = tempfile::tempdir().expect("a directory");
    let node = node(&directory, links);
    let root = endpoint(&node, 1);
    let leaves: Vec<Endpoint> = (2..5).map(|id| endpoint(&node, id)).collect();
    for leaf in &leaves {
        root.target(leaf.address()).expect("it exists");
    }
    root.untarget(leaves[0].address());
    root.send(b"copy").expect("sent");
    for leaf in &leaves[1..] {
        assert_eq!(&*leaf.receive_timeout(PATIENCE).expect("in time"), b"copy");
    }
    assert!(leaves[0].try_receive().expect("works").is_none());
}

fn a_receiver_that_does_not_read_blocks_the_sender_and_loses_nothing(links: Links) {
    let directory = tempfile::tempdir().expect("a directory");
    let (inbox, outbox) = inner_edge(&directory, links);
    let mut sent = 0;
    let full = loop {
        match outbox.try_send(&pattern(sent, 10_000)) {
            Ok(()) => sent += 1,
            Err(full) => break full,
        }
        assert!(sent < 100_000, "never full");
    };
    assert!(matches!(full, SendError::Full { .. }), "{full}");
    // Further messages are accepted until the receiver's credit is used up.
    let timed_out = loop {
        match outbox.send_timeout(&pattern(sent, 10_000), Duration::from_millis(300)) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert!(
        matches!(timed_out, SendError::TimedOut { .. }),
        "{timed_out}"
    );
    for index in 0..sent {
        let message = inbox.receive_timeout(PATIENCE).expect("in time");
        assert_eq!(&*message, pattern(index, 10_000).as_slice());
    }
    outbox
        .send_timeout(b"again", PATIENCE)
        .expect("there is room");
    assert_eq!(
        &*inbox.receive_timeout(PATIENCE).expect("in time"),
        b"again"
    );
}

fn receiving_into_a_short_buffer_leaves_the_message_in_place(links: Links) {
    let directory = tempfile::tempdir().expect("a directory");
    let (inbox, outbox) = inner_edge(&directory, links);
    outbox.send(b"four").expect("sent");
    let mut short = [0; 3];
    assert!(matches!(
        inbox.receive_into(&mut short),
        Err(ReceiveError::TooShort {
            needed: 4,
            given: 3
        })
    ));
    let mut long = [0; 10];
    let (length, source) = inbox.receive_into(&mut long).expect("fits");
    assert_eq!(
        (&long[..length], source),
        (&b"four"[..], Address::new(1, 8))
    );
}

fn a_closed_endpoint_refuses_messages_and_the_sender_gets_an_error(links: Links) {
    let directory = tempfile::tempdir().expect("a directory");
    let (inbox, outbox) = inner_edge(&directory, links);
    drop(inbox);
    let sent = outbox.send_timeout(b"anyone?", PATIENCE);
    let drained = sent.and_then(|()| outbox.drain(PATIENCE));
    let is_refused = matches!(drained, Err(SendError::Refused { .. }));
    assert!(is_refused, "{drained:?}");
}

fn an_endpoint_without_target_or_message_reports_an_error(links: Links) {
    let directory = tempfile::tempdir().expect("a directory");
    let node = node(&directory, links);
    let lonely = endpoint(&node, 9);
    assert!(matches!(
        lonely.send(b"x"),
        Err(SendError::NoTarget { from }) if from == Address::new(1, 9)
    ));
    let timed_out = lonely.receive_timeout(Duration::from_millis(20));
    assert!(matches!(timed_out, Err(ReceiveError::TimedOut { .. })));
}

fn unreliable_messages_arrive_at_most_once(links: Links) {
    let directory = tempfile::tempdir().expect("a directory");
    let (from, to) = pair(&directory, links);
    for index in 0..200_u32 {
        let length = if index % 2 == 0 { 4 } else { 20_000 };
        let mut message = vec![0; length];
        message[..4].copy_from_slice(&index.to_le_bytes());
        match from.send_unreliable(&message) {
            Ok(()) | Err(SendError::Full { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
    let mut seen = Vec::new();
    while let Ok(message) = to.receive_timeout(Duration::from_millis(200)) {
        seen.push(u32::from_le_bytes(message[..4].try_into().expect("four")));
    }
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert!(count > 0, "no message arrived over loopback");
    assert_eq!(seen.len(), count, "some message arrived twice");
}

#[test]
fn packet_loss_only_costs_time() {
    let links = Links::Udp;
    let directory = tempfile::tempdir().expect("a directory");
    let plan = "drop=0.02,repeat=0.01,reorder=0.02,corrupt=0.01,seed=5";
    let faulty = Config {
        fault: Some(plan.parse().expect("a plan")),
        ..config(&directory, links)
    };
    let (left, right) = (
        Node::open(faulty.clone()).expect("opens"),
        Node::open(faulty).expect("opens"),
    );
    let (from, to) = (endpoint(&left, 1), endpoint(&right, 2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            from.target(Address::new(1, 2)).expect("it exists");
            for index in 0..200 {
                from.send(&pattern(index, 40_000)).expect("sent");
            }
            from.drain(PATIENCE).expect("acknowledged");
        });
        for index in 0..200 {
            let message = to.receive_timeout(PATIENCE).expect("in time");
            assert_eq!(&*message, pattern(index, 40_000).as_slice(), "{index}");
        }
        let _nothing = to.receive_timeout(Duration::from_millis(500));
    });
    let stats = left.stats();
    assert!(stats.protocol.repeats > 0, "{stats:?}");
}

fn one_thread_sends_while_another_receives_on_the_same_endpoint(links: Links) {
    let directory = tempfile::tempdir().expect("a directory");
    let (left, right) = (node(&directory, links), node(&directory, links));
    let (one, other) = (endpoint(&left, 1), endpoint(&right, 2));
    let talk = |own: &Endpoint, to: Address| {
        own.target(to).expect("it exists");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for index in 0..2000 {
                    own.send(&pattern(index, index % 3000)).expect("sent");
                }
                own.drain(PATIENCE).expect("acknowledged");
            });
            for index in 0..2000 {
                let message = own.receive_timeout(PATIENCE).expect("in time");
                assert_eq!(&*message, pattern(index, index % 3000).as_slice());
            }
            let _nothing = own.receive_timeout(Duration::from_millis(300));
        });
    };
    std::thread::scope(|scope| {
        scope.spawn(|| talk(&one, Address::new(1, 2)));
        scope.spawn(|| talk(&other, Address::new(1, 1)));
    });
}

fn a_peer_that_closes_is_reported(links: Links) {
    let directory = tempfile::tempdir().expect("a directory");
    let (left, right) = (node(&directory, links), node(&directory, links));
    let (from, to) = (endpoint(&left, 1), endpoint(&right, 2));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            to.receive_timeout(PATIENCE).expect("in time");
            drop(to);
            right.close(PATIENCE).expect("nothing owed");
        });
        from.target(Address::new(1, 2)).expect("it exists");
        from.send(b"bye").expect("sent");
        let begun = std::time::Instant::now();
        while left.take_departures().is_empty() {
            assert!(from.try_receive().expect("works").is_none());
            assert!(begun.elapsed() < PATIENCE);
        }
    });
    assert!(matches!(
        from.send_timeout(b"too late", PATIENCE),
        Err(SendError::PeerGone { .. })
    ));
}

#[test]
fn messages_read_before_the_receiver_left_count_as_delivered_later() {
    for links in [Links::Udp, Links::Shm] {
        let directory = tempfile::tempdir().expect("a directory");
        let (left, right) = (node(&directory, links), node(&directory, links));
        let (from, to) = (endpoint(&left, 1), endpoint(&right, 2));
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                for number in 0..100_u8 {
                    assert_eq!(*to.receive_timeout(PATIENCE).expect("in time"), [number]);
                }
            });
            from.target(Address::new(1, 2)).expect("it exists");
            for number in 0..100_u8 {
                from.send(&[number]).expect("it reads");
            }
            reading.join().expect("all of it came");
        });
        drop(to);
        right.close(PATIENCE).expect("nothing is left to do");
        let begun = std::time::Instant::now();
        while left.take_departures().is_empty() {
            assert!(begun.elapsed() < PATIENCE, "its end is not noticed");
            std::thread::sleep(Duration::from_millis(10));
        }
        from.drain(PATIENCE).expect("all of it was read");
    }
}

#[test]
fn a_leaving_process_does_not_wait_for_shared_memory_to_be_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let (left, right) = (node(&directory, Links::Shm), node(&directory, Links::Shm));
    let (from, to) = (endpoint(&left, 1), endpoint(&right, 2));
    std::thread::scope(|scope| {
        let answering = scope.spawn(|| to.receive_timeout(PATIENCE));
        from.target(Address::new(1, 2)).expect("it exists");
        from.send(b"hello").expect("it reads");
        answering.join().expect("no panic").expect("in time");
    });
    for number in 0..5_u32 {
        from.send(&number.to_le_bytes()).expect("room");
    }
    drop(from);
    // No thread reads, or checks the end of the edge, before this returns.
    left.close(Duration::from_millis(100))
        .expect("all of it lies in the ring");
    for number in 0..5_u32 {
        let message = to.receive_timeout(PATIENCE).expect("it was sent");
        assert_eq!(*message, number.to_le_bytes());
    }
}

/// Runs each of these tests over every kind of link.
macro_rules! over_each_link {
    ($($test:ident,)*) => {
        mod by_packets {
            $(#[test] fn $test() { super::$test(super::Links::Udp); })*
        }
        mod by_shared_memory {
            $(#[test] fn $test() { super::$test(super::Links::Shm); })*
        }
    };
}

over_each_link! {
    messages_of_all_sizes_arrive_whole_and_in_order,
    many_small_messages_are_packed_and_keep_their_order,
    try_send_reports_a_lost_peer_and_messages_that_are_too_long,
    opening_a_taken_endpoint_names_its_owner,
    an_endpoint_of_the_same_process_can_be_a_target,
    several_targets_each_get_a_copy,
    a_receiver_that_does_not_read_blocks_the_sender_and_loses_nothing,
    receiving_into_a_short_buffer_leaves_the_message_in_place,
    a_closed_endpoint_refuses_messages_and_the_sender_gets_an_error,
    an_endpoint_without_target_or_message_reports_an_error,
    unreliable_messages_arrive_at_most_once,
    one_thread_sends_while_another_receives_on_the_same_endpoint,
    a_peer_that_closes_is_reported,
}
