//! What a node chooses by the profiles of its links.

#![allow(missing_docs, reason = "tests")]

use std::path::Path;
use std::time::Duration;

use dipole_node::profile::{self, Choices};
use dipole_node::{Address, Config, Endpoint, EndpointId, Links, Node, NodeId};
use serde::Serialize;

const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Serialize)]
struct Profile {
    version: u32,
    choices: Choices,
}

fn save(directory: &Path, choices: Choices) {
    let version = profile::VERSION;
    let known = Profile { version, choices };
    profile::write(directory, "shm", &known).expect("it can be written");
}

/// Two nodes with profiles in a folder, and endpoints of which the first points at the second.
struct Pair {
    left: Node,
    from: Endpoint,
    to: Endpoint,
}

fn pair(directory: &Path, profiles: Option<&Path>) -> Pair {
    let open = || {
        let config = Config {
            links: Links::Shm,
            profile_dir: profiles.map(Path::to_owned),
            ..Config::local(NodeId(1), directory.join("dipole"))
        };
        Node::open(config).expect("a node in shared memory")
    };
    let (left, right) = (open(), open());
    let from = left.endpoint(EndpointId(1)).expect("a free endpoint");
    let to = right.endpoint(EndpointId(2)).expect("a free endpoint");
    std::thread::scope(|scope| {
        // A peer answers the handshake while it waits for something.
        let answering = scope.spawn(|| to.receive_timeout(PATIENCE));
        from.target(Address::new(1, 2)).expect("it exists");
        from.send(b"hello").expect("it reads");
        answering.join().expect("no panic").expect("in time");
    });
    Pair { left, from, to }
}

impl Pair {
    /// How many records a message of so many bytes takes; it arrives as it was sent.
    fn records(&self, bytes: usize) -> u64 {
        let pushed = || self.left.stats().local.expect("shared memory").records_out;
        let before = pushed();
        let sent: Vec<u8> = (0..bytes)
            .map(|at| u8::try_from(at % 251).unwrap_or(0))
            .collect();
        let got = std::thread::scope(|scope| {
            let receiving = scope.spawn(|| self.to.receive_timeout(PATIENCE));
            self.from.send(&sent).expect("it is taken");
            receiving.join().expect("no panic").expect("in time")
        });
        assert_eq!(&*got, &*sent);
        pushed() - before
    }
}

#[test]
fn a_profile_with_another_crossover_sends_another_way() {
    let directory = tempfile::tempdir().expect("a directory");
    let profiles = directory.path().join("profiles");
    // Nothing was measured: up to 16 KiB a message is one record.
    let usual = pair(&directory.path().join("usual"), Some(&profiles));
    assert_eq!(usual.records(6000), 1);
    assert!(usual.records(20_000) > 1);
    let shorter = Choices {
        whole_bytes: Some(4096),
        piece_bytes: Some(2048),
        ..Choices::default()
    };
    save(&profiles, shorter);
    let chosen = pair(&directory.path().join("shorter"), Some(&profiles));
    assert_eq!(chosen.records(4096), 1);
    // What announces it, and three parts.
    assert_eq!(chosen.records(6000), 4);
    let longer = Choices {
        whole_bytes: Some(31 << 10),
        ..Choices::default()
    };
    save(&profiles, longer);
    let chosen = pair(&directory.path().join("longer"), Some(&profiles));
    assert_eq!(chosen.records(20_000), 1);
    assert_eq!(chosen.records(31 << 10), 1);
    // A node that was told of no profiles reads none.
    let told_none = pair(&directory.path().join("none"), None);
    assert!(told_none.records(20_000) > 1);
}

#[test]
fn a_profile_that_makes_no_sense_changes_nothing_that_must_not_be() {
    let directory = tempfile::tempdir().expect("a directory");
    let profiles = directory.path().join("profiles");
    let senseless = Choices {
        whole_bytes: Some(usize::MAX),
        piece_bytes: Some(0),
        run_packets: Some(0),
    };
    save(&profiles, senseless);
    let chosen = pair(&directory.path().join("senseless"), Some(&profiles));
    assert_eq!(chosen.records(31 << 10), 1);
    // More than an edge may send at first never goes whole.
    assert!(chosen.records(60_000) > 1);
    // Not even JSON: messages go as they are built to.
    std::fs::write(profiles.join("shm.json"), "whole").expect("it can be written");
    let usual = pair(&directory.path().join("broken"), Some(&profiles));
    assert_eq!(usual.records(6000), 1);
    assert!(usual.records(20_000) > 1);
}
