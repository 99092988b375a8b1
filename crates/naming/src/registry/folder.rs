//! The registry's directory: made, checked, locked for a change.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;

use super::RegistryError;

/// Nobody changes the directory for longer than this unless it was stopped.
const STUCK: Duration = Duration::from_secs(10);

/// An `io::Error` with what was being done to which file.
pub(super) fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RegistryError {
    let path = path.to_owned();
    move |cause| RegistryError::Io { doing, path, cause }
}

/// Makes `path` with mode 0700 if it is not there, and refuses one that others can change.
pub(super) fn make_private(path: &Path) -> Result<(), RegistryError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .or_else(|cause| match cause.kind() {
            // Judged below, with a better message.
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

/// Refuses a directory that another user could replace: its group or everybody can write to one
/// of the directories that it lies in.
pub(super) fn check_way(path: &Path) -> Result<(), RegistryError> {
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

/// Makes the registry's own directory below a checked one, closed to everybody else.
pub(super) fn make_own(path: &Path) -> Result<(), RegistryError> {
    make_private(path)?;
    let found = std::fs::symlink_metadata(path).map_err(failed("checking", path))?;
    if found.mode() & 0o077 != 0 {
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(path, private).map_err(failed("closing", path))?;
    }
    Ok(())
}

/// The right to change the directory, until it is dropped.
pub(super) struct Guard {
    file: File,
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Unlocked by name, not by closing: a child forked meanwhile has a copy open.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// Waits for the right to change the directory.
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

/// Waits for a lock.
pub(super) fn flock(file: &File, operation: FlockOperation) -> io::Result<()> {
    loop {
        match rustix::fs::flock(file, operation) {
            Err(rustix::io::Errno::INTR) => {}
            done => return done.map_err(io::Error::from),
        }
    }
}

/// Opens a lock file, which is made once and never removed.
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

/// The names of what lies in a directory, without those that are no text: they are not ours.
pub(super) fn names(folder: &Path) -> Result<Vec<String>, RegistryError> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed("reading", folder))? {
        let name = entry.map_err(failed("reading", folder))?.file_name();
        names.extend(name.into_string());
    }
    Ok(names)
}

/// Removes a file that may be gone already.
pub(super) fn remove(path: &Path) -> Result<(), RegistryError> {
    match std::fs::remove_file(path) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
            Err(failed("removing", path)(cause))
        }
        _ => Ok(()),
    }
}
