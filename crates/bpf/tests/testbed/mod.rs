//! Two nodes with real interfaces, for tests of packets that bypass the socket.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use dipole_bpf::InterfaceId;
use dipole_bpf::neighbours::{Neighbours, Route};
use dipole_testbed::{Builder, Testbed};

/// Ends a test that would hang; nothing here takes this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A testbed; `None` with a message if it cannot be created.
pub(crate) fn make(builder: Builder) -> Option<Testbed> {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return None;
    }
    let testbed = builder.build().expect("a testbed can be made here");
    for node in 1..=testbed.nodes() {
        for network in 0..testbed.node(node).addresses.len() {
            let interface = format!("net{network}");
            let address = format!("{}/64", six(network, node));
            ip(
                &testbed,
                node,
                &format!("address add {address} dev {interface} nodad"),
            );
        }
    }
    Some(testbed)
}

/// The first IPv6 address of an interface.
pub(crate) fn six(network: usize, node: u32) -> IpAddr {
    let text = format!("fd00:{network}::{node}");
    text.parse().expect("an address")
}

/// Runs `ip` inside a node.
pub(crate) fn ip(testbed: &Testbed, node: u32, words: &str) {
    let mut command = testbed.command(node, "ip");
    let status = command.args(words.split_whitespace()).status();
    assert!(status.expect("ip runs").success(), "ip {words}");
}

/// Sets a kernel variable inside a node.
pub(crate) fn set(testbed: &Testbed, node: u32, variable: &str, value: &str) {
    let path = format!("/proc/sys/{variable}");
    let written = testbed.inside(node, || std::fs::write(&path, value));
    written.expect("the node").expect("a variable");
}

pub(crate) fn interface(testbed: &Testbed, node: u32, name: &str) -> InterfaceId {
    let socket = testbed.inside(node, || UdpSocket::bind("127.0.0.1:0"));
    let socket = socket.expect("the node").expect("a socket");
    let index = rustix::net::netdevice::name_to_index(&socket, name);
    InterfaceId {
        index: index.expect("an interface"),
        name: name.to_owned(),
    }
}

/// A UDP socket inside a node, with a read time-out.
pub(crate) fn udp(testbed: &Testbed, node: u32, at: impl Into<IpAddr>) -> (UdpSocket, SocketAddr) {
    let at = SocketAddr::new(at.into(), 0);
    let socket = testbed.inside(node, || UdpSocket::bind(at));
    let socket = socket.expect("the node").expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a limit");
    let local = socket.local_addr().expect("bound");
    (socket, local)
}

/// The routes of an interface, with a clock that the test advances.
pub(crate) struct Ways {
    pub(crate) all: Neighbours,
    pub(crate) now_ns: u64,
    socket: UdpSocket,
}

impl Ways {
    pub(crate) fn open(
        testbed: &Testbed,
        node: u32,
        interface: &InterfaceId,
        socket: &UdpSocket,
    ) -> Ways {
        let own = socket.local_addr().expect("bound").ip();
        let all = testbed.inside(node, || Neighbours::open(interface, own));
        Ways {
            all: all.expect("the node").expect("netlink"),
            now_ns: 0,
            socket: socket.try_clone().expect("a second handle"),
        }
    }

    /// The route after applying notifications.
    pub(crate) fn look(&mut self, to: IpAddr) -> Option<Route> {
        self.now_ns += 1_000_000_000;
        self.all.follow(self.now_ns);
        self.all.route(self.now_ns, to).copied()
    }

    /// Sends through the socket, as a link does, until there is a suitable route.
    pub(crate) fn wait_for(&mut self, to: IpAddr, will_do: impl Fn(&Route) -> bool) -> Route {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.look(to).filter(&will_do) {
                Some(route) => return route,
                // Port 9 is unused; the kernel resolves the neighbour anyway.
                None => drop(self.socket.send_to(b"?", (to, 9))),
            }
            assert!(Instant::now() < deadline, "no way to {to}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until there is no route.
    pub(crate) fn wait_for_none(&mut self, to: IpAddr) {
        let deadline = Instant::now() + PATIENCE;
        while self.look(to).is_some() {
            assert!(Instant::now() < deadline, "still a way to {to}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The sender and the bytes of the next datagram.
#[track_caller]
pub(crate) fn receive(socket: &UdpSocket) -> (SocketAddr, Vec<u8>) {
    let mut buffer = vec![0; 65_536];
    let (length, from) = loop {
        match socket.recv_from(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            got => break got.expect("a datagram comes"),
        }
    };
    buffer.truncate(length);
    (from, buffer)
}
