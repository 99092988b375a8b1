//! Posted receives, which are filled while no thread waits.

use std::time::Duration;

use dipole_node::{
    Address, Completion, CompletionQueue, Config, Edge, Endpoint, EndpointId, Links, Node, NodeId,
    ReceiveError, RegionMemory,
};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
const BOTH: [Links; 2] = [Links::Shm, Links::Udp];
const LONG: usize = 300_000;

struct Pair {
    edge: Edge,
    queue: CompletionQueue,
    _from: Endpoint,
    to: Endpoint,
    here: Node,
    there: Node,
    _directory: TempDir,
}

/// Two endpoints and an edge; the queue belongs to the receiver.
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
    let queue = there.completion_queue();
    Pair {
        edge,
        queue,
        _from: from,
        to,
        here,
        there,
        _directory: directory,
    }
}

fn pattern(length: usize, salt: usize) -> Vec<u8> {
    let byte = |at: usize| u8::try_from((at * 7 + at / 256 + salt) % 256).expect("a byte");
    (0..length).map(byte).collect()
}

fn memory(bytes: usize) -> RegionMemory {
    RegionMemory::new(bytes).expect("memory")
}

fn contents(memory: &RegionMemory, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    memory.read(0, &mut bytes).expect("inside");
    bytes
}

impl Pair {
    fn post(&self, bytes: usize, context: u64) {
        let posted = self.to.post_receive(memory(bytes), &self.queue, context);
        posted.expect("posted");
    }

    fn completion(&self) -> Completion {
        let completion = self.queue.wait(PATIENCE).expect("a working link");
        completion.expect("a completion in time")
    }

    /// Checks that the next completion is a receive filled with this message.
    fn filled(&self, expected: (u64, &[u8])) {
        match self.completion() {
            Completion::Filled {
                context,
                endpoint,
                source,
                length,
                memory,
            } => {
                assert_eq!((endpoint, source), (EndpointId(2), Address::new(1, 1)));
                let bytes = contents(&memory, length);
                assert!((context, &bytes[..]) == expected, "receive {context}");
            }
            other => panic!("{other:?}"),
        }
    }

    fn not_filled(&self) -> (u64, ReceiveError) {
        match self.completion() {
            Completion::NotFilled { context, error, .. } => (context, error),
            other => panic!("{other:?}"),
        }
    }

    fn send(&self, message: &[u8]) {
        self.edge.send_timeout(message, PATIENCE).expect("sent");
    }

    /// Waits until everything sent has arrived; the receiver makes no calls.
    fn flush(&self) {
        self.edge.flush(PATIENCE).expect("acknowledged");
    }
}

#[test]
fn posted_receives_are_filled_in_order_with_short_and_long_messages() {
    for links in BOTH {
        let pair = pair(links);
        let lengths = [0, 1, LONG, 1400, LONG, LONG - 1, 40_000, 5, 20_000, LONG];
        for round in 0..5 {
            let message = |index: usize| pattern(lengths[index], index + round);
            for context in 0..lengths.len() as u64 {
                pair.post(LONG, context);
            }
            std::thread::scope(|scope| {
                scope.spawn(|| (0..lengths.len()).for_each(|index| pair.send(&message(index))));
                for index in 0..lengths.len() {
                    pair.filled((index as u64, &message(index)));
                }
            });
        }
    }
}

#[test]
fn memory_is_filled_while_its_owner_makes_no_calls() {
    for links in BOTH {
        let pair = pair(links);
        pair.post(LONG, 1);
        pair.post(LONG, 2);
        let (long, short) = (pattern(LONG, 3), pattern(100, 4));
        pair.send(&long);
        pair.send(&short);
        pair.flush();
        pair.filled((1, &long));
        pair.filled((2, &short));
        assert!(pair.queue.poll().expect("a working link").is_none());
    }
}

#[test]
fn earlier_messages_fill_posted_memory_at_once_and_the_rest_is_received() {
    for links in BOTH {
        let pair = pair(links);
        let messages = [pattern(LONG, 0), pattern(10, 1), pattern(LONG, 2)];
        std::thread::scope(|scope| {
            scope.spawn(|| messages.iter().for_each(|message| pair.send(message)));
            pair.post(LONG, 7);
            pair.filled((7, &messages[0]));
            let second = pair.to.receive_timeout(PATIENCE).expect("it comes");
            assert_eq!(&*second, &messages[1]);
            let mut into = vec![0; LONG];
            let third = pair.to.receive_into_timeout(&mut into, PATIENCE);
            assert_eq!(third.expect("it comes").0, LONG);
            assert!(into == messages[2]);
        });
    }
}

