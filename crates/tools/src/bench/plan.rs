//! What is measured: the standard table, or what the command line asks for.

use std::fmt;
use std::time::Duration;

use super::BenchArgs;
use super::control::{Kind, Workload};
use super::launch::Entry;
use super::subject::Subject;

/// Seconds a measurement, when the whole table is wanted.
const TABLE_SECONDS: f64 = 0.4;
/// Seconds a measurement, when one kind is.
const KIND_SECONDS: f64 = 1.0;
const LOSS: f64 = 0.01;

/// Entries measured in turns and shown beside each other.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) title: String,
    pub(crate) entries: Vec<Entry>,
}

/// Why the command line makes no plan.
#[derive(Debug, PartialEq)]
pub(crate) enum PlanError {
    /// A subject cannot do the work asked for.
    Refused(String),
    /// An option needs a kind to act on.
    NeedsKind { option: &'static str },
    /// Two options exclude each other.
    Excluded {
        option: &'static str,
        by: &'static str,
    },
    /// A number lies outside its range.
    OutOfRange {
        option: &'static str,
        given: String,
        expected: &'static str,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::Refused(why) => {
                write!(f, "{why}; choose another --size, kind or --subjects")
            }
            PlanError::NeedsKind { option } => {
                write!(f, "{option} needs a kind: pingpong, stream, bidir or rate")
            }
            PlanError::Excluded { option, by } => write!(f, "{option} cannot go with {by}"),
            PlanError::OutOfRange {
                option,
                given,
                expected,
            } => {
                write!(f, "{option} {given} cannot be used: expected {expected}")
            }
        }
    }
}

impl std::error::Error for PlanError {}

/// How the work of a group is varied.
#[derive(Clone, Copy, Debug)]
struct Variation {
    kind: Kind,
    size_bytes: usize,
    duration: Duration,
    block: bool,
    unreliable: bool,
}

impl Variation {
    fn bench(self) -> String {
        let block = if self.block { "-block" } else { "" };
        let unreliable = if self.unreliable { "-unreliable" } else { "" };
        format!("{}{block}{unreliable}", self.kind.name())
    }

    fn entry(self, bench: String, subject: Subject, fault: Option<String>) -> Entry {
        let unreliable = self.unreliable && subject == Subject::Dipole;
        let work = Workload {
            kind: self.kind,
            size_bytes: self.size_bytes,
            duration: self.duration,
            unreliable,
            block: self.block,
            may_lose: unreliable || subject.is_datagrams(),
            threads: subject.is_threads(),
        };
        Entry {
            bench,
            subject,
            work,
            fault,
        }
    }

    fn group(self, subjects: &[Subject]) -> Group {
        let entries = subjects
            .iter()
            .map(|&subject| self.entry(self.bench(), subject, None))
            .collect();
        Group {
            title: self.title(),
            entries,
        }
    }

    fn title(self) -> String {
        format!("{} of {}", self.bench(), size(self.size_bytes))
    }

    /// Dipole through the fault wrapper: nothing lost, then a share of all packets.
    fn loss_group(self, loss: f64) -> Group {
        let entry = |loss: f64| {
            let bench = format!("{}-drop-{loss}", self.bench());
            self.entry(bench, Subject::Dipole, Some(format!("drop={loss},seed=7")))
        };
        let title = format!("{} through the fault wrapper", self.title());
        Group {
            title,
            entries: vec![entry(0.0), entry(loss)],
        }
    }
}

/// Turns the command line into groups.
pub(crate) fn plan(arguments: &BenchArgs) -> Result<Vec<Group>, PlanError> {
    check_numbers(arguments)?;
    let groups = match arguments.kind {
        None => table(arguments)?,
        Some(kind) => vec![of_kind(kind, arguments)?],
    };
    for entry in groups.iter().flat_map(|group| &group.entries) {
        if let Some(why) = entry
            .subject
            .refuses(entry.work.kind, entry.work.size_bytes)
        {
            return Err(PlanError::Refused(why));
        }
    }
    Ok(groups)
}

fn check_numbers(arguments: &BenchArgs) -> Result<(), PlanError> {
    let out_of_range = |option, given: String, expected| {
        Err(PlanError::OutOfRange {
            option,
            given,
            expected,
        })
    };
    if let Some(seconds) = arguments.seconds
        && !(seconds > 0.0 && seconds <= 3600.0)
    {
        return out_of_range(
            "--seconds",
            seconds.to_string(),
            "more than 0, at most 3600",
        );
    }
    if let Some(loss) = arguments.drop
        && !(0.0..1.0).contains(&loss)
    {
        return out_of_range("--drop", loss.to_string(), "a share from 0 to below 1");
    }
    if let Some(bytes) = arguments.size
        && !(1..=1 << 30).contains(&bytes)
    {
        return out_of_range("--size", bytes.to_string(), "1 byte to 1 GiB");
    }
    Ok(())
}

fn table(arguments: &BenchArgs) -> Result<Vec<Group>, PlanError> {
    let given = [
        ("--size", arguments.size.is_some()),
        ("--block", arguments.block),
        ("--unreliable", arguments.unreliable),
        ("--drop", arguments.drop.is_some()),
    ];
    if let Some((option, _)) = given.into_iter().find(|(_, given)| *given) {
        return Err(PlanError::NeedsKind { option });
    }
    let duration = Duration::from_secs_f64(arguments.seconds.unwrap_or(TABLE_SECONDS));
    let base = |kind, size_bytes| Variation {
        kind,
        size_bytes,
        duration,
        block: false,
        unreliable: false,
    };
    let pingpong = base(Kind::Pingpong, 64);
    let stream = base(Kind::Stream, 1 << 20);
    let usual =
        |variation: Variation| variation.group(Subject::usual(variation.kind, variation.block));
    let mut groups = vec![
        usual(pingpong),
        usual(Variation {
            block: true,
            ..pingpong
        }),
        Variation {
            unreliable: true,
            ..pingpong
        }
        .group(&[Subject::Dipole, Subject::BareUdpSpin]),
        usual(stream),
        usual(base(Kind::Rate, 64)),
        usual(base(Kind::Bidir, 64 << 10)),
        stream.loss_group(LOSS),
    ];
    if !arguments.subjects.is_empty() {
        for group in &mut groups {
            group
                .entries
                .retain(|entry| arguments.subjects.contains(&entry.subject));
        }
        groups.retain(|group| !group.entries.is_empty());
    }
    Ok(groups)
}

