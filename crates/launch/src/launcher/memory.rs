//! Checkpoints in the memory of the hosts: each host has the images of its ranks and copies of those
//! of the hosts before it in a ring. [`Copies`] decides what is needed; this reports and sends.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use dipole_checkpoint::{Copies, Fetch, ImageName};
use dipole_naming::key::random_bytes;
use dipole_node::NodeId;
use dipole_node::job::MAX_RANKS;
use serde_json::json;

use super::Launch;
use super::checkpoint::JobCheckpoints;
use crate::RunError;
use crate::host::State;
use crate::message::{Ending, HostImages, Secret, ToShim};

/// A file system in memory on each host.
const MEMORY: &str = "/dev/shm";
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

    fn report(&mut self, node: u32, images: &[ImageName], backlog: u32) {
        self.copies.report(node, images);
        self.highest = self.highest.max(self.copies.highest());
        self.backlogs.insert(node, backlog);
    }
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

impl JobCheckpoints {
    /// How images are kept if rank r is on `nodes[r]` and the job has the endpoints after `base`.
    pub(super) fn kept(&self, base: u32, nodes: &[NodeId]) -> Option<Kept> {
        let memory = self.memory.as_ref()?;
        let ring: BTreeSet<NodeId> = nodes.iter().copied().collect();
        Some(Kept {
            job: self.id(),
            // The ranks have those below it.
            endpoint: base + (MAX_RANKS - 1),
            token: memory.token.clone(),
            bytes_per_second: memory.bytes_per_second,
            copies: memory.wanted as usize,
            ring: ring.into_iter().collect(),
            fetches: memory.fetches.clone(),
        })
    }
}

impl Launch {
    fn memory(&self) -> Option<&Memory> {
        self.checkpoints.as_ref()?.memory.as_ref()
    }

    fn memory_mut(&mut self) -> Option<&mut Memory> {
        self.checkpoints.as_mut()?.memory.as_mut()
    }

    /// True if hosts have images of a former attempt.
    pub(super) fn is_memory_restarted(&self) -> bool {
        self.memory().is_some() && self.attempt.number > 0
    }

    /// The folder whose images a host is to report before it gets ranks.
    pub(super) fn reported_folder(&self, node: NodeId) -> Option<PathBuf> {
        let checkpoints = self.checkpoints.as_ref()?;
        self.is_memory_restarted()
            .then(|| folder(checkpoints.id(), node.0))
    }

    /// Prints where images are.
    pub(super) fn announce_memory(&self, id: u64) {
        let folder = format!("{MEMORY}/dipole-images-{id:016x}-NODE");
        self.print_message(format!(
            "checkpoints stay in the memory of the hosts: {folder}"
        ));
        self.event(json!({"event": "checkpoints", "job": format!("{id:016x}"), "folder": folder}));
    }

    /// Notes the images of a host.
    pub(super) fn note_images(&mut self, index: usize, images: &[ImageName], backlog: u32) {
        let node = self.contacts.get(&index).map(|contact| contact.host.node.0);
        if let (Some(node), Some(memory)) = (node, self.memory_mut()) {
            memory.report(node, images, backlog);
        }
    }

    /// Selects the newest set that the hosts with ranks have together, and who sends which image.
    pub(super) fn select_images(&mut self, nodes: &[NodeId]) {
        let is_restarted = self.is_memory_restarted();
        let places: Vec<u32> = nodes.iter().map(|node| node.0).collect();
        let hosts: BTreeSet<u32> = places.iter().copied().collect();
        let Some(memory) = self.memory_mut() else {
            return;
        };
        memory.copies.retain(&hosts);
        memory.backlogs = hosts.iter().map(|host| (*host, 0)).collect();
        (memory.is_held, memory.are_ended) = (false, false);
        let (wanted, most) = (memory.wanted as usize, hosts.len().saturating_sub(1));
        if is_restarted {
            let set = memory.copies.newest(&memory.refused);
            let fetches = set.as_ref().map(|set| memory.copies.fetches(set, &places));
            memory.fetches = fetches.unwrap_or_default();
            let last = memory.highest + UNKNOWN_SETS;
            if let Some(checkpoints) = &mut self.checkpoints {
                checkpoints.continue_from(set, last);
            }
            self.announce_restart();
        }
        if most < wanted {
            self.print_message(format!(
                "{} hosts have ranks, so there are {most} copies of images instead of {wanted} \
                 (--checkpoint-copies)",
                hosts.len()
            ));
        }
    }

