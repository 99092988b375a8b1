//! Checkpoints in the memory of the hosts: each host has the images of its ranks and copies of those
//! of the hosts before it in a ring. [`Copies`] decides which images are needed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use dipole_checkpoint::{Copies, Fetch, ImageName, Set};
use dipole_naming::key::random_bytes;
use dipole_node::NodeId;
use dipole_node::job::MAX_RANKS;

use crate::RunError;
use crate::message::{HostImages, Secret};

/// A file system in memory on each host.
pub(super) const MEMORY: &str = "/dev/shm";
/// Secured sets that are kept. The older one serves if the newer one turns out to be damaged.
const KEPT: usize = 2;
/// Sets that may wait to be copied before further checkpoints wait.
const MAX_BACKLOG: u32 = 2;
/// A lost rank may have begun a few checkpoints more than the others. Their numbers are not used
/// again: its host may come back with such images.
const UNKNOWN_SETS: u64 = 16;

/// The folder of a job on a node.
pub(super) fn folder(job: u64, node: u32) -> PathBuf {
    PathBuf::from(MEMORY).join(format!("dipole-images-{job:016x}-{node}"))
}

/// The images of a job in the memory of its hosts.
#[derive(Debug)]
pub(crate) struct Memory {
    wanted: u32,
    bytes_per_second: u64,
    token: String,
    copies: Copies,
    /// Sets of which an image could not be fetched.
    refused: BTreeSet<u64>,
    /// Images that hosts need for the present attempt.
    fetches: Vec<Fetch>,
    /// The highest number of a set that any host has reported.
    highest: u64,
    /// The newest secured set that was reported.
    secured: u64,
    /// Sets to be copied, by node.
    backlogs: BTreeMap<u32, u32>,
    is_held: bool,
    are_ended: bool,
}

impl Memory {
    pub(super) fn new(copies: u32, mib_per_second: u32) -> Result<Memory, RunError> {
        let doing = "drawing a random number";
        let random: [u8; 16] = random_bytes().map_err(|cause| RunError::System { doing, cause })?;
        Ok(Memory {
            wanted: copies,
            bytes_per_second: u64::from(mib_per_second) << 20,
            token: format!("{:032x}", u128::from_le_bytes(random)),
            copies: Copies::new(copies as usize),
            refused: BTreeSet::new(),
            fetches: Vec::new(),
            highest: 0,
            secured: 0,
            backlogs: BTreeMap::new(),
            is_held: false,
            are_ended: false,
        })
    }

    /// True if a node has reported its images.
    pub(super) fn has_images(&self, node: NodeId) -> bool {
        self.backlogs.contains_key(&node.0)
    }

    /// Notes the images of a host, and the number of sets that it has to copy.
    pub(super) fn report(&mut self, node: u32, images: &[ImageName], backlog: u32) {
        self.copies.report(node, images);
        self.highest = self.highest.max(self.copies.highest());
        self.backlogs.insert(node, backlog);
    }

    /// The ranks of an attempt run on these nodes. Returns the number of copies of each image, and the
    /// number that is wanted.
    pub(super) fn begin(&mut self, places: &[u32]) -> (usize, usize) {
        let hosts: BTreeSet<u32> = places.iter().copied().collect();
        self.copies.set_hosts(&hosts);
        self.backlogs = hosts.iter().map(|host| (*host, 0)).collect();
        (self.is_held, self.are_ended) = (false, false);
        let wanted = self.wanted as usize;
        (wanted.min(hosts.len().saturating_sub(1)), wanted)
    }

    /// Selects the newest set that the hosts have together if rank r continues on `places[r]`, and who
    /// sends which image. Returns it with a number that no image exceeds.
    pub(super) fn select(&mut self, places: &[u32]) -> (Option<Set>, u64) {
        let set = self.copies.newest(&self.refused);
        let fetches = set.as_ref().map(|set| self.copies.fetches(set, places));
        self.fetches = fetches.unwrap_or_default();
        (set, self.highest + UNKNOWN_SETS)
    }

    /// Does not select this set again. Returns false if it was refused before.
    pub(super) fn refuse(&mut self, set: u64) -> bool {
        self.refused.insert(set)
    }

    /// The consequences of the last report.
    pub(super) fn consequences(&mut self) -> Consequences {
        let newest = self.copies.secured().pop().unwrap_or(0);
        let former = self.secured;
        self.secured = newest.max(former);
        let waits = self.backlogs.values().any(|sets| *sets >= MAX_BACKLOG);
        let is_changed = std::mem::replace(&mut self.is_held, waits) != waits;
        Consequences {
            unneeded: self.copies.removable(KEPT),
            secured: (newest > former).then_some(newest),
            waits: is_changed.then_some(waits),
        }
    }

    /// True if the hosts have not yet been sent what becomes of their images.
    pub(super) fn is_open(&self) -> bool {
        !self.are_ended
    }

    /// Notes that the hosts have been sent it.
    pub(super) fn end(&mut self) {
        self.are_ended = true;
    }

