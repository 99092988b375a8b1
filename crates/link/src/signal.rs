//! A descriptor whose readiness the library sets, and whose last `close` it notices.
//!
//! One end of a socket pair is the user's, the other ours. A byte from us makes his
//! readable; taking it back means reading at his end, by the number it has in this
//! process. His end is writable unless we fill its send buffer; emptying that from
//! our end makes it writable again, which is an edge for an edge-triggered epoll.
//! When his end and all its copies are closed, ours is hung up.
//!
//! A pipe would cost less, but cannot be made (un)writable; an eventfd does not tell
//! that it was closed. What the user reads or writes there does no harm: it changes
//! nothing but what `poll` says to himself.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

/// The least send buffer the kernel gives.
const LEAST_BUFFER_BYTES: usize = 1;
/// Bytes put at once into a buffer that is to be full.
const FILLING: [u8; 1024] = [0; 1024];

/// Our end. See the module.
#[derive(Debug)]
pub struct Signal {
    own: OwnedFd,
    /// The user's end: its number here, and which file it must be.
    number: RawFd,
    inode: (u64, u64),
    readable: bool,
    writable: bool,
}

impl Signal {
    /// A pair: ours, and the descriptor for the user. Not readable, writable.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn pair() -> io::Result<(Signal, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (own, user) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_send_buffer_size(&user, LEAST_BUFFER_BYTES)?;
        let signal = Signal {
            own,
            number: user.as_raw_fd(),
            inode: identity(user.as_fd())?,
            readable: false,
            writable: true,
        };
        Ok((signal, user))
    }

    /// The user's end is readable from now on.
    ///
    /// # Errors
    /// Only when the socket is broken; not when the user has closed his end.
    pub fn set_readable(&mut self) -> io::Result<()> {
        if self.readable {
            return Ok(());
        }
        self.readable = true;
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::send(&self.own, &[1], flags) {
            // Full: bytes wait there already.
            Ok(_) | Err(Errno::PIPE | Errno::CONNRESET | Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The user's end is not readable any more. `user` is a number it has in this
    /// process; the one it was made with if `None`.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`]: that number is another file now (the user closed it
    /// and a copy lives on); the end stays readable until it is cleared by a number
    /// that it has.
    pub fn clear_readable(&mut self, user: Option<BorrowedFd<'_>>) -> io::Result<()> {
        if !self.readable {
            return Ok(());
        }
        let number = user.map_or(self.number, |user| user.as_raw_fd());
        let user = self.users_end(number)?;
        let mut bytes = [0; 8];
        loop {
            match rustix::net::recv(user, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((_, 8)) | Err(Errno::INTR) => {}
                Ok(_) | Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        self.number = number;
        self.readable = false;
        Ok(())
    }

    /// The user's end by a number that it may have.
    fn users_end(&self, number: RawFd) -> io::Result<BorrowedFd<'_>> {
        // SAFETY: borrowed for one call of this type's. The number may have been closed and
        // used again by the program meanwhile: `fstat` tells, and what is not our
        // socket is left alone.
        let user = unsafe { BorrowedFd::borrow_raw(number) };
        match self.is(user) {
            true => Ok(user),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Whether the user's end is writable.
    ///
    /// # Errors
    /// As for [`clear_readable`](Self::clear_readable) by the number it was made with.
    pub fn set_writable(&mut self, writable: bool) -> io::Result<()> {
        if self.writable == writable {
            return Ok(());
        }
        if writable {
            let mut bytes = [0; 4096];
            loop {
                match rustix::net::recv(&self.own, &mut bytes[..], RecvFlags::DONTWAIT) {
                    Ok((_, 0)) | Err(Errno::AGAIN | Errno::CONNRESET) => break,
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        } else {
            let user = self.users_end(self.number)?;
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            loop {
                match rustix::net::send(user, &FILLING, flags) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        self.writable = writable;
        Ok(())
    }

    /// True when the user's end and all its copies have been closed.
    #[must_use]
    pub fn hung_up(&self) -> bool {
        let timeout = Timespec::default();
        let mut polled = [PollFd::new(&self.own, PollFlags::RDHUP)];
        matches!(poll(&mut polled, Some(&timeout)), Ok(1..))
    }

    /// True if `descriptor` is the user's end, or a copy of it.
    #[must_use]
    pub fn is(&self, descriptor: BorrowedFd<'_>) -> bool {
        identity(descriptor).ok() == Some(self.inode)
    }
}

impl AsFd for Signal {
    /// Hung up when the user has closed his end.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }
}

/// What tells one open file from another, whatever its number.
///
/// # Errors
/// The number is not open.
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
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &user, epoll::EventData::new_u64(1), flags).unwrap();
        let timeout = Timespec::default();
        let edges = || {
            let mut ready = Vec::with_capacity(4);
            let spare = rustix::buffer::spare_capacity(&mut ready);
            epoll::wait(&epoll, spare, Some(&timeout)).unwrap()
        };
        for _ in 0..3 {
            assert_eq!(edges(), 0);
            signal.set_readable().unwrap();
            assert_eq!(edges(), 1);
            assert_eq!(edges(), 0);
            signal.clear_readable(None).unwrap();
        }
    }

    #[test]
    fn only_the_last_copy_closed_hangs_up() {
        let (signal, user) = Signal::pair().unwrap();
        let copy = user.try_clone().unwrap();
        assert!(signal.is(copy.as_fd()));
        drop(user);
        assert!(!signal.hung_up());
        drop(copy);
        assert!(signal.hung_up());
    }

    #[test]
    fn a_number_that_is_another_file_now_is_left_alone() {
        let (mut signal, user) = Signal::pair().unwrap();
        signal.set_readable().unwrap();
        let copy = user.try_clone().unwrap();
        let number = user.as_raw_fd();
        drop(user);
        let (mut other, others_end) = Signal::pair().unwrap();
        other.set_readable().unwrap();
        // Only when the kernel gave the number away again is this the case at hand.
        if others_end.as_raw_fd() == number {
            let refused = signal.clear_readable(None).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::NotFound);
            assert!(says(others_end.as_fd()).contains(PollFlags::IN));
        }
        signal.clear_readable(Some(copy.as_fd())).unwrap();
        assert!(!says(copy.as_fd()).contains(PollFlags::IN));
    }
}
