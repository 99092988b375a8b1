//! Environment variables, read here and nowhere else, and what follows from them alone.

use std::path::PathBuf;

/// Names of the variables that place a process: node, registry, hosts file, key.
pub mod variables {
    /// This node's id.
    pub const NODE: &str = "DIPOLE_NID";
    /// Where the registry lives.
    pub const RUNTIME_DIR: &str = "DIPOLE_RUNTIME_DIR";
    /// The hosts file.
    pub const HOSTS: &str = "DIPOLE_HOSTS";
    /// The file of the cluster key.
    pub const KEY: &str = "DIPOLE_KEY";
    /// Where `dipole calibrate` saves what it has measured.
    pub const PROFILE: &str = "DIPOLE_PROFILE";
    /// Where programs leave their traces.
    pub const TRACE: &str = "DIPOLE_TRACE";
}

/// A variable that is set and not empty.
#[must_use]
pub fn variable(name: &str) -> Option<String> {
    std::env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(|value| value.to_string_lossy().into_owned())
}

/// The hosts file that `DIPOLE_HOSTS` names, if it is set.
#[must_use]
pub fn hosts_file() -> Option<PathBuf> {
    variable(variables::HOSTS).map(PathBuf::from)
}

/// The runtime directory: `DIPOLE_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/dipole`,
/// else `/tmp/dipole-<uid>`. Whether it can be trusted is checked when it is opened.
#[must_use]
pub fn default_runtime_dir() -> PathBuf {
    runtime_dir_from(&variable)
}

fn runtime_dir_from(get: &dyn Fn(&str) -> Option<String>) -> PathBuf {
    if let Some(given) = get(variables::RUNTIME_DIR) {
        return PathBuf::from(given);
    }
    match get("XDG_RUNTIME_DIR") {
        Some(session) => PathBuf::from(session).join("dipole"),
        None => user_dir(),
    }
}

/// Where measured properties of links are kept: the directory that `DIPOLE_PROFILE` names, else
/// `dipole/profile` in the user's folder of configuration; `None` if there is none.
#[must_use]
pub fn profile_dir() -> Option<PathBuf> {
    profile_dir_from(&variable)
}

/// The directory that `DIPOLE_TRACE` names, if programs are to be traced.
#[must_use]
pub fn trace_dir() -> Option<PathBuf> {
    variable(variables::TRACE).map(PathBuf::from)
}

fn profile_dir_from(get: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let set = |name| get(name).map(PathBuf::from);
    if let Some(given) = set(variables::PROFILE) {
        return Some(given);
    }
    let folder = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
    Some(folder.join("dipole/profile"))
}

/// The directory of this user on this machine, with or without a session.
pub(crate) fn user_dir() -> PathBuf {
    PathBuf::from(format!(
        "/tmp/dipole-{}",
        rustix::process::geteuid().as_raw()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_directory_is_the_first_that_is_given() {
        let both = [("DIPOLE_RUNTIME_DIR", "/a"), ("XDG_RUNTIME_DIR", "/b")];
        let with = |given: &[(&str, &str)]| {
            runtime_dir_from(&|name| {
                let found = given.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(with(&both), PathBuf::from("/a"));
        assert_eq!(with(&both[1..]), PathBuf::from("/b/dipole"));
        assert!(with(&[]).starts_with("/tmp"));
    }

    #[test]
    fn profiles_lie_where_the_user_says_or_with_other_configuration() {
        let all = [
            ("DIPOLE_PROFILE", "/a"),
            ("XDG_CONFIG_HOME", "/b"),
            ("HOME", "/c"),
        ];
        let with = |given: &[(&str, &str)]| {
            profile_dir_from(&|name| {
                let found = given.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(with(&all), Some(PathBuf::from("/a")));
        assert_eq!(with(&all[1..]), Some(PathBuf::from("/b/dipole/profile")));
        assert_eq!(
            with(&all[2..]),
            Some(PathBuf::from("/c/.config/dipole/profile"))
        );
        assert_eq!(with(&[]), None);
    }
}
