//! A descriptor whose readiness the library controls, and whose last `close` it detects.
//!
//! It is one end of a pair of packet sockets; the library keeps the other end. Sending a byte makes
//! the user's end readable; clearing that means reading at the user's end, by its descriptor number
//! in this process. One packet stays in the user's send buffer: whether the rest is enough to be
//! writable depends on the length of the buffer, and a longer one is an edge for an edge-triggered
//! epoll. When the user's end and all its copies are closed, our end reports a hang-up.
//!
//! Our end does not receive, so `write` on the descriptor fails with `EPIPE`, or `EMSGSIZE` if it is
//! longer than the buffer, without a signal because these are packets. `read` returns the byte, and
//! only changes what `poll` returns. A pipe would be cheaper but cannot be made (un)writable; an
//! eventfd does not report that it was closed.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, sockopt,
};

/// Requested send buffer of a descriptor that is not writable; the kernel raises it to its minimum,
/// about 4.5 KiB.
const SHORT_BUFFER_BYTES: usize = 1;
/// Requested send buffer of a descriptor that is writable.
const LONG_BUFFER_BYTES: usize = 64 << 10;
/// The packet in the buffer: more than a quarter of a short one, so that it is not writable, and
/// less than a quarter of a long one.
const FILLING: [u8; 2048] = [0; 2048];

/// The end that the library holds.
#[derive(Debug)]
pub struct Signal {
    own: OwnedFd,
    /// Descriptor number of the user's end, and the file it must refer to.
    number: RawFd,
    inode: (u64, u64),
    readable: bool,
    writable: bool,
}

