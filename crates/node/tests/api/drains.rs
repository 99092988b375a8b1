//! Waiting until everything that was sent to addresses has been acknowledged, and the longest
//! message.

use std::path::Path;
use std::time::Duration;

use dipole_node::{
    Address, Config, Endpoint, EndpointId, Links, MAX_MESSAGE_BYTES, Node, NodeId, OverflowPolicy,
    SendError,
};
use tempfile::TempDir;

const SOON: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(60);

fn config(folder: &Path, links: Links) -> Config {
    let mut config = Config::local(NodeId(1), folder.to_owned());
    config.links = links;
    // A lost process is reported soon.
    config.protocol.peer_timeout_ns = 1_000_000_000;
    config.linger = Duration::ZERO;
    config
}

fn node(folder: &Path, links: Links) -> Node {
    open(config(folder, links))
}

fn open(config: Config) -> Node {
    let node = Node::open(config).expect("a node");
    // Peers get answers while the test makes no calls.
    node.start_progress().expect("a thread");
    node
}

fn address(endpoint: u32) -> Address {
    Address::new(1, endpoint)
}

#[test]
fn drain_waits_for_messages_to_addresses_and_for_replies() {
    for links in [Links::Udp, Links::Shm] {
        let folder = tempfile::tempdir().expect("a folder");
        let (here, there) = (node(folder.path(), links), node(folder.path(), links));
        let from = here.endpoint(EndpointId(1)).expect("free");
        let ends: Vec<_> = (0..3)
            .map(|number| there.endpoint(EndpointId(10 + number)).expect("free"))
            .collect();
        assert!(matches!(from.drain(SOON), Err(SendError::NoTarget { .. })));
        for round in 0..20_u8 {
            for number in 0..3 {
                from.send_to(address(10 + number), &[round; 5000])
                    .expect("room");
            }
        }
        from.drain(PATIENCE).expect("their process acknowledges");
        for end in &ends {
            for round in 0..20_u8 {
                let message = end.try_receive().expect("open").expect("it has arrived");
                assert!(*message == [round; 5000]);
                end.reply(&message, &[round]).expect("the sender is there");
            }
            end.drain(PATIENCE).expect("the sender acknowledges");
        }
        for _ in 0..60 {
            from.try_receive().expect("open").expect("a reply");
        }
    }
}

#[test]
fn drain_waits_for_messages_to_a_target_that_was_removed() {
    for links in [Links::Udp, Links::Shm] {
        let folder = tempfile::tempdir().expect("a folder");
        let (here, there) = (node(folder.path(), links), node(folder.path(), links));
        let from = here.endpoint(EndpointId(1)).expect("free");
        let end = there.endpoint(EndpointId(7)).expect("free");
        for round in 0..10_u8 {
            from.target(end.address()).expect("it is open");
            for _ in 0..20 {
                from.send(&[round; 5000]).expect("room");
            }
            from.untarget(end.address());
            from.drain(PATIENCE).expect("its process acknowledges");
            for _ in 0..20 {
                let message = end.try_receive().expect("open").expect("it has arrived");
                assert!(*message == [round; 5000]);
            }
        }
    }
}

