//! A byte stream between two processes, shared by the peers over TCP, Unix sockets and pipes, which
//! differ in how the stream is opened.
//!
//! Work: the kernel copies each byte in and out once. A long message is received directly into the
//! buffer where it is read; short ones are read many at a time and used in place, and up to 64 are
//! sent with one call. This is what a careful program does. Both sides know the length, so there is
//! no length prefix. The kernel keeps the stream reliable and in order.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use super::not_now;
use crate::channel::{Channel, SendMode};
use crate::peers::buffer::Buffer;

/// Limit of short messages that are sent with one call.
const MESSAGES_PER_CALL: usize = 64;
/// From this length on, a message is received separately, directly to its place.
const LONG_BYTES: usize = 16 << 10;
const GATHER_BYTES: usize = 64 << 10;

/// One side's end of the stream.
pub(crate) struct Bytes<S> {
    reader: S,
    writer: S,
    spins: bool,
    gathered: Vec<u8>,
    gathered_messages: usize,
    /// Number of bytes of the pending data that have been sent.
    left_bytes: usize,
    buffer: Buffer,
    /// Range of unread bytes in `buffer`.
    begin: usize,
    end: usize,
}

impl<S: Read + Write> Bytes<S> {
    /// Creates an end. Both descriptors are non-blocking if `spins`, else blocking.
    pub(super) fn new(reader: S, writer: S, spins: bool) -> Self {
        Self {
            reader,
            writer,
            spins,
            gathered: Vec::with_capacity(GATHER_BYTES),
            gathered_messages: 0,
            left_bytes: 0,
            buffer: Buffer::new(GATHER_BYTES),
            begin: 0,
            end: 0,
        }
    }

    /// Reads once; false if nothing was available.
    fn read_more(&mut self) -> io::Result<bool> {
        let read = self.reader.read(&mut self.buffer[self.end..]);
        match not_now(self.spins, "waiting for bytes", read)? {
            None => Ok(false),
            Some(0) => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the other side closed the connection",
            )),
            Some(read) => {
                self.end += read;
                Ok(true)
            }
        }
    }

    /// Makes room for a message of `length` bytes behind `begin`. Behind a long one there is no more
    /// room, so that the next begins at the front again.
    fn make_room(&mut self, length: usize) {
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        }
        let wanted = if length >= LONG_BYTES {
            length
        } else {
            GATHER_BYTES
        };
        if self.begin > 0 && self.begin + length > self.buffer.len() {
            self.buffer.copy_within(self.begin..self.end, 0);
            self.end -= self.begin;
            self.begin = 0;
        }
        if self.begin == 0 && self.buffer.len() != wanted && self.end <= wanted {
            self.buffer.resize(wanted);
        }
    }
}

fn write_from<S: Write>(
    stream: &mut S,
    spins: bool,
    bytes: &[u8],
    left_bytes: &mut usize,
) -> io::Result<bool> {
    while *left_bytes < bytes.len() {
        match not_now(spins, "sending bytes", stream.write(&bytes[*left_bytes..]))? {
            Some(written) => *left_bytes += written,
            None => return Ok(false),
        }
    }
    *left_bytes = 0;
    Ok(true)
}

impl<S: Read + Write + AsFd + From<OwnedFd>> Channel for Bytes<S> {
    fn try_send(&mut self, payload: &[u8], mode: SendMode) -> io::Result<bool> {
        if mode == SendMode::More && payload.len() < LONG_BYTES {
            let full = self.gathered_messages == MESSAGES_PER_CALL
                || self.gathered.len() + payload.len() > GATHER_BYTES;
            if full && !self.try_flush()? {
                return Ok(false);
            }
            self.gathered.extend_from_slice(payload);
            self.gathered_messages += 1;
            return Ok(true);
        }
        if !self.try_flush()? {
            return Ok(false);
        }
        write_from(&mut self.writer, self.spins, payload, &mut self.left_bytes)
    }

    fn try_flush(&mut self) -> io::Result<bool> {
        if !self.gathered.is_empty() {
            let Self {
                writer,
                spins,
                gathered,
                left_bytes,
                ..
            } = self;
            if !write_from(writer, *spins, gathered, left_bytes)? {
                return Ok(false);
            }
            self.gathered.clear();
            self.gathered_messages = 0;
        }
        Ok(true)
    }

    fn try_receive<R>(
        &mut self,
        length: usize,
        consume: impl FnOnce(&[u8]) -> R,
    ) -> io::Result<Option<R>> {
        if self.end - self.begin < length {
            self.make_room(length);
            while self.end - self.begin < length {
                if !self.read_more()? {
                    return Ok(None);
                }
            }
        }
        let message = &self.buffer[self.begin..self.begin + length];
        self.begin += length;
        Ok(Some(consume(message)))
    }

    fn second(&self) -> io::Result<Self> {
        let again = |end: &S| end.as_fd().try_clone_to_owned().map(S::from);
        Ok(Self::new(
            again(&self.reader)?,
            again(&self.writer)?,
            self.spins,
        ))
    }
}
