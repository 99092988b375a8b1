//! Tests of the registry with real processes and threads that are killed at any moment.

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::*;
use crate::hosts::Hosts;
use crate::key::KeyMismatch;

const CHILD: &str = "DIPOLE_TEST_CHILD_DIR";
const PATIENCE: Duration = Duration::from_secs(30);

fn ports(incarnation: u64) -> Ports {
    Ports {
        small: "127.0.0.1:1001".parse().unwrap(),
        bulk: "127.0.0.1:1002".parse().unwrap(),
        incarnation,
    }
}

fn registry(folder: &Path) -> Registry {
    Registry::open(folder, NodeId(1)).unwrap()
}

/// The directory of the parent, if a test started this process as its child.
fn as_child() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

/// This test program again, running only the named test; killed when dropped.
struct Process {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Process {
    fn start(test: &str, folder: &Path) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "--test-threads=1"])
            .arg(format!(
                "{}::{test}",
                module_path!().split_once("::").unwrap().1
            ))
            .env(CHILD, folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Process { child, lines }
    }

    /// The rest of the next line that begins with `> `.
    fn says(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.lines.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "the child ended without output");
            // The test runner may have begun the line.
            if let Some((_, line)) = line.split_once("> ") {
                return line.trim_end().to_owned();
            }
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(text: impl std::fmt::Display) {
    println!("> {text}");
}

fn stay() -> ! {
    loop {
        std::thread::park();
    }
}

#[test]
fn a_claim_is_found_with_its_ports_until_it_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(folder.path());
    assert!(registry.lookup(EndpointId(7)).unwrap().is_none());
    let registration = registry.register(ports(5)).unwrap();
    let claim = registration.claim(EndpointId(7)).unwrap();
    let owner = registry.lookup(EndpointId(7)).unwrap().unwrap();
    assert_eq!(owner.ports, ports(5));
    assert_eq!(owner.pid, std::process::id());
    drop(registration);
    assert!(registry.lookup(EndpointId(7)).unwrap().is_some());
    drop(claim);
    assert!(registry.lookup(EndpointId(7)).unwrap().is_none());
    let left: Vec<_> = std::fs::read_dir(registry.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["registry.lock"]);
}

#[test]
fn an_endpoint_is_opened_before_anybody_finds_it_and_only_by_who_gets_it() {
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(folder.path());
    let first = registry.register(ports(1)).unwrap();
    let found = || registry.lookup(EndpointId(7)).unwrap().is_some();
    let mut opened = Vec::new();
    let held = first.claim_and_open(EndpointId(7), || opened.push(found()));
    assert_eq!(opened, [false]);
    assert!(found());
    let second = registry.register(ports(2)).unwrap();
    let refused = second.claim_and_open(EndpointId(7), || opened.push(found()));
    assert!(refused.is_err());
    assert_eq!(opened, [false]);
    drop(held);
}

#[test]
fn opening_a_taken_endpoint_names_its_owner() {
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(folder.path());
    let first = registry.register(ports(1)).unwrap();
    let second = registry.register(ports(2)).unwrap();
    let _held = first.claim(EndpointId(7)).unwrap();
    let error = second.claim(EndpointId(7)).unwrap_err().to_string();
    let expected = format!("endpoint 1:7 is taken by process {}", std::process::id());
    assert!(error.starts_with(&expected), "{error}");
    assert!(second.claim(EndpointId(8)).is_ok());
    let elsewhere = Registry::open(folder.path(), NodeId(2)).unwrap();
    assert!(
        elsewhere
            .register(ports(3))
            .unwrap()
            .claim(EndpointId(7))
            .is_ok()
    );
}

