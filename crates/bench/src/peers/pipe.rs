//! `bare-pipe-spin` and `bare-pipe-block`: a pipe each way between two
//! processes; they differ in one flag, whether calls wait. The work is that of
//! [`super::bytes`]. The pipes have names only to be found by the other process.
//!
//! A blocking call on a pipe knows no time-out: it ends when the other
//! process does.

use std::fs::{self, File, OpenOptions};
use std::io;

use rustix::fs::{CWD, FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, mknodat};
use rustix::pipe::fcntl_setpipe_size;

use super::Meet;
use crate::control::Job;
use crate::peers::bytes::Bytes;
use crate::work::Role;

/// Bytes a pipe holds; the system's usual 64 KiB makes long messages wait for the reader.
const PIPE_BYTES: usize = 256 << 10;

/// Opens the pipes, which the following side makes.
pub(crate) fn open(job: &Job, meet: Meet) -> io::Result<Bytes<File>> {
    let (there, back) = (
        job.meeting.with_extension("there"),
        job.meeting.with_extension("back"),
    );
    if job.role == Role::Follow {
        for name in [&there, &back] {
            // A measurement that failed may have left it.
            let _may_not_exist = fs::remove_file(name);
            mknodat(CWD, name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        }
    }
    meet(Vec::new())?;
    let write = |name| OpenOptions::new().write(true).open(name);
    // Each open waits for the other side's, so both take the same order.
    let (reader, writer) = match job.role {
        Role::Lead => {
            let writer = write(&there)?;
            (File::open(&back)?, writer)
        }
        Role::Follow => {
            let reader = File::open(&there)?;
            let writer = write(&back)?;
            fs::remove_file(&there)?;
            fs::remove_file(&back)?;
            (reader, writer)
        }
    };
    // Refused beyond the system's limit for one user; then it stays as it is.
    let _as_far_as_allowed = fcntl_setpipe_size(&writer, PIPE_BYTES);
    let spins = !job.subject.blocks();
    if spins {
        for end in [&reader, &writer] {
            fcntl_setfl(end, fcntl_getfl(end)? | OFlags::NONBLOCK)?;
        }
    }
    Ok(Bytes::new(reader, writer, spins))
}
