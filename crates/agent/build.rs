//! Passes the commit of the sources to the compiler, if they are in a git checkout.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Git appends to this file at every commit and checkout.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"]);
    if let Some(log) = log.filter(|log| Path::new(log).exists()) {
        println!("cargo:rerun-if-changed={log}");
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_default();
    println!("cargo:rustc-env=SOURCE_COMMIT={commit}");
    let version = env!("CARGO_PKG_VERSION");
    let named = match commit.is_empty() {
        true => version.to_owned(),
        false => format!("{version} ({commit})"),
    };
    println!("cargo:rustc-env=SOURCE_VERSION={named}");
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
