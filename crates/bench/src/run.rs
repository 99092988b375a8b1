//! Measures groups of subjects in turns and prints the results.

use std::error::Error;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use crate::conditions::{closing_line, on_machine, places, progress_bar};
use crate::control::Outcome;
use crate::failure::RunError;
use crate::launch::{self, Entry};
use crate::machine::{self, Cores, Stolen};
use crate::output::{Output, PageFile};
use crate::page;
use crate::plan::Group;
use crate::results::{self, Measurement};
use crate::testbed::Testbed;
use crate::work::Placement;

/// Optional rounds are measured as long as the whole takes no longer than this.
const OPTIONAL_ROUNDS: Duration = Duration::from_secs(80);

/// Runs measurements of external subjects.
pub trait Externals {
    fn measure(&self, entry: &Entry, testbed: &Testbed, cores: Cores) -> Result<Outcome, RunError>;

    /// Returns a line for each external subject that is not available.
    fn absent(&self) -> &[String];
}

/// The externals of a run without external subjects.
pub struct NoExternals;

impl Externals for NoExternals {
    fn measure(
        &self,
        entry: &Entry,
        _testbed: &Testbed,
        _cores: Cores,
    ) -> Result<Outcome, RunError> {
        Err(RunError::Lost {
            who: entry.subject.name(),
            event: "cannot be measured by this program".to_owned(),
        })
    }

    fn absent(&self) -> &[String] {
        &[]
    }
}

/// Measures and prints all groups. False if a measurement failed.
///
/// # Errors
/// Nothing could be measured, or the results cannot be written.
pub fn measure(
    groups: Vec<Group>,
    testbed: &Testbed,
    externals: &dyn Externals,
    html: Option<&Path>,
    output: &mut Output<'_>,
) -> Result<bool, Box<dyn Error>> {
    let cores = Cores::choose()?;
    let page = html.map(PageFile::open).transpose()?;
    let mut entries = groups.iter().flat_map(|group| &group.entries);
    let apart = entries.any(|entry| entry.place == Placement::TwoNodes);
    match apart {
        true => output.remark(&format!("on {}", testbed.description()))?,
        false => output.remark(&"on one node")?,
    }
    if let Some(remark) = testbed.remark() {
        output.remark(&format!("not on a veth pair: {remark}"))?;
    }
    let places = places(cores, testbed.remote());
    output.remark(&on_machine(&places))?;
    let measurements = groups.iter().map(Group::most_measurements).sum();
    let run = Run {
        testbed,
        externals,
        cores,
        progress: progress_bar(measurements),
    };
    let stolen = Stolen::since_now(cores);
    let mut cache_line_ns = Vec::new();
    let mut failures = 0;
    let mut finished = Vec::new();
    let start = Instant::now();
    let least_s: f64 = groups.iter().map(Group::least_seconds).sum();
    let mut planned_s = 0.0;
    for group in groups {
        planned_s += group.least_seconds();
        let until = start + OPTIONAL_ROUNDS.mul_f64(planned_s / least_s);
        let measured = run.measure(&group, until, &mut cache_line_ns)?;
        failures += measured.iter().map(Measurement::failures).sum::<usize>();
        run.progress
            .suspend(|| print_group(&group, &measured, testbed, output))?;
        finished.push((group, measured));
    }
    run.progress.finish_and_clear();
    let closing = closing_line(&cache_line_ns, testbed.remote(), stolen);
    output.remark(&format!("\n{closing}"))?;
    if let Some(file) = page {
        let between = apart.then(|| testbed.description());
        let facts = page::facts(between, places, &closing, failures).with(externals.absent());
        file.write(&page::page(&facts, &finished, testbed), output)?;
    }
    Ok(failures == 0)
}

fn print_group(
    group: &Group,
    measured: &[Measurement],
    testbed: &Testbed,
    output: &mut Output<'_>,
) -> io::Result<()> {
    if output.json {
        for one in measured {
            if let Some(mut row) = one.row(testbed) {
                row.p99_over_alone = results::p99_over_alone(one, measured);
                output.print_json(&row)?;
            }
        }
    } else if group.is_table {
        let table = results::table(group, measured, testbed, output.wide);
        output.print(&format!("\n{table}"))?;
    }
    if group.is_table {
        for remark in results::remarks(measured) {
            output.remark(&format!("  {remark}"))?;
        }
    }
    Ok(())
}

/// Everything that the groups of a run share.
struct Run<'a> {
    testbed: &'a Testbed,
    externals: &'a dyn Externals,
    cores: Cores,
    progress: ProgressBar,
}

impl Run<'_> {
    /// Measures the subjects of a group in turns, until the rounds agree or the time is up.
    fn measure(
        &self,
        group: &Group,
        until: Instant,
        cache_line_ns: &mut Vec<f64>,
    ) -> io::Result<Vec<Measurement>> {
        let entries = group.entries.iter().cloned();
        let mut measured: Vec<Measurement> = entries.map(Measurement::new).collect();
        for round in 1..=group.rounds.most {
            if self.testbed.remote().is_none() {
                cache_line_ns.extend(machine::cache_line_ns(self.cores)?);
            }
            for one in &mut measured {
                let subject = one.entry.subject.name();
                self.progress
                    .set_message(format!("{} {subject}", one.entry.bench));
                let outcome = match one.entry.subject.is_external() {
                    true => self.externals.measure(&one.entry, self.testbed, self.cores),
                    false => launch::measure(&one.entry, self.testbed, self.cores),
                };
                if let Err(error) = &outcome {
                    self.progress.suspend(|| {
                        eprintln!("dipole bench: {} of {subject}: {error}", group.title);
                    });
                }
                one.rounds.push(outcome.ok());
                self.progress.inc(1);
            }
            let is_enough = || measured.iter().all(Measurement::agrees) || Instant::now() >= until;
            if round >= group.rounds.least && is_enough() {
                let skipped = u64::from(group.rounds.most - round) * group.entries.len() as u64;
                self.progress.inc(skipped);
                break;
            }
        }
        Ok(measured)
    }
}
