//! The policy: which users may have rings on which interfaces. It is the administrator's TOML file.

use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use dipole_bpf::grant::ownership::Caller;
use nix::unistd::{Group, User};
use serde::Deserialize;

const EXPECTED: &str = "rings-per-user = 64 and, for each interface, [[interface]] with name = \"eth0\", \
                        users, groups, raw-users, raw-groups = [\"alice\", \"1000\"] or [\"*\"], \
                        ring-bytes = 1048576";
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Default of `ring-bytes`.
const RING_BYTES: u32 = 1 << 20;
/// Maximum of `ring-bytes`.
const MAX_RING_BYTES: u32 = 1 << 28;
const RINGS_PER_USER: u32 = 64;
const MAX_RINGS_PER_USER: u32 = 4096;

/// Content of the policy file, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    /// Rings that one user may have on this machine, including rings whose grants have ended and
    /// that processes still keep.
    pub(super) rings_per_user: u32,
    pub(super) interfaces: Vec<InterfacePolicy>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InterfacePolicy {
    pub(super) name: String,
    /// Users and groups that get a ring.
    users: Principals,
    /// Users and groups that also get a raw socket.
    raw_users: Principals,
    /// Maximum size of a ring in bytes.
    pub(super) ring_bytes: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Principals {
    all: bool,
    users: Vec<u32>,
    groups: Vec<u32>,
}

/// Permission of a user on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Permission {
    Nothing,
    Ring,
    RingAndSender,
}

/// The content of the file.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct PolicyFile {
    rings_per_user: Option<toml::Spanned<u32>>,
    #[serde(default)]
    interface: Vec<toml::Spanned<FileInterface>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct FileInterface {
    name: String,
    #[serde(default)]
    users: Vec<toml::Spanned<Named>>,
    #[serde(default)]
    groups: Vec<toml::Spanned<Named>>,
    #[serde(default)]
    raw_users: Vec<toml::Spanned<Named>>,
    #[serde(default)]
    raw_groups: Vec<toml::Spanned<Named>>,
    ring_bytes: Option<toml::Spanned<u32>>,
}

/// A user or a group.
#[derive(Deserialize)]
#[serde(untagged)]
enum Named {
    Number(u32),
    Text(String),
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum PolicyError {
    #[error("cannot read the policy for interfaces, {file}: {cause}")]
    Unreadable { file: PathBuf, cause: io::Error },
    #[error(
        "{file} belongs to user {owner} with mode {mode:04o}: it must belong to root or the \
         broker's user, and no other user may write to it (`chown root`, `chmod go-w`)"
    )]
    NotOurs {
        file: PathBuf,
        owner: u32,
        mode: u32,
    },
    #[error("{file}, line {line}: {what}; there may be {EXPECTED}")]
    Wrong {
        file: PathBuf,
        line: usize,
        what: String,
    },
}

impl Policy {
    /// Loads a file that only root or the broker's user can write to.
    pub(super) fn load(file: &Path) -> Result<Policy, PolicyError> {
        let unreadable = |cause| PolicyError::Unreadable {
            file: file.to_owned(),
            cause,
        };
        // Opening a pipe must not wait for its writer.
        let mut options = std::fs::File::options();
        options.read(true).custom_flags(nix::libc::O_NONBLOCK);
        let opened = options.open(file).map_err(unreadable)?;
        // Metadata of the open file, because the path may be replaced at any moment.
        let facts = opened.metadata().map_err(unreadable)?;
        let own = rustix::process::geteuid().as_raw();
        if (facts.uid() != 0 && facts.uid() != own) || facts.mode() & 0o022 != 0 {
            return Err(PolicyError::NotOurs {
                file: file.to_owned(),
                owner: facts.uid(),
                mode: facts.mode() & 0o7777,
            });
        }
        let mut text = String::new();
        let mut opened = opened.take(MAX_FILE_BYTES);
        opened.read_to_string(&mut text).map_err(unreadable)?;
        Policy::parse(&text).map_err(|(line, what)| PolicyError::Wrong {
            file: file.to_owned(),
            line,
            what,
        })
    }

