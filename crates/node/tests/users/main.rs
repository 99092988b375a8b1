//! Two users on one node: neither can read, forge or stop the traffic between the other's
//! processes, by any means. Needs root, in order to act as both.

#![allow(missing_docs, reason = "tests")]

mod doors;
mod talk;

use std::fs::Permissions;
use std::io::Read;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dipole_node::Links;
use dipole_node::hosts::Hosts;
use dipole_node::registry::{DirectoryLock, Owner, Registry};
use dipole_node::{ClusterKey, Config, NodeId};
use tempfile::TempDir;

/// User ids that no real user has.
const ALICE: u32 = 60_001;
const BOB: u32 = 60_002;
const PATIENCE: Duration = Duration::from_secs(60);

/// Role and arguments of a process started by a test.
const ROLE: &str = "DIPOLE_USERS_ROLE";
const ARGUMENTS: &str = "DIPOLE_USERS_ARGUMENTS";

/// A directory that all may enter, with this program and a directory for each user.
struct Stage {
    folder: TempDir,
}

impl Stage {
    /// Prints a note and returns `None` if the test cannot act as two users.
    fn set() -> Option<Stage> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: only root can be two users");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let stage = Stage { folder };
        open_to(&stage.path(""), 0o755);
        // Copy in another process, so that no process started by a concurrent test inherits the
        // open file: a file that is open for writing cannot be executed.
        let this = std::env::current_exe().expect("this");
        let copied = Command::new("cp")
            .args([this, stage.path("program")])
            .status();
        assert!(copied.expect("cp").success());
        for (name, uid) in [("alice", ALICE), ("bob", BOB)] {
            std::fs::create_dir(stage.path(name)).expect("a folder");
            chown(stage.path(name), Some(uid), Some(uid)).expect("root may");
            open_to(&stage.path(name), 0o755);
        }
        Some(stage)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts this program in a role, as a user.
    fn start(&self, uid: u32, role: &str, arguments: &[&str]) -> Process {
        let child = Command::new(self.path("program"))
            .args(["--exact", "roles", "--nocapture"])
            .env(ROLE, role)
            .env(ARGUMENTS, arguments.join(" "))
            .uid(uid)
            .gid(uid)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        Process { child }
    }

    /// Runs this program in a role until it succeeds; returns its output.
    fn run(&self, uid: u32, role: &str, arguments: &[&str]) -> String {
        let mut process = self.start(uid, role, arguments);
        let mut said = String::new();
        let out = process.child.stdout.as_mut().expect("piped");
        out.read_to_string(&mut said).expect("text");
        let status = process.child.wait().expect("ours");
        assert!(status.success(), "{role} {arguments:?}: {said}");
        said
    }
}

fn open_to(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("root may");
}

/// A process that is killed when the test ends.
struct Process {
    child: Child,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Facts about one of Alice's processes; more than Bob could find out.
#[derive(Clone, Debug)]
struct Facts {
    pid: u32,
    small: SocketAddr,
    bulk: SocketAddr,
    incarnation: u64,
}

/// Reads facts that only root and Alice can read.
fn facts(node: &Path) -> Vec<Facts> {
    let entries = std::fs::read_dir(node).expect("root may");
    let owners = entries.map(|entry| entry.expect("an entry").path());
    let owners = owners.filter(|path| path.to_string_lossy().contains("/owner-"));
    let parsed = owners.map(|path| {
        let bytes = std::fs::read(path).expect("root may");
        let (Owner { pid, ports, .. }, _) = postcard::take_from_bytes(&bytes).expect("an owner");
        Facts {
            pid,
            small: ports.small,
            bulk: ports.bulk,
            incarnation: ports.incarnation,
        }
    });
    parsed.collect()
}

/// Entry point of the processes that the tests start; not a test itself.
#[test]
fn roles() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let given = std::env::var(ARGUMENTS).expect("given with the role");
    let arguments: Vec<&str> = given.split(' ').collect();
    match (role.as_str(), &arguments[..]) {
        ("talk", [runtime, links, rank]) => {
            talk::talk(
                Path::new(runtime),
                parsed(links),
                rank.parse().expect("a rank"),
            );
        }
        ("intrude", [runtime, pid, small, bulk, incarnation]) => {
            let victim = Facts {
                pid: pid.parse().expect("a number"),
                small: small.parse().expect("an address"),
                bulk: bulk.parse().expect("an address"),
                incarnation: incarnation.parse().expect("a number"),
            };
            doors::try_all(Path::new(runtime), &victim);
        }
        ("open", [runtime]) => match Registry::open(Path::new(runtime), NodeId(1)) {
            Ok(_) => println!("OPEN"),
            Err(error) => println!("{error}"),
        },
        ("prepare", [folder]) => doors::prepare(Path::new(folder)),
        ("steal", [folder]) => doors::steal(Path::new(folder)),
        ("hold", [address]) => {
            let _held = UdpSocket::bind(address).expect("free");
            println!("HELD");
            let _ends = std::io::stdin().read_to_end(&mut Vec::new());
        }
        ("seat", [runtime, hosts, key]) => seat(Path::new(runtime), Path::new(hosts), key),
        ("yield", [address]) => doors::ask_to_yield(address.parse().expect("an address")),
        other => panic!("no such role: {other:?}"),
    }
}

