//! Bugs injected on purpose: would the simulator find them?
//!
//! The workspace is copied below `target/mutants`, one snippet of the protocol is
//! replaced there, and the simulator runs on the copy until a seed fails. In the
//! end the same seeds run on an unchanged copy, where they must pass: a seed that
//! fails there as well has found something else.

mod copy;
mod list;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::command::{Failure, ask, cargo, describe};
use copy::Copy;
use list::{MUTANTS, Mutant};

/// A mutant may make the simulation turn in circles: then it was not found.
const TIMEOUT: Duration = Duration::from_secs(900);

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only the mutants with these names.
    #[arg(long)]
    only: Vec<String>,
    /// Seeds that each mutant has to survive.
    #[arg(long, default_value_t = 2000)]
    seeds: u64,
    /// Say what there is and run nothing.
    #[arg(long)]
    list: bool,
}

/// How a run on a copy ended.
enum Outcome {
    Passed,
    /// The simulator named a seed.
    Violation(u64),
    /// It failed without naming one; what it printed last.
    Unclear(String),
    TimedOut,
}

struct Row {
    name: &'static str,
    outcome: Outcome,
    seconds: f64,
}

pub(crate) fn mutants(arguments: &Arguments) -> Result<(), Failure> {
    let chosen = choose(&arguments.only)?;
    if arguments.list {
        for mutant in chosen {
            println!("{:24} {}", mutant.name, mutant.effect);
        }
        return Ok(());
    }
    let mut rows = Vec::new();
    for mutant in chosen {
        let copy = Copy::fresh()?;
        copy.apply(mutant)?;
        println!("{}: {}", mutant.name, mutant.effect);
        build(&copy, mutant.name)?;
        let begin = Instant::now();
        let outcome = simulate(&copy, "DIPOLE_SEEDS", arguments.seeds)?;
        let seconds = begin.elapsed().as_secs_f64();
        rows.push(Row {
            name: mutant.name,
            outcome,
            seconds,
        });
    }
    print(&rows);
    check(&rows)
}

fn choose(only: &[String]) -> Result<Vec<&'static Mutant>, Failure> {
    if only.is_empty() {
        return Ok(MUTANTS.iter().collect());
    }
    let find = |name: &String| {
        MUTANTS
            .iter()
            .find(|mutant| mutant.name == name)
            .ok_or_else(|| {
                let names: Vec<_> = MUTANTS.iter().map(|mutant| mutant.name).collect();
                Failure::Told(format!(
                    "no mutant is called {name}; there are {}",
                    names.join(", ")
                ))
            })
    };
    only.iter().map(find).collect()
}

fn print(rows: &[Row]) {
    println!("\n{:24} {:>12} {:>9}", "mutant", "found by", "time");
    for row in rows {
        let found = match &row.outcome {
            Outcome::Violation(seed) => format!("seed {seed}"),
            Outcome::Passed => "nothing".to_owned(),
            Outcome::Unclear(_) => "no seed".to_owned(),
            Outcome::TimedOut => "time-out".to_owned(),
        };
        println!("{:24} {found:>12} {:7.1} s", row.name, row.seconds);
    }
}

/// Every mutant was found, and by a seed that passes without it.
fn check(rows: &[Row]) -> Result<(), Failure> {
    let mut complaints = Vec::new();
    let unchanged = Copy::fresh()?;
    build(&unchanged, "the unchanged copy")?;
    for row in rows {
        let name = row.name;
        match &row.outcome {
            Outcome::Violation(seed) => match simulate(&unchanged, "DIPOLE_SEED", *seed)? {
                Outcome::Passed => {}
                _ => complaints.push(format!(
                    "{name}: seed {seed} fails without it too; mend that first"
                )),
            },
            Outcome::Passed => complaints.push(format!("{name}: no seed found it")),
            Outcome::TimedOut => {
                complaints.push(format!("{name}: no verdict after {} s", TIMEOUT.as_secs()))
            }
            Outcome::Unclear(tail) => {
                complaints.push(format!("{name}: failed without naming a seed:\n{tail}"));
            }
        }
    }
    if complaints.is_empty() {
        return Ok(());
    }
    Err(Failure::Told(complaints.join("\n")))
}

fn simulation(copy: &Copy) -> Command {
    let mut command = cargo();
    command
        .current_dir(copy.sources())
        .env("CARGO_TARGET_DIR", copy.target())
        .env_remove("DIPOLE_SEED")
        .env_remove("DIPOLE_SEEDS")
        .env_remove("DIPOLE_SEED_FROM")
        .args(["test", "-p", "dipole-node", "--test", "simulation"]);
    command
}

/// Compiles a copy apart from running it: a mutant that does not compile is no
/// mutant found.
fn build(copy: &Copy, name: &str) -> Result<(), Failure> {
    let mut command = simulation(copy);
    // What a mutant leaves unused is no news.
    command
        .args(["--no-run", "--quiet"])
        .env("RUSTFLAGS", "-Awarnings");
    match ask(command.stderr(Stdio::inherit())) {
        Some(_) => Ok(()),
        None => Err(Failure::Told(format!(
            "{name} does not compile ({})",
            describe(&command)
        ))),
    }
}

/// Runs the simulator on a copy with one variable set, until it ends or time is up.
fn simulate(copy: &Copy, variable: &str, value: u64) -> Result<Outcome, Failure> {
    let mut command = simulation(copy);
    command
        .args(["--quiet", "--", "--nocapture"])
        .env("RUSTFLAGS", "-Awarnings")
        .env(variable, value.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|cause| Failure::Start {
        program: describe(&command),
        cause,
    })?;
    let (lines, heard) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        forward(stdout, lines.clone());
    }
    if let Some(stderr) = child.stderr.take() {
        forward(stderr, lines);
    }
    let end = Instant::now() + TIMEOUT;
    let mut tail: Vec<String> = Vec::new();
    let mut seed = None;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match heard.recv_timeout(left) {
            Ok(line) => {
                seed = seed.or_else(|| named_seed(&line));
                if tail.len() == 10 {
                    tail.remove(0);
                }
                tail.push(line);
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                // It may just have ended by itself.
                let _ended = child.kill();
                let _status = child.wait();
                return Ok(Outcome::TimedOut);
            }
        }
    }
    let status = child.wait().map_err(|cause| Failure::Start {
        program: describe(&command),
        cause,
    })?;
    Ok(match (status.success(), seed) {
        (true, _) => Outcome::Passed,
        (false, Some(seed)) => Outcome::Violation(seed),
        (false, None) => Outcome::Unclear(tail.join("\n")),
    })
}

fn forward(stream: impl std::io::Read + Send + 'static, lines: mpsc::Sender<String>) {
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                break;
            }
        }
    });
}

/// The simulator ends its complaint with "replay with DIPOLE_SEED=N".
fn named_seed(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once("DIPOLE_SEED=")?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_is_read_from_the_complaint() {
        let line = "violation at seed 17: lost; replay with DIPOLE_SEED=17 cargo test";
        assert_eq!(named_seed(line), Some(17));
        assert_eq!(named_seed("500/2000 seeds"), None);
        assert_eq!(named_seed("DIPOLE_SEED=<n>"), None);
    }

    #[test]
    fn an_unknown_mutant_is_told_with_those_that_exist() {
        let failure = choose(&["nonsense".to_owned()])
            .err()
            .map(|failure| failure.to_string());
        assert!(failure.is_some_and(|text| text.contains(MUTANTS[0].name)));
    }
}
