//! Which users an administrator lets borrow rings on which cards: a TOML file.

use std::fmt;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use dipole_bpf::loan::proof::Caller;
use nix::unistd::{Group, User};
use serde::Deserialize;

use crate::lines;

/// Where the file is unless it is named.
const DEFAULT_FILE: &str = "/etc/dipole/cards.toml";
/// Names the file if there is no `--cards`.
const VARIABLE: &str = "DIPOLE_AGENT_CARDS";
const EXPECTED: &str = "rings-per-user = 64 and, for each card, [[card]] with name = \"eth0\", \
                        users, groups, raw-users, raw-groups = [\"alice\", \"1000\"] or [\"*\"], \
                        ring-bytes = 1048576";
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Of a ring, unless the file says otherwise.
const RING_BYTES: u32 = 1 << 20;
/// The longest that an administrator may allow.
const MOST_RING_BYTES: u32 = 1 << 28;
const RINGS_PER_USER: u32 = 64;
const MOST_RINGS_PER_USER: u32 = 4096;

/// What the administrator wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cards {
    /// Rings that one user may have on this machine, those included that their processes keep
    /// after a loan has ended.
    pub(crate) rings_per_user: u32,
    pub(crate) cards: Vec<Card>,
}

/// One card, and who may use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    pub(crate) name: String,
    /// Who gets a ring.
    users: Who,
    /// Who gets a socket for raw frames, too.
    raw_users: Who,
    /// The longest ring.
    pub(crate) ring_bytes: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Who {
    all: bool,
    users: Vec<u32>,
    groups: Vec<u32>,
}

/// What a user may have on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    Nothing,
    Ring,
    RingAndSender,
}

/// As the file has it.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Written {
    rings_per_user: Option<toml::Spanned<u32>>,
    #[serde(default)]
    card: Vec<toml::Spanned<WrittenCard>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct WrittenCard {
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

/// Why the file cannot be gone by.
#[derive(Debug)]
pub(crate) enum CardsError {
    Unreadable {
        file: PathBuf,
        cause: io::Error,
    },
    /// Others than the agent's user could have written it.
    NotOurs {
        file: PathBuf,
        owner: u32,
        mode: u32,
    },
    Wrong {
        file: PathBuf,
        line: usize,
        what: String,
    },
}

impl fmt::Display for CardsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CardsError::Unreadable { file, cause } => {
                write!(
                    f,
                    "cannot read which cards are lent, {}: {cause}",
                    file.display()
                )
            }
            CardsError::NotOurs { file, owner, mode } => write!(
                f,
                "{} belongs to user {owner} with mode {mode:04o}: who may use cards is for root or \
                 the agent's user to say, nobody else may write to it (`chown root`, `chmod go-w`)",
                file.display()
            ),
            CardsError::Wrong { file, line, what } => write!(
                f,
                "{}, line {line}: {what}; there may be {EXPECTED}",
                file.display()
            ),
        }
    }
}

/// The file that says which cards are lent, if there is one, and whether somebody asked for it.
pub(crate) fn place(given: Option<&Path>) -> Option<(PathBuf, bool)> {
    let set = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
    match given.map(Path::to_owned).or(set.map(PathBuf::from)) {
        Some(file) => Some((file, true)),
        None => {
            let file = PathBuf::from(DEFAULT_FILE);
            file.exists().then_some((file, false))
        }
    }
}

impl Cards {
    /// Those of a file that nobody else may write to.
    pub(crate) fn load(file: &Path) -> Result<Cards, CardsError> {
        let unreadable = |cause| CardsError::Unreadable {
            file: file.to_owned(),
            cause,
        };
        let opened = std::fs::File::open(file).map_err(unreadable)?;
        // Of what is read, not of what is there a moment later.
        let facts = opened.metadata().map_err(unreadable)?;
        let own = rustix::process::geteuid().as_raw();
        if (facts.uid() != 0 && facts.uid() != own) || facts.mode() & 0o022 != 0 {
            return Err(CardsError::NotOurs {
                file: file.to_owned(),
                owner: facts.uid(),
                mode: facts.mode() & 0o7777,
            });
        }
        let mut text = String::new();
        let mut opened = opened.take(MAX_FILE_BYTES);
        opened.read_to_string(&mut text).map_err(unreadable)?;
        Cards::parse(&text).map_err(|(line, what)| CardsError::Wrong {
            file: file.to_owned(),
            line,
            what,
        })
    }

    /// Errors have their line.
    fn parse(text: &str) -> Result<Cards, (usize, String)> {
        let line_at = |at| lines::line_at(text, at);
        let written: Written = lines::parsed(text)?;
        let rings_per_user = match &written.rings_per_user {
            None => RINGS_PER_USER,
            Some(rings) if (1..=MOST_RINGS_PER_USER).contains(rings.get_ref()) => *rings.get_ref(),
            Some(rings) => {
                let what = format!(
                    "rings-per-user {} is not from 1 to {MOST_RINGS_PER_USER}",
                    rings.get_ref()
                );
                return Err((line_at(rings.span().start), what));
            }
        };
        let mut cards: Vec<Card> = Vec::new();
        for card in &written.card {
            let line = line_at(card.span().start);
            let card = card.get_ref().checked(&line_at)?;
            if cards.iter().any(|known| known.name == card.name) {
                return Err((line, format!("card {} comes twice", card.name)));
            }
            cards.push(card);
        }
        Ok(Cards {
            rings_per_user,
            cards,
        })
    }