fn parsed(links: &str) -> Links {
    links.parse().expect("auto, shm or udp")
}

/// Becomes node 1's agent, prints that, and stays until the input ends.
fn seat(runtime: &Path, hosts: &Path, key: &str) {
    let hosts = Hosts::load(hosts).expect("a hosts file");
    let key = (key != "-").then(|| ClusterKey::load(key.as_ref()).expect("a key"));
    let registry = Registry::open(runtime, NodeId(1)).expect("our own");
    let registry = registry.with_key(key.as_ref());
    let host = hosts.get(NodeId(1)).expect("in the file");
    match DirectoryLock::take(&registry, &host.directories(), Vec::new()) {
        Ok(_seat) => {
            println!("SEATED");
            let _ends = std::io::stdin().read_to_end(&mut Vec::new());
        }
        Err(error) => println!("{error}"),
    }
}

/// Alice's processes exchange messages, all to all, while Bob tries every attack.
fn alice_talks_while_bob_intrudes(links: &str) {
    let Some(stage) = Stage::set() else { return };
    let runtime = stage.path("alice/dipole");
    let text = runtime.to_string_lossy().into_owned();
    let mut ranks: Vec<talk::Rank> = (0..talk::RANKS)
        .map(|rank| {
            let process = stage.start(ALICE, "talk", &[&text, links, &rank.to_string()]);
            talk::Rank::listen(process)
        })
        .collect();
    talk::wait_for_rounds(&ranks, 20);
    let victims = facts(&runtime.join("node-1"));
    assert_eq!(victims.len(), talk::RANKS as usize);
    for victim in &victims {
        let arguments = [
            text.clone(),
            victim.pid.to_string(),
            victim.small.to_string(),
            victim.bulk.to_string(),
            victim.incarnation.to_string(),
        ];
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let said = stage.run(BOB, "intrude", &arguments);
        for door in doors::DOORS {
            assert!(said.contains(&format!("shut: {door}")), "{door}: {said}");
        }
    }
    // The traffic continues afterwards.
    talk::wait_for_rounds(&ranks, 20);
    let ends = talk::finish(&mut ranks);
    for end in ends {
        assert_eq!(end.departed, 0, "{end:?}");
        assert!(end.peers < talk::RANKS as usize, "{end:?}");
        assert_eq!(end.strangers_in_memory, 0, "{end:?}");
        assert!(
            end.wrong_key > 0,
            "the strangers reached no process: {end:?}"
        );
        assert!(
            end.unknown > 0,
            "the forged packets reached no process: {end:?}"
        );
    }
}

#[test]
fn a_user_in_shared_memory_is_not_disturbed_by_another() {
    alice_talks_while_bob_intrudes("auto");
}

#[test]
fn a_user_on_the_network_is_not_disturbed_by_another() {
    alice_talks_while_bob_intrudes("udp");
}

