//! The cluster key: every process that holds it is a member of the cluster.
//!
//! It is a file of 64 hexadecimal digits that only its owner may read. The key itself is never
//! used: [`ClusterKey::derive`] derives a separate key for each purpose, so that a weakness in one
//! use does not expose the others. During a key rotation the file holds two keys.

mod ring;

use std::ffi::OsString;
use std::fmt;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use blake3::Hash;

use crate::{environment, files};
pub use ring::Role;
use ring::{Ring, Secret, Secrets};

/// Length of a cluster key.
pub const KEY_BYTES: usize = 32;
/// Length of a message authentication code.
pub const MAC_BYTES: usize = 16;
/// Two keys in hexadecimal, the setting, and some white space.
const MAX_FILE_BYTES: u64 = 512;

/// Random bytes from the kernel, at most 256.
///
/// # Errors
/// The kernel has no random numbers.
pub fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let length = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    match length == N {
        true => Ok(bytes),
        false => Err(io::Error::other("too few random bytes")),
    }
}

/// How packets between nodes are protected by the cluster key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Security {
    /// Sessions open only between holders of the key. Packets have a checksum only.
    Off,
    /// Each packet is authenticated.
    #[default]
    Auth,
    /// Each packet is authenticated and encrypted.
    Encrypt,
}

impl Security {
    /// All settings, with their names in key files.
    pub const ALL: [(&str, Security); 3] = [
        ("off", Security::Off),
        ("auth", Security::Auth),
        ("encrypt", Security::Encrypt),
    ];

    /// Returns the setting with this name, if it exists.
    #[must_use]
    pub fn named(name: &str) -> Option<Security> {
        let found = Security::ALL.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, security)| security)
    }
}

impl fmt::Display for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Security::ALL
            .into_iter()
            .find(|(_, security)| security == self);
        f.pad(name.map_or("", |(name, _)| name))
    }
}

/// The secret that the members of a cluster share. Cheap to clone; never printed. A key that was
/// loaded from a file follows later changes of the file.
#[derive(Clone)]
pub struct ClusterKey {
    ring: Arc<Ring>,
    security: Security,
}

/// Why a key cannot be loaded or saved.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read or written.
    #[error("{doing} the cluster key {file}: {cause}")]
    System {
        /// Path of the key file.
        file: PathBuf,
        /// The action that failed.
        doing: &'static str,
        /// The operating system's error.
        cause: io::Error,
    },
    /// Other users could read or change the file.
    #[error(
        "the cluster key {file} is open to other users (mode {mode:04o}): `chmod 600` it, and \
         if strangers had access make a new one with `dipole key new`"
    )]
    Open {
        /// Path of the key file.
        file: PathBuf,
        /// Permission bits of the file.
        mode: u32,
    },
    /// Another user owns the file.
    #[error(
        "the cluster key {file} belongs to user {found_uid}, who could change it; user \
         {own_uid} needs a copy of their own"
    )]
    Owner {
        /// Path of the key file.
        file: PathBuf,
        /// User id of the file's owner.
        found_uid: u32,
        /// User of this process.
        own_uid: u32,
    },
    /// The variable that names the file is empty.
    #[error(
        "found an empty value, expected the file of a cluster key; unset the variable to \
         go without a key"
    )]
    NoFile,
    /// The file does not hold a key.
    #[error(
        "{file} is not a cluster key: expected {} hexadecimal digits, and perhaps lines \
         `security=off`, `auth` or `encrypt`, and `next=` or `old=` with another key, as \
         `dipole key new` and `dipole key rotate` write",
        KEY_BYTES * 2
    )]
    Content {
        /// Path of the key file.
        file: PathBuf,
    },
    /// A key rotation is in another state than the command expects.
    #[error("{file} holds {found}")]
    Rotation {
        /// Path of the key file.
        file: PathBuf,
        /// The state of the rotation, and what to do.
        found: &'static str,
    },
}

impl ClusterKey {
    /// A key with these bytes.
    #[must_use]
    pub fn new(secret: [u8; KEY_BYTES]) -> ClusterKey {
        let other = None;
        ClusterKey::of(Secrets { own: secret, other }, Security::default())
    }

    fn of(secrets: Secrets, security: Security) -> ClusterKey {
        let ring = Arc::new(Ring::new(secrets));
        ClusterKey { ring, security }
    }

    /// The same key with another setting for packets.
    #[must_use]
    pub fn with_security(self, security: Security) -> ClusterKey {
        ClusterKey { security, ..self }
    }

