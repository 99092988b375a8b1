//! The attacker: several threads in a node of its own, one per attack, as fast as possible.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dipole_naming::address::EndpointId;
use dipole_naming::registry::{Ports, Query, Response};
use dipole_testbed::Testbed;
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};

use crate::packets::{self, Membership, Random};

/// Knowledge of the attacker: everything except the key.
#[derive(Clone, Debug)]
pub(crate) struct Victim {
    pub(crate) node: u32,
    pub(crate) small: SocketAddrV4,
    pub(crate) bulk: SocketAddrV4,
    pub(crate) directory: SocketAddrV4,
    /// The connection id in packets of its session.
    pub(crate) connection: u32,
}

/// Packets sent, by kind.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    counts: Mutex<Vec<(&'static str, u64)>>,
    pub(crate) cookies: AtomicU64,
}

impl Sent {
    fn note(&self, kind: &'static str, count: u64) {
        let mut counts = self.counts.lock().expect("a lock that is not poisoned");
        match counts.iter_mut().find(|(name, _)| *name == kind) {
            Some((_, sum)) => *sum += count,
            None => counts.push((kind, count)),
        }
    }

    pub(crate) fn counts(&self) -> Vec<(&'static str, u64)> {
        self.counts
            .lock()
            .expect("a lock that is not poisoned")
            .clone()
    }
}

/// A socket that sends complete IP packets with any source address.
pub(crate) struct Raw(OwnedFd);

impl Raw {
    pub(crate) fn open() -> Raw {
        let raw = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::RAW));
        Raw(raw.expect("root may"))
    }

    /// Sends a packet; false if the queue of the device is full.
    fn send(&self, to: Ipv4Addr, packet: &[u8]) -> bool {
        let to = SocketAddr::from((to, 0));
        sendto(&self.0, packet, SendFlags::DONTWAIT, &to).is_ok()
    }

    pub(crate) fn forge(&self, from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) -> u64 {
        let packet = packets::in_ip(from, to, payload);
        u64::from(self.send(*to.ip(), &packet))
    }
}

/// Attacks two victims until it is stopped.
pub(crate) fn attack(
    testbed: &Testbed,
    node: u32,
    victims: &[Victim; 2],
    recorded: &[(Ipv4Addr, Vec<u8>)],
    over: &AtomicBool,
    sent: &Sent,
) {
    let inside =
        |work: &(dyn Fn() + Sync)| testbed.inside(node, work).expect("the attacker's node");
    std::thread::scope(|scope| {
        scope.spawn(|| inside(&|| say_hello(victims, over, sent)));
        scope.spawn(|| inside(&|| replay(recorded, over, sent)));
        scope.spawn(|| inside(&|| guess(victims, over, sent)));
        scope.spawn(|| inside(&|| ask(victims, over, sent)));
    });
}

/// Hellos to the processes' ports, with complete cookie exchanges.
fn say_hello(victims: &[Victim; 2], over: &AtomicBool, sent: &Sent) {
    let sockets: Vec<UdpSocket> = (0..4)
        .map(|_| UdpSocket::bind("0.0.0.0:0").expect("a free port"))
        .collect();
    for socket in &sockets {
        socket.set_nonblocking(true).expect("a flag");
    }
    let mut random = Random(1);
    let mut connection = 0_u32;
    while !over.load(Ordering::Relaxed) {
        let (mut first, mut second) = (0, 0);
        for (index, socket) in sockets.iter().enumerate() {
            for victim in victims {
                connection = connection.wrapping_add(1 << 14).max(1 << 14);
                let proven = index % 2 == 1;
                let bytes = packets::hello(&mut random, connection, 0, proven);
                first += u64::from(socket.send_to(&bytes, victim.small).is_ok());
            }
            let mut buffer = [0; 2048];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                let Some((connection, cookie)) = packets::challenge(&buffer[..length]) else {
                    continue;
                };
                sent.cookies.fetch_add(1, Ordering::Relaxed);
                for proven in [true, false] {
                    let bytes = packets::hello(&mut random, connection, cookie, proven);
                    second += u64::from(socket.send_to(&bytes, from).is_ok());
                }
            }
        }
        sent.note("hellos", first);
        sent.note("hellos with their cookie", second);
    }
}

