//! Bob's attacks, and the error that each of them must get.

use std::io::ErrorKind;
use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dipole_engine::AnyLink;
use dipole_engine::{Destination, Engine};
use dipole_link::udp::{Udp, UdpOptions};
use dipole_naming::envelope::{Authenticator, Header};
use dipole_node::registry::{Ports, QUERY_BYTES, Query, Registry, RegistryError, Response};
use dipole_node::{ClusterKey, GoneReason, KeyMismatch, Links, Node, NodeId, OpenError};
use dipole_proto::Instant;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, sockopt};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, Signal};

use crate::{ALICE, Facts, config};

/// Every attack, by the name that is printed once it has been refused.
pub(crate) const DOORS: [&str; 9] = [
    "the registry",
    "the sockets",
    "/proc",
    "memory and tracing",
    "signals",
    "the ports",
    "sessions",
    "forged packets",
    "the session table",
];

/// Number of sessions requested, each from its own port.
const SESSIONS: usize = 40;
const FORGED: u32 = 20_000;

pub(crate) fn try_all(runtime: &Path, victim: &Facts) {
    let tries: [(&str, &dyn Fn()); 9] = [
        (DOORS[0], &|| registry(runtime)),
        (DOORS[1], &|| sockets(runtime, victim)),
        (DOORS[2], &|| proc(victim)),
        (DOORS[3], &|| memory(victim)),
        (DOORS[4], &|| signals(victim)),
        (DOORS[5], &|| ports(victim)),
        (DOORS[6], &|| {
            sessions(victim, None, KeyMismatch::OnlyTheirs)
        }),
        (DOORS[7], &|| forge(victim)),
        (DOORS[8], &|| table(victim)),
    ];
    for (door, attempt) in tries {
        attempt();
        println!("shut: {door}");
    }
}

/// Bob cannot access the registry's files or use its endpoints.
fn registry(runtime: &Path) {
    let denied = |path: &Path| {
        let error = std::fs::read_dir(path).expect_err("not ours");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{path:?}");
    };
    denied(runtime);
    denied(&runtime.join("node-1"));
    for name in ["registry.lock", "agent.lock", "key", "endpoint-1"] {
        let error = std::fs::File::open(runtime.join("node-1").join(name)).expect_err("not ours");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{name}");
    }
    let planted = std::fs::write(runtime.join("node-1/owner-1-0"), "pid 1\n");
    assert_eq!(
        planted.expect_err("not ours").kind(),
        ErrorKind::PermissionDenied
    );
    let error = Registry::open(runtime, NodeId(1)).expect_err("not ours");
    assert!(
        matches!(error, RegistryError::ForeignOwner { uid: ALICE, .. }),
        "{error}"
    );
    let error = Node::open(config(runtime, Links::Auto)).expect_err("not ours");
    assert!(matches!(error, OpenError::Registry { .. }), "{error}");
    assert!(
        error.to_string().contains("belongs to uid 60001"),
        "{error}"
    );
}

/// The socket's name is known (`/proc/net/unix` shows it), but it cannot be reached.
fn sockets(runtime: &Path, victim: &Facts) {
    let path = runtime.join(format!("node-1/shm-{:016x}", victim.incarnation));
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None);
    let address = SocketAddrUnix::new(&path).expect("a short path");
    let error = rustix::net::connect(socket.expect("a socket"), &address).expect_err("not ours");
    assert_eq!(error, rustix::io::Errno::ACCESS);
    // There is no socket without a file either; file modes would not protect it, and anyone who
    // connects could also send descriptors (SCM_RIGHTS).
    let known = std::fs::read_to_string("/proc/net/unix").expect("all may read it");
    let names = known.lines().filter_map(|line| line.split_once('@'));
    for (_, name) in names {
        let is_ours =
            name.contains("dipole") || name.contains(&format!("{:x}", victim.incarnation));
        assert!(!is_ours, "{name}");
    }
}

