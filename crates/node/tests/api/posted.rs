//! Messages whose bytes the library shares, and memory that receivers offer.

use std::thread;
use std::time::{Duration, Instant};

use dipole_node::{
    Address, Bytes, Completion, CompletionQueue, Config, Edge, Endpoint, EndpointId, Links, Node,
    NodeId, Operation, ReceiveError, RegionMemory, Rights, SendError,
};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
const BOTH: [Links; 2] = [Links::Shm, Links::Udp];
const LONG: usize = 3 << 20;

struct Pair {
    edge: Edge,
    queue: CompletionQueue,
    from: Endpoint,
    to: Endpoint,
    _here: Node,
    there: Node,
    _directory: TempDir,
}

fn pair(links: Links) -> Pair {
    let directory = tempfile::tempdir().expect("a directory");
    let open = || {
        let config = Config::local(NodeId(1), directory.path().join("dipole"));
        Node::open(Config { links, ..config }).expect("a node on loopback")
    };
    let (here, there) = (open(), open());
    let from = here.endpoint(EndpointId(1)).expect("free");
    let to = there.endpoint(EndpointId(2)).expect("free");
    let edge = from.edge(Address::new(1, 2)).expect("usable");
    let queue = here.completion_queue();
    edge.attach(&queue);
    Pair {
        edge,
        queue,
        from,
        to,
        _here: here,
        there,
        _directory: directory,
    }
}

fn pattern(length: usize, salt: usize) -> Vec<u8> {
    let byte = |at: usize| u8::try_from((at * 7 + at / 256 + salt) % 256).expect("a byte");
    (0..length).map(byte).collect()
}

fn completion(queue: &CompletionQueue) -> Completion {
    let completion = queue.wait(PATIENCE).expect("a working link");
    completion.expect("a completion in time")
}

/// Opens the edge; afterwards the receiver's process takes part without making calls.
fn meet(edge: &Edge, to: &Endpoint) {
    thread::scope(|scope| {
        scope.spawn(|| edge.send_timeout(b"hello", PATIENCE).expect("sent"));
        to.receive_timeout(PATIENCE).expect("it comes");
    });
}

#[test]
fn shared_bytes_are_released_once_the_message_is_sent() {
    for links in BOTH {
        let pair = pair(links);
        let lengths = [0, 1, 1400, 40_000, LONG, 100, LONG];
        let posted: Vec<Bytes> = (lengths.iter().enumerate())
            .map(|(salt, length)| pattern(*length, salt).into())
            .collect();
        for (context, bytes) in posted.iter().enumerate() {
            let shared = bytes.clone();
            (pair
                .edge
                .post_bytes(Operation::Message, shared, context as u64))
            .expect("posted");
        }
        let mut received = Vec::new();
        let mut completed = Vec::new();
        thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                let next = |_| {
                    pair.to
                        .receive_timeout(PATIENCE)
                        .expect("it comes")
                        .to_vec()
                };
                (0..posted.len()).map(next).collect::<Vec<_>>()
            });
            for _ in &posted {
                match completion(&pair.queue) {
                    Completion::Sent { context } => completed.push(context),
                    other => panic!("{links:?}: {other:?}"),
                }
            }
            received = receiver.join().expect("no panic");
        });
        completed.sort_unstable();
        assert_eq!(completed, (0..posted.len() as u64).collect::<Vec<_>>());
        assert!(
            received.iter().eq(&posted),
            "{links:?}: in order, as posted"
        );
        for bytes in posted {
            // Empty bytes have no owner.
            assert!(bytes.is_empty() || bytes.is_unique(), "{links:?}");
        }
    }
}

#[test]
fn a_long_message_to_a_lost_process_releases_its_bytes() {
    for links in BOTH {
        let pair = pair(links);
        meet(&pair.edge, &pair.to);
        let bytes: Bytes = pattern(LONG, 0).into();
        let mut posted = 0;
        // Post until the receiver, which reads nothing, has no credit left.
        while posted < 40 {
            let shared = bytes.clone();
            (pair.edge.post_bytes(Operation::Message, shared, posted)).expect("posted");
            posted += 1;
        }
        drop((pair.to, pair.there));
        let mut failed = 0;
        for _ in 0..posted {
            match completion(&pair.queue) {
                Completion::Sent { .. } => {}
                Completion::Failed { error, .. } => {
                    assert!(
                        matches!(
                            error,
                            SendError::PeerGone { .. } | SendError::Refused { .. }
                        ),
                        "{links:?}: {error}"
                    );
                    failed += 1;
                }
                other => panic!("{links:?}: {other:?}"),
            }
        }
        assert!(failed > 0, "{links:?}");
        assert!(bytes.is_unique(), "{links:?}");
    }
}

