//! `dipole trace`: where the time of a traced program in supersteps went, and why (thesis §6.1.4).
//!
//! Everything is told from durations alone, so that clocks of nodes need not agree: a superstep
//! computes as long as its slowest rank, and communicates as long as the rank that waited least.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use dipole_bsp::trace::{State, Step, TraceFile, is_trace_name};
use serde::Serialize;

use crate::output::{Failure, json as line, table};

/// Show where the time of a traced program in supersteps went
///
/// A program in supersteps (BSPlib) that runs with DIPOLE_TRACE=DIR leaves a
/// file of each rank in DIR. The calls that end supersteps are listed, those that
/// cost most first, with what was lost there and for which reason.
#[derive(Args, Debug)]
pub(crate) struct TraceArgs {
    /// The directory with the files of all ranks
    dir: PathBuf,
}

/// The supersteps that one call ended.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Profile {
    call: String,
    supersteps: u64,
    /// Sum over supersteps of the slowest rank's computation.
    compute_ns: u64,
    /// Its mean over ranks, by that.
    utilisation: f64,
    /// Sum over supersteps of the time in the call of the rank that waited least.
    communicate_ns: u64,
    /// Sum over supersteps of the most bytes that a rank sent or received, and of their mean.
    h_bytes: u64,
    mean_bytes: f64,
    repeats: u64,
    stalls: u64,
    /// Where most of what was lost went, in words; none if little was.
    reasons: Vec<String>,
    #[serde(skip)]
    by_rank: Vec<ByRank>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct ByRank {
    /// How much longer it computed than the mean, where it was the slowest.
    late_ns: u64,
    repeats: u64,
    /// Bytes in supersteps in which it had the most.
    skew_bytes: u64,
}

/// A whole program.
#[derive(Debug, Serialize)]
struct Summary {
    ranks: u32,
    nodes: u32,
    link: String,
    supersteps: u64,
    /// The computation of the rank that computed most: the max of sums.
    max_of_sums_ns: u64,
    /// The slowest rank's computation of each superstep: the sum of maxima.
    sum_of_max_ns: u64,
    communicate_ns: u64,
    calls: Vec<Profile>,
    notes: Vec<String>,
}

/// Prints it.
pub(crate) fn execute(
    arguments: &TraceArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let summary = summarise(&load(&arguments.dir)?)?;
    if json {
        writeln!(out, "{}", line(&summary))?;
        return Ok(ExitCode::SUCCESS);
    }
    let Summary { ranks, nodes, .. } = summary;
    writeln!(
        out,
        "{ranks} ranks on {nodes} nodes ({}), {} supersteps",
        summary.link, summary.supersteps
    )?;
    writeln!(
        out,
        "computation {} ms as the slowest rank of each superstep, {} ms of the rank that computed \
         most; communication {} ms",
        milliseconds(summary.sum_of_max_ns),
        milliseconds(summary.max_of_sums_ns),
        milliseconds(summary.communicate_ns)
    )?;
    let mut rows = table([
        "call",
        "steps",
        "compute ms",
        "used",
        "comm ms",
        "h kB",
        "mean kB",
        "again",
    ]);
    for call in &summary.calls {
        rows.add_row([
            call.call.clone(),
            call.supersteps.to_string(),
            milliseconds(call.compute_ns),
            format!("{:.0} %", 100.0 * call.utilisation),
            milliseconds(call.communicate_ns),
            format!("{:.1}", float(call.h_bytes) / 1e3),
            format!("{:.1}", call.mean_bytes / 1e3),
            call.repeats.to_string(),
        ]);
    }
    writeln!(out, "{rows}")?;
    for call in &summary.calls {
        for reason in &call.reasons {
            writeln!(out, "{}: {reason}", call.call)?;
        }
    }
    for note in &summary.notes {
        writeln!(out, "note: {note}")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn milliseconds(ns: u64) -> String {
    format!("{:.3}", float(ns) / 1e6)
}

#[allow(clippy::cast_precision_loss, reason = "for a reader")]
fn float(count: u64) -> f64 {
    count as f64
}

/// The files of a directory.
fn load(dir: &Path) -> Result<Vec<TraceFile>, Failure> {
    let place = dir.display();
    let entries =
        std::fs::read_dir(dir).map_err(|cause| format!("cannot read {place}: {cause}"))?;
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_trace_name) {
            let path = entry.path();
            let bytes = std::fs::read(&path)
                .map_err(|cause| format!("cannot read {}: {cause}", path.display()))?;
            let file = TraceFile::parse(&bytes);
            files.push(file.map_err(|cause| format!("{}: {cause}", path.display()))?);
        }
    }
    if files.is_empty() {
        return Err(format!(
            "{place} has no traces (rank-0.trace and so on); run a program in supersteps with \
             DIPOLE_TRACE={place}"
        )
        .into());
    }
    files.sort_by_key(|file| file.header.rank);
    Ok(files)
}

