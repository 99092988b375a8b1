//! Programs of the workspace that a test starts, built now with the profile of the test, because
//! existing ones may be out of date.

use std::path::{Path, PathBuf};
use std::process::Command;

/// An example of any package.
///
/// # Panics
/// If it cannot be built.
#[must_use]
pub fn example(name: &str) -> PathBuf {
    build(name, &[]).join("examples").join(name)
}

/// A program of another package than the test's.
///
/// # Panics
/// If it cannot be built.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    // Together with an example, cargo enables the same features as for tests.
    build("echo_server", &["--bin", name]).join(name)
}

/// The folder of all libraries for C and Python.
///
/// # Panics
/// If they cannot be built.
#[must_use]
pub fn libraries() -> PathBuf {
    build("echo_server", &["--lib"])
}

/// Cargo as the user would start it. The variables that cargo sets for tests are removed: some
/// build scripts run again when one of them changes, and all that depends on them is built again.
#[must_use]
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let prefixes = ["CARGO_PKG_", "CARGO_MANIFEST_", "OUT_DIR"];
        if prefixes.iter().any(|prefix| text.starts_with(prefix)) {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Builds for the whole workspace, so that nothing which the test needed itself is built again with
/// other features. Returns the profile's folder.
fn build(example: &str, more: &[&str]) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let profile = test
        .ancestors()
        .find(|folder| folder.ends_with("deps"))
        .and_then(Path::parent)
        .expect("a test lies in the profile's folder");
    let mut build = cargo();
    build.args(["build", "--quiet", "--workspace", "--example", example]);
    build.args(more).arg("--manifest-path");
    build.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml"));
    build.arg("--target-dir");
    build.arg(profile.parent().expect("a target directory"));
    if profile.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo runs").success(), "{build:?}");
    profile.to_owned()
}
