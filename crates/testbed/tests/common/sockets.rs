//! UDP and raw sockets in the namespaces of nodes.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use dipole_testbed::Testbed;

/// Opens a socket inside a node, on its address of a network.
pub(crate) fn socket(testbed: &Testbed, node: u32, network: usize) -> UdpSocket {
    let address = testbed.node(node).addresses[network];
    let socket = testbed.inside(node, || UdpSocket::bind((address, 0)));
    let socket = socket.expect("a node").expect("a free port");
    let patience = Some(Duration::from_secs(10));
    socket.set_read_timeout(patience).expect("a time");
    socket
}

pub(crate) fn address(socket: &UdpSocket) -> SocketAddr {
    socket.local_addr().expect("it is bound")
}
