//! Test suites that should find mutants: building, running, and evaluating their output.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::copy::Copy;
use super::switch::VARIABLE;
use crate::command::{Failure, cargo, describe, output_of, root};

const TAIL_LINES: usize = 10;

/// Tests in one program. Filters are parts of names of tests, separated by spaces; an empty filter
/// stands for all tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Suite {
    /// The simulator of clusters.
    Simulator,
    /// An integration test: package, name, filter.
    Test(&'static str, &'static str, &'static str),
    /// Unit tests: package, filter.
    Unit(&'static str, &'static str),
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Suite::Simulator => "simulator".to_owned(),
            Suite::Test(package, test, _) => format!("{} {test}", short(package)),
            Suite::Unit(package, _) => format!("{} unit tests", short(package)),
        };
        f.pad(&text)
    }
}

fn short(package: &str) -> &str {
    package.strip_prefix("dipole-").unwrap_or(package)
}

/// Result of a suite.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Passed,
    /// The simulator reported a seed.
    Seed(u64),
    /// This test failed first.
    Test(String),
    /// The program was ended by this signal.
    Crashed(i32),
    /// It did not end within this limit.
    Hung(Duration),
    /// It failed without naming a seed or a test; with its last output.
    Unclear(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Passed => f.write_str("SURVIVED"),
            Outcome::Seed(seed) => write!(f, "seed {seed}"),
            Outcome::Test(test) => f.write_str(test),
            Outcome::Crashed(signal) => write!(f, "a crash with signal {signal}"),
            Outcome::Hung(limit) => write!(f, "a hang, {} s", limit.as_secs()),
            Outcome::Unclear(_) => f.write_str("a failure without a name"),
        }
    }
}

/// A target of cargo that contains tests: package, and the name of an integration test.
type Target = (&'static str, Option<&'static str>);

/// Programs with the tests of suites.
pub(super) struct Programs {
    copy: Copy,
    built: BTreeMap<Target, PathBuf>,
}

impl Programs {
    /// Builds the tests of all suites at once, with all bugs.
    pub(super) fn build(copy: Copy, suites: &BTreeSet<Suite>) -> Result<Programs, Failure> {
        let targets: BTreeSet<Target> = suites.iter().map(|suite| suite.target()).collect();
        let mut command = cargo();
        command
            .current_dir(&copy.sources)
            .env("CARGO_TARGET_DIR", &copy.target)
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("CARGO_INCREMENTAL", "1")
            // Warnings about code that a bug leaves unused are hidden: the JSON output takes them.
            .args(["test", "--no-run", "--locked", "--quiet", "--no-fail-fast"])
            .arg("--message-format=json-diagnostic-rendered-ansi");
        for package in targets
            .iter()
            .map(|target| target.0)
            .collect::<BTreeSet<_>>()
        {
            command.args(["-p", package]);
        }
        for test in targets
            .iter()
            .filter_map(|target| target.1)
            .collect::<BTreeSet<_>>()
        {
            command.args(["--test", test]);
        }
        let units = targets.iter().filter(|target| target.1.is_none());
        for kind in units
            .map(|target| kind_of_units(target.0))
            .collect::<BTreeSet<_>>()
        {
            command.arg(if kind == "lib" { "--lib" } else { "--bins" });
        }
        let output = command
            .stderr(Stdio::inherit())
            .output()
            .map_err(|cause| failed(cause, &command))?;
        let messages: Vec<serde_json::Value> = String::from_utf8_lossy(&output.stdout)
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        if !output.status.success() {
            let errors = messages
                .iter()
                .filter(|it| it["message"]["level"] == "error");
            let texts = errors.filter_map(|it| it["message"]["rendered"].as_str());
            return Err(Failure::Text(format!(
                "{}\nthe copy with the mutants does not compile ({}); each arm of `match \
                 crate::planted::chosen()` begins with the name of its mutant",
                texts.collect::<Vec<_>>().join("\n"),
                describe(&command)
            )));
        }
        let mut built = BTreeMap::new();
        for target in targets {
            let program = messages
                .iter()
                .find_map(|message| program_of(message, target));
            let program = program.ok_or_else(|| {
                Failure::Text(format!("{}: {target:?} was not built", describe(&command)))
            })?;
            built.insert(target, program);
        }
        Ok(Programs { copy, built })
    }

    /// Runs a suite with a bug, or without one, until a test fails, the suite ends or the time is
    /// up. The simulator tries this number of seeds and ends at the first violation.
    pub(super) fn run(
        &self,
        suite: Suite,
        mutant: Option<&str>,
        seeds: u64,
        limit: Duration,
    ) -> Result<Outcome, Failure> {
        let mut command = Command::new(&self.built[&suite.target()]);
        command
            .current_dir(
                self.copy
                    .sources
                    .join("crates")
                    .join(short(suite.target().0)),
            )
            .env_remove("DIPOLE_SEED")
            .env_remove("DIPOLE_SEED_FROM")
            .env("DIPOLE_SEEDS", seeds.to_string())
            .env("DIPOLE_FAILURES", "1")
            .env_remove(VARIABLE);
        if let Some(name) = mutant {
            command.env(VARIABLE, name);
        }
        match suite {
            Suite::Simulator => command.args([
                "seeds_violate_no_rule",
                "seeds_that_once_violated_a_rule_pass",
                "--nocapture",
            ]),
            Suite::Test(_, _, filter) | Suite::Unit(_, filter) => {
                command.args(filter.split_whitespace())
            }
        };
        watch(&mut command, limit)
    }
}

