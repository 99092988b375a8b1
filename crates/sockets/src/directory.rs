//! How the two ends of a connection find each other: by a symbolic link for each connection, named
//! after its addresses, in a directory that only their user can enter. It leads to the creator's
//! descriptor of the shared memory. `docs/design/sockets.md` §3.

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicUsize};
use std::sync::{Once, OnceLock};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, fstat, open, openat, readlinkat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use rustix::net::{getpeername, getsockname, sockopt};

use crate::area::{AREA, Area, RING};
use crate::headroom::Reservation;
use crate::kernel;

const MAGIC: u64 = u64::from_le_bytes(*b"dipsock1");
const NONCE: usize = 8;
const JOINED: usize = 16;
const CONFIRMED: usize = 32;
/// The connection's name, padded with zeros.
const NAME: usize = 64;
const NAME_BYTES: usize = 192;

/// Preferred lower bound for the descriptors of offers, to leave low numbers to the program.
const MIN_OFFER_DESCRIPTOR: i32 = 256;
/// Maximum number of offers that are open at once: each takes one of the program's descriptors.
const MAX_OFFERS: usize = 256;
static OFFERS: AtomicUsize = AtomicUsize::new(0);

/// The creator's descriptor of the memory, open until the peer has joined.
#[derive(Debug)]
struct Offer {
    /// -1 once it is closed.
    number: AtomicI32,
    /// Device and inode of the memory: the program may close any number and use it again.
    identity: (u64, u64),
}

impl Offer {
    fn new(memory: OwnedFd) -> io::Result<Offer> {
        let more = |open: usize| (open < MAX_OFFERS).then_some(open + 1);
        if OFFERS.fetch_update(AcqRel, Relaxed, more).is_err() {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let moved = rustix::io::fcntl_dupfd_cloexec(&memory, MIN_OFFER_DESCRIPTOR);
        let memory = moved.unwrap_or(memory);
        let found = fstat(&memory);
        let identity = found.map_or((0, 0), |found| (found.st_dev, found.st_ino));
        Ok(Offer {
            number: AtomicI32::new(memory.into_raw_fd()),
            identity,
        })
    }

    fn close(&self) {
        let number = self.number.swap(-1, AcqRel);
        if number < 0 {
            return;
        }
        OFFERS.fetch_sub(1, AcqRel);
        // SAFETY: borrowed for one call. The program may have closed the number and used it again:
        // `fstat` shows whether the file is ours; others are left alone.
        let memory = unsafe { BorrowedFd::borrow_raw(number) };
        let is_ours =
            fstat(memory).is_ok_and(|found| (found.st_dev, found.st_ino) == self.identity);
        if is_ours {
            // SAFETY: our own descriptor, closed once, since `number` was swapped out.
            unsafe { rustix::io::close(number) };
        }
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.close();
    }
}

/// This end's part of the shared state.
#[derive(Debug)]
pub(crate) struct Agreement {
    pub(crate) area: Area,
    /// Number of this end; it writes to the direction of this number.
    pub(crate) index: usize,
    /// Cookie of the socket that the agreement belongs to.
    pub(crate) cookie: u64,
    /// Present in the end that created the memory.
    offer: Option<Offer>,
    name: String,
    /// The memory of the ring that this end reads, once it is in use.
    incoming: OnceLock<Reservation>,
}

impl Agreement {
    /// Takes memory for the ring that this end reads. False if there should be more of it free
    /// first.
    pub(crate) fn allocate_incoming(&self) -> bool {
        self.incoming.get().is_some()
            || Reservation::new(RING as u64).is_some_and(|reservation| {
                let allocated = self.area.allocate(1 - self.index).is_ok();
                allocated && self.incoming.set(reservation).is_ok()
            })
    }

    /// True once the peer is known to use the library and to be the same connection: it joined
    /// while the creator's socket, which the caller knows to be open, was open.
    pub(crate) fn is_mutual(&self) -> bool {
        let other = 1 - self.index;
        let Some(offer) = &self.offer else {
            return self.area.word(CONFIRMED + 8 * other).load(Acquire) != 0;
        };
        let joined = self.area.word(JOINED + 8 * other).load(Acquire) != 0;
        let confirmed = self.area.word(CONFIRMED + 8 * self.index);
        if joined && confirmed.load(Relaxed) == 0 {
            confirmed.store(1, Release);
            offer.close();
            self.remove_link();
        }
        joined
    }

