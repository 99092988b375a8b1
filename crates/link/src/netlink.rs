//! Netlink sockets: requests to the kernel, their replies, and notifications.
//!
//! Knows no family: callers choose the message type. The kernel handles a request within `sendto`, so
//! its reply is queued when that returns and nothing here waits.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_REQUEST, NetlinkDeserializable, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable,
};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recvfrom, sendto,
    socket_with,
};

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Groups of routing netlink that report changes of addresses: 1 (links), 5 and 9 (addresses), 7 and
/// 11 (routes). Group n is bit n - 1.
pub const ADDRESS_CHANGES: u32 = 1 | 1 << 4 | 1 << 8 | 1 << 6 | 1 << 10;
/// Larger than any datagram that the kernel sends.
const BUFFER_BYTES: usize = 32 << 10;

/// A netlink socket.
#[derive(Debug)]
pub struct Socket {
    socket: OwnedFd,
    buffer: Box<[u8]>,
    sequence: u32,
}

impl Socket {
    /// Opens a socket for a protocol, subscribed to the multicast groups whose bits are set. `None` is
    /// the routing protocol, whose number is 0.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn open(protocol: Option<Protocol>, groups: u32) -> io::Result<Socket> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        Ok(Socket {
            socket,
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            sequence: 0,
        })
    }

    /// Sends a request and returns the message in the reply, if there is one. With `acknowledged`,
    /// reads until the kernel's acknowledgement.
    ///
    /// # Errors
    /// The error that the kernel returns, or the reply cannot be parsed.
    pub fn request<Q, A>(&mut self, request: Q, acknowledged: bool) -> io::Result<Option<A>>
    where
        Q: NetlinkSerializable + Into<NetlinkPayload<Q>>,
        A: NetlinkDeserializable,
    {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = NetlinkMessage::from(request);
        message.header.flags = NLM_F_REQUEST | if acknowledged { NLM_F_ACK } else { 0 };
        message.header.sequence_number = self.sequence;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.socket, &bytes, SendFlags::empty(), &kernel)?;
        let mut found = None;
        loop {
            let length = self.receive()?;
            for reply in messages::<A>(&self.buffer[..length]) {
                let reply = reply?;
                // Skip what is left of an earlier request.
                if reply.header.sequence_number != self.sequence {
                    continue;
                }
                match reply.payload {
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok(found),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    NetlinkPayload::InnerMessage(inner) if acknowledged => found = Some(inner),
                    NetlinkPayload::InnerMessage(inner) => return Ok(Some(inner)),
                    _ if acknowledged => {}
                    _ => return Err(unreadable("it has no content")),
                }
            }
        }
    }

    /// Reads one datagram of notifications without waiting; `None` if there are no more now.
    ///
    /// # Errors
    /// Some were lost (the socket's buffer was full) or cannot be parsed.
    pub fn notifications<M: NetlinkDeserializable>(&mut self) -> io::Result<Option<Vec<M>>> {
        let length = match self.receive() {
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            received => received?,
        };
        let mut found = Vec::new();
        for message in messages(&self.buffer[..length]) {
            if let NetlinkPayload::InnerMessage(inner) = message?.payload {
                found.push(inner);
            }
        }
        Ok(Some(found))
    }

    /// Discards the notifications at hand; true if there were any, or some were lost.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn discard(&mut self) -> io::Result<bool> {
        let mut found = false;
        loop {
            match self.receive() {
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return Ok(found),
                Err(cause) if cause.kind() == io::ErrorKind::InvalidData => {}
                Err(cause) if cause.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(cause) => return Err(cause),
                Ok(_) => {}
            }
            found = true;
        }
    }

    /// Reads a datagram from the kernel into the buffer; returns its length.
    fn receive(&mut self) -> io::Result<usize> {
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        loop {
            match recvfrom(&self.socket, &mut self.buffer[..], flags) {
                Ok((kept, length, from)) => {
                    let from = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
                    // Other processes may send to this socket, too.
                    if from.is_none_or(|from| from.pid() != 0) {
                        continue;
                    }
                    return match length == kept {
                        true => Ok(kept),
                        false => Err(unreadable("it is too long")),
                    };
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Parses the messages of a datagram; stops at an error, since the next start is unknown.
pub fn messages<M: NetlinkDeserializable>(
    mut bytes: &[u8],
) -> impl Iterator<Item = io::Result<NetlinkMessage<M>>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let parsed = NetlinkMessage::<M>::deserialize(bytes);
        let length = parsed.as_ref().map_or(0, |message| message.header.length);
        bytes = match usize::try_from(length) {
            Ok(length) if length > 0 => bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]),
            _ => &[],
        };
        Some(parsed.map_err(|cause| unreadable(&cause.to_string())))
    })
}

/// An error for a reply that cannot be parsed.
#[must_use]
pub fn unreadable(why: &str) -> io::Error {
    let text = format!("cannot parse the kernel's netlink reply: {why}");
    io::Error::new(io::ErrorKind::InvalidData, text)
}
