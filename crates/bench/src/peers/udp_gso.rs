//! `bare-udp-gso`: UDP sockets with `UDP_SEGMENT` and `UDP_GRO`, spinning.
//!
//! Work: a long message is sent in super-packets of up to 64 KiB, which the kernel (or the interface)
//! cuts into Ethernet packets, and is received with as few calls. Up to 40 short messages share a
//! call and are first gathered in a buffer. The kernel copies each byte in and out once. This is the
//! fastest use of UDP sockets, without header, additional checksum or retransmission; the flow control
//! of [`super::datagrams`] prevents losses. On a veth pair super-packets are not cut, unlike on a
//! wire.

use std::io;

use nix::sys::socket::{setsockopt, sockopt};

use super::Meet;
use crate::channel::{Channel, SendMode, broken};
use crate::control::Job;
use crate::peers::buffer::Buffer;
use crate::peers::datagrams::Datagrams;

/// UDP payload of a packet on an Ethernet of MTU 1500.
const SEGMENT_BYTES: usize = 1472;
/// Longest UDP payload, and so the longest burst in bytes.
const TRAIN_BYTES: usize = 65_507;
/// Short messages per call.
const MESSAGES_PER_CALL: usize = 40;

pub(crate) struct UdpGso {
    datagrams: Datagrams,
    /// Limit of bytes per call.
    train_bytes: usize,
    /// Short messages that wait for more.
    gathered: Vec<u8>,
    /// Number of bytes of the pending long message that have been sent.
    left_bytes: usize,
    buffer: Buffer,
    /// Range of unread messages in `buffer`.
    begin: usize,
    end: usize,
}

impl UdpGso {
    pub(crate) fn open(job: &Job, meet: Meet) -> io::Result<Self> {
        let size_bytes = job.work.size_bytes;
        let short = size_bytes <= SEGMENT_BYTES;
        let segment_bytes = size_bytes.min(SEGMENT_BYTES);
        let most = TRAIN_BYTES / segment_bytes;
        let segments = if short {
            most.min(MESSAGES_PER_CALL)
        } else {
            most
        };
        let train_bytes = segments * segment_bytes;
        let datagrams = Datagrams::bind(job.own, true, Some((size_bytes, train_bytes)))?;
        let segment = i32::try_from(segment_bytes).unwrap_or(i32::MAX);
        setsockopt(datagrams.socket(), sockopt::UdpGsoSegment, &segment)?;
        setsockopt(datagrams.socket(), sockopt::UdpGroSegment, &true)?;
        datagrams.connect(job.other, meet)?;
        Ok(Self {
            datagrams,
            train_bytes,
            gathered: Vec::with_capacity(train_bytes),
            left_bytes: 0,
            buffer: Buffer::new(size_bytes + TRAIN_BYTES),
            begin: 0,
            end: 0,
        })
    }
}

impl Channel for UdpGso {
    fn try_send(&mut self, payload: &[u8], mode: SendMode) -> io::Result<bool> {
        if mode == SendMode::More && payload.len() <= SEGMENT_BYTES {
            if self.gathered.len() + payload.len() > self.train_bytes && !self.try_flush()? {
                return Ok(false);
            }
            self.gathered.extend_from_slice(payload);
            return Ok(true);
        }
        if !self.try_flush()? {
            return Ok(false);
        }
        while self.left_bytes < payload.len() {
            let end = payload.len().min(self.left_bytes + self.train_bytes);
            if !self.datagrams.try_send(&payload[self.left_bytes..end])? {
                return Ok(false);
            }
            self.left_bytes = end;
        }
        self.left_bytes = 0;
        Ok(true)
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
            match self.datagrams.try_receive(&mut self.buffer[self.end..])? {
                Some(received) => self.end += received,
                None => return Ok(None),
            }
        }
        let message = &self.buffer[self.begin..self.begin + length];
        self.begin += length;
        Ok(Some(consume(message)))
    }
}
