//! Files below the receiver's directory.
//!
//! Each call names one component below an open directory and follows no link, so neither names nor
//! links, nor another process that exchanges directories meanwhile, lead elsewhere.

use std::fs::{File, Metadata, TryLockError};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Timespec, Timestamps, UTIME_OMIT, Uid,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::destination::{is_ours, part_name, sum_of};
use super::frame::Sum;
use super::record::Facts;

/// Bits of a directory's mode that give no privileges, also without its owner.
const DIRECTORY_BITS: u32 = 0o3777;
const FILE_BITS: u32 = 0o777;
const ALL_BITS: u32 = 0o7777;

/// The user and group that a file gets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    pub(super) user: Uid,
    pub(super) group: Gid,
}

/// Opens a directory, and creates it if it is missing. An existing one of this user becomes writable.
pub(super) fn enter(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    let existed = match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
        Ok(()) => false,
        Err(Errno::EXIST) => true,
        Err(cause) => return Err(cause.into()),
    };
    let opened = open_directory(parent, name, OFlags::RDONLY)?;
    if existed {
        let found = rustix::fs::fstat(&opened)?;
        let mode = Mode::from_raw_mode(found.st_mode);
        if found.st_uid == geteuid().as_raw() && !mode.contains(Mode::RWXU) {
            rustix::fs::fchmod(&opened, mode | Mode::RWXU)?;
        }
    }
    Ok(opened)
}

/// Opens a directory that no symbolic link leads to.
pub(super) fn open_directory(
    parent: BorrowedFd<'_>,
    name: &[u8],
    flags: OFlags,
) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(parent, name, flags, Mode::empty());
    opened.map_err(|cause| match cause {
        Errno::NOTDIR | Errno::LOOP => io::Error::new(
            io::ErrorKind::NotADirectory,
            "a file or a symbolic link of this name exists; remove it",
        ),
        cause => cause.into(),
    })
}

/// Sets the metadata of a complete directory.
pub(super) fn leave(directory: &OwnedFd, facts: &Facts, owner: Option<Owner>) -> io::Result<()> {
    let bits = match owner {
        Some(owner) => {
            rustix::fs::fchown(directory, Some(owner.user), Some(owner.group))?;
            ALL_BITS
        }
        None => DIRECTORY_BITS,
    };
    rustix::fs::fchmod(directory, Mode::from_raw_mode(facts.mode & bits))?;
    rustix::fs::futimens(directory, &times(facts))?;
    Ok(())
}

fn times(facts: &Facts) -> Timestamps {
    let modified = Timespec {
        tv_sec: facts.modified_s,
        tv_nsec: facts.modified_ns.into(),
    };
    let unchanged = Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_OMIT,
    };
    Timestamps {
        last_access: unchanged,
        last_modification: modified,
    }
}

/// A file that has a temporary name until it is complete.
pub(super) struct Part {
    file: File,
    temporary: Vec<u8>,
    name: Vec<u8>,
    owner: Option<Owner>,
    /// End of what is written.
    end_bytes: u64,
}

impl Part {
    /// Opens the file: a new one, or one whose beginning exists up to `from_bytes`.
    pub(super) fn open(dir: BorrowedFd<'_>, name: &[u8], from_bytes: u64) -> io::Result<Part> {
        let temporary = part_name(name);
        let file = match from_bytes {
            0 => create(dir, &temporary)?,
            from_bytes => {
                let (file, found) = open_part(dir, &temporary)?
                    .filter(|(_, found)| found.len() >= from_bytes)
                    .ok_or_else(|| io::Error::other("the file that was begun has changed"))?;
                if found.len() > from_bytes {
                    file.set_len(from_bytes)?;
                }
                file
            }
        };
        Ok(Part {
            file,
            temporary,
            name: name.to_owned(),
            owner: None,
            end_bytes: from_bytes,
        })
    }