    fn remove_link(&self) {
        if let Ok(folder) = folder() {
            let _ = unlinkat(&folder, self.name.as_str(), AtFlags::empty());
        }
    }
}

impl Drop for Agreement {
    fn drop(&mut self) {
        // Otherwise a later connection between the same addresses would find it.
        let confirmed = self.area.word(CONFIRMED + 8 * self.index).load(Relaxed);
        if self.offer.is_some() && confirmed == 0 {
            self.remove_link();
        }
    }
}

/// The name of a connection, and which end this is.
fn name(fd: BorrowedFd<'_>) -> Option<(String, usize)> {
    let plain = |address: SocketAddr| match address.ip() {
        IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some() => {
            SocketAddr::new(ip.to_canonical(), address.port())
        }
        _ => address,
    };
    let here = plain(getsockname(fd).ok()?.try_into().ok()?);
    let there = plain(getpeername(fd).ok()??.try_into().ok()?);
    let namespace = kernel::namespace(fd)?;
    let index = match here.cmp(&there) {
        std::cmp::Ordering::Less => 0,
        std::cmp::Ordering::Greater => 1,
        // The socket is connected to itself.
        std::cmp::Ordering::Equal => return None,
    };
    let (first, second) = if index == 0 {
        (here, there)
    } else {
        (there, here)
    };
    Some((format!("{namespace}-{first}-{second}"), index))
}

/// The directory from the environment, read when the library is loaded: servers such as nginx
/// clear their environment before the first connection.
pub(crate) fn runtime_directory() -> Option<&'static OsStr> {
    static NAMED: OnceLock<Option<OsString>> = OnceLock::new();
    let named = NAMED.get_or_init(|| std::env::var_os("DIPOLE_RUNTIME_DIR"));
    named.as_deref().filter(|name| !name.is_empty())
}

