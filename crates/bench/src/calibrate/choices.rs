//! Finds the lengths at which messages should change their method on this machine, by trials.
//!
//! Every candidate is measured in single trips, in turns, by new processes that read it from a
//! profile as any program does. The best one by geometric mean is chosen if it beats the built-in
//! values by more than 3 %, so that noise changes nothing.

use std::path::{Path, PathBuf};
use std::time::Duration;

use dipole_model::Choices;
use dipole_model::{Profile, ProfileError};

use super::crossover::{best, crossover};
use super::{measure, sockets};
use crate::calibrate::side::{Metric, Sample};
use crate::control::Part;
use crate::failure::RunError;
use crate::machine::Cores;
use crate::statistics::Spread;
use crate::testbed::Testbed;
use crate::work::{Carrier, name_of};
use dipole_page::byte_size;

const ROUNDS: usize = 3;
const EACH: Duration = Duration::from_millis(15);
/// Candidates for the longest message in one piece; at most the initial credit of an edge.
const EAGER_BYTES: [usize; 6] = [1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 31 << 10];
/// Lengths below and above each candidate.
const EAGER_LENGTHS: [usize; 5] = [1500, 3000, 6000, 12_000, 24_000];
const PIECE_BYTES: [usize; 4] = [8 << 10, 16 << 10, 32 << 10, 64 << 10];
const PIECE_LENGTHS: [usize; 3] = [96 << 10, 256 << 10, 1 << 20];
/// Lengths of messages that are sent whole or offered, which are the candidates, too.
const WHOLE_BYTES: [usize; 7] = [
    2 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
];
const RUN_PACKETS: [usize; 4] = [1, 3, 6, 9];
const RUN_LENGTHS: [usize; 4] = [3000, 6000, 10_000, 14_000];

/// Reason why nothing was chosen.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChoiceError {
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Profile(#[from] ProfileError),
}

/// Trials of candidates on one link.
pub(super) struct Trials<'a> {
    pub(super) carrier: Carrier,
    pub(super) testbed: &'a Testbed,
    pub(super) cores: Cores,
}

impl Trials<'_> {
    /// Finds the choices for this link.
    pub(super) fn find(&self) -> Result<Choices, ChoiceError> {
        let choices = match self.carrier {
            Carrier::Shm => self.in_memory()?,
            Carrier::Udp | Carrier::Bpf => self.in_packets()?,
        };
        let whole_bytes = self.whole_bytes(choices)?;
        Ok(Choices {
            whole_bytes,
            ..choices
        })
    }

    fn in_packets(&self) -> Result<Choices, ChoiceError> {
        let none = Choices::default();
        let runs = RUN_PACKETS.map(|packets| Choices {
            run_packets: Some(packets),
            ..none
        });
        self.best_of(none, &runs, &RUN_LENGTHS)
    }

    fn in_memory(&self) -> Result<Choices, ChoiceError> {
        let none = Choices::default();
        let ends = [EAGER_BYTES[0], EAGER_BYTES[EAGER_BYTES.len() - 1]].map(|bytes| Choices {
            eager_bytes: Some(bytes),
            ..none
        });
        let times = self.times(&ends, &EAGER_LENGTHS)?;
        let built_in = Choices::BUILT_IN_EAGER_BYTES;
        let usual = Choices {
            eager_bytes: crossover(
                &EAGER_LENGTHS,
                (built_in, &EAGER_BYTES),
                &times[1],
                &times[0],
            ),
            socket_bytes: sockets::shortest_write((self.testbed, self.cores))?,
            ..none
        };
        let pieces = PIECE_BYTES.map(|bytes| Choices {
            piece_bytes: Some(bytes),
            ..usual
        });
        self.best_of(usual, &pieces, &PIECE_LENGTHS)
    }

    /// Finds the longest message that an MPI program should send whole, with the other choices made.
    /// `None` if the built-in value is as good.
    fn whole_bytes(&self, others: Choices) -> Result<Option<usize>, ChoiceError> {
        let folder = self.testbed.folder().join("transfers");
        keep(others, self.carrier, &folder)?;
        let mut rounds = [Metric::Whole, Metric::Offered].map(|what| (what, Rounds::default()));
        for _ in 0..ROUNDS {
            let place = (self.testbed, self.cores);
            let part = Part::Transfers(WHOLE_BYTES.to_vec());
            let samples = measure(self.carrier, EACH, part, place, Some(&folder))?;
            for (what, rounds) in &mut rounds {
                rounds.add(samples.iter().filter(|sample| sample.what == *what));
            }
        }
        let [whole, offered] = rounds.map(|(_, rounds)| rounds.medians());
        let built_in = others.whole_bytes(self.carrier == Carrier::Shm);
        Ok(crossover(
            &WHOLE_BYTES,
            (built_in, &WHOLE_BYTES),
            &whole,
            &offered,
        ))
    }

    /// Returns the best of the candidates, or the default.
    fn best_of(
        &self,
        usual: Choices,
        others: &[Choices],
        lengths: &[usize],
    ) -> Result<Choices, ChoiceError> {
        let all: Vec<Choices> = [usual].into_iter().chain(others.iter().copied()).collect();
        Ok(all[best(&self.times(&all, lengths)?)])
    }

    /// Measures single trips with each candidate at each length: medians over rounds.
    fn times(
        &self,
        candidates: &[Choices],
        lengths: &[usize],
    ) -> Result<Vec<Vec<f64>>, ChoiceError> {
        let folders = candidates.iter().enumerate().map(|(index, choices)| {
            let folder = self.testbed.folder().join(format!("candidate-{index}"));
            keep(*choices, self.carrier, &folder).map(|_| folder)
        });
        let folders: Vec<PathBuf> = folders.collect::<Result<_, _>>()?;
        let mut rounds: Vec<Rounds> = candidates.iter().map(|_| Rounds::default()).collect();
        for _ in 0..ROUNDS {
            for (folder, candidate) in folders.iter().zip(&mut rounds) {
                let place = (self.testbed, self.cores);
                let part = Part::Trips(lengths.to_vec());
                let samples = measure(self.carrier, EACH, part, place, Some(folder))?;
                candidate.add(samples.iter().filter(|it| it.what == Metric::Trip));
            }
        }
        Ok(rounds.into_iter().map(Rounds::medians).collect())
    }
}