#[test]
fn of_many_threads_exactly_one_gets_the_endpoint_every_time() {
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(folder.path());
    for round in 0..20 {
        let start = Barrier::new(8);
        let claims: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|thread| {
                    let (registry, start) = (registry.clone(), &start);
                    scope.spawn(move || {
                        let registration = registry.register(ports(thread)).unwrap();
                        start.wait();
                        registration.claim(EndpointId(round))
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let winners = claims.iter().filter(|claim| claim.is_ok()).count();
        assert_eq!(winners, 1, "round {round}: {claims:?}");
    }
}

#[test]
fn of_many_processes_exactly_one_takes_over_from_a_killed_owner() {
    const NAME: &str = "of_many_processes_exactly_one_takes_over_from_a_killed_owner";
    if let Some(folder) = as_child() {
        let registration = registry(&folder).register(ports(1)).unwrap();
        say("ready");
        // The parent opens this lock when all are ready, so that they start together.
        let gate = folder::open_lock(&folder.join("gate")).unwrap();
        rustix::fs::flock(&gate, FlockOperation::LockShared).unwrap();
        let claim = registration.claim(EndpointId(7));
        say(if claim.is_ok() { "won" } else { "lost" });
        stay();
    }
    let folder = tempfile::tempdir().unwrap();
    let observer = registry(folder.path());
    let gate = folder::open_lock(&folder.path().join("gate")).unwrap();
    for _ in 0..3 {
        rustix::fs::flock(&gate, FlockOperation::LockExclusive).unwrap();
        let mut processes: Vec<_> = (0..6)
            .map(|_| Process::start(NAME, folder.path()))
            .collect();
        for process in &mut processes {
            assert_eq!(process.says(), "ready");
        }
        rustix::fs::flock(&gate, FlockOperation::Unlock).unwrap();
        let words: Vec<_> = processes.iter_mut().map(Process::says).collect();
        let winners: Vec<_> = (0..6).filter(|index| words[*index] == "won").collect();
        assert_eq!(winners.len(), 1, "{words:?}");
        let owner = observer.lookup(EndpointId(7)).unwrap().unwrap();
        assert_eq!(owner.pid, processes[winners[0]].child.id());
        // All die without cleaning up; the next round must not be affected.
        for process in &mut processes {
            process.kill();
        }
        assert!(observer.lookup(EndpointId(7)).unwrap().is_none());
    }
    registry(folder.path());
    let left: Vec<_> = std::fs::read_dir(observer.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["registry.lock"], "opening sweeps");
}

#[test]
fn a_process_killed_while_claiming_holds_up_no_other() {
    const NAME: &str = "a_process_killed_while_claiming_holds_up_no_other";
    if let Some(folder) = as_child() {
        let registration = registry(&folder).register(ports(1)).unwrap();
        say("ready");
        loop {
            drop(registration.claim(EndpointId(7)));
            drop(registry(&folder).register(ports(2)).unwrap());
        }
    }
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..12 {
        let mut process = Process::start(NAME, folder.path());
        assert_eq!(process.says(), "ready");
        // Kill after some work, so that it happens at any point.
        for _ in 0..50 {
            let _ = registry(folder.path()).lookup(EndpointId(7)).unwrap();
        }
        process.kill();
        let registry = registry(folder.path());
        let registration = registry.register(ports(9)).unwrap();
        let _claim = registration.claim(EndpointId(7)).unwrap();
        let owner = registry.lookup(EndpointId(7)).unwrap().unwrap();
        assert_eq!(owner.ports.incarnation, 9);
    }
}

#[test]
fn a_process_that_moves_keeps_its_endpoints_and_is_never_taken_for_dead() {
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(folder.path());
    let registration = registry.register(ports(1)).unwrap();
    let claim = registration.claim(EndpointId(7)).unwrap();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while !ends.load(Ordering::SeqCst) || reads == 0 {
                let owner = registry.lookup(EndpointId(7)).unwrap();
                assert_eq!(owner.unwrap().ports.incarnation, 1);
                assert_eq!(registry.liveness(1).unwrap(), Liveness::Runs);
                reads += 1;
            }
        });
        for number in 2000..2050 {
            let mut moved = ports(1);
            moved.small.set_port(number);
            registration.set_ports(moved).unwrap();
            let owner = registry.lookup(EndpointId(7)).unwrap().unwrap();
            assert_eq!(owner.ports, moved);
        }
        ends.store(true, Ordering::SeqCst);
        reader.join().unwrap();
    });
    registry.sweep().unwrap();
    assert!(registry.lookup(EndpointId(7)).unwrap().is_some());
    drop((claim, registration));
    assert_eq!(registry.liveness(1).unwrap(), Liveness::Ended);
}

