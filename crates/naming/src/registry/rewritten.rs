//! Small files that one process rewrites often and others read.
//!
//! A file is rewritten in place, with its length and checksum in front. A reader that gets parts of two
//! versions notices that, and reads again. Replacing the file by renaming another one would be atomic,
//! but it locks the directory, and ext4 starts to write the data to the disk before it unlocks it: on a
//! busy disk, processes that opened endpoints waited for seconds.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use dipole_link::crc32c::crc32c;
use rustix::fs::OFlags;

/// Longer files are not read.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// Length and checksum of the contents, 4 bytes each, low first.
const HEADER_BYTES: usize = 8;
/// Attempts to read a file that is being written, and the pause between two of them.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(1);

/// Writes the contents, and creates the file if it does not exist.
pub(super) fn write(path: &Path, contents: &[u8]) -> io::Result<()> {
    let length = u32::try_from(contents.len()).map_err(io::Error::other)?;
    let header = [length.to_le_bytes(), crc32c(contents).to_le_bytes()].concat();
    let open = |is_new: bool| {
        OpenOptions::new()
            .write(true)
            .create(is_new)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(path)
    };
    // Creating locks the directory, even if the file exists.
    let mut file = match open(false) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => open(true)?,
        opened => opened?,
    };
    file.write_all(&[&header, contents].concat())
}

/// Reads the contents; `None` if the file does not exist or is malformed.
pub(super) fn read(path: &Path) -> Option<Vec<u8>> {
    for attempt in 0..ATTEMPTS {
        let bytes = read_once(path)?;
        if let Some(contents) = contents(&bytes) {
            return Some(contents.to_vec());
        }
        if attempt + 1 < ATTEMPTS {
            std::thread::sleep(PAUSE);
        }
    }
    None
}

fn read_once(path: &Path) -> Option<Vec<u8>> {
    // Root reads files of other users: symbolic links are not followed, pipes do not block.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.cast_signed())
        .open(path)
        .ok()?;
    let is_file = file.metadata().ok()?.mode() & 0o170_000 == 0o100_000;
    let mut bytes = Vec::new();
    is_file
        .then(|| file.take(MAX_FILE_BYTES).read_to_end(&mut bytes))?
        .ok()?;
    Some(bytes)
}

/// The contents of a file; `None` if parts of it are missing or of another version. An earlier version
/// may have been longer.
fn contents(bytes: &[u8]) -> Option<&[u8]> {
    let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let [a, b, c, d, sum @ ..] = *header;
    let length = usize::try_from(u32::from_le_bytes([a, b, c, d])).ok()?;
    let contents = rest.get(..length)?;
    (crc32c(contents) == u32::from_le_bytes(sum)).then_some(contents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn contents_of_any_length_follow_each_other_and_the_directory_does_not_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        assert_eq!(read(&path), None);
        write(&path, b"a long text").unwrap();
        // Only changes of the directory's entries change these.
        let times = || {
            let found = std::fs::metadata(folder.path()).unwrap();
            (found.mtime(), found.mtime_nsec(), found.ctime_nsec())
        };
        let before = (times(), std::fs::metadata(&path).unwrap().ino());
        std::thread::sleep(Duration::from_millis(20));
        for text in ["short", "", "a text that is longer than the first"] {
            write(&path, text.as_bytes()).unwrap();
            assert_eq!(read(&path).as_deref(), Some(text.as_bytes()));
        }
        let after = (times(), std::fs::metadata(&path).unwrap().ino());
        assert_eq!(before, after);
    }

    #[test]
    fn a_reader_never_gets_parts_of_two_versions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let version = |number: u8| vec![number; 1000 + usize::from(number) * 50];
        write(&path, &version(0)).unwrap();
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in (0..=u8::MAX).cycle() {
                    write(&path, &version(number)).unwrap();
                    if ends.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
            let mut complete = 0;
            for _ in 0..200 {
                // A file that is written all the time may not be readable.
                if let Some(found) = read(&path) {
                    assert_eq!(found, version(found[0]));
                    complete += 1;
                }
            }
            ends.store(true, Ordering::Relaxed);
            assert!(complete > 0);
        });
    }

    #[test]
    fn damaged_and_cut_files_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        write(&path, b"contents").unwrap();
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            assert_eq!(contents(&whole[..length]), None, "{length} bytes");
            let mut damaged = whole.clone();
            damaged[length] ^= 1;
            assert_eq!(contents(&damaged), None, "byte {length}");
        }
        assert_eq!(contents(&whole), Some(&b"contents"[..]));
    }
}
