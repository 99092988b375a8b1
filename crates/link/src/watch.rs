//! Watches many mostly idle descriptors for a close by the peer: a level-triggered epoll.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

/// Maximum events per call.
const EVENTS: usize = 64;

/// An epoll instance for close events.
#[derive(Debug)]
pub struct Watch {
    epoll: OwnedFd,
}

impl Watch {
    /// Creates an empty set.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn new() -> io::Result<Watch> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Watch { epoll })
    }

    /// Adds a descriptor; [`poll`](Watch::poll) reports its `token` once the other end is closed.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn add(&self, descriptor: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(
            &self.epoll,
            descriptor,
            data,
            epoll::EventFlags::empty(),
        )?)
    }

    /// Removes a descriptor.
    ///
    /// # Errors
    /// It was not in the set.
    pub fn remove(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, descriptor)?)
    }

    /// Passes the tokens of descriptors whose other end is closed to `report`, without waiting.
    /// They are reported again until they are removed.
    ///
    /// # Errors
    /// The kernel object is broken.
    pub fn poll(&self, mut report: impl FnMut(u64)) -> io::Result<()> {
        let mut space = [const { MaybeUninit::uninit() }; EVENTS];
        let timeout = Timespec::default();
        match epoll::wait(&self.epoll, &mut space, Some(&timeout)) {
            Ok((ready, _)) => ready.iter().for_each(|event| report(event.data.u64())),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

impl AsFd for Watch {
    /// Readable when [`poll`](Watch::poll) has something to report.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn only_descriptors_whose_other_end_is_closed_are_reported() {
        let watch = Watch::new().unwrap();
        let (one, its_end) = UnixStream::pair().unwrap();
        let (other, _stays) = UnixStream::pair().unwrap();
        watch.add(one.as_fd(), 1).unwrap();
        watch.add(other.as_fd(), 2).unwrap();
        let mut reported = Vec::new();
        watch.poll(|token| reported.push(token)).unwrap();
        assert!(reported.is_empty());
        drop(its_end);
        watch.poll(|token| reported.push(token)).unwrap();
        assert_eq!(reported, [1]);
        watch.remove(one.as_fd()).unwrap();
        watch.poll(|token| reported.push(token)).unwrap();
        assert_eq!(reported, [1]);
    }
}
