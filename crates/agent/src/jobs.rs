//! The jobs that agents of a node have started: one file each, locked by its session. A restarted
//! agent therefore knows them, and a killed session no longer counts.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use dipole_node::registry::Registry;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use serde::{Deserialize, Serialize};

/// A running job, for `dipole agent status`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct JobStatus {
    /// Process id of its session, the ancestor of all its processes.
    pub(super) pid: u32,
    /// User and host, as the caller claims.
    pub(super) who: String,
    /// Address of the caller.
    pub(super) peer: String,
    pub(super) command: String,
    /// Number of ranks that it may start here.
    pub(super) ranks: u32,
    /// Start time in seconds since 1970.
    pub(super) since: u64,
}

impl JobStatus {
    pub(super) fn running(&self) -> Duration {
        let since = SystemTime::UNIX_EPOCH + Duration::from_secs(self.since);
        since.elapsed().unwrap_or_default()
    }
}

/// The jobs of a node, locked: no job is added or removed meanwhile.
pub(super) struct Jobs {
    folder: PathBuf,
    _turn: File,
}

/// Entry of a job, which is listed until this is dropped.
pub(super) struct Entry {
    path: PathBuf,
    _lock: File,
}

impl Jobs {
    pub(super) fn of(registry: &Registry) -> io::Result<Jobs> {
        let folder = registry.path().join("jobs");
        std::fs::create_dir_all(&folder)?;
        let turn = file(&folder.join("turn"))?;
        while let Err(error) = flock(&turn, FlockOperation::LockExclusive) {
            if error != rustix::io::Errno::INTR {
                return Err(error.into());
            }
        }
        Ok(Jobs {
            folder,
            _turn: turn,
        })
    }

    /// Running jobs. Removes the entries of dead sessions.
    pub(super) fn living(&self) -> io::Result<Vec<JobStatus>> {
        let mut living = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "job") {
                continue;
            }
            // A session that is just ending has removed its file.
            let Ok(file) = File::open(&path) else {
                continue;
            };
            if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
                let _gone = std::fs::remove_file(&path);
            } else if let Ok(job) = serde_json::from_reader(file) {
                living.push(job);
            }
        }
        living.sort_by_key(|job: &JobStatus| (job.since, job.pid));
        Ok(living)
    }

    /// Adds a job of this process.
    pub(super) fn add(&self, job: &JobStatus) -> io::Result<Entry> {
        let path = self.folder.join(format!("{}.job", job.pid));
        let mut lock = file(&path)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        lock.set_len(0)?;
        lock.write_all(&serde_json::to_vec(job)?)?;
        Ok(Entry { path, _lock: lock })
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.path);
    }
}

fn file(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(open(path, flags, Mode::RUSR | Mode::WUSR)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use dipole_node::NodeId;

    #[test]
    fn jobs_are_known_while_their_sessions_live_and_forgotten_when_those_are_killed() {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::open(&folder.path().join("runtime"), NodeId(1)).unwrap();
        let job = JobStatus {
            pid: 77,
            who: "me@here".to_owned(),
            peer: "10.0.0.1:9".to_owned(),
            command: "sort".to_owned(),
            ranks: 3,
            since: 5,
        };
        let known = || -> Vec<u32> {
            let jobs = Jobs::of(&registry).unwrap().living().unwrap();
            jobs.iter().map(|job| job.pid).collect()
        };
        let first = Jobs::of(&registry).unwrap().add(&job).unwrap();
        let second = JobStatus { pid: 78, ..job };
        let second = Jobs::of(&registry).unwrap().add(&second).unwrap();
        assert_eq!(known(), [77, 78]);
        // Simulates a kill: the lock is released, the file stays.
        let left = second.path.clone();
        let Entry { _lock: lock, .. } = &second;
        flock(lock, FlockOperation::Unlock).unwrap();
        assert!(left.exists());
        assert_eq!(known(), [77]);
        assert!(!left.exists());
        drop(first);
        assert_eq!(known(), [0; 0]);
    }
}
