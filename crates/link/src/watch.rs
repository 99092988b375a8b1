//! Many descriptors, seldom of interest: a level-triggered epoll.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

/// Events told in one call.
const EVENTS: usize = 64;

/// See the module.
#[derive(Debug)]
pub struct Watch {
    epoll: OwnedFd,
}

impl Watch {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn new() -> io::Result<Watch> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Watch { epoll })
    }

    /// Watches a descriptor for its other end to be closed; `token` names it.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn add(&self, descriptor: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(
            &self.epoll,
            descriptor,
            data,
            epoll::EventFlags::RDHUP,
        )?)
    }

    /// Watches it no more.
    ///
    /// # Errors
    /// It was not watched.
    pub fn remove(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, descriptor)?)
    }

    /// Tells, without waiting, whose other end is closed. Those must be removed, or are
    /// told again.
    ///
    /// # Errors
    /// The kernel object is broken.
    pub fn poll(&self, mut tell: impl FnMut(u64)) -> io::Result<()> {
        let mut space = [const { MaybeUninit::uninit() }; EVENTS];
        let timeout = Timespec::default();
        match epoll::wait(&self.epoll, &mut space, Some(&timeout)) {
            Ok((ready, _)) => ready.iter().for_each(|event| tell(event.data.u64())),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

impl AsFd for Watch {
    /// Readable when [`poll`](Watch::poll) has something to tell.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn only_those_whose_other_end_is_closed_are_told() {
        let watch = Watch::new().unwrap();
        let (one, its_end) = UnixStream::pair().unwrap();
        let (other, _stays) = UnixStream::pair().unwrap();
        watch.add(one.as_fd(), 1).unwrap();
        watch.add(other.as_fd(), 2).unwrap();
        let mut told = Vec::new();
        watch.poll(|token| told.push(token)).unwrap();
        assert!(told.is_empty());
        drop(its_end);
        watch.poll(|token| told.push(token)).unwrap();
        assert_eq!(told, [1]);
        watch.remove(one.as_fd()).unwrap();
        watch.poll(|token| told.push(token)).unwrap();
        assert_eq!(told, [1]);
    }
}
