//! Edges, replies and completion queues through the public API.

use std::io::IoSlice;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dipole_node::{
    Address, Completion, CompletionCounts, CompletionQueue, Config, Edge, Endpoint, EndpointId,
    Links, Node, NodeId, Operation, SendError,
};
use rustix::event::{PollFd, PollFlags, poll};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
const BOTH: [Links; 2] = [Links::Shm, Links::Udp];

fn node(directory: &TempDir, links: Links) -> Node {
    let config = Config::local(NodeId(1), directory.path().join("dipole"));
    Node::open(Config { links, ..config }).expect("a node on loopback")
}

fn endpoint(node: &Node, id: u32) -> Endpoint {
    node.endpoint(EndpointId(id)).expect("a free endpoint")
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

/// Two nodes with a common directory, which exists as long as the first result.
fn two_nodes(links: Links) -> (TempDir, Node, Node) {
    let directory = directory();
    let (here, there) = (node(&directory, links), node(&directory, links));
    (directory, here, there)
}

fn edge(endpoint: &Endpoint, to: u32) -> Edge {
    endpoint
        .edge(Address::new(1, to))
        .expect("a usable endpoint")
}

fn message(endpoint: &Endpoint) -> Vec<u8> {
    let message = endpoint.receive_timeout(PATIENCE).expect("it comes");
    message.to_vec()
}

fn completion(queue: &CompletionQueue) -> Completion {
    let completion = queue.wait(PATIENCE).expect("a working link");
    completion.expect("a completion in time")
}

/// Lets the endpoint's process take part until `done`.
fn serve(endpoint: &Endpoint, done: &AtomicBool) {
    while !done.load(Ordering::Relaxed) {
        let _nothing = endpoint.receive_timeout(Duration::from_millis(5));
    }
}

#[test]
fn an_edge_is_created_at_once_and_connects_when_its_target_opens() {
    for links in BOTH {
        let (_directory, here, there) = two_nodes(links);
        let from = endpoint(&here, 1);
        let edge = edge(&from, 2);
        assert!(matches!(
            edge.try_send(b"early"),
            Err(SendError::Full { .. })
        ));
        let to = endpoint(&there, 2);
        std::thread::scope(|scope| {
            scope.spawn(|| edge.send(b"hello").expect("it opens"));
            assert_eq!(message(&to), b"hello");
        });
    }
}

#[test]
fn an_edge_sends_only_to_its_target() {
    for links in BOTH {
        let directory = directory();
        let node = node(&directory, links);
        let (from, left, right) = (endpoint(&node, 1), endpoint(&node, 2), endpoint(&node, 3));
        let (to_left, to_right) = (edge(&from, 2), edge(&from, 3));
        to_left.send(b"left").expect("sent");
        to_right.send(b"right").expect("sent");
        assert_eq!(message(&left), b"left");
        assert_eq!(message(&right), b"right");
        assert!(left.try_receive().expect("working").is_none());
        assert!(right.try_receive().expect("working").is_none());
    }
}

#[test]
fn an_edge_to_a_missing_endpoint_times_out_with_the_reason() {
    let directory = directory();
    let config = Config::local(NodeId(1), directory.path().join("dipole"));
    let config = Config {
        connect_timeout: Duration::from_millis(50),
        ..config
    };
    let node = Node::open(config).expect("a node on loopback");
    let from = endpoint(&node, 1);
    let queue = node.completion_queue();
    let edge = edge(&from, 99);
    edge.attach(&queue);
    edge.post(Operation::Message, &[IoSlice::new(b"lost")], 5)
        .expect("it waits");
    let Completion::Failed { context: 5, error } = completion(&queue) else {
        panic!("an operation on a missing endpoint succeeded");
    };
    let text = error.to_string();
    assert!(text.contains("no process opened it"), "{text}");
    assert!(matches!(edge.send(b"x"), Err(SendError::Unreachable(_))));
    let target = from
        .target(Address::new(1, 99))
        .expect_err("no such endpoint");
    assert!(
        target.to_string().contains("no process opened it"),
        "{target}"
    );
}

#[test]
fn operations_posted_before_the_edge_opens_run_in_order_and_complete() {
    for links in BOTH {
        let (_directory, here, there) = two_nodes(links);
        let from = endpoint(&here, 1);
        let queue = here.completion_queue();
        let edge = edge(&from, 2);
        edge.attach(&queue);
        for number in 0..100_u64 {
            let (head, tail) = (number.to_le_bytes(), [7; 5]);
            let parts = [IoSlice::new(&head), IoSlice::new(&tail)];
            edge.post(Operation::Message, &parts, number).expect("room");
        }
        assert!(edge.cancel(50));
        assert!(!edge.cancel(1000));
        let to = endpoint(&there, 2);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in (0..100_u64).filter(|number| *number != 50) {
                    let bytes = message(&to);
                    assert_eq!(bytes[..8], number.to_le_bytes());
                    assert_eq!(bytes[8..], [7; 5]);
                }
                serve(&to, &done);
            });
            let Completion::Failed { context: 50, error } = completion(&queue) else {
                panic!("what was cancelled completes first");
            };
            assert!(matches!(error, SendError::Cancelled { .. }));
            for number in (0..100).filter(|number| *number != 50) {
                let done = completion(&queue);
                let Completion::Sent { context } = done else {
                    panic!("{done:?}");
                };
                assert_eq!(context, number);
            }
            edge.flush(PATIENCE).expect("acknowledged");
            done.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn one_descriptor_signals_everything_attached_to_a_queue() {
    for links in BOTH {
        let (_directory, here, there) = two_nodes(links);
        let inboxes = [endpoint(&here, 10), endpoint(&here, 11)];
        let queue = here.completion_queue();
        let descriptor = queue.export().expect("a descriptor");
        for inbox in &inboxes {
            inbox.attach(&queue);
        }
        let from = endpoint(&there, 1);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for to in [10, 11, 11, 10] {
                    edge(&from, to)
                        .send(&[u8::try_from(to).expect("small")])
                        .expect("sent");
                }
                serve(&from, &done);
            });
            let mut counts = [0; 2];
            while counts != [2, 2] {
                let mut polled = [PollFd::from_borrowed_fd(descriptor.as_fd(), PollFlags::IN)];
                poll(&mut polled, None).expect("it becomes readable");
                while let Some(entry) = queue.poll().expect("a working link") {
                    let Completion::Received { endpoint, message } = entry else {
                        panic!("{entry:?}");
                    };
                    assert_eq!(u32::from(message[0]), endpoint.0);
                    counts[endpoint.0 as usize - 10] += 1;
                }
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn a_server_replies_to_a_thousand_clients_some_of_which_leave_early() {
    const NODES: u32 = 10;
    const EACH: u32 = 100;
    for links in BOTH {
        let directory = directory();
        let host = node(&directory, links);
        let server = endpoint(&host, 1);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| {
                let mut slowest = Duration::ZERO;
                while !done.load(Ordering::Relaxed) {
                    let Ok(message) = server.receive_timeout(Duration::from_millis(5)) else {
                        continue;
                    };
                    let begun = Instant::now();
                    match server.reply(&message, &message) {
                        Ok(()) | Err(SendError::PeerGone { .. } | SendError::Refused { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                    slowest = slowest.max(begun.elapsed());
                }
                slowest
            });
            for batch in 0..NODES {
                let clients = node(&directory, links);
                let dies = |number: u32| number.is_multiple_of(3);
                let mut left = Vec::new();
                for number in 0..EACH {
                    let client = endpoint(&clients, 100 + batch * EACH + number);
                    let edge = edge(&client, 1);
                    edge.send(&number.to_le_bytes()).expect("the server reads");
                    if dies(number) {
                        // This client leaves before its reply.
                        edge.flush(PATIENCE).expect("acknowledged");
                        drop((edge, client));
                    } else {
                        left.push((number, client, edge));
                    }
                }
                for (number, client, _edge) in &left {
                    assert_eq!(message(client), number.to_le_bytes());
                }
            }
            done.store(true, Ordering::Relaxed);
            let slowest = serving.join().expect("no panic");
            // Replies to clients that are gone do not look them up, which would take half a
            // minute each.
            assert!(slowest < Duration::from_secs(10), "{slowest:?}");
        });
    }
}

#[test]
fn send_to_finds_its_target_and_keeps_the_edge() {
    for links in BOTH {
        let (_directory, here, there) = two_nodes(links);
        let from = endpoint(&here, 1);
        let to = endpoint(&there, 2);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                for number in 0..100_u32 {
                    assert_eq!(message(&to), number.to_le_bytes());
                }
                serve(&to, &done);
            });
            for number in 0..100_u32 {
                let bytes = number.to_le_bytes();
                from.send_to(Address::new(1, 2), &bytes).expect("it reads");
            }
            edge(&from, 2).flush(PATIENCE).expect("acknowledged");
            done.store(true, Ordering::Relaxed);
            reading.join().expect("no panic");
        });
    }
}

