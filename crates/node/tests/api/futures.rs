//! The asynchronous API, with an executor of twenty lines.

use std::future::Future;
use std::io::IoSlice;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use dipole_node::{
    Address, Completion, Config, EndpointId, Links, Node, NodeId, Operation, ReceiveError,
    SendError,
};

const PATIENCE: Duration = Duration::from_secs(60);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn node(directory: &tempfile::TempDir, links: Links) -> Node {
    let config = Config::local(NodeId(1), directory.path().join("dipole"));
    Node::open(Config { links, ..config }).expect("a node on loopback")
}

#[test]
fn messages_wake_the_task_that_waits_for_them() {
    const MESSAGES: u32 = 200;
    for links in [Links::Shm, Links::Udp] {
        let directory = tempfile::tempdir().expect("a directory");
        let (here, there) = (node(&directory, links), node(&directory, links));
        let inbox = here.endpoint(EndpointId(7)).expect("free");
        let outbox = there.endpoint(EndpointId(8)).expect("free");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                outbox.target(Address::new(1, 7)).expect("it answers");
                for number in 0..MESSAGES {
                    outbox.send(&number.to_le_bytes()).expect("it reads");
                }
                outbox.drain(PATIENCE).expect("acknowledged");
            });
            block_on(async {
                for number in 0..MESSAGES {
                    let message = inbox.receive_async().await.expect("it comes");
                    assert_eq!(&*message, number.to_le_bytes());
                }
            });
        });
    }
}

#[test]
fn a_sending_task_waits_for_room_and_a_queue_wakes_it_for_posted_messages() {
    const MESSAGES: u32 = 300;
    const BYTES: usize = 20_000;
    for links in [Links::Shm, Links::Udp] {
        let directory = tempfile::tempdir().expect("a directory");
        let (here, there) = (node(&directory, links), node(&directory, links));
        let inbox = here.endpoint(EndpointId(7)).expect("free");
        let outbox = there.endpoint(EndpointId(8)).expect("free");
        // It is still connecting when the first message is sent.
        let edge = outbox.edge(Address::new(1, 7)).expect("usable");
        let queue = there.completion_queue();
        edge.attach(&queue);
        std::thread::scope(|scope| {
            let inbox = &inbox;
            scope.spawn(move || {
                // Send far more than the receiver's credit, so that the sender has to wait.
                for number in 0..MESSAGES {
                    let message = inbox.receive_timeout(PATIENCE).expect("it comes");
                    assert_eq!(message[..4], number.to_le_bytes());
                    assert_eq!(message.len(), BYTES);
                }
                let last = inbox.receive_timeout(PATIENCE).expect("it comes");
                assert_eq!(&*last, b"posted");
            });
            block_on(async {
                let mut message = vec![0; BYTES];
                for number in 0..MESSAGES {
                    message[..4].copy_from_slice(&number.to_le_bytes());
                    edge.send_async(&message).await.expect("it is taken");
                }
                edge.post(Operation::Message, &[IoSlice::new(b"posted")], 42)
                    .expect("room");
                let done = queue.next_async().await.expect("it is done");
                assert!(matches!(done, Completion::Sent { context: 42 }), "{done:?}");
            });
        });
        // There is no peer to acknowledge the end of the edge.
        drop((inbox, here));
    }
}

#[test]
fn a_task_that_sends_to_a_missing_endpoint_gets_an_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = Config::local(NodeId(1), directory.path().join("dipole"));
    let node = Node::open(Config {
        connect_timeout: Duration::from_millis(50),
        ..config
    });
    let node = node.expect("a node on loopback");
    let outbox = node.endpoint(EndpointId(8)).expect("free");
    let edge = outbox.edge(Address::new(1, 99)).expect("usable");
    let sent = block_on(edge.send_async(b"respond?"));
    assert!(
        matches!(sent, Err(SendError::Unreachable { .. })),
        "{sent:?}"
    );
}

#[test]
fn ending_an_endpoint_ends_the_future_that_waits_for_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let node = node(&directory, Links::Shm);
    let inbox = node.endpoint(EndpointId(7)).expect("free");
    std::thread::scope(|scope| {
        scope.spawn(|| inbox.end());
        let ended = block_on(inbox.receive_async());
        assert!(matches!(ended, Err(ReceiveError::Ended)), "{ended:?}");
    });
}
