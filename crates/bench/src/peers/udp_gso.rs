//! `bare-udp-gso` and `bare-udp-gso-crc`: UDP sockets with `UDP_SEGMENT` and `UDP_GRO`, spinning.
//!
//! Work: a long message is sent in super-packets of up to 64 KiB, which the kernel (or the interface)
//! cuts into Ethernet packets, and is received with as few calls. Up to 40 short messages share a
//! call and are first gathered in a buffer. The kernel copies each byte in and out once. This is the
//! fastest use of UDP sockets, without header, additional checksum or retransmission; the flow control
//! of [`super::datagrams`] prevents losses. On a veth pair super-packets are not cut, unlike on a
//! wire.
//!
//! The second subject adds the CRC32C that Dipole has in each packet, and so one copy on each side.
//! This is the limit for protocols over UDP that do not trust the sums of network cards.

use std::io;

use dipole_link::crc32c::crc32c;
use nix::sys::socket::{getsockopt, setsockopt, sockopt};

use super::Meet;
use crate::channel::{Channel, SendMode, broken};
use crate::control::Job;
use crate::peers::buffer::Buffer;
use crate::peers::datagrams::Datagrams;
use crate::subject::Subject;

/// Headers of IPv4 and UDP.
const HEADER_BYTES: usize = 28;
/// Longest UDP payload, and so the longest burst in bytes.
const TRAIN_BYTES: usize = 65_507;
/// Short messages per call.
const MESSAGES_PER_CALL: usize = 40;
const CHECKSUM_BYTES: usize = 4;

pub(crate) struct UdpGso {
    datagrams: Datagrams,
    /// Bytes of a message per packet, and those of the checksum behind them.
    piece_bytes: usize,
    checksum_bytes: usize,
    /// Limit of bytes per call.
    train_bytes: usize,
    /// Packets that wait for more.
    gathered: Vec<u8>,
    /// Number of bytes of the pending message that have been gathered or sent.
    taken_bytes: usize,
    buffer: Buffer,
    /// Range of unread messages in `buffer`.
    begin: usize,
    end: usize,
    /// Packets whose checksums have not been checked.
    unchecked: Buffer,
}

impl UdpGso {
    pub(crate) fn open(job: &Job, meet: Meet) -> io::Result<Self> {
        let size_bytes = job.work.size_bytes;
        let datagrams = Datagrams::bind(job.own, true, Some((size_bytes, TRAIN_BYTES)))?;
        datagrams.connect(job.other, meet)?;
        let mtu = getsockopt(datagrams.socket(), sockopt::IpMtu)?;
        let most_bytes = usize::try_from(mtu).unwrap_or_default() - HEADER_BYTES;
        let most_bytes = most_bytes.min(TRAIN_BYTES);
        let checksum_bytes = match job.subject {
            Subject::BareUdpGsoCrc => CHECKSUM_BYTES,
            _ => 0,
        };
        let piece_bytes = size_bytes.min(most_bytes - checksum_bytes);
        let packet_bytes = piece_bytes + checksum_bytes;
        let most = TRAIN_BYTES / packet_bytes;
        let packets = match size_bytes == piece_bytes {
            true => most.min(MESSAGES_PER_CALL),
            false => most,
        };
        let segment = i32::try_from(packet_bytes).unwrap_or(i32::MAX);
        setsockopt(datagrams.socket(), sockopt::UdpGsoSegment, &segment)?;
        setsockopt(datagrams.socket(), sockopt::UdpGroSegment, &true)?;
        Ok(Self {
            datagrams,
            piece_bytes,
            checksum_bytes,
            train_bytes: packets * packet_bytes,
            gathered: Vec::with_capacity(TRAIN_BYTES),
            taken_bytes: 0,
            buffer: Buffer::new(size_bytes + TRAIN_BYTES),
            begin: 0,
            end: 0,
            unchecked: Buffer::new(TRAIN_BYTES),
        })
    }

