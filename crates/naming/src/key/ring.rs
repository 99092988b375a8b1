//! The keys that a process accepts: one that it makes proofs with and, during a key rotation, a
//! second one.
//!
//! The key file is read again when it has changed, so that a rotation needs no restart. It is
//! checked for changes when a proof is made or verified, at most every 50 ms.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use blake3::Hash;

use super::{ClusterKey, KEY_BYTES, KeyError};

/// Minimum time between two checks of the file.
const CHECK_INTERVAL: Duration = match cfg!(test) {
    false => Duration::from_millis(50),
    true => Duration::ZERO,
};

pub(super) type Secret = [u8; KEY_BYTES];

/// The keys in a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Secrets {
    /// Proofs are made with this key.
    pub(super) own: Secret,
    /// Proofs made with this key are also accepted.
    pub(super) other: Option<(Role, Secret)>,
}

/// Purpose of a second key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Proofs will be made with it after the next step.
    Next,
    /// Proofs were made with it before the last step.
    Old,
}

impl Role {
    /// Its name in key files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Role::Next => "next",
            Role::Old => "old",
        }
    }
}

impl Secrets {
    /// All keys; the one that proofs are made with comes first.
    pub(super) fn each(&self) -> impl Iterator<Item = &Secret> {
        [Some(&self.own), self.other.as_ref().map(|(_, other)| other)]
            .into_iter()
            .flatten()
    }

    /// The keys after the next step of a rotation. `fresh` is the new key, used if this is the
    /// first.
    pub(super) fn rotated(&self, fresh: Secret) -> Secrets {
        let (own, other) = match self.other {
            None => (self.own, Some((Role::Next, fresh))),
            Some((Role::Next, next)) => (next, Some((Role::Old, self.own))),
            Some((Role::Old, _)) => (self.own, None),
        };
        Secrets { own, other }
    }
}

/// Keys, and the file that they were read from.
pub(super) struct Ring {
    file: Option<PathBuf>,
    state: Mutex<State>,
}

struct State {
    secrets: Secrets,
    /// Incremented whenever the keys change.
    version: u64,
    /// Incremented whenever a key is no longer accepted.
    withdrawals: u64,
    stamp: Stamp,
    check_at: Option<Instant>,
}

/// Identifies a version of a file: device, inode, size, and time of its last change.
type Stamp = (u64, u64, u64, (i64, i64));

impl Ring {
    pub(super) fn new(secrets: Secrets) -> Ring {
        Ring::with_file(secrets, None, Stamp::default())
    }

    /// Keys that were read from a file with this metadata.
    pub(super) fn of_file(secrets: Secrets, file: &Path, facts: &Metadata) -> io::Result<Ring> {
        // The process may change its working directory.
        let file = std::path::absolute(file)?;
        Ok(Ring::with_file(secrets, Some(file), stamp(facts)))
    }

    fn with_file(secrets: Secrets, file: Option<PathBuf>, stamp: Stamp) -> Ring {
        let state = State {
            secrets,
            version: 0,
            withdrawals: 0,
            stamp,
            check_at: None,
        };
        Ring {
            file,
            state: Mutex::new(state),
        }
    }

    /// The current keys and their version.
    pub(super) fn current(&self) -> (Secrets, u64) {
        let state = self.refreshed();
        (state.secrets, state.version)
    }

    /// How often keys have been withdrawn.
    pub(super) fn withdrawals(&self) -> u64 {
        self.refreshed().withdrawals
    }

    fn refreshed(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        if let Some(file) = &self.file {
            let now = Instant::now();
            if state.check_at.is_none_or(|at| at <= now) {
                state.check_at = Some(now + CHECK_INTERVAL);
                state.reload_if_changed(file);
            }
        }
        state
    }

    /// The keys that were read last.
    pub(super) fn known(&self) -> Secrets {
        self.state().secrets
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Reads the file again if it has changed. Keeps the keys if it cannot be read.
    fn reload_if_changed(&mut self, file: &Path) {
        let found =
            std::fs::metadata(file).map_or_else(|_| Stamp::default(), |facts| stamp(&facts));
        if found == self.stamp {
            return;
        }
        self.stamp = found;
        match ClusterKey::read(file) {
            Ok((secrets, _, facts)) => {
                self.stamp = stamp(&facts);
                if secrets != self.secrets {
                    let is_taken = |known: &Secret| secrets.each().any(|one| one == known);
                    self.withdrawals += u64::from(!self.secrets.each().all(is_taken));
                    (self.secrets, self.version) = (secrets, self.version + 1);
                    let taken: Vec<_> = secrets.each().map(fingerprint).collect();
                    tracing::info!(
                        file = %file.display(),
                        proves_with = taken[0],
                        also_takes = taken.get(1),
                        "the cluster key has changed"
                    );
                }
            }
            Err(KeyError::System { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => {
                tracing::warn!(file = %file.display(), "the file of the cluster key is gone; keeping its last key");
            }
            Err(error) => {
                tracing::warn!(%error, "keeping the last cluster key");
            }
        }
    }
}

fn stamp(facts: &Metadata) -> Stamp {
    let changed = (facts.ctime(), facts.ctime_nsec());
    (facts.dev(), facts.ino(), facts.len(), changed)
}

/// Fingerprint of a key, for people to compare. It reveals nothing about the key.
pub(super) fn fingerprint(secret: &Secret) -> String {
    let derived = blake3::derive_key("dipole 2026 fingerprint", secret);
    Hash::from_bytes(derived).to_hex()[..16].to_owned()
}
