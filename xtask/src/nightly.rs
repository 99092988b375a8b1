//! What only a nightly compiler does.

use std::process::Command;

use crate::command::{Failure, ask, root, run};

/// The nightly compiler's cargo: not the one that runs us, `+nightly` needs rustup's.
pub(crate) fn cargo() -> Result<Command, Failure> {
    let found = ask(command().arg("--version"));
    found.map(|_| command()).ok_or_else(|| {
        Failure::Told("a nightly compiler is missing: rustup toolchain install nightly".to_owned())
    })
}

fn command() -> Command {
    let mut command = Command::new("cargo");
    command
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("CARGO")
        .arg("+nightly")
        .current_dir(root());
    command
}

/// Runs the tests of memory that two sides share under Miri.
pub(crate) fn miri() -> Result<(), Failure> {
    if ask(cargo()?.args(["miri", "--version"])).is_none() {
        return Err(Failure::Told(
            "Miri is missing: rustup +nightly component add miri rust-src".to_owned(),
        ));
    }
    let miri = |package: &str, tests: &[&str]| {
        run(cargo()?
            .args(["miri", "test", "--locked", "-p", package, "--lib", "--"])
            .args(tests))
    };
    miri("dipole-link", &["arena::", "shm::ring::"])?;
    miri("dipole-bpf", &["ring::tests::"])
}
