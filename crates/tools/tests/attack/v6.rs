//! Attacks over IPv6 by an off-path attacker that knows every address and port, and nothing else.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::atomic::{AtomicBool, Ordering};

use dipole_node::hosts::Hosts;
use dipole_node::registry::Registry;
use dipole_node::{ClusterKey, Config, EndpointId, Links, Node, NodeId, Security};
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};

use super::{Scene, attacker, packets, seconds};

const UDP: u8 = 17;
const ICMP: u8 = 58;
const TOO_BIG: u8 = 2;

fn address(node: u32) -> Ipv6Addr {
    Ipv6Addr::new(
        0xfd00,
        0,
        0,
        0,
        0,
        0,
        0,
        u16::try_from(node).expect("small"),
    )
}

/// Assigns addresses to the nodes and writes a hosts file with them.
fn number(scene: &Scene) -> Hosts {
    let mut lines = String::new();
    for node in 1..=3 {
        let text = format!("{}/64", address(node));
        let mut command = scene.testbed.command(node, "ip");
        let added = command.args(["-6", "addr", "add", &text, "dev", "net0", "nodad"]);
        assert!(added.status().expect("ip").success());
        lines += &format!("{node} {}\n", address(node));
    }
    Hosts::parse(&lines).expect("a hosts file")
}

fn open(scene: &Scene, hosts: &Hosts, node: u32, key: &ClusterKey) -> Node {
    let runtime = scene.testbed.node(node).runtime_dir.clone();
    let mut config = Config::local(NodeId(node), runtime);
    config.hosts = hosts.clone();
    config.bind = address(node).into();
    config.links = Links::Udp;
    config.key = Some(key.clone());
    let opened = scene.testbed.inside(node, || Node::open(config));
    opened.expect("a node").expect("it opens")
}

fn ports(scene: &Scene, node: u32) -> [SocketAddrV6; 2] {
    let registry = Registry::open(&scene.testbed.node(node).runtime_dir, NodeId(node));
    let owner = registry.expect("its registry").lookup(EndpointId(7));
    let ports = owner.expect("readable").expect("it is open").ports;
    [ports.small, ports.bulk].map(|at| match at {
        SocketAddr::V6(at) => at,
        SocketAddr::V4(at) => panic!("{at}"),
    })
}

/// The checksum of UDP and ICMP over IPv6, over a pseudo header and the rest.
fn sum(from: Ipv6Addr, to: Ipv6Addr, protocol: u8, rest: &[u8]) -> [u8; 2] {
    let length = u32::try_from(rest.len()).expect("short").to_be_bytes();
    let pseudo = [
        &from.octets()[..],
        &to.octets(),
        &length,
        &[0, 0, 0, protocol],
        rest,
    ]
    .concat();
    let words = pseudo.chunks(2).map(|pair| {
        let low = pair.get(1).copied().unwrap_or(0);
        u32::from(u16::from_be_bytes([pair[0], low]))
    });
    let mut all: u32 = words.sum();
    while all > 0xffff {
        all = (all & 0xffff) + (all >> 16);
    }
    let [.., high, low] = (!all).to_be_bytes();
    [high, low]
}

/// An IPv6 packet; the checksum is at `sum_at` after its header.
fn in_ip(from: Ipv6Addr, to: Ipv6Addr, protocol: u8, mut rest: Vec<u8>, sum_at: usize) -> Vec<u8> {
    let checked = sum(from, to, protocol, &rest);
    rest[sum_at..sum_at + 2].copy_from_slice(&checked);
    let length = u16::try_from(rest.len()).expect("short").to_be_bytes();
    let mut bytes = vec![0x60, 0, 0, 0, length[0], length[1], protocol, 64];
    bytes.extend(from.octets());
    bytes.extend(to.octets());
    bytes.extend(rest);
    bytes
}

fn datagram(from: SocketAddrV6, to: SocketAddrV6, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + payload.len()).expect("short");
    let mut udp = Vec::new();
    for word in [from.port(), to.port(), length, 0] {
        udp.extend(word.to_be_bytes());
    }
    udp.extend(payload);
    in_ip(*from.ip(), *to.ip(), UDP, udp, 6)
}

/// "Packet too big", from a router that the attacker claims to be.
fn too_big(router: Ipv6Addr, from: SocketAddrV6, to: SocketAddrV6) -> Vec<u8> {
    let mut icmp = vec![TOO_BIG, 0, 0, 0];
    icmp.extend(1280_u32.to_be_bytes());
    icmp.extend(datagram(from, to, &[0; 1000]));
    in_ip(router, *from.ip(), ICMP, icmp, 2)
}

