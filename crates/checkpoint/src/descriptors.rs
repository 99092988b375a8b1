//! The open files of a process: saved by path and position, and opened again.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, tell};
use rustix::io::{FdFlags, fcntl_getfd};
use serde::{Deserialize, Serialize};

/// Standard input, output and error: the launcher provides them again.
const STANDARD: RawFd = 2;

/// An open file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OpenFile {
    pub(crate) number: RawFd,
    pub(crate) path: PathBuf,
    /// As for `open(2)`, without the flags that create or truncate.
    flags: u32,
    is_closed_on_exec: bool,
    /// Position and length of a regular file.
    regular: Option<(u64, u64)>,
}

/// The open files of this process. Descriptors of other kinds that are closed on exec are those of
/// this library.
///
/// # Errors
/// A descriptor cannot be saved; the reason.
pub(crate) fn open_files(ignored: &[PathBuf]) -> Result<Vec<OpenFile>, String> {
    let unreadable = |cause: io::Error| format!("its open files cannot be listed: {cause}");
    let list = fs::read_dir("/proc/self/fd").map_err(unreadable)?;
    let names: Vec<_> = list
        .filter_map(|entry| Some(entry.ok()?.file_name()))
        .collect();
    let mut files = Vec::new();
    for name in names {
        let number = name.to_string_lossy().parse::<RawFd>();
        // The descriptor of the list is closed already.
        let path = fs::read_link(Path::new("/proc/self/fd").join(&name));
        let (Ok(number), Ok(path)) = (number, path) else {
            continue;
        };
        if !ignored.iter().any(|folder| path.starts_with(folder)) {
            files.extend(describe(number, path)?);
        }
    }
    files.sort_by_key(|file| file.number);
    Ok(files)
}

fn describe(number: RawFd, path: PathBuf) -> Result<Option<OpenFile>, String> {
    // SAFETY: a number of the list of open descriptors; if another thread closes it meanwhile, the
    // calls fail.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    let (Ok(status), Ok(flags), Ok(mode)) = (
        fstat(descriptor),
        fcntl_getfd(descriptor),
        fcntl_getfl(descriptor),
    ) else {
        return Ok(None);
    };
    let is_closed_on_exec = flags.contains(FdFlags::CLOEXEC);
    let kind = FileType::from_raw_mode(status.st_mode);
    let is_named = path.is_absolute() && status.st_nlink > 0;
    let regular = match kind {
        FileType::RegularFile if is_named => {
            let position = tell(descriptor).unwrap_or(0);
            Some((position, u64::try_from(status.st_size).unwrap_or(0)))
        }
        FileType::Directory | FileType::CharacterDevice if is_named && number > STANDARD => None,
        _ if is_closed_on_exec || number <= STANDARD || is_of_launcher(number) => return Ok(None),
        _ => {
            return Err(format!(
                "its descriptor {number} is {}, which cannot be saved; close it before the \
                 superstep ends",
                path.display()
            ));
        }
    };
    let kept = OFlags::RWMODE | OFlags::APPEND | OFlags::NONBLOCK | OFlags::DIRECTORY;
    Ok(Some(OpenFile {
        number,
        path,
        flags: (mode & kept).bits(),
        is_closed_on_exec,
        regular,
    }))
}

/// The connection to the launcher for programs of MPI.
fn is_of_launcher(number: RawFd) -> bool {
    std::env::var("PMI_FD").is_ok_and(|given| given == number.to_string())
}

/// Closes the descriptors that this process has inherited, except the standard ones and `kept`. An
/// image could not hold them.
pub fn close_inherited(kept: Option<RawFd>) {
    close_all_but(kept.into_iter());
}

/// Closes all descriptors but the standard ones and those with these numbers, in order.
fn close_all_but(kept: impl Iterator<Item = RawFd>) {
    let mut next = STANDARD + 1;
    for number in kept.chain([RawFd::MAX]) {
        if number > next {
            let (first, last) = (next.unsigned_abs(), (number - 1).unsigned_abs());
            // SAFETY: the callers own no descriptor but those that are kept, or use none of them
            // before the process is replaced.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
        next = next.max(number.saturating_add(1));
    }
}

/// Opens the files again, under their numbers. All other descriptors but the standard ones are
/// closed.
///
/// # Errors
/// A file does not exist, or is shorter than it was.
pub(crate) fn open_again(files: &[OpenFile]) -> io::Result<()> {
    let above = files
        .iter()
        .map(|file| file.number)
        .max()
        .unwrap_or(STANDARD)
        + 1;
    let opened: io::Result<Vec<OwnedFd>> = files
        .iter()
        .map(|file| {
            let descriptor = open(file).map_err(|cause| {
                io::Error::new(cause.kind(), format!("{}: {cause}", file.path.display()))
            })?;
            Ok(rustix::io::fcntl_dupfd_cloexec(descriptor, above)?)
        })
        .collect();
    let opened = opened?;
    for (file, descriptor) in files.iter().zip(&opened) {
        let flags = match file.is_closed_on_exec {
            true => libc::O_CLOEXEC,
            false => 0,
        };
        // SAFETY: the number is below `above`, so `opened` does not contain it. If this process has a
        // descriptor with it, nothing uses that later: the process is about to be replaced.
        if unsafe { libc::dup3(descriptor.as_raw_fd(), file.number, flags) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    drop(opened);
    close_all_but(files.iter().map(|file| file.number));
    Ok(())
}

fn open(file: &OpenFile) -> io::Result<OwnedFd> {
    let path = std::ffi::CString::new(file.path.as_os_str().as_bytes())?;
    let flags = file.flags.cast_signed() | libc::O_CLOEXEC;
    // SAFETY: the path ends with NUL.
    let number = unsafe { libc::open(path.as_ptr(), flags) };
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    if let Some((position, length)) = file.regular {
        let found = File::from(descriptor);
        let is_written = file.flags.cast_signed() & libc::O_ACCMODE != libc::O_RDONLY;
        let present = found.metadata()?.len();
        if present < length {
            return Err(io::Error::other(format!(
                "it has {present} bytes, but had {length} when the image was written"
            )));
        }
        if is_written {
            found.set_len(length)?;
        }
        rustix::fs::seek(&found, rustix::fs::SeekFrom::Start(position))?;
        return Ok(found.into());
    }
    Ok(descriptor)
}