    /// Handles a report of images while ranks run.
    pub(super) fn on_images(&mut self, index: usize, images: &[ImageName], backlog: u32) {
        self.note_images(index, images, backlog);
        // A host that ends may already have removed its images.
        if self.attempt.ends_for_restart.is_some() || self.give_up_at.is_some() {
            return;
        }
        let Some(memory) = self.memory_mut() else {
            return;
        };
        let unneeded = memory.copies.removable(KEPT);
        let newest = memory.copies.secured().pop();
        let secured = newest.filter(|newest| *newest > memory.secured);
        memory.secured = memory.secured.max(newest.unwrap_or(0));
        let waits = memory.backlogs.values().any(|sets| *sets >= MAX_BACKLOG);
        let is_changed = std::mem::replace(&mut memory.is_held, waits) != waits;
        if let Some(number) = secured {
            self.event(json!({"event": "copied", "checkpoint": number}));
        }
        if !unneeded.is_empty() {
            self.send_to_all(|| ToShim::RemoveImages(unneeded.clone()));
        }
        if is_changed {
            self.send_to_all(|| ToShim::HoldCheckpoints(waits));
        }
    }

    /// Refuses the set that the ranks continue from, because one of its images is damaged or does not
    /// fit the host. Returns false if the user selects sets.
    pub(super) fn refuse_set(&mut self) -> bool {
        let set = self.checkpoints.as_ref().and_then(JobCheckpoints::images);
        match (set, self.memory_mut()) {
            (Some(set), Some(memory)) => memory.refused.insert(set.set),
            _ => false,
        }
    }

    /// Handles a host that could not fetch the images of its ranks: an older set may be intact.
    pub(super) fn on_not_fetched(&mut self, index: usize, reason: &str) {
        let set = self.checkpoints.as_ref().and_then(JobCheckpoints::images);
        let number = set.map_or(0, |set| set.set);
        self.refuse_set();
        let lost: Vec<u32> = self.running.keys().copied().collect();
        let contact = self.contacts.get(&index);
        let Some(node) = contact.map(|contact| contact.host.node) else {
            return;
        };
        let what = format!("node {node} cannot fetch images of checkpoint {number} ({reason})");
        let status = Ending::Signal(9).status();
        self.on_loss((&lost, node), status, &what, std::time::Duration::ZERO);
    }

    /// Lets the hosts keep their images for a restart.
    pub(super) fn keep_images(&mut self) {
        if let Some(memory) = self.memory_mut() {
            memory.are_ended = true;
            self.send_to_all(|| ToShim::EndImages { are_kept: true });
        }
    }

    /// Lets the hosts remove their images when all ranks have ended and none will be restarted.
    pub(super) fn end_images(&mut self) {
        let is_over = self.running.is_empty()
            && self.returning.is_empty()
            && self.losses.next_at().is_none()
            && self.contacts.values().any(|it| it.state == State::Ready);
        let Some(memory) = self.memory_mut().filter(|memory| !memory.are_ended) else {
            return;
        };
        if is_over {
            memory.are_ended = true;
            self.send_to_all(|| ToShim::EndImages { are_kept: false });
        }
    }

    /// Names images that are left because the job was to be restarted, but is not.
    pub(super) fn name_left_images(&self) {
        let Some(checkpoints) = &self.checkpoints else {
            return;
        };
        if checkpoints.memory.is_some() {
            self.print_message(format!(
                "images of the job may be left in {MEMORY}/dipole-images-{:016x}-* of its hosts; \
                 remove them",
                checkpoints.id()
            ));
        }
    }
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
}