#[test]
fn a_forked_child_that_outlives_its_parent_does_not_keep_the_claim() {
    const NAME: &str = "a_forked_child_that_outlives_its_parent_does_not_keep_the_claim";
    if let Some(folder) = as_child() {
        let registration = registry(&folder).register(ports(1)).unwrap();
        let _claim = registration.claim(EndpointId(7)).unwrap();
        // The result of a fork: another process with the same open file description.
        let shared = registration.inner.locked.lock().unwrap()[0]
            .try_clone()
            .unwrap();
        let mut heir = Command::new("sleep")
            .arg("1000")
            .stdin(Stdio::from(shared))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        say(heir.id());
        // The process is killed while it waits here.
        heir.wait().unwrap();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(folder.path());
    let mut process = Process::start(NAME, folder.path());
    let heir: i32 = process.says().parse().unwrap();
    assert!(registry.lookup(EndpointId(7)).unwrap().is_some());
    process.kill();
    let found = registry.lookup(EndpointId(7));
    let taken_over = registry
        .register(ports(2))
        .map(|registration| registration.claim(EndpointId(7)).is_ok());
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(heir).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    assert!(found.unwrap().is_none());
    assert!(taken_over.unwrap());
}

#[test]
fn a_directory_that_others_can_change_or_own_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let open = folder.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    let refused = Registry::open(&open, NodeId(1)).unwrap_err();
    assert!(matches!(refused, RegistryError::OpenToOthers { .. }));
    assert!(refused.to_string().contains("chmod go-w"), "{refused}");
    // On /tmp that would lock out all other users.
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o1777)).unwrap();
    let shared = Registry::open(&open, NodeId(1)).unwrap_err().to_string();
    assert!(
        !shared.contains("chmod") && shared.contains("a directory in it"),
        "{shared}"
    );
    let own = open.join("own");
    for (mode, is_refused) in [
        (0o777, true),
        (0o775, true),
        (0o1775, false),
        (0o755, false),
    ] {
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(mode)).unwrap();
        let opened = Registry::open(&own, NodeId(1));
        let is_loose = matches!(opened, Err(RegistryError::LooseParent { .. }));
        assert_eq!(is_loose, is_refused, "{mode:o}: {opened:?}");
    }
    let link = folder.path().join("link");
    symlink(folder.path(), &link).unwrap();
    let refused = Registry::open(&link, NodeId(1)).unwrap_err();
    assert!(matches!(refused, RegistryError::NoDirectory { .. }));
    if rustix::process::geteuid().is_root() {
        let foreign = folder.path().join("foreign");
        std::fs::create_dir(&foreign).unwrap();
        std::os::unix::fs::chown(&foreign, Some(65_534), None).unwrap();
        let refused = Registry::open(&foreign, NodeId(1)).unwrap_err();
        assert!(matches!(
            refused,
            RegistryError::ForeignOwner { uid: 65_534, .. }
        ));
        // The owner of a parent can replace the directory whatever the mode.
        let below = foreign.join("below");
        let refused = Registry::open(&below, NodeId(1)).unwrap_err();
        assert!(
            matches!(&refused, RegistryError::ForeignParent { uid: 65_534, parent, .. } if parent.ends_with("foreign")),
            "{refused}"
        );
    } else {
        eprintln!("SKIPPED: a foreign owner; giving a directory away needs root");
    }
}