#[test]
fn drain_reports_messages_that_waited_for_a_target_that_was_removed() {
    for policy in [OverflowPolicy::Wait, OverflowPolicy::KeepLatest] {
        let folder = tempfile::tempdir().expect("a folder");
        let (here, there) = (
            node(folder.path(), Links::Udp),
            node(folder.path(), Links::Udp),
        );
        let from = here.endpoint(EndpointId(1)).expect("free");
        let slow = there.endpoint(EndpointId(7)).expect("free");
        let quick = there.endpoint(EndpointId(8)).expect("free");
        for end in [&slow, &quick] {
            from.target(end.address()).expect("it is open");
        }
        from.set_overflow_policy(slow.address(), policy)
            .expect("a target");
        let dropped = || from.dropped_messages(slow.address()).expect("a target");
        let mut sent = 0_u32;
        while dropped() == 0 && from.try_send(&[1; 5000]).is_ok() {
            sent += 1;
            quick.receive_timeout(PATIENCE).expect("it arrives");
        }
        let lost = dropped() + 1;
        from.untarget(slow.address());
        assert_eq!(here.stats().target_dropped, lost);
        match (policy, from.drain(PATIENCE)) {
            (OverflowPolicy::Wait, Err(SendError::Cancelled { target })) => {
                assert_eq!(target, slow.address());
            }
            (OverflowPolicy::KeepLatest, Ok(())) => {}
            (_, other) => panic!("{policy:?}: {other:?}"),
        }
        from.drain(PATIENCE).expect("it was reported");
        let received = std::iter::from_fn(|| slow.try_receive().expect("open")).count();
        assert_eq!(received as u64, u64::from(sent) - lost, "{policy:?}");
    }
}

#[test]
fn the_loss_of_a_target_is_not_reported_again_after_it_is_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let here = node(folder.path(), Links::Udp);
    let from = here.endpoint(EndpointId(1)).expect("free");
    for is_drained in [true, false] {
        let there = node(folder.path(), Links::Udp);
        let end = there.endpoint(EndpointId(7)).expect("free");
        let kept = there.endpoint(EndpointId(8)).expect("free");
        for end in [&end, &kept] {
            from.target(end.address()).expect("it is open");
        }
        drop(end);
        from.send(b"refused").expect("room");
        let reported = match is_drained {
            true => from.drain(PATIENCE),
            false => loop {
                match from.send(b"refused") {
                    Ok(()) => std::thread::sleep(Duration::from_millis(1)),
                    Err(error) => break Err(error),
                }
            },
        };
        assert!(
            matches!(reported, Err(SendError::Refused { .. })),
            "{reported:?}"
        );
        for to in [7, 8] {
            from.untarget(address(to));
        }
        from.drain(PATIENCE).expect("it was reported");
    }
}

#[test]
fn drain_does_not_wait_for_a_message_that_was_not_sent() {
    let folder = tempfile::tempdir().expect("a folder");
    let (here, there) = (
        node(folder.path(), Links::Udp),
        node(folder.path(), Links::Udp),
    );
    let from = here.endpoint(EndpointId(1)).expect("free");
    let end = there.endpoint(EndpointId(7)).expect("free");
    from.send_to(address(7), b"first").expect("room");
    // Longer than any window, so it is granted when the first one has been read.
    let long = vec![3; 8 << 20];
    let sent = from.send_to_timeout(address(7), &long, SOON);
    assert!(matches!(sent, Err(SendError::TimedOut { .. })), "{sent:?}");
    from.drain(PATIENCE).expect("the first one has arrived");
    assert_eq!(*end.receive().expect("open"), *b"first");
    std::thread::scope(|scope| {
        let received = scope.spawn(|| end.receive_timeout(PATIENCE).expect("it comes").len());
        from.send_to_timeout(address(7), &long, PATIENCE)
            .expect("room");
        from.drain(PATIENCE).expect("the receiver reads");
        assert_eq!(received.join().expect("no panic"), long.len());
    });
}

#[test]
fn what_a_lost_process_had_not_acknowledged_is_reported_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let here = node(folder.path(), Links::Udp);
    let from = here.endpoint(EndpointId(1)).expect("free");
    let there = node(folder.path(), Links::Udp);
    let end = there.endpoint(EndpointId(7)).expect("free");
    from.send_to(address(7), b"taken").expect("room");
    from.drain(PATIENCE).expect("it arrives");
    assert_eq!(*end.receive().expect("open"), *b"taken");
    drop((end, there));
    // It had acknowledged everything before it left.
    from.drain(PATIENCE).expect("it took everything");
    let other = node(folder.path(), Links::Udp);
    let end = other.endpoint(EndpointId(8)).expect("free");
    from.send_to(address(8), b"x").expect("room");
    from.drain(PATIENCE).expect("it arrives");
    assert!(end.receive().is_ok());
}

