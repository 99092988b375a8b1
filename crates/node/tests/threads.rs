//! Threads that a process has in addition to its own. The only test of its binary, because it
//! counts threads.

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

/// Peers that wait for acknowledgements need the thread. A process that is alone, or only waits,
/// does not.
#[test]
fn the_progress_thread_starts_with_the_first_peer_or_edge() {
    let folder = tempfile::tempdir().expect("a directory");
    let open = || Node::open(Config::local(NodeId(1), folder.path().to_owned())).expect("a node");
    // A thread sets its name when it first runs.
    let wait = || {
        while !has_progress_thread() {
            std::thread::yield_now();
        }
    };
    let to = Address::new(1, 2);
    {
        let alone = open();
        let endpoint = alone.endpoint(EndpointId(3)).expect("a free number");
        assert!(endpoint.receive_timeout(Duration::from_millis(10)).is_err());
        assert!(!has_progress_thread());
        // An edge connects in the background.
        let _edge = endpoint.edge(to).expect("threads are left");
        wait();
    }
    assert!(!has_progress_thread(), "it ends with its node");
    let (one, other) = (open(), open());
    let sender = one.endpoint(EndpointId(1)).expect("a free number");
    let receiver = other.endpoint(EndpointId(2)).expect("a free number");
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
    wait();
}
