//! The outcome of an exchange, saved for later programs of the same rank.
//!
//! A launcher serves only the first program of a rank that a script starts. The others find the
//! outcome in the job's directory, in a file that is named after the connection to the launcher: the
//! number of a socket, for example, is not used again until the machine is restarted.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use super::machine::boot_id;
use super::{Outcome, hashed};
use crate::hosts::Hosts;
use crate::job::dipole::parse_ranks;
use crate::job::{MAX_RANKS, write_ranks};
use crate::lines;
use crate::registry::LAUNCHER_PREFIX;

/// Where the outcome of this rank is saved.
pub(super) struct Place {
    user_dir: PathBuf,
    /// Name of the file; `None` if the connection to the launcher is not known by a number.
    name: Option<String>,
}

impl Place {
    /// `connection` is a number that no other connection to a launcher has had on this machine.
    pub(super) fn of(user_dir: &Path, connection: Option<u64>) -> Place {
        let boot = boot_id();
        let name = connection
            .filter(|_| !boot.is_empty())
            .map(|number| format!("{LAUNCHER_PREFIX}{number}-{:016x}", hashed(&[&boot])));
        Place {
            user_dir: user_dir.to_owned(),
            name,
        }
    }

    /// Ranks may share a connection.
    fn file_name(&self, rank: u32) -> Option<String> {
        let name = self.name.as_ref()?;
        Some(format!("{name}-{rank}"))
    }

    /// The outcome that an earlier program of this rank has saved. This program is counted.
    pub(super) fn load(&self, rank: u32, size: Option<u32>) -> Option<Outcome> {
        let name = self.file_name(rank)?;
        let jobs = fs::read_dir(&self.user_dir).ok()?.flatten();
        let file = jobs
            .map(|job| job.path().join(&name))
            .find(|file| file.is_file())?;
        let text = lines::read("nodes of this job", &file).ok()?;
        let mut outcome = parse(&text, rank, size)?;
        outcome.programs_before = outcome.programs_before.saturating_add(1);
        self.store(file.parent()?, &outcome);
        Some(outcome)
    }

    /// Saves the outcome. A failure concerns later programs only, which then report it.
    pub(super) fn store(&self, job_dir: &Path, outcome: &Outcome) {
        let Some(name) = self.file_name(outcome.rank) else {
            return;
        };
        let (file, new) = (job_dir.join(&name), job_dir.join(format!("{name}.new")));
        let written = fs::write(&new, text(outcome)).and_then(|()| fs::rename(&new, &file));
        if let Err(cause) = written {
            tracing::debug!(%cause, file = %file.display(), "the nodes of this job are not saved");
        }
    }
}

fn text(outcome: &Outcome) -> String {
    let placed = write_ranks(&outcome.placed);
    let (id, before, rank) = (outcome.id, outcome.programs_before, outcome.rank);
    let size = outcome.placed.len();
    let mut text = format!("{id} {before} {rank} {size} {placed}\n");
    for host in outcome.hosts.iter().flat_map(Hosts::iter) {
        let _infallible = writeln!(text, "{}", host.line());
    }
    text
}

fn parse(text: &str, rank: u32, size: Option<u32>) -> Option<Outcome> {
    let (first, list) = text.split_once('\n')?;
    let mut words = first.split(' ');
    let mut next = || words.next();
    let id = next()?.parse().ok()?;
    let programs_before = next()?.parse().ok()?;
    if next()?.parse() != Ok(rank) {
        return None;
    }
    let saved: u32 = next()?.parse().ok().filter(|size| *size <= MAX_RANKS)?;
    if size.is_some_and(|size| size != saved) {
        return None;
    }
    let placed = parse_ranks(next()?, saved)?;
    let hosts = match list.is_empty() {
        true => None,
        false => Some(Hosts::parse(list).ok()?),
    };
    Some(Outcome {
        id,
        programs_before,
        rank,
        placed,
        hosts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::NodeId;

    #[test]
    fn a_later_program_of_the_same_rank_finds_the_outcome() {
        let folder = tempfile::tempdir().unwrap();
        let job = folder.path().join("job-1");
        fs::create_dir(&job).unwrap();
        let place = Place::of(folder.path(), Some(7));
        assert_eq!(place.load(1, Some(3)), None);
        let hosts = "1 10.0.0.1 port=10001 name=n1\n2 fd00::2 port=10002 slots=1\n";
        for hosts in [None, Some(Hosts::parse(hosts).unwrap())] {
            let outcome = Outcome {
                id: u64::MAX,
                programs_before: 0,
                rank: 1,
                placed: vec![NodeId(1), NodeId(2), NodeId(2)],
                hosts,
            };
            place.store(&job, &outcome);
            let again = Place::of(folder.path(), Some(7));
            for (before, size) in [(1, Some(3)), (2, None)] {
                let expected = Outcome {
                    programs_before: before,
                    ..outcome.clone()
                };
                assert_eq!(again.load(1, size), Some(expected));
            }
        }
        assert_eq!(place.load(0, Some(3)), None, "another rank");
        assert_eq!(place.load(1, Some(4)), None, "another size");
        let others = [Some(8), None].map(|other| Place::of(folder.path(), other));
        assert!(others.iter().all(|other| other.load(1, Some(3)).is_none()));
    }
}