/// Two processes. The second has refused a message of the first, which no call has reported.
struct RefusedPair {
    from: Endpoint,
    here: Node,
    there: Node,
    _folder: TempDir,
}

impl RefusedPair {
    fn new(links: Links) -> RefusedPair {
        let folder = tempfile::tempdir().expect("a folder");
        let (here, there) = (node(folder.path(), links), node(folder.path(), links));
        let from = here.endpoint(EndpointId(1)).expect("free");
        let end = there.endpoint(EndpointId(7)).expect("free");
        from.send_to(address(7), b"taken").expect("room");
        from.drain(PATIENCE).expect("it arrives");
        drop(end);
        from.send_to(address(7), b"refused").expect("room");
        while there.stats().protocol.messages_refused == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        RefusedPair {
            from,
            here,
            there,
            _folder: folder,
        }
    }

    fn is_reported(&self, links: Links) {
        let drained = self.from.drain(PATIENCE);
        let is_refused =
            matches!(drained, Err(SendError::Refused { target, .. }) if target == address(7));
        assert!(is_refused, "{links:?}: {drained:?}");
    }

    /// The next drain reports it, and the one after that does not.
    fn is_reported_once(&self, links: Links) {
        self.is_reported(links);
        let again = self.from.drain(PATIENCE);
        assert!(again.is_ok(), "{links:?}: {again:?}");
    }
}

#[test]
fn a_drain_right_after_the_send_reports_the_refusal() {
    for links in [Links::Udp, Links::Shm] {
        let folder = tempfile::tempdir().expect("a folder");
        let (here, there) = (node(folder.path(), links), node(folder.path(), links));
        let from = here.endpoint(EndpointId(1)).expect("free");
        for round in 0..200 {
            let end = there.endpoint(EndpointId(7)).expect("free");
            from.target(address(7)).expect("it is open");
            from.send(b"taken").expect("room");
            from.drain(PATIENCE).expect("it arrives");
            drop(end);
            let drained = from.send(b"refused").and_then(|()| from.drain(PATIENCE));
            let is_refused = matches!(drained, Err(SendError::Refused { .. }));
            assert!(is_refused, "{links:?}, round {round}: {drained:?}");
        }
    }
}

#[test]
fn a_refusal_is_reported_after_the_edge_is_used_again() {
    for links in [Links::Udp, Links::Shm] {
        let pair = RefusedPair::new(links);
        let end = pair.there.endpoint(EndpointId(7)).expect("free");
        pair.from.target(address(7)).expect("it is open");
        // A refusal that arrives after the edge was opened again concerns later messages, too.
        let sent = pair.from.send(b"taken");
        if matches!(sent, Err(SendError::Refused { .. })) {
            continue;
        }
        sent.expect("room");
        pair.is_reported(links);
        assert_eq!(*end.receive().expect("open"), *b"taken");
    }
}

#[test]
fn a_refusal_is_reported_after_its_edge_made_room_for_others() {
    for links in [Links::Udp, Links::Shm] {
        let pair = RefusedPair::new(links);
        let others = 100..1300;
        let ends: Vec<_> = others
            .clone()
            .map(|number| pair.there.endpoint(EndpointId(number)).expect("free"))
            .collect();
        for number in others {
            pair.from.send_to(address(number), b"taken").expect("room");
        }
        pair.is_reported_once(links);
        drop(ends);
    }
}