/// A port that is free on the loopback address at the time of asking.
fn free_port() -> u16 {
    UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

#[test]
fn another_node_is_queried_and_answers_from_its_registry() {
    let folder = tempfile::tempdir().unwrap();
    let here = registry(folder.path());
    let remote = Registry::open(folder.path(), NodeId(2)).unwrap();
    let port = free_port();
    let hosts = Hosts::parse(&format!("1 127.0.0.1\n2 127.0.0.1 port={port}\n")).unwrap();
    let look_up = |endpoint, timeout| resolve(&here, &hosts, Address::new(2, endpoint), timeout);
    let directory = Directory::start(&remote, hosts.get(NodeId(2)).unwrap().directories()).unwrap();
    let mut announced = ports(77);
    announced.bulk = "0.0.0.0:1002".parse().unwrap();
    let registration = remote.register(announced).unwrap();
    let _claim = registration.claim(EndpointId(7)).unwrap();
    // The unspecified address is replaced by the node's own.
    assert_eq!(look_up(7, PATIENCE).unwrap(), ports(77));
    let error = look_up(8, Duration::from_millis(50)).unwrap_err();
    assert!(
        matches!(error, ResolveError::NoSuchEndpoint { .. }),
        "{error}"
    );
    let wrong = Hosts::parse(&format!("3 127.0.0.1 port={port}\n")).unwrap();
    let error = resolve(&here, &wrong, Address::new(3, 7), PATIENCE).unwrap_err();
    assert!(error.to_string().contains("node 2 replied"), "{error}");
    let error = resolve(&here, &wrong, Address::new(4, 7), PATIENCE).unwrap_err();
    assert!(error.to_string().contains("no node 4"), "{error}");
    // A malformed packet gets no reply; a valid one after it does.
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let target = hosts.get(NodeId(2)).unwrap().directory();
    socket.send_to(&[0x17; QUERY_BYTES], target).unwrap();
    socket.send_to(&[], target).unwrap();
    assert!(look_up(7, PATIENCE).is_ok());
    let nothing = socket.recv(&mut [0; 9]).unwrap_err();
    assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    drop(directory);
}

#[test]
fn a_directory_identifies_itself_in_packets_as_long_as_the_query() {
    let folder = tempfile::tempdir().unwrap();
    let remote = Registry::open(folder.path(), NodeId(2)).unwrap();
    let at = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let prober = Prober::open(None, at, NodeId(2), None).unwrap();
    assert!(matches!(
        prober.probe(ProbeLength::SHORTEST, PATIENCE),
        ProbeResult::Refused
    ));
    let directory = Directory::start(&remote, vec![at]).unwrap();
    let started = Instant::now();
    for length in [0, 1472, usize::MAX].map(ProbeLength::nearest) {
        let presence = loop {
            match prober.probe(length, PATIENCE) {
                ProbeResult::Answered(presence, _) => break presence,
                // The thread has not bound the port yet.
                ProbeResult::Refused => assert!(started.elapsed() < PATIENCE),
                other => panic!("{length:?}: {other:?}"),
            }
        };
        assert_eq!(presence.version, version());
        assert_eq!(
            usize::from(presence.max_packet_bytes),
            ProbeLength::LONGEST.bytes()
        );
    }
    let found = prober.look_up(EndpointId(1), PATIENCE);
    assert!(matches!(
        found,
        ProbeResult::Answered(Response::NoSuchEndpoint, _)
    ));
    let wrong = Prober::open(None, at, NodeId(3), None).unwrap();
    let found = wrong.look_up(EndpointId(1), PATIENCE);
    assert!(matches!(
        found,
        ProbeResult::Answered(Response::WrongNode, _)
    ));
    let shown = wrong.probe(ProbeLength::SHORTEST, Duration::from_millis(20));
    assert!(matches!(shown, ProbeResult::Silent), "{shown:?}");
    drop(directory);
    let short = Duration::from_millis(20);
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let prober = Prober::open(None, silent.local_addr().unwrap(), NodeId(2), None).unwrap();
    assert!(matches!(
        prober.probe(ProbeLength::SHORTEST, short),
        ProbeResult::Silent
    ));
}

#[test]
fn an_endpoint_is_waited_for_until_it_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(folder.path());
    let hosts = Hosts::local_only(NodeId(1));
    std::thread::scope(|scope| {
        let waiter =
            scope.spawn(|| resolve(&registry, &hosts, Address::new(1, 7), PATIENCE).unwrap());
        let registration = registry.register(ports(3)).unwrap();
        let _claim = registration.claim(EndpointId(7)).unwrap();
        assert_eq!(waiter.join().unwrap(), ports(3));
    });
    let error = resolve(&registry, &hosts, Address::new(1, 8), Duration::ZERO).unwrap_err();
    assert!(matches!(error, ResolveError::NoSuchEndpoint { .. }));
    let error = resolve(&registry, &hosts, Address::new(2, 8), PATIENCE).unwrap_err();
    assert!(error.to_string().contains("no hosts file"), "{error}");
}

