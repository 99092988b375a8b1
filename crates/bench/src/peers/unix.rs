//! `bare-unix-spin` and `bare-unix-block`: one Unix stream socket between two
//! processes; they differ in one flag, whether calls wait. The work is that of
//! [`super::bytes`].

use std::fs;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::sockopt;

use super::super::control::Role;
use super::super::pingpong::GIVE_UP;
use super::bytes::Bytes;

/// Bytes under way: more than the system's usual 208 KiB lets fewer calls carry more, and
/// this still fits the second-level cache.
const SEND_BUFFER_BYTES: usize = 512 << 10;

/// Before the connection.
pub(crate) enum Waiting {
    /// Will connect to that name.
    Lead(PathBuf),
    /// Listens there.
    Follow(UnixListener, PathBuf),
}

impl Waiting {
    pub(crate) fn bind(meeting: &Path, role: Role) -> io::Result<Self> {
        let name = meeting.with_extension("socket");
        match role {
            Role::Lead => Ok(Waiting::Lead(name)),
            Role::Follow => {
                // A measurement that failed may have left it.
                let _may_not_exist = fs::remove_file(&name);
                Ok(Waiting::Follow(UnixListener::bind(&name)?, name))
            }
        }
    }

    pub(crate) fn connect(self, spins: bool) -> io::Result<Bytes<UnixStream>> {
        let stream = match self {
            Waiting::Lead(name) => UnixStream::connect(name)?,
            Waiting::Follow(listener, name) => {
                let stream = listener.accept()?.0;
                fs::remove_file(name)?;
                stream
            }
        };
        if sockopt::set_socket_send_buffer_size_force(&stream, SEND_BUFFER_BYTES).is_err() {
            sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES)?;
        }
        stream.set_read_timeout(Some(GIVE_UP))?;
        stream.set_write_timeout(Some(GIVE_UP))?;
        stream.set_nonblocking(spins)?;
        Ok(Bytes::new(stream.try_clone()?, stream, spins))
    }
}
