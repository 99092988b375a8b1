//! The cluster key: every process that holds it belongs to the cluster.
//!
//! A file of 64 hexadecimal digits that only its owner may read. The key itself is never used:
//! [`ClusterKey::derive`] makes a separate key for each purpose, so that a weakness in one use
//! does not expose the others.

use std::ffi::OsString;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blake3::Hash;
use rustix::fs::OFlags;

use crate::environment;

/// Length of a cluster key.
pub const KEY_BYTES: usize = 32;
/// Length of a message authentication code.
pub const MAC_BYTES: usize = 16;
/// The key in digits, and some white space.
const MAX_FILE_BYTES: u64 = 256;

/// Bytes of the system's randomness, up to 256 of them.
///
/// # Errors
/// The system has none.
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
    /// Sessions open only between holders of the key; their packets are checked for damage.
    Off,
    /// Each packet proves who sent it.
    #[default]
    Auth,
    /// And nobody else can read it.
    Encrypt,
}

impl Security {
    /// All of them, with what a key file calls them.
    pub const ALL: [(&str, Security); 3] = [
        ("off", Security::Off),
        ("auth", Security::Auth),
        ("encrypt", Security::Encrypt),
    ];

    /// The setting of that name.
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

/// The secret that the members of a cluster share, and what it is used for. Cheap to clone; never
/// printed.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKey {
    secret: Arc<[u8; KEY_BYTES]>,
    security: Security,
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read or written.
    #[error("{doing} the cluster key {file}: {cause}")]
    System {
        /// Which file.
        file: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// The operating system's error.
        cause: io::Error,
    },
    /// Others could read or change the file.
    #[error(
        "the cluster key {file} is open to other users (mode {mode:04o}): `chmod 600` it, and \
         if strangers had access make a new one with `dipole key new`"
    )]
    Open {
        /// Which file.
        file: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Another user owns the file.
    #[error(
        "the cluster key {file} belongs to user {found_uid}, who could change it; user \
         {own_uid} needs a copy of their own"
    )]
    Owner {
        /// Which file.
        file: PathBuf,
        /// Who owns it.
        found_uid: u32,
        /// Who reads it.
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
        "{file} is no cluster key: expected {} hexadecimal digits, and perhaps a line \
         `security=off`, `auth` or `encrypt`, as `dipole key new` writes",
        KEY_BYTES * 2
    )]
    Content {
        /// Which file.
        file: PathBuf,
    },
}

impl ClusterKey {
    /// A key from its bytes.
    #[must_use]
    pub fn new(secret: [u8; KEY_BYTES]) -> ClusterKey {
        ClusterKey {
            secret: Arc::new(secret),
            security: Security::default(),
        }
    }

    /// The same key, used in another way.
    #[must_use]
    pub fn with_security(self, security: Security) -> ClusterKey {
        ClusterKey { security, ..self }
    }

    /// How packets are protected.
    #[must_use]
    pub fn security(&self) -> Security {
        self.security
    }

    /// Reads a key. Its file must belong to this user, or to root, and be closed to all others.
    ///
    /// # Errors
    /// [`KeyError`], with what to do.
    pub fn load(file: &Path) -> Result<ClusterKey, KeyError> {
        let system = |cause| KeyError::System {
            file: file.to_owned(),
            doing: "reading",
            cause,
        };
        // What is checked must be what is read, and a pipe must not be waited for.
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(file)
            .map_err(system)?;
        let facts = opened.metadata().map_err(system)?;
        if !facts.is_file() {
            return Err(KeyError::Content {
                file: file.to_owned(),
            });
        }
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
        ClusterKey::parse(&text).ok_or_else(|| KeyError::Content {
            file: file.to_owned(),
        })
    }

    /// Reads the key that `DIPOLE_KEY` names; `None` if it is not set. An empty value is refused:
    /// it is more likely a variable that was never set than a wish to go without a key.
    ///
    /// # Errors
    /// [`KeyError`], with what to do.
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

