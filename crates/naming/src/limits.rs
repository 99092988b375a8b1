//! How much one process, and one user on this node, may take.
//!
//! What a process may take it decides itself when it opens its node. What the processes of
//! one user may take together, an administrator writes into [`LIMITS_FILE`]:
//!
//! ```text
//! # UID | FIRST-LAST | *   [processes=N] [endpoints=N]
//! 0
//! 1000-1999  processes=64 endpoints=4096
//! *          processes=16
//! ```
//!
//! The first line that fits a user counts. Processes keep to it when they register; who brings
//! a library of their own need not. The kernel's limits bind everybody.

use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Where an administrator limits users.
pub const LIMITS_FILE: &str = "/etc/dipole/limits";
/// Longest file read.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A bound, and who set it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// How many there may be.
    pub limit: u32,
    /// Where it can be changed: a variable, or a file and its line.
    pub set_by: String,
}

/// What the processes of one user may have on one node together; no bound where `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserLimits {
    /// Processes registered.
    pub processes: Option<Bound>,
    /// Endpoints open.
    pub endpoints: Option<Bound>,
}

/// Why the limits of users are not known.
#[derive(Debug)]
pub enum LimitsError {
    /// The file is there and cannot be read.
    System {
        /// Which.
        file: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// A line makes no sense.
    Line {
        /// Of which file.
        file: PathBuf,
        /// Its number, from 1.
        line: usize,
        /// What was found.
        found: String,
    },
}

impl fmt::Display for LimitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitsError::System { file, cause } => write!(
                f,
                "the limits of users cannot be read from {}: {cause}; everybody must be able to \
                 read it",
                file.display()
            ),
            LimitsError::Line { file, line, found } => write!(
                f,
                "line {line} of {} is wrong at {found:?}; expected `UID|FIRST-LAST|* \
                 [processes=N] [endpoints=N]`",
                file.display()
            ),
        }
    }
}

impl std::error::Error for LimitsError {}

/// A limit that has been reached, and how to raise it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitReached {
    /// This process has as many endpoints as it may.
    Endpoints {
        /// How many that is.
        limit: u32,
    },
    /// This user has as many processes on this node as they may.
    UserProcesses {
        /// How many that is, and who says so.
        bound: Bound,
        /// The user.
        uid: u32,
    },
    /// This user has as many endpoints on this node as they may.
    UserEndpoints {
        /// How many that is, and who says so.
        bound: Bound,
        /// The user.
        uid: u32,
    },
}

impl fmt::Display for LimitReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitReached::Endpoints { limit } => write!(
                f,
                "this process has {limit} endpoints open, its limit; close some, or raise \
                 DIPOLE_MAX_ENDPOINTS"
            ),
            LimitReached::UserProcesses { bound, uid } => write!(
                f,
                "user {uid} has {} processes on this node, the limit; end some, or have it \
                 raised: {}",
                bound.limit, bound.set_by
            ),
            LimitReached::UserEndpoints { bound, uid } => write!(
                f,
                "user {uid} has {} endpoints open on this node, the limit; close some, or have \
                 it raised: {}",
                bound.limit, bound.set_by
            ),
        }
    }
}

impl std::error::Error for LimitReached {}

impl UserLimits {
    /// What the file has for a user; nothing if there is no such file.
    ///
    /// # Errors
    /// [`LimitsError`].
    pub fn load(file: &Path, uid: u32) -> Result<UserLimits, LimitsError> {
        let system = |cause| LimitsError::System {
            file: file.to_owned(),
            cause,
        };
        let opened = match std::fs::File::open(file) {
            Ok(opened) => opened,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                return Ok(UserLimits::default());
            }
            Err(cause) => return Err(system(cause)),
        };
        let mut text = String::new();
        let mut opened = opened.take(MAX_FILE_BYTES);
        opened.read_to_string(&mut text).map_err(system)?;
        UserLimits::parse(&text, uid, file)
    }

    /// Reads the text of a file, all of it, for one user.
    fn parse(text: &str, uid: u32, file: &Path) -> Result<UserLimits, LimitsError> {
        let mut found = None;
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            let Some(who) = words.next() else { continue };
            let wrong = |word: &str| LimitsError::Line {
                file: file.to_owned(),
                line: number,
                found: word.to_owned(),
            };
            let fits = users(who).ok_or_else(|| wrong(who))?.contains(&uid);
            let mut limits = UserLimits::default();
            for word in words {
                let place = match word.split_once('=') {
                    Some(("processes", value)) => Some((&mut limits.processes, value)),
                    Some(("endpoints", value)) => Some((&mut limits.endpoints, value)),
                    _ => None,
                };
                let parsed = place.and_then(|(place, value)| Some((place, value.parse().ok()?)));
                let (place, limit) = parsed.ok_or_else(|| wrong(word))?;
                *place = Some(Bound {
                    limit,
                    set_by: format!("line {number} of {}", file.display()),
                });
            }
            if fits && found.is_none() {
                found = Some(limits);
            }
        }
        Ok(found.unwrap_or_default())
    }

    /// The smaller of each two bounds.
    #[must_use]
    pub fn and(self, other: UserLimits) -> UserLimits {
        UserLimits {
            processes: smaller(self.processes, other.processes),
            endpoints: smaller(self.endpoints, other.endpoints),
        }
    }
}

