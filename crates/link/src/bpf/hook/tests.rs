//! The kernel's part on real cards, in network namespaces.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use dipole_bed::Bed;

use super::drain::{Deposit, Drain};
use super::*;

const RING_BYTES: u32 = 1 << 16;

/// Two nodes on one network, or a word why there are none.
fn bed() -> Option<Bed> {
    if let Some(why) = Bed::why_not() {
        eprintln!("SKIPPED: {why}");
        return None;
    }
    let bed = Bed::builder().nodes(2).mtu(9000).build();
    Some(bed.expect("a bed can be made here"))
}

fn card(bed: &Bed, node: u32) -> CardId {
    let index = bed.inside(node, || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        rustix::net::netdevice::name_to_index(&socket, "net0")
    });
    CardId {
        index: index.unwrap().unwrap(),
        name: "net0".to_owned(),
    }
}

/// A socket on a node's card that waits some seconds at most.
fn socket(bed: &Bed, node: u32) -> UdpSocket {
    let address = bed.node(node).addresses[0];
    let socket = bed.inside(node, || UdpSocket::bind((address, 0)));
    let socket = socket.unwrap().unwrap();
    let patience = Some(Duration::from_secs(10));
    socket.set_read_timeout(patience).unwrap();
    socket
}

/// What comes into the ring, at least this many packets.
fn wait_for(drain: &mut Drain, count: usize) -> Vec<Deposit> {
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut found = Vec::new();
    while found.len() < count {
        assert!(
            Instant::now() < deadline,
            "only {} packets came",
            found.len()
        );
        found.extend(drain.take());
        std::thread::yield_now();
    }
    found
}

/// The place, or a word why this card cannot have it.
fn attach(bed: &Bed, node: u32, place: Place) -> Hook {
    let card = card(bed, node);
    let hook = bed.inside(node, || Hook::attach(&card, place)).unwrap();
    hook.unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn packets_to_an_entered_port_are_deposited_and_others_reach_their_socket() {
    let Some(bed) = bed() else { return };
    for place in [Place::Tcx, Place::XdpGeneric, Place::XdpNative] {
        let hook = attach(&bed, 2, place);
        assert_eq!(
            (hook.card().index, hook.place()),
            (card(&bed, 2).index, place)
        );
        let ring = create_ring(RING_BYTES).unwrap();
        let mut drain = Drain::open(ring.as_fd());
        let (sender, ours, other) = (socket(&bed, 1), socket(&bed, 2), socket(&bed, 2));
        let to = ours.local_addr().unwrap();
        hook.add(to.ip(), to.port(), ring.as_fd()).unwrap();

        let lengths = [1, 64, 128, 129, 1400, 1472, 8900];
        for length in lengths {
            let payload: Vec<u8> = (0..=u8::MAX).cycle().take(length).collect();
            sender.send_to(&payload, to).unwrap();
            let found = wait_for(&mut drain, 1);
            let from = sender.local_addr().unwrap();
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].payload, payload, "{place}");
            assert_eq!(found[0].version, 4);
            assert_eq!(source(&found[0]), from);
        }
        sender
            .send_to(b"passes", other.local_addr().unwrap())
            .unwrap();
        let mut buffer = [0; 100];
        assert_eq!(other.recv(&mut buffer).unwrap(), 6);

        // Without its ring the port is a socket's again.
        hook.remove(to.ip(), to.port()).unwrap();
        sender.send_to(b"socket", to).unwrap();
        assert_eq!(ours.recv(&mut buffer).unwrap(), 6);
        assert_eq!(&buffer[..6], b"socket");
        let counters = hook.counters().unwrap();
        let wanted = Counters {
            deposited: lengths.len() as u64,
            ..Counters::default()
        };
        assert_eq!(counters, wanted, "{place}");
    }
}

fn source(deposit: &Deposit) -> SocketAddr {
    let [a, b, c, d] = deposit.source[..4].try_into().unwrap();
    (IpAddr::from([a, b, c, d]), deposit.port).into()
}