impl Suite {
    fn target(self) -> Target {
        match self {
            Suite::Simulator => ("dipole-node", Some("simulation")),
            Suite::Test(package, test, _) => (package, Some(test)),
            Suite::Unit(package, _) => (package, None),
        }
    }
}

/// The kind of target that has the unit tests of a package.
fn kind_of_units(package: &str) -> &'static str {
    let source = root().join("crates").join(short(package)).join("src");
    if source.join("lib.rs").is_file() {
        "lib"
    } else {
        "bin"
    }
}

/// The program of a target in a message of cargo.
fn program_of(message: &serde_json::Value, (package, test): Target) -> Option<PathBuf> {
    let folder = format!("/crates/{}#", short(package));
    let is_package = message["package_id"].as_str()?.contains(&folder);
    let target = &message["target"];
    let is_target = match test {
        Some(name) => target["name"] == name && target["kind"][0] == "test",
        None => target["kind"].as_array()?.iter().any(|kind| {
            let kind = kind.as_str().unwrap_or_default();
            // A library for C is built as such and has its unit tests nevertheless.
            kind.ends_with(kind_of_units(package)) || kind == "lib"
        }),
    };
    let executable = message["executable"].as_str().map(PathBuf::from);
    executable.filter(|_| is_package && is_target && message["profile"]["test"] == true)
}

fn failed(cause: std::io::Error, command: &Command) -> Failure {
    Failure::Start {
        program: describe(command),
        cause,
    }
}

/// Runs tests and evaluates their output.
fn watch(command: &mut Command, limit: Duration) -> Result<Outcome, Failure> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let mut child = command.spawn().map_err(|cause| failed(cause, command))?;
    let (lines, received) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        forward(stdout, lines.clone());
    }
    if let Some(stderr) = child.stderr.take() {
        forward(stderr, lines);
    }
    let end = Instant::now() + limit;
    let mut tail: Vec<String> = Vec::new();
    let found = loop {
        // Programs that a test has left behind may keep the output open.
        let wait = Duration::from_millis(100).min(end.saturating_duration_since(Instant::now()));
        match received.recv_timeout(wait) {
            Ok(line) => {
                let found = named_seed(&line).map(Outcome::Seed);
                if let Some(found) = found.or_else(|| failed_test(&line).map(Outcome::Test)) {
                    break found;
                }
                if tail.len() == TAIL_LINES {
                    tail.remove(0);
                }
                tail.push(line);
            }
            Err(RecvTimeoutError::Timeout) if Instant::now() >= end => break Outcome::Hung(limit),
            Err(RecvTimeoutError::Disconnected) => {
                let status = child.wait().map_err(|cause| failed(cause, command))?;
                break ended(status, &tail);
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Some(status) = child.try_wait().map_err(|cause| failed(cause, command))? {
                    // All that it printed has been read by now, unless the machine is busy.
                    let rest = received.try_iter().collect::<Vec<_>>();
                    let test = rest.iter().find_map(|line| failed_test(line));
                    tail.extend(rest);
                    break test.map_or_else(|| ended(status, &tail), Outcome::Test);
                }
            }
        }
    };
    end_group(&mut child);
    Ok(found)
}

fn ended(status: ExitStatus, tail: &[String]) -> Outcome {
    match status.signal() {
        _ if status.success() => Outcome::Passed,
        Some(signal) => Outcome::Crashed(signal),
        None => Outcome::Unclear(tail.join("\n")),
    }
}

/// Ends the tests and the programs that they have started.
fn end_group(child: &mut Child) {
    let group = format!("-{}", child.id());
    // The group may just have ended.
    let _ended = output_of(
        Command::new("kill")
            .args(["-KILL", "--", &group])
            .stderr(Stdio::null()),
    );
    let _status = child.wait();
}

fn forward(stream: impl std::io::Read + Send + 'static, lines: mpsc::Sender<String>) {
    thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        let mut line = Vec::new();
        while reader
            .read_until(b'\n', &mut line)
            .is_ok_and(|length| length > 0)
        {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            if lines.send(text).is_err() {
                break;
            }
            line.clear();
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

    fn shell(script: &str, limit: Duration) -> Outcome {
        watch(Command::new("sh").args(["-c", script]), limit).expect("sh runs")
    }

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

    #[test]
    fn a_suite_passes_fails_crashes_or_hangs() {
        let long = Duration::from_secs(600);
        assert_eq!(shell("echo test a ... ok", long), Outcome::Passed);
        // It ends with the first test that fails, although the program goes on.
        let failing = "echo test a ... ok; echo test b ... FAILED; sleep 600";
        assert_eq!(shell(failing, long), Outcome::Test("b".into()));
        assert_eq!(shell("kill -ABRT $$", long), Outcome::Crashed(6));
        assert_eq!(
            shell("echo odd; exit 101", long),
            Outcome::Unclear("odd".into())
        );
        // A program that a test has left behind has the output open.
        assert_eq!(shell("sleep 600 & exit 0", long), Outcome::Passed);
        let short = Duration::from_millis(200);
        assert_eq!(shell("sleep 600 & wait", short), Outcome::Hung(short));
    }
}
