//! Files with what was measured of links, one for each kind of link, and what a process chooses by
//! them.
//!
//! They are JSON, in the directory of [`profile_dir`](crate::environment::profile_dir). Here is how
//! they are read and written, whatever is in them, and the part that a node reads when it is opened:
//! [`Choices`].

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Of files as written here. Newer ones are not read.
pub const VERSION: u32 = 1;

/// Lengths at which messages change their way, as measured; what is absent stays as it is built in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choices {
    /// Longest message that goes through shared memory whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eager_bytes: Option<usize>,
    /// Parts in which longer ones go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub piece_bytes: Option<usize>,
    /// Most packets of a message that leave as one datagram, by the port of short messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_packets: Option<usize>,
}

impl Choices {
    /// Longest message that goes through shared memory whole where nothing was measured.
    pub const BUILT_IN_EAGER_BYTES: usize = 16 << 10;

    /// Those for a kind of link; none if it was never measured.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn load(directory: &Path, link: &str) -> Result<Choices, ProfileError> {
        #[derive(Deserialize)]
        struct Part {
            #[serde(default)]
            choices: Choices,
        }
        let part: Option<Part> = read(directory, link)?;
        Ok(part.map(|part| part.choices).unwrap_or_default())
    }
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

/// What a directory has of a kind of link, `None` if nothing has been measured.
///
/// # Errors
/// [`ProfileError`].
pub fn read<T: DeserializeOwned>(directory: &Path, link: &str) -> Result<Option<T>, ProfileError> {
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

/// Saves what is known of a kind of link in a directory, which is made if it is missing, and says
/// where. Who reads meanwhile finds the old file or the new one.
///
/// # Errors
/// [`ProfileError`].
pub fn write<T: Serialize>(
    directory: &Path,
    link: &str,
    known: &T,
) -> Result<PathBuf, ProfileError> {
    let file = file_in(directory, link);
    let failed = |action| {
        let file = file.clone();
        move |cause| ProfileError::File {
            file,
            action,
            cause,
        }
    };
    std::fs::create_dir_all(directory).map_err(failed("make the folder of"))?;
    let text = serde_json::to_string_pretty(known).map_err(|cause| ProfileError::Content {
        file: file.clone(),
        cause,
    })?;
    let fresh = file.with_extension(format!("json.{}", std::process::id()));
    std::fs::write(&fresh, text + "\n").map_err(failed("write"))?;
    std::fs::rename(&fresh, &file).map_err(failed("write"))?;
    Ok(file)
}

fn file_in(directory: &Path, link: &str) -> PathBuf {
    directory.join(format!("{link}.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_found_among_other_measurements() {
        let directory = tempfile::tempdir().expect("a directory");
        let of = |link| Choices::load(directory.path(), link).expect("readable");
        assert_eq!(of("shm"), Choices::default());
        let text = r#"{"version": 1, "link": "shm", "cost": [{"p": 2}],
            "choices": {"eager_bytes": 4096, "later": true}}"#;
        std::fs::write(directory.path().join("shm.json"), text).expect("it can be written");
        let expected = Choices {
            eager_bytes: Some(4096),
            ..Choices::default()
        };
        assert_eq!(of("shm"), expected);
        assert_eq!(of("udp"), Choices::default());
        let text = r#"{"version": 1, "link": "udp"}"#;
        std::fs::write(directory.path().join("udp.json"), text).expect("it can be written");
        assert_eq!(of("udp"), Choices::default());
    }

    #[test]
    fn errors_name_the_file_and_say_what_to_do() {
        let directory = tempfile::tempdir().expect("a directory");
        let error = |text: &str| {
            std::fs::write(directory.path().join("udp.json"), text).expect("it can be written");
            let loaded = Choices::load(directory.path(), "udp");
            loaded.expect_err("it is wrong").to_string()
        };
        assert!(error(r#"{"version": 9, "links": []}"#).contains("has version 9, known is 1"));
        let wrong = error(r#"{"version": 1, "choices": {"eager_bytes": "much"}}"#);
        assert!(wrong.contains("udp.json is no profile") && wrong.contains("calibrate again"));
        let missing = write(
            &directory.path().join("udp.json"),
            "udp",
            &Choices::default(),
        );
        let missing = missing.expect_err("a file is no folder").to_string();
        assert!(missing.contains("cannot make the folder"), "{missing}");
    }
}
