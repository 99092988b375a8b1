//! Sets of images: from which of them a job can be restarted, and the images that it does not need any
//! more. The names of the files decide both.
//!
//! An image either is a full one, or builds on the image of the same rank in an older set, and is
//! worth nothing without it. Therefore an image counts only together with all that it builds on.
//!
//! Images are removed while other ranks write theirs. That is safe without any agreement: an image
//! builds on the newest complete one of its rank, which is not older than the newest complete set. So
//! it is enough to keep all that images in kept or newer sets build on, also those in work.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

/// The images of one checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Counted from 1.
    pub number: u64,
    /// Number of ranks of the job.
    pub size: u32,
    /// Ranks whose images are complete, as are those that they build on.
    pub ranks: BTreeSet<u32>,
    /// The sets with images that these build on.
    pub bases: BTreeSet<u64>,
}

impl Set {
    /// True if the job can be restarted from it.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.size > 0 && self.ranks.len() == self.size as usize
    }
}

/// Parts of the name of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// The set with the image that it builds on; `None` for a full one.
    pub(crate) base: Option<u64>,
    pub(crate) is_complete: bool,
}

impl Name {
    pub(crate) fn parse(name: &str) -> Option<Name> {
        let (stem, end) = name.strip_prefix("rank-")?.rsplit_once('.')?;
        let is_complete = match end {
            "image" => true,
            "part" => false,
            _ => return None,
        };
        let (rank, rest) = stem.split_once("-of-")?;
        let (size, base) = match rest.split_once("-after-") {
            Some((size, base)) => (size, Some(base.parse().ok()?)),
            None => (rest, None),
        };
        let (rank, size) = (rank.parse().ok()?, size.parse().ok()?);
        let found = Name {
            rank,
            size,
            base,
            is_complete,
        };
        // A name that differs, such as with a plus, would be another file.
        (rank < size && found.to_string() == name).then_some(found)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "rank-{}-of-{}", self.rank, self.size)?;
        if let Some(base) = self.base {
            write!(to, "-after-{base}")?;
        }
        to.write_str(match self.is_complete {
            true => ".image",
            false => ".part",
        })
    }
}

/// An image in the folder of a job: its set, and the name of its file there.
///
/// A name from another host is checked when it is read: it never leads out of the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "(u64, String)", into = "(u64, String)")]
pub struct ImageName {
    pub(crate) set: u64,
    pub(crate) name: Name,
}

impl ImageName {
    /// The rank whose image it is.
    #[must_use]
    pub fn rank(self) -> u32 {
        self.name.rank
    }

    /// The number of its set.
    #[must_use]
    pub fn set(self) -> u64 {
        self.set
    }

    /// False while it is being written.
    #[must_use]
    pub fn is_complete(self) -> bool {
        self.name.is_complete
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "set-{}/{}", self.set, self.name)
    }
}

impl From<ImageName> for (u64, String) {
    fn from(image: ImageName) -> (u64, String) {
        (image.set, image.name.to_string())
    }
}

impl TryFrom<(u64, String)> for ImageName {
    type Error = &'static str;

    fn try_from((set, name): (u64, String)) -> Result<ImageName, &'static str> {
        let name = Name::parse(&name).ok_or("this is not the name of an image")?;
        Ok(ImageName { set, name })
    }
}

impl Listing {
    pub(crate) fn into_names(self) -> impl Iterator<Item = ImageName> {
        let sets = self.0.into_iter();
        sets.flat_map(|(set, names)| names.into_iter().map(move |name| ImageName { set, name }))
    }
}

impl FromIterator<ImageName> for Listing {
    fn from_iter<T: IntoIterator<Item = ImageName>>(images: T) -> Listing {
        let mut listing = Listing::default();
        for ImageName { set, name } in images {
            listing.0.entry(set).or_default().insert(name);
        }
        listing
    }
}

/// The images in the folder of a job, by set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing(pub(crate) BTreeMap<u64, BTreeSet<Name>>);

