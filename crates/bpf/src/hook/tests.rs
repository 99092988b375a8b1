//! Tests of hooks on real interfaces, in network namespaces.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use dipole_link::sys::set_option;
use dipole_testbed::Testbed;
use rustix::net::{AddressFamily, SocketType, ipproto};

use super::drain::{Deposit, Drain};
use super::*;
use crate::grant::ring_info;
use crate::program::assembler::{Assembler, Reg};

const RING_BYTES: u32 = 1 << 16;

/// Two nodes on one network; `None` with a message if they cannot be created.
pub(super) fn testbed() -> Option<Testbed> {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return None;
    }
    let testbed = Testbed::builder().nodes(2).mtu(9000).build();
    Some(testbed.expect("a testbed can be made here"))
}

pub(super) fn interface(testbed: &Testbed, node: u32) -> InterfaceId {
    let index = testbed.inside(node, || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        rustix::net::netdevice::name_to_index(&socket, "net0")
    });
    InterfaceId {
        index: index.unwrap().unwrap(),
        name: "net0".to_owned(),
    }
}

/// A socket on a node's interface with a read time-out of 10 s.
pub(super) fn socket(testbed: &Testbed, node: u32) -> UdpSocket {
    let address = testbed.node(node).addresses[0];
    let socket = testbed.inside(node, || UdpSocket::bind((address, 0)));
    let socket = socket.unwrap().unwrap();
    let patience = Some(Duration::from_secs(10));
    socket.set_read_timeout(patience).unwrap();
    socket
}

/// Waits for at least this many packets in the ring.
pub(super) fn wait_for(drain: &mut Drain, count: usize) -> Vec<Deposit> {
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut found = Vec::new();
    while found.len() < count {
        assert!(
            Instant::now() < deadline,
            "only {} packets arrived",
            found.len()
        );
        found.extend(drain.take());
        std::thread::yield_now();
    }
    found
}

/// Attaches the program to a node's interface.
pub(super) fn attach(testbed: &Testbed, node: u32) -> Hook {
    let interface = interface(testbed, node);
    let hook = testbed.inside(node, || Hook::attach(&interface)).unwrap();
    hook.unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn packets_to_an_entered_port_are_deposited_and_others_reach_their_socket() {
    let Some(testbed) = testbed() else { return };
    let hook = attach(&testbed, 2);
    assert_eq!(hook.interface().index, interface(&testbed, 2).index);
    let ring = create_ring(RING_BYTES).unwrap();
    let mut drain = Drain::open(ring.as_fd());
    let (sender, ours, other) = (
        socket(&testbed, 1),
        socket(&testbed, 2),
        socket(&testbed, 2),
    );
    let to = ours.local_addr().unwrap();
    hook.add(to.ip(), to.port(), ring.as_fd()).unwrap();

    let lengths = [1, 64, 128, 129, 1400, 1472, 8900];
    for length in lengths {
        let payload: Vec<u8> = (0..=u8::MAX).cycle().take(length).collect();
        sender.send_to(&payload, to).unwrap();
        let found = wait_for(&mut drain, 1);
        let from = sender.local_addr().unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].payload, payload);
        assert_eq!(found[0].version, 4);
        assert_eq!(source(&found[0]), from);
    }
    sender
        .send_to(b"passes", other.local_addr().unwrap())
        .unwrap();
    let mut buffer = [0; 100];
    assert_eq!(other.recv(&mut buffer).unwrap(), 6);

    // Without a ring the packets reach the socket again.
    hook.remove(to.ip(), to.port()).unwrap();
    sender.send_to(b"socket", to).unwrap();
    assert_eq!(ours.recv(&mut buffer).unwrap(), 6);
    assert_eq!(&buffer[..6], b"socket");
    let counters = hook.counters().unwrap();
    let wanted = Counters {
        deposited: lengths.len() as u64,
        ..Counters::default()
    };
    assert_eq!(counters, wanted);
}

