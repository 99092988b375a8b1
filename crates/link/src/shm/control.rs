//! What goes over a connection's socket: greetings with memory, large rings, wake-ups.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::MAX_GREETING_BYTES;

const BACKLOG: i32 = 1024;
const MAX_FILES: usize = 2;
const HELLO: u8 = 1;
const RING: u8 = 2;
const WAKE: u8 = 3;
const LONGEST: usize = 17 + MAX_GREETING_BYTES;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// Who I am, my bell, and from whoever connects the memory for both.
    Hello {
        probe_at: u64,
        probe: u64,
        greeting: Vec<u8>,
    },
    /// A large ring.
    Ring,
    /// Something waits.
    Wake,
}

/// An address for a path, however long: by way of its directory's descriptor.
fn with_address<R>(
    path: &Path,
    use_it: impl FnOnce(&SocketAddrUnix) -> Result<R, Errno>,
) -> io::Result<R> {
    if let Ok(address) = SocketAddrUnix::new(path) {
        return Ok(use_it(&address)?);
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let folder = std::fs::File::open(folder)?;
    let number = std::os::fd::AsRawFd::as_raw_fd(&folder);
    let short = Path::new("/proc/self/fd")
        .join(number.to_string())
        .join(name);
    Ok(use_it(&SocketAddrUnix::new(&short)?)?)
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

/// Listens at a file that only this user may connect to.
pub(super) fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    // Before it listens nobody can connect, so the mode is right in time.
    with_address(path, |address| rustix::net::bind(&socket, address))?;
    rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

pub(super) fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    with_address(path, |address| rustix::net::connect(&socket, address))?;
    Ok(socket)
}

pub(super) fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match rustix::net::accept_with(listener, flags) {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The process and user at the other end.
pub(super) fn peer(socket: BorrowedFd<'_>) -> io::Result<(i32, u32)> {
    let found = rustix::net::sockopt::socket_peercred(socket)?;
    Ok((found.pid.as_raw_nonzero().get(), found.uid.as_raw()))
}

/// Sends one message; it never waits.
pub(super) fn say(socket: BorrowedFd<'_>, said: &Said, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(LONGEST);
    match said {
        Said::Hello {
            probe_at,
            probe,
            greeting,
        } => {
            bytes.push(HELLO);
            bytes.extend(probe_at.to_le_bytes());
            bytes.extend(probe.to_le_bytes());
            bytes.extend(greeting);
        }
        Said::Ring => bytes.push(RING),
        Said::Wake => bytes.push(WAKE),
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(files));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags)?;
    Ok(())
}

/// Takes one message; `None`: there is none. An error: the connection is over.
pub(super) fn hear(socket: BorrowedFd<'_>) -> io::Result<Option<(Said, Vec<OwnedFd>)>> {
    let mut bytes = [0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        let slices = &mut [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(socket, slices, &mut ancillary, flags) {
            Ok(received) => break received,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    };
    let files = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        })
        .flatten()
        .collect();
    let said = match &bytes[..received.bytes] {
        [] => return Err(io::ErrorKind::UnexpectedEof.into()),
        [HELLO, rest @ ..] => {
            let (Some((probe_at, rest)), ..) = (rest.split_first_chunk(), ()) else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            let Some((probe, greeting)) = rest.split_first_chunk() else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            Said::Hello {
                probe_at: u64::from_le_bytes(*probe_at),
                probe: u64::from_le_bytes(*probe),
                greeting: greeting.to_vec(),
            }
        }
        [RING] => Said::Ring,
        [WAKE] => Said::Wake,
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    Ok(Some((said, files)))
}