/// The directory, if only this user can change it.
fn folder() -> io::Result<OwnedFd> {
    static SWEPT: Once = Once::new();
    let uid = rustix::process::geteuid().as_raw();
    let path = match runtime_directory() {
        Some(given) => PathBuf::from(given).join("sockets"),
        None => PathBuf::from(format!("/dev/shm/dipole-sockets-{uid}")),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = match open(&path, flags, Mode::empty()) {
        Ok(folder) => folder,
        Err(_) => {
            if let Some(parent) = path.parent() {
                let _ = rustix::fs::mkdir(parent, Mode::RWXU);
            }
            let _ = rustix::fs::mkdir(&path, Mode::RWXU);
            open(&path, flags, Mode::empty())?
        }
    };
    let found = fstat(&folder)?;
    if found.st_uid != uid || found.st_mode & 0o077 != 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    SWEPT.call_once(|| sweep(folder.as_fd()));
    Ok(folder)
}

/// Removes links of processes that were killed.
fn sweep(folder: BorrowedFd<'_>) {
    let Ok(entries) = rustix::fs::Dir::read_from(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let dead = |pid| rustix::process::test_kill_process(pid) == Err(Errno::SRCH);
        if creator(folder, entry.file_name()).is_some_and(dead) {
            let _ = unlinkat(folder, entry.file_name(), AtFlags::empty());
        }
    }
}

/// The process to whose descriptor a link leads.
fn creator(folder: BorrowedFd<'_>, name: &std::ffi::CStr) -> Option<rustix::process::Pid> {
    let target = readlinkat(folder, name, Vec::new()).ok()?;
    let rest = target.to_str().ok()?.strip_prefix("/proc/")?;
    let (pid, _) = rest.split_once("/fd/")?;
    rustix::process::Pid::from_raw(pid.parse().ok()?)
}

/// A connection's name as it is stored in the memory.
fn name_words(name: &str) -> Option<[u64; NAME_BYTES / 8]> {
    let mut bytes = [0; NAME_BYTES];
    bytes
        .get_mut(..name.len())?
        .copy_from_slice(name.as_bytes());
    let (words, _) = bytes.as_chunks::<8>();
    Some(std::array::from_fn(|at| u64::from_ne_bytes(words[at])))
}

/// Joins the memory of the peer, or, with `make`, creates it.
pub(crate) fn join_or_create(fd: BorrowedFd<'_>, make: bool) -> Option<Agreement> {
    let (name, index) = name(fd)?;
    let cookie = sockopt::socket_cookie(fd).ok()?;
    let folder = folder().ok()?;
    let area = match open_link(folder.as_fd(), &name) {
        Ok(area) => area,
        Err(Errno::NOENT) if make => {
            // A link without a file is left from a creator that has ended.
            let _ = unlinkat(&folder, name.as_str(), AtFlags::empty());
            return create(folder.as_fd(), name, index, cookie).ok();
        }
        Err(_) => return None,
    };
    let is_free = |end: usize| area.word(JOINED + 8 * end).load(Acquire) == 0;
    let words = name_words(&name)?;
    let is_same = |(at, word): (usize, &u64)| area.word(NAME + 8 * at).load(Relaxed) == *word;
    if area.word(0).load(Acquire) != MAGIC
        || is_free(1 - index)
        || !words.iter().enumerate().all(is_same)
    {
        return None;
    }
    let own = area.word(JOINED + 8 * index);
    if own.compare_exchange(0, cookie, AcqRel, Relaxed).is_err() {
        // The memory belongs to an earlier connection between the same addresses.
        let _ = unlinkat(&folder, name.as_str(), AtFlags::empty());
        return None;
    }
    Some(Agreement {
        area,
        index,
        cookie,
        offer: None,
        name,
        incoming: OnceLock::new(),
    })
}

/// Maps the memory to which a link leads. The number may be another file of the creator by now, so
/// the file is checked before it is really opened.
fn open_link(folder: BorrowedFd<'_>, name: &str) -> Result<Area, Errno> {
    let file = openat(folder, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let found = fstat(&file)?;
    let is_own = found.st_uid == rustix::process::geteuid().as_raw();
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    if !is_own || !is_file || u64::try_from(found.st_size) != Ok(AREA as u64) {
        return Err(Errno::INVAL);
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let file = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    Area::open(file.as_fd()).map_err(|_| Errno::INVAL)
}

/// Creates and initialises the memory, and the link that leads to it.
fn create(
    folder: BorrowedFd<'_>,
    name: String,
    index: usize,
    cookie: u64,
) -> io::Result<Agreement> {
    let words = name_words(&name).ok_or(io::ErrorKind::InvalidFilename)?;
    let (area, memory) = Area::create()?;
    let mut nonce = [0; 8];
    rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())?;
    area.word(NONCE).store(u64::from_ne_bytes(nonce), Relaxed);
    for (at, word) in words.iter().enumerate() {
        area.word(NAME + 8 * at).store(*word, Relaxed);
    }
    area.word(JOINED + 8 * index).store(cookie, Relaxed);
    area.word(0).store(MAGIC, Release);
    let offer = Offer::new(memory)?;
    let pid = rustix::process::getpid().as_raw_pid();
    let target = format!("/proc/{pid}/fd/{}", offer.number.load(Relaxed));
    symlinkat(target, folder, name.as_str())?;
    Ok(Agreement {
        area,
        index,
        cookie,
        offer: Some(offer),
        name,
        incoming: OnceLock::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_closes_its_descriptor_but_no_other_file_of_that_number() {
        let (_area, memory) = Area::create().expect("memory");
        let offer = Offer::new(memory).expect("few are open");
        let number = offer.number.load(Relaxed);
        let other = std::fs::File::open("/dev/null").expect("a file");
        // SAFETY: the number of the offer, which only this test uses, becomes another file's.
        let mut reused = unsafe { std::os::fd::FromRawFd::from_raw_fd(number) };
        rustix::io::dup3(&other, &mut reused, rustix::io::DupFlags::CLOEXEC).expect("a descriptor");
        drop(offer);
        let _still_open = fstat(&reused).expect("left alone");
    }
}
