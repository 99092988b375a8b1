//! `bare-pipe-spin` and `bare-pipe-block`: a pipe each way between two processes, with non-blocking or
//! blocking calls. The work is that of [`super::bytes`]. The pipes have names so that the other
//! process can open them.
//!
//! A blocking call on a pipe has no timeout. It ends when the other process does.

use std::fs::{self, File, OpenOptions};
use std::io;

use rustix::fs::{CWD, FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, mknodat};
use rustix::pipe::fcntl_setpipe_size;

use super::Meet;
use crate::control::Job;
use crate::peers::bytes::Bytes;
use crate::work::Role;

/// Capacity of a pipe. With the default of 64 KiB, long messages wait for the reader.
const PIPE_BYTES: usize = 256 << 10;

/// Opens the pipes, which the following side creates.
pub(crate) fn open(job: &Job, meet: Meet) -> io::Result<Bytes<File>> {
    let (there, back) = (
        job.meeting.with_extension("there"),
        job.meeting.with_extension("back"),
    );
    if job.role == Role::Follow {
        for name in [&there, &back] {
            // A failed measurement may have left it.
            let _may_not_exist = fs::remove_file(name);
            mknodat(CWD, name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        }
    }
    meet(Vec::new())?;
    let write = |name| OpenOptions::new().write(true).open(name);
    // Each open waits for the other side's, so both sides use the same order.
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
    // Beyond the system's limit for one user this fails and the capacity stays.
    let _as_far_as_allowed = fcntl_setpipe_size(&writer, PIPE_BYTES);
    let spins = !job.subject.blocks();
    if spins {
        for end in [&reader, &writer] {
            fcntl_setfl(end, fcntl_getfl(end)? | OFlags::NONBLOCK)?;
        }
    }
    Ok(Bytes::new(reader, writer, spins))
}
