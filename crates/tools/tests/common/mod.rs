//! Helpers that several test programs share.

use std::path::{Path, PathBuf};
use std::process::Command;

/// An example of the node crate, rebuilt like this test, because an existing one may be out of date.
pub(crate) fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this test has a path");
    let profile = test.ancestors().nth(2).expect("a target directory");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--package", "dipole-node"]);
    build.args(["--example", name, "--manifest-path"]);
    build.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml"));
    build.arg("--target-dir");
    build.arg(profile.parent().expect("a target directory"));
    if profile.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo runs").success());
    profile.join("examples").join(name)
}
