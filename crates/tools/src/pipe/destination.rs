//! Where a receiver writes: directly to standard output, a device or a pipe; or to a regular file, which
//! has a temporary name until it is complete.

use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::OFlags;
use rustix::process::geteuid;

use super::frame::{FileFacts, Sum};
use super::record::{NAME_BYTES, is_name};
use super::{PipeError, failed_at};

/// Suffix of incomplete files.
const PART: &[u8] = b".part";
/// Bytes of a long name that the name of its incomplete file begins with.
const KEPT_NAME_BYTES: usize = 200;
/// Bytes read at once to checksum existing contents.
const CHUNK_BYTES: usize = 1 << 20;

/// Origin of a file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NamedBy {
    /// The user of this program, who may name a device or a symbolic link.
    Receiver,
    /// The sender, for which only regular files in the directory are created.
    Sender,
}

/// A file being received.
pub(super) struct Destination {
    file: File,
    /// Its temporary and final names; `None` if it is not a regular file.
    names: Option<(PathBuf, PathBuf)>,
}

impl Destination {
    /// Opens the file. What an earlier transfer left is kept with `resume`, and otherwise dropped.
    pub(super) fn open(
        path: &Path,
        named_by: NamedBy,
        resume: bool,
    ) -> Result<Destination, PipeError> {
        let found = match named_by {
            NamedBy::Receiver => std::fs::metadata(path),
            NamedBy::Sender => std::fs::symlink_metadata(path),
        };
        if found.is_ok_and(|found| !found.is_file()) {
            if named_by == NamedBy::Sender {
                let file = path.to_owned();
                return Err(PipeError::NoPlainFile { file });
            }
            let file = OpenOptions::new().write(true).open(path);
            return Ok(Destination {
                file: file.map_err(failed_at("opening the file", path))?,
                names: None,
            });
        }
        // Follows a symbolic link, so that its target is replaced and not the link.
        let whole = match named_by {
            NamedBy::Receiver => std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()),
            NamedBy::Sender => path.to_owned(),
        };
        let name = whole.file_name().unwrap_or_default();
        let part = whole.with_file_name(OsStr::from_bytes(&part_name(name.as_bytes())));
        let file = open_part(&part)?;
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

    /// Checksums the existing contents of a file that will have `length_bytes`.
    pub(super) fn sum(
        &mut self,
        length_bytes: u64,
        working: &mut dyn FnMut(),
    ) -> Result<Sum, PipeError> {
        let mut sum = Sum::new();
        let Some((part, _)) = &self.names else {
            return Ok(sum);
        };
        let read = self.file.metadata().and_then(|found| match found.len() {
            length if length <= length_bytes => sum_of(&mut self.file, length, working),
            _ => Ok(Sum::new()),
        });
        sum = read.map_err(failed_at("reading the file", part))?;
        Ok(sum)
    }

    /// True for a file in which holes can be left.
    pub(super) fn is_regular(&self) -> bool {
        self.names.is_some()
    }

    /// The file, for writing from the current position.
    pub(super) fn begin_at(&mut self, offset_bytes: u64) -> io::Result<File> {
        if self.names.is_some() {
            self.file.set_len(offset_bytes)?;
            self.file.seek(SeekFrom::Start(offset_bytes))?;
        }
        self.file.try_clone()
    }