fn of_kind(kind: Kind, arguments: &BenchArgs) -> Result<Group, PlanError> {
    let usual_size = match kind {
        Kind::Pingpong | Kind::Rate => 64,
        Kind::Stream => 1 << 20,
        Kind::Bidir => 64 << 10,
    };
    let variation = Variation {
        kind,
        size_bytes: arguments.size.unwrap_or(usual_size),
        duration: Duration::from_secs_f64(arguments.seconds.unwrap_or(KIND_SECONDS)),
        block: arguments.block,
        unreliable: arguments.unreliable,
    };
    if kind == Kind::Bidir && variation.unreliable {
        return Err(PlanError::Excluded {
            option: "--unreliable",
            by: "bidir",
        });
    }
    if kind == Kind::Bidir && variation.block {
        return Err(PlanError::Excluded {
            option: "--block",
            by: "bidir",
        });
    }
    if let Some(loss) = arguments.drop {
        if !arguments.subjects.is_empty() {
            return Err(PlanError::Excluded {
                option: "--subjects",
                by: "--drop",
            });
        }
        return Ok(variation.loss_group(loss));
    }
    if !arguments.subjects.is_empty() {
        return Ok(variation.group(&arguments.subjects));
    }
    // Of the usual ones, those that can do this size; ours is never left out in silence.
    let usual = Subject::usual(kind, variation.block)
        .iter()
        .copied()
        .filter(|subject| {
            *subject == Subject::Dipole || subject.refuses(kind, variation.size_bytes).is_none()
        });
    Ok(variation.group(&usual.collect::<Vec<_>>()))
}

/// A size as people write it.
pub(crate) fn size(bytes: usize) -> String {
    match bytes {
        bytes if bytes > 0 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes if bytes > 0 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn planned(line: &str) -> Result<Vec<Group>, PlanError> {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        plan(
            &Program::try_parse_from(words)
                .expect("the line parses")
                .bench,
        )
    }

    #[test]
    fn the_standard_table_takes_well_under_two_minutes() {
        let entries: usize = planned("")
            .expect("a plan")
            .iter()
            .map(|g| g.entries.len())
            .sum();
        let arguments = Program::try_parse_from(["bench"]).expect("parses").bench;
        let seconds = entries as f64 * TABLE_SECONDS * f64::from(arguments.rounds);
        assert!(
            entries > 15 && seconds < 60.0,
            "{entries} entries, {seconds} s"
        );
    }

    #[test]
    fn every_group_of_the_table_measures_dipole() {
        for group in planned("").expect("a plan") {
            assert!(
                group
                    .entries
                    .iter()
                    .any(|entry| entry.subject == Subject::Dipole),
                "{}",
                group.title
            );
        }
    }

    #[test]
    fn benches_that_differ_have_names_that_differ() {
        let mut seen = std::collections::HashSet::new();
        for entry in planned("")
            .expect("a plan")
            .iter()
            .flat_map(|group| &group.entries)
        {
            let key = (entry.bench.clone(), entry.subject, entry.work.size_bytes);
            assert!(seen.insert(key), "{entry:?}");
        }
    }

    #[test]
    fn a_loss_is_measured_beside_the_same_wrapper_without_one() {
        let groups = planned("stream --drop 0.02").expect("a plan");
        let [ref without, ref with] = groups[0].entries[..] else {
            panic!("{groups:?}")
        };
        assert_eq!(without.fault.as_deref(), Some("drop=0,seed=7"));
        assert_eq!(with.fault.as_deref(), Some("drop=0.02,seed=7"));
        assert_eq!(with.bench, "stream-drop-0.02");
    }

    #[test]
    fn only_dipole_sends_unreliably_and_only_those_who_repeat_nothing_may_lose() {
        let groups = planned("pingpong --unreliable").expect("a plan");
        for entry in &groups[0].entries {
            let expected = matches!(entry.subject, Subject::Dipole | Subject::BareUdpSpin);
            assert_eq!(entry.work.may_lose, expected, "{entry:?}");
            assert_eq!(entry.work.unreliable, entry.subject == Subject::Dipole);
        }
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_the_option_named() {
        let refusals = [
            ("--block", "--block needs a kind"),
            ("--size 64", "--size needs a kind"),
            ("bidir --unreliable", "--unreliable cannot go with bidir"),
            ("stream --seconds 0", "--seconds 0"),
            ("stream --drop 1", "--drop 1"),
            (
                "stream --drop 0.1 --subjects dipole",
                "--subjects cannot go with --drop",
            ),
            (
                "pingpong --subjects bare-udp-gso",
                "bare-udp-gso is for trains",
            ),
            ("rate --size 2 --subjects bare-shm", "at least 4 bytes"),
            ("rate --size 0", "--size 0"),
        ];
        for (line, expected) in refusals {
            let message = planned(line).expect_err(line).to_string();
            assert!(message.contains(expected), "{line}: {message}");
        }
    }
}
