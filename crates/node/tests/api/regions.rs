//! Regions through the public API: put, get, atomic updates, notices, refusals.

use std::io::IoSlice;
use std::time::Duration;

use dipole_node::{
    Address, Completion, CompletionQueue, Config, Edge, Endpoint, EndpointId, Links, Node, NodeId,
    Operation, Outcome, Region, RegionKey, RegionMemory, Rights, SendError,
};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
const BOTH: [Links; 2] = [Links::Shm, Links::Udp];
const BYTES: usize = 3 << 20;

/// An endpoint with a region, and an edge to it from another process.
struct Pair {
    owner: Endpoint,
    region: Region,
    edge: Edge,
    initiator: Endpoint,
    asking: Node,
    _owning: Node,
    _directory: TempDir,
}

fn pair(links: Links, rights: Rights) -> Pair {
    let directory = tempfile::tempdir().expect("a directory");
    let open = || {
        let config = Config::local(NodeId(1), directory.path().join("dipole"));
        Node::open(Config { links, ..config }).expect("a node on loopback")
    };
    let (owning, asking) = (open(), open());
    let owner = owning.endpoint(EndpointId(1)).expect("free");
    let initiator = asking.endpoint(EndpointId(2)).expect("free");
    let memory = RegionMemory::new(BYTES).expect("memory");
    let region = owner.open_region(memory, rights).expect("open");
    let edge = initiator.edge(Address::new(1, 1)).expect("usable");
    Pair {
        owner,
        region,
        edge,
        initiator,
        asking,
        _owning: owning,
        _directory: directory,
    }
}

fn pattern(length: usize, salt: usize) -> Vec<u8> {
    let byte = |at: usize| u8::try_from((at * 7 + at / 256 + salt) % 256).expect("a byte");
    (0..length).map(byte).collect()
}

fn contents(region: &Region, offset: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    region.memory().read(offset, &mut bytes).expect("inside");
    bytes
}

fn refusal<T: std::fmt::Debug>(result: Result<T, SendError>) -> Outcome {
    match result.expect_err("refused") {
        SendError::OperationFailed { outcome, .. } => outcome,
        other => panic!("{other}"),
    }
}

fn completion(queue: &CompletionQueue) -> Completion {
    let completion = queue.wait(PATIENCE).expect("a working link");
    completion.expect("a completion in time")
}

const LENGTHS: [usize; 12] = [
    0,
    1,
    8,
    100,
    1400,
    1500,
    4096,
    16_384,
    16_385,
    100_000,
    1 << 20,
    BYTES - 64,
];

#[test]
fn put_bytes_are_in_place_and_can_be_read_back() {
    for links in BOTH {
        let pair = pair(links, Rights::ALL);
        for (salt, length) in LENGTHS.into_iter().enumerate() {
            let (data, offset) = (pattern(length, salt), salt as u64);
            let key = pair.region.key();
            pair.edge.put(key, offset, &data).expect("on its way");
            pair.edge.flush(PATIENCE).expect("there");
            assert!(contents(&pair.region, salt, length) == data, "{length}");
            let mut got = vec![0; length];
            pair.edge.get(key, offset, &mut got, PATIENCE).expect("got");
            assert!(got == data, "{length} over {links:?}");
        }
    }
}

#[test]
fn a_get_sees_earlier_puts_on_its_edge() {
    for links in BOTH {
        let pair = pair(links, Rights::ALL);
        let key = pair.region.key();
        for round in 0..200 {
            let length = LENGTHS[round % LENGTHS.len()].min(200_000);
            let data = pattern(length, round);
            pair.edge.put(key, 0, &data).expect("on its way");
            let mut got = vec![0; length];
            pair.edge.get(key, 0, &mut got, PATIENCE).expect("got");
            assert!(got == data, "round {round}");
        }
    }
}

#[test]
fn a_notice_arrives_after_its_data_and_earlier_messages() {
    for links in BOTH {
        let pair = pair(links, Rights::ALL);
        let key = pair.region.key();
        for (round, length) in LENGTHS.into_iter().enumerate() {
            let (data, value) = (pattern(length, round), round as u64);
            pair.edge.send(b"before").expect("sent");
            pair.edge
                .put_notify(key, 64, &data, value)
                .expect("on its way");
            pair.edge.send(b"behind").expect("sent");
            let before = pair.owner.receive_timeout(PATIENCE).expect("it comes");
            assert_eq!((&*before, before.notice()), (&b"before"[..], None));
            let told = pair.owner.receive_timeout(PATIENCE).expect("it comes");
            assert_eq!((told.len(), told.source()), (0, Address::new(1, 2)));
            let notice = told.notice().expect("a notice");
            assert_eq!((notice.key, notice.value), (key, value));
            assert_eq!((notice.offset, notice.length), (64, length as u64));
            assert!(contents(&pair.region, 64, length) == data, "{length}");
            let behind = pair.owner.receive_timeout(PATIENCE).expect("it comes");
            assert_eq!(&*behind, b"behind");
        }
    }
}