#[test]
fn sends_of_any_length_to_a_stopped_process_time_out() {
    for links in BOTH {
        let (_directory, here, there) = two_nodes(links);
        let (from, to) = (endpoint(&here, 1), endpoint(&there, 2));
        let edge = edge(&from, 2);
        std::thread::scope(|scope| {
            scope.spawn(|| edge.send(b"hello").expect("it runs still"));
            assert_eq!(message(&to), b"hello");
        });
        // From now on, the target is not polled by any thread.
        for length in [64, 20_000, 1 << 20] {
            let payload = vec![1; length];
            let begun = Instant::now();
            let sent = edge.send_timeout(&payload, Duration::from_millis(100));
            assert!(
                matches!(sent, Ok(()) | Err(SendError::TimedOut { .. })),
                "{length} bytes: {sent:?}"
            );
            let took = begun.elapsed();
            assert!(took < Duration::from_secs(5), "{length} bytes: {took:?}");
        }
    }
}

#[test]
fn messages_acknowledged_before_the_receiver_ended_count_as_delivered() {
    for links in BOTH {
        let (_directory, here, there) = two_nodes(links);
        let (from, to) = (endpoint(&here, 1), endpoint(&there, 2));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                assert_eq!(message(&to), b"last");
                drop(to);
                there.close(PATIENCE).expect("it owes nothing");
            });
            from.target(Address::new(1, 2)).expect("it exists");
            from.send(b"last").expect("sent");
        });
        // Here the process is already gone, before the first query.
        while here.take_departures().is_empty() {
            let _nothing = from.receive_timeout(Duration::from_millis(1));
        }
        let drained = from.drain(PATIENCE);
        assert!(drained.is_ok(), "{links:?}: {drained:?}");
    }
}

