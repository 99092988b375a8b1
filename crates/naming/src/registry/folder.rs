//! The registry's directory: creation, checks, and the lock for changes.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::fs::FlockOperation;

use super::RegistryError;

/// The lock file.
const LOCK: &str = "registry.lock";
/// Longest wait for the lock. Processes hold it for a millisecond at most.
const STUCK: Duration = Duration::from_secs(30);

/// Adds the operation and the file to an `io::Error`.
pub(super) fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RegistryError {
    let path = path.to_owned();
    move |cause| RegistryError::Io { doing, path, cause }
}

/// Creates `path` with mode 0700 if it does not exist, and rejects a directory that others can
/// change.
pub(crate) fn make_private(path: &Path) -> Result<(), RegistryError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .or_else(|cause| match cause.kind() {
            // The check below has a better message.
            io::ErrorKind::AlreadyExists => Ok(()),
            _ => Err(cause),
        })
        .map_err(failed("making", path))?;
    let found = std::fs::symlink_metadata(path).map_err(failed("checking", path))?;
    if !found.is_dir() {
        return Err(RegistryError::NoDirectory {
            path: path.to_owned(),
        });
    }
    let expected_uid = rustix::process::geteuid().as_raw();
    if found.uid() != expected_uid {
        return Err(RegistryError::ForeignOwner {
            path: path.to_owned(),
            uid: found.uid(),
            expected_uid,
        });
    }
    if found.mode() & 0o022 != 0 {
        return Err(RegistryError::OpenToOthers {
            path: path.to_owned(),
            mode: found.mode() & 0o7777,
        });
    }
    Ok(())
}

/// Rejects a directory that another user could replace, because one of its parents belongs to that
/// user, or its group or everyone can write to one.
pub(super) fn check_parents(path: &Path) -> Result<(), RegistryError> {
    let whole = path.canonicalize().map_err(failed("checking", path))?;
    let own_uid = rustix::process::geteuid().as_raw();
    for parent in whole.ancestors().skip(1) {
        let found = std::fs::metadata(parent).map_err(failed("checking", parent))?;
        let (mode, uid) = (found.mode(), found.uid());
        if uid != 0 && uid != own_uid && !is_root_outside(uid) {
            return Err(RegistryError::ForeignParent {
                path: path.to_owned(),
                parent: parent.to_owned(),
                uid,
            });
        }
        // In a sticky directory such as /tmp only the owner of an entry can replace it.
        if mode & 0o022 != 0 && mode & 0o1000 == 0 {
            return Err(RegistryError::LooseParent {
                path: path.to_owned(),
                parent: parent.to_owned(),
                mode: mode & 0o7777,
            });
        }
    }
    Ok(())
}

/// True if this process is in a user namespace, where root outside of it appears as this uid.
fn is_root_outside(uid: u32) -> bool {
    let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
    let overflow = overflow.ok().and_then(|uid| uid.trim().parse().ok());
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let has_all = map.split_whitespace().eq(["0", "0", "4294967295"]);
    overflow == Some(uid) && !has_all
}

/// Creates the registry's own directory below a checked one, closed to all other users.
pub(super) fn make_registry_dir(path: &Path) -> Result<(), RegistryError> {
    make_private(path)?;
    let found = std::fs::symlink_metadata(path).map_err(failed("checking", path))?;
    if found.mode() & 0o077 != 0 {
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(path, private).map_err(failed("closing", path))?;
    }
    Ok(())
}

/// The lock for changes of the directory; released when dropped.
pub(super) struct Guard {
    file: File,
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Unlock explicitly: a child forked in the meantime has a copy of the descriptor.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// Whether other processes may hold the lock at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Processes that add their own files.
    Shared,
    /// No other process: files of dead ones may be removed.
    Exclusive,
}

/// Takes the lock for changes of the directory.
///
/// The kernel wakes the processes that wait for it whenever it is released, so none of them is
/// overtaken again and again as it would be if it tried now and then.
pub(super) fn lock(folder: &Path, mode: Mode) -> Result<Guard, RegistryError> {
    if let Some(guard) = try_lock(folder, mode)? {
        return Ok(guard);
    }
    let path = folder.join(LOCK);
    let file = open_lock(&path)?;
    // A blocking lock has no time-out, so another thread waits for it.
    let (sender, locked) = channel();
    std::thread::Builder::new()
        .name("dipole-lock".to_owned())
        .spawn(move || {
            let done = flock(
                &file,
                match mode {
                    Mode::Shared => FlockOperation::LockShared,
                    Mode::Exclusive => FlockOperation::LockExclusive,
                },
            );
            // After the time-out the guard is dropped here.
            let _ = sender.send(done.map(|()| Guard { file }));
        })
        .map_err(failed("starting a thread to lock", &path))?;
    match locked.recv_timeout(STUCK) {
        Ok(done) => done.map_err(failed("locking", &path)),
        Err(_) => Err(RegistryError::Stuck {
            path,
            waited_ms: u64::try_from(STUCK.as_millis()).unwrap_or(u64::MAX),
        }),
    }
}

/// Takes the lock for changes of the directory unless another process or thread has it.
pub(super) fn try_lock(folder: &Path, mode: Mode) -> Result<Option<Guard>, RegistryError> {
    let path = folder.join(LOCK);
    let file = open_lock(&path)?;
    let operation = match mode {
        Mode::Shared => FlockOperation::NonBlockingLockShared,
        Mode::Exclusive => FlockOperation::NonBlockingLockExclusive,
    };
    match flock(&file, operation) {
        Ok(()) => Ok(Some(Guard { file })),
        Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(cause) => Err(failed("locking", &path)(cause)),
    }
}

/// Takes or releases a lock; retries after signals.
pub(super) fn flock(file: &File, operation: FlockOperation) -> io::Result<()> {
    loop {
        match rustix::fs::flock(file, operation) {
            Err(rustix::io::Errno::INTR) => {}
            done => return done.map_err(io::Error::from),
        }
    }
}

/// Opens a lock file, which is created once and never removed.
pub(super) fn open_lock(path: &Path) -> Result<File, RegistryError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(failed("opening", path))
}

/// Names of the entries of a directory. Names that are not UTF-8 are not ours and are left out.
pub(super) fn names(folder: &Path) -> Result<Vec<String>, RegistryError> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed("reading", folder))? {
        let name = entry.map_err(failed("reading", folder))?.file_name();
        names.extend(name.into_string());
    }
    Ok(names)
}

/// Removes a file that may not exist.
pub(super) fn remove(path: &Path) -> Result<(), RegistryError> {
    match std::fs::remove_file(path) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
            Err(failed("removing", path)(cause))
        }
        _ => Ok(()),
    }
}
