//! A folder with the images of a job.
//!
//! ```text
//! JOB/job.json                    how the job was started
//! JOB/set-3/rank-0-of-4.image             one image for each rank
//! JOB/set-3/rank-1-of-4-after-2.image     this one builds on that of set 2
//! JOB/set-3/rank-2-of-4.part              still being written
//! JOB/request                     for a checkpoint
//! JOB/hold                        images are copied too slowly for further ones
//! JOB/migration-*                 notes of a migration
//! ```
//!
//! The names alone decide whether a set is complete ([`Set`]): an image gets its name when all of it
//! is on the disk. So nothing needs to be committed for the set as a whole, and no crash can leave
//! half a set that looks complete.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::image::Identity;
use crate::sets::{ImageName, Listing, Name, Set};

/// A file in the folder that requests a checkpoint.
const REQUEST: &str = "request";
/// A file in the folder while no further checkpoint may begin.
const HOLD: &str = "hold";

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

    /// The path of a complete image. If it or one on which it builds is missing, the path that a full one
    /// would have.
    #[must_use]
    pub fn image(&self, identity: Identity) -> PathBuf {
        let Identity { set, rank, size } = identity;
        let found = self.listing().ok();
        let found = found.and_then(|listing| listing.image(set, rank, size));
        self.path(identity, found.and_then(|name| name.base))
    }

    /// The path of an image that builds on that of another set, or on none.
    pub(crate) fn path(&self, identity: Identity, base: Option<u64>) -> PathBuf {
        let name = Name {
            rank: identity.rank,
            size: identity.size,
            base,
            is_complete: true,
        };
        self.set_folder(identity.set).join(name.to_string())
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

    /// Lets checkpoints at intervals wait, or no longer.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn hold(&self, waits: bool) -> Result<(), StoreError> {
        let path = self.folder.join(HOLD);
        let done = match waits {
            true => fs::write(&path, ""),
            false => ignore_missing(fs::remove_file(&path)),
        };
        done.map_err(failed(&path))
    }

    /// True while checkpoints at intervals wait.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.folder.join(HOLD).exists()
    }

    /// Begins an image that builds on that of another set, or on none.
    pub(crate) fn begin(
        &self,
        identity: Identity,
        base: Option<u64>,
    ) -> Result<PartFile, StoreError> {
        let folder = self.set_folder(identity.set);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .map_err(failed(&folder))?;
        let image = self.path(identity, base);
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
        Ok(self.listing()?.sets())
    }

    /// All images, also those in work.
    ///
    /// # Errors
    /// The folder cannot be read. A folder that does not exist has no images.
    pub fn images(&self) -> Result<Vec<ImageName>, StoreError> {
        Ok(self.listing()?.into_names().collect())
    }

    /// Removes images, also if some are gone already.
    ///
    /// # Errors
    /// An image cannot be removed.
    pub fn remove(&self, images: &[ImageName]) -> Result<(), StoreError> {
        for image in images {
            let path = self.file_of(*image);
            ignore_missing(fs::remove_file(&path)).map_err(failed(&path))?;
            // It stays while it has other images.
            let _removed = fs::remove_dir(self.set_folder(image.set));
        }
        Ok(())
    }

    /// The file of an image.
    pub(crate) fn file_of(&self, image: ImageName) -> PathBuf {
        self.set_folder(image.set).join(image.name.to_string())
    }

    fn listing(&self) -> Result<Listing, StoreError> {
        let mut listing = Listing::default();
        for (number, folder) in self.set_folders()? {
            let entries = match fs::read_dir(&folder) {
                // Another process has just removed it.
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => continue,
                entries => entries.map_err(failed(&folder))?,
            };
            let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            let names = names.filter_map(|name| Name::parse(&name)).collect();
            listing.0.insert(number, names);
        }
        Ok(listing)
    }

    /// The highest number of a set, complete or not; 0 without any.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn highest(&self) -> Result<u64, StoreError> {
        let folders = self.set_folders()?;
        Ok(folders.into_keys().next_back().unwrap_or(0))
    }

    /// The newest complete set.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn newest(&self) -> Result<Option<Set>, StoreError> {
        Ok(self.sets()?.into_iter().rfind(Set::is_complete))
    }

    /// Removes the complete sets before the newest `keep`, and incomplete ones before those, except
    /// for images that newer ones build on. Returns the numbers of sets of which nothing is left.
    ///
    /// # Errors
    /// An image or a folder cannot be removed.
    pub fn prune(&self, keep: usize) -> Result<Vec<u64>, StoreError> {
        let listing = self.listing()?;
        let mut removed = Vec::new();
        for (number, names) in listing.removable(keep).0 {
            let folder = self.set_folder(number);
            if listing
                .0
                .get(&number)
                .is_some_and(|all| all.len() == names.len())
            {
                ignore_missing(fs::remove_dir_all(&folder)).map_err(failed(&folder))?;
                removed.push(number);
                continue;
            }
            for name in names {
                let path = folder.join(name.to_string());
                ignore_missing(fs::remove_file(&path)).map_err(failed(&path))?;
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

/// Other processes may remove the same files.
fn ignore_missing(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
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

    /// Closes all descriptors of this process but this file, standard error and those in `kept`.
    pub(crate) fn close_others(&self, kept: &[RawFd]) {
        let mut open = vec![libc::STDERR_FILENO, self.file.as_raw_fd()];
        open.extend_from_slice(kept);
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

    /// The path until then.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The path that the image gets.
    pub(crate) fn image(&self) -> &Path {
        &self.image
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
        store
            .begin(identity(set, rank), None)
            .unwrap()
            .commit()
            .unwrap();
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
        let part = store.begin(identity(2, 0), None).unwrap();
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
}