/// Medians of the rounds of one method, by length.
#[derive(Default)]
struct Rounds(Vec<Vec<f64>>);

impl Rounds {
    /// Adds the samples of a round, one per length.
    fn add<'a>(&mut self, samples: impl Iterator<Item = &'a Sample>) {
        for (at, sample) in samples.enumerate() {
            if self.0.len() <= at {
                self.0.push(Vec::new());
            }
            self.0[at].extend(Spread::of(sample.ns.iter().copied()).map(|ns| ns.median));
        }
    }

    fn medians(self) -> Vec<f64> {
        let median = |all: Vec<f64>| Spread::of(all).map_or(f64::INFINITY, |ns| ns.median);
        self.0.into_iter().map(median).collect()
    }
}

/// Saves choices as the profile of a link, in a folder for the sides.
pub(super) fn keep(
    choices: Choices,
    carrier: Carrier,
    folder: &Path,
) -> Result<PathBuf, ProfileError> {
    let mut profile = Profile::new(&name_of(carrier));
    profile.choices = Some(choices);
    profile.save_to(folder)
}

pub(super) fn description(choices: &Choices) -> String {
    let Choices {
        eager_bytes,
        piece_bytes,
        run_packets,
        whole_bytes,
        socket_bytes,
    } = *choices;
    let words = [
        eager_bytes
            .map(|bytes| format!("messages are sent in one piece up to {}", byte_size(bytes))),
        piece_bytes.map(|bytes| format!("longer ones in pieces of {}", byte_size(bytes))),
        run_packets.map(|most| format!("up to {most} packets share a datagram")),
        whole_bytes.map(|bytes| format!("MPI sends up to {} whole", byte_size(bytes))),
        socket_bytes.map(|bytes| {
            format!(
                "TCP programs write from {} on through memory",
                byte_size(bytes)
            )
        }),
    ];
    let words: Vec<String> = words.into_iter().flatten().collect();
    match words.is_empty() {
        true => "built-in crossovers".to_owned(),
        false => words.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_have_a_description() {
        assert_eq!(description(&Choices::default()), "built-in crossovers");
        let choices = Choices {
            eager_bytes: Some(8 << 10),
            piece_bytes: Some(32 << 10),
            whole_bytes: Some(16 << 10),
            ..Choices::default()
        };
        let text = "messages are sent in one piece up to 8 KiB, longer ones in pieces of 32 KiB, MPI \
                    sends up to 16 KiB whole";
        assert_eq!(description(&choices), text);
    }
}