/// Descriptors, and with them shared memory, cannot be obtained.
fn proc(victim: &Facts) {
    let of = |name: &str| format!("/proc/{}/{name}", victim.pid);
    for folder in ["fd", "map_files", "fdinfo"] {
        let error = std::fs::read_dir(of(folder)).expect_err("not ours");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{folder}");
    }
    for descriptor in 0..64 {
        let error = std::fs::File::open(of(&format!("fd/{descriptor}"))).expect_err("not ours");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{descriptor}");
    }
    for file in ["mem", "maps", "environ", "auxv"] {
        let read = std::fs::read(of(file)).expect_err("not ours");
        assert_eq!(read.kind(), ErrorKind::PermissionDenied, "{file}");
    }
    let pid = rustix::process::Pid::from_raw(victim.pid.cast_signed()).expect("not 0");
    let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty()).expect("it lives");
    let copied = rustix::process::pidfd_getfd(handle, 3, PidfdGetfdFlags::empty());
    assert_eq!(copied.expect_err("not ours"), rustix::io::Errno::PERM);
}

fn memory(victim: &Facts) {
    let pid = Pid::from_raw(victim.pid.cast_signed());
    let mut byte = [0; 1];
    let remote = [RemoteIoVec { base: 4096, len: 1 }];
    let read = process_vm_readv(pid, &mut [IoSliceMut::new(&mut byte)], &remote);
    assert_eq!(read, Err(nix::errno::Errno::EPERM));
    let options = nix::sys::ptrace::Options::empty();
    let seized = nix::sys::ptrace::seize(pid, options);
    assert_eq!(seized, Err(nix::errno::Errno::EPERM));
}

fn signals(victim: &Facts) {
    let pid = rustix::process::Pid::from_raw(victim.pid.cast_signed()).expect("not 0");
    for signal in [Signal::STOP, Signal::KILL, Signal::TERM] {
        let sent = rustix::process::kill_process(pid, signal);
        assert_eq!(sent, Err(rustix::io::Errno::PERM));
    }
}

/// The ports cannot be shared or taken over, with any socket option.
fn ports(victim: &Facts) {
    for address in [victim.small, victim.bulk] {
        for share in [false, true] {
            let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None);
            let socket = socket.expect("a socket");
            sockopt::set_socket_reuseaddr(&socket, share).expect("an option");
            sockopt::set_socket_reuseport(&socket, share).expect("an option");
            let bound = rustix::net::bind(&socket, &address);
            assert_eq!(bound, Err(rustix::io::Errno::ADDRINUSE), "{address}");
        }
    }
}

