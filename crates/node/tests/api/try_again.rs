//! Resources that are short at random: every call that then answers "try again" is repeated, and
//! nothing is lost, duplicated or delayed for ever.
//!
//! The fault plan of both processes makes one resource short in most attempts, each in turn, and
//! then all of them by seeds. `DIPOLE_SEED` sets the first seed.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use dipole_node::{
    ActivePort, Address, Bytes, Completion, CompletionQueue, Config, Edge, Endpoint, EndpointId,
    FaultPlan, Links, Node, NodeId, Operation, Region, RegionMemory, Rights, SendError,
};
use tempfile::TempDir;

/// A call or a message that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Messages of each kind.
const MESSAGES: u64 = 60;
const SEEDS: u64 = 3;
/// Bytes of each put and get.
const PIECE: usize = 5000;
const PIECES: u64 = 40;
const ADDITIONS: u64 = 60;

/// Lengths of messages that share packets, fill one, take several, and are fetched.
const LENGTHS: [usize; 5] = [8, 700, 6000, 40_000, 300_000];

struct Cluster {
    edge: Edge,
    to_port: Edge,
    queue: CompletionQueue,
    from: Endpoint,
    to: Endpoint,
    region: Region,
    _port: ActivePort,
    nodes: [Node; 2],
    _directory: TempDir,
}

fn cluster(links: Links, plan: &FaultPlan) -> Cluster {
    let directory = tempfile::tempdir().expect("a directory");
    let open = || {
        let config = Config::local(NodeId(1), directory.path().join("dipole"));
        let fault = Some(plan.clone());
        Node::open(Config {
            links,
            fault,
            ..config
        })
        .expect("a node on loopback")
    };
    let (here, there) = (open(), open());
    let from = here.endpoint(EndpointId(1)).expect("free");
    let to = there.endpoint(EndpointId(2)).expect("free");
    // As the provider's atomic operations: a reply that finds no room is sent by a call that waits.
    let port = there.open_port(EndpointId(3), |port, message| {
        if let Err(SendError::Full { .. }) = port.reply(&message, &message) {
            port.send_to(message.source(), &message).expect("sent");
        }
    });
    let memory = RegionMemory::new(PIECE * 2 * usize::try_from(PIECES).expect("few") + 8);
    let region = to.open_region(memory.expect("memory"), Rights::ALL);
    let queue = here.completion_queue();
    let edge = from.edge(Address::new(1, 2)).expect("usable");
    edge.attach(&queue);
    Cluster {
        edge,
        to_port: from.edge(Address::new(1, 3)).expect("usable"),
        queue,
        region: region.expect("a region"),
        from,
        to,
        _port: port.expect("a port"),
        nodes: [here, there],
        _directory: directory,
    }
}

fn pattern(length: usize, salt: u64) -> Vec<u8> {
    let salt = usize::try_from(salt).expect("small");
    let byte = |at: usize| u8::try_from((at * 7 + at / 256 + salt) % 256).expect("a byte");
    (0..length).map(byte).collect()
}

/// The message with this number: its length and contents follow from it.
fn message(number: u64) -> Vec<u8> {
    let length = LENGTHS[usize::try_from(number).expect("small") % LENGTHS.len()];
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend(pattern(length - 8, number));
    bytes
}

/// Calls until the answer is not "try again".
fn again<T>(what: &str, mut call: impl FnMut() -> Result<T, SendError>) -> T {
    let begun = Instant::now();
    loop {
        match call() {
            Ok(done) => return done,
            Err(SendError::Full { .. }) => {}
            Err(error) => panic!("{what}: {error}"),
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: no room for ever");
        thread::yield_now();
    }
}

/// The contexts of the next `count` completions and their values, each context once.
fn completions(queue: &CompletionQueue, count: u64) -> BTreeMap<u64, u64> {
    let mut done = BTreeMap::new();
    while (done.len() as u64) < count {
        let next = queue.wait(PATIENCE).expect("a working link");
        let (context, value) = match next {
            Some(Completion::Sent { context }) => (context, 0),
            Some(Completion::Done { context, value, .. }) => (context, value),
            other => panic!("{} of {count} completed, then {other:?}", done.len()),
        };
        assert!(done.insert(context, value).is_none(), "{context} twice");
    }
    assert!(matches!(queue.poll(), Ok(None)), "more than {count}");
    done
}

/// Messages by every call that can answer "try again", and by calls that wait.
fn messages(cluster: &Cluster) {
    let Cluster {
        edge, queue, to, ..
    } = cluster;
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            for number in 0..4 * MESSAGES {
                let received = to.receive_timeout(PATIENCE);
                let received = received.unwrap_or_else(|error| panic!("message {number}: {error}"));
                assert!(*received == *message(number), "message {number} is wrong");
            }
        });
        for number in 0..MESSAGES {
            edge.send_timeout(&message(number), PATIENCE).expect("sent");
        }
        for number in MESSAGES..2 * MESSAGES {
            again("try_send", || edge.try_send(&message(number)));
        }
        for number in 2 * MESSAGES..3 * MESSAGES {
            again("try_send_more", || edge.try_send_more(&message(number)));
        }
        for number in 3 * MESSAGES..4 * MESSAGES {
            let bytes = Bytes::from(message(number));
            again("post_bytes", || {
                edge.post_bytes(Operation::Message, bytes.clone(), number)
            });
        }
        let done = completions(queue, MESSAGES);
        assert!(done.keys().copied().eq(3 * MESSAGES..4 * MESSAGES));
        receiver.join().expect("no panic");
        edge.flush(PATIENCE).expect("acknowledged");
        assert!(matches!(to.try_receive(), Ok(None)), "a message twice");
    });
}

