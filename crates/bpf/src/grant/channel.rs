//! The unix socket between a client and the broker: messages with descriptors. Never blocks.

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

/// The maximum number of descriptors in one message. Room for all of them: the kernel closes those
/// that do not fit, and closing a file of an untrusted process can take long.
const MAX_RECEIVED_FILES: usize = 253;
const MAX_SENT_FILES: usize = 2;
const BACKLOG: i32 = 256;

/// Result of receiving on a connection.
#[derive(Debug)]
pub enum Received {
    /// No message has arrived yet.
    Nothing,
    /// One message and its descriptors, unchecked.
    Message(Vec<u8>, Vec<OwnedFd>),
    /// The other end has closed the connection.
    Closed,
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

/// Listens at a path to which every user may connect.
///
/// # Errors
/// The error that the kernel returns; among others when the file exists.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::fs::chmod(path, Mode::from_raw_mode(0o666))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects to a broker.
///
/// # Errors
/// The error that the kernel returns; `WouldBlock` when its backlog is full.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Accepts a connection; `None` if none is pending.
///
/// # Errors
/// The error that the kernel returns, such as too many open files.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match rustix::net::accept_with(listener, flags) {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Sends one message with at most two descriptors.
///
/// # Errors
/// The error that the kernel returns; `WouldBlock` if the other end does not read.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SENT_FILES))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)?;
    Ok(())
}

/// Receives one message. A longer one is truncated to one byte more than the maximum.
#[must_use]
pub fn recv(socket: BorrowedFd<'_>) -> Received {
    let mut bytes = [0; MAX_MESSAGE_BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_RECEIVED_FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut was_reset = false;
    let length = loop {
        let slices = &mut [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(socket, slices, &mut ancillary, flags) {
            Ok(received) => break received.bytes,
            Err(Errno::INTR) => {}
            // Reported once, before what the other end sent until it closed.
            Err(Errno::CONNRESET) if !was_reset => was_reset = true,
            Err(Errno::AGAIN) => return Received::Nothing,
            Err(_) => return Received::Closed,
        }
    };
    let rights = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let files: Vec<OwnedFd> = rights.flatten().collect();
    match length {
        0 if files.is_empty() => Received::Closed,
        length => Received::Message(bytes[..length].to_vec(), files),
    }
}
