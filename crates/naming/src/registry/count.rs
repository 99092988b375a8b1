//! Counts processes and endpoints of a registry, for the limits of its user.

use std::collections::BTreeSet;
use std::path::Path;

use super::folder::names;
use super::{RegistryError, owner, sweep};
use crate::limits::{LimitReached, UserLimits};

/// Fails if the user's limit of processes is reached. Call it with the registry locked.
pub(super) fn admit_process(folder: &Path, limits: &UserLimits) -> Result<(), RegistryError> {
    let Some(bound) = &limits.processes else {
        return Ok(());
    };
    // Several nodes of one process count as one process.
    let mut living = BTreeSet::new();
    for name in names(folder)? {
        if name.starts_with("owner-") {
            living.extend(owner::living_process(&folder.join(name))?);
        }
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

/// Fails if the user's limit of endpoints is reached. Call it with the registry locked.
pub(super) fn admit_endpoint(folder: &Path, limits: &UserLimits) -> Result<(), RegistryError> {
    let Some(bound) = &limits.endpoints else {
        return Ok(());
    };
    let is_endpoint = |name: &&String| name.starts_with("endpoint-");
    let is_full = || Ok(names(folder)?.iter().filter(is_endpoint).count() >= bound.limit as usize);
    if !is_full()? {
        return Ok(());
    }
    // Endpoints of dead processes do not count.
    sweep::sweep(folder)?;
    if !is_full()? {
        return Ok(());
    }
    Err(RegistryError::Limit(LimitReached::UserEndpoints {
        bound: bound.clone(),
        uid: rustix::process::geteuid().as_raw(),
    }))
}
