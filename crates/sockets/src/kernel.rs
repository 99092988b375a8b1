//! A kernel socket as the protocol uses it. No call goes through the functions that this library
//! replaces or is a cancellation point.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketType, getpeername, getsockname,
    ipproto, sockopt,
};

use crate::mux::Stream;

/// Size of `struct tcp_info` (linux/tcp.h) up to `tcpi_bytes_received`.
const INFO: usize = 136;
/// The same up to `tcpi_bytes_retrans`.
const LONG_INFO: usize = 216;
const ESTABLISHED: u8 = 1;
const CLOSE_WAIT: u8 = 8;
/// States in which the end of the peer's stream has arrived: `TIME_WAIT`, `CLOSE_WAIT`, `LAST_ACK` and
/// `CLOSING`.
const AFTER_THE_END: [u8; 4] = [6, CLOSE_WAIT, 9, 11];
/// Missing in the `libc` crate.
const SO_NETNS_COOKIE: i32 = 71;

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Socket<'a> {
    pub(crate) fd: BorrowedFd<'a>,
    /// Bytes that the kernel counts as sent before the first data byte: 1 on the side that sent the SYN.
    pub(crate) base: u64,
    /// Flags of the program's call.
    pub(crate) flags: SendFlags,
    /// Bytes written as counted by this library.
    pub(crate) written: u64,
    /// The kernel's count differs: something wrote without this library.
    pub(crate) is_foreign: bool,
    /// Bytes before the marker may be unacknowledged.
    pub(crate) is_held: bool,
}

/// A time that never goes back.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// How long this thread has been ready to run without a core, if the kernel counts that.
pub(crate) fn waited_for_cores_ns() -> Option<u64> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(c"/proc/thread-self/schedstat", flags, Mode::empty()).ok()?;
    let mut text = [0; 80];
    let length = rustix::io::read(&file, &mut text).ok()?;
    let text = std::str::from_utf8(&text[..length]).ok()?;
    text.split(' ').nth(1)?.parse().ok()
}

/// True for TCP over IPv4 or IPv6.
pub(crate) fn is_tcp(fd: BorrowedFd<'_>) -> bool {
    let domain = sockopt::socket_domain(fd);
    matches!(domain, Ok(AddressFamily::INET | AddressFamily::INET6))
        && sockopt::socket_type(fd) == Ok(SocketType::STREAM)
        && sockopt::socket_protocol(fd) == Ok(Some(ipproto::TCP))
}

/// The value of `SO_RCVLOWAT`.
pub(crate) fn low_water(fd: BorrowedFd<'_>) -> Result<i32, Errno> {
    let mut bytes = [0; 4];
    match option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &mut bytes) {
        true => Ok(i32::from_ne_bytes(bytes)),
        false => Err(Errno::INVAL),
    }
}