fn smaller(one: Option<Bound>, other: Option<Bound>) -> Option<Bound> {
    one.into_iter().chain(other).min_by_key(|bound| bound.limit)
}

/// The users that a line is about.
fn users(who: &str) -> Option<std::ops::RangeInclusive<u32>> {
    if who == "*" {
        return Some(0..=u32::MAX);
    }
    let (first, last) = who.split_once('-').unwrap_or((who, who));
    let range = first.parse().ok()?..=last.parse().ok()?;
    (!range.is_empty()).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "0   # as many as root likes\n\n1000-1999 processes=64 endpoints=4096\n\
                        1500 processes=1\n* processes=16\n";

    fn parsed(text: &str, uid: u32) -> Result<UserLimits, LimitsError> {
        UserLimits::parse(text, uid, Path::new("/somewhere"))
    }

    fn numbers(limits: &UserLimits) -> (Option<u32>, Option<u32>) {
        let limit = |bound: &Option<Bound>| bound.as_ref().map(|bound| bound.limit);
        (limit(&limits.processes), limit(&limits.endpoints))
    }

    #[test]
    fn the_first_line_that_fits_a_user_counts() {
        for (uid, expected) in [
            (0, (None, None)),
            (1000, (Some(64), Some(4096))),
            (1500, (Some(64), Some(4096))),
            (1999, (Some(64), Some(4096))),
            (2000, (Some(16), None)),
        ] {
            assert_eq!(numbers(&parsed(FILE, uid).unwrap()), expected, "{uid}");
        }
        let bound = parsed(FILE, 2000).unwrap().processes.unwrap();
        assert_eq!(bound.set_by, "line 5 of /somewhere");
        assert_eq!(parsed("", 7).unwrap(), UserLimits::default());
    }

    #[test]
    fn a_wrong_line_is_named_whomever_it_is_about() {
        for wrong in [
            "all processes=1",
            "5-4 processes=1",
            "-1",
            "* processes",
            "* processes=-1",
            "* processes=4294967296",
            "* threads=1",
            "4294967296",
        ] {
            let text = format!("7 processes=1\n{wrong}\n");
            let error = parsed(&text, 7).unwrap_err().to_string();
            assert!(error.contains("line 2 of /somewhere"), "{wrong}: {error}");
        }
    }

    #[test]
    fn without_a_file_there_are_no_limits_and_one_that_cannot_be_read_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("limits");
        assert_eq!(UserLimits::load(&file, 7).unwrap(), UserLimits::default());
        assert!(UserLimits::load(folder.path(), 7).is_err(), "a directory");
        std::fs::write(&file, FILE).unwrap();
        assert_eq!(
            numbers(&UserLimits::load(&file, 7).unwrap()),
            (Some(16), None)
        );
    }

    #[test]
    fn of_two_bounds_the_smaller_one_counts() {
        let of = |limit| UserLimits {
            processes: Some(Bound {
                limit,
                set_by: limit.to_string(),
            }),
            endpoints: None,
        };
        assert_eq!(of(3).and(of(2)), of(2));
        assert_eq!(of(2).and(of(3)), of(2));
        assert_eq!(of(2).and(UserLimits::default()), of(2));
        assert_eq!(UserLimits::default().and(of(2)), of(2));
    }
}