#[test]
fn operations_posted_on_a_closed_edge_arrive_if_they_had_started() {
    for links in BOTH {
        let Pair {
            edge,
            queue,
            from: _from,
            to,
            _here,
            there: _there,
            _directory,
        } = pair(links);
        meet(&edge, &to);
        let bytes: Bytes = pattern(LONG, 1).into();
        let post = || edge.post_bytes(Operation::Message, bytes.clone(), 5);
        post().expect("posted");
        // Only operations that have started arrive.
        while edge.cancel(5) {
            assert!(matches!(completion(&queue), Completion::Failed { .. }));
            thread::sleep(Duration::from_millis(1));
            post().expect("posted");
        }
        edge.close();
        let message = to.receive_timeout(PATIENCE).expect("it comes");
        assert_eq!(&*message, &bytes[..], "{links:?}");
        assert!(matches!(
            completion(&queue),
            Completion::Sent { context: 5 }
        ));
        assert!(bytes.is_unique(), "{links:?}");
    }
}

/// Contexts of all completions until none has arrived for a while, and the number of cancelled
/// operations.
fn all_completions(queue: &CompletionQueue, expected: usize) -> (Vec<u64>, usize) {
    let (mut contexts, mut withdrawn) = (Vec::new(), 0);
    let moment = Duration::from_millis(50);
    loop {
        let patience = match contexts.len() < expected {
            true => PATIENCE,
            false => moment,
        };
        match queue.wait(patience).expect("a working link") {
            Some(Completion::Sent { context } | Completion::Done { context, .. }) => {
                contexts.push(context);
            }
            Some(Completion::Failed { context, error }) => {
                contexts.push(context);
                withdrawn += usize::from(matches!(error, SendError::Cancelled { .. }));
            }
            Some(other) => panic!("{other:?}"),
            None => break,
        }
    }
    contexts.sort_unstable();
    (contexts, withdrawn)
}

#[test]
fn every_posted_operation_completes_once_even_if_the_edge_or_endpoint_closes() {
    const POSTS: usize = 40;
    for (links, by_endpoint) in BOTH.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let pair = pair(links);
        meet(&pair.edge, &pair.to);
        let region = pair
            .to
            .open_region(RegionMemory::new(LONG).expect("memory"), Rights::ALL);
        let region = region.expect("open");
        let (long, short): (Bytes, Bytes) = (pattern(LONG, 1).into(), pattern(100, 2).into());
        for context in 0..POSTS as u64 {
            // The receiver reads nothing, so that not all operations can start.
            let bytes = if context % 2 == 0 { &long } else { &short }.clone();
            match context % 4 {
                0 | 1 => pair.edge.post_bytes(Operation::Message, bytes, context),
                2 => {
                    let put = Operation::Put {
                        key: region.key(),
                        offset: 0,
                        notice: None,
                    };
                    pair.edge.post_bytes(put, bytes, context)
                }
                _ => {
                    let into = RegionMemory::new(100).expect("memory");
                    pair.edge.post_get(region.key(), 0, into, context)
                }
            }
            .expect("posted");
        }
        let (edge, from) = (pair.edge, pair.from);
        match by_endpoint {
            true => drop(from),
            false => edge.close(),
        }
        let reader = thread::scope(|scope| {
            // Operations that have started must be read to complete.
            let reader = scope.spawn(|| {
                let patience = Duration::from_millis(300);
                while pair.to.receive_timeout(patience).is_ok() {}
            });
            let (contexts, withdrawn) = all_completions(&pair.queue, POSTS);
            assert_eq!(contexts, (0..POSTS as u64).collect::<Vec<_>>(), "{links:?}");
            assert!(withdrawn > 0, "{links:?}: all had begun");
            reader.join()
        });
        reader.expect("no panic");
        assert!(long.is_unique() && short.is_unique(), "{links:?}");
    }
}

