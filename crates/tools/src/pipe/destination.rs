//! Where a receiver writes: standard output, a device or a pipe as they are, and files by another
//! name until they are whole.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use super::frame::{FileFacts, Sum};
use super::{PipeError, failed_at};

/// Appended to the name of a file that is not whole yet.
const PART: &str = ".part";
/// Read at once to sum what is there already.
const CHUNK_BYTES: usize = 1 << 20;

/// A file that is being received.
pub(super) struct Destination {
    file: File,
    /// Its names until it is whole and then; `None` for what is no regular file.
    names: Option<(PathBuf, PathBuf)>,
}

impl Destination {
    /// Opens it; what an earlier transfer left is kept with `resume`, else dropped.
    pub(super) fn open(path: &Path, resume: bool) -> Result<Destination, PipeError> {
        let found = std::fs::metadata(path);
        if found.is_ok_and(|found| !found.is_file()) {
            let file = OpenOptions::new().write(true).open(path);
            return Ok(Destination {
                file: file.map_err(failed_at("opening the file", path))?,
                names: None,
            });
        }
        // Through a link, so that what it leads to is replaced and not the link.
        let whole = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mut part = whole.clone().into_os_string();
        part.push(PART);
        let part = PathBuf::from(part);
        let options = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&part);
        let file = options.map_err(failed_at("opening the file", &part))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(PipeError::Busy { part }),
            Err(TryLockError::Error(cause)) => {
                return Err(failed_at("locking the file", &part)(cause));
            }
        }
        if !resume {
            file.set_len(0)
                .map_err(failed_at("emptying the file", &part))?;
        }
        Ok(Destination {
            file,
            names: Some((part, whole)),
        })
    }

    /// Sums what is there of a file that is to have `length_bytes`.
    pub(super) fn sum(&mut self, length_bytes: u64) -> Result<Sum, PipeError> {
        let mut sum = Sum::new();
        let Some((part, _)) = &self.names else {
            return Ok(sum);
        };
        let read = self.file.metadata().and_then(|found| match found.len() {
            length if length <= length_bytes => sum_of(&mut self.file, length),
            _ => Ok(Sum::new()),
        });
        sum = read.map_err(failed_at("reading the file", part))?;
        Ok(sum)
    }

    /// The file, to be written from here on.
    pub(super) fn begin_at(&mut self, offset_bytes: u64) -> io::Result<File> {
        if self.names.is_some() {
            self.file.set_len(offset_bytes)?;
            self.file.seek(SeekFrom::Start(offset_bytes))?;
        }
        self.file.try_clone()
    }

    /// It is whole: gives it its mode, time and name.
    pub(super) fn finish(self, facts: Option<&FileFacts<'_>>) -> Result<(), PipeError> {
        let Some((part, whole)) = self.names else {
            return Ok(());
        };
        let set = || {
            if let Some(facts) = facts {
                // A program that runs as its owner does not become one of the receiver's.
                let mode = Permissions::from_mode(facts.mode & 0o777);
                self.file.set_permissions(mode)?;
                let since = Duration::from_nanos(facts.modified_ns.unsigned_abs());
                let modified = match facts.modified_ns < 0 {
                    true => UNIX_EPOCH - since,
                    false => UNIX_EPOCH + since,
                };
                self.file.set_modified(modified)?;
            }
            std::fs::rename(&part, &whole)
        };
        set().map_err(failed_at("finishing the file", &whole))
    }

    /// It will not become whole now: says what is left of it.
    pub(super) fn abandon(self) -> Option<(PathBuf, u64)> {
        let (part, _) = self.names?;
        let bytes = self.file.metadata().map_or(0, |found| found.len());
        if bytes == 0 {
            let _is_empty = std::fs::remove_file(&part);
            return None;
        }
        Some((part, bytes))
    }
}

/// Sums the first bytes of a file and leaves it behind them.
pub(super) fn sum_of(file: &mut File, length_bytes: u64) -> io::Result<Sum> {
    let mut sum = Sum::new();
    file.seek(SeekFrom::Start(0))?;
    let mut from = file.take(length_bytes);
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => sum.add(&buffer[..length]),
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(sum)
}

/// The place of a file with this name in a directory; `None` if the name would lead elsewhere.
pub(super) fn place_in(directory: &Path, name: &[u8]) -> Option<PathBuf> {
    let is_name = !matches!(name, b"" | b"." | b"..") && !name.iter().any(|b| b"/\0".contains(b));
    is_name.then(|| directory.join(OsStr::from_bytes(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leads_out_of_the_directory() {
        let folder = Path::new("/to");
        assert_eq!(
            place_in(folder, b"a..\xff"),
            Some(folder.join(OsStr::from_bytes(b"a..\xff")))
        );
        for name in [
            &b""[..],
            b".",
            b"..",
            b"../x",
            b"/etc/passwd",
            b"a/b",
            b"a\0",
        ] {
            assert_eq!(place_in(folder, name), None, "{name:?}");
        }
    }

    #[test]
    fn what_is_left_is_summed_only_where_it_may_be_a_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(folder.path().join("x.part"), b"123456789").unwrap();
        let mut kept = Destination::open(&path, true).unwrap();
        assert_eq!(kept.sum(9).unwrap().crc(), 0xe306_9283);
        assert_eq!(kept.sum(8).unwrap().length_bytes(), 0);
        assert!(matches!(
            Destination::open(&path, true),
            Err(PipeError::Busy { .. })
        ));
        assert_eq!(kept.abandon().map(|(_, bytes)| bytes), Some(9));
        let dropped = Destination::open(&path, false).unwrap();
        assert!(dropped.abandon().is_none());
        assert!(!folder.path().join("x.part").exists());
    }
}