    /// How packets are protected.
    #[must_use]
    pub fn security(&self) -> Security {
        self.security
    }

    /// Loads a key. Its file must belong to this user or to root, and be closed to all others.
    /// Later changes of the keys in the file are followed; a change of the security setting is not.
    ///
    /// # Errors
    /// [`KeyError`]
    pub fn load(file: &Path) -> Result<ClusterKey, KeyError> {
        let (secrets, security, facts) = ClusterKey::read(file)?;
        // A descriptor of this process may be closed, or another file, when it is read again.
        if is_own_descriptor(file) {
            return Ok(ClusterKey::of(secrets, security));
        }
        let ring = Ring::of_file(secrets, file, &facts).map_err(|cause| KeyError::System {
            file: file.to_owned(),
            doing: "finding",
            cause,
        })?;
        Ok(ClusterKey {
            ring: Arc::new(ring),
            security,
        })
    }

    fn read(file: &Path) -> Result<(Secrets, Security, Metadata), KeyError> {
        let system = |cause| KeyError::System {
            file: file.to_owned(),
            doing: "reading",
            cause,
        };
        // Opened first, so that the checked file is the one that is read.
        let opened = files::open(file).map_err(system)?;
        let facts = opened.metadata().map_err(system)?;
        let mode = facts.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Open {
                file: file.to_owned(),
                mode,
            });
        }
        let own_uid = rustix::process::geteuid().as_raw();
        if facts.uid() != own_uid && facts.uid() != 0 {
            return Err(KeyError::Owner {
                file: file.to_owned(),
                found_uid: facts.uid(),
                own_uid,
            });
        }
        let mut text = String::new();
        opened
            .take(MAX_FILE_BYTES)
            .read_to_string(&mut text)
            .map_err(system)?;
        let (secrets, security) = parsed(&text).ok_or_else(|| KeyError::Content {
            file: file.to_owned(),
        })?;
        Ok((secrets, security, facts))
    }

    /// Loads the key that `DIPOLE_KEY` names; `None` if it is not set. An empty value is an error,
    /// because it is probably a variable that was never set, not a decision against a key.
    ///
    /// # Errors
    /// [`KeyError`]
    pub fn from_env() -> Result<Option<ClusterKey>, KeyError> {
        ClusterKey::from_variable(std::env::var_os(environment::variables::KEY))
    }

    fn from_variable(value: Option<OsString>) -> Result<Option<ClusterKey>, KeyError> {
        match value {
            None => Ok(None),
            Some(file) if file.is_empty() => Err(KeyError::NoFile),
            Some(file) => ClusterKey::load(file.as_ref()).map(Some),
        }
    }

    /// Parses the content of a key file: the digits, then the protection of packets
    /// (`security=off`, `auth` or `encrypt`; default `auth`), then a second key.
    #[must_use]
    pub fn parse(text: &str) -> Option<ClusterKey> {
        let (secrets, security) = parsed(text)?;
        Some(ClusterKey::of(secrets, security))
    }

    /// Generates a random key.
    ///
    /// # Errors
    /// The kernel has no random numbers.
    pub fn random() -> io::Result<ClusterKey> {
        Ok(ClusterKey::new(random_bytes()?))
    }

    /// Saves the key to a new file with mode 0600.
    ///
    /// # Errors
    /// [`KeyError::System`]
    pub fn save(&self, file: &Path) -> Result<(), KeyError> {
        self.write(file)
            .map(drop)
            .map_err(|cause| KeyError::System {
                file: file.to_owned(),
                doing: "writing",
                cause,
            })
    }

    fn write(&self, file: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let mut opened = options.open(file)?;
        let written = opened
            .write_all(self.text().as_bytes())
            .and_then(|()| opened.sync_all());
        if let Err(cause) = written {
            // Half a key would make the next attempt fail.
            let _ = std::fs::remove_file(file);
            return Err(cause);
        }
        Ok(opened)
    }

    /// Takes the next of the three steps of a key rotation: a new key is accepted as well; proofs
    /// are made with the new key and the old one is still accepted; the old key is removed. Between
    /// two steps the file must be copied to every node. `goes_on` confirms that, and is required
    /// for each step but the first.
    ///
    /// The file is replaced atomically and keeps its owner and mode.
    ///
    /// # Errors
    /// [`KeyError`]; the file is then unchanged.
    pub fn rotate(file: &Path, goes_on: bool) -> Result<ClusterKey, KeyError> {
        let (secrets, security, facts) = ClusterKey::read(file)?;
        let refused = match (goes_on, secrets.other) {
            (false, Some((Role::Next, _))) => Some(
                "the next key already: give the file to every node, then go on with --continue",
            ),
            (false, Some((Role::Old, _))) => Some(
                "the old key still: give the file to every node, then end the exchange with \
                 --continue",
            ),
            (true, None) => {
                Some("one key, no exchange has begun: leave out --continue to begin one")
            }
            _ => None,
        };
        let file = file.to_owned();
        if let Some(found) = refused {
            return Err(KeyError::Rotation { file, found });
        }
        let replace = || {
            let rotated = ClusterKey::of(secrets.rotated(random_bytes()?), security);
            // The target of a symbolic link is replaced, not the link.
            let place = file.canonicalize()?;
            let mut fresh = place.clone().into_os_string();
            fresh.push(".new");
            let fresh = PathBuf::from(fresh);
            let opened = rotated.write(&fresh)?;
            let replaced = opened
                .set_permissions(facts.permissions())
                .and_then(|()| {
                    std::os::unix::fs::fchown(&opened, Some(facts.uid()), Some(facts.gid()))
                })
                .and_then(|()| std::fs::rename(&fresh, &place));
            if let Err(cause) = replaced {
                let _ = std::fs::remove_file(&fresh);
                return Err(cause);
            }
            Ok(rotated)
        };
        replace().map_err(|cause| match cause.kind() {
            io::ErrorKind::AlreadyExists => KeyError::Rotation {
                file: file.clone(),
                found: "a key, but a file of the same name with `.new` exists, of an exchange that \
                        is in progress or was killed: remove it",
            },
            _ => KeyError::System {
                file: file.clone(),
                doing: "replacing",
                cause,
            },
        })
    }

    /// Content of the key file, which is secret.
    #[must_use]
    pub fn text(&self) -> String {
        let secrets = self.ring.current().0;
        let digits = Hash::from_bytes(secrets.own);
        let mut text = format!("{digits}\nsecurity={}\n", self.security);
        if let Some((role, other)) = secrets.other {
            text += &format!("{}={}\n", role.name(), Hash::from_bytes(other));
        }
        text
    }

    /// Fingerprint of the key that proofs are made with, for people to compare. It reveals nothing
    /// about the key.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        ring::fingerprint(&self.ring.current().0.own)
    }

    /// Role and fingerprint of the second key during a rotation.
    #[must_use]
    pub fn other(&self) -> Option<(Role, String)> {
        let (role, other) = self.ring.current().0.other?;
        Some((role, ring::fingerprint(&other)))
    }

    /// How often a key that was accepted before has been withdrawn. Earlier proofs with it must be
    /// repeated.
    #[must_use]
    pub fn withdrawals(&self) -> u64 {
        self.ring.withdrawals()
    }

    /// The keys for one purpose, which is named by a text that no other purpose uses: first the key
    /// that proofs are made with, then the one that is also accepted.
    pub fn derive(&self, purpose: &str) -> impl Iterator<Item = [u8; KEY_BYTES]> {
        let secrets = self.ring.current().0;
        let derived: Vec<_> = secrets
            .each()
            .map(|secret| blake3::derive_key(purpose, secret))
            .collect();
        derived.into_iter()
    }

    /// The key for message authentication codes of one purpose.
    #[must_use]
    pub fn mac_key(&self, purpose: &'static str) -> MacKey {
        MacKey {
            ring: Arc::clone(&self.ring),
            purpose,
            derived: Arc::default(),
        }
    }
}