/// Lays the ranks' supersteps beside each other.
fn summarise(files: &[TraceFile]) -> Result<Summary, Failure> {
    let head = &files[0].header;
    let key = |file: &TraceFile| (file.header.run, file.header.size);
    if let Some(other) = files.iter().find(|file| key(file) != key(&files[0])) {
        return Err(format!(
            "the files of ranks {} and {} are of different runs; empty the directory before each \
             run",
            head.rank, other.header.rank
        )
        .into());
    }
    if files.len() != head.size as usize {
        let is_there = |rank: &u32| files.iter().any(|file| file.header.rank == *rank);
        let missing = (0..head.size).find(|rank| !is_there(rank)).unwrap_or(0);
        return Err(format!(
            "{} of {} ranks have a file here; rank {missing}'s is missing: copy the files of all \
             nodes into one directory",
            files.len(),
            head.size
        )
        .into());
    }
    let notes = notes(files);
    let size = head.size as usize;
    let mut by_epoch: BTreeMap<u32, Vec<&Step>> = BTreeMap::new();
    for file in files {
        for step in file.steps.iter().filter(|step| step.epoch >= head.first) {
            by_epoch.entry(step.epoch).or_default().push(step);
        }
    }
    by_epoch.retain(|_, steps| steps.len() == size);
    let mut calls: BTreeMap<String, Profile> = BTreeMap::new();
    let mut sums = vec![0_u64; size];
    for steps in by_epoch.values() {
        for (sum, step) in sums.iter_mut().zip(steps) {
            *sum += step.compute_ns();
        }
        let site = &files[0].sites[steps[0].site as usize];
        let profile = calls.entry(site.to_string()).or_insert_with(|| Profile {
            call: site.to_string(),
            by_rank: vec![ByRank::default(); size],
            ..Profile::default()
        });
        add(profile, steps);
    }
    let mut calls: Vec<Profile> = calls.into_values().collect();
    for call in &mut calls {
        call.utilisation = match call.compute_ns {
            0 => 1.0,
            most => call.utilisation / float(most),
        };
        call.reasons = reasons(call);
    }
    calls.sort_by_key(|call| std::cmp::Reverse(call.compute_ns + call.communicate_ns));
    Ok(Summary {
        ranks: head.size,
        nodes: head.nodes,
        link: head.link.clone(),
        supersteps: by_epoch.len() as u64,
        max_of_sums_ns: sums.into_iter().max().unwrap_or(0),
        sum_of_max_ns: calls.iter().map(|call| call.compute_ns).sum(),
        communicate_ns: calls.iter().map(|call| call.communicate_ns).sum(),
        calls,
        notes,
    })
}

fn notes(files: &[TraceFile]) -> Vec<String> {
    let mut notes = Vec::new();
    for TraceFile {
        header,
        is_wrapped,
        damaged_blocks,
        ..
    } in files
    {
        let rank = header.rank;
        match header.state {
            State::Ended => {}
            State::Open => notes.push(format!("rank {rank} has not ended: it runs, or was killed")),
            State::Aborted => notes.push(format!("rank {rank} ended by an error")),
        }
        if *is_wrapped {
            notes.push(format!(
                "of rank {rank} only the newest supersteps are kept"
            ));
        }
        if *damaged_blocks > 0 {
            notes.push(format!("the file of rank {rank} is cut short or damaged"));
        }
    }
    notes
}

