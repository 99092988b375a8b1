//! Receive queues that a process polls itself.
//!
//! Normally an interface interrupts a core, which then processes the packets. With busy polling,
//! an empty poll of a socket processes them instead: the kernel remembers from which receive
//! queue (NAPI context) the socket's packets arrived, and polls that queue. Sockets whose packets
//! come from no such queue (loopback, a veth without GRO) are not affected.
//!
//! Source: Linux, `Documentation/networking/napi.rst`; option numbers from
//! `include/uapi/asm-generic/socket.h`.

use std::io;
use std::os::fd::BorrowedFd;

use crate::sys;

const SO_BUSY_POLL: libc::c_int = 46;
const SO_INCOMING_NAPI_ID: libc::c_int = 56;
const SO_PREFER_BUSY_POLL: libc::c_int = 69;

/// Action of the kernel when a poll of a socket finds no packet.
#[derive(Debug, Default)]
pub enum BusyPolling {
    /// Nothing: packets arrive through interrupts.
    #[default]
    Off,
    /// The kernel refuses to busy-poll; packets arrive through interrupts.
    Refused(io::Error),
    /// It polls the receive queue; interrupts stay on.
    WithInterrupts,
    /// It polls the receive queue. Interrupts stay off meanwhile if the interface's
    /// `napi_defer_hard_irqs` and `gro_flush_timeout` are set.
    Preferred,
}

impl BusyPolling {
    /// Turns on busy polling for a socket.
    #[must_use]
    pub fn start(socket: BorrowedFd<'_>) -> BusyPolling {
        let set = |option| sys::set_option(socket, libc::SOL_SOCKET, option, 1_i32);
        // The time in microseconds matters only for blocking calls.
        match (set(SO_BUSY_POLL), set(SO_PREFER_BUSY_POLL)) {
            (Err(cause), _) => BusyPolling::Refused(cause),
            // It needs CAP_NET_ADMIN, and Linux 5.11.
            (Ok(()), Err(_)) => BusyPolling::WithInterrupts,
            (Ok(()), Ok(())) => BusyPolling::Preferred,
        }
    }

    /// Turns busy polling off.
    pub fn stop(socket: BorrowedFd<'_>) {
        for option in [SO_BUSY_POLL, SO_PREFER_BUSY_POLL] {
            let _ = sys::set_option(socket, libc::SOL_SOCKET, option, 0_i32);
        }
    }
}

/// Number of the receive queue that a socket busy-polls; `None` before the first packet, and if
/// packets come from no queue. For an unconnected socket the first packet decides.
#[must_use]
pub fn receive_queue(socket: BorrowedFd<'_>) -> Option<u32> {
    let queue: u32 = sys::socket_option(socket, SO_INCOMING_NAPI_ID).ok()?;
    (queue != 0).then_some(queue)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn a_descriptor_that_cannot_be_polled_is_refused_with_the_reason() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let refused = BusyPolling::start(file.as_fd());
        assert!(
            matches!(&refused, BusyPolling::Refused(cause) if cause.raw_os_error() == Some(libc::ENOTSOCK)),
            "{refused:?}"
        );
        assert_eq!(receive_queue(file.as_fd()), None);
    }

    #[test]
    fn loopback_packets_come_from_no_queue() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(socket.local_addr().unwrap()).unwrap();
        socket.send(b"x").unwrap();
        assert_eq!(socket.recv(&mut [0; 2]).unwrap(), 1);
        assert_eq!(receive_queue(socket.as_fd()), None);
    }

    #[test]
    fn without_privileges_interrupts_stay_on() {
        // Capabilities belong to the thread.
        let outcome = std::thread::spawn(|| {
            let none = rustix::thread::CapabilitySets {
                effective: rustix::thread::CapabilitySet::empty(),
                permitted: rustix::thread::CapabilitySet::empty(),
                inheritable: rustix::thread::CapabilitySet::empty(),
            };
            rustix::thread::set_capabilities(None, none).unwrap();
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            BusyPolling::start(socket.as_fd())
        });
        let outcome = outcome.join().unwrap();
        let expected = matches!(
            outcome,
            BusyPolling::WithInterrupts | BusyPolling::Refused(_)
        );
        assert!(expected, "{outcome:?}");
    }
}
