//! Test suites that should find mutants: building, running, and evaluating their output.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::command::{Failure, cargo, describe, output_of};

/// Time limit. A test that hangs because of a mutant does not count as having found it.
const TIMEOUT: Duration = Duration::from_secs(300);
const TAIL_LINES: usize = 10;

/// Tests in one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Suite {
    /// The simulator of clusters.
    Simulator,
    /// An integration test of the protocol, by name.
    Protocol(&'static str),
    /// An integration test of the node, by name.
    Node(&'static str),
    /// Unit tests of a package whose names contain the second text.
    Unit(&'static str, &'static str),
    /// BSP programs whose ranks are threads.
    Supersteps,
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Suite::Simulator => "simulator",
            Suite::Protocol(name) | Suite::Node(name) | Suite::Unit(_, name) => name,
            Suite::Supersteps => "supersteps",
        })
    }
}

/// Result of a suite.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    /// The simulator reported a seed.
    Seed(u64),
    /// This test failed first.
    Test(String),
    /// It failed without naming a seed or a test; with its last output.
    Unclear(String),
    TimedOut,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Passed => f.write_str("nothing"),
            Outcome::Seed(seed) => write!(f, "seed {seed}"),
            Outcome::Test(_) => f.write_str("a test"),
            Outcome::Unclear(_) => f.write_str("no name"),
            Outcome::TimedOut => f.write_str("time-out"),
        }
    }
}

impl Suite {
    /// Builds the suite without running it, because a mutant that does not compile counts as an
    /// error; returns the path of the program.
    pub(crate) fn build(
        self,
        sources: &Path,
        target: &Path,
        name: &str,
    ) -> Result<PathBuf, Failure> {
        let mut command = cargo();
        command
            .current_dir(sources)
            .env("CARGO_TARGET_DIR", target)
            .env("CARGO_INCREMENTAL", "1")
            // Warnings about code that the mutant leaves unused are hidden: the JSON output takes
            // them.
            .args(["test", "--no-run", "--quiet", "--message-format", "json"]);
        match self {
            Suite::Simulator => command.args(["-p", "dipole-node", "--test", "simulation"]),
            Suite::Protocol(test) => command.args(["-p", "dipole-proto", "--test", test]),
            Suite::Node(test) => command.args(["-p", "dipole-node", "--test", test]),
            Suite::Unit(package, _) => command.args(["-p", package, "--lib"]),
            Suite::Supersteps => command.args(["-p", "dipole-bsp", "--test", "threads"]),
        };
        let said = output_of(command.stderr(Stdio::inherit())).ok_or_else(|| {
            Failure::Text(format!("{name} does not compile ({})", describe(&command)))
        })?;
        let mut programs = said.lines().filter_map(|line| {
            let message: serde_json::Value = serde_json::from_str(line).ok()?;
            message["executable"].as_str().map(PathBuf::from)
        });
        programs
            .next_back()
            .ok_or_else(|| Failure::Text(format!("{}: no program was built", describe(&command))))
    }

    /// Runs the suite until it ends or the time is up. The simulator ends at the first violation.
    pub(crate) fn run(
        self,
        program: &Path,
        sources: &Path,
        seeds: u64,
    ) -> Result<Outcome, Failure> {
        let mut command = self.command(program, sources);
        if self == Suite::Simulator {
            command
                .env("DIPOLE_SEEDS", seeds.to_string())
                .env("DIPOLE_FAILURES", "1");
        }
        watch(&mut command)
    }

    /// Runs only the seed or test that found a mutant.
    pub(crate) fn replay(
        self,
        program: &Path,
        sources: &Path,
        found: &Outcome,
    ) -> Result<Outcome, Failure> {
        let mut command = self.command(program, sources);
        match found {
            Outcome::Seed(seed) => command.env("DIPOLE_SEED", seed.to_string()),
            Outcome::Test(test) => command.args([test, "--exact"]),
            Outcome::Passed | Outcome::Unclear(_) | Outcome::TimedOut => &mut command,
        };
        watch(&mut command)
    }

    fn command(self, program: &Path, sources: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(sources)
            .env_remove("DIPOLE_SEED")
            .env_remove("DIPOLE_SEEDS")
            .env_remove("DIPOLE_SEED_FROM");
        match self {
            Suite::Simulator => command.args([
                "seeds_violate_no_rule",
                "seeds_that_once_violated_a_rule_pass",
                "--nocapture",
            ]),
            Suite::Unit(_, tests) => command.arg(tests),
            Suite::Protocol(_) | Suite::Node(_) | Suite::Supersteps => &mut command,
        };
        command
    }
}

/// Runs tests and evaluates their output.
fn watch(command: &mut Command) -> Result<Outcome, Failure> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let failed = |cause, command: &Command| Failure::Start {
        program: describe(command),
        cause,
    };
    let mut child = command.spawn().map_err(|cause| failed(cause, command))?;
    let (lines, heard) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        forward(stdout, lines.clone());
    }
    if let Some(stderr) = child.stderr.take() {
        forward(stderr, lines);
    }
    let end = Instant::now() + TIMEOUT;
    let mut tail: Vec<String> = Vec::new();
    let (mut seed, mut test) = (None, None);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match heard.recv_timeout(left) {
            Ok(line) => {
                seed = seed.or_else(|| named_seed(&line));
                test = test.or_else(|| failed_test(&line));
                if tail.len() == TAIL_LINES {
                    tail.remove(0);
                }
                tail.push(line);
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                // The process may just have ended.
                let _ended = child.kill();
                let _status = child.wait();
                return Ok(Outcome::TimedOut);
            }
        }
    }
    let status = child.wait().map_err(|cause| failed(cause, command))?;
    Ok(match (status.success(), seed, test) {
        (true, _, _) => Outcome::Passed,
        (false, Some(seed), _) => Outcome::Seed(seed),
        (false, None, Some(test)) => Outcome::Test(test),
        (false, None, None) => Outcome::Unclear(tail.join("\n")),
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

/// The simulator ends its report with "replay with DIPOLE_SEED=N".
fn named_seed(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once("DIPOLE_SEED=")?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// The test harness prints "test NAME ... FAILED"; a test that detects a hang prints "test NAME
/// hangs".
fn failed_test(line: &str) -> Option<String> {
    let rest = line.strip_prefix("test ")?;
    let name = [" ... FAILED", " hangs"].map(|end| rest.strip_suffix(end));
    name.into_iter().flatten().next().map(str::to_owned)
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
    fn the_test_that_failed_is_read_from_the_harness() {
        assert_eq!(failed_test("test a::b ... FAILED"), Some("a::b".to_owned()));
        assert_eq!(failed_test("test a::b hangs"), Some("a::b".to_owned()));
        assert_eq!(failed_test("test a::b ... ok"), None);
    }
}