#[test]
fn a_message_that_does_not_fit_stays_for_the_next_receive() {
    for links in BOTH {
        let pair = pair(links);
        pair.post(LONG - 1, 1);
        pair.post(1, 2);
        pair.post(LONG, 3);
        let long = pattern(LONG, 9);
        pair.send(&long);
        for (context, given) in [(1, LONG - 1), (2, 1)] {
            let (of, error) = pair.not_filled();
            let is_too_short = matches!(
                error,
                ReceiveError::TooShort { needed: LONG, given: bytes } if bytes == given
            );
            assert!(of == context && is_too_short, "{links:?}: {of} {error}");
        }
        pair.filled((3, &long));
    }
}

#[test]
fn a_cancelled_receive_takes_nothing_and_later_ones_continue() {
    for links in BOTH {
        let pair = pair(links);
        for context in [1, 2, 2, 3] {
            pair.post(LONG, context);
        }
        assert!(pair.to.cancel_receive(1), "the one that is offered");
        assert!(pair.to.cancel_receive(2));
        assert!(!pair.to.cancel_receive(9), "none has that context");
        for context in [1, 2] {
            let (of, error) = pair.not_filled();
            assert!(of == context && matches!(error, ReceiveError::Cancelled));
        }
        let messages = [pattern(LONG, 1), pattern(LONG, 2)];
        messages.iter().for_each(|message| pair.send(message));
        pair.filled((2, &messages[0]));
        pair.filled((3, &messages[1]));
        assert!(!pair.to.cancel_receive(3), "it is done");
    }
}

#[test]
fn cancelling_a_receive_while_a_message_arrives_keeps_the_message() {
    for links in BOTH {
        let pair = pair(links);
        let long = pattern(4 << 20, 5);
        for _ in 0..20 {
            pair.post(long.len(), 1);
            std::thread::scope(|scope| {
                scope.spawn(|| pair.send(&long));
                let cancelled = pair.to.cancel_receive(1);
                match pair.completion() {
                    Completion::NotFilled { .. } if cancelled => {
                        let message = pair.to.receive_timeout(PATIENCE).expect("it comes");
                        assert!(*message == long[..], "{links:?}");
                    }
                    Completion::Filled { memory, length, .. } if !cancelled => {
                        assert!(contents(&memory, length) == long, "{links:?}");
                    }
                    other => panic!("{links:?}: {other:?}"),
                }
            });
        }
    }
}

#[test]
fn posted_receives_fail_when_the_endpoint_closes() {
    for links in BOTH {
        let pair = pair(links);
        pair.post(LONG, 1);
        pair.post(LONG, 2);
        pair.to.end();
        for context in [1, 2] {
            let (of, error) = pair.not_filled();
            assert!(of == context && matches!(error, ReceiveError::Ended));
        }
        let late = pair.to.post_receive(memory(10), &pair.queue, 3);
        assert!(matches!(late, Err(ReceiveError::Ended)), "{late:?}");
    }
}

#[test]
fn without_their_queue_messages_are_received_normally() {
    for links in BOTH {
        let mut pair = pair(links);
        pair.post(LONG, 1);
        let other = pair.there.completion_queue();
        drop(std::mem::replace(&mut pair.queue, other));
        let long = pattern(LONG, 6);
        std::thread::scope(|scope| {
            scope.spawn(|| pair.send(&long));
            let message = pair.to.receive_timeout(PATIENCE).expect("it comes");
            assert!(*message == long[..]);
        });
    }
}

