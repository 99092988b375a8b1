//! Which of the rings and sockets that were handed out still exist, whoever has them now.
//!
//! A process can keep a ring after its loan has ended, and what it keeps takes memory of the
//! kernel. An epoll forgets a file when the last descriptor of it is closed, in whichever
//! process, and `/proc` tells which files one knows: so nothing has to be believed. It is never
//! waited on.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use rustix::io::Errno;

/// See the module.
#[derive(Debug)]
pub(super) struct Held {
    epoll: OwnedFd,
}

/// Something handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Item {
    /// A ring, by the number of its map, and the user to whose account it goes.
    Ring { uid: u32, map: u32 },
    /// A socket for raw frames, by its cookie.
    Sender { cookie: u64 },
}

const SENDER: u64 = 1 << 63;
/// Numbers of maps are given out in order, from 1: this many will do.
const MAP_BITS: u64 = (1 << 31) - 1;

impl Item {
    fn token(self) -> u64 {
        match self {
            Item::Ring { uid, map } => (u64::from(map) & MAP_BITS) << 32 | u64::from(uid),
            Item::Sender { cookie } => SENDER | cookie,
        }
    }

    fn of(token: u64) -> Item {
        let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(0);
        match token & SENDER {
            0 => Item::Ring {
                uid: half(token),
                map: half(token >> 32),
            },
            _ => Item::Sender {
                cookie: token & !SENDER,
            },
        }
    }
}

impl Held {
    /// Knows nothing, or what one knew that is kept from an earlier life.
    pub(super) fn open(kept: Option<OwnedFd>) -> io::Result<Held> {
        let epoll = match kept {
            Some(epoll) => epoll,
            None => epoll::create(epoll::CreateFlags::CLOEXEC)?,
        };
        Ok(Held { epoll })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// From now on it is known for as long as a descriptor of it is open anywhere.
    pub(super) fn watch(&self, file: BorrowedFd<'_>, item: Item) -> io::Result<()> {
        let data = epoll::EventData::new_u64(item.token());
        match epoll::add(&self.epoll, file, data, epoll::EventFlags::empty()) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// All that still exist.
    pub(super) fn alive(&self) -> io::Result<BTreeSet<Item>> {
        let number = self.epoll.as_raw_fd();
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
        let lines = text.lines().filter(|line| line.starts_with("tfd:"));
        let items = lines.map(|line| {
            let mut words = line.split_whitespace();
            words.find(|word| *word == "data:")?;
            let token = u64::from_str_radix(words.next()?, 16).ok()?;
            Some(Item::of(token))
        });
        let strange = || io::Error::other(format!("/proc/self/fdinfo/{number} is not understood"));
        items.map(|item| item.ok_or_else(strange)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn what_was_handed_out_is_known_until_its_last_descriptor_is_closed() {
        let held = Held::open(None).unwrap();
        let (one, other) = UnixStream::pair().unwrap();
        let ring = Item::Ring {
            uid: 60_001,
            map: 70_000,
        };
        let sender = Item::Sender {
            cookie: 0x1234_5678,
        };
        held.watch(one.as_fd(), ring).unwrap();
        held.watch(other.as_fd(), sender).unwrap();
        assert_eq!(held.alive().unwrap(), [ring, sender].into());
        let copy = one.try_clone().unwrap();
        drop(one);
        assert_eq!(held.alive().unwrap(), [ring, sender].into());
        drop(other);
        assert_eq!(held.alive().unwrap(), [ring].into());
        // As after a restart, by another descriptor of the same epoll.
        let held = Held::open(Some(held.epoll.try_clone().unwrap())).unwrap();
        assert_eq!(held.alive().unwrap(), [ring].into());
        drop(copy);
        assert!(held.alive().unwrap().is_empty());
    }
}
