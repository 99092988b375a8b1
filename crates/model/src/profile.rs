//! The profile of a kind of link: everything that calibration has measured.
//!
//! Profiles are in the folder of [`profile_dir`]. Saving
//! one measurement keeps the others, including fields that this version does not know.

use std::path::{Path, PathBuf};

use dipole_naming::environment::profile_dir;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::choices::Choices;
use crate::file::{self, ProfileError, VERSION};
use crate::interval::MedianInterval;
use crate::point_to_point::PointToPoint;
use crate::slots::Slots;
use crate::superstep::Cost;

/// The profile of one kind of link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    version: u32,
    /// The kind of link: `shm`, `udp`, `bpf` or `tcp`.
    pub link: String,
    /// Message lengths from which another method is faster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choices: Option<Choices>,
    /// Pacing of supersteps, if it was calibrated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pacing: Option<Pacing>,
    /// Costs of supersteps, by number of ranks and nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cost: Vec<Cost>,
    /// Costs of single messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point_to_point: Option<PointToPoint>,
    /// Costs of copying, by level of the memory hierarchy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<CopyCost>,
    /// Fields that this version does not know.
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// Results of `dipole calibrate pacing`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pacing {
    /// The slots; `None` if pacing gains nothing.
    pub slots: Option<Slots>,
    /// Number of processes, each on its own node.
    pub processes: u32,
    /// Mean time per byte of an h-relation with these slots.
    pub g_ns_per_byte: f64,
    /// Standard deviation of `g_ns_per_byte`.
    pub g_sd: f64,
    /// Mean time per byte without pacing.
    pub unpaced_g_ns_per_byte: f64,
    /// Standard deviation of `unpaced_g_ns_per_byte`.
    pub unpaced_g_sd: f64,
}

/// Cost of `memcpy` within one level of the memory hierarchy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CopyCost {
    /// `L1`, `L2` and so on, or `memory`.
    pub level: String,
    /// Length of each copy. Source and target both fit in this level.
    pub bytes: usize,
    /// Additional time per byte.
    pub ns_per_byte: MedianInterval,
}

impl Profile {
    /// Creates a profile without measurements.
    #[must_use]
    pub fn new(link: &str) -> Profile {
        Profile {
            version: VERSION,
            link: link.to_owned(),
            choices: None,
            pacing: None,
            cost: Vec::new(),
            point_to_point: None,
            copies: Vec::new(),
            rest: Map::new(),
        }
    }

    /// Adds the cost of supersteps, replacing a previous one with the same ranks and nodes.
    pub fn set_cost(&mut self, cost: Cost) {
        let is_other = |known: &Cost| (known.p, known.nodes) != (cost.p, cost.nodes);
        self.cost.retain(is_other);
        self.cost.push(cost);
        self.cost.sort_by_key(|cost| (cost.p, cost.nodes));
    }

    /// Loads this user's profile of a link. `None` if it was never calibrated.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn load(link: &str) -> Result<Option<Profile>, ProfileError> {
        match profile_dir() {
            Some(directory) => Profile::load_from(&directory, link),
            None => Ok(None),
        }
    }

    /// Loads a profile from a folder.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn load_from(directory: &Path, link: &str) -> Result<Option<Profile>, ProfileError> {
        file::read(directory, link)
    }

    /// Saves the profile for this user and returns its path.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn save(&self) -> Result<PathBuf, ProfileError> {
        let directory = profile_dir().ok_or(ProfileError::NoDirectory)?;
        self.save_to(&directory)
    }

    /// Saves the profile to a folder, which is created if necessary, and returns its path. The file
    /// is replaced atomically.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn save_to(&self, directory: &Path) -> Result<PathBuf, ProfileError> {
        file::write(directory, &self.link, self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::Medium;

    fn paced() -> Profile {
        Profile {
            pacing: Some(Pacing {
                slots: Some(Slots {
                    bytes: 65_536,
                    epsilon_ns: 580_000,
                    medium: Medium::Switch,
                }),
                processes: 8,
                g_ns_per_byte: 8.9,
                g_sd: 0.1,
                unpaced_g_ns_per_byte: 9.5,
                unpaced_g_sd: 0.7,
            }),
            ..Profile::new("udp")
        }
    }

    #[test]
    fn each_link_has_its_own_profile() {
        let directory = tempfile::tempdir().expect("a directory");
        let within = directory.path().join("a/b");
        assert_eq!(Profile::load_from(&within, "udp").expect("nothing"), None);
        let file = paced().save_to(&within).expect("it can be written");
        assert_eq!(file, within.join("udp.json"));
        let found = Profile::load_from(&within, "udp").expect("as written");
        assert_eq!(found, Some(paced()));
        assert_eq!(Profile::load_from(&within, "bpf").expect("nothing"), None);
        assert_eq!(std::fs::read_dir(&within).expect("it exists").count(), 1);
    }

    #[test]
    fn unknown_fields_are_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        let text = r#"{"version": 1, "link": "udp", "hops": [{"p": 2, "l_ns": 9000.0}]}"#;
        std::fs::write(directory.path().join("udp.json"), text).expect("it can be written");
        let mut profile = Profile::load_from(directory.path(), "udp")
            .expect("a profile")
            .expect("it is there");
        profile.pacing = paced().pacing;
        profile
            .save_to(directory.path())
            .expect("it can be written");
        let text = std::fs::read_to_string(directory.path().join("udp.json")).expect("a file");
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["hops"][0]["l_ns"], 9000.0);
        assert_eq!(value["pacing"]["slots"]["medium"], "switch");
    }

    #[test]
    fn a_new_cost_replaces_the_one_with_the_same_ranks_and_nodes() {
        let cost = |p, nodes, l_ns| Cost {
            p,
            nodes,
            s_mflops: 1000.0,
            l_ns,
            l_ci_ns: 1.0,
            g_ns_per_byte: 1.0,
            g_sd: 0.1,
            contention: None,
        };
        let mut profile = paced();
        for one in [
            cost(4, 4, 1.0),
            cost(2, 2, 2.0),
            cost(4, 1, 3.0),
            cost(4, 4, 4.0),
        ] {
            profile.set_cost(one);
        }
        let kept: Vec<f64> = profile.cost.iter().map(|cost| cost.l_ns).collect();
        assert_eq!(kept, [2.0, 3.0, 4.0]);
        let directory = tempfile::tempdir().expect("a directory");
        profile
            .save_to(directory.path())
            .expect("it can be written");
        let found = Profile::load_from(directory.path(), "udp").expect("as written");
        assert_eq!(found, Some(profile));
    }
}
