//! Tasks that need a nightly compiler.

use std::process::Command;

use crate::command::{Failure, output_of, root, run};

/// The cargo of rustup, because `+nightly` does not work with the cargo that runs this task.
pub(crate) fn cargo() -> Result<Command, Failure> {
    let found = output_of(command().arg("--version"));
    found.map(|_| command()).ok_or_else(|| {
        Failure::Text("a nightly compiler is missing: rustup toolchain install nightly".to_owned())
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

/// Runs the tests of shared memory under Miri.
pub(crate) fn miri() -> Result<(), Failure> {
    if output_of(cargo()?.args(["miri", "--version"])).is_none() {
        return Err(Failure::Text(
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
