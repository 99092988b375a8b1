//! Runtime directories of jobs with their own node numbers, and removal of old ones.
//!
//! The processes of a job do not know which of them ends last, so the directory stays. The next job
//! on this machine removes directories that have not been used for an hour.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{Registry, RegistryError, folder, own_key};
use crate::address::NodeId;
use crate::envelope::Authenticator;

/// An empty directory may belong to a job that is starting, but not after this time.
const OLD: Duration = Duration::from_secs(3600);
const PREFIX: &str = "job-";
/// Files in it for later programs of the job's ranks.
pub(crate) const LAUNCHER_PREFIX: &str = "launcher-";

/// Creates the runtime directory of job `id` below the user's own and marks it as used now.
///
/// # Errors
/// The user's directory cannot be created, or is open to others.
pub(crate) fn job_dir(user_dir: &Path, id: u64) -> Result<PathBuf, RegistryError> {
    folder::make_private(user_dir)?;
    let own = user_dir.join(format!("{PREFIX}{id:016x}"));
    // Only the first rank of a job has to make and mark the directory.
    if own.is_dir() && !is_older(&own, OLD / 2) {
        folder::make_private(&own)?;
        return Ok(own);
    }
    // Another job that starts now must not take the new directory for an abandoned one.
    let _guard = folder::lock(user_dir, folder::Mode::Exclusive)?;
    folder::make_private(&own)?;
    File::open(&own)
        .and_then(|made| made.set_modified(SystemTime::now()))
        .map_err(folder::failed("marking", &own))?;
    for entry in std::fs::read_dir(user_dir).into_iter().flatten().flatten() {
        let is_job = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if is_job && entry.path() != own {
            // The next job tries again to remove what cannot be removed now.
            let _ = remove_if_left(&entry.path(), OLD);
        }
    }
    Ok(own)
}

/// True if the directory has not been changed or marked for this time.
fn is_older(path: &Path, old: Duration) -> bool {
    std::fs::symlink_metadata(path)
        .and_then(|found| found.modified())
        .ok()
        .and_then(|changed| changed.elapsed().ok())
        .is_some_and(|age| age >= old)
}

/// Removes a job's directory if no process uses it.
fn remove_if_left(job: &Path, old: Duration) -> Result<(), RegistryError> {
    if !is_older(job, old) {
        return Ok(());
    }
    for entry in std::fs::read_dir(job).map_err(folder::failed("reading", job))? {
        let entry = entry.map_err(folder::failed("reading", job))?;
        let path = entry.path();
        if entry
            .file_name()
            .to_string_lossy()
            .starts_with(LAUNCHER_PREFIX)
        {
            if !is_older(&path, old) {
                return Ok(());
            }
            std::fs::remove_file(&path).map_err(folder::failed("removing", &path))?;
            continue;
        }
        let registry = Registry {
            // Sweeping does not use the number.
            node: NodeId(1),
            folder: path.clone().into(),
            authenticator: Authenticator::default(),
            limits: Arc::default(),
        };
        if !is_older(&path, old) {
            return Ok(());
        }
        registry.sweep()?;
        let names = std::fs::read_dir(&path).map_err(folder::failed("reading", &path))?;
        let is_left = names.flatten().all(|entry| {
            ["registry.lock", "directory.lock", own_key::NAME]
                .iter()
                .any(|lock| entry.file_name() == *lock)
        });
        if !is_left {
            return Ok(());
        }
        std::fs::remove_dir_all(&path).map_err(folder::failed("removing", &path))?;
    }
    std::fs::remove_dir(job).map_err(folder::failed("removing", job))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Ports;

    #[test]
    fn an_old_job_directory_without_live_processes_is_removed() {
        let base = tempfile::tempdir().unwrap();
        let user_dir = base.path().join("user");
        let job = job_dir(&user_dir, 7).unwrap();
        assert_eq!(job, user_dir.join("job-0000000000000007"));
        let registry = Registry::open(&job, NodeId(3)).unwrap();
        let address = "127.0.0.1:1".parse().unwrap();
        std::fs::write(job.join("launcher-1"), "1").unwrap();
        let living = registry.register(Ports {
            small: address,
            bulk: address,
            incarnation: 5,
        });
        remove_if_left(&job, Duration::ZERO).unwrap();
        assert!(job.exists(), "a process uses it");
        drop(living);
        assert!(job_dir(&user_dir, 8).is_ok());
        assert!(job.exists(), "it is not old");
        let starting = job_dir(&user_dir, 9).unwrap();
        job_dir(&user_dir, 10).unwrap();
        assert!(starting.exists(), "it is empty because it is new");
        remove_if_left(&job, Duration::ZERO).unwrap();
        assert!(!job.exists());
    }
}