    /// The card with a name.
    pub(crate) fn get(&self, name: &str) -> Option<&Card> {
        self.cards.iter().find(|card| card.name == name)
    }
}

impl WrittenCard {
    fn checked(&self, line_at: &dyn Fn(usize) -> usize) -> Result<Card, (usize, String)> {
        let ring_bytes = match &self.ring_bytes {
            None => RING_BYTES,
            Some(bytes) if is_ring_size(*bytes.get_ref(), MOST_RING_BYTES) => *bytes.get_ref(),
            Some(bytes) => {
                let what = format!(
                    "ring-bytes {} is no power of two from {} to {MOST_RING_BYTES}",
                    bytes.get_ref(),
                    rustix::param::page_size()
                );
                return Err((line_at(bytes.span().start), what));
            }
        };
        Ok(Card {
            name: self.name.clone(),
            users: who(&self.users, &self.groups, line_at)?,
            raw_users: who(&self.raw_users, &self.raw_groups, line_at)?,
            ring_bytes,
        })
    }
}

/// True of a length that a ring may have.
pub(crate) fn is_ring_size(bytes: u32, most: u32) -> bool {
    let page = u32::try_from(rustix::param::page_size()).unwrap_or(u32::MAX);
    bytes.is_power_of_two() && (page..=most).contains(&bytes)
}

/// Finds the number for a name.
type Find<'a> = &'a dyn Fn(&str) -> Option<u32>;

fn who(
    users: &[toml::Spanned<Named>],
    groups: &[toml::Spanned<Named>],
    line_at: &dyn Fn(usize) -> usize,
) -> Result<Who, (usize, String)> {
    let mut found = Who::default();
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
                format!("there is no {kind} {text:?} on this machine")
            };
            numbers.push(number.ok_or_else(|| (line_at(one.span().start), unknown()))?);
        }
    }
    Ok(found)
}

impl Who {
    fn has(&self, caller: &Caller) -> bool {
        self.all
            || self.users.contains(&caller.uid)
            || caller
                .groups
                .iter()
                .any(|group| self.groups.contains(group))
    }
}

impl Card {
    /// What whoever asks may have.
    pub(crate) fn permits(&self, caller: &Caller) -> Permission {
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
        let cards = Cards::parse(
            "rings-per-user = 3\n[[card]]\nname = 'a'\nusers = ['root', 7, '8']\ngroups = [50]\n\
             raw-groups = ['root']\nring-bytes = 65536\n[[card]]\nname = 'b'\nusers = ['*']\n",
        )
        .unwrap();
        assert_eq!(cards.rings_per_user, 3);
        let (a, b) = (cards.get("a").unwrap(), cards.get("b").unwrap());
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
        assert!(cards.get("c").is_none());
    }

    #[test]
    fn a_wrong_file_is_refused_with_its_line() {
        for (text, line, wanted) in [
            ("\n[[card]]\nnmae = 'a'", 3, "nmae"),
            ("[[card]]\nusers = []", 1, "name"),
            (
                "[[card]]\nname = 'a'\nusers = [\n'root',\n'no body']",
                5,
                "no user \"no body\"",
            ),
            (
                "[[card]]\nname = 'a'\nraw-groups = ['no body']",
                3,
                "no group",
            ),
            ("[[card]]\nname = 'a'\nring-bytes = 5000", 3, "5000 is no"),
            ("[[card]]\nname = 'a'\nring-bytes = 2048", 3, "2048 is no"),
            (
                "[[card]]\nname = 'a'\nring-bytes = 1073741824",
                3,
                "1073741824 is no",
            ),
            ("rings-per-user = 0", 1, "rings-per-user 0"),
            (
                "[[card]]\nname = 'a'\n[[card]]\nname = 'a'",
                3,
                "comes twice",
            ),
            ("[[card]]\nname = 'a'\nusers = [-1]", 3, ""),
        ] {
            let (found, said) = Cards::parse(text).unwrap_err();
            assert_eq!(found, line, "{text}: {said}");
            assert!(said.contains(wanted), "{text}: {said}");
        }
    }

    #[test]
    fn a_file_that_others_may_write_to_decides_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cards.toml");
        std::fs::write(&file, "[[card]]\nname = 'a'").unwrap();
        let mode = |mode| {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            Cards::load(&file)
        };
        assert!(mode(0o644).is_ok());
        for open in [0o664, 0o646] {
            let said = mode(open).unwrap_err().to_string();
            assert!(
                said.contains("cards.toml") && said.contains("chmod go-w"),
                "{said}"
            );
        }
        let said = Cards::load(Path::new("/nowhere/cards.toml")).unwrap_err();
        assert!(said.to_string().contains("/nowhere/cards.toml"), "{said}");
    }
}
