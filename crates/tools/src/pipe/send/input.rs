//! Inputs of `dipole send`: files that are sent alone, and standard input.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};

use super::super::extents::is_sparse;
use super::super::frame::FileFacts;
use super::super::{PipeError, failed, failed_at};

/// Source of the data: a file or standard input.
pub(super) struct Input {
    /// The name as it was given; `None` for standard input.
    pub(super) path: Option<PathBuf>,
    pub(super) from: File,
    /// If it is a regular file.
    pub(super) length_bytes: Option<u64>,
    pub(super) is_sparse: bool,
    mode: u32,
    modified_ns: i64,
}

/// Opens a file. A named pipe is waited for until a process writes to it.
fn open_within(path: &Path, timeout: Duration) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let from = rustix::fs::open(path, flags, Mode::empty())?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&from)?.st_mode);
    if kind == FileType::Fifo {
        let mut wanted = [PollFd::new(&from, PollFlags::IN)];
        let most = Timespec::try_from(timeout).ok();
        if rustix::io::retry_on_intr(|| poll(&mut wanted, most.as_ref()))? == 0 {
            let seconds = timeout.as_secs();
            let text = format!("no process wrote to this pipe within {seconds} s (--timeout)");
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
    }
    let flags = rustix::fs::fcntl_getfl(&from)?;
    rustix::fs::fcntl_setfl(&from, flags - OFlags::NONBLOCK)?;
    Ok(from.into())
}

fn modified_ns(found: &Metadata) -> i64 {
    let seconds = found.mtime().saturating_mul(1_000_000_000);
    seconds.saturating_add(found.mtime_nsec())
}

impl Input {
    pub(super) fn open(path: &Path, timeout: Duration) -> Result<Input, PipeError> {
        let open = || {
            let from = open_within(path, timeout)?;
            let found = from.metadata()?;
            if found.is_dir() {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            Ok((from, found))
        };
        let (from, found) = open().map_err(failed_at("opening the file", path))?;
        Ok(Input {
            path: Some(path.to_owned()),
            from,
            length_bytes: found.is_file().then_some(found.len()),
            is_sparse: is_sparse(&found),
            mode: found.mode() & 0o777,
            modified_ns: modified_ns(&found),
        })
    }

    pub(super) fn standard() -> io::Result<Input> {
        let from = std::os::fd::AsFd::as_fd(&io::stdin()).try_clone_to_owned()?;
        Ok(Input {
            path: None,
            from: from.into(),
            length_bytes: None,
            is_sparse: false,
            mode: 0,
            modified_ns: 0,
        })
    }

    /// Prepares to find out later whether a regular file has changed since it was opened.
    pub(super) fn original(&self) -> Result<Option<Original>, PipeError> {
        let (Some(length_bytes), Some(path)) = (self.length_bytes, &self.path) else {
            return Ok(None);
        };
        let file = self.from.try_clone().map_err(failed("reading the input"))?;
        Ok(Some(Original {
            path: path.clone(),
            file,
            length_bytes,
            modified_ns: self.modified_ns,
        }))
    }

    pub(super) fn name(&self) -> Option<String> {
        let path = self.path.as_ref()?;
        Some(path.display().to_string())
    }

    /// Metadata of a regular file for the receiver.
    pub(super) fn facts(&self) -> Option<FileFacts<'_>> {
        Some(FileFacts {
            name: self.path.as_ref()?.file_name()?.as_bytes(),
            mode: self.mode,
            modified_ns: self.modified_ns,
            length_bytes: self.length_bytes?,
        })
    }
}

/// A regular file as it was when it was opened.
pub(super) struct Original {
    path: PathBuf,
    file: File,
    length_bytes: u64,
    modified_ns: i64,
}

impl Original {
    /// Fails if the file has changed: what was read may be no state that it ever had.
    pub(super) fn check(&self) -> Result<(), PipeError> {
        let found = self.file.metadata();
        let found = found.map_err(failed_at("looking at the file", &self.path))?;
        let is_same = found.len() == self.length_bytes && modified_ns(&found) == self.modified_ns;
        let file = self.path.clone();
        is_same.then_some(()).ok_or(PipeError::Changed { file })
    }
}
