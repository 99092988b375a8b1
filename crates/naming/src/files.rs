//! Files that users name: bounded reading of regular files, and writing that follows no link of
//! another user.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// Longest configuration file.
pub const MAX_TEXT_BYTES: u64 = 16 << 20;

/// Opens a regular file to read. A FIFO or a device could block or never end, so it is refused
/// without waiting.
///
/// # Errors
/// It cannot be opened, or is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() {
        return Ok(file);
    }
    let found = match kind {
        kind if kind.is_dir() => "a directory",
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    };
    let text = format!("it is {found}, not a regular file");
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

/// Reads a regular file of at most `max_bytes`.
///
/// # Errors
/// As [`open`], or it is longer or cannot be read.
pub fn read_bytes(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    read(open(path)?, max_bytes)
}

fn read(file: File, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let length = file.take(max_bytes + 1).read_to_end(&mut bytes)?;
    if length as u64 > max_bytes {
        let text = format!("it is longer than {max_bytes} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    Ok(bytes)
}

/// Reads a configuration file of at most [`MAX_TEXT_BYTES`], without its byte order mark if it has
/// one.
///
/// # Errors
/// As [`read_bytes`], or it is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    let bytes = read_bytes(path, MAX_TEXT_BYTES)?;
    let mut text = String::from_utf8(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))?;
    if text.starts_with('\u{feff}') {
        text.drain(..'\u{feff}'.len_utf8());
    }
    Ok(text)
}

/// Reads a file of at most `max_bytes` that this user's group and root can change at most.
///
/// # Errors
/// As [`read_bytes`], or another user could have written it.
pub fn read_trusted(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let facts = file.metadata()?;
    let own_uid = rustix::process::geteuid().as_raw();
    let (uid, mode) = (facts.uid(), facts.mode() & 0o7777);
    let text = if uid != own_uid && uid != 0 {
        format!("it belongs to uid {uid}")
    } else if mode & 0o002 != 0 {
        format!("everyone can change it (mode {mode:04o}); `chmod o-w` it")
    } else {
        return read(file, max_bytes);
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

/// Creates a file, or empties one of this user. Refuses links and files of other users: in a
/// directory that others can write to, such a link could lead anywhere.
///
/// # Errors
/// It belongs to another user or cannot be created.
pub fn create(path: &Path) -> io::Result<File> {
    let file = open_output(path)?;
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Opens a file as [`create`] does, but leaves its content.
///
/// # Errors
/// As [`create`].
pub fn open_output(path: &Path) -> io::Result<File> {
    let own_uid = rustix::process::geteuid().as_raw();
    // Links such as /dev/stdout belong to root.
    let is_trusted = |uid: u32| uid == own_uid || uid == 0;
    let refused = |uid: u32| {
        let text = format!("it belongs to uid {uid}; remove it or write to another place");
        io::Error::new(io::ErrorKind::PermissionDenied, text)
    };
    if let Some(folder) = path.parent()
        && let Ok(found) = std::fs::symlink_metadata(folder)
        && found.is_symlink()
        && !is_trusted(found.uid())
    {
        return Err(refused(found.uid()));
    }
    let mut follows = false;
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !is_trusted(found.uid()) {
            return Err(refused(found.uid()));
        }
        follows = found.is_symlink();
    }
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    if !follows {
        options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    }
    let file = options.open(path)?;
    let facts = file.metadata()?;
    // It may have been replaced after the first look.
    if facts.is_file() && !is_trusted(facts.uid()) {
        return Err(refused(facts.uid()));
    }
    Ok(file)
}

/// Writes a whole file that [`create`] makes.
///
/// # Errors
/// As [`create`], or it cannot be written.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    io::Write::write_all(&mut create(path)?, bytes)
}
