//! Two nodes with a cluster key exchange verified messages while a third node on their network, which
//! lacks the key, attacks them in every way it can. Needs root; skipped with a message otherwise.
//!
//! `DIPOLE_ATTACK_S` sets the duration in seconds (3).

#![allow(missing_docs, reason = "tests")]

mod attacker;
mod newcomer;
mod packets;
mod v6;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use attacker::{Sent, Victim};
use dipole_node::hosts::Hosts;
use dipole_node::registry::Registry;
use dipole_node::{
    Address, ClusterKey, Config, Endpoint, EndpointId, GoneReason, Links, Node, NodeId, Security,
    Stats,
};
use dipole_testbed::Testbed;
use rustix::net::{AddressFamily, RecvFlags, SocketType, eth, recv, socket};
use rustix::time::{ClockId, clock_gettime};

const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum number of messages in flight.
const WINDOW: u64 = 32;
/// Minimum number of messages of a conversation.
const LEAST: u64 = 50;
/// The last message of a conversation.
const END: &[u8] = b"end";

fn seconds() -> Duration {
    let given = std::env::var("DIPOLE_ATTACK_S").map_or(3, |text| text.parse().expect("seconds"));
    Duration::from_secs(given)
}

/// Killed when this is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Creates a key and saves it.
fn save(file: &Path, security: Security) {
    let key = ClusterKey::random().expect("random bytes");
    let made = key.with_security(security).save(file);
    made.expect("a file of our own");
}

struct Scene {
    testbed: Testbed,
    key: PathBuf,
}

impl Scene {
    fn make(security: Security) -> Option<Scene> {
        Scene::of(3, security)
    }

    fn of(nodes: u32, security: Security) -> Option<Scene> {
        if let Some(why) = Testbed::why_not() {
            eprintln!("SKIPPED: {why}");
            return None;
        }
        let testbed = Testbed::builder()
            .nodes(nodes)
            .build()
            .expect("a testbed can be made here");
        let key = testbed.folder().join("key");
        save(&key, security);
        Some(Scene { testbed, key })
    }

    /// A process of a node in the cluster.
    fn open(&self, node: u32) -> Node {
        let place = self.testbed.node(node);
        let mut config = Config::local(NodeId(node), place.runtime_dir.clone());
        config.hosts = Hosts::load(&self.testbed.hosts_file()).expect("the hosts file");
        config.bind = place.addresses[0].into();
        config.links = Links::Udp;
        config.key = Some(ClusterKey::load(&self.key).expect("our key"));
        let opened = self.testbed.inside(node, || Node::open(config));
        opened.expect("a node").expect("it opens")
    }

    fn dipole(&self, node: u32, keyed: bool, arguments: &[&str]) -> Command {
        let mut command = self.testbed.command(node, env!("CARGO_BIN_EXE_dipole"));
        command.args(arguments).stdin(Stdio::null());
        if keyed {
            command.env("DIPOLE_KEY", &self.key);
        }
        command
    }

    fn agent(&self, node: u32, keyed: bool) -> Process {
        let mut command = self.dipole(node, keyed, &["agent"]);
        let agent = Process(command.stderr(Stdio::null()).spawn().expect("it starts"));
        self.wait(node, keyed, |_| true);
        agent
    }

    /// The output of a node's agent.
    fn status(&self, node: u32, keyed: bool) -> Option<serde_json::Value> {
        let output = self
            .dipole(node, keyed, &["--json", "agent", "status"])
            .output();
        let output = output.expect("it starts");
        serde_json::from_slice(&output.stdout).ok()
    }

    /// Waits until the output contains a text.
    fn wait(&self, node: u32, keyed: bool, wanted: impl Fn(&serde_json::Value) -> bool) {
        let begun = Instant::now();
        loop {
            let status = self.status(node, keyed);
            if status.as_ref().is_some_and(&wanted) {
                return;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "agent of node {node}: {status:?}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Facts about a process that are visible without its key.
    fn victim(&self, node: u32, endpoint: u32) -> Victim {
        let registry = Registry::open(&self.testbed.node(node).runtime_dir, NodeId(node));
        let owner = registry.expect("its registry").lookup(EndpointId(endpoint));
        let ports = owner.expect("readable").expect("it is open").ports;
        Victim {
            node,
            small: v4(ports.small),
            bulk: v4(ports.bulk),
            directory: SocketAddrV4::new(self.testbed.node(node).addresses[0], 7411),
            connection: 0,
        }
    }

    /// Makes two endpoints with number 7 each other's targets; a process makes progress while it waits.
    fn meet(&self, one: &Endpoint, two: &Endpoint) {
        std::thread::scope(|scope| {
            let first = scope.spawn(|| self.testbed.inside(1, || one.target(at(2, 7))));
            let second = scope.spawn(|| self.testbed.inside(2, || two.target(at(1, 7))));
            for pointed in [first, second] {
                let pointed = pointed.join().expect("no panic");
                pointed.expect("a node").expect("a member");
            }
        });
    }

    /// Runs both sides of a conversation, each in its node, to its end.
    fn converse(&self, one: &Endpoint, two: &Endpoint, over: &AtomicBool) -> Conversation {
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| self.testbed.inside(1, || timed(|| ask(one, over))));
            let answering = scope.spawn(|| self.testbed.inside(2, || timed(|| answer(two))));
            let ((), second) = answering.join().expect("no panic").expect("node 2");
            let (messages, first) = asking.join().expect("no panic").expect("node 1");
            Conversation {
                messages,
                cpu: first + second,
            }
        })
    }
}