    /// Completes the file: sets its mode, time and name.
    pub(super) fn finish(self, facts: Option<&FileFacts<'_>>) -> Result<(), PipeError> {
        let Some((part, whole)) = self.names else {
            return Ok(());
        };
        let set = || {
            if let Some(facts) = facts {
                // A set-user-ID program must not become one of the receiver's.
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

    /// Describes what is left of a file that will not be completed now.
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

/// Name of a file until it is complete. A name that would be too long is shortened, and made distinct by
/// its checksum.
pub(super) fn part_name(name: &[u8]) -> Vec<u8> {
    if name.len() + PART.len() <= NAME_BYTES {
        return [name, PART].concat();
    }
    let mut sum = Sum::new();
    sum.add(name);
    let crc = format!("-{:08x}", sum.crc());
    [&name[..KEPT_NAME_BYTES], crc.as_bytes(), PART].concat()
}

/// True for a name that another file may have until it is complete.
pub(super) fn is_part_name(name: &[u8]) -> bool {
    name.ends_with(PART)
}

/// True for a regular file of this user without further names.
pub(super) fn is_ours(found: &Metadata) -> bool {
    found.is_file() && found.nlink() == 1 && found.uid() == geteuid().as_raw()
}

/// Opens the file of a transfer: a new one, or what an earlier transfer of this user left. In a
/// directory that other users can write to, anything may exist under that name.
fn open_part(part: &Path) -> Result<File, PipeError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    options.custom_flags(flags.bits().cast_signed());
    let opened = match options.clone().create_new(true).open(part) {
        Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => options.open(part),
        created => return created.map_err(failed_at("opening the file", part)),
    };
    let refused = || PipeError::NoPlainFile {
        file: part.to_owned(),
    };
    let file = opened.map_err(|cause| match cause.raw_os_error() {
        Some(number) if number == rustix::io::Errno::LOOP.raw_os_error() => refused(),
        _ => failed_at("opening the file", part)(cause),
    })?;
    let found = file.metadata();
    let found = found.map_err(failed_at("looking at the file", part))?;
    is_ours(&found).then_some(file).ok_or_else(refused)
}

/// Checksums the first bytes of a file and stops after them; `working` runs again and again meanwhile.
pub(super) fn sum_of(
    file: &mut File,
    length_bytes: u64,
    working: &mut dyn FnMut(),
) -> io::Result<Sum> {
    let mut sum = Sum::new();
    file.seek(SeekFrom::Start(0))?;
    let mut from = file.take(length_bytes);
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        working();
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => sum.add(&buffer[..length]),
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(sum)
}

/// The path of a file with this name in a directory; `None` if the name would lead elsewhere.
pub(super) fn place_in(directory: &Path, name: &[u8]) -> Option<PathBuf> {
    is_name(name).then(|| directory.join(OsStr::from_bytes(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leads_out_of_the_directory() {
        let folder = Path::new("/to");
        assert_eq!(
            place_in(folder, b"a..\xff\n\x1b"),
            Some(folder.join(OsStr::from_bytes(b"a..\xff\n\x1b")))
        );
        for name in [
            &b""[..],
            b".",
            b"..",
            b"../x",
            b"/etc/passwd",
            b"a/b",
            b"a\0",
            &[b'a'; 256],
        ] {
            assert_eq!(place_in(folder, name), None, "{name:?}");
        }
    }

    #[test]
    fn a_sender_reaches_nothing_through_links_devices_or_files_of_others() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let precious = at("precious");
        std::fs::write(&precious, b"precious").unwrap();
        symlink(&precious, at("link")).unwrap();
        symlink("nowhere", at("dangling")).unwrap();
        symlink(&precious, at("a.part")).unwrap();
        std::fs::hard_link(&precious, at("b.part")).unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        rustix::fs::mkfifoat(
            rustix::fs::CWD,
            at("fifo"),
            rustix::fs::Mode::from_raw_mode(0o600),
        )
        .unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        for name in ["link", "dangling", "a", "b", "directory", "fifo", "socket"] {
            let opened = Destination::open(&at(name), NamedBy::Sender, false);
            let error = opened.err().expect(name).to_string();
            assert!(
                error.contains("is not a plain file of this user"),
                "{error}"
            );
        }
        assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
        assert!(!at("nowhere").exists());
        // The receiver's own name is used as it is, but the file of the transfer must be private.
        let meant = Destination::open(&at("link"), NamedBy::Receiver, false).unwrap();
        meant.finish(None).unwrap();
        assert!(at("link").is_symlink() && std::fs::read(&precious).unwrap().is_empty());
        assert!(Destination::open(&at("a"), NamedBy::Receiver, false).is_err());
    }

    #[test]
    fn the_longest_names_have_distinct_names_while_they_are_incomplete() {
        let (one, other) = ([b'a'; 255], [&[b'a'; 254][..], b"b"].concat());
        let parts = [&one[..250], &one, &other].map(part_name);
        for part in &parts {
            assert!(part.len() <= 255 && is_part_name(part));
        }
        assert!(parts[0] != parts[1] && parts[1] != parts[2]);
    }

    #[test]
    fn what_is_left_is_summed_only_where_it_may_be_a_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(folder.path().join("x.part"), b"123456789").unwrap();
        let mut kept = Destination::open(&path, NamedBy::Receiver, true).unwrap();
        assert_eq!(kept.sum(9, &mut || {}).unwrap().crc(), 0xe306_9283);
        assert_eq!(kept.sum(8, &mut || {}).unwrap().length_bytes(), 0);
        assert!(matches!(
            Destination::open(&path, NamedBy::Receiver, true),
            Err(PipeError::Busy { .. })
        ));
        assert_eq!(kept.abandon().map(|(_, bytes)| bytes), Some(9));
        let dropped = Destination::open(&path, NamedBy::Receiver, false).unwrap();
        assert!(dropped.abandon().is_none());
        assert!(!folder.path().join("x.part").exists());
    }
}