    /// Adds the rest of a message to the packets that wait. False if the window is full.
    fn try_gather(&mut self, payload: &[u8]) -> io::Result<bool> {
        while self.taken_bytes < payload.len() {
            let end = payload.len().min(self.taken_bytes + self.piece_bytes);
            let piece = &payload[self.taken_bytes..end];
            let more = piece.len() + self.checksum_bytes;
            if self.gathered.len() + more > self.train_bytes && !self.try_flush()? {
                return Ok(false);
            }
            self.gathered.extend_from_slice(piece);
            if self.checksum_bytes > 0 {
                self.gathered.extend(crc32c(piece).to_le_bytes());
            }
            self.taken_bytes = end;
        }
        Ok(true)
    }

    /// Sends the rest of a message without a copy. False if the window is full.
    fn try_send_long(&mut self, payload: &[u8]) -> io::Result<bool> {
        while self.taken_bytes < payload.len() {
            let end = payload.len().min(self.taken_bytes + self.train_bytes);
            if !self.datagrams.try_send(&payload[self.taken_bytes..end])? {
                return Ok(false);
            }
            self.taken_bytes = end;
        }
        Ok(true)
    }

    /// Receives packets behind the unread messages.
    fn try_fill(&mut self) -> io::Result<Option<()>> {
        let place = &mut self.buffer[self.end..];
        let received = match self.checksum_bytes {
            0 => self.datagrams.try_receive(place)?,
            _ => {
                let received = self.datagrams.try_receive(&mut self.unchecked)?;
                let packets = received.map(|length| &self.unchecked[..length]);
                let checked = packets.map(|all| check(all, self.piece_bytes, place));
                checked.transpose()?
            }
        };
        self.end += received.unwrap_or_default();
        Ok(received.map(|_| ()))
    }
}

/// Copies the pieces in these packets to `place`; returns the number of bytes.
fn check(packets: &[u8], piece_bytes: usize, place: &mut [u8]) -> io::Result<usize> {
    let mut end = 0;
    for packet in packets.chunks(piece_bytes + CHECKSUM_BYTES) {
        let parts = packet.split_last_chunk::<CHECKSUM_BYTES>();
        let intact = parts.filter(|(piece, sum)| crc32c(piece).to_le_bytes() == **sum);
        let Some((piece, _)) = intact else {
            let length = packet.len();
            return Err(broken(format!(
                "the checksum of a packet of {length} bytes is wrong"
            )));
        };
        place[end..end + piece.len()].copy_from_slice(piece);
        end += piece.len();
    }
    Ok(end)
}

impl Channel for UdpGso {
    fn try_send(&mut self, payload: &[u8], mode: SendMode) -> io::Result<bool> {
        let is_short = payload.len() <= self.piece_bytes;
        let may_wait = is_short && mode == SendMode::More;
        let has_room = match is_short || self.checksum_bytes > 0 {
            true => self.try_gather(payload)? && (may_wait || self.try_flush()?),
            false => self.try_flush()? && self.try_send_long(payload)?,
        };
        if has_room {
            self.taken_bytes = 0;
        }
        Ok(has_room)
    }

    fn try_flush(&mut self) -> io::Result<bool> {
        if !self.gathered.is_empty() {
            if !self.datagrams.try_send(&self.gathered)? {
                return Ok(false);
            }
            self.gathered.clear();
        }
        Ok(true)
    }

    fn try_receive<R>(
        &mut self,
        length: usize,
        consume: impl FnOnce(&[u8]) -> R,
    ) -> io::Result<Option<R>> {
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        }
        while self.end - self.begin < length {
            if self.buffer.len() - self.end < TRAIN_BYTES {
                return Err(broken(format!(
                    "received {} bytes, expected a message of {length}",
                    self.end - self.begin
                )));
            }
            if self.try_fill()?.is_none() {
                return Ok(None);
            }
        }
        let message = &self.buffer[self.begin..self.begin + length];
        self.begin += length;
        Ok(Some(consume(message)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_joined_and_a_damaged_packet_is_an_error() {
        let mut packets = Vec::new();
        for piece in [&b"abc"[..], b"def", b"g"] {
            packets.extend_from_slice(piece);
            packets.extend(crc32c(piece).to_le_bytes());
        }
        let mut place = [0; 8];
        assert_eq!(check(&packets, 3, &mut place).expect("intact"), 7);
        assert_eq!(&place[..7], b"abcdefg");
        packets[8] ^= 1;
        assert!(check(&packets, 3, &mut place).is_err());
    }
}