    /// Errors have line numbers.
    fn parse(text: &str) -> Result<Policy, (usize, String)> {
        let line_at = |at| line_at(text, at);
        let written: PolicyFile = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            (line_at(at), error.message().trim().replace('\n', ", "))
        })?;
        let rings_per_user = match &written.rings_per_user {
            None => RINGS_PER_USER,
            Some(rings) if (1..=MAX_RINGS_PER_USER).contains(rings.get_ref()) => *rings.get_ref(),
            Some(rings) => {
                let what = format!(
                    "rings-per-user {} is not from 1 to {MAX_RINGS_PER_USER}",
                    rings.get_ref()
                );
                return Err((line_at(rings.span().start), what));
            }
        };
        let mut interfaces: Vec<InterfacePolicy> = Vec::new();
        for interface in &written.interface {
            let line = line_at(interface.span().start);
            let interface = interface.get_ref().checked(&line_at)?;
            if interfaces.iter().any(|known| known.name == interface.name) {
                return Err((
                    line,
                    format!("interface {} is listed twice", interface.name),
                ));
            }
            interfaces.push(interface);
        }
        Ok(Policy {
            rings_per_user,
            interfaces,
        })
    }

    pub(super) fn get(&self, name: &str) -> Option<&InterfacePolicy> {
        self.interfaces
            .iter()
            .find(|interface| interface.name == name)
    }
}

impl FileInterface {
    fn checked(
        &self,
        line_at: &dyn Fn(usize) -> usize,
    ) -> Result<InterfacePolicy, (usize, String)> {
        let ring_bytes = match &self.ring_bytes {
            None => RING_BYTES,
            Some(bytes) if is_ring_size(*bytes.get_ref(), MAX_RING_BYTES) => *bytes.get_ref(),
            Some(bytes) => {
                let what = format!(
                    "ring-bytes {} is not a power of two from {} to {MAX_RING_BYTES}",
                    bytes.get_ref(),
                    rustix::param::page_size()
                );
                return Err((line_at(bytes.span().start), what));
            }
        };
        Ok(InterfacePolicy {
            name: self.name.clone(),
            users: who(&self.users, &self.groups, line_at)?,
            raw_users: who(&self.raw_users, &self.raw_groups, line_at)?,
            ring_bytes,
        })
    }
}

/// The line, from 1, that contains a byte.
fn line_at(text: &str, byte: usize) -> usize {
    let before = text.as_bytes().iter().take(byte);
    before.filter(|byte| **byte == b'\n').count() + 1
}

/// True for a valid size of a ring.
pub(super) fn is_ring_size(bytes: u32, most: u32) -> bool {
    let page = u32::try_from(rustix::param::page_size()).unwrap_or(u32::MAX);
    bytes.is_power_of_two() && (page..=most).contains(&bytes)
}

/// Resolves a name to a number.
type Find<'a> = &'a dyn Fn(&str) -> Option<u32>;

