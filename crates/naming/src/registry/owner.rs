//! The file of one owner, encoded with postcard and locked while the owner lives.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::folder::failed;
use super::{Liveness, Owner, Ports, RegistryError, is_locked, pause, random_number};

/// Longest command line that is stored, in characters.
const MAX_COMMAND_CHARS: usize = 200;
/// Prefix of the name of an owner file that is being written.
pub(super) const NEW_PREFIX: &str = "new-";
/// Longest owner file read.
const MAX_FILE_BYTES: u64 = 4096;

/// Creates and locks the file of this process; returns its name. The file gets its name when it is
/// locked and complete, so no process takes it for the file of a dead one.
pub(super) fn create(folder: &Path, ports: &Ports) -> Result<(String, File), RegistryError> {
    let pid = std::process::id();
    let random = random_number().map_err(failed("naming an owner in", folder))?;
    let name = format!("owner-{pid}-{random:016x}");
    let file = replace(folder, &name, ports)?;
    Ok((name, file))
}

/// Writes and locks the file of this process in place of an earlier one, which must stay locked.
pub(super) fn replace(folder: &Path, name: &str, ports: &Ports) -> Result<File, RegistryError> {
    let pid = std::process::id();
    let path = folder.join(format!("{NEW_PREFIX}{name}"));
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .map_err(failed("making", &path))?;
    rustix::fs::flock(&file, FlockOperation::LockExclusive)
        .map_err(|error| failed("locking", &path)(error.into()))?;
    let record = Record {
        owner: Owner {
            pid,
            command: own_command(),
            ports: *ports,
        },
        namespace: pid_namespace(),
        started: start_time(pid).ok().flatten().unwrap_or(0),
    };
    postcard::to_allocvec(&record)
        .map_err(io::Error::other)
        .and_then(|bytes| file.write_all(&bytes))
        .and_then(|()| std::fs::rename(&path, folder.join(name)))
        .inspect_err(|_| {
            let _ = std::fs::remove_file(&path);
        })
        .map_err(failed("writing", &path))?;
    Ok(file)
}

/// Reads an owner file, if its owner lives.
fn living(path: &Path) -> Result<Option<Record>, RegistryError> {
    let Some(file) = open(path)? else {
        return Ok(None);
    };
    if !is_locked(&file).map_err(failed("testing", path))? {
        return Ok(None);
    }
    let record = read(file, path)?;
    let runs = record
        .runs()
        .map_err(failed("checking the process of", path))?;
    Ok(runs.then_some(record))
}

/// Reads the owner file `name` if its owner lives.
pub(super) fn read_living(folder: &Path, name: &Path) -> Result<Option<Owner>, RegistryError> {
    Ok(living(&folder.join(name))?.map(|record| record.owner))
}