#[test]
fn words_are_changed_exactly_once_per_operation() {
    for links in BOTH {
        let pair = pair(links, Rights::ALL);
        let key = pair.region.key();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let edge = pair.initiator.edge(Address::new(1, 1)).expect("usable");
                    for _ in 0..500 {
                        edge.fetch_add(key, 8, 3, PATIENCE).expect("done");
                    }
                });
            }
        });
        assert_eq!(pair.region.memory().load(8).expect("a word"), 6000);
        let swap = |expected, new| {
            let swapped = pair.edge.compare_swap(key, 8, expected, new, PATIENCE);
            swapped.expect("done")
        };
        assert_eq!(swap(5, 7), 6000);
        assert_eq!(swap(6000, 7), 6000);
        assert_eq!(swap(7, 9), 7);
        assert_eq!(pair.region.memory().load(8).expect("a word"), 9);
    }
}

#[test]
fn forbidden_operations_change_nothing_and_are_reported() {
    let rights = |put, get, update| Rights { put, get, update };
    for links in BOTH {
        let pair = pair(links, rights(true, false, false));
        let (key, mut got) = (pair.region.key(), [0; 8]);
        let get = |got: &mut [u8]| pair.edge.get(key, 0, got, PATIENCE);
        assert_eq!(refusal(get(&mut got)), Outcome::NotAllowed);
        let add = pair.edge.fetch_add(key, 0, 1, PATIENCE);
        assert_eq!(refusal(add), Outcome::NotAllowed);
        for length in [8, 100_000] {
            let data = vec![1; length];
            let beyond = (BYTES - length + 1) as u64;
            for (key, offset, outcome) in [
                (key, beyond, Outcome::OutOfBounds),
                (key, u64::MAX, Outcome::OutOfBounds),
                (RegionKey(key.0 ^ 1), 0, Outcome::NoRegion),
            ] {
                pair.edge.put(key, offset, &data).expect("on its way");
                assert_eq!(refusal(pair.edge.flush(PATIENCE)), outcome, "{length}");
                pair.edge.flush(PATIENCE).expect("told once");
            }
        }
        assert!(
            contents(&pair.region, 0, BYTES)
                .iter()
                .all(|byte| *byte == 0)
        );
        let other = pair.owner.open_region(
            RegionMemory::new(4096).expect("memory"),
            rights(false, true, true),
        );
        let other = other.expect("open");
        pair.edge.put(other.key(), 0, b"x").expect("on its way");
        assert_eq!(refusal(pair.edge.flush(PATIENCE)), Outcome::NotAllowed);
        let torn = pair.edge.fetch_add(other.key(), 4, 1, PATIENCE);
        assert_eq!(refusal(torn), Outcome::Misaligned);
        let beyond = pair.edge.fetch_add(other.key(), 4096, 1, PATIENCE);
        assert_eq!(refusal(beyond), Outcome::OutOfBounds);
        let mut all = vec![0; 4097];
        let long = pair.edge.get(other.key(), 0, &mut all, PATIENCE);
        assert_eq!(refusal(long), Outcome::OutOfBounds);
    }
}

#[test]
fn a_region_is_reachable_over_edges_to_its_endpoint() {
    for links in BOTH {
        let pair = pair(links, Rights::ALL);
        let second = pair._owning.endpoint(EndpointId(3)).expect("free");
        let edge = pair.initiator.edge(second.address()).expect("usable");
        let asked = edge.fetch_add(pair.region.key(), 0, 1, PATIENCE);
        assert_eq!(refusal(asked), Outcome::NoRegion);
    }
}

#[test]
fn closed_regions_and_those_of_closed_endpoints_are_unreachable() {
    for links in BOTH {
        let pair = pair(links, Rights::ALL);
        let key = pair.region.key();
        pair.edge.fetch_add(key, 0, 1, PATIENCE).expect("done");
        let memory = pair.region.close();
        let add = pair.edge.fetch_add(key, 0, 1, PATIENCE);
        assert_eq!(refusal(add), Outcome::NoRegion);
        assert_eq!(memory.load(0).expect("a word"), 1);
        let again = pair.owner.open_region(memory, Rights::ALL).expect("open");
        let key = again.key();
        pair.edge.fetch_add(key, 0, 1, PATIENCE).expect("done");
        pair.owner.end();
        let add = pair.edge.fetch_add(key, 0, 1, PATIENCE);
        assert_eq!(refusal(add), Outcome::NoRegion);
        pair.edge.put(key, 0, &[1; 100_000]).expect("on its way");
        assert_eq!(refusal(pair.edge.flush(PATIENCE)), Outcome::NoRegion);
    }
}

