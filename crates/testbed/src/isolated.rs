//! Commands for tests that must not depend on the user's files and variables.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use crate::pair::Folder;

/// Variables that programs keep. All others are hidden from them.
const KEPT: [&str; 9] = [
    "PATH",
    "TMPDIR",
    "LANG",
    "TERM",
    "USER",
    "LD_LIBRARY_PATH",
    "LLVM_PROFILE_FILE",
    "RUST_BACKTRACE",
    "CARGO",
];

/// Folder that replaces the user's home. It is removed when another process makes a testbed.
static HOME: LazyLock<Folder> =
    LazyLock::new(|| Folder::create().expect("the temporary directory can be written"));

/// Returns a command that sees none of the user's profiles, keys, hosts files and variables. All
/// commands of this process share a home and a runtime directory.
///
/// # Panics
/// The temporary directory cannot be written.
#[must_use]
pub fn isolated_command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    isolate(&mut command, HOME.path());
    command
}

/// Clears the environment of a command and gives it this home.
fn isolate(command: &mut Command, home: &Path) {
    command.env_clear();
    let kept = KEPT.iter();
    command.envs(kept.filter_map(|name| Some((name, std::env::var_os(name)?))));
    command.env("HOME", home);
    command.env("XDG_CONFIG_HOME", home.join("config"));
    command.env("XDG_RUNTIME_DIR", home);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_isolated_command_has_another_home_and_no_other_variables() {
        let output = isolated_command("env").output().expect("env runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let home = HOME.path().display().to_string();
        for line in text.lines() {
            let (name, value) = line.split_once('=').expect("a variable");
            let is_home = ["HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"].contains(&name);
            assert!(is_home || KEPT.contains(&name), "{line}");
            assert!(!is_home || value.starts_with(&home), "{line}");
        }
    }
}