    /// How images are kept if rank r is on `nodes[r]` and the job has the endpoints after `base`.
    pub(super) fn kept(&self, job: u64, base: u32, nodes: &[NodeId]) -> Kept {
        let ring: BTreeSet<NodeId> = nodes.iter().copied().collect();
        Kept {
            job,
            // The ranks have those below it.
            endpoint: base + (MAX_RANKS - 1),
            token: self.token.clone(),
            bytes_per_second: self.bytes_per_second,
            copies: self.wanted as usize,
            ring: ring.into_iter().collect(),
            fetches: self.fetches.clone(),
        }
    }
}

/// Consequences of the images on all hosts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Consequences {
    /// Images that no host needs.
    pub(super) unneeded: Vec<ImageName>,
    /// A newer set than before has all its copies.
    pub(super) secured: Option<u64>,
    /// Checkpoints at intervals wait from now on, or no longer.
    pub(super) waits: Option<bool>,
}

/// How images are kept in the present attempt.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    job: u64,
    endpoint: u32,
    token: String,
    bytes_per_second: u64,
    copies: usize,
    /// The nodes with ranks.
    ring: Vec<NodeId>,
    fetches: Vec<Fetch>,
}

impl Kept {
    /// The folder of a host, the images that it fetches, and the hosts that get its images.
    pub(super) fn on_host(&self, node: NodeId, ranks: &[u32]) -> HostImages {
        let fetches = self.fetches.iter().filter(|fetch| fetch.to == node.0);
        HostImages {
            folder: folder(self.job, node.0),
            endpoint: self.endpoint,
            token: Secret(self.token.clone()),
            ranks: ranks.to_vec(),
            peers: next_in_ring(&self.ring, node, self.copies),
            fetches: fetches.map(|fetch| (fetch.from, fetch.image)).collect(),
            bytes_per_second: self.bytes_per_second,
        }
    }
}

/// The nodes after one in a ring.
fn next_in_ring(ring: &[NodeId], node: NodeId, count: usize) -> Vec<u32> {
    let at = ring.iter().position(|other| *other == node).unwrap_or(0);
    let next = ring.iter().cycle().skip(at + 1);
    let next = next.take(count.min(ring.len().saturating_sub(1)));
    next.map(|node| node.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_go_to_the_next_nodes_of_the_ring_and_never_to_the_node_itself() {
        let ring = [2, 5, 9].map(NodeId);
        assert_eq!(next_in_ring(&ring, NodeId(2), 1), [5]);
        assert_eq!(next_in_ring(&ring, NodeId(9), 1), [2]);
        assert_eq!(next_in_ring(&ring, NodeId(5), 2), [9, 2]);
        assert_eq!(next_in_ring(&ring, NodeId(5), 7), [9, 2]);
        assert!(next_in_ring(&ring[..1], NodeId(2), 3).is_empty());
    }

    #[test]
    fn each_job_and_node_has_a_folder_of_its_own() {
        let path = folder(0xff, 3);
        assert_eq!(
            path.to_str(),
            Some("/dev/shm/dipole-images-00000000000000ff-3")
        );
        assert_ne!(folder(1, 11), folder(0x11, 1));
    }

    fn images(sets: &[u64]) -> Vec<ImageName> {
        let names = sets
            .iter()
            .map(|set| (*set, "rank-0-of-1.image".to_owned()));
        names
            .map(|name| ImageName::try_from(name).expect("a name"))
            .collect()
    }

    #[test]
    fn each_report_has_its_consequences_once() {
        let mut memory = Memory::new(1, 1).expect("random bytes");
        assert_eq!(memory.begin(&[1]), (0, 1));
        assert_eq!(memory.begin(&[1, 2]), (1, 1));
        memory.report(1, &images(&[1, 2]), 2);
        let first = memory.consequences();
        assert_eq!((first.secured, first.waits), (None, Some(true)));
        memory.report(2, &images(&[1, 2, 3]), 0);
        memory.report(1, &images(&[1, 2, 3]), 0);
        let second = memory.consequences();
        assert_eq!((second.secured, second.waits), (Some(3), Some(false)));
        assert_eq!(second.unneeded, images(&[1]));
        memory.report(1, &images(&[2, 3]), 0);
        memory.report(2, &images(&[2, 3]), 0);
        let none = Consequences {
            unneeded: Vec::new(),
            secured: None,
            waits: None,
        };
        assert_eq!(memory.consequences(), none);
    }

    #[test]
    fn numbers_of_sets_that_a_lost_host_may_have_are_not_used_again() {
        let mut memory = Memory::new(1, 1).expect("random bytes");
        memory.report(1, &images(&[4]), 0);
        memory.report(2, &images(&[4, 7]), 0);
        memory.begin(&[1]);
        let (set, last) = memory.select(&[1]);
        assert_eq!(set.map(|set| set.number), Some(4));
        assert_eq!(last, 7 + UNKNOWN_SETS);
        assert!(memory.refuse(4));
        assert!(!memory.refuse(4));
        assert_eq!(memory.select(&[1]).0, None);
    }
}