#[test]
fn posted_receives_go_before_the_messages_of_an_attached_endpoint() {
    for links in BOTH {
        let pair = pair(links);
        pair.to.attach(&pair.queue);
        pair.post(100, 1);
        let messages = [pattern(100, 1), pattern(100, 2)];
        messages.iter().for_each(|message| pair.send(message));
        pair.filled((1, &messages[0]));
        match pair.completion() {
            Completion::Received { message, .. } => assert_eq!(&*message, &messages[1]),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_1025th_posted_receive_is_refused_and_the_others_are_filled() {
    let pair = pair(Links::Shm);
    for context in 0..1024 {
        pair.post(8, context);
    }
    let full = pair.to.post_receive(memory(8), &pair.queue, 0);
    let is_full = matches!(full, Err(ReceiveError::TooManyPosted { limit: 1024 }));
    assert!(is_full, "{full:?}");
    let mut seen = vec![0; 4];
    std::thread::scope(|scope| {
        let others: Vec<Endpoint> = (10..14)
            .map(|id| pair.here.endpoint(EndpointId(id)).expect("free"))
            .collect();
        for (who, endpoint) in others.into_iter().enumerate() {
            scope.spawn(move || {
                let edge = endpoint.edge(Address::new(1, 2)).expect("usable");
                for number in 0..256_u32 {
                    let message = [u32::try_from(who).expect("few"), number];
                    let bytes = message.map(u32::to_le_bytes).concat();
                    edge.send_timeout(&bytes, PATIENCE).expect("sent");
                }
                edge.flush(PATIENCE).expect("acknowledged");
            });
        }
        for expected in 0..1024 {
            let Completion::Filled {
                context, memory, ..
            } = pair.completion()
            else {
                panic!("receive {expected}");
            };
            assert_eq!(context, expected, "in the order in which they were posted");
            let bytes = contents(&memory, 8);
            let who = usize::from(bytes[0]);
            let number = u32::from_le_bytes(bytes[4..].try_into().expect("four"));
            assert_eq!(number, seen[who], "in the order of its edge");
            seen[who] += 1;
        }
    });
    assert_eq!(seen, [256; 4]);
}

/// Sends messages of many lengths, each of which begins with its sender and number.
fn send_many(endpoint: &Endpoint, who: u32, count: usize) {
    const LENGTHS: [usize; 7] = [8, LONG, 1400, LONG - 1, 40_000, 9, 70_000];
    let edge = endpoint.edge(Address::new(1, 2)).expect("usable");
    for number in 0..count {
        let length = LENGTHS[(number + who as usize) % LENGTHS.len()];
        let mut message = pattern(length, number);
        let head = [who, u32::try_from(number).expect("few")];
        message[..8].copy_from_slice(&head.map(u32::to_le_bytes).concat());
        edge.send_timeout(&message, PATIENCE).expect("sent");
    }
    edge.flush(PATIENCE).expect("acknowledged");
}

/// Sender and number of a message, after checking its contents.
fn checked(message: &[u8]) -> (usize, usize) {
    let word = |at: usize| u32::from_le_bytes(message[at..at + 4].try_into().expect("four"));
    let (who, number) = (word(0) as usize, word(4) as usize);
    assert!(
        message[8..] == pattern(message.len(), number)[8..],
        "{who}: {number}"
    );
    (who, number)
}

const SENDERS: u32 = 3;
const EACH: usize = 40;

fn with_senders(pair: &Pair, receive: impl FnOnce()) {
    let others: Vec<Endpoint> = (0..SENDERS)
        .map(|who| pair.here.endpoint(EndpointId(10 + who)).expect("free"))
        .collect();
    std::thread::scope(|scope| {
        for (who, endpoint) in (0..).zip(&others) {
            scope.spawn(move || send_many(endpoint, who, EACH));
        }
        receive();
    });
}

#[test]
fn messages_of_several_sources_are_whole_and_in_order_in_reposted_memory() {
    for links in BOTH {
        let pair = pair(links);
        for context in 0..5 {
            pair.post(LONG, context);
        }
        with_senders(&pair, || {
            let mut seen = [0; SENDERS as usize];
            for _ in 0..SENDERS as usize * EACH {
                let Completion::Filled {
                    context,
                    length,
                    memory,
                    ..
                } = pair.completion()
                else {
                    panic!("{links:?}: not filled");
                };
                let (who, number) = checked(&contents(&memory, length));
                assert_eq!(number, seen[who], "{links:?}: in the order of its edge");
                seen[who] += 1;
                let posted = pair.to.post_receive(memory, &pair.queue, context);
                posted.expect("posted");
            }
        });
    }
}

#[test]
fn posting_cancelling_and_receiving_concurrently_get_each_message_once() {
    for links in BOTH {
        let pair = pair(links);
        for context in 0..4 {
            pair.post(LONG, context);
        }
        with_senders(&pair, || {
            let (mut seen, mut turn) = (std::collections::BTreeSet::new(), 0);
            let mut place = vec![0; LONG];
            while seen.len() < SENDERS as usize * EACH {
                turn += 1;
                // An ordinary receive takes the contents of the posted memory.
                if turn % 3 == 0
                    && let Ok(Some(message)) = pair.to.try_receive()
                {
                    assert!(seen.insert(checked(&message)), "{links:?}: twice");
                }
                if turn % 5 == 0
                    && let Ok((length, _)) =
                        pair.to.receive_into_timeout(&mut place, Duration::ZERO)
                {
                    assert!(seen.insert(checked(&place[..length])), "{links:?}: twice");
                }
                if turn % 2 == 0 {
                    let _it_may_be_filled = pair.to.cancel_receive(turn % 4);
                }
                let moment = Duration::from_micros(100);
                match pair.queue.wait(moment).expect("a working link") {
                    Some(Completion::Filled { length, memory, .. }) => {
                        let message = contents(&memory, length);
                        assert!(seen.insert(checked(&message)), "{links:?}: twice");
                        pair.post(LONG, turn % 4);
                    }
                    Some(Completion::NotFilled { error, .. }) => {
                        assert!(matches!(error, ReceiveError::Cancelled), "{error:?}");
                        pair.post(LONG, turn % 4);
                    }
                    Some(other) => panic!("{other:?}"),
                    None => {}
                }
            }
        });
    }
}