#[test]
fn operations_posted_on_an_edge_that_never_opened_are_cancelled() {
    let pair = pair(Links::Shm);
    let edge = pair.from.edge(Address::new(1, 77)).expect("usable");
    edge.attach(&pair.queue);
    let bytes: Bytes = pattern(100, 2).into();
    for context in 0..3 {
        edge.post_bytes(Operation::Message, bytes.clone(), context)
            .expect("posted");
    }
    edge.close();
    assert_eq!(all_completions(&pair.queue, 3), (vec![0, 1, 2], 3));
    assert!(bytes.is_unique());
}

#[test]
fn a_posted_put_shares_bytes_and_a_posted_get_fills_memory() {
    for links in BOTH {
        let pair = pair(links);
        let memory = RegionMemory::new(2 * LONG).expect("memory");
        let region = (pair.to.open_region(memory.clone(), Rights::ALL)).expect("open");
        let bytes: Bytes = pattern(LONG, 2).into();
        let put = Operation::Put {
            key: region.key(),
            offset: 77,
            notice: None,
        };
        (pair.edge.post_bytes(put, bytes.clone(), 1)).expect("posted");
        let Completion::Done { context: 1, .. } = completion(&pair.queue) else {
            panic!("{links:?}: not done");
        };
        assert!(bytes.is_unique(), "{links:?}");
        let into = RegionMemory::new(LONG).expect("memory");
        (pair.edge.post_get(region.key(), 77, into.clone(), 2)).expect("posted");
        let Completion::Done { data, .. } = completion(&pair.queue) else {
            panic!("{links:?}: not done");
        };
        assert!(data.is_empty());
        let got = into.show(0, LONG, |got| got == &bytes[..]);
        assert!(got.expect("inside"), "{links:?}");
        (pair
            .edge
            .post_get(region.key(), LONG as u64 + 1, into.clone(), 3))
        .expect("posted");
        let Completion::Failed { context: 3, .. } = completion(&pair.queue) else {
            panic!("{links:?}: it reaches beyond");
        };
        // The memory is no longer accessible to peers.
        assert_eq!(into.bytes(), LONG);
    }
}

#[test]
fn a_put_without_an_answer_precedes_later_operations_and_its_refusal_is_reported() {
    for links in BOTH {
        let pair = pair(links);
        let memory = RegionMemory::new(2 * LONG).expect("memory");
        let region = (pair.to.open_region(memory.clone(), Rights::ALL)).expect("open");
        let (key, bytes) = (region.key(), Bytes::from(pattern(LONG, 3)));
        let put = |offset: usize| Operation::PutUnanswered {
            key,
            offset: offset as u64,
        };
        (pair.edge.post_bytes(put(0), bytes.clone(), 1)).expect("posted");
        (pair.edge.post_bytes(put(LONG), bytes.slice(..100), 2)).expect("posted");
        (pair
            .edge
            .post_bytes(Operation::Message, Bytes::from_static(b"there"), 3))
        .expect("posted");
        let message = pair.to.receive_timeout(PATIENCE).expect("it was posted");
        assert_eq!(&message[..], b"there");
        for (at, length) in [(0, LONG), (LONG, 100)] {
            let put = memory.show(at, length, |put| put == &bytes[..length]);
            assert!(put.expect("inside"), "{links:?}");
        }
        assert_eq!(all_completions(&pair.queue, 3), (vec![1, 2, 3], 0));
        assert!(bytes.is_unique(), "{links:?}");
        (pair.edge.post_bytes(put(LONG + 1), bytes.clone(), 4)).expect("posted");
        let mut refused = 0;
        while refused == 0 {
            match completion(&pair.queue) {
                Completion::Sent { context: 4 } => {}
                Completion::Failed {
                    context: 4,
                    error: SendError::OperationFailed { .. },
                } => refused += 1,
                other => panic!("{links:?}: {other:?}"),
            }
        }
        assert!(bytes.is_unique(), "{links:?}");
    }
}

/// Long and short messages alternate, with recurring lengths.
fn length_of(index: usize) -> usize {
    match index % 5 {
        0 => 100_000 + index,
        1 => 10,
        2 => 1 << 20,
        3 => 5000,
        _ => 20_000,
    }
}

