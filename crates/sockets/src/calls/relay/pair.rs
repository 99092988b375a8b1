//! The local connection between a program and its relay.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use libc::{SOL_SOCKET, c_int};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, acceptfrom_with, bind, connect, getpeername,
    getsockname, listen, socket_with, socketpair, sockopt,
};

use crate::kernel;

/// How long the connection may take: only a firewall delays it.
const MAX_CONNECT_WAIT: Duration = Duration::from_secs(1);

/// Options of the old socket that the program's new one gets.
const OPTIONS: [(c_int, c_int); 13] = [
    (SOL_SOCKET, libc::SO_RCVTIMEO),
    (SOL_SOCKET, libc::SO_SNDTIMEO),
    (SOL_SOCKET, libc::SO_LINGER),
    (SOL_SOCKET, libc::SO_KEEPALIVE),
    (SOL_SOCKET, libc::SO_OOBINLINE),
    (SOL_SOCKET, libc::SO_PRIORITY),
    (SOL_SOCKET, libc::SO_TIMESTAMP),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_CORK),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
];

/// Both ends of the connection.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) program_end: OwnedFd,
    pub(super) relay_end: OwnedFd,
}

/// Creates a connection whose ends have the IP addresses of the old one, if possible.
pub(super) fn create(own: BorrowedFd<'_>) -> Result<Pair, Errno> {
    let address = |found: Result<SocketAddr, Errno>| found.ok().map(|found| found.ip());
    let here = address(getsockname(own).and_then(TryInto::try_into));
    let there = getpeername(own).and_then(|found| found.ok_or(Errno::NOTCONN)?.try_into());
    let there = address(there);
    if let (Some(here), Some(there)) = (here, there)
        && let Ok(pair) = over_tcp(here, there)
    {
        return Ok(pair);
    }
    let loopback = match here {
        Some(IpAddr::V6(_)) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        _ => IpAddr::V4(Ipv4Addr::LOCALHOST),
    };
    if let Ok(pair) = over_tcp(loopback, loopback) {
        return Ok(pair);
    }
    // The process has left the network namespace of its connection, and has no loopback now.
    let flags = SocketFlags::CLOEXEC;
    let (program_end, relay_end) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(Pair {
        program_end,
        relay_end,
    })
}

fn over_tcp(here: IpAddr, there: IpAddr) -> Result<Pair, Errno> {
    let family = match here {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = || {
        let made = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        if family == AddressFamily::INET6 {
            // The address may be that of an IPv4 connection.
            sockopt::set_ipv6_v6only(&made, false)?;
        }
        Ok::<OwnedFd, Errno>(made)
    };
    let (listener, relay_end) = (socket()?, socket()?);
    bind(&listener, &SocketAddr::new(here, 0))?;
    listen(&listener, 1)?;
    bind(&relay_end, &SocketAddr::new(there, 0))?;
    let wait = Some(MAX_CONNECT_WAIT);
    sockopt::set_socket_timeout(&relay_end, sockopt::Timeout::Send, wait)?;
    connect(&relay_end, &getsockname(&listener)?)?;
    let own = getsockname(&relay_end)?;
    loop {
        let (program_end, from) = acceptfrom_with(&listener, SocketFlags::CLOEXEC)?;
        // Another process may have connected first.
        if from.as_ref() == Some(&own) {
            sockopt::set_tcp_nodelay(&relay_end, true)?;
            return Ok(Pair {
                program_end,
                relay_end,
            });
        }
    }
}

impl Pair {
    /// Sets the options of the program's old socket at its new one. The values that the kernel refuses
    /// stay as they are.
    pub(super) fn adopt_options(&self, own: BorrowedFd<'_>, low_water: Option<i32>) {
        let (old, new) = (own.as_raw_fd(), self.program_end.as_raw_fd());
        let mut value = [0_u64; 2];
        for (level, name) in OPTIONS {
            let mut length = size_of_val(&value);
            // SAFETY: the kernel writes at most `length` bytes to `value`, and reads as many. System
            // calls, because the C library's functions are replaced.
            unsafe {
                let (get, set) = (libc::SYS_getsockopt, libc::SYS_setsockopt);
                let (place, length_at) = (value.as_mut_ptr(), &raw mut length);
                if libc::syscall(get, old, level, name, place, length_at) == 0 {
                    libc::syscall(set, new, level, name, place, length);
                }
            }
        }
        let low_water = low_water.map_or_else(|| kernel::low_water(own), Ok);
        if let Ok(bytes) = low_water {
            let _unchanged = kernel::set_low_water(self.program_end.as_fd(), bytes);
        }
        if let Ok(flags) = rustix::fs::fcntl_getfl(own) {
            adopt_owner(old, new);
            let kept = flags & (OFlags::NONBLOCK | OFlags::from_bits_retain(libc::O_ASYNC as u32));
            let _unchanged = rustix::fs::fcntl_setfl(&self.program_end, kept);
        }
    }
}

/// Copies the process and the signal that is sent to it when the socket is ready.
fn adopt_owner(old: c_int, new: c_int) {
    const F_SETSIG: c_int = 10;
    const F_GETSIG: c_int = 11;
    for (get, set) in [(libc::F_GETOWN, libc::F_SETOWN), (F_GETSIG, F_SETSIG)] {
        // SAFETY: `fcntl` with integers; system calls, because the C library's function is replaced.
        unsafe {
            let value = libc::syscall(libc::SYS_fcntl, old, get, 0);
            libc::syscall(libc::SYS_fcntl, new, set, value);
        }
    }
}