struct Conversation {
    messages: u64,
    /// The processor time of the threads of both sides.
    cpu: Duration,
}

/// The result of a function, and the processor time of this thread that it took.
fn timed<T>(happens: impl FnOnce() -> T) -> (T, Duration) {
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("not negative");
    let before = now();
    let done = happens();
    (done, now() - before)
}

fn v4(address: SocketAddr) -> SocketAddrV4 {
    match address {
        SocketAddr::V4(address) => address,
        SocketAddr::V6(_) => panic!("the testbed has IPv4"),
    }
}

/// The contents of message `number` of one side.
fn content(side: u8, number: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    let length = usize::try_from(number % 199).expect("small");
    let salt = side ^ bytes[0];
    bytes.extend((0..length).map(|at| salt ^ u8::try_from(at).expect("small")));
    bytes
}

/// Sends until the end and verifies that every reply arrives, once and in order.
fn ask(endpoint: &Endpoint, over: &AtomicBool) -> u64 {
    let (mut sent, mut got) = (0, 0);
    let more = |sent| sent < LEAST || !over.load(Ordering::Relaxed);
    while more(sent) || got < sent {
        while sent < got + WINDOW && more(sent) {
            let message = content(1, sent);
            endpoint
                .send_timeout(&message, PATIENCE)
                .expect("the partner takes it");
            sent += 1;
        }
        if got < sent {
            let message = endpoint
                .receive_timeout(PATIENCE)
                .expect("the partner answers");
            assert_eq!(&*message, content(2, got), "message {got}");
            got += 1;
        }
    }
    endpoint
        .send_timeout(END, PATIENCE)
        .expect("the partner takes it");
    sent + got
}

/// Verifies that every message arrives, once and in order, and replies to it.
fn answer(endpoint: &Endpoint) {
    for number in 0.. {
        let message = endpoint
            .receive_timeout(PATIENCE)
            .expect("the partner sends");
        if &*message == END {
            return;
        }
        assert_eq!(&*message, content(1, number), "message {number}");
        endpoint
            .send_timeout(&content(2, number), PATIENCE)
            .expect("it takes it");
    }
}

/// All IP packets that a node sees while something happens.
fn record<T: Send>(testbed: &Testbed, node: u32, happens: impl FnOnce() -> T) -> (T, Vec<Vec<u8>>) {
    let raw = testbed.inside(node, || {
        socket(AddressFamily::PACKET, SocketType::DGRAM, Some(eth::ALL))
    });
    let raw = raw.expect("a node").expect("root may");
    let done = happens();
    let mut seen = Vec::new();
    let mut buffer = vec![0; 70_000];
    while let Ok((length, _)) = recv(&raw, &mut buffer[..], RecvFlags::DONTWAIT) {
        seen.push(buffer[..length].to_vec());
    }
    (done, seen)
}

/// Recorded packets, unchanged and with the current ports.
fn adapted(seen: &[Vec<u8>], victims: &[Victim; 2]) -> Vec<(Ipv4Addr, Vec<u8>)> {
    let mut packets = Vec::new();
    for bytes in seen {
        let udp = bytes.len() > 28 && bytes[0] == 0x45 && bytes[9] == 17;
        if !udp || bytes.len() > 1500 {
            continue;
        }
        let ip = |at: usize| Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]);
        let victim = |ip| victims.iter().find(|victim| *victim.small.ip() == ip);
        let (Some(from), Some(to)) = (victim(ip(12)), victim(ip(16))) else {
            continue;
        };
        let mut as_it_was = bytes.clone();
        // Without a checksum, which the network card would have filled in.
        as_it_was[26..28].fill(0);
        packets.push((*to.small.ip(), as_it_was));
        packets.push((
            *to.small.ip(),
            packets::in_ip(from.small, to.small, &bytes[28..]),
        ));
    }
    packets
}

