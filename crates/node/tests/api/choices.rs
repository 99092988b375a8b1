//! Choices that a node derives from the profiles of its links.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use dipole_engine::AnyLink;
use dipole_engine::{Destination, Engine};
use dipole_link::sim::{Network, NetworkConfig};
use dipole_model::{Choices, Profile};
use dipole_node::{Address, Config, Endpoint, EndpointId, Links, Node, NodeId, ProtocolConfig};
use dipole_proto::Instant;

const PATIENCE: Duration = Duration::from_secs(60);

fn save(directory: &Path, choices: Choices) {
    let mut profile = Profile::new("shm");
    profile.choices = Some(choices);
    profile.save_to(directory).expect("it can be written");
}

/// Two nodes with profiles from a directory, and an endpoint of the first with a target in the second.
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
    /// The number of records that a message of this length takes; checks that it arrives intact.
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
fn a_profile_changes_the_length_up_to_which_messages_are_one_record() {
    let directory = tempfile::tempdir().expect("a directory");
    let profiles = directory.path().join("profiles");
    // Without a profile, messages of up to 16 KiB are one record.
    let usual = pair(&directory.path().join("usual"), Some(&profiles));
    assert_eq!(usual.records(6000), 1);
    assert!(usual.records(20_000) > 1);
    let shorter = Choices {
        eager_bytes: Some(4096),
        piece_bytes: Some(2048),
        ..Choices::default()
    };
    save(&profiles, shorter);
    let chosen = pair(&directory.path().join("shorter"), Some(&profiles));
    assert_eq!(chosen.records(4096), 1);
    // The announcement and three pieces.
    assert_eq!(chosen.records(6000), 4);
    let longer = Choices {
        eager_bytes: Some(31 << 10),
        ..Choices::default()
    };
    save(&profiles, longer);
    for bytes in [20_000, 31 << 10] {
        // A new pair each time, because credit requests are records, too.
        let folder = directory.path().join(format!("longer-{bytes}"));
        assert_eq!(pair(&folder, Some(&profiles)).records(bytes), 1);
    }
    // A node without a profile directory reads no profiles.
    let told_none = pair(&directory.path().join("none"), None);
    assert!(told_none.records(20_000) > 1);
}

#[test]
fn a_node_knows_the_settings_of_its_links() {
    let directory = tempfile::tempdir().expect("a directory");
    let profiles = directory.path().join("profiles");
    let mut profile = Profile::new("shm");
    profile.choices = Some(Choices {
        whole_bytes: Some(20_000),
        ..Choices::default()
    });
    profile.save_to(&profiles).expect("it can be written");
    let measured = pair(&directory.path().join("measured"), Some(&profiles));
    assert_eq!(measured.left.choices(true).whole_bytes(true), 20_000);
    assert_eq!(measured.left.choices(false), Choices::default());
}

#[test]
fn an_implausible_profile_does_not_exceed_the_limits() {
    let directory = tempfile::tempdir().expect("a directory");
    let profiles = directory.path().join("profiles");
    let senseless = Choices {
        eager_bytes: Some(usize::MAX),
        piece_bytes: Some(0),
        run_packets: Some(0),
        whole_bytes: Some(0),
        socket_bytes: Some(0),
    };
    save(&profiles, senseless);
    let chosen = pair(&directory.path().join("senseless"), Some(&profiles));
    assert_eq!(chosen.records(31 << 10), 1);
    // A message beyond an edge's initial credit is never one record.
    assert!(chosen.records(60_000) > 1);
    // The file is not even JSON: the defaults apply.
    std::fs::write(profiles.join("shm.json"), "whole").expect("it can be written");
    let usual = pair(&directory.path().join("broken"), Some(&profiles));
    assert_eq!(usual.records(6000), 1);
    assert!(usual.records(20_000) > 1);
}

/// Numbers of packets of a message that arrive at the small and the bulk port.
fn at_ports(choices: Choices, bytes: usize) -> [usize; 2] {
    let network = Network::new(1, NetworkConfig::default());
    let address = |host: u8, port: u16| SocketAddr::from(([10, 0, 0, host], port));
    let mut engines = [1_u8, 2].map(|host| {
        let port = network.attach(address(host, 1), address(host, 2));
        let link = AnyLink::Sim(port.expect("a free address"));
        let life = u64::from(host);
        Engine::new(link, ProtocolConfig::default(), life, [life, 7], None)
    });
    engines[0].apply_profile(Choices::default(), choices);
    engines[1].open_endpoint(7);
    let mut now = Instant(1);
    let destination = Destination {
        small: address(2, 1),
        incarnation: 0,
    };
    let peer = engines[0].connect(now, destination).expect("room");
    let settle = |now: &mut Instant, engines: &mut [Engine]| {
        for _ in 0..200 {
            for engine in &mut *engines {
                engine.step(*now, true).expect("a working link");
            }
            *now = now.after(20_000);
            network.advance(now.0);
        }
    };
    settle(&mut now, &mut engines);
    let edge = engines[0].edge(peer, 1, 7).expect("open");
    let message = vec![1; bytes];
    let mut send = engines[0]
        .begin_long(now, edge, &message[..], false)
        .expect("frames and credit");
    assert!(
        engines[0]
            .continue_long(&mut send, &message)
            .expect("a peer")
    );
    engines[0].flush(peer);
    engines[0].transmit(now).expect("a working link");
    // Long enough for packets to cross; without clock readings nothing is retransmitted.
    now = now.after(10_000_000);
    network.advance(now.0);
    [1, 2].map(|port| network.waiting(address(2, port)))
}

#[test]
fn a_message_of_more_packets_than_a_run_uses_the_bulk_port() {
    let most = |run_packets| Choices {
        run_packets,
        ..Choices::default()
    };
    let [small, bulk] = at_ports(most(None), 4000);
    assert!(
        small > 1 && bulk == 0,
        "{small} and {bulk}: the link joins four"
    );
    assert_eq!(
        at_ports(most(Some(100)), 4000),
        [small, 0],
        "no more than the link joins"
    );
    for run in [0, 1] {
        assert_eq!(at_ports(most(Some(run)), 4000), [0, small], "{run}");
    }
}
