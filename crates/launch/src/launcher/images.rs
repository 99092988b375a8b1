//! Messages between the launcher and hosts that keep images in memory, as [`Memory`] decides.

use std::path::PathBuf;
use std::time::Duration;

use dipole_checkpoint::ImageName;
use dipole_node::NodeId;
use serde_json::json;

use super::Launch;
use super::checkpoint::JobCheckpoints;
use super::memory::{Kept, MEMORY, Memory, folder};
use crate::host::State;
use crate::message::{Ending, ToShim};

impl JobCheckpoints {
    /// How images are kept if rank r is on `nodes[r]` and the job has the endpoints after `base`.
    pub(super) fn kept(&self, base: u32, nodes: &[NodeId]) -> Option<Kept> {
        let memory = self.memory.as_ref()?;
        Some(memory.kept(self.id(), base, nodes))
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

    /// Selects the images that ranks on these nodes continue from.
    pub(super) fn select_images(&mut self, nodes: &[NodeId]) {
        let is_restarted = self.is_memory_restarted();
        let places: Vec<u32> = nodes.iter().map(|node| node.0).collect();
        let Some(memory) = self.memory_mut() else {
            return;
        };
        let (copies, wanted) = memory.begin(&places);
        let selected = is_restarted.then(|| memory.select(&places));
        if let (Some((set, last)), Some(checkpoints)) = (selected, &mut self.checkpoints) {
            checkpoints.continue_from(set, last);
            self.announce_restart();
        }
        if copies < wanted {
            self.print_message(format!(
                "too few hosts have ranks: there are {copies} copies of each image instead of \
                 {wanted} (--checkpoint-copies)"
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
        let consequences = memory.consequences();
        if let Some(number) = consequences.secured {
            self.event(json!({"event": "copied", "checkpoint": number}));
        }
        if !consequences.unneeded.is_empty() {
            self.send_to_all(|| ToShim::RemoveImages(consequences.unneeded.clone()));
        }
        if let Some(waits) = consequences.waits {
            self.send_to_all(|| ToShim::HoldCheckpoints(waits));
        }
    }

    /// Refuses the set that the ranks continue from, because one of its images is damaged or does not
    /// fit the host. Returns false if the user selects sets.
    pub(super) fn refuse_set(&mut self) -> bool {
        let set = self.checkpoints.as_ref().and_then(JobCheckpoints::images);
        match (set, self.memory_mut()) {
            (Some(set), Some(memory)) => memory.refuse(set.set),
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
        self.on_loss((&lost, node), status, &what, Duration::ZERO);
    }

    /// Lets the hosts keep their images for a restart.
    pub(super) fn keep_images(&mut self) {
        if let Some(memory) = self.memory_mut() {
            memory.end();
            self.send_to_all(|| ToShim::EndImages { are_kept: true });
        }
    }

    /// Lets the hosts remove their images when all ranks have ended and none will be restarted.
    pub(super) fn end_images(&mut self) {
        let is_over = self.running.is_empty()
            && self.returning.is_empty()
            && self.losses.next_at().is_none()
            && self.contacts.values().any(|it| it.state == State::Ready);
        let Some(memory) = self.memory_mut().filter(|memory| memory.is_open()) else {
            return;
        };
        if is_over {
            memory.end();
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
