//! Runs the fuzzers of `fuzz/`, if this machine has what they need.

use crate::command::{Failure, ask, run};
use crate::nightly;

/// Every target for its part of the time.
pub(crate) fn fuzz(minutes: u64) -> Result<(), Failure> {
    let Some(targets) = ask(nightly::cargo()?.args(["fuzz", "list"])) else {
        return Err(Failure::Told(
            "fuzzing needs cargo-fuzz: cargo install cargo-fuzz --locked".to_owned(),
        ));
    };
    run(nightly::cargo()?.args(["fuzz", "build"]))?;
    let targets: Vec<_> = targets.split_whitespace().collect();
    let seconds = (minutes * 60 / targets.len().max(1) as u64).max(1);
    for target in targets {
        println!("fuzzing {target} for {seconds} s");
        run(nightly::cargo()?
            .args(["fuzz", "run", target, "--"])
            .arg(format!("-max_total_time={seconds}"))
            .args(["-max_len=2000", "-timeout=20", "-print_final_stats=1"]))?;
    }
    Ok(())
}
