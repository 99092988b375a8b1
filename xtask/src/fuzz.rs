//! Runs the fuzzers of `fuzz/`, if this machine has what they need.

use std::io::{self, BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::command::{Failure, describe, output_of, run};
use crate::nightly;

/// The workspace's `release` profile, with checks and without what a fuzzer need not wait for.
const PROFILE: [(&str, &str); 4] = [
    ("CARGO_PROFILE_RELEASE_DEBUG", "line-tables-only"),
    ("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true"),
    ("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true"),
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
];

/// The throughput is compared with this number of executions.
const MANY: u64 = 100_000_000;

/// Runs every target for its share of the time, then prints how often each was executed.
pub(crate) fn fuzz(minutes: u64) -> Result<(), Failure> {
    let Some(targets) = output_of(cargo_fuzz()?.arg("list")) else {
        return Err(Failure::Text(
            "fuzzing needs cargo-fuzz: cargo install cargo-fuzz --locked".to_owned(),
        ));
    };
    run(cargo_fuzz()?.arg("build"))?;
    let targets: Vec<_> = targets.split_whitespace().collect();
    let seconds = (minutes * 60 / targets.len().max(1) as u64).max(1);
    let mut tried = Vec::new();
    for target in targets {
        println!("fuzzing {target} for {seconds} s");
        tried.push((target, one(target, seconds)?));
    }
    println!(
        "{:>14} {:>12} {:>8}  hours for 10^8",
        "", "executions", "per s"
    );
    for (target, (executions, rate)) in tried {
        let hours = match rate {
            0 => "?".to_owned(),
            rate => format!("{:.1}", MANY as f64 / rate as f64 / 3600.0),
        };
        println!("{target:>14} {executions:>12} {rate:>8}  {hours:>14}");
    }
    Ok(())
}

fn cargo_fuzz() -> Result<Command, Failure> {
    let mut command = nightly::cargo()?;
    command.arg("fuzz").envs(PROFILE);
    Ok(command)
}

/// Runs one target; returns its executions, and executions per second.
fn one(target: &str, seconds: u64) -> Result<(u64, u64), Failure> {
    let mut command = cargo_fuzz()?;
    command
        .args(["run", target, "--"])
        .arg(format!("-max_total_time={seconds}"))
        .args(["-max_len=2000", "-timeout=20", "-print_final_stats=1"])
        .stderr(Stdio::piped());
    let program = describe(&command);
    let failed = |cause: io::Error| Failure::Start {
        program: program.clone(),
        cause,
    };
    let begun = Instant::now();
    let mut child = command.spawn().map_err(failed)?;
    let mut executions = 0;
    if let Some(stderr) = child.stderr.take() {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            executions = units(&line).unwrap_or(executions);
            eprintln!("{line}");
        }
    }
    let status = child.wait().map_err(failed)?;
    match status.success() {
        true => Ok((executions, executions / begun.elapsed().as_secs().max(1))),
        false => Err(Failure::Status {
            command: program,
            status,
        }),
    }
}

/// The number of executions in a line of a fuzzer's statistics, if it has one.
fn units(line: &str) -> Option<u64> {
    let number = line
        .trim()
        .strip_prefix("stat::number_of_executed_units:")?;
    number.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executions_are_read_from_a_fuzzers_statistics() {
        assert_eq!(
            units("stat::number_of_executed_units: 8123456"),
            Some(8_123_456)
        );
        for other in ["stat::average_exec_per_sec: 7", "#8 INITED", ""] {
            assert_eq!(units(other), None);
        }
    }
}