fn source(deposit: &Deposit) -> SocketAddr {
    let [a, b, c, d] = deposit.source[..4].try_into().unwrap();
    (IpAddr::from([a, b, c, d]), deposit.port).into()
}

/// Waits until a condition holds.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn packets_that_the_program_does_not_take_reach_their_socket() {
    let Some(testbed) = testbed() else { return };
    let hook = attach(&testbed, 2);
    let ring = create_ring(RING_BYTES).unwrap();
    let mut drain = Drain::open(ring.as_fd());
    let (sender, ours) = (socket(&testbed, 1), socket(&testbed, 2));
    let to = ours.local_addr().unwrap();
    hook.add(to.ip(), to.port(), ring.as_fd()).unwrap();

    // TCP to the same address and port.
    let listener = testbed
        .inside(2, || TcpListener::bind(to))
        .unwrap()
        .unwrap();
    let stream = testbed.inside(1, || TcpStream::connect(to)).unwrap();
    stream.unwrap().write_all(b"stream").unwrap();
    let mut text = String::new();
    listener
        .accept()
        .unwrap()
        .0
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, "stream");

    ping(&testbed, to.ip());

    let mut buffer = vec![0; 65_536];
    sender.send_to(&[7; 20_000], to).unwrap();
    assert_eq!(ours.recv(&mut buffer).unwrap(), 20_000);
    send_options(&sender);
    sender.send_to(b"options", to).unwrap();
    assert_eq!(ours.recv(&mut buffer).unwrap(), 7);
    assert_eq!(drain.take(), []);
    let wanted = Counters {
        fragments: 1,
        options: 1,
        ..Counters::default()
    };
    assert_eq!(hook.counters().unwrap(), wanted);
}

/// Adds IP options to all further packets: four no-op bytes.
fn send_options(socket: &UdpSocket) {
    set_option(
        socket.as_fd(),
        libc::IPPROTO_IP,
        libc::IP_OPTIONS,
        [1_u8; 4],
    )
    .unwrap();
}

/// The MAC address of a node's interface.
pub(super) fn mac(testbed: &Testbed, node: u32) -> [u8; 6] {
    let found = testbed.inside(node, || interface_hardware("net0"));
    found.unwrap().unwrap().1
}

/// Checks that an echo request from node 1 is answered.
fn ping(testbed: &Testbed, to: IpAddr) {
    let socket = testbed.inside(1, || {
        rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP))
    });
    let socket = UdpSocket::from(socket.unwrap().unwrap());
    let patience = Some(Duration::from_secs(10));
    socket.set_read_timeout(patience).unwrap();
    // Type 8, code 0, checksum over six zero bytes.
    socket
        .send_to(&[8, 0, 0xf7, 0xff, 0, 0, 0, 0], (to, 0))
        .unwrap();
    let mut answer = [0; 100];
    let length = socket.recv(&mut answer).unwrap();
    assert_eq!((length, answer[20]), (28, 0));
}

#[test]
fn packets_that_find_the_ring_full_reach_the_socket() {
    let Some(testbed) = testbed() else { return };
    let hook = attach(&testbed, 2);
    let ring = create_ring(4096).unwrap();
    let mut drain = Drain::open(ring.as_fd());
    let (sender, ours) = (socket(&testbed, 1), socket(&testbed, 2));
    let to = ours.local_addr().unwrap();
    hook.add(to.ip(), to.port(), ring.as_fd()).unwrap();
    assert_eq!(hook.full(to.ip(), to.port()).unwrap(), 0);
    // A record for 1400 B takes 1568 B, so two fit.
    let mut buffer = vec![0; 9000];
    for number in 0..5_u8 {
        sender.send_to(&[number; 1400], to).unwrap();
    }
    let deposited = wait_for(&mut drain, 2);
    let deposited: Vec<u8> = deposited.iter().map(|found| found.payload[0]).collect();
    assert_eq!(deposited, [0, 1]);
    for number in 2..5 {
        assert_eq!(ours.recv(&mut buffer).unwrap(), 1400);
        assert_eq!(buffer[0], number);
    }
    assert_eq!(hook.full(to.ip(), to.port()).unwrap(), 3);
    assert_eq!(hook.counters().unwrap().full, 3);
    sender.send_to(&[9; 1400], to).unwrap();
    assert_eq!(wait_for(&mut drain, 1)[0].payload, [9; 1400]);
}

