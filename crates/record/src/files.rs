//! The files of a directory, grouped by process.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::reader::{DamagedFile, SegmentReader};
use crate::segment::SegmentHeader;

/// Most files of a directory that are looked at.
const MAX_FILES: usize = 100_000;

/// The recording of one process.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Header of its first file.
    pub first: SegmentHeader,
    /// Its files by number.
    pub files: BTreeMap<u32, PathBuf>,
}

/// A directory that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// It cannot be listed.
    #[error("cannot read the directory {}: {cause}", .directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// It has no recordings.
    #[error("there are no recordings (*.dprec) in {}: run the program with DIPOLE_RECORD={}", .0.display(), .0.display())]
    None(PathBuf),
}

/// A file that was left out, and why.
pub type Refused = (PathBuf, DamagedFile);

/// The recordings in a directory by node and process, and the files that cannot be used.
///
/// # Errors
/// [`RecordingError`].
pub fn recordings(directory: &Path) -> Result<(Vec<Recording>, Vec<Refused>), RecordingError> {
    let failed = |cause| RecordingError::Directory {
        directory: directory.to_path_buf(),
        cause,
    };
    let mut found: BTreeMap<(u32, u32, u64), Recording> = BTreeMap::new();
    let mut refused = Vec::new();
    for entry in std::fs::read_dir(directory)
        .map_err(failed)?
        .take(MAX_FILES)
    {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_none_or(|end| end != "dprec") {
            continue;
        }
        let header = match SegmentReader::open(&path) {
            Ok(reader) => reader.header().clone(),
            Err(cause) => {
                refused.push((path, cause));
                continue;
            }
        };
        let process = (header.node, header.pid, header.incarnation);
        let recording = found.entry(process).or_insert_with(|| Recording {
            first: header.clone(),
            files: BTreeMap::new(),
        });
        recording.files.insert(header.segment, path);
        if header.segment < recording.first.segment {
            recording.first = header;
        }
    }
    refused.sort_by(|(one, _), (other, _)| one.cmp(other));
    match found.is_empty() && refused.is_empty() {
        true => Err(RecordingError::None(directory.to_path_buf())),
        false => Ok((found.into_values().collect(), refused)),
    }
}
