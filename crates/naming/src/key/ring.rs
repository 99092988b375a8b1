//! The keys that a process holds: one that it proves with, and, while the cluster's key is
//! exchanged, one more that it takes.
//!
//! What a file holds is read again when it has changed, so that a key can be exchanged without
//! restarting anything. The file is looked at only when a proof is made or checked, and not
//! for each of them.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use blake3::Hash;

use super::{ClusterKey, KEY_BYTES, KeyError};

/// Between two looks at the file.
const LOOK_INTERVAL: Duration = match cfg!(test) {
    false => Duration::from_millis(50),
    true => Duration::ZERO,
};

pub(super) type Secret = [u8; KEY_BYTES];

/// The keys themselves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Secrets {
    /// What proofs are made with.
    pub(super) own: Secret,
    /// Proofs made with it are taken as well.
    pub(super) other: Option<(Role, Secret)>,
}

/// What a second key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Proofs will be made with it.
    Next,
    /// Proofs were made with it.
    Old,
}

impl Role {
    /// What a key file calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Role::Next => "next",
            Role::Old => "old",
        }
    }
}

impl Secrets {
    /// All of them, the one that proofs are made with first.
    pub(super) fn each(&self) -> impl Iterator<Item = &Secret> {
        [Some(&self.own), self.other.as_ref().map(|(_, other)| other)]
            .into_iter()
            .flatten()
    }

    /// As after the next step of an exchange; `fresh` is the key that begins one.
    pub(super) fn rotated(&self, fresh: Secret) -> Secrets {
        let (own, other) = match self.other {
            None => (self.own, Some((Role::Next, fresh))),
            Some((Role::Next, next)) => (next, Some((Role::Old, self.own))),
            Some((Role::Old, _)) => (self.own, None),
        };
        Secrets { own, other }
    }
}

/// Keys, and the file they are from.
pub(super) struct Ring {
    file: Option<PathBuf>,
    state: Mutex<State>,
}

struct State {
    secrets: Secrets,
    /// Grows whenever the keys change.
    version: u64,
    /// Grows whenever one that was taken is not any more.
    withdrawals: u64,
    stamp: Stamp,
    look_at: Option<Instant>,
}

/// What tells that a file is another than before: device, inode, size, time of its last change.
type Stamp = (u64, u64, u64, (i64, i64));

impl Ring {
    pub(super) fn new(secrets: Secrets) -> Ring {
        Ring::with_file(secrets, None, Stamp::default())
    }

    /// Keys that were read from this file when it was like that.
    pub(super) fn of_file(secrets: Secrets, file: &Path, facts: &Metadata) -> io::Result<Ring> {
        // The process may go to another directory.
        let file = std::path::absolute(file)?;
        Ok(Ring::with_file(secrets, Some(file), stamp(facts)))
    }

    fn with_file(secrets: Secrets, file: Option<PathBuf>, stamp: Stamp) -> Ring {
        let state = State {
            secrets,
            version: 0,
            withdrawals: 0,
            stamp,
            look_at: None,
        };
        Ring {
            file,
            state: Mutex::new(state),
        }
    }

    /// The keys as they are now, and their version.
    pub(super) fn current(&self) -> (Secrets, u64) {
        let state = self.looked();
        (state.secrets, state.version)
    }

    /// How many times keys have been withdrawn.
    pub(super) fn withdrawals(&self) -> u64 {
        self.looked().withdrawals
    }

    fn looked(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        if let Some(file) = &self.file {
            let now = Instant::now();
            if state.look_at.is_none_or(|at| at <= now) {
                state.look_at = Some(now + LOOK_INTERVAL);
                state.look(file);
            }
        }
        state
    }

    /// The keys as they were known last.
    pub(super) fn known(&self) -> Secrets {
        self.state().secrets
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Reads the file again if it has changed. One that cannot be read changes nothing.
    fn look(&mut self, file: &Path) {
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
                tracing::warn!(file = %file.display(), "the cluster key's file is gone; going on with the key it held");
            }
            Err(error) => {
                tracing::warn!(%error, "going on with the cluster key as it was");
            }
        }
    }
}

fn stamp(facts: &Metadata) -> Stamp {
    let changed = (facts.ctime(), facts.ctime_nsec());
    (facts.dev(), facts.ino(), facts.len(), changed)
}

/// A name by which people can compare keys; it gives nothing of them away.
pub(super) fn fingerprint(secret: &Secret) -> String {
    let derived = blake3::derive_key("dipole 2026 fingerprint", secret);
    Hash::from_bytes(derived).to_hex()[..16].to_owned()
}
