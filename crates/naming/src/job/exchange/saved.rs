//! The outcome of an exchange, saved for later programs of the same rank.
//!
//! A launcher serves only the first program of a rank that a script starts. The others find the
//! outcome in the job's directory, in a file that is named after the socket to the launcher: its
//! number is not used again until the machine is restarted.

use std::fmt::Write;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::machine::boot_id;
use super::{Outcome, hashed};
use crate::hosts::Hosts;
use crate::job::dipole::parse_ranks;
use crate::job::pmi::socket_number;
use crate::job::write_ranks;
use crate::lines;
use crate::registry::LAUNCHER_PREFIX;

/// Where the outcome of this rank is saved.
pub(super) struct Place {
    user_dir: PathBuf,
    /// Name of the file; `None` if the launcher's socket is not known by a number.
    name: Option<String>,
}

impl Place {
    pub(super) fn of(user_dir: &Path, inherited: Option<&OwnedFd>) -> Place {
        let number = inherited.and_then(socket_number);
        let boot = boot_id();
        let name = number
            .filter(|_| !boot.is_empty())
            .map(|number| format!("{LAUNCHER_PREFIX}{number}-{:016x}", hashed(&[&boot])));
        Place {
            user_dir: user_dir.to_owned(),
            name,
        }
    }

    /// The outcome that an earlier program of this rank has saved. This program is counted.
    pub(super) fn load(&self, rank: u32, size: u32) -> Option<Outcome> {
        let name = self.name.as_ref()?;
        let jobs = fs::read_dir(&self.user_dir).ok()?.flatten();
        let file = jobs
            .map(|job| job.path().join(name))
            .find(|file| file.is_file())?;
        let text = lines::read("nodes of this job", &file).ok()?;
        let mut outcome = parse(&text, rank, size)?;
        outcome.programs_before = outcome.programs_before.saturating_add(1);
        self.store(file.parent()?, &outcome);
        Some(outcome)
    }

    /// Saves the outcome. A failure concerns later programs only, which then report it.
    pub(super) fn store(&self, job_dir: &Path, outcome: &Outcome) {
        let Some(name) = &self.name else {
            return;
        };
        let (file, new) = (job_dir.join(name), job_dir.join(format!("{name}.new")));
        let written = fs::write(&new, text(outcome)).and_then(|()| fs::rename(&new, &file));
        if let Err(cause) = written {
            tracing::debug!(%cause, file = %file.display(), "the nodes of this job are not saved");
        }
    }
}

fn text(outcome: &Outcome) -> String {
    let placed = write_ranks(&outcome.placed);
    let (id, before) = (outcome.id, outcome.programs_before);
    let mut text = format!("{id} {before} {} {placed}\n", outcome.rank);
    for host in outcome.hosts.iter().flat_map(Hosts::iter) {
        let _infallible = writeln!(text, "{}", host.line());
    }
    text
}

fn parse(text: &str, rank: u32, size: u32) -> Option<Outcome> {
    let (first, list) = text.split_once('\n')?;
    let mut words = first.split(' ');
    let mut next = || words.next();
    let id = next()?.parse().ok()?;
    let programs_before = next()?.parse().ok()?;
    if next()?.parse() != Ok(rank) {
        return None;
    }
    let placed = parse_ranks(next()?, size)?;
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
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::address::NodeId;

    #[test]
    fn a_later_program_of_the_same_rank_finds_the_outcome() {
        let folder = tempfile::tempdir().unwrap();
        let job = folder.path().join("job-1");
        fs::create_dir(&job).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (ours, theirs) = (OwnedFd::from(ours), OwnedFd::from(theirs));
        let place = Place::of(folder.path(), Some(&ours));
        assert_eq!(place.load(1, 3), None);
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
            let copy = ours.try_clone().unwrap();
            let again = Place::of(folder.path(), Some(&copy));
            for before in 1..3 {
                let expected = Outcome {
                    programs_before: before,
                    ..outcome.clone()
                };
                assert_eq!(again.load(1, 3), Some(expected));
            }
        }
        assert_eq!(place.load(0, 3), None, "another rank");
        assert_eq!(place.load(1, 4), None, "another size");
        assert_eq!(Place::of(folder.path(), Some(&theirs)).load(1, 3), None);
        assert_eq!(Place::of(folder.path(), None).load(1, 3), None);
    }
}
