//! How many processes and endpoints a registry has: for the limits of its user.

use std::collections::BTreeSet;
use std::path::Path;

use super::folder::failed;
use super::{RegistryError, owner, sweep};
use crate::limits::{LimitReached, UserLimits};

/// Refuses this process if the user has as many others as they may. Call it locked.
pub(super) fn admit_process(folder: &Path, limits: &UserLimits) -> Result<(), RegistryError> {
    let Some(bound) = &limits.processes else {
        return Ok(());
    };
    // Several nodes of one process are one process.
    let mut living = BTreeSet::new();
    for name in names(folder, "owner-")? {
        living.extend(owner::living_process(&folder.join(name))?);
    }
    living.remove(&owner::this_process());
    if living.len() < bound.limit as usize {
        return Ok(());
    }
    Err(RegistryError::Limit(LimitReached::UserProcesses {
        bound: bound.clone(),
        uid: rustix::process::geteuid().as_raw(),
    }))
}

/// Refuses one more endpoint if the user has as many as they may. Call it locked.
pub(super) fn admit_endpoint(folder: &Path, limits: &UserLimits) -> Result<(), RegistryError> {
    let Some(bound) = &limits.endpoints else {
        return Ok(());
    };
    let is_full = || Ok(names(folder, "endpoint-")?.len() >= bound.limit as usize);
    if !is_full()? {
        return Ok(());
    }
    // Those of the dead do not count.
    sweep::sweep(folder)?;
    if !is_full()? {
        return Ok(());
    }
    Err(RegistryError::Limit(LimitReached::UserEndpoints {
        bound: bound.clone(),
        uid: rustix::process::geteuid().as_raw(),
    }))
}

fn names(folder: &Path, prefix: &str) -> Result<Vec<String>, RegistryError> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed("reading", folder))? {
        let name = entry.map_err(failed("reading", folder))?.file_name();
        names.extend(
            name.to_str()
                .filter(|name| name.starts_with(prefix))
                .map(str::to_owned),
        );
    }
    Ok(names)
}