#[test]
fn a_refusal_is_reported_after_its_process_has_left() {
    for links in [Links::Udp, Links::Shm] {
        let pair = RefusedPair::new(links);
        drop(pair.there);
        loop {
            let stats = pair.here.stats();
            if stats.peers + stats.local_peers == 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let drained = pair.from.drain(PATIENCE);
        let is_told = matches!(
            drained,
            Err(SendError::Refused { .. } | SendError::PeerGone { .. })
        );
        assert!(is_told, "{links:?}: {drained:?}");
    }
}

#[test]
fn the_limit_of_messages_can_be_chosen_by_each_process() {
    const LONG: usize = 300_000;
    let limited = |folder: &Path, links, bytes: usize| {
        let mut config = config(folder, links);
        config.protocol.max_message_bytes = bytes as u64;
        open(config)
    };
    for links in [Links::Udp, Links::Shm] {
        let folder = tempfile::tempdir().expect("a folder");
        let here = limited(folder.path(), links, LONG);
        let there = limited(folder.path(), links, LONG - 1);
        let from = here.endpoint(EndpointId(1)).expect("free");
        let end = there.endpoint(EndpointId(7)).expect("free");
        let long = vec![7; LONG];
        from.target(address(7)).expect("it is open");
        from.send(&long[1..]).expect("both take it");
        assert_eq!(end.receive().expect("open")[..], long[1..]);
        // Its receiver does not take it, and the sender gets an error.
        let refused = from.send(&long).and_then(|()| from.drain(PATIENCE));
        match refused {
            Err(error @ SendError::Refused { .. }) => {
                let text = error.to_string();
                assert!(text.contains("longer than it accepts"), "{text}");
            }
            other => panic!("{links:?}: {other:?}"),
        }
        // The way back has the other process's limit.
        end.target(address(1)).expect("it is open");
        match end.send(&long) {
            Err(SendError::TooLong {
                length: LONG,
                limit,
            }) => assert_eq!(limit, LONG as u64 - 1),
            other => panic!("{links:?}: {other:?}"),
        }
        // Later messages pass.
        from.target(address(7)).expect("it is open");
        from.send(&long[2..]).expect("both take it");
        assert_eq!(end.receive().expect("open")[..], long[2..]);
    }
}

#[test]
fn longer_messages_than_the_limit_are_refused_with_the_limit() {
    // Never touched, so the kernel gives it no memory.
    let length = usize::try_from(MAX_MESSAGE_BYTES).expect("64 bits") + 1;
    let long = vec![0_u8; length];
    for links in [Links::Udp, Links::Shm] {
        let folder = tempfile::tempdir().expect("a folder");
        let (here, there) = (node(folder.path(), links), node(folder.path(), links));
        let from = here.endpoint(EndpointId(1)).expect("free");
        let end = there.endpoint(EndpointId(7)).expect("free");
        from.send_to(address(7), b"first").expect("room");
        assert!(end.receive().is_ok());
        from.target(address(7)).expect("it is open");
        let refused = |sent: Result<(), SendError>| match sent {
            Err(SendError::TooLong { limit, .. }) => limit,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(from.send_to(address(7), &long)), MAX_MESSAGE_BYTES);
        assert_eq!(refused(from.send(&long)), MAX_MESSAGE_BYTES);
        // All of a non-blocking message must find room at once.
        let most = refused(from.try_send(&long[..length - 1]));
        assert_eq!(refused(from.try_send_to(address(7), &long)), most);
        let is_documented = match links {
            Links::Udp => most > 1_000_000,
            _ => most == 32 << 20,
        };
        assert!(is_documented, "{most}");
        let most = usize::try_from(most).expect("64 bits");
        // All frames are free once nothing is in flight.
        from.drain(PATIENCE).expect("it arrives");
        // The first attempt requests credit for all of it.
        let begun = std::time::Instant::now();
        while let Err(error) = from.try_send(&long[..most]) {
            assert!(matches!(error, SendError::Full { .. }), "{error}");
            assert!(begun.elapsed() < PATIENCE, "{error}");
            std::thread::yield_now();
        }
        std::thread::scope(|scope| {
            let received = scope.spawn(|| end.receive_timeout(PATIENCE).expect("it comes").len());
            from.drain(PATIENCE).expect("it arrives");
            assert_eq!(received.join().expect("no panic"), most);
        });
    }
}
