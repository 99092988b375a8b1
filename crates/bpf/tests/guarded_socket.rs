//! Rights of an unprivileged process that holds a guarded socket, on which
//! `docs/design/bpf.md` and the agent rely.

#![allow(missing_docs, reason = "tests")]

mod testbed;

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use dipole_bpf::InterfaceId;
use dipole_bpf::headers::Template;
use dipole_bpf::raw::{RawSender, Sent, guarded_socket};
use dipole_testbed::Testbed;
use rustix::net::{RecvFlags, SendFlags};
use testbed::{interface, make, receive, udp};

const NOBODY: libc::uid_t = 65_534;
const EVERYTHING: u16 = 0x0003;

/// Runs a function on a thread without privileges.
fn without_privileges<T: Send>(function: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: takes three numbers; the raw system call changes only this thread, which ends
            // after the function.
            let result = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
            assert_eq!(result, 0, "root can change the user");
            // Check that the thread is unprivileged: it may not open such a socket.
            let other = rustix::net::socket(
                rustix::net::AddressFamily::PACKET,
                rustix::net::SocketType::RAW,
                None,
            );
            assert_eq!(other.err(), Some(rustix::io::Errno::PERM));
            function()
        });
        thread.join().expect("the function does not panic")
    })
}

fn option<T>(
    socket: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: pointer and length describe `value`, which the kernel reads; the memory that pointers
    // in it refer to is kept alive by the caller.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            libc::socklen_t::try_from(size_of::<T>()).expect("short"),
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn interface_address(interface: &InterfaceId, ethernet_type: u16) -> libc::sockaddr_ll {
    // SAFETY: the fields are integers, for which zero is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::c_ushort::try_from(libc::AF_PACKET).expect("a small number");
    address.sll_protocol = ethernet_type.to_be();
    address.sll_ifindex = i32::try_from(interface.index).expect("a small number");
    address
}

const ADDRESS_BYTES: usize = size_of::<libc::sockaddr_ll>();

fn bind(socket: &OwnedFd, address: &libc::sockaddr_ll) -> io::Result<()> {
    let length = libc::socklen_t::try_from(ADDRESS_BYTES).expect("short");
    // SAFETY: pointer and length describe `address`, which the kernel reads.
    let result = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            std::ptr::from_ref(address).cast(),
            length,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn send_to(socket: &OwnedFd, frame: &[u8], address: &libc::sockaddr_ll) -> io::Result<()> {
    let length = libc::socklen_t::try_from(ADDRESS_BYTES).expect("short");
    // SAFETY: pointers and lengths describe `frame` and `address`, which the kernel reads.
    let result = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            frame.as_ptr().cast(),
            frame.len(),
            0,
            std::ptr::from_ref(address).cast(),
            length,
        )
    };
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// A guarded socket of node 1, sockets on both sides of a network, and a frame between them.
struct Scene {
    testbed: Testbed,
    socket: OwnedFd,
    interfaces: [InterfaceId; 2],
    ends: [(UdpSocket, SocketAddr, UdpSocket, SocketAddr); 2],
}

fn scene() -> Option<Scene> {
    let testbed = make(Testbed::builder().networks(2))?;
    let interfaces = ["net0", "net1"].map(|name| interface(&testbed, 1, name));
    let ends = [0, 1].map(|network| {
        let (own, from) = udp(&testbed, 1, testbed.node(1).addresses[network]);
        let (there, to) = udp(&testbed, 2, testbed.node(2).addresses[network]);
        (own, from, there, to)
    });
    let made = testbed.inside(1, || guarded_socket(&interfaces[0]));
    let (socket, cookie) = made.expect("the node").expect("a guarded socket");
    assert_ne!(cookie, 0);
    Some(Scene {
        testbed,
        socket,
        interfaces,
        ends,
    })
}

impl Scene {
    fn route(&self, network: usize) -> dipole_bpf::neighbours::Route {
        let (own, _, _, to) = &self.ends[network];
        let mut ways = testbed::Ways::open(&self.testbed, 1, &self.interfaces[network], own);
        ways.wait_for(to.ip(), |_| true)
    }

    fn frame(&self, network: usize, payload: &[u8]) -> Vec<u8> {
        let (_, from, _, to) = &self.ends[network];
        let route = self.route(network);
        let template = Template::new(&route.ethernet(), *from, *to, route.hops);
        let template = template.expect("one version");
        let headers = template.finish(0, payload);
        [&headers[..template.bytes()], payload].concat()
    }
}

#[test]
fn an_unprivileged_process_can_send_through_it() {
    let Some(scene) = scene() else { return };
    let route = scene.route(0);
    let (_, from, there, to) = &scene.ends[0];
    let mut sender = RawSender::from_socket(scene.socket);
    let sent = without_privileges(|| sender.send(&route, *from, *to, b"granted"));
    assert_eq!(sent.expect("works"), Sent::Taken);
    assert_eq!(receive(there), (*from, b"granted".to_vec()));
}

fn hears(socket: BorrowedFd<'_>) -> bool {
    let mut buffer = [0; 64];
    rustix::net::recv(socket, &mut buffer[..], RecvFlags::DONTWAIT).is_ok()
}

#[test]
fn it_receives_nothing_whatever_its_holder_does() {
    let Some(scene) = scene() else { return };
    let pass = libc::sock_filter {
        code: 0x06,
        jt: 0,
        jf: 0,
        k: u32::MAX,
    };
    let open = OpenSocket::on(&scene);
    without_privileges(|| {
        // Bound to everything on the interface, which is permitted.
        bind(
            &scene.socket,
            &interface_address(&scene.interfaces[0], EVERYTHING),
        )
        .expect("is allowed");
        let mut pass = pass;
        let program = libc::sock_fprog {
            len: 1,
            filter: &raw mut pass,
        };
        for (number, refused) in [
            (
                libc::SO_ATTACH_FILTER,
                option(
                    &scene.socket,
                    libc::SOL_SOCKET,
                    libc::SO_ATTACH_FILTER,
                    &program,
                ),
            ),
            (
                libc::SO_DETACH_FILTER,
                option(
                    &scene.socket,
                    libc::SOL_SOCKET,
                    libc::SO_DETACH_FILTER,
                    &0_i32,
                ),
            ),
            (
                libc::SO_LOCK_FILTER,
                option(
                    &scene.socket,
                    libc::SOL_SOCKET,
                    libc::SO_LOCK_FILTER,
                    &0_i32,
                ),
            ),
        ] {
            let error = refused.expect_err("the filter is locked");
            assert_eq!(error.raw_os_error(), Some(libc::EPERM), "option {number}");
        }
    });
    // A socket without a filter receives this.
    let (own, _, there, to) = &scene.ends[0];
    own.send_to(b"heard", to).expect("sent");
    assert_eq!(receive(there).1, b"heard");
    let deadline = Instant::now() + testbed::PATIENCE;
    while !hears(open.0.as_fd()) {
        assert!(
            Instant::now() < deadline,
            "an open socket hears its interface"
        );
        thread::sleep(Duration::from_millis(1));
    }
    assert!(!hears(scene.socket.as_fd()));
}

/// A packet socket without a filter on the first interface.
struct OpenSocket(OwnedFd);

impl OpenSocket {
    fn on(scene: &Scene) -> OpenSocket {
        let made = scene.testbed.inside(1, || {
            rustix::net::socket(
                rustix::net::AddressFamily::PACKET,
                rustix::net::SocketType::RAW,
                None,
            )
        });
        let socket = made.expect("the node").expect("root may");
        bind(
            &socket,
            &interface_address(&scene.interfaces[0], EVERYTHING),
        )
        .expect("bound");
        OpenSocket(socket)
    }
}

#[test]
fn its_holder_can_send_through_another_interface() {
    let Some(scene) = scene() else { return };
    let (_, from, there, _) = &scene.ends[1];
    let frame = scene.frame(1, b"by address");
    let other = interface_address(&scene.interfaces[1], 0);
    without_privileges(|| send_to(&scene.socket, &frame, &other)).expect("it is permitted");
    assert_eq!(receive(there), (*from, b"by address".to_vec()));
    let frame = scene.frame(1, b"by binding");
    without_privileges(|| bind(&scene.socket, &other)).expect("it is permitted");
    without_privileges(|| rustix::net::send(&scene.socket, &frame, SendFlags::empty()))
        .expect("sent");
    assert_eq!(receive(there), (*from, b"by binding".to_vec()));
}

#[test]
fn its_holder_can_bypass_the_queueing_and_with_it_the_egress_programs() {
    let Some(scene) = scene() else { return };
    let (_, from, there, to) = &scene.ends[0];
    let frames = [&b"kept"[..], b"past"].map(|payload| scene.frame(0, payload));
    let namespace = &scene.testbed.node(1).namespace;
    let mut command = std::process::Command::new("tc");
    let status = command
        .args(["-n", namespace])
        .args("qdisc replace dev net0 root blackhole".split(' '))
        .status();
    assert!(status.expect("tc runs").success());
    without_privileges(|| {
        // The queueing discipline drops it, as it would drop frames of any socket.
        let _swallowed = rustix::net::send(&scene.socket, &frames[0], SendFlags::empty());
        option(
            &scene.socket,
            libc::SOL_PACKET,
            libc::PACKET_QDISC_BYPASS,
            &1_i32,
        )
        .expect("it is permitted");
        rustix::net::send(&scene.socket, &frames[1], SendFlags::empty()).expect("sent");
    });
    assert_eq!(receive(there), (*from, b"past".to_vec()));
    there.set_nonblocking(true).expect("set");
    assert!(
        there.recv_from(&mut [0; 8]).is_err(),
        "nothing else for {to}"
    );
}

#[test]
fn its_holder_can_make_the_interface_promiscuous() {
    let Some(scene) = scene() else { return };
    let wish = libc::packet_mreq {
        mr_ifindex: i32::try_from(scene.interfaces[0].index).expect("small"),
        mr_type: libc::c_ushort::try_from(libc::PACKET_MR_PROMISC).expect("small"),
        mr_alen: 0,
        mr_address: [0; 8],
    };
    let done = without_privileges(|| {
        option(
            &scene.socket,
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            &wish,
        )
    });
    done.expect("it is permitted");
}
