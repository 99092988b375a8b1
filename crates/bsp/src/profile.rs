//! What has been measured of a link, kept from run to run.
//!
//! One file for each kind of link, JSON, in the directory of [`dipole_node::profile_dir`]. What one
//! measurement does not know it leaves as it finds it: the file also has room for others.

use std::path::{Path, PathBuf};

use dipole_node::Choices;
pub use dipole_node::profile::ProfileError;
use dipole_node::profile::{self, VERSION};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use crate::model::Cost;
use crate::model::{Measured, PointToPoint};
use crate::superstep::pace::Slots;

/// The profile of one kind of link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    version: u32,
    /// What carries messages between nodes: `udp`, `bpf`, `tcp`.
    pub link: String,
    /// What a node chooses by measurement, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choices: Option<Choices>,
    /// How to pace supersteps, if that has been measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pacing: Option<Pacing>,
    /// What supersteps cost, as far as that has been measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cost: Vec<Cost>,
    /// What single messages cost, if that has been measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point_to_point: Option<PointToPoint>,
    /// What copying costs on this machine, by the level of the memory hierarchy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<Copying>,
    /// Other measurements.
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// What `dipole calibrate --pacing` found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pacing {
    /// The slots; `None` if pacing gained nothing.
    pub slots: Option<Slots>,
    /// How many processes, each on a node of its own, took part.
    pub processes: u32,
    /// Time per byte of an h-relation at that pace, mean and standard deviation.
    pub g_ns_per_byte: f64,
    /// See there.
    pub g_sd: f64,
    /// The same without pacing.
    pub unpaced_g_ns_per_byte: f64,
    /// See there.
    pub unpaced_g_sd: f64,
}

/// What `dipole calibrate` found of `memcpy` within one level of the memory hierarchy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Copying {
    /// `L1`, `L2` and so on, or `memory`.
    pub level: String,
    /// How much was copied at once; source and target both lie in that level.
    pub bytes: usize,
    /// Time per byte.
    pub ns_per_byte: Measured,
}

impl Profile {
    /// One that knows nothing yet.
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

    /// Keeps what supersteps cost, in place of what was measured with as many ranks and nodes.
    pub fn set_cost(&mut self, cost: Cost) {
        let is_other = |known: &Cost| (known.p, known.nodes) != (cost.p, cost.nodes);
        self.cost.retain(is_other);
        self.cost.push(cost);
        self.cost.sort_by_key(|cost| (cost.p, cost.nodes));
    }

    /// This user's profile of a kind of link, `None` if nothing has been measured.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn load(link: &str) -> Result<Option<Profile>, ProfileError> {
        match dipole_node::profile_dir() {
            Some(directory) => Profile::load_from(&directory, link),
            None => Ok(None),
        }
    }

    /// The same from a directory.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn load_from(directory: &Path, link: &str) -> Result<Option<Profile>, ProfileError> {
        profile::read(directory, link)
    }

    /// Saves it for this user, and says where.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn save(&self) -> Result<PathBuf, ProfileError> {
        let directory = dipole_node::profile_dir().ok_or(ProfileError::NoDirectory)?;
        self.save_to(&directory)
    }

    /// The same to a directory, which is made if it is missing. Who reads meanwhile finds the old
    /// file or the new one.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn save_to(&self, directory: &Path) -> Result<PathBuf, ProfileError> {
        profile::write(directory, &self.link, self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superstep::pace::Medium;

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
    fn a_profile_is_found_again_and_other_links_have_their_own() {
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
    fn what_others_have_measured_stays() {
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
    fn a_newer_cost_replaces_that_of_as_many_ranks_and_nodes() {
        let cost = |p, nodes, l_ns| Cost {
            p,
            nodes,
            s_mflops: 1000.0,
            l_ns,
            l_ci_ns: 1.0,
            g_ns_per_byte: 1.0,
            g_sd: 0.1,
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
