//! Injects bugs to check that the tests find them.
//!
//! The workspace is copied to `target/mutants`, and one snippet of the copy is replaced. The copy
//! is built incrementally; the suite that should find the bug (the simulator, a test of the
//! protocol, the model checker) runs while the next mutant is built. The suites must also pass on
//! the unchanged copy: a seed that fails there too has found something else.

mod copy;
mod list;
mod suite;

use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crate::command::{Failure, output_of, root};
use copy::Copy;
use list::{Mutant, all};
use suite::{Outcome, Suite};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only the mutants with these names.
    #[arg(long)]
    only: Vec<String>,
    /// Number of mutants chosen by the hash of the commit; with `--only`, in addition to those.
    #[arg(long)]
    some: Option<usize>,
    /// Number of seeds that the simulator tries on each mutant.
    #[arg(long, default_value_t = 2000)]
    seeds: u64,
    /// List the mutants and run nothing.
    #[arg(long)]
    list: bool,
}

struct Row {
    mutant: &'static Mutant,
    outcome: Outcome,
    seconds: f64,
}

/// A suite that runs on a mutant, on a thread of its own.
type Running = JoinHandle<Result<Row, Failure>>;

pub(crate) fn mutants(arguments: &Arguments) -> Result<(), Failure> {
    let chosen = choose(arguments)?;
    if arguments.list {
        for mutant in chosen {
            println!("{:32} {:12} {}", mutant.name, mutant.suite, mutant.effect);
        }
        return Ok(());
    }
    let copy = Copy::fresh()?;
    let mut suites: Vec<Suite> = chosen.iter().map(|mutant| mutant.suite).collect();
    suites.sort_unstable();
    suites.dedup();
    let mut unchanged = Vec::new();
    for suite in suites {
        println!("building {suite} without a mutant");
        unchanged.push((suite, built(&copy, suite, "unchanged")?));
    }
    let mut rows = Vec::new();
    let mut running: Option<Running> = None;
    for mutant in chosen {
        let copy = Copy::fresh()?;
        copy.apply(mutant)?;
        println!("{}: {}", mutant.name, mutant.effect);
        let program = built(&copy, mutant.suite, mutant.name)?;
        rows.extend(finish(running.take())?);
        let (sources, seeds) = (copy.sources().to_owned(), arguments.seeds);
        running = Some(thread::spawn(move || {
            run(mutant, &program, &sources, seeds)
        }));
    }
    rows.extend(finish(running)?);
    print(&rows);
    check(&rows, &unchanged, copy.sources())
}

/// Builds the tests of a suite and copies them, so that the next build does not overwrite them.
fn built(copy: &Copy, suite: Suite, name: &str) -> Result<PathBuf, Failure> {
    let program = suite.build(copy.sources(), copy.target(), name)?;
    copy.keep(&program, &format!("{suite}-{name}"))
}

fn run(
    mutant: &'static Mutant,
    program: &Path,
    sources: &Path,
    seeds: u64,
) -> Result<Row, Failure> {
    let begin = Instant::now();
    let outcome = mutant.suite.run(program, sources, seeds)?;
    Ok(Row {
        mutant,
        outcome,
        seconds: begin.elapsed().as_secs_f64(),
    })
}

fn finish(running: Option<Running>) -> Result<Option<Row>, Failure> {
    let ended = running.map(|running| match running.join() {
        Ok(row) => row,
        Err(panic) => std::panic::resume_unwind(panic),
    });
    ended.transpose()
}

fn choose(arguments: &Arguments) -> Result<Vec<&'static Mutant>, Failure> {
    let mut chosen = named(&arguments.only)?;
    let others = all().filter(|mutant| !arguments.only.iter().any(|name| name == mutant.name));
    let mut others: Vec<_> = others.collect();
    match arguments.some {
        None if arguments.only.is_empty() => Ok(others),
        None => Ok(chosen),
        Some(count) => {
            let first = commit_number()? % others.len().max(1) as u64;
            others.rotate_left(usize::try_from(first).unwrap_or(0));
            chosen.extend(others.into_iter().take(count));
            Ok(chosen)
        }
    }
}

