//! Injects bugs to check that the tests find them.
//!
//! The workspace is copied to `target/mutants` and built once, with all bugs in it; a variable of
//! the environment selects one of them at run time. The suite that should find a bug runs with it,
//! one suite per core at a time. All suites must pass while no bug is selected.

mod copy;
mod list;
mod suite;
mod switch;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::command::{Failure, output_of, root};
use copy::Copy;
use list::{Mutant, all};
use suite::{Outcome, Programs, Suite};

/// Time limit of a suite without a bug, and of the simulator.
const LIMIT: Duration = Duration::from_secs(300);
/// A suite with a bug hangs if it takes this much longer than without it.
const FACTOR: u32 = 5;
const ADDITION: Duration = Duration::from_secs(20);

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only the mutants with these names.
    #[arg(long)]
    only: Vec<String>,
    /// One of this many equal shares of the mutants, chosen by the hash of the commit; with
    /// `--only`, in addition to those.
    #[arg(long, value_name = "SHARES")]
    share_of: Option<NonZero<usize>>,
    /// Number of seeds that the simulator tries on each mutant.
    #[arg(long, default_value_t = 2000)]
    seeds: u64,
    /// Number of suites that run at a time [default: the number of cores].
    #[arg(long)]
    jobs: Option<NonZero<usize>>,
    /// List the mutants and run nothing.
    #[arg(long)]
    list: bool,
}

/// A suite that has run, with a mutant or without.
struct Row {
    suite: Suite,
    mutant: Option<&'static Mutant>,
    outcome: Outcome,
    time: Duration,
}

pub(crate) fn mutants(arguments: &Arguments) -> Result<(), Failure> {
    let chosen = choose(arguments)?;
    if arguments.list {
        for mutant in chosen {
            let suite = mutant.suite.to_string();
            println!("{:40} {suite:24} {}", mutant.name, mutant.effect);
        }
        return Ok(());
    }
    let begin = Instant::now();
    let every: Vec<&Mutant> = all().collect();
    let suites: BTreeSet<Suite> = chosen.iter().map(|mutant| mutant.suite).collect();
    println!("building {} mutants at once", every.len());
    let programs = Programs::build(Copy::with(&every)?, &suites)?;
    println!("built in {:.0} s", begin.elapsed().as_secs_f64());

    let runner = Runner {
        programs,
        jobs: arguments.jobs.or(thread::available_parallelism().ok()),
    };
    let unchanged = suites.iter().filter(|suite| **suite != Suite::Simulator);
    let without: Vec<Task> = unchanged.map(|suite| (*suite, None, 0, LIMIT)).collect();
    let mut rows = runner.run(without)?;
    let limits: BTreeMap<Suite, Duration> = rows
        .iter()
        .map(|row| (row.suite, row.time * FACTOR + ADDITION))
        .collect();
    let with = chosen.iter().map(|mutant| {
        let limit = limits.get(&mutant.suite).copied().unwrap_or(LIMIT);
        (mutant.suite, Some(*mutant), arguments.seeds, limit)
    });
    rows.extend(runner.run(with.collect())?);
    // Without a bug, the simulator has to pass the seeds that have found one. It always runs those
    // that once violated a rule.
    if suites.contains(&Suite::Simulator) {
        let seeds = rows.iter().filter_map(|row| match row.outcome {
            Outcome::Seed(seed) if seed < arguments.seeds => Some(seed + 1),
            _ => None,
        });
        let most = seeds.max().unwrap_or(1);
        rows.extend(runner.run(vec![(Suite::Simulator, None, most, LIMIT)])?);
    }
    print(&rows, begin.elapsed());
    check(&rows)
}

