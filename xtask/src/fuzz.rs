//! Runs the fuzzers of `fuzz/`, if this machine has what they need.

use std::process::Command;

use crate::command::{Failure, ask, root, run};

/// Every target for `seconds`.
pub(crate) fn fuzz(seconds: u64) -> Result<(), Failure> {
    // Not the cargo that runs us: `+nightly` needs the one of rustup.
    let nightly = || {
        let mut command = Command::new("cargo");
        command
            .env_remove("RUSTUP_TOOLCHAIN")
            .env_remove("CARGO")
            .arg("+nightly")
            .current_dir(root());
        command
    };
    if ask(nightly().arg("--version")).is_none() {
        return Err(Failure::Told(
            "fuzzing needs a nightly compiler: rustup toolchain install nightly".to_owned(),
        ));
    }
    let Some(targets) = ask(nightly().args(["fuzz", "list"])) else {
        return Err(Failure::Told(
            "fuzzing needs cargo-fuzz: cargo install cargo-fuzz --locked".to_owned(),
        ));
    };
    run(nightly().args(["fuzz", "build"]))?;
    for target in targets.split_whitespace() {
        println!("fuzzing {target} for {seconds} s");
        run(nightly()
            .args(["fuzz", "run", target, "--"])
            .arg(format!("-max_total_time={seconds}"))
            .args(["-max_len=2000", "-timeout=20", "-print_final_stats=1"]))?;
    }
    Ok(())
}
