//! How many processes and endpoints a registry has: for the limits of its user.

use std::collections::BTreeSet;
use std::path::Path;

use super::folder::names;
use super::{RegistryError, owner, sweep};
use crate::limits::{LimitReached, UserLimits};

/// Refuses this process if the user has as many others as they may. Call it locked.
pub(super) fn admit_process(folder: &Path, limits: &UserLimits) -> Result<(), RegistryError> {
    let Some(bound) = &limits.processes else {
        return Ok(());
    };
    // Several nodes of one process are one process.
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

/// Refuses one more endpoint if the user has as many as they may. Call it locked.
pub(super) fn admit_endpoint(folder: &Path, limits: &UserLimits) -> Result<(), RegistryError> {
    let Some(bound) = &limits.endpoints else {
        return Ok(());
    };
    let is_endpoint = |name: &&String| name.starts_with("endpoint-");
    let is_full = || Ok(names(folder)?.iter().filter(is_endpoint).count() >= bound.limit as usize);
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
