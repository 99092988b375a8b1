//! Images in the memory of several hosts: which set a job continues from, which host sends an image
//! to which other one, and which images no host needs any more.
//!
//! Each host reports the images in its folder. A set is *complete* if each of its images, with all
//! that it builds on, is on some host; the job can be restarted from it. It is *secured* if each is
//! on as many hosts as the user wants. Only secured sets allow older images to be removed, so the
//! loss of hosts, up to the number of copies, leaves a complete set.

use std::collections::{BTreeMap, BTreeSet};

use crate::sets::{ImageName, Listing, Set};

/// The images on each host of a job.
#[derive(Clone, Debug, Default)]
pub struct Copies {
    copies: usize,
    hosts: BTreeMap<u32, Listing>,
}

/// An image that a host needs from another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// The host that needs it.
    pub to: u32,
    /// A host that has it.
    pub from: u32,
    /// The image.
    pub image: ImageName,
}

impl Copies {
    /// No images yet. Each image is to have this number of copies on other hosts.
    #[must_use]
    pub fn new(copies: usize) -> Copies {
        Copies {
            copies,
            hosts: BTreeMap::new(),
        }
    }

    /// Replaces the images of a host by those that it has reported.
    pub fn report(&mut self, host: u32, images: &[ImageName]) {
        self.hosts.insert(host, images.iter().copied().collect());
    }

    /// Keeps images on these hosts only. A host that has not reported any has none.
    pub fn set_hosts(&mut self, hosts: &BTreeSet<u32>) {
        self.hosts.retain(|host, _| hosts.contains(host));
        for host in hosts {
            self.hosts.entry(*host).or_default();
        }
    }

    /// The highest number of a set with an image, complete or not; 0 without any.
    #[must_use]
    pub fn highest(&self) -> u64 {
        let sets = self.hosts.values().filter_map(|it| it.0.keys().next_back());
        sets.copied().max().unwrap_or(0)
    }

    /// All images that are on any host.
    fn union(&self) -> Listing {
        let images = self.hosts.values().cloned().flat_map(Listing::into_names);
        images.collect()
    }

    /// The newest complete set that is not among the refused ones.
    #[must_use]
    pub fn newest(&self, refused: &BTreeSet<u64>) -> Option<Set> {
        let sets = self.union().sets().into_iter();
        let mut usable = sets.filter(|set| set.is_complete() && !refused.contains(&set.number));
        usable.next_back()
    }

    /// The images that hosts lack if rank r continues on host `places[r]`. A chain is ordered: an
    /// image follows those that it builds on. Of several hosts that have an image, the one that sends
    /// fewest is selected.
    #[must_use]
    pub fn fetches(&self, set: &Set, places: &[u32]) -> Vec<Fetch> {
        let union = self.union();
        let mut sent: BTreeMap<u32, usize> = BTreeMap::new();
        let mut fetches = Vec::new();
        for (rank, to) in (0..set.size).zip(places) {
            for (set, name) in union
                .chain(set.number, rank, set.size)
                .into_iter()
                .flatten()
            {
                let has = |listing: &Listing| {
                    let images = listing.0.get(&set);
                    images.is_some_and(|images| images.contains(&name))
                };
                if self.hosts.get(to).is_some_and(has) {
                    continue;
                }
                let holders = self.hosts.iter().filter(|(_, listing)| has(listing));
                let holders = holders.map(|(host, _)| *host);
                let least = holders.min_by_key(|host| sent.get(host).copied().unwrap_or(0));
                if let Some(from) = least {
                    *sent.entry(from).or_default() += 1;
                    let image = ImageName { set, name };
                    fetches.push(Fetch {
                        to: *to,
                        from,
                        image,
                    });
                }
            }
        }
        fetches
    }

    /// The secured sets, by number.
    #[must_use]
    pub fn secured(&self) -> Vec<u64> {
        let holders = (self.copies + 1).min(self.hosts.len());
        let is_secured = |set: &Set| {
            (0..set.size).all(|rank| {
                let images = self.hosts.values();
                let images = images.filter_map(|it| it.image(set.number, rank, set.size));
                images.count() >= holders
            })
        };
        let sets = self.union().sets().into_iter();
        let secured = sets.filter(|set| set.is_complete() && is_secured(set));
        secured.map(|set| set.number).collect()
    }