/// Requests sessions like the library, with or without a key, until they are refused.
fn sessions(victim: &Facts, key: Option<&ClusterKey>, mismatch: KeyMismatch) {
    let link = AnyLink::from(Udp::bind(victim.small.ip(), &UdpOptions::default()).expect("ports"));
    let config = dipole_proto::Config::default();
    let mut engine = Engine::new(link, config, 7, [1, 2], key);
    let begun = std::time::Instant::now();
    let now = || Instant(u64::try_from(begun.elapsed().as_nanos()).expect("short"));
    let to = Destination {
        small: victim.small,
        incarnation: victim.incarnation,
    };
    let peer = engine.connect(now(), to).expect("room");
    loop {
        engine.step(now(), true).expect("a link");
        assert!(!engine.machine().is_open(peer), "a stranger got in");
        if let Some(departure) = engine.take_departures().first() {
            assert_eq!(departure.reason, GoneReason::Key(mismatch));
            return;
        }
        assert!(
            begun.elapsed() < crate::PATIENCE,
            "no process refuses the connection"
        );
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Requests sessions from many ports with other keys; none takes a slot of Alice's peers.
fn table(victim: &Facts) {
    for index in 0..SESSIONS {
        let key = ClusterKey::new([u8::try_from(index).expect("few"); 32]);
        sessions(victim, Some(&key), KeyMismatch::Different);
    }
}

/// Sends messages and goodbyes with valid checksums for guessed connections.
fn forge(victim: &Facts) {
    let socket = UdpSocket::bind((victim.small.ip(), 0)).expect("a port");
    let mut random = 0_u32;
    for count in 0..FORGED {
        // The low bits are an index, of which only the first few are in use.
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let connection = (random & !0x3fff) | (count % 4);
        let bytes = match count % 2 {
            0 => data(connection, count / 2),
            _ => packet(
                0x19,
                0,
                connection,
                0,
                0xff,
                &victim.incarnation.to_le_bytes(),
            ),
        };
        let to = if count % 3 == 0 {
            victim.bulk
        } else {
            victim.small
        };
        socket.send_to(&bytes, to).expect("loopback takes it");
        // Leaves room for Alice's own packets in her queue; this is not a flooding test.
        if count % 100 == 0 {
            std::thread::sleep(Duration::from_micros(500));
        }
    }
}

/// A message for endpoint 1 from endpoint 2. Spec §2, §4.
fn data(connection: u32, number: u32) -> Vec<u8> {
    let mut body = vec![1, 0];
    body.extend(28_u16.to_le_bytes());
    for word in [2_u32, 1, number] {
        body.extend(word.to_le_bytes());
    }
    body.extend([0xAA; 16]);
    packet(0x13, 0x0b, connection, number, 0, &body)
}

fn packet(first: u8, flags: u8, connection: u32, number: u32, lanes: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(32 + body.len() + 4).expect("short");
    let mut bytes = vec![first, flags];
    bytes.extend(length.to_le_bytes());
    for word in [connection, number, number, 0, 0, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend([lanes, 0, 0, 0]);
    bytes.extend(body);
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes);
    bytes.extend(&crc.to_le_bytes()[..4]);
    bytes
}

/// Creates what Alice would create, before she does.
pub(crate) fn prepare(folder: &Path) {
    std::fs::create_dir(folder.join("made")).expect("everybody may");
    std::fs::create_dir(folder.join("elsewhere")).expect("everybody may");
    symlink(folder.join("elsewhere"), folder.join("linked")).expect("everybody may");
}

/// Tries to move Alice's directory away.
pub(crate) fn steal(folder: &Path) {
    let moved = std::fs::rename(folder.join("own"), folder.join("gone"));
    assert_eq!(
        moved.expect_err("not ours").kind(),
        ErrorKind::PermissionDenied
    );
    let removed = std::fs::remove_dir_all(folder.join("own"));
    assert_eq!(
        removed.expect_err("not ours").kind(),
        ErrorKind::PermissionDenied
    );
}

/// Requests the process that serves node 1's directory to release it.
pub(crate) fn ask_to_yield(address: SocketAddr) {
    let socket = UdpSocket::bind((address.ip(), 0)).expect("a port");
    let header = Header {
        from: NodeId(1),
        to: NodeId(1),
        nonce: 1,
    };
    let wish = Authenticator::new(None).seal_to_length(header, &Query::Yield, QUERY_BYTES);
    for _ in 0..50 {
        socket.send_to(&wish, address).expect("loopback takes it");
    }
}

/// The incarnation in the false answers.
pub(crate) const LIE: u64 = 0x11e;

/// Sends false answers to all look-ups, from a directory's port.
pub(crate) struct Liar {
    address: SocketAddr,
    ended: Arc<AtomicBool>,
}

impl Liar {
    pub(crate) fn start() -> Liar {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let address = socket.local_addr().expect("bound");
        let pause = Some(Duration::from_millis(20));
        socket.set_read_timeout(pause).expect("an option");
        let ended = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&ended);
        std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            while !over.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut buffer) else {
                    continue;
                };
                // Even an authenticated query shows its nonce.
                let question = &buffer[..length];
                let nonce = u64::from_le_bytes(question[20..28].try_into().expect("a question"));
                let header = Header {
                    from: NodeId(2),
                    to: NodeId(1),
                    nonce,
                };
                let answer = Response::Found(Ports {
                    small: address,
                    bulk: address,
                    incarnation: LIE,
                });
                let _told = socket.send_to(&Authenticator::new(None).seal(header, &answer), from);
            }
        });
        Liar { address, ended }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl std::ops::Drop for Liar {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

#[test]
fn forged_packets_are_valid_packets() {
    use dipole_proto::wire::Packet;
    let bye = packet(0x19, 0, 5 << 14, 0, 0xff, &[1; 8]);
    for bytes in [data(5 << 14, 9), bye] {
        let parsed = Packet::parse(&bytes, 4).expect("a packet");
        assert_eq!(parsed.header().connection, 5 << 14);
    }
}