impl Listing {
    /// The complete image of a rank in a set, if all that it builds on is there.
    pub(crate) fn image(&self, set: u64, rank: u32, size: u32) -> Option<Name> {
        let mut images = self.images_of(set, rank, size);
        images.find(|name| name.is_complete && self.bases(set, *name).is_some())
    }

    fn images_of(&self, set: u64, rank: u32, size: u32) -> impl Iterator<Item = Name> {
        let images = self.0.get(&set).into_iter().flatten();
        let is_named = move |name: &&Name| (name.rank, name.size) == (rank, size);
        images.filter(is_named).copied()
    }

    /// A complete image with all that it builds on, the full one first; `None` if one is missing.
    pub(crate) fn chain(&self, set: u64, rank: u32, size: u32) -> Option<Vec<(u64, Name)>> {
        let image = self.image(set, rank, size)?;
        let mut chain = self.bases(set, image)?;
        chain.reverse();
        chain.push((set, image));
        Some(chain)
    }

    /// The images that an image builds on; `None` if one is missing.
    fn bases(&self, set: u64, image: Name) -> Option<Vec<(u64, Name)>> {
        let mut found = Vec::new();
        let (mut set, mut image) = (set, image);
        while let Some(base) = image.base {
            if base >= set {
                return None;
            }
            let mut images = self.images_of(base, image.rank, image.size);
            let next = images.find(|name| name.is_complete)?;
            found.push((base, next));
            (set, image) = (base, next);
        }
        Some(found)
    }

    /// All sets with a complete image, by number.
    pub(crate) fn sets(&self) -> Vec<Set> {
        let sets = self.0.iter();
        sets.filter_map(|(number, names)| self.set(*number, names))
            .collect()
    }

    fn set(&self, number: u64, names: &BTreeSet<Name>) -> Option<Set> {
        let complete: Vec<&Name> = names.iter().filter(|name| name.is_complete).collect();
        let size = complete.first()?.size;
        // Images of jobs of different sizes belong to no set.
        let size = match complete.iter().all(|name| name.size == size) {
            true => size,
            false => 0,
        };
        let mut set = Set {
            number,
            size,
            ranks: BTreeSet::new(),
            bases: BTreeSet::new(),
        };
        for name in complete {
            if let Some(bases) = self.bases(number, *name) {
                set.ranks.insert(name.rank);
                set.bases.extend(bases.iter().map(|(base, _)| *base));
            }
        }
        Some(set)
    }

    /// The images that a job does not need if it keeps its newest `keep` complete sets.
    pub(crate) fn removable(&self, keep: usize) -> Listing {
        let sets = self.sets();
        let complete = sets.iter().rev().filter(|set| set.is_complete());
        let oldest = complete.take(keep).last().map(|set| set.number);
        oldest.map_or(Listing::default(), |oldest| self.unneeded(oldest))
    }

    /// The images that the set `oldest` and newer ones do not need.
    pub(crate) fn unneeded(&self, oldest: u64) -> Listing {
        let mut needed = BTreeSet::new();
        for (set, names) in self.0.range(oldest..) {
            for name in names {
                self.note_bases(*set, *name, &mut needed);
            }
        }
        let old = self.0.range(..oldest);
        let unneeded = old.map(|(set, names)| {
            let is_unneeded = |name: &&Name| !needed.contains(&(*set, **name));
            (*set, names.iter().filter(is_unneeded).copied().collect())
        });
        Listing(unneeded.collect())
    }