/// Names of the programs at the ingress of a node's interface.
fn ingress(testbed: &Testbed, node: u32) -> Vec<String> {
    let interface = interface(testbed, node);
    let all = testbed
        .inside(node, || attached(&interface))
        .unwrap()
        .unwrap();
    let ingress = all
        .into_iter()
        .filter(|found| found.side == TrafficDirection::Ingress);
    ingress.map(|found| found.name.unwrap()).collect()
}

#[test]
fn programs_of_others_stay_and_run_before_ours() {
    let Some(testbed) = testbed() else { return };
    let mut code = Assembler::default();
    code.set(Reg::R0, -1);
    code.exit();
    let code = code.finish().linked(&[]);
    let at = AttachKind::TcxIngress;
    let program = sys::load(at, "another", &code).unwrap();
    let index = interface(&testbed, 2).index;
    let theirs = testbed.inside(2, || sys::attach(program.as_fd(), index, at));
    let theirs = theirs.unwrap().unwrap();

    let hook = attach(&testbed, 2);
    assert_eq!(ingress(&testbed, 2), ["another", "dipole_ingress"]);
    drop(hook);
    until("ours goes", || ingress(&testbed, 2) == ["another"]);
    drop(theirs);
    until("theirs goes", || ingress(&testbed, 2).is_empty());
}

/// A process that is killed with SIGKILL when this is dropped.
struct Holder(std::process::Child);

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn nothing_is_attached_when_the_last_holder_has_been_killed() {
    let Some(testbed) = testbed() else { return };
    let hook = attach(&testbed, 2);
    let ring = create_ring(RING_BYTES).unwrap();
    let mut drain = Drain::open(ring.as_fd());
    let (sender, ours) = (socket(&testbed, 1), socket(&testbed, 2));
    let to = ours.local_addr().unwrap();
    hook.add(to.ip(), to.port(), ring.as_fd()).unwrap();
    // Another process holds the link without using it.
    let link = hook.link.try_clone().unwrap();
    let holder = Holder(
        Command::new("sleep")
            .arg("1000")
            .stdin(link)
            .spawn()
            .unwrap(),
    );
    drop(hook);
    sender.send_to(b"held", to).unwrap();
    assert_eq!(wait_for(&mut drain, 1)[0].payload, b"held");

    drop(holder);
    until("the program goes", || {
        sender.send_to(b"socket", to).unwrap();
        drain.take().is_empty()
    });
    let mut buffer = [0; 100];
    assert_eq!(ours.recv(&mut buffer).unwrap(), 6);
    assert_eq!(ingress(&testbed, 2), [""; 0]);
}

#[test]
fn a_hook_is_taken_over_through_its_descriptors() {
    let Some(testbed) = testbed() else { return };
    let hook = attach(&testbed, 2);
    let ring = create_ring(RING_BYTES).unwrap();
    let mut drain = Drain::open(ring.as_fd());
    let (sender, ours) = (socket(&testbed, 1), socket(&testbed, 2));
    let to = ours.local_addr().unwrap();
    hook.add(to.ip(), to.port(), ring.as_fd()).unwrap();
    let kept = || {
        hook.descriptors()
            .map(|kept| kept.try_clone_to_owned().unwrap())
    };
    let mut wrong = kept();
    wrong.swap(0, 1);
    let wrong = Hook::from_descriptors(hook.interface(), wrong).unwrap_err();
    assert!(wrong.to_string().contains("net0"), "{wrong}");
    let mut wrong = kept();
    wrong.swap(2, 3);
    assert!(Hook::from_descriptors(hook.interface(), wrong).is_err());

    let taken = Hook::from_descriptors(hook.interface(), kept()).unwrap();
    drop(hook);
    sender.send_to(b"kept", to).unwrap();
    assert_eq!(wait_for(&mut drain, 1)[0].payload, b"kept");
    assert_eq!(taken.counters().unwrap().deposited, 1);
}