    /// Reads what a key's file holds: the digits, then how packets are protected
    /// (`security=off`, `auth` or `encrypt`; `auth` if nothing is said).
    #[must_use]
    pub fn parse(text: &str) -> Option<ClusterKey> {
        let (digits, rest) = text.trim().split_once('\n').unwrap_or((text.trim(), ""));
        // Not that it were one: a key has a hash's bytes and digits.
        let bytes = Hash::from_hex(digits.trim()).ok()?;
        let key = ClusterKey::new(*bytes.as_bytes());
        match rest.trim() {
            "" => Some(key),
            setting => {
                let security = Security::named(setting.strip_prefix("security=")?)?;
                Some(key.with_security(security))
            }
        }
    }

    /// Makes a key from the system's randomness.
    ///
    /// # Errors
    /// The system has none.
    pub fn random() -> io::Result<ClusterKey> {
        Ok(ClusterKey::new(random_bytes()?))
    }

    /// Writes the key to a file that must not exist yet, with mode 0600.
    ///
    /// # Errors
    /// [`KeyError::System`]
    pub fn save(&self, file: &Path) -> Result<(), KeyError> {
        let system = |cause| KeyError::System {
            file: file.to_owned(),
            doing: "writing",
            cause,
        };
        let mut opened: File = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(file)
            .map_err(system)?;
        opened.write_all(self.text().as_bytes()).map_err(system)?;
        opened.sync_all().map_err(system)
    }

    /// What its file holds: a secret.
    #[must_use]
    pub fn text(&self) -> String {
        let digits = Hash::from_bytes(*self.secret);
        format!("{digits}\nsecurity={}\n", self.security)
    }

    /// A name of the key by which people can compare it; it gives nothing of the key away.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        Hash::from_bytes(self.derive("dipole 2026 fingerprint")).to_hex()[..16].to_owned()
    }

    /// The key of one purpose, named by a text that no other purpose uses.
    #[must_use]
    pub fn derive(&self, purpose: &str) -> [u8; KEY_BYTES] {
        blake3::derive_key(purpose, &self.secret[..])
    }

    /// The key of one purpose's message authentication codes.
    #[must_use]
    pub fn mac_key(&self, purpose: &str) -> MacKey {
        MacKey {
            key: self.derive(purpose),
        }
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterKey({})", self.fingerprint())
    }
}

/// Makes and verifies message authentication codes (BLAKE3 with a key, cut to [`MAC_BYTES`]) of
/// one purpose.
#[derive(Clone)]
pub struct MacKey {
    key: [u8; KEY_BYTES],
}

impl MacKey {
    /// The code that shows that the sender of these bytes holds the key.
    #[must_use]
    pub fn mac(&self, bytes: &[u8]) -> [u8; MAC_BYTES] {
        let hash = blake3::keyed_hash(&self.key, bytes);
        let mut mac = [0; MAC_BYTES];
        mac.copy_from_slice(&hash.as_bytes()[..MAC_BYTES]);
        mac
    }

    /// True if the code is right; runs in constant time.
    #[must_use]
    pub fn verify(&self, bytes: &[u8], mac: &[u8]) -> bool {
        let right = self.mac(bytes);
        let differs = mac.iter().zip(&right).fold(0, |all, (a, b)| all | (a ^ b));
        mac.len() == MAC_BYTES && std::hint::black_box(differs) == 0
    }
}

impl fmt::Debug for MacKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MacKey")
    }
}

/// How the cluster keys of two processes differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum KeyMismatch {
    /// Both have one, but not the same.
    #[error("it has another cluster key than this process")]
    Different,
    /// Only we have one.
    #[error("it has no cluster key, this process has one")]
    OnlyOurs,
    /// Only the other has one.
    #[error("it has a cluster key, this process has none")]
    OnlyTheirs,
}