/// Sets `SO_RCVLOWAT`.
pub(crate) fn set_low_water(fd: BorrowedFd<'_>, bytes: i32) -> Result<(), Errno> {
    // SAFETY: an int, as this option requires. The system call, because the C library's function is
    // replaced.
    let done = unsafe {
        libc::syscall(
            libc::SYS_setsockopt,
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            &raw const bytes,
            size_of::<i32>(),
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

/// True if the next byte is urgent.
pub(crate) fn is_at_mark(fd: BorrowedFd<'_>) -> bool {
    const SIOCATMARK: libc::c_int = 0x8905;
    let mut mark: libc::c_int = 0;
    // SAFETY: the kernel writes one int. The system call, because the C library's function is replaced.
    let done = unsafe { libc::syscall(libc::SYS_ioctl, fd.as_raw_fd(), SIOCATMARK, &raw mut mark) };
    done == 0 && mark != 0
}

/// False if the peer is on another machine, or uses another address of this one.
pub(crate) fn may_be_near(fd: BorrowedFd<'_>) -> bool {
    let ip = |address: SocketAddrAny| {
        let address: SocketAddr = address.try_into().ok()?;
        Some(address.ip().to_canonical())
    };
    let here = getsockname(fd).ok().and_then(ip);
    let there = getpeername(fd).ok().flatten().and_then(ip);
    match (here, there) {
        (Some(here), Some(there)) => here == there || here.is_loopback() || there.is_loopback(),
        // The socket is not connected yet.
        _ => true,
    }
}

fn option(fd: BorrowedFd<'_>, level: i32, name: i32, to: &mut [u8]) -> bool {
    let Ok(mut length) = libc::socklen_t::try_from(to.len()) else {
        return false;
    };
    // SAFETY: the kernel writes at most `length` bytes to `to` and the length it wrote.
    let done = unsafe {
        let number = libc::SYS_getsockopt;
        libc::syscall(
            number,
            fd.as_raw_fd(),
            level,
            name,
            to.as_mut_ptr(),
            &raw mut length,
        )
    };
    done == 0 && length as usize == to.len()
}

/// TCP state, bytes acknowledged, and bytes received.
fn info(fd: BorrowedFd<'_>) -> Option<(u8, u64, u64)> {
    let mut info = [0; INFO];
    if !option(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info) {
        return None;
    }
    let word = |at: usize| {
        let bytes = info[at..].first_chunk::<8>().copied();
        bytes.map(u64::from_ne_bytes)
    };
    Some((info[0], word(120)?, word(128)?))
}

/// Bytes of data that the program has sent, as far as the kernel has them, and that have arrived.
/// `None` if this is not TCP, or the kernel is older than 4.19.
pub(crate) fn counted(fd: BorrowedFd<'_>) -> Option<(u64, u64)> {
    let mut info = [0; LONG_INFO];
    if !option(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info) {
        return None;
    }
    let word = |at: usize| {
        let bytes = info[at..].first_chunk::<8>().copied();
        bytes.map(u64::from_ne_bytes)
    };
    let unsent = info[144..].first_chunk::<4>().copied();
    let unsent = u64::from(unsent.map(u32::from_ne_bytes)?);
    // All segments, without those sent again, and what has not been sent yet.
    let sent = word(200)?.saturating_sub(word(208)?) + unsent;
    // The kernel counts the end of the peer's stream as a byte.
    let end = u64::from(AFTER_THE_END.contains(&info[0]));
    Some((sent, word(128)?.saturating_sub(end)))
}

/// Identifies the network namespace of the socket, unique on this machine.
pub(crate) fn namespace(fd: BorrowedFd<'_>) -> Option<u64> {
    let mut cookie = [0; 8];
    let told = option(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE, &mut cookie);
    told.then(|| u64::from_ne_bytes(cookie))
}

impl Socket<'_> {
    /// Number of bytes read from the connection, while it is open in both directions.
    pub(crate) fn position(&self) -> Option<u64> {
        let (state, _, before) = info(self.fd)?;
        let queued = rustix::io::ioctl_fionread(self.fd).ok()?;
        let (_, _, after) = info(self.fd)?;
        (state == ESTABLISHED && before == after).then(|| before.checked_sub(queued))?
    }

    /// True while both ends have the connection open.
    pub(crate) fn is_established(&self) -> bool {
        info(self.fd).is_some_and(|(state, ..)| state == ESTABLISHED)
    }

    fn waits_for(&self, what: PollFlags, most_ms: i64) -> bool {
        let mut wanted = [PollFd::from_borrowed_fd(self.fd, what)];
        let most = Timespec {
            tv_sec: 0,
            tv_nsec: most_ms * 1_000_000,
        };
        poll(&mut wanted, Some(&most)).is_ok_and(|ready| ready > 0)
    }
}

impl Stream for Socket<'_> {
    fn receive(&mut self, to: &mut [u8], peek: bool) -> Result<usize, Errno> {
        let flags = RecvFlags::DONTWAIT;
        let flags = if peek { flags | RecvFlags::PEEK } else { flags };
        let (count, _) = rustix::net::recv(self.fd, to, flags)?;
        Ok(count)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        let sent = rustix::net::send(self.fd, bytes, self.flags | SendFlags::DONTWAIT);
        // The marker stands for a large write, so Nagle must not delay it.
        if self.is_held
            && sockopt::tcp_nodelay(self.fd) == Ok(false)
            && sockopt::set_tcp_nodelay(self.fd, true).is_ok()
        {
            let _ = sockopt::set_tcp_nodelay(self.fd, false);
        }
        sent
    }

    fn sent(&mut self) -> Option<u64> {
        let (state, before, _) = info(self.fd)?;
        let mut queued: libc::c_int = 0;
        // SAFETY: the kernel writes one int. TIOCOUTQ is the number of SIOCOUTQ.
        let done = unsafe {
            let fd = self.fd.as_raw_fd();
            libc::syscall(libc::SYS_ioctl, fd, libc::TIOCOUTQ, &raw mut queued)
        };
        let (_, after, _) = info(self.fd)?;
        let writable = state == ESTABLISHED || state == CLOSE_WAIT;
        // An acknowledgement in between would be counted twice, or not at all.
        if done != 0 || before != after || !writable {
            return None;
        }
        let queued = u64::try_from(queued).ok()?;
        let sent = (before + queued).checked_sub(self.base)?;
        self.is_foreign = sent != self.written;
        self.is_held = queued > 0;
        (!self.is_foreign).then_some(sent)
    }

    fn writable(&mut self) -> bool {
        self.waits_for(PollFlags::OUT, 0)
    }

    fn insist(&mut self) {
        self.waits_for(PollFlags::OUT, 10);
    }

    fn is_at_mark(&mut self) -> bool {
        is_at_mark(self.fd)
    }
}
