//! `bare-unix-spin` and `bare-unix-block`: one Unix stream socket between two processes, with
//! non-blocking or blocking calls. The work is that of [`super::bytes`].

use std::fs;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::net::sockopt;

use super::Meet;
use crate::control::Job;
use crate::peers::bytes::Bytes;
use crate::pingpong::GIVE_UP;
use crate::work::Role;

/// Bytes in flight. More than the default of 208 KiB needs fewer calls, and this still fits the
/// second-level cache.
const SEND_BUFFER_BYTES: usize = 512 << 10;

/// Connects the two sides. The following side listens.
pub(crate) fn open(job: &Job, meet: Meet) -> io::Result<Bytes<UnixStream>> {
    let name = job.meeting.with_extension("socket");
    let stream = match job.role {
        Role::Lead => {
            meet(Vec::new())?;
            UnixStream::connect(name)?
        }
        Role::Follow => {
            // A failed measurement may have left it.
            let _may_not_exist = fs::remove_file(&name);
            let listener = UnixListener::bind(&name)?;
            meet(Vec::new())?;
            let stream = listener.accept()?.0;
            fs::remove_file(name)?;
            stream
        }
    };
    if sockopt::set_socket_send_buffer_size_force(&stream, SEND_BUFFER_BYTES).is_err() {
        sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES)?;
    }
    let spins = !job.subject.blocks();
    stream.set_read_timeout(Some(GIVE_UP))?;
    stream.set_write_timeout(Some(GIVE_UP))?;
    stream.set_nonblocking(spins)?;
    Ok(Bytes::new(stream.try_clone()?, stream, spins))
}