/// True if a path names a descriptor of this process. A descriptor of another process, such as the
/// parent, is a file like any other.
fn is_own_descriptor(file: &Path) -> bool {
    let own = format!("/proc/{}", std::process::id());
    ["/dev/fd", "/proc/self", "/proc/thread-self", &own]
        .iter()
        .any(|place| file.starts_with(place))
}

/// Parses a key file, as [`ClusterKey::parse`].
fn parsed(text: &str) -> Option<(Secrets, Security)> {
    // `Hash` is used only for its hexadecimal format.
    let secret =
        |digits: &str| -> Option<Secret> { Some(*Hash::from_hex(digits).ok()?.as_bytes()) };
    let mut lines = text.trim().lines().map(str::trim);
    let own = secret(lines.next()?)?;
    let (mut security, mut other) = (None, None);
    for line in lines {
        let (name, value) = line.split_once('=')?;
        let known = match name {
            "security" => security.replace(Security::named(value)?).is_some(),
            "next" => other.replace((Role::Next, secret(value)?)).is_some(),
            "old" => other.replace((Role::Old, secret(value)?)).is_some(),
            _ => return None,
        };
        if known {
            return None;
        }
    }
    Some((Secrets { own, other }, security.unwrap_or_default()))
}

impl PartialEq for ClusterKey {
    fn eq(&self, other: &ClusterKey) -> bool {
        self.security == other.security && self.ring.known() == other.ring.known()
    }
}