fn dropped(stats: &Stats, name: &str) -> u64 {
    let mut drops = stats.protocol.drops();
    let found = drops.find(|(reason, _)| reason.name() == name);
    found.expect("a reason").1
}

/// The connection id in packets to a process.
fn connection(seen: &[Vec<u8>], victim: &Victim) -> u32 {
    let data = seen.iter().find(|bytes| {
        let udp = bytes.len() > 60 && bytes[0] == 0x45 && bytes[9] == 17;
        let to_it = |bytes: &[u8]| {
            bytes[16..20] == victim.small.ip().octets()
                && bytes[22..24] == victim.small.port().to_be_bytes()
        };
        udp && to_it(bytes) && bytes[28] == packets::DATA
    });
    let bytes = data.expect("packets to the process");
    u32::from_le_bytes([bytes[32], bytes[33], bytes[34], bytes[35]])
}

fn rate(count: u64, time: Duration) -> u64 {
    count * 1000 / u64::try_from(time.as_millis()).expect("short").max(1)
}

fn at(node: u32, endpoint: u32) -> Address {
    Address::new(node, endpoint)
}

#[test]
fn attackers_without_the_key_cannot_harm_members() {
    let Some(scene) = Scene::make(Security::Auth) else {
        return;
    };
    let time = seconds();
    let _agents = [scene.agent(1, true), scene.agent(2, true)];
    let one = scene.open(1);
    let first = one.endpoint(EndpointId(7)).expect("free");

    // An earlier session of the first process: the peer opens it and leaves.
    let (_, seen) = record(&scene.testbed, 1, || {
        let two = scene.open(2);
        let second = two.endpoint(EndpointId(7)).expect("free");
        let over = AtomicBool::new(true);
        scene.meet(&first, &second);
        scene.converse(&first, &second, &over);
        drop(second);
        // The goodbye stays in the capture until the next conversation.
        two.close(PATIENCE).expect("all is acknowledged");
    });

    let two = scene.open(2);
    let second = two.endpoint(EndpointId(7)).expect("free");
    scene.meet(&first, &second);
    let earlier = one.take_departures();
    assert_eq!(earlier.len(), 1, "{earlier:?}");
    let mut victims = [scene.victim(1, 7), scene.victim(2, 7)];
    // Assume that the attacker has guessed the connection ids.
    let (_, talk) = record(&scene.testbed, 1, || {
        scene.converse(&first, &second, &AtomicBool::new(true));
    });
    for victim in &mut victims {
        victim.connection = connection(&talk, victim);
    }
    let mut recorded = adapted(&seen, &victims);
    assert!(recorded.len() > 20, "an earlier session was recorded");
    recorded.extend(adapted(&talk, &victims));

    let over = AtomicBool::new(false);
    let calm = std::thread::scope(|scope| {
        scope.spawn(|| attacker::for_a_while(time, &over));
        scene.converse(&first, &second, &over)
    });

    // A node whose hosts file lists all three, but without a key.
    let _stranger = scene.agent(3, false);
    let over = AtomicBool::new(false);
    let sent = Sent::default();
    let begun = Instant::now();
    let attacked = std::thread::scope(|scope| {
        scope.spawn(|| attacker::attack(&scene.testbed, 3, &victims, &recorded, &over, &sent));
        scope.spawn(|| {
            std::thread::sleep(time);
            // On a busy machine the attacker has little time.
            while !has_begun(&[one.stats(), two.stats()]) && begun.elapsed() < PATIENCE {
                std::thread::sleep(time);
            }
            over.store(true, Ordering::Relaxed);
        });
        // A new member gets in during the attack.
        scope.spawn(|| join(&scene));
        scene.converse(&first, &second, &over)
    });
    let took = begun.elapsed();

    print_rates(&sent, (&calm, time), (&attacked, took));
    check_partner(&scene, &one, &first);
    check_partner(&scene, &two, &second);
    let is_detected = has_begun(&[one.stats(), two.stats()]);
    assert!(is_detected, "right guesses and recorded packets were sent");
    check_agents(&scene);

    // The service continues: new processes can join.
    join(&scene);
    let over = AtomicBool::new(true);
    scene.converse(&first, &second, &over);
    refuse_strangers(&scene);
}

/// True if both partners have seen strangers, and one of them forged and repeated packets.
fn has_begun(stats: &[Stats]) -> bool {
    let mut by_all = ["wrong-key", "unknown-connection"].into_iter();
    let mut by_any = ["forged", "replayed"].into_iter();
    by_all.all(|reason| stats.iter().all(|stats| dropped(stats, reason) > 0))
        && by_any.all(|reason| stats.iter().any(|stats| dropped(stats, reason) > 0))
}

