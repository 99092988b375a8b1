//! `bare-pipe-spin` and `bare-pipe-block`: a pipe each way between two
//! processes; they differ in one flag, whether calls wait. The work is that of
//! [`super::bytes`]. The pipes have names only to be found by the other process.
//!
//! A blocking call on a pipe knows no time-out: it ends when the other
//! process does.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, mknodat};
use rustix::pipe::fcntl_setpipe_size;

use super::super::control::Role;
use super::bytes::Bytes;

/// Bytes a pipe holds; the system's usual 64 KiB makes long messages wait for the reader.
const PIPE_BYTES: usize = 256 << 10;

/// Before the pipes are open.
pub(crate) struct Waiting {
    role: Role,
    there: PathBuf,
    back: PathBuf,
}

impl Waiting {
    /// The following side makes them.
    pub(crate) fn bind(meeting: &Path, role: Role) -> io::Result<Self> {
        let (there, back) = (
            meeting.with_extension("there"),
            meeting.with_extension("back"),
        );
        if role == Role::Follow {
            for name in [&there, &back] {
                // A measurement that failed may have left it.
                let _may_not_exist = fs::remove_file(name);
                mknodat(CWD, name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
            }
        }
        Ok(Self { role, there, back })
    }

    /// Each open waits for the other side's, so both take the same order.
    pub(crate) fn connect(self, spins: bool) -> io::Result<Bytes<File>> {
        let write = |name| OpenOptions::new().write(true).open(name);
        let (reader, writer) = match self.role {
            Role::Lead => {
                let writer = write(&self.there)?;
                (File::open(&self.back)?, writer)
            }
            Role::Follow => {
                let reader = File::open(&self.there)?;
                let writer = write(&self.back)?;
                fs::remove_file(&self.there)?;
                fs::remove_file(&self.back)?;
                (reader, writer)
            }
        };
        // Refused beyond the system's limit for one user; then it stays as it is.
        let _as_far_as_allowed = fcntl_setpipe_size(&writer, PIPE_BYTES);
        if spins {
            for end in [&reader, &writer] {
                fcntl_setfl(end, fcntl_getfl(end)? | OFlags::NONBLOCK)?;
            }
        }
        Ok(Bytes::new(reader, writer, spins))
    }
}
