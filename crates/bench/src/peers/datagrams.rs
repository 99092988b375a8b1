//! A pair of UDP sockets with flow control, shared by the peers over UDP.
//!
//! UDP drops datagrams for which the receiver has no room, and a peer that loses messages does less
//! work. So the receiver reports its count of bytes, eight bytes on a separate socket, whenever a
//! quarter of the window has arrived, and the sender has at most one window in flight. Nothing is
//! retransmitted.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use rustix::net::sockopt;

use super::{Meet, PATIENCE, not_now};
use crate::channel::broken;

/// Limit of messages in flight.
const WINDOW_MESSAGES: usize = 1024;
/// Limit of bytes in flight: more does not fit the caches and is slower.
const WINDOW_BYTES: usize = 1 << 20;
/// Requested receive buffer. Without privileges the system's limit applies.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;
/// Memory that the kernel accounts for a datagram in addition to its bytes.
const OVERHEAD_BYTES: usize = 1024;

pub(super) struct Datagrams {
    data: UdpSocket,
    counts: UdpSocket,
    spins: bool,
    /// `None` if only one message is in flight at a time.
    window_bytes: Option<u64>,
    sent_bytes: u64,
    confirmed_bytes: u64,
    received_bytes: u64,
    reported_bytes: u64,
}

impl Datagrams {
    /// `size_bytes` is the message length, `unit_bytes` the limit of one call.
    pub(super) fn bind(
        ip: IpAddr,
        spins: bool,
        windowed: Option<(usize, usize)>,
    ) -> io::Result<Self> {
        let open = || -> io::Result<UdpSocket> {
            let socket = UdpSocket::bind(SocketAddr::new(ip, 0))?;
            socket.set_nonblocking(spins)?;
            socket.set_read_timeout(Some(PATIENCE))?;
            Ok(socket)
        };
        let data = open()?;
        if sockopt::set_socket_recv_buffer_size_force(&data, RECEIVE_BUFFER_BYTES).is_err() {
            sockopt::set_socket_recv_buffer_size(&data, RECEIVE_BUFFER_BYTES)?;
        }
        let buffer_bytes = sockopt::socket_recv_buffer_size(&data)?;
        let window_bytes = windowed.map(|(size_bytes, unit_bytes)| {
            window_bytes(buffer_bytes, size_bytes, unit_bytes) as u64
        });
        Ok(Self {
            data,
            counts: open()?,
            spins,
            window_bytes,
            sent_bytes: 0,
            confirmed_bytes: 0,
            received_bytes: 0,
            reported_bytes: 0,
        })
    }

    pub(super) fn socket(&self) -> &UdpSocket {
        &self.data
    }

    pub(super) fn connect(&self, other: IpAddr, meet: Meet) -> io::Result<()> {
        let (data, counts) = (self.data.local_addr()?, self.counts.local_addr()?);
        let ports = meet(vec![data.port(), counts.port()])?;
        let &[data, counts] = &ports[..] else {
            return Err(broken(format!(
                "two ports expected from the other side, not {ports:?}"
            )));
        };
        self.data.connect((other, data))?;
        self.counts.connect((other, counts))
    }

    /// Sends one burst of bytes if the window has room for it.
    pub(super) fn try_send(&mut self, bytes: &[u8]) -> io::Result<bool> {
        if !self.has_room(bytes.len() as u64)? {
            return Ok(false);
        }
        let sent = not_now(self.spins, "sending a datagram", self.data.send(bytes))?;
        if sent.is_some() {
            self.sent_bytes += bytes.len() as u64;
        }
        Ok(sent.is_some())
    }

    /// Receives the contents of one datagram, or of one coalesced burst.
    pub(super) fn try_receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let received = self.data.recv(buffer);
        let Some(length) = not_now(self.spins, "waiting for a datagram", received)? else {
            return Ok(None);
        };
        self.received_bytes += length as u64;
        if let Some(window_bytes) = self.window_bytes
            && self.received_bytes - self.reported_bytes >= window_bytes / 4
        {
            // A side that has sent everything and closed its sockets needs no more counts.
            if let Err(error) = self.counts.send(&self.received_bytes.to_le_bytes())
                && error.kind() != io::ErrorKind::ConnectionRefused
            {
                return Err(error);
            }
            self.reported_bytes = self.received_bytes;
        }
        Ok(Some(length))
    }

    fn has_room(&mut self, bytes: u64) -> io::Result<bool> {
        let Some(window_bytes) = self.window_bytes else {
            return Ok(true);
        };
        while self.sent_bytes - self.confirmed_bytes + bytes > window_bytes {
            let mut count = [0; 8];
            let received = self.counts.recv(&mut count);
            if not_now(self.spins, "waiting for a count", received)?.is_none() {
                return Ok(false);
            }
            self.confirmed_bytes = self.confirmed_bytes.max(u64::from_le_bytes(count));
        }
        Ok(true)
    }
}

/// Returns a window of up to 1024 messages that fits the caches and the receive buffer, and of at
/// least four units, so that counts arrive in time.
fn window_bytes(buffer_bytes: usize, size_bytes: usize, unit_bytes: usize) -> usize {
    let wanted = size_bytes.saturating_mul(WINDOW_MESSAGES).min(WINDOW_BYTES);
    // In the worst case the kernel rounds a buffer up to a power of two.
    let held = buffer_bytes / (2 * unit_bytes + OVERHEAD_BYTES) * unit_bytes;
    wanted.min(held).max(4 * unit_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_holds_1024_messages_where_the_buffer_does() {
        assert_eq!(window_bytes(16 << 20, 64, 64), 64 * 1024);
        assert_eq!(window_bytes(16 << 20, 1 << 20, 64_768), 1 << 20);
    }

    #[test]
    fn the_window_shrinks_to_a_small_receive_buffer() {
        let window = window_bytes(425_984, 64, 64);
        assert!(window < 64 * 1024 && window / 64 * (2 * 64 + OVERHEAD_BYTES) <= 425_984);
    }
}
