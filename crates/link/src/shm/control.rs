//! Messages over a connection's socket: greetings with memory, large rings, wake-ups.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::MAX_GREETING_BYTES;
use super::pull::Probe;

const BACKLOG: i32 = 1024;
const MAX_FILES: usize = 2;
const HELLO: u8 = 1;
const RING: u8 = 2;
const WAKE: u8 = 3;
const FULL: u8 = 4;
const NO_DESCRIPTORS: u8 = 5;
const LONGEST: usize = 17 + MAX_GREETING_BYTES;

/// A message on the connection's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ControlMessage {
    /// The sender's probe and greeting, with its bell; from the connecting side also the page.
    Hello { probe: Probe, greeting: Vec<u8> },
    /// Passes a large ring.
    Ring,
    /// Wakes the receiver.
    Wake,
    /// Rejects the connection: the table is full.
    Full,
    /// Ends the connection: its sender has no free descriptors for those of the peer.
    NoDescriptors,
}

/// The result of reading a connection's socket.
#[derive(Debug)]
pub(super) enum ReceivedControl {
    Nothing,
    /// A message with its descriptors.
    Message(ControlMessage, Vec<OwnedFd>),
    /// Bytes that are not a valid message.
    Malformed,
    /// A message without all its descriptors, because this process has no free ones.
    NoDescriptors,
}

/// The hello message of a hub with this probe.
pub(super) fn hello(probe: Probe, greeting: &[u8]) -> ControlMessage {
    ControlMessage::Hello {
        probe,
        greeting: greeting.to_vec(),
    }
}

/// Calls `use_it` with an address for `path`; long paths go through the directory's descriptor.
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

/// Listens on a file that only this user may connect to.
pub(super) fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket()?;
    // Connecting is impossible before `listen`, so the mode is set in time.
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

/// Sends one message; never blocks.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    message: &ControlMessage,
    files: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let mut bytes = Vec::new();
    match message {
        ControlMessage::Wake => {
            rustix::net::send(socket, &[WAKE], flags)?;
            return Ok(());
        }
        ControlMessage::Full => bytes.push(FULL),
        ControlMessage::NoDescriptors => bytes.push(NO_DESCRIPTORS),
        ControlMessage::Ring => bytes.push(RING),
        ControlMessage::Hello { probe, greeting } => {
            bytes.push(HELLO);
            bytes.extend(probe.at.to_le_bytes());
            bytes.extend(probe.number.to_le_bytes());
            bytes.extend(greeting);
        }
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(files));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags)?;
    Ok(())
}

/// Reads one message. An error means that the connection is over.
pub(super) fn receive(socket: BorrowedFd<'_>) -> io::Result<ReceivedControl> {
    // One byte more than the longest message, so that a longer one is not accepted.
    let mut bytes = [0; LONGEST + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut was_reset = false;
    let received = loop {
        let slices = &mut [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(socket, slices, &mut ancillary, flags) {
            Ok(received) => break received,
            Err(Errno::INTR) => {}
            // Reported once, before the messages that the peer sent until it closed.
            Err(Errno::CONNRESET) if !was_reset => was_reset = true,
            Err(Errno::AGAIN) => return Ok(ReceivedControl::Nothing),
            Err(error) => return Err(error.into()),
        }
    };
    let files: Vec<OwnedFd> = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        })
        .flatten()
        .collect();
    // The kernel also truncates if the peer has sent more than there is space for.
    if received.flags.contains(ReturnFlags::CTRUNC) && files.len() < MAX_FILES {
        return Ok(ReceivedControl::NoDescriptors);
    }
    match &bytes[..received.bytes] {
        [] => Err(io::ErrorKind::UnexpectedEof.into()),
        bytes => Ok(parse(bytes).map_or(ReceivedControl::Malformed, |message| {
            ReceivedControl::Message(message, files)
        })),
    }
}

fn parse(bytes: &[u8]) -> Option<ControlMessage> {
    match bytes {
        [HELLO, rest @ ..] => {
            let (at, rest) = rest.split_first_chunk()?;
            let (number, greeting) = rest.split_first_chunk()?;
            (greeting.len() <= MAX_GREETING_BYTES).then(|| ControlMessage::Hello {
                probe: Probe {
                    at: u64::from_le_bytes(*at),
                    number: u64::from_le_bytes(*number),
                },
                greeting: greeting.to_vec(),
            })
        }
        [RING] => Some(ControlMessage::Ring),
        [WAKE] => Some(ControlMessage::Wake),
        [FULL] => Some(ControlMessage::Full),
        [NO_DESCRIPTORS] => Some(ControlMessage::NoDescriptors),
        _ => None,
    }
}