    pub(super) fn write(&mut self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset_bytes)?;
        self.end_bytes = offset_bytes + bytes.len() as u64;
        Ok(())
    }

    /// Sets the owner. Extended attributes come after it, because it removes privileges.
    pub(super) fn own(&mut self, owner: Option<Owner>) -> io::Result<()> {
        if let (None, Some(owner)) = (self.owner, owner) {
            rustix::fs::fchown(&self.file, Some(owner.user), Some(owner.group))?;
            self.owner = Some(owner);
        }
        Ok(())
    }

    pub(super) fn set_attribute(&self, name: &[u8], value: &[u8]) -> io::Result<()> {
        set_attribute(&self.file, name, value)
    }

    /// Completes the file: sets its length, metadata and name.
    pub(super) fn finish(
        &self,
        dir: BorrowedFd<'_>,
        facts: &Facts,
        length_bytes: u64,
    ) -> io::Result<()> {
        if self.end_bytes != length_bytes {
            self.file.set_len(length_bytes)?;
        }
        // A set-user-ID program must not become one of the receiver's.
        let bits = self.owner.map_or(FILE_BITS, |_| ALL_BITS);
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(facts.mode & bits))?;
        rustix::fs::futimens(&self.file, &times(facts))?;
        rename(dir, &self.temporary, &self.name)
    }

    /// Device and inode.
    pub(super) fn id(&self) -> io::Result<(u64, u64)> {
        let found = self.file.metadata()?;
        Ok((found.dev(), found.ino()))
    }

    /// Removes the file.
    pub(super) fn remove(self, dir: BorrowedFd<'_>) {
        let _is_gone = rustix::fs::unlinkat(dir, &self.temporary, AtFlags::empty());
    }

    /// Leaves the file for a later transfer; returns its temporary name. An empty one is removed.
    pub(super) fn abandon(self, dir: BorrowedFd<'_>) -> Option<Vec<u8>> {
        if self.end_bytes == 0 {
            self.remove(dir);
            return None;
        }
        Some(self.temporary)
    }
}

fn create(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let file = match rustix::fs::openat(dir, name, flags, mode) {
        Err(Errno::EXIST) => {
            rustix::fs::unlinkat(dir, name, AtFlags::empty())?;
            rustix::fs::openat(dir, name, flags, mode)?
        }
        opened => opened?,
    };
    Ok(file.into())
}

/// Opens what an earlier transfer of this user has left.
fn open_part(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<Option<(File, Metadata)>> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file: File = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Err(Errno::NOENT | Errno::LOOP) => return Ok(None),
        opened => opened?.into(),
    };
    let found = file.metadata()?;
    if !is_ours(&found) {
        return Ok(None);
    }
    match file.try_lock() {
        Ok(()) => Ok(Some((file, found))),
        Err(TryLockError::WouldBlock) => Err(io::Error::other("another process writes it")),
        Err(TryLockError::Error(cause)) => Err(cause),
    }
}

/// Checksums what an earlier transfer has left of a file; 0 bytes if nothing can be used.
pub(super) fn sum_of_part(
    dir: BorrowedFd<'_>,
    name: &[u8],
    length_bytes: u64,
    working: &mut dyn FnMut(),
) -> io::Result<Sum> {
    match open_part(dir, &part_name(name))? {
        Some((mut file, found)) if found.len() <= length_bytes => {
            sum_of(&mut file, found.len(), working)
        }
        _ => Ok(Sum::new()),
    }
}

/// True if a file exists with this length and modification time; it gets the mode and owner.
pub(super) fn is_whole(
    dir: BorrowedFd<'_>,
    name: &[u8],
    (facts, length_bytes): (&Facts, u64),
    owner: Option<Owner>,
) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file: File = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(file) => file.into(),
        Err(_) => return Ok(false),
    };
    let found = file.metadata()?;
    let modified = (found.mtime(), found.mtime_nsec());
    if !found.is_file()
        || found.len() != length_bytes
        || modified != (facts.modified_s, facts.modified_ns.into())
    {
        return Ok(false);
    }
    if let Some(owner) = owner {
        rustix::fs::fchown(&file, Some(owner.user), Some(owner.group))?;
    }
    let mode = facts.mode & owner.map_or(FILE_BITS, |_| ALL_BITS);
    if owner.is_some() || found.mode() & ALL_BITS != mode {
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
    }
    Ok(true)
}

