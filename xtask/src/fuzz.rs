//! Runs the fuzzers of `fuzz/`, if this machine has what they need.

use crate::command::{Failure, ask, run};
use crate::nightly;

/// Every target for `seconds`.
pub(crate) fn fuzz(seconds: u64) -> Result<(), Failure> {
    let Some(targets) = ask(nightly::cargo()?.args(["fuzz", "list"])) else {
        return Err(Failure::Told(
            "fuzzing needs cargo-fuzz: cargo install cargo-fuzz --locked".to_owned(),
        ));
    };
    run(nightly::cargo()?.args(["fuzz", "build"]))?;
    for target in targets.split_whitespace() {
        println!("fuzzing {target} for {seconds} s");
        run(nightly::cargo()?
            .args(["fuzz", "run", target, "--"])
            .arg(format!("-max_total_time={seconds}"))
            .args(["-max_len=2000", "-timeout=20", "-print_final_stats=1"]))?;
    }
    Ok(())
}