/// Prints the rates of the attacker and of the partners, in calm and under attack.
fn print_rates(sent: &Sent, calm: (&Conversation, Duration), attacked: (&Conversation, Duration)) {
    let took = attacked.1;
    let all: u64 = sent.counts().iter().map(|(_, count)| count).sum();
    for (kind, count) in sent.counts() {
        println!("{count:>10} {kind}");
    }
    println!(
        "{all} packets of the attacker in {took:.1?}: {} a second; {} cookies",
        rate(all, took),
        sent.cookies.load(Ordering::Relaxed)
    );
    for (how, (talk, took)) in [("calm", calm), ("under attack", attacked)] {
        let Conversation { messages, cpu } = *talk;
        println!(
            "{how}: {messages} messages in {took:.1?}, {} a second, {} a second of the partners' processor time",
            rate(messages, took),
            rate(messages, cpu)
        );
    }

    let to_agents = [
        "look-ups and yields",
        "forged answers",
        "membership packets",
    ];
    let to_partners = sent.counts().into_iter();
    let to_partners = to_partners.filter(|(kind, _)| !to_agents.contains(kind));
    let to_partners: u64 = to_partners.map(|(_, count)| count).sum();
    let messages = calm.0.cpu.as_secs_f64() / calm.0.messages as f64 * attacked.0.messages as f64;
    println!(
        "{to_partners} packets to the partners, each of which took {:.0} ns of their processor time, if their \
         messages took what they take in calm",
        (attacked.0.cpu.as_secs_f64() - messages) / to_partners as f64 * 1e9
    );
}

/// A partner has exactly its partner as a peer, and got nothing else; forged packets were dropped.
fn check_partner(scene: &Scene, node: &Node, endpoint: &Endpoint) {
    let stats = node.stats();
    let id = node.id();
    for (reason, count) in stats.protocol.drops().filter(|(_, count)| *count > 0) {
        println!("node {id} dropped {count} {}", reason.name());
    }
    assert_eq!(
        stats.peers, 1,
        "node {id} has exactly its partner as a peer"
    );
    assert!(
        dropped(&stats, "wrong-key") > 0,
        "hellos with cookies came to node {id}"
    );
    assert!(dropped(&stats, "unknown-connection") > 0);
    // Only members that left in an orderly way are gone.
    for departure in node.take_departures() {
        assert_eq!(
            departure.reason,
            GoneReason::Closed,
            "node {id}: {departure:?}"
        );
        assert_eq!(departure.node, 1, "node {id}: {departure:?}");
    }
    let empty = scene.testbed.inside(id.0, || {
        endpoint.try_receive().expect("it is open").is_none()
    });
    assert!(
        empty.expect("a node"),
        "node {id} got more than its partner sent"
    );
}

/// Both agents consider the other up and the stranger as never seen.
fn check_agents(scene: &Scene) {
    fn state(status: &serde_json::Value, wanted: u32) -> &serde_json::Value {
        let members = status["members"].as_array().expect("a list");
        let member = members.iter().find(|member| member["node"] == wanted);
        &member.expect("in the hosts file")["state"]
    }
    for node in [1, 2] {
        // Each may have suspected the other while the attack took all processor time.
        scene.wait(node, true, |status| state(status, 3 - node) == "up");
        let status = scene.status(node, true).expect("the agent lives");
        println!(
            "agent of node {node} dropped {} packets of strangers",
            status["strangers"]
        );
        assert_eq!(state(&status, 3), "never seen", "{status}");
        assert!(status["strangers"].as_u64() > Some(0), "{status}");
    }
}

/// The packets of a process's session, as a peer received them.
fn datagrams<'a>(seen: &'a [Vec<u8>], to: &Victim) -> Vec<&'a [u8]> {
    let port = to.small.port().to_be_bytes();
    let ours = seen.iter().filter(|bytes| {
        let udp = bytes.len() > 60 && bytes[0] == 0x45 && bytes[9] == 17;
        udp && bytes[16..20] == to.small.ip().octets() && bytes[22..24] == port
    });
    let payloads = ours.map(|bytes| {
        let length = usize::from(u16::from_be_bytes([bytes[24], bytes[25]]));
        &bytes[28..20 + length]
    });
    payloads.filter(|bytes| bytes[0] == packets::DATA).collect()
}

