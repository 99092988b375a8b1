//! Reads and writes profile files: JSON, one file per kind of link, such as `udp.json`.

use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Version of the format. Files with a newer version are rejected.
pub(crate) const VERSION: u32 = 1;

/// Reason why a profile cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// No environment variable names a folder.
    #[error("there is no folder for link profiles; set DIPOLE_PROFILE or HOME")]
    NoDirectory,
    /// The file cannot be accessed.
    #[error(
        "cannot {action} the profile {}: {cause}; set DIPOLE_PROFILE to a folder of your own",
        .file.display()
    )]
    File {
        /// Path of the profile.
        file: PathBuf,
        /// The operation, as a verb.
        action: &'static str,
        /// The error from the kernel.
        cause: io::Error,
    },
    /// The file is not a profile.
    #[error(
        "{} is not a link profile: {cause}; remove it and run dipole calibrate again",
        .file.display()
    )]
    Content {
        /// Path of the profile.
        file: PathBuf,
        /// The position and kind of the fault.
        cause: serde_json::Error,
    },
    /// A newer version of Dipole wrote the file.
    #[error(
        "{} has version {found}, but this program reads versions up to {VERSION}; remove it and \
         run dipole calibrate again, or use the newer dipole that wrote it",
        .file.display()
    )]
    Version {
        /// Path of the profile.
        file: PathBuf,
        /// The version in the file.
        found: u32,
    },
}

/// Reads the profile of a link. `None` if it does not exist.
pub(crate) fn read<T: DeserializeOwned>(
    directory: &Path,
    link: &str,
) -> Result<Option<T>, ProfileError> {
    let file = file_in(directory, link);
    let text = match dipole_naming::files::read_text(&file) {
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

/// Writes the profile of a link atomically, creates the folder if necessary, and returns the path.
pub(crate) fn write<T: Serialize>(
    directory: &Path,
    link: &str,
    profile: &T,
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
    std::fs::create_dir_all(directory).map_err(failed("create the folder of"))?;
    let text = serde_json::to_string_pretty(profile).map_err(|cause| ProfileError::Content {
        file: file.clone(),
        cause,
    })?;
    let temporary = file.with_extension(format!("json.{}", std::process::id()));
    let text = text + "\n";
    dipole_naming::files::write(&temporary, text.as_bytes()).map_err(failed("write"))?;
    std::fs::rename(&temporary, &file).map_err(failed("write"))?;
    Ok(file)
}

fn file_in(directory: &Path, link: &str) -> PathBuf {
    directory.join(format!("{link}.json"))
}