/// Adds one superstep, as each rank has it.
fn add(profile: &mut Profile, steps: &[&Step]) {
    let size = steps.len();
    let ranks = float(size as u64);
    let mut bytes = vec![(0_u64, 0_u64); size];
    for (rank, step) in steps.iter().enumerate() {
        let put = step
            .put
            .iter()
            .map(|(to, count)| (rank, *to as usize, *count));
        let got = step
            .got
            .iter()
            .map(|(of, count)| (*of as usize, rank, *count));
        for (from, to, count) in put.chain(got) {
            if let Some((out, _)) = bytes.get_mut(from) {
                *out += count;
            }
            if let Some((_, inward)) = bytes.get_mut(to) {
                *inward += count;
            }
        }
    }
    let h: Vec<u64> = bytes.iter().map(|(out, inward)| *out.max(inward)).collect();
    let greatest = |values: &[u64]| {
        let values = values.iter().enumerate();
        values
            .max_by_key(|(_, value)| **value)
            .map_or((0, 0), |(rank, value)| (rank, *value))
    };
    let compute: Vec<u64> = steps.iter().map(|step| step.compute_ns()).collect();
    let (slowest, most_ns) = greatest(&compute);
    let (widest, most_bytes) = greatest(&h);
    let mean_ns = compute.iter().sum::<u64>() / size as u64;
    profile.supersteps += 1;
    profile.compute_ns += most_ns;
    profile.utilisation += compute.iter().map(|ns| float(*ns)).sum::<f64>() / ranks;
    profile.communicate_ns += steps.iter().map(|step| step.sync_ns()).min().unwrap_or(0);
    profile.h_bytes += most_bytes;
    profile.mean_bytes += h.iter().map(|count| float(*count)).sum::<f64>() / ranks;
    profile.by_rank[slowest].late_ns += most_ns - mean_ns;
    profile.by_rank[widest].skew_bytes += most_bytes;
    for (rank, step) in steps.iter().enumerate() {
        profile.repeats += u64::from(step.repeats);
        profile.stalls += u64::from(step.stalls);
        profile.by_rank[rank].repeats += u64::from(step.repeats);
    }
}

/// What was lost at a call, and what would help.
fn reasons(call: &Profile) -> Vec<String> {
    let mut reasons = Vec::new();
    let largest = |of: fn(&ByRank) -> u64| {
        let values = call.by_rank.iter().map(of).enumerate();
        values.max_by_key(|(_, value)| *value).unwrap_or_default()
    };
    let late_ns: u64 = call.by_rank.iter().map(|rank| rank.late_ns).sum();
    let time_ns = call.compute_ns + call.communicate_ns;
    if call.utilisation < 0.8 && late_ns * 10 > time_ns {
        let (slowest, its_ns) = largest(|rank| rank.late_ns);
        reasons.push(match its_ns * 10 >= late_ns * 7 {
            true => format!(
                "slow rank: {} ms are lost since the others wait for rank {slowest}; give it less \
                 work, or look what else runs on its node",
                milliseconds(late_ns)
            ),
            false => format!(
                "imbalance: {} ms are lost since now one rank computes longest and now another, \
                 rank {slowest} most often; divide the work of each superstep evenly, or join \
                 supersteps",
                milliseconds(late_ns)
            ),
        });
    }
    if call.repeats > 0 {
        let (rank, repeats) = largest(|rank| rank.repeats);
        reasons.push(format!(
            "loss: {} packets were sent again, {repeats} of them by rank {rank}; `dipole doctor` \
             looks for full queues and bad links on its way",
            call.repeats
        ));
    }
    if call.mean_bytes > 0.0 && float(call.h_bytes) >= 2.0 * call.mean_bytes {
        let (rank, bytes) = largest(|rank| rank.skew_bytes);
        let owner = match bytes * 10 >= call.h_bytes * 7 {
            true => format!("rank {rank}"),
            false => format!("now one rank and now another, rank {rank} most often,"),
        };
        reasons.push(format!(
            "skewed h: {owner} sends or receives {:.1} times as much as the mean; spread the \
             bytes, as a two-phase broadcast does",
            float(call.h_bytes) / call.mean_bytes
        ));
    }
    reasons
}