/// Replays all packets of an earlier session, again and again.
fn replay(recorded: &[(Ipv4Addr, Vec<u8>)], over: &AtomicBool, sent: &Sent) {
    let raw = Raw::open();
    while !over.load(Ordering::Relaxed) {
        let count = (recorded.iter())
            .map(|(to, packet)| u64::from(raw.send(*to, packet)))
            .sum();
        sent.note("packets of an earlier session", count);
    }
}

/// Session packets with right and wrong connection ids, and random bytes, from the peer's address.
fn guess(victims: &[Victim; 2], over: &AtomicBool, sent: &Sent) {
    let raw = Raw::open();
    let mut random = Random(2);
    let [one, two] = victims;
    let mut counts = [0_u64; 4];
    for high in (0..1_u32 << 18).cycle() {
        let (from, to) = match high % 2 {
            0 => (one, two),
            _ => (two, one),
        };
        let is_right = high % 16 < 4;
        // The first session of a process has the first index.
        let connection = if is_right { to.connection } else { high << 14 };
        let back = if is_right {
            from.connection
        } else {
            connection
        };
        let data = packets::data(&mut random, connection, true);
        counts[0] += raw.forge(from.small, to.small, &data);
        counts[0] += raw.forge(from.bulk, to.bulk, &data);
        let data = packets::data(&mut random, back, true);
        counts[0] += raw.forge(to.small, from.small, &data);
        match high % 4 {
            0 | 1 => {
                let bye = packets::bye(&mut random, connection, true);
                counts[1] += raw.forge(from.small, to.small, &bye);
            }
            2 => {
                let proven = high % 8 == 2;
                // Reports to each that the other does not know the connection.
                let reset = packets::reset(&mut random, back, proven);
                counts[2] += raw.forge(from.small, to.small, &reset);
                let reset = packets::reset(&mut random, connection, proven);
                counts[2] += raw.forge(to.small, from.small, &reset);
            }
            _ => {
                let length = usize::try_from(random.next() % 200).expect("small");
                let nonsense = random.bytes(length);
                counts[3] += raw.forge(from.small, to.small, &nonsense);
            }
        }
        if high % 64 == 63 {
            let names = ["forged data", "forged byes", "forged resets", "nonsense"];
            for (name, count) in names.into_iter().zip(std::mem::take(&mut counts)) {
                sent.note(name, count);
            }
            if over.load(Ordering::Relaxed) {
                return;
            }
        }
    }
}

/// Directory packets and membership packets, from its own and from the peer's address.
fn ask(victims: &[Victim; 2], over: &AtomicBool, sent: &Sent) {
    let raw = Raw::open();
    let own = UdpSocket::bind("0.0.0.0:0").expect("a free port");
    own.set_nonblocking(true).expect("a flag");
    let mut random = Random(3);
    let [one, two] = victims;
    while !over.load(Ordering::Relaxed) {
        let mut counts = [0_u64; 3];
        for (from, to) in [(one, two), (two, one)] {
            for proven in [false, true] {
                let nodes = [from.node, to.node];
                for question in [Query::Lookup(EndpointId(7)), Query::Yield] {
                    let bytes = packets::control(&mut random, &question, nodes, proven);
                    counts[0] += u64::from(own.send_to(&bytes, to.directory).is_ok());
                    counts[0] += raw.forge(from.directory, to.directory, &bytes);
                }
                let lie = Ports {
                    small: from.directory.into(),
                    bulk: from.directory.into(),
                    incarnation: random.next(),
                };
                for answer in [Response::Found(lie), Response::Ended] {
                    // The port at which a querying process may wait for its reply.
                    let port = u16::try_from(32_768 + random.next() % 28_000).expect("a port");
                    let to = SocketAddrV4::new(*to.small.ip(), port);
                    let bytes = packets::control(&mut random, &answer, nodes, proven);
                    counts[1] += raw.forge(from.directory, to, &bytes);
                }
                let member = Membership {
                    life: random.next(),
                    body: random.bytes(80),
                };
                let member = packets::control(&mut random, &member, nodes, proven);
                counts[2] += raw.forge(from.directory, to.directory, &member);
            }
        }
        let names = [
            "look-ups and yields",
            "forged answers",
            "membership packets",
        ];
        for (name, count) in names.into_iter().zip(counts) {
            sent.note(name, count);
        }
    }
}

/// Lets the attack run for some time.
pub(crate) fn for_a_while(time: Duration, over: &AtomicBool) {
    std::thread::sleep(time);
    over.store(true, Ordering::Relaxed);
}