#[test]
fn a_queue_reports_departures_after_the_messages_that_came_before() {
    for links in BOTH {
        let (_directory, here, there) = two_nodes(links);
        let (from, to) = (endpoint(&here, 1), endpoint(&there, 2));
        let queue = here.completion_queue();
        queue.watch_departures().expect("a thread");
        from.attach(&queue);
        let descriptor = queue.export().expect("a descriptor");
        to.target(Address::new(1, 1)).expect("it exists");
        to.send(b"last").expect("sent");
        to.drain(PATIENCE).expect("acknowledged");
        drop((to, there));
        let mut entries = Vec::new();
        // No thread calls the library: the descriptor alone reports what happens.
        while entries.len() < 2 {
            let mut waiting = [PollFd::new(&descriptor, PollFlags::IN)];
            let patience = PATIENCE.try_into().expect("a short time");
            let ready = poll(&mut waiting, Some(&patience)).expect("it polls");
            assert_eq!(ready, 1, "{links:?}: {entries:?}");
            queue.take_many(&mut entries, 1).expect("a working link");
        }
        let [one, other] = &entries[..] else {
            panic!("{links:?}: {entries:?}")
        };
        assert!(
            matches!(one, Completion::Received { message, .. } if &**message == b"last"),
            "{links:?}: {one:?}"
        );
        assert!(matches!(other, Completion::Departed { .. }), "{other:?}");
        assert_eq!(here.take_departures(), []);
    }
}

#[test]
fn ephemeral_endpoints_have_distinct_numbers() {
    let directory = directory();
    let node = node(&directory, Links::Shm);
    let endpoints: Vec<Endpoint> = (0..20)
        .map(|_| node.endpoint(EndpointId::ANY).expect("a free number"))
        .collect();
    let mut numbers: Vec<u32> = endpoints.iter().map(|it| it.address().endpoint.0).collect();
    assert!(numbers.iter().all(|id| EndpointId::EPHEMERAL.contains(id)));
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 20);
}

#[test]
fn a_counter_counts_completed_and_failed_operations() {
    const MANY: u64 = 500;
    for links in BOTH {
        let (_directory, here, there) = two_nodes(links);
        let (from, to) = (endpoint(&here, 1), endpoint(&there, 2));
        let counter = here.completion_counter();
        let edge = edge(&from, 2);
        edge.attach_counter(&counter);
        assert_eq!(
            counter.counts().expect("a working link"),
            CompletionCounts::default()
        );
        assert_eq!(counter.wait(1, Duration::ZERO).expect("it works"), None);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for context in 0..MANY {
                    let posted =
                        edge.post(Operation::Message, &[IoSlice::new(b"counted")], context);
                    posted.expect("room for all");
                }
            });
            for _ in 0..MANY {
                assert_eq!(message(&to), b"counted");
            }
        });
        let all = counter.wait(MANY, PATIENCE).expect("a working link");
        let sent = CompletionCounts {
            sent: MANY,
            failed: 0,
        };
        assert_eq!(all, Some(sent));
        // This endpoint is never opened.
        let nowhere = self::edge(&from, 99);
        nowhere.attach_counter(&counter);
        let posted = nowhere.post(Operation::Message, &[IoSlice::new(b"lost")], 7);
        posted.expect("it waits for its target");
        assert!(nowhere.cancel(7));
        let failed = CompletionCounts { failed: 1, ..sent };
        let all = counter.wait(MANY + 1, PATIENCE).expect("a working link");
        assert_eq!(all, Some(failed));
    }
}