    /// The images that no host needs if the newest `keep` secured sets are kept.
    #[must_use]
    pub fn removable(&self, keep: usize) -> Vec<ImageName> {
        let secured = self.secured();
        let oldest = secured.get(secured.len().saturating_sub(keep));
        let unneeded = oldest.map(|oldest| self.union().unneeded(*oldest));
        unneeded.unwrap_or_default().into_names().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images(names: &[(u64, &str)]) -> Vec<ImageName> {
        let image = |(set, name): &(u64, &str)| {
            let name = (*name).to_owned();
            ImageName::try_from((*set, name)).expect("a name")
        };
        names.iter().map(image).collect()
    }

    /// Three hosts with a rank each. Each host also has copies of the former one's images.
    fn ring() -> Copies {
        let mut copies = Copies::new(1);
        for host in 0..3_u32 {
            let before = (host + 2) % 3;
            let mut names = Vec::new();
            for rank in [host, before] {
                names.push((1, format!("rank-{rank}-of-3.image")));
                names.push((2, format!("rank-{rank}-of-3-after-1.image")));
            }
            names.push((3, format!("rank-{host}-of-3-after-2.image")));
            let names: Vec<(u64, &str)> =
                names.iter().map(|(set, it)| (*set, it.as_str())).collect();
            copies.report(host, &images(&names));
        }
        copies
    }

    fn number(set: Option<Set>) -> Option<u64> {
        set.map(|set| set.number)
    }

    #[test]
    fn after_a_loss_the_newest_set_that_the_others_hold_together_is_selected() {
        let mut copies = ring();
        assert_eq!(number(copies.newest(&BTreeSet::new())), Some(3));
        assert_eq!(number(copies.newest(&[3].into())), Some(2));
        assert_eq!(copies.secured(), [1, 2]);
        assert_eq!(copies.highest(), 3);
        copies.set_hosts(&[0, 2].into());
        assert_eq!(number(copies.newest(&BTreeSet::new())), Some(2));
        copies.set_hosts(&[2].into());
        assert_eq!(number(copies.newest(&BTreeSet::new())), None);
    }

    #[test]
    fn a_rank_gets_its_image_and_all_that_this_builds_on_from_a_host_that_has_them() {
        let mut copies = ring();
        copies.set_hosts(&[0, 2].into());
        copies.report(3, &[]);
        let set = copies.newest(&BTreeSet::new()).expect("a set");
        let fetches = copies.fetches(&set, &[0, 3, 2]);
        let chain = images(&[(1, "rank-1-of-3.image"), (2, "rank-1-of-3-after-1.image")]);
        let expected: Vec<Fetch> = chain
            .into_iter()
            .map(|image| Fetch {
                to: 3,
                from: 2,
                image,
            })
            .collect();
        assert_eq!(fetches, expected);
        assert!(copies.fetches(&set, &[0, 2, 2]).is_empty());
        let all = copies.fetches(&set, &[3, 3, 3]);
        let from = |host| all.iter().filter(|fetch| fetch.from == host).count();
        assert_eq!((from(0), from(2)), (3, 3));
    }

    #[test]
    fn an_image_of_which_only_a_part_of_the_chain_is_left_does_not_count() {
        let mut copies = Copies::new(1);
        copies.report(1, &images(&[(1, "rank-0-of-1.image")]));
        copies.report(2, &images(&[(2, "rank-0-of-1-after-1.image")]));
        assert_eq!(number(copies.newest(&BTreeSet::new())), Some(2));
        assert!(copies.secured().is_empty());
        copies.set_hosts(&[2].into());
        assert_eq!(number(copies.newest(&BTreeSet::new())), None);
    }

    #[test]
    fn only_secured_sets_let_older_images_be_removed_and_never_those_that_newer_ones_build_on() {
        let mut copies = Copies::new(1);
        let full = [(1, "rank-0-of-1.image"), (2, "rank-0-of-1.image")];
        let third = (3, "rank-0-of-1-after-2.image");
        copies.report(1, &images(&[full[0], full[1], third]));
        copies.report(2, &images(&full));
        assert!(copies.removable(2).is_empty());
        assert_eq!(copies.removable(1), images(&[full[0]]));
        copies.report(2, &images(&[full[0], full[1], third]));
        assert_eq!(copies.removable(2), images(&[full[0]]));
        assert_eq!(copies.removable(1), images(&[full[0]]));
        let in_work = (4, "rank-0-of-1-after-1.part");
        copies.report(1, &images(&[full[0], full[1], third, in_work]));
        assert!(copies.removable(2).is_empty());
    }

    #[test]
    fn with_too_few_hosts_all_of_them_hold_each_secured_image() {
        let mut copies = Copies::new(5);
        copies.report(1, &images(&[(1, "rank-0-of-1.image")]));
        assert_eq!(copies.secured(), [1]);
        copies.report(2, &[]);
        assert!(copies.secured().is_empty());
        assert!(copies.removable(2).is_empty());
        let mut silent = Copies::new(1);
        silent.set_hosts(&[1, 2].into());
        silent.report(1, &images(&[(1, "rank-0-of-1.image")]));
        assert!(silent.secured().is_empty(), "host 2 has reported nothing");
        assert!(Copies::new(1).secured().is_empty());
        assert_eq!(number(Copies::new(1).newest(&BTreeSet::new())), None);
    }
}