#[test]
fn directories_that_another_user_prepared_or_could_replace_are_refused() {
    let Some(stage) = Stage::set() else { return };
    let sticky = stage.path("sticky");
    let loose = stage.path("loose");
    for (folder, mode) in [(&sticky, 0o1777), (&loose, 0o777)] {
        std::fs::create_dir(folder).expect("a folder");
        open_to(folder, mode);
    }
    let open = |path: &Path| stage.run(ALICE, "open", &[&path.to_string_lossy()]);
    stage.run(BOB, "prepare", &[&sticky.to_string_lossy()]);
    let made = open(&sticky.join("made"));
    assert!(
        made.contains("belongs to uid 60002, not to uid 60001"),
        "{made}"
    );
    let linked = open(&sticky.join("linked"));
    assert!(linked.contains("is a symbolic link"), "{linked}");
    let loose_one = open(&loose.join("own"));
    assert!(
        loose_one.contains("could be replaced by others"),
        "{loose_one}"
    );
    // A directory that a group can write to, even though Alice's own is already inside.
    let shared = stage.path("shared");
    let inner = shared.join("own");
    std::fs::create_dir_all(&inner).expect("a folder");
    chown(&inner, Some(ALICE), Some(ALICE)).expect("root may");
    chown(&shared, None, Some(BOB)).expect("root may");
    open_to(&inner, 0o700);
    open_to(&shared, 0o775);
    let replaceable = open(&inner);
    assert!(
        replaceable.contains("could be replaced by others"),
        "{replaceable}"
    );
    open_to(&shared, 0o755);
    assert!(open(&inner).contains("OPEN"));
    // In a sticky directory, other users cannot move Alice's.
    let own = open(&sticky.join("own"));
    assert!(own.contains("OPEN"), "{own}");
    stage.run(BOB, "steal", &[&sticky.to_string_lossy()]);
    assert!(open(&sticky.join("own")).contains("OPEN"));
}

#[test]
fn a_directory_port_held_by_another_user_is_reported() {
    let Some(stage) = Stage::set() else { return };
    let free = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    let address = free.local_addr().expect("bound");
    drop(free);
    let hosts = stage.path("hosts");
    let text = format!("1 127.0.0.1 port={}\n2 127.0.0.2\n", address.port());
    std::fs::write(&hosts, text).expect("a file");
    let runtime = stage.path("alice/dipole");
    let (runtime, hosts) = (runtime.to_string_lossy(), hosts.to_string_lossy());
    let mut thief = stage.start(BOB, "hold", &[&address.to_string()]);
    wait_for(&mut thief, "HELD");
    let said = stage.run(ALICE, "seat", &[&runtime, &hosts, "-"]);
    assert!(said.contains("a process of user 60002 has it"), "{said}");
    assert!(said.contains("port="), "{said}");
    drop(thief);
    // The agent starts as soon as the port is free, and no other user can end it.
    let mut seat = stage.start(ALICE, "seat", &[&runtime, &hosts, "-"]);
    wait_for(&mut seat, "SEATED");
    stage.run(BOB, "yield", &[&address.to_string()]);
    let taken = stage.run(ALICE, "seat", &[&runtime, &hosts, "-"]);
    assert!(taken.contains("agent already"), "{taken}");
}

#[test]
fn a_look_up_with_the_cluster_key_ignores_another_users_directory() {
    let Some(stage) = Stage::set() else { return };
    let key = ClusterKey::random().expect("randomness");
    let liar = doors::Liar::start();
    let hosts = format!("1 127.0.0.1\n2 127.0.0.1 port={}\n", liar.address().port());
    let hosts = Hosts::parse(&hosts).expect("a hosts file");
    let open = |key: Option<&ClusterKey>| {
        let registry = Registry::open(&stage.path("root"), NodeId(1)).expect("our own");
        registry.with_key(key)
    };
    let wanted = dipole_node::Address::new(2, 7);
    let resolve = |key| {
        let registry = open(key);
        dipole_node::registry::resolve(&registry, &hosts, wanted, Duration::from_millis(300))
    };
    // Without a key, the owner of the port is trusted; that is what the key is for.
    assert_eq!(resolve(None).expect("an answer").incarnation, doors::LIE);
    let error = resolve(Some(&key)).expect_err("a lie").to_string();
    assert!(error.contains("no reply from"), "{error}");
}

fn wait_for(process: &mut Process, word: &str) {
    use std::io::BufRead;
    let out = process.child.stdout.take().expect("piped");
    let mut lines = std::io::BufReader::new(out).lines();
    let begun = Instant::now();
    let found = lines.any(|line| line.expect("text").contains(word));
    assert!(found && begun.elapsed() < PATIENCE, "it did not say {word}");
}

fn config(runtime: &Path, links: Links) -> Config {
    Config {
        links,
        connect_timeout: PATIENCE,
        ..Config::local(NodeId(1), runtime.to_owned())
    }
}
