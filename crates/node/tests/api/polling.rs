//! Polling for messages without waiting, messages that share packets, and writable descriptors.

use std::io::IoSlice;
use std::time::{Duration, Instant};

use dipole_node::{
    Address, Arriving, ClusterKey, Config, Edge, Endpoint, EndpointId, Links, Message, Node,
    NodeId, Operation, Reader, SendError,
};
use rustix::event::{PollFd, PollFlags, poll};

const PATIENCE: Duration = Duration::from_secs(30);

/// Records arriving messages; short ones are read in place.
#[derive(Default)]
struct Notes {
    came: Vec<(Vec<u8>, Address)>,
    read: usize,
    /// Longest message that is read in place.
    most: usize,
}

impl Reader for Notes {
    fn read(&mut self, source: Address, message: &Arriving<'_>) -> bool {
        let fits = message.len() <= self.most;
        if fits {
            let mut bytes = vec![0; message.len()];
            let half = message.len() / 2;
            let (first, second) = bytes.split_at_mut(half);
            message.copy(0..half, first);
            message.copy(half..message.len(), second);
            self.read += 1;
            self.came.push((bytes, source));
        }
        fits
    }

    fn take(&mut self, message: Message) {
        self.came.push((message.to_vec(), message.source()));
    }
}

impl Notes {
    fn poll_until(&mut self, endpoint: &Endpoint, count: usize) {
        let until = Instant::now() + PATIENCE;
        let mut looks = 0_u32;
        while self.came.len() < count {
            assert!(Instant::now() < until, "{} came", self.came.len());
            let before = self.came.len();
            let told = endpoint.poll(self, looks.is_multiple_of(4)).unwrap();
            assert_eq!(self.came.len() - before, told);
            looks += 1;
            std::thread::yield_now();
        }
    }
}

/// Two nodes with a common key; nodes with the same number use shared memory.
fn nodes(directory: &std::path::Path, numbers: [u32; 2]) -> [Node; 2] {
    let key = ClusterKey::random().unwrap();
    numbers.map(|number| {
        let place = directory.join(format!("node{number}"));
        let mut config = Config::local(NodeId(number), place);
        config.key = (numbers[0] != numbers[1]).then(|| key.clone());
        Node::open(config).unwrap()
    })
}

/// An open edge between endpoints of the two nodes.
fn connected(nodes: &[Node; 2]) -> (Endpoint, Endpoint, Edge) {
    let here = nodes[0].endpoint(EndpointId(10)).unwrap();
    let there = nodes[1].endpoint(EndpointId(20)).unwrap();
    let edge = here.edge_at(there.address(), nodes[1].ports()).unwrap();
    let slices = [IoSlice::new(b"open")];
    edge.post(Operation::Message, &slices, 0).unwrap();
    assert_eq!(&*there.receive_timeout(PATIENCE).unwrap(), b"open");
    (here, there, edge)
}

/// The message number `at`, shorter than 40 bytes.
fn message(at: usize) -> Vec<u8> {
    vec![u8::try_from(at % 251).unwrap(); at * 7 % 40]
}

#[test]
fn messages_in_shared_memory_are_read_in_place_and_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let nodes = nodes(directory.path(), [1, 1]);
    let (_here, there, edge) = connected(&nodes);
    let mut notes = Notes {
        most: 20,
        ..Notes::default()
    };
    for at in 0..200 {
        edge.send(&message(at)).unwrap();
        if at % 50 == 49 {
            notes.poll_until(&there, at + 1);
        }
    }
    for (at, (bytes, source)) in notes.came.iter().enumerate() {
        assert_eq!((bytes, *source), (&message(at), Address::new(1, 10)));
    }
    assert!(notes.read > 0, "none was read where it lay");
    // Their credit has been returned.
    for at in 0..5000 {
        edge.send(&[7; 100]).unwrap();
        if at % 50 == 49 {
            notes.poll_until(&there, 200 + at + 1);
        }
    }
    there.end();
    assert!(there.poll(&mut notes, false).is_err());
}

#[test]
fn batched_messages_share_packets_and_stay_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let nodes = nodes(directory.path(), [1, 2]);
    let (here, there, edge) = connected(&nodes);
    let before = nodes[0].stats().traffic.packets_sent;
    let gathered = 100;
    for at in 0..gathered {
        edge.try_send_more(&message(at)).unwrap();
    }
    here.flush_edges().unwrap();
    let packets = nodes[0].stats().traffic.packets_sent - before;
    assert!(packets < gathered as u64 / 4, "{packets} packets");
    // A message without more to follow also sends those before it.
    edge.try_send_more(&message(gathered)).unwrap();
    edge.send(&message(gathered + 1)).unwrap();
    let mut notes = Notes::default();
    notes.poll_until(&there, gathered + 2);
    for (at, (bytes, source)) in notes.came.iter().enumerate() {
        assert_eq!((bytes, *source), (&message(at), Address::new(1, 10)));
    }
}

#[test]
fn a_batched_message_leaves_without_further_calls() {
    let directory = tempfile::tempdir().unwrap();
    let nodes = nodes(directory.path(), [1, 2]);
    let (_here, there, edge) = connected(&nodes);
    for at in 0..3 {
        edge.try_send_more(&message(at)).unwrap();
        let mut notes = Notes::default();
        notes.poll_until(&there, 1);
        assert_eq!(notes.came[0].0, message(at));
    }
}

#[test]
fn a_descriptor_becomes_writable_when_its_receiver_reads_and_not_before() {
    for links in [Links::Udp, Links::Shm] {
        let directory = tempfile::tempdir().unwrap();
        let [here, there] = [0, 1].map(|_| {
            let mut config = Config::local(NodeId(1), directory.path().to_owned());
            config.links = links;
            let node = Node::open(config).unwrap();
            node.start_progress().unwrap();
            node
        });
        let open = |node: &Node, number| node.endpoint(EndpointId(number)).unwrap();
        let (from, busy) = (open(&here, 1), open(&here, 2));
        let (to, echo) = (open(&there, 3), open(&there, 4));
        from.target(to.address()).unwrap();
        busy.target(echo.address()).unwrap();
        echo.target(busy.address()).unwrap();
        let descriptor = from.export().unwrap();
        let is_writable = |timeout: Duration| {
            let mut polled = [PollFd::new(&descriptor, PollFlags::OUT)];
            poll(&mut polled, Some(&timeout.try_into().unwrap())).unwrap() > 0
        };
        assert!(is_writable(Duration::ZERO));
        let mut sent = 0;
        // The first refusals may be for want of frames.
        while is_writable(Duration::from_millis(100)) {
            match from.try_send(&[7; 1000]) {
                Ok(()) => sent += 1,
                Err(SendError::Full { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        // A shorter message may find enough credit.
        let has_sent = from.try_send(&[7; 10]).is_ok();
        for _ in 0..100 {
            busy.send(b"ping").unwrap();
            echo.receive_timeout(PATIENCE).unwrap();
            echo.send(b"pong").unwrap();
            busy.receive_timeout(PATIENCE).unwrap();
            assert!(
                !is_writable(Duration::ZERO),
                "its receiver has read nothing"
            );
        }
        for _ in 0..sent {
            assert_eq!(*to.receive_timeout(PATIENCE).unwrap(), [7; 1000]);
        }
        if has_sent {
            assert_eq!(*to.receive_timeout(PATIENCE).unwrap(), [7; 10]);
        }
        assert!(is_writable(PATIENCE));
        from.send_timeout(b"more", PATIENCE).unwrap();
    }
}