fn who(
    users: &[toml::Spanned<Named>],
    groups: &[toml::Spanned<Named>],
    line_at: &dyn Fn(usize) -> usize,
) -> Result<Principals, (usize, String)> {
    let mut found = Principals::default();
    let user = |name: &str| {
        let user = User::from_name(name).ok().flatten();
        user.map(|user| user.uid.as_raw())
    };
    let group = |name: &str| {
        let group = Group::from_name(name).ok().flatten();
        group.map(|group| group.gid.as_raw())
    };
    let kinds: [(_, _, Find<'_>, _); 2] = [
        ("user", users, &user, &mut found.users),
        ("group", groups, &group, &mut found.groups),
    ];
    for (kind, named, find, numbers) in kinds {
        for one in named {
            let number = match one.get_ref() {
                Named::Number(number) => Some(*number),
                Named::Text(text) if text == "*" => {
                    found.all = true;
                    continue;
                }
                Named::Text(text) => text.parse().ok().or_else(|| find(text)),
            };
            let unknown = || {
                let Named::Text(text) = one.get_ref() else {
                    return String::new();
                };
                format!("{kind} {text:?} does not exist on this machine")
            };
            numbers.push(number.ok_or_else(|| (line_at(one.span().start), unknown()))?);
        }
    }
    Ok(found)
}

impl Principals {
    fn has(&self, caller: &Caller) -> bool {
        self.all
            || self.users.contains(&caller.uid)
            || caller
                .groups
                .iter()
                .any(|group| self.groups.contains(group))
    }
}

impl InterfacePolicy {
    pub(super) fn permits(&self, caller: &Caller) -> Permission {
        if self.raw_users.has(caller) {
            Permission::RingAndSender
        } else if self.users.has(caller) {
            Permission::Ring
        } else {
            Permission::Nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn caller(uid: u32, groups: &[u32]) -> Caller {
        Caller {
            pid: 1,
            uid,
            groups: groups.to_vec(),
        }
    }

    #[test]
    fn users_and_groups_are_let_by_name_or_number_and_others_are_not() {
        let interfaces = Policy::parse(
            "rings-per-user = 3\n[[interface]]\nname = 'a'\nusers = ['root', 7, '8']\ngroups = [50]\n\
             raw-groups = ['root']\nring-bytes = 65536\n[[interface]]\nname = 'b'\nusers = ['*']\n",
        )
        .unwrap();
        assert_eq!(interfaces.rings_per_user, 3);
        let (a, b) = (interfaces.get("a").unwrap(), interfaces.get("b").unwrap());
        assert_eq!((a.ring_bytes, b.ring_bytes), (65536, RING_BYTES));
        for (caller, on_a) in [
            (caller(0, &[]), Permission::Ring),
            (caller(7, &[9]), Permission::Ring),
            (caller(8, &[]), Permission::Ring),
            (caller(9, &[9, 50]), Permission::Ring),
            (caller(9, &[9]), Permission::Nothing),
            (caller(9, &[0]), Permission::RingAndSender),
        ] {
            assert_eq!(a.permits(&caller), on_a, "{caller:?}");
            assert_eq!(b.permits(&caller), Permission::Ring, "{caller:?}");
        }
        assert!(interfaces.get("c").is_none());
    }

    #[test]
    fn a_wrong_file_is_refused_with_its_line() {
        for (text, line, wanted) in [
            ("\n[[interface]]\nnmae = 'a'", 3, "nmae"),
            ("[[interface]]\nusers = []", 1, "name"),
            (
                "[[interface]]\nname = 'a'\nusers = [\n'root',\n'no body']",
                5,
                "user \"no body\" does not exist",
            ),
            (
                "[[interface]]\nname = 'a'\nraw-groups = ['no body']",
                3,
                "group \"no body\"",
            ),
            (
                "[[interface]]\nname = 'a'\nring-bytes = 5000",
                3,
                "5000 is not",
            ),
            (
                "[[interface]]\nname = 'a'\nring-bytes = 2048",
                3,
                "2048 is not",
            ),
            (
                "[[interface]]\nname = 'a'\nring-bytes = 1073741824",
                3,
                "1073741824 is not",
            ),
            ("rings-per-user = 0", 1, "rings-per-user 0"),
            (
                "[[interface]]\nname = 'a'\n[[interface]]\nname = 'a'",
                3,
                "listed twice",
            ),
            ("[[interface]]\nname = 'a'\nusers = [-1]", 3, ""),
        ] {
            let (found, error) = Policy::parse(text).unwrap_err();
            assert_eq!(found, line, "{text}: {error}");
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_that_others_may_write_to_decides_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("interfaces.toml");
        std::fs::write(&file, "[[interface]]\nname = 'a'").unwrap();
        let mode = |mode| {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            Policy::load(&file)
        };
        assert!(mode(0o644).is_ok());
        for open in [0o664, 0o646] {
            let error = mode(open).unwrap_err().to_string();
            assert!(
                error.contains("interfaces.toml") && error.contains("chmod go-w"),
                "{error}"
            );
        }
        let error = Policy::load(Path::new("/nowhere/interfaces.toml")).unwrap_err();
        assert!(
            error.to_string().contains("/nowhere/interfaces.toml"),
            "{error}"
        );
    }
}