/// Sets an extended attribute of an open file or directory.
pub(super) fn set_attribute(
    file: impl std::os::fd::AsFd,
    name: &[u8],
    value: &[u8],
) -> io::Result<()> {
    let flags = rustix::fs::XattrFlags::empty();
    Ok(rustix::fs::fsetxattr(file, name, value, flags)?)
}

/// Creates a symbolic link.
pub(super) fn symlink(
    dir: BorrowedFd<'_>,
    (name, target): (&[u8], &[u8]),
    facts: &Facts,
    owner: Option<Owner>,
) -> io::Result<()> {
    let made = create_or_replace(dir, name, |as_name| {
        rustix::fs::symlinkat(target, dir, as_name)
    });
    made?;
    if let Some(owner) = owner {
        let (user, group) = (Some(owner.user), Some(owner.group));
        rustix::fs::chownat(dir, name, user, group, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    rustix::fs::utimensat(dir, name, &times(facts), AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(())
}

/// Gives a file, which must have this device and inode, another name.
pub(super) fn hard_link(
    (from_dir, from): (BorrowedFd<'_>, &[u8]),
    id: (u64, u64),
    (dir, name): (BorrowedFd<'_>, &[u8]),
) -> io::Result<()> {
    if find(from_dir, from)?.is_none_or(|found| id_of(&found) != id) {
        return Err(io::Error::other("its first name leads elsewhere now"));
    }
    if find(dir, name)?.is_some_and(|found| id_of(&found) == id) {
        return Ok(());
    }
    create_or_replace(dir, name, |as_name| {
        rustix::fs::linkat(from_dir, from, dir, as_name, AtFlags::empty())
    })
}

/// Creates a file without content, first with a temporary name if another one has its own.
fn create_or_replace(
    dir: BorrowedFd<'_>,
    name: &[u8],
    create: impl Fn(&[u8]) -> rustix::io::Result<()>,
) -> io::Result<()> {
    match create(name) {
        Err(Errno::EXIST) => {}
        created => return Ok(created?),
    }
    let temporary = part_name(name);
    match create(&temporary) {
        Err(Errno::EXIST) => {
            rustix::fs::unlinkat(dir, &temporary, AtFlags::empty())?;
            create(&temporary)?;
        }
        created => created?,
    }
    rename(dir, &temporary, name).inspect_err(|_| {
        let _is_gone = rustix::fs::unlinkat(dir, &temporary, AtFlags::empty());
    })
}

/// Gives a complete file its name. It may replace a file or a symbolic link, but nothing else.
fn rename(dir: BorrowedFd<'_>, temporary: &[u8], name: &[u8]) -> io::Result<()> {
    match rustix::fs::renameat_with(dir, temporary, dir, name, RenameFlags::NOREPLACE) {
        // Some file systems cannot refuse to replace a file.
        Err(Errno::EXIST | Errno::INVAL | Errno::NOSYS) => {}
        renamed => return Ok(renamed?),
    }
    let replaced = find(dir, name)?.map(|found| FileType::from_raw_mode(found.st_mode));
    if !matches!(
        replaced,
        None | Some(FileType::RegularFile | FileType::Symlink)
    ) {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "a directory, a device, a pipe or a socket of this name exists; remove it",
        ));
    }
    Ok(rustix::fs::renameat(dir, temporary, dir, name)?)
}

/// Metadata of a file or link; `None` if it does not exist.
pub(super) fn find(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<Option<Stat>> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT) => Ok(None),
        Err(cause) => Err(cause.into()),
    }
}

/// Device and inode.
pub(super) fn id_of(found: &Stat) -> (u64, u64) {
    (found.st_dev, found.st_ino)
}
