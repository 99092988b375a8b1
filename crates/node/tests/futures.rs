//! The asynchronous face, with an executor of twenty lines.

#![allow(missing_docs, reason = "tests")]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use dipole_node::{Address, Config, EndpointId, Links, Node, NodeId, ReceiveError};

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