impl Eq for ClusterKey {}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = ring::fingerprint(&self.ring.known().own);
        write!(f, "ClusterKey({name})")
    }
}

/// Computes and verifies message authentication codes of one purpose: keyed BLAKE3, truncated to
/// [`MAC_BYTES`].
#[derive(Clone)]
pub struct MacKey {
    ring: Arc<Ring>,
    purpose: &'static str,
    /// Keys derived from the current version of the cluster key.
    derived: Arc<Mutex<Option<Derived>>>,
}

#[derive(Clone, Copy)]
struct Derived {
    version: u64,
    own: Secret,
    other: Option<Secret>,
}

impl MacKey {
    /// The code that proves that the sender of these bytes holds the key.
    #[must_use]
    pub fn mac(&self, bytes: &[u8]) -> [u8; MAC_BYTES] {
        code(&self.derived().own, bytes)
    }

    /// True if the code is correct. Runs in constant time.
    #[must_use]
    pub fn verify(&self, bytes: &[u8], mac: &[u8]) -> bool {
        let derived = self.derived();
        let is_right = |key: &Secret| {
            let right = code(key, bytes);
            let differs = mac.iter().zip(&right).fold(0, |all, (a, b)| all | (a ^ b));
            mac.len() == MAC_BYTES && std::hint::black_box(differs) == 0
        };
        is_right(&derived.own) || derived.other.as_ref().is_some_and(is_right)
    }

    /// [`ClusterKey::fingerprint`] of the key that codes are made with.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        ring::fingerprint(&self.ring.current().0.own)
    }

    fn derived(&self) -> Derived {
        let (secrets, version) = self.ring.current();
        let mut known = self.derived.lock().unwrap_or_else(PoisonError::into_inner);
        match *known {
            Some(derived) if derived.version == version => derived,
            _ => *known.insert(Derived {
                version,
                own: blake3::derive_key(self.purpose, &secrets.own),
                other: (secrets.other).map(|(_, other)| blake3::derive_key(self.purpose, &other)),
            }),
        }
    }
}

fn code(key: &Secret, bytes: &[u8]) -> [u8; MAC_BYTES] {
    let hash = blake3::keyed_hash(key, bytes);
    let mut mac = [0; MAC_BYTES];
    mac.copy_from_slice(&hash.as_bytes()[..MAC_BYTES]);
    mac
}

impl fmt::Debug for MacKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MacKey")
    }
}

/// How the cluster keys of two processes differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum KeyMismatch {
    /// Both processes have a key, but not the same.
    #[error("it has another cluster key than this process")]
    Different,
    /// Only this process has a key.
    #[error("it has no cluster key, this process has one")]
    OnlyOurs,
    /// Only the other process has a key.
    #[error("it has a cluster key, this process has none")]
    OnlyTheirs,
}

impl KeyMismatch {
    /// The difference, given which of the two processes has a key.
    #[must_use]
    pub fn between(ours: bool, theirs: bool) -> KeyMismatch {
        match (ours, theirs) {
            (true, false) => KeyMismatch::OnlyOurs,
            (false, true) => KeyMismatch::OnlyTheirs,
            _ => KeyMismatch::Different,
        }
    }

    /// Describes the difference and what to do. `fingerprint` is that of our key.
    #[must_use]
    pub fn explain(self, fingerprint: Option<&str>) -> String {
        let ours = fingerprint.map(|name| format!(" (ours is {name}, see `dipole key show`)"));
        let advice = match self {
            KeyMismatch::Different => "copy the key file of one node to the other",
            KeyMismatch::OnlyOurs => "set DIPOLE_KEY to the key file there too, or unset it here",
            KeyMismatch::OnlyTheirs => "set DIPOLE_KEY to a copy of its key file",
        };
        format!("{self}{}; {advice}", ours.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests;