/// True if the owner of this file lives.
pub(super) fn is_alive(path: &Path) -> Result<bool, RegistryError> {
    match living(path) {
        Ok(record) => Ok(record.is_some()),
        // The file is locked, so its owner lives and it must not be removed.
        Err(RegistryError::Corrupt { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

/// State of the process of this file.
pub(super) fn liveness(path: &Path) -> Result<Liveness, RegistryError> {
    match living(path) {
        Ok(None) => Ok(Liveness::Ended),
        Ok(Some(record)) if record.may_be_paused() => Ok(Liveness::Stopped),
        Ok(Some(_)) => Ok(Liveness::Runs),
        // The file is locked, so its owner lives, but which process that is is unknown.
        Err(RegistryError::Corrupt { .. }) => Ok(Liveness::Stopped),
        Err(error) => Err(error),
    }
}

/// Identifies a process: pid namespace and pid.
pub(super) type ProcessKey = (u64, u32);

/// Key of the calling process.
pub(super) fn this_process() -> ProcessKey {
    (pid_namespace(), std::process::id())
}

/// The process of an owner file, if it lives.
pub(super) fn living_process(path: &Path) -> Result<Option<ProcessKey>, RegistryError> {
    Ok(living(path)?.map(|record| (record.namespace, record.owner.pid)))
}

/// The incarnation in an owner file, as it appears in the names of its other files.
pub(super) fn incarnation(path: &Path) -> Option<String> {
    let record = read(open(path).ok()??, path).ok()?;
    Some(format!("{:016x}", record.owner.ports.incarnation))
}

fn open(path: &Path) -> Result<Option<File>, RegistryError> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(failed("opening", path)(cause)),
    }
}

#[derive(Serialize, Deserialize)]
struct Record {
    owner: Owner,
    /// Pid namespace; 0 if unknown.
    namespace: u64,
    /// Start time of the process; 0 if unknown.
    started: u64,
}

impl Record {
    /// False if the process has ended and only a forked child keeps its lock.
    fn runs(&self) -> io::Result<bool> {
        // A pid is valid only in its own namespace.
        if self.namespace != pid_namespace() || self.started == 0 {
            return Ok(true);
        }
        Ok(start_time(self.owner.pid)? == Some(self.started))
    }

    /// True if the process is stopped or frozen, or if that is unknown.
    fn may_be_paused(&self) -> bool {
        self.namespace == 0 || self.namespace != pid_namespace() || pause::is_paused(self.owner.pid)
    }
}

fn read(file: File, path: &Path) -> Result<Record, RegistryError> {
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES)
        .read_to_end(&mut bytes)
        .map_err(failed("reading", path))?;
    postcard::from_bytes(&bytes).map_err(|_| RegistryError::Corrupt {
        path: path.to_owned(),
        reason: "it does not describe an owner",
    })
}

/// Identifies the pid namespace; 0 without /proc.
fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |found| found.ino())
}

/// Start time of a process in clock ticks since boot; `None` if it has ended or is a zombie.
///
/// # Errors
/// It is unknown, for instance because no descriptors are left.
fn start_time(pid: u32) -> io::Result<Option<u64>> {
    // Of its first thread: in place of a process's own /proc/PID/stat, qemu shows each thread another
    // start time.
    match std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/stat")) {
        Ok(stat) => Ok(start_field(&stat)),
        // It has ended; the second error is of one that ended after its file was opened.
        Err(cause)
            if cause.kind() == io::ErrorKind::NotFound
                || cause.raw_os_error() == Some(Errno::SRCH.raw_os_error()) =>
        {
            Ok(None)
        }
        Err(cause) => Err(cause),
    }
}

/// The start time in `/proc/PID/stat`; `None` if the process is a zombie.
fn start_field(stat: &str) -> Option<u64> {
    // The second field is the program's name in brackets and may contain brackets.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let threads: u32 = fields.nth(16)?.parse().ok()?;
    // A process whose first thread has ended is reported as a zombie too.
    if matches!(state, "Z" | "X") && threads < 2 {
        return None;
    }
    fields.nth(1)?.parse().ok()
}

fn own_command() -> String {
    let raw = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let text = String::from_utf8_lossy(&raw);
    text.trim_end_matches('\0')
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(MAX_COMMAND_CHARS)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_file_that_is_cut_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let ports = Ports {
            small: "1.2.3.4:5".parse().unwrap(),
            bulk: "[::1]:6".parse().unwrap(),
            incarnation: 255,
        };
        let (name, _locked) = create(folder.path(), &ports).unwrap();
        let path = folder.path().join(&name);
        let owner = read_living(folder.path(), name.as_ref()).unwrap().unwrap();
        assert_eq!((owner.pid, owner.ports), (std::process::id(), ports));
        assert_eq!(incarnation(&path).unwrap(), "00000000000000ff");
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let error = living(&path).err().unwrap().to_string();
            assert!(
                error.contains(&name) && error.contains("damaged"),
                "{error}"
            );
            assert!(is_alive(&path).unwrap() && incarnation(&path).is_none());
        }
    }

    #[test]
    fn this_process_has_a_start_time_and_one_that_does_not_exist_has_none() {
        assert!(start_time(std::process::id()).unwrap().is_some());
        assert!(start_time(u32::MAX).unwrap().is_none());
    }
}
