//! The measured profiles of a node's links: shared memory, and the one that carries packets.

use std::path::PathBuf;
use std::sync::OnceLock;

use dipole_model::{Choices, PointToPoint, ProfileError};

/// Settings from the profiles, which are read when the node opens, and costs of messages, which are
/// read when they are first needed.
#[derive(Debug)]
pub(crate) struct Profiles {
    directory: Option<PathBuf>,
    memory: LinkProfile,
    packets: LinkProfile,
}

#[derive(Debug)]
struct LinkProfile {
    link: &'static str,
    choices: Choices,
    cost: OnceLock<Option<PointToPoint>>,
}

impl Profiles {
    /// Reads the profiles in a directory, if there is one. `packets` is the link between nodes.
    pub(crate) fn open(directory: Option<PathBuf>, packets: &'static str) -> Profiles {
        let link = |link: &'static str| LinkProfile {
            link,
            choices: directory
                .as_ref()
                .map_or_else(Choices::default, |directory| {
                    or_default(Choices::load(directory, link))
                }),
            cost: OnceLock::new(),
        };
        Profiles {
            memory: link("shm"),
            packets: link(packets),
            directory,
        }
    }

    fn link(&self, is_local: bool) -> &LinkProfile {
        match is_local {
            true => &self.memory,
            false => &self.packets,
        }
    }

    /// The settings for messages within the node, or between nodes.
    pub(crate) fn choices(&self, is_local: bool) -> Choices {
        self.link(is_local).choices
    }

    /// The cost of messages within the node, or between nodes.
    pub(crate) fn cost(&self, is_local: bool) -> Option<&PointToPoint> {
        let link = self.link(is_local);
        let load = || {
            let directory = self.directory.as_ref()?;
            or_default(PointToPoint::load(directory, link.link))
        };
        link.cost.get_or_init(load).as_ref()
    }
}

fn or_default<T: Default>(loaded: Result<T, ProfileError>) -> T {
    loaded.unwrap_or_else(|error| {
        tracing::warn!("{error}; using default settings instead of a measured profile");
        T::default()
    })
}
