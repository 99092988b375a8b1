//! Counters of messages, their bytes, and of waits.

use std::time::{Duration, SystemTime};

use dipole_node::{Address, Config, Endpoint, EndpointId, Links, Node, NodeId, SendError};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
const BOTH: [Links; 2] = [Links::Shm, Links::Udp];

/// Two nodes with an endpoint each; the first one sends to the second.
fn pair(links: Links) -> (TempDir, [Node; 2], [Endpoint; 2]) {
    let directory = tempfile::tempdir().expect("a directory");
    let open = || {
        let config = Config::local(NodeId(1), directory.path().join("dipole"));
        Node::open(Config { links, ..config }).expect("a node on loopback")
    };
    let nodes = [open(), open()];
    let from = nodes[0].endpoint(EndpointId(1)).expect("free");
    let to = nodes[1].endpoint(EndpointId(2)).expect("free");
    // It answers while no thread waits.
    nodes[1].start_progress().expect("a thread");
    from.target(Address::new(1, 2)).expect("it exists");
    (directory, nodes, [from, to])
}

#[test]
fn messages_and_their_bytes_are_counted_once_on_both_sides() {
    for links in BOTH {
        let (_directory, nodes, [from, to]) = pair(links);
        for length in [0, 100, 1000, 100_000, 3] {
            from.send(&vec![7; length]).expect("sent");
            let message = to.receive_timeout(PATIENCE).expect("it arrives");
            assert_eq!(message.len(), length);
        }
        // Several messages that share a packet.
        for _ in 0..10 {
            from.send_more(b"ten bytes.").expect("sent");
        }
        from.flush().expect("sent");
        for _ in 0..10 {
            to.receive_timeout(PATIENCE).expect("it arrives");
        }
        let [sender, receiver] = nodes.each_ref().map(|node| node.stats().protocol);
        let expected = (15, 101_203);
        let sent = (sender.messages_sent, sender.message_bytes_sent);
        assert_eq!(sent, expected, "{links:?}");
        let got = (
            receiver.messages_delivered,
            receiver.message_bytes_delivered,
        );
        assert_eq!(got, expected, "{links:?}");
        assert_eq!(sender.messages_delivered + receiver.messages_sent, 0);
    }
}

#[test]
fn messages_that_were_not_queued_are_not_counted() {
    for links in BOTH {
        for length in [10, 20_000, 200_000] {
            let (_directory, nodes, [from, _to]) = pair(links);
            let mut sent = 0;
            loop {
                match from.try_send(&vec![1; length]) {
                    Ok(()) => sent += 1,
                    Err(SendError::Full { .. }) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            let counted = nodes[0].stats().protocol;
            assert_eq!(counted.messages_sent, sent, "{links:?}, {length} bytes");
            assert_eq!(counted.message_bytes_sent, sent * length as u64);
        }
    }
}

#[test]
fn waits_and_the_start_of_the_process_are_counted() {
    let (_directory, nodes, [_from, to]) = pair(Links::Shm);
    let before = nodes[1].stats().waits;
    let waited = to.receive_timeout(Duration::from_millis(30));
    assert!(waited.is_err(), "nothing was sent");
    let after = nodes[1].stats().waits;
    assert_eq!(after.total(), before.total() + 1);
    assert!(after.total_ns() - before.total_ns() >= 30_000_000);
    let short = |waits: dipole_node::Waits| waits.up_to().take(4).last().expect("buckets").1;
    assert_eq!(short(after), short(before), "it is longer than 10 ms");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let started = nodes[1].stats().started_s;
    assert!(now.expect("after 1970").as_secs() - started < 3600);
}

/// Nectar §2.1, §2.3: at most one notification for each write, packet and read.
#[test]
fn a_message_wakes_its_receiver_at_most_once_and_a_read_its_sender_at_most_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let open = || {
        let config = Config::local(NodeId(1), directory.path().join("dipole"));
        // Every wait sleeps, so that messages wake it.
        let config = Config {
            links: Links::Shm,
            spin: Duration::ZERO,
            ..config
        };
        Node::open(config).expect("a node on loopback")
    };
    let nodes = [open(), open()];
    let from = nodes[0].endpoint(EndpointId(1)).expect("free");
    let to = nodes[1].endpoint(EndpointId(2)).expect("free");
    std::thread::scope(|scope| {
        let answering = scope.spawn(|| to.receive_timeout(PATIENCE));
        from.target(Address::new(1, 2)).expect("it exists");
        from.send(b"first").expect("it reads");
        answering.join().expect("no panic").expect("in time");
    });
    let wakeups = |node: &Node| node.stats().local.expect("shared memory").wakeups;
    let records = |node: &Node| node.stats().local.expect("shared memory").records_out;
    let before = nodes.each_ref().map(|node| (wakeups(node), records(node)));
    let begun = std::time::Instant::now();
    let mut messages = 0;
    // Until a wait has slept, at least 100 messages.
    while messages < 100 || wakeups(&nodes[0]) == before[0].0 {
        assert!(
            begun.elapsed() < PATIENCE,
            "no message has woken its receiver"
        );
        std::thread::scope(|scope| {
            let receiving = scope.spawn(|| to.receive_timeout(PATIENCE));
            std::thread::yield_now();
            from.send(&[7; 64]).expect("sent");
            receiving.join().expect("no panic").expect("it arrives");
        });
        messages += 1;
    }
    let after = nodes.each_ref().map(|node| (wakeups(node), records(node)));
    let [writes, reads] = [0, 1].map(|at| after[at].0 - before[at].0);
    assert!((1..=messages).contains(&writes), "{writes} of {messages}");
    assert!(reads <= messages, "{reads} of {messages}");
    for at in [0, 1] {
        let records = after[at].1 - before[at].1;
        let wakeups = after[at].0 - before[at].0;
        assert!(wakeups <= records, "{wakeups} for {records} records");
    }
}