#[test]
fn no_process_at_the_directory_port_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(folder.path());
    let hosts = Hosts::parse(&format!("2 127.0.0.1 port={}", free_port())).unwrap();
    let timeout = Duration::from_millis(30);
    let error = resolve(&registry, &hosts, Address::new(2, 7), timeout).unwrap_err();
    assert!(
        error.to_string().contains("no reply from 127.0.0.1:"),
        "{error}"
    );
}

#[test]
fn when_the_process_that_answers_is_killed_another_takes_over() {
    const NAME: &str = "when_the_process_that_answers_is_killed_another_takes_over";
    if let Some(folder) = as_child() {
        let port: u16 = std::fs::read_to_string(folder.join("port"))
            .unwrap()
            .parse()
            .unwrap();
        let remote = Registry::open(&folder, NodeId(2)).unwrap();
        let registration = remote.register(ports(1)).unwrap();
        // The second process finds endpoint 7 taken and opens its own.
        let _claim = registration
            .claim(EndpointId(7))
            .or_else(|_| registration.claim(EndpointId(8)))
            .unwrap();
        let _directory = Directory::start(&remote, vec![([127, 0, 0, 1], port).into()]).unwrap();
        say("ready");
        stay();
    }
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    std::fs::write(folder.path().join("port"), port.to_string()).unwrap();
    let here = registry(folder.path());
    let hosts = Hosts::parse(&format!("2 127.0.0.1 port={port}")).unwrap();
    let mut first = Process::start(NAME, folder.path());
    assert_eq!(first.says(), "ready");
    assert!(resolve(&here, &hosts, Address::new(2, 7), PATIENCE).is_ok());
    let mut second = Process::start(NAME, folder.path());
    assert_eq!(second.says(), "ready");
    assert!(resolve(&here, &hosts, Address::new(2, 8), PATIENCE).is_ok());
    first.kill();
    assert!(resolve(&here, &hosts, Address::new(2, 8), PATIENCE).is_ok());
    let result = resolve(&here, &hosts, Address::new(2, 7), Duration::from_millis(30));
    assert!(matches!(result, Err(ResolveError::NoSuchEndpoint { .. })));
}

#[test]
fn a_directory_ends_with_its_last_user_and_can_be_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let remote = Registry::open(folder.path(), NodeId(2)).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    for _ in 0..5 {
        let first = Directory::start(&remote, vec![address]).unwrap();
        let second = Directory::start(&remote, vec![address]).unwrap();
        drop(first);
        drop(second);
    }
    // The thread releases the port some time later.
    let started = Instant::now();
    while UdpSocket::bind(address).is_err() {
        assert!(started.elapsed() < PATIENCE, "the port is still held");
        std::thread::yield_now();
    }
}