#[test]
fn posted_operations_complete_with_their_results() {
    for links in BOTH {
        let pair = pair(links, Rights::ALL);
        let (key, queue) = (pair.region.key(), pair.asking.completion_queue());
        pair.edge.attach(&queue);
        let data = pattern(50_000, 1);
        let post = |operation, bytes: &[u8], context| {
            let posted = pair.edge.post(operation, &[IoSlice::new(bytes)], context);
            posted.expect("posted");
        };
        let (offset, notice) = (64, None);
        post(
            Operation::Put {
                key,
                offset,
                notice,
            },
            &data,
            1,
        );
        let length = data.len();
        post(
            Operation::Get {
                key,
                offset,
                length,
            },
            &[],
            2,
        );
        let value = 5;
        post(
            Operation::FetchAdd {
                key,
                offset: 0,
                value,
            },
            &[],
            3,
        );
        let (expected, new) = (5, 6);
        post(
            Operation::CompareSwap {
                key,
                offset: 0,
                expected,
                new,
            },
            &[],
            4,
        );
        let beyond = Operation::Get {
            key,
            offset: BYTES as u64,
            length: 1,
        };
        post(beyond, &[], 5);
        let mut seen = Vec::new();
        for _ in 0..5 {
            match completion(&queue) {
                Completion::Done {
                    context,
                    value,
                    data: got,
                } => {
                    assert!(got.is_empty() || *got == data[..]);
                    assert_eq!(got.len(), if context == 2 { length } else { 0 });
                    seen.push((context, value));
                }
                Completion::Failed { context, error } => {
                    assert_eq!(refusal::<()>(Err(error)), Outcome::OutOfBounds);
                    seen.push((context, 99));
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(seen, [(1, 0), (2, 0), (3, 0), (4, 5), (5, 99)]);
        assert_eq!(pair.region.memory().load(0).expect("a word"), 6);
    }
}

#[test]
fn many_operations_of_all_kinds_run_concurrently() {
    for links in BOTH {
        let pair = pair(links, Rights::ALL);
        let (key, queue) = (pair.region.key(), pair.asking.completion_queue());
        pair.edge.attach(&queue);
        let (mut posted, mut done) = (0_u64, 0);
        while done < 5000 {
            let offset = (posted % 4) * 65_536;
            let operation = match posted % 3 {
                0 => Operation::Put {
                    key,
                    offset: offset + 8,
                    notice: None,
                },
                1 => Operation::Get {
                    key,
                    offset: offset + 8,
                    length: usize::try_from(posted % 60_000).expect("short"),
                },
                _ => Operation::FetchAdd {
                    key,
                    offset,
                    value: 1,
                },
            };
            let bytes = vec![7; usize::try_from(posted * 37 % 60_000).expect("short")];
            let bytes = if posted % 3 == 0 { &bytes[..] } else { &[] };
            if posted < 5000
                && pair
                    .edge
                    .post(operation, &[IoSlice::new(bytes)], posted)
                    .is_ok()
            {
                posted += 1;
                continue;
            }
            match completion(&queue) {
                Completion::Done { context, .. } => assert_eq!(context, done, "in order"),
                other => panic!("{other:?}"),
            }
            done += 1;
        }
        let word = |at: usize| pair.region.memory().load(at * 65_536).expect("a word");
        assert_eq!((0..4).map(word).sum::<u64>(), 1666);
    }
}

#[test]
fn an_operation_without_an_answer_times_out() {
    for links in BOTH {
        let pair = pair(links, Rights::ALL);
        let key = pair.region.key();
        pair.edge.fetch_add(key, 0, 1, PATIENCE).expect("done");
        let Pair {
            owner,
            region,
            edge,
            _owning: owning,
            initiator: _initiator,
            asking: _asking,
            _directory,
        } = pair;
        drop((owner, region));
        drop(owning);
        let error = edge
            .fetch_add(key, 0, 1, Duration::from_secs(20))
            .expect_err("no such endpoint");
        assert!(matches!(error, SendError::PeerGone { .. }), "{error}");
    }
}

#[test]
fn small_operations_allocate_nothing() {
    // In shared memory a wait checks for connections now and then, which allocates.
    let pair = pair(Links::Udp, Rights::ALL);
    let key = pair.region.key();
    let mut got = [0; 64];
    let mut round = || {
        pair.edge.put(key, 64, &[1; 64]).expect("on its way");
        pair.edge.get(key, 64, &mut got, PATIENCE).expect("got");
        pair.edge.fetch_add(key, 0, 1, PATIENCE).expect("done");
    };
    for _ in 0..2000 {
        round();
    }
    let counted = allocation_counter::measure(|| {
        for _ in 0..500 {
            round();
        }
    });
    // Lists grow a few times if the thread sleeps more often than before, or several events coincide.
    assert!(counted.count_total <= 10, "{counted:?}");
}