#[cfg(test)]
mod tests {
    use dipole_bsp::trace::{Header, Site};

    use super::*;

    /// Ranks of one run; a superstep of a rank is its computation, bytes to rank 0 and repeats.
    fn run(ranks: &[&[(u64, u64, u32)]]) -> Vec<TraceFile> {
        let size = u32::try_from(ranks.len()).expect("few");
        let file = |(rank, steps): (u32, &&[(u64, u64, u32)])| TraceFile {
            header: Header {
                state: State::Ended,
                rank,
                size,
                nodes: 1,
                leader: 0,
                first: 1,
                run: 5,
                begun_ns: 0,
                begun_unix_ns: 0,
                link: "shm".into(),
                host: String::new(),
            },
            sites: vec![Site {
                call: "bsp_sync".into(),
                file: "a/lu.c".into(),
                line: 30,
            }],
            steps: (1..)
                .zip(*steps)
                .map(|(epoch, (compute_ns, bytes, repeats))| Step {
                    epoch,
                    entered_ns: *compute_ns,
                    barrier_ns: 10,
                    repeats: *repeats,
                    put: vec![(0, *bytes)],
                    ..Step::default()
                })
                .collect(),
            is_wrapped: false,
            damaged_blocks: 0,
        };
        (0..).zip(ranks).map(file).collect()
    }

    fn summary(files: &[TraceFile]) -> Summary {
        match summarise(files) {
            Ok(summary) => summary,
            Err(_) => panic!("files of one run"),
        }
    }

    #[test]
    fn a_slow_rank_is_named_and_even_ranks_are_not() {
        let found = summary(&run(&[
            &[(100, 0, 0); 9],
            &[(900, 0, 0); 9],
            &[(110, 0, 0); 9],
        ]));
        assert_eq!(
            (found.supersteps, found.sum_of_max_ns, found.max_of_sums_ns),
            (9, 8100, 8100)
        );
        assert_eq!(found.calls[0].call, "lu.c:30");
        assert!(
            found.calls[0].reasons[0].contains("wait for rank 1;"),
            "{found:?}"
        );
        let even = summary(&run(&[&[(100, 0, 0); 9], &[(101, 0, 0); 9]]));
        assert_eq!(even.calls[0].reasons, [""; 0]);
    }

    #[test]
    fn ranks_that_are_slow_in_turns_are_an_imbalance_that_the_sums_hide() {
        let found = summary(&run(&[
            &[(900, 0, 0), (100, 0, 0)],
            &[(100, 0, 0), (900, 0, 0)],
        ]));
        assert_eq!((found.sum_of_max_ns, found.max_of_sums_ns), (1800, 1000));
        assert!(
            found.calls[0].reasons[0].starts_with("imbalance"),
            "{found:?}"
        );
    }

    #[test]
    fn loss_and_skewed_bytes_name_their_rank() {
        let even = [(100, 0, 0); 4];
        let found = summary(&run(&[
            &even,
            &[(100, 5000, 0); 4],
            &[(100, 5000, 2); 4],
            &even,
        ]));
        let call = &found.calls[0];
        assert_eq!((call.h_bytes, call.repeats), (40_000, 8));
        assert!(
            call.reasons
                .iter()
                .any(|reason| reason.contains("8 of them by rank 2"))
        );
        assert!(
            call.reasons
                .iter()
                .any(|reason| reason.starts_with("skewed h: rank 0"))
        );
    }

    #[test]
    fn other_runs_and_missing_ranks_are_refused() {
        let mut files = run(&[&[], &[], &[]]);
        files[1].header.run = 6;
        assert!(summarise(&files).is_err());
        files.remove(1);
        assert!(summarise(&files).is_err());
    }
}
