//! The cluster key: every process that holds it belongs to the cluster.
//!
//! A file of 64 hexadecimal digits that only its owner may read. The key itself is never used:
//! [`ClusterKey::derive`] makes a separate key for each purpose, so that a weakness in one use
//! does not expose the others. While the key is exchanged the file holds two.

mod ring;

use std::ffi::OsString;
use std::fmt;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use blake3::Hash;
use rustix::fs::OFlags;

use crate::environment;
pub use ring::Role;
use ring::{Ring, Secret, Secrets};

/// Length of a cluster key.
pub const KEY_BYTES: usize = 32;
/// Length of a message authentication code.
pub const MAC_BYTES: usize = 16;
/// Two keys in digits, the setting, and some white space.
const MAX_FILE_BYTES: u64 = 512;

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
/// printed. One that was read from a file follows what the file holds.
#[derive(Clone)]
pub struct ClusterKey {
    ring: Arc<Ring>,
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
        "{file} is no cluster key: expected {} hexadecimal digits, and perhaps lines \
         `security=off`, `auth` or `encrypt`, and `next=` or `old=` with another key, as \
         `dipole key new` and `dipole key rotate` write",
        KEY_BYTES * 2
    )]
    Content {
        /// Which file.
        file: PathBuf,
    },
    /// A key is being exchanged, or none is, against what was asked.
    #[error("{file} holds {found}")]
    Rotation {
        /// Which file.
        file: PathBuf,
        /// How far the exchange is, and what to do.
        found: &'static str,
    },
}

impl ClusterKey {
    /// A key from its bytes.
    #[must_use]
    pub fn new(secret: [u8; KEY_BYTES]) -> ClusterKey {
        let other = None;
        ClusterKey::of(Secrets { own: secret, other }, Security::default())
    }

    fn of(secrets: Secrets, security: Security) -> ClusterKey {
        let ring = Arc::new(Ring::new(secrets));
        ClusterKey { ring, security }
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

    /// Reads a key. Its file must belong to this user, or to root, and be closed to all others. What
    /// the file holds later is taken with the next proof, a moment after it changed; how packets are
    /// protected stays.
    ///
    /// # Errors
    /// [`KeyError`], with what to do.
    pub fn load(file: &Path) -> Result<ClusterKey, KeyError> {
        let (secrets, security, facts) = ClusterKey::read(file)?;
        // A descriptor of our own, which may be closed, or another file, by now.
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
        let (secrets, security) = parsed(&text).ok_or_else(|| KeyError::Content {
            file: file.to_owned(),
        })?;
        Ok((secrets, security, facts))
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
    /// (`security=off`, `auth` or `encrypt`; `auth` if nothing is said), then a second key.
    #[must_use]
    pub fn parse(text: &str) -> Option<ClusterKey> {
        let (secrets, security) = parsed(text)?;
        Some(ClusterKey::of(secrets, security))
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
            // Half a key would be in the way of the next attempt.
            let _ = std::fs::remove_file(file);
            return Err(cause);
        }
        Ok(opened)
    }

    /// Takes the next of the three steps by which the key in a file is exchanged: a new one is
    /// taken as well; it is what proofs are made with, and the old one still taken; the old one is
    /// gone. Between them every node must get the file; `goes_on` says that all have, and belongs
    /// to each step but the first.
    ///
    /// The file is replaced whole, with the owner and the mode that it had.
    ///
    /// # Errors
    /// [`KeyError`]; the file is then as it was.
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
            // What a link points to is replaced, not the link.
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
                found: "a key, and beside it lies a file of the same name and `.new`, of an \
                        exchange that goes on or was killed: remove that one",
            },
            _ => KeyError::System {
                file: file.clone(),
                doing: "replacing",
                cause,
            },
        })
    }

    /// What its file holds: a secret.
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

    /// A name of the key that proofs are made with, by which people can compare it; it gives
    /// nothing of the key away.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        ring::fingerprint(&self.ring.current().0.own)
    }

    /// The name of the second key, while the key is exchanged, and what it is for.
    #[must_use]
    pub fn other(&self) -> Option<(Role, String)> {
        let (role, other) = self.ring.current().0.other?;
        Some((role, ring::fingerprint(&other)))
    }

    /// How many times a key that was taken until then has been withdrawn: what was proven with it
    /// earlier is to be proven again.
    #[must_use]
    pub fn withdrawals(&self) -> u64 {
        self.ring.withdrawals()
    }

    /// The keys of one purpose, which is named by a text that no other purpose uses: first the one
    /// that proofs are made with, then the one that is taken as well.
    pub fn derive(&self, purpose: &str) -> impl Iterator<Item = [u8; KEY_BYTES]> {
        let secrets = self.ring.current().0;
        let derived: Vec<_> = secrets
            .each()
            .map(|secret| blake3::derive_key(purpose, secret))
            .collect();
        derived.into_iter()
    }

    /// The key of one purpose's message authentication codes.
    #[must_use]
    pub fn mac_key(&self, purpose: &'static str) -> MacKey {
        MacKey {
            ring: Arc::clone(&self.ring),
            purpose,
            derived: Arc::default(),
        }
    }
}