#[test]
fn replacing_a_ring_during_traffic_loses_nothing() {
    let Some(testbed) = testbed() else { return };
    let hook = attach(&testbed, 2);
    let (sender, ours) = (socket(&testbed, 1), socket(&testbed, 2));
    let to = ours.local_addr().unwrap();
    let mut next = 0_u32;
    let mut former: Option<Drain> = None;
    for _ in 0..20 {
        let ring = create_ring(RING_BYTES).unwrap();
        let mut drain = Drain::open(ring.as_fd());
        // Packets arrive while the ring is replaced; the first go into the old one.
        let sent = std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                (next..next + 50).for_each(|number| {
                    sender.send_to(&number.to_ne_bytes(), to).unwrap();
                });
                next + 50
            });
            hook.add(to.ip(), to.port(), ring.as_fd()).unwrap();
            sending.join().unwrap()
        });
        let mut found = Vec::new();
        ours.set_nonblocking(true).unwrap();
        until("all packets come", || {
            let mut buffer = [0; 4];
            while let Ok(4) = ours.recv(&mut buffer) {
                found.push(u32::from_ne_bytes(buffer));
            }
            for drain in former.iter_mut().chain([&mut drain]) {
                let numbers = drain.take().into_iter().map(|found| found.payload);
                found.extend(numbers.map(|bytes| u32::from_ne_bytes(bytes.try_into().unwrap())));
            }
            found.len() >= 50
        });
        found.sort_unstable();
        assert_eq!(found, (next..sent).collect::<Vec<_>>());
        (next, former) = (sent, Some(drain));
    }
}

#[test]
fn addresses_of_several_hosts_and_other_maps_are_refused() {
    let Some(testbed) = testbed() else { return };
    let hook = attach(&testbed, 2);
    let ring = create_ring(RING_BYTES).unwrap();
    for address in ["0.0.0.0", "224.0.0.1", "255.255.255.255", "::", "ff02::1"] {
        let refused = hook
            .add(address.parse().unwrap(), 1, ring.as_fd())
            .unwrap_err();
        assert!(matches!(refused, HookError::NotOneHost { .. }), "{refused}");
    }
    let own = testbed.node(2).addresses[0].into();
    let [_, rings, ..] = hook.descriptors();
    let refused = hook.add(own, 1, rings).unwrap_err().to_string();
    assert!(refused.contains("net0: changing a BPF map"), "{refused}");
    assert!(create_ring(5000).is_err());
    assert_eq!(ring_info(ring.as_fd()).unwrap().bytes, RING_BYTES);
    assert!(ring_info(rings).is_err());
    assert!(ring_info(File::open("/dev/null").unwrap().as_fd()).is_err());
}

#[test]
fn an_error_names_interface_step_and_missing_capability() {
    let error = HookError::Refused {
        interface: "eth1".to_owned(),
        step: Step::Tcx,
        cause: io::Error::from_raw_os_error(libc::EPERM),
        log: String::new(),
        missing: vec!["CAP_NET_ADMIN"],
    };
    assert_eq!(
        error.to_string(),
        "cannot open the bpf link on eth1: attaching at TCX ingress needs CAP_NET_ADMIN \
         (Operation not permitted (os error 1)); let the machine's agent grant rings on eth1 \
         (/etc/dipole/interfaces.toml), or set DIPOLE_LINK=udp"
    );
    let interface = InterfaceId {
        index: 1,
        name: "nosuch0".to_owned(),
    };
    let error = Hook::attach(&interface).unwrap_err().to_string();
    assert!(
        error.contains("nosuch0: querying its hardware address"),
        "{error}"
    );
}