    /// Adds all images that an image may build on.
    fn note_bases(&self, set: u64, image: Name, needed: &mut BTreeSet<(u64, Name)>) {
        let Some(base) = image.base.filter(|base| *base < set) else {
            return;
        };
        for name in self.images_of(base, image.rank, image.size) {
            if needed.insert((base, name)) {
                self.note_bases(base, name, needed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(sets: &[(u64, &[&str])]) -> Listing {
        let names = |names: &[&str]| names.iter().filter_map(|name| Name::parse(name)).collect();
        Listing(sets.iter().map(|(set, them)| (*set, names(them))).collect())
    }

    fn complete(listing: &Listing) -> Vec<u64> {
        let sets = listing.sets().into_iter();
        sets.filter(Set::is_complete)
            .map(|set| set.number)
            .collect()
    }

    #[test]
    fn names_are_parsed_exactly() {
        for name in [
            "rank-0-of-1.image",
            "rank-3-of-8-after-12.image",
            "rank-3-of-8-after-12.part",
        ] {
            let parsed = Name::parse(name).expect("a name");
            assert_eq!(parsed.to_string(), name);
        }
        for wrong in [
            "rank-1-of-1.image",
            "rank-x-of-1.image",
            "rank-0-of-1.imag",
            "rank-+0-of-1.image",
            "rank-0-of-2-after-.image",
            "rank-0-of-2-after-1-after-0.image",
            "x",
        ] {
            assert_eq!(Name::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn names_that_do_not_belong_to_one_job_form_no_complete_set() {
        let is_complete = |names: &[&str]| !complete(&listing(&[(1, names)])).is_empty();
        assert!(is_complete(&["rank-0-of-1.image"]));
        assert!(is_complete(&[
            "rank-0-of-2.image",
            "rank-1-of-2.image",
            "rank-1-of-2.part"
        ]));
        for names in [
            &["rank-0-of-2.image", "rank-1-of-3.image"][..],
            &["rank-0-of-2.image", "rank-1-of-2.part"],
            &["rank-0-of-1-after-1.image"],
            &["rank-0-of-1-after-2.image"],
            &[],
        ] {
            assert!(!is_complete(names), "{names:?}");
        }
    }

    #[test]
    fn a_set_is_worth_nothing_without_the_images_that_it_builds_on() {
        let full = ["rank-0-of-2.image", "rank-1-of-2.image"];
        let mixed = ["rank-0-of-2-after-1.image", "rank-1-of-2.image"];
        let later = ["rank-0-of-2-after-2.image", "rank-1-of-2-after-2.image"];
        let whole = listing(&[(1, &full), (2, &mixed), (3, &later)]);
        assert_eq!(complete(&whole), [1, 2, 3]);
        let sets = whole.sets();
        assert_eq!(sets[2].bases, [1, 2].into());
        assert!(sets[0].bases.is_empty());
        let without = listing(&[(1, &full[1..]), (2, &mixed), (3, &later)]);
        assert!(complete(&without).is_empty());
        assert_eq!(without.sets()[2].ranks, [1].into());
        assert_eq!(without.image(3, 0, 2), None);
        assert!(without.image(3, 1, 2).is_some());
    }

    #[test]
    fn the_images_that_kept_ones_build_on_are_kept() {
        let listing = listing(&[
            (1, &["rank-0-of-2.image", "rank-1-of-2.image"]),
            (2, &["rank-0-of-2-after-1.image", "rank-1-of-2.image"]),
            (
                3,
                &["rank-0-of-2-after-1.image", "rank-1-of-2-after-2.image"],
            ),
            (4, &["rank-0-of-2.part", "rank-1-of-2-after-3.image"]),
        ]);
        let removed = listing.removable(1);
        let text = |set: u64| {
            removed.0[&set]
                .iter()
                .map(Name::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(text(1), ["rank-1-of-2.image"]);
        assert_eq!(text(2), ["rank-0-of-2-after-1.image"]);
        assert!(!removed.0.contains_key(&3));
        assert!(listing.removable(9).0.values().all(BTreeSet::is_empty));
    }

    #[test]
    fn a_name_that_leads_elsewhere_is_refused() {
        for name in ["../../job.json", "rank-0-of-2.image/../x", "", "hold"] {
            assert!(ImageName::try_from((1, name.to_owned())).is_err(), "{name}");
        }
        let name = (7, "rank-1-of-2-after-3.image".to_owned());
        let image = ImageName::try_from(name.clone()).expect("a name");
        assert_eq!(<(u64, String)>::from(image), name);
        assert_eq!(image.to_string(), "set-7/rank-1-of-2-after-3.image");
    }
}