#[test]
fn an_eavesdropper_cannot_read_encrypted_packets_or_insert_any() {
    for security in [Security::Auth, Security::Encrypt] {
        let Some(scene) = Scene::make(security) else {
            return;
        };
        let _agents = [scene.agent(1, true), scene.agent(2, true)];
        let (one, two) = (scene.open(1), scene.open(2));
        let first = one.endpoint(EndpointId(7)).expect("free");
        let second = two.endpoint(EndpointId(7)).expect("free");
        scene.meet(&first, &second);
        let over = AtomicBool::new(true);
        let (_, seen) = record(&scene.testbed, 1, || scene.converse(&first, &second, &over));
        let [from, to] = [scene.victim(1, 7), scene.victim(2, 7)];
        let packets = datagrams(&seen, &to);
        let said = content(1, 40);
        let is_seen = |bytes: &[u8]| bytes.windows(said.len()).any(|part| part == said);
        assert!(packets.len() > 10, "node 1 sends");
        assert_eq!(
            seen.iter().any(|bytes| is_seen(bytes)),
            security == Security::Auth,
            "{security}"
        );

        // Packets with their length in bytes 2 and 3, each in a datagram of its own.
        let alone =
            |bytes: &&&[u8]| usize::from(bytes[2]) + 256 * usize::from(bytes[3]) == bytes.len();
        let packet = packets.iter().rfind(alone).expect("a packet by itself");
        let forge = |bytes: &[u8]| {
            let sent = scene.testbed.inside(3, || {
                attacker::Raw::open().forge(from.small, to.small, bytes)
            });
            assert_eq!(sent.expect("node 3"), 1);
        };
        let before = two.stats();
        forge(packet);
        // A counter that has not been used, because otherwise the packet would be a duplicate.
        let new = packets::altered(packet, 8 * (packet.len() - 28) + 20, true);
        let (header, records, tag) = (8 * 12, 8 * 40, 8 * (packet.len() - 20));
        for bit in [header, records, tag] {
            forge(&packets::altered(&new, bit, false));
            forge(&packets::altered(&new, bit, true));
        }
        scene.converse(&first, &second, &over);
        let after = two.stats();
        let count = |name| dropped(&after, name) - dropped(&before, name);
        let counts = ["replayed", "damaged", "forged"].map(count);
        assert_eq!(counts, [1, 3, 3], "{security}");
    }
}

/// A new process of the first node exchanges messages with the second.
fn join(scene: &Scene) {
    let node = scene.open(1);
    let endpoint = node.endpoint(EndpointId(100)).expect("free");
    let host = scene.open(2);
    let inbox = host.endpoint(EndpointId(100)).expect("free");
    std::thread::scope(|scope| {
        // A process makes progress while it waits.
        let got = scope.spawn(|| {
            scene.testbed.inside(2, || {
                let message = inbox.receive_timeout(PATIENCE);
                // Receive once more, so that the message is acknowledged.
                let nothing_more = inbox.receive_timeout(Duration::from_millis(300));
                assert!(nothing_more.is_err());
                message
            })
        });
        let sent = scene.testbed.inside(1, || {
            endpoint.target(at(2, 100)).expect("a member");
            endpoint.send(b"new here")?;
            endpoint.drain(PATIENCE)
        });
        sent.expect("node 1").expect("it is taken");
        let got = got.join().expect("no panic").expect("node 2");
        assert_eq!(&*got.expect("it comes"), b"new here");
    });
}

/// A node without a key, or with another one, gets an error from the agent and from `dipole send`.
fn refuse_strangers(scene: &Scene) {
    let other = scene.testbed.folder().join("other");
    save(&other, Security::Auth);
    let say = |key: Option<&Path>| {
        let mut command = scene.dipole(1, false, &["send", "2:7", "--from", "9"]);
        command.env("DIPOLE_LINK", "udp");
        if let Some(key) = key {
            command.env("DIPOLE_KEY", key);
        }
        let output = command.output().expect("it starts");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = say(None);
    for words in [
        "node 2",
        "has a cluster key, this process has none",
        "DIPOLE_KEY",
    ] {
        assert!(said.contains(words), "{said}");
    }
    let unprotected = scene.testbed.folder().join("unprotected");
    let key = ClusterKey::load(&scene.key).expect("our key");
    let saved = key.with_security(Security::Off).save(&unprotected);
    saved.expect("a file of our own");
    let said = say(Some(&unprotected));
    for words in ["node 2", "another security setting", "copy the key file"] {
        assert!(said.contains(words), "{said}");
    }
    let said = say(Some(&other));
    let ours = ClusterKey::load(&other).expect("just made").fingerprint();
    for words in ["node 2", "another cluster key", &ours] {
        assert!(said.contains(words), "{said}");
    }
}