impl Signal {
    /// Creates the pair: our end, and the descriptor for the user, which is writable only.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn pair() -> io::Result<(Signal, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (own, user) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        sockopt::set_socket_send_buffer_size(&user, LONG_BUFFER_BYTES)?;
        rustix::net::send(&user, &FILLING, SendFlags::NOSIGNAL)?;
        rustix::net::shutdown(&own, Shutdown::Read)?;
        let signal = Signal {
            own,
            number: user.as_raw_fd(),
            inode: identity(user.as_fd())?,
            readable: false,
            writable: true,
        };
        Ok((signal, user))
    }

    /// Makes the user's end readable.
    ///
    /// # Errors
    /// Only if the socket is broken; not if the user has closed the other end.
    pub fn set_readable(&mut self) -> io::Result<()> {
        if self.readable {
            return Ok(());
        }
        self.readable = true;
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::send(&self.own, &[1], flags) {
            Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes the user's end not readable. `user` is any of its descriptor numbers in this
    /// process; `None` means the original one.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`]: the number refers to another file now (the user closed it and
    /// a copy lives on); the end stays readable until it is cleared through a valid number.
    pub fn clear_readable(&mut self, user: Option<BorrowedFd<'_>>) -> io::Result<()> {
        if !self.readable {
            return Ok(());
        }
        let number = user.map_or(self.number, |user| user.as_raw_fd());
        let user = self.users_end(number)?;
        match rustix::net::recv(user, &mut [0; 1][..], RecvFlags::DONTWAIT) {
            // The program may have read it.
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        self.number = number;
        self.readable = false;
        Ok(())
    }

    /// The user's end through a descriptor number that may be stale.
    fn users_end(&self, number: RawFd) -> io::Result<BorrowedFd<'_>> {
        // SAFETY: borrowed for a single call of this type. The program may have closed and
        // reused the number meanwhile: `fstat` detects that, and a file that is not our socket
        // is not touched.
        let user = unsafe { BorrowedFd::borrow_raw(number) };
        match self.is_same_file(user) {
            true => Ok(user),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// The number of a copy of the user's end in this process.
    #[cold]
    fn find_copy(&self) -> Option<RawFd> {
        let open = std::fs::read_dir("/proc/self/fd").ok()?;
        let mut numbers = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        numbers.find(|number| self.users_end(*number).is_ok())
    }

    /// Makes the user's end writable or not writable.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`]: this process has no descriptor of the user's end.
    pub fn set_writable(&mut self, writable: bool) -> io::Result<()> {
        if self.writable == writable {
            return Ok(());
        }
        let bytes = match writable {
            true => LONG_BUFFER_BYTES,
            false => SHORT_BUFFER_BYTES,
        };
        if self.users_end(self.number).is_err() {
            self.number = self.find_copy().ok_or(io::ErrorKind::NotFound)?;
        }
        sockopt::set_socket_send_buffer_size(self.users_end(self.number)?, bytes)?;
        self.writable = writable;
        Ok(())
    }

    /// Makes the user's end writable, with an edge for an edge-triggered epoll even if it was writable.
    ///
    /// # Errors
    /// The errors of [`set_writable`](Self::set_writable).
    pub fn announce_writable(&mut self) -> io::Result<()> {
        self.writable = false;
        self.set_writable(true)
    }

    /// True once the user's end and all its copies have been closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let timeout = Timespec::default();
        let mut polled = [PollFd::new(&self.own, PollFlags::empty())];
        matches!(poll(&mut polled, Some(&timeout)), Ok(1..))
    }

    /// True if `descriptor` is the user's end or a copy of it.
    #[must_use]
    pub fn is_same_file(&self, descriptor: BorrowedFd<'_>) -> bool {
        identity(descriptor).ok() == Some(self.inode)
    }
}

impl Drop for Signal {
    /// An unread packet would be an error of the user's end, which only gets a hang-up.
    fn drop(&mut self) {
        let mut filling = [0; FILLING.len()];
        let _unless_it_was_read =
            rustix::net::recv(&self.own, &mut filling[..], RecvFlags::DONTWAIT);
    }
}

impl AsFd for Signal {
    /// Reports a hang-up when the user has closed the other end.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }
}

/// Identifies an open file, whatever its descriptor number.
///
/// # Errors
/// The descriptor is not open.
pub fn identity(descriptor: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    let found = rustix::fs::fstat(descriptor)?;
    Ok((found.st_dev, found.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(descriptor: BorrowedFd<'_>) -> PollFlags {
        let timeout = Timespec::default();
        let mut polled = [PollFd::from_borrowed_fd(
            descriptor,
            PollFlags::IN | PollFlags::OUT,
        )];
        poll(&mut polled, Some(&timeout)).unwrap();
        polled[0].revents()
    }

    #[test]
    fn readiness_comes_and_goes_as_it_is_set() {
        let (mut signal, user) = Signal::pair().unwrap();
        assert_eq!(says(user.as_fd()), PollFlags::OUT);
        for _ in 0..3 {
            signal.set_readable().unwrap();
            signal.set_readable().unwrap();
            assert_eq!(says(user.as_fd()), PollFlags::IN | PollFlags::OUT);
            signal.clear_readable(None).unwrap();
            assert_eq!(says(user.as_fd()), PollFlags::OUT);
            signal.set_writable(false).unwrap();
            assert_eq!(says(user.as_fd()), PollFlags::empty());
            signal.set_readable().unwrap();
            assert_eq!(says(user.as_fd()), PollFlags::IN);
            signal.set_writable(true).unwrap();
            signal.clear_readable(Some(user.as_fd())).unwrap();
            assert_eq!(says(user.as_fd()), PollFlags::OUT);
        }
    }

    #[test]
    fn each_change_is_an_edge() {
        use rustix::event::epoll;
        let (mut signal, user) = Signal::pair().unwrap();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::add(&epoll, &user, epoll::EventData::new_u64(1), flags).unwrap();
        let timeout = Timespec::default();
        let edges = || {
            let mut ready = Vec::with_capacity(4);
            let spare = rustix::buffer::spare_capacity(&mut ready);
            epoll::wait(&epoll, spare, Some(&timeout)).unwrap()
        };
        assert_eq!(edges(), 1, "it is writable");
        for _ in 0..3 {
            assert_eq!(edges(), 0);
            signal.set_readable().unwrap();
            assert_eq!(edges(), 1);
            assert_eq!(edges(), 0);
            signal.clear_readable(None).unwrap();
            assert_eq!(edges(), 0);
            signal.set_writable(false).unwrap();
            assert_eq!(edges(), 0);
            signal.set_writable(true).unwrap();
            assert_eq!(edges(), 1);
            signal.announce_writable().unwrap();
            assert_eq!(edges(), 1);
        }
    }

    #[test]
    fn a_copy_becomes_writable_after_the_first_number_was_closed() {
        let (mut signal, user) = Signal::pair().unwrap();
        signal.set_writable(false).unwrap();
        let copy = user.try_clone().unwrap();
        drop(user);
        signal.set_writable(true).unwrap();
        assert_eq!(says(copy.as_fd()), PollFlags::OUT);
        drop(copy);
        let nowhere = signal.set_writable(false).unwrap_err();
        assert_eq!(nowhere.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn the_user_gets_a_hang_up_and_no_error() {
        let (signal, user) = Signal::pair().unwrap();
        drop(signal);
        assert!(says(user.as_fd()).contains(PollFlags::HUP));
        assert!(!says(user.as_fd()).contains(PollFlags::ERR));
    }

    #[test]
    fn nothing_can_be_written() {
        let (mut signal, user) = Signal::pair().unwrap();
        for writable in [true, false, true] {
            signal.set_writable(writable).unwrap();
            assert_eq!(rustix::io::write(&user, b"lost"), Err(Errno::PIPE));
        }
        assert!(!signal.is_closed());
    }

    #[test]
    fn only_the_last_copy_closed_hangs_up() {
        let (signal, user) = Signal::pair().unwrap();
        let copy = user.try_clone().unwrap();
        assert!(signal.is_same_file(copy.as_fd()));
        drop(user);
        assert!(!signal.is_closed());
        drop(copy);
        assert!(signal.is_closed());
    }

    #[test]
    fn a_number_that_refers_to_another_file_now_is_left_alone() {
        let (mut signal, mut user) = Signal::pair().unwrap();
        signal.set_readable().unwrap();
        let copy = user.try_clone().unwrap();
        let (mut other, others_end) = Signal::pair().unwrap();
        other.set_readable().unwrap();
        rustix::io::dup2(&others_end, &mut user).unwrap();
        let refused = signal.clear_readable(None).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotFound);
        assert!(says(others_end.as_fd()).contains(PollFlags::IN));
        signal.clear_readable(Some(copy.as_fd())).unwrap();
        assert!(!says(copy.as_fd()).contains(PollFlags::IN));
    }
}