/// Puts, gets and atomic operations, posted and by calls that wait.
fn memory(cluster: &Cluster) {
    let Cluster {
        edge,
        queue,
        region,
        ..
    } = cluster;
    let (key, word) = (region.key(), 2 * PIECE as u64 * PIECES);
    for piece in 0..PIECES {
        let bytes = Bytes::from(pattern(PIECE, piece));
        let put = Operation::Put {
            key,
            offset: PIECE as u64 * piece,
            notice: None,
        };
        again("post a put", || edge.post_bytes(put, bytes.clone(), piece));
    }
    assert_eq!(completions(queue, PIECES).len() as u64, PIECES);
    for piece in PIECES..2 * PIECES {
        let offset = PIECE as u64 * piece;
        let bytes = pattern(PIECE, piece);
        match piece % 2 {
            0 => again("try_put", || edge.try_put(key, offset, &bytes, None)),
            _ => (edge.put_timeout(key, offset, &bytes, None, PATIENCE)).expect("put"),
        }
    }
    edge.flush(PATIENCE).expect("in place");
    let into: Vec<RegionMemory> = (0..2 * PIECES)
        .map(|_| RegionMemory::new(PIECE).expect("memory"))
        .collect();
    for (piece, into) in (0..).zip(&into) {
        let offset = PIECE as u64 * piece;
        again("post a get", || {
            edge.post_get(key, offset, into.clone(), piece)
        });
    }
    assert_eq!(completions(queue, 2 * PIECES).len() as u64, 2 * PIECES);
    for (piece, into) in (0..).zip(&into) {
        let mut bytes = vec![0; PIECE];
        into.read(0, &mut bytes).expect("inside");
        assert!(bytes == pattern(PIECE, piece), "piece {piece} is wrong");
    }
    let add = Operation::FetchAdd {
        key,
        offset: word,
        value: 3,
    };
    for number in 0..ADDITIONS {
        again("post an addition", || edge.post(add, &[], number));
    }
    let before = completions(queue, ADDITIONS);
    let expected = (0..ADDITIONS).map(|number| (number, 3 * number));
    assert!(before.into_iter().eq(expected), "in order, each once");
    let before = edge.fetch_add(key, word, 1, PATIENCE).expect("added");
    assert_eq!(before, 3 * ADDITIONS);
    let swapped = edge.compare_swap(key, word, before + 1, 7, PATIENCE);
    assert_eq!(swapped.expect("swapped"), before + 1);
}

/// Requests to a port, each of which gets one reply.
fn replies(cluster: &Cluster) {
    let Cluster { to_port, from, .. } = cluster;
    thread::scope(|scope| {
        let replies = scope.spawn(|| {
            for number in 0..MESSAGES {
                let reply = from.receive_timeout(PATIENCE);
                let reply = reply.unwrap_or_else(|error| panic!("reply {number}: {error}"));
                assert!(*reply == *message(number), "reply {number} is wrong");
            }
        });
        for number in 0..MESSAGES {
            again("request", || to_port.try_send(&message(number)));
        }
        replies.join().expect("no panic");
    });
    to_port.flush(PATIENCE).expect("acknowledged");
    assert!(matches!(from.try_receive(), Ok(None)), "a reply twice");
}

/// Runs everything under a plan; returns the number of shortages.
fn run(links: Links, plan: &str) -> u64 {
    println!("{links:?}, DIPOLE_FAULT={plan}");
    let plan: FaultPlan = plan.parse().expect("a plan");
    let cluster = cluster(links, &plan);
    cluster.edge.wait_open(PATIENCE).expect("it opens");
    messages(&cluster);
    memory(&cluster);
    replies(&cluster);
    let count = |node: &Node| {
        let stats = node.stats();
        stats.shortages.unwrap_or(0) + stats.faults.map_or(0, |faults| faults.refused)
    };
    cluster.nodes.iter().map(count).sum()
}

fn first_seed() -> u64 {
    let chosen = std::env::var("DIPOLE_SEED").ok();
    chosen.map_or(1, |text| text.parse().expect("DIPOLE_SEED is a number"))
}

#[test]
fn each_resource_in_turn_may_be_short_in_most_attempts() {
    let seed = first_seed();
    let over = [
        ("credit", &[Links::Shm, Links::Udp][..]),
        ("frames", &[Links::Udp]),
        ("rings", &[Links::Shm]),
        ("posts", &[Links::Shm, Links::Udp]),
        ("link", &[Links::Udp]),
    ];
    for (resource, links) in over {
        for links in links {
            let shortages = run(*links, &format!("{resource}=0.7,seed={seed}"));
            assert!(shortages > 100, "{resource}, {links:?}: {shortages}");
        }
    }
}

#[test]
fn all_resources_may_be_short_at_random() {
    for seed in first_seed()..first_seed() + SEEDS {
        let all = "credit=0.2,frames=0.2,rings=0.2,posts=0.2";
        run(Links::Shm, &format!("{all},seed={seed}"));
        run(Links::Udp, &format!("{all},link=0.2,drop=0.01,seed={seed}"));
    }
}