impl KeyMismatch {
    /// What it is, seen from here.
    #[must_use]
    pub fn between(ours: bool, theirs: bool) -> KeyMismatch {
        match (ours, theirs) {
            (true, false) => KeyMismatch::OnlyOurs,
            (false, true) => KeyMismatch::OnlyTheirs,
            _ => KeyMismatch::Different,
        }
    }

    /// How the keys differ, which one ours is, and what to do.
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
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_saved_key_reads_back_and_is_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("key");
        let key = ClusterKey::random().unwrap();
        key.save(&file).unwrap();
        assert_eq!(ClusterKey::load(&file).unwrap(), key);
        assert_ne!(ClusterKey::random().unwrap(), key);
        assert!(matches!(
            ClusterKey::random().unwrap().save(&file),
            Err(KeyError::System { .. })
        ));
        assert_eq!(ClusterKey::load(&file).unwrap(), key);
    }

    #[test]
    fn a_key_that_others_may_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("key");
        ClusterKey::random().unwrap().save(&file).unwrap();
        for mode in [0o640, 0o604, 0o620, 0o601] {
            std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            let error = ClusterKey::load(&file).unwrap_err();
            assert!(matches!(error, KeyError::Open { mode: found, .. } if found == mode));
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
        std::fs::set_permissions(&file, Permissions::from_mode(0o400)).unwrap();
        assert!(ClusterKey::load(&file).is_ok());
    }

    #[test]
    fn a_variable_that_is_empty_is_refused_and_one_that_is_not_set_means_no_key() {
        assert!(matches!(ClusterKey::from_variable(None), Ok(None)));
        let error = ClusterKey::from_variable(Some(OsString::new())).unwrap_err();
        assert!(error.to_string().contains("unset"), "{error}");
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("key");
        let digits = "0123456789abcdefABCDEF0123456789".repeat(2);
        assert!(ClusterKey::parse(&format!(" {digits}\n")).is_some());
        for (name, security) in Security::ALL {
            let key = ClusterKey::parse(&format!("{digits}\nsecurity={name}\n")).unwrap();
            assert_eq!(key.security(), security);
            assert_eq!(ClusterKey::parse(&key.text()), Some(key));
        }
        for bad in [
            String::new(),
            digits[1..].to_owned(),
            format!("{digits}00"),
            digits.replace('a', "g"),
            digits.replacen("01", "+1", 1),
            format!("{digits}\nsecurity=none\n"),
            format!("{digits}\nauth\n"),
            format!("{digits}\nsecurity=off\nsecurity=auth\n"),
        ] {
            std::fs::write(&file, &bad).unwrap();
            std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
            assert!(matches!(
                ClusterKey::load(&file),
                Err(KeyError::Content { .. })
            ));
        }
        assert!(matches!(
            ClusterKey::load(directory.path()),
            Err(KeyError::Content { .. })
        ));
    }

    #[test]
    fn a_code_is_bound_to_key_purpose_and_every_bit() {
        let key = ClusterKey::new([7; KEY_BYTES]);
        let one = key.mac_key("one");
        let mac = one.mac(b"hello");
        assert!(one.verify(b"hello", &mac));
        assert!(!one.verify(b"hellp", &mac));
        assert!(!one.verify(b"hello", &mac[..15]));
        assert!(!one.verify(b"hello", &[]));
        assert!(!key.mac_key("two").verify(b"hello", &mac));
        assert!(
            !ClusterKey::new([8; KEY_BYTES])
                .mac_key("one")
                .verify(b"hello", &mac)
        );
        for bit in 0..MAC_BYTES * 8 {
            let mut bad = mac;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!one.verify(b"hello", &bad), "bit {bit}");
        }
    }

    #[test]
    fn printing_a_key_does_not_give_it_away() {
        let key = ClusterKey::random().unwrap();
        let (printed, digits) = (format!("{key:?} {:?}", key.mac_key("x")), key.text());
        let digits = &digits[..KEY_BYTES * 2];
        for part in 0..digits.len() - 8 {
            assert!(!printed.contains(&digits[part..part + 8]), "{printed}");
        }
    }
}
