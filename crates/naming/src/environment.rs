//! Environment variables. This is the only file that reads them.

use std::path::PathBuf;

/// Variables that identify a process: node, registry, hosts file, key.
pub mod variables {
    /// Variable with this node's id.
    pub const NODE: &str = "DIPOLE_NID";
    /// The address to bind: an IP address, a subnet or an interface.
    pub const BIND: &str = "DIPOLE_BIND";
    /// Directory of the registry.
    pub const RUNTIME_DIR: &str = "DIPOLE_RUNTIME_DIR";
    /// Variable with the path of the hosts file.
    pub const HOSTS: &str = "DIPOLE_HOSTS";
    /// The file of the cluster key.
    pub const KEY: &str = "DIPOLE_KEY";
    /// Directory for results of `dipole calibrate`.
    pub const PROFILE: &str = "DIPOLE_PROFILE";
    /// Directory for traces of programs.
    pub const TRACE: &str = "DIPOLE_TRACE";
}

/// The value of a variable that is set and not empty.
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
/// else `/tmp/dipole-<uid>`. Opening the registry checks that it is private.
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

/// Directory for measured properties of links: `DIPOLE_PROFILE`, else `dipole/profile` in the
/// user's configuration directory; `None` if the user has no such directory.
#[must_use]
pub fn profile_dir() -> Option<PathBuf> {
    profile_dir_from(&variable)
}

/// The directory in `DIPOLE_TRACE`, if programs are to be traced.
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

/// Directory of this user in `/tmp`.
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
    fn profiles_are_where_the_user_sets_or_with_other_configuration() {
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
