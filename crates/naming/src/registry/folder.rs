//! The registry's directory: creation, checks, and the lock for changes.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;

use super::RegistryError;

/// A process that holds the lock longer than this has probably been stopped.
const STUCK: Duration = Duration::from_secs(10);

/// Adds the operation and the file to an `io::Error`.
pub(super) fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RegistryError {
    let path = path.to_owned();
    move |cause| RegistryError::Io { doing, path, cause }
}

/// Creates `path` with mode 0700 if it does not exist, and rejects a directory that others can
/// change.
pub(super) fn make_private(path: &Path) -> Result<(), RegistryError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .or_else(|cause| match cause.kind() {
            // Checked below, with a better message.
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

/// Rejects a directory that another user could replace, because its group or everyone can write to
/// one of its parents.
pub(super) fn check_parents(path: &Path) -> Result<(), RegistryError> {
    let whole = path.canonicalize().map_err(failed("checking", path))?;
    for parent in whole.ancestors().skip(1) {
        let mode = std::fs::metadata(parent)
            .map_err(failed("checking", parent))?
            .mode();
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
        // Unlocked explicitly: a child forked in the meantime has a copy of the descriptor.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// Takes the lock for changes of the directory.
pub(super) fn lock(folder: &Path) -> Result<Guard, RegistryError> {
    let path = folder.join("registry.lock");
    let file = open_lock(&path)?;
    let started = Instant::now();
    let mut pause = Duration::from_micros(50);
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Guard { file }),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed("locking", &path)(error.into())),
        }
        if started.elapsed() > STUCK {
            return Err(RegistryError::Stuck {
                path,
                waited_ms: u64::try_from(STUCK.as_millis()).unwrap_or(u64::MAX),
            });
        }
        // A blocking lock has no deadline; the holder needs microseconds.
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(5));
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