/// A suite to run, with a mutant or without, a number of seeds and a time limit.
type Task = (Suite, Option<&'static Mutant>, u64, Duration);

struct Runner {
    programs: Programs,
    jobs: Option<NonZero<usize>>,
}

impl Runner {
    /// Runs suites, several at a time; returns their results in order.
    fn run(&self, tasks: Vec<Task>) -> Result<Vec<Row>, Failure> {
        let count = tasks.len();
        let waiting = Mutex::new(tasks.into_iter().enumerate());
        let work = || {
            let mut done = Vec::new();
            loop {
                let next = waiting.lock().unwrap_or_else(|it| it.into_inner()).next();
                let Some((place, task)) = next else {
                    return Ok(done);
                };
                done.push((place, self.one(task)?));
            }
        };
        let jobs = self.jobs.map_or(1, NonZero::get).min(count.max(1));
        let workers: Vec<Result<Vec<(usize, Row)>, Failure>> = thread::scope(|scope| {
            let started: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
            let ended = started.into_iter().map(|worker| match worker.join() {
                Ok(rows) => rows,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            ended.collect()
        });
        let mut rows = Vec::new();
        for worker in workers {
            rows.extend(worker?);
        }
        rows.sort_by_key(|(place, _)| *place);
        Ok(rows.into_iter().map(|(_, row)| row).collect())
    }

    fn one(&self, (suite, mutant, seeds, limit): Task) -> Result<Row, Failure> {
        let begin = Instant::now();
        let name = mutant.map(|mutant| mutant.name);
        let outcome = self.programs.run(suite, name, seeds, limit)?;
        let row = Row {
            suite,
            mutant,
            outcome,
            time: begin.elapsed(),
        };
        println!("{}", line(&row));
        Ok(row)
    }
}

fn choose(arguments: &Arguments) -> Result<Vec<&'static Mutant>, Failure> {
    let mut chosen = named(&arguments.only)?;
    let others = all().filter(|mutant| !arguments.only.iter().any(|name| name == mutant.name));
    let others: Vec<_> = others.collect();
    match arguments.share_of {
        None if arguments.only.is_empty() => Ok(others),
        None => Ok(chosen),
        Some(shares) => {
            chosen.extend(share(others, commit_number()?, shares));
            Ok(chosen)
        }
    }
}

/// One of several shares of neighbours, which need few suites. All shares together are everything.
fn share<T>(all: Vec<T>, number: u64, shares: NonZero<usize>) -> impl Iterator<Item = T> {
    let shares = shares.get();
    let at = usize::try_from(number % shares as u64).unwrap_or(0);
    let bound = |at: usize| at * all.len() / shares;
    let (first, end) = (bound(at), bound(at + 1));
    all.into_iter().take(end).skip(first)
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

fn line(row: &Row) -> String {
    let (name, outcome) = match (row.mutant, &row.outcome) {
        (Some(mutant), outcome) => (mutant.name, outcome.to_string()),
        (None, Outcome::Passed) => ("no mutant", "passed".to_owned()),
        (None, failure) => ("no mutant", format!("FAILED: {failure}")),
    };
    let (suite, seconds) = (row.suite.to_string(), row.time.as_secs_f64());
    format!("{name:40} {suite:24} {seconds:6.1} s  {outcome}")
}

fn print(rows: &[Row], time: Duration) {
    println!("\n{:40} {:24} {:>8}  found by", "mutant", "suite", "time");
    for row in rows {
        println!("{}", line(row));
    }
    let with = rows.iter().filter(|row| row.mutant.is_some());
    let survivors = with.clone().filter(|row| row.outcome == Outcome::Passed);
    println!(
        "{} mutants, {} survived; {:.1} min",
        with.count(),
        survivors.count(),
        time.as_secs_f64() / 60.0
    );
}

/// Checks that every mutant was found, and that every suite passes without one.
fn check(rows: &[Row]) -> Result<(), Failure> {
    let mut complaints = Vec::new();
    for row in rows {
        let suite = row.suite;
        match (row.mutant, &row.outcome) {
            (None, Outcome::Passed) => {}
            (None, failure) => {
                complaints.push(format!(
                    "{suite} fails without a mutant ({failure}); fix that"
                ));
                if let Outcome::Unclear(tail) = failure {
                    complaints.push(tail.clone());
                }
            }
            (Some(mutant), Outcome::Passed) => {
                complaints.push(format!("{}: no test of {suite} found it", mutant.name));
            }
            (Some(mutant), Outcome::Unclear(tail)) => complaints.push(format!(
                "{}: {suite} failed without naming a test:\n{tail}",
                mutant.name
            )),
            (Some(_), _) => {}
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

    fn arguments(only: &[&str], share_of: Option<usize>) -> Arguments {
        Arguments {
            only: only.iter().map(|name| (*name).to_owned()).collect(),
            share_of: share_of.and_then(NonZero::new),
            seeds: 1,
            jobs: None,
            list: false,
        }
    }

    fn row(mutant: Option<&'static Mutant>, outcome: Outcome) -> Row {
        Row {
            suite: Suite::Simulator,
            mutant,
            outcome,
            time: Duration::ZERO,
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
    fn a_share_is_chosen_besides_those_named_and_none_twice() {
        let name = all().next().map_or("", |mutant| mutant.name);
        let chosen = choose(&arguments(&[name], Some(20))).expect("a git checkout");
        let twentieth = (all().count() - 1) / 20 + 1;
        assert!([twentieth, twentieth + 1].contains(&chosen.len()));
        assert_eq!(chosen.iter().filter(|it| it.name == name).count(), 1);
        let chosen = choose(&arguments(&[], None)).expect("all");
        assert_eq!(chosen.len(), all().count());
    }

    #[test]
    fn the_shares_together_are_everything() {
        for (count, shares) in [(0, 3), (2, 3), (7, 3), (200, 20), (219, 20)] {
            let all: Vec<usize> = (0..count).collect();
            let number = NonZero::new(shares).expect("not zero");
            let parts = (0..shares as u64).map(|at| share(all.clone(), at, number));
            assert_eq!(parts.flatten().collect::<Vec<_>>(), all);
        }
    }

    #[test]
    fn survivors_and_suites_that_fail_without_a_mutant_are_complaints() {
        let mutant = all().next();
        for found in [
            Outcome::Seed(3),
            Outcome::Test("a".into()),
            Outcome::Crashed(11),
            Outcome::Hung(LIMIT),
        ] {
            assert!(check(&[row(None, Outcome::Passed), row(mutant, found)]).is_ok());
        }
        let name = mutant.map_or("", |mutant| mutant.name);
        for (bad, part) in [
            (row(mutant, Outcome::Passed), name),
            (row(mutant, Outcome::Unclear("odd".into())), "odd"),
            (row(None, Outcome::Test("a".into())), "without a mutant (a)"),
            (row(None, Outcome::Hung(LIMIT)), "without a mutant"),
        ] {
            let complaint = check(&[bad]).expect_err(part).to_string();
            assert!(complaint.contains(part), "{complaint}");
        }
    }
}
