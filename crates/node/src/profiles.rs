//! The measured profiles of a node's links: shared memory, and the one that carries packets.

use std::path::Path;

use dipole_model::Choices;

/// Settings from the profiles, which are read when the node opens.
#[derive(Debug)]
pub(crate) struct Profiles {
    memory: Choices,
    packets: Choices,
}

impl Profiles {
    /// Reads the profiles in a directory, if there is one. `packets` is the link between nodes.
    pub(crate) fn open(directory: Option<&Path>, packets: &'static str) -> Profiles {
        let link = |link: &'static str| {
            directory.map_or_else(Choices::default, |directory| load(directory, link))
        };
        Profiles {
            memory: link("shm"),
            packets: link(packets),
        }
    }

    /// The settings for messages within the node, or between nodes.
    pub(crate) fn choices(&self, is_local: bool) -> Choices {
        match is_local {
            true => self.memory,
            false => self.packets,
        }
    }
}

fn load(directory: &Path, link: &str) -> Choices {
    Choices::load(directory, link).unwrap_or_else(|error| {
        tracing::warn!("{error}; using default settings instead of a measured profile");
        Choices::default()
    })
}
