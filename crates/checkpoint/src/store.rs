//! A folder with the images of a job.
//!
//! ```text
//! JOB/job.json                    how the job was started
//! JOB/set-3/rank-0-of-4.image     one image for each rank
//! JOB/set-3/rank-1-of-4.part      still being written
//! JOB/request                     for a checkpoint
//! JOB/migration-*                 notes of a migration
//! ```
//!
//! The names alone decide whether a set is complete: an image gets its name when all of it is on
//! the disk. So nothing needs to be committed for the set as a whole, and no crash can leave half a
//! set that looks complete.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::image::Identity;

/// A file in the folder that requests a checkpoint.
const REQUEST: &str = "request";

/// The checkpoints of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    folder: PathBuf,
}

/// Why checkpoints cannot be read, written or removed.
#[derive(Debug, thiserror::Error)]
#[error("checkpoints in {}: {cause}", .path.display())]
pub struct StoreError {
    /// The file or folder.
    path: PathBuf,
    cause: io::Error,
}

pub(crate) fn failed(path: &Path) -> impl Fn(io::Error) -> StoreError {
    let path = path.to_owned();
    move |cause| StoreError {
        path: path.clone(),
        cause,
    }
}

/// The images of one checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Counted from 1.
    pub number: u64,
    /// Number of ranks of the job.
    pub size: u32,
    /// Ranks whose images are complete.
    pub ranks: BTreeSet<u32>,
}

impl Set {
    /// True if the job can be restarted from it.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.size > 0 && self.ranks.len() == self.size as usize
    }
}

impl Store {
    /// The checkpoints in a folder, which need not exist yet.
    #[must_use]
    pub fn new(folder: PathBuf) -> Store {
        Store { folder }
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn set_folder(&self, set: u64) -> PathBuf {
        self.folder.join(format!("set-{set}"))
    }

    /// The path of a complete image.
    #[must_use]
    pub fn image(&self, identity: Identity) -> PathBuf {
        let Identity { set, rank, size } = identity;
        self.set_folder(set)
            .join(format!("rank-{rank}-of-{size}.image"))
    }

    /// Requests a checkpoint of the running job.
    ///
    /// # Errors
    /// The folder does not exist or cannot be written.
    pub fn request(&self) -> Result<(), StoreError> {
        let path = self.folder.join(REQUEST);
        fs::write(&path, "").map_err(failed(&path))
    }

    /// Takes a request, if there is one.
    #[must_use]
    pub fn take_request(&self) -> bool {
        fs::remove_file(self.folder.join(REQUEST)).is_ok()
    }

    /// True while an image is being written.
    #[must_use]
    pub fn is_being_written(&self, identity: Identity) -> bool {
        self.image(identity).with_extension("part").exists()
    }

    /// Begins an image.
    pub(crate) fn begin(&self, identity: Identity) -> Result<PartFile, StoreError> {
        let folder = self.set_folder(identity.set);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .map_err(failed(&folder))?;
        let image = self.image(identity);
        let path = image.with_extension("part");
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(&path)
            .map_err(failed(&path))?;
        Ok(PartFile { path, image, file })
    }

    /// All sets of which any image exists, by number.
    ///
    /// # Errors
    /// The folder cannot be read. A folder that does not exist has no sets.
    pub fn sets(&self) -> Result<Vec<Set>, StoreError> {
        let mut sets = Vec::new();
        for (number, folder) in self.set_folders()? {
            let entries = fs::read_dir(&folder).map_err(failed(&folder))?;
            let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            sets.extend(set(number, names));
        }
        Ok(sets)
    }

    /// The newest complete set.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn newest(&self) -> Result<Option<Set>, StoreError> {
        Ok(self.sets()?.into_iter().rfind(Set::is_complete))
    }

    /// Removes the complete sets before the newest `keep`, and incomplete ones before those.
    /// Returns the numbers of the removed sets.
    ///
    /// # Errors
    /// A folder cannot be removed.
    pub fn prune(&self, keep: usize) -> Result<Vec<u64>, StoreError> {
        let sets = self.sets()?;
        let complete = sets.iter().rev().filter(|set| set.is_complete());
        let Some(oldest) = complete.take(keep).last().map(|set| set.number) else {
            return Ok(Vec::new());
        };
        let mut removed = Vec::new();
        for (number, folder) in self.set_folders()? {
            if number < oldest {
                fs::remove_dir_all(&folder).map_err(failed(&folder))?;
                removed.push(number);
            }
        }
        Ok(removed)
    }

