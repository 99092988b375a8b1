//! The unix socket between a process and the lender: messages with descriptors. Nothing waits.

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

use super::wire::MAX_MESSAGE_BYTES;

/// As many as the kernel lets one message carry. Room for all of them: the kernel closes what
/// finds none, and to close a stranger's file can take long.
const MOST_FILES: usize = 253;
const MOST_SENT: usize = 2;
const BACKLOG: i32 = 256;

/// What came over a connection.
#[derive(Debug)]
pub enum Heard {
    /// Nothing yet.
    Nothing,
    /// One message and the descriptors beside it, whatever they are.
    Message(Vec<u8>, Vec<OwnedFd>),
    /// The other end has hung up.
    End,
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kind = SocketType::SEQPACKET;
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        kind,
        flags,
        None,
    )?)
}

/// Listens at a file to which every user may connect.
///
/// # Errors
/// The system's; there must be no such file.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::fs::chmod(path, Mode::from_raw_mode(0o666))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects to a lender; `WouldBlock`: many do so now.
///
/// # Errors
/// The system's.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Whoever waits to be let in; `None` if nobody does.
///
/// # Errors
/// The system's, such as too many open files.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match rustix::net::accept_with(listener, flags) {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Sends one message with descriptors, two at most.
///
/// # Errors
/// The system's; `WouldBlock` if the other end does not read.
pub fn say(socket: BorrowedFd<'_>, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SENT))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)?;
    Ok(())
}

/// Takes one message. One that is too long comes cut, one byte longer than the longest.
#[must_use]
pub fn hear(socket: BorrowedFd<'_>) -> Heard {
    let mut bytes = [0; MAX_MESSAGE_BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut was_reset = false;
    let length = loop {
        let slices = &mut [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(socket, slices, &mut ancillary, flags) {
            Ok(received) => break received.bytes,
            Err(Errno::INTR) => {}
            // Told once, before what the other end said until it closed.
            Err(Errno::CONNRESET) if !was_reset => was_reset = true,
            Err(Errno::AGAIN) => return Heard::Nothing,
            Err(_) => return Heard::End,
        }
    };
    let rights = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let files: Vec<OwnedFd> = rights.flatten().collect();
    match length {
        0 if files.is_empty() => Heard::End,
        length => Heard::Message(bytes[..length].to_vec(), files),
    }
}