/// True of the name of a descriptor of this process; one of another process, such as that which
/// started us, is a file like others.
fn is_own_descriptor(file: &Path) -> bool {
    let own = format!("/proc/{}", std::process::id());
    ["/dev/fd", "/proc/self", "/proc/thread-self", &own]
        .iter()
        .any(|place| file.starts_with(place))
}

/// What a key's file says, as [`ClusterKey::parse`].
fn parsed(text: &str) -> Option<(Secrets, Security)> {
    // Not that it were one: a key has a hash's bytes and digits.
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

/// Makes and verifies message authentication codes (BLAKE3 with a key, cut to [`MAC_BYTES`]) of
/// one purpose.
#[derive(Clone)]
pub struct MacKey {
    ring: Arc<Ring>,
    purpose: &'static str,
    /// What was derived last.
    derived: Arc<Mutex<Option<Derived>>>,
}

#[derive(Clone, Copy)]
struct Derived {
    version: u64,
    own: Secret,
    other: Option<Secret>,
}

impl MacKey {
    /// The code that shows that the sender of these bytes holds the key.
    #[must_use]
    pub fn mac(&self, bytes: &[u8]) -> [u8; MAC_BYTES] {
        code(&self.derived().own, bytes)
    }

    /// True if the code is right; runs in constant time.
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

    /// The name of the key that codes are made with: [`ClusterKey::fingerprint`].
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
            format!("{digits}\nnext={}\n", &digits[1..]),
            format!("{digits}\nnext={digits}\nold={digits}\n"),
            format!("{digits}\nolder={digits}\n"),
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

    /// Files of a cluster's nodes, and the keys of processes that started with them.
    struct Cluster {
        directory: tempfile::TempDir,
        keys: Vec<(ClusterKey, MacKey)>,
    }

    impl Cluster {
        fn new(nodes: usize) -> Cluster {
            let directory = tempfile::tempdir().unwrap();
            let first = ClusterKey::random().unwrap();
            let mut cluster = Cluster {
                directory,
                keys: Vec::new(),
            };
            for node in 0..nodes {
                first.save(&cluster.file(node)).unwrap();
                let key = ClusterKey::load(&cluster.file(node)).unwrap();
                let codes = key.mac_key("test");
                cluster.keys.push((key, codes));
            }
            cluster
        }

        fn file(&self, node: usize) -> PathBuf {
            self.directory.path().join(format!("key{node}"))
        }

        /// Which nodes take what the others prove.
        fn all_agree(&self) -> bool {
            let proves = |from: &MacKey, to: &MacKey| to.verify(b"hello", &from.mac(b"hello"));
            let mut pairs =
                (self.keys.iter()).flat_map(|one| self.keys.iter().map(move |two| (one, two)));
            pairs.all(|(one, two)| proves(&one.1, &two.1))
        }
    }

    #[test]
    fn a_key_is_exchanged_in_three_steps_and_no_process_loses_another_on_the_way() {
        let cluster = Cluster::new(3);
        let [first, ..] = &cluster.keys[..] else {
            unreachable!()
        };
        let before = first.0.fingerprint();
        let roles = [Some(Role::Next), Some(Role::Old), None];
        for (step, role) in roles.into_iter().enumerate() {
            let rotated = ClusterKey::rotate(&cluster.file(0), step > 0).unwrap();
            assert_eq!(rotated.other().map(|(role, _)| role), role);
            assert!(cluster.all_agree(), "{step}");
            for node in 1..3 {
                std::fs::copy(cluster.file(0), cluster.file(node)).unwrap();
                assert!(cluster.all_agree(), "{step} {node}");
            }
            assert!(cluster.keys.iter().all(|(key, _)| *key == rotated));
            assert_eq!(first.0.fingerprint() == before, step == 0);
        }
        assert!(!cluster.directory.path().join("key0.new").exists());
        // The first key went with the last step.
        assert!(cluster.keys.iter().all(|(key, _)| key.withdrawals() == 1));
    }

    #[test]
    fn a_step_of_an_exchange_is_not_taken_twice_by_mistake() {
        let cluster = Cluster::new(1);
        let file = cluster.file(0);
        let refused = |goes_on| {
            let before = std::fs::read(&file).unwrap();
            let error = ClusterKey::rotate(&file, goes_on).unwrap_err();
            assert_eq!(std::fs::read(&file).unwrap(), before);
            error.to_string()
        };
        assert!(refused(true).contains("leave out --continue"));
        ClusterKey::rotate(&file, false).unwrap();
        assert!(refused(false).contains("go on with --continue"));
        ClusterKey::rotate(&file, true).unwrap();
        assert!(refused(false).contains("end the exchange"));
        std::fs::write(file.with_extension("new"), "half").unwrap();
        assert!(refused(true).contains("remove that one"));
    }

    #[test]
    fn a_key_goes_on_when_its_file_is_gone_or_spoiled() {
        let cluster = Cluster::new(2);
        let file = cluster.file(1);
        std::fs::write(&file, "no key").unwrap();
        assert!(cluster.all_agree());
        std::fs::remove_file(&file).unwrap();
        assert!(cluster.all_agree());
        // Open to others, it may not be the owner's word.
        ClusterKey::random().unwrap().save(&file).unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        assert!(cluster.all_agree());
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        assert!(!cluster.all_agree());
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
