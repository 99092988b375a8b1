//! The images that a process has taken, as far as further ones can build on them.

use std::path::{Path, PathBuf};

use crate::image::Base;
use crate::ranges::Ranges;

/// Images that build on each other, at most: all of them are read for a restart.
const MAX_INCREMENTS: usize = 16;
/// Images that may be in work. If there are more, the next one is a full one.
const MAX_UNFINISHED: usize = 8;

/// An image that this process has taken, and that may be complete or not.
#[derive(Clone, Debug)]
struct Known {
    base: Base,
    path: PathBuf,
    /// The images that it builds on, the full one first.
    before: Vec<PathBuf>,
    /// Memory that was not written between the former image and this one.
    unwritten: Ranges,
}

/// The images of a process, the oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    images: Vec<Known>,
}

/// The image that a new one builds on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) base: Base,
    pub(crate) path: PathBuf,
    before: Vec<PathBuf>,
    /// Memory with the same content as in the base.
    pub(crate) unwritten: Ranges,
}

impl History {
    /// Selects the image that the next one builds on: the newest one that is complete. `unwritten`
    /// is the memory that was not written since the last image, and `bytes` returns the length of
    /// a complete one. Returns `None` if a full image is better, or the only possibility.
    pub(crate) fn choose(
        &mut self,
        unwritten: &Ranges,
        bytes: impl Fn(&Path) -> Option<u64>,
    ) -> Option<Choice> {
        let is_complete = |known: &Known| {
            let mut parts = known.before.iter().chain([&known.path]);
            parts.all(|path| bytes(path).is_some())
        };
        let newest = self.images.iter().rposition(is_complete)?;
        // An older one is not needed again.
        self.images.drain(..newest);
        let known = self.images.first()?;
        let mut all = known.before.iter().chain([&known.path]);
        let full = bytes(all.next()?)?;
        let increments: u64 = all.filter_map(|path| bytes(path)).sum();
        if known.before.len() >= MAX_INCREMENTS || increments >= full {
            return None;
        }
        let later = self.images.iter().skip(1);
        let unwritten = later.fold(unwritten.clone(), |all, known| {
            all.intersect(&known.unwritten)
        });
        Some(Choice {
            base: known.base,
            path: known.path.clone(),
            before: known.before.iter().chain([&known.path]).cloned().collect(),
            unwritten,
        })
    }

    /// Notes an image that is being taken.
    pub(crate) fn push(
        &mut self,
        (base, path): (Base, PathBuf),
        choice: Option<&Choice>,
        unwritten: Ranges,
    ) {
        if self.images.len() > MAX_UNFINISHED {
            self.images.clear();
        }
        self.images.push(Known {
            base,
            path,
            before: choice.map_or(Vec::new(), |choice| choice.before.clone()),
            unwritten,
        });
    }

    /// Forgets all images: what was written since they were taken is not known.
    pub(crate) fn clear(&mut self) {
        self.images.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Images on the disk with their lengths.
    #[derive(Default)]
    struct Disk(BTreeMap<PathBuf, u64>);

    impl Disk {
        fn choose(&self, history: &mut History, unwritten: &Ranges) -> Option<Choice> {
            history.choose(unwritten, |path| self.0.get(path).copied())
        }
    }

    fn image(set: u64) -> (Base, PathBuf) {
        (Base { set, id: 100 + set }, format!("{set}").into())
    }

    fn ranges(list: &[(u64, u64)]) -> Ranges {
        list.iter().copied().collect()
    }

    #[test]
    fn an_image_builds_on_the_newest_complete_one_and_holds_all_changes_since() {
        let (mut history, mut disk) = (History::default(), Disk::default());
        let all = ranges(&[(0, 100)]);
        assert_eq!(disk.choose(&mut history, &all), None);
        history.push(image(1), None, Ranges::default());
        assert_eq!(disk.choose(&mut history, &all), None, "it is not complete");
        history.push(image(2), None, ranges(&[(0, 50)]));
        disk.0.insert("1".into(), 1000);
        let choice = disk
            .choose(&mut history, &ranges(&[(10, 100)]))
            .expect("a base");
        assert_eq!((choice.base.set, choice.base.id), (1, 101));
        assert_eq!(choice.unwritten, ranges(&[(10, 50)]));
        history.push(image(3), Some(&choice), ranges(&[(10, 100)]));
        disk.0.insert("3".into(), 10);
        let choice = disk.choose(&mut history, &all).expect("a base");
        assert_eq!(
            (choice.base.set, choice.unwritten.clone()),
            (3, all.clone())
        );
        assert_eq!(choice.before, [PathBuf::from("1"), PathBuf::from("3")]);
        history.push(image(4), Some(&choice), all.clone());
        disk.0.insert("4".into(), 10);
        for missing in ["3", "1"] {
            disk.0.remove(Path::new(missing));
            let found = disk.choose(&mut history.clone(), &all);
            let rest = found.map(|choice| choice.base.set);
            assert_eq!(rest, None, "{missing} is missing");
        }
    }

    #[test]
    fn a_full_image_follows_many_or_large_increments() {
        let all = ranges(&[(0, 100)]);
        let chain = |bytes: u64| {
            let (mut history, mut disk) = (History::default(), Disk::default());
            history.push(image(1), None, Ranges::default());
            disk.0.insert("1".into(), 1000);
            let mut set = 1;
            while let Some(choice) = disk.choose(&mut history, &all) {
                set += 1;
                history.push(image(set), Some(&choice), all.clone());
                disk.0.insert(format!("{set}").into(), bytes);
            }
            set - 1
        };
        assert_eq!(chain(10), MAX_INCREMENTS as u64);
        assert_eq!(chain(300), 4);
        assert_eq!(chain(2000), 1);
    }

    #[test]
    fn images_that_are_never_complete_are_forgotten() {
        let (mut history, disk) = (History::default(), Disk::default());
        for set in 1..100 {
            history.push(image(set), None, Ranges::default());
            assert!(history.images.len() <= MAX_UNFINISHED + 1);
            assert_eq!(disk.choose(&mut history, &Ranges::default()), None);
        }
    }
}