    fn set_folders(&self) -> Result<BTreeMap<u64, PathBuf>, StoreError> {
        let entries = match fs::read_dir(&self.folder) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            entries => entries.map_err(failed(&self.folder))?,
        };
        let number = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().ok()?;
            Some((name.strip_prefix("set-")?.parse().ok()?, entry.path()))
        };
        Ok(entries.filter_map(|entry| number(entry.ok()?)).collect())
    }
}

/// The set that files with these names form.
fn set(number: u64, names: impl Iterator<Item = String>) -> Option<Set> {
    let parse = |name: &str| -> Option<(u32, u32)> {
        let name = name.strip_prefix("rank-")?.strip_suffix(".image")?;
        let (rank, size) = name.split_once("-of-")?;
        let (rank, size) = (rank.parse().ok()?, size.parse().ok()?);
        (rank < size).then_some((rank, size))
    };
    let images: Vec<(u32, u32)> = names.filter_map(|name| parse(&name)).collect();
    let size = images.first()?.1;
    // Images of jobs of different sizes belong to no set.
    let size = if images.iter().all(|image| image.1 == size) {
        size
    } else {
        0
    };
    Some(Set {
        number,
        size,
        ranks: images.into_iter().map(|(rank, _)| rank).collect(),
    })
}

/// An image that is being written.
#[derive(Debug)]
pub(crate) struct PartFile {
    path: PathBuf,
    image: PathBuf,
    file: File,
}

impl PartFile {
    pub(crate) fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Closes all descriptors of this process but this file, standard error and `kept`.
    pub(crate) fn close_others(&self, kept: Option<RawFd>) {
        let mut open = vec![libc::STDERR_FILENO, self.file.as_raw_fd()];
        open.extend(kept);
        open.sort_unstable();
        let mut first = 0;
        for number in open.into_iter().map(i32::unsigned_abs).chain([u32::MAX]) {
            if let Some(last) = number.checked_sub(1).filter(|last| first <= *last) {
                // SAFETY: the writer of an image uses no descriptor that it has inherited, but those
                // that stay open.
                unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
            }
            first = number.saturating_add(1);
        }
    }

    /// Gives the image its name, once all of it is on the disk. If newer sets were complete before,
    /// this one has been removed, which is fine.
    pub(crate) fn commit(&self) -> io::Result<()> {
        self.file.sync_all()?;
        match fs::rename(&self.path, &self.image) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
            renamed => renamed?,
        }
        let folder = self.image.parent().unwrap_or(Path::new("/"));
        File::open(folder)?.sync_all()
    }

    /// Removes what has been written. Nothing is left to do if that fails.
    pub(crate) fn remove(&self) {
        let _removed = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(set: u64, rank: u32) -> Identity {
        Identity { set, rank, size: 2 }
    }

    fn write(store: &Store, set: u64, rank: u32) {
        store.begin(identity(set, rank)).unwrap().commit().unwrap();
    }

    #[test]
    fn a_set_counts_once_all_its_images_have_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("job"));
        assert_eq!(store.newest().unwrap(), None);
        write(&store, 1, 0);
        assert_eq!(store.newest().unwrap(), None);
        write(&store, 1, 1);
        assert_eq!(store.newest().unwrap().map(|set| set.number), Some(1));
        write(&store, 2, 1);
        let part = store.begin(identity(2, 0)).unwrap();
        assert_eq!(store.newest().unwrap().map(|set| set.number), Some(1));
        part.commit().unwrap();
        assert_eq!(store.newest().unwrap().map(|set| set.number), Some(2));
        assert!(store.image(identity(2, 0)).exists());
    }

    #[test]
    fn sets_older_than_the_kept_ones_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().to_owned());
        write(&store, 1, 0);
        assert!(store.prune(1).unwrap().is_empty());
        for set in [2, 4, 5] {
            write(&store, set, 0);
            write(&store, set, 1);
        }
        write(&store, 3, 0);
        write(&store, 6, 1);
        assert_eq!(store.prune(2).unwrap(), [1, 2, 3]);
        let left: Vec<u64> = store.sets().unwrap().iter().map(|set| set.number).collect();
        assert_eq!(left, [4, 5, 6]);
    }

    #[test]
    fn names_that_do_not_belong_to_one_job_form_no_complete_set() {
        let named = |names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned());
            set(1, names).is_some_and(|set| set.is_complete())
        };
        assert!(named(&["rank-0-of-1.image"]));
        assert!(named(&[
            "rank-0-of-2.image",
            "rank-1-of-2.image",
            "rank-1-of-2.part"
        ]));
        for names in [
            &["rank-0-of-2.image", "rank-1-of-3.image"][..],
            &["rank-0-of-2.image", "rank-1-of-2.part"],
            &["rank-1-of-1.image"],
            &["rank-x-of-1.image"],
            &[],
        ] {
            assert!(!named(names), "{names:?}");
        }
    }
}
