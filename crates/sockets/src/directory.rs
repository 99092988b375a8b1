//! Where the two ends of a connection find each other: a file for each, named by its addresses,
//! in a directory that only their user can enter. `docs/design/sockets.md` §3.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Once, OnceLock};

use rustix::fs::{AtFlags, Mode, OFlags, fstat, linkat, open, openat, unlinkat};
use rustix::net::{getpeername, getsockname, sockopt};

use crate::area::{AREA, Area};
use crate::kernel;

const MAGIC: u64 = u64::from_le_bytes(*b"dipsock1");
const NONCE: usize = 8;
const JOINED: usize = 16;
const CONFIRMED: usize = 32;
const MAKER: usize = 48;

/// This end's part of the shared state.
#[derive(Debug)]
pub(crate) struct Agreement {
    pub(crate) area: Area,
    /// Which end this is; it writes to the direction of this number.
    pub(crate) index: usize,
    /// Cookie of the socket that the agreement belongs to.
    pub(crate) cookie: u64,
    made: bool,
    name: String,
}

impl Agreement {
    /// True once the peer is known to use the library and to be the same connection: it joined
    /// while the creator's socket, which the caller knows to be open, was open.
    pub(crate) fn is_mutual(&self) -> bool {
        let other = 1 - self.index;
        if !self.made {
            return self.area.word(CONFIRMED + 8 * other).load(Acquire) != 0;
        }
        let joined = self.area.word(JOINED + 8 * other).load(Acquire) != 0;
        let confirmed = self.area.word(CONFIRMED + 8 * self.index);
        if joined && confirmed.load(Relaxed) == 0 {
            confirmed.store(1, Release);
            self.remove_file();
        }
        joined
    }

    /// Removes the file after the peer has found it.
    fn remove_file(&self) {
        if let Ok(folder) = folder() {
            let _ = unlinkat(&folder, self.name.as_str(), AtFlags::empty());
        }
    }
}

impl Drop for Agreement {
    fn drop(&mut self) {
        // Otherwise a later connection between the same addresses would find it.
        let confirmed = self.area.word(CONFIRMED + 8 * self.index).load(Relaxed);
        if self.made && confirmed == 0 {
            self.remove_file();
        }
    }
}

/// The file name for a connection, and which end this is.
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
        // Connected to itself.
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

/// Removes files of processes that were killed.
fn sweep(folder: BorrowedFd<'_>) {
    let Ok(entries) = rustix::fs::Dir::read_from(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let Ok(file) = openat(folder, entry.file_name(), flags, Mode::empty()) else {
            continue;
        };
        let mut maker = [0; 8];
        let read = rustix::io::pread(&file, &mut maker, MAKER as u64) == Ok(8);
        let pid = i32::try_from(u64::from_ne_bytes(maker)).ok();
        let pid = pid.and_then(rustix::process::Pid::from_raw);
        let dead = |pid| rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH);
        if read && pid.is_some_and(dead) {
            let _ = unlinkat(folder, entry.file_name(), AtFlags::empty());
        }
    }
}

/// Joins the file of the peer, or, with `make`, creates one for it.
pub(crate) fn join_or_create(fd: BorrowedFd<'_>, make: bool) -> Option<Agreement> {
    let (name, index) = name(fd)?;
    let cookie = sockopt::socket_cookie(fd).ok()?;
    let folder = folder().ok()?;
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(file) = openat(&folder, name.as_str(), flags, Mode::empty()) else {
        return make.then(|| create(&folder, name, index, cookie).ok())?;
    };
    let found = fstat(&file).ok()?;
    let own = found.st_uid == rustix::process::geteuid().as_raw();
    if !own || u64::try_from(found.st_size).ok()? < AREA as u64 {
        return None;
    }
    let area = Area::of_file(file.as_fd()).ok()?;
    let free = |end: usize| area.word(JOINED + 8 * end).load(Acquire) == 0;
    if area.word(0).load(Acquire) != MAGIC || free(1 - index) {
        return None;
    }
    let own = area.word(JOINED + 8 * index);
    if own.compare_exchange(0, cookie, AcqRel, Relaxed).is_err() {
        // The file belongs to an earlier connection between the same addresses.
        let _ = unlinkat(&folder, name.as_str(), AtFlags::empty());
        return None;
    }
    Some(Agreement {
        area,
        index,
        cookie,
        made: false,
        name,
    })
}

/// Creates the file and initialises it before linking it under its name.
fn create(folder: &OwnedFd, name: String, index: usize, cookie: u64) -> io::Result<Agreement> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let pid = rustix::process::getpid().as_raw_pid();
    let draft = format!("{pid}-{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let draft = CString::new(draft)?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = openat(folder, &draft, flags, Mode::RUSR | Mode::WUSR)?;
    let made = (|| {
        rustix::fs::ftruncate(&file, AREA as u64)?;
        let area = Area::of_file(file.as_fd())?;
        let mut nonce = [0; 8];
        rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())?;
        area.word(NONCE).store(u64::from_ne_bytes(nonce), Relaxed);
        area.word(MAKER)
            .store(u64::try_from(pid).unwrap_or(0), Relaxed);
        area.word(JOINED + 8 * index).store(cookie, Relaxed);
        area.word(0).store(MAGIC, Release);
        linkat(folder, &draft, folder, name.as_str(), AtFlags::empty())?;
        Ok(area)
    })();
    let _ = unlinkat(folder, &draft, AtFlags::empty());
    made.map(|area| Agreement {
        area,
        index,
        cookie,
        made: true,
        name,
    })
}