fn named(names: &[String]) -> Result<Vec<&'static Mutant>, Failure> {
    let find = |name: &String| {
        all().find(|mutant| mutant.name == name).ok_or_else(|| {
            let names: Vec<_> = all().map(|mutant| mutant.name).collect();
            Failure::Text(format!(
                "there is no mutant {name}; the mutants are {}",
                names.join(", ")
            ))
        })
    };
    names.iter().map(find).collect()
}

/// A number derived from the hash of the commit.
pub(crate) fn commit_number() -> Result<u64, Failure> {
    let mut git = std::process::Command::new("git");
    git.current_dir(root()).args(["rev-parse", "HEAD"]);
    let hash = output_of(&mut git).unwrap_or_default();
    hash.get(..12)
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .ok_or_else(|| {
            Failure::Text("the hash of the commit needs a git checkout of the workspace".into())
        })
}

fn print(rows: &[Row]) {
    println!(
        "\n{:32} {:12} {:>14} {:>9}",
        "mutant", "suite", "found by", "time"
    );
    for row in rows {
        println!(
            "{:32} {:12} {:>14} {:7.1} s",
            row.mutant.name,
            row.mutant.suite,
            row.outcome.to_string(),
            row.seconds
        );
    }
}

/// Checks that every mutant was found by a test that passes without it.
fn check(rows: &[Row], unchanged: &[(Suite, PathBuf)], sources: &Path) -> Result<(), Failure> {
    let mut complaints = Vec::new();
    for row in rows {
        let name = row.mutant.name;
        let program = unchanged
            .iter()
            .find(|(suite, _)| *suite == row.mutant.suite);
        match (&row.outcome, program) {
            (found @ (Outcome::Seed(_) | Outcome::Test(_)), Some((suite, program))) => {
                if suite.replay(program, sources, found)? != Outcome::Passed {
                    let what = match found {
                        Outcome::Test(test) => test.clone(),
                        seed => seed.to_string(),
                    };
                    complaints.push(format!(
                        "{name}: {what} fails without it too; fix that first"
                    ));
                }
            }
            (Outcome::Passed, _) => complaints.push(format!("{name}: no test found it")),
            (Outcome::TimedOut, _) => complaints.push(format!("{name}: timed out")),
            (Outcome::Unclear(tail), _) => {
                complaints.push(format!("{name}: failed without naming a test:\n{tail}"));
            }
            (_, None) => complaints.push(format!("{name}: its suite was not built")),
        }
    }
    if complaints.is_empty() {
        return Ok(());
    }
    Err(Failure::Text(complaints.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(only: &[&str], some: Option<usize>) -> Arguments {
        Arguments {
            only: only.iter().map(|name| (*name).to_owned()).collect(),
            some,
            seeds: 1,
            list: false,
        }
    }

    #[test]
    fn an_unknown_mutant_is_reported_with_those_that_exist() {
        let failure = choose(&arguments(&["nonsense"], None))
            .err()
            .map(|failure| failure.to_string());
        let known = all().next().map_or("", |mutant| mutant.name);
        assert!(failure.is_some_and(|text| text.contains(known)));
    }

    #[test]
    fn some_are_chosen_besides_those_named_and_none_twice() {
        let name = all().next().map_or("", |mutant| mutant.name);
        let chosen = choose(&arguments(&[name], Some(3))).expect("a git checkout");
        assert_eq!(chosen.len(), 4);
        assert_eq!(chosen.iter().filter(|it| it.name == name).count(), 1);
        let chosen = choose(&arguments(&[], None)).expect("all");
        assert_eq!(chosen.len(), all().count());
    }
}
