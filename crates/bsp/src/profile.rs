//! What has been measured of a link, kept from run to run.
//!
//! One file for each kind of link, JSON, in the directory of [`dipole_node::profile_dir`]. What one
//! measurement does not know it leaves as it finds it: the file also has room for others.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use crate::model::Cost;
use crate::model::{Measured, PointToPoint};
use crate::superstep::pace::Slots;

/// Of files as written here. Newer ones are not read.
const VERSION: u32 = 1;

/// The profile of one kind of link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    version: u32,
    /// What carries messages between nodes: `udp`, `bpf`, `tcp`.
    pub link: String,
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

/// A profile that cannot be read or written.
#[derive(Debug)]
pub enum ProfileError {
    /// No environment variable says where.
    NoDirectory,
    /// The file.
    File {
        /// Which.
        file: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What happened.
        cause: io::Error,
    },
    /// It is no profile.
    Content {
        /// Which.
        file: PathBuf,
        /// What is wrong.
        cause: serde_json::Error,
    },
    /// It was written by a newer version.
    Version {
        /// Which.
        file: PathBuf,
        /// Its version.
        found: u32,
    },
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProfileError::NoDirectory => {
                f.write_str("there is no folder for profiles of links; set DIPOLE_PROFILE or HOME")
            }
            ProfileError::File {
                file,
                action,
                cause,
            } => write!(
                f,
                "cannot {action} the profile {}: {cause}; set DIPOLE_PROFILE to a folder of your own",
                file.display()
            ),
            ProfileError::Content { file, cause } => write!(
                f,
                "{} is no profile of a link: {cause}; remove it and calibrate again",
                file.display()
            ),
            ProfileError::Version { file, found } => write!(
                f,
                "{} has version {found}, known is {VERSION}; remove it and calibrate again, or use \
                 the newer dipole that wrote it",
                file.display()
            ),
        }
    }
}

impl std::error::Error for ProfileError {}

impl Profile {
    /// One that knows nothing yet.
    #[must_use]
    pub fn new(link: &str) -> Profile {
        Profile {
            version: VERSION,
            link: link.to_owned(),
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
        let file = file_in(directory, link);
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(cause) => {
                return Err(ProfileError::File {
                    file,
                    action: "read",
                    cause,
                });
            }
        };
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let content = |cause| ProfileError::Content {
            file: file.clone(),
            cause,
        };
        let Version { version: found } = serde_json::from_str(&text).map_err(content)?;
        if found > VERSION {
            return Err(ProfileError::Version { file, found });
        }
        serde_json::from_str(&text).map(Some).map_err(content)
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
        let file = file_in(directory, &self.link);
        let failed = |action| {
            let file = file.clone();
            move |cause| ProfileError::File {
                file,
                action,
                cause,
            }
        };
        std::fs::create_dir_all(directory).map_err(failed("make the folder of"))?;
        let text = serde_json::to_string_pretty(self).map_err(|cause| ProfileError::Content {
            file: file.clone(),
            cause,
        })?;
        let fresh = file.with_extension(format!("json.{}", std::process::id()));
        std::fs::write(&fresh, text + "\n").map_err(failed("write"))?;
        std::fs::rename(&fresh, &file).map_err(failed("write"))?;
        Ok(file)
    }
}

fn file_in(directory: &Path, link: &str) -> PathBuf {
    directory.join(format!("{link}.json"))
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

    #[test]
    fn errors_name_the_file_and_say_what_to_do() {
        let directory = tempfile::tempdir().expect("a directory");
        let error = |text: &str| {
            std::fs::write(directory.path().join("udp.json"), text).expect("it can be written");
            let loaded = Profile::load_from(directory.path(), "udp");
            loaded.expect_err("it is wrong").to_string()
        };
        assert!(error(r#"{"version": 9, "links": []}"#).contains("has version 9, known is 1"));
        let wrong = error(r#"{"version": 1}"#);
        assert!(wrong.contains("udp.json is no profile") && wrong.contains("calibrate again"));
        let missing = paced().save_to(&directory.path().join("udp.json"));
        let missing = missing.expect_err("a file is no folder").to_string();
        assert!(missing.contains("cannot make the folder"), "{missing}");
    }
}
