//! Model checker of the sets of a job: all orders in which the ranks take images, writers end, die or
//! remove what is old, and the job is restarted, up to a number of steps.
//!
//! The decisions are those of the program itself: [`History::choose`] and [`Listing::removable`].

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use crate::history::History;
use crate::image::{Base, Identity};
use crate::ranges::Ranges;
use crate::sets::{Listing, Name, Set};
use crate::store::Store;

const RANKS: u32 = 2;
const KEPT: usize = 2;
const STEPS: usize = 13;
/// Images that can be written at the same time.
const MAX_WRITERS: usize = 3;

#[derive(Clone, Debug)]
enum Stage {
    /// The image is being written.
    Writing,
    /// The image is complete; these ones are removed one by one.
    Pruning(Vec<(u64, Name)>),
}

#[derive(Clone, Debug)]
struct ImageWriter {
    set: u64,
    name: Name,
    stage: Stage,
}

#[derive(Clone, Debug, Default)]
struct Job {
    disk: Listing,
    histories: [History; RANKS as usize],
    writers: Vec<ImageWriter>,
    last: u64,
    /// The newest set that was ever complete, and how many were.
    newest: u64,
    complete: BTreeSet<u64>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// All ranks take an image.
    Take,
    /// A writer completes its image, or removes the next old one.
    Advance(usize),
    /// A writer dies.
    Die(usize),
    /// The job continues from its newest complete set, and its writers die.
    Restart,
}

fn store() -> Store {
    Store::new(PathBuf::from("/job"))
}

/// Length of a complete image.
fn bytes(disk: &Listing, path: &Path) -> Option<u64> {
    let (folder, name) = (path.parent()?.file_name()?, path.file_name()?);
    let set: u64 = folder.to_str()?.strip_prefix("set-")?.parse().ok()?;
    let name = Name::parse(name.to_str()?)?;
    let is_there = disk.0.get(&set)?.contains(&name);
    // A full image follows two others.
    is_there.then_some(if name.base.is_none() { 2 } else { 1 })
}

impl Job {
    fn steps(&self) -> Vec<Step> {
        let mut steps = vec![Step::Restart];
        if self.writers.len() + RANKS as usize <= MAX_WRITERS {
            steps.push(Step::Take);
        }
        let writers = 0..self.writers.len();
        steps.extend(writers.flat_map(|writer| [Step::Advance(writer), Step::Die(writer)]));
        steps
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Take => self.take_images(),
            Step::Advance(writer) => self.advance(writer),
            Step::Die(writer) => {
                self.writers.remove(writer);
            }
            Step::Restart => {
                self.writers.clear();
                self.histories = Default::default();
                self.last = self.disk.0.keys().next_back().copied().unwrap_or(0);
            }
        }
        self.check();
    }

    fn take_images(&mut self) {
        self.last += 1;
        for rank in 0..RANKS {
            let disk = &self.disk;
            let history = &mut self.histories[rank as usize];
            let unwritten = Ranges::default();
            let choice = history.choose(&unwritten, |path| bytes(disk, path));
            let identity = Identity {
                set: self.last,
                rank,
                size: RANKS,
            };
            let base = choice.as_ref().map(|choice| choice.base.set);
            let own = Base {
                set: self.last,
                id: 0,
            };
            history.push(
                (own, store().path(identity, base)),
                choice.as_ref(),
                unwritten,
            );
            let name = Name {
                rank,
                size: RANKS,
                base,
                is_complete: false,
            };
            self.disk.0.entry(self.last).or_default().insert(name);
            self.writers.push(ImageWriter {
                set: self.last,
                name,
                stage: Stage::Writing,
            });
        }
    }

    fn advance(&mut self, number: usize) {
        let ImageWriter { set, name, stage } = &mut self.writers[number];
        let (set, name) = (*set, *name);
        match stage {
            Stage::Writing => {
                // A set that was removed meanwhile stays so.
                let is_there = self
                    .disk
                    .0
                    .get_mut(&set)
                    .is_some_and(|names| names.remove(&name));
                if is_there {
                    let complete = Name {
                        is_complete: true,
                        ..name
                    };
                    self.disk.0.entry(set).or_default().insert(complete);
                    let image = self.disk.image(set, name.rank, RANKS);
                    assert!(
                        image.is_some(),
                        "{set} {name} builds on an image that is missing"
                    );
                }
                let old = self.disk.removable(KEPT).0;
                let old = old.into_iter();
                let old = old.flat_map(|(set, names)| names.into_iter().map(move |it| (set, it)));
                *stage = Stage::Pruning(old.collect());
            }
            Stage::Pruning(old) => match old.pop() {
                Some((set, name)) => {
                    if let Some(names) = self.disk.0.get_mut(&set) {
                        names.remove(&name);
                    }
                }
                None => {
                    self.writers.remove(number);
                }
            },
        }
    }

    fn check(&mut self) {
        let sets = self.disk.sets();
        let complete = sets.iter().filter(|set| set.is_complete());
        let complete: BTreeSet<u64> = complete.map(|set: &Set| set.number).collect();
        self.complete.extend(&complete);
        let newest = complete.last().copied().unwrap_or(0);
        assert!(
            newest >= self.newest,
            "set {} is lost: {self:#?}",
            self.newest
        );
        self.newest = newest;
        for set in self.complete.iter().rev().take(KEPT) {
            assert!(complete.contains(set), "set {set} is lost: {self:#?}");
        }
    }
}

fn explore(job: &Job, left: usize, seen: &mut HashSet<(usize, String)>) {
    if left == 0 || !seen.insert((left, format!("{job:?}"))) {
        return;
    }
    for step in job.steps() {
        let mut next = job.clone();
        next.take(step);
        explore(&next, left - 1, seen);
    }
}

#[test]
fn complete_sets_stay_complete_whatever_dies_and_whatever_is_removed() {
    let mut seen = HashSet::new();
    explore(&Job::default(), STEPS, &mut seen);
    assert!(seen.len() > 1000, "{}", seen.len());
    println!("{} states", seen.len());
}
