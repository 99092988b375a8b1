//! Which threads a process has besides its own. Alone in its binary: threads are counted.

#![allow(missing_docs, reason = "tests")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dipole_node::{Address, Config, EndpointId, Node, NodeId};

fn has_progress_thread() -> bool {
    let threads = std::fs::read_dir("/proc/self/task").expect("procfs");
    let names = threads.map(|thread| {
        let path = thread.expect("procfs").path().join("comm");
        std::fs::read_to_string(path).unwrap_or_default()
    });
    names
        .into_iter()
        .any(|name| name.trim() == "dipole-progress")
}

/// A progress thread would compete for the lock with threads that step the engine themselves.
#[test]
fn who_only_targets_sends_and_receives_has_no_progress_thread() {
    let folder = tempfile::tempdir().expect("a directory");
    let open = || Node::open(Config::local(NodeId(1), folder.path().to_owned())).expect("a node");
    let (one, other) = (open(), open());
    let sender = one.endpoint(EndpointId(1)).expect("a free number");
    let receiver = other.endpoint(EndpointId(2)).expect("a free number");
    let to = Address {
        node: NodeId(1),
        endpoint: EndpointId(2),
    };
    let targeted = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !targeted.load(Ordering::Relaxed) {
                let _ = receiver.receive_timeout(Duration::from_millis(1));
            }
        });
        sender.target(to).expect("it is open");
        targeted.store(true, Ordering::Relaxed);
    });
    sender.send(b"hello").expect("a reader");
    assert_eq!(&*receiver.receive().expect("a message"), b"hello");
    assert!(!has_progress_thread());
    let edge = sender.edge(Address {
        endpoint: EndpointId(3),
        ..to
    });
    // An edge connects behind its owner. A thread names itself when it first runs.
    while !has_progress_thread() {
        std::thread::yield_now();
    }
    drop(edge);
}