#[test]
fn a_directory_with_a_key_only_refuses_strangers() {
    let key = |byte| ClusterKey::new([byte; crate::key::KEY_BYTES]);
    let folder = tempfile::tempdir().unwrap();
    let bare = Registry::open(folder.path(), NodeId(2)).unwrap();
    let registration = bare.register(ports(77)).unwrap();
    let _claim = registration.claim(EndpointId(7)).unwrap();
    let here = registry(folder.path());
    let keys = [None, Some(key(1)), Some(key(2))];
    for theirs in &keys {
        let remote = bare.clone().with_key(theirs.as_ref());
        let port = free_port();
        let at = SocketAddr::from(([127, 0, 0, 1], port));
        let hosts = Hosts::parse(&format!("2 127.0.0.1 port={port}\n")).unwrap();
        let directory = Directory::start(&remote, vec![at]).unwrap();
        for ours in &keys {
            let here = here.clone().with_key(ours.as_ref());
            let found = resolve(&here, &hosts, Address::new(2, 7), PATIENCE);
            let prober = Prober::open(None, at, NodeId(2), ours.as_ref()).unwrap();
            let shown = prober.probe(ProbeLength::SHORTEST, PATIENCE);
            if ours == theirs {
                assert_eq!(found.unwrap(), ports(77));
                assert!(matches!(shown, ProbeResult::Answered(..)));
                let longer = prober.probe(ProbeLength::nearest(1472), PATIENCE);
                assert!(matches!(longer, ProbeResult::Answered(..)));
                continue;
            }
            let between = KeyMismatch::between(ours.is_some(), theirs.is_some());
            let error = found.unwrap_err();
            assert!(
                matches!(&error, ResolveError::OtherCluster { mismatch, .. } if *mismatch == between),
                "{error}"
            );
            assert!(error.to_string().contains("node 2"), "{error}");
            if let Some(ours) = ours {
                assert!(error.to_string().contains(&ours.fingerprint()), "{error}");
            }
            assert!(matches!(shown, ProbeResult::Stranger(mismatch) if mismatch == between));
        }
        drop(directory);
        // The thread releases the port some time later.
        let started = Instant::now();
        while UdpSocket::bind(at).is_err() {
            assert!(started.elapsed() < PATIENCE, "the port is still held");
            std::thread::yield_now();
        }
    }
}

/// Body of a child: sweeps and asks while other threads take the last free descriptors.
fn sweep_without_descriptors(folder: &Path) -> ! {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let registry = registry(folder);
    let before = getrlimit(Resource::Nofile);
    let end = AtomicBool::new(false);
    let mut failures = 0;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !end.load(Ordering::Relaxed) {
                    let _taken = File::open("/dev/null");
                }
            });
        }
        for limit in (0..32).cycle().take(32 * 200) {
            let short = Rlimit {
                current: Some(limit),
                ..before
            };
            setrlimit(Resource::Nofile, short).unwrap();
            let (swept, alive) = (registry.sweep(), registry.is_alive(1));
            let found = registry.lookup(EndpointId(7));
            setrlimit(Resource::Nofile, before).unwrap();
            failures += u32::from(swept.is_err() || alive.is_err() || found.is_err());
            if matches!(alive, Ok(false)) || matches!(found, Ok(None)) {
                say(format!("limit {limit}: taken for dead"));
                stay();
            }
        }
        end.store(true, Ordering::Relaxed);
    });
    say(match failures {
        0 => "the limit has no effect",
        _ => "every process was found alive",
    });
    stay();
}

#[test]
fn a_process_without_descriptors_takes_nobody_for_dead() {
    if let Some(folder) = as_child() {
        sweep_without_descriptors(&folder);
    }
    let folder = tempfile::tempdir().unwrap();
    let registry = registry(folder.path());
    let registration = registry.register(ports(1)).unwrap();
    let _claim = registration.claim(EndpointId(7)).unwrap();
    let test = "a_process_without_descriptors_takes_nobody_for_dead";
    let mut child = Process::start(test, folder.path());
    assert_eq!(child.says(), "every process was found alive");
    assert!(registry.lookup(EndpointId(7)).unwrap().is_some());
    assert!(registry.is_alive(1).unwrap());
}
