//! Descriptors that are short for a moment while a directory starts.

#![allow(missing_docs, reason = "tests")]

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use dipole_naming::address::NodeId;
use dipole_naming::registry::{Directory, ProbeLength, ProbeResult, Prober, Registry};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const PATIENCE: Duration = Duration::from_secs(30);

/// The limit is of the whole process, so this is the only test in this file.
#[test]
fn a_directory_that_lacked_descriptors_at_its_start_answers_afterwards() {
    let limit = getrlimit(Resource::Nofile);
    let mut started = 0;
    for free in 0..8 {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::open(folder.path(), NodeId(2)).unwrap();
        let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr();
        let at = SocketAddr::from(([127, 0, 0, 1], port.unwrap().port()));
        let prober = Prober::open(None, at, NodeId(2), None).unwrap();
        let used = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64 - 1;
        let low = Rlimit {
            current: Some(used + free),
            ..limit
        };
        setrlimit(Resource::Nofile, low).unwrap();
        let directory = Directory::start(&registry, vec![at]);
        std::thread::sleep(Duration::from_millis(100));
        setrlimit(Resource::Nofile, limit).unwrap();
        let Ok(directory) = directory else {
            continue;
        };
        started += 1;
        let begun = Instant::now();
        while !matches!(
            prober.probe(ProbeLength::SHORTEST, Duration::from_millis(50)),
            ProbeResult::Answered(..)
        ) {
            assert!(begun.elapsed() < PATIENCE, "{free} descriptors were free");
        }
        drop(directory);
    }
    assert!(started >= 4, "{started}");
}
