//! Results of `drain` when receivers have left.

use std::time::Duration;

use dipole_node::{Address, Config, EndpointId, Links, Node, NodeId};

const PATIENCE: Duration = Duration::from_secs(30);

/// Receivers take messages and leave; others meet the sender, which then drains.
#[test]
fn messages_that_were_taken_are_not_reported_lost_whoever_came_since() {
    for links in [Links::Shm, Links::Udp] {
        let folder = tempfile::tempdir().unwrap();
        let open = || {
            let config = Config {
                links,
                ..Config::local(NodeId(1), folder.path().to_owned())
            };
            Node::open(config).unwrap()
        };
        let sender = open();
        let outbox = sender.endpoint(EndpointId(9)).unwrap();
        let _descriptor = outbox.export().unwrap();
        for round in 0..3 {
            let receiver = open();
            let inbox = receiver.endpoint(EndpointId(7)).unwrap();
            // Its progress thread answers while it makes no call.
            let _descriptor = inbox.export().unwrap();
            outbox.target(inbox.address()).unwrap();
            for at in 0..20 {
                outbox.send(&[at]).unwrap();
            }
            for at in 0..20 {
                assert_eq!(&*inbox.receive_timeout(PATIENCE).unwrap(), [at]);
            }
            drop(inbox);
            receiver.close(PATIENCE).unwrap();
            // The sender notices the departure, and others take its place in the table.
            while sender.take_departures().is_empty() {
                let _ = outbox.receive_timeout(Duration::from_millis(5));
            }
            for _ in 0..3 {
                let third = open();
                let endpoint = third.endpoint(EndpointId(77)).unwrap();
                endpoint
                    .send_to_timeout(Address::new(1, 9), b"third", PATIENCE)
                    .unwrap();
                assert_eq!(&*outbox.receive_timeout(PATIENCE).unwrap(), b"third");
                drop(endpoint);
                third.close(PATIENCE).unwrap();
            }
            let drained = outbox.drain(PATIENCE);
            assert!(drained.is_ok(), "{links:?}, round {round}: {drained:?}");
            outbox.untarget(Address::new(1, 7));
        }
    }
}
