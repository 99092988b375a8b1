//! Finds out which granted rings and sockets still exist in any process.
//!
//! A process can keep a ring after its grant has ended, and the ring uses kernel memory until it is
//! closed. An epoll instance forgets a file when its last descriptor is closed anywhere, and
//! `/proc/self/fdinfo` lists the files it watches. So no process has to be trusted. The broker
//! never waits on this epoll.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use rustix::io::Errno;

#[derive(Debug)]
pub(super) struct LiveGrants {
    epoll: OwnedFd,
}

/// A granted ring or socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LiveItem {
    /// A ring, by its map id, and the user whose quota it counts towards.
    Ring { uid: u32, map: u32 },
    /// A raw socket, by its cookie.
    Sender { cookie: u64 },
}

const SENDER: u64 = 1 << 63;
/// Map ids are assigned in order, from 1.
const MAP_BITS: u64 = (1 << 31) - 1;

impl LiveItem {
    fn token(self) -> u64 {
        match self {
            LiveItem::Ring { uid, map } => (u64::from(map) & MAP_BITS) << 32 | u64::from(uid),
            LiveItem::Sender { cookie } => SENDER | cookie,
        }
    }

    fn of(token: u64) -> LiveItem {
        let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(0);
        match token & SENDER {
            0 => LiveItem::Ring {
                uid: half(token),
                map: half(token >> 32),
            },
            _ => LiveItem::Sender {
                cookie: token & !SENDER,
            },
        }
    }
}

impl LiveGrants {
    /// Starts empty, or with the epoll of an earlier broker.
    pub(super) fn open(kept: Option<OwnedFd>) -> io::Result<LiveGrants> {
        let epoll = match kept {
            Some(epoll) => epoll,
            None => epoll::create(epoll::CreateFlags::CLOEXEC)?,
        };
        Ok(LiveGrants { epoll })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Lists an item for as long as a descriptor of it is open anywhere.
    pub(super) fn watch(&self, file: BorrowedFd<'_>, item: LiveItem) -> io::Result<()> {
        let data = epoll::EventData::new_u64(item.token());
        match epoll::add(&self.epoll, file, data, epoll::EventFlags::empty()) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// All items that still exist.
    pub(super) fn alive(&self) -> io::Result<BTreeSet<LiveItem>> {
        let number = self.epoll.as_raw_fd();
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
        let lines = text.lines().filter(|line| line.starts_with("tfd:"));
        let items = lines.map(|line| {
            let mut words = line.split_whitespace();
            words.find(|word| *word == "data:")?;
            let token = u64::from_str_radix(words.next()?, 16).ok()?;
            Some(LiveItem::of(token))
        });
        let strange =
            || io::Error::other(format!("/proc/self/fdinfo/{number} has an unknown format"));
        items.map(|item| item.ok_or_else(strange)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn what_was_handed_out_is_known_until_its_last_descriptor_is_closed() {
        let live = LiveGrants::open(None).unwrap();
        let (one, other) = UnixStream::pair().unwrap();
        let ring = LiveItem::Ring {
            uid: 60_001,
            map: 70_000,
        };
        let sender = LiveItem::Sender {
            cookie: 0x1234_5678,
        };
        live.watch(one.as_fd(), ring).unwrap();
        live.watch(other.as_fd(), sender).unwrap();
        assert_eq!(live.alive().unwrap(), [ring, sender].into());
        let copy = one.try_clone().unwrap();
        drop(one);
        assert_eq!(live.alive().unwrap(), [ring, sender].into());
        drop(other);
        assert_eq!(live.alive().unwrap(), [ring].into());
        // Simulates a restart, with another descriptor of the same epoll.
        let live = LiveGrants::open(Some(live.epoll.try_clone().unwrap())).unwrap();
        assert_eq!(live.alive().unwrap(), [ring].into());
        drop(copy);
        assert!(live.alive().unwrap().is_empty());
    }
}
