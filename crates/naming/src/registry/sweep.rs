//! Liveness of owners, and removal of the files of dead ones.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::folder::{names, remove};
use super::{
    COUNTERS_PREFIX, EDGES_PREFIX, LINKS_PREFIX, Liveness, RegistryError, SOCKET_PREFIX, owner,
};

/// Prefixes of file names that end with an incarnation.
const INCARNATE: [&str; 4] = [SOCKET_PREFIX, EDGES_PREFIX, COUNTERS_PREFIX, LINKS_PREFIX];

/// Age at which an owner file that was not completed is removed.
const ABANDONED: Duration = Duration::from_secs(60);

/// State of the process with this incarnation. An owner whose file is unreadable may be it.
pub(super) fn liveness(folder: &Path, incarnation: u64) -> Result<Liveness, RegistryError> {
    let wanted = format!("{incarnation:016x}");
    for name in names(folder)? {
        let path = folder.join(&name);
        if name.starts_with("owner-")
            && owner::incarnation(&path).is_none_or(|found| found == wanted)
        {
            match owner::liveness(&path)? {
                Liveness::Ended => {}
                state => return Ok(state),
            }
        }
    }
    Ok(Liveness::Ended)
}

/// True if the process that wrote this file must have died meanwhile.
fn is_abandoned(path: &Path) -> bool {
    let changed = std::fs::symlink_metadata(path).and_then(|found| found.modified());
    let age = changed.ok().and_then(|changed| changed.elapsed().ok());
    age.is_some_and(|age| age >= ABANDONED)
}

/// Removes the files of dead owners and their endpoints. Call it with the registry locked.
pub(super) fn sweep(folder: &Path) -> Result<(), RegistryError> {
    let mut owners: Vec<PathBuf> = Vec::new();
    let mut endpoints: Vec<PathBuf> = Vec::new();
    // Files named after an incarnation.
    let mut incarnate: Vec<(PathBuf, String)> = Vec::new();
    for name in names(folder)? {
        let path = folder.join(&name);
        if name.starts_with("owner-") {
            owners.push(path);
        } else if name.starts_with(owner::NEW_PREFIX) {
            if is_abandoned(&path) {
                remove(&path)?;
            }
        } else if name.starts_with("endpoint-") {
            endpoints.push(path);
        } else if let Some(incarnation) = INCARNATE
            .iter()
            .find_map(|prefix| name.strip_prefix(prefix)?.get(..16))
        {
            incarnate.push((path, incarnation.to_owned()));
        }
    }
    let mut living = Vec::new();
    for path in owners {
        if owner::is_alive(&path)? {
            living.push(owner::incarnation(&path));
        } else {
            remove(&path)?;
        }
    }
    for link in endpoints {
        // Follows the link: it is broken if the owner's file was removed.
        if matches!(link.try_exists(), Ok(false)) {
            remove(&link)?;
        }
    }
    // Any file may belong to an owner whose file is unreadable.
    if living.iter().all(Option::is_some) {
        for (path, incarnation) in incarnate {
            let is_alive = living.iter().flatten().any(|one| *one == incarnation);
            if !is_alive {
                remove(&path)?;
            }
        }
    }
    Ok(())
}