#[test]
fn messages_of_any_length_fill_offered_memory_in_order() {
    const COUNT: usize = 100;
    for links in BOTH {
        let pair = pair(links);
        thread::scope(|scope| {
            scope.spawn(|| {
                for index in 0..COUNT {
                    let message = pattern(length_of(index), index);
                    (pair.edge.send_timeout(&message, PATIENCE)).expect("sent");
                }
            });
            let mut memory = vec![0; 1 << 20];
            for index in 0..COUNT {
                // Receivers that give up in the middle of a message lose nothing.
                let (length, source) = loop {
                    let patience = Duration::from_micros(50 * (index as u64 % 4));
                    match pair.to.receive_into_timeout(&mut memory, patience) {
                        Err(ReceiveError::TimedOut { .. }) => {}
                        received => break received.expect("it comes"),
                    }
                };
                assert_eq!(source, pair.from.address());
                assert_eq!(length, length_of(index), "{links:?}: message {index}");
                assert!(memory[..length] == pattern(length, index)[..], "{index}");
            }
        });
    }
}

/// The number of a message of the next test; `None` for those that end it.
fn numbered(message: &[u8]) -> Option<usize> {
    if message == b"the end!" {
        return None;
    }
    let index = u64::from_le_bytes(message[..8].try_into().expect("8 bytes"));
    let index = usize::try_from(index).expect("an index");
    assert!(
        message[8..] == pattern(length_of(index), index)[8..],
        "{index}"
    );
    Some(index)
}

/// Receives into memory until the end; returns the numbers of the messages.
fn read_into(endpoint: &Endpoint, wait: Duration, end: Instant) -> Vec<usize> {
    let mut memory = vec![0; 2 << 20];
    let mut got = Vec::new();
    loop {
        assert!(Instant::now() < end, "no end after {} messages", got.len());
        match endpoint.receive_into_timeout(&mut memory, wait) {
            Err(ReceiveError::TimedOut { .. }) => {}
            received => match numbered(&memory[..received.expect("it works").0]) {
                Some(index) => got.push(index),
                None => return got,
            },
        }
    }
}

#[test]
fn several_readers_of_one_endpoint_get_each_message_once() {
    const COUNT: usize = 200;
    for links in BOTH {
        let pair = pair(links);
        let end = Instant::now() + PATIENCE;
        let mut got: Vec<usize> = thread::scope(|scope| {
            scope.spawn(|| {
                for index in 0..COUNT {
                    let mut message = pattern(length_of(index), index);
                    message[..8].copy_from_slice(&(index as u64).to_le_bytes());
                    (pair.edge.send_timeout(&message, PATIENCE)).expect("sent");
                }
                pair.edge.flush(PATIENCE).expect("taken");
                for _ in 0..3 {
                    (pair.edge.send_timeout(b"the end!", PATIENCE)).expect("sent");
                }
            });
            let to = &pair.to;
            let readers = [50_000, 100].map(|micros| {
                scope.spawn(move || read_into(to, Duration::from_micros(micros), end))
            });
            let mut got = Vec::new();
            while let Some(index) = numbered(&pair.to.receive_timeout(PATIENCE).expect("it comes"))
            {
                got.push(index);
            }
            let others = readers.into_iter().map(|it| it.join().expect("no panic"));
            got.into_iter().chain(others.flatten()).collect()
        });
        got.sort_unstable();
        assert_eq!(got, (0..COUNT).collect::<Vec<_>>(), "{links:?}");
    }
}

#[test]
fn a_closed_endpoint_and_a_lost_sender_leave_offered_memory_to_its_owner() {
    for links in BOTH {
        let mut memory = vec![0; 2 * LONG];
        let Pair {
            edge,
            from,
            to,
            there,
            _here: here,
            _directory,
            ..
        } = pair(links);
        thread::scope(|scope| {
            scope.spawn(|| {
                // The sender leaves in the middle of a message, or just after it.
                let _any = edge.send_timeout(&pattern(LONG, 3), Duration::from_micros(300));
                drop((edge, from, here));
            });
            let received = to.receive_into_timeout(&mut memory, Duration::from_secs(2));
            if let Ok((length, _)) = received {
                assert!(memory[..length] == pattern(LONG, 3)[..], "{links:?}");
            }
        });
        let ended = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(20));
                to.end();
            });
            to.receive_into(&mut memory)
        });
        assert!(matches!(ended, Err(ReceiveError::Ended)), "{ended:?}");
        drop(there);
    }
}