/// Attacks in every way until the end; returns the number of packets sent.
fn attack(victims: [[SocketAddrV6; 2]; 2], security: Security, over: &AtomicBool) -> u64 {
    let tagged = security == Security::Auth;
    let raw = socket(AddressFamily::INET6, SocketType::RAW, Some(ipproto::RAW)).expect("root may");
    let mut random = packets::Random(6);
    let mut sent = 0;
    while !over.load(Ordering::Relaxed) {
        for (from, to) in [(0, 1), (1, 0)] {
            for port in [0, 1] {
                let (source, target) = (victims[from][port], victims[to][port]);
                let connection = u32::try_from(random.next() >> 32).expect("half");
                // The index is easy to guess.
                let connection = connection & !0x3fff;
                let forged = [
                    packets::data(&mut random, connection, tagged),
                    packets::bye(&mut random, connection, tagged),
                    packets::reset(&mut random, connection, true),
                    packets::hello(&mut random, connection, 0, true),
                ];
                let mut packets = forged
                    .map(|bytes| datagram(source, target, &bytes))
                    .to_vec();
                packets.push(too_big(address(3), source, target));
                for packet in packets {
                    let at = SocketAddrV6::new(*target.ip(), 0, 0, 0);
                    let at = match packet[6] {
                        ICMP => SocketAddrV6::new(*source.ip(), 0, 0, 0),
                        _ => at,
                    };
                    sent += u64::from(sendto(&raw, &packet, SendFlags::DONTWAIT, &at).is_ok());
                }
            }
        }
    }
    sent
}

#[test]
fn an_off_path_attacker_cannot_insert_end_or_shorten_anything_over_ipv6() {
    let Some(scene) = Scene::make(Security::Auth) else {
        return;
    };
    let hosts = number(&scene);
    let key = ClusterKey::load(&scene.key).expect("our key");
    // With `off` it has to guess connection ids and masks. Without a key it has to guess only connection
    // ids, of 18 bits: it succeeds within a minute, and we do not promise otherwise.
    for security in [Security::Auth, Security::Off] {
        let key = key.clone().with_security(security);
        let [one, two] = [1, 2].map(|node| open(&scene, &hosts, node, &key));
        let first = one.endpoint(EndpointId(7)).expect("free");
        let second = two.endpoint(EndpointId(7)).expect("free");
        scene.meet(&first, &second);
        let victims = [ports(&scene, 1), ports(&scene, 2)];
        let over = AtomicBool::new(false);
        let (sent, messages) = std::thread::scope(|scope| {
            let attacker =
                scope.spawn(|| scene.testbed.inside(3, || attack(victims, security, &over)));
            scope.spawn(|| attacker::for_a_while(seconds() / 2, &over));
            let messages = scene.converse(&first, &second, &over).messages;
            let sent = attacker.join().expect("no panic").expect("node 3");
            (sent, messages)
        });
        println!("{sent} packets of the attacker, {messages} messages");
        assert!(sent > 1000, "{sent}");
        let stats = [one.stats(), two.stats()];
        let came: u64 = stats
            .iter()
            .flat_map(|it| it.protocol.drops())
            .map(|(_, n)| n)
            .sum();
        assert!(came > 0, "some of it came");
        // Long messages are still sent in long packets.
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                scene
                    .testbed
                    .inside(1, || first.send_timeout(&vec![5; 1 << 20], super::PATIENCE))
            });
            let got = scene
                .testbed
                .inside(2, || second.receive_timeout(super::PATIENCE));
            assert_eq!(got.expect("node 2").expect("it comes").len(), 1 << 20);
            sending
                .join()
                .expect("no panic")
                .expect("node 1")
                .expect("it is taken");
        });
        let mut route = scene.testbed.command(1, "ip");
        let route = route
            .args(["-6", "route", "get", &address(2).to_string()])
            .output();
        let route = String::from_utf8_lossy(&route.expect("ip").stdout).into_owned();
        println!("{}", route.trim());
        for node in [&one, &two] {
            assert!(
                node.take_departures().is_empty(),
                "{:?}",
                node.take_departures()
            );
            assert_eq!(node.stats().peers, 1);
        }
        let bound: IpAddr = address(1).into();
        assert_eq!(one.ports().small.ip(), bound);
    }
}
