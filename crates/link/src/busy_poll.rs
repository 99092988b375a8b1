//! Receive queues that a process polls itself.
//!
//! An interface usually interrupts a core, which then takes the packets. A look at a socket that
//! finds nothing can take them instead: the kernel remembers by which receive queue (NAPI
//! context) a packet came to the socket, and polls that one. Sockets whose packets come by no such
//! queue (the loopback interface, a veth without GRO) are not affected.
//!
//! Source: Linux, `Documentation/networking/napi.rst`; numbers of options from
//! `include/uapi/asm-generic/socket.h`.

use std::io;
use std::os::fd::BorrowedFd;

use crate::sys;

const SO_BUSY_POLL: libc::c_int = 46;
const SO_INCOMING_NAPI_ID: libc::c_int = 56;
const SO_PREFER_BUSY_POLL: libc::c_int = 69;

/// What the kernel does when a look at a socket finds no packet.
#[derive(Debug, Default)]
pub enum BusyPolling {
    /// Nothing: packets come by interrupts.
    #[default]
    Off,
    /// The kernel refuses to poll; packets come by interrupts.
    Refused(io::Error),
    /// It polls the receive queue, interrupts come as well.
    BesideInterrupts,
    /// It polls the receive queue. Interrupts stay off meanwhile, if the interface's
    /// `napi_defer_hard_irqs` and `gro_flush_timeout` are set.
    Preferred,
}

impl BusyPolling {
    /// Lets looks at a socket poll.
    #[must_use]
    pub fn start(socket: BorrowedFd<'_>) -> BusyPolling {
        let set = |option| sys::set_option(socket, libc::SOL_SOCKET, option, 1_i32);
        // The microseconds count only for calls that block.
        match (set(SO_BUSY_POLL), set(SO_PREFER_BUSY_POLL)) {
            (Err(cause), _) => BusyPolling::Refused(cause),
            // It needs CAP_NET_ADMIN, and Linux 5.11.
            (Ok(()), Err(_)) => BusyPolling::BesideInterrupts,
            (Ok(()), Ok(())) => BusyPolling::Preferred,
        }
    }

    /// Ends that.
    pub fn stop(socket: BorrowedFd<'_>) {
        for option in [SO_BUSY_POLL, SO_PREFER_BUSY_POLL] {
            let _ = sys::set_option(socket, libc::SOL_SOCKET, option, 0_i32);
        }
    }
}

/// The number of the receive queue that looks at a socket can poll; `None` before the first
/// packet, and where packets come by none. Of a socket that is not connected the first packet decides.
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
    fn what_cannot_be_polled_is_refused_with_the_reason() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let refused = BusyPolling::start(file.as_fd());
        assert!(
            matches!(&refused, BusyPolling::Refused(cause) if cause.raw_os_error() == Some(libc::ENOTSOCK)),
            "{refused:?}"
        );
        assert_eq!(receive_queue(file.as_fd()), None);
    }

    #[test]
    fn packets_of_the_loopback_interface_come_by_no_queue() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(socket.local_addr().unwrap()).unwrap();
        socket.send(b"x").unwrap();
        assert_eq!(socket.recv(&mut [0; 2]).unwrap(), 1);
        assert_eq!(receive_queue(socket.as_fd()), None);
    }

    #[test]
    fn without_privileges_interrupts_come_as_well() {
        // Capabilities are of the thread.
        let asked = std::thread::spawn(|| {
            let none = rustix::thread::CapabilitySets {
                effective: rustix::thread::CapabilitySet::empty(),
                permitted: rustix::thread::CapabilitySet::empty(),
                inheritable: rustix::thread::CapabilitySet::empty(),
            };
            rustix::thread::set_capabilities(None, none).unwrap();
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            BusyPolling::start(socket.as_fd())
        });
        let asked = asked.join().unwrap();
        let expected = matches!(
            asked,
            BusyPolling::BesideInterrupts | BusyPolling::Refused(_)
        );
        assert!(expected, "{asked:?}");
    }
}
