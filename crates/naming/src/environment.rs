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
}
