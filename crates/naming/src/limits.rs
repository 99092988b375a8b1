//! Limits on the processes and endpoints of one process and of one user on this node.
//!
//! The limit of a process is configured when it opens its node. The limits of a user are written
//! by an administrator into [`LIMITS_FILE`]:
//!
//! ```text
//! # UID | FIRST-LAST | *   [processes=N] [endpoints=N]
//! 0
//! 1000-1999  processes=64 endpoints=4096
//! *          processes=16
//! ```
//!
//! The first line that matches a user applies. Processes check the limits when they register, so a
//! user with a modified library can ignore them. The kernel's limits apply to everyone.

use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;

use crate::lines::{self, Fault, FileError, Line};

/// File with the limits of users.
pub const LIMITS_FILE: &str = "/etc/dipole/limits";

/// A limit, and where it was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Maximum number per user.
    pub limit: u32,
    /// Where to change it: a variable, or a file and its line.
    pub set_by: String,
}

/// Limits of one user on one node; unlimited where `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserLimits {
    /// Number of registered processes.
    pub processes: Option<Bound>,
    /// Number of open endpoints.
    pub endpoints: Option<Bound>,
}

/// A limit that has been reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitReached {
    /// Endpoints of this process.
    #[error(
        "this process has {limit} endpoints open, its limit; close some, or raise \
         DIPOLE_MAX_ENDPOINTS"
    )]
    Endpoints {
        /// The limit that is reached.
        limit: u32,
    },
    /// Processes of this user.
    #[error(
        "user {uid} has {} processes on this node, the limit; end some, or have it \
         raised: {}",
        .bound.limit, .bound.set_by
    )]
    UserProcesses {
        /// The limit and where it was set.
        bound: Bound,
        /// User id that reached its limit.
        uid: u32,
    },
    /// Endpoints of this user.
    #[error(
        "user {uid} has {} endpoints open on this node, the limit; close some, or have \
         it raised: {}",
        .bound.limit, .bound.set_by
    )]
    UserEndpoints {
        /// The limit and where it was set.
        bound: Bound,
        /// User id that reached its limit.
        uid: u32,
    },
}

impl UserLimits {
    /// Reads the limits of a user; unlimited if the file does not exist.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn load(file: &Path, uid: u32) -> Result<UserLimits, FileError> {
        match lines::read("limits of users", file) {
            Ok(text) => UserLimits::parse(&text, uid, file),
            Err(FileError::Unreadable { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => {
                Ok(UserLimits::default())
            }
            Err(error) => Err(error),
        }
    }

    /// Parses the whole file for one user.
    fn parse(text: &str, uid: u32, file: &Path) -> Result<UserLimits, FileError> {
        let mut found = None;
        for line in lines::lines(text, file) {
            let (fits, limits) = parse_line(line, uid).map_err(|fault| line.error(fault))?;
            if fits && found.is_none() {
                let set_by = format!("{}:{}", file.display(), line.number);
                let bound = |limit| Bound {
                    limit,
                    set_by: set_by.clone(),
                };
                found = Some(UserLimits {
                    processes: limits[0].map(bound),
                    endpoints: limits[1].map(bound),
                });
            }
        }
        Ok(found.unwrap_or_default())
    }

    /// The lower of each two limits.
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

/// Parses a line: whether it matches the user, and its limits of processes and endpoints.
fn parse_line(mut line: Line<'_>, uid: u32) -> Result<(bool, [Option<u32>; 2]), Fault> {
    let users: Users = line.next("UID, FIRST-LAST or *")?;
    let mut limits = [None; 2];
    for option in line.options("processes=N or endpoints=N")? {
        let limit = match option.key {
            "processes" => &mut limits[0],
            "endpoints" => &mut limits[1],
            _ => return Err(option.fault("processes=N or endpoints=N")),
        };
        *limit = Some(option.number(0..=u32::MAX)?);
    }
    Ok((users.0.contains(&uid), limits))
}

/// The users that a line matches.
struct Users(RangeInclusive<u32>);

impl FromStr for Users {
    type Err = ();

    fn from_str(text: &str) -> Result<Users, ()> {
        if text == "*" {
            return Ok(Users(0..=u32::MAX));
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| text.parse().map_err(|_| ());
        let range = number(first)?..=number(last)?;
        match range.is_empty() {
            true => Err(()),
            false => Ok(Users(range)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "0   # as many as root likes\n\n1000-1999 processes=64 endpoints=4096\n\
                        1500 processes=1\n* processes=16\n";

    fn parsed(text: &str, uid: u32) -> Result<UserLimits, FileError> {
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
        assert_eq!(bound.set_by, "/somewhere:5");
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
            assert!(error.contains("/somewhere:2: found"), "{wrong}: {error}");
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
