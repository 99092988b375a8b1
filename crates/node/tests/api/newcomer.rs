//! A receiver that never has to wait still accepts new peers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dipole_node::{Address, Config, EndpointId, Links, Node, NodeId};

const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn a_flood_from_one_process_does_not_prevent_new_connections() {
    let directory = tempfile::tempdir().expect("a directory");
    let open = || {
        Node::open(Config {
            links: Links::Shm,
            ..Config::local(NodeId(1), directory.path().join("dipole"))
        })
        .expect("a node")
    };
    let inbox = open().endpoint(EndpointId(1)).expect("free");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for id in [2, 4, 5] {
            let (open, over) = (&open, &over);
            scope.spawn(move || {
                let own = open().endpoint(EndpointId(id)).expect("free");
                own.target(Address::new(1, 1)).expect("it exists");
                while !over.load(Ordering::Relaxed) {
                    // Send enough at once that the receiver never runs out of messages.
                    for _ in 0..100 {
                        own.send(&[7; 100]).expect("it receives");
                    }
                }
            });
        }
        let mut seen = std::collections::HashSet::new();
        while seen.len() < 3 {
            seen.insert(inbox.receive_timeout(PATIENCE).expect("a message").source());
        }
        scope.spawn(|| {
            let own = open().endpoint(EndpointId(3)).expect("free");
            own.target(Address::new(1, 1)).expect("it exists");
            own.send(b"here").expect("it receives");
        });
        let begun = Instant::now();
        let met = loop {
            let message = inbox.receive_timeout(PATIENCE).expect("a message");
            let met = message.source() == Address::new(1, 3);
            if met || begun.elapsed() > PATIENCE {
                break met;
            }
            // Simulated work, during which more messages arrive.
            let done = Instant::now();
            while done.elapsed() < Duration::from_micros(20) {
                std::hint::spin_loop();
            }
        };
        eprintln!("met after {:?}", begun.elapsed());
        over.store(true, Ordering::Relaxed);
        while inbox.receive_timeout(Duration::from_millis(100)).is_ok() {}
        assert!(met, "not met for {PATIENCE:?}");
    });
}
