//! Look-ups of many endpoints at once, and of nodes that move while a program runs.

#![allow(missing_docs, reason = "tests")]

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use dipole_naming::address::{Address, EndpointId, NodeId};
use dipole_naming::hosts::Hosts;
use dipole_naming::registry::{
    Directory, Found, Ports, Registration, Registry, ResolveError, Search,
};

const PATIENCE: Duration = Duration::from_secs(30);

/// A node on the loopback address whose endpoint 7 is open.
struct Remote {
    port: u16,
    ports: Ports,
    _directory: Directory,
    _claim: dipole_naming::registry::Claim,
    _registration: Registration,
}

fn free_port() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap().port()
}

fn remote(folder: &Path, node: u32, port: u16) -> Remote {
    let registry = Registry::open(folder, NodeId(node)).unwrap();
    let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let ports = Ports {
        small: at(1000 + u16::try_from(node).unwrap()),
        bulk: at(2000),
        incarnation: u64::from(node),
    };
    let registration = registry.register(ports).unwrap();
    let claim = registration.claim(EndpointId(7)).unwrap();
    Remote {
        port,
        ports,
        _directory: Directory::start(&registry, vec![at(port)]).unwrap(),
        _claim: claim,
        _registration: registration,
    }
}

/// Runs the search until there are results; `meanwhile` runs between its steps.
fn run(search: &mut Search, mut meanwhile: impl FnMut()) -> Vec<Found> {
    let started = Instant::now();
    loop {
        let found = search.step();
        if !found.is_empty() {
            return found;
        }
        assert!(started.elapsed() < PATIENCE * 2, "no result");
        meanwhile();
        search.wait(None, Duration::from_millis(20)).unwrap();
    }
}

fn followed(folder: &Path, text: &str) -> Hosts {
    let file = folder.join("hosts");
    std::fs::write(&file, text).unwrap();
    Hosts::load_followed(&file).unwrap()
}

fn rewrite(folder: &Path, text: &str) {
    let new = folder.join("hosts.new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, folder.join("hosts")).unwrap();
}

fn searcher(folder: &Path, hosts: Hosts) -> Search {
    Search::new(Registry::open(folder, NodeId(1)).unwrap(), hosts)
}

#[test]
fn a_node_that_moved_is_found_at_the_address_in_the_file_now() {
    let folder = tempfile::tempdir().unwrap();
    let (old, silent) = (free_port(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let there = remote(folder.path(), 2, free_port());
    // At the old address is nothing, or a program that does not reply.
    for old in [old, silent.local_addr().unwrap().port()] {
        let hosts = followed(folder.path(), &format!("2 127.0.0.1 port={old}\n"));
        let mut search = searcher(folder.path(), hosts);
        search.add(Address::new(2, 7), Instant::now() + PATIENCE);
        let started = Instant::now();
        let mut moved = false;
        let found = run(&mut search, || {
            if !moved && started.elapsed() > Duration::from_millis(700) {
                rewrite(folder.path(), &format!("2 127.0.0.1 port={}\n", there.port));
                moved = true;
            }
        });
        assert!(moved);
        assert_eq!(found[0].1.as_ref().unwrap(), &there.ports);
        // A later look-up begins with the new address.
        search.add(Address::new(2, 7), Instant::now() + PATIENCE);
        assert!(run(&mut search, || {})[0].1.is_ok());
    }
}

#[test]
fn a_node_whose_address_another_node_has_taken_is_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let other = remote(folder.path(), 3, free_port());
    let there = remote(folder.path(), 2, free_port());
    let hosts = followed(folder.path(), &format!("2 127.0.0.1 port={}\n", other.port));
    let mut search = searcher(folder.path(), hosts);
    search.add(Address::new(2, 7), Instant::now() + PATIENCE);
    let started = Instant::now();
    let mut moved = false;
    let found = run(&mut search, || {
        if !moved && started.elapsed() > Duration::from_millis(300) {
            let swapped = format!(
                "2 127.0.0.1 port={}\n3 127.0.0.1 port={}\n",
                there.port, other.port
            );
            rewrite(folder.path(), &swapped);
            moved = true;
        }
    });
    assert_eq!(found[0].1.as_ref().unwrap(), &there.ports);
    // A file that stays wrong is reported before the time is over.
    let wrong = followed(folder.path(), &format!("2 127.0.0.1 port={}\n", other.port));
    let mut search = searcher(folder.path(), wrong);
    search.add(Address::new(2, 7), Instant::now() + PATIENCE * 10);
    let found = run(&mut search, || {});
    let error = found[0].1.as_ref().unwrap_err();
    let is_expected = |answered: &NodeId| *answered == NodeId(3);
    assert!(
        matches!(error, ResolveError::WrongNode { answered, .. } if is_expected(answered)),
        "{error}"
    );
}

#[test]
fn dead_nodes_get_few_queries_and_hold_up_no_other_node() {
    const DEAD: u32 = 300;
    const EDGES: u32 = 1000;
    let folder = tempfile::tempdir().unwrap();
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    silent.set_nonblocking(true).unwrap();
    let there = remote(folder.path(), 2, free_port());
    let mut text = format!("2 127.0.0.1 port={}\n", there.port);
    text += &format!("3 127.0.0.1 port={}\n", silent.local_addr().unwrap().port());
    for node in 0..DEAD {
        text += &format!(
            "{} 127.1.{}.{} port=9\n",
            10 + node,
            node / 200,
            1 + node % 200
        );
    }
    let mut search = searcher(folder.path(), Hosts::parse(&text).unwrap());
    let deadline = Instant::now() + PATIENCE;
    for endpoint in 0..EDGES {
        search.add(Address::new(3, endpoint), deadline);
    }
    for node in 0..DEAD {
        search.add(Address::new(10 + node, 7), deadline);
    }
    let started = Instant::now();
    search.step();
    search.add(Address::new(2, 7), deadline);
    let found = run(&mut search, || {});
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].1.as_ref().unwrap(), &there.ports);
    let mut queries = 0;
    while silent.recv(&mut [0; 200]).is_ok() {
        queries += 1;
    }
    let most = 10 + started.elapsed().as_millis() / 200;
    assert!(queries >= 1 && queries <= most, "{queries} queries");
}

#[test]
fn all_endpoints_of_a_node_are_found_once_it_replies_and_missing_ones_are_named() {
    const ENDPOINTS: u32 = 500;
    let folder = tempfile::tempdir().unwrap();
    let there = remote(folder.path(), 2, free_port());
    let registry = Registry::open(folder.path(), NodeId(2)).unwrap();
    let registration = registry.register(there.ports).unwrap();
    let claims: Vec<_> = (100..100 + ENDPOINTS)
        .map(|endpoint| registration.claim(EndpointId(endpoint)).unwrap())
        .collect();
    let hosts = Hosts::parse(&format!("2 127.0.0.1 port={}\n", there.port)).unwrap();
    let mut search = searcher(folder.path(), hosts);
    for claim in &claims {
        let address = Address::new(2, claim.endpoint().0);
        search.add(address, Instant::now() + PATIENCE);
    }
    let mut found = Vec::new();
    while found.len() < claims.len() {
        found.extend(run(&mut search, || {}));
    }
    assert!(found.iter().all(|(_, ports)| ports.is_ok()));
    assert!(search.is_idle());
    search.add(
        Address::new(2, 8),
        Instant::now() + Duration::from_millis(300),
    );
    let missing = run(&mut search, || {});
    let error = missing[0].1.as_ref().unwrap_err();
    assert!(
        matches!(error, ResolveError::NoSuchEndpoint { .. }),
        "{error}"
    );
}
